//! Mounts that survive the program that serves them. Owns the keeper process, its entries and its
//! messages.
//!
//! The kernel ends a connection when its last descriptor is closed. A *keeper*, a process that does
//! nothing else, holds the descriptors of `/dev/fuse`; when the server is killed, users of the
//! mount wait. The next server gets the descriptors from the keeper, skips the negotiation
//! ([`crate::Session::take_over`]), and asks the kernel to send again the requests that the killed
//! server took and did not answer (Linux 6.9).
//!
//! An entry of a keeper has a name, some bytes for the server, and descriptors. A keeper ends when
//! it has no entries, when the connections of all its entries have ended while there is no server,
//! and when no server has come within the time that the last one has set. Then it closes its
//! descriptors, the kernel ends the connections, and users of the mounts get errors.
//!
//! # Messages
//!
//! Over a socket that preserves message boundaries, each with at most [`DESCRIPTORS_MAX`]
//! descriptors: kind 1, length of the name 1, name, bytes. `PUT`, `DROP` and `WAIT` are answered
//! with `DONE`, `LIST` with an `ENTRY` for each entry and `DONE`. The bytes of `WAIT` are seconds,
//! 8 bytes little-endian; 0 for no limit.

mod client;
mod process;

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};

pub use client::{Entry, Keeper, KeeperSlot};
pub use process::run as run_keeper;

/// Descriptors of an entry: one for each thread that takes requests, and those that the server
/// adds.
pub const DESCRIPTORS_MAX: usize = 64;

/// A message's bytes. Names have up to 255.
const MESSAGE_BYTES_MAX: usize = 8192;

const PUT: u8 = 1;
const DROP: u8 = 2;
const LIST: u8 = 3;
const ENTRY: u8 = 4;
const DONE: u8 = 5;
const WAIT: u8 = 6;

struct Message {
    kind: u8,
    name: String,
    bytes: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

fn send(socket: impl AsFd, kind: u8, name: &str, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let length = u8::try_from(name.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let message = [&[kind, length], name.as_bytes(), bytes].concat();
    if message.len() > MESSAGE_BYTES_MAX || descriptors.len() > DESCRIPTORS_MAX {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let flags = SendFlags::NOSIGNAL;
    rustix::io::retry_on_intr(|| rustix::net::sendmsg(&socket, &[IoSlice::new(&message)], &mut control, flags))?;
    Ok(())
}

/// Receives the next message; `None` if the other end is closed.
fn receive(socket: impl AsFd) -> io::Result<Option<Message>> {
    let mut bytes = vec![0; MESSAGE_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(&socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags)
    })?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    bytes.truncate(received.bytes);
    let broken = || io::Error::from(io::ErrorKind::InvalidData);
    let (head, rest) = bytes.split_first_chunk::<2>().ok_or_else(broken)?;
    let (name, bytes) = rest.split_at_checked(usize::from(head[1])).ok_or_else(broken)?;
    let name = String::from_utf8(name.to_vec()).map_err(|_| broken())?;
    Ok(Some(Message { kind: head[0], name, bytes: bytes.to_vec(), descriptors }))
}
