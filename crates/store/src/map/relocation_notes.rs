//! Former locations of blocks that the cleaner has moved, so that the light checkpoint that counts
//! the dead bytes there need not read the map again. The records of a large pool are not in memory.
//!
//! A note says: as of the checkpoint before the one that counts it, these blocks were in this
//! fragment. The writer of the note has verified that against the whole map, and holds the capture
//! of the next checkpoint back until the moves are applied (`clean::round`). It stays valid however
//! the blocks change afterwards, until the changes are counted; then the note goes with its
//! overlay. Only a full checkpoint published in between may remove the noted blocks from the
//! records, because no point sees them any more: then the note is ignored.

use format::{FragmentRef, Record};
use units::Epoch;

use crate::base::group::{GroupKey, GroupRecords};

/// See the head of this file.
#[derive(Debug, Clone, Copy)]
pub struct MovedFrom {
    pub key: GroupKey,
    pub epoch: Epoch,
    /// The fragment in the record, its live mask the blocks that were moved.
    pub fragment: FragmentRef,
    /// The last checkpoint that was published when that was verified, or an earlier one.
    pub as_of: u64,
}

/// Notes in the order of their groups, for callers that go through groups in that order.
pub struct Notes<'a> {
    rest: &'a [MovedFrom],
}

impl<'a> Notes<'a> {
    pub fn of(notes: &'a [MovedFrom]) -> Self {
        Self { rest: notes }
    }

    /// Returns those of a group that is not before the last one requested.
    pub fn about(&mut self, key: GroupKey) -> &'a [MovedFrom] {
        let before = self.rest.iter().take_while(|note| note.key < key).count();
        self.rest = &self.rest[before..];
        &self.rest[..self.rest.iter().take_while(|note| note.key == key).count()]
    }
}

/// Returns the base's records for the blocks of `changes`, if the notes `about` the group have
/// them. `last_full` is the number of the last full checkpoint.
pub fn base_of(about: &[MovedFrom], changes: &GroupRecords, last_full: u64) -> Option<GroupRecords> {
    let mut base = GroupRecords::with_capacity(changes.len());
    for (epoch, change) in changes {
        let mut record = Record::default();
        for note in about.iter().filter(|note| note.epoch == *epoch && note.as_of >= last_full) {
            // An interrupted round has noted it before.
            record.put(note.fragment, &mut |_| ());
        }
        if !change.known().minus(record.known()).is_empty() {
            return None;
        }
        base.push((*epoch, record));
    }
    Some(base)
}

#[cfg(test)]
mod tests {
    use super::*;
    use units::{BlockMask, GroupIndex, ObjectId};

    fn fragment(first: u8, count: u8, location: u64) -> FragmentRef {
        let live = BlockMask::run(first.into(), count.into());
        FragmentRef { live, first, count, codec: 16, stored: 900, checksum: 7, location }
    }

    fn changes(epoch: u32, fragments: &[FragmentRef], holes: BlockMask) -> GroupRecords {
        smallvec::smallvec![(Epoch(epoch), Record { holes, fragments: fragments.into() })]
    }

    #[test]
    fn the_base_is_known_if_all_that_changed_was_moved() {
        let [before, key, behind] = [4, 5, 6].map(|n| GroupKey { object: ObjectId(1), group: GroupIndex(n) });
        let note = |key, first, count| {
            let fragment = fragment(first, count, 4096);
            MovedFrom { key, epoch: Epoch(2), fragment, as_of: 7 }
        };
        let notes = [note(before, 4, 1), note(key, 0, 4), note(key, 8, 1), note(key, 0, 4), note(behind, 4, 1)];
        let base_of = |notes: &[_], changes: &_, last_full| base_of(Notes::of(notes).about(key), changes, last_full);
        let none = BlockMask::EMPTY;
        let moved = changes(2, &[fragment(0, 4, 9000), fragment(8, 1, 9900)], none);
        let base = base_of(&notes, &moved, 7).unwrap();
        assert_eq!(base[0].1.fragments.iter().map(|f| f.live.0).collect::<Vec<_>>(), [1 << 8, 0xf]);
        assert_eq!(base_of(&notes, &moved, 8), None, "a full checkpoint has been published since");
        // Data written over it since replaces the same blocks.
        assert!(base_of(&notes, &changes(2, &[fragment(1, 1, 20_000)], BlockMask(0b1101)), 7).is_some());
        assert_eq!(base_of(&notes, &changes(2, &[fragment(4, 1, 20_000)], none), 7), None);
        assert_eq!(base_of(&notes, &changes(2, &[fragment(8, 1, 9900)], BlockMask(1 << 9)), 7), None);
        assert_eq!(base_of(&notes, &changes(3, &[fragment(8, 1, 9900)], none), 7), None);
    }
}
