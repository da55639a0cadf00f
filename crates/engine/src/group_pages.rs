//! Going through the groups of several objects side by side, as the store has them: a bounded number of records at a time.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use format::{Record, parse_record_key, record_key_range};
use surface::{Error, ErrorKind, Result};
use units::{BlockMask, GroupIndex, ObjectId};

use crate::core::Core;
use crate::map::{Level, Piece, store_error, take};
use crate::overlay::GroupRecords;

/// Records of each object in memory at the same time.
const RECORDS_MAX: usize = 4096;

/// A stretch of groups.
pub(crate) struct Page {
    /// Groups of which some object has records: those of each object, in the order in which the objects were named.
    pub groups: BTreeMap<GroupIndex, Vec<GroupRecords>>,
    /// Where the next page begins; `None`: there is none.
    pub next: Option<GroupIndex>,
}

impl Core {
    /// The groups from `from` on of which some of `objects` have records in the store. Every page brings some, or is the last.
    ///
    /// # Errors
    /// When the store cannot be read, or a record is damaged.
    pub(crate) fn group_page(&self, objects: &[ObjectId], from: GroupIndex) -> Result<Page> {
        let mut groups: BTreeMap<GroupIndex, Vec<GroupRecords>> = BTreeMap::new();
        let mut next: Option<GroupIndex> = None;
        for (index, object) in objects.iter().enumerate() {
            let (low, high) = record_key_range(*object, from, next.unwrap_or(GroupIndex(u64::MAX)));
            let (mut count, mut last, mut failure) = (0, None, None);
            let mut visit = |key: &[u8], value: &[u8]| {
                let Some(key) = parse_record_key(key) else { return ControlFlow::Continue(()) };
                if count >= RECORDS_MAX && last != Some(key.group) {
                    next = Some(key.group);
                    return ControlFlow::Break(());
                }
                match Record::decode(value) {
                    Ok(record) => {
                        let of_all = groups.entry(key.group).or_insert_with(|| vec![Vec::new(); objects.len()]);
                        of_all[index].push((key.epoch, record));
                    }
                    Err(error) => {
                        let text = format!("map record of object {} group {} is damaged", object.0, key.group.0);
                        failure = Some(Error::with_source(ErrorKind::Corrupt, text, error));
                        return ControlFlow::Break(());
                    }
                }
                count += 1;
                last = Some(key.group);
                ControlFlow::Continue(())
            };
            self.env.store.scan(&low, &high, &mut visit).map_err(store_error)?;
            if let Some(error) = failure {
                return Err(error);
            }
        }
        if let Some(next) = next {
            // Of these not every object has been asked.
            groups.split_off(&next);
        }
        Ok(Page { groups, next })
    }
}

/// What is found of `missing` going down `levels`, where `of_all` has the records of `objects`.
pub(crate) fn look_down(
    levels: &[Level],
    objects: &[ObjectId],
    of_all: &[GroupRecords],
    mut missing: BlockMask,
) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for level in levels {
        let Some(at) = objects.iter().position(|object| *object == level.object) else { continue };
        missing = take([Some(&of_all[at]), None, None], level, missing, &mut |piece| pieces.push(piece));
        if missing.is_empty() {
            break;
        }
    }
    pieces
}
