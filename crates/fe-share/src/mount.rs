//! The life of a share's mount. Owns the thread that serves it and the one that commits from time
//! to time.
//!
//! A mount ends when it is unmounted, from here or from a shell. The tree is closed after the last
//! request was answered. One that a keeper holds goes on when the program dies: requests wait for
//! the next one, which resumes it.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use fuse::keep::KeptBy;
use fuse::mount::{self as kernel_mount, How, Place};
use fuse::{Notifier, Session, SessionOptions, Transport};
use parking_lot::{Condvar, Mutex};
use rustix::mount::UnmountFlags;
use share::{Left, Tree};
use surface::{Error, ErrorKind, Result};

use crate::closing;
use crate::counted::Counts;
use crate::held::Held;
use crate::holding::{HeldBy, begin_journal, look_after, not_held};
use crate::kept::{self, JournalPlace, KeptJournal};
use crate::moments::{Moments, Shown};
use crate::served::Served;

/// How a share is mounted.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// Threads that take requests from the device; a ring has one for each CPU instead.
    pub threads: usize,
    /// Whether set-user-id programs and device nodes of the share count as such.
    pub allow_suid_and_devices: bool,
    /// Whether reads move access times (`relatime`); otherwise the mount says `noatime`. A mount
    /// that has outlived its server stays as it was made.
    pub has_access_times: bool,
    /// Whether changes are refused, until [`Mount::set_read_only`].
    pub is_read_only: bool,
    /// What `mount` and `df` show as the source.
    pub source: String,
    /// Mounts over a directory that is not empty, or over another mount; they are hidden then.
    pub overlay: bool,
    /// After how long changes become durable that no `fsync` has asked for.
    pub commit_every: Duration,
    /// The keeper that holds the mount, so that it outlives this program. Nothing does if requests
    /// come over rings.
    pub kept_by: Option<KeptBy>,
    /// Where the journal is made that lets acknowledged names outlive this program, also where the
    /// mount does not.
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

/// Whether a mount has ended, for the thread that commits.
#[derive(Default)]
struct End {
    has_come: Mutex<bool>,
    changed: Condvar,
}

/// A mounted share. Dropping it leaves it mounted until it is unmounted from a shell, or the
/// process ends.
pub struct Mount {
    place: Place,
    connection: Notifier,
    options: MountOptions,
    served: Arc<Served>,
    serving: JoinHandle<io::Result<()>>,
    /// The journal of names, if one was asked for.
    journal: Option<Arc<KeptJournal>>,
}

/// Mounts a tree without snapshots: as [`mount_with_moments`].
///
/// # Errors
/// The same.
pub fn mount(tree: Arc<Tree>, dir: &Path, options: &MountOptions) -> Result<Mount> {
    mount_with_moments(tree, None, dir, options)
}

/// Mounts a tree at the directory `dir`, with its snapshots, if `moments` has them, below
/// `.shale/snapshots` there. Returns when it can be used. Needs root.
///
/// # Errors
/// [`ErrorKind::NotFound`] or [`ErrorKind::Invalid`] for `dir`, [`ErrorKind::Exists`] if it would
/// hide something there, [`ErrorKind::Unsupported`] if this kernel or user cannot mount,
/// [`ErrorKind::Io`] if the kernel fails.
pub fn mount_with_moments(
    tree: Arc<Tree>,
    moments: Option<Arc<dyn Moments>>,
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
    let dir_path = dir.canonicalize().map_err(|error| about("no such directory: make it first", error))?;
    if !options.overlay {
        kernel_mount::check_vacant(&dir_path)?;
    }
    let moments = moments.map(|moments| Shown::new(moments, &tree));
    let mut served = Served::new(tree.clone(), Held::default(), moments, options.counts.clone());
    served.has_access_times = options.has_access_times;
    served.is_read_only.store(options.is_read_only, Ordering::Relaxed);
    let served = Arc::new(served);
    let first = Transport::best();
    let session = match begin(&served, &dir_path, options, first) {
        Err(error) if first == Transport::Rings => {
            log::warn!("{}: FUSE over io_uring fails ({error}); served without", dir.display());
            begin(&served, &dir_path, options, Transport::Device)
        }
        result => result,
    };
    let session = session?;
    let place = Place::at(&dir_path, &how(options))
        .inspect_err(|_| drop(kernel_mount::unmount(&dir_path, UnmountFlags::DETACH)))?;
    let kept_by = options.kept_by.as_ref();
    if let (Some(_), Some(why)) = (kept_by, session.cannot_be_taken_over()) {
        log::warn!("{}: the mount will not survive its server: {why}", dir.display());
    }
    let kept_by = kept_by.filter(|_| session.cannot_be_taken_over().is_none());
    let held_by = kept_by.map(|kept_by| HeldBy::of(&session, &place, kept_by));
    let journal = begin_journal(&tree, options, kept_by.is_some());
    if let Some(journal) = &journal {
        if let Some(fault) = journal.fault() {
            log::warn!("{}: the death of the server would lose names that were not synced: {fault}", dir.display());
        }
        if let Some(held_by) = &held_by
            && let Err(error) = held_by.hold(journal)
        {
            log::warn!("{}: {}", dir.display(), not_held(&error));
        }
    }
    let mount = start(session, served, place, options, journal, held_by)?;
    closing::close_first(&mount.served, &dir_path);
    Ok(mount)
}

