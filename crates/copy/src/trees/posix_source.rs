//! A directory as a source: the names of each directory in order, before those below it.
//! Directories are held open while they are traversed, so that no path is too long and a link
//! created in the meantime does not lead out of the tree.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Dir, Mode, OFlags, SeekFrom, Stat};
use rustix::io::Errno;
use share::Time;
use surface::Result;

use super::{
    Got, Item, RANGES_MAX, Source, Step, Stop, gather, is_kept, is_of_snapshots, left_to_snapshots, shown, unread,
};
use operations::path_error;

/// Bytes of a list of attribute names that are asked for first; the kernel's own limit is 64 KiB.
const NAMES_BYTES: usize = 1 << 10;
/// The kernel's limit for the list of names, and for a value.
const XATTR_BYTES_MAX: usize = 64 << 10;

/// A directory being traversed.
struct Frame {
    fd: OwnedFd,
    path: Vec<u8>,
    /// Remaining names, the next one last.
    names: Vec<CString>,
}

/// A directory as a source.
pub struct PosixSource {
    frames: Vec<Frame>,
    root: Option<OwnedFd>,
    /// The only name to read, if the source is a single file.
    only: Option<CString>,
    /// First names of files with several links, and the number of links still to come.
    linked: HashMap<(u64, u64), (Vec<u8>, u64)>,
    /// The file of the most recent item, if that is such a first name.
    first: Option<(u64, u64)>,
    /// Directories not descended into: device and inode.
    left_out: Vec<(u64, u64)>,
    /// The copy is a share.
    is_for_share: bool,
    file: Option<OwnedFd>,
    file_path: Vec<u8>,
}

/// Identifies a file on this machine.
///
/// # Errors
/// When it does not exist.
pub fn identity(path: &Path) -> Result<(u64, u64)> {
    let found = rustix::fs::stat(path).map_err(|error| path_error("cannot access", path, error.into()))?;
    Ok((found.st_dev, found.st_ino))
}

fn directory_flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW
}

/// Opens a regular file that was found in a directory, for reading; `None` if another one is there
/// by now. It does not wait: that one may be a fifo without a writer.
fn open_found(directory: &OwnedFd, name: &CStr, found: &Stat) -> std::result::Result<Option<OwnedFd>, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOATIME;
    let open = |flags| rustix::fs::openat(directory, name, flags, Mode::empty());
    // Only its owner and root may leave the access time unchanged.
    let fd = open(flags).or_else(|_| open(flags - OFlags::NOATIME))?;
    let identity = |file: &Stat| (file.st_dev, file.st_ino, file.st_mode & libc::S_IFMT);
    let is_same = identity(&rustix::fs::fstat(&fd)?) == identity(found);
    Ok(is_same.then_some(fd))
}

