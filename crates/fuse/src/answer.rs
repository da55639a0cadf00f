//! The one answer that a request gets.

use crate::wire::attributes::{Attributes, Entry};
use crate::wire::errno::Errno;
use crate::wire::reply;

/// The data of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteData<'a> {
    /// It came with the request.
    Here(&'a [u8]),
    /// So many bytes lie where the answer has them: [`Answer::data`]. A thread that has more time
    /// can copy them.
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

    /// Whether there is nothing to write.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Takes the answer to a request. One that is dropped is answered with `EIO`.
pub trait Answer: Send + Sized + 'static {
    /// The request was not done.
    fn fail(self, errno: Errno);

    /// The request is done; the reply has that payload.
    fn bytes(self, payload: &[u8]);

    /// Reads up to `wanted` bytes with `how` straight into the reply, and answers. If `how` returns
    /// `None`, the answer comes back: the read is to be done elsewhere.
    fn fill(self, wanted: usize, how: impl FnOnce(&mut [u8]) -> Result<Option<usize>, Errno>) -> Option<Self>;

    /// The data of a write whose request says [`WriteData::InAnswer`].
    fn data(&self) -> &[u8];

    /// The request is done; there is nothing to say.
    fn done(self) {
        self.bytes(&[]);
    }

    /// The name is there.
    fn entry(self, entry: &Entry) {
        self.bytes(&reply::entry(entry));
    }

    /// These are the attributes, for so long.
    fn attributes(self, attributes: &Attributes, valid: std::time::Duration) {
        self.bytes(&reply::attributes(attributes, valid));
    }

    /// The file is open.
    fn opened(self, handle: u64, flags: reply::OpenFlags) {
        self.bytes(&reply::opened(handle, flags));
    }

    /// So many bytes are written.
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
