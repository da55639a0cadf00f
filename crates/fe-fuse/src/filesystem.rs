//! The requests of the protocol, each handed on to the directory, an open file or a lane. Owns what is negotiated with the
//! kernel. What an operation on a file means is in `file_io`.
//!
//! Names, sizes, allocated bytes and modification times change behind the kernel's back (volumes are made,
//! resized and destroyed through other doors), so nothing of them is cached there: all timeouts are zero. This costs a
//! round trip for each `stat` and `open`, and none for a read or write.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use fuser::{
    BsdFileFlags, Errno, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use surface::{Allocation, DeviceId, DeviceInfo, ErrorKind};

use crate::directory::{BLOCK_BYTES, DeviceDirectory, WantedAttributes};
use crate::file_io;
use crate::nodes::{ROOT_INO, ino_of};
use crate::open_file::File;
use crate::options::REQUEST_BYTES_MAX;

/// Nothing of a name or an attribute is cached by the kernel.
const TTL: Duration = Duration::ZERO;

/// What tells apart devices that have the same number at different times: there are none.
const GENERATION: Generation = Generation(0);

/// Direct, whether the caller asked for it or not: see "Coherence" in the crate's documentation.
const OPEN_FLAGS: FopenFlags =
    FopenFlags::FOPEN_DIRECT_IO.union(FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES).union(FopenFlags::FOPEN_NOFLUSH);

/// Requests that the kernel may have under way without a caller waiting for each: direct I/O of a loop device, io_uring, AIO.
/// More than any disk gains from; bounds the pages that the kernel pins to 256 x 1 MiB.
const BACKGROUND_REQUESTS_MAX: u16 = 256;

/// Sends the answer or the error of a request that has one.
macro_rules! answer {
    ($reply:ident, $result:expr, $send:expr) => {
        match $result {
            Ok(value) => $send($reply, value),
            Err(errno) => $reply.error(errno),
        }
    };
}

/// The directory as `fuser` has it; a ring has it too.
pub(crate) struct Served(pub(crate) Arc<DeviceDirectory>);

impl Deref for Served {
    type Target = DeviceDirectory;

    fn deref(&self) -> &DeviceDirectory {
        &self.0
    }
}

