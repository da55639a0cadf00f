//! The monitor at the other end of a socket, as the set of devices knows it. Shared by the threads
//! of its session; owns the word that nothing more of its requests is to be begun.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{Shutdown, sockopt};
use rustix::time::Timespec;
use surface::{Client, process_name, program_file};

/// The door's name in documents.
const DOOR: &str = "vhost-user";

/// See the module's text.
pub struct Caller {
    socket: OwnedFd,
    is_given_up: AtomicBool,
}

impl Caller {
    /// Of a connected socket.
    pub fn new(socket: OwnedFd) -> Arc<Self> {
        Arc::new(Self { socket, is_given_up: AtomicBool::new(false) })
    }

    /// The socket.
    pub const fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Whether none of its requests is to be begun any more.
    pub fn is_given_up(&self) -> bool {
        self.is_given_up.load(Ordering::Acquire)
    }

    /// Ends the session after the message that is being answered.
    pub fn hang_up(&self) {
        // An error means that the other end has gone already.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Read);
    }
}

impl Client for Caller {
    fn name(&self) -> String {
        let Ok(peer) = sockopt::socket_peercred(&self.socket) else { return "a vhost-user client".to_owned() };
        let pid = peer.pid.as_raw_nonzero().get().unsigned_abs();
        let program = std::fs::read(program_file(pid)).unwrap_or_default();
        format!("vhost-user client {}", process_name(pid, &program, Some(peer.uid.as_raw())))
    }

    fn door(&self) -> &'static str {
        DOOR
    }

    fn is_gone(&self) -> bool {
        let mut polled = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        let no_wait = Timespec { tv_sec: 0, tv_nsec: 0 };
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
        matches!(poll(&mut polled, Some(&no_wait)), Ok(1..)) && polled[0].revents().intersects(gone)
    }

    fn give_up(&self) {
        self.is_given_up.store(true, Ordering::Release);
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }
}
