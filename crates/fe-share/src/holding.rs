//! The journal of a mounted tree, and the keeper that holds it with the mount. Owns whether the
//! keeper has the journal as it is now, and when it is offered again.
//!
//! The thread that mounts begins this; the one that commits from time to time goes on with it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fuse::Session;
use fuse::keep::KeptBy;
use fuse::mount::Place;
use share::Tree;

use crate::kept::KeptJournal;
use crate::mount::MountOptions;
use crate::served::Served;

/// Begins the journal of a tree's changes, if there is a place for it, or a keeper that holds it.
pub(crate) fn begin_journal(tree: &Tree, options: &MountOptions, is_kept: bool) -> Option<Arc<KeptJournal>> {
    if !is_kept && options.journal.is_none() {
        return None;
    }
    // The journal has the changes from now on.
    let settled = settle(tree);
    let journal = Arc::new(KeptJournal::new(tree.session(), options.journal.clone()));
    if let Err(error) = settled {
        log::warn!("a share has changes that are not durable and that its journal lacks: {error}");
        journal.lacks_some();
    }
    tree.keep_journal(journal.clone());
    Some(journal)
}

fn settle(tree: &Tree) -> io::Result<()> {
    tree.settle().map_err(|failure| io::Error::from_raw_os_error(failure.errno()))
}

/// A mount as a keeper holds it, so that a journal that is made again can be held with it.
pub(crate) struct HeldBy {
    place: Place,
    devices: Vec<Arc<OwnedFd>>,
    kept_by: KeptBy,
    /// The keeper does not have the journal as it is now.
    is_unheld: AtomicBool,
}

/// Says that a mount is not held with its journal, and what to do.
pub(crate) fn not_held(error: &io::Error) -> String {
    format!(
        "the mount does not survive a crash of this server yet: {error}; make room where its journal is (`df /dev/shm`, or \
         the directory of --standby): it is tried again every few seconds"
    )
}

impl HeldBy {
    pub(crate) fn of(session: &Session<Served>, place: &Place, kept_by: &KeptBy) -> Self {
        let (place, devices, kept_by) = (place.clone(), session.descriptors(), kept_by.clone());
        Self { place, devices, kept_by, is_unheld: AtomicBool::new(true) }
    }

    /// Has the keeper hold the mount and its journal.
    pub(crate) fn hold(&self, journal: &KeptJournal) -> io::Result<()> {
        self.is_unheld.store(true, Ordering::Relaxed);
        let memory = journal.memory()?;
        // The keeper looks at the first for the end of the connection; the memory comes last.
        let devices = self.devices.iter().map(|device| device.as_fd());
        let descriptors: Vec<BorrowedFd<'_>> = devices.chain([memory.as_fd()]).collect();
        self.kept_by.keeper.put(&self.kept_by.name, &self.place.to_bytes(), &descriptors)?;
        self.is_unheld.store(false, Ordering::Relaxed);
        Ok(())
    }
}

/// Makes a journal again that the next program would not find, has the keeper hold it, and has it
/// count when all is durable that it lacks.
pub(crate) fn look_after(journal: &KeptJournal, tree: &Tree, held_by: Option<&HeldBy>) -> io::Result<()> {
    let is_renewed = journal.renew();
    // It counts without the keeper as well, where the next server finds its file.
    let held = match held_by {
        Some(held_by) if is_renewed || held_by.is_unheld.load(Ordering::Relaxed) => held_by.hold(journal),
        _ => Ok(()),
    };
    if let Some(failures) = journal.missing() {
        settle(tree)?;
        journal.settled(failures);
    }
    held.map_err(|error| io::Error::other(not_held(&error)))
}