impl Filesystem for Served {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // The writeback cache stays off: with it, a write that was acknowledged may be known to nobody but the kernel.
        // O_TRUNC comes with the open: as a truncation of its own, it could not be told from truncate(2).
        let mut wanted = InitFlags::FUSE_ASYNC_DIO
            | InitFlags::FUSE_ATOMIC_O_TRUNC
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO;
        if self.over_rings {
            wanted |= InitFlags::FUSE_OVER_IO_URING;
        }
        let _ = config.add_capabilities(wanted & config.capabilities());
        let _ = config.set_max_write(REQUEST_BYTES_MAX);
        let _ = config.set_max_background(BACKGROUND_REQUESTS_MAX);
        let _ = config.set_congestion_threshold(BACKGROUND_REQUESTS_MAX);
        Ok(())
    }

    fn destroy(&mut self) {
        // What was taken is answered, though nobody may be left to hear it.
        self.reads.close();
        self.changes.close();
        self.opens.close();
        self.emptyings.close();
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = match name.to_str() {
            Some(name) if parent.0 == ROOT_INO => {
                self.devices.find(name).map_err(|error| self.complain(name, "lookup", &error))
            }
            _ => Err(Errno::ENOENT),
        };
        answer!(reply, found, |reply: ReplyEntry, info: DeviceInfo| {
            let node = self.nodes.looked_up(info.id, &info.name, info.created_unix_s);
            reply.entry(&TTL, &self.file_attributes(&node, info.into()), GENERATION);
        });
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        self.nodes.forget(ino.0, nlookup);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, fh: Option<FileHandle>, reply: ReplyAttr) {
        if ino.0 == ROOT_INO {
            return reply.attr(&TTL, &self.directory_attributes());
        }
        let file = fh.and_then(|fh| self.files.handles.get(fh.0));
        let found = self.node(ino).and_then(|node| {
            let state = self.state(&node, file.as_deref())?;
            Ok(self.file_attributes(&node, state))
        });
        answer!(reply, found, |reply: ReplyAttr, attributes| reply.attr(&TTL, &attributes));
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
        let file = fh.and_then(|fh| self.files.handles.get(fh.0));
        let wanted = WantedAttributes { mode, uid, gid, size, mtime };
        let changed = self.node(ino).and_then(|node| self.change_attributes(&node, file.as_deref(), &wanted));
        answer!(reply, changed, |reply: ReplyAttr, attributes| reply.attr(&TTL, &attributes));
    }

    fn open(&self, _req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let node = match self.node(ino) {
            Ok(node) => node,
            Err(errno) => return reply.error(errno),
        };
        let files = self.files.clone();
        let lane = if flags.0 & libc::O_TRUNC == 0 { &self.opens } else { &self.emptyings };
        lane.run(0, move || {
            let opened = files.open(node, flags.0);
            answer!(reply, opened, |reply: ReplyOpen, number| reply.opened(FileHandle(number), OPEN_FLAGS));
        });
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
        self.serve_read(fh, offset, size, reply);
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
        self.serve_write(fh, offset, Bytes::copy_from_slice(data), flags.0, reply);
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
        self.files.handles.remove(fh.0);
        reply.ok();
    }

    fn fsync(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.serve_fsync(fh, reply);
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
        self.serve_fallocate(fh, offset, length, mode, reply);
    }

    fn lseek(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let wanted = match whence {
            libc::SEEK_DATA => Ok(Allocation::Data),
            libc::SEEK_HOLE => Ok(Allocation::Hole),
            _ => Err(Errno::EINVAL),
        };
        let request = self.file(fh).and_then(|file| {
            let offset = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
            Ok((file, offset, wanted?))
        });
        answer!(reply, request, |reply: ReplyLseek, (file, offset, wanted): (Arc<File>, u64, Allocation)| {
            self.reads.run(0, move || {
                let found = file_io::seek(&*file.device, offset, wanted).map_err(|failure| file.fail("lseek", failure));
                answer!(reply, found, |reply: ReplyLseek, at: u64| reply.offset(i64::try_from(at).unwrap_or(i64::MAX)));
            });
        });
    }

    fn opendir(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let opened = self.devices.list().map_err(|error| self.complain(".", "opendir", &error)).and_then(|listing| {
            let ids: BTreeSet<DeviceId> = listing.iter().map(|info| info.id).collect();
            self.nodes.retain(|id| ids.contains(&id));
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
                    let ino = ino_of(info.id);
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
                    reply.add(INodeNo(ROOT_INO), position + 1, name, &TTL, &attributes, GENERATION)
                }
                Some(Entry::Device(listed)) => {
                    let info = match self.devices.look(listed.id) {
                        Ok(info) => info,
                        Err(error) if error.kind() == ErrorKind::NotFound => continue,
                        Err(error) => {
                            // It must not vanish from the list for that.
                            self.complain(&listed.name, "readdir", &error);
                            listed.clone()
                        }
                    };
                    let node = self.nodes.looked_up(info.id, &info.name, info.created_unix_s);
                    let attributes = self.file_attributes(&node, info.into());
                    let ino = node.ino();
                    let full = reply.add(INodeNo(ino), position + 1, &listed.name, &TTL, &attributes, GENERATION);
                    if full {
                        self.nodes.forget(ino, 1);
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
        let mut listing = match self.devices.list() {
            Ok(listing) => listing,
            Err(error) => return reply.error(self.complain(".", "statfs", &error)),
        };
        // Snapshots promise no space.
        listing.retain(|info| !info.read_only);
        let size: u64 = listing.iter().map(|info| info.size_bytes).fold(0, u64::saturating_add);
        let allocated = listing.iter().map(|info| info.allocated_bytes).fold(0, u64::saturating_add);
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
