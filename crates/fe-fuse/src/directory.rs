//! The directory of devices: which files there are, what `stat` says of them, which are open. Owns the tables of nodes and
//! handles, and the lanes. Speaks no protocol: requests come through `filesystem`.

use std::ffi::OsStr;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{Errno, FileAttr, FileHandle, FileType, INodeNo, TimeOrNow};
use surface::{BlockDevice, DeviceInfo, DeviceSet, Error, ErrorKind};

use crate::complaints::Complaints;
use crate::file_io::{self, Failure};
use crate::handles::Handles;
use crate::lane::Lane;
use crate::nodes::{Node, Nodes, ROOT_INO};
use crate::open_file::File;
use crate::options::{CHANGES_WAITING, MountOptions};

/// Mode of a device's file.
pub(crate) const FILE_PERMISSIONS: u16 = 0o600;

/// Mode of a snapshot's file. Whoever may do anything is told so when it opens the file to write.
pub(crate) const SNAPSHOT_PERMISSIONS: u16 = 0o400;

/// The unit of `statfs`, which loop devices take as the smallest piece that can be discarded.
pub(crate) const BLOCK_BYTES: u32 = 4096;

/// `st_blksize`: how much `cmp`, `cp`, stdio and Python read at a time. Each request is a way to the server and back, and nothing is
/// cached between: with 4096 comparing a file of 2 GiB took 42 s, with this 9 s.
const REQUEST_BYTES: u32 = 128 << 10;

/// `st_blocks` counts in these.
pub(crate) const SECTOR_BYTES: u64 = 512;

/// How long whoever empties a file waits for others to close it, before it is told that the file is in use. Long for a close
/// that is on its way, also where the machine is overloaded; short for a thread that other requests wait for.
const CLOSING_PATIENCE: Duration = Duration::from_secs(3);

/// The file system of one mount.
pub(crate) struct DeviceDirectory {
    pub(crate) devices: Arc<dyn DeviceSet>,
    pub(crate) nodes: Nodes,
    pub(crate) files: Handles<File>,
    /// What was there when the directory was opened: positions stay valid while it is read.
    pub(crate) listings: Handles<Vec<DeviceInfo>>,
    pub(crate) complaints: Arc<Complaints>,
    /// Reads that may wait for the disk.
    pub(crate) reads: Lane,
    /// Writes, flushes and discards that may wait.
    pub(crate) changes: Lane,
    pub(crate) now: fn() -> SystemTime,
    /// The modification time of the directory.
    pub(crate) mounted_unix_ns: u64,
    pub(crate) directory_permissions: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl DeviceDirectory {
    pub(crate) fn new(devices: Arc<dyn DeviceSet>, options: &MountOptions) -> io::Result<Self> {
        Ok(Self {
            devices,
            nodes: Nodes::default(),
            files: Handles::default(),
            listings: Handles::default(),
            complaints: Arc::new(Complaints::default()),
            // One thread is always left that takes requests.
            reads: Lane::new("fuse-read", options.reads_waiting, options.threads > 2)?,
            changes: Lane::new("fuse-change", CHANGES_WAITING, options.threads > 1)?,
            now: options.now,
            mounted_unix_ns: unix_ns((options.now)()),
            directory_permissions: if options.allow_other { 0o755 } else { 0o700 },
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        })
    }

    pub(crate) fn now_unix_ns(&self) -> u64 {
        unix_ns((self.now)())
    }

    pub(crate) fn attributes(
        &self,
        ino: u64,
        size: u64,
        allocated: u64,
        created_unix_s: u64,
        changed_ns: Option<u64>,
    ) -> FileAttr {
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
            blksize: REQUEST_BYTES,
            flags: 0,
        }
    }

    pub(crate) fn file_attributes(&self, node: &Node, device: &dyn BlockDevice) -> FileAttr {
        let (created, changed) = (node.created_unix_s(), node.changed_unix_ns());
        let attributes = self.attributes(node.ino, device.size_bytes(), device.allocated_bytes(), created, changed);
        FileAttr { perm: permissions(device.is_read_only()), ..attributes }
    }

    pub(crate) fn directory_attributes(&self) -> FileAttr {
        FileAttr {
            kind: FileType::Directory,
            perm: self.directory_permissions,
            nlink: 2,
            ..self.attributes(ROOT_INO, 0, 0, 0, Some(self.mounted_unix_ns))
        }
    }

    /// Logs what the device said, and gives the errno for it. A device that is not there is no failure.
    pub(crate) fn complain(&self, file: &str, doing: &str, error: &Error) -> Errno {
        if error.kind() == ErrorKind::NotFound {
            return Errno::ENOENT;
        }
        self.complaints.failed(file, doing, error)
    }

    pub(crate) fn find(&self, name: &str) -> Result<(DeviceInfo, Arc<dyn BlockDevice>), Errno> {
        let found = self.devices.list().and_then(|list| {
            let info = list.into_iter().find(|info| info.name == name);
            let info = info.ok_or_else(|| Error::new(ErrorKind::NotFound, format!("there is no volume {name}")))?;
            Ok((info, self.devices.open(name)?))
        });
        found.map_err(|error| self.complain(name, "lookup", &error))
    }

