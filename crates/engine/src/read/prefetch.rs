//! Reading ahead, and around: units are decoded into the cache before any client asks for them.
//!
//! 1. The map lists the units of a range. 2. Each that is neither cached nor on its way is claimed:
//!    a reader that wants it waits for it. 3. The claimed ones are read, neighbours in one read,
//!    verified and decoded. 4. Each goes into the cache, which ends its claim; when a claim is
//!    dropped, its waiters read for themselves.
//!
//! Around a small read, while the cache has plenty of room: the rest of its group as far as it is
//! adjacent to the units that are read anyway. Then one read of the device fetches a whole group,
//! and memory that is still unused is filled with a quarter of the requests.
//!
//! The readers' lock is taken before the first claim: a waiter for a claim may hold it too, and a
//! checkpoint may be waiting for it.

use std::ops::Range;

use bytes::Bytes;
use codec::{CodecId, Workspace};
use store::base::scratch;
use store::map::Piece;
use store::objects::Object;
use surface::Result;
use units::{BLOCK_BYTES, BlockMask};

use crate::read::Reads;
use crate::read::dictionaries::Readers;
use crate::read::reader::{Wanted, at, groups_of};
use crate::read::spans::{is_adjacent, neighbours};
use crate::read::unit_cache::{Claim, Purpose, Unit, UnitBuffer, UnitKey};

/// Upper bound of bytes that one request reads ahead.
const PREFETCH_BYTES_MAX: u64 = 32 << 20;
/// Bytes whose units are claimed together: usually one read of the data file.
const STEP_BYTES: u64 = 256 << 10;

