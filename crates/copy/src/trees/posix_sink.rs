//! A directory as a sink. Names are resolved relative to open directories, and links are never
//! followed: neither an archive nor the owners of its files, who can change a directory as soon as
//! it is theirs, can lead out of the tree.

use std::collections::HashSet;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use bytes::Bytes;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use share::Time;
use surface::Result;

use super::{
    ACL_ACCESS, ACL_DEFAULT, Added, Item, Sink, Step, Stop, aside, gather, in_the_way, not_ours, shown, skip_if_any,
    split, stop_of,
};
use operations::path_error;

/// A directory's attributes that are set when all is in it.
struct Late {
    path: Vec<u8>,
    mode: u32,
    times: (Time, Time),
    default_acl: Option<Vec<u8>>,
}

/// An existing file that is being replaced.
struct Replaced {
    path: Vec<u8>,
    /// Its name until the new file is complete.
    aside: Vec<u8>,
}

/// A directory as a sink.
pub struct PosixSink {
    root: OwnedFd,
    /// Directories from the root to the one that was used last.
    open: Vec<(Vec<u8>, OwnedFd)>,
    overwrite: bool,
    /// The root itself gets attributes.
    sets_root: bool,
    file: Option<File>,
    /// The item that was added last.
    path: Vec<u8>,
    /// The file that it replaces.
    replaced: Option<Replaced>,
    late: Vec<Late>,
    /// The directory that was looked at last, and whether it has a default ACL.
    default_acl: Option<(Vec<u8>, bool)>,
    /// Only root may give files away.
    is_root: bool,
    /// Owners that were not set, because this process may not.
    owners_left: u64,
    /// The item that was added last gets attributes.
    sets: bool,
    /// Hashes of the paths that were made: an archive may have a name twice, and the last counts.
    made: HashSet<u64>,
    hasher: RandomState,
}

fn failed(what: &'static str, path: &[u8]) -> impl Fn(Errno) -> Stop {
    move |error| stop_of(what, path, error.raw_os_error())
}

fn cannot_be_linked(item: &Item, first: &[u8], error: Errno) -> Stop {
    Stop::Skip(format!("{}: cannot be linked to {}: {error}", shown(&item.path), shown(first)))
}

/// The existing owner of a name about to be created.
enum There {
    Nothing,
    /// Something that is not replaced.
    Stays,
    /// Something that is replaced.
    Old(Stat),
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

impl PosixSink {
    /// Copies into an existing directory. `overwrite`: existing files are replaced, and the
    /// attributes of directories are set. `sets_root`: so are those of the directory itself.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(path: &Path, overwrite: bool, sets_root: bool) -> Result<Self> {
        let flags = DIRECTORY - OFlags::NOFOLLOW;
        let root = rustix::fs::open(path, flags, Mode::empty());
        let root = root.map_err(|error| path_error("cannot open", path, error.into()))?;
        let is_root = rustix::process::geteuid().is_root();
        Ok(Self {
            root,
            open: Vec::new(),
            overwrite,
            sets_root,
            file: None,
            path: Vec::new(),
            replaced: None,
            late: Vec::new(),
            default_acl: None,
            is_root,
            owners_left: 0,
            sets: false,
            made: HashSet::new(),
            hasher: RandomState::new(),
        })
    }

    /// Opens a directory of the tree, creating missing parts of it.
    fn directory(&mut self, path: &[u8]) -> Step<&OwnedFd> {
        if let Some(error) = self.opened(path, true).err() {
            return Err(match error {
                Errno::NOTDIR | Errno::LOOP => in_the_way(path, self.open.len()),
                _ => failed("its directory cannot be opened", path)(error),
            });
        }
        Ok(self.open.last().map_or(&self.root, |(_, fd)| fd))
    }

