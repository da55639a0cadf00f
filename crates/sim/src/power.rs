//! The power switch and the plan of faults: every operation of the simulated disk and store that
//! can fail consults it first. Owns the numbering of points, the plan, and the power state. Does
//! not know the operations themselves.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Kind of operation at a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PointKind {
    /// A write to the disk.
    Write,
    /// A sync of the disk.
    Sync,
    /// Space set aside on the disk.
    Reserve,
    /// Space freed on the disk.
    Punch,
    /// The disk is made longer, to `offset` bytes.
    Grow,
    /// The disk is truncated to `offset` bytes.
    Shrink,
    /// A read of the disk; numbered only if asked for.
    Read,
    /// A batch handed to the store.
    Commit,
    /// A persist of the store.
    Persist,
    /// A get or scan of the store; numbered only if asked for.
    Lookup,
    /// A use of standby memory; numbered only if asked for.
    Keep,
}

/// Fault at a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The power fails: this operation has happened in part, and nothing works until the power
    /// returns.
    Crash,
    /// EIO. Any subset of a write's sectors was written; a sync guarantees nothing, now or by a
    /// later sync.
    Io,
    /// A write of which only the first part was written, reported as an error. Elsewhere like
    /// [`Fault::Io`].
    ShortWrite,
    /// ENOSPC; nothing has happened.
    NoSpace,
    /// Before the operation, a bit of this range of the disk turns over. The operation itself
    /// succeeds.
    FlipBit {
        /// First byte of the range.
        offset: u64,
        /// Bytes of the range.
        len: u64,
    },
}

/// One numbered operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point {
    /// Number, from 0.
    pub number: u64,
    /// Kind of operation.
    pub kind: PointKind,
    /// Byte offset on the disk, or 0.
    pub offset: u64,
    /// Bytes on the disk, or the changes of a batch.
    pub len: u64,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{} {:?} {}+{}", self.number, self.kind, self.offset, self.len)
    }
}

/// Period between two starts of the machine; handles of an earlier one are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Generation(pub u64);

/// Points kept for the report of a failure: enough for the last few operations of the engine.
const TRACE_POINTS: usize = 48;

#[derive(Debug, Default)]
struct State {
    lost: bool,
    generation: u64,
    next: u64,
    plan: BTreeMap<u64, Fault>,
    numbers_reads: bool,
    numbers_standby: bool,
    fired: Vec<(Point, Fault)>,
    trace: VecDeque<Point>,
}

/// The power switch, shared by the disk and the store of one machine.
#[derive(Debug, Default)]
pub struct Power {
    state: Mutex<State>,
    /// Held shared by each operation that changes something, for its duration; held exclusively by
    /// the restart of the machine.
    running: RwLock<()>,
}

/// Decision about an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Do it.
    Proceed,
    /// Do it wrongly.
    Fail(Fault),
    /// The power is off, or this handle is from before the last start.
    Dead,
}

const POWER_LOST: &str = "simulated power loss";

/// The error of an operation without power.
pub(crate) fn power_lost() -> io::Error {
    io::Error::other(POWER_LOST)
}

/// Whether an error message reports the simulated power loss.
pub fn is_power_loss(message: &str) -> bool {
    message.contains(POWER_LOST)
}

impl Power {
    /// Plans a fault at a point. Points are numbered over the life of the machine.
    pub fn plan(&self, point: u64, fault: Fault) {
        self.state.lock().plan.insert(point, fault);
    }

    /// Forgets all planned faults.
    pub fn clear_plan(&self) {
        self.state.lock().plan.clear();
    }

    /// Cuts the power now, between two operations.
    pub fn cut(&self) {
        self.state.lock().lost = true;
    }

    /// Whether reads and lookups are numbered points too (they are not at first).
    pub fn number_reads(&self, yes: bool) {
        self.state.lock().numbers_reads = yes;
    }

    /// Whether uses of standby memory are numbered points too (they are not at first): a program
    /// can die at them.
    pub fn number_standby(&self, yes: bool) {
        self.state.lock().numbers_standby = yes;
    }

    /// The number that the next point will have.
    pub fn next_point(&self) -> u64 {
        self.state.lock().next
    }

    /// Whether the power is off.
    pub fn is_lost(&self) -> bool {
        self.state.lock().lost
    }

    /// Takes the list of faults that have happened since it was last taken.
    pub fn take_fired(&self) -> Vec<(Point, Fault)> {
        std::mem::take(&mut self.state.lock().fired)
    }

    /// The last points, oldest first.
    pub fn trace(&self) -> Vec<Point> {
        self.state.lock().trace.iter().copied().collect()
    }

    /// The generation of handles made now.
    pub fn generation(&self) -> Generation {
        Generation(self.state.lock().generation)
    }

    /// The power is back (or the process was restarted): older handles stay dead.
    pub(crate) fn start(&self) {
        let mut state = self.state.lock();
        state.lost = false;
        state.generation += 1;
    }

    /// Begins an operation that changes something, until the guard is dropped: no operation
    /// admitted before a power failure takes effect after it.
    pub(crate) fn running(&self) -> RwLockReadGuard<'_, ()> {
        self.running.read()
    }

    /// Waits for operations in progress, and keeps others from starting.
    pub(crate) fn stopped(&self) -> RwLockWriteGuard<'_, ()> {
        self.running.write()
    }

    /// Called by each operation before it does anything.
    pub(crate) fn point(&self, by: Generation, kind: PointKind, offset: u64, len: u64) -> Verdict {
        let mut state = self.state.lock();
        if state.lost || by.0 != state.generation {
            return Verdict::Dead;
        }
        if matches!(kind, PointKind::Read | PointKind::Lookup) && !state.numbers_reads {
            return Verdict::Proceed;
        }
        if kind == PointKind::Keep && !state.numbers_standby {
            return Verdict::Proceed;
        }
        let point = Point { number: state.next, kind, offset, len };
        state.next += 1;
        if state.trace.len() == TRACE_POINTS {
            state.trace.pop_front();
        }
        state.trace.push_back(point);
        let Some(fault) = state.plan.remove(&point.number) else { return Verdict::Proceed };
        state.fired.push((point, fault));
        if fault == Fault::Crash {
            state.lost = true;
        }
        Verdict::Fail(fault)
    }
}
