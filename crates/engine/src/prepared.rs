//! A batch on its way to the log: entries, their payloads packed behind room for the header, and what it completes.

use env::AlignedBuf;
use format::{BATCH_ALIGN, Entry, FragmentEntry, Move, header_bytes};
use units::{Epoch, ObjectId};

use crate::buffers::BufferPool;
use crate::write_buffer::Taken;

/// A batch that has no position yet.
pub(crate) struct Prepared {
    pub entries: Vec<Entry>,
    /// Bytes of the header that `entries` make; the payloads follow it in `buf`.
    header: usize,
    payload: usize,
    pub buf: AlignedBuf,
    /// Groups that are drained when this batch, or the last part of it, is applied.
    pub taken: Vec<Taken>,
}

impl Prepared {
    /// A batch with payloads of `payload` bytes in all, already in `buf` behind room for the header of `entries`.
    pub(crate) fn new(entries: Vec<Entry>, payload: usize, buf: AlignedBuf, taken: Vec<Taken>) -> Self {
        let header = header_bytes(&entries);
        debug_assert!(buf.len() >= header + payload);
        Self { entries, header, payload, buf, taken }
    }

    /// A batch without payloads.
    pub(crate) fn metadata(entries: Vec<Entry>, buffers: &BufferPool) -> Self {
        let buf = buffers.get(header_bytes(&entries));
        Self::new(entries, 0, buf, Vec::new())
    }

    /// Bytes in the log.
    pub(crate) fn batch_bytes(&self) -> usize {
        (self.header + self.payload).next_multiple_of(BATCH_ALIGN)
    }

    /// Bytes of payload.
    pub(crate) fn payload_bytes(&self) -> usize {
        self.payload
    }

    /// Takes as many fragments as fit in `room` bytes out of it, wherever they stand: their blocks are different ones, so
    /// that their order does not matter. `None` if nothing fits. What it completes stays with the rest.
    pub(crate) fn split(&mut self, room: usize, buffers: &BufferPool) -> Option<Self> {
        let mut part = Divided::default();
        let mut rest = Divided::default();
        let mut at = self.header;
        let mut used = format::BATCH_FIXED_BYTES;
        for entry in std::mem::take(&mut self.entries) {
            let (object, epoch, items): (_, _, Vec<Item>) = match entry {
                Entry::Fragments { object, epoch, fragments } => {
                    (object, epoch, fragments.into_iter().map(Item::Written).collect())
                }
                Entry::Moves { object, epoch, moves } => (object, epoch, moves.into_iter().map(Item::Moved).collect()),
                other => {
                    rest.entries.push(other);
                    continue;
                }
            };
            let head =
                header_bytes(&[Entry::Fragments { object, epoch, fragments: Vec::new() }]) - format::BATCH_FIXED_BYTES;
            let mut open = false;
            for item in items {
                let stored = item.stored();
                let cost = stored + item.entry_bytes() + if open { 0 } else { head };
                let side = if used + cost <= room {
                    used += cost;
                    open = true;
                    &mut part
                } else {
                    &mut rest
                };
                side.push(object, epoch, item, at..at + stored);
                at += stored;
            }
        }
        if part.entries.is_empty() {
            self.entries = rest.entries;
            return None;
        }
        let part = part.build(&self.buf, Vec::new(), buffers);
        let rest = rest.build(&self.buf, std::mem::take(&mut self.taken), buffers);
        buffers.put(std::mem::replace(self, rest).buf);
        Some(part)
    }
}

/// One side of a split.
#[derive(Default)]
struct Divided {
    entries: Vec<Entry>,
    payloads: Vec<std::ops::Range<usize>>,
}

/// What a payload is there for. Both kinds of runs have heads of the same size.
enum Item {
    Written(FragmentEntry),
    Moved(Move),
}

impl Item {
    fn stored(&self) -> usize {
        match self {
            Self::Written(fragment) | Self::Moved(Move { fragment, .. }) => fragment.stored as usize,
        }
    }
    const fn entry_bytes(&self) -> usize {
        match self {
            Self::Written(_) => format::FRAGMENT_ENTRY_BYTES,
            Self::Moved(_) => format::MOVE_ENTRY_BYTES,
        }
    }
}

