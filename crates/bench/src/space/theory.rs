//! Theoretical costs of cleaning a log.

/// Bytes written to a log per byte written by its users, when uniformly random blocks are
/// overwritten continuously, `share` of the log is live, and the extent that was written
/// longest ago is cleaned: `1 / (1 - u)`, where the live share `u` of a cleaned extent solves
/// `u = exp(-(1 - u) / share)`. (Menon, "A performance comparison of RAID-5 and log-structured
/// arrays", 1995; Robinson, "Analysis of steady-state segment storage utilizations in a
/// log-structured file system with least-utilized segment cleaning", 1996; Desnoyers, "Analytic
/// modeling of SSD write performance", 2012, sections 3 and 4.) Choosing the extent with the
/// fewest live bytes gives the same result when an extent holds many blocks, as ours do.
pub fn write_amplification(share: f64) -> f64 {
    let mut live: f64 = 0.0;
    // A fixed point iteration: the slope at the solution is live / share, which is below 1.
    for _ in 0..10_000 {
        live = (-(1.0 - live) / share).exp();
    }
    1.0 / (1.0 - live)
}

/// The same for two kinds of blocks: the share `hot_blocks` of them gets the share `hot_writes` of
/// the writes, both uniformly within. The kinds are kept separate, and the spare space is divided
/// between them so that the total cost is minimal. No cleaner without knowledge of the future can
/// do better. (Desnoyers 2012, section 5; Van Houdt, "On the necessity of hot and cold data
/// identification to reduce the write amplification in flash-based SSDs", 2014.)
pub fn write_amplification_skewed(share: f64, hot_blocks: f64, hot_writes: f64) -> f64 {
    const STEPS: u32 = 1000;
    let spare = 1.0 / share - 1.0;
    let of = |blocks: f64, part: f64| write_amplification(blocks / (blocks + part * spare));
    let cost = |step: u32| {
        let part = f64::from(step) / f64::from(STEPS);
        hot_writes * of(hot_blocks, part) + (1.0 - hot_writes) * of(1.0 - hot_blocks, 1.0 - part)
    };
    (1..STEPS).map(cost).fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::{write_amplification, write_amplification_skewed};

    #[test]
    fn agrees_with_published_values() {
        // Desnoyers 2012, figure 5: overprovisioning of 25 % (a share of 0.8) costs about 2.7.
        assert!((write_amplification(0.8) - 2.69).abs() < 0.05);
        assert!((write_amplification(0.5) - 1.255).abs() < 0.01);
        assert!(write_amplification(0.95) > 9.0);
    }

    #[test]
    fn skew_helps_and_without_skew_there_is_nothing_to_win() {
        assert!((write_amplification_skewed(0.8, 0.2, 0.8) - 1.998).abs() < 0.005);
        assert!((write_amplification_skewed(0.8, 0.5, 0.5) - write_amplification(0.8)).abs() < 0.01);
    }
}
