//! The life of a share's mount. Owns the thread that serves it and the one that commits
//! periodically. Any thread may call the methods of [`Mount`].
//!
//! A mount ends when it is unmounted, from here or from a shell. The tree is closed after the last
//! request has been answered. A mount that a keeper holds survives the program: requests wait for
//! the next server, which resumes it.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use fuse::keep::KeeperSlot;
use fuse::mount::{self as kernel_mount, MountParams, MountPoint};
use fuse::{Notifier, Session, SessionOptions, Transport};
use parking_lot::{Condvar, Mutex};
use rustix::mount::UnmountFlags;
use share::{Left, Tree};
use surface::{Error, ErrorKind, Result};

use crate::closing;
use crate::journal_keeper::{HeldMount, begin_journal, maintain_journal, not_held};
use crate::lookups::LookupCounts;
use crate::memory_journal::{self, JournalPlace, MemoryJournal};
use crate::request_kind::Counts;
use crate::served::Served;
use crate::shown_tree::ShownTree;
use crate::snapshots::{SnapshotDirs, Snapshots};
use crate::xattr_support::XattrSupport;

/// How a share is mounted.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// Threads that take requests from the device; a ring has one for each CPU instead.
    pub threads: usize,
    /// Whether set-user-id programs and device nodes of the share are honoured.
    pub allow_suid_and_devices: bool,
    /// Whether reads update access times (`relatime`); otherwise the mount shows `noatime`. A mount
    /// that has survived its server keeps its original setting.
    pub has_access_times: bool,
    /// Which extended attributes files have. A mount that has survived its server keeps its
    /// original setting.
    pub xattrs: XattrSupport,
    /// Whether changes are refused, until [`Mount::set_read_only`].
    pub is_read_only: bool,
    /// What `mount` and `df` show as the source.
    pub source: String,
    /// Allows mounting over a directory that is not empty, or over another mount, which hides them.
    pub overlay: bool,
    /// Time after which changes become durable without an `fsync`.
    pub commit_every: Duration,
    /// The keeper that holds the mount, so that it survives this program. Not used if requests come
    /// over rings.
    pub kept_by: Option<KeeperSlot>,
    /// Where the journal is created that preserves acknowledged names if this program dies, even
    /// where the mount does not survive.
    pub journal: Option<Arc<dyn JournalPlace>>,
    /// Where requests are counted.
    pub counts: Option<Arc<dyn Counts>>,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            threads: 4,
            allow_suid_and_devices: false,
            has_access_times: false,
            xattrs: XattrSupport::All,
            is_read_only: false,
            source: "shale".to_owned(),
            overlay: false,
            commit_every: Duration::from_secs(5),
            kept_by: None,
            journal: None,
            counts: None,
        }
    }
}

/// Whether a mount has ended; checked by the thread that commits.
#[derive(Default)]
struct End {
    has_come: Mutex<bool>,
    changed: Condvar,
}

/// A mounted share. Dropping it leaves the share mounted until it is unmounted from a shell, or the
/// process ends.
pub struct Mount {
    place: MountPoint,
    connection: Notifier,
    options: MountOptions,
    pub(crate) served: Arc<Served>,
    serving: JoinHandle<io::Result<()>>,
    /// The journal of names, if one was asked for.
    journal: Option<Arc<MemoryJournal>>,
}

/// Mounts a tree without snapshots: as [`mount_with_snapshots`].
///
/// # Errors
/// The same.
pub fn mount(tree: Arc<Tree>, dir: &Path, options: &MountOptions) -> Result<Mount> {
    mount_with_snapshots(tree, None, dir, options)
}

