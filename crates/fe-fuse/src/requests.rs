//! Requests for the data of open files, over either transport: executed immediately, or passed to a
//! lane. The semantics at the end of a file are in `file_io`.

use std::sync::Arc;

use bytes::Bytes;
use fuse::{Answer, Errno, WriteData};

use crate::directory::{CHANGES, DeviceDirectory, READS};
use crate::file_io;
use crate::open_file::File;
use crate::options::REQUEST_BYTES_MAX;

/// Writes of at least this size are copied by another thread than that of a ring's queue, which the
/// kernel uses for copying, too.
const LARGE_WRITE_BYTES: usize = 64 << 10;

impl DeviceDirectory {
    pub(crate) fn serve_read(&self, fh: u64, offset: u64, size: u32, answer: impl Answer) {
        let file = match self.file(fh) {
            Ok(file) => file,
            Err(errno) => return answer.fail(errno),
        };
        let wanted = size.min(REQUEST_BYTES_MAX) as usize;
        let at_once = file.read(wanted, answer, |device, buffer| file_io::read_cached(device, offset, buffer));
        if let Some(answer) = at_once {
            self.lanes.run(READS, 0, move || {
                file.read(wanted, answer, |device, buffer| file_io::read(device, offset, buffer).map(Some));
            });
        }
    }

    /// `flags`: those of the open file, and those added by the kernel for this write.
    pub(crate) fn serve_write<A: Answer>(&self, fh: u64, offset: u64, data: WriteData<'_>, flags: i32, answer: A) {
        let Some((file, answer)) = self.file_to_change(fh, answer) else { return };
        let fua = is_fua(flags);
        let length = data.len();
        let data = match data {
            WriteData::Here(data) => Bytes::copy_from_slice(data),
            // The thread of a ring's queue leaves a large copy to a thread of the lane. So far it
            // only holds the buffer that it arrived in.
            WriteData::InAnswer(_) if length >= LARGE_WRITE_BYTES => {
                return self.lanes.run(CHANGES, 0, move || {
                    let data = Bytes::copy_from_slice(answer.data());
                    file.write(offset, data, fua, answer);
                });
            }
            WriteData::InAnswer(_) => Bytes::copy_from_slice(answer.data()),
        };
        if fua || file.device.write_would_wait() {
            self.lanes.run(CHANGES, length, move || file.write(offset, data, fua, answer));
        } else {
            file.write(offset, data, fua, answer);
        }
    }

    /// The file of a request that changes it; `None` if there is none, which is answered.
    fn file_to_change<A: Answer>(&self, fh: u64, answer: A) -> Option<(Arc<File>, A)> {
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

    /// There is no metadata that `fsync` would add to `fdatasync`.
    pub(crate) fn serve_fsync(&self, fh: u64, answer: impl Answer) {
        match self.file(fh) {
            Ok(file) => self.lanes.run(CHANGES, 0, move || {
                finish(answer, file.device.flush().map_err(|error| file.fail("fsync", error.into())));
            }),
            Err(errno) => answer.fail(errno),
        }
    }

    pub(crate) fn serve_fallocate(&self, fh: u64, offset: u64, length: u64, mode: i32, answer: impl Answer) {
        let Some((file, answer)) = self.file_to_change(fh, answer) else { return };
        self.lanes.run(CHANGES, 0, move || {
            let done = file_io::allocate(&*file.device, offset, length, mode);
            finish(answer, done.map_err(|failure| file.fail("fallocate", failure)));
        });
    }
}

/// Whether a write must be durable when answered: `O_SYNC` contains the bit of `O_DSYNC`; the
/// kernel also adds it for `RWF_DSYNC` and `RWF_SYNC`.
fn is_fua(flags: i32) -> bool {
    flags & libc::O_DSYNC != 0
}

/// Answers a request whose only answer is success.
fn finish(answer: impl Answer, result: Result<(), Errno>) {
    match result {
        Ok(()) => answer.done(),
        Err(errno) => answer.fail(errno),
    }
}
