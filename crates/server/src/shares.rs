//! Shares: their trees on the engine, and the directory below which a server mounts them. Owns the
//! set of mounted shares.
//!
//! Each share has a directory of its name there, in directories named after its folders. New shares
//! (created, cloned, received) are mounted, destroyed ones are unmounted; a share that was
//! unmounted from a shell stays unmounted until the server restarts. A share that cannot be mounted
//! does not prevent others from being mounted, except for those that lie in it; nor, if its own
//! tree is the cause, the server from opening its other doors.
//!
//! A share that lies in another is mounted on a directory in that one's tree. So it is mounted
//! after and unmounted before it: by name, and in the reverse order.

mod ends;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use engine::{Files, Pool, TreeUse, Volume};
use fe_share::{KeeperSlot, Mount, MountOptions, OrphanedMount, Snapshots};
use fuse::keep::Keeper;
use parking_lot::Mutex;
use share::{Options, Tree};
use surface::{BlockDevice, DeviceId, Error, ErrorKind, NamedClient, Result};

use crate::callers::ShareCounts;
use crate::devices::{Devices, is_in};
use crate::service::Service;
use crate::share_files::Opened;
use crate::share_journals::Journals;
use crate::share_trees::{self, MOUNT_PATIENCE, PATIENCE, ShareMoments, error_of, now};
use crate::share_unserved::{Fault, Unserved};
use crate::traffic::TREES;
use report::UnservedLine;

/// Divisor of the server's memory for the caches of all namespaces.
const MEMORY_DIVISOR: u64 = 8;
/// Minimum memory for the cache of a namespace: some thousand names.
const CACHE_BYTES_MIN: u64 = 4 << 20;
/// Maximum memory for it: beyond this the engine's caches serve better.
const CACHE_BYTES_MAX: u64 = 256 << 20;
/// Number of checks, and milliseconds between them, while waiting for the users of a mounted
/// share's tree.
const USERS_LOOKS: u32 = 200;
const USERS_LOOK_MS: u64 = 50;

struct Mounted {
    name: String,
    tree: Arc<Tree>,
    files: Arc<Files>,
    /// Each user of the tree holds a reference to this, too.
    users: Arc<()>,
    mount: Mount,
    /// The mount has outlived an earlier server.
    is_resumed: bool,
}

impl Mounted {
    fn new(name: &str, (tree, files): (Arc<Tree>, Arc<Files>), mount: Mount, is_resumed: bool) -> Self {
        Self { name: name.to_owned(), tree, files, users: Arc::default(), mount, is_resumed }
    }

    /// Lends the tree to a user; unmounting waits until the user has dropped it.
    fn lend(&self) -> Opened {
        Opened::lent(self.tree.clone(), self.files.clone(), self.users.clone())
    }
}

/// Base of a share's mount point.
enum Below {
    /// A directory of the machine.
    Directory,
    /// A directory in another share.
    Share,
    /// The same, and that share was just mounted: it hides earlier mounts below it.
    NewShare,
}

#[derive(Default)]
struct State {
    mounted: BTreeMap<u64, Mounted>,
    /// Unmounted from a shell, or skipped for another reason that was logged.
    left: BTreeSet<u64>,
}

/// Options for mounting a server's shares.
pub struct SharesWish<'a> {
    /// Directory below which they are mounted.
    pub dir: &'a Path,
    /// Only these shares, unless empty.
    pub names: &'a [String],
    /// Memory of the server.
    pub memory_bytes: u64,
    /// Mounts over directories that are not empty, and over other mounts.
    pub overlay: bool,
    /// Process that holds the mounts, so that they outlive this server; `None` where that is
    /// impossible.
    pub keeper: Option<Arc<Keeper>>,
}

