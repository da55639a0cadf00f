//! Small objects of a blob outside of packs and records: magic bytes, fields, and the crc32c of all
//! preceding bytes, little-endian. Owns how they are sealed and opened, so that all of them detect
//! the same damage. Plain functions; no I/O.

use format::{Cursor, FormatError, crc32c, put_uint};

/// Begins an object with its magic bytes.
pub(crate) fn begin(magic: &[u8; 8]) -> Vec<u8> {
    magic.to_vec()
}

/// Closes an object that [`begin`] began.
pub(crate) fn seal(mut out: Vec<u8>) -> Vec<u8> {
    let crc = crc32c(&out);
    put_uint(&mut out, crc.into(), 4);
    out
}

/// Returns the fields of an object whose checksum and magic bytes match.
pub(crate) fn open<'a>(structure: &'static str, magic: &[u8; 8], bytes: &'a [u8]) -> Result<Cursor<'a>, FormatError> {
    let wrong = |detail: &str| FormatError::new(structure, detail);
    let (body, crc) = bytes.split_last_chunk::<4>().ok_or_else(|| wrong("too few bytes"))?;
    if *crc != crc32c(body).to_le_bytes() {
        return Err(wrong("the checksum does not match"));
    }
    match body.strip_prefix(magic) {
        Some(fields) => Ok(Cursor::new(structure, fields)),
        None if is_newer(magic, body) => Err(FormatError::newer(structure, "its magic bytes are of a newer format")),
        None => Err(wrong("does not begin with the magic bytes")),
    }
}

/// Returns whether an object has the magic bytes of its kind, but with a higher digit at the end.
fn is_newer(magic: &[u8; 8], body: &[u8]) -> bool {
    let [name @ .., known] = magic;
    body.strip_prefix(name).and_then(<[u8]>::first).is_some_and(|found| found.is_ascii_digit() && found > known)
}

/// Appends a name of 128 bits.
pub(crate) fn put_wide(out: &mut Vec<u8>, value: u128) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// Reads a name of 128 bits.
pub(crate) fn wide(cursor: &mut Cursor<'_>) -> Result<u128, FormatError> {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(cursor.bytes(16)?);
    Ok(u128::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAGIC: &[u8; 8] = b"SHLTEST1";

    #[test]
    fn what_was_sealed_opens_and_every_bit_counts() {
        let mut out = begin(MAGIC);
        put_wide(&mut out, 7 << 100);
        let bytes = seal(out);
        let mut cursor = open("test", MAGIC, &bytes).unwrap();
        assert_eq!(wide(&mut cursor).unwrap(), 7 << 100);
        cursor.end().unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut turned = bytes.clone();
            turned[bit / 8] ^= 1 << (bit % 8);
            assert!(open("test", MAGIC, &turned).is_err(), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert!(open("test", MAGIC, &bytes[..len]).is_err(), "{len} bytes");
        }
        assert!(open("test", b"SHLOTHER", &bytes).is_err_and(|error| !error.is_newer));
        let newer = seal(b"SHLTEST2".to_vec());
        assert!(open("test", MAGIC, &newer).is_err_and(|error| error.is_newer));
    }
}
