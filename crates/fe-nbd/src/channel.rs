//! The bytes from and to one client: a socket, with or without TLS on it.
//!
//! Without TLS, each call is the system call of the same name. At most one thread receives and one
//! sends at a time: the connection's reader, and the one that sends for the outbox.

use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::{Result, retry_on_intr};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};

use crate::records::Records;

/// See the module's text.
pub struct Channel {
    socket: Arc<OwnedFd>,
    tls: Option<Box<Records>>,
}

impl Channel {
    /// A channel without TLS.
    pub const fn plain(socket: Arc<OwnedFd>) -> Self {
        Self { socket, tls: None }
    }

    /// Encrypts everything from now on.
    pub fn encrypt(&mut self, records: Records) {
        self.tls = Some(Box::new(records));
    }

    /// The socket: to wait, to set it up and to shut it down.
    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Whether received bytes need another copy, so that they cannot be received in place.
    pub const fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Receives into `buffer`, again after a signal. `Ok(0)` is the end of the stream.
    pub fn recv(&self, buffer: &mut [u8], flags: RecvFlags) -> Result<usize> {
        match &self.tls {
            None => recv(&self.socket, buffer, flags),
            Some(tls) => tls.recv(&self.socket, buffer, flags),
        }
    }

    /// Sends from the start of `bytes`; returns how many were sent. With TLS, some of the bytes
    /// after these may be on their way already: the next call must begin with the same bytes.
    pub fn send(&self, bytes: &[u8], flags: SendFlags) -> Result<usize> {
        match &self.tls {
            None => rustix::net::send(&self.socket, bytes, flags),
            Some(tls) => tls.send(&self.socket, &[IoSlice::new(bytes)], flags),
        }
    }

    /// As [`send`](Self::send), from several buffers.
    pub fn send_vectored(&self, parts: &[IoSlice<'_>], flags: SendFlags) -> Result<usize> {
        match &self.tls {
            None => rustix::net::sendmsg(&self.socket, parts, &mut SendAncillaryBuffer::default(), flags),
            Some(tls) => tls.send(&self.socket, parts, flags),
        }
    }

    /// Ends TLS after the last byte, without waiting, so that the client can distinguish the end from
    /// a truncation.
    pub fn close(&self) {
        if let Some(tls) = &self.tls {
            tls.close(&self.socket);
        }
    }
}

/// Receives from a socket, again after a signal.
pub fn recv(socket: &OwnedFd, buffer: &mut [u8], flags: RecvFlags) -> Result<usize> {
    retry_on_intr(|| rustix::net::recv(socket, &mut *buffer, flags).map(|(_, count)| count))
}
