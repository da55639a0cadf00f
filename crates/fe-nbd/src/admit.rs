//! Admission of requests: a pure function from a request's header to a command for the device, or
//! to a refusal. All rules of the protocol about flags, lengths and ranges are here.

use crate::errno::Errno;
use crate::wire::{PAYLOAD_BYTES_MAX, command, command_flag, reply::Replies, request::RequestHeader};

/// The agreement of the handshake.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Session {
    /// The kind of replies, and of headers.
    pub replies: Replies,
    /// `base:allocation` was selected.
    pub allocation: bool,
    /// The device is a snapshot.
    pub read_only: bool,
}

/// A range of the device, within its size when it was admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// First byte.
    pub offset: u64,
    /// Bytes; may be 0.
    pub length: u64,
}

/// A command for the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Read at most [`PAYLOAD_BYTES_MAX`].
    Read(Range),
    /// Write the payload that follows, at most [`PAYLOAD_BYTES_MAX`].
    Write {
        /// Where.
        range: Range,
        /// Durable before the reply.
        fua: bool,
    },
    /// Make answered writes durable.
    Flush,
    /// Give space back.
    Trim {
        /// Where.
        range: Range,
        /// Durable before the reply.
        fua: bool,
    },
    /// Make a range read as zeroes.
    WriteZeroes {
        /// Where.
        range: Range,
        /// Durable before the reply.
        fua: bool,
        /// Keep it allocated.
        no_hole: bool,
    },
    /// Bring into memory.
    Cache(Range),
    /// Report the allocation, in one extent if `one`. Only in sessions with `base:allocation`; not
    /// empty.
    BlockStatus {
        /// Where.
        range: Range,
        /// One extent only, not longer than the range.
        one: bool,
    },
}

/// A refusal: the reply, and the bytes of the stream that belong to the refused request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// The code.
    pub errno: Errno,
    /// The fault, and the remedy.
    pub why: &'static str,
    /// Bytes after the header that must be skipped, as the client says.
    pub payload_bytes: u64,
}

/// Decision about a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Do it.
    Run(Command),
    /// Answer with an error.
    Refuse(Refusal),
    /// Finish requests in flight, then close.
    Disconnect,
}

/// Judges a request to a device of `size_bytes` now.
pub fn admit(header: &RequestHeader, session: Session, size_bytes: u64) -> Verdict {
    use command_flag::{DF, FAST_ZERO, FUA, NO_HOLE, PAYLOAD_LEN, REQ_ONE};

    // FUA is valid for all commands, even where it has no effect.
    let allowed = FUA
        | match header.command {
            command::READ if session.replies.in_chunks() => DF,
            command::WRITE if session.replies.is_extended() => PAYLOAD_LEN,
            command::WRITE_ZEROES => NO_HOLE | FAST_ZERO,
            command::BLOCK_STATUS => REQ_ONE,
            _ => 0,
        };
    // With extended headers the flag says so, whatever the command. QEMU's clients send writes without
    // it, and their payload all the same: it must never be taken for requests.
    let has_payload =
        header.command == command::WRITE || (session.replies.is_extended() && header.flags & PAYLOAD_LEN != 0);
    let payload_bytes = if has_payload { header.length } else { 0 };
    let refuse = |errno, why| Verdict::Refuse(Refusal { errno, why, payload_bytes });
    if header.command == command::DISC {
        return Verdict::Disconnect;
    }
    if header.command > command::BLOCK_STATUS {
        return refuse(Errno::Inval, "unknown command");
    }
    if header.flags & !allowed != 0 {
        return refuse(Errno::Inval, "a flag of the request is not valid for its command");
    }
    let flag = |bit| header.flags & bit != 0;
    let range = Range { offset: header.offset, length: header.length };
    let is_within = range.offset.checked_add(range.length).is_some_and(|end| end <= size_bytes);
    let too_long = header.length > u64::from(PAYLOAD_BYTES_MAX);
    const PAST_THE_END: &str = "the range goes past the end of the device";

    match header.command {
        command::WRITE | command::TRIM | command::WRITE_ZEROES if session.read_only => {
            refuse(Errno::Perm, "a snapshot never changes: write to a clone of it")
        }
        command::FLUSH if range != (Range { offset: 0, length: 0 }) => {
            refuse(Errno::Inval, "offset and length of a flush must be 0")
        }
        command::FLUSH => Verdict::Run(Command::Flush),
        command::WRITE if too_long => {
            refuse(Errno::Inval, "the write is longer than the announced maximum of 32 MiB; split it")
        }
        command::WRITE | command::WRITE_ZEROES if !is_within => refuse(Errno::NoSpc, PAST_THE_END),
        _ if !is_within => refuse(Errno::Inval, PAST_THE_END),
        command::READ if too_long => {
            refuse(Errno::Overflow, "the read is longer than the announced maximum of 32 MiB; split it")
        }
        command::READ => Verdict::Run(Command::Read(range)),
        command::WRITE => Verdict::Run(Command::Write { range, fua: flag(FUA) }),
        command::TRIM => Verdict::Run(Command::Trim { range, fua: flag(FUA) }),
        command::CACHE => Verdict::Run(Command::Cache(range)),
        command::WRITE_ZEROES if flag(NO_HOLE) && flag(FAST_ZERO) => {
            refuse(Errno::NotSup, "storing allocated zeroes is not fast")
        }
        command::WRITE_ZEROES => Verdict::Run(Command::WriteZeroes { range, fua: flag(FUA), no_hole: flag(NO_HOLE) }),
        _ if !session.allocation => refuse(Errno::Inval, "block status needs base:allocation, which was not selected"),
        _ if range.length == 0 => refuse(Errno::Inval, "block status of an empty range"),
        _ => Verdict::Run(Command::BlockStatus { range, one: flag(REQ_ONE) }),
    }
}
