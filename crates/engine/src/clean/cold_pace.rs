//! The time that cleaners may spend on recompressing cold data (`cold`), and the share of fragments
//! that is tried again. Owned by [`Cleaning`](crate::clean::Cleaning); all cleaners share it.
//!
//! While space is short, a cleaner spends at most half of its time on it, so that no writer waits
//! for it more than twice as long as without; otherwise without limit, because it rests between
//! rounds, the longer the longer they take (`clean::pacing`).

use std::sync::atomic::{AtomicI64, Ordering};

use store::base::hash::MULTIPLIER;

/// Lower bound of the share of previously moved fragments that is tried, in thousandths.
pub(super) const AGAIN_PERMILLE_MIN: u32 = 125;
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
    pub(super) fn spend(&self, ns: u64) {
        self.credit_ns.fetch_sub(i64::try_from(ns).map_or(i64::MAX / 4, |ns| ns.saturating_mul(2)), Ordering::Relaxed);
    }

    pub(super) fn has_credit(&self) -> bool {
        self.credit_ns.load(Ordering::Relaxed) > 0
    }

    /// Records a try of a fragment that was moved before.
    pub(super) fn tried_again(&self, has_won: bool) {
        let known = self.again_ppm.load(Ordering::Relaxed);
        let now = if has_won { 1_000_000 } else { 0 };
        self.again_ppm.store(known + (now - known) / AGAIN_MEMORY, Ordering::Relaxed);
    }

    pub(super) fn again_permille(&self) -> u32 {
        (self.again_ppm.load(Ordering::Relaxed) / 1000).clamp(AGAIN_PERMILLE_MIN.into(), 1000) as u32
    }
}

/// Returns whether to try a fragment that was moved to that location, if this share of them, in
/// thousandths, is tried.
pub(super) fn is_turn(location: u64, permille: u32) -> bool {
    (location.wrapping_mul(MULTIPLIER) >> 32) % 1000 < u64::from(permille)
}

#[cfg(test)]
mod tests {
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
}
