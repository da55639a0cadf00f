//! `shale clean`.

use std::time::Instant;

use serde::Serialize;
use units::format_size;

use crate::cli::CleanArgs;
use crate::control::{Reply, Request};
use crate::exit::Outcome;
use crate::model::CleanSlice;
use crate::output::Output;
use crate::progress::Progress;
use crate::session::Session;

/// Rounds of one request: a second or so, so that the bar moves and an interruption is soon noticed.
const ROUNDS: u32 = 16;

/// What cleaning did.
#[derive(Debug, Serialize)]
struct Summary {
    extents_cleaned: u64,
    bytes_moved: u64,
    extents_free_before: u64,
    extents_free: u64,
    extents_todo: u64,
    seconds: f64,
}

/// Cleans a pool until it is clean enough.
pub fn run(args: CleanArgs, output: &Output) -> Outcome {
    let started = Instant::now();
    let mut done = CleanSlice::default();
    let mut first = None;
    Session::with(&args.pool, &args.access, output, |session| {
        let progress = Progress::new(output, "cleaning", None);
        while !done.finished {
            let slice = match session.call(Request::Clean { all: args.all, rounds: ROUNDS })? {
                Reply::Cleaned(slice) => slice,
                other => return Err(other.unexpected().into()),
            };
            first.get_or_insert(slice.extents_free_before);
            done = CleanSlice {
                extents_cleaned: done.extents_cleaned + slice.extents_cleaned,
                bytes_moved: done.bytes_moved + slice.bytes_moved,
                ..slice
            };
            progress.set(done.bytes_moved);
            progress.say(format!("{} extents emptied, {} to go", done.extents_cleaned, done.extents_todo));
        }
        progress.finish();
        Ok(())
    })?;
    let summary = Summary {
        extents_cleaned: done.extents_cleaned,
        bytes_moved: done.bytes_moved,
        extents_free_before: first.unwrap_or(done.extents_free),
        extents_free: done.extents_free,
        extents_todo: done.extents_todo,
        seconds: started.elapsed().as_secs_f64(),
    };
    output.result(&summary, || {
        format!(
            "emptied {} extents, moved {} for that in {:.1} s; {} extents are free, {} were\n",
            summary.extents_cleaned,
            format_size(summary.bytes_moved),
            summary.seconds,
            summary.extents_free,
            summary.extents_free_before
        )
    });
    Ok(())
}
