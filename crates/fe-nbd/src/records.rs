//! TLS on an established connection: bytes of the client's data from and to TLS records.
//!
//! Owns the keys, ciphertext that was received and not decrypted, and ciphertext that was not sent
//! completely. The keys are locked while bytes are copied, encrypted and decrypted, never across
//! I/O: a sender that waits for the client does not keep the reader from receiving.

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::os::fd::OwnedFd;

use parking_lot::Mutex;
use rustix::io::{Errno, Result};
use rustix::net::{RecvFlags, SendFlags};
use rustls::ServerConnection;

use crate::channel::recv;

/// Ciphertext received at once: four full records.
const RECEIVE_BYTES: usize = 64 << 10;
/// Data encrypted at once: little enough that the reader waits for the keys for microseconds only.
const ENCRYPT_BYTES: usize = 64 << 10;

/// See the module's text.
pub struct Records {
    keys: Mutex<ServerConnection>,
    /// The reader's.
    incoming: Mutex<Incoming>,
    /// The sender's.
    outgoing: Mutex<Outgoing>,
}

/// Ciphertext that was received.
struct Incoming {
    bytes: Vec<u8>,
    /// The part of it that the keys have not seen.
    start: usize,
    end: usize,
}

/// Ciphertext to be sent.
#[derive(Default)]
struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
    /// Bytes of data in it. They count as sent when all of it is.
    data: usize,
}

impl Records {
    /// Continues after a handshake. Everything received so far was given to `keys`.
    pub fn new(mut keys: ServerConnection) -> Self {
        // Each call encrypts at most `ENCRYPT_BYTES` and drains the buffer.
        keys.set_buffer_limit(None);
        let incoming = Incoming { bytes: vec![0; RECEIVE_BYTES], start: 0, end: 0 };
        Self { keys: Mutex::new(keys), incoming: Mutex::new(incoming), outgoing: Mutex::default() }
    }

    /// Receives data into `buffer`, which is not empty; waits as `flags` say. `Ok(0)` is the end,
    /// with or without close_notify: a truncated request is not executed in either case.
    pub fn recv(&self, socket: &OwnedFd, buffer: &mut [u8], flags: RecvFlags) -> Result<usize> {
        // The length of the ciphertext is unknown: all of it cannot be waited for at once.
        let flags = flags.difference(RecvFlags::WAITALL);
        let mut incoming = self.incoming.lock();
        loop {
            if let Some(count) = self.decrypt(&mut incoming, buffer)? {
                return Ok(count);
            }
            let count = recv(socket, &mut incoming.bytes, flags)?;
            (incoming.start, incoming.end) = (0, count);
            if count == 0 {
                return Ok(0);
            }
        }
    }

    /// Fills `buffer` from what was received. `None`: a record is incomplete.
    fn decrypt(&self, incoming: &mut Incoming, buffer: &mut [u8]) -> Result<Option<usize>> {
        let mut keys = self.keys.lock();
        let mut filled = 0;
        loop {
            match keys.reader().read(&mut buffer[filled..]) {
                Ok(0) => return Ok(Some(filled)),
                Ok(count) => filled += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let mut rest = &incoming.bytes[incoming.start..incoming.end];
                    if rest.is_empty() {
                        return Ok((filled > 0).then_some(filled));
                    }
                    keys.read_tls(&mut rest).map_err(|_| Errno::PROTO)?;
                    incoming.start = incoming.end - rest.len();
                    keys.process_new_packets().map_err(|_| Errno::PROTO)?;
                }
                Err(_) => return Err(Errno::PROTO),
            }
            if filled == buffer.len() {
                return Ok(Some(filled));
            }
        }
    }

    /// Sends `parts`, and returns how many bytes of them were sent. A record that was sent in part
    /// is kept: the next call must begin with the same bytes.
    pub fn send(&self, socket: &OwnedFd, parts: &[IoSlice<'_>], flags: SendFlags) -> Result<usize> {
        let mut outgoing = self.outgoing.lock();
        let mut data = Data { parts, at: 0 };
        let mut sent = 0;
        data.skip(outgoing.data);
        loop {
            if outgoing.data == 0 && !self.encrypt(&mut data, &mut outgoing) {
                return Ok(sent);
            }
            while outgoing.sent < outgoing.bytes.len() {
                match rustix::net::send(socket, &outgoing.bytes[outgoing.sent..], flags) {
                    Ok(count) => outgoing.sent += count,
                    // It happens again when there is nothing else to report.
                    Err(_) if sent > 0 => return Ok(sent),
                    Err(error) => return Err(error),
                }
            }
            sent += outgoing.data;
            outgoing.clear();
        }
    }

    /// Encrypts the next bytes of `data`; `false`: there are none.
    fn encrypt(&self, data: &mut Data<'_>, outgoing: &mut Outgoing) -> bool {
        let mut keys = self.keys.lock();
        while outgoing.data < ENCRYPT_BYTES
            && let Some(bytes) = data.next(ENCRYPT_BYTES - outgoing.data)
        {
            // Neither can fail: the buffers grow as needed.
            let _ = keys.writer().write_all(bytes);
            outgoing.data += bytes.len();
        }
        drain(&mut keys, &mut outgoing.bytes);
        outgoing.data > 0
    }

    /// Sends close_notify, if nothing else is being sent and the socket has room.
    pub fn close(&self, socket: &OwnedFd) {
        let mut outgoing = self.outgoing.lock();
        if outgoing.data > 0 {
            return;
        }
        let mut keys = self.keys.lock();
        keys.send_close_notify();
        drain(&mut keys, &mut outgoing.bytes);
        // The client may be gone, and does not need it then.
        let _ = rustix::net::send(socket, &outgoing.bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        outgoing.clear();
    }
}

impl Outgoing {
    fn clear(&mut self) {
        self.bytes.clear();
        (self.sent, self.data) = (0, 0);
    }
}

/// Moves the ciphertext that is ready to the end of `bytes`.
pub fn drain(keys: &mut ServerConnection, bytes: &mut Vec<u8>) {
    // Writing to memory does not fail.
    while keys.wants_write() && keys.write_tls(bytes).is_ok() {}
}

/// Bytes in several buffers, taken from the start.
struct Data<'a> {
    parts: &'a [IoSlice<'a>],
    at: usize,
}

impl<'a> Data<'a> {
    /// Takes the next bytes, at most `most`; `None` at the end.
    fn next(&mut self, most: usize) -> Option<&'a [u8]> {
        loop {
            let (first, others) = self.parts.split_first()?;
            let rest = &first[self.at..];
            if !rest.is_empty() {
                let taken = &rest[..rest.len().min(most)];
                self.at += taken.len();
                return Some(taken);
            }
            (self.parts, self.at) = (others, 0);
        }
    }

    fn skip(&mut self, mut count: usize) {
        while count > 0
            && let Some(bytes) = self.next(count)
        {
            count -= bytes.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_taken_over_the_bounds_of_its_parts() {
        let parts = [b"abc".as_slice(), b"", b"defgh", b"i"].map(IoSlice::new);
        let mut data = Data { parts: &parts, at: 0 };
        data.skip(2);
        let taken: Vec<_> = [9, 2, 9, 9].into_iter().filter_map(|most| data.next(most)).collect();
        assert_eq!(taken, [b"c".as_slice(), b"de", b"fgh", b"i"]);
        assert!(data.next(1).is_none());
    }
}
