//! Reads the groups of several objects in parallel, as the store has them: a bounded number of
//! records at a time.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use format::{FragmentRef, record_key_range};
use surface::Result;
use units::{BlockMask, Epoch, GROUP_BLOCKS, GroupIndex, ObjectId};

use crate::base::group::GroupRecords;
use crate::map::{Map, Piece, take};
use crate::objects::level::Level;

/// Records of each object in memory at the same time.
const RECORDS_MAX: usize = 4096;
/// Groups of an image in a page, fetched or not.
const IMAGE_GROUPS: u64 = 1024;
/// The location of a piece that stands for unfetched blocks of an image.
const NOWHERE: u64 = u64::MAX;

/// A page of groups.
pub struct Page {
    /// Groups for which some object has records: those of each object, in the given order of
    /// objects.
    pub groups: BTreeMap<GroupIndex, Vec<GroupRecords>>,
    /// The start of the next page; `None` at the end.
    pub next: Option<GroupIndex>,
}

/// Returns the image at the bottom of a chain of levels.
pub fn image_below(levels: &[Level]) -> Option<&Level> {
    levels.last().filter(|level| level.image.is_some())
}

/// Whether a piece stands for blocks of an image that have not been fetched.
#[inline]
pub const fn is_absent(piece: &Piece) -> bool {
    piece.fragment.location == NOWHERE
}

fn absent(level: &Level, live: BlockMask) -> Piece {
    let count = GROUP_BLOCKS as u8;
    let fragment = FragmentRef { live, first: 0, count, codec: 0, stored: 0, checksum: 0, location: NOWHERE };
    Piece { object: level.object, epoch: Epoch(0), fragment }
}

impl Map {
    /// Returns a page for a comparison of two states. If only one of them has an image below it,
    /// all groups of that are in the page, because each of them may hold data.
    ///
    /// # Errors
    /// As [`group_page`](Self::group_page).
    pub fn page_of_both(
        &self,
        objects: &[ObjectId],
        (old, new): (&[Level], &[Level]),
        from: GroupIndex,
    ) -> Result<Page> {
        let mut page = self.group_page(objects, from)?;
        let (before, now) = (image_below(old), image_below(new));
        if before.map(|level| level.object) == now.map(|level| level.object) {
            return Ok(page);
        }
        let groups = before.into_iter().chain(now).map(Level::image_groups).max().unwrap_or(0);
        let mut to = GroupIndex(groups.min(from.0 + IMAGE_GROUPS));
        if from.0 + IMAGE_GROUPS < groups && page.next.is_none_or(|next| next > to) {
            page.groups.split_off(&to);
            page.next = Some(to);
        }
        to = page.next.map_or(to, |next| next.min(to));
        for group in (from.0..to.0).map(GroupIndex) {
            page.groups.entry(group).or_insert_with(|| vec![GroupRecords::new(); objects.len()]);
        }
        Ok(page)
    }

    /// Returns the pieces of a group in two states, with all changes since the last checkpoint:
    /// all of the older one, and those of `wanted` of the newer.
    ///
    /// # Errors
    /// When the store cannot be read, or a record is damaged.
    pub(crate) fn group_of_both(
        &self,
        (old, new): (&[Level], &[Level]),
        group: GroupIndex,
        wanted: BlockMask,
    ) -> Result<[Vec<Piece>; 2]> {
        let [before, now] = self.lookup_both((old, BlockMask::FULL), (new, wanted), group)?;
        let with_image = |levels: &[Level], (mut pieces, live): (Vec<Piece>, BlockMask)| {
            let image = image_below(levels).filter(|_| !live.is_empty());
            pieces.extend(image.map(|level| absent(level, live)));
            pieces
        };
        Ok([with_image(old, before), with_image(new, now)])
    }

    /// The records of an origin must be read before those of its clones: a checkpoint in between
    /// may have removed from the origin the blocks that its clone has from then on. Origins have
    /// smaller numbers.
    ///
    /// Returns the groups from `from` on for which some of `objects` have records, as of the last
    /// checkpoint. Every page has some, or is the last.
    ///
    /// # Errors
    /// When the store cannot be read, or a record is damaged.
    pub fn group_page(&self, objects: &[ObjectId], from: GroupIndex) -> Result<Page> {
        let mut groups: BTreeMap<GroupIndex, Vec<GroupRecords>> = BTreeMap::new();
        let mut next: Option<GroupIndex> = None;
        for (index, object) in objects.iter().enumerate() {
            let (low, high) = record_key_range(*object, from, next.unwrap_or(GroupIndex(u64::MAX)));
            let mut count = 0;
            self.scan_records(&low, &high, &mut |key, records| {
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
            // For these not every object has been read.
            groups.split_off(&next);
        }
        Ok(Page { groups, next })
    }
}

/// Returns the pieces of `missing` found in `levels`, where `of_all` has the records of `objects`;
/// one of them stands for the unfetched blocks of an image ([`is_absent`]).
pub fn look_down(
    levels: &[Level],
    objects: &[ObjectId],
    (group, of_all): (GroupIndex, &[GroupRecords]),
    mut missing: BlockMask,
) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for level in levels {
        let Some(at) = objects.iter().position(|object| *object == level.object) else { continue };
        missing = take([Some(&of_all[at])], level, missing, &mut |piece| pieces.push(piece));
        if missing.is_empty() {
            return pieces;
        }
    }
    if let Some(level) = image_below(levels) {
        let live = level.image_mask(group).and(missing);
        pieces.extend((!live.is_empty()).then(|| absent(level, live)));
    }
    pieces
}
