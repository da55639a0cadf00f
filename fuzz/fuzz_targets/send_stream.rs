//! Receiving a stream from anybody: the reader of chunks, and resume tokens. An input is a stream whose checksums, lengths and places are
//! put right first, because otherwise hardly any would get past them; with the first byte odd it is taken as it is. Nothing may crash, and a stream
//! that is taken must be one that a sender could have made: what was read, written again, is the same stream.
#![cfg_attr(not(test), no_main)]

use format::{
    FragmentEntry, ResumeToken, STREAM_HEAD_BYTES, StreamChunk, StreamHead, StreamReader, StreamWriter, stream_checksum,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((how, input)) = input.split_first() else { return };
    if let Ok(text) = std::str::from_utf8(input)
        && let Ok(token) = text.parse::<ResumeToken>()
    {
        assert_eq!(token.to_string().parse::<ResumeToken>(), Ok(token));
    }
    let mut stream = input.to_vec();
    if how % 2 == 0 {
        mend(&mut stream);
    }
    take(&stream);
});

/// The chunks of a stream: where each begins, and its body ends.
fn chunks(stream: &[u8]) -> Vec<(usize, usize)> {
    let (mut found, mut at) = (Vec::new(), 0);
    while at + STREAM_HEAD_BYTES <= stream.len() {
        let length = u32::from_le_bytes([stream[at + 8], stream[at + 9], stream[at + 10], stream[at + 11]]) as usize;
        let end = (at + STREAM_HEAD_BYTES).saturating_add(length).min(stream.len());
        found.push((at, end));
        at = end;
    }
    found
}

/// Makes each chunk one that is intact and in its place, whatever it says.
fn mend(stream: &mut [u8]) {
    let mut sums = (0u64, 0u64, 0u64);
    for (at, end) in chunks(stream) {
        let before = crc32c::crc32c(&stream[..at]);
        let (head, body) = stream[at..end].split_at_mut(STREAM_HEAD_BYTES);
        head[..4].copy_from_slice(b"SHSC");
        head[5..8].fill(0);
        head[8..12].copy_from_slice(&(body.len() as u32).to_le_bytes());
        head[12..20].copy_from_slice(&(at as u64).to_le_bytes());
        match head[4] {
            1 if body.len() >= 2 => body[..2].copy_from_slice(&1u16.to_le_bytes()),
            2 if body.len() >= 20 => {
                let holes = usize::from(u16::from_le_bytes([body[16], body[17]]));
                let fragments = usize::from(u16::from_le_bytes([body[18], body[19]]));
                let stored = |index: usize| {
                    let from = 20 + holes * 8 + index * 14 + 7;
                    body.get(from..from + 3).map_or(0, |b| u64::from(u32::from_le_bytes([b[0], b[1], b[2], 0])))
                };
                sums.0 += fragments as u64;
                sums.1 += (0..fragments).map(stored).sum::<u64>();
                let blocks = |index: usize| {
                    let from = 20 + index * 8 + 5;
                    body.get(from..from + 3).map_or(0, |b| u64::from(u32::from_le_bytes([b[0], b[1], b[2], 0])))
                };
                sums.2 += (0..holes).map(blocks).sum::<u64>();
            }
            3 if body.len() >= 28 => {
                body[..8].copy_from_slice(&sums.0.to_le_bytes());
                body[8..16].copy_from_slice(&sums.1.to_le_bytes());
                body[16..24].copy_from_slice(&sums.2.to_le_bytes());
                body[24..28].copy_from_slice(&before.to_le_bytes());
            }
            _ => {}
        }
        let crc = crc32c::crc32c_append(crc32c::crc32c(&head[..20]), body);
        head[20..24].copy_from_slice(&crc.to_le_bytes());
    }
}

/// Takes a stream, writes what was read, and takes that: it must be the same, but for the order of properties.
fn take(stream: &[u8]) {
    let Some((taken, written)) = read_and_write(stream) else { return };
    assert_eq!(written.len(), chunks(stream).last().map_or(0, |(_, end)| *end));
    assert_eq!(read_and_write(&written), Some((taken, written.clone())));
}

/// The chunks of a stream up to the first one that is refused, and what a sender would have made of them.
fn read_and_write(stream: &[u8]) -> Option<(Vec<StreamChunk>, Vec<u8>)> {
    let (mut reader, mut writer) = (StreamReader::default(), StreamWriter::default());
    let (mut taken, mut written) = (Vec::new(), Vec::new());
    for (at, end) in chunks(stream) {
        let (head, body) = stream[at..end].split_at(STREAM_HEAD_BYTES);
        let head = StreamHead::decode(head.try_into().ok()?).ok()?;
        if body.len() != head.body_bytes() {
            return None;
        }
        let chunk = reader.take(&head, body).ok()?;
        match &chunk {
            StreamChunk::Begin(begin) => written.extend(writer.begin(begin)),
            StreamChunk::Data { data, payloads } => {
                let mut rest = &body[*payloads..];
                let mut parts = Vec::new();
                for fragment in &data.fragments {
                    let (payload, others) = rest.split_at(fragment.stored as usize);
                    let own: FragmentEntry = fragment.from_stream(units::ObjectId(7), units::Epoch(3));
                    assert_eq!(own.to_stream(units::ObjectId(7), units::Epoch(3)), *fragment);
                    let _ = stream_checksum(fragment, payload);
                    parts.push(payload);
                    rest = others;
                }
                assert!(rest.is_empty());
                written.extend(writer.data(data, parts.into_iter()));
            }
            StreamChunk::End(_) => written.extend(writer.end()),
        }
        assert_eq!(reader.offset(), end as u64);
        taken.push(chunk);
    }
    Some((taken, written))
}
