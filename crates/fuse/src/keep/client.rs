//! The server's side.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::{DONE, DROP, ENTRY, LIST, PUT, WAIT, receive, send};

/// Servers that may wait for the keeper.
const BACKLOG: i32 = 4;

/// A connection to a keeper.
#[derive(Debug)]
pub struct Keeper {
    socket: Mutex<OwnedFd>,
    /// The names that this server has asked for or given.
    claimed: Mutex<BTreeSet<String>>,
}

/// What a keeper has.
#[derive(Debug)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// What the server gave with it.
    pub bytes: Vec<u8>,
    /// Descriptors of the same open files.
    pub descriptors: Vec<OwnedFd>,
}

/// A keeper, and the name that a mount has there.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "it is said above")]
pub struct KeptBy {
    pub keeper: Arc<Keeper>,
    pub name: String,
}

impl KeptBy {
    /// The entry of that name; `None` if there is none.
    ///
    /// # Errors
    /// If the keeper has gone.
    pub fn entry(&self) -> io::Result<Option<Entry>> {
        self.keeper.claimed.lock().insert(self.name.clone());
        Ok(self.keeper.entries()?.into_iter().find(|entry| entry.name == self.name))
    }

    /// Has the mount closed. A keeper that has gone has nothing left to close.
    pub fn give_up(&self) {
        let _ = self.keeper.drop_entry(&self.name);
    }
}

fn socket() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

impl Keeper {
    /// Connects to the keeper whose socket is at `path`; `None` if there is none.
    ///
    /// # Errors
    /// Of the socket.
    pub fn connect(path: &Path) -> io::Result<Option<Self>> {
        let socket = socket()?;
        match rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) {
            Ok(()) => Ok(Some(Self { socket: Mutex::new(socket), claimed: Mutex::default() })),
            Err(Errno::NOENT | Errno::CONNREFUSED) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Starts a keeper with its socket at `path`: `program` must call [`super::run_keeper`] with
    /// its standard input. There must be none there that lives.
    ///
    /// # Errors
    /// Of the socket or the program.
    pub fn start(path: &Path, program: &mut Command) -> io::Result<Self> {
        match rustix::fs::unlink(path) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        let listener = socket()?;
        // Only its owner may connect, from the moment at which it is there.
        rustix::fs::fchmod(&listener, Mode::RUSR | Mode::WUSR)?;
        rustix::net::bind(&listener, &SocketAddrUnix::new(path)?)?;
        rustix::net::listen(&listener, BACKLOG)?;
        let spawned = program.stdin(Stdio::from(listener)).stdout(Stdio::null()).spawn()?;
        // It outlives us; if it does not, nothing of it is left behind.
        let reap = move || drop({ spawned }.wait());
        std::thread::Builder::new().name("keeper-reap".to_owned()).spawn(reap)?;
        Self::connect(path)?.ok_or_else(|| io::Error::other("the keeper of mounts ended at once"))
    }

    /// Has an entry kept, in the place of one of the same name.
    ///
    /// # Errors
    /// If the keeper has gone, or there is too much of it.
    pub fn put(&self, name: &str, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.claimed.lock().insert(name.to_owned());
        let socket = self.socket.lock();
        send(&*socket, PUT, name, bytes, descriptors)?;
        done(&socket)
    }

    /// Sets how long entries wait for the next server after this one; `None`: without limit.
    ///
    /// # Errors
    /// If the keeper has gone.
    pub fn set_wait(&self, wait: Option<Duration>) -> io::Result<()> {
        let socket = self.socket.lock();
        let seconds = wait.map_or(0, |wait| wait.as_secs().max(1));
        send(&*socket, WAIT, "", &seconds.to_le_bytes(), &[])?;
        done(&socket)
    }

    /// Has an entry closed. A keeper without any ends.
    ///
    /// # Errors
    /// If the keeper has gone.
    pub fn drop_entry(&self, name: &str) -> io::Result<()> {
        let socket = self.socket.lock();
        send(&*socket, DROP, name, &[], &[])?;
        done(&socket)
    }

    /// Has every entry closed that this server has neither asked for nor given: mounts that
    /// nothing is going to serve. Users of such a mount get errors instead of waiting for ever.
    ///
    /// # Errors
    /// If the keeper has gone.
    pub fn drop_unclaimed(&self) -> io::Result<()> {
        for entry in self.entries()? {
            if !self.claimed.lock().contains(&entry.name) {
                self.drop_entry(&entry.name)?;
            }
        }
        Ok(())
    }

    /// All that is kept.
    ///
    /// # Errors
    /// If the keeper has gone.
    pub fn entries(&self) -> io::Result<Vec<Entry>> {
        let socket = self.socket.lock();
        send(&*socket, LIST, "", &[], &[])?;
        let mut entries = Vec::new();
        while let Some(message) = receive(&*socket)? {
            match message.kind {
                ENTRY => {
                    entries.push(Entry { name: message.name, bytes: message.bytes, descriptors: message.descriptors })
                }
                _ => return Ok(entries),
            }
        }
        Err(io::Error::from(io::ErrorKind::UnexpectedEof))
    }
}

fn done(socket: &OwnedFd) -> io::Result<()> {
    match receive(socket)? {
        Some(message) if message.kind == DONE => Ok(()),
        Some(_) => Err(io::Error::from(io::ErrorKind::InvalidData)),
        None => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
    }
}
