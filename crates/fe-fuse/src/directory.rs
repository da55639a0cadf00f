//! The directory of devices: file attributes, and the open files. Owns the tables of nodes and of
//! open files, and the lanes. Folders are in `folders`. Protocol independent: requests come through
//! `filesystem`.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use fuse::{Attributes, Errno, LaneOptions, Lanes, SetAttributes, Time, TimeToSet};
use surface::{BlockDevice, DeviceInfo, DeviceSet, Error, Held, NamedClient};

use crate::complaints::Complaints;
use crate::file_io::{self, Failure};
use crate::folders::Entries;
use crate::handles::Handles;
use crate::nodes::{Node, Nodes, device_of};
use crate::open_file::File;
use crate::open_files::OpenFiles;
use crate::options::{CHANGES_WAITING, DOOR, EMPTYINGS_WAITING, MountOptions, OPENS_WAITING};
use crate::surviving_handles::SurvivingHandles;

/// Mode of a device's file.
pub(crate) const FILE_PERMISSIONS: u16 = 0o600;

/// Mode of a snapshot's file. A privileged process gets the error when it opens the file for
/// writing.
pub(crate) const SNAPSHOT_PERMISSIONS: u16 = 0o400;

/// The unit of `statfs`, which loop devices take as the smallest piece that can be discarded.
pub(crate) const BLOCK_BYTES: u32 = 4096;

/// `st_blksize`: the read size of `cmp`, `cp`, stdio and Python. Each request is a round trip to
/// the server, without caching: with 4096, comparing a file of 2 GiB took 42 s, with this value 9
/// s.
const REQUEST_BYTES: u32 = 128 << 10;

/// `st_blocks` counts in these.
pub(crate) const SECTOR_BYTES: u64 = 512;

const NS_PER_S: u64 = 1_000_000_000;

/// The file system of one mount.
pub(crate) struct DeviceDirectory {
    pub(crate) devices: Arc<dyn DeviceSet>,
    pub(crate) nodes: Nodes,
    pub(crate) files: Arc<OpenFiles>,
    /// Of open directories.
    pub(crate) listings: Handles<Entries>,
    pub(crate) complaints: Arc<Complaints>,
    /// By their numbers below.
    pub(crate) lanes: Lanes,
    pub(crate) now: fn() -> SystemTime,
    /// The modification time of the directory.
    pub(crate) mounted_unix_ns: u64,
    pub(crate) directory_permissions: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Another program has served the mount before: the kernel may use nodes and open directories
    /// that this one never announced.
    pub(crate) is_taken_over: bool,
}

/// Lane of reads that may wait for the disk.
pub(crate) const READS: usize = 0;
/// Lane of writes, flushes and discards that may wait.
pub(crate) const CHANGES: usize = 1;
/// Lane of opening files: may wait for the end of an exclusive operation on the device.
pub(crate) const OPENS: usize = 2;
/// Lane of opening files with `O_TRUNC`: may wait for others to close them, and for all of the
/// emptying.
pub(crate) const EMPTYINGS: usize = 3;

