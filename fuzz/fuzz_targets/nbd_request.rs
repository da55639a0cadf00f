//! NBD requests: an arbitrary stream, judged as the reader of a connection judges it. Whatever is admitted is within
//! the device and the limits; whatever is refused says how much of the stream belongs to it; all replies parse.
//!
//! Input: byte 0 is what was agreed (bit 0 structured, bit 1 allocation), bytes 1-8 the device's size; the rest is the
//! stream.
#![no_main]

use fe_nbd::Errno;
use fe_nbd::admit::{Command, Range, Session, Verdict, admit};
use fe_nbd::wire::request::{HEADER_BYTES, RequestHeader};
use fe_nbd::wire::{PAYLOAD_BYTES_MAX, command, reply};
use libfuzzer_sys::fuzz_target;

fn be32(bytes: &[u8]) -> usize {
    u32::from_be_bytes(bytes.try_into().unwrap()) as usize
}

fuzz_target!(|data: &[u8]| {
    let Some((knobs, stream)) = data.split_first_chunk::<9>() else { return };
    let structured = knobs[0] & 1 == 1;
    let session = Session { structured, allocation: structured && knobs[0] & 2 == 2, read_only: knobs[0] & 4 == 4 };
    let size = u64::from_be_bytes(knobs[1..].try_into().unwrap());
    let mut stream = stream;
    while let Some((bytes, rest)) = stream.split_first_chunk::<HEADER_BYTES>() {
        let Some(header) = RequestHeader::decode(bytes) else { return };
        assert_eq!(header.encode(), *bytes);
        stream = rest;
        let within = |range: Range| {
            assert_eq!((range.offset, range.length), (header.offset, header.length));
            assert!(range.offset <= size && u64::from(range.length) <= size - range.offset);
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
                    assert!(range.length <= PAYLOAD_BYTES_MAX);
                    let mut bytes = vec![0; reply::read_header_bytes(structured, range.length)];
                    reply::put_read_header(&mut bytes, structured, header.cookie, range.offset, range.length);
                    if structured {
                        // Chunk length: the offset and the data.
                        let content = if range.length == 0 { 0 } else { 8 + range.length as usize };
                        assert_eq!(be32(&bytes[16..20]), content);
                    }
                }
                Command::Write { range, .. } => {
                    within(range);
                    assert!(range.length <= PAYLOAD_BYTES_MAX);
                    let Some(rest) = stream.get(range.length as usize..) else { return };
                    stream = rest;
                }
                Command::Trim { range, .. } | Command::WriteZeroes { range, .. } | Command::Cache(range) => {
                    within(range)
                }
                Command::BlockStatus { range, .. } => {
                    within(range);
                    assert!(session.allocation && range.length > 0);
                    let bytes = reply::block_status(header.cookie, &[(range.length, 0)]);
                    assert_eq!(bytes.len(), reply::CHUNK_BYTES + be32(&bytes[16..20]));
                }
            },
            Verdict::Refuse(refusal) => {
                let payload = if header.command == command::WRITE { header.length } else { 0 };
                assert_eq!(refusal.payload_bytes, payload);
                assert!(refusal.errno != Errno::Io);
                let bytes = reply::error(structured, header.cookie, refusal.errno, refusal.why);
                if structured {
                    assert_eq!(bytes.len(), reply::CHUNK_BYTES + be32(&bytes[16..20]));
                } else {
                    assert_eq!(bytes.len(), reply::SIMPLE_BYTES);
                }
                let Some(rest) = stream.get(payload as usize..) else { return };
                stream = rest;
            }
        }
    }
});
