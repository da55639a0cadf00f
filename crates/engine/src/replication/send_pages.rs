//! Lists the changes of each group for a stream, from the map alone. A block is sent if the newer
//! state finds it in a different record than the older one does, as in `diff`.

use std::collections::VecDeque;
use std::sync::Arc;

use format::{HOLE_BLOCKS_MAX, ObjectState};
use store::base::canary::Canary;
use store::base::group::GroupKey;
use store::map::Piece;
use store::map::compare::{allocated, changed};
use store::map::group_pages::{image_below, is_absent, look_down};
use store::objects::Object;
use store::objects::level::Level;
use surface::{Error, ErrorKind, Result};
use units::{BLOCK_BYTES, BlockIndex, BlockMask, GroupIndex, ObjectId};

use crate::history::bookmarks::levels_from;
use crate::replication::parts::Source;
use crate::replication::thin;

/// Changes in a group.
#[derive(Debug, Clone)]
pub(crate) struct GroupChange {
    pub group: GroupIndex,
    /// New or different data.
    pub pieces: Vec<Piece>,
    /// Blocks that held data, or may have, and do not any more.
    pub holes: BlockMask,
}

/// The two states that are compared; without an older one everything is new. The older one may be a
/// bookmark, or the image below the newer one.
#[derive(Clone)]
pub(crate) struct Compared {
    pub to: Arc<Object>,
    pub from: Option<Arc<Object>>,
    /// Whether the older one is a bookmark, which may be destroyed in the meantime.
    is_from_bookmark: bool,
    /// Bytes of the image, if that is the older one.
    image_bytes: Option<u64>,
}

/// Lists the changes in the order of groups (from a bookmark, through all groups that the map
/// knows). Keeps a page of them, which is valid as long as no checkpoint comes between: afterwards
/// its locations may hold other data.
#[derive(Default)]
pub(crate) struct Pages {
    known: VecDeque<GroupChange>,
    /// The moment for which the page is valid, and where the next page begins.
    as_of: u64,
    next: Option<GroupIndex>,
}

impl Compared {
    pub(crate) fn new(to: Arc<Object>, from: Option<Arc<Object>>) -> Self {
        let is_bookmark = |from: &Arc<Object>| from.descriptor.read().state == ObjectState::Bookmark;
        Self { is_from_bookmark: from.as_ref().is_some_and(is_bookmark), to, from, image_bytes: None }
    }

    /// A snapshot and the image of so many bytes that backs it.
    pub(crate) const fn with_image(to: Arc<Object>, bytes: u64) -> Self {
        Self { to, from: None, is_from_bookmark: false, image_bytes: Some(bytes) }
    }

    fn both(&self) -> impl Iterator<Item = &Arc<Object>> {
        std::iter::once(&self.to).chain(&self.from)
    }

    /// Returns whether the older state is a bookmark's, which does not record former holes: every
    /// present hole is sent as one.
    pub(crate) fn lists_all_holes(&self) -> bool {
        self.is_from_bookmark && !Canary::BookmarkTrustsHoles.is_planted()
    }

    /// Returns the chain of levels of the older state.
    fn levels_before(&self, now: &[Level]) -> Result<Option<Arc<[Level]>>> {
        let Some(from) = &self.from else {
            if self.image_bytes.is_none() {
                return Ok(None);
            }
            let image = image_below(now).ok_or_else(|| thin::no_image(&self.to))?;
            return Ok(Some(Arc::from([image.clone()])));
        };
        if !self.is_from_bookmark {
            return Ok(Some(from.levels()));
        }
        let origin = from.descriptor.read().origin;
        let levels = origin.and_then(|origin| levels_from(origin, now)).ok_or_else(|| {
            let text = format!("the history of '{}' no longer shows what has changed since", from.title());
            Error::new(ErrorKind::Conflict, text)
        })?;
        Ok(Some(levels.into()))
    }

    /// Fails if one of the two has been destroyed: then the data read of it may be incomplete.
    pub(crate) fn check(&self) -> Result<()> {
        // A bookmark is no longer needed once its place is known.
        let snapshots = std::iter::once(&self.to).chain(self.from.iter().filter(|_| !self.is_from_bookmark));
        match snapshots.into_iter().find(|object| !object.is_readable()) {
            Some(gone) => {
                let text = format!("'{}' has been destroyed while it was being sent", gone.title());
                Err(Error::new(ErrorKind::NotFound, text))
            }
            None => Ok(()),
        }
    }

    /// The group after the last one of either.
    pub(crate) fn end(&self) -> GroupIndex {
        let sizes = self.both().map(|object| object.size_bytes()).chain(self.image_bytes);
        let bytes = sizes.max().unwrap_or(0);
        GroupIndex(bytes.div_ceil(units::GROUP_BYTES as u64))
    }

    /// Returns the blocks of a group within the newer state.
    fn inside(&self, group: GroupIndex) -> BlockMask {
        let blocks = self.to.size_bytes().div_ceil(BLOCK_BYTES as u64);
        BlockMask::run(0, blocks.saturating_sub(group.first_block().0).min(32) as u32)
    }

