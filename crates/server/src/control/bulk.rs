//! Binary frames for bulk data of one volume, after a `bulk` request on a control connection.
//!
//! The client sends a request and waits for its reply; several connections carry several requests
//! at once. So each side buffers one frame per connection, and an error belongs to the request that
//! it answers.
//!
//! | request: offset | size | field |
//! | --- | --- | --- |
//! | 0 | 4 | operation |
//! | 4 | 4 | for `allocation` the number of runs wanted, else 0 |
//! | 4 | 4 | for `allocation` the requested number of runs, else 0 |
//! | 16 | 8 | length; for `write` that many bytes follow, for `lend` one byte with a file descriptor (see `lent`) |
//!
//! | reply: offset | size | field |
//! | --- | --- | --- |
//! | 0 | 4 | 0, or 1 for an error |
//! | 4 | 4 | length of the payload: data, runs, the size, or the error: the name of its kind, a
//! newline, its message |
//!
//! Numbers are little-endian. A run is 8 bytes: its length, with the top bit set for a hole.

use std::io::{Error as IoError, ErrorKind as IoErrorKind, Read, Result as IoResult, Write};

use surface::{Allocation, Error, Run};

/// Maximum size of a read or write: bounds a frame, and with it the memory of a connection. Imports
/// use 1 MiB.
pub const DATA_BYTES_MAX: u64 = 4 << 20;
/// Maximum number of runs of one `allocation`: 512 KiB of reply.
pub const RUNS_MAX: u32 = 65536;
/// Maximum length of an error message in bytes.
const MESSAGE_BYTES_MAX: usize = 8192;
const HOLE_BIT: u64 = 1 << 63;

/// Operation that a frame requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Read `length` bytes.
    Read,
    /// Write the `length` bytes that follow.
    Write,
    /// Turn the range into a hole.
    Discard,
    /// Return the allocation.
    Allocation,
    /// Make acknowledged writes durable.
    Flush,
    /// Return the volume's size.
    Size,
    /// Take the file whose descriptor follows, for the copies of this connection.
    Lend,
    /// Copy `length` bytes from the volume to the file.
    CopyOut,
    /// Copy `length` bytes from the file to the volume, the last block filled up with zeroes.
    CopyIn,
}

impl Operation {
    const ALL: [Self; 9] = [
        Self::Read,
        Self::Write,
        Self::Discard,
        Self::Allocation,
        Self::Flush,
        Self::Size,
        Self::Lend,
        Self::CopyOut,
        Self::CopyIn,
    ];

    const fn number(self) -> u32 {
        match self {
            Self::Read => 1,
            Self::Write => 2,
            Self::Discard => 3,
            Self::Allocation => 4,
            Self::Flush => 5,
            Self::Size => 6,
            Self::Lend => 7,
            Self::CopyOut => 8,
            Self::CopyIn => 9,
        }
    }

    /// Returns whether the frame's length is the size of a buffer.
    const fn moves_data(self) -> bool {
        matches!(self, Self::Read | Self::Write | Self::CopyOut | Self::CopyIn)
    }
}

/// A request without its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// The requested operation.
    pub operation: Operation,
    /// Runs wanted (`Allocation`).
    pub runs_max: u32,
    /// Offset in the volume.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
}

/// Bytes of an encoded frame.
pub const FRAME_BYTES: usize = 24;

