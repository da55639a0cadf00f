//! Requests done on the volume. Owns nothing; may wait for the volume. Called by the threads of
//! queues and of the pool.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use surface::{BlockDevice, Error, ErrorKind, Result, WriteOptions, ZeroOptions};

use crate::request::{Range, Work};

/// Zeroes that are stored are done in steps of this, as long as the largest write, so that one
/// request does not hold a thread while others wait.
const STORED_ZEROES_STEP_BYTES: u64 = 32 << 20;
/// Holes are made in larger steps: they cost a map record per group, not data.
const HOLES_STEP_BYTES: u64 = 1 << 30;

/// Result of a request, or of one step of it.
#[derive(Debug)]
pub enum Outcome {
    /// It is done: the answer.
    Done(i32),
    /// It failed: the answer, and the reason.
    Failed(i32, Error),
    /// Something is left, which the request then is.
    Left,
    /// There was no room; the request is as it was, and should be held for at most so long.
    Full(Duration, Error),
}

/// The volume as its programs see it.
pub struct Disk(Arc<dyn BlockDevice>);

impl Disk {
    /// A volume that is open.
    pub fn new(device: Arc<dyn BlockDevice>) -> Self {
        Self(device)
    }

    /// The volume.
    pub fn device(&self) -> &dyn BlockDevice {
        &*self.0
    }

    /// Answers a read out of memory, if it is all there; `None` if not, or if it is no read.
    pub fn read_cached(&self, work: &Work, room: &mut [u8]) -> Option<i32> {
        let Work::Read { offset, length } = *work else { return None };
        // A failure repeats in the pool, which reports it.
        let is_filled = self.0.read_cached(offset, room.get_mut(..length)?).unwrap_or(false);
        is_filled.then(|| answer(length))
    }

    /// Does a request, or one step of a long one, with its buffer.
    pub fn step(&self, work: &mut Work, buffer: &mut [u8]) -> Outcome {
        let device = &*self.0;
        match work {
            Work::Read { offset, length } => {
                let done = buffer.get_mut(..*length).map_or_else(too_long, |room| device.read(*offset, room));
                finish_read(*length, done)
            }
            Work::Write { offset, length, fua } => {
                // The volume keeps the data; the buffer is the kernel's after the answer.
                let data = buffer.get(..*length).map(Bytes::copy_from_slice);
                let write = |data| device.write(*offset, data, WriteOptions { fua: *fua });
                match data.map_or_else(too_long, write) {
                    Ok(()) => Outcome::Done(answer(*length)),
                    Err(error) => self.failed(error),
                }
            }
            Work::Flush => ended(device.flush()),
            Work::Discard(range) => match take_step(range, HOLES_STEP_BYTES) {
                None => Outcome::Done(0),
                Some(step) => device.discard(step.offset, step.length).map_or_else(failure, |()| Outcome::Left),
            },
            Work::WriteZeroes { range, no_hole, fua } => {
                let before = *range;
                let step_bytes = if *no_hole { STORED_ZEROES_STEP_BYTES } else { HOLES_STEP_BYTES };
                let Some(step) = take_step(range, step_bytes) else {
                    return ended(if *fua { device.flush() } else { Ok(()) });
                };
                let options = ZeroOptions { fua: false, no_hole: *no_hole };
                match device.write_zeroes(step.offset, step.length, options) {
                    Ok(()) => Outcome::Left,
                    Err(error) => {
                        *range = before;
                        self.failed(error)
                    }
                }
            }
            Work::Refused(errno) => Outcome::Done(-*errno),
        }
    }

    /// The outcome of a failed request that needs room.
    fn failed(&self, error: Error) -> Outcome {
        match self.0.full_wait().filter(|_| error.kind() == ErrorKind::Full) {
            Some(most) => Outcome::Full(most, error),
            None => failure(error),
        }
    }
}

/// The outcome of a read of so many bytes.
pub fn finish_read(length: usize, done: Result<()>) -> Outcome {
    done.map_or_else(failure, |()| Outcome::Done(answer(length)))
}

/// The outcome of a request that failed.
pub fn failure(error: Error) -> Outcome {
    let errno = match error.kind() {
        ErrorKind::Full => libc::ENOSPC,
        ErrorKind::Unsupported => libc::EOPNOTSUPP,
        // "Critical medium error": programs and the kernel's log show that repeating does not help.
        ErrorKind::Corrupt => libc::ENODATA,
        _ => libc::EIO,
    };
    Outcome::Failed(-errno, error)
}

fn ended(done: Result<()>) -> Outcome {
    done.map_or_else(failure, |()| Outcome::Done(0))
}

/// It fits: a buffer is far smaller.
fn answer(length: usize) -> i32 {
    length as i32
}

fn too_long() -> Result<()> {
    Err(Error::new(ErrorKind::Invalid, "a request is longer than its buffer"))
}

/// Takes a step off the range: up to the next multiple of its step, so that only the ends of the
/// whole are not whole blocks. `None`: nothing is left.
fn take_step(range: &mut Range, step_bytes: u64) -> Option<Range> {
    if range.length == 0 {
        return None;
    }
    let length = range.length.min(step_bytes - range.offset % step_bytes);
    let step = Range { offset: range.offset, length };
    *range = Range { offset: range.offset + length, length: range.length - length };
    Some(step)
}

#[cfg(test)]
#[path = "execute_tests.rs"]
mod tests;
