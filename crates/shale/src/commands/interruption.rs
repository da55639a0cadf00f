//! What a signal does to a command: it asks for an end in order, or ends the command at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use surface::Error;

use crate::output::Output;
use host::{Termination, exit_now};
use operations::{Failure, Outcome};

/// How often a rest looks whether it was interrupted.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Whether a signal has asked for an end. A second one ends the process at once.
pub struct Interruption {
    flag: Arc<AtomicBool>,
}

impl Interruption {
    /// Watches for signals. To be made before any other thread is started.
    ///
    /// # Errors
    /// When they cannot be blocked, or the thread that waits for them cannot be started.
    pub fn watch() -> Outcome<Self> {
        let signals = Termination::block().map_err(|error| Error::from_io("cannot block signals", error))?;
        let flag = signals.flag().map_err(|error| Error::from_io("cannot watch for signals", error))?;
        Ok(Self { flag })
    }

    /// By a flag that is watched already.
    pub const fn of(flag: Arc<AtomicBool>) -> Self {
        Self { flag }
    }

    /// Whether it has come.
    pub fn has_come(&self) -> bool {
        self.flag.load(Ordering::SeqCst)
    }

    /// Rests so long, or until it comes.
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

/// From now on a signal ends the process at once, as its default would, but says so in the way of
/// all commands. For those that leave nothing to be put in order: a pool that is open then has
/// crashed, which it is made for. To be called before any other thread is started.
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
