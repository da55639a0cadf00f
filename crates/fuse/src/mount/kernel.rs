//! Connecting to the kernel and disconnecting: mount(2) and umount2(2) for root, `fusermount3` for
//! others. Owns no state; called by the thread that mounts or unmounts.
//!
//! A session never unmounts by path when it ends: the mount may be gone by then, and the path may
//! show another file system.

use std::ffi::CString;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use surface::{Error, ErrorKind, Result};

use super::mountinfo::{mountinfo, unescaped};

const DEVICE: &str = "/dev/fuse";
const HELPER: &str = "fusermount3";
/// The type of our file systems in the kernel's list; the helper constructs it from `subtype`.
const FILE_SYSTEM: &str = "fuse.shale";

/// How often a busy mount is tried before it counts as in use, and the pause between two tries: a
/// program that only passes through (`df`, `lsof`, a look-up by path) holds a mount for less.
const BUSY_TRIES: u32 = 10;
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// How a file system is mounted.
#[derive(Debug, Clone, Copy)]
pub struct MountParams<'a> {
    /// What `mount` and `df` show as the source.
    pub source: &'a str,
    /// Users other than the owner of the server may enter.
    pub allow_other: bool,
    /// Programs in it can be run.
    pub allow_exec: bool,
    /// Set-user-id programs and device nodes in it are honoured. Only root may request it.
    pub allow_suid_and_devices: bool,
    /// Reads update access times; without it the mount shows `noatime`.
    pub has_access_times: bool,
}

/// A mounted connection to the kernel.
#[derive(Debug)]
pub struct Connection {
    /// The connection.
    pub device: OwnedFd,
    /// Whether further descriptors of the same connection can be opened, one for each thread.
    pub can_clone: bool,
}

/// Mounts at `dir`, which must be an absolute path without symbolic links.
///
/// # Errors
/// [`ErrorKind::Unsupported`] if this kernel or user cannot mount; [`ErrorKind::NotFound`],
/// [`ErrorKind::Invalid`] and [`ErrorKind::InUse`] for `dir`; [`ErrorKind::Io`] if the kernel
/// fails.
pub fn mount(dir: &Path, how: &MountParams<'_>) -> Result<Connection> {
    let device = match rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Ok(device) => device,
        Err(Errno::ACCESS | Errno::PERM) => return mount_with_helper(dir, how, false),
        Err(errno) => {
            let message = format!("cannot open {DEVICE} to mount {}: load the kernel module fuse", dir.display());
            return Err(Error::with_source(ErrorKind::Unsupported, message, io::Error::from(errno)));
        }
    };
    match mount_device(&device, dir, how)? {
        Ok(()) => Ok(Connection { device, can_clone: true }),
        Err(Errno::PERM) => mount_with_helper(dir, how, true),
        Err(errno) => Err(failed(dir, "the kernel refused to mount", errno)),
    }
}

/// Asks the kernel to mount a device at `dir`. If its connection is mounted elsewhere or has been
/// detached, that file system becomes visible at `dir` as well (Linux 5.15).
fn mount_device(device: &OwnedFd, dir: &Path, how: &MountParams<'_>) -> Result<std::result::Result<(), Errno>> {
    let mode = rustix::fs::stat(dir).map_err(|errno| failed(dir, "cannot access the directory", errno))?.st_mode;
    let data = format!(
        "fd={},rootmode={mode:o},user_id={},group_id={},default_permissions{}",
        device.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
        if how.allow_other { ",allow_other" } else { "" },
    );
    let data = CString::new(data).map_err(|error| Error::with_source(ErrorKind::Invalid, "mount options", error))?;
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::NODEV | MountFlags::NOSUID, !how.allow_suid_and_devices);
    flags.set(MountFlags::NOEXEC, !how.allow_exec);
    flags.set(MountFlags::NOATIME, !how.has_access_times);
    Ok(rustix::mount::mount(how.source, dir, FILE_SYSTEM, flags, data.as_c_str()))
}

