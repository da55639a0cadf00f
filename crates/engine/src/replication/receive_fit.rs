//! Checks whether a difference fits the volume: the volume must be in the state of the sender's
//! parent. That is so if its newest snapshot has the parent's identity; or, for a clone without a
//! snapshot of its own, its origin; and if nothing has been written since.

use std::sync::Arc;

use format::SnapshotIdentity;
use store::map::compare::allocated;
use store::map::group_pages::look_down;
use store::objects::Object;
use store::objects::level::Level;
use surface::{Error, Result};
use units::{BlockIndex, BlockMask, GROUP_BLOCKS, GroupIndex, ObjectId};

use crate::pool::Pool;
use crate::replication::parts::Intake;
use crate::replication::receive::conflict;
use crate::replication::send_pages::push_holes;

impl Pool {
    /// Returns the moment that a difference to a volume must start from: its newest snapshot, or,
    /// if it has none, the one that it is a clone of.
    fn newest_moment(&self, volume: &Object) -> Option<Arc<Object>> {
        let objects = &self.core.objects;
        let newest = objects.snapshots_of(volume.id).pop();
        newest.or_else(|| Self::origin_of(volume, &objects.snapshots_by_timeline()))
    }

    /// Returns the base snapshot of a stream in a volume that the stream fits.
    pub(crate) fn fitting(&self, volume: &Arc<Object>, from: SnapshotIdentity, parent: &str) -> Result<Arc<Object>> {
        let (name, newest) = (volume.title(), self.newest_moment(volume));
        let identity = |object: &Arc<Object>| object.descriptor.read().identity;
        if let Some(newest) = newest.as_ref().filter(|newest| identity(newest) == Some(from)) {
            return Ok(newest.clone());
        }
        let own = self.core.objects.snapshots_of(volume.id);
        if let Some(older) = own.iter().find(|snapshot| identity(snapshot) == Some(from)) {
            let (older, newest) = (older.title(), newest.map_or_else(String::new, |newest| newest.title()));
            return Err(conflict(format!(
                "the stream is based on '{older}', but '{name}' has newer snapshots, the newest being \
                 '{newest}': destroy them (shale rollback -r POOL {older}) and receive again; or keep both \
                 (shale clone POOL {older} NEW) and receive into NEW; or send the difference from '{newest}'"
            )));
        }
        let elsewhere = self.core.objects.with_identity(from).filter(|found| found.is_readable());
        Err(conflict(match (elsewhere, newest) {
            (Some(there), _) => {
                let there = there.title();
                format!(
                    "the stream is based on '{parent}', which is '{there}' here, but not a snapshot of '{name}': \
                     receive into the volume of '{there}', or into a clone of it (shale clone POOL {there} NEW)"
                )
            }
            (None, Some(newest)) => format!(
                "the stream is based on '{parent}', which '{name}' does not have; its newest snapshot is '{}': \
                 send the difference from a snapshot that both sides have, or the whole into a new volume",
                newest.title()
            ),
            (None, None) => format!(
                "the stream is based on '{parent}', but '{name}' has no snapshot: send the whole into a new \
                 volume"
            ),
        }))
    }

    /// Fails if a volume differs from its newest snapshot, or from the one that it is a clone of.
    pub(crate) fn check_unchanged(&self, volume: &Object, newest: &Object) -> Result<()> {
        let (name, snapshot) = (volume.title(), newest.title());
        Self::check_size_unchanged(volume, newest)?;
        // What is received is compared with the records of the last checkpoint.
        self.core.history.flush_and_checkpoint()?;
        let mut start = Some(0);
        while let Some(at) = start {
            let page = self.diff(&snapshot, &name, at)?;
            if let Some(change) = page.changes.first() {
                let how = format!("has been written to (at byte {}, for example)", change.offset);
                return Err(changed(volume, newest, &how));
            }
            start = page.next;
        }
        Ok(())
    }

    /// Fails if a volume's size differs from that of its newest snapshot.
    pub(crate) fn check_size_unchanged(volume: &Object, newest: &Object) -> Result<()> {
        if volume.size_bytes() == newest.size_bytes() {
            return Ok(());
        }
        Err(changed(volume, newest, "has been resized"))
    }
}

fn changed(volume: &Object, newest: &Object, how: &str) -> Error {
    let (name, snapshot) = (volume.title(), newest.title());
    let is_own = newest.descriptor.read().parent == Some(volume.id);
    let way = if is_own {
        format!("roll it back (shale rollback POOL {snapshot}) and receive again")
    } else {
        format!("make another clone of it (shale clone POOL {snapshot} NEW) and receive into that")
    };
    conflict(format!("'{name}' {how} since '{snapshot}': {way}"))
}

impl Intake {
    /// Returns the parts of `holes` that cover data, as seen through `levels`: a difference from a
    /// bookmark lists everything that reads as zeroes. As of the last checkpoint.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub(crate) fn holes_that_hide(
        &self,
        holes: &[(BlockIndex, u32)],
        levels: &[Level],
    ) -> Result<Vec<(BlockIndex, u32)>> {
        let mut objects: Vec<ObjectId> = levels.iter().map(|level| level.object).collect();
        objects.sort_unstable();
        objects.dedup();
        let mut hiding = Vec::new();
        let end = |(first, blocks): &(BlockIndex, u32)| first.0 + u64::from(*blocks);
        let mut next = holes.first().map(|(first, _)| first.group());
        let mut rest = holes;
        while let (Some(from), false) = (next, rest.is_empty()) {
            let page = self.map.page_of_both(&objects, (&[], levels), from)?;
            for (group, of_all) in &page.groups {
                let begin = group.first_block().0;
                rest = &rest[rest.partition_point(|hole| end(hole) <= begin)..];
                let behind = begin + GROUP_BLOCKS as u64;
                let inside = rest.iter().take_while(|(first, _)| first.0 < behind);
                let mask = inside.fold(BlockMask::EMPTY, |mask, hole| {
                    let (first, end) = (hole.0.0.max(begin), end(hole).min(behind));
                    mask.or(BlockMask::run((first - begin) as u32, (end - first) as u32))
                });
                if mask.is_empty() {
                    continue;
                }
                let data = allocated(&look_down(levels, &objects, (*group, of_all), BlockMask::FULL)).and(mask);
                for (first, blocks) in data.runs() {
                    let first = begin + u64::from(first);
                    push_holes(&mut hiding, first, first + u64::from(blocks));
                }
            }
            // The part after this page, and the beginning of the next hole.
            rest =
                page.next.map_or(&[], |next| &rest[rest.partition_point(|hole| end(hole) <= next.first_block().0)..]);
            next = rest.first().zip(page.next).map(|((first, _), next)| GroupIndex(first.group().0.max(next.0)));
        }
        Ok(hiding)
    }
}
