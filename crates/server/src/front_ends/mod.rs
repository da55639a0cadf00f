//! The front ends of a server: the doors to its volumes and shares. Owns the list of them, and the
//! order in which they start and stop.
//!
//! 1. Each front end of the command line is checked before any step that would have to be undone.
//! 2. They start in the order of the list. If one fails, those before it end as in step 4; but
//!    mounts that have outlived an earlier server are left to the next one
//!    ([`FrontEnds::leave_mounts`]).
//! 3. Each reports its address for clients.
//! 4. At the end each closes, in the order of the list: it accepts no new requests, as far as that
//!    does not affect front ends that depend on it. Then each stops, in the reverse order:
//!    dependent ones first.
//!
//! 5. A server that reloads its configuration changes them while it runs: see [`change`].
//!
//! A new front end is a file next to this one, and a line in [`ALL`]. It opens devices with a
//! client that names its door (`surface::Client::door`), by which its operations are counted.

pub mod change;
mod exports;
mod http;
mod nbd;
mod shares;
mod ublk;
mod vhost;
mod volumes;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fe_fuse::Keeper;
use fe_nbd::{Listen, Log};
use fe_ublk::Spec;
use serde_json::{Map, Value, json};
use surface::{Error, ErrorKind, Result};

pub use self::http::{HTTP_COMMAND, WantedHttp};
pub use self::nbd::WantedNbdTls;
use crate::devices::Shown;
use crate::exports::ports;
use crate::pool_dir::PoolDir;
use crate::service::{Served, Service};

/// All kinds, in the order in which they start.
pub const ALL: [Kind; 7] = [nbd::KIND, vhost::KIND, ublk::KIND, volumes::KIND, shares::KIND, exports::KIND, http::KIND];

/// A front end that was started; `None`: the command line does not request it.
pub type Started = Result<Option<Box<dyn FrontEnd>>>;

/// A kind of front end.
#[derive(Clone, Copy)]
pub struct Kind {
    /// Name in messages.
    pub name: &'static str,
    /// Returns whether both settings are the same for it, and for the front ends that it depends
    /// on.
    pub is_same: fn(&Wanted, &Wanted) -> bool,
    /// Fails if its settings cannot be used.
    pub check: fn(&Asked<'_>) -> Result<()>,
    /// Starts it, if it is requested.
    pub start: fn(&Asked<'_>) -> Started,
}

/// Returns a log for changes of files, of which an administrator should know.
fn warn_log() -> Log {
    Arc::new(|line: &str| log::warn!("{line}"))
}

/// Adds the process that holds a TCP port to the error of listening there.
fn with_holder(error: Error, listen: &[Listen]) -> Error {
    let held = |listen: &Listen| match listen {
        Listen::Tcp(at) => ports::taken(*at, &[]).map(|held| format!("cannot listen on {at}: {held}")),
        Listen::Unix(_) => None,
    };
    let is_taken = error.kind() == ErrorKind::InUse;
    let text = listen.iter().filter(|_| is_taken).find_map(held);
    text.map_or(error, |text| Error::new(ErrorKind::InUse, text))
}

/// A running front end.
pub trait FrontEnd: Send + Sync {
    /// Reports its address for clients.
    fn describe(&self, told: &mut Told);

    /// Returns whether the server keeps running for it when another front end has ended by itself.
    fn holds_the_server(&self) -> bool {
        true
    }

    /// Follows changed settings while its clients stay. `false`: that is impossible, so it must be
    /// stopped and started again.
    ///
    /// # Errors
    /// The settings cannot be used; it serves as before.
    fn follow(&mut self, _asked: &Asked<'_>) -> Result<bool> {
        Ok(false)
    }

    /// Ends the parts whose end would lose clients' data, unless they are in use.
    ///
    /// # Errors
    /// `InUse`; it serves as before, or as far as [`regain`](Self::regain) restores it.
    fn release(&mut self) -> Result<()> {
        Ok(())
    }

    /// Restores the parts that a failed [`release`](Self::release) has ended.
    fn regain(&mut self) {}

    /// Accepts no new requests, as far as no other front end depends on it, and answers running
    /// ones.
    fn close(&mut self) {}

    /// Returns whether it serves mounts or devices that have outlived an earlier server, or depends
    /// on them.
    fn has_resumed(&self) -> bool {
        false
    }

    /// Ends the mounts and devices that it has made itself, and leaves those that have outlived an
    /// earlier server.
    fn end_new_mounts(&mut self) {}

    /// Leaves what it serves without a keeper to a server that follows at once; returns whether
    /// there is anything.
    fn leave(&mut self) -> bool {
        false
    }

    /// Stops: when it returns, no client has anything open through it.
    fn stop(self: Box<Self>);
}

/// The front ends of the command line, and their settings.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// Addresses of NBD.
    pub nbd: Vec<Listen>,
    /// TLS over NBD.
    pub nbd_tls: Option<WantedNbdTls>,
    /// Directory of the sockets through which virtual machines attach volumes.
    pub vhost_user: Option<PathBuf>,
    /// Block devices of this machine.
    pub ublk: Vec<Spec>,
    /// Directory that shows each volume as a file.
    pub mount: Option<PathBuf>,
    /// Directory below which each share is mounted.
    pub shares: Option<PathBuf>,
    /// Directory of the configurations for exporting shares.
    pub exports: Option<PathBuf>,
    /// HTTP.
    pub http: WantedHttp,
    /// Maximum number of NBD connections.
    pub connections: u16,
    /// Whether users other than the server's may access the mounted files.
    pub allow_other: bool,
    /// Mounts over directories that are not empty, and over other mounts.
    pub overlay: bool,
    /// The volumes, shares and folders that are served; empty: all.
    pub volume: Vec<String>,
    /// Bytes for buffers and caches.
    pub memory: u64,
}

/// Input of a front end's start.
pub struct Asked<'a> {
    /// The requested front ends.
    pub args: &'a Wanted,
    /// The pool.
    pub service: &'a Arc<Service>,
    /// Keeps mounts beyond the server's death, if possible.
    pub keeper: Option<Arc<Keeper>>,
    /// The volumes that are served.
    pub devices: Arc<Shown>,
    /// Called, with its name, by a front end that has ended without being stopped.
    pub over: Arc<dyn Fn(&'static str) + Send + Sync>,
}

/// Addresses of the front ends.
pub struct Told {
    /// For `status`.
    pub served: Served,
    /// Fields of the document that reports a ready server.
    pub document: Map<String, Value>,
    /// Lines of the text that reports it.
    pub lines: Vec<String>,
}

/// The front ends of a server, in the order in which they start, with their places in its list of
/// kinds.
pub struct FrontEnds {
    kinds: Vec<Kind>,
    running: Vec<(usize, Box<dyn FrontEnd>)>,
}

impl FrontEnds {
    /// Front ends of these kinds; none has started.
    pub fn of(kinds: &[Kind]) -> Self {
        Self { kinds: kinds.to_vec(), running: Vec::new() }
    }

