//! Codec statistics of a pool: cells of the policy's table, stored in the map store so that they
//! survive a restart. Nothing depends on them: if they are missing or damaged, they are collected
//! from scratch.

use crate::FormatError;
use crate::cursor::{Cursor, put_uint, seal, unseal};

/// Key of the record in the map store.
pub const KEY_LEARNED: &[u8] = b"L";

/// Encodes cells, each with its index: number of cells 4, per cell index 2 and word 8, crc32c 4.
pub fn encode_learned(cells: &[(u16, u64)]) -> Vec<u8> {
    let mut out = Vec::with_capacity(8 + 10 * cells.len());
    put_uint(&mut out, cells.len() as u64, 4);
    for (index, word) in cells {
        put_uint(&mut out, u64::from(*index), 2);
        put_uint(&mut out, *word, 8);
    }
    seal(&mut out);
    out
}

/// Decodes and checks: the checksum, and the ascending order of indices.
///
/// # Errors
/// When one of these is violated.
pub fn decode_learned(bytes: &[u8]) -> Result<Vec<(u16, u64)>, FormatError> {
    let mut cursor = Cursor::new("learned costs", unseal("learned costs", bytes)?);
    let count = cursor.u32()?;
    let mut cells: Vec<(u16, u64)> = Vec::new();
    for _ in 0..count {
        let (index, word) = (cursor.uint(2)? as u16, cursor.uint(8)?);
        if cells.last().is_some_and(|(last, _)| *last >= index) {
            return Err(cursor.fail(format!("cell {index} is out of order")));
        }
        cells.push((index, word));
    }
    cursor.end()?;
    Ok(cells)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_round_trip_and_damage_is_noticed() {
        for cells in [vec![], vec![(0, 1)], vec![(7, u64::MAX), (8, 0), (u16::MAX, 3)]] {
            let bytes = encode_learned(&cells);
            assert_eq!(decode_learned(&bytes), Ok(cells));
            crate::cursor::expect_every_bit_to_count(&bytes, |bytes| decode_learned(bytes).is_err());
        }
        assert!(decode_learned(&encode_learned(&[(3, 1), (3, 2)])).is_err());
        assert!(decode_learned(&[]).is_err());
    }
}
