//! The sockets of a server: one for each device, below one directory. Owns the directory, by a lock
//! that ends with the process, and the listening sockets. Called by the accepting thread only.
//!
//! A device `FOLDER/NAME@SNAPSHOT` has the socket `DIRECTORY/FOLDER/NAME@SNAPSHOT.sock`. Sockets
//! have mode 0660 and the directory's group: who may enter the directory and is of its group may
//! attach disks.
//!
//! A dead socket at a device's path is a server's that was killed, and is replaced. One that
//! answers belongs to another program, and is left alone, as is every file at any other path: the
//! directory may hold more.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind as Io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Gid, Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use surface::{DeviceId, DeviceInfo, Error, ErrorKind, Result};

/// The end of a socket's name.
const ENDING: &str = ".sock";
/// Most bytes of a socket's path, the terminating zero not counted (`sun_path` of unix(7)).
const PATH_BYTES_MAX: usize = 107;
/// Clients that wait to be accepted, which takes a moment.
const BACKLOG: i32 = 64;
const DIRECTORY_MODE: u32 = 0o750;
const SOCKET_MODE: Mode = Mode::from_raw_mode(0o660);

/// See the module's text.
pub struct Directory {
    path: PathBuf,
    group: u32,
    doors: BTreeMap<DeviceId, Door>,
    /// Devices without a socket, already reported.
    missing: BTreeSet<DeviceId>,
    sockets_max: usize,
    /// Open and locked.
    _lock: OwnedFd,
}

/// A device's socket.
pub struct Door {
    device: DeviceId,
    name: String,
    path: PathBuf,
    listener: OwnedFd,
    /// Device and inode of the file, so that the socket of no other program is removed.
    file: (u64, u64),
}

impl Door {
    /// The device.
    pub const fn device(&self) -> DeviceId {
        self.device
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The listening socket, which does not wait.
    pub fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        if std::fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.file) {
            // If it cannot be removed, the next server finds it dead.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Directory {
    /// Opens the directory, which is made if it is missing, for at most so many sockets.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] when another server has it, and errors of the system.
    pub fn open(path: &Path, sockets_max: usize) -> Result<Self> {
        let what = || format!("cannot serve vhost-user sockets in {}", path.display());
        let fail = |error: std::io::Error| match error.kind() {
            Io::NotFound => {
                Error::with_source(ErrorKind::NotFound, format!("{}; make the directory above it first", what()), error)
            }
            Io::NotADirectory | Io::AlreadyExists => {
                Error::with_source(ErrorKind::Exists, format!("{}: it is no directory; choose another", what()), error)
            }
            _ => Error::from_io(what(), error),
        };
        match std::fs::DirBuilder::new().mode(DIRECTORY_MODE).create(path) {
            Err(error) if error.kind() != Io::AlreadyExists => return Err(fail(error)),
            _ => {}
        }
        let path = path.canonicalize().map_err(fail)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let lock = rustix::fs::open(&path, flags, Mode::empty()).map_err(|error| fail(error.into()))?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let text =
                    format!("{}: another server has its sockets there; choose another directory, or stop it", what());
                return Err(Error::new(ErrorKind::InUse, text));
            }
            locked => locked.map_err(|error| fail(error.into()))?,
        }
        let group = std::fs::metadata(&path).map_err(fail)?.gid();
        let (doors, missing) = (BTreeMap::new(), BTreeSet::new());
        Ok(Self { path, group, doors, missing, sockets_max, _lock: lock })
    }

    /// The sockets.
    pub fn doors(&self) -> impl Iterator<Item = &Door> {
        self.doors.values()
    }

    /// Gives each device of the list its socket, and removes all others. Devices that can have none
    /// are reported, once.
    pub fn follow(&mut self, list: &[DeviceInfo], tell: impl Fn(&str)) {
        let names: BTreeMap<DeviceId, &str> = list.iter().map(|info| (info.id, info.name.as_str())).collect();
        let gone: Vec<_> =
            self.doors.values().filter(|door| names.get(&door.device) != Some(&door.name.as_str())).collect();
        let gone: Vec<_> = gone.into_iter().map(|door| (door.device, door.path.clone())).collect();
        for (id, path) in gone {
            self.doors.remove(&id);
            self.remove_empty_folders(&path);
        }
        self.missing.retain(|id| names.contains_key(id));
        for (id, name) in names {
            if self.doors.contains_key(&id) {
                continue;
            }
            let bound = if self.doors.len() < self.sockets_max {
                self.bind(id, name)
            } else {
                let text = format!(
                    "there are {} sockets already, as many as there are file descriptors for",
                    self.doors.len()
                );
                Err(Error::new(ErrorKind::Full, text))
            };
            match bound {
                Ok(door) => {
                    self.missing.remove(&id);
                    self.doors.insert(id, door);
                }
                Err(error) => {
                    if self.missing.insert(id) {
                        tell(&format!("'{name}' has no socket: {error}"));
                    }
                }
            }
        }
    }

    /// Removes folders that a socket's removal has emptied.
    fn remove_empty_folders(&self, socket: &Path) {
        let folders = socket.ancestors().skip(1).take_while(|folder| *folder != self.path);
        // The first that is not empty ends it.
        for folder in folders {
            if std::fs::remove_dir(folder).is_err() {
                return;
            }
        }
    }

    fn bind(&self, device: DeviceId, name: &str) -> Result<Door> {
        let path = self.path.join(format!("{name}{ENDING}"));
        let shown = path.display();
        let bytes = path.as_os_str().as_bytes().len();
        if bytes > PATH_BYTES_MAX {
            let text = format!(
                "the path {shown} has {bytes} bytes, and a socket's at most {PATH_BYTES_MAX}; choose a shorter directory or name"
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let fail = |error: std::io::Error| Error::from_io(format!("cannot make the socket {shown}"), error);
        let folders: Vec<_> = path.ancestors().skip(1).take_while(|folder| *folder != self.path).collect();
        for folder in folders.into_iter().rev() {
            match std::fs::DirBuilder::new().mode(DIRECTORY_MODE).create(folder) {
                Ok(()) => self.set_group(folder),
                Err(error) if error.kind() == Io::AlreadyExists => {}
                Err(error) => return Err(fail(error)),
            }
        }
        match state_of(&path) {
            State::Free => {}
            State::Dead => std::fs::remove_file(&path).map_err(fail)?,
            State::Alive => {
                let text = format!("another program answers at {shown}; stop it, or choose another directory");
                return Err(Error::new(ErrorKind::InUse, text));
            }
            State::Other => {
                let text = format!("{shown} is there and no socket; remove it, or choose another directory");
                return Err(Error::new(ErrorKind::Exists, text));
            }
        }
        let (listener, file) = self.listen(&path).map_err(fail)?;
        Ok(Door { device, name: name.to_owned(), path, listener, file })
    }

    /// A server that is not of the directory's group leaves the file to its own.
    fn set_group(&self, path: &Path) {
        let _ = rustix::fs::chownat(CWD, path, None, Some(Gid::from_raw(self.group)), AtFlags::SYMLINK_NOFOLLOW);
    }

    fn listen(&self, path: &Path) -> std::io::Result<(OwnedFd, (u64, u64))> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // The file is made with this mode, less the process's mask; at no time it has more.
        rustix::fs::fchmod(&socket, SOCKET_MODE)?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
        let file = share_with_group(path, self.group)?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok((socket, file))
    }
}

