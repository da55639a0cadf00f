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
//! **Pace.** While space is short, a cleaner spends at most half of its time here, so that no
//! writer waits for it more than twice as long as without; otherwise without limit, because it
//! rests between rounds, the longer the longer they take (`clean::pacing`).

use std::sync::atomic::{AtomicI64, Ordering};

use codec::CodecId;
use policy::{Compression, Settings};
use surface::Hint;
use units::{BlockMask, ObjectId};

use crate::base::hash::MULTIPLIER;
use crate::clean::Cleaning;
use crate::clean::extent_liveness::Resident;
use crate::clean::recode::Recoder;
use crate::clean::survivors::Survivors;

/// Lower bound of the share of previously moved fragments that is tried, in thousandths.
const AGAIN_PERMILLE_MIN: u32 = 125;
/// The weight of one sample in the running estimate.
const AGAIN_MEMORY: i64 = 64;
/// Upper bound of time saved up for later.
const CREDIT_NS_MAX: i64 = 100_000_000;

/// The cleaners' budget for compressing while space is short, and the success rate so far.
#[derive(Debug, Default)]
pub(crate) struct ColdPace {
    credit_ns: AtomicI64,
    /// Share of fragments that gained, among those that were moved before and then tried, in
    /// millionths.
    again_ppm: AtomicI64,
}

impl ColdPace {
    /// Called after a round that took so long, compressing included.
    pub(crate) fn earn(&self, ns: u64) {
        let ns = i64::try_from(ns).unwrap_or(CREDIT_NS_MAX).min(CREDIT_NS_MAX);
        let _ = self.credit_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |credit| {
            Some(credit.saturating_add(ns).min(CREDIT_NS_MAX))
        });
    }

    /// Called for time spent on compressing. It counts twice, because the round's time, which is
    /// earned, includes it.
    fn spend(&self, ns: u64) {
        self.credit_ns.fetch_sub(i64::try_from(ns).map_or(i64::MAX / 4, |ns| ns.saturating_mul(2)), Ordering::Relaxed);
    }

    fn has_credit(&self) -> bool {
        self.credit_ns.load(Ordering::Relaxed) > 0
    }

    /// Records a try of a fragment that was moved before.
    fn tried_again(&self, has_won: bool) {
        let known = self.again_ppm.load(Ordering::Relaxed);
        let now = if has_won { 1_000_000 } else { 0 };
        self.again_ppm.store(known + (now - known) / AGAIN_MEMORY, Ordering::Relaxed);
    }

    fn again_permille(&self) -> u32 {
        (self.again_ppm.load(Ordering::Relaxed) / 1000).clamp(AGAIN_PERMILLE_MIN.into(), 1000) as u32
    }
}

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

/// Returns whether to try a fragment that was moved to that location, if this share of them, in
/// thousandths, is tried.
fn is_turn(location: u64, permille: u32) -> bool {
    (location.wrapping_mul(MULTIPLIER) >> 32) % 1000 < u64::from(permille)
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
    fn half_of_the_time_may_be_spent_and_little_is_saved_up() {
        let credit = ColdPace::default();
        assert!(!credit.has_credit(), "nothing was earned yet");
        credit.earn(1000);
        assert!(credit.has_credit());
        credit.spend(500);
        assert!(!credit.has_credit());
        credit.earn(u64::MAX);
        credit.earn(u64::MAX);
        credit.spend(CREDIT_NS_MAX as u64 / 2 - 1);
        assert!(credit.has_credit());
        credit.spend(1);
        assert!(!credit.has_credit());
        credit.spend(u64::MAX);
        credit.earn(u64::MAX);
        assert!(!credit.has_credit(), "what was overspent is owed");
    }

    #[test]
    fn as_many_are_tried_again_as_have_won() {
        let pace = ColdPace::default();
        let turns =
            |pace: &ColdPace| (0..80_000u64).filter(|n| is_turn(4096 + n * 16, pace.again_permille())).count() / 800;
        assert_eq!(turns(&pace), 12, "an eighth at least");
        (0..400).for_each(|n| pace.tried_again(n % 4 > 0));
        assert!((68..82).contains(&turns(&pace)), "{}", turns(&pace));
        (0..400).for_each(|_| pace.tried_again(false));
        assert_eq!(turns(&pace), 12);
        (0..1000).for_each(|_| pace.tried_again(true));
        assert!(turns(&pace) > 97);
    }

    #[test]
    fn what_a_volumes_own_codec_does_not_make_is_other() {
        let lz4 = Compression::Fixed(Codec::Lz4);
        let zstd = Codec::Zstd(codec::ZstdLevel::MIN).id();
        assert!(is_other(lz4, zstd) && !is_other(lz4, Codec::Lz4.id()) && !is_other(lz4, CodecId::RAW));
        assert!(!is_other(Compression::Auto, zstd));
    }
}
