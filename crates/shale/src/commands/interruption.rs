//! Handles signals to a command: as a request for an orderly end, or by ending the command at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use surface::Error;

use crate::output::Output;
use host::{Termination, exit_now};
use operations::{Failure, Outcome};

/// Interval at which a rest checks for an interruption.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A signal's request for an end. A second signal ends the process at once.
pub struct Interruption {
    flag: Arc<AtomicBool>,
}

impl Interruption {
    /// Watches for signals. Must be called before any other thread is started.
    ///
    /// # Errors
    /// When they cannot be blocked, or the thread that waits for them cannot be started.
    pub fn watch() -> Outcome<Self> {
        let signals = Termination::block().map_err(|error| Error::from_io("cannot block signals", error))?;
        let flag = signals.flag().map_err(|error| Error::from_io("cannot watch for signals", error))?;
        Ok(Self { flag })
    }

    /// Uses a flag that is already watched.
    pub const fn of(flag: Arc<AtomicBool>) -> Self {
        Self { flag }
    }

    /// Returns whether a signal has arrived.
    pub fn has_come(&self) -> bool {
        self.flag.load(Ordering::SeqCst)
    }

    /// Rests for that time, or until a signal arrives.
    pub(super) fn rest(&self, time: Duration) {
        let began = Instant::now();
        while !self.has_come() {
            let left = time.saturating_sub(began.elapsed());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(LOOK_EVERY));
        }
    }
}

/// Makes signals end the process at once, as by default, but with the usual message. For commands
/// that leave nothing to clean up: an open pool then has crashed, which it is made for. Must be
/// called before any other thread is started.
///
/// # Errors
/// When signals cannot be blocked, or the thread that waits for them cannot be started.
pub fn end_when_interrupted(output: &Output) -> Outcome {
    let output = *output;
    let signals = Termination::block().map_err(|error| Error::from_io("cannot block signals", error))?;
    let end = move |_| {
        let interrupted = Failure::Interrupted("interrupted".to_owned());
        crate::exit::report(&interrupted, &output);
        exit_now(interrupted.code().into());
    };
    signals.watch(end).map_err(|error| Error::from_io("cannot watch for signals", error).into())
}
