//! What a stream has to tell of each group: from the map alone. A block is sent if the newer state finds it in another record than the
//! older one does, as in `diff`.

use std::collections::VecDeque;
use std::sync::Arc;

use surface::{Error, ErrorKind, Result};
use units::{BLOCK_BYTES, BlockMask, GroupIndex, ObjectId};

use crate::core::Core;
use crate::diff::{allocated, changed};
use crate::group_pages::look_down;
use crate::map::Piece;
use crate::objects::Object;

/// What is different in a group.
#[derive(Debug, Clone)]
pub(crate) struct GroupChange {
    pub group: GroupIndex,
    /// What holds data now and did not, or other data.
    pub pieces: Vec<Piece>,
    /// What held data and does not any more.
    pub holes: BlockMask,
}

/// The two states that are compared; without an older one everything is new.
#[derive(Clone)]
pub(crate) struct Compared {
    pub to: Arc<Object>,
    pub from: Option<Arc<Object>>,
}

/// Goes through the changes in the order of groups. Keeps a page of them, which is good for as long as no checkpoint comes between:
/// from then on the places that it names may hold something else.
#[derive(Default)]
pub(crate) struct Pages {
    known: VecDeque<GroupChange>,
    /// The moment as of which the page holds, and where the next page begins.
    as_of: u64,
    next: Option<GroupIndex>,
}

impl Compared {
    fn both(&self) -> impl Iterator<Item = &Arc<Object>> {
        std::iter::once(&self.to).chain(&self.from)
    }

    /// Fails if one of the two has been destroyed: then what has been read of it may be less than there was.
    pub(crate) fn check(&self) -> Result<()> {
        match self.both().find(|object| !object.is_readable()) {
            Some(gone) => {
                let text = format!("'{}' has been destroyed while it was being sent", gone.title());
                Err(Error::new(ErrorKind::NotFound, text))
            }
            None => Ok(()),
        }
    }

    /// The group behind the last one of either.
    pub(crate) fn end(&self) -> GroupIndex {
        let bytes = self.both().map(|object| object.size_bytes()).max().unwrap_or(0);
        GroupIndex(bytes.div_ceil(units::GROUP_BYTES as u64))
    }

    /// Blocks of a group that lie within the newer state.
    fn inside(&self, group: GroupIndex) -> BlockMask {
        let blocks = self.to.size_bytes().div_ceil(BLOCK_BYTES as u64);
        BlockMask::run(0, blocks.saturating_sub(group.first_block().0).min(32) as u32)
    }

    /// The changes of a bounded number of groups from `from` on, and where the next page begins.
    fn page(&self, core: &Core, from: GroupIndex) -> Result<(VecDeque<GroupChange>, Option<GroupIndex>)> {
        let new = self.to.levels();
        let old = self.from.as_ref().map(|from| from.levels());
        let mut objects: Vec<ObjectId> =
            new.iter().chain(old.iter().flat_map(|l| l.iter())).map(|l| l.object).collect();
        objects.sort_unstable();
        objects.dedup();
        let page = core.group_page(&objects, from)?;
        self.check()?;
        let mut changes = VecDeque::new();
        for (group, of_all) in &page.groups {
            let now = look_down(&new, &objects, of_all, BlockMask::FULL);
            let before = old.as_ref().map_or_else(Vec::new, |old| look_down(old, &objects, of_all, BlockMask::FULL));
            let different = changed(&before, &now);
            let holes = different.minus(allocated(&now));
            let wanted = different.and(self.inside(*group));
            let mut pieces = now;
            for piece in &mut pieces {
                piece.fragment.live = piece.fragment.live.and(wanted);
            }
            pieces.retain(|piece| !piece.fragment.live.is_empty());
            if !pieces.is_empty() || !holes.is_empty() {
                changes.push_back(GroupChange { group: *group, pieces, holes });
            }
        }
        Ok((changes, page.next.filter(|next| *next < self.end())))
    }
}

impl Pages {
    /// A number that is raised behind every change of the map's base and before extents are freed because of it: if it is the same before
    /// a page was read and when `Core::readers` is held, the places that the page names stay what they are for as long as that is held.
    pub(crate) fn moment(core: &Core) -> u64 {
        core.counters.published.get()
    }

    /// Whether the next change from group `at` on is still to be looked for.
    pub(crate) fn is_used_up(&self, at: GroupIndex) -> bool {
        self.known.back().is_none_or(|change| change.group < at)
    }

    /// Where that begins.
    pub(crate) fn next(&self) -> Option<GroupIndex> {
        self.next
    }

    /// The first change from group `at` on, which must not go back; `None`: there is none, and there will be none.
    pub(crate) fn first(&mut self, core: &Core, compared: &Compared, at: GroupIndex) -> Result<Option<&GroupChange>> {
        let moment = Self::moment(core);
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
            (self.known, self.next) = compared.page(core, from)?;
        }
        Ok(self.known.front())
    }
}
