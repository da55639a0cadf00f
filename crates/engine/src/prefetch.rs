//! Reading ahead: units are decoded into the cache before anybody asks for them.
//!
//! 1. The map tells the units of a range. 2. Each that is neither cached nor on its way is claimed: whoever wants it
//!    meanwhile waits for it. 3. The claimed ones are read, neighbours in one read, verified and decoded. 4. Each goes into the
//!    cache, which ends its claim; a claim that is dropped sends those who wait to read for themselves.
//!
//! The readers' lock is taken before the first claim: who waits for a claim may hold it too, and a checkpoint may be waiting for it.

use bytes::Bytes;
use codec::CodecId;
use surface::Result;
use units::BLOCK_BYTES;

use crate::buffers::UnitBuffer;
use crate::core::Core;
use crate::dictionaries::Readers;
use crate::objects::Object;
use crate::reader::{Wanted, at, groups_of};
use crate::scratch;
use crate::unit_cache::{Claim, Unit, UnitKey};

/// Most bytes that one request reads ahead.
const PREFETCH_BYTES_MAX: u64 = 32 << 20;
/// Bytes whose units are claimed together: one read of the data file, as a rule.
const STEP_BYTES: u64 = 256 << 10;

impl Core {
    /// Brings the units of a range into the cache; `passing` for a stream, which needs them once.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(crate) fn prefetch(&self, object: &Object, offset: u64, length: u64, passing: bool) -> Result<()> {
        let end = (offset + length.min(PREFETCH_BYTES_MAX)).min(object.size_bytes());
        let mut from = offset;
        while from < end {
            let len = STEP_BYTES.min(end - from);
            self.load_units(object, from, len, passing)?;
            from += len;
        }
        Ok(())
    }

    fn load_units(&self, object: &Object, offset: u64, length: u64, passing: bool) -> Result<()> {
        let _in_extents = self.readers.read();
        let mut loads: Vec<(Wanted, Claim<'_>)> = Vec::new();
        for (group, mask) in groups_of(offset, length) {
            let pieces = self.map.lookup(&object.levels(), group, mask).map_err(|e| at(e, object, group, mask))?;
            for piece in pieces {
                if let Some(claim) = self.units.claim(&UnitKey::new(&piece, group)) {
                    loads.push((Wanted { group, piece }, claim));
                }
            }
        }
        loads.sort_unstable_by_key(|(wanted, _)| wanted.piece.fragment.location);
        let (wanted, mut claims): (Vec<_>, Vec<_>) = loads.into_iter().map(|(w, claim)| (w, Some(claim))).unzip();
        scratch::with(|scratch| {
            let mut done = 0;
            while done < wanted.len() {
                let count = self.span(&wanted[done..]);
                self.with_payloads(object, &wanted[done..done + count], scratch, &mut |index, payload, codecs, _| {
                    let fragment = &wanted[done + index].piece.fragment;
                    let (codec, raw_len) = (CodecId(fragment.codec), usize::from(fragment.count) * BLOCK_BYTES);
                    let mut unit = UnitBuffer::new(&self.buffers, raw_len);
                    self.decode(Readers::Held, object, codecs, (codec, payload), unit.bytes(), raw_len)?;
                    if let Some(claim) = claims[done + index].take() {
                        claim.fill(Unit { bytes: Bytes::from_owner(unit), passing });
                    }
                    Ok(())
                })?;
                done += count;
            }
            Ok(())
        })
    }
}
