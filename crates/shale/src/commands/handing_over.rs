//! Ends a server in such a way that its mounts wait for the next one.
//!
//! Jobs end, block devices are left to the kernel, everything is made durable while the trees of
//! shares are frozen, and then the process ends as with `kill -9`: later requests of its clients are
//! kept in standby memory and by the kernel, and wait.

use std::sync::Arc;

use surface::{Error, Result};

use crate::exit;
use crate::output::Output;
use operations::Failure;
use server::front_ends::FrontEnds;
use server::service::Service;

/// Leaves block devices to a next server that follows at once, and ends the process if another one
/// `holds_mounts` for it. Returns otherwise, or if that is impossible.
pub fn hand_over(front_ends: &mut FrontEnds, holds_mounts: bool, service: &Arc<Service>, output: &Output) {
    end_waits(service);
    let leaves_devices = front_ends.leave();
    if holds_mounts {
        end(service, output, || {
            output.note("shale: everything is durable; the mounts wait for the next server");
            0
        });
    } else if leaves_devices {
        output.note("shale: block devices wait for the next server");
    } else {
        output.warn("no process holds the mounts: they end with this server, as with SIGTERM");
    }
}

/// Ends a process whose start has failed, if it has taken over mounts of an earlier server: they
/// wait for the next one, as before. Mounts that it has made itself end. Returns if there are no
/// such mounts, or if that is impossible.
pub fn give_back(front_ends: &mut FrontEnds, service: &Arc<Service>, error: &Error, output: &Output) {
    if !front_ends.have_resumed() {
        return;
    }
    end_waits(service);
    front_ends.leave_mounts();
    end(service, output, || {
        output.note("shale: the start has failed; the mounts of the earlier server wait for the next one");
        let failure = Failure::from(Error::new(error.kind(), error.to_string()));
        let _ = exit::report(&failure, output);
        failure.code().into()
    });
}

/// Ends jobs, and requests that wait for an image: jobs, front ends and the pool would wait for
/// these.
fn end_waits(service: &Service) {
    service.jobs().ask_to_stop();
    service.end_fetching();
    service.jobs().stop();
}

/// Ends the process with the code of `last`.
fn end(service: &Arc<Service>, output: &Output, last: impl FnOnce() -> i32) {
    let end = || -> Result<()> {
        service.pool().checkpoint()?;
        host::exit_now(last())
    };
    let ended = match service.mounted_shares() {
        Some(shares) => shares.still(|_| true, end),
        None => end(),
    };
    if let Err(error) = ended {
        output.warn(&format!("cannot leave the mounts to the next server, so they end with this one: {error}"));
    }
}
