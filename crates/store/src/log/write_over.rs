//! Makes unreadable areas after the end of the log readable again.

use std::ops::Range;

use env::{AlignedBuf, Disk};
use format::BATCH_ALIGN;

/// Overwrites each unreadable block after the end of the log that cannot be part of it. A block
/// that was skipped with its neighbours, but can be read alone, stays: it hides nothing from the
/// next opening, and may be all that is left for `salvage`. If a write fails here, it fails again
/// when the log gets there, and the log then continues elsewhere.
pub fn write_over(disk: &dyn Disk, unreadable: &[Range<u64>]) {
    let zeroes = AlignedBuf::new(BATCH_ALIGN);
    let mut block = AlignedBuf::new(BATCH_ALIGN);
    for at in unreadable.iter().flat_map(|bad| bad.clone().step_by(BATCH_ALIGN)) {
        if disk.read_at(at, &mut block, BATCH_ALIGN).is_err() {
            let _ = disk.write_at(at, &zeroes, BATCH_ALIGN);
        }
    }
}
