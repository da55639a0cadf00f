//! The directory of devices as the kernel asks for it: names, attributes, handles, and each request handed on to the device.
//! Owns the tables of nodes and handles. What an operation on a file means is in `file_io`.
//!
//! Names, sizes, allocated bytes and modification times change behind the kernel's back (volumes are made,
//! resized and destroyed through other doors), so nothing of them is cached there: all timeouts are zero. This costs a
//! round trip for each `stat` and `open`, and none for a read or write.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow,
    WriteFlags,
};
use surface::{Allocation, BlockDevice, DeviceInfo, DeviceSet, Error, ErrorKind};

use crate::complaints::Complaints;
use crate::file_io::{self, Failure};
use crate::handles::Handles;
use crate::nodes::{Node, Nodes, ROOT_INO};
use crate::options::{MountOptions, REQUEST_BYTES_MAX};

/// Nothing of a name or an attribute is cached by the kernel.
const TTL: Duration = Duration::ZERO;

/// Requests that the kernel may have under way without a caller waiting for each: direct I/O of a loop device, io_uring, AIO.
/// More than any disk gains from; bounds the pages that the kernel pins to 256 x 1 MiB.
const BACKGROUND_REQUESTS_MAX: u16 = 256;

/// Mode of a device's file.
const FILE_PERMISSIONS: u16 = 0o600;

/// `st_blksize`, and the unit of `statfs`. Not the device's preferred size: kernels up to 6.16 derive their own block size
/// of the inode from it, and expect it not to exceed a page.
const BLOCK_BYTES: u32 = 4096;

/// `st_blocks` counts in these.
const SECTOR_BYTES: u64 = 512;

