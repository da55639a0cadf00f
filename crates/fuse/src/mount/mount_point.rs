//! The mount point of a connection in the table of mounts: whether its directory still shows it,
//! how it is mounted there again, and how it ends while copies of the mount exist. Any thread may
//! call it.
//!
//! The kernel ends a connection with its last mount. Another mount namespace (a container, a
//! service with a namespace of its own) and `mount --bind` make copies of a mount, and a copy keeps
//! the connection after the mount at the directory is gone. Conversely, a lazy unmount removes the
//! mount from the table, and open files keep the connection.
//!
//! Only the kernel's list of mounts is read here: no file system is asked, so nothing waits for a
//! server.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::mount::UnmountFlags;
use surface::{Error, ErrorKind, Result};

use super::kernel::{self, MountParams, Unmounted};
use super::mountinfo::{listed, mounted_at, mountinfo};
use super::vacant::check_vacant;
use crate::device;

/// Time for the kernel to end a connection whose last mount is gone: programs such as `df` hold a
/// mount while they examine it.
const END_PATIENCE: Duration = Duration::from_secs(2);

/// Bytes of the device number in [`MountPoint::to_bytes`].
const MINOR_BYTES: usize = 4;

/// A directory, the device number of the file system that a connection shows there, and the
/// settings negotiated for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountPoint {
    dir: PathBuf,
    device_minor: u32,
    /// The kernel negotiates this when the connection begins, and never again.
    has_access_times: bool,
}

impl MountPoint {
    /// Returns the mount point of a connection that was just mounted at `dir`.
    ///
    /// # Errors
    /// Errors of reading `dir`.
    pub fn at(dir: &Path, how: &MountParams<'_>) -> Result<Self> {
        let device_minor = kernel::mount_id(dir)?.device_minor;
        Ok(Self { dir: dir.to_owned(), device_minor, has_access_times: how.has_access_times })
    }

    /// Encodes it for the next server.
    pub fn to_bytes(&self) -> Vec<u8> {
        let minor = self.device_minor.to_le_bytes();
        [&minor[..], &[u8::from(self.has_access_times)], self.dir.as_os_str().as_bytes()].concat()
    }

    /// Decodes the output of [`to_bytes`](Self::to_bytes).
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (minor, rest) = bytes.split_first_chunk::<MINOR_BYTES>()?;
        let (has_access_times, dir) = rest.split_first()?;
        Some(Self {
            dir: PathBuf::from(OsStr::from_bytes(dir)),
            device_minor: u32::from_le_bytes(*minor),
            has_access_times: *has_access_times != 0,
        })
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns whether reads update access times there, as negotiated for the connection.
    pub const fn has_access_times(&self) -> bool {
        self.has_access_times
    }

    /// Makes the connection visible at the directory again, with its original settings.
    fn mount_again(&self, device: &OwnedFd, how: &MountParams<'_>) -> Result<()> {
        kernel::mount_again(device, &self.dir, &MountParams { has_access_times: self.has_access_times, ..*how })
    }

    fn is_device(&self, device: (u32, u32)) -> bool {
        device == (0, self.device_minor)
    }

    /// Returns whether the directory shows this connection, not covered by another mount.
    pub fn is_visible(&self) -> bool {
        mounted_at(&self.dir).is_some_and(|mount| self.is_device(mount.device))
    }

    /// Returns whether the table of mounts has this connection at the directory, covered or not.
    pub fn is_mounted(&self) -> bool {
        listed(&mountinfo()).any(|mount| mount.dir == self.dir && self.is_device(mount.device))
    }