impl DeviceDirectory {
    pub(crate) fn new(devices: Arc<dyn DeviceSet>, options: &MountOptions) -> io::Result<Self> {
        let complaints = Arc::new(Complaints::default());
        let lane = |threads, may_borrow| LaneOptions { threads, may_borrow };
        // In the order of their numbers.
        let lanes = [
            lane(options.reads_waiting, true),
            lane(CHANGES_WAITING, true),
            lane(OPENS_WAITING, false),
            lane(EMPTYINGS_WAITING, false),
        ];
        Ok(Self {
            nodes: Nodes::default(),
            files: Arc::new(OpenFiles {
                devices: devices.clone(),
                handles: Handles::default(),
                complaints: complaints.clone(),
                held: Arc::new(Held::start("fuse-held")?),
                now: options.now,
                kept: OnceLock::new(),
            }),
            is_taken_over: false,
            devices,
            listings: Handles::default(),
            complaints,
            lanes: Lanes::new("fuse", &lanes)?,
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
    ) -> Attributes {
        let created = Time::from_unix_ns(created_unix_s.saturating_mul(NS_PER_S));
        let changed = changed_ns.map_or(created, |ns| created.max(Time::from_unix_ns(ns)));
        Attributes {
            inode: ino,
            size,
            blocks: allocated.div_ceil(SECTOR_BYTES),
            accessed: changed,
            modified: changed,
            changed,
            mode: libc::S_IFREG | u32::from(FILE_PERMISSIONS),
            links: 1,
            uid: self.uid,
            gid: self.gid,
            device: 0,
            block_bytes: REQUEST_BYTES,
        }
    }

    pub(crate) fn file_attributes(&self, node: &Node, state: FileState) -> Attributes {
        let (created, changed) = (node.created_unix_s, node.changed_unix_ns());
        let attributes = self.attributes(node.ino(), state.size_bytes, state.allocated_bytes, created, changed);
        Attributes { mode: libc::S_IFREG | u32::from(permissions(state.read_only)), ..attributes }
    }

    /// See [`Complaints::failed_unless_gone`].
    pub(crate) fn complain(&self, file: &str, doing: &str, error: &Error) -> Errno {
        self.complaints.failed_unless_gone(file, doing, error)
    }

    pub(crate) fn node(&self, ino: u64) -> Result<Arc<Node>, Errno> {
        if let Some(node) = self.nodes.get(ino) {
            return Ok(node);
        }
        let id = device_of(ino).filter(|_| self.is_taken_over).ok_or(Errno::ESTALE)?;
        let info = self.devices.look(id).map_err(|_| Errno::ESTALE)?;
        Ok(self.nodes.looked_up(info.id, &info.name, info.created_unix_s))
    }

    /// The listing of an open directory.
    pub(crate) fn listing(&self, node: u64, handle: u64) -> Result<Arc<Entries>, Errno> {
        match self.listings.get(handle) {
            Some(listing) => Ok(listing),
            None if self.is_taken_over => Ok(Arc::new(self.entries(node)?)),
            None => Err(Errno::EBADF),
        }
    }

    /// Continues with the open files of the program that served the mount before.
    pub(crate) fn take_over(&mut self, left: SurvivingHandles) {
        self.is_taken_over = true;
        let client = NamedClient::at(DOOR, "file in the mount, open since before the server restarted");
        for opened in left.earlier() {
            let again = self.node(opened.node).map(|node| (node.name(), self.files.open_again(node, opened, &client)));
            match again {
                Ok((_, Ok(()))) => {}
                Ok((name, Err(error))) => log::error!("{name}: cannot reopen a file that was open: {error}"),
                Err(_) => log::warn!("a volume that is open as a file no longer exists"),
            }
        }
        let _ = self.files.kept.set(left);
    }

    pub(crate) fn file(&self, fh: u64) -> Result<Arc<File>, Errno> {
        self.files.handles.get(fh).ok_or(Errno::EBADF)
    }

    /// The current state of a node's file: from `file`, if given, else from the set, or from any
    /// open file of it.
    pub(crate) fn state(&self, node: &Node, file: Option<&File>) -> Result<FileState, Errno> {
        if let Some(file) = file {
            return Ok(FileState::of(&*file.device));
        }
        self.devices.look(node.id).map(FileState::from).or_else(|error| {
            // A device that was destroyed, or is not served under its new name, still exists for
            // clients that have it open.
            let open = self.files.handles.find(|file| file.node.id == node.id);
            open.map_or_else(
                || Err(self.complain(&node.name(), "stat", &error)),
                |file| Ok(FileState::of(&*file.device)),
            )
        })
    }

    /// Refuses to create, remove or rename a volume.
    pub(crate) fn refuse_change(&self, name: &[u8], what: &str) -> Errno {
        let name = String::from_utf8_lossy(name);
        self.complaints.refused(
            &name,
            format_args!(
                "{what} refused: volumes are created, cloned and destroyed with the shale command, not through the mount"
            ),
        );
        Errno::EPERM
    }

    pub(crate) fn change_attributes(
        &self,
        node: &Node,
        file: Option<&File>,
        wanted: &SetAttributes,
    ) -> Result<Attributes, Errno> {
        let state = self.state(node, file)?;
        if let Some(size) = wanted.size {
            self.truncate(node, file, state.size_bytes, size)?;
        }
        let mode = u32::from(permissions(state.read_only));
        let other_mode = wanted.mode.is_some_and(|wanted| wanted & 0o7777 != mode);
        let other_owner =
            wanted.uid.is_some_and(|uid| uid != self.uid) || wanted.gid.is_some_and(|gid| gid != self.gid);
        if other_mode || other_owner {
            self.complaints.refused(&node.name(), "chmod or chown refused: the file of a volume belongs to its server");
            return Err(Errno::EPERM);
        }
        match wanted.modified {
            Some(TimeToSet::Now) => node.changed(self.now_unix_ns()),
            Some(TimeToSet::At(time)) => node.changed(time.unix_ns()),
            None => {}
        }
        Ok(self.file_attributes(node, state))
    }

    fn truncate(&self, node: &Node, file: Option<&File>, is: u64, size: u64) -> Result<(), Errno> {
        let emptied = file.filter(|file| file.was_emptied).map(|file| &*file.device);
        match file_io::truncate(emptied, is, size) {
            Ok(()) => Ok(()),
            Err(Failure::Device(error)) => Err(self.complain(&node.name(), "truncate", &error)),
            Err(Failure::Rule(errno)) => {
                self.complaints.refused(
                    &node.name(),
                    format_args!(
                        "truncate from {is} to {size} bytes refused: a volume keeps its size when it is written (dd with seek= \
                         needs conv=notrunc); to change it, use shale resize"
                    ),
                );
                Err(errno)
            }
        }
    }
}

/// Attributes of a file that change without the kernel's knowledge.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileState {
    size_bytes: u64,
    allocated_bytes: u64,
    read_only: bool,
}

impl FileState {
    fn of(device: &dyn BlockDevice) -> Self {
        let (size_bytes, allocated_bytes) = (device.size_bytes(), device.allocated_bytes());
        Self { size_bytes, allocated_bytes, read_only: device.is_read_only() }
    }
}

impl From<DeviceInfo> for FileState {
    fn from(info: DeviceInfo) -> Self {
        Self { size_bytes: info.size_bytes, allocated_bytes: info.allocated_bytes, read_only: info.read_only }
    }
}

/// Mode of a file.
pub(crate) const fn permissions(read_only: bool) -> u16 {
    if read_only { SNAPSHOT_PERMISSIONS } else { FILE_PERMISSIONS }
}

pub(crate) fn unix_ns(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}
