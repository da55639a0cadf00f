//! The keeper process. Owns the entries, on its only thread.
//!
//! While a server is connected it only waits on the sockets: watching the connections as well would
//! wake it for each of their requests.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::SocketFlags;

use super::client::Entry;
use super::{DONE, DROP, ENTRY, LIST, Message, PUT, WAIT, receive, send};

/// How long it waits for its first server, which is about to connect.
const FIRST: Duration = Duration::from_secs(60);

/// Servers at a time: the current one, and one that is about to replace it.
const SERVERS_MAX: usize = 4;

/// Holds the entries that servers put, until none is left. `listener` is a socket to which servers
/// connect.
///
/// # Errors
/// Errors of the socket.
pub fn run(listener: OwnedFd) -> io::Result<()> {
    // Not ended with the terminal or the process group of the server.
    let _ = rustix::process::setsid();
    let mut keeper = Running {
        listener,
        servers: Vec::new(),
        entries: Vec::new(),
        had_server: false,
        wait: None,
        deadline: Some(now() + FIRST),
    };
    while keeper.turn()? {}
    Ok(())
}

struct Running {
    listener: OwnedFd,
    servers: Vec<OwnedFd>,
    entries: Vec<Entry>,
    had_server: bool,
    /// How long entries wait for the next server; `None` for no limit.
    wait: Option<Duration>,
    /// When that time ends, while there is no server.
    deadline: Option<Instant>,
}

/// A clock that stops while the machine is suspended.
#[allow(clippy::disallowed_methods, reason = "the keeper is a process of its own, and nothing simulates it")]
fn now() -> Instant {
    Instant::now()
}

impl Running {
    /// Waits for an event and handles it; returns `false` at the end.
    fn turn(&mut self) -> io::Result<bool> {
        if self.had_server && self.servers.is_empty() && self.entries.is_empty() {
            return Ok(false);
        }
        let watches = self.servers.is_empty();
        let mut ready = vec![PollFd::new(&self.listener, PollFlags::IN)];
        ready.extend(self.servers.iter().map(|server| PollFd::new(server, PollFlags::IN)));
        // The end of a connection is reported without being requested.
        let watched = self.entries.iter().filter(|_| watches).filter_map(|entry| entry.descriptors.first());
        ready.extend(watched.map(|descriptor| PollFd::new(descriptor, PollFlags::empty())));
        let patience = self.deadline.filter(|_| watches).map(|at| {
            // Not before the time that was set.
            let left = at.saturating_duration_since(now()) + Duration::from_millis(1);
            Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() }
        });
        let count = match rustix::event::poll(&mut ready, patience.as_ref()) {
            Err(rustix::io::Errno::INTR) => return Ok(true),
            count => count?,
        };
        if count == 0 {
            // The end of this process closes all descriptors.
            return Ok(!watches);
        }
        let is_ready: Vec<bool> = ready.iter().map(|one| !one.revents().is_empty()).collect();
        drop(ready);
        let (servers, watched) = is_ready[1..].split_at(self.servers.len());
        let mut ended = watched.iter();
        if watches {
            self.entries.retain(|entry| entry.descriptors.is_empty() || !ended.next().is_some_and(|ended| *ended));
        }
        let talking = std::mem::take(&mut self.servers);
        for (server, is_ready) in talking.into_iter().zip(servers) {
            // A server that violates the protocol is disconnected.
            if !is_ready || self.serve(&server).unwrap_or(false) {
                self.servers.push(server);
            }
        }
        if is_ready[0] {
            self.accept();
        }
        if !watches && self.servers.is_empty() {
            self.deadline = self.wait.map(|wait| now() + wait);
        }
        Ok(true)
    }

    fn accept(&mut self) {
        let accepted = rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC);
        if let Ok(server) = accepted
            && self.servers.len() < SERVERS_MAX
        {
            self.had_server = true;
            self.servers.push(server);
        }
    }

    /// Handles a request of a server; returns `false` if it has disconnected.
    fn serve(&mut self, server: &OwnedFd) -> io::Result<bool> {
        let Some(Message { kind, name, bytes, descriptors }) = receive(server)? else { return Ok(false) };
        match kind {
            PUT => {
                self.entries.retain(|entry| entry.name != name);
                self.entries.push(Entry { name, bytes, descriptors });
            }
            DROP => self.entries.retain(|entry| entry.name != name),
            WAIT => {
                let seconds = bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
                self.wait = (seconds > 0).then(|| Duration::from_secs(seconds));
            }
            LIST => {
                for entry in &self.entries {
                    let descriptors: Vec<_> = entry.descriptors.iter().map(AsFd::as_fd).collect();
                    send(server, ENTRY, &entry.name, &entry.bytes, &descriptors)?;
                }
            }
            _ => return Ok(false),
        }
        send(server, DONE, "", &[], &[])?;
        Ok(true)
    }
}
