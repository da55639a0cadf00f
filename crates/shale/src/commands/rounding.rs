//! The note on a size that is rounded up to whole blocks.

use crate::output::Output;

/// Notes that the size a user gave is rounded up, if it is.
pub(super) fn report_rounding(output: &Output, asked_bytes: u64, size_bytes: u64) {
    if size_bytes != asked_bytes {
        output.note(&format!("the size of {asked_bytes} bytes is rounded up to whole blocks: {size_bytes} bytes"));
    }
}
