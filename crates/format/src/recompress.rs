//! Progress of a recompression, stored in the map store so that it survives a restart.

use units::{ExtentIndex, ObjectId};

use crate::FormatError;
use crate::cursor::{Cursor, put_text, put_uint, seal, unseal};

/// Key of the record in the map store.
pub const KEY_RECOMPRESS: &[u8] = b"W";

/// The state of the last recompression.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecompressState {
    /// The object that is recompressed.
    pub object: ObjectId,
    /// The mode that was asked for; empty: by the volume's properties.
    pub mode: String,
    /// When it began, in seconds since 1970.
    pub started_unix_s: u64,
    /// The extent that is next; the number of extents when all are done.
    pub next: ExtentIndex,
    /// Fragments examined.
    pub fragments: u64,
    /// Fragments rewritten, and their stored bytes before and after.
    pub rewritten: u64,
    /// See `rewritten`.
    pub before_bytes: u64,
    /// See `rewritten`.
    pub after_bytes: u64,
    /// Fragments that cannot be read, and stay.
    pub damaged: u64,
}

impl RecompressState {
    /// Encodes: object 8, mode (2 + bytes), started 8, next extent 4, fragments 8, rewritten 8,
    /// bytes before 8, bytes after 8, damaged 8, crc32c 4.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_uint(&mut out, self.object.0, 8);
        put_text(&mut out, &self.mode);
        put_uint(&mut out, self.started_unix_s, 8);
        put_uint(&mut out, self.next.0.into(), 4);
        for number in [self.fragments, self.rewritten, self.before_bytes, self.after_bytes, self.damaged] {
            put_uint(&mut out, number, 8);
        }
        seal(&mut out);
        out
    }

    /// Decodes and checks.
    ///
    /// # Errors
    /// When the checksum or a length does not hold.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new("recompression state", unseal("recompression state", bytes)?);
        let state = Self {
            object: ObjectId(cursor.u64()?),
            mode: cursor.text()?,
            started_unix_s: cursor.u64()?,
            next: ExtentIndex(cursor.u32()?),
            fragments: cursor.u64()?,
            rewritten: cursor.u64()?,
            before_bytes: cursor.u64()?,
            after_bytes: cursor.u64()?,
            damaged: cursor.u64()?,
        };
        cursor.end()?;
        Ok(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_round_trips_and_damage_is_noticed() {
        let state = RecompressState {
            object: ObjectId(7),
            mode: "archive".to_owned(),
            started_unix_s: 1_700_000_000,
            next: ExtentIndex(9),
            fragments: 100,
            rewritten: 40,
            before_bytes: 1 << 40,
            after_bytes: 1 << 39,
            damaged: 3,
        };
        let bytes = state.encode();
        assert_eq!(RecompressState::decode(&bytes), Ok(state));
        crate::cursor::expect_every_bit_to_count(&bytes, |bytes| RecompressState::decode(bytes).is_err());
    }
}