/// Goes on with a mount that has outlived its server. `tree` must be [taken over](Tree::take_over)
/// with what the mount [left](KeptMount::left).
///
/// # Errors
/// [`ErrorKind::Unsupported`] if the kernel cannot send requests again (before Linux 6.9),
/// [`ErrorKind::Exists`] if it was unmounted meanwhile and its directory is not empty any more,
/// [`ErrorKind::Io`] if the connection or the keeper fails.
pub fn resume(tree: Arc<Tree>, mount: KeptMount, options: &MountOptions) -> Result<Mount> {
    resume_with_moments(tree, None, mount, options)
}

/// As [`resume`], with snapshots.
///
/// # Errors
/// The same.
pub fn resume_with_moments(
    tree: Arc<Tree>,
    moments: Option<Arc<dyn Moments>>,
    mount: KeptMount,
    options: &MountOptions,
) -> Result<Mount> {
    let (place, kept_by) = (mount.place.clone(), mount.kept_by.clone());
    let resumed = go_on(tree, moments, mount, options);
    if resumed.is_err() {
        // Without a server its requests fail, instead of waiting in the keeper.
        end_kept(&kept_by, &place);
    }
    resumed
}

/// Has a mount end that a keeper holds. The caller has closed its descriptors.
fn end_kept(kept_by: &KeptBy, place: &Place) {
    kept_by.give_up();
    if let Err(error) = place.detach() {
        log::warn!("{error}");
    }
}

fn go_on(
    tree: Arc<Tree>,
    moments: Option<Arc<dyn Moments>>,
    mount: KeptMount,
    options: &MountOptions,
) -> Result<Mount> {
    let KeptMount { place, devices, kept_by, .. } = mount;
    let about = |error: io::Error| {
        let unsupported = error.kind() == io::ErrorKind::InvalidInput;
        let kind = if unsupported { ErrorKind::Unsupported } else { ErrorKind::Io };
        let text = format!("share at {}: its mount cannot be taken over", place.dir().display());
        Error::with_source(kind, text, error)
    };
    let moments = moments.map(|moments| Shown::new(moments, &tree));
    let mut served = Served::new(tree.clone(), Held::taken_over(), moments, options.counts.clone());
    served.has_access_times = place.has_access_times();
    served.is_read_only.store(options.is_read_only, Ordering::Relaxed);
    let served = Arc::new(served);
    let session = Session::take_over(devices, served.clone()).map_err(about)?;
    place.bring_back(session.notifier().device(), &how(options), options.overlay)?;
    // Before anything is done that might have to be known to the next program.
    let held_by = HeldBy::of(&session, &place, &kept_by);
    let journal = begin_journal(&tree, options, true);
    if let Some(journal) = &journal
        && let Err(error) = held_by.hold(journal)
    {
        // The mount goes on: the journal is offered to the keeper again.
        log::warn!("{}: {}", place.dir().display(), not_held(&error));
    }
    start(session, served, place, options, journal, Some(held_by))
}

/// A mount that has outlived its server, as its keeper has it.
pub struct KeptMount {
    place: Place,
    devices: Vec<OwnedFd>,
    memory: File,
    kept_by: KeptBy,
}

impl KeptMount {
    /// The mount that a keeper has under a name; `None` if there is none.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the keeper fails.
    pub fn find(kept_by: &KeptBy) -> Result<Option<Self>> {
        let failed = |error| Error::from_io("the keeper of mounts fails", error);
        let Some(entry) = kept_by.entry().map_err(failed)? else { return Ok(None) };
        let mut devices = entry.descriptors;
        let (Some(memory), Some(place)) = (devices.pop(), Place::from_bytes(&entry.bytes)) else { return Ok(None) };
        Ok(Some(Self { place, devices, memory: memory.into(), kept_by: kept_by.clone() }))
    }

    /// Where it is.
    pub fn dir(&self) -> &Path {
        self.place.dir()
    }

    /// What its server had acknowledged and not made durable.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if that cannot be read.
    pub fn left(&self) -> Result<Left> {
        kept::left(&self.memory).map_err(|error| {
            Error::from_io(format!("share at {}: the journal of its server", self.dir().display()), error)
        })
    }

    /// Ends it: programs that have a file open get errors.
    pub fn give_up(self) {
        drop((self.devices, self.memory));
        end_kept(&self.kept_by, &self.place);
    }
}

