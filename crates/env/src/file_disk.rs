//! [`Disk`] on a file or a raw block device. Owns the open descriptor, the choice between direct
//! and buffered I/O, and the counters of bytes transferred. Does not cache, reorder or merge:
//! callers issue exactly the requests that they want.
//!
//! Direct I/O (O_DIRECT) is used wherever the storage supports it: the engine caches decoded data
//! itself, and the page cache would hold the compressed bytes a second time, outside any budget.
//! Data written directly still needs [`Disk::sync`]: for the device's own cache, and for the file's
//! block map.

use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Result};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{Advice, AtFlags, FallocateFlags, StatxFlags};

use crate::deletion::Deletion;
use crate::file_space::{self, allocate};
use crate::uring::FileRing;
use crate::{AlignedBuf, Disk, ReadRing, block_device, lock};

/// Alignment of writes and of memory, as provided by [`AlignedBuf`].
const WRITE_ALIGN: usize = 4096;
/// Smallest alignment of reads: a sector. Finer reads would not save anything below.
const READ_ALIGN_MIN: usize = 512;

/// Longest single read, except through a ring, whose owner decides. Some devices slow down on
/// larger ones, and delay writes queued after them: on a virtio disk, reads of 256 KiB and more
/// reached half the throughput of reads of 128 KiB, and under mixed load took three quarters of the
/// bandwidth, leaving an eighth to writes.
const READ_BYTES: usize = 128 << 10;

/// Permissions of a new data file: owner only.
const DATA_FILE_MODE: u32 = 0o600;
/// Space that reservations leave to the rest of the file system, first of all to the map store: its
/// journal and a merge of small tables. On small file systems it is an eighth of all.
const HEADROOM_BYTES: u64 = 32 << 20;
const HEADROOM_SHARE: u64 = 8;

/// Kind of storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    File,
    BlockDevice,
}

/// A file or block device as a [`Disk`].
///
/// It is held exclusively: a block device by O_EXCL, which the kernel refuses while it is mounted
/// or otherwise claimed, a file by an advisory lock. Reads and writes take no lock and allocate
/// nothing.
#[derive(Debug)]
pub struct FileDisk {
    file: File,
    path: PathBuf,
    kind: Kind,
    read_align: usize,
    direct: bool,
    is_new: bool,
    deletion: Deletion,
    /// A sync failed. The kernel reports lost writes once only, so that the next sync would succeed
    /// without them.
    sync_failed: AtomicBool,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
}

impl FileDisk {
    /// Acquires an existing file or device, and checks that it can hold `capacity_bytes`, without
    /// touching its content; a file may be extended. For callers that must know this before they
    /// destroy something else.
    ///
    /// # Errors
    /// Those of [`create`](Self::create), except [`ErrorKind::AlreadyExists`]; and
    /// [`ErrorKind::NotFound`].
    pub fn claim(path: &Path, capacity_bytes: u64) -> Result<Self> {
        let disk = Self::open(path)?;
        let size = disk.size_bytes()?;
        if size < capacity_bytes {
            match disk.kind {
                Kind::BlockDevice => return Err(too_small(path, size, capacity_bytes)),
                Kind::File => disk.set_len(capacity_bytes)?,
            }
        }
        Ok(disk)
    }

    /// Empties a file, and sets its length to `capacity_bytes`, sparse. Leaves a device unchanged.
    ///
    /// # Errors
    /// Those of the system.
    pub fn empty(&self, capacity_bytes: u64) -> Result<()> {
        let in_context = |what: &str, error: Error| context(error, format_args!("{what} {}", self.path.display()));
        if self.kind == Kind::File {
            match self.file.set_len(0) {
                // A file of fixed size, as on a volume mounted by shale, that is large enough.
                Err(e) if e.raw_os_error() == Some(libc::EPERM) && self.size_bytes()? >= capacity_bytes => {
                    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    rustix::fs::fallocate(&self.file, flags, 0, self.size_bytes()?)
                        .map_err(|e| in_context("cannot empty", e.into()))?;
                }
                emptied => {
                    emptied.map_err(|e| in_context("cannot empty", e))?;
                    self.set_len(capacity_bytes)?;
                }
            }
            self.file.sync_all().map_err(|e| in_context("cannot sync", e))?;
            sync_parent(&self.path).map_err(|e| in_context("cannot sync the directory of", e))?;
        }
        Ok(())
    }

