//! The way to `fuser`, which knows the protocol and no rings: a pair of sockets, of which its end looks to it like `/dev/fuse`. What the ring
//! does not serve itself goes there, and what it answers comes back. Owns the requests that are there.
//!
//! Beside a ring, `/dev/fuse` still gives what has no answer, or nobody to wait for it: forgotten files and interruptions. Those pass through too.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

use fuser::Errno;

use super::abi::{self, opcode};
use super::entry::Taken;
use crate::answers::Answer;
use crate::options::REQUEST_BYTES_MAX;

/// What the kernel wants to have room for when `/dev/fuse` is read: the largest write and its headers, though none comes this way.
const DEVICE_READ_BYTES: usize = REQUEST_BYTES_MAX as usize + 8192;

/// The largest answer: a part of a listing, which is cut to this size.
const LISTING_BYTES_MAX: u32 = 64 << 10;

/// An answer with its headers.
const ANSWER_BYTES_MAX: usize = LISTING_BYTES_MAX as usize + 4096;

/// Bytes of messages that may be on their way: some of the largest ones (what sets an extended attribute has 64 KiB).
const SOCKET_BYTES: usize = 1 << 20;

/// A pair of sockets that keep messages apart.
pub(super) struct Link {
    ours: OwnedFd,
    /// By the numbers of the requests.
    asked: Mutex<HashMap<u64, Taken>>,
}

impl Link {
    /// The link, and `fuser`'s end of it.
    pub(super) fn new() -> io::Result<(Self, OwnedFd)> {
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None)?;
        for end in [&ours, &theirs] {
            // Without the privilege as much as anybody may have.
            if sockopt::set_socket_send_buffer_size_force(end, SOCKET_BYTES).is_err() {
                sockopt::set_socket_send_buffer_size(end, SOCKET_BYTES)?;
            }
        }
        Ok((Self { ours, asked: Mutex::default() }, theirs))
    }

    /// Hands a request of the ring to `fuser`.
    pub(super) fn ask(&self, taken: Taken) {
        let Some(mut message) = abi::flatten(taken.header(), taken.payload()) else {
            log::error!("a request of the kernel contradicts itself: operation {}", taken.asked().opcode);
            return taken.fail(Errno::EIO);
        };
        if matches!(abi::opcode_of(&message), opcode::READDIR | opcode::READDIRPLUS) {
            abi::limit_listing(&mut message, LISTING_BYTES_MAX);
        }
        let unique = taken.asked().unique;
        self.asked.lock().insert(unique, taken);
        if let Err(error) = self.send(&message) {
            log::error!("a request cannot be handed on: {error}");
            let taken = self.asked.lock().remove(&unique);
            if let Some(taken) = taken {
                taken.fail(Errno::EIO);
            }
        }
    }

    pub(super) fn send(&self, message: &[u8]) -> io::Result<()> {
        rustix::io::retry_on_intr(|| rustix::net::send(&self.ours, message, SendFlags::NOSIGNAL))?;
        Ok(())
    }

    /// A message of `fuser`; `None` when it has ended.
    pub(super) fn receive(&self) -> io::Result<Option<Vec<u8>>> {
        let mut message = vec![0; ANSWER_BYTES_MAX];
        let (_, length) =
            rustix::io::retry_on_intr(|| rustix::net::recv(&self.ours, &mut message[..], RecvFlags::TRUNC))?;
        if length > message.len() {
            // It will be missed: say so, so that it can be answered.
            log::error!("an answer of {length} bytes is cut to {ANSWER_BYTES_MAX}");
        }
        message.truncate(length);
        Ok((length > 0).then_some(message))
    }

    /// Brings the answers of `fuser` to where the questions came from, until it ends.
    pub(super) fn bring_answers(&self, device: &OwnedFd) {
        loop {
            match self.receive() {
                Ok(Some(answer)) if answer.len() >= abi::OUT_HEADER_BYTES => self.bring(device, &answer),
                Ok(Some(_)) => log::error!("an answer is too short"),
                Ok(None) => break,
                Err(error) => {
                    log::error!("answers cannot be received: {error}");
                    break;
                }
            }
        }
        // Nobody will answer any more: each is told of an I/O error.
        self.asked.lock().clear();
    }

    fn bring(&self, device: &OwnedFd, answer: &[u8]) {
        let unique = abi::unique_of(answer);
        let taken = self.asked.lock().remove(&unique);
        match taken {
            Some(taken) => taken.finish_with(abi::error_of(answer), &answer[abi::OUT_HEADER_BYTES..]),
            // That of the message that ends it, to which nobody listens.
            None if unique == u64::MAX => {}
            None => {
                // It may have been interrupted, or the kernel be gone.
                let _ = rustix::io::retry_on_intr(|| rustix::io::write(device, answer));
            }
        }
    }

    /// Passes on what `/dev/fuse` gives, until the kernel has ended or `end` can be read; `false` if it ends for another reason.
    pub(super) fn pass_on(&self, device: &OwnedFd, end: &OwnedFd) -> bool {
        let mut message = room();
        loop {
            let mut ready = [PollFd::new(device, PollFlags::IN), PollFd::new(end, PollFlags::IN)];
            if rustix::event::poll(&mut ready, None).is_err() {
                continue;
            }
            if !ready[1].revents().is_empty() {
                return true;
            }
            let length = match read_device(device, &mut message) {
                Ok(length) => length,
                // Nothing there any more (ENOENT: it was interrupted).
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR | libc::EAGAIN)) => {
                    continue;
                }
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return true,
                Err(error) => {
                    log::error!("the connection to the kernel fails: {error}");
                    return false;
                }
            };
            match self.send(&message[..length]) {
                Ok(()) => {}
                // `fuser` has ended.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => return true,
                // It is nothing that anybody waits for: some forgotten files are remembered.
                Err(error) => log::warn!("a message of the kernel of {length} bytes cannot be passed on: {error}"),
            }
        }
    }
}

/// One message of the kernel.
pub(super) fn read_device(device: &OwnedFd, message: &mut [u8]) -> io::Result<usize> {
    Ok(rustix::io::read(device, message)?)
}

/// Room for one message of the kernel.
pub(super) fn room() -> Vec<u8> {
    vec![0; DEVICE_READ_BYTES]
}
