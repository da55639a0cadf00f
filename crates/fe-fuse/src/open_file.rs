//! An open file: reads and writes of it, answered to the kernel. Owns the buffer that a read goes through. What they mean at
//! the end of the file is in `file_io`.

use std::cell::RefCell;
use std::sync::Arc;

use bytes::Bytes;
use fuser::{Errno, ReplyData, ReplyWrite};
use surface::{BlockDevice, Error};

use crate::complaints::Complaints;
use crate::file_io::{self, Failure};
use crate::nodes::Node;

thread_local! {
    /// Where a read is put before it goes to the kernel; grows to the largest request (1 MiB) and is reused, so that neither
    /// allocation nor zeroing is paid for each read.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

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

    /// Reads with `how`, and answers, unless it returns `None`: then the reply comes back.
    pub(crate) fn read(
        &self,
        wanted: usize,
        reply: ReplyData,
        how: impl FnOnce(&dyn BlockDevice, &mut [u8]) -> Result<Option<usize>, Error>,
    ) -> Option<ReplyData> {
        READ_BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < wanted {
                buffer.resize(wanted, 0);
            }
            match how(&*self.device, &mut buffer[..wanted]) {
                Ok(Some(length)) => reply.data(&buffer[..length]),
                Ok(None) => return Some(reply),
                Err(error) => reply.error(self.fail("read", error.into())),
            }
            None
        })
    }

    pub(crate) fn write(&self, offset: u64, data: Bytes, fua: bool, reply: ReplyWrite) {
        match file_io::write(&*self.device, offset, data, fua) {
            // At most the length of the data, which is at most REQUEST_BYTES_MAX.
            Ok(length) => reply.written(u32::try_from(length).unwrap_or(u32::MAX)),
            Err(failure) => reply.error(self.fail("write", failure)),
        }
    }
}