/// Serves a connection.
fn start(
    session: Session<Served>,
    served: Arc<Served>,
    place: Place,
    options: &MountOptions,
    journal: Option<Arc<KeptJournal>>,
    held_by: Option<HeldBy>,
) -> Result<Mount> {
    let about = |error| Error::from_io(format!("share at {}: cannot start a thread", place.dir().display()), error);
    let connection = session.notifier();
    let _ = served.notifier.set(connection.clone());
    let tree = served.tree.clone();
    let end = Arc::new(End::default());
    let committing = {
        let (tree, end, every, journal) = (tree.clone(), end.clone(), options.commit_every, journal.clone());
        let dir = place.dir().to_owned();
        let look_after = move |tree: &Tree| match &journal {
            Some(journal) => look_after(journal, tree, held_by.as_ref()),
            None => Ok(()),
        };
        thread::Builder::new()
            .name("share-commit".to_owned())
            .spawn(move || end.commit_until(&tree, &dir, every, look_after))
    };
    let committing = committing.map_err(about)?;
    let kept_by = options.kept_by.clone();
    let ends = journal.clone();
    let serve = move || {
        let result = session.run();
        *end.has_come.lock() = true;
        end.changed.notify_all();
        let _ = committing.join();
        let closed = tree.close().map_err(|failure| io::Error::from_raw_os_error(failure.errno()));
        // No server is to go on with it.
        kept_by.inspect(KeptBy::give_up);
        if let Some(journal) = ends.filter(|_| closed.is_ok()) {
            journal.end();
        }
        result.and(closed)
    };
    let serving = thread::Builder::new().name("share-serve".to_owned()).spawn(serve).map_err(about)?;
    Ok(Mount { place, connection, options: options.clone(), served, serving, journal })
}

impl End {
    /// Commits from time to time, until the end, and looks after the journal.
    fn commit_until(&self, tree: &Tree, dir: &Path, every: Duration, look_after: impl Fn(&Tree) -> io::Result<()>) {
        fuse::become_io_flusher();
        let (mut has_come, mut last_fault) = (self.has_come.lock(), None);
        while !*has_come {
            if self.changed.wait_for(&mut has_come, every).timed_out() {
                parking_lot::MutexGuard::unlocked(&mut has_come, || {
                    if let Err(failure) = tree.commit() {
                        log::error!("the namespace of a share cannot be made durable: {failure:?}");
                    }
                    // Once, not with every commit.
                    let fault = look_after(tree).err().map(|error| error.to_string());
                    if let Some(fault) = fault.as_ref().filter(|_| fault != last_fault) {
                        log::error!("{dir}: {fault}", dir = dir.display());
                    }
                    last_fault = fault;
                });
            }
        }
    }
}

fn how(options: &MountOptions) -> How<'_> {
    How {
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
        Error::from_io(format!("share at {}: cannot be served", dir.display()), error)
    })
}

impl Mount {
    /// Where it is mounted, without symbolic links.
    pub fn dir(&self) -> &Path {
        self.place.dir()
    }

    /// Unmounts, closes the tree, and waits for that.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] as [`Self::take_away`]; [`ErrorKind::Io`] if the tree could not be
    /// closed.
    pub fn unmount(self) -> Result<()> {
        self.take_away()?;
        self.wait()
    }

    /// Unmounts, and leaves it to [`Self::wait`] that the tree is closed. After an error it is
    /// served as before.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] if a file is open, a process is in it, or there is a copy of the mount
    /// in another mount namespace or at another directory.
    pub fn take_away(&self) -> Result<()> {
        self.place.unmount(self.connection.device(), &how(&self.options))
    }

    /// Cuts off all programs that have files open, and all copies of the mount: later requests
    /// fail. Leaves it to [`Self::wait`] that the tree is closed. Everything acknowledged is kept.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] or [`ErrorKind::Io`] if the kernel fails.
    pub fn cut_off(&self) -> Result<()> {
        self.place.cut_off(self.connection.device())
    }

    /// Why the death of this program would lose names that were acknowledged and not synced; `None`
    /// if it would not, or if no journal was asked for.
    pub fn names_at_risk(&self) -> Option<String> {
        let fault = self.journal.as_ref()?.fault()?;
        Some(format!("{}: names that are not synced would be lost: {fault}", self.dir().display()))
    }

    /// Refuses changes from now on with `EROFS`, or takes them again. Acknowledged changes stay;
    /// pages of a mapping that the kernel has not written yet are refused.
    pub fn set_read_only(&self, is_read_only: bool) {
        self.served.is_read_only.store(is_read_only, Ordering::Relaxed);
    }

    /// Closes the open trees of snapshots: all, or with `only_idle` those that were not looked at
    /// since the last call. Has the root listed again if its snapshots were shown or hidden.
    pub fn close_moments(&self, only_idle: bool) {
        if let Some(shown) = &self.served.moments {
            shown.close(only_idle);
            // The kernel lists the root from its cache until it is told.
            if shown.listing_has_changed()
                && let Some(notifier) = self.served.notifier.get()
                && let Err(error) = notifier.inval_inode(Tree::ROOT, 0, 0)
            {
                log::error!("the kernel cannot be told that the snapshots of a share are shown or hidden: {error}");
            }
        }
    }

    /// Whether it has been unmounted, and the tree is closed: then [`Self::wait`] does not wait.
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