/// Mounts a tree at the directory `dir`, with its snapshots below `.shale/snapshots` if `snapshots`
/// is given. Returns when the mount is ready. Needs root.
///
/// # Errors
/// [`ErrorKind::NotFound`] or [`ErrorKind::Invalid`] for `dir`, [`ErrorKind::Exists`] if it would
/// hide something there, [`ErrorKind::Unsupported`] if this kernel or user cannot mount,
/// [`ErrorKind::Io`] if the kernel fails.
pub fn mount_with_snapshots(
    tree: Arc<Tree>,
    snapshots: Option<Arc<dyn Snapshots>>,
    dir: &Path,
    options: &MountOptions,
) -> Result<Mount> {
    let about = |what: &str, error: io::Error| {
        let kind = match error.kind() {
            io::ErrorKind::NotFound => ErrorKind::NotFound,
            io::ErrorKind::NotADirectory => ErrorKind::Invalid,
            io::ErrorKind::PermissionDenied => ErrorKind::Unsupported,
            _ => ErrorKind::Io,
        };
        Error::with_source(kind, format!("share at {}: {what}", dir.display()), error)
    };
    let dir_path = dir.canonicalize().map_err(|error| about("no such directory: create it first", error))?;
    if !options.overlay {
        kernel_mount::check_vacant(&dir_path)?;
    }
    let tree = ShownTree::new(tree, options.xattrs);
    let snapshots = snapshots.map(|snapshots| SnapshotDirs::new(snapshots, &tree));
    let served = Served::new(tree.clone(), LookupCounts::default(), snapshots, options)
        .map_err(|error| about("cannot start a thread", error))?
        .shared();
    let first = Transport::best();
    let session = match begin(&served, &dir_path, options, first) {
        Err(error) if first == Transport::Rings => {
            log::warn!("{}: FUSE over io_uring failed ({error}); using /dev/fuse", dir.display());
            begin(&served, &dir_path, options, Transport::Device)
        }
        result => result,
    };
    let session = session?;
    let place = MountPoint::at(&dir_path, &how(options))
        .inspect_err(|_| drop(kernel_mount::unmount(&dir_path, UnmountFlags::DETACH)))?;
    let kept_by = options.kept_by.as_ref();
    if let (Some(_), Some(why)) = (kept_by, session.cannot_be_taken_over()) {
        log::warn!("{}: the mount will not survive its server: {why}", dir.display());
    }
    let kept_by = kept_by.filter(|_| session.cannot_be_taken_over().is_none());
    let held_mount = kept_by.map(|kept_by| HeldMount::of(&session, &place, options.xattrs, kept_by));
    let journal = begin_journal(&tree, options, kept_by.is_some());
    if let Some(journal) = &journal {
        if let Some(fault) = journal.fault() {
            log::warn!("{}: the death of the server would lose names that were not synced: {fault}", dir.display());
        }
        if let Some(held_mount) = &held_mount
            && let Err(error) = held_mount.hold(journal)
        {
            log::warn!("{}: {}", dir.display(), not_held(&error));
        }
    }
    let mount = start(session, served, place, options, journal, held_mount)?;
    closing::close_first(&mount.served, &dir_path);
    Ok(mount)
}

/// Resumes a mount that has survived its server. `tree` must be [taken over](Tree::take_over) with
/// the changes that it [left](OrphanedMount::left).
///
/// # Errors
/// [`ErrorKind::Unsupported`] if the kernel cannot send requests again (before Linux 6.9),
/// [`ErrorKind::Exists`] if it was unmounted in the meantime and its directory is no longer empty,
/// [`ErrorKind::Io`] if the connection or the keeper fails.
pub fn resume(tree: Arc<Tree>, mount: OrphanedMount, options: &MountOptions) -> Result<Mount> {
    resume_with_snapshots(tree, None, mount, options)
}

/// As [`resume`], with snapshots.
///
/// # Errors
/// The same.
pub fn resume_with_snapshots(
    tree: Arc<Tree>,
    snapshots: Option<Arc<dyn Snapshots>>,
    mount: OrphanedMount,
    options: &MountOptions,
) -> Result<Mount> {
    let (place, kept_by) = (mount.place.clone(), mount.kept_by.clone());
    let resumed = resume_served(tree, snapshots, mount, options);
    if resumed.is_err() {
        // Without a server its requests fail instead of waiting in the keeper.
        end_orphaned(&kept_by, &place);
    }
    resumed
}

/// Ends a mount that a keeper holds. The caller has closed its descriptors.
fn end_orphaned(kept_by: &KeeperSlot, place: &MountPoint) {
    kept_by.close();
    if let Err(error) = place.detach() {
        log::warn!("{error}");
    }
}

fn resume_served(
    tree: Arc<Tree>,
    snapshots: Option<Arc<dyn Snapshots>>,
    mount: OrphanedMount,
    options: &MountOptions,
) -> Result<Mount> {
    let OrphanedMount { place, xattrs, devices, kept_by, .. } = mount;
    let about = |error: io::Error| {
        let unsupported = error.kind() == io::ErrorKind::InvalidInput;
        let kind = if unsupported { ErrorKind::Unsupported } else { ErrorKind::Io };
        let text = format!("share at {}: its mount cannot be taken over", place.dir().display());
        Error::with_source(kind, text, error)
    };
    let tree = ShownTree::new(tree, xattrs);
    let snapshots = snapshots.map(|snapshots| SnapshotDirs::new(snapshots, &tree));
    let mut served = Served::new(tree.clone(), LookupCounts::taken_over(), snapshots, options).map_err(about)?;
    served.has_access_times = place.has_access_times();
    let served = served.shared();
    let session = Session::take_over(devices, served.clone()).map_err(about)?;
    place.remount(session.notifier().device(), &how(options), options.overlay)?;
    // Before any action that the next program might have to know about.
    let held_mount = HeldMount::of(&session, &place, xattrs, &kept_by);
    let journal = begin_journal(&tree, options, true);
    if let Some(journal) = &journal
        && let Err(error) = held_mount.hold(journal)
    {
        // The mount continues: the journal is offered to the keeper again.
        log::warn!("{}: {}", place.dir().display(), not_held(&error));
    }
    start(session, served, place, options, journal, Some(held_mount))
}

