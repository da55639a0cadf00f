//! Sorting: data that overwriting has scattered over the log is rewritten in the order of its
//! blocks and in whole units, so that it can be read in order as fast as when it was new; a slice
//! at a time, so that the caller decides on the pace and can stop at any time. The progress is kept
//! in the map store: sorting continues from there, in the next slice or after a restart.
//!
//! Volume by volume, a megabyte (a *window*) at a time:
//! 1. The map yields the locations of those blocks of the window that belong to the volume's newest
//!    epoch and are not dirty. If reading them in order takes few jumps, and they are in few units,
//!    the window is left alone. Thus a second pass has nothing to do.
//! 2. Room for all of them is reserved, as for data, never from the reserve; the cleaner is waited
//!    for.
//! 3. Group by group, they are read (and verified), and put into the write buffer as if they were
//!    written again: only if no client has written to the group, or punched a large hole anywhere,
//!    since step 1 was repeated for it. The rest is as for every write: they become units of the
//!    volume's size, compressed by its properties or with their former codec, whichever is smaller
//!    (`sorted`), in one batch; the blocks that they replace are dead, and left to the cleaner.
//!    Written bytes are counted as moved, like those of the cleaner.
//!
//! So at every crash point a block has its old location or its new one, with the same content, and
//! nothing is promised that a flush had not promised before. Data shared by a snapshot or a clone
//! is older than the newest epoch: it has one owner, and is not moved; a second copy of it would
//! take space. A group with damage in it is left alone entirely.
//!
//! **Holes.** A write is noticed by the version that the write buffer keeps of a group. A large
//! discard bypasses the write buffer (`punch`); it is noticed by a count that is raised when it is
//! applied, and none can begin or end between the check of the count and step 3; one that takes
//! long is not waited for: the group is left alone. Snapshots, rollbacks and deletions are kept out
//! by the volume's gate, for one group at a time.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use env::MapBatch;
use format::{KEY_SORT, SortState};
use policy::{plan_units, unit_blocks};
use store::base::canary::Canary;
use store::base::group::GroupKey;
use store::base::store_error::store_error;
use store::buffer::sorted::Sorted;
use store::buffer::write_buffer::DirtyRun;
use store::map::Piece;
use store::objects::object::Object;
use store::space::admission::{Admitted, GROUP_COST_BYTES};
use surface::{Error, ErrorKind, Hint, Result};
use units::{BLOCK_BYTES, BlockMask, GROUP_BYTES, GroupIndex, ObjectId};

use crate::codecs::regions::RegionKey;
use crate::pool::Pool;
use crate::upkeep::{SortWalk, Upkeep};

/// Groups of a window: the raw size of one drained batch.
const WINDOW_GROUPS: u64 = (crate::write::drain::BATCH_RAW_BYTES / GROUP_BYTES) as u64;
/// Groups that are searched at once (128 MiB), and their weight in a slice if there are none.
const LOOK_GROUPS: u64 = 1024;
const LOOK_BYTES: u64 = 64 << 10;
/// Gap between two fragments that a reader skips as fast as it would jump.
const NEAR_BYTES: u64 = 64 << 10;
/// Jumps in a window that do not justify rewriting it: one for each of its groups. A fresh window
/// has one for each end of a batch and of an extent.
const JUMPS_MAX: u64 = WINDOW_GROUPS;
/// Units beyond twice the ideal number that do not justify it.
const UNITS_MORE_MAX: usize = WINDOW_GROUPS as usize;
/// Attempts at one group while others write to it: after that it is left to them, as it will not
/// stay in order.
const TRIES: u32 = 4;
/// How long a large discard, of any volume, is waited for while a group's volume is held: requests
/// to that volume wait as long. Then the group is left alone.
const PUNCHING_PATIENCE: Duration = Duration::from_millis(5);