    fn set_len(&self, bytes: u64) -> Result<()> {
        self.file.set_len(bytes).map_err(|error| {
            let what = match error.kind() {
                ErrorKind::FileTooLarge => format!("the file system does not support a file of {bytes} bytes:"),
                _ => "cannot set the size of".to_owned(),
            };
            context(error, format_args!("{what} {}", self.path.display()))
        })
    }

    /// Makes `path` hold `capacity_bytes`: a new sparse file, or an existing empty one, or a block
    /// device that is large enough. On error, a file created here is removed, unless another
    /// process has acquired it in between.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`] when it is a file that is not empty,
    /// [`ErrorKind::ResourceBusy`] when it is in use, [`ErrorKind::InvalidInput`] when it is a
    /// device that is too small, and those of the system.
    pub fn create(path: &Path, capacity_bytes: u64) -> Result<Self> {
        let in_context = |what: &str, error: Error| context(error, format_args!("{what} {}", path.display()));
        let is_new = !path.try_exists()?;
        if is_new {
            // The content of volumes is private, wherever the file is.
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).mode(DATA_FILE_MODE);
            options.open(path).map_err(|e| in_context("cannot create", e))?;
        }
        // Until it is held, another one may take it.
        let mut disk = Self::open(path).inspect_err(|error| {
            if is_new && error.kind() != ErrorKind::ResourceBusy {
                let _ = std::fs::remove_file(path);
            }
        })?;
        disk.is_new = is_new;
        let size = disk.size_bytes()?;
        let made = match disk.kind {
            Kind::BlockDevice if size < capacity_bytes => Err(too_small(path, size, capacity_bytes)),
            Kind::File if size > 0 => Err(Error::new(
                ErrorKind::AlreadyExists,
                format!("{} exists and holds {size} bytes; remove it or choose another file", path.display()),
            )),
            Kind::BlockDevice | Kind::File => disk.empty(capacity_bytes),
        };
        if made.is_err() && is_new {
            // The error that is reported is the one that made it fail.
            let _ = std::fs::remove_file(path);
        }
        made.map(|()| disk)
    }

    /// Opens an existing file or block device.
    ///
    /// # Errors
    /// [`ErrorKind::ResourceBusy`] when it is in use (including a mounted device),
    /// [`ErrorKind::InvalidInput`] when it is neither a file nor a block device, and those of the
    /// system.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_for(path, true)
    }

    /// Opens an existing file or block device so that every write to it fails. It is held like one
    /// that is written.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn open_read_only(path: &Path) -> Result<Self> {
        Self::open_for(path, false)
    }

    fn open_for(path: &Path, write: bool) -> Result<Self> {
        let metadata = path.metadata().map_err(|e| context(e, format_args!("cannot open {}", path.display())))?;
        let kind = match metadata.file_type() {
            t if t.is_file() => Kind::File,
            t if t.is_block_device() => Kind::BlockDevice,
            _ => {
                let message = format!("{} is neither a file nor a block device", path.display());
                return Err(Error::new(ErrorKind::InvalidInput, message));
            }
        };
        let exclusive = if kind == Kind::BlockDevice { libc::O_EXCL } else { 0 };
        let open = |flags| OpenOptions::new().read(true).write(write).custom_flags(exclusive | flags).open(path);
        let (file, direct) = match open(libc::O_DIRECT) {
            Ok(file) => (file, true),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => (open(0).map_err(|e| refused(path, e))?, false),
            Err(error) => return Err(refused(path, error)),
        };
        if kind == Kind::File {
            hold(&file, path)?;
        }
        let (file, read_align) = match direct.then(|| direct_read_align(&file, kind)).flatten() {
            Some(align) => (file, Some(align)),
            None if direct => {
                // Clearing the flag, unlike reopening, never releases the exclusive hold.
                rustix::fs::fcntl_setfl(&file, rustix::fs::OFlags::empty())
                    .map_err(|e| context(e.into(), format_args!("cannot open {} for buffered I/O", path.display())))?;
                (file, None)
            }
            None => (file, None),
        };
        if read_align.is_none() {
            forget_cached(&file)
                .map_err(|e| context(e, format_args!("cannot open {} for buffered I/O", path.display())))?;
        }
        let deletion = if kind == Kind::File { Deletion::of(&file).unwrap_or_default() } else { Deletion::default() };
        Ok(Self {
            file,
            path: path.to_owned(),
            kind,
            read_align: read_align.unwrap_or(READ_ALIGN_MIN),
            direct: read_align.is_some(),
            is_new: false,
            deletion,
            sync_failed: AtomicBool::new(false),
            read_bytes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
        })
    }

    /// Whether I/O is direct; otherwise it goes through the page cache, because the file system
    /// cannot do better.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// Whether the data lies on a raw block device.
    pub fn is_block_device(&self) -> bool {
        self.kind == Kind::BlockDevice
    }

    /// Whether [`create`](Self::create) made the file, so that it can be removed again.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// Bytes read since it was opened.
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Ordering::Relaxed)
    }

    /// Bytes written since it was opened.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes.load(Ordering::Relaxed)
    }

    fn failed(&self, what: &str, offset: u64, len: u64, error: Error) -> Error {
        context(error, format_args!("{what} of {len} bytes at {offset} of {}", self.path.display()))
    }
}