impl PosixSource {
    /// The content of a directory, and the directory itself as the root; or one file, under its own
    /// name.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(path: &Path, left_out: Vec<(u64, u64)>) -> Result<Self> {
        let failed = |error: Errno| path_error("cannot open", path, error.into());
        let found = rustix::fs::lstat(path).map_err(failed)?;
        let is_link_to_directory = || std::fs::metadata(path).is_ok_and(|found| found.is_dir());
        let (root, only) = if found.st_mode & libc::S_IFMT == libc::S_IFDIR || is_link_to_directory() {
            (path, None)
        } else {
            let name = path.file_name().and_then(|name| CString::new(name.as_encoded_bytes()).ok());
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
            (parent, name)
        };
        let flags = directory_flags() - OFlags::NOFOLLOW;
        let root = rustix::fs::open(root, flags, Mode::empty()).map_err(failed)?;
        Ok(Self {
            frames: Vec::new(),
            root: Some(root),
            only,
            linked: HashMap::new(),
            first: None,
            left_out,
            is_for_share: false,
            file: None,
            file_path: Vec::new(),
        })
    }

    /// Without the name that the root of a share has for its snapshots.
    #[must_use]
    pub fn for_share(mut self) -> Self {
        self.is_for_share = true;
        self
    }

    fn begin(&mut self, root: OwnedFd) -> Step<Option<Item>> {
        if let Some(name) = self.only.take() {
            self.frames.push(Frame { fd: root, path: Vec::new(), names: vec![name] });
            return self.next();
        }
        let found =
            rustix::fs::fstat(&root).map_err(|error| unread("cannot be accessed", &[], error.raw_os_error()))?;
        let mut item = attributes(&found, Vec::new());
        read_xattrs(&root, c".", &mut item)?;
        self.enter(root, &mut item)?;
        Ok(Some(item))
    }

    /// Goes into a directory, as far as its names can be read.
    fn enter(&mut self, fd: OwnedFd, item: &mut Item) -> Step {
        let (names, lost) = names_of(&fd);
        if let Some(error) = lost {
            let what = format!("{} names could be read, others could not", names.len());
            gather(&mut item.unread, Err(unread(&what, &item.path, error.raw_os_error())))?;
        }
        self.frames.push(Frame { fd, path: item.path.clone(), names });
        Ok(())
    }

    fn item(&mut self, name: CString) -> Step<Option<Item>> {
        let Some(frame) = self.frames.last() else { return Ok(None) };
        let path = match frame.path.as_slice() {
            [] => name.to_bytes().to_vec(),
            directory => [directory, b"/", name.to_bytes()].concat(),
        };
        let failed = |what: &'static str| {
            let path = path.clone();
            move |error: Errno| unread(what, &path, error.raw_os_error())
        };
        if self.is_for_share && is_of_snapshots(&path) {
            return Err(left_to_snapshots());
        }
        let found = rustix::fs::statat(&frame.fd, &name, AtFlags::SYMLINK_NOFOLLOW);
        let found = found.map_err(failed("cannot be accessed"))?;
        let mut item = attributes(&found, path.clone());
        let identity = (found.st_dev, found.st_ino);
        if self.left_out.contains(&identity) {
            return Err(Stop::Skip(format!("{}: skipped: it belongs to the pool itself", shown(&path))));
        }
        let has_links = item.kind() != libc::S_IFDIR && found.st_nlink > 1;
        if has_links && let Some((first, left)) = self.linked.get_mut(&identity) {
            item.link_to = Some(first.clone());
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.linked.remove(&identity);
            }
            return Ok(Some(item));
        }
        read_xattrs(&frame.fd, &name, &mut item)?;
        match item.kind() {
            libc::S_IFDIR => {
                let fd = rustix::fs::openat(&frame.fd, &name, directory_flags(), Mode::empty());
                match fd.map_err(failed("cannot be opened; its content is skipped")) {
                    Ok(fd) => self.enter(fd, &mut item)?,
                    Err(stop) => gather(&mut item.unread, Err(stop))?,
                }
            }
            libc::S_IFLNK => {
                let target = rustix::fs::readlinkat(&frame.fd, &name, Vec::new()).map_err(failed("cannot be read"))?;
                item.target = target.into_bytes();
            }
            libc::S_IFREG => {
                let opened = open_found(&frame.fd, &name, &found).map_err(failed("cannot be opened"))?;
                let Some(fd) = opened else {
                    let text = format!("{}: another file took its place before it was opened", shown(&path));
                    return Err(Stop::Skip(text));
                };
                item.data = data_of(&fd, &found);
                self.file = Some(fd);
                self.file_path = path;
            }
            _ => {}
        }
        // Not before: another name of a file that cannot be opened here may be readable.
        if has_links {
            self.linked.insert(identity, (item.path.clone(), found.st_nlink - 1));
            self.first = Some(identity);
        }
        Ok(Some(item))
    }
}

impl Source for PosixSource {
    fn left_out(&mut self) {
        if let Some(first) = self.first.take() {
            self.linked.remove(&first);
        }
    }

    fn next(&mut self) -> Step<Option<Item>> {
        self.file = None;
        self.first = None;
        if let Some(root) = self.root.take() {
            return self.begin(root);
        }
        loop {
            let Some(frame) = self.frames.last_mut() else { return Ok(None) };
            match frame.names.pop() {
                Some(name) => return self.item(name),
                None => drop(self.frames.pop()),
            }
        }
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> Step<Got> {
        let Some(file) = &self.file else { return Err(Stop::Skip("no file is open".to_owned())) };
        let mut done = 0;
        while done < out.len() {
            match rustix::io::pread(file, &mut out[done..], offset + done as u64) {
                Ok(0) => return Ok(Got::End("it shrank while it was read".to_owned())),
                Ok(read) => done += read,
                Err(Errno::INTR) => {}
                Err(error) => match unread("cannot be read", &self.file_path, error.raw_os_error()) {
                    // A file of a tree that cannot be read is one file.
                    Stop::Skip(_) => return Ok(Got::Damaged(std::io::Error::from(error).to_string())),
                    fatal @ Stop::Fatal(_) => return Err(fatal),
                },
            }
        }
        Ok(Got::All)
    }
}

#[allow(clippy::unnecessary_cast, reason = "the types of struct stat are not the same everywhere")]
fn attributes(found: &Stat, path: Vec<u8>) -> Item {
    let time = |seconds, nanoseconds: u64| Time { seconds, nanoseconds: u32::try_from(nanoseconds).unwrap_or(0) };
    Item {
        path,
        mode: found.st_mode,
        uid: found.st_uid,
        gid: found.st_gid,
        device: (rustix::fs::major(found.st_rdev), rustix::fs::minor(found.st_rdev)),
        size: if found.st_mode & libc::S_IFMT == libc::S_IFREG { u64::try_from(found.st_size).unwrap_or(0) } else { 0 },
        accessed: time(found.st_atime as i64, found.st_atime_nsec as u64),
        modified: time(found.st_mtime as i64, found.st_mtime_nsec as u64),
        ..Item::default()
    }
}

/// Names in a directory, in descending order, and the error if the list may be incomplete.
fn names_of(fd: &OwnedFd) -> (Vec<CString>, Option<Errno>) {
    let mut names = Vec::new();
    let mut read = || -> std::result::Result<(), Errno> {
        for entry in Dir::read_from(fd)? {
            let entry = entry?;
            if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
                names.push(entry.file_name().to_owned());
            }
        }
        Ok(())
    };
    let lost = read().err();
    names.sort_unstable_by(|a, b| b.cmp(a));
    (names, lost)
}