/// Gives a socket that was just bound its group, and the mode that the process's mask has reduced;
/// returns its device and inode. A user who may write in the directory can replace it by a link, or
/// by another file. So group and mode are set on the file that was looked at, by its descriptor,
/// and only if it is a socket of this server's user under one name.
fn share_with_group(path: &Path, group: u32) -> std::io::Result<(u64, u64)> {
    let file = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let found = rustix::fs::fstat(&file)?;
    let is_own = FileType::from_raw_mode(found.st_mode) == FileType::Socket
        && found.st_uid == rustix::process::geteuid().as_raw()
        && found.st_nlink == 1;
    if !is_own {
        let text = "another file has taken its place: only the server may write in the directory";
        return Err(std::io::Error::other(text));
    }
    // A server that is not of the directory's group leaves the file to its own.
    let _ = rustix::fs::chownat(&file, "", None, Some(Gid::from_raw(group)), AtFlags::EMPTY_PATH);
    // A descriptor of this kind takes no fchmod(2).
    rustix::fs::chmod(format!("/proc/self/fd/{}", file.as_raw_fd()), SOCKET_MODE)?;
    Ok((found.st_dev, found.st_ino))
}

impl Drop for Directory {
    fn drop(&mut self) {
        let doors = std::mem::take(&mut self.doors);
        for path in doors.into_values().map(|door| door.path.clone()) {
            self.remove_empty_folders(&path);
        }
    }
}

enum State {
    /// There is nothing.
    Free,
    /// A socket at which no program listens.
    Dead,
    /// A program listens, or may: anything but a clear refusal.
    Alive,
    /// A file of another kind.
    Other,
}

fn state_of(path: &Path) -> State {
    match std::fs::symlink_metadata(path) {
        Err(_) => State::Free,
        Ok(found) if !found.file_type().is_socket() => State::Other,
        Ok(_) => match UnixStream::connect(path) {
            Err(error) if error.kind() == Io::ConnectionRefused => State::Dead,
            Err(error) if error.kind() == Io::NotFound => State::Free,
            _ => State::Alive,
        },
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;

    use testkit::TempDir;

    use super::*;

    /// The mode of a file that a link led to was changed.
    #[test]
    fn nothing_but_an_own_socket_gets_the_mode_and_the_group() {
        let dir = TempDir::new("vhost-modes");
        let at = |name: &str| dir.path().join(name);
        let set = |name: &str, mode| fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).unwrap();
        let state = |name: &str| fs::metadata(at(name)).map(|found| (found.mode() & 0o7777, found.gid())).unwrap();
        fs::write(at("secret"), "mine").unwrap();
        let socket = UnixListener::bind(at("socket")).unwrap();
        ["secret", "socket"].iter().for_each(|name| set(name, 0o600));
        symlink(at("secret"), at("link")).unwrap();
        symlink(at("socket"), at("link-to-socket")).unwrap();
        let before = [state("secret"), state("socket")];
        for name in ["secret", "link", "link-to-socket", "missing"] {
            share_with_group(&at(name), before[0].1).unwrap_err();
        }
        // The second name may be the one under which another server has it.
        fs::hard_link(at("socket"), at("second")).unwrap();
        share_with_group(&at("second"), before[0].1).unwrap_err();
        assert_eq!([state("secret"), state("socket")], before);
        fs::remove_file(at("second")).unwrap();
        let file = share_with_group(&at("socket"), before[1].1).unwrap();
        let found = fs::metadata(at("socket")).unwrap();
        assert_eq!((found.dev(), found.ino()), file);
        assert_eq!(state("socket"), (0o660, before[1].1));
        drop(socket);
    }
}
