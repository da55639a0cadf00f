//! NBD requests: an arbitrary stream, judged as the reader of a connection judges it. Whatever is admitted is within
//! the device and the limits; whatever is refused says how much of the stream belongs to it; all replies parse.
//!
//! Input: byte 0 is what was agreed (bit 0 structured, bit 1 allocation, bit 3 extended headers), bytes 1-8 the device's size; the rest is the
//! stream.
#![cfg_attr(not(test), no_main)]

use fe_nbd::Errno;
use fe_nbd::admit::{Command, Range, Session, Verdict, admit};
use fe_nbd::wire::reply::{Echo, Replies};
use fe_nbd::wire::request::{RequestHeader, header_bytes};
use fe_nbd::wire::{PAYLOAD_BYTES_MAX, command, command_flag, reply};
use libfuzzer_sys::fuzz_target;

/// A chunk is as long as its header says.
fn check_chunk(bytes: &[u8], replies: Replies) {
    let (header, length) = match replies {
        Replies::Simple => return assert_eq!(bytes.len(), reply::SIMPLE_BYTES),
        Replies::Structured => (reply::CHUNK_BYTES, u64::from(u32::from_be_bytes(bytes[16..20].try_into().unwrap()))),
        Replies::Extended => (reply::EXTENDED_CHUNK_BYTES, u64::from_be_bytes(bytes[24..32].try_into().unwrap())),
    };
    assert_eq!((bytes.len() - header) as u64, length);
}

fuzz_target!(|data: &[u8]| {
    let Some((knobs, stream)) = data.split_first_chunk::<9>() else { return };
    let replies = match (knobs[0] & 1, knobs[0] & 8) {
        (_, 8) => Replies::Extended,
        (1, _) => Replies::Structured,
        _ => Replies::Simple,
    };
    let extended = replies.is_extended();
    let allocation = replies.in_chunks() && knobs[0] & 2 == 2;
    let session = Session { replies, allocation, read_only: knobs[0] & 4 == 4 };
    let size = u64::from_be_bytes(knobs[1..].try_into().unwrap());
    let mut stream = stream;
    while let Some((bytes, rest)) = stream.split_at_checked(header_bytes(extended)) {
        let Some(header) = RequestHeader::decode(bytes, extended) else { return };
        assert_eq!(header.encode(extended), bytes);
        stream = rest;
        let echo = Echo { cookie: header.cookie, offset: header.offset };
        let within = |range: Range| {
            assert_eq!((range.offset, range.length), (header.offset, header.length));
            assert!(range.offset <= size && range.length <= size - range.offset);
        };
        match admit(&header, session, size) {
            Verdict::Disconnect => {
                assert_eq!(header.command, command::DISC);
                return;
            }
            Verdict::Run(command) => match command {
                Command::Flush => {}
                Command::Read(range) => {
                    within(range);
                    assert!(range.length <= u64::from(PAYLOAD_BYTES_MAX));
                    let mut bytes = vec![0; reply::read_header_bytes(replies, range.length)];
                    reply::put_read_header(&mut bytes, replies, echo, range.length);
                    if replies.in_chunks() {
                        bytes.resize(bytes.len() + range.length as usize, 0);
                        check_chunk(&bytes, replies);
                    }
                }
                Command::Write { range, .. } => {
                    within(range);
                    assert!(range.length <= u64::from(PAYLOAD_BYTES_MAX));
                    let Some(rest) = stream.get(range.length as usize..) else { return };
                    stream = rest;
                }
                Command::Trim { range, .. } | Command::WriteZeroes { range, .. } | Command::Cache(range) => {
                    within(range)
                }
                Command::BlockStatus { range, .. } => {
                    within(range);
                    assert!(session.allocation && range.length > 0);
                    check_chunk(&reply::block_status(replies, echo, &[(range.length, 0)]), replies);
                }
            },
            Verdict::Refuse(refusal) => {
                let has_payload = match replies {
                    Replies::Extended => header.flags & command_flag::PAYLOAD_LEN != 0,
                    _ => header.command == command::WRITE,
                };
                let payload = if has_payload { header.length } else { 0 };
                assert_eq!(refusal.payload_bytes, payload);
                assert!(refusal.errno != Errno::Io);
                check_chunk(&reply::error(replies, echo, refusal.errno, refusal.why), replies);
                let payload = usize::try_from(payload).unwrap_or(usize::MAX);
                let Some(rest) = stream.get(payload..) else { return };
                stream = rest;
            }
        }
    }
});
