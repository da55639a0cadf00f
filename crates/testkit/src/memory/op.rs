//! Record of an operation on a device.

/// An operation, whether it succeeded or not.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the arguments of the operations")]
pub enum Op {
    Read { offset: u64, length: usize },
    Write { offset: u64, length: usize, fua: bool },
    Flush,
    Discard { offset: u64, length: u64 },
    Zeroes { offset: u64, length: u64, no_hole: bool },
    Allocation { offset: u64, length: u64 },
    Prefetch { offset: u64, length: u64 },
}
