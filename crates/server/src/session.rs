//! How a command reaches a pool: opened by this process when no server has it, else through the
//! server's socket.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use surface::{Error, ErrorKind, NamedClient, Result};

use crate::control::{Client, Unreached};
use crate::pool_dir::{self, Access, OpenPool, Opening, PoolDir};
use crate::service::this_process;
use crate::stream_io::{LocalSink, LocalSource, StreamSink, StreamSource};
use crate::traffic::COMMANDS;
use copy::volume_io::{LocalVolume, VolumeIo};
use operations::Outcome;
use operations::{Created, Reply, Request, Which};
use operations::{ReceiveWish, SendWish};

/// Returns whether no server listens on a pool's control socket.
fn is_unserved(error: &Error) -> bool {
    use std::io::ErrorKind::{ConnectionRefused, NotFound};
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<std::io::Error>());
    source.is_some_and(|source| matches!(source.kind(), NotFound | ConnectionRefused))
}

/// Name of a command as a client of a pool without a server.
pub const THIS_COMMAND: &str = "this command";

/// The client that opens a volume in a pool without a server: always this process.
fn this_command() -> Arc<dyn surface::Client> {
    NamedClient::at(COMMANDS, THIS_COMMAND)
}

/// A pool that answers requests.
pub enum Session {
    /// This process has the pool open.
    Direct(OpenPool),
    /// A server has the pool open.
    Served(Client),
}

impl Session {
    /// Opens the pool, or connects to its server, and runs `work` on it. Always closes the pool in
    /// order.
    ///
    /// # Errors
    /// Those of reaching the pool, of `work`, and of closing the pool.
    pub fn with<T>(pool: &Path, access: impl Into<Access>, work: impl FnOnce(&Self) -> Outcome<T>) -> Outcome<T> {
        let session = Self::open(&PoolDir::new(pool), &access.into())?;
        let result = work(&session);
        let closed = match session {
            Self::Direct(pool) => pool.close(),
            Self::Served(_) => Ok(()),
        };
        let value = result?;
        closed.map_err(|error| error.context("the pool could not be closed in order"))?;
        Ok(value)
    }

    /// Connects to the server of a pool, for requests that only a server answers; `None` if no
    /// server has the pool.
    ///
    /// # Errors
    /// `NotFound` for the pool, and those of a server that does not answer.
    pub fn of_server(pool: &Path) -> Result<Option<Self>> {
        let dir = PoolDir::new(pool);
        dir.ready_config()?;
        match Client::connect(&dir.control_path()) {
            Ok(client) => Ok(Some(Self::Served(client))),
            Err(error) if is_unserved(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Error for a command that needs a server when none is running.
    pub fn unserved(pool: &Path, so: &str) -> Error {
        Error::new(ErrorKind::NotFound, format!("no server has the pool {} open: {so}", pool.display()))
    }

    fn open(dir: &PoolDir, access: &Access) -> Result<Self> {
        // The holder of the pool is either a server, which answers, or another command, which will
        // be done soon.
        pool_dir::wait_for(access, |_| {
            dir.ready_config()?;
            let holder = match dir.lock()? {
                Ok(lock) => {
                    let how = Opening::usual(access.memory);
                    let pool = pool_dir::open_locked(dir, Arc::new(lock), how)?;
                    return Ok(ControlFlow::Break(Self::Direct(pool)));
                }
                Err(holder) => holder,
            };
            match Client::reach(&dir.control_path()) {
                Ok(client) => Ok(ControlFlow::Break(Self::Served(client))),
                Err(Unreached::Refused(error)) if error.kind() == ErrorKind::Unsupported => Err(error),
                // Its server is healthy, and its message has the advice.
                Err(Unreached::Refused(error)) if error.kind() == ErrorKind::InUse => Ok(ControlFlow::Continue(error)),
                Err(Unreached::Silent(error)) if is_unserved(&error) => {
                    Ok(ControlFlow::Continue(pool_dir::busy(&holder)))
                }
                Err(Unreached::Forbidden(error)) => Err(error.context(&holder)),
                Err(Unreached::Silent(error) | Unreached::Refused(error)) => {
                    let text = format!("{holder}, and {error}: stop it");
                    Ok(ControlFlow::Continue(Error::new(ErrorKind::InUse, text)))
                }
            }
        })
    }

    /// Returns whether a server has the pool.
    pub const fn is_served(&self) -> bool {
        matches!(self, Self::Served(_))
    }

    /// Sends a request and returns its reply.
    ///
    /// # Errors
    /// Those of the pool.
    pub fn call(&self, request: Request) -> Result<Reply> {
        match self {
            Self::Direct(pool) => pool.service.handle(&this_process(), request),
            Self::Served(client) => client.call(&request),
        }
    }

    /// Sends a request that returns no data.
    ///
    /// # Errors
    /// Those of the pool.
    pub fn done(&self, request: Request) -> Result<()> {
        match self.call(request)? {
            Reply::Done | Reply::Properties(_) => Ok(()),
            other => Err(other.unexpected()),
        }
    }

    /// Creates an object.
    ///
    /// # Errors
    /// Those of the pool.
    pub fn created(&self, request: Request) -> Result<Created> {
        match self.call(request)? {
            Reply::Created(created) => Ok(created),
            other => Err(other.unexpected()),
        }
    }

    /// Begins to send.
    ///
    /// # Errors
    /// `NotFound`, and those of the pool.
    pub fn send(&self, wish: &SendWish) -> Result<Box<dyn StreamSource>> {
        match self {
            Self::Direct(pool) => Ok(Box::new(LocalSource::new(&pool.service, wish, &this_command())?)),
            Self::Served(client) => Ok(Box::new(client.send(wish)?)),
        }
    }

    /// Begins to receive.
    ///
    /// # Errors
    /// Those of the pool.
    pub fn receive(&self, wish: ReceiveWish) -> Result<Box<dyn StreamSink>> {
        match self {
            Self::Direct(pool) => Ok(Box::new(LocalSink::new(Arc::clone(&pool.service), wish))),
            Self::Served(client) => Ok(Box::new(client.receive(wish)?)),
        }
    }

    /// Opens a volume for bulk data, by its number, or else by its current name.
    ///
    /// # Errors
    /// `NotFound`, and those of the pool.
    pub fn volume(&self, name: &str, id: Option<u64>) -> Result<Arc<dyn VolumeIo>> {
        match self {
            Self::Direct(pool) => {
                Ok(Arc::new(LocalVolume(pool.service.open_volume(&Which::known(name, id), &this_command())?.1)))
            }
            Self::Served(client) => Ok(Arc::new(client.volume(name, id)?)),
        }
    }
}
