//! The keeper itself.
//!
//! While a server is there it sleeps in the socket alone: to watch the connections as well would
//! wake it for each of their requests.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::SocketFlags;

use super::client::Entry;
use super::{DONE, DROP, ENTRY, LIST, Message, PUT, receive, send};

/// How long it waits for its first server, which is about to connect.
const FIRST: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

/// Servers at a time: the one that is there, and one that is about to take its place.
const SERVERS_MAX: usize = 4;

/// Keeps what servers give to it, until nothing is left. `listener`: a socket that servers connect
/// to.
///
/// # Errors
/// Of the socket.
pub fn run(listener: OwnedFd) -> io::Result<()> {
    // Not ended with the terminal or the group of processes of the server.
    let _ = rustix::process::setsid();
    let mut keeper = Running { listener, servers: Vec::new(), entries: Vec::new(), had_server: false };
    while keeper.turn()? {}
    Ok(())
}

struct Running {
    listener: OwnedFd,
    servers: Vec<OwnedFd>,
    entries: Vec<Entry>,
    had_server: bool,
}

impl Running {
    /// Waits for something and does it; `false` at the end.
    fn turn(&mut self) -> io::Result<bool> {
        if self.had_server && self.servers.is_empty() && self.entries.is_empty() {
            return Ok(false);
        }
        let watches = self.servers.is_empty();
        let mut ready = vec![PollFd::new(&self.listener, PollFlags::IN)];
        ready.extend(self.servers.iter().map(|server| PollFd::new(server, PollFlags::IN)));
        // An end of the connection is told without being asked for.
        let watched = self.entries.iter().filter(|_| watches).filter_map(|entry| entry.descriptors.first());
        ready.extend(watched.map(|descriptor| PollFd::new(descriptor, PollFlags::empty())));
        let patience = (!self.had_server).then_some(&FIRST);
        let count = rustix::io::retry_on_intr(|| rustix::event::poll(&mut ready, patience))?;
        if count == 0 {
            return Ok(false);
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
            // One that breaks the rules is not listened to any more.
            if !is_ready || self.serve(&server).unwrap_or(false) {
                self.servers.push(server);
            }
        }
        if is_ready[0] {
            self.accept();
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

    /// Does what a server asks for; `false` if it has gone.
    fn serve(&mut self, server: &OwnedFd) -> io::Result<bool> {
        let Some(Message { kind, name, bytes, descriptors }) = receive(server)? else { return Ok(false) };
        match kind {
            PUT => {
                self.entries.retain(|entry| entry.name != name);
                self.entries.push(Entry { name, bytes, descriptors });
            }
            DROP => self.entries.retain(|entry| entry.name != name),
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