/// Reads the extended attributes of a name in a directory. The way over `/proc` does not follow
/// the name.
fn read_xattrs(directory: &OwnedFd, name: &CStr, item: &mut Item) -> Step {
    let mut place = format!("/proc/self/fd/{}/", directory.as_raw_fd()).into_bytes();
    place.extend(name.to_bytes());
    let failed = |what: &str, path: &[u8], error: Errno| Err(unread(what, path, error.raw_os_error()));
    let mut list = vec![0; NAMES_BYTES];
    let length = match rustix::fs::llistxattr(&place[..], &mut list[..]) {
        Err(Errno::RANGE) => {
            list.resize(XATTR_BYTES_MAX, 0);
            rustix::fs::llistxattr(&place[..], &mut list[..])
        }
        listed => listed,
    };
    let length = match length {
        Err(Errno::NOTSUP) => 0,
        Ok(length) => length,
        Err(error) => {
            let what = "its extended attributes cannot be read";
            return gather(&mut item.unread, failed(what, &item.path, error));
        }
    };
    for name in list[..length].split(|&byte| byte == 0).filter(|name| is_kept(name)) {
        let mut value = vec![0; XATTR_BYTES_MAX];
        match rustix::fs::lgetxattr(&place[..], name, &mut value[..]) {
            Ok(length) => item.xattrs.push((name.to_vec(), value[..length].to_vec())),
            Err(Errno::NODATA) => {}
            Err(error) => {
                let what = format!("its attribute {} cannot be read", String::from_utf8_lossy(name));
                gather(&mut item.unread, failed(&what, &item.path, error))?;
            }
        }
    }
    Ok(())
}

/// Data ranges of a file: all of it, if holes are unknown.
#[allow(clippy::single_range_in_vec_init, reason = "the one range of data that a file has")]
fn data_of(fd: &OwnedFd, found: &Stat) -> Vec<std::ops::Range<u64>> {
    let size = u64::try_from(found.st_size).unwrap_or(0);
    let blocks_bytes = u64::try_from(found.st_blocks).unwrap_or(0).saturating_mul(512);
    if size == 0 {
        return Vec::new();
    }
    if blocks_bytes >= size && found.st_dev != 0 && blocks_bytes > 0 && size <= super::PIECE_BYTES as u64 {
        // Most files: no holes, and not worth a call.
        return vec![0..size];
    }
    let mut ranges: Vec<std::ops::Range<u64>> = Vec::new();
    let mut at = 0;
    while at < size {
        let begin = match rustix::fs::seek(fd.as_fd(), SeekFrom::Data(at)) {
            Ok(begin) if begin < size => begin,
            Ok(_) | Err(Errno::NXIO) => break,
            Err(_) => at,
        };
        let hole = rustix::fs::seek(fd.as_fd(), SeekFrom::Hole(begin)).ok().filter(|&hole| hole > begin);
        let end = hole.unwrap_or(size).min(size);
        if ranges.len() >= RANGES_MAX {
            ranges.push(begin..size);
            break;
        }
        ranges.push(begin..end);
        at = end;
    }
    ranges
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType};
    use testkit::TempDir;

    use super::*;

    /// A user could keep the export of a share by root from ending.
    #[test]
    fn a_fifo_that_took_the_place_of_a_file_is_not_opened() {
        let dir = TempDir::new("source-replaced");
        let path = dir.path().join("file");
        std::fs::write(&path, "old").unwrap();
        let directory = rustix::fs::open(dir.path(), directory_flags(), Mode::empty()).unwrap();
        let found = rustix::fs::statat(&directory, c"file", AtFlags::SYMLINK_NOFOLLOW).unwrap();
        assert!(open_found(&directory, c"file", &found).unwrap().is_some());
        std::fs::rename(&path, dir.path().join("moved")).unwrap();
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let writer = std::fs::File::options().read(true).write(true).open(&path).unwrap();
        assert!(open_found(&directory, c"file", &found).unwrap().is_none(), "a fifo with a writer");
        drop(writer);
        assert!(open_found(&directory, c"file", &found).unwrap().is_none(), "a fifo without one");
    }
}
