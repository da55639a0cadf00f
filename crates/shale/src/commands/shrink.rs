//! `shale shrink`.

use std::sync::atomic::Ordering;
use std::time::Instant;

use serde_json::json;
use surface::Error;
use units::format_size;

use crate::cli::ShrinkArgs;
use crate::output::Output;
use crate::progress::Progress;
use host::Termination;
use operations::{Failure, Outcome};
use operations::{Reply, Request};
use report::ShrinkSlice;
use server::session::Session;

/// Rounds of one request: a second or so, so that the bar moves and an interruption is soon
/// noticed.
const ROUNDS: u32 = 16;

/// Makes a pool smaller.
pub fn run(args: ShrinkArgs, output: &Output) -> Outcome {
    let signals = Termination::block().map_err(|error| Error::from_io("cannot block signals", error))?;
    let interrupted = signals.flag().map_err(|error| Error::from_io("cannot watch for signals", error))?;
    let started = Instant::now();
    let mut moved = 0;
    let done = Session::with(&args.pool, &args.access, |session| {
        let mut progress: Option<(Progress, u64)> = None;
        loop {
            let slice = slice(session, args.size)?;
            moved += slice.bytes_moved;
            let (bar, total) = progress.get_or_insert_with(|| {
                let total = slice.bytes_todo + slice.bytes_moved;
                (Progress::new(output, "shrink", Some(total)), total)
            });
            bar.set(total.saturating_sub(slice.bytes_todo));
            bar.say(format!("{} extents to go", slice.extents_todo));
            if slice.finished {
                return Ok(slice);
            }
            if interrupted.load(Ordering::SeqCst) {
                session.done(Request::ShrinkEnd)?;
                let left = format_size(slice.bytes_todo);
                let text =
                    format!("interrupted: the pool is as large as it was, {left} would have had to be moved still");
                return Err(Failure::Interrupted(text));
            }
        }
    })?;
    let seconds = started.elapsed().as_secs_f64();
    let document = json!({ "capacity_bytes": done.capacity_bytes, "bytes_moved": moved, "seconds": seconds });
    output.done(&document, || {
        let (capacity, moved) = (format_size(done.capacity_bytes), format_size(moved));
        format!("the pool has {capacity} now; {moved} were moved for that in {seconds:.1} s\n")
    });
    Ok(())
}

fn slice(session: &Session, capacity_bytes: u64) -> Outcome<ShrinkSlice> {
    match session.call(Request::Shrink { capacity_bytes, rounds: ROUNDS })? {
        Reply::Shrunk(slice) => Ok(slice),
        other => Err(other.unexpected().into()),
    }
}
