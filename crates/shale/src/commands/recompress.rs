//! `shale recompress`.

use std::time::Duration;

use serde::Serialize;
use units::format_size;

use super::interruption::Interruption;
use super::watch;
use crate::cli::RecompressArgs;
use crate::output::Output;
use operations::Outcome;
use operations::{Reply, Request};
use report::RecompressSlice;
use report::{JobResult, JobWish};
use server::session::Session;

/// Result of recompression.
#[derive(Debug, Serialize)]
struct Summary<'a> {
    #[serde(flatten)]
    slice: &'a RecompressSlice,
    seconds: f64,
}

/// Recompresses a volume, or reports its progress.
pub fn run(args: RecompressArgs, output: &Output) -> Outcome {
    let interruption = Interruption::watch()?;
    let done = Session::with(&args.pool, &args.access, |session| {
        let (volume, mode, path) = (args.volume, args.mode, args.path);
        if args.pacing.report {
            return match session.call(Request::RecompressReport { object: volume.into(), mode, path })? {
                Reply::Recompressed(slice) => Ok(Some((slice, None))),
                other => Err(other.unexpected().into()),
            };
        }
        let wish = JobWish::Recompress { volume, mode, path, pace: args.pacing.of_job() };
        match watch::start(session, wish, args.background, &interruption, output)? {
            Some((JobResult::Recompressed(slice), seconds)) => Ok(Some((slice, Some(seconds)))),
            Some((other, _)) => Err(other.unexpected().into()),
            None => Ok(None),
        }
    })?;
    if let Some((slice, seconds)) = done {
        tell(&slice, seconds, output);
    }
    Ok(())
}

/// Reports the outcome; `seconds` is its duration, if any work was done.
pub(super) fn tell(slice: &RecompressSlice, seconds: Option<f64>, output: &Output) {
    let summary = Summary { slice, seconds: seconds.unwrap_or_default() };
    output.result(&summary, || show(slice, seconds.map(Duration::from_secs_f64)));
}

/// Formats the outcome; `took` is its duration, if any work was done.
fn show(slice: &RecompressSlice, took: Option<Duration>) -> String {
    if slice.started_unix_s == 0 {
        return "this volume was never recompressed this way\n".to_owned();
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
        count => format!("; {count} fragments are damaged and stay as they are: see 'shale scrub'"),
    };
    format!(
        "recompressed{mode}, {far}{took}: {} of {} fragments rewritten, {} as {}, {} saved{damaged}\n",
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
            text.contains("7 of 10 fragments") && text.contains("2 MiB saved") && text.contains("all of it"),
            "{text}"
        );
        assert!(!text.contains("damaged"), "{text}");
        let slice = RecompressSlice { damaged_fragments: 2, ..slice };
        assert!(show(&slice, None).ends_with("; 2 fragments are damaged and stay as they are: see 'shale scrub'\n"));
        assert!(show(&RecompressSlice::default(), None).contains("was never recompressed"));
    }
}
