//! The command at the other end of a control connection: as a client of the set of devices, and as
//! the caller of operations.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use operations::{Caller, Role, Who};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt;
use rustix::time::Timespec;
use surface::{Client, process_name, program_file};

use crate::traffic::COMMANDS;

/// See the module's text.
pub(super) struct Peer {
    stream: Arc<UnixStream>,
}

impl Peer {
    /// Returns the client of a connection.
    pub(super) fn client(stream: Arc<UnixStream>) -> Arc<dyn Client> {
        Arc::new(Self { stream })
    }

    /// Returns the caller of a connection. Only the owner of the pool and root can connect, so it
    /// is an administrator.
    ///
    /// # Errors
    /// When the system does not reveal the process.
    pub(super) fn caller(stream: &UnixStream) -> std::io::Result<Caller> {
        let peer = sockopt::socket_peercred(stream)?;
        let pid = peer.pid.as_raw_nonzero().get().unsigned_abs();
        let who = Who::Process { uid: peer.uid.as_raw(), pid };
        Ok(Caller { who, from: "control socket".to_owned(), role: Role::Admin })
    }
}

impl Client for Peer {
    fn name(&self) -> String {
        let peer = sockopt::socket_peercred(&*self.stream).ok();
        let who = peer.map(|peer| {
            let pid = peer.pid.as_raw_nonzero().get().unsigned_abs();
            let program = std::fs::read(program_file(pid)).unwrap_or_default();
            process_name(pid, &program, Some(peer.uid.as_raw()))
        });
        who.map_or_else(|| "a command".to_owned(), |who| format!("command, {who}"))
    }

    fn door(&self) -> &'static str {
        COMMANDS
    }

    fn is_gone(&self) -> bool {
        let mut polled = [PollFd::new(&*self.stream, PollFlags::RDHUP)];
        let no_wait = Timespec { tv_sec: 0, tv_nsec: 0 };
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
        matches!(poll(&mut polled, Some(&no_wait)), Ok(1..)) && polled[0].revents().intersects(gone)
    }

    fn give_up(&self) {
        // An error means that the connection has ended already.
        drop(self.stream.shutdown(Shutdown::Both));
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_command_is_gone_when_its_end_is_closed_and_not_before() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let caller = Peer::client(Arc::new(ours));
        assert!(!caller.is_gone());
        assert!(caller.name().starts_with(&format!("command, process {} (", std::process::id())), "{}", caller.name());
        (&theirs).write_all(b"a request that nobody has read").unwrap();
        assert!(!caller.is_gone());
        drop(theirs);
        assert!(caller.is_gone());
    }
}
