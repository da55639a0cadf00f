//! The client at the other end of a connection, as seen by the set of devices: its identity,
//! whether it is still connected, and the request to start none of its remaining commands.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{Shutdown, sockopt};
use rustix::time::Timespec;
use surface::{Client, process_name, program_file};

/// See the module's text.
pub struct Caller {
    socket: Arc<OwnedFd>,
    /// Of its certificate.
    name: OnceLock<String>,
    given_up: AtomicBool,
}

impl Caller {
    /// Of a connected socket.
    pub fn new(socket: Arc<OwnedFd>) -> Arc<Self> {
        Arc::new(Self { socket, name: OnceLock::new(), given_up: AtomicBool::new(false) })
    }

    /// The socket.
    pub fn socket(&self) -> &Arc<OwnedFd> {
        &self.socket
    }

    /// Notes the name in the client's certificate, if it has one.
    pub fn set_certificate_name(&self, name: Option<String>) {
        if let Some(name) = name {
            // TLS is started once.
            let _ = self.name.set(name);
        }
    }

    /// Whether no more of the client's commands may be started.
    pub fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Acquire)
    }

    fn who(&self) -> Option<String> {
        if let Ok(peer) = rustix::net::getpeername(&self.socket)
            && let Some(peer) = peer.and_then(|peer| SocketAddr::try_from(peer).ok())
        {
            return Some(peer.to_string());
        }
        let peer = sockopt::socket_peercred(&self.socket).ok()?;
        let pid = peer.pid.as_raw_nonzero().get().unsigned_abs();
        let program = std::fs::read(program_file(pid)).unwrap_or_default();
        Some(process_name(pid, &program, Some(peer.uid.as_raw())))
    }
}

impl Client for Caller {
    fn name(&self) -> String {
        let name = self.name.get().map_or_else(String::new, |name| format!(" ({})", name.escape_debug()));
        self.who().map_or_else(|| format!("an NBD client{name}"), |who| format!("NBD client {who}{name}"))
    }

    fn door(&self) -> &'static str {
        "nbd"
    }

    /// A client that has shut down its side may still read replies, but sends no more requests.
    fn is_gone(&self) -> bool {
        let mut polled = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        let no_wait = Timespec { tv_sec: 0, tv_nsec: 0 };
        match poll(&mut polled, Some(&no_wait)) {
            Ok(0) | Err(_) => false,
            Ok(_) => {
                polled[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL)
            }
        }
    }

    fn give_up(&self) {
        self.given_up.store(true, Ordering::Release);
        // Wakes the connection's reader if it waits for the rest of a write, and ends waiting for
        // replies to be read. An error means that nothing is waiting.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }
}
