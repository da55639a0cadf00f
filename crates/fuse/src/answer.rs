//! The answer to a request: exactly one for each. Moved to the thread that sends it.

use crate::wire::attributes::{Attributes, Entry};
use crate::wire::errno::Errno;
use crate::wire::reply;

/// The data of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteData<'a> {
    /// It arrived with the request.
    Here(&'a [u8]),
    /// This many bytes are available from [`Answer::data`], so that another thread can copy them.
    InAnswer(usize),
}

impl WriteData<'_> {
    /// Length in bytes.
    pub const fn len(&self) -> usize {
        match self {
            Self::Here(data) => data.len(),
            Self::InAnswer(bytes) => *bytes,
        }
    }

    /// Returns whether there is nothing to write.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Takes the answer to a request. One that is dropped without an answer sends `EIO`.
pub trait Answer: Send + Sized + 'static {
    /// Answers that the request failed.
    fn fail(self, errno: Errno);

    /// Answers with a payload.
    fn bytes(self, payload: &[u8]);

    /// Reads up to `wanted` bytes with `how` directly into the reply, and answers. If `how` returns
    /// `None`, the answer is returned to the caller, and the read must be done elsewhere.
    fn fill(self, wanted: usize, how: impl FnOnce(&mut [u8]) -> Result<Option<usize>, Errno>) -> Option<Self>;

    /// Returns the data of a write whose request says [`WriteData::InAnswer`].
    fn data(&self) -> &[u8];

    /// Answers success without a payload.
    fn done(self) {
        self.bytes(&[]);
    }

    /// Answers with an entry.
    fn entry(self, entry: &Entry) {
        self.bytes(&reply::entry(entry));
    }

    /// Answers with attributes, which the kernel may cache for this time.
    fn attributes(self, attributes: &Attributes, valid: std::time::Duration) {
        self.bytes(&reply::attributes(attributes, valid));
    }

    /// Answers that the file is open.
    fn opened(self, handle: u64, flags: reply::OpenFlags) {
        self.bytes(&reply::opened(handle, flags));
    }

    /// Answers with the number of bytes written.
    fn written(self, bytes: u32) {
        self.bytes(&reply::written(bytes));
    }

    /// Answers with a payload or an error.
    fn result(self, result: Result<Vec<u8>, Errno>) {
        match result {
            Ok(payload) => self.bytes(&payload),
            Err(errno) => self.fail(errno),
        }
    }
}
