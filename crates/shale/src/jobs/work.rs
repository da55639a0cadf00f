//! The work of each kind of job: which slices of it the service does.

use engine::CalibrationEffort;
use surface::{Error, ErrorKind, Result};
use units::format_size;

use super::model::{JobPace, JobResult, JobWish};
use super::pace::{SliceBytes, Standing, in_slices};
use super::table::{Doing, Stop, Work};
use crate::choices::RecompressSlice;
use crate::service::Service;
use crate::slices::{CleanTotal, ScrubSlice, SortSlice};

/// Bytes of extents of one slice of recompression: a fraction of a second of compressing, even with
/// the slowest codecs.
const RECOMPRESS_SLICES: SliceBytes = SliceBytes::always(4 << 20);
/// Bytes of volumes of one slice of sorting: a fraction of a second.
const SORT_SLICES: SliceBytes = SliceBytes::always(8 << 20);
/// Bytes of extents of one slice of a scrub. While others are at work, a few milliseconds on a fast
/// device, so that the rests between them are short, too; else so much that reading hardly ever
/// stops.
const SCRUB_SLICES: SliceBytes = SliceBytes { busy: 8 << 20, idle: 128 << 20 };
/// Rounds of one slice of cleaning: a second or so, so that the bar moves and a cancellation is
/// soon noticed.
const CLEAN_ROUNDS: u32 = 16;

/// Finds out whether a job can be done, before it gets a number.
///
/// # Errors
/// `NotFound` and `Invalid` for what it names.
pub(crate) fn check(service: &Service, wish: &JobWish) -> Result<()> {
    match wish {
        JobWish::Recompress { volume, mode, path, .. } => {
            service.recompress(volume, path.clone(), mode.as_deref(), (0, false)).map(drop)
        }
        JobWish::Clean { .. } | JobWish::Scrub { .. } | JobWish::Calibrate => Ok(()),
    }
}

/// Does the work of a job.
///
/// # Errors
/// When it is cancelled, and what the pool says.
pub(crate) fn run(service: &Service, wish: &JobWish, doing: &Doing) -> Work<JobResult> {
    match wish {
        JobWish::Recompress { volume, mode, path, pace } => {
            let call = |bytes, restart| {
                let report = service.recompress(volume, path.clone(), mode.as_deref(), (bytes, restart))?;
                Ok(RecompressSlice::from(report))
            };
            let slice = in_slices("recompressing", RECOMPRESS_SLICES, *pace, doing, call, recompressed)?;
            Ok(JobResult::Recompressed(Box::new(slice)))
        }
        JobWish::Clean { all, sort } => clean(service, *all, *sort, doing).map(JobResult::Cleaned),
        JobWish::Scrub { pace } => {
            let call = |bytes, restart| service.scrub(bytes, restart);
            let slice = in_slices("scrubbing", SCRUB_SLICES, *pace, doing, call, scrubbed)?;
            Ok(JobResult::Scrubbed(Box::new(slice)))
        }
        JobWish::Calibrate => calibrate(service, doing),
    }
}

fn clean(service: &Service, all: bool, sort: Option<JobPace>, doing: &Doing) -> Work<CleanTotal> {
    let mut done = CleanTotal::default();
    if let Some(pace) = sort {
        let call = |bytes, restart| service.sort(bytes, restart);
        done.sort = Some(in_slices("sorting", SORT_SLICES, pace, doing, call, sorted)?);
    }
    doing.begin_phase("cleaning", 0, None);
    // The pass is for extents that were there when its first slice began: those that writers fill
    // meanwhile are for the next pass.
    let (mut mark, mut first) = (None, None);
    loop {
        let slice = service.clean(all, CLEAN_ROUNDS, mark)?;
        mark = slice.mark;
        done = CleanTotal {
            extents_cleaned: done.extents_cleaned + slice.extents_cleaned,
            bytes_moved: done.bytes_moved + slice.bytes_moved,
            extents_free_before: *first.get_or_insert(slice.extents_free_before),
            extents_free: slice.extents_free,
            extents_todo: slice.extents_todo,
            sort: done.sort,
        };
        let said = format!("{} extents emptied, {} to go", done.extents_cleaned, done.extents_todo);
        doing.tell(done.bytes_moved, None, said);
        if slice.finished {
            return Ok(done);
        }
        doing.go_on().map_err(|why| {
            let text = format!("{why}: {} extents are emptied, {} to go", done.extents_cleaned, done.extents_todo);
            Stop::Cancelled(text)
        })?;
    }
}

fn calibrate(service: &Service, doing: &Doing) -> Work<JobResult> {
    doing.begin_phase("calibrating", 0, None);
    let progress = |bytes, total| {
        doing.tell(bytes, Some(total), String::new());
        match doing.is_cancelled() {
            Some(why) => Err(Error::new(ErrorKind::InUse, why)),
            None => Ok(()),
        }
    };
    let found = service.calibrate(CalibrationEffort::Full, &progress);
    // What has been measured until then is true, and is used.
    match (found, doing.is_cancelled()) {
        (Ok(found), _) => Ok(JobResult::Calibrated(found.into())),
        (Err(_), Some(why)) => Err(Stop::Cancelled(format!("{why}: not all codecs are measured"))),
        (Err(error), None) => Err(error.into()),
    }
}

fn recompressed(slice: &RecompressSlice) -> Standing {
    let left = (slice.before_bytes > 0).then(|| slice.after_bytes as f64 / slice.before_bytes as f64 * 100.0);
    Standing {
        finished: slice.finished,
        bytes_done: slice.bytes_done,
        bytes_total: slice.bytes_total,
        foreground_bytes: slice.foreground_bytes,
        said: left.map_or_else(String::new, |percent| format!("to {percent:.0}%")),
    }
}

fn sorted(slice: &SortSlice) -> Standing {
    Standing {
        finished: slice.finished,
        bytes_done: slice.bytes_done,
        bytes_total: slice.bytes_total,
        foreground_bytes: slice.foreground_bytes,
        said: format!("{} moved", format_size(slice.rewritten_bytes)),
    }
}

fn scrubbed(slice: &ScrubSlice) -> Standing {
    Standing {
        finished: slice.finished,
        bytes_done: slice.bytes_done,
        bytes_total: slice.bytes_total,
        foreground_bytes: slice.foreground_bytes,
        said: format!("{} damaged", slice.found),
    }
}
