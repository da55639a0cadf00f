//! Requests that may wait for a disk: passed to lanes, so that the threads that take requests from
//! the kernel go on. Owns the callers of `fsync` that wait for the same sync.
//!
//! - An `fsync`, a `syncfs`, `fallocate`, `copy_file_range` and `lseek` are passed on at once.
//! - A read, if its content is not in memory.
//! - A write, if the write buffer is full. One that finds no space is held afterwards (`writing`).
//!
//! Files are read ahead (`passes`) in a lane of their own.
//!
//! All other requests are carried out by the thread that took them: they read names and attributes,
//! which are in memory or a short read away, or change them in memory.

use std::io;

use fuse::{Answer, LaneOptions, Lanes};
use parking_lot::Mutex;

use crate::request_kind::Counting;
use crate::served::{Served, errno};
use crate::shown_tree::ShownTree;

/// Lane of reads that wait for the disk.
pub(crate) const READS: usize = 0;
/// Lane of changes that may wait.
pub(crate) const CHANGES: usize = 1;
/// Lane of syncs.
const SYNCS: usize = 2;
/// Lane of files that are read ahead.
const AHEAD: usize = 3;

/// Requests that wait at once in each lane. Reads: enough to keep a fast disk busy. Changes wait
/// for the same write buffer, and syncs for the same log: one turn serves all that wait, also those
/// that are queued. Read-ahead: a batch has many reads of the disk in flight by itself.
const WAITING_MAX: [usize; 4] = [32, 8, 4, 2];

/// A caller of `fsync`, to be answered with the result, and the file if it asked for `fdatasync`.
type SyncCaller = (Option<u64>, Box<dyn FnOnce(&Served, share::Result<()>) + Send>);

/// The lanes of a mount.
pub(crate) struct Waiting {
    lanes: Lanes,
    /// Callers of `fsync` that no sync has begun for.
    syncs: Mutex<Vec<SyncCaller>>,
}

impl Waiting {
    pub(crate) fn new() -> io::Result<Self> {
        let mut lanes = WAITING_MAX.map(|threads| LaneOptions { threads, may_borrow: true });
        // The client does not wait for it.
        lanes[AHEAD].may_borrow = false;
        let lanes = Lanes::new("share", &lanes)?;
        Ok(Self { lanes, syncs: Mutex::default() })
    }

    /// Reads files ahead.
    pub(crate) fn run_ahead(&self, read: impl FnOnce() + Send + 'static) {
        self.lanes.run(AHEAD, 0, read);
    }

    /// Does all requests that wait.
    pub(crate) fn close(&self) {
        self.lanes.close();
    }
}

impl Served {
    /// Runs the rest of request `number`, which holds `bytes` of data, in a lane.
    pub(crate) fn run_in_lane(
        &self,
        lane: usize,
        bytes: usize,
        (number, counting): (u64, &Counting),
        rest: impl FnOnce(&Self, &Counting) + Send + 'static,
    ) {
        let Some(served) = self.this.upgrade() else { return };
        let counting = counting.take();
        self.waiting.lanes.run(lane, bytes, move || {
            let rest = || share::answering(number, || rest(&served, &counting));
            counting.end_after(served.counts.as_deref(), rest);
        });
    }

    /// Reads content of a file of this tree or of a snapshot, and answers.
    pub(crate) fn read(
        &self,
        tree: &ShownTree,
        (node, offset, size): (u64, u64, u32),
        (number, counting): (u64, &Counting),
        answer: impl Answer,
        note_access: impl Fn(&Self) + Send + 'static,
    ) {
        let size = size.min(fuse::REQUEST_BYTES_MAX) as usize;
        let note = move |served: &Self, counting: &Counting, length: usize| {
            counting.moved.set(length as u64);
            if length > 0 {
                note_access(served);
            }
        };
        let left = answer.fill(size, |buffer| {
            // `read` reports an error.
            let cached = tree.read_cached(node, offset, buffer).ok().flatten();
            cached.iter().for_each(|&length| note(self, counting, length));
            Ok(cached)
        });
        let is_start = offset == 0 && tree.is(&self.tree);
        let Some(answer) = left else {
            if is_start {
                self.follow_pass(node, false);
            }
            return;
        };
        if is_start {
            self.follow_pass(node, true);
        }
        let tree = tree.clone();
        self.run_in_lane(READS, 0, (number, counting), move |served, counting| {
            answer.fill(size, |buffer| {
                let length = tree.read(node, offset, buffer).map_err(errno)?;
                note(served, counting, length);
                Ok(Some(length))
            });
        });
    }

    /// Makes all changes durable, or the data of one file, and answers.
    pub(crate) fn sync(&self, data_of: Option<u64>, counting: &Counting, answer: impl Answer) {
        let Some(served) = self.this.upgrade() else { return };
        let counting = counting.take();
        let end = move |served: &Self, synced: share::Result<()>| {
            counting.end_after(served.counts.as_deref(), || match synced {
                Ok(()) => answer.done(),
                Err(failure) => answer.fail(errno(failure)),
            });
        };
        self.waiting.syncs.lock().push((data_of, Box::new(end)));
        self.waiting.lanes.run(SYNCS, 0, move || served.sync_all_waiting());
    }

    /// Syncs for all callers that wait; another thread may have done it for some, or all.
    fn sync_all_waiting(&self) {
        let callers = std::mem::take(&mut *self.waiting.syncs.lock());
        if callers.is_empty() {
            return;
        }
        let files: Option<Vec<u64>> = callers.iter().map(|(data_of, _)| *data_of).collect();
        let synced = match files {
            Some(files) => self.tree.sync_data(&files),
            None => self.tree.sync(),
        };
        callers.into_iter().for_each(|(_, answer)| answer(self, synced));
    }
}