    /// Performs steps 1 and 2. `begin` runs between them.
    ///
    /// # Errors
    /// Those of the front ends. The ones that have started remain, and must be stopped.
    pub fn start(&mut self, asked: &Asked<'_>, begin: impl FnOnce()) -> Result<()> {
        self.kinds.iter().try_for_each(|kind| (kind.check)(asked))?;
        begin();
        (0..self.kinds.len()).try_for_each(|place| self.start_one(place, asked))
    }

    /// Starts the front end of that place in the list, if it is requested.
    fn start_one(&mut self, place: usize, asked: &Asked<'_>) -> Result<()> {
        if let Some(front_end) = (self.kinds[place].start)(asked)? {
            let at = self.running.partition_point(|(other, _)| *other < place);
            self.running.insert(at, (place, front_end));
        }
        Ok(())
    }

    /// Performs step 3.
    pub fn describe(&self) -> Told {
        let nothing = json!({
            "nbd": [], "uris": [], "vhost_user": null, "ublk": [], "mount": null, "mount_over_io_uring": false,
            "shares": null, "exports": null, "http": [], "http_certificate_sha256": null, "log_in": null,
        });
        let document = nothing.as_object().cloned().unwrap_or_default();
        let mut told = Told { served: Served::default(), document, lines: Vec::new() };
        self.running.iter().for_each(|(_, front_end)| front_end.describe(&mut told));
        told
    }

    /// Returns whether the server keeps running when one of them has ended by itself.
    pub fn hold_the_server(&self) -> bool {
        self.running.iter().any(|(_, front_end)| front_end.holds_the_server())
    }

    /// Returns whether any serves a mount that has outlived an earlier server.
    pub fn have_resumed(&self) -> bool {
        self.running.iter().any(|(_, front_end)| front_end.has_resumed())
    }

    /// Leaves block devices to a server that follows at once; returns whether there are any.
    pub fn leave(&mut self) -> bool {
        self.running.iter_mut().fold(false, |any, (_, front_end)| front_end.leave() || any)
    }

    /// Ends everything except the mounts that have outlived an earlier server, in the order of step
    /// 4.
    pub fn leave_mounts(&mut self) {
        self.running.iter_mut().for_each(|(_, front_end)| front_end.close());
        let mut left = Vec::new();
        while let Some((place, mut front_end)) = self.running.pop() {
            if front_end.has_resumed() {
                front_end.end_new_mounts();
                left.insert(0, (place, front_end));
            } else {
                front_end.stop();
            }
        }
        self.running = left;
    }

    /// Performs step 4.
    pub fn stop(mut self) {
        self.running.iter_mut().for_each(|(_, front_end)| front_end.close());
        while let Some((_, front_end)) = self.running.pop() {
            front_end.stop();
        }
    }
}

/// Refuses a mount point that would hide the pool itself: no command would find it any more.
///
/// # Errors
/// `Invalid`.
fn check_hides_nothing(dir: &Path, service: &Service) -> Result<()> {
    // A missing path is reported by the front end that mounts.
    let Ok(dir) = dir.canonicalize() else { return Ok(()) };
    let facts = service.facts();
    let data = facts.data.canonicalize().unwrap_or_else(|_| facts.data.clone());
    let map = PoolDir::new(&facts.pool).map_path();
    if facts.pool.starts_with(&dir) || data.starts_with(&dir) || dir.starts_with(&map) {
        let text = format!(
            "mount at {}: it would hide the pool {} or its data {}; choose another directory",
            dir.display(),
            facts.pool.display(),
            data.display()
        );
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    Ok(())
}
