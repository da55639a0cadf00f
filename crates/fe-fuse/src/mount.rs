//! The lifecycle of a mount: mounted, serving, and ended. Owns the serving threads.
//!
//! A mount ends when the kernel drops the connection: after [`Mount::unmount`], after `umount DIR`
//! from a shell, or after an abort through sysfs. The serving threads handle all three alike: they
//! end, the open devices are released, and the callers of [`Ended::wait`] are woken.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::thread;

use fuse::keep::KeeperSlot;
use fuse::mount::{self as kernel_mount, MountParams, MountPoint};
use fuse::{Notifier, Session, SessionOptions, Transport, become_io_flusher};
use parking_lot::{Condvar, Mutex};
use rustix::mount::UnmountFlags;
use surface::{DeviceSet, Error, ErrorKind, Result};

use crate::directory::DeviceDirectory;
use crate::options::{MountOptions, THREADS_MAX};
use crate::stack::Stack;
use crate::surviving_handles::SurvivingHandles;

/// How [`Mount::unmount`] treats open files, including loop devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenBusy {
    /// Leaves it mounted, and returns [`ErrorKind::InUse`].
    Refuse,
    /// Detaches it from the directory tree immediately; open files are served until they are
    /// closed. Returns immediately.
    Detach,
    /// Ends it immediately: requests in progress and all later ones fail with `ENOTCONN` or
    /// `ECONNABORTED`. As after unplugging a disk, flushed data is safe, and other data may be
    /// lost.
    Abort,
}

/// Reports the end of a mount.
#[derive(Debug, Clone)]
pub struct Ended(Arc<EndedState>);

#[derive(Debug, Default)]
struct EndedState {
    result: Mutex<Option<std::result::Result<(), String>>>,
    changed: Condvar,
}

impl Ended {
    /// Whether the mount has ended: nothing is served any more.
    pub fn is_ended(&self) -> bool {
        self.0.result.lock().is_some()
    }

    /// Waits until the mount has ended.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if it did not end by being unmounted.
    pub fn wait(&self) -> Result<()> {
        let mut result = self.0.result.lock();
        loop {
            match &*result {
                Some(Ok(())) => return Ok(()),
                Some(Err(message)) => return Err(Error::new(ErrorKind::Io, message.clone())),
                None => self.0.changed.wait(&mut result),
            }
        }
    }
}

/// A mounted directory of devices. Dropping it detaches it, as [`WhenBusy::Detach`] does.
#[derive(Debug)]
pub struct Mount {
    place: MountPoint,
    connection: Notifier,
    options: MountOptions,
    over_rings: bool,
    is_resumed: bool,
    ended: Ended,
}

