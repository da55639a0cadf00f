//! Aligned buffers that are used again: allocating and clearing a megabyte for each batch would cost as much as copying it.

use env::AlignedBuf;
use parking_lot::Mutex;

/// Buffers kept: for each batch that may wait for a writer with the default budget, and those that are being filled.
const KEPT_MAX: usize = 32;
/// Larger ones are not kept: they come from unusual extents.
const KEPT_BYTES_MAX: usize = 2 << 20;

/// Sizes are rounded up to this, so that a buffer serves the next batch too, whose header is a little longer.
const ROUND_BYTES: usize = 64 << 10;

#[derive(Default)]
pub(crate) struct BufferPool {
    kept: Mutex<Vec<AlignedBuf>>,
}

impl BufferPool {
    /// A buffer of at least `len` bytes with any content.
    pub(crate) fn get(&self, len: usize) -> AlignedBuf {
        let mut kept = self.kept.lock();
        match kept.iter().position(|b| b.len() >= len && b.len() <= len.saturating_mul(4).max(64 << 10)) {
            Some(at) => kept.swap_remove(at),
            None => {
                drop(kept);
                AlignedBuf::new(if len > ROUND_BYTES { len.next_multiple_of(ROUND_BYTES) } else { len })
            }
        }
    }

    /// Gives a buffer back.
    pub(crate) fn put(&self, buf: AlignedBuf) {
        let mut kept = self.kept.lock();
        if kept.len() < KEPT_MAX && buf.len() <= KEPT_BYTES_MAX {
            kept.push(buf);
        }
    }
}
