//! Keys of the map store: a table byte, then big-endian fields, so that the store's order is the
//! useful one.

use units::{Epoch, ExtentIndex, GroupIndex, ObjectId};

/// The checkpoint's own record.
pub const KEY_CHECKPOINT: &[u8] = b"C";
/// The state of scrubbing.
pub const KEY_SCRUB: &[u8] = b"S";
/// A copy of the superblock.
pub const KEY_SUPERBLOCK: &[u8] = b"B";
const TABLE_DELTA: u8 = b'D';
const TABLE_DOUBT: u8 = b'Q';
const TABLE_OBJECT: u8 = b'O';
const TABLE_RECORD: u8 = b'R';
const TABLE_USAGE: u8 = b'U';

/// Identity of a map record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordKey {
    /// Object.
    pub object: ObjectId,
    /// Group within the object.
    pub group: GroupIndex,
    /// Epoch in which the blocks were written.
    pub epoch: Epoch,
}

/// `R`, object, group, epoch inverted: the newest epoch of a group comes first.
pub fn record_key(key: &RecordKey) -> [u8; 21] {
    let mut bytes = [TABLE_RECORD; 21];
    bytes[1..9].copy_from_slice(&key.object.0.to_be_bytes());
    bytes[9..17].copy_from_slice(&key.group.0.to_be_bytes());
    bytes[17..].copy_from_slice(&(!key.epoch.0).to_be_bytes());
    bytes
}

/// Inverse of [`record_key`].
pub fn parse_record_key(bytes: &[u8]) -> Option<RecordKey> {
    let fields = bytes.strip_prefix(&[TABLE_RECORD])?;
    let (object, rest) = fields.split_first_chunk::<8>()?;
    let (group, rest) = rest.split_first_chunk::<8>()?;
    let epoch: [u8; 4] = rest.try_into().ok()?;
    Some(RecordKey {
        object: ObjectId(u64::from_be_bytes(*object)),
        group: GroupIndex(u64::from_be_bytes(*group)),
        epoch: Epoch(!u32::from_be_bytes(epoch)),
    })
}

/// The range of keys of all epochs of groups `from..to` of an object.
pub fn record_key_range(object: ObjectId, from: GroupIndex, to: GroupIndex) -> ([u8; 21], [u8; 21]) {
    let start = |group| {
        let mut bytes = record_key(&RecordKey { object, group, epoch: Epoch(u32::MAX) });
        bytes[17..].fill(0);
        bytes
    };
    (start(from), start(to))
}

/// `O`, object.
pub fn object_key(object: ObjectId) -> [u8; 9] {
    let mut bytes = [TABLE_OBJECT; 9];
    bytes[1..].copy_from_slice(&object.0.to_be_bytes());
    bytes
}

/// Inverse of [`object_key`].
pub fn parse_object_key(bytes: &[u8]) -> Option<ObjectId> {
    let id: [u8; 8] = bytes.strip_prefix(&[TABLE_OBJECT])?.try_into().ok()?;
    Some(ObjectId(u64::from_be_bytes(id)))
}

/// The range of all object keys.
pub const fn object_key_range() -> (&'static [u8], &'static [u8]) {
    (b"O", b"P")
}

/// `U`, number of the usage page that holds `extent`.
pub fn usage_key(extent: ExtentIndex) -> [u8; 5] {
    let mut bytes = [TABLE_USAGE; 5];
    bytes[1..].copy_from_slice(&(extent.0 / crate::USAGE_PAGE_EXTENTS as u32).to_be_bytes());
    bytes
}

/// The first extent of a usage page, from its key.
pub fn parse_usage_key(bytes: &[u8]) -> Option<ExtentIndex> {
    let page: [u8; 4] = bytes.strip_prefix(&[TABLE_USAGE])?.try_into().ok()?;
    u32::from_be_bytes(page).checked_mul(crate::USAGE_PAGE_EXTENTS as u32).map(ExtentIndex)
}

/// `D`, number of the checkpoint, part: the order in which deltas apply.
pub fn delta_key(checkpoint: u64, part: u32) -> [u8; 13] {
    let mut bytes = [TABLE_DELTA; 13];
    bytes[1..9].copy_from_slice(&checkpoint.to_be_bytes());
    bytes[9..].copy_from_slice(&part.to_be_bytes());
    bytes
}

/// Inverse of [`delta_key`].
pub fn parse_delta_key(bytes: &[u8]) -> Option<(u64, u32)> {
    let (checkpoint, part) = bytes.strip_prefix(&[TABLE_DELTA])?.split_first_chunk::<8>()?;
    Some((u64::from_be_bytes(*checkpoint), u32::from_be_bytes(part.try_into().ok()?)))
}

/// The range of all delta keys.
pub const fn delta_key_range() -> (&'static [u8], &'static [u8]) {
    (b"D", b"E")
}

/// `Q`, then as [`record_key`]: a rebuilt record, some of whose blocks may have been discarded.
pub fn doubt_key(key: &RecordKey) -> [u8; 21] {
    let mut bytes = record_key(key);
    bytes[0] = TABLE_DOUBT;
    bytes
}

/// Inverse of [`doubt_key`].
pub fn parse_doubt_key(bytes: &[u8]) -> Option<RecordKey> {
    let mut key: [u8; 21] = bytes.try_into().ok()?;
    (std::mem::replace(&mut key[0], TABLE_RECORD) == TABLE_DOUBT).then(|| parse_record_key(&key))?
}

/// The range of all keys of records in doubt.
pub const fn doubt_key_range() -> (&'static [u8], &'static [u8]) {
    (b"Q", b"R")
}

/// The range of all usage keys.
pub const fn usage_key_range() -> (&'static [u8], &'static [u8]) {
    (b"U", b"V")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_epochs_and_lower_groups_sort_first() {
        let key = |object, group, epoch| {
            record_key(&RecordKey { object: ObjectId(object), group: GroupIndex(group), epoch: Epoch(epoch) })
        };
        let sorted = [key(1, 0, 7), key(1, 0, 0), key(1, 1, 300), key(1, 1, 2), key(1, 256, 0), key(2, 0, 0)];
        assert!(sorted.is_sorted());
        let (from, to) = record_key_range(ObjectId(1), GroupIndex(0), GroupIndex(2));
        let inside: Vec<_> = sorted.iter().filter(|k| **k >= from && **k < to).collect();
        assert_eq!(inside.len(), 4);
        let again = RecordKey { object: ObjectId(9), group: GroupIndex(1 << 33), epoch: Epoch(u32::MAX) };
        assert_eq!(parse_record_key(&record_key(&again)), Some(again));
        assert_eq!(parse_doubt_key(&doubt_key(&again)), Some(again));
        assert_eq!((parse_doubt_key(&record_key(&again)), parse_record_key(&doubt_key(&again))), (None, None));
        assert_eq!(parse_delta_key(&delta_key(1 << 40, 7)), Some((1 << 40, 7)));
        assert!(delta_key(1, 300) < delta_key(2, 0));
        assert_eq!(parse_object_key(&object_key(ObjectId(77))), Some(ObjectId(77)));
        assert_eq!(parse_usage_key(&usage_key(ExtentIndex(300))), Some(ExtentIndex(256)));
    }
}