thread_local! {
    /// Where a read is put before it goes to the kernel; grows to the largest request (1 MiB) and is reused, so that neither
    /// allocation nor zeroing is paid for each read.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// An open file.
struct File {
    node: Arc<Node>,
    device: Arc<dyn BlockDevice>,
}

/// The file system of one mount.
pub(crate) struct DeviceDirectory {
    devices: Arc<dyn DeviceSet>,
    nodes: Nodes,
    files: Handles<File>,
    /// What was there when the directory was opened: positions stay valid while it is read.
    listings: Handles<Vec<DeviceInfo>>,
    complaints: Complaints,
    now: fn() -> SystemTime,
    /// The modification time of the directory.
    mounted_unix_ns: u64,
    directory_permissions: u16,
    uid: u32,
    gid: u32,
}

impl DeviceDirectory {
    pub(crate) fn new(devices: Arc<dyn DeviceSet>, options: &MountOptions) -> Self {
        Self {
            devices,
            nodes: Nodes::default(),
            files: Handles::default(),
            listings: Handles::default(),
            complaints: Complaints::default(),
            now: options.now,
            mounted_unix_ns: unix_ns((options.now)()),
            directory_permissions: if options.allow_other { 0o755 } else { 0o700 },
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        }
    }

    fn now_unix_ns(&self) -> u64 {
        unix_ns((self.now)())
    }

    fn attributes(&self, ino: u64, size: u64, allocated: u64, created_unix_s: u64, changed_ns: Option<u64>) -> FileAttr {
        let created = UNIX_EPOCH + Duration::from_secs(created_unix_s);
        let changed = changed_ns.map_or(created, |ns| created.max(UNIX_EPOCH + Duration::from_nanos(ns)));
        FileAttr {
            ino: INodeNo(ino),
            size,
            blocks: allocated.div_ceil(SECTOR_BYTES),
            atime: changed,
            mtime: changed,
            ctime: changed,
            crtime: created,
            kind: FileType::RegularFile,
            perm: FILE_PERMISSIONS,
            nlink: 1,
            uid: self.uid,
            gid: self.gid,
            rdev: 0,
            blksize: BLOCK_BYTES,
            flags: 0,
        }
    }

    fn file_attributes(&self, node: &Node, device: &dyn BlockDevice) -> FileAttr {
        let (created, changed) = (node.created_unix_s(), node.changed_unix_ns());
        self.attributes(node.ino, device.size_bytes(), device.allocated_bytes(), created, changed)
    }

    fn directory_attributes(&self) -> FileAttr {
        FileAttr {
            kind: FileType::Directory,
            perm: self.directory_permissions,
            nlink: 2,
            ..self.attributes(ROOT_INO, 0, 0, 0, Some(self.mounted_unix_ns))
        }
    }

    /// Logs what the device said, and gives the errno for it. A device that is not there is no failure.
    fn complain(&self, file: &str, doing: &str, error: &Error) -> Errno {
        if error.kind() == ErrorKind::NotFound {
            return Errno::ENOENT;
        }
        self.complaints.failed(file, doing, error)
    }

    fn find(&self, name: &str) -> Result<(DeviceInfo, Arc<dyn BlockDevice>), Errno> {
        let found = self.devices.list().and_then(|list| {
            let info = list.into_iter().find(|info| info.name == name);
            let info = info.ok_or_else(|| Error::new(ErrorKind::NotFound, format!("there is no volume {name}")))?;
            Ok((info, self.devices.open(name)?))
        });
        found.map_err(|error| self.complain(name, "lookup", &error))
    }

    fn node(&self, ino: INodeNo) -> Result<Arc<Node>, Errno> {
        self.nodes.get(ino.0).ok_or(Errno::ESTALE)
    }

    fn file(&self, fh: FileHandle) -> Result<Arc<File>, Errno> {
        self.files.get(fh.0).ok_or(Errno::EBADF)
    }

    /// The node of `ino` and its device: that of the handle, if there is one.
    fn node_and_device(
        &self,
        ino: INodeNo,
        fh: Option<FileHandle>,
    ) -> Result<(Arc<Node>, Arc<dyn BlockDevice>), Errno> {
        if let Some(file) = fh.and_then(|fh| self.files.get(fh.0)) {
            return Ok((file.node.clone(), file.device.clone()));
        }
        let node = self.node(ino)?;
        match self.devices.open(&node.name) {
            Ok(device) => Ok((node, device)),
            Err(error) => Err(self.complain(&node.name, "stat", &error)),
        }
    }

    /// Refuses what would make, remove or rename a volume.
    fn refuse_change(&self, name: &OsStr, what: &str) -> Errno {
        let name = name.to_string_lossy();
        self.complaints.refused(
            &name,
            format_args!("{what} refused: volumes are made, cloned and destroyed with the shale command, not through the mount"),
        );
        Errno::EPERM
    }

    fn change_attributes(
        &self,
        node: &Node,
        device: &dyn BlockDevice,
        wanted: &WantedAttributes,
    ) -> Result<FileAttr, Errno> {
        let is = device.size_bytes();
        if let Some(size) = wanted.size
            && size != is
        {
            self.complaints.refused(
                &node.name,
                format_args!(
                    "truncate from {is} to {size} bytes refused: a volume keeps its size when it is written \
                     (dd needs conv=notrunc, cp does not work); to change it, use shale resize"
                ),
            );
            return Err(Errno::EPERM);
        }
        let other_mode = wanted.mode.is_some_and(|mode| mode & 0o7777 != u32::from(FILE_PERMISSIONS));
        let other_owner =
            wanted.uid.is_some_and(|uid| uid != self.uid) || wanted.gid.is_some_and(|gid| gid != self.gid);
        if other_mode || other_owner {
            self.complaints.refused(&node.name, "chmod or chown refused: the file of a volume belongs to its server");
            return Err(Errno::EPERM);
        }
        match wanted.mtime {
            Some(TimeOrNow::Now) => node.changed(self.now_unix_ns()),
            Some(TimeOrNow::SpecificTime(time)) => node.changed(unix_ns(time)),
            None => {}
        }
        Ok(self.file_attributes(node, device))
    }

    fn fail(&self, file: &File, doing: &str, failure: Failure) -> Errno {
        match failure {
            Failure::Device(error) => self.complaints.failed(&file.node.name, doing, &error),
            Failure::Rule(errno) => errno,
        }
    }
}

/// What `setattr` asks for.
struct WantedAttributes {
    mode: Option<u32>,
    uid: Option<u32>,
    gid: Option<u32>,
    size: Option<u64>,
    mtime: Option<TimeOrNow>,
}

fn unix_ns(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

/// Sends the answer or the error of a request that has one.
macro_rules! answer {
    ($reply:ident, $result:expr, $send:expr) => {
        match $result {
            Ok(value) => $send($reply, value),
            Err(errno) => $reply.error(errno),
        }
    };
}

impl Filesystem for DeviceDirectory {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // The writeback cache stays off: with it, a write that was acknowledged may be known to nobody but the kernel.
        let wanted = InitFlags::FUSE_ASYNC_DIO
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO;
        let _ = config.add_capabilities(wanted & config.capabilities());
        let _ = config.set_max_write(REQUEST_BYTES_MAX);
        let _ = config.set_max_background(BACKGROUND_REQUESTS_MAX);
        let _ = config.set_congestion_threshold(BACKGROUND_REQUESTS_MAX);
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = match name.to_str() {
            Some(name) if parent.0 == ROOT_INO => self.find(name),
            _ => Err(Errno::ENOENT),
        };
        answer!(reply, found, |reply: ReplyEntry, (info, device): (DeviceInfo, Arc<dyn BlockDevice>)| {
            let node = self.nodes.looked_up(&info.name, info.created_unix_s);
            reply.entry(&TTL, &self.file_attributes(&node, &*device), Generation(info.created_unix_s));
        });
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        self.nodes.forget(ino.0, nlookup);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, fh: Option<FileHandle>, reply: ReplyAttr) {
        if ino.0 == ROOT_INO {
            return reply.attr(&TTL, &self.directory_attributes());
        }
        let found = self.node_and_device(ino, fh);
        answer!(reply, found, |reply: ReplyAttr, (node, device): (Arc<Node>, Arc<dyn BlockDevice>)| reply
            .attr(&TTL, &self.file_attributes(&node, &*device)));
    }

    fn setattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if ino.0 == ROOT_INO {
            return reply.error(Errno::EPERM);
        }
        let wanted = WantedAttributes { mode, uid, gid, size, mtime };
        let changed = self
            .node_and_device(ino, fh)
            .and_then(|(node, device)| self.change_attributes(&node, &*device, &wanted));
        answer!(reply, changed, |reply: ReplyAttr, attributes| reply.attr(&TTL, &attributes));
    }

    fn open(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let opened = self.node_and_device(ino, None).and_then(|(node, device)| {
            self.files.insert(File { node, device }).ok_or(Errno::ENFILE)
        });
        // Direct, whether the caller asked for it or not: see "Coherence" in the crate's documentation.
        let flags =
            FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES | FopenFlags::FOPEN_NOFLUSH;
        answer!(reply, opened, |reply: ReplyOpen, number| reply.opened(FileHandle(number), flags));
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let file = match self.file(fh) {
            Ok(file) => file,
            Err(errno) => return reply.error(errno),
        };
        let wanted = size.min(REQUEST_BYTES_MAX) as usize;
        READ_BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < wanted {
                buffer.resize(wanted, 0);
            }
            let done = file_io::read(&*file.device, offset, &mut buffer[..wanted])
                .map_err(|error| self.fail(&file, "read", error.into()));
            answer!(reply, done, |reply: ReplyData, length: usize| reply.data(&buffer[..length]));
        });
    }

    fn write(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        // O_SYNC contains the bit of O_DSYNC; the kernel adds it for RWF_DSYNC and RWF_SYNC too.
        let fua = flags.0 & libc::O_DSYNC != 0;
        let written = self.file(fh).and_then(|file| {
            let written = file_io::write(&*file.device, offset, data, fua);
            file.node.changed(self.now_unix_ns());
            written.map_err(|failure| self.fail(&file, "write", failure))
        });
        // At most the length of `data`, which is at most REQUEST_BYTES_MAX.
        answer!(reply, written, |reply: ReplyWrite, length: usize| reply
            .written(u32::try_from(length).unwrap_or(u32::MAX)));
    }

    fn flush(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _lock_owner: LockOwner, reply: ReplyEmpty) {
        // close(2) promises nothing about durability.
        reply.ok();
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.files.remove(fh.0);
        reply.ok();
    }

    fn fsync(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        // There is no metadata of our own that fsync would add to fdatasync.
        let done = self
            .file(fh)
            .and_then(|file| file.device.flush().map_err(|error| self.fail(&file, "fsync", error.into())));
        answer!(reply, done, |reply: ReplyEmpty, ()| reply.ok());
    }

    fn fallocate(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let done = self.file(fh).and_then(|file| {
            file_io::allocate(&*file.device, offset, length, mode)
                .map(|()| file.node.changed(self.now_unix_ns()))
                .map_err(|failure| self.fail(&file, "fallocate", failure))
        });
        answer!(reply, done, |reply: ReplyEmpty, ()| reply.ok());
    }

    fn lseek(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let found = self.file(fh).and_then(|file| {
            let offset = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
            let wanted = match whence {
                libc::SEEK_DATA => Allocation::Data,
                libc::SEEK_HOLE => Allocation::Hole,
                _ => return Err(Errno::EINVAL),
            };
            file_io::seek(&*file.device, offset, wanted).map_err(|failure| self.fail(&file, "lseek", failure))
        });
        answer!(reply, found, |reply: ReplyLseek, at: u64| reply.offset(i64::try_from(at).unwrap_or(i64::MAX)));
    }

    fn opendir(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let opened =
            self.devices.list().map_err(|error| self.complain(".", "opendir", &error)).and_then(|listing| {
                self.nodes.retain(|name| listing.iter().any(|info| info.name == name));
                self.listings.insert(listing).ok_or(Errno::ENFILE)
            });
        answer!(reply, opened, |reply: ReplyOpen, number| reply.opened(FileHandle(number), FopenFlags::empty()));
    }

    fn readdir(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let Some(listing) = self.listings.get(fh.0) else {
            return reply.error(Errno::EBADF);
        };
        for position in offset.. {
            let full = match entry_at(&listing, position) {
                Some(Entry::Dots(name)) => reply.add(INodeNo(ROOT_INO), position + 1, FileType::Directory, name),
                Some(Entry::Device(info)) => {
                    let (ino, _) = self.nodes.peek(&info.name);
                    reply.add(INodeNo(ino), position + 1, FileType::RegularFile, &info.name)
                }
                None => break,
            };
            if full {
                break;
            }
        }
        reply.ok();
    }

    fn readdirplus(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        let Some(listing) = self.listings.get(fh.0) else {
            return reply.error(Errno::EBADF);
        };
        for position in offset.. {
            let full = match entry_at(&listing, position) {
                // The kernel does not count these as lookups.
                Some(Entry::Dots(name)) => {
                    let attributes = self.directory_attributes();
                    reply.add(INodeNo(ROOT_INO), position + 1, name, &TTL, &attributes, Generation(0))
                }
                Some(Entry::Device(info)) => {
                    let device = match self.devices.open(&info.name) {
                        Ok(device) => Some(device),
                        Err(error) if error.kind() == ErrorKind::NotFound => continue,
                        Err(error) => {
                            self.complain(&info.name, "readdir", &error);
                            None
                        }
                    };
                    let node = self.nodes.looked_up(&info.name, info.created_unix_s);
                    let attributes = match device {
                        Some(device) => self.file_attributes(&node, &*device),
                        // It cannot be opened, but must not vanish from the list for that.
                        None => self.attributes(node.ino, info.size_bytes, 0, info.created_unix_s, None),
                    };
                    let generation = Generation(info.created_unix_s);
                    let full =
                        reply.add(INodeNo(node.ino), position + 1, &info.name, &TTL, &attributes, generation);
                    if full {
                        self.nodes.forget(node.ino, 1);
                    }
                    full
                }
                None => break,
            };
            if full {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, _flags: OpenFlags, reply: ReplyEmpty) {
        self.listings.remove(fh.0);
        reply.ok();
    }

    fn fsyncdir(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        // Logical bytes: what the volumes promise, and how much of it holds data. How full the pool is, is not known here.
        let listing = match self.devices.list() {
            Ok(listing) => listing,
            Err(error) => return reply.error(self.complain(".", "statfs", &error)),
        };
        let size: u64 = listing.iter().map(|info| info.size_bytes).fold(0, u64::saturating_add);
        let allocated = listing
            .iter()
            .filter_map(|info| self.devices.open(&info.name).ok())
            .map(|device| device.allocated_bytes())
            .fold(0, u64::saturating_add);
        let block = u64::from(BLOCK_BYTES);
        let free = size.saturating_sub(allocated) / block;
        reply.statfs(size / block, free, free, listing.len() as u64, 0, BLOCK_BYTES, 255, BLOCK_BYTES);
    }

    fn create(
        &self,
        _req: &Request,
        _parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        reply.error(self.refuse_change(name, "create"));
    }

    fn mknod(
        &self,
        _req: &Request,
        _parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        _rdev: u32,
        reply: ReplyEntry,
    ) {
        reply.error(self.refuse_change(name, "mknod"));
    }

    fn mkdir(&self, _req: &Request, _parent: INodeNo, name: &OsStr, _mode: u32, _umask: u32, reply: ReplyEntry) {
        reply.error(self.refuse_change(name, "mkdir"));
    }

    fn unlink(&self, _req: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply.error(self.refuse_change(name, "unlink"));
    }

    fn rmdir(&self, _req: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply.error(self.refuse_change(name, "rmdir"));
    }

    fn symlink(&self, _req: &Request, _parent: INodeNo, name: &OsStr, _target: &Path, reply: ReplyEntry) {
        reply.error(self.refuse_change(name, "symlink"));
    }

    fn link(&self, _req: &Request, _ino: INodeNo, _newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        reply.error(self.refuse_change(newname, "link"));
    }

    fn rename(
        &self,
        _req: &Request,
        _parent: INodeNo,
        name: &OsStr,
        _newparent: INodeNo,
        _newname: &OsStr,
        _flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        reply.error(self.refuse_change(name, "rename"));
    }
}

enum Entry<'a> {
    Dots(&'static str),
    Device(&'a DeviceInfo),
}

/// The entry at a position of a directory: `.`, `..`, then the devices.
fn entry_at(listing: &[DeviceInfo], position: u64) -> Option<Entry<'_>> {
    match position {
        0 => Some(Entry::Dots(".")),
        1 => Some(Entry::Dots("..")),
        _ => listing.get(usize::try_from(position - 2).ok()?).map(Entry::Device),
    }
}