/// Makes the file system of a live connection visible at `dir` again.
///
/// # Errors
/// [`ErrorKind::Unsupported`] if this kernel or user cannot, [`ErrorKind::Io`] if the connection
/// has ended.
pub(super) fn mount_again(device: &OwnedFd, dir: &Path, how: &MountParams<'_>) -> Result<()> {
    match mount_device(device, dir, how)? {
        Ok(()) => Ok(()),
        Err(errno) => {
            let unsupported = matches!(errno, Errno::PERM | Errno::INVAL);
            let kind = if unsupported { ErrorKind::Unsupported } else { ErrorKind::Io };
            let text = format!("{}: the kernel did not mount the connection again", dir.display());
            Err(Error::with_source(kind, text, io::Error::from(errno)))
        }
    }
}

/// Where the kernel lists connections, by the minor number of their file system's device
/// (Documentation/filesystems/fuse).
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// Distinguishes mounts that were at `dir` one after another, or are stacked there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MountId {
    mount: u64,
    pub(super) device_minor: u32,
}

/// How the file system was unmounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmounted {
    /// By the kernel, for root.
    ByKernel,
    /// By the helper, for other users.
    ByHelper,
}

/// Returns the mount that `dir` shows now. Does not ask the file system, so that it works without a
/// server.
///
/// # Errors
/// Errors of reading `dir`.
pub(super) fn mount_id(dir: &Path) -> Result<MountId> {
    let statx = rustix::fs::statx(rustix::fs::CWD, dir, AtFlags::STATX_DONT_SYNC, StatxFlags::MNT_ID)
        .map_err(|errno| failed(dir, "cannot inspect the mount", errno))?;
    Ok(MountId { mount: statx.stx_mnt_id, device_minor: statx.stx_dev_minor })
}

/// Returns whether `dir` shows a mount of a Shale server, which may be dead or hang: the file
/// system is not asked.
pub fn is_ours(dir: &Path) -> bool {
    // If this fails, the attempt to mount reports the reason.
    mount_id(dir).is_ok_and(|id| file_system_of(id.mount, &mountinfo()) == Some(FILE_SYSTEM))
}

/// Returns the `source` option of our mount at `dir`; `None` if `dir` shows no mount of ours.
pub fn source_of(dir: &Path) -> Option<String> {
    let id = mount_id(dir).ok()?;
    let mountinfo = mountinfo();
    if file_system_of(id.mount, &mountinfo) != Some(FILE_SYSTEM) {
        return None;
    }
    let line = mount_line(id.mount, &mountinfo)?;
    line.split_once(" - ")?.1.split(' ').nth(1).map(unescaped)
}

/// Returns a source in the form that the helper writes.
pub fn helper_source(source: &str) -> String {
    // A comma separates options.
    source.chars().filter(|c| !matches!(c, ',' | '\\')).collect()
}

fn mount_line(mount: u64, mountinfo: &str) -> Option<&str> {
    let mount = mount.to_string();
    mountinfo.lines().find(|line| line.split(' ').next() == Some(mount.as_str()))
}

/// Returns the type of a mount's file system; proc(5) describes the fields.
fn file_system_of(mount: u64, mountinfo: &str) -> Option<&str> {
    mount_line(mount, mountinfo)?.split_once(" - ")?.1.split(' ').next()
}

/// Ends the connection whose file system has this device number, wherever it is mounted: requests
/// in flight and all later ones fail.
///
/// # Errors
/// [`ErrorKind::Unsupported`] where the kernel has no such file, or does not let us write it.
pub(super) fn abort(device_minor: u32) -> Result<()> {
    let path = format!("{CONNECTIONS}/{device_minor}/abort");
    std::fs::write(&path, b"1").map_err(|error| {
        let message =
            format!("cannot disconnect the mount with {path} (mount -t fusectl fusectl {CONNECTIONS} creates it)");
        Error::with_source(ErrorKind::Unsupported, message, error)
    })
}

/// Unmounts `dir`. For root, [`UnmountFlags`] decide about a busy mount; for others a busy mount is
/// either left alone, or detached if `flags` say so.
///
/// # Errors
/// [`ErrorKind::InUse`] if it stays busy for a fifth of a second, other errors of the kernel or the
/// helper.
pub fn unmount(dir: &Path, flags: UnmountFlags) -> Result<Unmounted> {
    let mut tries = 1;
    loop {
        match unmount_once(dir, flags) {
            Err(error) if error.kind() == ErrorKind::InUse && tries < BUSY_TRIES => {
                tries += 1;
                std::thread::sleep(BUSY_PAUSE);
            }
            result => return result,
        }
    }
}

