//! Finds the newest opening of the pool, by the data file and by the map: so a map or data file
//! from a backup next to a newer counterpart is recognised. Batches of later openings show it, too,
//! but they disappear with their extents; the *note* is in extent 0 and stays.
//!
//! 1. A checkpoint that names incarnation *n* is durable.
//! 2. Both copies of the note name *n*, durably. A copy that cannot be written is skipped: then
//!    only the log can show it.
//! 3. The map records, durably, that the note names *n*, if all of step 2 was done: a small batch
//!    of the store, no checkpoint.
//! 4. Only now may the log continue under *n*: so map and data belong together from the first batch
//!    of an opening on.
//!
//! - A note above the checkpoint's incarnation: that checkpoint is not the newest one, by step 1.
//!   The map is older than the data.
//! - A note below the map's record of it: the data is older than the map, by step 2.
//! - A crash before step 4 leaves a note below the checkpoint's incarnation, in one copy or in
//!   both, or a map that records less than the note. That proves nothing, and need not: nothing was
//!   written under *n*, so the data of the opening before has all acknowledged writes.
//! - A copy is one sector, so it is the old one or the new one; the higher one wins. A damaged one
//!   is ignored; without any, there is no result.

use std::sync::atomic::Ordering;

use env::{AlignedBuf, Disk, MapBatch, MapStore};
use format::{
    BATCH_ALIGN, Checkpoint, KEY_CHECKPOINT, KEY_NOTED, OPENING_NOTE_BYTES, OPENING_NOTE_OFFSETS, OpeningNote,
};
use store::base::canary::Canary;
use store::base::store_error::store_error;
use surface::{Error, ErrorKind, Result};

use crate::checkpoint::Checkpoints;

const SALVAGE: &str = "make another pool from the data file alone: shale salvage DATA --into NEW";

/// Writes both copies and makes them durable. Returns `false` if one could not be written.
///
/// # Errors
/// When the sync failed.
pub(crate) fn write_note(disk: &dyn Disk, pool: [u8; 16], incarnation: u64) -> Result<bool> {
    let mut buf = AlignedBuf::new(BATCH_ALIGN);
    buf[..OPENING_NOTE_BYTES].copy_from_slice(&OpeningNote { pool, incarnation }.encode());
    let written = OPENING_NOTE_OFFSETS.map(|offset| disk.write_at(offset, &buf, BATCH_ALIGN).is_ok());
    disk.sync().map_err(|e| Error::from_io("syncing the data file failed while the opening was being noted", e))?;
    Ok(written == [true; 2])
}

/// Returns the newest opening recorded in the data file, if there is a note.
pub(crate) fn read_note(disk: &dyn Disk, pool: [u8; 16]) -> Option<u64> {
    let mut buf = AlignedBuf::new(BATCH_ALIGN);
    let copies = OPENING_NOTE_OFFSETS.map(|offset| {
        disk.read_at(offset, &mut buf, BATCH_ALIGN).ok()?;
        let note = OpeningNote::decode(&buf[..OPENING_NOTE_BYTES]).ok()?;
        (note.pool == pool).then_some(note.incarnation)
    });
    copies.into_iter().flatten().max()
}

/// An older map next to newer data: only [`SALVAGE`] can handle it.
pub(crate) fn older_map(incarnation: u64, newer: u64) -> Error {
    let text = format!(
        "the map is older than the data: it was last written in opening {incarnation} of the pool, and the data \
         file was written in opening {newer}, so the map may come from a backup. Restore the newest map, or \
         {SALVAGE}"
    );
    Error::new(ErrorKind::Corrupt, text)
}

/// Verifies that neither the map nor the data file is older than the other one, as far as their
/// notes show.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if one is, and those of the store. Missing and damaged records are left
/// to the reader that loads them.
pub(crate) fn check(store: &dyn MapStore, disk: &dyn Disk, pool: [u8; 16]) -> Result<()> {
    let Some(noted) = read_note(disk, pool) else { return Ok(()) };
    let checkpoint = store.get(KEY_CHECKPOINT).map_err(store_error)?.and_then(|bytes| Checkpoint::decode(&bytes).ok());
    if let Some(checkpoint) = checkpoint.filter(|checkpoint| checkpoint.pool == pool && checkpoint.incarnation < noted)
    {
        return Err(older_map(checkpoint.incarnation, noted));
    }
    let known = store.get(KEY_NOTED).map_err(store_error)?.and_then(|bytes| OpeningNote::decode(&bytes).ok());
    match known.filter(|known| known.pool == pool && known.incarnation > noted) {
        Some(OpeningNote { incarnation: known, .. }) => {
            let text = format!(
                "the data file is older than the map: it was last written in opening {noted} of the pool, and \
                 the map records opening {known}, so the data file may come from a backup. Restore the newest \
                 data file, or the map that belongs to this one, or {SALVAGE}"
            );
            Err(Error::new(ErrorKind::Corrupt, text))
        }
        None => Ok(()),
    }
}

impl Checkpoints {
    /// Steps 2 and 3, once for each incarnation. The caller holds the checkpoint's lock.
    ///
    /// # Errors
    /// When the sync of the data or of the map failed: then writes are refused.
    pub(crate) fn note_opening(&self, incarnation: u64) -> Result<()> {
        if self.noted.swap(incarnation, Ordering::Relaxed) == incarnation {
            return Ok(());
        }
        if write_note(&*self.vitals.env.disk, self.pool_id, incarnation).inspect_err(|error| self.vitals.fail(error))?
            && !Canary::OpeningNotedInDataOnly.is_planted()
        {
            let mut batch = MapBatch::default();
            batch.put(KEY_NOTED, OpeningNote { pool: self.pool_id, incarnation }.encode());
            let store = &self.vitals.env.store;
            let stored = store.commit(batch).and_then(|()| store.persist()).map_err(store_error);
            stored.inspect_err(|error| self.vitals.fail(error))?;
        }
        Ok(())
    }
}
