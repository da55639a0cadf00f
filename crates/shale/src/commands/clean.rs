//! `shale clean`, and with `--sort` the sorting before it.

use serde::Serialize;
use units::format_size;

use super::interruption::Interruption;
use super::watch;
use crate::cli::CleanArgs;
use crate::commands::status::status;
use crate::output::Output;
use operations::Outcome;
use operations::{Reply, Request};
use report::CleanTotal;
use report::SortSlice;
use report::{JobPace, JobResult, JobWish};
use server::session::Session;

/// Result of cleaning.
#[derive(Debug, Serialize)]
struct Summary<'a> {
    #[serde(flatten)]
    done: &'a CleanTotal,
    seconds: f64,
}

/// Cleans a pool until it is clean enough, or reports the progress of the last sorting.
pub fn run(args: CleanArgs, output: &Output) -> Outcome {
    let interruption = Interruption::watch()?;
    let done = Session::with(&args.pool, &args.access, |session| {
        if args.report {
            return Ok(Some((report(session)?, None)));
        }
        let sort = args.sort.then_some(JobPace { rate: args.rate, restart: args.restart });
        let wish = JobWish::Clean { all: args.all, sort };
        match watch::start(session, wish, args.background, &interruption, output)? {
            Some((JobResult::Cleaned(done), seconds)) => Ok(Some((done, Some(seconds)))),
            Some((other, _)) => Err(other.unexpected().into()),
            None => Ok(None),
        }
    })?;
    if let Some((done, seconds)) = done {
        tell(&done, seconds, output);
    }
    Ok(())
}

/// Returns the progress of the last sorting.
fn report(session: &Session) -> Outcome<CleanTotal> {
    let sort = match session.call(Request::SortReport)? {
        Reply::Sorted(slice) => Some(slice),
        other => return Err(other.unexpected().into()),
    };
    let extents_free = status(session)?.extents_free;
    Ok(CleanTotal { extents_free, extents_free_before: extents_free, sort, ..CleanTotal::default() })
}

/// Reports the outcome; `seconds` is its duration, if any work was done.
pub(super) fn tell(done: &CleanTotal, seconds: Option<f64>, output: &Output) {
    let summary = Summary { done, seconds: seconds.unwrap_or_default() };
    output.result(&summary, || {
        let sorted = done.sort.as_ref().map(show).unwrap_or_default();
        let cleaned = seconds.map_or_else(String::new, |seconds| {
            format!(
                "emptied {} extents, moved {} for that in {seconds:.1} s; {} extents are free ({} before)\n",
                done.extents_cleaned,
                format_size(done.bytes_moved),
                done.extents_free,
                done.extents_free_before
            )
        });
        sorted + &cleaned
    });
}

pub(super) fn show(slice: &SortSlice) -> String {
    if slice.started_unix_s == 0 {
        return "this pool was never sorted\n".to_owned();
    }
    let far = if slice.finished {
        "all volumes".to_owned()
    } else {
        format!("{} of {} so far", format_size(slice.bytes_done), format_size(slice.bytes_total))
    };
    let damaged = match slice.damaged_groups {
        0 => String::new(),
        groups => format!("; {groups} groups of 128 KiB contain damage and stay as they are: see 'shale scrub'"),
    };
    format!("sorted {far}: {} rewritten{damaged}\n", format_size(slice.rewritten_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_tells_how_far_sorting_came() {
        assert!(show(&SortSlice::default()).contains("never sorted"));
        let slice = SortSlice {
            started_unix_s: 1,
            bytes_done: 1 << 30,
            bytes_total: 4 << 30,
            rewritten_bytes: 5 << 20,
            damaged_groups: 2,
            ..SortSlice::default()
        };
        let text = show(&slice);
        assert!(
            text.contains("1 GiB of 4 GiB") && text.contains("5 MiB rewritten") && text.contains("2 groups"),
            "{text}"
        );
        assert!(
            show(&SortSlice { finished: true, damaged_groups: 0, ..slice }).ends_with("all volumes: 5 MiB rewritten\n")
        );
    }
}
