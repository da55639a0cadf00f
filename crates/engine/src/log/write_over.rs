//! Making places behind the end of the log readable again.

use std::ops::Range;

use env::{AlignedBuf, Disk};
use format::BATCH_ALIGN;

/// Writes over each block behind the end of the log that cannot be read, and holds nothing that
/// counts. A block that was given up with its neighbours, and can be read alone, stays: it hides
/// nothing from the next opening, and may be all that is left for `salvage`. What fails there fails
/// again when the log comes there, and then goes on elsewhere.
pub(crate) fn write_over(disk: &dyn Disk, unreadable: &[Range<u64>]) {
    let zeroes = AlignedBuf::new(BATCH_ALIGN);
    let mut block = AlignedBuf::new(BATCH_ALIGN);
    for at in unreadable.iter().flat_map(|bad| bad.clone().step_by(BATCH_ALIGN)) {
        if disk.read_at(at, &mut block, BATCH_ALIGN).is_err() {
            let _ = disk.write_at(at, &zeroes, BATCH_ALIGN);
        }
    }
}
