//! The journal of a mounted tree, and the keeper that holds it together with the mount. Owns
//! whether the keeper has the current journal, and when it is offered again.
//!
//! The thread that mounts begins this; the one that commits from time to time continues it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fuse::Session;
use fuse::keep::KeeperSlot;
use fuse::mount::MountPoint;
use share::Tree;
use surface::{Error, ErrorKind, Result};

use crate::memory_journal::MemoryJournal;
use crate::mount::MountOptions;
use crate::served::Served;
use crate::xattr_support::XattrSupport;

/// Begins the journal of a tree's changes, if there is a place for it or a keeper that holds it.
pub(crate) fn begin_journal(tree: &Tree, options: &MountOptions, is_kept: bool) -> Option<Arc<MemoryJournal>> {
    if !is_kept && options.journal.is_none() {
        return None;
    }
    // The journal contains the changes from now on.
    let settled = settle(tree);
    let journal = Arc::new(MemoryJournal::new(tree.session(), options.journal.clone()));
    if let Err(error) = settled {
        log::warn!("a share has changes that are not durable and that its journal lacks: {error}");
        journal.note_unrecorded();
    }
    tree.keep_journal(journal.clone());
    Some(journal)
}

fn settle(tree: &Tree) -> io::Result<()> {
    tree.settle().map_err(|failure| io::Error::from_raw_os_error(failure.errno()))
}

/// Version of the description of a mount that a keeper holds: version 1, extended attributes 1, the
/// mount point.
const VERSION: u8 = 1;

/// A mount as a keeper holds it, so that a recreated journal can be held with it.
pub(crate) struct HeldMount {
    place: MountPoint,
    xattrs: XattrSupport,
    devices: Vec<Arc<OwnedFd>>,
    kept_by: KeeperSlot,
    /// The keeper does not have the current journal.
    is_unheld: AtomicBool,
}

/// Describes a mount that is not held with its journal, and the remedy.
pub(crate) fn not_held(error: &io::Error) -> String {
    format!(
        "the mount does not survive a crash of this server yet: {error}; make room where its journal is (`df /dev/shm`, or \
         the directory of --standby): it is tried again every few seconds"
    )
}

impl HeldMount {
    pub(crate) fn of(
        session: &Session<Served>,
        place: &MountPoint,
        xattrs: XattrSupport,
        kept_by: &KeeperSlot,
    ) -> Self {
        let (place, devices, kept_by) = (place.clone(), session.descriptors(), kept_by.clone());
        Self { place, xattrs, devices, kept_by, is_unheld: AtomicBool::new(true) }
    }

    fn encode(place: &MountPoint, xattrs: XattrSupport) -> Vec<u8> {
        [&[VERSION, xattrs.to_byte()][..], &place.to_bytes()].concat()
    }

    /// Decodes the description of a mount that a keeper holds.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if a server of another version has left it.
    pub(crate) fn decode(bytes: &[u8]) -> Result<(MountPoint, XattrSupport)> {
        let invalid = || Error::new(ErrorKind::Corrupt, "the keeper's description of its mount is damaged: unmount it");
        let (version, rest) = bytes.split_first().ok_or_else(invalid)?;
        if *version != VERSION {
            let text = format!(
                "its mount was left by another version of Shale (description {version}, this program knows {VERSION}): \
                 start that version, or unmount it"
            );
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        let (xattrs, place) = rest.split_first().ok_or_else(invalid)?;
        MountPoint::from_bytes(place).zip(XattrSupport::from_byte(*xattrs)).ok_or_else(invalid)
    }

    /// Makes the keeper hold the mount and its journal.
    pub(crate) fn hold(&self, journal: &MemoryJournal) -> io::Result<()> {
        self.is_unheld.store(true, Ordering::Relaxed);
        let memory = journal.memory()?;
        // The keeper watches the first descriptor for the end of the connection; the memory comes
        // last.
        let devices = self.devices.iter().map(|device| device.as_fd());
        let descriptors: Vec<BorrowedFd<'_>> = devices.chain([memory.as_fd()]).collect();
        let bytes = Self::encode(&self.place, self.xattrs);
        self.kept_by.keeper.put(&self.kept_by.name, &bytes, &descriptors)?;
        self.is_unheld.store(false, Ordering::Relaxed);
        Ok(())
    }
}

/// Recreates a journal that the next program would not find and passes it to the keeper. It becomes
/// valid once all changes that it lacks are durable.
pub(crate) fn maintain_journal(journal: &MemoryJournal, tree: &Tree, held_mount: Option<&HeldMount>) -> io::Result<()> {
    let is_renewed = journal.renew();
    // It becomes valid without the keeper as well, where the next server finds its file.
    let held = match held_mount {
        Some(held_mount) if is_renewed || held_mount.is_unheld.load(Ordering::Relaxed) => held_mount.hold(journal),
        _ => Ok(()),
    };
    if let Some(failures) = journal.missing() {
        settle(tree)?;
        journal.settled(failures);
    }
    held.map_err(|error| io::Error::other(not_held(&error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_that_another_version_has_left_is_refused() {
        let place = MountPoint::from_bytes(b"\x07\0\0\0\x01/srv/shares/home").unwrap();
        let bytes = HeldMount::encode(&place, XattrSupport::WithoutAcls);
        assert_eq!(HeldMount::decode(&bytes).unwrap(), (place, XattrSupport::WithoutAcls));
        let other = HeldMount::decode(&[&[VERSION + 1], &bytes[1..]].concat()).unwrap_err();
        assert_eq!(other.kind(), ErrorKind::Unsupported);
        assert!(other.to_string().contains("start that version"), "{other}");
        for damaged in [&[][..], &[VERSION], &bytes[..4], &[VERSION, 9, 7, 0, 0, 0, 1, b'/']] {
            assert_eq!(HeldMount::decode(damaged).unwrap_err().kind(), ErrorKind::Corrupt);
        }
    }
}
