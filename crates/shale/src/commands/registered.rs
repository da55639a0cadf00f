//! Work whose bytes pass through this command, registered as a job of the server that has the pool,
//! so that other users see its progress, and can cancel it.
//!
//! The job ends with the command: its bytes are read from, or written to, files that only this
//! process has open, with the rights of its user. So it cannot be left to the server, nor be paused
//! there.
//!
//! 1. The job is registered. If the server's table is full, or the server is too old, the work
//!    proceeds unregistered; an import does not, because others into its share or volume would not
//!    know of it.
//! 2. Meanwhile a thread reports the progress ([`progress::standing`]) to the server. If the answer
//!    says that the job is being cancelled, the work is interrupted as by a signal. It may be past
//!    the last point at which it could be ended. If the server ends, work in its mount waits for
//!    the next one; the thread says so.
//! 3. The outcome of the work is reported as that of the job: a cancelled job is done if the work
//!    is.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use surface::{Error, ErrorKind};

use crate::output::Output;
use crate::progress;
use operations::Outcome;
use operations::{Reply, Request};
use report::{JobFault, JobKind, JobReport, JobState};
use server::control::Client;
use server::session::Session;

/// Interval of reports to the server, and so of checks for a cancellation.
const TELL_EVERY: Duration = Duration::from_millis(200);

/// Time for work to end after its server has: only in a mount it waits for the next one.
const ENDING_PATIENCE: Duration = Duration::from_secs(3);

/// Refuses to leave such work to the server.
///
/// # Errors
/// `Invalid`.
pub(super) fn refuse_background(background: bool, kind: JobKind) -> Outcome {
    if !background {
        return Ok(());
    }
    let text = format!(
        "--background: the bytes of 'shale {}' pass through this command, which must run until they have; use the \
         shell to put it in the background (&)",
        kind.name()
    );
    Err(Error::new(ErrorKind::Invalid, text).into())
}

/// Signals the end of the work.
#[derive(Default)]
struct Over {
    is_over: Mutex<bool>,
    changed: Condvar,
}

impl Over {
    /// Waits for that time, or until the end; returns whether it came.
    fn wait(&self, time: Duration) -> bool {
        let give_up = Instant::now() + time;
        let mut is_over = self.is_over.lock();
        while !*is_over && !self.changed.wait_until(&mut is_over, give_up).timed_out() {}
        *is_over
    }
}

/// Signals the end of the work when dropped.
struct Says<'a>(&'a Over);

impl Drop for Says<'_> {
    fn drop(&mut self) {
        *self.0.is_over.lock() = true;
        self.0.changed.notify_all();
    }
}

fn ask(client: &Client, request: Request) -> Option<JobReport> {
    match client.call(&request) {
        Ok(Reply::Job(job)) => Some(*job),
        _ => None,
    }
}

/// Runs some work as a job of the server, if there is one. Cancelling the job sets `interrupted`.
///
/// # Errors
/// Those of the work; `InUse` for an import that cannot be registered.
pub(super) fn registered<T>(
    session: &Session,
    (kind, target): (JobKind, Option<&str>),
    interrupted: &AtomicBool,
    output: &Output,
    work: impl FnOnce() -> Outcome<T>,
) -> Outcome<T> {
    let Session::Served(client) = session else { return work() };
    let target = target.map(str::to_owned);
    let job = match client.call(&Request::RegisterJob { kind, target }) {
        Ok(Reply::Job(job)) => job,
        Err(error) if kind == JobKind::Import && error.kind() == ErrorKind::InUse => return Err(error.into()),
        _ => return work(),
    };
    let over = Over::default();
    let (done, is_cancelled) = std::thread::scope(|scope| {
        let says = Says(&over);
        let body = || tell(client, &over, interrupted, output);
        let teller = std::thread::Builder::new().name("job".to_owned()).spawn_scoped(scope, body);
        let done = work();
        drop(says);
        (done, teller.is_ok_and(|teller| teller.join().unwrap_or(false)))
    });
    let fault = done
        .as_ref()
        .err()
        .map(|failure| JobFault { kind: failure.kind_name().to_owned(), message: failure.to_string() });
    let (bytes_done, _) = progress::standing();
    // A server that has ended need not know.
    drop(ask(client, Request::FinishJob { bytes_done, fault }));
    if is_cancelled {
        return done.map_err(|failure| failure.context(format_args!("job {} was cancelled", job.id)));
    }
    done
}

/// Performs step 2. Returns whether the job is being cancelled.
fn tell(client: &Client, over: &Over, interrupted: &AtomicBool, output: &Output) -> bool {
    while !over.wait(TELL_EVERY) {
        let (bytes_done, bytes_total) = progress::standing();
        // Without an answer further reports are pointless; the work itself fails for the same
        // reason, unless it waits in a mount.
        let Some(job) = ask(client, Request::TellJob { bytes_done, bytes_total }) else {
            if client.call(&Request::Hello).is_err() && !over.wait(ENDING_PATIENCE) {
                output.warn(
                    "the pool's server has ended, and a command that uses its mount waits for the next one, as long \
                     as 'shale serve --wait-for-server' says: start it again, or stop this command",
                );
            }
            return false;
        };
        if matches!(job.state, JobState::Cancelling | JobState::Cancelled) {
            interrupted.store(true, Ordering::SeqCst);
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_of_a_command_is_not_left_to_the_server() {
        assert!(refuse_background(false, JobKind::Send).is_ok());
        let refused = refuse_background(true, JobKind::Send).err();
        let says_why = |text: &str| text.contains("'shale send' pass through this command") && text.contains('&');
        assert!(refused.is_some_and(|failure| failure.code() == 2 && says_why(&failure.to_string())));
    }
}
