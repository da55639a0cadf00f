//! One monitor's socket: whole messages with their file descriptors, and replies. Owns nothing
//! but a reference to the socket; called by the thread of its session.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};

use crate::wire::{HEADER_BYTES, Header, REGIONS_MAX};

/// Why nothing more is received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The monitor has closed its end, or ours was shut down.
    Closed,
    /// It breaks the protocol.
    Broken(&'static str),
}

/// A received message: header, body and file descriptors.
pub struct Received {
    /// Header.
    pub header: Header,
    /// Body.
    pub body: Vec<u8>,
    /// Descriptors, in their order.
    pub descriptors: Vec<OwnedFd>,
}

/// Waits for a message.
pub fn receive(socket: &OwnedFd) -> Result<Received, Ended> {
    let mut bytes = [0; HEADER_BYTES];
    let mut descriptors = Vec::new();
    receive_exactly(socket, &mut bytes, &mut descriptors, true)?;
    let header = Header::decode(&bytes).map_err(Ended::Broken)?;
    let mut body = vec![0; header.size as usize];
    receive_exactly(socket, &mut body, &mut descriptors, false)?;
    Ok(Received { header, body, descriptors })
}

fn receive_exactly(
    socket: &OwnedFd,
    mut bytes: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
    may_end: bool,
) -> Result<(), Ended> {
    let whole = bytes.len();
    while !bytes.is_empty() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(REGIONS_MAX))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(bytes)];
        let count = match rustix::net::recvmsg(socket, &mut parts, &mut beside, RecvFlags::CMSG_CLOEXEC) {
            Ok(message) => message.bytes,
            Err(Errno::INTR) => continue,
            Err(_) => return Err(Ended::Closed),
        };
        for message in beside.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        if descriptors.len() > REGIONS_MAX {
            return Err(Ended::Broken("too many descriptors came with a message"));
        }
        if count == 0 {
            let is_between = may_end && bytes.len() == whole;
            return Err(if is_between { Ended::Closed } else { Ended::Broken("it ended within a message") });
        }
        bytes = bytes.get_mut(count..).unwrap_or_default();
    }
    Ok(())
}

/// Sends a message. Messages are short: a monitor that does not take them for so long that its
/// socket's buffer is full holds up its own session only.
pub fn send(socket: impl AsFd, header: &[u8; HEADER_BYTES], body: &[u8], beside: Option<BorrowedFd<'_>>) -> bool {
    let message = [header.as_slice(), body].concat();
    let mut rest = message.as_slice();
    let mut rights = beside.as_slice();
    while !rest.is_empty() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !rights.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(rights));
        }
        match rustix::net::sendmsg(&socket, &[IoSlice::new(rest)], &mut control, SendFlags::NOSIGNAL) {
            Ok(count) => {
                rest = rest.get(count..).unwrap_or_default();
                rights = &[];
            }
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
    true
}

/// Sends a message that may be lost, without waiting: `false`, it was not sent, or not whole.
pub fn send_at_once(socket: impl AsFd, header: &[u8; HEADER_BYTES]) -> bool {
    let sent = rustix::net::send(socket, header, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    sent == Ok(HEADER_BYTES)
}
