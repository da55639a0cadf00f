//! Storage form of a trained dictionary: the content of a separate object. The log, the cleaner and
//! scrubbing thus handle it like any other data; the state in its object's descriptor makes it a
//! dictionary.

use crate::FormatError;
use crate::cursor::{Cursor, seal, unseal};

/// Start of the content. All zeroes, which lost records read as, is not a valid dictionary.
const MAGIC: [u8; 4] = *b"SHDI";
/// Bytes that the content has besides the dictionary's.
pub const DICTIONARY_FRAME_BYTES: usize = 8;

/// Encodes the content: magic 4, the dictionary's bytes, crc32c 4.
pub fn encode_dictionary(dictionary: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(dictionary.len() + DICTIONARY_FRAME_BYTES);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(dictionary);
    seal(&mut out);
    out
}

/// Returns the dictionary's bytes from its content. Decoding with any other bytes would yield wrong
/// data unnoticed, so the checksums of single fragments do not suffice: the whole is verified.
///
/// # Errors
/// When the checksum or the magic does not match, or it is empty.
pub fn decode_dictionary(content: &[u8]) -> Result<&[u8], FormatError> {
    let mut cursor = Cursor::new("dictionary", unseal("dictionary", content)?);
    if cursor.bytes(MAGIC.len())? != MAGIC {
        return Err(cursor.fail("the magic number is missing"));
    }
    if cursor.remaining() == 0 {
        return Err(cursor.fail("it is empty"));
    }
    cursor.bytes(cursor.remaining())
}

/// Returns the length of the content at the start of `padded`, if it is valid and followed only by
/// zeroes: for callers without the descriptor, which only see blocks. At most `padding` trailing
/// bytes are treated as padding.
pub fn dictionary_content_bytes(padded: &[u8], padding: usize) -> Option<usize> {
    if !padded.starts_with(&MAGIC) {
        return None;
    }
    let sealed = size_of::<u32>();
    let least = padded.len().saturating_sub(padding).max(DICTIONARY_FRAME_BYTES + 1);
    let mut sum = crate::crc::crc32c(padded.get(..least - sealed)?);
    for length in least..=padded.len() {
        let (body, rest) = padded.split_at(length - sealed);
        if rest.starts_with(&sum.to_le_bytes()) && rest[sealed..].iter().all(|byte| *byte == 0) {
            return decode_dictionary(&padded[..length]).is_ok().then_some(length);
        }
        sum = crate::crc::crc32c_append(sum, &padded[body.len()..=body.len()]);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_and_notices_damage() {
        let mut content = encode_dictionary(b"what units have in common");
        assert_eq!(decode_dictionary(&content).unwrap(), b"what units have in common");
        for bit in 0..content.len() * 8 {
            content[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_dictionary(&content).is_err());
            content[bit / 8] ^= 1 << (bit % 8);
        }
        for length in 0..content.len() {
            assert!(decode_dictionary(&content[..length]).is_err());
        }
        assert!(decode_dictionary(&encode_dictionary(b"")).is_err());
        assert!((0..100).all(|length| decode_dictionary(&vec![0; length]).is_err()));
    }

    #[test]
    fn the_content_is_found_in_front_of_zeroes_and_of_nothing_else() {
        // One of them has a checksum that ends in a zero.
        for bytes in 1..600 {
            let content = encode_dictionary(&vec![7; bytes]);
            for padding in [0, 1, 5, 300] {
                let mut padded = content.clone();
                padded.resize(content.len() + padding, 0);
                assert_eq!(dictionary_content_bytes(&padded, 300), Some(content.len()));
                padded.push(1);
                assert_eq!(dictionary_content_bytes(&padded, 400), None);
            }
        }
        assert_eq!(dictionary_content_bytes(&[0; 100], 100), None);
        let short = encode_dictionary(b"");
        assert!((0..=short.len()).all(|length| dictionary_content_bytes(&short[..length], 100).is_none()));
    }
}