/// Progress of sorting.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SortReport {
    /// When it began, in seconds since 1970; 0 if it never did.
    pub started_unix_s: u64,
    /// Whether all volumes have been processed.
    pub is_finished: bool,
    /// Bytes of volumes' data, as their users see them and without holes, that have been processed,
    /// and the total.
    pub bytes_done: u64,
    /// See `bytes_done`.
    pub bytes_total: u64,
    /// Bytes of blocks, uncompressed, that were rewritten.
    pub rewritten_bytes: u64,
    /// Groups of 128 KiB that were left alone because something in them is damaged or cannot be
    /// read: a scrub reports the details.
    pub damaged_groups: u64,
    /// Bytes read and written, sent and received for users of the pool since it was opened: shows
    /// whether clients are active.
    pub foreground_bytes: u64,
}

impl Pool {
    /// Continues sorting from where it stopped last, with at least `bytes` of volumes. With
    /// `restart` it starts over; when it is finished, nothing happens without that. With 0 bytes it
    /// only reports.
    ///
    /// # Errors
    /// [`ErrorKind::Full`] when there is no room to rewrite anything, and those of the storage.
    /// Damage of data is counted, not returned.
    pub fn sort(&self, bytes: u64, restart: bool) -> Result<SortReport> {
        self.core.upkeep.sort(bytes, restart)
    }
}

/// Result for a group.
enum Outcome {
    /// So many bytes of blocks are on their way to a new place.
    Moved(u64),
    /// Something in it is damaged, or cannot be read.
    Damaged,
}

/// Step 1's result for a group.
struct Own {
    /// The blocks that only the newest epoch owns, and that are not dirty.
    own: BlockMask,
    /// Where these lie.
    pieces: Vec<Piece>,
    /// Blocks of the volume that hold data, of any epoch.
    data_blocks: u32,
}

/// Step 1's result for a window.
#[derive(Debug, Default)]
struct Scatter {
    /// Where the last fragment ended.
    end: Option<u64>,
    jumps: u64,
    /// Present number of units, and the number after sorting.
    units: usize,
    units_after: usize,
    blocks: u64,
    /// Blocks of data, including those shared by snapshots.
    data_blocks: u64,
}

impl Scatter {
    /// Adds the next fragment in the order of blocks.
    fn add(&mut self, location: u64, stored: u64) {
        let is_near = self.end.is_some_and(|end| location >= end && location - end <= NEAR_BYTES);
        self.jumps += u64::from(!is_near);
        self.end = Some(location + stored);
        self.units += 1;
    }

    fn is_worth_it(&self) -> bool {
        self.jumps > JUMPS_MAX || self.units > 2 * self.units_after + UNITS_MORE_MAX
    }
}

impl Upkeep {
    fn sort(&self, bytes: u64, restart: bool) -> Result<SortReport> {
        self.vitals.check_failed()?;
        let mut walk = self.sorting.lock();
        let kept = self.vitals.env.store.get(KEY_SORT).map_err(store_error)?;
        // A damaged state only means starting over.
        let mut state = kept.and_then(|value| SortState::decode(&value).ok()).unwrap_or_default();
        if bytes > 0 && (restart || state.started_unix_s == 0) {
            state = SortState { started_unix_s: self.vitals.env.clock.unix_s().max(1), ..SortState::default() };
        }
        if bytes > 0 && state.object != SortState::DONE {
            let result = self.sort_slice(&mut state, bytes, &mut walk);
            let mut batch = MapBatch::default();
            batch.put(KEY_SORT, state.encode());
            self.vitals.env.store.commit(batch).map_err(store_error)?;
            result?;
        }
        self.find_walk(&state, &mut walk)?;
        Ok(self.sort_report(&state, &walk))
    }

    /// Counts the data before the place where a pass continues, unless that is known.
    fn find_walk(&self, state: &SortState, walk: &mut SortWalk) -> Result<()> {
        if (walk.object, walk.group) != (state.object, state.group) {
            // A pass at its end has no volume, so nothing of one.
            let is_within = state.object != SortState::DONE && state.group.0 > 0;
            let counted =
                if is_within { self.map.count_groups(state.object, GroupIndex(0), state.group, u64::MAX)? } else { 0 };
            *walk = SortWalk { object: state.object, group: state.group, bytes: counted * GROUP_BYTES as u64 };
        }
        Ok(())
    }

