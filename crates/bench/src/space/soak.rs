//! The fragmentation soak: a pool that is nearly full is overwritten twenty times over with a skew, and checked. Prints what each round came
//! to. It fails when a write is refused although there must be room, or when a check finds anything; never because of a time.

use std::time::Instant;

use units::format_size;

use super::overwrite::{Aged, fill, skewed_place, write};
use crate::{Context, Outcome};

/// Share of the pool that is live.
const FULL: f64 = 0.9;
/// Rounds: in each, as many blocks are written as the volume has.
const ROUNDS: u64 = 20;
/// Rounds from one check to the next.
const CHECK_EVERY: u64 = 5;

/// Bytes of the pool.
fn pool_bytes(context: &Context) -> u64 {
    context.pool_bytes.unwrap_or(if context.quick { 512 << 20 } else { 4 << 30 })
}

/// The soak.
pub fn run(context: &Context) -> Outcome<()> {
    let bytes = pool_bytes(context);
    let Aged { world, volume, blocks } = fill(context, bytes, bytes, FULL)?;
    let place = skewed_place(blocks);
    for round in 1..=ROUNDS {
        let before = world.pool.status();
        let written = write(context, &volume, blocks, (round - 1) * blocks, &place)?;
        let after = world.pool.status();
        println!(
            "round {round:2}: {:7.0} writes/s, p99 {:6.0} us, write amplification {:.2}, {} of {} extents free",
            written.per_second,
            written.p99_us,
            (after.log_bytes - before.log_bytes) as f64 / (after.fragment_bytes - before.fragment_bytes).max(1) as f64,
            after.extents_free,
            after.extents_total,
        );
        if round.is_multiple_of(CHECK_EVERY) {
            let began = Instant::now();
            let report = world.pool.check(false, &mut |_, _| ())?;
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
    world.close()
}