    /// Mounts a live connection at its directory again if a lazy unmount has removed it from there.
    ///
    /// # Errors
    /// [`ErrorKind::Exists`] without `overlay` if it would hide something,
    /// [`ErrorKind::Unsupported`] if this kernel or user cannot, [`ErrorKind::Io`] if the
    /// connection has ended.
    pub fn remount(&self, device: &OwnedFd, how: &MountParams<'_>, overlay: bool) -> Result<()> {
        let dir = self.dir.display();
        if self.is_mounted() {
            if !self.is_visible() {
                log::warn!("{dir}: another file system is mounted over this mount and hides it (findmnt {dir})");
            }
            return Ok(());
        }
        if !overlay {
            check_vacant(&self.dir)?;
        }
        self.mount_again(device, how)?;
        log::warn!("{dir}: was unmounted while there was no server: mounted it again");
        Ok(())
    }

    /// Unmounts, and returns when the connection has ended. After an error it is mounted as before.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] if a file is open, another mount covers it, or there is a copy of it in
    /// another mount namespace or at another directory.
    pub fn unmount(&self, device: &OwnedFd, how: &MountParams<'_>) -> Result<()> {
        if !self.is_visible() {
            return match device::ends_within(device, END_PATIENCE) {
                true => Ok(()),
                false => Err(self.not_visible()),
            };
        }
        kernel::unmount(&self.dir, UnmountFlags::empty())?;
        if device::ends_within(device, END_PATIENCE) {
            return Ok(());
        }
        if let Err(error) = self.mount_again(device, how) {
            log::warn!("{error}");
        }
        Err(self.copied())
    }

    /// Removes it from the table; open files and copies keep the connection.
    ///
    /// # Errors
    /// Errors of the kernel or the helper.
    pub fn detach(&self) -> Result<()> {
        if self.is_visible() { kernel::unmount(&self.dir, UnmountFlags::DETACH).map(drop) } else { Ok(()) }
    }

    /// Ends the connection with all its mounts, even with open files: requests in flight and all
    /// later ones fail.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the kernel offers no way to do that.
    pub fn disconnect(&self, device: &OwnedFd) -> Result<()> {
        if self.is_visible() {
            // FORCE ends the connection, including the copies.
            let unmounted = kernel::unmount(&self.dir, UnmountFlags::FORCE | UnmountFlags::DETACH)?;
            if unmounted == Unmounted::ByKernel && device::ends_within(device, END_PATIENCE) {
                return Ok(());
            }
        }
        if device::ends_within(device, Duration::ZERO) { Ok(()) } else { kernel::abort(self.device_minor) }
    }

    fn not_visible(&self) -> Error {
        let dir = self.dir.display();
        let text = format!(
            "{dir} shows another file system: ours was detached, and ends when its last file is closed, or it lies beneath \
             (findmnt {dir} tells): unmount what covers it first"
        );
        Error::new(ErrorKind::InUse, text)
    }

    fn copied(&self) -> Error {
        let dir = self.dir.display();
        let copies: Vec<String> = listed(&mountinfo())
            .filter(|mount| self.is_device(mount.device) && mount.dir != self.dir)
            .map(|mount| mount.dir.display().to_string())
            .collect();
        let place = if copies.is_empty() {
            "in another mount namespace (lsns -t mnt lists them: a container, or a service with PrivateMounts= or \
             ProtectSystem=), or its open files are of a mount that was detached"
                .to_owned()
        } else {
            format!("at {}", copies.join(", "))
        };
        Error::new(
            ErrorKind::InUse,
            format!("{dir} is in use: a copy of the mount is {place}; unmount it there, then try again"),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_as_it_was_written() {
        let place = MountPoint { dir: PathBuf::from("/mnt/a b"), device_minor: 77, has_access_times: true };
        assert_eq!(MountPoint::from_bytes(&place.to_bytes()), Some(place));
        assert_eq!(MountPoint::from_bytes(&[1, 2]), None);
    }

    #[test]
    fn a_directory_that_shows_another_file_system_is_not_the_place() {
        let place = MountPoint { dir: PathBuf::from("/proc"), device_minor: u32::MAX, has_access_times: false };
        assert!(!place.is_visible() && !place.is_mounted());
    }
}
