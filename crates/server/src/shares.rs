//! Shares: their trees on the engine, and the directory below which a server mounts them. Owns
//! which of them are mounted.
//!
//! Each share has a directory of its name there, in directories of its folders' names. What comes
//! later (created, cloned, received) is mounted, what goes is unmounted; one that was unmounted
//! from a shell stays so until the server starts anew. A share that cannot be mounted does not keep
//! the others from it, but for those that lie in it; nor, if its own tree is why, the server from
//! its other doors.
//!
//! A share that lies in another is mounted on a directory in that one's tree. So it is mounted
//! behind it and unmounted before it: by name, and in the reverse order.

mod ends;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use engine::{Files, Pool, TreeClaim, TreeUse, Volume, VolumeStatus};
use fe_share::{KeeperSlot, Mount, MountOptions, OrphanedMount, Snapshots};
use fuse::HandoverCounts;
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

/// One over this of the server's memory caches the namespaces of all shares.
const MEMORY_DIVISOR: u64 = 8;
/// Least memory for the cache of a namespace: some thousand names.
const CACHE_BYTES_MIN: u64 = 4 << 20;
/// Most memory for it: with more, the engine's caches serve better.
const CACHE_BYTES_MAX: u64 = 256 << 20;
/// How often, and how many milliseconds apart, it is looked whether the users of a mounted share's
/// tree have gone.
const USERS_LOOKS: u32 = 200;
const USERS_LOOK_MS: u64 = 50;

struct Mounted {
    name: String,
    tree: Arc<Tree>,
    files: Arc<Files>,
    /// Those who have the tree hold this, too.
    users: Arc<()>,
    mount: Mount,
    /// It has outlived the server before this one.
    is_resumed: bool,
}

impl Mounted {
    fn new(name: &str, (tree, files): (Arc<Tree>, Arc<Files>), mount: Mount, is_resumed: bool) -> Self {
        Self { name: name.to_owned(), tree, files, users: Arc::default(), mount, is_resumed }
    }

    /// The tree, lent to a user who is waited for before it goes.
    fn lend(&self) -> Opened {
        Opened::lent(self.tree.clone(), self.files.clone(), self.users.clone())
    }
}

/// Where a share is mounted.
enum Below {
    /// On a directory of the machine's.
    Directory,
    /// On one in another share.
    Share,
    /// The same, and that share was mounted just now: earlier mounts in it are out of sight.
    NewShare,
}

#[derive(Default)]
struct State {
    mounted: BTreeMap<u64, Mounted>,
    /// Unmounted from a shell, or not to be mounted for another reason that was told.
    left: BTreeSet<u64>,
}

/// How a server mounts its shares.
pub struct SharesWish<'a> {
    /// The directory below which they are mounted.
    pub dir: &'a Path,
    /// Only these, if there are any.
    pub names: &'a [String],
    /// Memory of the server.
    pub memory_bytes: u64,
    /// Mounts over directories that are not empty, and over other mounts.
    pub overlay: bool,
    /// Holds the mounts, so that they outlive this server; none where that cannot be.
    pub keeper: Option<Arc<Keeper>>,
    /// Counts replies that are handed over to a lone caller on its CPU; none: they are not.
    pub handover: Option<Arc<HandoverCounts>>,
}

/// The mounted shares of a served pool.
pub struct Shares {
    pool: Pool,
    pub(crate) devices: Devices,
    dir: PathBuf,
    /// Only these, if there are any.
    names: Mutex<Vec<String>>,
    source: String,
    memory_bytes: u64,
    overlay: bool,
    keeper: Option<Arc<Keeper>>,
    handover: Option<Arc<HandoverCounts>>,
    journals: Arc<Journals>,
    /// Data that was acknowledged should survive the death of this server: so should names.
    keeps_acknowledged: bool,
    state: Mutex<State>,
    unserved: Unserved,
}

