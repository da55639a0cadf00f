//! The front ends of a server: the doors to its volumes and shares. Owns the list of them, and the
//! order in which they begin and end.
//!
//! 1. Each that the command line asks for is checked, before anything is begun that would have to
//!    be taken back.
//! 2. They start in the order of the list. If one fails, those before it end as in step 4; but
//!    mounts that have outlived an earlier server are left to the next one
//!    ([`FrontEnds::leave_mounts`]).
//! 3. Each tells where clients find it.
//! 4. At the end each closes, in the order of the list: it takes no new requests, as far as it can
//!    without those that stand on it. Then each stops, in the reverse order: those that stand on
//!    another before that one.
//!
//! 5. A server that reads its configuration again changes them while it serves: see [`change`].
//!
//! A new front end is a file beside this one, and a line in [`ALL`]. It opens devices with a
//! client that names its door (`surface::Client::door`): its operations are counted by that.

pub mod change;
mod exports;
mod http;
mod nbd;
mod shares;
mod vhost;
mod volumes;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fe_fuse::Keeper;
use fe_nbd::Listen;
use serde_json::{Map, Value, json};
use surface::{Error, ErrorKind, Result};

pub use self::http::{HTTP_COMMAND, WantedHttp};
use crate::devices::Shown;
use crate::exports::ports;
use crate::pool_dir::PoolDir;
use crate::service::{Served, Service};

/// All there are, in the order in which they start.
pub const ALL: [Kind; 6] = [nbd::KIND, vhost::KIND, volumes::KIND, shares::KIND, exports::KIND, http::KIND];

/// A front end that was started; `None`: the command line does not ask for it.
pub type Started = Result<Option<Box<dyn FrontEnd>>>;

/// A kind of front end, which the command line may ask for.
#[derive(Clone, Copy)]
pub struct Kind {
    /// Name in messages.
    pub name: &'static str,
    /// Whether both ask for the same of it, and of those that it stands on.
    pub is_same: fn(&Wanted, &Wanted) -> bool,
    /// Fails if it is asked for in a way that cannot be.
    pub check: fn(&Asked<'_>) -> Result<()>,
    /// Starts it, if it is asked for.
    pub start: fn(&Asked<'_>) -> Started,
}

/// Names the process that holds a TCP port, in a failure to listen there.
fn with_holder(error: Error, listen: &[Listen]) -> Error {
    let held = |listen: &Listen| match listen {
        Listen::Tcp(at) => ports::taken(*at, &[]).map(|held| format!("cannot listen on {at}: {held}")),
        Listen::Unix(_) => None,
    };
    let is_taken = error.kind() == ErrorKind::InUse;
    let text = listen.iter().filter(|_| is_taken).find_map(held);
    text.map_or(error, |text| Error::new(ErrorKind::InUse, text))
}

/// A front end that serves.
pub trait FrontEnd: Send + Sync {
    /// Tells where clients find it.
    fn describe(&self, told: &mut Told);

    /// Whether the server goes on for its sake when another one has ended by itself.
    fn holds_the_server(&self) -> bool {
        true
    }

    /// Takes over other settings while its clients stay. `false`: that cannot be, so it ends and
    /// starts again.
    ///
    /// # Errors
    /// The settings cannot be used; it serves as before.
    fn follow(&mut self, _asked: &Asked<'_>) -> Result<bool> {
        Ok(false)
    }

    /// Ends what clients would lose data with, unless one uses it.
    ///
    /// # Errors
    /// `InUse`; it serves as before, or as far as [`regain`](Self::regain) brings back.
    fn release(&mut self) -> Result<()> {
        Ok(())
    }

    /// Serves again what a [`release`](Self::release) that failed has ended.
    fn regain(&mut self) {}

    /// Takes no new requests, as far as nothing else stands on it, and answers those in work.
    fn close(&mut self) {}

    /// Whether it serves mounts that have outlived an earlier server, or stands on them.
    fn has_resumed(&self) -> bool {
        false
    }

    /// Ends the mounts that it has made itself, and leaves those that have outlived an earlier
    /// server as they are.
    fn end_new_mounts(&mut self) {}

    /// Ends: when it returns, no client has anything open through it.
    fn stop(self: Box<Self>);
}

/// The front ends that the command line asks for, and their settings.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// NBD addresses.
    pub nbd: Vec<Listen>,
    /// Directory of the sockets by which virtual machines attach volumes.
    pub vhost_user: Option<PathBuf>,
    /// Directory that shows each volume as a file.
    pub mount: Option<PathBuf>,
    /// Directory below which each share is mounted.
    pub shares: Option<PathBuf>,
    /// Directory of the configurations by which shares are exported.
    pub exports: Option<PathBuf>,
    /// HTTP.
    pub http: WantedHttp,
    /// Most NBD connections at once.
    pub connections: u16,
    /// Whether other users than the server's reach the mounted files.
    pub allow_other: bool,
    /// Mounts over directories that are not empty, and over other mounts.
    pub overlay: bool,
    /// Whether replies through FUSE are handed over to a lone caller on its CPU.
    pub handover: bool,
    /// The volumes, shares and folders that are served; empty: all.
    pub volume: Vec<String>,
    /// Bytes for buffers and caches.
    pub memory: u64,
}

/// What a front end starts from.
pub struct Asked<'a> {
    /// The front ends that are asked for.
    pub args: &'a Wanted,
    /// The pool.
    pub service: &'a Arc<Service>,
    /// What holds mounts beyond the server's death, if anything does.
    pub keeper: Option<Arc<Keeper>>,
    /// The volumes that are served.
    pub devices: Arc<Shown>,
    /// To be called by a front end that has ended without being stopped, with its name.
    pub over: Arc<dyn Fn(&'static str) + Send + Sync>,
}

/// Where clients find the front ends.
pub struct Told {
    /// For `status`.
    pub served: Served,
    /// Fields of the document that says that the server is ready.
    pub document: Map<String, Value>,
    /// Lines of the text that says the same.
    pub lines: Vec<String>,
}

/// The front ends of a server, in the order in which they start, with their places in its list of
/// kinds.
pub struct FrontEnds {
    kinds: Vec<Kind>,
    running: Vec<(usize, Box<dyn FrontEnd>)>,
}

impl FrontEnds {
    /// Of these kinds; none has started.
    pub fn of(kinds: &[Kind]) -> Self {
        Self { kinds: kinds.to_vec(), running: Vec::new() }
    }

