//! The division of a pool's memory budget.

/// Lower bound for the limit of the write buffer, however full the pool is: a few batches' worth.
pub(crate) const BUFFER_BYTES_MIN: usize = 512 << 10;

/// A larger write buffer, or more changes between checkpoints, makes nothing faster: the rest of a
/// large budget is for decoded units.
const BUFFER_BYTES_MAX: usize = 256 << 20;

/// Shares of the memory budget, in 64ths. A checkpoint needs about three times the overlay's share
/// in addition: for changes made while it runs, and for its batch. The rest covers allocation
/// rounding, batches in flight and the threads' scratch space.
#[derive(Debug, Clone, Copy)]
pub struct Shares {
    /// Write buffer: writers wait when it is full.
    pub write_buffer: usize,
    /// Map changes since the last checkpoint.
    pub overlay: usize,
    /// Groups of the map decoded from the store.
    pub groups: usize,
    /// Decoded units.
    pub units: usize,
    /// Prepared dictionaries.
    pub dictionaries: u64,
    /// Bytes for the map of dead fragments of extents.
    pub deaths: usize,
}

impl Shares {
    pub fn of(memory_bytes: u64) -> Self {
        let part = |n: u64| (memory_bytes / 64 * n) as usize;
        // A write buffer below 512 KiB could not hold a batch for each of two workers.
        let write_buffer = part(16).clamp(BUFFER_BYTES_MIN, BUFFER_BYTES_MAX);
        let overlay = part(7).clamp(64 << 10, BUFFER_BYTES_MAX);
        let units = part(12) + (part(23).saturating_sub(write_buffer + overlay));
        let (dictionaries, deaths) = (memory_bytes / 64 * 2, part(2));
        Self { write_buffer, overlay, groups: part(12), units, dictionaries, deaths }
    }
}
