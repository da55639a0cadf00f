//! The doors of a served pool: keeps the servers of network protocols in step with the properties
//! of its shares.
//!
//! Each server is a process of its own, which reads and writes the mounts as any program does. It
//! outlives a death of ours, and waits for the next server of the pool with them. A fault
//! of one door is told, and keeps no other from being served.
//!
//! Order of locks: the one here, then that of [`Shares`].

mod ftp;
mod ids;
mod kept;
mod nfs;
mod open;
mod ports;
mod process;
mod report;
mod rpc;
mod smb;
mod tools;
mod users;
mod web;
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use doors::{Door, Export, checked_path};
use engine::Pool;
use parking_lot::Mutex;
use surface::{Error, Result};

use crate::devices::is_in;
use crate::shares::Shares;

use self::ids::Ids;
use self::kept::Kept;
use self::nfs::Nfs;
use self::open::OpenDoor;
use self::process::Process;
use self::world::World;

pub use self::report::unserved;

/// How often the servers are looked at: so long one is missed at most.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A fault of a door.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// Which one.
    pub door: Door,
    /// In words.
    pub text: String,
}

struct Servers {
    nfs: Nfs,
    smb: Kept,
    http: Kept,
    ftp: BTreeMap<String, Kept>,
    ids: Ids,
    /// Shares and folders that are about to be unmounted: nothing may hold them.
    withdrawn: Vec<String>,
    /// The faults found when the servers were looked at last.
    faults: BTreeSet<Fault>,
    is_over: bool,
}

/// The servers of a pool's doors.
pub struct Exports {
    pool: Pool,
    shares: Arc<Shares>,
    world: World,
    servers: Mutex<Servers>,
    watch: Mutex<Option<(Sender<()>, JoinHandle<()>)>>,
}

