//! The kind of a request, for refusing changes and for counting operations. Owns the state of a
//! request that is being counted.

use std::cell::Cell;
use std::fmt;

use fuse::{Operation, Request};
use surface::{Began, OpKind, Traffic};

use crate::flags;

/// Where the requests of a share are counted.
pub trait Counts: fmt::Debug + Send + Sync {
    /// The counts for requests of a thread, by its number; 0: the kernel itself.
    fn of(&self, thread: u32) -> &Traffic;
}

/// A request that is being counted.
pub(crate) struct Counting {
    /// The calling thread.
    thread: u32,
    kind: OpKind,
    /// `None`: it is not counted, or counted elsewhere.
    began: Cell<Option<Began>>,
    /// Bytes read or written.
    pub(crate) moved: Cell<u64>,
}

impl Counting {
    /// Begins to count a request; `None`: it is not counted.
    pub(crate) fn begin(traffic: Option<&Traffic>, request: &Request<'_>) -> Self {
        let began = Cell::new(traffic.map(Traffic::begin));
        Self { thread: request.pid, kind: kind_of(&request.operation), began, moved: Cell::new(0) }
    }

    /// Counts it, unless another thread does.
    pub(crate) fn end(&self, traffic: Option<&Traffic>) {
        if let (Some(traffic), Some(began)) = (traffic, self.began.take()) {
            traffic.end(self.kind, began, self.moved.get());
        }
    }

    /// Moves it to another thread, which ends it.
    pub(crate) fn take(&self) -> Self {
        Self { thread: self.thread, kind: self.kind, began: self.began.take().into(), moved: self.moved.take().into() }
    }

    /// Runs the rest of the request, and counts it. Its caller is looked up before, because it may
    /// exit when it has its answer.
    pub(crate) fn end_after(&self, counts: Option<&dyn Counts>, rest: impl FnOnce()) {
        let traffic = counts.map(|counts| counts.of(self.thread));
        rest();
        self.end(traffic);
    }
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
