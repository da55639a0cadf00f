//! Streams of snapshots over the control socket, both ends.
//!
//! After `send`, the server sends the chunks as bulk replies, with an empty one after the last; or
//! an error. A chunk may wait for the store of an image: both sides check meanwhile whether it is
//! still needed. After `receive`, the client sends each chunk in a bulk frame and waits for its
//! reply, which is empty except for the last chunk's: that is the report, in JSON.

use std::io::{BufReader, Error as IoError, ErrorKind as IoErrorKind, Read, Result as IoResult, Write};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use surface::{Error, ErrorKind, Result};

use super::bulk::{self, Frame, Operation};
use super::client::gone;
use crate::stream_io::{StreamSink, StreamSource};
use host::{read_vec, readable};
use operations::{Received, Sending};

/// The server's end of `send`. `is_stopping` returns whether the server is shutting down.
pub(super) fn serve_send(
    stream: &UnixStream,
    source: &mut dyn StreamSource,
    is_stopping: impl Fn() -> bool,
) -> IoResult<()> {
    let mut writer = stream;
    let is_over = || is_stopping() || has_hung_up(stream);
    loop {
        let next = source.next_chunk(&is_over);
        let next = if is_stopping() {
            Err(Error::new(ErrorKind::Io, "the pool's server is stopping: resume with the receiver's token"))
        } else {
            next
        };
        match next {
            Ok(Some(chunk)) => bulk::write_reply(&mut writer, Ok(&chunk))?,
            Ok(None) => return bulk::write_reply(&mut writer, Ok(&[])),
            Err(error) => return bulk::write_reply(&mut writer, Err(&error)),
        }
    }
}

/// Returns whether the peer has closed the connection.
fn has_hung_up(stream: &UnixStream) -> bool {
    let mut looked = [PollFd::new(stream, PollFlags::empty())];
    let is_known = poll(&mut looked, Some(&Timespec::default())).is_ok();
    is_known && looked[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

/// The server's end of `receive`.
pub(super) fn serve_receive(mut stream: &UnixStream, sink: &mut dyn StreamSink) -> IoResult<()> {
    while let Some(frame) = Frame::read(&mut stream)? {
        if frame.operation != Operation::Write {
            return Err(IoError::new(IoErrorKind::InvalidData, "expected a chunk of a stream"));
        }
        // `Frame::decode` bounds the length.
        let chunk = read_vec(stream, usize::try_from(frame.length).unwrap_or(usize::MAX))?;
        match sink.put(&chunk) {
            Ok(None) => bulk::write_reply(&mut stream, Ok(&[]))?,
            Ok(Some(report)) => bulk::write_reply(&mut stream, Ok(&serde_json::to_vec(&report)?))?,
            Err(error) => bulk::write_reply(&mut stream, Err(&error))?,
        }
    }
    Ok(())
}

fn read_reply(stream: &mut impl Read) -> Result<Vec<u8>> {
    let (ok, length) = bulk::read_reply_head(stream).map_err(gone)?;
    let mut payload = vec![0; length];
    stream.read_exact(&mut payload).map_err(gone)?;
    if ok { Ok(payload) } else { Err(bulk::decode_error(&payload)) }
}

/// The client's end of `send`.
pub struct RemoteSource {
    pub(super) stream: BufReader<UnixStream>,
    pub(super) about: Sending,
}

impl StreamSource for RemoteSource {
    fn about(&self) -> &Sending {
        &self.about
    }
    fn next_chunk(&mut self, is_over: &dyn Fn() -> bool) -> Result<Option<Vec<u8>>> {
        while self.stream.buffer().is_empty() && !readable(self.stream.get_ref()).map_err(gone)? {
            if is_over() {
                return Err(Error::new(ErrorKind::Io, "the stream was abandoned"));
            }
        }
        let chunk = read_reply(&mut self.stream)?;
        Ok((!chunk.is_empty()).then_some(chunk))
    }
}

/// The client's end of `receive`.
pub struct RemoteSink {
    pub(super) stream: UnixStream,
}

impl StreamSink for RemoteSink {
    fn put(&mut self, chunk: &[u8]) -> Result<Option<Received>> {
        let frame = Frame { operation: Operation::Write, runs_max: 0, offset: 0, length: chunk.len() as u64 };
        self.stream.write_all(&frame.encode()).map_err(gone)?;
        self.stream.write_all(chunk).map_err(gone)?;
        let reply = read_reply(&mut self.stream)?;
        if reply.is_empty() {
            return Ok(None);
        }
        let malformed = |error| Error::with_source(ErrorKind::Invalid, "invalid report of a stream", error);
        serde_json::from_slice(&reply).map(Some).map_err(malformed)
    }
}