impl FileDisk {
    /// Fails if the write would leave the file system without the headroom that the pool's other
    /// files need there: otherwise the map could not be updated, and not even deleting would help.
    fn keep_headroom(&self, len: u64) -> Result<()> {
        if self.beyond_headroom()? >= len { Ok(()) } else { Err(ErrorKind::StorageFull.into()) }
    }

    fn is_deleted(&self) -> Result<bool> {
        self.deletion.has_come(&self.file)
    }

    fn deleted(&self) -> Error {
        let (path, process, descriptor) = (self.path.display(), std::process::id(), self.file.as_raw_fd());
        let message = format!(
            "{path} was deleted while it is in use, and its data is lost when this process ends: before stopping it, make a copy: \
             cp --sparse=always /proc/{process}/fd/{descriptor} NEW"
        );
        Error::new(ErrorKind::NotFound, message)
    }

    /// Bytes that the file system has beyond the headroom.
    fn beyond_headroom(&self) -> Result<u64> {
        let below = rustix::fs::fstatvfs(&self.file)?;
        let headroom = HEADROOM_BYTES.min(below.f_blocks * below.f_frsize / HEADROOM_SHARE);
        Ok((below.f_bavail * below.f_frsize).saturating_sub(headroom))
    }
}

fn too_small(path: &Path, bytes: u64, capacity_bytes: u64) -> Error {
    let text = format!("{} has {bytes} bytes, fewer than the capacity of {capacity_bytes}", path.display());
    Error::new(ErrorKind::InvalidInput, text)
}

impl Drop for FileDisk {
    fn drop(&mut self) {
        if self.kind == Kind::File {
            lock::release(&self.file);
        }
    }
}

impl Disk for FileDisk {
    fn read_alignment(&self) -> usize {
        self.read_align
    }

    fn read_at(&self, offset: u64, buf: &mut AlignedBuf, len: usize) -> Result<()> {
        let Some(buf) = buf.get_mut(..len) else {
            return Err(self.failed("read", offset, len as u64, Error::from(ErrorKind::InvalidInput)));
        };
        let mut done = 0;
        while done < len {
            let piece = READ_BYTES.min(len - done);
            match self.file.read_at(&mut buf[done..done + piece], offset + done as u64) {
                Ok(count) => {
                    done += count;
                    // Only the end of the file cuts a direct read at an unaligned offset.
                    let at_end = count == 0 || (self.direct && !done.is_multiple_of(self.read_align));
                    if at_end && done < len {
                        if self.kind == Kind::BlockDevice {
                            let error = Error::new(ErrorKind::UnexpectedEof, "the device ends before");
                            return Err(self.failed("read", offset, len as u64, error));
                        }
                        // The file is shorter than the pool's capacity, as a hole at its end would
                        // be.
                        buf[done..].fill(0);
                        break;
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed("read", offset, len as u64, error)),
            }
        }
        self.read_bytes.fetch_add(len as u64, Ordering::Relaxed);
        Ok(())
    }

    fn data_from(&self, offset: u64) -> Option<u64> {
        file_space::data_from(&self.file, offset)
    }

    /// Only where reads go to the device: those that the page cache answers are faster one at a
    /// time.
    fn read_ring(&self) -> Option<Box<dyn ReadRing + '_>> {
        let ring = self.direct.then(|| FileRing::new(&self.file, &self.read_bytes))??;
        Some(Box::new(ring))
    }

