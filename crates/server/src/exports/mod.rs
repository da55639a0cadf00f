//! The doors of a served pool: keeps the servers of network protocols in step with the properties
//! of its shares.
//!
//! Each server is a separate process, which reads and writes the mounts as any program does. It
//! survives a crash of the pool's server, and waits for the next one with the mounts. Each door has
//! a thread ([`keeper`]); a fault of one door is reported, and does not stop any other from being
//! served.

mod ftp;
mod ids;
mod keeper;
mod kept;
mod moments;
mod nfs;
mod open;
pub(crate) mod ports;
mod process;
mod reach;
mod report;
mod rpc;
mod smb;
mod tools;
mod users;
mod web;
mod world;

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use doors::{Access, Door, Export, checked_path};
use engine::Pool;
use parking_lot::Mutex;
use surface::{Error, ErrorKind, Result};

use crate::devices::is_in;
use crate::shares::Shares;

use self::ids::Ids;
use self::keeper::{Keeper, Servers, look_at};
use self::open::OpenDoor;
use self::world::World;

pub use self::reach::unserved_notes;
pub use self::report::unserved;

/// Deadline of a door's change while a command waits.
const CHANGE_PATIENCE: Duration = Duration::from_secs(60);
/// Deadline of the doors when the server of the pool starts: it then reports that it is ready with
/// the doors served so far.
const START_PATIENCE: Duration = Duration::from_secs(30);
/// Deadline of a check that changes nothing.
const LOOK_PATIENCE: Duration = Duration::from_secs(2);
/// Deadline of the network servers when the server of the pool stops.
const STOP_PATIENCE: Duration = Duration::from_secs(30);

/// A fault of a door.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// The door.
    pub door: Door,
    /// The affected share; `None`: the whole server, and so all shares.
    pub share: Option<String>,
    /// Message.
    pub text: String,
}

impl Fault {
    /// Returns whether it concerns this share; or, for a folder, a share in it.
    fn concerns(&self, name: &str) -> bool {
        self.share.as_deref().is_none_or(|share| share == name || is_in(share, name))
    }
}

/// The state that the threads of all doors read.
struct Shown {
    pool: Pool,
    shares: Arc<Shares>,
    world: World,
    ids: Mutex<Ids>,
    /// Shares and folders that are about to be unmounted: nothing may keep them open.
    withdrawn: Mutex<Vec<String>>,
}

/// The servers of a pool's doors.
pub struct Exports {
    shown: Arc<Shown>,
    keepers: Vec<Keeper>,
}

impl Exports {
    /// Starts the configured servers, or adopts those that an earlier server has started.
    /// `pool_dir`: the directory of the pool.
    ///
    /// # Errors
    /// When the directory of exports cannot be used. Faults of doors are reported, and retried.
    pub fn start(pool: &Pool, shares: &Arc<Shares>, dir: &Path, pool_dir: &Path) -> Result<Arc<Self>> {
        let shown = Arc::new(Shown {
            pool: pool.clone(),
            shares: Arc::clone(shares),
            world: World::open(dir, true)?,
            ids: Mutex::new(Ids::open(pool_dir)?),
            withdrawn: Mutex::default(),
        });
        let start = |door: Door| {
            let world = &shown.world;
            let servers: Box<dyn Servers> = match door {
                Door::Nfs => Box::new(nfs::Nfs::find(&world.dir)),
                Door::Smb => Box::new(smb::Smb::find(&world.dir, pool)),
                Door::Http => Box::new(web::Web::find(&world.dir)),
                Door::Ftp => Box::new(ftp::Ftp::find(world)),
            };
            Keeper::start(door, servers, Arc::clone(&shown))
        };
        let keepers = Door::ALL.into_iter().map(start).collect::<Result<Vec<_>>>()?;
        let exports = Arc::new(Self { shown, keepers });
        exports.look(&Door::ALL, true, START_PATIENCE);
        Ok(exports)
    }

    /// Returns the directory of exports.
    pub fn dir(&self) -> &Path {
        &self.shown.world.dir
    }

    fn look(&self, doors: &[Door], now: bool, patience: Duration) -> BTreeSet<Fault> {
        let of_these: Vec<_> =
            Door::ALL.into_iter().zip(&self.keepers).filter(|(door, _)| doors.contains(door)).collect();
        look_at(&of_these.into_iter().map(|(_, keeper)| keeper).collect::<Vec<_>>(), now, patience)
    }

    /// Brings the servers in step with new and removed shares.
    pub fn follow(&self) {
        self.look(&Door::ALL, false, CHANGE_PATIENCE);
    }

