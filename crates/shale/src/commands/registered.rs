//! Work whose bytes go through this command, registered as a job of the server that has the pool,
//! so that others see how far it is, and can cancel it.
//!
//! The job ends with the command: its bytes come from, or go to, files that only this process has
//! open, with the rights of its user. So it cannot be left to the server, nor be paused there.
//!
//! 1. The job is registered. A server that has no place for it, or is too old, does without.
//! 2. Meanwhile a thread tells the server how far the work is ([`progress::standing`]). The answer
//!    says whether the job is to be cancelled; then the work is interrupted as by a signal. It may
//!    be past the last point at which that ends it.
//! 3. The outcome is told, and is that of the job: done, whatever was asked of it, if the work is.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use surface::{Error, ErrorKind};

use crate::progress;
use operations::Outcome;
use operations::{Reply, Request};
use report::{JobFault, JobKind, JobReport, JobState};
use server::control::Client;
use server::session::Session;

/// How often the server is told. A cancellation is noticed as soon as that.
const TELL_EVERY: Duration = Duration::from_millis(200);

/// Refuses to leave such work to the server.
///
/// # Errors
/// `Invalid`.
pub(super) fn refuse_background(background: bool, kind: JobKind) -> Outcome {
    if !background {
        return Ok(());
    }
    let text = format!(
        "--background: the bytes of 'shale {}' go through this command, so that it cannot end before they are through; \
         let the shell put it in the background (&)",
        kind.name()
    );
    Err(Error::new(ErrorKind::Invalid, text).into())
}

/// Whether the work is over.
#[derive(Default)]
struct Over {
    is_over: Mutex<bool>,
    changed: Condvar,
}

impl Over {
    /// Waits so long, or until it is.
    fn wait(&self, time: Duration) -> bool {
        let give_up = Instant::now() + time;
        let mut is_over = self.is_over.lock();
        while !*is_over && !self.changed.wait_until(&mut is_over, give_up).timed_out() {}
        *is_over
    }
}

/// Says that the work is over, however it ends.
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

/// Does some work as a job of the server, if one has the pool. A job that is cancelled sets
/// `interrupted`.
///
/// # Errors
/// Those of the work.
pub(super) fn registered<T>(
    session: &Session,
    kind: JobKind,
    target: Option<&str>,
    interrupted: &AtomicBool,
    work: impl FnOnce() -> Outcome<T>,
) -> Outcome<T> {
    let Session::Served(client) = session else { return work() };
    let target = target.map(str::to_owned);
    let Some(job) = ask(client, Request::RegisterJob { kind, target }) else { return work() };
    let over = Over::default();
    let (done, is_cancelled) = std::thread::scope(|scope| {
        let says = Says(&over);
        let teller =
            std::thread::Builder::new().name("job".to_owned()).spawn_scoped(scope, || tell(client, &over, interrupted));
        let done = work();
        drop(says);
        (done, teller.is_ok_and(|teller| teller.join().unwrap_or(false)))
    });
    let fault = done
        .as_ref()
        .err()
        .map(|failure| JobFault { kind: failure.kind_name().to_owned(), message: failure.to_string() });
    let (bytes_done, _) = progress::standing();
    // Nothing depends on whether a server that has gone knows.
    drop(ask(client, Request::FinishJob { bytes_done, fault }));
    if is_cancelled {
        return done.map_err(|failure| failure.context(format_args!("job {} was cancelled", job.id)));
    }
    done
}

/// Step 2. Whether the job is to be cancelled.
fn tell(client: &Client, over: &Over, interrupted: &AtomicBool) -> bool {
    while !over.wait(TELL_EVERY) {
        let (bytes_done, bytes_total) = progress::standing();
        // Without an answer there is nothing more to be told; the work meets the reason itself.
        let Some(job) = ask(client, Request::TellJob { bytes_done, bytes_total }) else { return false };
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
        let says_why = |text: &str| text.contains("'shale send' go through this command") && text.contains('&');
        assert!(refused.is_some_and(|failure| failure.code() == 2 && says_why(&failure.to_string())));
    }
}