    /// Opens a directory of the tree. `makes`: creates missing parts of it.
    fn opened(&mut self, path: &[u8], makes: bool) -> std::result::Result<&OwnedFd, Errno> {
        let wanted: Vec<&[u8]> = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()).collect();
        let common = self.open.iter().zip(&wanted).take_while(|((name, _), wanted)| name == *wanted).count();
        self.open.truncate(common);
        for name in &wanted[common..] {
            let above = self.open.last().map_or(&self.root, |(_, fd)| fd);
            let opened = match rustix::fs::openat(above, *name, DIRECTORY, Mode::empty()) {
                Err(Errno::NOENT) if makes => {
                    rustix::fs::mkdirat(above, *name, Mode::from_raw_mode(0o755)).and_then(|()| {
                        let made = wanted[..=self.open.len()].join(&b'/');
                        self.made.insert(self.hasher.hash_one(made));
                        rustix::fs::openat(above, *name, DIRECTORY, Mode::empty())
                    })
                }
                opened => opened,
            };
            self.open.push((name.to_vec(), opened?));
        }
        Ok(self.open.last().map_or(&self.root, |(_, fd)| fd))
    }

    /// Looks up the existing owner of a name.
    fn there(&mut self, item: &Item) -> Step<There> {
        let overwrite = self.overwrite || self.is_ours(&item.path);
        let (directory, name) = split(&item.path);
        let directory = self.directory(directory)?;
        match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(There::Nothing),
            Err(error) => Err(failed("cannot look up the existing entry", &item.path)(error)),
            Ok(_) if !overwrite => Ok(There::Stays),
            Ok(found) if found.st_mode & libc::S_IFMT == libc::S_IFDIR => {
                let text = format!("{}: is an existing directory, which is not overwritten", shown(&item.path));
                Err(Stop::Skip(text))
            }
            Ok(found) => Ok(There::Old(found)),
        }
    }

    /// Returns the name under which a file waits while it is replaced, and whether an import that
    /// was killed has left its old content there.
    fn aside_of(&mut self, path: &[u8]) -> Step<(Vec<u8>, bool)> {
        let (parent, name) = split(path);
        let mut number = 0;
        loop {
            let aside = aside(name, number);
            let own_path = if parent.is_empty() { aside.clone() } else { [parent, b"/", &aside].concat() };
            let is_ours = self.is_ours(&own_path);
            match rustix::fs::statat(self.directory(parent)?, &aside[..], AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => return Ok((aside, false)),
                Err(error) => return Err(failed("cannot be replaced", path)(error)),
                Ok(found) if is_ours || found.st_mode & libc::S_IFMT == libc::S_IFDIR => number += 1,
                Ok(_) => return Ok((aside, true)),
            }
        }
    }

    /// Gives the old file its name again, in place of an incomplete new one.
    fn put_back(&mut self) -> std::result::Result<(), Errno> {
        let Some(Replaced { path, aside }) = self.replaced.take() else { return Ok(()) };
        let (parent, name) = split(&path);
        let directory = self.opened(parent, false)?;
        rustix::fs::renameat(directory, &aside[..], directory, name)
    }

    /// Removes the old file, whose replacement is complete.
    fn remove_replaced(&mut self) -> Step {
        let Some(Replaced { path, aside }) = self.replaced.take() else { return Ok(()) };
        let directory = self.directory(split(&path).0)?;
        let removed = rustix::fs::unlinkat(directory, &aside[..], AtFlags::empty());
        removed.map_err(failed("its old content cannot be removed", &path))
    }

    /// Creates an item in place of an existing one, which is removed only once the new one is
    /// complete.
    fn replace(&mut self, item: &Item, make: impl FnOnce(&mut Self) -> Step<Added>) -> Step<Added> {
        let (parent, name) = split(&item.path);
        let cannot = failed("cannot be replaced", &item.path);
        let (aside, is_left) = self.aside_of(&item.path)?;
        let directory = self.directory(parent)?;
        let freed = if is_left {
            // The present file is a part of one that an import was writing when it was killed.
            rustix::fs::unlinkat(directory, name, AtFlags::empty())
        } else {
            rustix::fs::renameat(directory, name, directory, &aside[..])
        };
        freed.map_err(&cannot)?;
        self.replaced = Some(Replaced { path: item.path.clone(), aside: aside.clone() });
        let made = make(self);
        if made.is_err()
            && let Err(error) = self.put_back()
        {
            let text =
                format!("{}: the replaced entry was left under the name {}: {error}", shown(&item.path), shown(&aside));
            return Err(Stop::Skip(text));
        }
        made
    }

    fn is_ours(&self, path: &[u8]) -> bool {
        self.made.contains(&self.hasher.hash_one(path))
    }

    fn add_directory(&mut self, item: &Item) -> Step<Added> {
        let overwrite = self.overwrite || self.is_ours(&item.path);
        let (directory, name) = split(&item.path);
        let parent = self.directory(directory)?;
        let made = rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o700));
        let added = match made {
            Ok(()) => Added::New,
            Err(Errno::EXIST) => {
                let found = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW);
                let found = found.map_err(failed("cannot look up the existing entry", &item.path))?;
                if found.st_mode & libc::S_IFMT == libc::S_IFDIR {
                    Added::Merged
                } else if overwrite {
                    return self.replace(item, |sink| {
                        let made = rustix::fs::mkdirat(sink.directory(directory)?, name, Mode::from_raw_mode(0o700));
                        made.map(|()| Added::New).map_err(failed("cannot be created", &item.path))
                    });
                } else {
                    return Ok(Added::Kept);
                }
            }
            Err(error) => return Err(failed("cannot be created", &item.path)(error)),
        };
        Ok(added)
    }

    /// Makes a name of any type but a directory.
    fn add_other(&mut self, item: &Item) -> Step<Added> {
        let there = self.there(item)?;
        if let (There::Old(old), Some(first)) = (&there, &item.link_to) {
            let (first_parent, first_name) = split(first);
            let from = self.opened(first_parent, false);
            let found = from.and_then(|from| rustix::fs::statat(from, first_name, AtFlags::SYMLINK_NOFOLLOW));
            let found = found.map_err(|error| cannot_be_linked(item, first, error))?;
            // An archive that has a name twice may have the second as a link to the first.
            if (found.st_dev, found.st_ino) == (old.st_dev, old.st_ino) {
                return Ok(Added::Same);
            }
        }
        match there {
            There::Nothing => self.make_anew(item),
            There::Stays => Ok(Added::Kept),
            There::Old(_) => self.replace(item, |sink| sink.make(item)),
        }
    }

    /// Makes an item whose name is free. An import that was killed may have left the old file.
    fn make_anew(&mut self, item: &Item) -> Step<Added> {
        if self.overwrite {
            let (aside, is_left) = self.aside_of(&item.path)?;
            self.replaced = is_left.then(|| Replaced { path: item.path.clone(), aside });
        }
        let made = self.make(item);
        if made.is_err() {
            let _ = self.put_back();
        }
        made
    }

    fn make(&mut self, item: &Item) -> Step<Added> {
        let (parent, name) = split(&item.path);
        if let Some(first) = &item.link_to {
            let (first_parent, first_name) = split(first);
            let from =
                self.opened(first_parent, false).map_err(|error| cannot_be_linked(item, first, error))?.try_clone();
            let from =
                from.map_err(|error| stop_of("cannot be opened", first, error.raw_os_error().unwrap_or(libc::EIO)))?;
            if !self.is_ours(first) && rustix::fs::statat(&from, first_name, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
                return Err(not_ours(item, first));
            }
            let directory = self.directory(parent)?;
            let linked = rustix::fs::linkat(&from, first_name, directory, name, AtFlags::empty());
            return linked.map(|()| Added::New).map_err(|error| cannot_be_linked(item, first, error));
        }
        let directory = self.directory(parent)?;
        let kind = match item.kind() {
            libc::S_IFREG => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let made = rustix::fs::openat(directory, name, flags, Mode::from_raw_mode(0o600));
                self.file = Some(File::from(made.map_err(failed("cannot be created", &item.path))?));
                return Ok(Added::New);
            }
            libc::S_IFLNK => {
                rustix::fs::symlinkat(&item.target[..], directory, name)
                    .map_err(failed("cannot be created", &item.path))?;
                return Ok(Added::New);
            }
            libc::S_IFIFO => FileType::Fifo,
            libc::S_IFSOCK => FileType::Socket,
            libc::S_IFCHR => FileType::CharacterDevice,
            libc::S_IFBLK => FileType::BlockDevice,
            _ => return Err(Stop::Skip(format!("{}: unknown file type", shown(&item.path)))),
        };
        let device = rustix::fs::makedev(item.device.0, item.device.1);
        rustix::fs::mknodat(directory, name, kind, Mode::from_raw_mode(0o600), device)
            .map_err(failed("cannot be created", &item.path))?;
        Ok(Added::New)
    }

    fn set_owner(&mut self, item: &Item, file: Option<&File>) -> Step {
        let (uid, gid) = (Some(Uid::from_raw(item.uid)), Some(Gid::from_raw(item.gid)));
        let (parent, name) = split(&item.path);
        let is_root = self.is_root;
        let directory = self.directory(parent)?;
        let name = if name.is_empty() { b"." } else { name };
        let set = match file {
            Some(file) => rustix::fs::fchown(file, uid, gid),
            None => rustix::fs::chownat(directory, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW),
        };
        match set {
            Err(Errno::PERM) if !is_root => {
                self.owners_left += 1;
                Ok(())
            }
            set => set.map_err(failed("its owner cannot be set", &item.path)),
        }
    }

    fn set_xattr(&mut self, path: &[u8], file: Option<&File>, key: &[u8], value: &[u8]) -> Step {
        let (parent, name) = split(path);
        let is_root = self.is_root;
        let directory = self.directory(parent)?;
        let set = match file {
            Some(file) => rustix::fs::fsetxattr(file, key, value, XattrFlags::empty()),
            None => {
                let mut place = format!("/proc/self/fd/{}/", directory.as_raw_fd()).into_bytes();
                place.extend(if name.is_empty() { b"." } else { name });
                rustix::fs::lsetxattr(&place[..], key, value, XattrFlags::empty())
            }
        };
        match set {
            Err(Errno::PERM) if !is_root => {
                self.owners_left += 1;
                Ok(())
            }
            Err(error) => {
                let text = format!("{}: {} cannot be set: {error}", shown(path), String::from_utf8_lossy(key));
                Err(Stop::Skip(text))
            }
            Ok(()) => Ok(()),
        }
    }

    /// Returns whether a directory passes a default ACL on to new entries.
    fn has_default_acl(&mut self, path: &[u8]) -> Step<bool> {
        if let Some((known, has_acl)) = &self.default_acl
            && known == path
        {
            return Ok(*has_acl);
        }
        let directory = self.directory(path)?;
        let has_acl = rustix::fs::fgetxattr(directory, ACL_DEFAULT, &mut [0_u8; 0][..]).is_ok();
        self.default_acl = Some((path.to_vec(), has_acl));
        Ok(has_acl)
    }

    /// Removes the ACLs that an item does not have: an existing directory may have passed one on to
    /// its new entries, or may have one itself.
    fn remove_acls(&mut self, item: &Item, file: Option<&File>) -> Step {
        let (parent, name) = split(&item.path);
        let is_directory = item.kind() == libc::S_IFDIR;
        if item.kind() == libc::S_IFLNK || !is_directory && !self.has_default_acl(parent)? {
            return Ok(());
        }
        let directory = self.directory(parent)?;
        let mut place = format!("/proc/self/fd/{}/", directory.as_raw_fd()).into_bytes();
        place.extend(if name.is_empty() { b"." } else { name });
        for key in [ACL_ACCESS, ACL_DEFAULT].into_iter().take(if is_directory { 2 } else { 1 }) {
            if item.xattr(key).is_some() {
                continue;
            }
            let removed = match file {
                Some(file) => rustix::fs::fremovexattr(file, key),
                None => rustix::fs::lremovexattr(&place[..], key),
            };
            match removed {
                Ok(()) | Err(Errno::NODATA | Errno::NOTSUP) => {}
                Err(error) => return Err(failed("its ACL cannot be removed", &item.path)(error)),
            }
        }
        Ok(())
    }

    /// Size, owner, mode, attributes and times of the item that was made or found.
    fn set_attributes(&mut self, item: &Item) -> Step {
        let file = self.file.take();
        if item.link_to.is_some() || !self.sets {
            return Ok(());
        }
        let mut wrong = Vec::new();
        if let Some(file) = &file
            && item.data.last().is_none_or(|range| range.end != item.size)
        {
            // A size too large for the call is reported without a number.
            let cut = file.set_len(item.size).map_err(|error| {
                stop_of("its size cannot be set", &item.path, error.raw_os_error().unwrap_or(libc::EFBIG))
            });
            gather(&mut wrong, cut)?;
        }
        // The owner first: changing it clears set-user-id bits and capabilities. A file is set by
        // its descriptor: the owner of its directory may have put another one in its place.
        self.set_owner(item, file.as_ref())?;
        gather(&mut wrong, self.remove_acls(item, file.as_ref()))?;
        let is_directory = item.kind() == libc::S_IFDIR;
        for (key, value) in &item.xattrs {
            if !(is_directory && key == ACL_DEFAULT) {
                gather(&mut wrong, self.set_xattr(&item.path, file.as_ref(), key, value))?;
            }
        }
        if is_directory {
            self.late.push(Late {
                path: item.path.clone(),
                mode: item.mode,
                times: (item.accessed, item.modified),
                default_acl: item.xattr(ACL_DEFAULT).map(<[u8]>::to_vec),
            });
        } else {
            let (parent, name) = split(&item.path);
            let directory = self.directory(parent)?;
            let times = times((item.accessed, item.modified));
            let set_times = || rustix::fs::utimensat(directory, name, &times, AtFlags::SYMLINK_NOFOLLOW);
            let set = match &file {
                Some(file) => rustix::fs::fchmod(file, Mode::from_raw_mode(item.mode & 0o7777))
                    .and_then(|()| rustix::fs::futimens(file, &times)),
                None if item.kind() == libc::S_IFLNK => set_times(),
                None => set_mode(directory, name, item.mode).and_then(|()| set_times()),
            };
            set.map_err(failed("its mode and times cannot be set", &item.path))?;
        }
        skip_if_any(&wrong)
    }

    fn set_late(&mut self, late: &Late) -> Step {
        if let Some(acl) = &late.default_acl {
            self.set_xattr(&late.path, None, ACL_DEFAULT, acl)?;
        }
        let (parent, name) = split(&late.path);
        let directory = self.directory(parent)?;
        let name = if name.is_empty() { b"." } else { name };
        set_mode(directory, name, late.mode)
            .and_then(|()| rustix::fs::utimensat(directory, name, &times(late.times), AtFlags::SYMLINK_NOFOLLOW))
            .map_err(failed("its mode and times cannot be set", &late.path))
    }
}

