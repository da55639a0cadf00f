//! Requests about the data of open files, whatever way they come from the kernel: done at once, or handed to a lane. What they mean at the
//! ends of a file is in `file_io`.

use std::sync::Arc;

use bytes::Bytes;
use fuser::{Errno, FileHandle};

use crate::answers::{Answer, AnswerEmpty, AnswerRead, AnswerWrite};
use crate::directory::DeviceDirectory;
use crate::file_io;
use crate::open_file::File;
use crate::options::REQUEST_BYTES_MAX;

impl DeviceDirectory {
    pub(crate) fn serve_read(&self, fh: FileHandle, offset: u64, size: u32, answer: impl AnswerRead) {
        let file = match self.file(fh) {
            Ok(file) => file,
            Err(errno) => return answer.fail(errno),
        };
        let wanted = size.min(REQUEST_BYTES_MAX) as usize;
        let at_once = file.read(wanted, answer, |device, buffer| file_io::read_cached(device, offset, buffer));
        if let Some(answer) = at_once {
            self.reads.run(0, move || {
                file.read(wanted, answer, |device, buffer| file_io::read(device, offset, buffer).map(Some));
            });
        }
    }

    /// `flags`: those that the file is open with, and what the kernel adds for this write.
    pub(crate) fn serve_write(&self, fh: FileHandle, offset: u64, data: Bytes, flags: i32, answer: impl AnswerWrite) {
        let Some((file, answer)) = self.file_to_change(fh, answer) else { return };
        let fua = is_fua(flags);
        if fua || file.device.write_would_wait() {
            self.changes.run(data.len(), move || file.write(offset, data, fua, answer));
        } else {
            file.write(offset, data, fua, answer);
        }
    }

    /// Like [`serve_write`](Self::serve_write), of what a thread of the lane gets from `data`: for whoever has no time to copy so much.
    pub(crate) fn serve_large_write<A: AnswerWrite>(
        &self,
        fh: FileHandle,
        offset: u64,
        flags: i32,
        answer: A,
        data: impl FnOnce(&A) -> Bytes + Send + 'static,
    ) {
        let Some((file, answer)) = self.file_to_change(fh, answer) else { return };
        // Nothing is held for it yet but the room that it came in.
        self.changes.run(0, move || file.write(offset, data(&answer), is_fua(flags), answer));
    }

    /// The file of a request that changes it; `None` if there is none, which is answered.
    fn file_to_change<A: Answer>(&self, fh: FileHandle, answer: A) -> Option<(Arc<File>, A)> {
        match self.file(fh) {
            Ok(file) => {
                file.node.changed(self.now_unix_ns());
                Some((file, answer))
            }
            Err(errno) => {
                answer.fail(errno);
                None
            }
        }
    }

    /// There is no metadata of our own that `fsync` would add to `fdatasync`.
    pub(crate) fn serve_fsync(&self, fh: FileHandle, answer: impl AnswerEmpty) {
        match self.file(fh) {
            Ok(file) => self.changes.run(0, move || {
                finish(answer, file.device.flush().map_err(|error| file.fail("fsync", error.into())));
            }),
            Err(errno) => answer.fail(errno),
        }
    }

    pub(crate) fn serve_fallocate(
        &self,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        answer: impl AnswerEmpty,
    ) {
        let Some((file, answer)) = self.file_to_change(fh, answer) else { return };
        self.changes.run(0, move || {
            let done = file_io::allocate(&*file.device, offset, length, mode);
            finish(answer, done.map_err(|failure| file.fail("fallocate", failure)));
        });
    }
}

/// Whether a write is to be durable when it is answered: `O_SYNC` contains the bit of `O_DSYNC`; the kernel adds it for `RWF_DSYNC` and `RWF_SYNC` too.
fn is_fua(flags: i32) -> bool {
    flags & libc::O_DSYNC != 0
}

/// Answers a request whose only answer is success.
fn finish(answer: impl AnswerEmpty, result: Result<(), Errno>) {
    match result {
        Ok(()) => answer.done(),
        Err(errno) => answer.fail(errno),
    }
}
