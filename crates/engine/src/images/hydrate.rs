//! Fetches the rest of images in the background, if a volume asks for that (`hydrate`). Once all
//! needed groups of an image are in the pool, its store is no longer needed.
//!
//! One thread goes through the groups in order, a few at a time. Groups that clones have
//! overwritten are not fetched. A group that is unavailable, or has no room, is skipped until the
//! next round.

use std::sync::Weak;
use std::time::Duration;

use store::base::group::GroupKey;
use store::objects::{Object, clone_needs};
use surface::Result;
use units::{BlockMask, GROUP_BYTES, GroupIndex};

use crate::images::parts::Images;
use crate::read::lacking::Patience;

/// Bytes that are fetched in a tick of a pool without threads.
pub(crate) const TICK_BYTES: u64 = 4 * GROUP_BYTES as u64;
/// Groups that are fetched together.
const GROUPS: usize = 16;
/// Groups that are examined before the thread checks its conditions again.
const LOOKED_MAX: u64 = 4096;
/// Pause of the thread when there is nothing to do.
const REST: Duration = Duration::from_secs(1);

/// The thread.
pub(crate) fn run(images: &Weak<Images>) {
    while let Some(images) = images.upgrade() {
        let fastest = images.objects.images().iter().filter_map(|image| images.objects.hydration_of(image.id)).max();
        let rest = match fastest {
            None => REST,
            Some(rate) => {
                // An error is in the image's status, and the store gets a pause.
                let step = (rate / 10).max(GROUP_BYTES as u64).min(GROUPS as u64 * GROUP_BYTES as u64);
                let began = images.vitals.env.clock.now_ns();
                let done = images.hydrate_some(step);
                let took = Duration::from_nanos(images.vitals.env.clock.now_ns().saturating_sub(began));
                match done {
                    Ok(0) | Err(_) => REST,
                    Ok(_) if rate == u64::MAX => Duration::ZERO,
                    Ok(bytes) => Duration::from_secs_f64(bytes as f64 / rate as f64).saturating_sub(took),
                }
            }
        };
        if images.signals.rest(rest) || images.reads.images.is_stopped() {
            return;
        }
    }
}

impl Images {
    /// Fetches about so many bytes of the rest; returns the bytes of the arrived groups.
    ///
    /// # Errors
    /// When the store cannot be reached, or the map cannot be read.
    pub(crate) fn hydrate_some(&self, bytes: u64) -> Result<u64> {
        let mut fetched = 0;
        for image in self.objects.images() {
            if self.objects.hydration_of(image.id).is_none() {
                continue;
            }
            while fetched < bytes {
                let most = ((bytes - fetched).div_ceil(GROUP_BYTES as u64) as usize).min(GROUPS);
                let (left, is_end) = self.left_of(&image, most)?;
                if !left.is_empty() {
                    // It would not be kept, and so be fetched again in each round.
                    if !self.has_room_for_rest(&image, left.len()) {
                        break;
                    }
                    self.fetches.fetch(&left, &Patience::once(self.vitals.env.clock.now_ns()))?;
                    self.reads.images.drop_unheld();
                }
                fetched += left.len() as u64 * GROUP_BYTES as u64;
                if is_end || left.is_empty() {
                    break;
                }
            }
        }
        Ok(fetched)
    }

    /// Returns whether so many groups could be kept, at their maximum cost; notes it if not.
    fn has_room_for_rest(&self, image: &Object, groups: usize) -> bool {
        let has_room = self.space.try_admit_fetched(image, 2 * groups as u64 * GROUP_BYTES as u64).is_some();
        self.reads.images.state.lock().contacts.entry(image.id).or_default().lacks_room = !has_room;
        has_room
    }

    /// Returns the next groups of an image that are needed and not fetched, at most so many, and
    /// whether the end has been reached.
    fn left_of(&self, image: &Object, most: usize) -> Result<(Vec<GroupKey>, bool)> {
        let levels = image.levels();
        let groups = levels.last().map_or(0, |level| level.image_groups());
        let from = {
            let state = self.reads.images.state.lock();
            state.contacts.get(&image.id).and_then(|contact| contact.next).unwrap_or(0)
        };
        let mut left = Vec::new();
        let mut group = from;
        while group < groups && left.len() < most && group - from < LOOKED_MAX {
            let key = GroupKey { object: image.id, group: GroupIndex(group) };
            let (_, absent) = self.map.lookup_partly(&levels, key.group, BlockMask::FULL)?;
            if !absent.is_empty() && !self.needed_of(key, absent).is_empty() {
                left.push(key);
            }
            group += 1;
        }
        let is_end = group >= groups;
        let mut state = self.reads.images.state.lock();
        let contact = state.contacts.entry(image.id).or_default();
        contact.is_lacking = from > 0 && contact.is_lacking || !left.is_empty();
        if is_end {
            contact.is_whole = !contact.is_lacking;
        }
        contact.next = (!is_end).then_some(group);
        drop(state);
        Ok((left, is_end))
    }

    /// Those of some blocks of an image that a clone needs.
    fn needed_of(&self, key: GroupKey, of: BlockMask) -> BlockMask {
        let timelines = self.objects.timelines();
        let needs = clone_needs::needs(&timelines, key, of, &mut |key| {
            let object = self.objects.get(key.object)?;
            let settled = self.map.settled().with(key, Clone::clone).unwrap_or_default();
            Some((*self.map.base_for_checkpoint(key, object.epoch(), &settled).ok()?.records).clone())
        });
        let is_partial =
            timelines.get(&key.object).is_some_and(|timeline| timeline.clones.len() == timeline.points.len());
        if is_partial { needs.iter().fold(BlockMask::EMPTY, |mask, (_, need)| mask.or(*need)).and(of) } else { of }
    }
}
