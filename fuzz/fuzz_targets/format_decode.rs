//! Decoding of every structure on disk. The first byte chooses the structure, the rest is its body: checksums are put right
//! before decoding, because otherwise hardly any input would get past them. Nothing may crash, and what decodes must encode
//! to something that decodes to the same.
#![cfg_attr(not(test), no_main)]

use format::{
    CataloguePart, Checkpoint, DeltaWriter, Entry, LogEnd, ObjectDescriptor, OpeningNote, RecompressState, Record,
    SUPERBLOCK_BYTES, ScrubState, SortState, Superblock, decode_batch, decode_delta, decode_dictionary, decode_learned,
    decode_usage_page, dictionary_content_bytes, encode_batch, encode_dictionary, encode_learned, encode_usage_page,
    header_bytes, parse_delta_key, parse_object_key, parse_record_key, parse_usage_key, record_key,
};
use libfuzzer_sys::fuzz_target;

/// What decodes encodes to something that decodes to the same.
macro_rules! round_trip {
    ($structure:ty, $body:expr) => {
        if let Ok(decoded) = <$structure>::decode(&sealed($body)) {
            assert_eq!(<$structure>::decode(&decoded.encode()), Ok(decoded));
        }
    };
}

fuzz_target!(|input: &[u8]| {
    let Some((which, body)) = input.split_first() else { return };
    match which % 17 {
        0 => superblock(body),
        1 => batch(body),
        2 => {
            if let Ok(record) = Record::decode(&sealed(body)) {
                // A record has one encoding.
                assert_eq!(record.encode(), sealed(body));
                // Absorbing a change says all that the change says, and loses no block that was known.
                let mut both = record.clone();
                both.absorb(&record, &mut |_| ());
                assert_eq!(both.known(), record.known());
            }
        }
        3 => round_trip!(ObjectDescriptor, body),
        4 => round_trip!(Checkpoint, body),
        5 => {
            if let Ok(page) = decode_usage_page(&sealed(body)) {
                assert_eq!(decode_usage_page(&encode_usage_page(&page)), Ok(page));
            }
        }
        7 => round_trip!(RecompressState, body),
        8 => {
            if let Ok(changes) = decode_delta(&sealed(body)) {
                let mut writer = DeltaWriter::default();
                changes.iter().for_each(|(key, change)| writer.push(key, change));
                let mut again = Vec::new();
                for delta in writer.finish() {
                    again.extend(decode_delta(&delta).unwrap_or_default());
                }
                assert_eq!(again.len(), changes.len());
            }
        }
        6 => {
            if let Ok(cells) = decode_learned(&sealed(body)) {
                assert_eq!(decode_learned(&encode_learned(&cells)), Ok(cells));
            }
        }
        10 => round_trip!(SortState, body),
        11 => round_trip!(ScrubState, body),
        12 => round_trip!(CataloguePart, body),
        13 => dictionary(body),
        14 => round_trip!(LogEnd, body),
        15 => round_trip!(OpeningNote, body),
        _ => {
            let _ = (parse_object_key(body), parse_usage_key(body), parse_delta_key(body));
            if let Some(key) = parse_record_key(body) {
                assert_eq!(record_key(&key)[..], *body);
            }
        }
    }
});

/// `body` and its crc32c.
fn sealed(body: &[u8]) -> Vec<u8> {
    let mut bytes = body.to_vec();
    bytes.extend_from_slice(&crc32c::crc32c(body).to_le_bytes());
    bytes
}

/// The content of a dictionary's object: as it is, and found in front of zeroes by whoever has lost its length.
fn dictionary(body: &[u8]) {
    let content = sealed(body);
    let Ok(bytes) = decode_dictionary(&content) else { return };
    assert_eq!(encode_dictionary(bytes), content);
    let padding = body.first().map_or(0, |byte| usize::from(*byte));
    let mut padded = content.clone();
    padded.resize(content.len() + padding, 0);
    let found = dictionary_content_bytes(&padded, padding).expect("a whole dictionary is found");
    // A shorter one, whose rest is zeroes, would do as well: it has the same checksum over other bytes.
    assert!(decode_dictionary(&padded[..found]).is_ok());
}

fn superblock(body: &[u8]) {
    let _ = Superblock::decode(body);
    let mut bytes = body.to_vec();
    bytes.resize(SUPERBLOCK_BYTES - 4, 0);
    if let Ok(superblock) = Superblock::decode(&sealed(&bytes)) {
        assert_eq!(Superblock::decode(&superblock.encode()), Ok(superblock));
    }
}

fn batch(body: &[u8]) {
    let _ = decode_batch(body);
    let mut bytes = body.to_vec();
    if bytes.len() < 64 {
        return;
    }
    // The header's own length is the fuzzer's to choose, the checksum is not.
    let header = (u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]) as usize).clamp(64, bytes.len());
    bytes[8..12].copy_from_slice(&(header as u32).to_le_bytes());
    bytes[..4].copy_from_slice(b"SHBT");
    let crc = crc32c::crc32c(&bytes[8..header]);
    bytes[4..8].copy_from_slice(&crc.to_le_bytes());
    let Ok(batch) = decode_batch(&bytes) else { return };
    assert!(header_bytes(&batch.entries) <= batch.header_bytes);
    let payload: usize = batch.entries.iter().flat_map(Entry::payloads).map(|(_, _, f)| f.stored as usize).sum();
    assert!(batch.header_bytes + payload <= batch.batch_bytes && batch.batch_bytes <= bytes.len());
    let mut again = encode_batch(&batch.header, &batch.entries, batch.header_bytes, batch.batch_bytes);
    again.resize(batch.batch_bytes, 0);
    assert_eq!(decode_batch(&again), Ok(batch));
}
