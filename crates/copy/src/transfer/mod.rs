//! Parallel bulk transfer into and out of a volume, in bounded memory. Independent of the access to
//! the volume ([`crate::volume_io`]), and of progress messages.

pub mod containers;
mod export;
mod import;
mod sink;
mod source;

pub use export::{Export, export};
pub use import::{Import, import};
pub use sink::{Guard, Sink, empty, open_found};
pub use source::{Piece, Source};

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{Builder, Scope};
use std::time::Duration;

use parking_lot::Mutex;
use surface::Error;

use operations::{Failure, Outcome};

/// Bytes of a piece: large enough that a piece's fixed costs (a wake-up, a frame) vanish, small
/// enough that the pieces in flight stay in the processor's outer cache.
pub const PIECE_BYTES: usize = 1 << 20;
/// Threads that write to (or read from) the volume. More than CPUs, because some wait for the disk
/// or the socket.
pub const THREADS: usize = 4;
/// Pieces queued between reader and writers: one for each thread, so that none waits for the other
/// side to wake up. Together with one piece held by each thread, 9 MiB of buffers.
const QUEUED_PIECES_MAX: usize = THREADS;
/// How often progress is reported.
const REPORT_EVERY: Duration = Duration::from_millis(100);

/// Totals of a transfer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moved {
    /// Bytes copied.
    pub copied_bytes: u64,
    /// Bytes of holes that were skipped.
    pub hole_bytes: u64,
}

/// State shared by the threads of a transfer: counters, the first error, and whether to stop.
struct Shared<'a> {
    copied: AtomicU64,
    holes: AtomicU64,
    failed: AtomicBool,
    error: Mutex<Option<Failure>>,
    interrupted: &'a AtomicBool,
}

impl<'a> Shared<'a> {
    fn new(interrupted: &'a AtomicBool) -> Self {
        Self {
            copied: AtomicU64::new(0),
            holes: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            error: Mutex::new(None),
            interrupted,
        }
    }

    fn moved(&self) -> Moved {
        Moved { copied_bytes: self.copied.load(Ordering::Relaxed), hole_bytes: self.holes.load(Ordering::Relaxed) }
    }

    /// Bytes that are dealt with.
    fn done(&self) -> u64 {
        let moved = self.moved();
        moved.copied_bytes + moved.hole_bytes
    }

    /// Remembers the first error, and makes all threads stop.
    fn fail(&self, failure: impl Into<Failure>) {
        self.error.lock().get_or_insert(failure.into());
        self.failed.store(true, Ordering::SeqCst);
    }

    /// Starts a thread of the transfer. If that fails, the transfer ends, and everything held by
    /// `work` is dropped.
    fn start<'scope>(&self, scope: &'scope Scope<'scope, '_>, work: impl FnOnce() + Send + 'scope) {
        if let Err(error) = Builder::new().name("shale-transfer".to_owned()).spawn_scoped(scope, work) {
            self.fail(Error::from_io("starting a thread", error));
        }
    }

    /// Whether to continue; checks for a signal.
    fn go_on(&self) -> bool {
        if self.interrupted.load(Ordering::SeqCst) && !self.failed.load(Ordering::SeqCst) {
            self.fail(Failure::Interrupted("interrupted".to_owned()));
        }
        !self.failed.load(Ordering::SeqCst)
    }

    /// The outcome, once all threads are done.
    fn outcome(self) -> Outcome<Moved> {
        let moved = self.moved();
        self.error.into_inner().map_or(Ok(moved), Err)
    }
}
