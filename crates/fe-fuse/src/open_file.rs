//! An open file: reads and writes, answered to the kernel. The semantics at the end of the file are
//! in `file_io`.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fuse::{Answer, Errno};
use surface::{BlockDevice, Error, ErrorKind, Held};

use crate::complaints::Complaints;
use crate::file_io::{self, Failure};
use crate::nodes::Node;

/// An open file. Requests that may wait run on a lane, which holds the file until they are done.
pub(crate) struct File {
    pub(crate) node: Arc<Node>,
    pub(crate) device: Arc<dyn BlockDevice>,
    pub(crate) complaints: Arc<Complaints>,
    /// Writes that wait for room.
    pub(crate) held: Arc<Held>,
    /// Whether it was opened with `O_TRUNC`.
    pub(crate) was_emptied: bool,
}

impl File {
    pub(crate) fn fail(&self, doing: &str, failure: Failure) -> Errno {
        match failure {
            Failure::Device(error) => self.complaints.failed(&self.node.name(), doing, &error),
            Failure::Rule(errno) => errno,
        }
    }

    /// Reads with `how`, and answers, unless it returns `None`: then the `Answer` is returned.
    pub(crate) fn read<A: Answer>(
        &self,
        wanted: usize,
        answer: A,
        how: impl FnOnce(&dyn BlockDevice, &mut [u8]) -> Result<Option<usize>, Error>,
    ) -> Option<A> {
        answer.fill(wanted, |buffer| how(&*self.device, buffer).map_err(|error| self.fail("read", error.into())))
    }

    pub(crate) fn write(self: &Arc<Self>, offset: u64, data: Bytes, fua: bool, answer: impl Answer) {
        let write = Write { file: Arc::clone(self), offset, data, fua, answer };
        let Some((write, most)) = write.done(false) else { return };
        // One queue for each device.
        let queue = self.node.ino() as usize;
        self.held.retry(queue, most, write, |write, is_last| write.done(is_last).map(|(write, _)| write));
    }
}

/// A write with its pending answer.
struct Write<A> {
    file: Arc<File>,
    offset: u64,
    data: Bytes,
    fua: bool,
    answer: A,
}

impl<A: Answer> Write<A> {
    /// Performs the write and answers; returns it, with a time limit, if it finds no space and
    /// should be held. Never returns it if `is_last`.
    fn done(self, is_last: bool) -> Option<(Self, Duration)> {
        let Self { file, offset, data, fua, answer } = self;
        match file_io::write(&*file.device, offset, data.clone(), fua) {
            // At most the length of the data, which is at most REQUEST_BYTES_MAX.
            Ok(length) => answer.written(u32::try_from(length).unwrap_or(u32::MAX)),
            Err(failure) => {
                let is_full = matches!(&failure, Failure::Device(error) if error.kind() == ErrorKind::Full);
                if let Some(most) = file.device.full_wait().filter(|_| is_full && !is_last) {
                    return Some((Self { file, offset, data, fua, answer }, most));
                }
                answer.fail(file.fail("write", failure));
            }
        }
        None
    }
}
