//! The work of each kind of job: its slices in the service, and its volume.

use std::cell::RefCell;

use engine::{CalibrationEffort, VolumeRef};
use surface::{DeviceId, Error, ErrorKind, Result};
use units::format_size;

use super::pace::{SliceBytes, Standing, in_slices};
use super::restore::{RestorePlan, RestoreWish};
use super::table::{Begin, Doing, Stop, Work, Worker};
use crate::documents;
use crate::service::Service;
use operations::PushWish;
use report::RecompressSlice;
use report::{CleanTotal, ScrubSlice, ShrinkSlice, SortSlice};
use report::{JobKind, JobPace, JobResult, JobWish};

/// Bytes of extents in one slice of recompression: a fraction of a second of compressing, even with
/// the slowest codecs.
const RECOMPRESS_SLICES: SliceBytes = SliceBytes::always(4 << 20);
/// Bytes of volumes in one slice of sorting: a fraction of a second.
const SORT_SLICES: SliceBytes = SliceBytes::always(8 << 20);
/// Bytes of extents in one slice of a scrub. While others use the pool, a few milliseconds on a
/// fast device, so that the rests between them are short, too; otherwise enough to keep the device
/// reading.
const SCRUB_SLICES: SliceBytes = SliceBytes { busy: 8 << 20, idle: 128 << 20 };
/// Rounds in one slice of shrinking: about a second.
const SHRINK_ROUNDS: u32 = 16;
/// Rounds in one slice of cleaning: about a second, so that the progress bar moves and a
/// cancellation takes effect soon.
const CLEAN_ROUNDS: u32 = 16;

/// The work of a job: wishes, which any operator may start, and work with operations and roles of
/// its own.
#[derive(Debug, Clone)]
pub(crate) enum Task {
    /// Work requested by a wish.
    Wish(JobWish),
    /// Restoring files.
    Restore(RestoreWish),
    /// Shrinking the pool.
    Shrink {
        /// New capacity.
        capacity_bytes: u64,
    },
    /// Pushing a snapshot as a version of a blob.
    Push(PushWish),
}

/// A job that was checked and can be done.
#[derive(Debug)]
pub(crate) enum Planned {
    /// Work requested by a wish, with the volume that had the name at the start.
    Wish(JobWish, Option<DeviceId>),
    /// Restoring files.
    Restore(Box<RestorePlan>),
    /// Shrinking the pool.
    Shrink(u64),
    /// Pushing a snapshot, by its number, as a version of a blob.
    Push(Box<PushWish>, DeviceId),
}

impl Planned {
    /// Checks whether a job can be done, before it gets a number.
    ///
    /// # Errors
    /// `NotFound` and `Invalid` for its target; `InUse`, as from the table of jobs.
    pub(crate) fn new(service: &Service, task: Task) -> Result<Self> {
        let wish = match task {
            Task::Wish(wish) => wish,
            Task::Restore(wish) => return RestorePlan::new(service, &wish).map(|plan| Self::Restore(Box::new(plan))),
            Task::Shrink { capacity_bytes } => return Ok(Self::Shrink(capacity_bytes)),
            Task::Push(wish) => {
                let id = service.pool().volume(&wish.snapshot)?.id();
                return Ok(Self::Push(Box::new(wish), id));
            }
        };
        let volume = match &wish {
            JobWish::Recompress { volume, mode, path, .. } => {
                let id = service.pool().volume(volume)?.id();
                service.recompress(id.into(), path.clone(), mode.as_deref(), (0, false))?;
                Some(id)
            }
            JobWish::Clean { .. } | JobWish::Scrub { .. } | JobWish::Calibrate => None,
        };
        Ok(Self::Wish(wish, volume))
    }

    /// Returns the job's entry for the table.
    pub(crate) fn begin(&self, background: bool) -> Begin {
        let (kind, target, volume, path) = match self {
            Self::Wish(wish, volume) => {
                let path = match wish {
                    JobWish::Recompress { path, .. } => path.clone(),
                    JobWish::Clean { .. } | JobWish::Scrub { .. } | JobWish::Calibrate => None,
                };
                (wish.kind(), wish.target(), *volume, path)
            }
            Self::Restore(plan) => {
                let target = format!("{}/{}", plan.name, plan.path());
                (JobKind::Restore, Some(target), Some(plan.share), Some(plan.path()))
            }
            Self::Shrink(_) => (JobKind::Shrink, None, None, None),
            Self::Push(wish, id) => (JobKind::Push, Some(wish.snapshot.clone()), Some(*id), None),
        };
        Begin { kind, target, volume, path, background, worker: Worker::Pool }
    }

