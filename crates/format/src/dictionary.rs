//! What a trained dictionary is stored as: the content of an object of its own. So the log, the
//! cleaner and scrubbing treat it like any data; what makes it a dictionary is the state in its
//! object's descriptor.

use crate::FormatError;
use crate::cursor::{Cursor, seal, unseal};

/// What the content begins with. A content of zeroes, which is what lost records read as, is no
/// dictionary.
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

/// The dictionary's bytes in a content. Decoding with any others would give wrong bytes that
/// nothing notices: so each fragment's checksum is not enough, and the whole is verified.
///
/// # Errors
/// When the checksum or the magic does not hold, or nothing is in it.
pub fn decode_dictionary(content: &[u8]) -> Result<&[u8], FormatError> {
    let mut cursor = Cursor::new("dictionary", unseal("dictionary", content)?);
    if cursor.bytes(MAGIC.len())? != MAGIC {
        return Err(cursor.fail("it does not begin as one"));
    }
    if cursor.remaining() == 0 {
        return Err(cursor.fail("it is empty"));
    }
    cursor.bytes(cursor.remaining())
}

/// How many bytes the content at the start of `padded` has, if there is one and nothing but zeroes
/// behind it: for a caller without the descriptor, which knows blocks only. At most `padding` bytes
/// are taken for zeroes behind it.
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
