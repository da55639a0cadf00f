//! An open file: reads and writes of it, answered to the kernel. What they mean at the end of the file is in `file_io`.

use std::sync::Arc;

use bytes::Bytes;
use fuse::{Answer, Errno};
use surface::{BlockDevice, Error};

use crate::complaints::Complaints;
use crate::file_io::{self, Failure};
use crate::nodes::Node;

/// An open file. What may wait is done on a lane, which holds the file until it is done.
pub(crate) struct File {
    pub(crate) node: Arc<Node>,
    pub(crate) device: Arc<dyn BlockDevice>,
    pub(crate) complaints: Arc<Complaints>,
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

    /// Reads with `how`, and answers, unless it returns `None`: then whoever is to answer comes back.
    pub(crate) fn read<A: Answer>(
        &self,
        wanted: usize,
        answer: A,
        how: impl FnOnce(&dyn BlockDevice, &mut [u8]) -> Result<Option<usize>, Error>,
    ) -> Option<A> {
        answer.fill(wanted, |buffer| how(&*self.device, buffer).map_err(|error| self.fail("read", error.into())))
    }

    pub(crate) fn write(&self, offset: u64, data: Bytes, fua: bool, answer: impl Answer) {
        match file_io::write(&*self.device, offset, data, fua) {
            // At most the length of the data, which is at most REQUEST_BYTES_MAX.
            Ok(length) => answer.written(u32::try_from(length).unwrap_or(u32::MAX)),
            Err(failure) => answer.fail(self.fail("write", failure)),
        }
    }
}