    /// The changes of a bounded number of groups from `from` on, and where the next page begins.
    fn page(&self, source: &Source, from: GroupIndex) -> Result<(VecDeque<GroupChange>, Option<GroupIndex>)> {
        let new = self.to.levels();
        let old = self.levels_before(&new)?;
        let mut objects: Vec<ObjectId> =
            new.iter().chain(old.iter().flat_map(|l| l.iter())).map(|l| l.object).collect();
        objects.sort_unstable();
        objects.dedup();
        let page = source.map.page_of_both(&objects, (old.as_deref().unwrap_or_default(), &new), from)?;
        self.check()?;
        let mut changes = VecDeque::new();
        let all_holes = self.lists_all_holes();
        // After both ends there are no changes.
        for (group, of_all) in page.groups.range(..self.end()) {
            let view = |levels: &[Level]| look_down(levels, &objects, (*group, of_all), BlockMask::FULL);
            let (now, before) = (view(&new), old.as_deref().map_or_else(Vec::new, view));
            let different = changed(&before, &now);
            let holes = if all_holes { BlockMask::FULL } else { different }.minus(allocated(&now));
            let is_planted = Canary::ThinForgetsHoles.is_planted() && self.image_bytes.is_some();
            let holes = if is_planted { BlockMask::EMPTY } else { holes };
            let wanted = different.and(self.inside(*group));
            let mut pieces = now;
            for piece in &mut pieces {
                piece.fragment.live = piece.fragment.live.and(wanted);
            }
            pieces.retain(|piece| !piece.fragment.live.is_empty());
            // If all unknown blocks read as zeroes, even an empty group must be listed.
            if all_holes || !pieces.is_empty() || !holes.is_empty() {
                changes.push_back(GroupChange { group: *group, pieces, holes });
            }
        }
        Ok((changes, page.next.filter(|next| *next < self.end())))
    }
}

impl Pages {
    /// Returns a number that is raised after every change of the map's base and before extents are
    /// freed because of it: if it is the same before a page was read and when `Reads::readers` is
    /// held, the locations in the page stay valid for as long as that is held.
    pub(crate) fn moment(source: &Source) -> u64 {
        source.vitals.counters.published.get()
    }

    /// Returns whether the next change from group `at` on has to be searched.
    pub(crate) fn is_used_up(&self, at: GroupIndex) -> bool {
        self.known.back().is_none_or(|change| change.group < at)
    }

    /// Returns the first groups of the page that are not completely fetched from an image.
    pub(crate) fn absent(&self, most: usize) -> impl Iterator<Item = GroupKey> {
        let object = |change: &GroupChange| change.pieces.iter().find(|piece| is_absent(piece)).map(|p| p.object);
        let key = move |change: &GroupChange| object(change).map(|object| GroupKey { object, group: change.group });
        self.known.iter().filter_map(key).take(most)
    }

    /// Where that begins.
    pub(crate) fn next(&self) -> Option<GroupIndex> {
        self.next
    }

    /// Returns the first change from group `at` on, which must not decrease; `None` after the last
    /// one.
    pub(crate) fn first(
        &mut self,
        source: &Source,
        compared: &Compared,
        at: GroupIndex,
    ) -> Result<Option<&GroupChange>> {
        let moment = Self::moment(source);
        if self.as_of != moment {
            self.known.clear();
            self.as_of = moment;
            self.next = Some(at);
        }
        while self.known.front().is_some_and(|change| change.group < at) {
            self.known.pop_front();
        }
        while self.known.is_empty()
            && let Some(from) = self.next
        {
            (self.known, self.next) = compared.page(source, from)?;
        }
        Ok(self.known.front())
    }
}

/// Appends the blocks from `first` up to `end` as holes, joined to the one before them if that ends
/// there.
pub(crate) fn push_holes(holes: &mut Vec<(BlockIndex, u32)>, mut first: u64, end: u64) {
    if let Some((begin, count)) = holes.last_mut().filter(|(begin, count)| begin.0 + u64::from(*count) == first) {
        let more = end.saturating_sub(begin.0).min(HOLE_BLOCKS_MAX.into()) as u32;
        first += u64::from(more.saturating_sub(*count));
        *count = more.max(*count);
    }
    while first < end {
        let blocks = (end - first).min(HOLE_BLOCKS_MAX.into()) as u32;
        holes.push((BlockIndex(first), blocks));
        first += u64::from(blocks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_joined_and_never_longer_than_a_stream_takes() {
        let most = u64::from(HOLE_BLOCKS_MAX);
        let mut holes = Vec::new();
        for (first, end) in [(3, 5), (5, 8), (9, 9), (10, 12), (12, 10 + most + 7), (10 + most + 7, 10 + most + 9)] {
            push_holes(&mut holes, first, end);
        }
        let plain: Vec<_> = holes.iter().map(|(first, blocks)| (first.0, u64::from(*blocks))).collect();
        assert_eq!(plain, [(3, 5), (10, most), (10 + most, 9)]);
    }
}
