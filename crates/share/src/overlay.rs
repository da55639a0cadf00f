//! Changes of the namespace that its database does not have yet.
//!
//! Keys and values are those of the tables, so that a change records the new state, not the
//! operation: applying it twice has the same effect as once, and applied in order, changes of any
//! age end in the newest state.

use std::collections::BTreeMap;
use std::collections::btree_map;
use std::iter::Peekable;
use std::ops::Bound;

use crate::failure::{Failure, Result};

/// A table of the namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Table {
    Inodes,
    Entries,
    Xattrs,
    Orphans,
    Trims,
}

impl Table {
    pub(crate) const ALL: [Self; 5] = [Self::Inodes, Self::Entries, Self::Xattrs, Self::Orphans, Self::Trims];

    pub(crate) fn of(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

/// A key of a table.
pub(crate) type Key = Box<[u8]>;

/// A value; `None` if it was removed.
pub(crate) type Value = Option<Box<[u8]>>;

/// Approximate memory overhead of a key and its value.
const ENTRY_BYTES: usize = 96;

/// Changes of all tables.
#[derive(Debug, Default)]
pub(crate) struct Overlay {
    tables: [BTreeMap<Key, Value>; 5],
    bytes: usize,
}

impl Overlay {
    pub(crate) fn table(&self, table: Table) -> &BTreeMap<Key, Value> {
        &self.tables[table as usize]
    }

    /// The change for a key; `None`: unchanged.
    pub(crate) fn get(&self, table: Table, key: &[u8]) -> Option<&Value> {
        self.table(table).get(key)
    }

    pub(crate) fn set(&mut self, table: Table, key: &[u8], value: Value) {
        self.bytes += value.as_ref().map_or(0, |value| value.len());
        match self.tables[table as usize].entry(key.into()) {
            btree_map::Entry::Occupied(mut entry) => {
                let before = entry.insert(value);
                self.bytes -= before.map_or(0, |value| value.len());
            }
            btree_map::Entry::Vacant(entry) => {
                entry.insert(value);
                self.bytes += key.len() + ENTRY_BYTES;
            }
        }
    }

    /// Approximate memory usage.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many keys it has a change of.
    pub(crate) fn keys(&self) -> usize {
        self.tables.iter().map(BTreeMap::len).sum()
    }

    /// Adds the changes of an older overlay, except for keys already present.
    pub(crate) fn absorb(&mut self, older: &Self) {
        for table in Table::ALL {
            for (key, value) in older.table(table) {
                if self.get(table, key).is_none() {
                    self.set(table, key, value.clone());
                }
            }
        }
    }

    /// Changes of a range of keys, in their order.
    pub(crate) fn range<'a>(&'a self, table: Table, from: &[u8], to: &[u8]) -> btree_map::Range<'a, Key, Value> {
        self.table(table).range::<[u8], _>((Bound::Included(from), Bound::Excluded(to)))
    }
}

/// Two overlays as one: where both know a key, the newer counts.
pub(crate) struct Merged<'a> {
    newer: Peekable<btree_map::Range<'a, Key, Value>>,
    older: Option<Peekable<btree_map::Range<'a, Key, Value>>>,
}

impl<'a> Merged<'a> {
    pub(crate) fn new(newer: &'a Overlay, older: Option<&'a Overlay>, table: Table, from: &[u8], to: &[u8]) -> Self {
        let older = older.map(|older| older.range(table, from, to).peekable());
        Self { newer: newer.range(table, from, to).peekable(), older }
    }
}

impl<'a> Iterator for Merged<'a> {
    type Item = (&'a Key, &'a Value);

    fn next(&mut self) -> Option<Self::Item> {
        let Some(older) = &mut self.older else { return self.newer.next() };
        match (self.newer.peek(), older.peek()) {
            (Some((new, _)), Some((old, _))) if new > old => older.next(),
            (Some((new, _)), Some((old, _))) => {
                if new == old {
                    older.next();
                }
                self.newer.next()
            }
            (None, _) => older.next(),
            (Some(_), None) => self.newer.next(),
        }
    }
}

