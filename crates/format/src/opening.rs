//! The note of the newest opening: two copies in the data file, each in a sector of its own, so
//! that none is ever torn.

use crate::FormatError;
use crate::cursor::{Cursor, put_uint, seal, unseal};

const WHAT: &str = "note of the newest opening";
/// The first eight bytes of a note.
const MAGIC: &[u8; 8] = b"ShaleOp\x01";
/// Bytes of a note: magic, pool, number, checksum.
pub const OPENING_NOTE_BYTES: usize = 8 + 16 + 8 + 4;
/// Locations of its copies, in bytes: after those of the superblock, in extent 0, which is never
/// freed.
pub const OPENING_NOTE_OFFSETS: [u64; 2] = [4096, 20480];
/// Key in the map store for the opening that the data file is known to note.
pub const KEY_NOTED: &[u8] = b"N";

/// The newest opening according to the data file: a checkpoint that names it is, or was, durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpeningNote {
    /// Identifier of the pool.
    pub pool: [u8; 16],
    /// Number of the opening (incarnation); 0 before the first one.
    pub incarnation: u64,
}

impl OpeningNote {
    /// Encodes: magic 8, pool 16, number 8, crc32c 4.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&self.pool);
        put_uint(&mut out, self.incarnation, 8);
        seal(&mut out);
        out
    }

    /// Decodes and checks.
    ///
    /// # Errors
    /// When magic, checksum or length do not hold.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new(WHAT, unseal(WHAT, bytes)?);
        if cursor.bytes(MAGIC.len())? != MAGIC {
            return Err(cursor.fail("the magic number is missing".to_owned()));
        }
        let mut note = Self { pool: [0; 16], incarnation: 0 };
        note.pool.copy_from_slice(cursor.bytes(16)?);
        note.incarnation = cursor.u64()?;
        cursor.end()?;
        Ok(note)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_round_trips_and_notices_damage() {
        let note = OpeningNote { pool: [7; 16], incarnation: 1 << 40 };
        let bytes = note.encode();
        assert_eq!(bytes.len(), OPENING_NOTE_BYTES);
        assert_eq!(OpeningNote::decode(&bytes).unwrap(), note);
        crate::cursor::expect_every_bit_to_count(&bytes, |bytes| OpeningNote::decode(bytes).is_err());
        assert!(OpeningNote::decode(&[0; OPENING_NOTE_BYTES]).is_err());
    }

    #[test]
    fn notes_lie_beside_the_superblock_in_the_smallest_extent() {
        let blocks = crate::SUPERBLOCK_OFFSETS.into_iter().chain(OPENING_NOTE_OFFSETS).map(|at| at / 4096);
        let blocks: std::collections::BTreeSet<_> = blocks.collect();
        assert_eq!(blocks.len(), 4);
        assert!(blocks.last().is_some_and(|last| (last + 1) * 4096 <= u64::from(units::EXTENT_BYTES_MIN)));
    }
}