    /// Does the work.
    ///
    /// # Errors
    /// When it is cancelled, and those of the pool.
    pub(crate) fn run(&self, service: &Service, doing: &Doing) -> Work<JobResult> {
        let (wish, volume) = match self {
            Self::Wish(wish, volume) => (wish, *volume),
            Self::Restore(plan) => return plan.run(service, doing),
            Self::Shrink(capacity_bytes) => return shrink(service, *capacity_bytes, doing),
            Self::Push(wish, _) => return push(service, wish, doing),
        };
        match (wish, volume) {
            (JobWish::Recompress { mode, path, pace, volume }, id) => {
                let name = RefCell::new(volume.clone());
                let call = |bytes, restart| {
                    let meant = id.map_or(VolumeRef::Name(volume), VolumeRef::Number);
                    follow(service, id, &name, doing)?;
                    let report = service.recompress(meant, path.clone(), mode.as_deref(), (bytes, restart));
                    // The volume may have been destroyed since.
                    let report = report.or_else(|error| follow(service, id, &name, doing).and(Err(error)))?;
                    Ok(documents::recompress_slice(report))
                };
                let slice = in_slices("recompressing", RECOMPRESS_SLICES, *pace, doing, call, recompressed);
                service.end_recompression();
                Ok(JobResult::Recompressed(Box::new(slice?)))
            }
            (JobWish::Clean { all, sort }, _) => clean(service, *all, *sort, doing).map(JobResult::Cleaned),
            (JobWish::Scrub { pace }, _) => {
                let call = |bytes, restart| service.scrub(bytes, restart, true);
                let slice = in_slices("scrubbing", SCRUB_SLICES, *pace, doing, call, scrubbed)?;
                Ok(JobResult::Scrubbed(Box::new(slice)))
            }
            (JobWish::Calibrate, _) => calibrate(service, doing),
        }
    }
}

/// Follows the volume of a job to its current name; `name` holds the previous one.
///
/// # Errors
/// `NotFound` if the volume was destroyed.
fn follow(service: &Service, id: Option<DeviceId>, name: &RefCell<String>, doing: &Doing) -> Result<()> {
    let Some(id) = id else { return Ok(()) };
    match service.pool().volume_of(id) {
        Ok(volume) => {
            doing.call_volume(&volume.name());
            *name.borrow_mut() = volume.name();
            Ok(())
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let text = format!("'{}' was destroyed while job {} worked on it", name.borrow(), doing.id());
            Err(Error::new(ErrorKind::NotFound, text))
        }
        Err(error) => Err(error),
    }
}

fn clean(service: &Service, all: bool, sort: Option<JobPace>, doing: &Doing) -> Work<CleanTotal> {
    let mut done = CleanTotal::default();
    if let Some(pace) = sort {
        let call = |bytes, restart| service.sort(bytes, restart);
        done.sort = Some(in_slices("sorting", SORT_SLICES, pace, doing, call, sorted)?);
    }
    doing.begin_phase("cleaning", 0, None);
    // The pass covers the extents that existed when its first slice began: those that writers fill
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

fn shrink(service: &Service, capacity_bytes: u64, doing: &Doing) -> Work<JobResult> {
    doing.begin_phase("shrinking", 0, None);
    let (mut moved, mut total) = (0, None);
    loop {
        let slice = documents::shrink_slice(service.pool().shrink(capacity_bytes, SHRINK_ROUNDS)?);
        moved += slice.bytes_moved;
        let total = *total.get_or_insert(slice.bytes_todo + slice.bytes_moved);
        let said = format!("{} extents to go", slice.extents_todo);
        doing.tell(total.saturating_sub(slice.bytes_todo), Some(total), said);
        if slice.finished {
            return Ok(JobResult::Shrunk(ShrinkSlice { bytes_moved: moved, ..slice }));
        }
        doing.go_on().map_err(|why| {
            service.pool().give_up_shrinking();
            let left = format_size(slice.bytes_todo);
            Stop::Cancelled(format!("{why}: the pool has its former size, {left} would still have to be moved"))
        })?;
    }
}

fn push(service: &Service, wish: &PushWish, doing: &Doing) -> Work<JobResult> {
    doing.begin_phase("pushing", 0, None);
    let progress = |bytes| {
        doing.tell(bytes, None, String::new());
        doing.is_cancelled().is_none()
    };
    match (service.push(wish, &progress), doing.is_cancelled()) {
        (Ok(pushed), _) => Ok(JobResult::Pushed(pushed)),
        (Err(_), Some(why)) => Err(Stop::Cancelled(format!("{why}: no version was made; push again to make one"))),
        (Err(error), None) => Err(error.into()),
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
    // Measurements up to that point are valid and used.
    match (found, doing.is_cancelled()) {
        (Ok(found), _) => Ok(JobResult::Calibrated(documents::calibrated(found))),
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
