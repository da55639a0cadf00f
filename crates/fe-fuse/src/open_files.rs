//! The open files, and opening them: with `O_TRUNC` the device is emptied first. Owns the table of
//! handles. The requests on an open file are in `open_file`.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use fuse::Errno;
use surface::{BlockDevice, Client, DeviceSet, Error, ErrorKind, Held};

use crate::complaints::Complaints;
use crate::directory::unix_ns;
use crate::file_io;
use crate::handles::Handles;
use crate::nodes::Node;
use crate::open_file::File;
use crate::surviving_handles::{Opened, SurvivingHandles};

/// How long an open that empties a file waits for others to close it before it fails with "in use".
/// Long for a close in progress, even on an overloaded machine; short for the waiting caller.
const CLOSING_PATIENCE: Duration = Duration::from_secs(3);

/// The open files of one mount.
pub(crate) struct OpenFiles {
    pub(crate) devices: Arc<dyn DeviceSet>,
    pub(crate) handles: Handles<File>,
    pub(crate) complaints: Arc<Complaints>,
    pub(crate) held: Arc<Held>,
    pub(crate) now: fn() -> SystemTime,
    /// Where open files are noted for the next program, if the mount outlives this one.
    pub(crate) kept: OnceLock<SurvivingHandles>,
}

impl OpenFiles {
    /// Opens the file of a node; returns the number of its handle. With `O_TRUNC` the device is
    /// emptied first, unless another client has it open. Waits for exclusive operations on the
    /// device, and for its emptying.
    pub(crate) fn open(
        &self,
        node: Arc<Node>,
        flags: i32,
        client: &Arc<dyn Client>,
        request: u64,
    ) -> Result<u64, Errno> {
        let fail = |error: Error| self.complaints.failed_unless_gone(&node.name(), "open", &error);
        // The mode of the file does not keep root from it.
        if self.devices.look(node.id).map_err(fail)?.read_only && flags & libc::O_ACCMODE != libc::O_RDONLY {
            return Err(Errno::EROFS);
        }
        let was_emptied = flags & libc::O_TRUNC != 0;
        let device =
            if was_emptied { self.empty(&node, client)? } else { self.devices.open(node.id, client).map_err(fail)? };
        let ino = node.ino();
        let file = self.file(node, device, was_emptied);
        let handle = self.handles.insert(file).ok_or(Errno::ENFILE)?;
        if let Some(kept) = self.kept.get() {
            kept.opened(Opened { handle, node: ino, request, was_emptied });
        }
        Ok(handle)
    }

    /// Opens a file again that was open when another program served the mount.
    pub(crate) fn open_again(&self, node: Arc<Node>, opened: Opened, client: &Arc<dyn Client>) -> Result<(), Error> {
        let device = self.devices.open(node.id, client)?;
        let file = self.file(node, device, opened.was_emptied);
        self.handles.insert_at(opened.handle, file);
        Ok(())
    }

    fn file(&self, node: Arc<Node>, device: Arc<dyn BlockDevice>, was_emptied: bool) -> File {
        File { node, device, complaints: self.complaints.clone(), held: self.held.clone(), was_emptied }
    }

    pub(crate) fn close(&self, handle: u64) {
        if let Some(kept) = self.kept.get() {
            kept.closed(handle);
        }
        self.handles.remove(handle);
    }

    /// Empties a device that no client has open, and opens it. Waits for files of this mount first:
    /// to the set of devices, one that is about to be released is still open.
    fn empty(&self, node: &Node, client: &Arc<dyn Client>) -> Result<Arc<dyn BlockDevice>, Errno> {
        if !self.handles.await_none(|file| file.node.id == node.id, CLOSING_PATIENCE) {
            return Err(self.refuse_emptying(node));
        }
        let mut emptied_bytes = 0;
        let emptied = self.devices.open_alone(node.id, client, &mut |device| {
            emptied_bytes = file_io::empty(device)?;
            Ok(())
        });
        let device = emptied.map_err(|error| match error.kind() {
            ErrorKind::InUse => self.refuse_emptying(node),
            _ => self.complaints.failed_unless_gone(&node.name(), "open with O_TRUNC", &error),
        })?;
        if emptied_bytes > 0 {
            let name = node.name();
            log::info!("{name}: emptied by an open with O_TRUNC; about {emptied_bytes} bytes of data were discarded");
        }
        node.changed(unix_ns((self.now)()));
        Ok(device)
    }

    fn refuse_emptying(&self, node: &Node) -> Errno {
        self.complaints.refused(
            &node.name(),
            "opening with O_TRUNC, which empties the volume, refused while it is open (to find the user: fuser, losetup -a for \
             loop devices, shale list for NBD clients and commands); to write anyway, do not use O_TRUNC \
             (dd conv=notrunc)",
        );
        Errno::EBUSY
    }
}
