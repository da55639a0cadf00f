//! `shale recompress`.

use std::time::{Duration, Instant};

use serde::Serialize;
use units::format_size;

use super::pace::{Interruption, SliceBytes, Standing, in_slices};
use crate::choices::RecompressSlice;
use crate::cli::RecompressArgs;
use crate::control::{Reply, Request};
use crate::exit::Outcome;
use crate::output::Output;
use crate::session::Session;

/// Bytes of extents of one slice: a fraction of a second of compressing, even with the slowest
/// codecs.
const SLICES: SliceBytes = SliceBytes::always(4 << 20);

/// What recompression did.
#[derive(Debug, Serialize)]
struct Summary<'a> {
    #[serde(flatten)]
    slice: &'a RecompressSlice,
    seconds: f64,
}

/// Recompresses a volume, or tells how far that is.
pub fn run(args: RecompressArgs, output: &Output) -> Outcome {
    let interruption = Interruption::watch()?;
    let started = Instant::now();
    let slice = Session::with(&args.pool, &args.access, output, |session| {
        let call = |bytes, restart| -> Outcome<RecompressSlice> {
            let (volume, mode, path) = (args.volume.clone(), args.mode.clone(), args.path.clone());
            match session.call(Request::Recompress { volume, mode, bytes, restart, path })? {
                Reply::Recompressed(slice) => Ok(*slice),
                other => Err(other.unexpected().into()),
            }
        };
        in_slices("recompressing", SLICES, &args.pacing, &interruption, output, call, standing)
    })?;
    let summary = Summary { slice: &slice, seconds: started.elapsed().as_secs_f64() };
    output.result(&summary, || show(&slice, (!args.pacing.report).then(|| started.elapsed())));
    Ok(())
}

fn standing(slice: &RecompressSlice) -> Standing {
    let left = (slice.before_bytes > 0).then(|| slice.after_bytes as f64 / slice.before_bytes as f64 * 100.0);
    Standing {
        finished: slice.finished,
        bytes_done: slice.bytes_done,
        bytes_total: slice.bytes_total,
        foreground_bytes: slice.foreground_bytes,
        said: left.map_or_else(String::new, |percent| format!("to {percent:.0}%")),
    }
}

/// What was done; `took` is how long this took, if it did more than look.
fn show(slice: &RecompressSlice, took: Option<Duration>) -> String {
    if slice.started_unix_s == 0 {
        return "this volume has not been recompressed so\n".to_owned();
    }
    let mode = slice.mode.as_ref().map_or_else(String::new, |mode| format!(" with --mode {mode}"));
    let far = if slice.finished {
        "all of it".to_owned()
    } else {
        format!("{} of {} of the pool's data so far", format_size(slice.bytes_done), format_size(slice.bytes_total))
    };
    let took = took.map_or_else(String::new, |took| format!(", in {:.1} s", took.as_secs_f64()));
    let won = slice.before_bytes.saturating_sub(slice.after_bytes);
    let damaged = match slice.damaged_fragments {
        0 => String::new(),
        count => format!("; {count} fragments are damaged and stay as they are: 'shale scrub' tells what"),
    };
    format!(
        "recompressed{mode}, {far}{took}: {} of {} fragments rewritten, {} as {}, {} won{damaged}\n",
        slice.rewritten,
        slice.fragments,
        format_size(slice.before_bytes),
        format_size(slice.after_bytes),
        format_size(won)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_tells_what_was_won() {
        let slice = RecompressSlice {
            started_unix_s: 1,
            finished: true,
            fragments: 10,
            rewritten: 7,
            before_bytes: 3 << 20,
            after_bytes: 1 << 20,
            ..RecompressSlice::default()
        };
        let text = show(&slice, Some(Duration::from_secs(2)));
        assert!(
            text.contains("7 of 10 fragments") && text.contains("2 MiB won") && text.contains("all of it"),
            "{text}"
        );
        assert!(!text.contains("damaged"), "{text}");
        let slice = RecompressSlice { damaged_fragments: 2, ..slice };
        assert!(
            show(&slice, None).ends_with("; 2 fragments are damaged and stay as they are: 'shale scrub' tells what\n")
        );
        assert!(show(&RecompressSlice::default(), None).contains("not been"));
    }
}
