//! Reparents clones of an object that has no data left.
//!
//! A destroyed volume stays while clones read through it. Once they have overwritten all inherited
//! data, it has no records any more (`objects::clone_needs`). But each look-up would still visit
//! it, and chains would grow with each round of promoting and destroying. So:
//! 1. After a full checkpoint, look for destroyed objects without figures that have clones and that
//!    no other point sees.
//! 2. Verify that such an object is empty: no record in the store, none in any layer above it, and
//!    no move in flight that was decided while it had records. From then on it stays empty: no
//!    client writes to it, and it has no fragments to move.
//! 3. Append a batch that sets its clones' origin to its own, or to none. Replay finds the same
//!    data at each position of the log, with or without an empty level. A reader in progress may
//!    still use the old chain.
//! 4. No point sees the object any more: it is reaped like any other.
//!
//! An object that has dictionaries stays: data that its clones have written may need them.

use std::ops::ControlFlow;

use format::{BATCH_FIXED_BYTES, Entry, header_bytes, record_key_range};
use store::base::store_error::store_error;
use surface::Result;
use units::{GroupIndex, ObjectId};

use crate::history::parts::History;

impl History {
    /// Flushes, takes a full checkpoint, and reparents clones as far as that is possible then.
    ///
    /// # Errors
    /// Those of both.
    pub(crate) fn flush_and_checkpoint(&self) -> Result<()> {
        self.writes.flush()?;
        self.checkpoints.take()?;
        self.pass_on();
        Ok(())
    }

    /// Runs all steps, if a full checkpoint has been taken since the last time. It waits for no
    /// lock: steps that other threads block are tried again.
    pub(crate) fn pass_on(&self) {
        let Some(mut last) = self.passed_on.try_lock() else { return };
        let checkpoints = self.vitals.counters.checkpoints.get();
        if *last == checkpoints {
            return;
        }
        let Some(_admin) = self.objects.admin.try_lock() else { return };
        for id in self.objects.bare() {
            match self.is_left(id) {
                Ok(None) => return,
                // If the log does not take it, the next full checkpoint is soon enough.
                Ok(Some(false)) => drop(self.pass_clones_on(id)),
                Ok(Some(true)) | Err(_) => {}
            }
        }
        *last = checkpoints;
    }

    /// Step 2: returns whether any record of an object is left; `None`: a checkpoint is running.
    fn is_left(&self, id: ObjectId) -> Result<Option<bool>> {
        let Some(_checkpoint) = self.checkpoints.state.try_lock() else { return Ok(None) };
        let _still = self.checkpoints.still.write();
        if self.map.has_changes_of(id) {
            return Ok(Some(true));
        }
        let (from, to) = record_key_range(id, GroupIndex(0), GroupIndex(u64::MAX));
        let mut is_left = false;
        let mut visit = |_: &[u8], _: &[u8]| {
            is_left = true;
            ControlFlow::Break(())
        };
        self.vitals.env.store.scan(&from, &to, &mut visit).map_err(store_error)?;
        Ok(Some(is_left))
    }

    /// Step 3, with as many clones in one batch as fit in a piece of an extent.
    fn pass_clones_on(&self, id: ObjectId) -> Result<()> {
        let bytes_max = self.geometry.extent_bytes as usize / 4;
        let (mut entries, mut bytes) = (Vec::new(), 0);
        for clone in self.objects.passed_on(id) {
            let entry = Entry::Object(clone);
            let more = header_bytes(std::slice::from_ref(&entry)) - BATCH_FIXED_BYTES;
            if !entries.is_empty() && bytes + more > bytes_max {
                self.writes.append_applied(std::mem::take(&mut entries))?;
                bytes = 0;
            }
            bytes += more;
            entries.push(entry);
        }
        if entries.is_empty() { Ok(()) } else { self.writes.append_applied(entries) }
    }
}

#[cfg(test)]
#[path = "pass_on_tests.rs"]
mod tests;