fn unmount_once(dir: &Path, flags: UnmountFlags) -> Result<Unmounted> {
    match rustix::mount::unmount(dir, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(Unmounted::ByKernel),
        Err(Errno::BUSY) => Err(busy(dir)),
        Err(Errno::PERM) => {
            unmount_with_helper(dir, flags.contains(UnmountFlags::DETACH)).map(|()| Unmounted::ByHelper)
        }
        Err(errno) => Err(failed(dir, "cannot unmount", errno)),
    }
}

fn mount_with_helper(dir: &Path, how: &MountParams<'_>, can_clone: bool) -> Result<Connection> {
    let about = |what: &str| format!("cannot mount {} with {HELPER}: {what}", dir.display());
    let (ours, theirs) = UnixStream::pair().map_err(|error| Error::from_io(about("no socket"), error))?;
    let mut names = String::from("default_permissions,nodev,nosuid,");
    names.push_str(if how.allow_exec { "" } else { "noexec," });
    names.push_str(if how.has_access_times { "" } else { "noatime," });
    names.push_str("subtype=shale,fsname=");
    names.push_str(&helper_source(how.source));
    if how.allow_other {
        names.push_str(",allow_other");
    }
    // The helper passes the descriptor over the socket that the variable names: its standard input.
    let child = Command::new(HELPER)
        .arg("-o")
        .arg(names)
        .arg("--")
        .arg(dir)
        .env("_FUSE_COMMFD", "0")
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| {
            let message = about("cannot start it: install the package fuse3, or run as root");
            Error::with_source(ErrorKind::Unsupported, message, error)
        })?;
    let received = receive_descriptor(&ours);
    drop(ours);
    let output = child.wait_with_output().map_err(|error| Error::from_io(about("cannot wait for it"), error))?;
    match received {
        Ok(Some(device)) => Ok(Connection { device, can_clone }),
        Ok(None) => Err(Error::new(ErrorKind::Unsupported, about(String::from_utf8_lossy(&output.stderr).trim()))),
        Err(error) => Err(Error::from_io(about("it passed no descriptor"), error)),
    }
}

/// Receives a descriptor over `socket`; `None` if the other end is closed without sending one.
fn receive_descriptor(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0_u8];
    let flags = RecvFlags::CMSG_CLOEXEC;
    rustix::io::retry_on_intr(|| rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, flags))?;
    Ok(control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    }))
}

fn unmount_with_helper(dir: &Path, detach: bool) -> Result<()> {
    let mut command = Command::new(HELPER);
    command.arg("-u").args(detach.then_some("-z")).arg("--").arg(dir);
    let output = command
        .output()
        .map_err(|error| Error::from_io(format!("cannot start {HELPER} to unmount {}", dir.display()), error))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("busy") { Err(busy(dir)) } else { Err(Error::new(ErrorKind::Io, said.trim().to_owned())) }
}

fn busy(dir: &Path) -> Error {
    let dir = dir.display();
    Error::new(
        ErrorKind::InUse,
        format!(
            "{dir} is in use, so it stays mounted: detach the loop devices on its files (losetup -a lists them) and end \
             the programs that have one open (fuser -vm {dir}), then try again"
        ),
    )
}

fn failed(dir: &Path, what: &str, errno: Errno) -> Error {
    let kind = match errno {
        Errno::NOENT => ErrorKind::NotFound,
        Errno::NOTDIR | Errno::INVAL => ErrorKind::Invalid,
        Errno::BUSY => ErrorKind::InUse,
        _ => ErrorKind::Io,
    };
    let seen = String::from_utf8_lossy(dir.as_os_str().as_bytes());
    Error::with_source(kind, format!("{seen}: {what}"), io::Error::from(errno))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_told_by_its_number_and_not_by_what_lies_beneath_or_beside() {
        let mountinfo = "\
            21 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n\
            30 21 0:44 / /mnt/a\\040b rw,nosuid - fuse.shale /srv/pool rw,user_id=0\n\
            31 30 0:45 / /mnt/a\\040b rw shared:7 master:2 - tmpfs tmpfs rw\n";
        assert_eq!(file_system_of(30, mountinfo), Some("fuse.shale"));
        assert_eq!(file_system_of(31, mountinfo), Some("tmpfs"));
        assert_eq!((file_system_of(3, mountinfo), file_system_of(0, "")), (None, None));
    }
}