    /// Steps 1 and 2. `begin` runs between them.
    ///
    /// # Errors
    /// Those of the front ends. The ones that have started are still there, to be stopped.
    pub fn start(&mut self, asked: &Asked<'_>, begin: impl FnOnce()) -> Result<()> {
        self.kinds.iter().try_for_each(|kind| (kind.check)(asked))?;
        begin();
        (0..self.kinds.len()).try_for_each(|place| self.start_one(place, asked))
    }

    /// Starts the front end of that place in the list, if it is asked for.
    fn start_one(&mut self, place: usize, asked: &Asked<'_>) -> Result<()> {
        if let Some(front_end) = (self.kinds[place].start)(asked)? {
            let at = self.running.partition_point(|(other, _)| *other < place);
            self.running.insert(at, (place, front_end));
        }
        Ok(())
    }

    /// Step 3.
    pub fn describe(&self) -> Told {
        let nothing = json!({
            "nbd": [], "uris": [], "vhost_user": null, "mount": null, "mount_over_io_uring": false, "shares": null,
            "exports": null, "http": [], "http_certificate_sha256": null, "log_in": null,
        });
        let document = nothing.as_object().cloned().unwrap_or_default();
        let mut told = Told { served: Served::default(), document, lines: Vec::new() };
        self.running.iter().for_each(|(_, front_end)| front_end.describe(&mut told));
        told
    }

    /// Whether the server goes on when one of them has ended by itself.
    pub fn hold_the_server(&self) -> bool {
        self.running.iter().any(|(_, front_end)| front_end.holds_the_server())
    }

    /// Whether any serves a mount that has outlived an earlier server.
    pub fn have_resumed(&self) -> bool {
        self.running.iter().any(|(_, front_end)| front_end.has_resumed())
    }

    /// Ends everything but the mounts that have outlived an earlier server, in the order of step 4.
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

    /// Step 4.
    pub fn stop(mut self) {
        self.running.iter_mut().for_each(|(_, front_end)| front_end.close());
        while let Some((_, front_end)) = self.running.pop() {
            front_end.stop();
        }
    }
}

/// Refuses a mount point below which the pool itself would vanish: no command would find it any
/// more.
///
/// # Errors
/// `Invalid`.
fn check_hides_nothing(dir: &Path, service: &Service) -> Result<()> {
    // What cannot be found is told by the front end that mounts.
    let Ok(dir) = dir.canonicalize() else { return Ok(()) };
    let facts = service.facts();
    let data = facts.data.canonicalize().unwrap_or_else(|_| facts.data.clone());
    let map = PoolDir::new(&facts.pool).map_path();
    if facts.pool.starts_with(&dir) || data.starts_with(&dir) || dir.starts_with(&map) {
        let text = format!(
            "mount at {}: it would hide the pool {} or its data {}; choose a directory of its own",
            dir.display(),
            facts.pool.display(),
            data.display()
        );
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    Ok(())
}