impl Exports {
    /// Starts the wanted servers, or goes on with those that an earlier server has started.
    /// `pool_dir`: the directory of the pool.
    ///
    /// # Errors
    /// When the directory of exports cannot be used. Faults of doors are told, and tried again.
    pub fn start(pool: &Pool, shares: &Arc<Shares>, dir: &Path, pool_dir: &Path) -> Result<Arc<Self>> {
        let world = World::open(dir, true)?;
        let ids = Ids::open(pool_dir)?;
        let named = |name: &str| Process::find(&world.dir, name);
        let mut ftp = BTreeMap::new();
        for entry in std::fs::read_dir(world.file("state")).into_iter().flatten().flatten() {
            let file = entry.file_name().to_string_lossy().into_owned();
            if let Some(word) = file.strip_prefix("ftp-").and_then(|word| word.strip_suffix(".pid")) {
                ftp.insert(word.to_owned(), Kept::new(named(&format!("ftp-{word}"))));
            }
        }
        let servers = Servers {
            nfs: Nfs::find(&world.dir),
            smb: Kept::new(named("smbd")),
            http: Kept::new(named("apache")),
            ftp,
            ids,
            withdrawn: Vec::new(),
            faults: BTreeSet::new(),
            is_over: false,
        };
        let exports = Arc::new(Self {
            pool: pool.clone(),
            shares: shares.clone(),
            world,
            servers: Mutex::new(servers),
            watch: Mutex::new(None),
        });
        exports.look(true);
        let (send, stop) = bounded(1);
        let watched = Arc::clone(&exports);
        let watch = move || {
            while stop.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                watched.look(false);
            }
        };
        let watch = std::thread::Builder::new().name("exports".to_owned()).spawn(watch);
        let watch = watch.map_err(|error| Error::from_io("the servers of exports cannot be watched", error))?;
        *exports.watch.lock() = Some((send, watch));
        Ok(exports)
    }

    /// The directory of exports.
    pub fn dir(&self) -> &Path {
        &self.world.dir
    }

    /// Brings the servers in step with the properties; with `now`, what has failed is tried again
    /// at once. Returns the faults; new ones are told in the log, too.
    pub fn look(&self, now: bool) -> BTreeSet<Fault> {
        let mut servers = self.servers.lock();
        if servers.is_over {
            return BTreeSet::new();
        }
        if now {
            servers.hurry();
        }
        let (exports, mut faults) = self.wanted(&mut servers);
        faults.extend(servers.bring(&self.world, &exports));
        for fault in faults.difference(&servers.faults) {
            log::warn!("exports: {}", fault.text);
        }
        for fault in servers.faults.difference(&faults) {
            log::info!("exports: mended: {}", fault.text);
        }
        servers.faults.clone_from(&faults);
        faults
    }

    /// The shares that have an open door, and are mounted.
    fn wanted(&self, servers: &mut Servers) -> (Vec<Export>, BTreeSet<Fault>) {
        let mut exports = Vec::new();
        let mut faults = BTreeSet::new();
        for (id, name, dir) in self.shares.mounted() {
            let is_withdrawn = servers.withdrawn.iter().any(|of| *of == name || is_in(&name, of));
            let open = open::doors_of(&self.pool, &name);
            if is_withdrawn || open.is_empty() {
                continue;
            }
            // Checked when they were set: by this version, or by a newer one.
            for OpenDoor { door, access, .. } in &open {
                let text = access.as_ref().err().map(|why| format!("share '{name}': {why}"));
                faults.extend(text.map(|text| Fault { door: *door, text }));
            }
            let access = |door: Door| {
                let of_door = open.iter().find(|of| of.door == door);
                of_door.and_then(|of| of.access.clone().ok()).unwrap_or_default()
            };
            let path = dir.display().to_string();
            let device = std::fs::metadata(&dir).map(|found| found.dev());
            let device = device.map_err(|error| format!("{path} cannot be looked at: {error}"));
            let told = match (checked_path(&path), device.and_then(|device| servers.ids.of(id, device))) {
                (Ok(_), Ok(id)) => {
                    exports.push(Export {
                        id,
                        name,
                        path,
                        nfs: access(Door::Nfs),
                        smb: access(Door::Smb),
                        http: access(Door::Http),
                        ftp: access(Door::Ftp),
                    });
                    continue;
                }
                (Err(text), _) | (_, Err(text)) => text,
            };
            faults.extend(open.iter().map(|of| Fault { door: of.door, text: format!("share '{name}': {told}") }));
        }
        (exports, faults)
    }

    /// Takes a share, or those in a folder, from all clients, until the returned value is dropped.
    pub fn withdraw(self: &Arc<Self>, name: &str) -> Withdrawn {
        self.servers.lock().withdrawn.push(name.to_owned());
        self.look(true);
        Withdrawn { exports: Arc::clone(self), name: name.to_owned() }
    }

    /// Ends the servers: no share is held any more.
    pub fn stop(&self) {
        if let Some((send, watch)) = self.watch.lock().take() {
            drop(send);
            drop(watch.join());
        }
        let mut servers = self.servers.lock();
        servers.is_over = true;
        servers.nfs.stop();
        servers.smb.stop();
        servers.http.stop();
        servers.ftp.values_mut().for_each(Kept::stop);
    }
}

impl Servers {
    fn hurry(&mut self) {
        self.nfs.hurry();
        self.smb.hurry();
        self.http.hurry();
        self.ftp.values_mut().for_each(Kept::hurry);
    }

    fn bring(&mut self, world: &World, exports: &[Export]) -> BTreeSet<Fault> {
        let through = |door: Door| exports.iter().filter(|export| export.access(door).is_open()).collect::<Vec<_>>();
        let done = [
            (Door::Smb, smb::bring(&mut self.smb, world, &through(Door::Smb))),
            (Door::Http, web::bring(&mut self.http, world, &through(Door::Http))),
            (Door::Ftp, ftp::bring(&mut self.ftp, world, &through(Door::Ftp))),
            // Last: it holds each share from its start on.
            (Door::Nfs, self.nfs.bring(world, &through(Door::Nfs))),
        ];
        done.into_iter().filter_map(|(door, done)| done.err().map(|text| Fault { door, text })).collect()
    }
}

/// A share that no client reaches while this is there.
pub struct Withdrawn {
    exports: Arc<Exports>,
    name: String,
}

impl Drop for Withdrawn {
    fn drop(&mut self) {
        let mut servers = self.exports.servers.lock();
        if let Some(at) = servers.withdrawn.iter().position(|name| *name == self.name) {
            servers.withdrawn.remove(at);
        }
    }
}