/// Mounts `devices` at the directory `dir`: each device is a file with its name. Returns when the
/// mount is usable.
///
/// # Errors
/// [`ErrorKind::NotFound`] or [`ErrorKind::Invalid`] for `dir` or `options`, [`ErrorKind::InUse`]
/// if such a mount exists already, [`ErrorKind::Unsupported`] if this kernel or user cannot mount,
/// [`ErrorKind::Io`] if the kernel fails.
pub fn mount(devices: Arc<dyn DeviceSet>, dir: &Path, options: &MountOptions) -> Result<Mount> {
    for (number, what) in [(options.threads, "threads"), (options.reads_waiting, "waiting reads")] {
        if number == 0 || number > THREADS_MAX {
            let message = format!("{number} {what} requested: a mount takes 1 to {THREADS_MAX}");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
    }
    let about = |what: &str| format!("mount at {}: {what}", dir.display());
    let dir = dir.canonicalize().map_err(|error| {
        let kind = if error.kind() == io::ErrorKind::NotFound { ErrorKind::NotFound } else { ErrorKind::Io };
        Error::with_source(kind, about("no such directory: create it first"), error)
    })?;
    if let Some(mount) = resume(&devices, &dir, options) {
        return Ok(mount);
    }
    // The remains of a killed server of the same pool are useless.
    if options.replaces_dead {
        kernel_mount::detach_dead(&dir, &options.source);
    }
    // Checked before anything is sent to it: a server that hangs would not answer.
    if !options.overlay && kernel_mount::is_ours(&dir) {
        let message = format!(
            "{} (if its server was killed, remove it with 'umount -f {}'); choose another directory",
            about("a shale server is already mounted there"),
            dir.display()
        );
        return Err(Error::new(ErrorKind::InUse, message));
    }
    if !dir.is_dir() {
        return Err(Error::new(ErrorKind::Invalid, about("it is not a directory")));
    }
    if !options.overlay {
        kernel_mount::check_vacant(&dir)?;
    }

    let (session, directory, transport) = begin(&devices, &dir, options)?;
    let place =
        MountPoint::at(&dir, &how(options)).inspect_err(|_| drop(kernel_mount::unmount(&dir, UnmountFlags::DETACH)))?;
    if let Some(kept_by) = &options.kept_by {
        let kept = match session.cannot_be_taken_over() {
            Some(why) => Err(io::Error::other(why)),
            None => keep(&session, &directory, &place, kept_by),
        };
        if let Err(why) = kept {
            log::warn!("{}: the mount will not survive its server: {why}", dir.display());
        }
    }
    start(session, place, options, (transport == Transport::Rings, false))
}

/// Registers a mount, and its list of open files, with a keeper.
fn keep(
    session: &Session<DeviceDirectory>,
    directory: &DeviceDirectory,
    place: &MountPoint,
    kept_by: &KeeperSlot,
) -> io::Result<()> {
    let kept = SurvivingHandles::new()?;
    let devices = session.descriptors();
    // The keeper watches the first descriptor for the end of the connection; the memory comes last.
    let mut descriptors: Vec<BorrowedFd<'_>> = devices.iter().map(|device| device.as_fd()).collect();
    descriptors.push(kept.memory());
    kept_by.keeper.put(&kept_by.name, &place.to_bytes(), &descriptors)?;
    let _ = directory.files.kept.set(kept);
    Ok(())
}

/// Continues the mount at `dir` if it has outlived its server; mounts it again if it was unmounted
/// in the meantime. One mounted elsewhere, or that cannot be taken over, ends.
fn resume(devices: &Arc<dyn DeviceSet>, dir: &Path, options: &MountOptions) -> Option<Mount> {
    let kept_by = options.kept_by.as_ref()?;
    let entry = kept_by.entry().inspect_err(|error| log::warn!("the keeper of mounts failed: {error}")).ok()??;
    let place = MountPoint::from_bytes(&entry.bytes);
    let resumed = match &place {
        Some(place) if place.dir() == dir => go_on(devices, entry.descriptors, place, options),
        _ => Err(Error::new(ErrorKind::Conflict, "it was mounted at another directory")),
    };
    match resumed {
        Ok(mount) => {
            log::info!("{}: continuing the mount left by an earlier server", dir.display());
            return Some(mount);
        }
        Err(error) => log::warn!("{}: the mount cannot be taken over: {error}", dir.display()),
    }
    kept_by.close();
    if let Some(error) = place.and_then(|place| place.detach().err()) {
        log::warn!("{error}");
    }
    None
}

fn go_on(
    devices: &Arc<dyn DeviceSet>,
    descriptors: Vec<OwnedFd>,
    place: &MountPoint,
    options: &MountOptions,
) -> Result<Mount> {
    let failed = |error| Error::from_io("its connection", error);
    let session = take_over(devices, descriptors, options).map_err(failed)?;
    place.remount(session.notifier().device(), &how(options), options.overlay)?;
    start(session, place.clone(), options, (false, true))
}

fn take_over(
    devices: &Arc<dyn DeviceSet>,
    mut descriptors: Vec<OwnedFd>,
    options: &MountOptions,
) -> io::Result<Session<DeviceDirectory>> {
    let memory = descriptors.pop().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
    let mut directory = DeviceDirectory::new(devices.clone(), options)?;
    directory.take_over(SurvivingHandles::left(memory)?);
    Session::take_over(descriptors, Arc::new(directory))
}

/// Starts the thread that serves a connection: over rings or not, and taken over or not.
fn start(
    session: Session<DeviceDirectory>,
    place: MountPoint,
    options: &MountOptions,
    (over_rings, is_resumed): (bool, bool),
) -> Result<Mount> {
    let state = Arc::new(EndedState::default());
    let connection = session.notifier();
    let served = {
        let (state, kept_by) = (state.clone(), options.kept_by.clone());
        let name = format!("fuse {}", place.dir().display());
        thread::Builder::new()
            .name(name.chars().take(15).collect())
            .spawn(move || serve(session, kept_by.as_ref(), &state))
    };
    if let Err(error) = served {
        let _ = place.detach();
        return Err(Error::from_io(format!("mount at {}: cannot serve it", place.dir().display()), error));
    }
    Ok(Mount { place, connection, options: options.clone(), over_rings, is_resumed, ended: Ended(state) })
}

fn how(options: &MountOptions) -> MountParams<'_> {
    MountParams {
        source: &options.source,
        allow_other: options.allow_other,
        allow_exec: false,
        allow_suid_and_devices: false,
        has_access_times: false,
    }
}