/// The mounted shares of a served pool.
pub struct Shares {
    pool: Pool,
    pub(crate) devices: Devices,
    dir: PathBuf,
    /// Only these shares, unless empty.
    names: Mutex<Vec<String>>,
    source: String,
    memory_bytes: u64,
    overlay: bool,
    keeper: Option<Arc<Keeper>>,
    journals: Arc<Journals>,
    /// Acknowledged data must survive the death of this server: so must names.
    keeps_acknowledged: bool,
    state: Mutex<State>,
    unserved: Unserved,
}

impl Shares {
    /// Mounts all shares, or the selected ones.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for `dir`; the first error, if no share can be mounted, for another
    /// reason than a tree that cannot be opened.
    pub fn start(service: &Service, wish: &SharesWish<'_>) -> Result<Arc<Self>> {
        let SharesWish { dir, names, memory_bytes, overlay, ref keeper } = *wish;
        let dir = dir.canonicalize().map_err(|error| {
            let text = format!("shares at {}: no such directory: create it first", dir.display());
            Error::with_source(ErrorKind::NotFound, text, error)
        })?;
        let shares = Self {
            pool: service.pool().clone(),
            devices: service.devices().clone(),
            dir,
            names: Mutex::new(names.to_vec()),
            source: service.facts().pool.display().to_string(),
            memory_bytes,
            overlay,
            keeper: keeper.clone(),
            journals: service.journals().clone(),
            keeps_acknowledged: service.pool().status().standby.is_wanted,
            state: Mutex::default(),
            unserved: Unserved::default(),
        };
        let mut failed = shares.bring_up();
        if shares.state.lock().mounted.is_empty()
            && let Some(first) = failed.iter().position(|fault| !fault.is_of_share)
        {
            return Err(failed.swap_remove(first).error);
        }
        failed.iter().for_each(|fault| service.log(&fault.error.to_string()));
        Ok(Arc::new(shares))
    }

    /// Returns the directory below which they are mounted.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the mounted shares: number, name, and mount point.
    pub fn mounted(&self) -> Vec<(u64, String, PathBuf)> {
        let state = self.state.lock();
        let here = state.mounted.iter().filter(|(_, share)| !share.mount.is_over());
        here.map(|(id, share)| (*id, share.name.clone(), self.dir.join(&share.name))).collect()
    }

    /// Mounts new shares, and unmounts removed and renamed ones; returns the errors.
    pub fn bring_up_to_date(&self) -> Vec<String> {
        self.bring_up().iter().map(|fault| fault.error.to_string()).collect()
    }

    /// Returns the shares that could not be mounted, each with the reason.
    pub fn unserved(&self) -> Vec<UnservedLine> {
        self.unserved.lines(&self.pool)
    }

    /// Closes the open trees of snapshots below `.shale`, so that one can be destroyed; with
    /// `only_idle`, only the idle ones.
    pub fn close_snapshots(&self, only_idle: bool) {
        self.state.lock().mounted.values().for_each(|share| share.mount.close_snapshots(only_idle));
    }

    /// Makes mounted shares refuse or accept changes, as their property `readonly` says.
    pub fn follow_readonly(&self) {
        self.state.lock().mounted.iter().for_each(|(id, share)| share_trees::follow(&self.pool, *id, &share.mount));
    }

    /// Returns the tree of a mounted share.
    pub(crate) fn opened(&self, id: DeviceId) -> Option<Opened> {
        let state = self.state.lock();
        state.mounted.get(&id.0).map(Mounted::lend)
    }

    /// Returns the tree of a mounted share; otherwise opens it with `open`, before it can be
    /// mounted, and returns `true`: only the caller uses it then.
    ///
    /// # Errors
    /// Those of `open`.
    pub(crate) fn opened_or(&self, id: DeviceId, open: impl FnOnce() -> Result<Opened>) -> Result<(Opened, bool)> {
        let state = self.state.lock();
        match state.mounted.get(&id.0) {
            Some(share) => Ok((share.lend(), false)),
            None => open().map(|opened| (opened, true)),
        }
    }

