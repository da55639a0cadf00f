//! Writes: carried out and answered, or held while they find no space (the property `when-full`).
//! Called by any thread that serves requests, and by the thread that retries held writes.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use fuse::{Answer, Errno};
use surface::Held;

use crate::request_kind::Counting;
use crate::served::{Served, errno};
use crate::waiting::CHANGES;

/// The queue of all held writes of a mount: space for one file is space for another.
const QUEUE: usize = 0;

/// A write with its pending answer.
pub(crate) struct Write<A> {
    /// The number of the request.
    pub(crate) request: u64,
    pub(crate) node: u64,
    pub(crate) offset: u64,
    pub(crate) bytes: Bytes,
    pub(crate) kill_suid_sgid: bool,
    pub(crate) answer: A,
}

impl Served {
    /// Writes and answers, here or in a lane.
    pub(crate) fn write<A: Answer>(&self, write: Write<A>, counting: &Counting) {
        if !self.tree.write_would_wait() {
            return counting.moved.set(self.write_or_hold(write));
        }
        self.run_in_lane(CHANGES, write.bytes.len(), (write.request, counting), |served, counting| {
            counting.moved.set(served.write_or_hold(write));
        });
    }

    /// Writes and answers, or holds the write until there is space. Returns the number of bytes
    /// written by now.
    fn write_or_hold<A: Answer>(&self, write: Write<A>) -> u64 {
        let (write, most) = match self.try_write(write, false) {
            Ok(written_bytes) => return written_bytes,
            Err(left) => left,
        };
        let Some(held) = self.held.get_or_init(|| Held::start("share-held").ok()) else {
            return self.try_write(write, true).unwrap_or(0);
        };
        let served = self.this.clone();
        held.retry(QUEUE, most, write, move |write, is_last| {
            let served = served.upgrade()?;
            if served.is_read_only.load(Ordering::Relaxed) {
                write.answer.fail(Errno::EROFS);
                return None;
            }
            share::answering(write.request, || served.try_write(write, is_last)).err().map(|(write, _)| write)
        });
        0
    }

    /// Carries out a write and answers it; returns the number of bytes written. Returns the write
    /// with a time limit if it finds no space and should be held, never if it `is_last`.
    fn try_write<A: Answer>(&self, write: Write<A>, is_last: bool) -> Result<u64, (Write<A>, Duration)> {
        let Write { node, offset, ref bytes, kill_suid_sgid, .. } = write;
        // At most the largest request.
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let (bytes, end) = (bytes.clone(), offset.saturating_add(length.into()));
        let change = || {
            let written = self.tree.write(node, offset, bytes, kill_suid_sgid);
            if written.as_ref().is_ok_and(|written| written.changed_mode) {
                self.forget_mode(node);
            }
            written
        };
        let mut done = Ok(0);
        self.growing.through(&self.tree, node, end, change, |written| match written {
            Ok(_) => {
                done = Ok(length.into());
                write.answer.written(length);
            }
            Err(failure) => {
                let is_last = is_last || self.is_unmounting.load(Ordering::Relaxed);
                let waits = !is_last && failure.errno() == libc::ENOSPC;
                match self.tree.full_wait().filter(|_| waits) {
                    Some(most) => done = Err((write, most)),
                    None => write.answer.fail(errno(failure)),
                }
            }
        });
        done
    }
}
