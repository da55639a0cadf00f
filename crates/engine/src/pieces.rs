//! Reads what can be read of a range of the data file: all at once, or, if that fails, in pieces. Does not judge what is missing.

use std::ops::Range;

use env::{AlignedBuf, Disk};

/// Reads `len` bytes at `start`, in pieces of `piece_bytes` if it must be. Those that cannot be read are zeroes in `buf`, and returned.
pub(crate) fn read(
    disk: &dyn Disk,
    start: u64,
    buf: &mut AlignedBuf,
    len: usize,
    piece_bytes: usize,
) -> Vec<Range<usize>> {
    if disk.read_at(start, buf, len).is_ok() {
        return Vec::new();
    }
    let mut unreadable = Vec::new();
    let mut piece = AlignedBuf::new(piece_bytes.min(len));
    for at in (0..len).step_by(piece_bytes) {
        let end = len.min(at + piece_bytes);
        if disk.read_at(start + at as u64, &mut piece, end - at).is_ok() {
            buf[at..end].copy_from_slice(&piece[..end - at]);
        } else {
            buf[at..end].fill(0);
            unreadable.push(at..end);
        }
    }
    unreadable
}
