//! Decodes an extent from its own batches, for callers that read extents instead of asking the map
//! (cleaning, scrub, salvage).
//!
//! After the batches of the extent's present use there may be some of an earlier one, or of a
//! crashed opening of the pool: they are returned as well. The caller decides which of them are
//! valid, usually by the map: a fragment is live if and only if a record points at exactly its
//! location.

use format::{BATCH_ALIGN, Batch, Entry, FragmentEntry, FragmentIdentity, decode_batch, fragment_checksum};
use units::{BlockMask, Epoch, ExtentIndex, ObjectId, Seq};

/// A fragment in an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    pub object: ObjectId,
    pub epoch: Epoch,
    pub fragment: FragmentEntry,
    /// The batch that wrote the data first.
    pub made: Seq,
    /// Whether it was moved here, or may have been.
    pub is_moved: bool,
    /// The blocks that its batch assigns to it: all of its unit, unless it was moved without some.
    pub given: BlockMask,
    /// Offset of its payload in the extent, in bytes.
    pub offset: usize,
}

impl Stored {
    /// Returns its payload, which may be damaged, from the bytes of the extent.
    #[inline]
    pub fn payload<'a>(&self, extent: &'a [u8]) -> Option<&'a [u8]> {
        extent.get(self.offset..self.offset + self.fragment.stored as usize)
    }
    /// Returns whether the payload matches its checksum.
    #[inline]
    pub fn is_intact(&self, payload: &[u8]) -> bool {
        let FragmentEntry { first, count, codec, checksum, .. } = self.fragment;
        let identity = FragmentIdentity { object: self.object, epoch: self.epoch, first, count, codec };
        fragment_checksum(&identity, payload) == checksum
    }
}

/// Returns the batches in the bytes of an extent, with their offsets. Where there is none, the
/// search continues 4 KiB further.
pub fn batches(pool: u64, extent: ExtentIndex, bytes: &[u8]) -> impl Iterator<Item = (usize, Batch)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        while at + BATCH_ALIGN <= bytes.len() {
            let begin = at;
            match decode_batch(&bytes[begin..]) {
                Ok(batch) if (batch.header.pool, batch.header.extent) == (pool, extent) => {
                    at += batch.batch_bytes;
                    return Some((begin, batch));
                }
                _ => at += BATCH_ALIGN,
            }
        }
        None
    })
}

/// The fragments of a batch that begins at byte `at` of its extent.
pub fn fragments(at: usize, batch: &Batch) -> impl Iterator<Item = Stored> {
    let mut offset = at + batch.header_bytes;
    let named = batch.entries.iter().flat_map(|entry| {
        let moves = if let Entry::Moves { moves, .. } = entry { moves.as_slice() } else { &[] };
        // The n-th payload of an entry of moves is that of its n-th move; others were made by this
        // very batch.
        entry.payloads().enumerate().map(|(n, payload)| (payload, moves.get(n)))
    });
    named.map(move |((object, epoch, fragment), moved)| {
        let begin = offset;
        offset += fragment.stored as usize;
        let made = moved.map_or(batch.header.seq, |moved| moved.made);
        let given = moved.map_or(fragment.unit(), |moved| moved.live);
        Stored { object, epoch, fragment: *fragment, made, is_moved: moved.is_some(), given, offset: begin }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use format::{BatchHeader, Move, encode_batch, header_bytes};
    use units::{BlockIndex, BlockMask};

    const EXTENT: usize = 64 << 10;

    fn fragment(first: u64, fill: u8, stored: u32) -> (FragmentEntry, Vec<u8>) {
        let payload = vec![fill; stored as usize];
        let first = BlockIndex(first);
        let identity = FragmentIdentity { object: ObjectId(1), epoch: Epoch(0), first, count: 1, codec: 0 };
        let checksum = fragment_checksum(&identity, &payload);
        (FragmentEntry { first, count: 1, codec: 0, stored, checksum }, payload)
    }

    fn put(extent: &mut [u8], at: usize, seq: u64, entries: &[Entry], payloads: &[Vec<u8>]) -> usize {
        let header = BatchHeader {
            pool: 7,
            seq: Seq(seq),
            incarnation: 1,
            incarnation_first_seq: Seq(1),
            durable_before: Seq(1),
            extent: ExtentIndex(3),
            stream: format::Stream::Hot,
        };
        let payload = payloads.concat();
        let len = (header_bytes(entries) + payload.len()).next_multiple_of(BATCH_ALIGN);
        let mut bytes = encode_batch(&header, entries, header_bytes(entries), len);
        bytes.extend(payload);
        bytes.resize(len, 0);
        extent[at..at + len].copy_from_slice(&bytes);
        at + len
    }

    #[test]
    fn fragments_are_found_with_their_places_and_ages_past_what_does_not_decode() {
        let mut bytes = vec![0; EXTENT];
        let (one, two, three) = (fragment(1, 1, 100), fragment(2, 2, 4096), fragment(3, 3, 50));
        let written = [Entry::Fragments { object: ObjectId(1), epoch: Epoch(0), fragments: vec![one.0, two.0] }];
        let moved = Move { fragment: three.0, live: BlockMask(1 << 3), from: 4096, made: Seq(4) };
        let moves = [
            Entry::Moves { object: ObjectId(1), epoch: Epoch(0), moves: vec![moved] },
            Entry::Fragments { object: ObjectId(1), epoch: Epoch(0), fragments: vec![one.0] },
        ];
        let end = put(&mut bytes, 0, 20, &written, &[one.1.clone(), two.1]);
        // A gap, as damage leaves it, before the next batch.
        put(&mut bytes, end + BATCH_ALIGN, 21, &moves, &[three.1, one.1]);
        let found: Vec<_> =
            batches(7, ExtentIndex(3), &bytes).flat_map(|(at, b)| fragments(at, &b).collect::<Vec<_>>()).collect();
        let listed: Vec<_> = found.iter().map(|f| (f.fragment.first.0, f.made.0, f.given.0)).collect();
        assert_eq!(listed, [(1, 20, 2), (2, 20, 4), (3, 4, 8), (1, 21, 2)]);
        assert!(found.iter().all(|f| f.is_intact(f.payload(&bytes).unwrap())));
        assert_eq!(batches(8, ExtentIndex(3), &bytes).count(), 0);
        assert_eq!(batches(7, ExtentIndex(4), &bytes).count(), 0);
    }
}
