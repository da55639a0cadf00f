//! Recompresses cold data on its way through the cleaner: where a volume's property `cold-mode`
//! asks for it, the data is compressed again (`recode`) instead of being moved unchanged. It has
//! been read already and will be written anyway, so only CPU time is spent; and smaller data lets
//! the log write less.
//!
//! *Cold* is data that is not written repeatedly, as far as `write::write_heat` knows. A fragment
//! is tried when it is moved for the first time. One that was moved before may have been tried
//! without success, or there was no time: the share of these that is tried equals the share that
//! has lately gained. One with another codec than its volume writes was most likely recompressed
//! already: of these the smallest share is tried.
//!
//! How much time this takes is bounded by `cold_pace`.

use codec::CodecId;
use policy::{Compression, Settings};
use surface::Hint;
use units::{BlockMask, ObjectId};

use crate::clean::Cleaning;
use crate::clean::cold_pace::{AGAIN_PERMILLE_MIN, is_turn};
use crate::clean::extent_liveness::Resident;
use crate::clean::recode::Recoder;
use crate::clean::survivors::Survivors;

/// Compresses cold data in one round of cleaning.
pub(crate) struct ColdRecoder<'a> {
    cleaning: &'a Cleaning,
    recoder: Recoder<'a>,
    /// The volume of the last fragment, its compression, and its settings.
    known: Option<(ObjectId, Compression, Option<Settings>)>,
    /// Bytes before and after, for extents that were collected whole, and for the current one.
    whole: (u64, u64),
    part: (u64, u64),
}

impl<'a> ColdRecoder<'a> {
    pub(crate) fn new(cleaning: &'a Cleaning) -> Self {
        Self { cleaning, recoder: Recoder::new(cleaning), known: None, whole: (0, 0), part: (0, 0) }
    }

    /// Turns the blocks `live` of a fragment with a verified payload into survivors, if they are to
    /// be recompressed and that pays.
    pub(crate) fn recode(
        &mut self,
        resident: &Resident,
        live: BlockMask,
        payload: &[u8],
        survivors: &mut Survivors,
    ) -> bool {
        let (cleaning, id) = (self.cleaning, resident.object.id);
        if self.known.as_ref().is_none_or(|(known, ..)| *known != id) {
            let settings = resident.object.settings.read();
            self.known = Some((id, settings.compression, settings.for_cold()));
        }
        let Some((_, written, Some(settings))) = &self.known else { return false };
        let is_moved = resident.stored.is_moved;
        let is_other = is_moved && is_other(*written, CodecId(resident.stored.fragment.codec));
        let share = if is_other { AGAIN_PERMILLE_MIN } else { cleaning.cold_pace.again_permille() };
        if is_moved && !is_turn(resident.location, share)
            || cleaning.writes.rewrites.are_hot(id, resident.key().group, live)
        {
            return false;
        }
        let is_short = cleaning.space.is_needed_soon();
        if is_short && !cleaning.cold_pace.has_credit() {
            return false;
        }
        let began = cleaning.vitals.env.clock.now_ns();
        let done = self.recoder.recode(resident, live, payload, settings, Hint::default(), survivors);
        if is_moved && !is_other {
            cleaning.cold_pace.tried_again(done.is_some());
        }
        if is_short {
            cleaning.cold_pace.spend(cleaning.vitals.env.clock.now_ns().saturating_sub(began));
        }
        let Some((before, after)) = done else { return false };
        self.part = (self.part.0 + before as u64, self.part.1 + after as u64);
        true
    }

    /// Ends an extent; it was collected whole, or none of it counts.
    pub(crate) fn end_extent(&mut self, is_whole: bool) {
        let (before, after) = std::mem::take(&mut self.part);
        if is_whole {
            self.whole = (self.whole.0 + before, self.whole.1 + after);
        }
    }

    /// Ends the round; its results were moved, or not.
    pub(crate) fn finish(self, has_moved: bool) {
        self.recoder.finish();
        if has_moved {
            self.cleaning.vitals.counters.cold_before_bytes.add(self.whole.0);
            self.cleaning.vitals.counters.cold_after_bytes.add(self.whole.1);
        }
    }
}

/// Returns whether a volume's own setting would use another codec.
fn is_other(written: Compression, codec: CodecId) -> bool {
    matches!(written, Compression::Fixed(own) if codec != own.id() && codec != CodecId::RAW)
}

#[cfg(test)]
mod tests {
    use codec::Codec;

    use super::*;

    #[test]
    fn what_a_volumes_own_codec_does_not_make_is_other() {
        let lz4 = Compression::Fixed(Codec::Lz4);
        let zstd = Codec::Zstd(codec::ZstdLevel::MIN).id();
        assert!(is_other(lz4, zstd) && !is_other(lz4, Codec::Lz4.id()) && !is_other(lz4, CodecId::RAW));
        assert!(!is_other(Compression::Auto, zstd));
    }
}