    fn write_at(&self, offset: u64, buf: &AlignedBuf, len: usize) -> Result<()> {
        let fits = len.is_multiple_of(WRITE_ALIGN) && offset.is_multiple_of(WRITE_ALIGN as u64);
        let Some(buf) = buf.get(..len).filter(|_| fits) else {
            return Err(self.failed("write", offset, len as u64, Error::from(ErrorKind::InvalidInput)));
        };
        let mut done = 0;
        while done < len {
            match self.file.write_at(&buf[done..], offset + done as u64) {
                // Continue at an offset that direct I/O accepts; a part of a sector is written
                // again.
                Ok(count) if count >= WRITE_ALIGN || done + count == len => {
                    done += count;
                    done -= if done == len { 0 } else { done % WRITE_ALIGN };
                }
                Ok(_) => return Err(self.failed("write", offset, len as u64, Error::from(ErrorKind::StorageFull))),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed("write", offset, len as u64, error)),
            }
        }
        self.written_bytes.fetch_add(len as u64, Ordering::Relaxed);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        if self.sync_failed.load(Ordering::Acquire) {
            return Err(Error::other(format!(
                "an earlier sync of {} failed, so writes may be lost; close the pool and open it again",
                self.path.display()
            )));
        }
        self.file.sync_data().map_err(|error| {
            self.sync_failed.store(true, Ordering::Release);
            context(error, format_args!("sync of {}", self.path.display()))
        })?;
        if self.is_deleted()? { Err(self.deleted()) } else { Ok(()) }
    }

    fn reserve(&self, offset: u64, len: u64) -> Result<()> {
        if self.kind == Kind::BlockDevice {
            return Ok(());
        }
        let room = self.keep_headroom(len);
        if room.is_err() && self.has_space(offset, len) {
            return Ok(());
        }
        room.map_err(|e| self.failed("reservation", offset, len, e))?;
        self.reserve_last(offset, len)
    }

    fn reserve_last(&self, offset: u64, len: u64) -> Result<()> {
        if self.kind == Kind::BlockDevice {
            return Ok(());
        }
        match ignore_unsupported(allocate(&self.file, FallocateFlags::KEEP_SIZE, offset, len)) {
            // Some file systems need free blocks even for files that are fully allocated.
            Err(error) if error.kind() == ErrorKind::StorageFull && self.has_space(offset, len) => Ok(()),
            done => done.map_err(|e| self.failed("reservation", offset, len, e)),
        }
    }

    fn room_bytes(&self) -> u64 {
        match self.kind {
            Kind::BlockDevice => u64::MAX,
            // If the file system cannot be queried, the write itself reports the error.
            Kind::File => self.beyond_headroom().unwrap_or(u64::MAX),
        }
    }

    /// A written range has its space; one only set aside looks like a hole.
    fn has_space(&self, offset: u64, len: u64) -> bool {
        self.kind == Kind::BlockDevice
            || rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Hole(offset)).is_ok_and(|hole| hole >= offset + len)
    }

    fn punch(&self, offset: u64, len: u64) -> Result<()> {
        let done = match self.kind {
            Kind::File => allocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len),
            Kind::BlockDevice => block_device::discard(&self.file, offset, len),
        };
        ignore_unsupported(done).map_err(|e| self.failed("discard", offset, len, e))
    }

    fn first_write_is_dear(&self) -> bool {
        !self.is_block_device()
    }

    fn may_grow(&self) -> bool {
        matches!(self.kind, Kind::File)
    }

    fn grow(&self, bytes: u64) -> Result<()> {
        let size = self.size_bytes()?;
        if size >= bytes {
            return Ok(());
        }
        match self.kind {
            Kind::File => self.file.set_len(bytes).map_err(|e| self.failed("growing", 0, bytes, e)),
            Kind::BlockDevice => {
                let text = format!("the device has {size} bytes; make it larger first");
                Err(self.failed("growing", 0, bytes, Error::new(ErrorKind::StorageFull, text)))
            }
        }
    }

    fn shrink(&self, bytes: u64) -> Result<()> {
        match self.kind {
            Kind::File if self.size_bytes()? > bytes => {
                self.file.set_len(bytes).map_err(|e| self.failed("cutting off", bytes, 0, e))
            }
            Kind::File | Kind::BlockDevice => Ok(()),
        }
    }

    fn size_bytes(&self) -> Result<u64> {
        match self.kind {
            Kind::File => self.file.metadata().map(|m| m.len()),
            Kind::BlockDevice => block_device::size_bytes(&self.file),
        }
        .map_err(|e| context(e, format_args!("size of {}", self.path.display())))
    }

    fn occupied_bytes(&self) -> Result<u64> {
        match self.kind {
            // st_blocks counts units of 512 bytes, whatever the file system's block size.
            Kind::File => self.file.metadata().map(|m| m.blocks() * 512),
            Kind::BlockDevice => return self.size_bytes(),
        }
        .map_err(|e| context(e, format_args!("size of {}", self.path.display())))
    }
}