    /// Brings the servers of some doors in step with properties that were set on a share, a folder
    /// or the pool. Returns their faults; new ones are also logged.
    pub fn change(&self, doors: &[Door], name: Option<&str>) -> Vec<Fault> {
        let faults = self.look(doors, true, CHANGE_PATIENCE).into_iter();
        let is_meant = |fault: &Fault| doors.contains(&fault.door) && name.is_none_or(|name| fault.concerns(name));
        faults.filter(is_meant).collect()
    }

    /// Fails for a value that needs a port of another process: nothing is changed then, and the
    /// door is served as before.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`], with the holder of the port.
    pub fn check_ports(&self, door: Door, value: &str) -> Result<()> {
        // Other values are refused with a better message when they are set.
        let Ok(access) = Access::parse(door, value) else { return Ok(()) };
        if !access.is_open() {
            return Ok(());
        }
        let World { settings, .. } = &self.shown.world;
        let ports = match door {
            Door::Nfs if settings.has_nfs3 => vec![settings.nfs_port, settings.mount_port],
            Door::Nfs => vec![settings.nfs_port],
            Door::Smb => vec![settings.smb_port],
            Door::Http => vec![settings.http_port],
            Door::Ftp => vec![access.port.unwrap_or(settings.ftp_port)],
        };
        // Held by the same door: its server keeps its port, or replaces itself. If two shares have
        // one FTP port, the second one fails once the property is set.
        let taken = || {
            let own = Door::ALL.into_iter().zip(&self.keepers).find(|(own, _)| *own == door);
            let own = own.map(|(_, keeper)| keeper.pids()).unwrap_or_default();
            let ours: Vec<_> = own.into_values().flat_map(process::with_sessions).collect();
            ports.iter().find_map(|port| ports::taken((settings.address, *port).into(), &ours))
        };
        // A server of this pool that is still starting is known after the next check.
        let held = taken().and_then(|_| {
            self.look(&[door], false, CHANGE_PATIENCE);
            taken()
        });
        held.map_or(Ok(()), |why| {
            let place = match door {
                Door::Ftp => "set port=N".to_owned(),
                _ => self.shown.world.file("settings").display().to_string(),
            };
            Err(Error::new(ErrorKind::InUse, format!("{} is unchanged: {why} ({place})", door.name())))
        })
    }

    /// Disconnects a share, or those in a folder, from all clients, until the returned value is
    /// dropped.
    pub fn withdraw(self: &Arc<Self>, name: &str) -> Withdrawn {
        self.shown.withdrawn.lock().push(name.to_owned());
        self.look(&Door::ALL, false, CHANGE_PATIENCE);
        Withdrawn { exports: Arc::clone(self), name: name.to_owned() }
    }

    /// Ends the servers, so that none keeps a share open. A server that does not end is reported,
    /// and left.
    pub fn stop(&self) {
        self.shown.world.end();
        self.keepers.iter().for_each(Keeper::end);
        let until = Instant::now() + STOP_PATIENCE;
        for keeper in &self.keepers {
            if let Err(text) = keeper.has_ended(until) {
                log::warn!("exports: {text}");
            }
        }
    }
}

impl Shown {
    /// Returns the mounted shares that a door exports.
    fn through(&self, door: Door) -> (Vec<Export>, BTreeSet<Fault>) {
        let mut exports = Vec::new();
        let mut faults = BTreeSet::new();
        let withdrawn = self.withdrawn.lock().clone();
        for (id, name, dir) in self.shares.mounted() {
            let is_withdrawn = withdrawn.iter().any(|of| *of == name || is_in(&name, of));
            let open = open::doors_of(&self.pool, &name).into_iter().find(|of| of.door == door);
            let Some(OpenDoor { access, .. }) = open.filter(|_| !is_withdrawn) else { continue };
            let path = dir.display().to_string();
            // The value was checked when it was set: by this version, or by a newer one.
            let made = access.and_then(|access| {
                checked_path(&path)?;
                if door == Door::Smb {
                    smb::check_xattrs(&dir)?;
                }
                let device = std::fs::metadata(&dir).map_err(|error| format!("cannot look at {path}: {error}"))?;
                Ok((access, self.ids.lock().of(id, device.dev())?))
            });
            match made {
                Ok((access, id)) => exports.push(Export::through(door, access, id, name, path)),
                Err(why) => {
                    let text = format!("{}: share '{name}' is not served: {why}", door.name());
                    faults.insert(Fault { door, share: Some(name), text });
                }
            }
        }
        (exports, faults)
    }
}

/// A share that is unreachable for clients while this value exists.
pub struct Withdrawn {
    exports: Arc<Exports>,
    name: String,
}

impl Drop for Withdrawn {
    fn drop(&mut self) {
        let mut withdrawn = self.exports.shown.withdrawn.lock();
        if let Some(at) = withdrawn.iter().position(|name| *name == self.name) {
            withdrawn.remove(at);
        }
    }
}
