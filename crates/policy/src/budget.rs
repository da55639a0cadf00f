//! Budget for tests: a credit of CPU time, earned by compressing and spent on tests. The
//! compressing thread owns the credit.

/// Inverse of the share of compression CPU time that tests may take: with probes and bookkeeping,
/// deciding stays below 3 %.
const SHARE_DIVISOR: u64 = 100;
/// Nanoseconds that a pool may spend on tests before it has compressed anything: its calibration.
pub const TEST_CREDIT_NS: i64 = 16_000_000;
/// Most credit that can be saved up, in nanoseconds: a dozen ordinary tests. With more, tests would
/// exceed their share for a while.
const SAVED_NS_MAX: i64 = 1_000_000;
/// Credit that pays for any attempt: a codec that costs more than can ever be saved up is tried as
/// rarely as its debt takes to be repaid.
const SAVED_NS_FULL: i64 = SAVED_NS_MAX / 10 * 9;

/// Returns the credit after `compressed_ns` of CPU time spent compressing, tests excluded. Savings
/// are capped; a credit above the cap stays as it is.
pub fn test_credit_earned(credit_ns: i64, compressed_ns: u64) -> i64 {
    let earned = i64::try_from(compressed_ns / SHARE_DIVISOR).unwrap_or(i64::MAX);
    earned.min(SAVED_NS_MAX.saturating_sub(credit_ns).max(0))
}

/// Returns whether the credit covers an attempt of the expected cost. A candidate a hundred times
/// as expensive as the others is tested a hundred times as rarely, and does not starve them of
/// credit.
pub(crate) fn pays_for_attempt(credit_ns: i64, cost_ns: i64) -> bool {
    credit_ns > 0 && (credit_ns >= cost_ns || credit_ns >= SAVED_NS_FULL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credits_by_table() {
        for (credit, compressed, earned) in [
            (0, 2_000_000, 20_000),
            (-5_000_000, 200_000_000, 2_000_000),
            // Debts are repaid in full first, and then credit is saved up.
            (-5_000_000, u64::MAX, 6_000_000),
            (990_000, 2_000_000, 10_000),
            (SAVED_NS_MAX, 2_000_000, 0),
            (TEST_CREDIT_NS, 2_000_000, 0),
            (0, 0, 0),
        ] {
            assert_eq!(test_credit_earned(credit, compressed), earned, "{credit} {compressed}");
        }
    }

    #[test]
    fn attempts_are_paid_for_by_table() {
        for (credit, cost, pays) in [
            (100_000, 100_000, true),
            (100_000, 100_001, false),
            (0, 0, false),
            (-1, 0, false),
            // The cap holds.
            (SAVED_NS_FULL, 50_000_000, true),
            (SAVED_NS_FULL - 1, 50_000_000, false),
            (TEST_CREDIT_NS, i64::MAX, true),
        ] {
            assert_eq!(pays_for_attempt(credit, cost), pays, "{credit} {cost}");
        }
    }

    /// However expensive tests are, in the long run they take their share, because each is paid for
    /// before the next of its price.
    #[test]
    fn tests_take_their_share_in_the_long_run() {
        for cost_ns in [50_000i64, 700_000, 9_000_000] {
            let (mut credit, mut tests_ns, mut compressed_ns) = (TEST_CREDIT_NS, 0, 0u64);
            for _ in 0..200_000 {
                if pays_for_attempt(credit, cost_ns) {
                    credit -= cost_ns;
                    tests_ns += cost_ns;
                }
                compressed_ns += 100_000;
                credit += test_credit_earned(credit, 100_000);
            }
            let most = compressed_ns as i64 / SHARE_DIVISOR as i64 + TEST_CREDIT_NS + cost_ns;
            assert!(tests_ns <= most && tests_ns > most / 2, "{cost_ns}: {tests_ns} of {compressed_ns}");
        }
    }
}