impl Frame {
    /// Encodes the frame.
    pub fn encode(&self) -> [u8; FRAME_BYTES] {
        let mut bytes = [0; FRAME_BYTES];
        bytes[0..4].copy_from_slice(&self.operation.number().to_le_bytes());
        bytes[4..8].copy_from_slice(&self.runs_max.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.offset.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    /// Decodes the received bytes.
    ///
    /// # Errors
    /// `InvalidData` for an unknown operation or more data than a frame may carry.
    pub fn decode(bytes: &[u8; FRAME_BYTES]) -> IoResult<Self> {
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        let invalid = |message: String| IoError::new(IoErrorKind::InvalidData, message);
        let number = u32_at(0);
        let operation = Operation::ALL
            .into_iter()
            .find(|operation| operation.number() == number)
            .ok_or_else(|| invalid(format!("unknown bulk operation {number}")))?;
        let frame = Self { operation, runs_max: u32_at(4), offset: u64_at(8), length: u64_at(16) };
        if operation.moves_data() && frame.length > DATA_BYTES_MAX {
            return Err(invalid(format!("a bulk frame of {} bytes exceeds {DATA_BYTES_MAX}", frame.length)));
        }
        if operation == Operation::Allocation && frame.runs_max > RUNS_MAX {
            return Err(invalid(format!("{} runs exceed {RUNS_MAX}", frame.runs_max)));
        }
        Ok(frame)
    }

    /// Reads a frame; `None` at the end of the stream.
    ///
    /// # Errors
    /// I/O errors, a truncated frame, or an invalid one.
    pub fn read(reader: &mut impl Read) -> IoResult<Option<Self>> {
        let mut bytes = [0; FRAME_BYTES];
        let first = loop {
            match reader.read(&mut bytes) {
                Err(error) if error.kind() == IoErrorKind::Interrupted => {}
                result => break result?,
            }
        };
        if first == 0 {
            return Ok(None);
        }
        reader.read_exact(&mut bytes[first..])?;
        Self::decode(&bytes).map(Some)
    }
}

/// Sends the requested bytes, or the error.
///
/// # Errors
/// I/O errors.
pub fn write_reply(writer: &mut impl Write, reply: Result<&[u8], &Error>) -> IoResult<()> {
    let message;
    let (status, payload) = match reply {
        Ok(payload) => (0u32, payload),
        Err(error) => {
            message = format!("{}\n{error}", error.kind().name());
            (1, &message.as_bytes()[..message.len().min(MESSAGE_BYTES_MAX)])
        }
    };
    let length = u32::try_from(payload.len()).map_err(|_| IoError::from(IoErrorKind::InvalidInput))?;
    let mut header = [0; 8];
    header[0..4].copy_from_slice(&status.to_le_bytes());
    header[4..8].copy_from_slice(&length.to_le_bytes());
    writer.write_all(&header)?;
    writer.write_all(payload)
}

/// Receives the head of a reply: success or error, and the length of the payload.
///
/// # Errors
/// I/O errors, and `InvalidData` for more than a frame may carry.
pub fn read_reply_head(reader: &mut impl Read) -> IoResult<(bool, usize)> {
    let mut header = [0; 8];
    reader.read_exact(&mut header)?;
    let status = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
    let length = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
    if status > 1 || u64::from(length) > DATA_BYTES_MAX {
        let message = format!("invalid bulk reply with status {status} and {length} bytes");
        return Err(IoError::new(IoErrorKind::InvalidData, message));
    }
    Ok((status == 0, length as usize))
}

/// Decodes an error from its payload.
pub fn decode_error(payload: &[u8]) -> Error {
    let text = String::from_utf8_lossy(payload);
    let (kind, message) = text.split_once('\n').unwrap_or(("io", &text));
    Error::new(surface::ErrorKind::by_name(kind), message)
}

/// Encodes runs.
pub fn encode_runs(runs: &[Run]) -> Vec<u8> {
    let word = |run: &Run| run.length | if run.allocation == Allocation::Hole { HOLE_BIT } else { 0 };
    runs.iter().flat_map(|run| word(run).to_le_bytes()).collect()
}

/// Decodes runs. A remainder of less than 8 bytes is ignored: the caller checks the sum of the
/// lengths.
pub fn decode_runs(payload: &[u8]) -> Vec<Run> {
    let (words, _) = payload.as_chunks::<8>();
    let run = |word: &[u8; 8]| {
        let word = u64::from_le_bytes(*word);
        let allocation = if word & HOLE_BIT != 0 { Allocation::Hole } else { Allocation::Data };
        Run { length: word & !HOLE_BIT, allocation }
    };
    words.iter().map(run).collect()
}

#[cfg(test)]
mod tests {
    use surface::ErrorKind;

    use super::*;

    #[test]
    fn frames_round_trip() {
        for operation in Operation::ALL {
            let frame = Frame { operation, runs_max: 77, offset: u64::MAX - 1, length: 4096 };
            assert_eq!(Frame::decode(&frame.encode()).unwrap(), frame);
            assert_eq!(Frame::read(&mut &frame.encode()[..]).unwrap(), Some(frame));
            assert!(Frame::read(&mut &frame.encode()[..20]).is_err());
        }
        assert_eq!(Frame::read(&mut &[][..]).unwrap(), None);
    }

    #[test]
    fn frames_that_would_take_too_much_memory_are_refused() {
        let frame = |operation, runs_max, length| Frame { operation, runs_max, offset: 0, length }.encode();
        assert!(Frame::decode(&frame(Operation::Write, 0, DATA_BYTES_MAX)).is_ok());
        assert!(Frame::decode(&frame(Operation::Write, 0, DATA_BYTES_MAX + 1)).is_err());
        for operation in [Operation::Read, Operation::CopyOut, Operation::CopyIn] {
            assert!(Frame::decode(&frame(operation, 0, u64::MAX)).is_err());
        }
        assert!(Frame::decode(&frame(Operation::Discard, 0, u64::MAX)).is_ok());
        assert!(Frame::decode(&frame(Operation::Allocation, RUNS_MAX + 1, 1)).is_err());
        assert!(Frame::decode(&[0xff; FRAME_BYTES]).is_err());
        assert!(read_reply_head(&mut &[0xff; 8][..]).is_err());
    }

    #[test]
    fn replies_round_trip() {
        let mut wire = Vec::new();
        write_reply(&mut wire, Ok(b"abc")).unwrap();
        assert_eq!(read_reply_head(&mut &wire[..]).unwrap(), (true, 3));
        assert_eq!(&wire[8..], b"abc");

        wire.clear();
        write_reply(&mut wire, Err(&Error::new(ErrorKind::Full, "no space\nat all"))).unwrap();
        let (ok, length) = read_reply_head(&mut &wire[..]).unwrap();
        let error = decode_error(&wire[8..8 + length]);
        assert!(!ok);
        assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Full, "no space\nat all"));
    }

    #[test]
    fn runs_round_trip() {
        let runs =
            [Run { length: 4096, allocation: Allocation::Hole }, Run { length: 1 << 50, allocation: Allocation::Data }];
        assert_eq!(decode_runs(&encode_runs(&runs)), runs);
    }
}
