//! `shale clean`: with `--sort`, asks for slice after slice of sorting first, and rests between
//! them as the rate or the pool's users demand. How far that came is kept with the pool, so that
//! interrupting this command pauses it.

use std::time::Instant;

use serde::Serialize;
use units::format_size;

use super::pace::{Interruption, SliceBytes, Standing, in_slices};
use crate::cli::{CleanArgs, Pacing};
use crate::commands::status::status;
use crate::control::{Reply, Request};
use crate::exit::{Failure, Outcome};
use crate::model::{CleanSlice, SortSlice};
use crate::output::Output;
use crate::progress::Progress;
use crate::session::Session;

/// Rounds of one request: a second or so, so that the bar moves and an interruption is soon
/// noticed.
const ROUNDS: u32 = 16;

/// Bytes of volumes of one slice of sorting: a fraction of a second.
const SORT_SLICES: SliceBytes = SliceBytes::always(8 << 20);

/// What cleaning did.
#[derive(Debug, Serialize)]
struct Summary {
    extents_cleaned: u64,
    bytes_moved: u64,
    extents_free_before: u64,
    extents_free: u64,
    extents_todo: u64,
    seconds: f64,
    sort: Option<SortSlice>,
}

/// Cleans a pool until it is clean enough.
pub fn run(args: CleanArgs, output: &Output) -> Outcome {
    let interruption = Interruption::watch()?;
    let started = Instant::now();
    let mut done = CleanSlice::default();
    let (mut first, mut sorted) = (None, None);
    Session::with(&args.pool, &args.access, output, |session| {
        if args.sort {
            sorted = Some(sort(&args, session, &interruption, output)?);
        }
        if args.report {
            done.extents_free = status(session)?.extents_free;
            return Ok(());
        }
        let progress = Progress::new(output, "cleaning", None);
        while !done.finished {
            // What was there when the first slice began: what writers fill meanwhile is for the
            // next pass.
            let request = Request::Clean { all: args.all, rounds: ROUNDS, mark: done.mark };
            let slice = match session.call(request)? {
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
            if !done.finished && interruption.has_come() {
                progress.finish();
                let text =
                    format!("interrupted: {} extents are emptied, {} to go", done.extents_cleaned, done.extents_todo);
                return Err(Failure::Interrupted(text));
            }
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
        sort: sorted,
    };
    output.result(&summary, || {
        let sorted = summary.sort.as_ref().map(show).unwrap_or_default();
        if args.report {
            return sorted;
        }
        sorted
            + &format!(
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

/// Sorts to the end, or tells how far that is.
fn sort(args: &CleanArgs, session: &Session, interruption: &Interruption, output: &Output) -> Outcome<SortSlice> {
    let call = |bytes, restart| -> Outcome<SortSlice> {
        match session.call(Request::Sort { bytes, restart })? {
            Reply::Sorted(slice) => Ok(slice),
            other => Err(other.unexpected().into()),
        }
    };
    let pacing = Pacing { rate: args.rate, restart: args.restart, report: args.report };
    in_slices("sorting", SORT_SLICES, &pacing, interruption, output, call, standing)
}

fn standing(slice: &SortSlice) -> Standing {
    Standing {
        finished: slice.finished,
        bytes_done: slice.bytes_done,
        bytes_total: slice.bytes_total,
        foreground_bytes: slice.foreground_bytes,
        said: format!("{} moved", format_size(slice.rewritten_bytes)),
    }
}

fn show(slice: &SortSlice) -> String {
    if slice.started_unix_s == 0 {
        return "this pool has not been sorted\n".to_owned();
    }
    let far = if slice.finished {
        "all volumes".to_owned()
    } else {
        format!("{} of {} so far", format_size(slice.bytes_done), format_size(slice.bytes_total))
    };
    let damaged = match slice.damaged_groups {
        0 => String::new(),
        groups => format!(
            "; {groups} groups of 128 KiB hold something damaged and stay as they are: 'shale scrub' tells what"
        ),
    };
    format!("sorted {far}: {} written anew{damaged}\n", format_size(slice.rewritten_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_tells_how_far_sorting_came() {
        assert!(show(&SortSlice::default()).contains("not been sorted"));
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
            text.contains("1 GiB of 4 GiB") && text.contains("5 MiB written") && text.contains("2 groups"),
            "{text}"
        );
        assert!(
            show(&SortSlice { finished: true, damaged_groups: 0, ..slice })
                .ends_with("all volumes: 5 MiB written anew\n")
        );
    }
}
