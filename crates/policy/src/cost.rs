//! The cost function: weighs a codec's CPU time against its savings.
//!
//! `c = t^mt * p / (nl - np)^mr` (F. Ehmke, Adaptive Compression for the Zettabyte File System,
//! 2015, equation 3.1): *t* CPU time, *p* price of CPU time, *nl* bytes before and *np* after
//! compression. The least cost wins. Here *t* is the worker's CPU time, so that load on the machine
//! changes the price and not the measurement. Time and saving are per raw byte, which changes no
//! comparison between candidates for the same unit.

/// Exponents of the cost function.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weights {
    /// mt: of the time.
    pub time: f64,
    /// mr: of the saving.
    pub saving: f64,
}

/// Smaller savings are treated as zero: they are noise of averages, and less than a fragment's own
/// bookkeeping.
pub const SAVING_MIN: f64 = 0.01;
/// Least time, in ns per KiB: a clock that does not advance must not make a codec free.
const TIME_MIN: f64 = 1.0;

/// Natural logarithm of the cost: comparisons are the same, and no exponent overflows. `saving` is
/// a share of the raw length; infinite when nothing is saved.
pub fn ln_cost(weights: Weights, ns_per_kib: f64, price: f64, saving: f64) -> f64 {
    if saving < SAVING_MIN {
        return f64::INFINITY;
    }
    weights.time * ns_per_kib.max(TIME_MIN).ln() + price.max(f64::MIN_POSITIVE).ln() - weights.saving * saving.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_by_table() {
        let weights = Weights { time: 1.0, saving: 2.0 };
        for (ns, price, saving, expected) in [
            (100.0, 1.0, 0.5, 400.0),
            (100.0, 2.0, 0.5, 800.0),
            (200.0, 1.0, 0.5, 800.0),
            (100.0, 1.0, 0.25, 1600.0),
            // A clock that does not advance.
            (0.0, 1.0, 0.5, 4.0),
            (100.0, 1.0, 0.0, f64::INFINITY),
            (100.0, 1.0, -0.2, f64::INFINITY),
        ] {
            let cost = ln_cost(weights, ns, price, saving).exp();
            assert!(cost == expected || (cost / expected - 1.0).abs() < 1e-9, "{ns} {price} {saving}: {cost}");
        }
    }

    #[test]
    fn the_price_changes_no_comparison() {
        let weights = Weights { time: 1.0, saving: 4.0 };
        for price in [0.5, 1.0, 7.0] {
            let lz4 = ln_cost(weights, 1500.0, price, 0.45);
            let zstd = ln_cost(weights, 3000.0, price, 0.60);
            assert!(zstd < lz4);
        }
    }
}