    pub(crate) fn node(&self, ino: INodeNo) -> Result<Arc<Node>, Errno> {
        self.nodes.get(ino.0).ok_or(Errno::ESTALE)
    }

    pub(crate) fn file(&self, fh: FileHandle) -> Result<Arc<File>, Errno> {
        self.files.get(fh.0).ok_or(Errno::EBADF)
    }

    /// The node of `ino` and its device: that of the handle, if there is one.
    pub(crate) fn node_and_device(
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
    pub(crate) fn refuse_change(&self, name: &OsStr, what: &str) -> Errno {
        let name = name.to_string_lossy();
        self.complaints.refused(
            &name,
            format_args!(
                "{what} refused: volumes are made, cloned and destroyed with the shale command, not through the mount"
            ),
        );
        Errno::EPERM
    }

    pub(crate) fn change_attributes(
        &self,
        node: &Node,
        device: &dyn BlockDevice,
        wanted: &WantedAttributes,
    ) -> Result<FileAttr, Errno> {
        if let Some(size) = wanted.size {
            self.truncate(node, device, size, wanted.was_emptied)?;
        }
        let mode = u32::from(permissions(device.is_read_only()));
        let other_mode = wanted.mode.is_some_and(|wanted| wanted & 0o7777 != mode);
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
}

impl DeviceDirectory {
    /// Opens the file of a node. With `O_TRUNC` the device is emptied first, unless somebody else has it open.
    pub(crate) fn open_file(&self, node: Arc<Node>, device: Arc<dyn BlockDevice>, flags: i32) -> Result<u64, Errno> {
        // The mode of the file does not keep root from it.
        if device.is_read_only() && flags & libc::O_ACCMODE != libc::O_RDONLY {
            return Err(Errno::EROFS);
        }
        let was_emptied = flags & libc::O_TRUNC != 0;
        let device = if was_emptied { self.empty(&node, device)? } else { device };
        let file = File { node, device, complaints: self.complaints.clone(), was_emptied };
        self.files.insert(file).ok_or(Errno::ENFILE)
    }

    /// Empties a device that nobody has open but who has just got `device` to do it; gives it back. Files of this mount are waited for first: to
    /// the set of devices, one that is about to be released is as open as any.
    fn empty(&self, node: &Node, device: Arc<dyn BlockDevice>) -> Result<Arc<dyn BlockDevice>, Errno> {
        if !self.files.await_none(|file| file.node.ino == node.ino, CLOSING_PATIENCE) {
            return Err(self.refuse_emptying(node));
        }
        // It counts as open, too.
        drop(device);
        let mut emptied_bytes = 0;
        let emptied = self.devices.open_alone(&node.name, &mut |device| {
            emptied_bytes = file_io::empty(device)?;
            Ok(())
        });
        let device = emptied.map_err(|error| match error.kind() {
            ErrorKind::InUse => self.refuse_emptying(node),
            _ => self.complain(&node.name, "open with O_TRUNC", &error),
        })?;
        if emptied_bytes > 0 {
            let name = &node.name;
            log::info!("{name}: emptied by an open with O_TRUNC; about {emptied_bytes} bytes of data were discarded");
        }
        node.changed(self.now_unix_ns());
        Ok(device)
    }

    fn refuse_emptying(&self, node: &Node) -> Errno {
        self.complaints.refused(
            &node.name,
            "opening with O_TRUNC, which empties the volume, refused while it is open (fuser tells by whom, losetup -a for \
             loop devices, shale list whether by NBD clients or commands); to write to it all the same, leave O_TRUNC out \
             (dd conv=notrunc)",
        );
        Errno::EBUSY
    }

    fn truncate(&self, node: &Node, device: &dyn BlockDevice, size: u64, was_emptied: bool) -> Result<(), Errno> {
        match file_io::truncate(device, size, was_emptied) {
            Ok(()) => Ok(()),
            Err(Failure::Device(error)) => Err(self.complain(&node.name, "truncate", &error)),
            Err(Failure::Rule(errno)) => {
                self.complaints.refused(
                    &node.name,
                    format_args!(
                        "truncate from {} to {size} bytes refused: a volume keeps its size when it is written (dd with seek= \
                         needs conv=notrunc); to change it, use shale resize",
                        device.size_bytes()
                    ),
                );
                Err(errno)
            }
        }
    }
}

/// Mode of a file.
pub(crate) const fn permissions(read_only: bool) -> u16 {
    if read_only { SNAPSHOT_PERMISSIONS } else { FILE_PERMISSIONS }
}

/// What `setattr` asks for.
pub(crate) struct WantedAttributes {
    pub(crate) mode: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) size: Option<u64>,
    pub(crate) mtime: Option<TimeOrNow>,
    /// Whether it comes through a file that was opened with `O_TRUNC`.
    pub(crate) was_emptied: bool,
}

pub(crate) fn unix_ns(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}