/// Sets the mode of a name, but not through a link: the owner of the directory may have put one in
/// its place.
fn set_mode(directory: &OwnedFd, name: &[u8], mode: u32) -> std::result::Result<(), Errno> {
    let mode = Mode::from_raw_mode(mode & 0o7777);
    if let Ok(opened) = rustix::fs::openat(directory, name, DIRECTORY, Mode::empty()) {
        return rustix::fs::fchmod(opened, mode);
    }
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let entry = rustix::fs::openat(directory, name, flags, Mode::empty())?;
    if rustix::fs::fstat(&entry)?.st_mode & libc::S_IFMT == libc::S_IFLNK {
        return Err(Errno::LOOP);
    }
    rustix::fs::chmod(format!("/proc/self/fd/{}", entry.as_raw_fd()), mode)
}

fn times((accessed, modified): (Time, Time)) -> Timestamps {
    let spec = |time: Time| Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() };
    Timestamps { last_access: spec(accessed), last_modification: spec(modified) }
}

impl Sink for PosixSink {
    fn add(&mut self, item: &Item) -> Step<Added> {
        self.path.clone_from(&item.path);
        if item.path.is_empty() {
            self.sets = self.sets_root;
            return Ok(Added::Merged);
        }
        let added = if item.kind() == libc::S_IFDIR { self.add_directory(item) } else { self.add_other(item) }?;
        // The attributes of an existing directory belong to its owner.
        self.sets = added == Added::New || self.overwrite || self.is_ours(&item.path);
        if added == Added::New {
            self.made.insert(self.hasher.hash_one(&item.path));
        }
        Ok(added)
    }