/// Appends a change to a record: table 1, length of the key 2, length of the value and one 4 (0:
/// none), key, value; little-endian.
pub(crate) fn encode(out: &mut Vec<u8>, table: Table, key: &[u8], value: &Value) {
    out.push(table as u8);
    // Keys have at most 8 bytes and a name; values slightly more than 64 KiB at most.
    out.extend((key.len() as u16).to_le_bytes());
    out.extend(value.as_ref().map_or(0, |value| value.len() as u32 + 1).to_le_bytes());
    out.extend(key);
    out.extend(value.iter().flat_map(|value| value.iter()));
}

/// Applies the changes of a record.
///
/// # Errors
/// If it is damaged; a part may have been applied by then.
pub(crate) fn apply(mut record: &[u8], mut set: impl FnMut(Table, &[u8], Value)) -> Result<()> {
    fn take<'a>(record: &mut &'a [u8], bytes: usize) -> Option<&'a [u8]> {
        let (taken, left) = record.split_at_checked(bytes)?;
        *record = left;
        Some(taken)
    }
    let damaged = || Failure::damaged(format_args!("a record of changes is inconsistent"));
    while !record.is_empty() {
        let mut one = || {
            let head = take(&mut record, 7)?;
            let table = Table::of(head[0])?;
            let key = take(&mut record, usize::from(u16::from_le_bytes([head[1], head[2]])))?;
            let value = match u32::from_le_bytes([head[3], head[4], head[5], head[6]]) {
                0 => None,
                length => Some(take(&mut record, length as usize - 1)?.into()),
            };
            Some((table, key, value))
        };
        let (table, key, value) = one().ok_or_else(damaged)?;
        set(table, key, value);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(byte: u8) -> Value {
        Some(vec![byte].into())
    }

    #[test]
    fn the_newer_of_two_overlays_counts() {
        let (mut old, mut new) = (Overlay::default(), Overlay::default());
        for key in [1, 3, 5] {
            old.set(Table::Entries, &[key], value(key));
        }
        new.set(Table::Entries, &[2], value(20));
        new.set(Table::Entries, &[3], None);
        new.set(Table::Entries, &[7], value(70));
        let merged = Merged::new(&new, Some(&old), Table::Entries, &[0], &[7]);
        let seen: Vec<_> = merged.map(|(key, value)| (key[0], value.clone())).collect();
        assert_eq!(seen, [(1, value(1)), (2, value(20)), (3, None), (5, value(5))]);
        assert_eq!(Merged::new(&new, None, Table::Entries, &[0], &[9]).count(), 3);
    }

    #[test]
    fn older_changes_are_taken_in_below_newer_ones() {
        let (mut old, mut new) = (Overlay::default(), Overlay::default());
        old.set(Table::Inodes, &[1], value(1));
        old.set(Table::Inodes, &[2], value(2));
        old.set(Table::Trims, &[1], None);
        new.set(Table::Inodes, &[2], None);
        new.absorb(&old);
        assert_eq!(new.get(Table::Inodes, &[1]), Some(&value(1)));
        assert_eq!(new.get(Table::Inodes, &[2]), Some(&None));
        assert_eq!((new.get(Table::Trims, &[1]), new.keys()), (Some(&None), 3));
    }

    #[test]
    fn changes_come_back_from_their_record() {
        let mut record = Vec::new();
        encode(&mut record, Table::Xattrs, b"key", &Some(b"".to_vec().into()));
        encode(&mut record, Table::Orphans, b"gone", &None);
        let mut seen = Vec::new();
        apply(&record, |table, key, value| seen.push((table, key.to_vec(), value))).unwrap();
        assert_eq!(
            seen,
            [(Table::Xattrs, b"key".to_vec(), Some(Box::default())), (Table::Orphans, b"gone".to_vec(), None)]
        );
        for length in 1..record.len() {
            if length != 10 {
                assert!(apply(&record[..length], |_, _, _| {}).is_err(), "{length}");
            }
        }
        record[0] = 9;
        assert!(apply(&record, |_, _, _| {}).is_err());
    }

    #[test]
    fn bytes_are_counted() {
        let mut overlay = Overlay::default();
        overlay.set(Table::Inodes, &[1; 8], Some(vec![0; 100].into()));
        let one = overlay.bytes();
        overlay.set(Table::Inodes, &[1; 8], Some(vec![0; 100].into()));
        assert_eq!(overlay.bytes(), one);
        overlay.set(Table::Inodes, &[1; 8], None);
        assert_eq!(overlay.bytes(), one - 100);
    }
}
