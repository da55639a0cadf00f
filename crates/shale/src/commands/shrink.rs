//! `shale shrink`.

use serde_json::json;
use units::format_size;

use super::interruption::Interruption;
use super::watch;
use crate::cli::ShrinkArgs;
use crate::output::Output;
use operations::Outcome;
use operations::Request;
use report::{JobResult, ShrinkSlice};
use server::session::Session;

/// Shrinks a pool.
pub fn run(args: ShrinkArgs, output: &Output) -> Outcome {
    let interruption = Interruption::watch()?;
    let request = Request::Shrink { capacity_bytes: args.size, background: false };
    let done = Session::with(&args.pool, &args.access, |session| {
        watch::start_by(session, request, false, &interruption, output)
    })?;
    match done {
        Some((JobResult::Shrunk(slice), seconds)) => tell(&slice, seconds, output),
        Some((other, _)) => return Err(other.unexpected().into()),
        None => {}
    }
    Ok(())
}

/// Reports the outcome.
pub(super) fn tell(slice: &ShrinkSlice, seconds: f64, output: &Output) {
    let (capacity_bytes, bytes_moved) = (slice.capacity_bytes, slice.bytes_moved);
    let document = json!({ "capacity_bytes": capacity_bytes, "bytes_moved": bytes_moved, "seconds": seconds });
    output.done(&document, || {
        let (capacity, moved) = (format_size(capacity_bytes), format_size(bytes_moved));
        format!("the pool now has {capacity}; {moved} were moved for that in {seconds:.1} s\n")
    });
}
