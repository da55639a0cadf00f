//! Zeroes written ahead of a log that is synced after every few kilobytes.
//!
//! The first write to a place of a sparse file makes the file system record that the place is written now, and the next
//! sync waits for its journal: two to three times as long as for a place that was written before. Writers that sync after every block
//! would pay that each time. So once such a writer is recognised, a stretch ahead of the log is filled with zeroes, and
//! the journal is waited for once a stretch. Zeroes are no batch, so recovery does not care.

use std::io::Result;

use env::{AlignedBuf, Disk};

/// Batches up to this size come from a writer that syncs often.
const SMALL_BATCH_BYTES: usize = 16 << 10;
/// So many of them in a row, each behind a sync of its own, make the pattern.
const STREAK_MIN: u32 = 4;
/// Bytes filled at a time: 64 of the smallest batches share the journal's cost; more would delay the one that fills.
const STRETCH_BYTES: u32 = 256 << 10;

/// What is known of a stream and of its open extent.
#[derive(Debug, Default)]
pub(crate) struct Prefill {
    streak: u32,
    /// Number of syncs when the last batch was placed.
    syncs: u64,
    /// The extent is written at least up to here.
    until: u32,
}

impl Prefill {
    /// What goes on being true when another extent is open.
    pub(crate) fn in_another_extent(self) -> Self {
        Self { until: 0, ..self }
    }

    /// A batch of `len` bytes is about to be placed at `offset` of an extent that begins at byte `start`: fills ahead if that pays.
    ///
    /// # Errors
    /// When the zeroes cannot be written.
    pub(crate) fn before(
        &mut self,
        disk: &dyn Disk,
        start: u64,
        extent_bytes: u32,
        offset: u32,
        len: usize,
        syncs: u64,
    ) -> Result<()> {
        let small = len <= SMALL_BATCH_BYTES && syncs != self.syncs;
        self.syncs = syncs;
        self.streak = if small { self.streak + 1 } else { 0 };
        if self.streak < STREAK_MIN || self.until >= offset + len as u32 {
            return Ok(());
        }
        let end = (offset + STRETCH_BYTES).min(extent_bytes);
        let zeroes = AlignedBuf::new((end - offset) as usize);
        disk.write_at(start + u64::from(offset), &zeroes, (end - offset) as usize)?;
        self.until = end;
        Ok(())
    }
}
