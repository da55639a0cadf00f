//! Reads what can be read of a range of the data file: all at once, or, if that fails, block by block. Does not judge what is missing.

use std::ops::Range;

use env::{AlignedBuf, Disk};
use format::BATCH_ALIGN;

/// Reads `len` bytes at `start`. What cannot be read, in multiples of [`BATCH_ALIGN`], is zeroes in `buf`, and returned: finer than anything
/// in the log begins, so that no batch is lost for a neighbour's sake.
pub(crate) fn read(disk: &dyn Disk, start: u64, buf: &mut AlignedBuf, len: usize) -> Vec<Range<usize>> {
    if disk.read_at(start, buf, len).is_ok() {
        return Vec::new();
    }
    let mut unreadable: Vec<Range<usize>> = Vec::new();
    let mut piece = AlignedBuf::new(BATCH_ALIGN);
    for at in (0..len).step_by(BATCH_ALIGN) {
        let end = len.min(at + BATCH_ALIGN);
        if disk.read_at(start + at as u64, &mut piece, end - at).is_ok() {
            buf[at..end].copy_from_slice(&piece[..end - at]);
            continue;
        }
        buf[at..end].fill(0);
        match unreadable.last_mut() {
            Some(last) if last.end == at => last.end = end,
            _ => unreadable.push(at..end),
        }
    }
    unreadable
}