    fn bring_up(&self) -> Vec<Fault> {
        let mut state = self.state.lock();
        let mut failed: Vec<Fault> = Vec::new();
        let names = self.names.lock().clone();
        let is_wanted =
            |name: &String| names.is_empty() || names.iter().any(|wanted| wanted == name || is_in(name, wanted));
        let wanted: BTreeMap<u64, String> = self
            .pool
            .volumes()
            .into_iter()
            .filter(|volume| volume.is_share() && is_wanted(&volume.name))
            .map(|volume| (volume.id.0, volume.name))
            .collect();
        let State { mounted, left } = &mut *state;
        let before: BTreeSet<u64> = mounted.keys().copied().collect();
        failed.extend(self.keep_for_inner(mounted).into_iter().map(Fault::from));
        left.retain(|id| wanted.contains_key(id));
        self.unserved.retain(|id| wanted.contains_key(&id));
        let over: Vec<u64> = mounted.iter().filter(|(_, share)| share.mount.is_over()).map(|(id, _)| *id).collect();
        for share in over.iter().filter_map(|id| mounted.remove(id)) {
            let text = format!("share '{}' was unmounted; the next start of the server mounts it again", share.name);
            failed.push(share.mount.wait().err().unwrap_or_else(|| Error::new(ErrorKind::NotFound, text)).into());
        }
        left.extend(over);
        let mut gone = innermost_first(mounted);
        gone.retain(|(name, id)| wanted.get(id) != Some(name));
        for (name, id) in gone {
            match wait_for_users(mounted, id).and_then(|()| release(mounted, id, false)) {
                Ok(()) => self.leave_folders(&name),
                Err(error) => failed.push(error.into()),
            }
        }
        let cache_bytes = self.memory_bytes / MEMORY_DIVISOR / wanted.len().max(1) as u64;
        let cache_bytes = cache_bytes.clamp(CACHE_BYTES_MIN, CACHE_BYTES_MAX) as usize;
        // Outer shares before the ones in them.
        let by_name: BTreeMap<&String, u64> = wanted.iter().map(|(id, name)| (name, *id)).collect();
        for (name, id) in &by_name {
            let (name, id) = (*name, *id);
            if mounted.contains_key(&id) || left.contains(&id) {
                continue;
            }
            let holder = name.rsplit_once('/').and_then(|(above, _)| by_name.get_key_value(&above.to_owned()));
            let below = match holder {
                None => Below::Directory,
                Some((holder, above)) if !mounted.contains_key(above) => {
                    left.insert(id);
                    let text = format!("share '{name}' is not mounted: '{holder}', in which it lies, is not mounted");
                    self.unserved.note(id, text.clone());
                    failed.push(Fault::of_share(Error::new(ErrorKind::NotFound, text)));
                    continue;
                }
                Some((_, above)) if before.contains(above) || mounted.get(above).is_some_and(|m| m.is_resumed) => {
                    Below::Share
                }
                Some(_) => Below::NewShare,
            };
            match self.mount(DeviceId(id), name, &below, cache_bytes) {
                Ok(share) => {
                    self.unserved.forget(id);
                    mounted.insert(id, share);
                }
                Err(Fault { error, is_of_share }) => {
                    self.unserved.note(id, error.to_string());
                    let error = error.context("not served");
                    // A share in use is mounted as soon as its users have dropped it; other errors
                    // are logged once.
                    if error.kind() != ErrorKind::InUse {
                        left.insert(id);
                    }
                    failed.push(Fault { error, is_of_share });
                }
            }
        }
        failed
    }

