//! The blocks that clones need of their origins. Pure, but for the records, which the caller hands
//! in.
//!
//! A *partial* point is one from which only clones look (`objects::pins`): no snapshot, no head. Of the
//! blocks seen there, a clone needs in a group those that its own records do not know, as seen from
//! some point of its own. From a partial point of its own it needs only those that its clones need
//! in turn. The rest can go (`Timeline::trim`).
//!
//! **Why a trimmed block is never missed.** The need of a clone in a group only ever becomes less:
//! 1. A point's knowledge of a block does not go: a record that answers for a needed block stays,
//!    and so do its holes, as long as the clone has an origin.
//! 2. A head comes to know more with each write and each discard. A snapshot sees the blocks that
//!    the head saw. A rollback restores a snapshot, which was a point already. Data from a stream
//!    is added to the head's.
//! 3. No new reader looks from a partial point: clones are made of snapshots, and it has none.
//!
//! So it suffices to work the need out for one state of the log from which every later one follows.
//! Full checkpoints do that. The blocks that leave an origin, and the clone's records that replace
//! them, become durable in one batch of the store, with the descriptors as of that position.
//!
//! - A concurrent reader goes down under the layers' lock, and finds the clone's records in the
//!   overlays.
//! - A reader of the records of several objects, one by one, reads origins first (`group_pages`).
//! - A late move may restore a block that no point needs (`reap`). It is removed when that group is
//!   processed again: its change is merged.

use smallvec::SmallVec;
use units::{BlockMask, Epoch};

use crate::base::canary::Canary;
use crate::base::group::{GroupKey, GroupRecords};
use crate::objects::timeline::{Timeline, Timelines};

/// The blocks of a group needed from the partial points of a timeline, ascending; from the other
/// points all are needed.
pub type Needs = SmallVec<[(Epoch, BlockMask); 1]>;

/// Returns the records of a group, if they can be read.
pub type Source<'a> = &'a mut dyn FnMut(GroupKey) -> Option<GroupRecords>;

/// Returns the needed ones among the blocks `of` a group.
pub fn needs(timelines: &Timelines, key: GroupKey, of: BlockMask, records: Source<'_>) -> Needs {
    let Some(timeline) = timelines.get(&key.object) else { return Needs::new() };
    let of_all = |(epoch, clones): &(Epoch, Vec<_>)| {
        let mut need = BlockMask::EMPTY;
        for clone in clones {
            let open = of.minus(need);
            if open.is_empty() {
                break;
            }
            need = need.or(need_of(timelines, GroupKey { object: *clone, ..key }, open, records));
        }
        (*epoch, need)
    };
    timeline.clones.iter().map(of_all).collect()
}

/// Returns the blocks `of` a group of its origin that a clone needs.
fn need_of(timelines: &Timelines, key: GroupKey, of: BlockMask, records: Source<'_>) -> BlockMask {
    // No point sees it, but a look-up passes through it: then the need is unknown.
    let Some(timeline) = timelines.get(&key.object).filter(|timeline| !timeline.is_dead()) else { return of };
    let Some(found) = records(key) else { return of };
    let missing = timeline.missing(&found, &Needs::new()).and(of);
    if missing.is_empty() || timeline.clones.is_empty() {
        return missing;
    }
    timeline.missing(&found, &needs(timelines, key, missing, records)).and(missing)
}

impl Timeline {
    /// The blocks of `records` (newest first) that some point does not know and needs.
    fn missing(&self, records: &GroupRecords, needs: &Needs) -> BlockMask {
        let views = self.views(records);
        let skipped = if Canary::OriginIgnoresSnapshots.is_planted() { views.len().saturating_sub(1) } else { 0 };
        let missing =
            views.into_iter().skip(skipped).map(|(points, _, missing)| missing.and(self.wanted(points, needs)));
        missing.fold(BlockMask::EMPTY, BlockMask::or)
    }
}

#[cfg(test)]
#[path = "need_tests.rs"]
mod tests;
