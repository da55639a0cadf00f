//! Deltas: changes of map records that a light checkpoint stores next to the records instead of in
//! them. A later delta overrides an earlier one, and all of them override the records; a full
//! checkpoint merges and removes them.

use crate::FormatError;
use crate::cursor::{Cursor, put_uint, seal, unseal};
use crate::keys::{RecordKey, parse_record_key, record_key};
use crate::record::Record;

/// A delta is closed when it reaches this many bytes: a decoded delta stays small.
const DELTA_BYTES: usize = 64 << 10;
/// Bytes of a record's length.
const LENGTH_BYTES: usize = 2;

/// Makes deltas of changes.
#[derive(Debug, Default)]
pub struct DeltaWriter {
    done: Vec<Vec<u8>>,
    open: Vec<u8>,
}

impl DeltaWriter {
    /// Adds the change of one record.
    pub fn push(&mut self, key: &RecordKey, change: &Record) {
        let record = change.encode();
        self.open.extend_from_slice(&record_key(key));
        put_uint(&mut self.open, record.len() as u64, LENGTH_BYTES);
        self.open.extend_from_slice(&record);
        if self.open.len() >= DELTA_BYTES {
            self.close();
        }
    }

    fn close(&mut self) {
        let mut delta = std::mem::take(&mut self.open);
        seal(&mut delta);
        self.done.push(delta);
    }

    /// The deltas, in the order of the additions.
    pub fn finish(mut self) -> Vec<Vec<u8>> {
        if !self.open.is_empty() {
            self.close();
        }
        self.done
    }
}

/// The changes in a delta.
///
/// # Errors
/// When the checksum, a key, a length or a record does not hold.
pub fn decode_delta(bytes: &[u8]) -> Result<Vec<(RecordKey, Record)>, FormatError> {
    let mut cursor = Cursor::new("delta", unseal("delta", bytes)?);
    let mut changes = Vec::new();
    while cursor.remaining() > 0 {
        let key = cursor.bytes(KEY_BYTES)?;
        let Some(key) = parse_record_key(key) else {
            return Err(cursor.fail(format!("key {key:02x?} is not that of a record")));
        };
        let length = cursor.uint(LENGTH_BYTES)? as usize;
        changes.push((key, Record::decode(cursor.bytes(length)?)?));
    }
    Ok(changes)
}

const KEY_BYTES: usize = 21;

#[cfg(test)]
mod tests {
    use units::{BlockMask, Epoch, GroupIndex, ObjectId};

    use super::*;

    #[test]
    fn deltas_round_trip_and_every_damage_is_noticed() {
        let changes: Vec<_> = (0..3000u64)
            .map(|n| {
                let key = RecordKey { object: ObjectId(n / 1000), group: GroupIndex(n), epoch: Epoch(n as u32 % 3) };
                (key, Record { holes: BlockMask(n as u32 + 1), ..Record::default() })
            })
            .collect();
        let mut writer = DeltaWriter::default();
        changes.iter().for_each(|(key, change)| writer.push(key, change));
        let deltas = writer.finish();
        assert!(deltas.len() > 1 && deltas.iter().all(|d| d.len() < DELTA_BYTES + 1024));
        let mut again = Vec::new();
        deltas.iter().for_each(|delta| again.extend(decode_delta(delta).unwrap()));
        assert_eq!(again, changes);
        let mut last = deltas.last().unwrap()[..].to_vec();
        for at in 0..last.len() {
            last[at] ^= 0x40;
            assert!(decode_delta(&last).is_err(), "byte {at}");
            last[at] ^= 0x40;
        }
        assert!(decode_delta(&last[..last.len() - 1]).is_err());
        assert!(DeltaWriter::default().finish().is_empty());
    }
}
