//! The kind of a request, for counting operations and refusing changes. Pure functions.

use std::fmt;

use fuse::Operation;
use surface::{OpKind, Traffic};

use crate::flags;

/// Where the requests of a share are counted.
pub trait Counts: fmt::Debug + Send + Sync {
    /// The counts for requests of a thread, by its number; 0: the kernel itself.
    fn of(&self, thread: u32) -> &Traffic;
}

/// Returns whether a request changes a file, a name or an attribute.
pub(crate) fn is_change(operation: &Operation<'_>) -> bool {
    match operation {
        Operation::Ioctl { command, .. } => flags::sets(*command),
        other => matches!(kind_of(other), OpKind::Write | OpKind::Change | OpKind::Discard),
    }
}

/// Returns the kind of a request. Requests that only prepare others, such as opening a file, are
/// look-ups.
pub(crate) fn kind_of(operation: &Operation<'_>) -> OpKind {
    match operation {
        Operation::Read { .. } => OpKind::Read,
        Operation::Write { .. } | Operation::CopyRange { .. } => OpKind::Write,
        Operation::Fsync { .. } | Operation::FsyncDirectory { .. } | Operation::SyncFs => OpKind::Flush,
        Operation::Allocate { mode, .. } if mode & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) != 0 => {
            OpKind::Discard
        }
        Operation::SetAttributes(_)
        | Operation::SymLink { .. }
        | Operation::MakeNode { .. }
        | Operation::MakeDirectory { .. }
        | Operation::TemporaryFile { .. }
        | Operation::Create { .. }
        | Operation::Unlink { .. }
        | Operation::RemoveDirectory { .. }
        | Operation::Rename { .. }
        | Operation::Link { .. }
        | Operation::Allocate { .. }
        | Operation::SetXattr { .. }
        | Operation::RemoveXattr { .. } => OpKind::Change,
        _ => OpKind::Look,
    }
}
