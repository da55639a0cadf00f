//! Requests done on the device. Owns nothing but the write cache's switch; may wait for the device,
//! never for the guest. Called by the threads of queues and of the pool.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use surface::{BlockDevice, Error, ErrorKind, Result, WriteOptions, ZeroOptions};

use crate::chain::{self, bytes_of};
use crate::memory::Guest;
use crate::request::{Request, SERIAL_BYTES, Status, Work, ZeroRange};

/// Zeroes that are stored are done in steps of this, as long as the largest write, so that one
/// guest's request does not hold a thread while others wait.
const STORED_ZEROES_STEP_BYTES: u64 = 32 << 20;
/// Holes are made in larger steps: they cost a map record per group, not data.
const HOLES_STEP_BYTES: u64 = 1 << 30;

/// The device as a guest sees it.
pub struct Disk {
    device: Arc<dyn BlockDevice>,
    serial: [u8; SERIAL_BYTES],
    /// Whether writes are durable before they are answered.
    is_write_through: AtomicBool,
}

/// An answer: its status, and the bytes that were written to the guest's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// Status.
    pub status: Status,
    /// Bytes of data, without the status.
    pub written: u32,
}

impl Answer {
    const fn only(status: Status) -> Self {
        Self { status, written: 0 }
    }
}

/// Result of a request, or of one step of it.
pub enum Outcome {
    /// It is done.
    Done(Answer),
    /// It failed, for this reason.
    Failed(Answer, Error),
    /// Something is left, which the request then is.
    Left,
    /// There was no room; the request is as it was, and is to be held for at most so long.
    Full(Duration, Error),
}

impl Disk {
    /// A device with a serial number, which is cut off if it is too long. Until the guest's
    /// features are known it is safe to write through.
    pub fn new(device: Arc<dyn BlockDevice>, serial: &str) -> Self {
        let mut bytes = [0; SERIAL_BYTES];
        bytes.iter_mut().zip(serial.bytes()).for_each(|(to, from)| *to = from);
        Self { device, serial: bytes, is_write_through: AtomicBool::new(true) }
    }

    /// The device.
    pub fn device(&self) -> &dyn BlockDevice {
        &*self.device
    }

    /// Switches the write cache off or on.
    pub fn set_write_through(&self, is_write_through: bool) {
        self.is_write_through.store(is_write_through, Ordering::Release);
    }

    /// Whether it is off.
    pub fn is_write_through(&self) -> bool {
        self.is_write_through.load(Ordering::Acquire)
    }

    /// Answers a read out of memory, if it is all there. `scratch` is as long as the data.
    ///
    /// # Errors
    /// Those of the device.
    pub fn read_cached(&self, memory: &Guest, request: &Request, scratch: &mut [u8]) -> Result<Option<Answer>> {
        let Work::Read(offset) = request.work else { return Ok(None) };
        if scratch.is_empty() || !self.device.read_cached(offset, scratch)? {
            return Ok(None);
        }
        Ok(Some(give(memory, request, scratch)))
    }

    /// Does a request, or one step of a long one.
    pub fn step(&self, memory: &Guest, request: &mut Request) -> Outcome {
        let is_write_through = self.is_write_through();
        let done = match &mut request.work {
            Work::Read(offset) => {
                let mut data = vec![0; bytes_of(&request.data) as usize];
                let done = if data.is_empty() { Ok(()) } else { self.device.read(*offset, &mut data) };
                return finish_read(memory, request, &data, done);
            }
            Work::Write(offset) => {
                let mut data = vec![0; bytes_of(&request.data) as usize];
                if chain::read(memory, &request.data, &mut data).is_err() {
                    return Outcome::Done(Answer::only(Status::Failed));
                }
                let options = WriteOptions { fua: is_write_through };
                match data.is_empty() {
                    true => Ok(()),
                    false => match self.device.write(*offset, data.into(), options) {
                        Err(error) => return self.failed(error),
                        Ok(()) => Ok(()),
                    },
                }
            }
            Work::Flush => self.device.flush(),
            Work::Discard(ranges) => {
                let Some(step) = take_step(ranges, |_| HOLES_STEP_BYTES) else { return self.end(is_write_through) };
                match self.device.discard(step.offset, step.length) {
                    Ok(()) => return Outcome::Left,
                    done => done,
                }
            }
            Work::WriteZeroes(ranges) => {
                let step_bytes =
                    |range: &ZeroRange| if range.may_unmap { HOLES_STEP_BYTES } else { STORED_ZEROES_STEP_BYTES };
                let before = ranges.clone();
                let Some(step) = take_step(ranges, step_bytes) else { return self.end(is_write_through) };
                let options = ZeroOptions { fua: false, no_hole: !step.may_unmap };
                match self.device.write_zeroes(step.offset, step.length, options) {
                    Ok(()) => return Outcome::Left,
                    Err(error) => {
                        *ranges = before;
                        return self.failed(error);
                    }
                }
            }
            Work::Identify => {
                let mut data = vec![0; bytes_of(&request.data) as usize];
                data.iter_mut().zip(self.serial).for_each(|(to, from)| *to = from);
                return Outcome::Done(give(memory, request, &data));
            }
            Work::Refused(status) => return Outcome::Done(Answer::only(*status)),
        };
        match done {
            Ok(()) => Outcome::Done(Answer::only(Status::Ok)),
            Err(error) => failure(error),
        }
    }

    /// The end of a request for zeroes.
    fn end(&self, is_write_through: bool) -> Outcome {
        match if is_write_through { self.device.flush() } else { Ok(()) } {
            Ok(()) => Outcome::Done(Answer::only(Status::Ok)),
            Err(error) => failure(error),
        }
    }

    /// The outcome of a failed request that needs room.
    fn failed(&self, error: Error) -> Outcome {
        match self.device.full_wait().filter(|_| error.kind() == ErrorKind::Full) {
            Some(most) => Outcome::Full(most, error),
            None => failure(error),
        }
    }
}

/// The outcome of a read whose data is there, or that failed.
pub fn finish_read(memory: &Guest, request: &Request, data: &[u8], done: Result<()>) -> Outcome {
    match done {
        Ok(()) => Outcome::Done(give(memory, request, data)),
        Err(error) => failure(error),
    }
}

/// The outcome of a request that failed. Virtio has one code for nearly everything.
pub fn failure(error: Error) -> Outcome {
    let status = if error.kind() == ErrorKind::Unsupported { Status::Unsupported } else { Status::Failed };
    Outcome::Failed(Answer::only(status), error)
}

fn give(memory: &Guest, request: &Request, data: &[u8]) -> Answer {
    match chain::write(memory, &request.data, data) {
        // It fits: a chain is bounded.
        Ok(()) => Answer { status: Status::Ok, written: data.len() as u32 },
        Err(_) => Answer::only(Status::Failed),
    }
}

/// Takes a step off the first range that is not empty: up to the next multiple of its step, so that
/// only the ends of the whole are not whole blocks. `None`: nothing is left.
fn take_step(
    ranges: &mut smallvec::SmallVec<[ZeroRange; 1]>,
    step_bytes: impl Fn(&ZeroRange) -> u64,
) -> Option<ZeroRange> {
    while ranges.first()?.length == 0 {
        ranges.remove(0);
    }
    let range = ranges.first_mut()?;
    let step_bytes = step_bytes(range);
    let length = range.length.min(step_bytes - range.offset % step_bytes);
    let step = ZeroRange { length, ..*range };
    // A range may end beyond all devices; the device refuses the step that does.
    range.offset = range.offset.saturating_add(length);
    range.length -= length;
    Some(step)
}