/// A mount that has survived its server, as its keeper holds it.
pub struct OrphanedMount {
    place: MountPoint,
    xattrs: XattrSupport,
    devices: Vec<OwnedFd>,
    memory: File,
    kept_by: KeeperSlot,
}

impl OrphanedMount {
    /// Returns the mount that a keeper holds under a name; `None` if there is none.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the keeper fails, [`ErrorKind::Unsupported`] if a server of another
    /// version has left the mount.
    pub fn find(kept_by: &KeeperSlot) -> Result<Option<Self>> {
        let failed = |error| Error::from_io("the keeper of mounts failed", error);
        let Some(entry) = kept_by.entry().map_err(failed)? else { return Ok(None) };
        let mut devices = entry.descriptors;
        let Some(memory) = devices.pop() else { return Ok(None) };
        let (place, xattrs) = HeldMount::decode(&entry.bytes)?;
        Ok(Some(Self { place, xattrs, devices, memory: memory.into(), kept_by: kept_by.clone() }))
    }

    /// Returns its directory.
    pub fn dir(&self) -> &Path {
        self.place.dir()
    }

    /// Returns the changes that its server had acknowledged but not made durable.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if they cannot be read.
    pub fn left(&self) -> Result<Left> {
        memory_journal::left(&self.memory).map_err(|error| {
            Error::from_io(format!("share at {}: the journal of its server", self.dir().display()), error)
        })
    }

    /// Ends the mount: programs with an open file get errors.
    pub fn end(self) {
        drop((self.devices, self.memory));
        end_orphaned(&self.kept_by, &self.place);
    }
}

/// Serves a connection.
fn start(
    session: Session<Served>,
    served: Arc<Served>,
    place: MountPoint,
    options: &MountOptions,
    journal: Option<Arc<MemoryJournal>>,
    held_mount: Option<HeldMount>,
) -> Result<Mount> {
    let about = |error| Error::from_io(format!("share at {}: cannot start a thread", place.dir().display()), error);
    let connection = session.notifier();
    let _ = served.notifier.set(connection.clone());
    let tree = served.tree.clone();
    let end = Arc::new(End::default());
    let committing = {
        let (tree, end, every, journal) = (tree.clone(), end.clone(), options.commit_every, journal.clone());
        let dir = place.dir().to_owned();
        let maintain_journal = move |tree: &Tree| match &journal {
            Some(journal) => maintain_journal(journal, tree, held_mount.as_ref()),
            None => Ok(()),
        };
        thread::Builder::new()
            .name("share-commit".to_owned())
            .spawn(move || end.commit_until(&tree, &dir, every, maintain_journal))
    };
    let committing = committing.map_err(about)?;
    let kept_by = options.kept_by.clone();
    let (ends, of_mount) = (journal.clone(), served.clone());
    let serve = move || {
        let result = session.run();
        of_mount.direct.end();
        *end.has_come.lock() = true;
        end.changed.notify_all();
        let _ = committing.join();
        let closed = tree.close().map_err(|failure| io::Error::from_raw_os_error(failure.errno()));
        // No other server should resume it.
        kept_by.inspect(KeeperSlot::close);
        if let Some(journal) = ends.filter(|_| closed.is_ok()) {
            journal.end();
        }
        result.and(closed)
    };
    let serving = thread::Builder::new().name("share-serve".to_owned()).spawn(serve).map_err(about)?;
    Ok(Mount { place, connection, options: options.clone(), served, serving, journal })
}