/// Prefixes the error with the interrupted action; its kind stays.
fn context(error: Error, what: std::fmt::Arguments<'_>) -> Error {
    Error::new(error.kind(), format!("{what}: {error}"))
}

/// Error for a file or device that could not be opened, with advice.
fn refused(path: &Path, error: Error) -> Error {
    if error.raw_os_error() == Some(libc::EBUSY) {
        let message = format!(
            "{} is in use: mounted, or opened by another program; unmount it or choose another device",
            path.display()
        );
        return Error::new(ErrorKind::ResourceBusy, message);
    }
    context(error, format_args!("cannot open {}", path.display()))
}

fn hold(file: &File, path: &Path) -> Result<()> {
    match lock::try_hold(file) {
        Ok(true) => Ok(()),
        Ok(false) => {
            Err(Error::new(ErrorKind::ResourceBusy, format!("{} is in use by another process", path.display())))
        }
        // Some network file systems have no locks; the pool's own lock still applies.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOLCK) => Ok(()),
        Err(error) => Err(context(error.into(), format_args!("cannot lock {}", path.display()))),
    }
}

/// The alignment that direct reads need, or `None` where direct I/O does not work with it and with
/// [`WRITE_ALIGN`].
fn direct_read_align(file: &File, kind: Kind) -> Option<usize> {
    let align = match kind {
        Kind::BlockDevice => rustix::fs::ioctl_blksszget(file).ok()?,
        Kind::File => {
            let stat = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
            match stat {
                Ok(stat) if stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0 => {
                    // Zero means that the file does not support direct I/O.
                    if stat.stx_dio_offset_align == 0 || stat.stx_dio_mem_align as usize > WRITE_ALIGN {
                        return None;
                    }
                    stat.stx_dio_offset_align
                }
                // Kernels before 6.1 do not report it. No file system needs more than this.
                _ => WRITE_ALIGN as u32,
            }
        }
    };
    let align = (align as usize).max(READ_ALIGN_MIN);
    let usable = align.is_power_of_two() && align <= WRITE_ALIGN;
    // Some file systems accept the flag and refuse the I/O.
    let mut buf = AlignedBuf::new(align);
    // A failure to read this sector says nothing about the others.
    let works = file.read_at(&mut buf[..align], 0).map_or_else(|e| e.raw_os_error() == Some(libc::EIO), |_| true);
    (usable && works).then_some(align)
}

/// Makes the system reread a file's cached pages from the device. After a failed sync it keeps
/// pages that were never written, and marks them clean; a reopened file must not take those for the
/// medium's content.
pub(crate) fn forget_cached(file: &File) -> Result<()> {
    // Only clean pages are dropped; a device that still fails reports it here.
    file.sync_data()?;
    Ok(rustix::fs::fadvise(file, 0, None, Advice::DontNeed)?)
}

fn ignore_unsupported(result: Result<()>) -> Result<()> {
    match result {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(()),
        other => other,
    }
}

/// Makes the directory entry of `path` durable.
pub(crate) fn sync_parent(path: &Path) -> Result<()> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}

#[cfg(test)]
#[path = "file_disk_tests.rs"]
mod tests;