    fn mount(
        &self,
        id: DeviceId,
        name: &str,
        below: &Below,
        cache_bytes: usize,
    ) -> std::result::Result<Mounted, Fault> {
        let dir = self.dir.join(name);
        let kept_by = self.keeper.clone().map(|keeper| KeeperSlot { keeper, name: format!("share-{}", id.0) });
        let options = MountOptions {
            source: self.source.clone(),
            has_access_times: share_trees::has_access_times(&self.pool, name)?,
            xattrs: share_trees::xattrs(&self.pool, name)?,
            is_read_only: self.pool.volume_of(id)?.is_set_readonly(),
            kept_by: kept_by.clone(),
            journal: self.keeps_acknowledged.then(|| self.journals.place(&self.pool, id)),
            counts: Some(Arc::new(ShareCounts::new(self.devices.traffics().clone(), id))),
            overlay: self.overlay,
            ..MountOptions::default()
        };
        self.journals.bring_back_of(&self.pool, id).map_err(Fault::of_share)?;
        // Nothing may touch the directory before this: a mount that outlived its server answers
        // only when a server is there.
        let kept = kept_by.as_ref().map(OrphanedMount::find).transpose()?.flatten();
        if let Some(kept) = kept {
            let gone_on = match below {
                // It is below the mount that the new one replaced.
                Below::NewShare => {
                    kept.end();
                    Err(Error::new(ErrorKind::NotFound, "the share in which it lies is being mounted again"))
                }
                _ => self.go_on(kept, id, &dir, cache_bytes, &options),
            };
            match gone_on {
                Ok((tree, files, mount)) => {
                    return Ok(Mounted::new(name, (tree, files), mount, true));
                }
                Err(error) => {
                    log::warn!("share '{name}' is mounted again, and files that were open there get errors: {error}")
                }
            }
        }
        fuse::mount::detach_dead(&dir, &self.source);
        if !matches!(below, Below::Directory) {
            check_empty(name, &dir, "; the next start of the server mounts it")?;
        } else if let Some(folders) = dir.parent().filter(|folders| *folders != self.dir)
            && let Err(error) = std::fs::create_dir_all(folders)
        {
            let text = format!("share '{name}': {} cannot be made", folders.display());
            return Err(Error::from_io(text, error).into());
        }
        match std::fs::create_dir(&dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                let text = format!("share '{name}': {} cannot be made", dir.display());
                return Err(Error::from_io(text, error).into());
            }
            _ => {}
        }
        if !self.overlay {
            fuse::mount::check_vacant(&dir).map_err(|error| error.context(format_args!("share '{name}'")))?;
        }
        let open = || {
            let (volume, device) = self.open(id, &dir)?;
            let opened = share_trees::open(volume, device, cache_bytes, MOUNT_PATIENCE)?;
            share_trees::keep_for_inner(&self.pool, name, &opened.0)?;
            Ok(opened)
        };
        let (tree, files) = open().map_err(Fault::of_share)?;
        let tree = Arc::new(tree);
        let mount = fe_share::mount_with_snapshots(tree.clone(), Some(self.moments(id)), &dir, &options)?;
        Ok(Mounted::new(name, (tree, files), mount, false))
    }

    /// Creates a share while none is mounted or unmounted: a tree has one user at a time. Fails if
    /// the share could not be mounted, because its directory in the mounted share around it is not
    /// empty, or is another kind of file.
    ///
    /// # Errors
    /// [`ErrorKind::Exists`], and those of `make`.
    pub fn make_apart<T>(&self, name: &str, make: impl FnOnce() -> Result<T>) -> Result<T> {
        let state = self.state.lock();
        let above = name.rsplit_once('/').map(|(above, _)| above);
        let is_above = |share: &&Mounted| Some(share.name.as_str()) == above && !share.mount.is_over();
        let above = state.mounted.values().find(is_above);
        if above.is_some() {
            check_empty(name, &self.dir.join(name), "")?;
        }
        let made = make()?;
        // Entries made since then block the mount, which reports them; no more can be made.
        above.map_or(Ok(()), |above| share_trees::keep_for_inner(&self.pool, &above.name, &above.tree))?;
        Ok(made)
    }

    /// Reserves the names of inner shares in the trees of all mounted shares.
    fn keep_for_inner(&self, mounted: &BTreeMap<u64, Mounted>) -> Vec<Error> {
        let kept = mounted.values().map(|share| share_trees::keep_for_inner(&self.pool, &share.name, &share.tree));
        kept.filter_map(Result::err).collect()
    }

    /// Resumes a mount that has outlived the previous server.
    fn go_on(
        &self,
        kept: OrphanedMount,
        id: DeviceId,
        dir: &Path,
        cache_bytes: usize,
        options: &MountOptions,
    ) -> Result<(Arc<Tree>, Arc<Files>, Mount)> {
        let prepare = || {
            if kept.dir() != dir {
                let text = format!("its mount is at {}, not at {}", kept.dir().display(), dir.display());
                return Err(Error::new(ErrorKind::Conflict, text));
            }
            let left = kept.left()?;
            let (volume, device) = self.open(id, dir)?;
            let name = volume.name();
            let space = Arc::new(Files::claimed(volume, device, TreeUse::Change, PATIENCE)?);
            let tree = Tree::take_over(space.clone(), Options { now, cache_bytes }, &left)
                .map_err(|failure| error_of(&name, "the state of its last server cannot be restored", failure))?;
            tree.follow(space.clone());
            share_trees::keep_for_inner(&self.pool, &name, &tree)?;
            Ok((tree, space))
        };
        match prepare() {
            Ok((tree, files)) => {
                let tree = Arc::new(tree);
                let mount = fe_share::resume_with_snapshots(tree.clone(), Some(self.moments(id)), kept, options)?;
                Ok((tree, files, mount))
            }
            Err(error) => {
                kept.end();
                Err(error)
            }
        }
    }

    fn open(&self, id: DeviceId, dir: &Path) -> Result<(Arc<Volume>, Arc<dyn BlockDevice>)> {
        let volume = self.pool.volume_of(id)?;
        let client = NamedClient::at(TREES, format!("mount at {}", dir.display()));
        let device = self.devices.open_volume(volume.clone(), &client)?;
        Ok((volume, device))
    }

    fn moments(&self, share: DeviceId) -> Arc<dyn Snapshots> {
        Arc::new(ShareMoments { pool: self.pool.clone(), devices: self.devices.clone(), share })
    }

    /// Returns the shares whose unsynced names would be lost with the server, with reasons.
    pub fn names_at_risk(&self) -> Vec<String> {
        self.state.lock().mounted.values().filter_map(|share| share.mount.names_at_risk()).collect()
    }

    /// Calls `take`, which makes a snapshot, while the mounted shares that are `meant` are frozen:
    /// it contains every change that was complete at one moment, and no other. No share is mounted
    /// meanwhile.
    ///
    /// # Errors
    /// Those of the pool and of `take`.
    pub fn still<T>(&self, meant: impl Fn(&str) -> bool, take: impl FnOnce() -> Result<T>) -> Result<T> {
        let failed = |name: &str, failure| error_of(name, "its tree cannot be made durable", failure);
        let lent: Vec<_> = {
            let state = self.state.lock();
            let meant = state.mounted.values().filter(|share| meant(&share.name));
            meant.map(|share| (share.name.clone(), share.lend())).collect()
        };
        // Most of the work happens before any client has to wait.
        for (name, opened) in lent {
            opened.tree.commit().map_err(|failure| failed(&name, failure))?;
        }
        let state = self.state.lock();
        let mut still = Vec::new();
        for share in state.mounted.values().filter(|share| meant(&share.name)) {
            still.push(share.tree.stand_still().map_err(|failure| failed(&share.name, failure))?);
        }
        take()
    }

    /// Unmounts the named shares with those in them, or all in a folder, as far as they are
    /// mounted, and runs `work` before any can be mounted again; returns whether any was. With
    /// `force` open files are cut off.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`], and `work` is not run; others in the folder may be unmounted by then.
    pub fn without<T>(&self, names: &[&str], force: bool, work: impl FnOnce() -> Result<T>) -> (bool, Result<T>) {
        let mut state = self.state.lock();
        let mut meant = innermost_first(&state.mounted);
        meant.retain(|(own, _)| share_trees::is_meant(own, names));
        if let Err(error) = meant.iter().try_for_each(|(_, id)| wait_for_users(&state.mounted, *id)) {
            return (false, Err(error));
        }
        for (index, (_, id)) in meant.iter().enumerate() {
            if let Err(error) = release(&mut state.mounted, *id, force) {
                return (index > 0, Err(error));
            }
        }
        let done = share_trees::claim_all(&self.pool, names).and_then(|_claims| work());
        self.keep_for_inner(&state.mounted).iter().for_each(|error| log::warn!("{error}"));
        for (name, _) in &meant {
            if self.pool.volume(name).is_err() {
                self.leave_folders(name);
            }
        }
        (!meant.is_empty(), done)
    }

    /// Removes the mount point of a removed share, and those of its folders, as far as they are
    /// empty.
    fn leave_folders(&self, name: &str) {
        let mut left = name;
        loop {
            // Never removes a directory that is not empty.
            if std::fs::remove_dir(self.dir.join(left)).is_err() {
                return;
            }
            let Some((above, _)) = left.rsplit_once('/') else { return };
            left = above;
        }
    }
}