impl Divided {
    fn push(&mut self, object: ObjectId, epoch: Epoch, item: Item, payload: std::ops::Range<usize>) {
        self.payloads.push(payload);
        match (self.entries.last_mut(), item) {
            (Some(Entry::Fragments { object: o, epoch: e, fragments }), Item::Written(fragment))
                if (*o, *e) == (object, epoch) =>
            {
                fragments.push(fragment);
            }
            (Some(Entry::Moves { object: o, epoch: e, moves }), Item::Moved(moved)) if (*o, *e) == (object, epoch) => {
                moves.push(moved);
            }
            (_, Item::Written(fragment)) => {
                self.entries.push(Entry::Fragments { object, epoch, fragments: vec![fragment] });
            }
            (_, Item::Moved(moved)) => self.entries.push(Entry::Moves { object, epoch, moves: vec![moved] }),
        }
    }

    fn build(self, from: &[u8], taken: Vec<Taken>, buffers: &BufferPool) -> Prepared {
        let header = header_bytes(&self.entries);
        let payload = self.payloads.iter().map(ExactSizeIterator::len).sum::<usize>();
        let mut buf = buffers.get(header + payload);
        let mut at = header;
        for range in self.payloads {
            let len = range.len();
            buf[at..at + len].copy_from_slice(&from[range]);
            at += len;
        }
        Prepared { entries: self.entries, header, payload, buf, taken }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use units::{BlockIndex, BlockMask, Seq};

    #[test]
    fn splitting_fills_the_room_and_keeps_every_payload_with_its_entry() {
        let buffers = BufferPool::default();
        let sizes = [3000u32, 2500, 100, 4000, 900];
        let fragments: Vec<_> = sizes
            .iter()
            .enumerate()
            .map(|(i, stored)| FragmentEntry {
                first: BlockIndex(i as u64),
                count: 1,
                codec: 0,
                stored: *stored,
                checksum: i as u32,
            })
            .collect();
        let moves: Vec<_> = fragments[3..]
            .iter()
            .map(|f| Move { fragment: *f, live: BlockMask::run(f.first.in_group(), 1), from: 4096, made: Seq(1) })
            .collect();
        let entries = vec![
            Entry::Fragments { object: ObjectId(1), epoch: Epoch(0), fragments: fragments[..3].to_vec() },
            Entry::Moves { object: ObjectId(1), epoch: Epoch(0), moves },
            Entry::Holes { object: ObjectId(1), epoch: Epoch(0), ranges: vec![(BlockIndex(40), 2)] },
        ];
        let header = header_bytes(&entries);
        let mut buf = buffers.get(header + 10500);
        let mut at = header;
        for fragment in &fragments {
            buf[at..at + fragment.stored as usize].fill(fragment.checksum as u8 + 1);
            at += fragment.stored as usize;
        }
        let mut prepared = Prepared::new(entries, 10500, buf, Vec::new());
        assert!(prepared.split(100, &buffers).is_none());
        let mut seen = Vec::new();
        for room in [4096, 8192, 16384] {
            let part = if prepared.batch_bytes() <= room {
                prepared.split(usize::MAX, &buffers)
            } else {
                prepared.split(room, &buffers)
            };
            let part = part.unwrap();
            assert!(part.batch_bytes() <= room);
            let mut at = part.header;
            for entry in &part.entries {
                assert!(!matches!(entry, Entry::Holes { .. }), "holes stay with the rest");
                for (_, _, fragment) in entry.payloads() {
                    let payload = &part.buf[at..at + fragment.stored as usize];
                    assert!(payload.iter().all(|b| u32::from(*b) == fragment.checksum + 1));
                    at += fragment.stored as usize;
                    seen.push(fragment.checksum);
                }
            }
            if seen.len() == sizes.len() {
                break;
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2, 3, 4]);
        assert_eq!(prepared.entries.len(), 1);
    }
}
