//! What theory says that cleaning a log must cost.

/// Bytes written to a log per byte written by its users, when uniformly random blocks are overwritten for ever, `share` of the log
/// is live, and the extent that was written longest ago is cleaned: `1 / (1 - u)`, where the live share `u` of an extent
/// that is cleaned solves `u = exp(-(1 - u) / share)`. (Menon, "A performance comparison of RAID-5 and log-structured
/// arrays", 1995; Robinson, "Analysis of steady-state segment storage utilizations in a log-structured file system with
/// least-utilized segment cleaning", 1996; Desnoyers, "Analytic modeling of SSD write performance", 2012, sections 3 and 4.)
/// Taking the extent with the least live bytes comes to the same when an extent holds many blocks, as ours do.
pub fn write_amplification(share: f64) -> f64 {
    let mut live: f64 = 0.0;
    // A fixed point iteration: the slope at the solution is live / share, which is below 1.
    for _ in 0..10_000 {
        live = (-(1.0 - live) / share).exp();
    }
    1.0 / (1.0 - live)
}

#[cfg(test)]
mod tests {
    use super::write_amplification;

    #[test]
    fn agrees_with_published_values() {
        // Desnoyers 2012, figure 5: overprovisioning of 25 % (a share of 0.8) costs about 2.7.
        assert!((write_amplification(0.8) - 2.69).abs() < 0.05);
        assert!((write_amplification(0.5) - 1.255).abs() < 0.01);
        assert!(write_amplification(0.95) > 9.0);
    }
}