impl Reads {
    /// Loads the units of a range into the cache; `purpose` is theirs there.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(crate) fn prefetch(&self, object: &Object, offset: u64, length: u64, purpose: Purpose) -> Result<()> {
        let end = (offset + length.min(PREFETCH_BYTES_MAX)).min(object.size_bytes());
        let mut from = offset;
        while from < end {
            let len = STEP_BYTES.min(end - from);
            self.load_units(object, from, len, purpose)?;
            from += len;
        }
        Ok(())
    }

    fn load_units(&self, object: &Object, offset: u64, length: u64, purpose: Purpose) -> Result<()> {
        let _in_extents = self.readers.read();
        let mut loads = Vec::new();
        self.claim_range(object, offset..offset + length, |wanted, claim| loads.push((wanted, claim)))?;
        self.load(object, loads, purpose)
    }

    /// Steps 1 and 2. The caller holds [`Reads::readers`].
    ///
    /// # Errors
    /// Those of the map.
    pub(crate) fn claim_range<'a>(
        &'a self,
        object: &Object,
        range: Range<u64>,
        mut each: impl FnMut(Wanted, Claim<'a>),
    ) -> Result<()> {
        for (group, mask) in groups_of(range.start, range.end - range.start) {
            let pieces =
                self.map.lookup_stored(&object.levels(), group, mask).map_err(|e| at(e, object, group, mask))?;
            for piece in pieces {
                if let Some(claim) = self.units.claim(&UnitKey::new(&piece, group)) {
                    each(Wanted { group, piece }, claim);
                }
            }
        }
        Ok(())
    }

    /// Claims the units of the groups that a request misses, as far as they are adjacent to its
    /// fragments. A group for which the map can return no more than was requested is left out.
    pub(crate) fn claim_around(&self, object: &Object, wanted: &[Wanted]) -> Vec<(Wanted, Claim<'_>)> {
        let mut loads: Vec<(Wanted, Claim<'_>)> = Vec::new();
        let mut last = None;
        for Wanted { group, .. } in wanted {
            if last.replace(*group) == Some(*group) {
                continue;
            }
            // If the request needs only the newest records, older ones may be damaged.
            let Ok(mut pieces) = self.map.lookup_stored(&object.levels(), *group, BlockMask::FULL) else { continue };
            pieces.sort_unstable_by_key(|piece| piece.fragment.location);
            let is_wanted = |piece: &Piece| {
                let place = piece.fragment.location;
                wanted.iter().any(|w| w.group == *group && w.piece.fragment.location == place)
            };
            for near in pieces.chunk_by(|a, b| is_adjacent(&a.fragment, &b.fragment)) {
                if near.len() > 1 && near.iter().any(is_wanted) {
                    loads.extend(near.iter().filter_map(|piece| {
                        let claim = self.units.claim(&UnitKey::new(piece, *group))?;
                        Some((Wanted { group: *group, piece: *piece }, claim))
                    }));
                }
            }
        }
        loads
    }

    /// Reads the groups of the fragments that a request misses, as far as they are adjacent to
    /// them, and removes those fragments from `wanted` that are in the cache afterwards.
    pub(crate) fn read_around(
        &self,
        object: &Object,
        wanted: &mut Vec<Wanted>,
        mut use_unit: impl FnMut(&Wanted, &Unit),
    ) {
        let loads = self.claim_around(object, wanted);
        // Damaged data here may not have been requested; if it was, a read of it alone reports the
        // error.
        let _ = self.load(object, loads, Purpose::Kept);
        wanted.retain(|w| match self.units.get(&UnitKey::new(&w.piece, w.group)) {
            Some(unit) => {
                use_unit(w, &unit);
                false
            }
            None => true,
        });
    }

    /// Decodes a verified payload for the cache. The caller holds [`Reads::readers`].
    pub(crate) fn decode_unit(
        &self,
        object: &Object,
        wanted: &Wanted,
        payload: &[u8],
        codecs: &mut Workspace,
    ) -> Result<UnitBuffer> {
        let fragment = &wanted.piece.fragment;
        let (codec, raw_len) = (CodecId(fragment.codec), usize::from(fragment.count) * BLOCK_BYTES);
        let mut unit = self.units.buffer(raw_len);
        self.decode(Readers::Held, object, codecs, (codec, payload), unit.bytes(), raw_len)?;
        Ok(unit)
    }

    /// Puts a decoded unit into the cache, and counts it if it was read ahead.
    pub(crate) fn fill(&self, claim: Claim<'_>, unit: UnitBuffer, purpose: Purpose) {
        let bytes = Bytes::from_owner(unit);
        if purpose != Purpose::Kept {
            self.vitals.counters.ahead_bytes.add(bytes.len() as u64);
        }
        claim.fill(Unit { bytes, purpose });
    }

    /// Steps 3 and 4.
    fn load(&self, object: &Object, mut loads: Vec<(Wanted, Claim<'_>)>, purpose: Purpose) -> Result<()> {
        loads.sort_unstable_by_key(|(wanted, _)| wanted.piece.fragment.location);
        let (wanted, mut claims): (Vec<_>, Vec<_>) = loads.into_iter().map(|(w, claim)| (w, Some(claim))).unzip();
        scratch::with(|scratch| {
            neighbours(&wanted).try_for_each(|span| {
                let (wanted, claims) = (&wanted[span.clone()], &mut claims[span]);
                self.with_payloads(object, wanted, scratch, &mut |index, payload, codecs, _| {
                    let unit = self.decode_unit(object, &wanted[index], payload, codecs)?;
                    if let Some(claim) = claims[index].take() {
                        self.fill(claim, unit, purpose);
                    }
                    Ok(())
                })
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use sim::Machine;
    use surface::{BlockDevice, ErrorKind, WriteOptions};

    use super::*;
    use crate::pool::testing::pool_on;

    /// A clone has all blocks that are read; blocks around them are searched in its origin, whose
    /// record is damaged.
    #[test]
    fn a_damaged_record_that_nobody_asked_for_fails_no_read() {
        let machine = Machine::new(16 << 20, 1);
        let pool = pool_on(&machine, machine.disk.handle(), 16 << 20, 0);
        pool.create_volume("v", 1 << 20, &Default::default()).unwrap();
        let volume = pool.volume("v").unwrap();
        let block = |fill: u8| Bytes::from(vec![fill; BLOCK_BYTES]);
        volume.write(BLOCK_BYTES as u64, block(1), WriteOptions::default()).unwrap();
        pool.snapshot("v", "s").unwrap();
        pool.clone_snapshot("v@s", "c", &Default::default()).unwrap();
        let clone = pool.volume("c").unwrap();
        clone.write(0, block(2), WriteOptions::default()).unwrap();
        pool.checkpoint().unwrap();
        let of_volume = |key: &[u8]| format::parse_record_key(key).is_some_and(|key| key.object == volume.object.id);
        let (key, _) = machine.store.dump().into_iter().find(|(key, _)| of_volume(key)).unwrap();
        machine.store.flip_bit(&key, 3, 5);
        pool.drop_caches();
        let mut buf = vec![0; BLOCK_BYTES];
        clone.read(0, &mut buf).unwrap();
        assert!(buf == block(2));
        assert_eq!(volume.read(BLOCK_BYTES as u64, &mut buf).unwrap_err().kind(), ErrorKind::Corrupt);
    }
}
