//! Bytes received from one client: owns the receive buffer, and receives on its channel.
//!
//! One recv returns many small requests. Large payloads are received directly into the buffer that
//! the device keeps, and during that only a little is read ahead, because bytes read ahead are
//! copied once more.

use rustix::buffer::spare_capacity;
use rustix::io::Result;
use rustix::net::RecvFlags;

use crate::channel::Channel;

/// Bytes received at once: some sixty writes of 4 KiB.
pub const BUFFER_BYTES: usize = 256 << 10;
/// Payloads from this size on are received into place.
pub const LARGE_PAYLOAD_BYTES: usize = 32 << 10;
/// Read ahead while payloads are large.
const LARGE_READ_AHEAD_BYTES: usize = 4 << 10;

/// See the module's text.
pub struct Receiver {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    read_ahead: usize,
}

impl Receiver {
    /// Creates a receiver, starting with the bytes that the handshake read too much.
    pub fn new(rest: &[u8]) -> Self {
        let mut buffer = vec![0; BUFFER_BYTES.max(rest.len())];
        buffer[..rest.len()].copy_from_slice(rest);
        Self { buffer, start: 0, end: rest.len(), read_ahead: BUFFER_BYTES }
    }

    /// The bytes received and not yet taken.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Marks the first `count` bytes as taken.
    pub fn take(&mut self, count: usize) {
        self.start += count;
        debug_assert!(self.start <= self.end);
    }

    /// Receives the available bytes, waiting for the first byte if `wait`. `Ok(0)` is the end of
    /// the stream, `WOULDBLOCK` means that there are none.
    pub fn receive(&mut self, channel: &Channel, wait: bool) -> Result<usize> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.buffer.len() - self.start < LARGE_PAYLOAD_BYTES * 2 {
            // Everything awaited here is smaller than this: space is made before it is needed.
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let room = self.read_ahead.min(self.buffer.len() - self.end);
        let flags = if wait { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
        let count = channel.recv(&mut self.buffer[self.end..self.end + room], flags)?;
        self.end += count;
        Ok(count)
    }

    /// Takes a small payload, which was received completely.
    pub fn small_payload(&mut self, length: usize) -> bytes::Bytes {
        self.read_ahead = BUFFER_BYTES;
        let payload = bytes::Bytes::copy_from_slice(&self.bytes()[..length]);
        self.take(length);
        payload
    }

    /// Takes a large payload: the part received already, the rest from the socket. `None` at the
    /// end of the stream.
    pub fn large_payload(&mut self, channel: &Channel, length: usize) -> Result<Option<bytes::Bytes>> {
        self.read_ahead = LARGE_READ_AHEAD_BYTES;
        let mut payload = Vec::with_capacity(length);
        let here = self.bytes().len().min(length);
        payload.extend_from_slice(&self.bytes()[..here]);
        self.take(here);
        // The receive below fills the capacity. An allocator may give more than was asked for; then
        // that would be too much, and the bytes are received into zeroes instead.
        let is_in_place = payload.capacity() == length && !channel.is_encrypted();
        let mut filled = payload.len();
        if !is_in_place {
            payload.resize(length, 0);
        }
        while filled < length {
            let received = if is_in_place {
                let socket = channel.socket();
                rustix::io::retry_on_intr(|| {
                    rustix::net::recv(socket, spare_capacity(&mut payload), RecvFlags::WAITALL).map(|(n, _)| n)
                })?
            } else {
                channel.recv(&mut payload[filled..], RecvFlags::WAITALL)?
            };
            if received == 0 {
                return Ok(None);
            }
            filled += received;
        }
        Ok(Some(payload.into()))
    }

    /// Receives and discards `length` bytes. `false` at the end of the stream.
    pub fn skip(&mut self, channel: &Channel, length: usize) -> Result<bool> {
        let here = self.bytes().len().min(length);
        self.take(here);
        let mut left = length - here;
        while left > 0 {
            // The buffer is empty here, so it can serve as scratch space.
            (self.start, self.end) = (0, 0);
            let room = left.min(self.buffer.len());
            let received = channel.recv(&mut self.buffer[..room], RecvFlags::empty())?;
            if received == 0 {
                return Ok(false);
            }
            left -= received;
        }
        Ok(true)
    }
}