/// Returns the mounted shares by name, inner ones before outer ones.
fn innermost_first(mounted: &BTreeMap<u64, Mounted>) -> Vec<(String, u64)> {
    let mut by_name: Vec<_> = mounted.iter().map(|(id, share)| (share.name.clone(), *id)).collect();
    by_name.sort_unstable_by(|a, b| b.cmp(a));
    by_name
}

/// Fails if the directory of a share in another one is not empty, or is another kind of file.
/// Following symbolic links would let users of the other share choose the mount point.
fn check_empty(name: &str, dir: &Path, after: &str) -> Result<()> {
    let refused = |what: &str| {
        let text = format!(
            "share '{name}' cannot be mounted at {}: {what}: move it away, or choose another name{after}",
            dir.display()
        );
        Err(Error::new(ErrorKind::Exists, text))
    };
    let about = |error| Error::from_io(format!("share '{name}': {} cannot be read", dir.display()), error);
    match std::fs::symlink_metadata(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(about(error)),
        Ok(there) if !there.is_dir() => return refused("another kind of file has its name"),
        Ok(_) => {}
    }
    match std::fs::read_dir(dir).map_err(about)?.next() {
        Some(_) => refused("the directory there is not empty, and a mount would hide its content"),
        None => Ok(()),
    }
}

/// Waits until only its mount uses the tree of a mounted share. The tree cannot be lent meanwhile.
fn wait_for_users(mounted: &BTreeMap<u64, Mounted>, id: u64) -> Result<()> {
    let Some(share) = mounted.get(&id) else { return Ok(()) };
    for _ in 0..USERS_LOOKS {
        if Arc::strong_count(&share.users) == 1 {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(USERS_LOOK_MS));
    }
    let text = format!(
        "another command (usage, explain, recompress, snapshot) is reading share '{}': try again when it has ended",
        share.name
    );
    Err(Error::new(ErrorKind::InUse, text))
}

/// Unmounts a share, and closes its tree. The tree then leaves memory, unless it is lent.
fn release(mounted: &mut BTreeMap<u64, Mounted>, id: u64, force: bool) -> Result<()> {
    let Some(share) = mounted.get(&id) else { return Ok(()) };
    match share.mount.begin_unmount() {
        Ok(()) => {}
        Err(error) if !force => return Err(error),
        Err(_) => share.mount.disconnect()?,
    }
    // Nothing writes to the share after this: its number may belong to another by then.
    mounted.remove(&id).map_or(Ok(()), |share| share.mount.wait())
}
