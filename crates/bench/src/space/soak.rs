//! The fragmentation soak: a nearly full pool is overwritten twenty times over with a skew, and
//! checked. Prints the result of each round. Fails when a write is refused although there must be
//! space, when a check finds anything, or when the volume of cleaning keeps growing; never because
//! of a time.

use std::time::Instant;

use units::format_size;

use super::overwrite::{Aged, fill, skewed_place, write};
use crate::{Context, Outcome};

/// Share of the pool that is live.
const FULL: f64 = 0.9;
/// Rounds: each writes as many blocks as the volume has.
const ROUNDS: u64 = 20;
/// Rounds from one check to the next.
const CHECK_EVERY: u64 = 5;
/// How much more the last quarter of the rounds may write than the one before it, for the same user
/// bytes: the first half of the rounds suffices to settle, after which quarters differed by less
/// than a hundredth.
const SETTLED_FACTOR: f64 = 1.05;

fn pool_bytes(context: &Context) -> u64 {
    context.pool_bytes.unwrap_or(if context.quick { 512 << 20 } else { 4 << 30 })
}

/// The soak.
pub fn run(context: &Context) -> Outcome<()> {
    let bytes = pool_bytes(context);
    let Aged { bench, volume, blocks } = fill(context, bytes, FULL)?;
    let place = skewed_place(blocks);
    let mut amplifications = Vec::new();
    for round in 1..=ROUNDS {
        let before = bench.pool.status();
        let written = write(context, &volume, blocks, (round - 1) * blocks, &place)?;
        let after = bench.pool.status();
        let amplification =
            (after.log_bytes - before.log_bytes) as f64 / (after.fragment_bytes - before.fragment_bytes).max(1) as f64;
        amplifications.push(amplification);
        println!(
            "round {round:2}: {:7.0} writes/s, p99 {:6.0} us, write amplification {amplification:.2}, {} of {} extents free",
            written.per_second, written.p99_us, after.extents_free, after.extents_total,
        );
        if round.is_multiple_of(CHECK_EVERY) {
            let began = Instant::now();
            let report = bench.pool.check(false, &mut |_, _| ())?;
            if !report.problems.is_empty() {
                return Err(format!("round {round}: the check found {:?}", report.problems).into());
            }
            println!(
                "          {} fragments ({}) checked in {:.1} s, nothing is wrong",
                report.fragments,
                format_size(report.fragment_bytes),
                began.elapsed().as_secs_f64()
            );
        }
    }
    drop(volume);
    bench.close()?;
    settled(&amplifications)
}

/// Bytes written per user byte must have settled.
fn settled(amplifications: &[f64]) -> Outcome<()> {
    let quarter = amplifications.len() / 4;
    let (before, last) = amplifications.split_at(amplifications.len() - quarter);
    let mean = |rounds: &[f64]| rounds.iter().sum::<f64>() / quarter as f64;
    let (before, last) = (mean(&before[before.len() - quarter..]), mean(last));
    let verdict = format!("write amplification {last:.3} in the last {quarter} rounds, {before:.3} in those before");
    if last > before * SETTLED_FACTOR {
        return Err(format!("{verdict}: it goes on growing").into());
    }
    println!("settled: {verdict}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::settled;

    #[test]
    fn growth_is_noticed_and_noise_is_not() {
        let rounds = |of: fn(f64) -> f64| (0..20).map(|round| of(f64::from(round))).collect::<Vec<_>>();
        assert!(settled(&rounds(|round| 2.0 + (round % 3.0) / 10.0)).is_ok());
        assert!(settled(&rounds(|round| 5.0 - 3.0 / (round + 1.0))).is_ok());
        assert!(settled(&rounds(|round| 2.0 + round / 10.0)).is_err());
        assert!(settled(&rounds(|round| if round < 15.0 { 2.0 } else { 3.0 })).is_err());
    }
}