    fn sort_slice(&self, state: &mut SortState, bytes: u64, walk: &mut SortWalk) -> Result<()> {
        self.find_walk(state, walk)?;
        let mut left = bytes;
        while left > 0 {
            let volumes = self.objects.volumes().into_iter().filter(|volume| volume.id >= state.object);
            let Some(volume) = volumes.min_by_key(|volume| volume.id) else {
                (state.object, state.group) = (SortState::DONE, GroupIndex(0));
                break;
            };
            if volume.id != state.object {
                (state.object, state.group) = (volume.id, GroupIndex(0));
            }
            let end = volume.size_bytes().div_ceil(GROUP_BYTES as u64);
            if state.group.0 >= end {
                (state.object, state.group) = (ObjectId(volume.id.0 + 1), GroupIndex(0));
                continue;
            }
            // Most of a share is empty.
            let (to, records_max) = match volume.is_share() {
                true => (GroupIndex(end), LOOK_GROUPS as usize),
                false => (GroupIndex((state.group.0 + LOOK_GROUPS).min(end)), usize::MAX),
            };
            let (known, to) = self.map.groups_in(volume.id, state.group, to, records_max)?;
            let known = &known[..known.partition_point(|group| *group < to)];
            for window in known.chunk_by(|a, b| a.0 / WINDOW_GROUPS == b.0 / WINDOW_GROUPS) {
                let data_bytes = self.sort_window(&volume, window, state)?;
                if walk.object != state.object {
                    *walk = SortWalk { object: state.object, ..SortWalk::default() };
                }
                walk.bytes += data_bytes;
                state.group = GroupIndex((window[0].0 / WINDOW_GROUPS + 1) * WINDOW_GROUPS);
                walk.group = state.group;
                left = left.saturating_sub(window.len() as u64 * GROUP_BYTES as u64);
                if left == 0 {
                    return Ok(());
                }
            }
            state.group = to;
            if walk.object == state.object {
                walk.group = to;
            }
            left = left.saturating_sub(LOOK_BYTES);
        }
        Ok(())
    }

    /// Returns the bytes of data in the window.
    fn sort_window(&self, volume: &Arc<Object>, window: &[GroupIndex], state: &mut SortState) -> Result<u64> {
        let mut scatter = Scatter::default();
        for group in window {
            match self.own_blocks(volume, *group) {
                Ok(Own { own, pieces, data_blocks }) => {
                    scatter.data_blocks += u64::from(data_blocks);
                    self.measure(volume, *group, own, &pieces, &mut scatter);
                }
                // Step 3 counts it.
                Err(error) if error.kind() == ErrorKind::Corrupt => scatter.jumps += JUMPS_MAX,
                Err(error) => return Err(error),
            }
        }
        let data_bytes = scatter.data_blocks * BLOCK_BYTES as u64;
        if !scatter.is_worth_it() {
            return Ok(data_bytes);
        }
        let times = 1 + usize::from(volume.copies_of(window.first().copied().unwrap_or(GroupIndex(0))));
        let bytes = scatter.blocks * BLOCK_BYTES as u64;
        let mut room = self.room_to_sort(times as u64 * bytes, times * window.len())?;
        for group in window {
            self.writes.throttle(&mut room)?;
            match self.sort_group(volume, *group) {
                Ok(Outcome::Moved(bytes)) => state.rewritten_bytes += bytes,
                Ok(Outcome::Damaged) => state.damaged += 1,
                Err(error) if error.kind() == ErrorKind::Corrupt => state.damaged += 1,
                Err(error) => return Err(error),
            }
        }
        Ok(data_bytes)
    }

