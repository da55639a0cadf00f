//! Going through the groups of several objects side by side, as the store has them: a bounded
//! number of records at a time.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use format::record_key_range;
use surface::Result;
use units::{BlockMask, GroupIndex, ObjectId};

use crate::map::overlay::GroupRecords;
use crate::map::{Level, Piece, take};
use crate::pool::core::Core;

/// Records of each object in memory at the same time.
const RECORDS_MAX: usize = 4096;

/// A stretch of groups.
pub(crate) struct Page {
    /// Groups of which some object has records: those of each object, in the order in which the
    /// objects were named.
    pub groups: BTreeMap<GroupIndex, Vec<GroupRecords>>,
    /// Where the next page begins; `None`: there is none.
    pub next: Option<GroupIndex>,
}

impl Core {
    /// The records of an origin must be read before those of its clones: a checkpoint that comes
    /// between the two may have taken out of the origin the blocks that its clone knows from then
    /// on. Origins have smaller numbers.
    ///
    /// The groups from `from` on of which some of `objects` have records, as of the last
    /// checkpoint. Every page brings some, or is the last.
    ///
    /// # Errors
    /// When the store cannot be read, or a record is damaged.
    pub(crate) fn group_page(&self, objects: &[ObjectId], from: GroupIndex) -> Result<Page> {
        let mut groups: BTreeMap<GroupIndex, Vec<GroupRecords>> = BTreeMap::new();
        let mut next: Option<GroupIndex> = None;
        for (index, object) in objects.iter().enumerate() {
            let (low, high) = record_key_range(*object, from, next.unwrap_or(GroupIndex(u64::MAX)));
            let mut count = 0;
            self.map.scan_records(&low, &high, &mut |key, records| {
                if count >= RECORDS_MAX {
                    next = Some(key.group);
                    return ControlFlow::Break(());
                }
                count += records.len();
                groups.entry(key.group).or_insert_with(|| vec![GroupRecords::new(); objects.len()])[index] = records;
                ControlFlow::Continue(())
            })?;
        }
        if let Some(next) = next {
            // Of these not every object has been asked.
            groups.split_off(&next);
        }
        Ok(Page { groups, next })
    }
}

/// The pieces of `missing` found going down `levels`, where `of_all` has the records of `objects`.
pub(crate) fn look_down(
    levels: &[Level],
    objects: &[ObjectId],
    of_all: &[GroupRecords],
    mut missing: BlockMask,
) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for level in levels {
        let Some(at) = objects.iter().position(|object| *object == level.object) else { continue };
        missing = take([Some(&of_all[at])], level, missing, &mut |piece| pieces.push(piece));
        if missing.is_empty() {
            break;
        }
    }
    pieces
}
