//! What a request about the data of a file is answered through: a reply of `fuser`, or an entry of a ring. So what the request means is
//! written once (`requests`).

use std::cell::RefCell;

use fuser::{Errno, ReplyData, ReplyEmpty, ReplyWrite};

thread_local! {
    /// Where a read is put before it goes to the kernel; grows to the largest request (1 MiB) and is reused, so that neither
    /// allocation nor zeroing is paid for each read.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Takes the one answer to a request.
pub(crate) trait Answer: Send + Sized + 'static {
    /// The request was not done.
    fn fail(self, errno: Errno);
}

/// To a request whose only answer is success.
pub(crate) trait AnswerEmpty: Answer {
    /// The request is done.
    fn done(self);
}

/// To a write.
pub(crate) trait AnswerWrite: Answer {
    /// So many bytes are written.
    fn written(self, length: u32);
}

/// To a read.
pub(crate) trait AnswerRead: Answer {
    /// Reads up to `wanted` bytes with `how`, and answers, unless that returns `None`: then whoever is to answer comes back.
    fn fill(self, wanted: usize, how: impl FnOnce(&mut [u8]) -> Result<Option<usize>, Errno>) -> Option<Self>;
}

impl Answer for ReplyEmpty {
    fn fail(self, errno: Errno) {
        self.error(errno);
    }
}

impl AnswerEmpty for ReplyEmpty {
    fn done(self) {
        self.ok();
    }
}

impl Answer for ReplyWrite {
    fn fail(self, errno: Errno) {
        self.error(errno);
    }
}

impl AnswerWrite for ReplyWrite {
    fn written(self, length: u32) {
        Self::written(self, length);
    }
}

impl Answer for ReplyData {
    fn fail(self, errno: Errno) {
        self.error(errno);
    }
}

impl AnswerRead for ReplyData {
    fn fill(self, wanted: usize, how: impl FnOnce(&mut [u8]) -> Result<Option<usize>, Errno>) -> Option<Self> {
        READ_BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < wanted {
                buffer.resize(wanted, 0);
            }
            match how(&mut buffer[..wanted]) {
                Ok(Some(length)) => self.data(&buffer[..length]),
                Ok(None) => return Some(self),
                Err(errno) => self.error(errno),
            }
            None
        })
    }
}
