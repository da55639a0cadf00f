//! The server's side: a connection to a keeper. Owns the set of names that this server uses. Any
//! thread may call it.

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

/// Connections that may wait for the keeper to accept them.
const BACKLOG: i32 = 4;

/// A connection to a keeper.
#[derive(Debug)]
pub struct Keeper {
    socket: Mutex<OwnedFd>,
    /// The names that this server has requested or put.
    claimed: Mutex<BTreeSet<String>>,
}

/// An entry of a keeper.
#[derive(Debug)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Bytes that the server stored with it.
    pub bytes: Vec<u8>,
    /// Duplicates of its descriptors.
    pub descriptors: Vec<OwnedFd>,
}

/// A keeper, and the name of a mount's entry there.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "described above")]
pub struct KeeperSlot {
    pub keeper: Arc<Keeper>,
    pub name: String,
}

impl KeeperSlot {
    /// Returns the entry of this name; `None` if there is none.
    ///
    /// # Errors
    /// When the keeper has ended.
    pub fn entry(&self) -> io::Result<Option<Entry>> {
        self.keeper.claimed.lock().insert(self.name.clone());
        Ok(self.keeper.entries()?.into_iter().find(|entry| entry.name == self.name))
    }

    /// Makes the keeper close the mount. If the keeper has ended, there is nothing left to close.
    pub fn close(&self) {
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
    /// Errors of the socket.
    pub fn connect(path: &Path) -> io::Result<Option<Self>> {
        let socket = socket()?;
        match rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) {
            Ok(()) => Ok(Some(Self { socket: Mutex::new(socket), claimed: Mutex::default() })),
            Err(Errno::NOENT | Errno::CONNREFUSED) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Starts a keeper with its socket at `path`: `program` must call [`super::run_keeper`] with
    /// its standard input. No live keeper may use that path.
    ///
    /// # Errors
    /// Errors of the socket or the program.
    pub fn start(path: &Path, program: &mut Command) -> io::Result<Self> {
        match rustix::fs::unlink(path) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        let listener = socket()?;
        // Only the owner may connect, from the moment the socket exists.
        rustix::fs::fchmod(&listener, Mode::RUSR | Mode::WUSR)?;
        rustix::net::bind(&listener, &SocketAddrUnix::new(path)?)?;
        rustix::net::listen(&listener, BACKLOG)?;
        let spawned = program.stdin(Stdio::from(listener)).stdout(Stdio::null()).spawn()?;
        // The keeper usually survives this process; if it ends first, it is reaped.
        let reap = move || drop({ spawned }.wait());
        std::thread::Builder::new().name("keeper-reap".to_owned()).spawn(reap)?;
        Self::connect(path)?.ok_or_else(|| io::Error::other("the keeper of mounts ended at once"))
    }

    /// Stores an entry, replacing one of the same name.
    ///
    /// # Errors
    /// When the keeper has ended, or the entry is too large.
    pub fn put(&self, name: &str, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.claimed.lock().insert(name.to_owned());
        let socket = self.socket.lock();
        send(&*socket, PUT, name, bytes, descriptors)?;
        done(&socket)
    }

    /// Sets how long entries wait for the next server after this one ends; `None` for no limit.
    ///
    /// # Errors
    /// When the keeper has ended.
    pub fn set_wait(&self, wait: Option<Duration>) -> io::Result<()> {
        let socket = self.socket.lock();
        let seconds = wait.map_or(0, |wait| wait.as_secs().max(1));
        send(&*socket, WAIT, "", &seconds.to_le_bytes(), &[])?;
        done(&socket)
    }

    /// Makes the keeper close an entry. A keeper without entries ends.
    ///
    /// # Errors
    /// When the keeper has ended.
    pub fn drop_entry(&self, name: &str) -> io::Result<()> {
        let socket = self.socket.lock();
        send(&*socket, DROP, name, &[], &[])?;
        done(&socket)
    }

    /// Makes the keeper close every entry that this server has neither requested nor put: mounts
    /// that no server is going to serve. Users of such a mount get errors instead of waiting
    /// indefinitely.
    ///
    /// # Errors
    /// When the keeper has ended.
    pub fn drop_unclaimed(&self) -> io::Result<()> {
        for entry in self.entries()? {
            if !self.claimed.lock().contains(&entry.name) {
                self.drop_entry(&entry.name)?;
            }
        }
        Ok(())
    }

    /// Returns all entries.
    ///
    /// # Errors
    /// When the keeper has ended.
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