    /// Step 1 for a group: returns the blocks that only the volume's newest epoch owns and that are
    /// not dirty, and their locations, in order.
    fn own_blocks(&self, volume: &Object, group: GroupIndex) -> Result<Own> {
        let dirty = self.buffer.read(GroupKey { object: volume.id, group }, BlockMask::FULL, &mut |_| ());
        let mut pieces = self.map.lookup_stored(&volume.levels(), group, BlockMask::FULL.minus(dirty))?;
        let epoch = volume.epoch();
        let of_volume = pieces.iter().filter(|piece| piece.object == volume.id);
        let data_blocks = of_volume.map(|piece| piece.fragment.live.count()).sum::<u32>() + dirty.count();
        pieces.retain(|piece| (piece.object, piece.epoch) == (volume.id, epoch));
        pieces.sort_unstable_by_key(|piece| piece.fragment.live.first_run());
        let own = pieces.iter().fold(BlockMask::EMPTY, |mask, piece| mask.or(piece.fragment.live));
        Ok(Own { own, pieces, data_blocks })
    }

    fn measure(&self, volume: &Object, group: GroupIndex, own: BlockMask, pieces: &[Piece], scatter: &mut Scatter) {
        for piece in pieces {
            scatter.add(piece.fragment.location, piece.fragment.stored.into());
        }
        let mut settings = *volume.settings.read();
        settings.unit_blocks = settings.unit_blocks.min(self.geometry.unit_blocks_max());
        settings.unit_blocks_min = settings.unit_blocks_min.min(settings.unit_blocks);
        let in_pieces = self.chooser.regions.seems_read_in_pieces(RegionKey::of(volume.id, group.first_block()));
        scatter.units_after += plan_units(own, unit_blocks(&settings, own, in_pieces)).count();
        scatter.blocks += u64::from(own.count());
    }