impl Shares {
    /// Mounts all shares, or those that are wished.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for `dir`; the first one, if none can be mounted, and that is not
    /// for want of trees that can be opened.
    pub fn start(service: &Service, wish: &SharesWish<'_>) -> Result<Arc<Self>> {
        let SharesWish { dir, names, memory_bytes, overlay, ref keeper, ref handover } = *wish;
        let dir = dir.canonicalize().map_err(|error| {
            let text = format!("shares at {}: no such directory: make it first", dir.display());
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
            handover: handover.clone(),
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

    /// Where they are mounted.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The shares that are mounted: number, name, and where.
    pub fn mounted(&self) -> Vec<(u64, String, PathBuf)> {
        let state = self.state.lock();
        let here = state.mounted.iter().filter(|(_, share)| !share.mount.is_over());
        here.map(|(id, share)| (*id, share.name.clone(), self.dir.join(&share.name))).collect()
    }

    /// Mounts what has come, and unmounts what has gone or has another name; what went wrong.
    pub fn bring_up_to_date(&self) -> Vec<String> {
        self.bring_up().iter().map(|fault| fault.error.to_string()).collect()
    }

    /// The shares that could not be mounted, and why.
    pub fn unserved(&self) -> Vec<UnservedLine> {
        self.unserved.lines(&self.pool)
    }

    /// Closes the open trees of snapshots below `.shale`, so that one can be destroyed; with
    /// `only_idle`, those that are idle.
    pub fn close_snapshots(&self, only_idle: bool) {
        self.state.lock().mounted.values().for_each(|share| share.mount.close_snapshots(only_idle));
    }

    /// Has mounted shares refuse changes, or take them, as their property `readonly` says.
    pub fn follow_readonly(&self) {
        self.state.lock().mounted.iter().for_each(|(id, share)| share_trees::follow(&self.pool, *id, &share.mount));
    }

    /// The tree of a share that is mounted.
    pub(crate) fn opened(&self, id: DeviceId) -> Option<Opened> {
        let state = self.state.lock();
        state.mounted.get(&id.0).map(Mounted::lend)
    }

    /// The tree of a share that is mounted; else what `open` opens, before it can be mounted, and
    /// `true`: it is the caller's own then.
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
        // Those first in which others lie.
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
                    // One that is in use is mounted as soon as its users have let go of it; all
                    // else is said once.
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
            is_read_only: self.pool.volume_of(id)?.is_set_readonly(),
            kept_by: kept_by.clone(),
            journal: self.keeps_acknowledged.then(|| self.journals.place(&self.pool, id)),
            counts: Some(Arc::new(ShareCounts::new(self.devices.clone(), id))),
            overlay: self.overlay,
            handover: self.handover.clone(),
            ..MountOptions::default()
        };
        self.journals.bring_back_of(&self.pool, id).map_err(Fault::of_share)?;
        // Nothing may touch the directory before this: what outlived its server answers when a
        // server is there.
        let kept = kept_by.as_ref().map(OrphanedMount::find).transpose()?.flatten();
        if let Some(kept) = kept {
            let gone_on = match below {
                // It is below the mount that this one took the place of.
                Below::NewShare => {
                    kept.end();
                    Err(Error::new(ErrorKind::NotFound, "the share in which it lies is mounted anew"))
                }
                _ => self.go_on(kept, id, &dir, cache_bytes, &options),
            };
            match gone_on {
                Ok((tree, files, mount)) => {
                    return Ok(Mounted::new(name, (tree, files), mount, true));
                }
                Err(error) => {
                    log::warn!("share '{name}' is mounted anew, and files that were open there get errors: {error}")
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

    /// Makes a share while none is mounted or unmounted: a tree has one user at a time. Fails if
    /// one of that name could not be mounted, because the directory in the mounted share in which
    /// it would lie has something in it, or is none.
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
        // What has come since is in the way of the mount, which says so; nothing more comes.
        above.map_or(Ok(()), |above| share_trees::keep_for_inner(&self.pool, &above.name, &above.tree))?;
        Ok(made)
    }

    /// Tells the trees of all mounted shares which shares lie in them now.
    fn keep_for_inner(&self, mounted: &BTreeMap<u64, Mounted>) -> Vec<Error> {
        let kept = mounted.values().map(|share| share_trees::keep_for_inner(&self.pool, &share.name, &share.tree));
        kept.filter_map(Result::err).collect()
    }

    /// Goes on with a mount that has outlived the server before this one.
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
                .map_err(|failure| error_of(&name, "what its last server left cannot be brought back", failure))?;
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

    /// Of which shares the death of the server would lose names that were not synced, and why.
    pub fn names_at_risk(&self) -> Vec<String> {
        self.state.lock().mounted.values().filter_map(|share| share.mount.names_at_risk()).collect()
    }

    /// Has `take` make a snapshot while the mounted shares that are `meant` stand still: it has all
    /// that was done in any of them before one moment, and nothing else. None is mounted meanwhile.
    ///
    /// # Errors
    /// What the pool says, and those of `take`.
    pub fn still<T>(&self, meant: impl Fn(&str) -> bool, take: impl FnOnce() -> Result<T>) -> Result<T> {
        let failed = |name: &str, failure| error_of(name, "its tree cannot be made durable", failure);
        let lent: Vec<_> = {
            let state = self.state.lock();
            let meant = state.mounted.values().filter(|share| meant(&share.name));
            meant.map(|share| (share.name.clone(), share.lend())).collect()
        };
        // Most of it before anybody has to wait.
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

    /// Unmounts a share with those in it, or all in a folder, as far as they are mounted, and does
    /// something before any can be mounted again; whether any was. With `force` those who have
    /// files open are cut off.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`], and nothing is done; others in the folder may be unmounted by then.
    pub fn without<T>(&self, names: &[&str], force: bool, work: impl FnOnce() -> Result<T>) -> (bool, Result<T>) {
        let mut state = self.state.lock();
        let mut meant = innermost_first(&state.mounted);
        meant.retain(|(own, _)| is_meant(own, names));
        if let Err(error) = meant.iter().try_for_each(|(_, id)| wait_for_users(&state.mounted, *id)) {
            return (false, Err(error));
        }
        for (index, (_, id)) in meant.iter().enumerate() {
            if let Err(error) = release(&mut state.mounted, *id, force) {
                return (index > 0, Err(error));
            }
        }
        let done = self.claim_all(names).and_then(|_claims| work());
        self.keep_for_inner(&state.mounted).iter().for_each(|error| log::warn!("{error}"));
        for (name, _) in &meant {
            if self.pool.volume(name).is_err() {
                self.leave_folders(name);
            }
        }
        (!meant.is_empty(), done)
    }

    /// Claims the trees of a share and of those in it, or of those in a folder.
    fn claim_all(&self, names: &[&str]) -> Result<Vec<TreeClaim>> {
        let meant = self.pool.volumes().into_iter().filter(|volume| volume.is_share());
        let meant = meant.filter(|volume| is_meant(&volume.name, names));
        let claim = |volume: VolumeStatus| {
            let claim = self.pool.claim_tree(volume.id, TreeUse::Change, PATIENCE);
            claim.map_err(|error| error.context(format_args!("share '{}'", volume.name)))
        };
        meant.map(claim).collect()
    }

    /// Removes the directory of a share that has gone from there, and those of its folders, as far
    /// as they are empty.
    fn leave_folders(&self, name: &str) {
        let mut left = name;
        loop {
            // Never anything that has something in it.
            if std::fs::remove_dir(self.dir.join(left)).is_err() {
                return;
            }
            let Some((above, _)) = left.rsplit_once('/') else { return };
            left = above;
        }
    }
}

/// The mounted shares by name, those that lie in others before these.
fn innermost_first(mounted: &BTreeMap<u64, Mounted>) -> Vec<(String, u64)> {
    let mut by_name: Vec<_> = mounted.iter().map(|(id, share)| (share.name.clone(), *id)).collect();
    by_name.sort_unstable_by(|a, b| b.cmp(a));
    by_name
}

/// Fails if the directory of a share in another one has something in it, or is none. What follows
/// symbolic links would let users of the other share say where this one is mounted.
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
        Ok(there) if !there.is_dir() => return refused("something that is no directory has its name"),
        Ok(_) => {}
    }
    match std::fs::read_dir(dir).map_err(about)?.next() {
        Some(_) => refused("the directory there is not empty, and a mount would hide what is in it"),
        None => Ok(()),
    }
}

/// Returns whether a share is one of those named, or in one of them.
fn is_meant(share: &str, names: &[&str]) -> bool {
    names.iter().any(|name| share == *name || is_in(share, name))
}

/// Waits until only its mount has the tree of a mounted share. It cannot be lent meanwhile.
fn wait_for_users(mounted: &BTreeMap<u64, Mounted>, id: u64) -> Result<()> {
    let Some(share) = mounted.get(&id) else { return Ok(()) };
    for _ in 0..USERS_LOOKS {
        if Arc::strong_count(&share.users) == 1 {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(USERS_LOOK_MS));
    }
    let text = format!(
        "share '{}' is being looked through by another command (usage, explain, recompress, snapshot): try again when \
         that has ended",
        share.name
    );
    Err(Error::new(ErrorKind::InUse, text))
}

/// Unmounts a share, and closes its tree. Nothing of the tree is in memory then, unless it is lent.
fn release(mounted: &mut BTreeMap<u64, Mounted>, id: u64, force: bool) -> Result<()> {
    let Some(share) = mounted.get(&id) else { return Ok(()) };
    match share.mount.begin_unmount() {
        Ok(()) => {}
        Err(error) if !force => return Err(error),
        Err(_) => share.mount.disconnect()?,
    }
    // Nothing writes to the share after this: it may be another one then.
    mounted.remove(&id).map_or(Ok(()), |share| share.mount.wait())
}