    fn write(&mut self, offset: u64, data: Bytes) -> Step {
        let Some(file) = &self.file else { return Ok(()) };
        file.write_all_at(&data, offset)
            .map_err(|error| stop_of("cannot be written", &self.path, error.raw_os_error().unwrap_or(libc::EIO)))
    }

    fn end(&mut self, item: &Item) -> Step {
        let mut wrong = Vec::new();
        gather(&mut wrong, self.set_attributes(item))?;
        gather(&mut wrong, self.remove_replaced())?;
        skip_if_any(&wrong)
    }

    fn finish(&mut self) -> Step<Vec<String>> {
        let mut lines = Vec::new();
        // Deeper directories first: setting their attributes does not affect their parents.
        let late = std::mem::take(&mut self.late);
        for late in late.iter().rev() {
            match self.set_late(late) {
                Err(Stop::Skip(line)) => lines.push(line),
                set => set?,
            }
        }
        if self.owners_left > 0 {
            let text = "owners and attributes could not be set: root is required";
            lines.push(format!("{} {text}", self.owners_left));
        }
        rustix::fs::syncfs(&self.root)
            .and_then(|()| rustix::fs::fsync(&self.root))
            .map_err(failed("cannot be made durable", &[]))?;
        Ok(lines)
    }
}

impl Drop for PosixSink {
    fn drop(&mut self) {
        // After a failure: the old file is better than a part of the new one.
        let _ = self.put_back();
    }
}

#[cfg(test)]
#[path = "posix_sink_tests.rs"]
mod tests;