    /// Step 2.
    fn room_to_sort(&self, bytes: u64, groups: usize) -> Result<Admitted<'_>> {
        let bytes = bytes + groups as u64 * GROUP_COST_BYTES;
        if let Some(admitted) = self.space.try_admit(bytes, 0).or_else(|| self.make_room.wait_for_cleaner(bytes, &|| 0))
        {
            return Ok(admitted);
        }
        self.make_room.find_room(bytes, &|| 0)?.ok_or_else(|| {
            Error::new(ErrorKind::Full, "the pool has no room to rewrite data before the old data is freed")
        })
    }

    /// Step 3 for a group.
    fn sort_group(&self, volume: &Object, group: GroupIndex) -> Result<Outcome> {
        let key = GroupKey { object: volume.id, group };
        for _ in 0..TRIES {
            let _gate = volume.gate.read();
            if !volume.is_live() {
                return Ok(Outcome::Moved(0));
            }
            let punches = self.volumes.punches.load(Ordering::Acquire);
            let mut version = self.buffer.version(key);
            let Own { own, pieces, .. } = self.own_blocks(volume, group)?;
            let mut runs = Vec::new();
            for (first, count) in own.runs() {
                let mut content = vec![0; count as usize * BLOCK_BYTES];
                let offset = group.first_block().offset_bytes() + u64::from(first) * BLOCK_BYTES as u64;
                let _in_extents = self.reads.readers.read();
                match self.reads.read_guarded(volume, offset, &mut content, false) {
                    Err(error) if error.kind() == ErrorKind::Io && self.vitals.failure().is_none() => {
                        return Ok(Outcome::Damaged);
                    }
                    read => read?,
                }
                let fragments = pieces.iter().map(|piece| &piece.fragment);
                let sorted = Some(Sorted::of(BlockMask::run(first, count), fragments));
                let hint = Hint { copies: volume.copies_of(group), ..Hint::default() };
                runs.push(DirtyRun { sorted, hint, ..DirtyRun::of(first as u8, count as u8, Bytes::from(content)) });
            }
            let Some(_no_punching) = self.volumes.punching.try_write_for(PUNCHING_PATIENCE) else { break };
            if self.volumes.punches.load(Ordering::Acquire) != punches && !Canary::SortFillsAHole.is_planted() {
                continue;
            }
            let mut bytes = 0;
            for run in runs {
                let len = u64::from(run.count) * BLOCK_BYTES as u64;
                // Sorted data is in the log already, and needs no room in standby memory.
                if !self.buffer.insert_if(key, run, version).unwrap_or(false) {
                    break;
                }
                // Its own insertion, and no other one, is expected.
                version += 1;
                bytes += len;
            }
            if bytes > 0 || own.is_empty() {
                return Ok(Outcome::Moved(bytes));
            }
        }
        Ok(Outcome::Moved(0))
    }

    fn sort_report(&self, state: &SortState, walk: &SortWalk) -> SortReport {
        let (mut done, mut total) = (0, 0);
        for volume in self.objects.volumes() {
            let size = volume.allocated_bytes();
            total += size;
            done += match volume.id.cmp(&state.object) {
                std::cmp::Ordering::Less => size,
                std::cmp::Ordering::Equal => walk.bytes.min(size),
                std::cmp::Ordering::Greater => 0,
            };
        }
        SortReport {
            started_unix_s: state.started_unix_s,
            is_finished: state.object == SortState::DONE,
            bytes_done: done,
            bytes_total: total,
            rewritten_bytes: state.rewritten_bytes,
            damaged_groups: state.damaged,
            foreground_bytes: self.vitals.counters.foreground_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use sim::{ContentKind, Machine, Rng, fill_content};
    use surface::{BlockDevice, WriteOptions};

    use super::*;
    use crate::pool::testing::pool_on;

    /// The lock is held by a discard that takes arbitrarily long; a snapshot could wait for the
    /// volume in that time, and all later requests with it.
    #[test]
    fn a_large_discard_elsewhere_is_not_waited_for() {
        let machine = Machine::new(16 << 20, 1);
        let pool = pool_on(&machine, machine.disk.handle(), 16 << 20, 0);
        pool.create_volume("v", 1 << 20, &Default::default()).unwrap();
        let volume = pool.volume("v").unwrap();
        for index in 0..256u64 {
            let mut block = vec![0; BLOCK_BYTES];
            fill_content(&mut Rng::new(index), ContentKind::Text, &mut block);
            volume.write(index * 77 % 256 * BLOCK_BYTES as u64, block.into(), WriteOptions::default()).unwrap();
            pool.flush().unwrap();
        }
        let discard = pool.core.volumes.punching.read();
        // The discarding thread is not the sorting one.
        let report = std::thread::scope(|scope| scope.spawn(|| pool.sort(u64::MAX, true)).join()).unwrap().unwrap();
        assert!(report.is_finished && report.rewritten_bytes == 0, "{report:?}");
        drop(discard);
        let report = pool.sort(u64::MAX, true).unwrap();
        assert!(report.is_finished && report.rewritten_bytes == 1 << 20, "{report:?}");
    }

    #[test]
    fn what_lies_in_order_is_left_alone_and_what_is_scattered_is_not() {
        let mut fresh = Scatter { units_after: 32, ..Scatter::default() };
        for unit in 0..32 {
            // There is a header between batches, and one unit in four is in the next extent.
            fresh.add((1 << 20) + unit * 20_000 + if unit > 23 { 5 << 20 } else { 0 }, 16_000);
        }
        assert_eq!((fresh.jumps, fresh.units, fresh.is_worth_it()), (2, 32, false));
        let mut worn = Scatter { units_after: 32, ..Scatter::default() };
        for unit in 0..32 {
            worn.add((1 << 30) - unit * 20_000, 16_000);
        }
        assert_eq!((worn.jumps, worn.is_worth_it()), (32, true));
        let mut small = Scatter { units_after: 32, ..Scatter::default() };
        (0..256).for_each(|block| small.add(block * 2000, 2000));
        assert_eq!((small.jumps, small.is_worth_it()), (1, true), "many small units, though in order");
    }
}
