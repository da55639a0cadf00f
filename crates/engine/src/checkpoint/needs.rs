//! The blocks of a group that clones need of it (`objects::clone_needs`), as of the state that a
//! checkpoint writes.

use store::base::group::{GroupKey, GroupRecords};
use store::map::laid_over;
use store::map::overlay::Overlay;
use store::objects::clone_needs::{Needs, needs};
use store::objects::timeline::Timelines;
use units::BlockMask;

use crate::checkpoint::Checkpoints;

impl Checkpoints {
    /// Returns the needed ones among the blocks that `of` knows in a group: as of the base, with
    /// the `frozen` changes laid over it. `reads` counts the groups that were read for it.
    pub(crate) fn needs(
        &self,
        timelines: &Timelines,
        (key, of): (GroupKey, &GroupRecords),
        (settled, frozen): (&Overlay, Option<&Overlay>),
        reads: &mut usize,
    ) -> Needs {
        if timelines.get(&key.object).is_none_or(|timeline| timeline.clones.is_empty()) {
            return Needs::new();
        }
        let known = of.iter().fold(BlockMask::EMPTY, |mask, (_, record)| mask.or(record.known()));
        needs(timelines, key, known, &mut |key| {
            *reads += 1;
            let object = self.objects.get(key.object)?;
            let settled = settled.with(key, Clone::clone).unwrap_or_default();
            let base = self.map.base_for_checkpoint(key, object.epoch(), &settled).ok()?.records;
            let changed = frozen.and_then(|frozen| frozen.with(key, |changes| laid_over(&base, changes)));
            Some(changed.unwrap_or_else(|| (*base).clone()))
        })
    }
}
