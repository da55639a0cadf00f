//! Space used by snapshots: for each, the bytes that only it keeps, and those that it shares.
//!
//! A scan of the records of its timeline and of the levels below, on demand, in bounded memory, in
//! the state of the last checkpoint. While others write, the figures of different groups are of
//! different moments.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use format::{FragmentRef, Record};
use store::base::group::GroupRecords;
use store::base::status::SnapshotUsage;
use store::map::group_pages::look_down;
use store::objects::level::Level;
use store::objects::timeline::Timeline;
use surface::Result;
use units::{BLOCK_BYTES, BlockMask, Epoch, GroupIndex, ObjectId};

use crate::history::parts::History;
use crate::pool::Pool;

/// The figures of each point of a timeline, by index.
struct Figures {
    /// Bytes that other points than the last one see, and that one does not.
    earlier: u64,
    unique: Vec<u64>,
    /// Differences from one point to the next: an addition to one applies to all later ones.
    seen: Vec<i64>,
    /// The same of blocks that hold data.
    blocks: Vec<i64>,
}

impl Pool {
    /// Returns the space used by the snapshots of a volume, oldest first, in the order of
    /// [`snapshots`](Self::snapshots).
    ///
    /// # Errors
    /// [`surface::ErrorKind::NotFound`], [`surface::ErrorKind::Corrupt`].
    pub fn snapshot_usage(&self, volume: &str) -> Result<Vec<SnapshotUsage>> {
        let objects = &self.core.objects;
        let volume = objects.named(volume)?;
        let mut by_timeline: HashMap<ObjectId, (Vec<Epoch>, Figures)> = HashMap::new();
        let mut usage = Vec::new();
        for snapshot in objects.snapshots_of(volume.id) {
            let Some(origin) = snapshot.descriptor.read().origin else { continue };
            let (points, figures) = match by_timeline.entry(origin.object) {
                Entry::Occupied(entry) => &*entry.into_mut(),
                Entry::Vacant(entry) => &*entry.insert(self.core.history.usage_of_timeline(origin.object)?),
            };
            let Ok(at) = points.binary_search(&origin.epoch) else { continue };
            let unique_bytes = if objects.is_alone_at(origin.object, origin.epoch) { figures.unique[at] } else { 0 };
            let seen: i64 = figures.seen[..=at].iter().sum();
            let shared_bytes = (seen.max(0) as u64).saturating_sub(unique_bytes);
            let blocks: i64 = figures.blocks[..=at].iter().sum();
            let data_bytes = blocks.max(0) as u64 * BLOCK_BYTES as u64;
            let name = snapshot.descriptor.read().name.clone();
            usage.push(SnapshotUsage { name, unique_bytes, shared_bytes, data_bytes });
        }
        Ok(usage)
    }

    /// Stored bytes of a volume that only its snapshots and clones see. Without any nothing is
    /// read.
    ///
    /// # Errors
    /// [`surface::ErrorKind::NotFound`], [`surface::ErrorKind::Corrupt`].
    pub fn snapshot_only_bytes(&self, volume: &str) -> Result<u64> {
        let volume = self.core.objects.named(volume)?;
        // The last point is the volume's own.
        let timelines = self.core.objects.timelines();
        if timelines.get(&volume.id).is_none_or(|timeline| timeline.points.len() < 2) {
            return Ok(0);
        }
        Ok(self.core.history.usage_of_timeline(volume.id)?.1.earlier)
    }
}

impl History {
    /// The points of a timeline, and their figures.
    fn usage_of_timeline(&self, id: ObjectId) -> Result<(Vec<Epoch>, Figures)> {
        let timelines = self.objects.timelines();
        let (Some(timeline), Some(object)) = (timelines.get(&id), self.objects.get(id)) else {
            return Ok((Vec::new(), Figures { earlier: 0, unique: Vec::new(), seen: Vec::new(), blocks: Vec::new() }));
        };
        let points = timeline.points.clone();
        let ends = vec![0; points.len() + 1];
        let mut figures = Figures { earlier: 0, unique: vec![0; points.len()], seen: ends.clone(), blocks: ends };
        // The levels below are the same for all points.
        let levels = object.levels();
        let below = levels.get(1..).unwrap_or_default();
        let mut objects = vec![id];
        objects.extend(below.iter().map(|level| level.object));
        let mut from = GroupIndex(0);
        loop {
            let page = self.map.group_page(&objects, from)?;
            for (group, of_all) in &page.groups {
                figures.add(timeline, (*group, &of_all[0]), below, &objects, of_all);
            }
            match page.next {
                Some(next) => from = next,
                None => return Ok((points, figures)),
            }
        }
    }
}

/// Returns the stored bytes of the blocks of `mask` in a record.
fn bytes_of(record: &Record, mask: BlockMask) -> u64 {
    let part = |f: &FragmentRef| FragmentRef { live: f.live.and(mask), ..*f };
    record.fragments.iter().map(part).filter(|f| !f.live.is_empty()).map(|f| u64::from(f.live_bytes())).sum()
}

/// How many of the blocks of `mask` hold data in a record.
fn blocks_of(record: &Record, mask: BlockMask) -> i64 {
    record.fragments.iter().map(|f| i64::from(f.live.and(mask).count())).sum()
}

impl Figures {
    /// Adds a group. Copies take bytes, and hold no blocks of their own.
    fn add(
        &mut self,
        timeline: &Timeline,
        (group, records): (GroupIndex, &GroupRecords),
        below: &[Level],
        objects: &[ObjectId],
        of_all: &[GroupRecords],
    ) {
        let mut once = vec![BlockMask::EMPTY; records.len()];
        let mut more = once.clone();
        let mut by_last = once.clone();
        // Record, blocks for which it answers, and the only point that they answer for.
        let mut sole: Vec<(usize, BlockMask, usize)> = Vec::new();
        for (points, view, missing) in timeline.views(records) {
            let (mut bytes, mut blocks) = (0, 0);
            for (index, mask) in view {
                blocks += blocks_of(&records[index].1, mask);
                bytes += bytes_of(&records[index].1, mask);
                more[index] = more[index].or(once[index].and(mask));
                once[index] = once[index].or(mask);
                if points.end == timeline.points.len() {
                    by_last[index] = mask;
                }
                if points.len() == 1 {
                    sole.push((index, mask, points.start));
                } else {
                    more[index] = more[index].or(mask);
                }
            }
            // Groups of an image that are not fetched take no space.
            let pieces = look_down(below, objects, (GroupIndex(u64::MAX), of_all), missing);
            bytes += pieces.iter().map(|piece| u64::from(piece.fragment.live_bytes())).sum::<u64>();
            blocks += pieces.iter().map(|piece| i64::from(piece.fragment.live.count())).sum::<i64>();
            blocks = if group.copy() > 0 { 0 } else { blocks };
            self.blocks[points.start] += blocks;
            self.blocks[points.end] -= blocks;
            self.seen[points.start] += bytes as i64;
            self.seen[points.end] -= bytes as i64;
        }
        let hidden = records.iter().zip(once.iter().zip(&by_last));
        self.earlier += hidden.map(|((_, record), (all, last))| bytes_of(record, all.minus(*last))).sum::<u64>();
        for (index, mask, point) in sole {
            self.unique[point] += bytes_of(&records[index].1, mask.minus(more[index]));
        }
    }
}
