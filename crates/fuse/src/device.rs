//! Requests through `/dev/fuse`: a read takes one, a write answers it. Owns the buffers of the
//! reader threads, of which each has its own.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno as Os;

use crate::answer::Answer;
use crate::session::{FileSystem, dispatch};
use crate::wire::errno::Errno;
use crate::wire::request::{self, Operation};
use crate::wire::{IN_HEADER_BYTES, reply};
use crate::{REQUEST_BYTES_MAX, wire};

/// Buffer that the kernel requires for a read of the device: the largest write and its headers.
const READ_BYTES: usize = REQUEST_BYTES_MAX as usize + 8192;

thread_local! {
    /// Buffer for the data of a read. It grows to the largest request (1 MiB), not further, and is
    /// reused, so that no read pays for allocation and zeroing.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Makes a buffer at least that long. A vector that grows by itself would take up to twice as much,
/// for each thread of each mount.
fn lengthen(buffer: &mut Vec<u8>, len: usize) {
    if let Some(more) = len.checked_sub(buffer.len()) {
        buffer.reserve_exact(more);
        buffer.resize(len, 0);
    }
}

/// The answer to a request that arrived on a descriptor of the device; the reply is written to the
/// same one.
pub(crate) struct DeviceAnswer {
    device: Arc<OwnedFd>,
    unique: u64,
    is_answered: bool,
}

impl DeviceAnswer {
    fn send(&mut self, error: i32, payload: &[u8]) {
        self.is_answered = true;
        let header = reply::header(self.unique, error, payload.len());
        let parts = [IoSlice::new(&header), IoSlice::new(payload)];
        let write = || rustix::io::retry_on_intr(|| rustix::io::writev(&*self.device, &parts));
        match write() {
            Ok(_) => {}
            // The caller was interrupted, or the connection has ended.
            Err(Os::NOENT | Os::NODEV | Os::CONNABORTED | Os::NOTCONN | Os::PERM) => {}
            Err(errno) => {
                log::error!("the kernel refused a reply of {} bytes: {errno}", payload.len());
                if error == 0 {
                    // Otherwise the request would wait indefinitely.
                    let header = reply::header(self.unique, -libc::EIO, 0);
                    let _ = rustix::io::retry_on_intr(|| rustix::io::write(&*self.device, &header));
                }
            }
        }
    }
}

impl Drop for DeviceAnswer {
    fn drop(&mut self) {
        if !self.is_answered {
            self.send(-libc::EIO, &[]);
        }
    }
}

impl Answer for DeviceAnswer {
    fn fail(mut self, errno: Errno) {
        self.send(-errno.code(), &[]);
    }

    fn bytes(mut self, payload: &[u8]) {
        self.send(0, payload);
    }

    fn fill(mut self, wanted: usize, how: impl FnOnce(&mut [u8]) -> Result<Option<usize>, Errno>) -> Option<Self> {
        READ_BUFFER.with_borrow_mut(|buffer| {
            lengthen(buffer, wanted);
            match how(&mut buffer[..wanted]) {
                Ok(Some(length)) => self.send(0, &buffer[..length.min(wanted)]),
                Ok(None) => return Some(self),
                Err(errno) => self.send(-errno.code(), &[]),
            }
            None
        })
    }

    fn data(&self) -> &[u8] {
        &[]
    }
}

/// Opens another descriptor of the same connection: readers of different descriptors do not contend
/// for one queue of requests.
#[allow(unsafe_code)]
pub(crate) fn clone_of(device: &OwnedFd) -> io::Result<OwnedFd> {
    /// `FUSE_DEV_IOC_CLONE`.
    const CLONE: libc::c_ulong = 0x8004_e500;
    let path = "/dev/fuse";
    let new =
        rustix::fs::open(path, rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC, rustix::fs::Mode::empty())?;
    let mut source = u32::try_from(device.as_raw_fd()).map_err(io::Error::other)?;
    // SAFETY: both descriptors are open; the call reads the 32-bit number that the pointer names.
    let result = unsafe { libc::ioctl(new.as_raw_fd(), CLONE, &raw mut source) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(new) }
}

/// Returns whether the kernel has ended the connection.
pub(crate) fn has_ended(device: &OwnedFd) -> bool {
    ends_within(device, Duration::ZERO)
}

/// Waits for the end of the connection; returns whether it has ended.
pub(crate) fn ends_within(device: &OwnedFd, patience: Duration) -> bool {
    let mut ready = [PollFd::new(device, PollFlags::empty())];
    let patience =
        rustix::event::Timespec { tv_sec: patience.as_secs().cast_signed(), tv_nsec: patience.subsec_nanos().into() };
    let polled = rustix::io::retry_on_intr(|| rustix::event::poll(&mut ready, Some(&patience)));
    polled.is_err() || !ready[0].revents().is_empty()
}

/// Reads messages of the kernel, one at a time.
pub(crate) struct Reader {
    device: Arc<OwnedFd>,
    message: Vec<u8>,
    length: usize,
}

impl Reader {
    pub(crate) fn new(device: Arc<OwnedFd>) -> Self {
        // Each page is written to, so that it is present. If the process is being killed, the
        // kernel fails a request whose page is missing while it copies the request, and the next
        // server would not see that request: a program would get EIO from a mount that survives its
        // server.
        Self { device, message: vec![u8::MAX; READ_BYTES], length: 0 }
    }

    /// Waits for a message; returns `false` when the connection has ended.
    pub(crate) fn read(&mut self) -> io::Result<bool> {
        loop {
            match rustix::io::read(&*self.device, &mut self.message[..]) {
                // The kernel sends no empty messages; a device of a test ends so.
                Ok(0) => return Ok(false),
                Ok(length) => {
                    self.length = length;
                    return Ok(true);
                }
                // The request was interrupted, or another reader has taken it.
                Err(Os::NOENT | Os::INTR | Os::AGAIN) => self.wait()?,
                Err(Os::NODEV) => return Ok(false),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Waits for a message where the descriptor is non-blocking.
    fn wait(&self) -> io::Result<()> {
        let mut ready = [PollFd::new(&*self.device, PollFlags::IN)];
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut ready, None))?;
        Ok(())
    }

    /// Returns the last message read.
    pub(crate) fn message(&self) -> &[u8] {
        &self.message[..self.length]
    }

    /// Serves messages until the connection has ended.
    pub(crate) fn serve<F: FileSystem>(&mut self, file_system: &F) -> io::Result<()> {
        while self.read()? {
            self.serve_message(file_system);
        }
        Ok(())
    }

    /// Serves messages until the connection has ended or `end` is readable.
    pub(crate) fn serve_until<F: FileSystem>(&mut self, file_system: &F, end: &OwnedFd) -> io::Result<()> {
        let device = self.device.clone();
        rustix::fs::fcntl_setfl(&*device, rustix::fs::fcntl_getfl(&*device)? | rustix::fs::OFlags::NONBLOCK)?;
        loop {
            let mut ready = [PollFd::new(&*device, PollFlags::IN), PollFd::new(end, PollFlags::IN)];
            rustix::io::retry_on_intr(|| rustix::event::poll(&mut ready, None))?;
            if !ready[1].revents().is_empty() {
                return Ok(());
            }
            match rustix::io::read(device.as_fd(), &mut self.message[..]) {
                Ok(length) => {
                    self.length = length;
                    self.serve_message(file_system);
                }
                Err(Os::NOENT | Os::INTR | Os::AGAIN) => {}
                Err(Os::NODEV) => return Ok(()),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Serves the last message read.
    pub(crate) fn serve_message<F: FileSystem>(&self, file_system: &F) {
        let Some((header, arguments)) = self.message().split_at_checked(IN_HEADER_BYTES) else {
            return log::error!("the kernel sent a message of {} bytes", self.length);
        };
        let decoded = wire::decode(header, arguments, &[], None);
        // These two have no answer.
        match decoded.as_ref().map(|request| (request.node, request.operation)) {
            Ok((node, Operation::Forget { lookups })) => return file_system.forget(node, lookups),
            Ok((_, Operation::BatchForget { pairs })) => {
                return request::forgotten(pairs).for_each(|(node, lookups)| file_system.forget(node, lookups));
            }
            _ => {}
        }
        let answer = DeviceAnswer { device: self.device.clone(), unique: wire::u64_at(header, 8), is_answered: false };
        dispatch(file_system, decoded, answer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With the usual growth each thread that read soon had 2 MiB.
    #[test]
    fn a_buffer_of_replies_takes_no_more_than_the_largest_of_them() {
        let mut buffer = Vec::new();
        for len in [4096, 128 << 10, (1 << 20) - 4096, 1 << 20, 8192] {
            lengthen(&mut buffer, len);
            assert!(buffer.len() >= len && buffer.capacity() <= REQUEST_BYTES_MAX as usize, "{}", buffer.capacity());
        }
    }

    #[test]
    #[allow(unsafe_code)]
    fn memory_for_requests_is_present_before_they_come() {
        let reader = Reader::new(Arc::new(std::io::pipe().unwrap().0.into()));
        let page = 4096;
        let begin = reader.message.as_ptr().map_addr(|at| at.next_multiple_of(page));
        let pages = reader.message.len() / page - 1;
        let mut present = vec![0_u8; pages];
        // SAFETY: the range lies within the reader's memory, and there is a byte for each page.
        let result = unsafe { libc::mincore(begin.cast_mut().cast(), pages * page, present.as_mut_ptr()) };
        assert_eq!(result, 0);
        assert!(present.iter().all(|byte| byte & 1 == 1), "HARNESS: pages that are not in memory");
    }
}