impl End {
    /// Commits periodically until the end, and maintains the journal.
    fn commit_until(
        &self,
        tree: &Tree,
        dir: &Path,
        every: Duration,
        maintain_journal: impl Fn(&Tree) -> io::Result<()>,
    ) {
        fuse::become_io_flusher();
        let (mut has_come, mut last_fault) = (self.has_come.lock(), None);
        while !*has_come {
            if self.changed.wait_for(&mut has_come, every).timed_out() {
                parking_lot::MutexGuard::unlocked(&mut has_come, || {
                    if let Err(failure) = tree.commit() {
                        log::error!("the namespace of a share cannot be made durable: {failure:?}");
                    }
                    // Report a fault once, not at every commit.
                    let fault = maintain_journal(tree).err().map(|error| error.to_string());
                    if let Some(fault) = fault.as_ref().filter(|_| fault != last_fault) {
                        log::error!("{dir}: {fault}", dir = dir.display());
                    }
                    last_fault = fault;
                });
            }
        }
    }
}

fn how(options: &MountOptions) -> MountParams<'_> {
    MountParams {
        source: &options.source,
        allow_other: true,
        allow_exec: true,
        allow_suid_and_devices: options.allow_suid_and_devices,
        has_access_times: options.has_access_times,
    }
}

fn begin(served: &Arc<Served>, dir: &Path, options: &MountOptions, transport: Transport) -> Result<Session<Served>> {
    let connection = kernel_mount::mount(dir, &how(options))?;
    let session_options = SessionOptions { transport, threads: options.threads, can_clone: connection.can_clone };
    Session::begin(connection.device, served.clone(), session_options).map_err(|error| {
        let _ = kernel_mount::unmount(dir, UnmountFlags::DETACH);
        Error::from_io(format!("share at {}: cannot serve it", dir.display()), error)
    })
}

impl Mount {
    /// Returns its directory, without symbolic links.
    pub fn dir(&self) -> &Path {
        self.place.dir()
    }

    /// Unmounts, closes the tree, and waits for both.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] as [`Self::begin_unmount`]; [`ErrorKind::Io`] if the tree could not be
    /// closed.
    pub fn unmount(self) -> Result<()> {
        self.begin_unmount()?;
        self.wait()
    }

    /// Unmounts; [`Self::wait`] waits until the tree is closed. After an error it is served as
    /// before.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] if a file is open, a process has its working directory there, or there
    /// is a copy of the mount in another mount namespace or at another directory.
    pub fn begin_unmount(&self) -> Result<()> {
        // The kernel writes dirty pages first.
        self.served.is_unmounting.store(true, Ordering::Relaxed);
        let unmounted = self.place.unmount(self.connection.device(), &how(&self.options));
        self.served.is_unmounting.store(unmounted.is_ok(), Ordering::Relaxed);
        unmounted
    }

    /// Disconnects all programs that have files open, and all copies of the mount: later requests
    /// fail. [`Self::wait`] waits until the tree is closed. All acknowledged changes are kept.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] or [`ErrorKind::Io`] if the kernel fails.
    pub fn disconnect(&self) -> Result<()> {
        self.place.disconnect(self.connection.device())
    }

    /// Returns the reason why the death of this program would lose acknowledged names that are not
    /// synced; `None` if it would not, or if no journal was requested.
    pub fn names_at_risk(&self) -> Option<String> {
        let fault = self.journal.as_ref()?.fault()?;
        Some(format!("{}: names that are not synced would be lost: {fault}", self.dir().display()))
    }

    /// Refuses changes with `EROFS` from now on, or accepts them again. Acknowledged changes stay;
    /// pages of a mapping that the kernel has not written yet are refused.
    pub fn set_read_only(&self, is_read_only: bool) {
        self.served.is_read_only.store(is_read_only, Ordering::Relaxed);
    }

    /// Closes the open trees of snapshots: all, or with `only_idle` those that were not accessed
    /// since the last call. Makes the kernel list the root again if its snapshots were shown or
    /// hidden.
    pub fn close_snapshots(&self, only_idle: bool) {
        if let Some(shown) = &self.served.snapshots {
            shown.close(only_idle);
            // The kernel lists the root from its cache until it is notified.
            if shown.listing_has_changed()
                && let Some(notifier) = self.served.notifier.get()
                && let Err(error) = notifier.inval_inode(Tree::ROOT, 0, 0)
            {
                log::error!("the kernel cannot be notified that the snapshots of a share are shown or hidden: {error}");
            }
        }
    }

    /// Returns whether it is unmounted and the tree is closed: then [`Self::wait`] returns at once.
    pub fn is_over(&self) -> bool {
        self.serving.is_finished()
    }

    /// Waits until it is unmounted and the tree is closed.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the connection failed or the tree could not be closed.
    pub fn wait(self) -> Result<()> {
        let dir = self.dir().to_owned();
        let about = |error| Error::from_io(format!("share at {}", dir.display()), error);
        let ended = self.serving.join().unwrap_or_else(|_| Err(io::Error::other("the thread that serves it panicked")));
        ended.map_err(about)
    }
}
