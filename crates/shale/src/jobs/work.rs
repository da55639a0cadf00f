//! The work of each kind of job: which slices of it the service does.

use super::model::{JobResult, JobWish};
use super::pace::{SliceBytes, Standing, in_slices};
use super::table::{Doing, Work};
use crate::choices::RecompressSlice;
use crate::service::Service;
use surface::Result;

/// Bytes of extents of one slice of recompression: a fraction of a second of compressing, even with
/// the slowest codecs.
const RECOMPRESS_SLICES: SliceBytes = SliceBytes::always(4 << 20);

/// Finds out whether a job can be done, before it gets a number.
///
/// # Errors
/// `NotFound` and `Invalid` for what it names.
pub(crate) fn check(service: &Service, wish: &JobWish) -> Result<()> {
    match wish {
        JobWish::Recompress { volume, mode, path, .. } => {
            service.recompress(volume, path.clone(), mode.as_deref(), (0, false)).map(drop)
        }
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
