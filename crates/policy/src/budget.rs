//! What tests may cost: a credit of CPU time, from which they are paid and into which compressing pays. Whoever compresses keeps the credit.

/// One over the share of the CPU time of compressing that tests may take: with the probe, deciding stays below 3 %.
const SHARE_DIVISOR: u64 = 50;
/// What a pool may spend on tests before it has compressed anything, in nanoseconds: its calibration. Also the most that is saved up.
pub const TEST_CREDIT_NS: i64 = 16_000_000;

/// By how much a credit grows after compressing for so many nanoseconds of CPU time, tests left out. What is saved up has a limit.
pub fn test_credit_earned(credit_ns: i64, compressed_ns: u64) -> i64 {
    let earned = i64::try_from(compressed_ns / SHARE_DIVISOR).unwrap_or(i64::MAX);
    earned.min(TEST_CREDIT_NS.saturating_sub(credit_ns).max(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credits_by_table() {
        for (credit, compressed, earned) in [
            (0, 1_000_000, 20_000),
            (-5_000_000, 100_000_000, 2_000_000),
            // Debts are paid in full, and then some is saved up.
            (-5_000_000, u64::MAX, 21_000_000),
            (15_990_000, 1_000_000, 10_000),
            (TEST_CREDIT_NS, 1_000_000, 0),
            (0, 0, 0),
        ] {
            assert_eq!(test_credit_earned(credit, compressed), earned, "{credit} {compressed}");
        }
    }
}