/// Mounts at `dir`, and creates the session that will serve it: over rings if the kernel has them,
/// else over its device.
fn begin(
    devices: &Arc<dyn DeviceSet>,
    dir: &Path,
    options: &MountOptions,
) -> Result<(Session<DeviceDirectory>, Arc<DeviceDirectory>, Transport)> {
    if Transport::best() == Transport::Rings {
        match begin_over(devices, dir, options, Transport::Rings) {
            Ok((session, directory)) => {
                log::info!("serving volumes as files in {} over io_uring", dir.display());
                return Ok((session, directory, Transport::Rings));
            }
            Err(error) => log::warn!("{}: {error}; serving without it", dir.display()),
        }
    }
    let (session, directory) = begin_over(devices, dir, options, Transport::Device)?;
    log::info!("serving volumes as files in {} with {} threads", dir.display(), options.threads);
    Ok((session, directory, Transport::Device))
}

fn begin_over(
    devices: &Arc<dyn DeviceSet>,
    dir: &Path,
    options: &MountOptions,
    transport: Transport,
) -> Result<(Session<DeviceDirectory>, Arc<DeviceDirectory>)> {
    let about = |what: &str, error| Error::from_io(format!("mount at {}: {what}", dir.display()), error);
    let directory = DeviceDirectory::new(devices.clone(), options);
    let directory = Arc::new(directory.map_err(|error| about("cannot start its threads", error))?);
    let connection = kernel_mount::mount(dir, &how(options))?;
    let session_options = SessionOptions { transport, threads: options.threads, can_clone: connection.can_clone };
    // The kernel alone decides which users may enter, by the options of the mount.
    let session = Session::begin(connection.device, directory.clone(), session_options).map_err(|error| {
        let _ = kernel_mount::unmount(dir, UnmountFlags::DETACH);
        about("cannot serve it", error)
    })?;
    Ok((session, directory))
}

fn serve(session: Session<DeviceDirectory>, kept_by: Option<&KeeperSlot>, state: &EndedState) {
    // The threads that the session starts inherit it.
    become_io_flusher();
    let result =
        session.run().map_err(|error| format!("the mount ended with an error of the kernel connection: {error}"));
    if let Err(message) = &result {
        log::error!("{message}");
    }
    // No later server will continue it.
    kept_by.inspect(|kept_by| kept_by.close());
    *state.result.lock() = Some(result);
    state.changed.notify_all();
}

impl Mount {
    /// Where it is mounted, without symbolic links.
    pub fn dir(&self) -> &Path {
        self.place.dir()
    }

    /// Whether it has outlived an earlier server, and is still held by a keeper.
    pub fn is_resumed(&self) -> bool {
        self.is_resumed
    }

    /// Whether requests come from the kernel over io_uring, and not through its device: where the
    /// system allows it (see the crate's documentation).
    pub fn is_over_io_uring(&self) -> bool {
        self.over_rings
    }

    /// Reports when the mount has ended, for instance because a user unmounted it from a shell.
    pub fn ended(&self) -> Ended {
        self.ended.clone()
    }

    /// Loop devices on its files, and file systems on those.
    pub fn stack(&self) -> Stack {
        Stack::above(self.place.dir())
    }

    /// Unmounts. With [`WhenBusy::Refuse`] and [`WhenBusy::Abort`], nothing is served any more when
    /// it returns. Can be called again after a refusal, and does nothing after the mount has ended.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] with [`WhenBusy::Refuse`] if a file is open, or there is a copy of the
    /// mount elsewhere; the message explains how to find it. [`ErrorKind::Unsupported`] with
    /// [`WhenBusy::Abort`] if this user, or a mount that was detached before, cannot be aborted for
    /// lack of `/sys/fs/fuse/connections`: then it is detached, and ends with its last file or with
    /// this process.
    pub fn unmount(&self, when_busy: WhenBusy) -> Result<()> {
        if self.ended.is_ended() {
            return Ok(());
        }
        match when_busy {
            WhenBusy::Refuse => self.place.unmount(self.connection.device(), &how(&self.options))?,
            WhenBusy::Abort => self.place.disconnect(self.connection.device())?,
            WhenBusy::Detach => return self.place.detach(),
        }
        self.ended.wait()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if !self.ended.is_ended()
            && let Err(error) = self.unmount(WhenBusy::Detach)
        {
            log::warn!("{error}");
        }
    }
}
