//! Progress of a sort, stored in the map store so that it survives a restart.

use units::{GroupIndex, ObjectId};

use crate::FormatError;
use crate::cursor::{Cursor, put_uint, seal, unseal};

/// Key of the record in the map store.
pub const KEY_SORT: &[u8] = b"G";

/// The state of the last sorting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SortState {
    /// When it began, in seconds since 1970; 0: never.
    pub started_unix_s: u64,
    /// Volumes with smaller numbers are done; [`Self::DONE`]: all.
    pub object: ObjectId,
    /// Groups of that volume before this one are done.
    pub group: GroupIndex,
    /// Bytes of blocks rewritten.
    pub rewritten_bytes: u64,
    /// Groups that were left as they are because something in them is damaged.
    pub damaged: u64,
}

impl Default for SortState {
    fn default() -> Self {
        Self { started_unix_s: 0, object: ObjectId(0), group: GroupIndex(0), rewritten_bytes: 0, damaged: 0 }
    }
}

impl SortState {
    /// Value of [`object`](Self::object) when all volumes are done.
    pub const DONE: ObjectId = ObjectId(u64::MAX);

    /// Encodes: started 8, object 8, next group 8, bytes rewritten 8, damaged groups 8, crc32c 4.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for number in [self.started_unix_s, self.object.0, self.group.0, self.rewritten_bytes, self.damaged] {
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
        let mut cursor = Cursor::new("sorting state", unseal("sorting state", bytes)?);
        let state = Self {
            started_unix_s: cursor.u64()?,
            object: ObjectId(cursor.u64()?),
            group: GroupIndex(cursor.u64()?),
            rewritten_bytes: cursor.u64()?,
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
        let state = SortState {
            started_unix_s: 1_700_000_000,
            object: ObjectId(7),
            group: GroupIndex(1 << 33),
            rewritten_bytes: 1 << 40,
            damaged: 3,
        };
        let bytes = state.encode();
        assert_eq!(SortState::decode(&bytes), Ok(state));
        crate::cursor::expect_every_bit_to_count(&bytes, |bytes| SortState::decode(bytes).is_err());
    }
}
