//! Parts of pools with shares: the feature in the superblock, room for the trees of shares in a
//! full pool, and the numbers that outlive the states of a tree.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use format::{Entry, INCOMPAT_SHARES, INCOMPAT_SMALL_FILES, ObjectDescriptor, TreeNumbers};
use policy::{Resolved, SnapDir};
use store::log::superblock_copies;
use store::log::superblock_io;
use store::objects::file_layout::NAMES;
use store::space::admission::{GROUP_COST_BYTES, cost_of};
use surface::{Hint, Lineage, Result};
use units::{BLOCK_BYTES, BlockIndex, GroupIndex};

use crate::make_room::Asks;
use crate::volume::Volume;
use crate::volume::parts::Volumes;

/// Odd numbers, so that products with the numbers of objects differ as these do: 2^32 over the
/// golden ratio, whose multiples are far apart, and an unrelated one.
const GENERATION_STEP: u32 = 0x9e37_79b9;
const SPACE_STEP: u32 = 0x85eb_ca6b;

/// A tree writes pages of a block, each of which may cost as much again in the log.
const PAGE_COST_TIMES: u64 = 1 + GROUP_COST_BYTES / BLOCK_BYTES as u64;

/// Bytes reserved as on their way to the log, for a tree that is about to write them.
#[derive(Debug, Default)]
pub(crate) struct Aside(AtomicU64);

impl Volumes {
    /// Records durably in the superblock, and in all its copies, that there may be shares. The
    /// caller holds `admin`.
    ///
    /// # Errors
    /// Those of the storage; the pool accepts no writes then.
    pub(crate) fn allow_shares(&self) -> Result<()> {
        let mut superblock = superblock_io::choose(&superblock_io::read_copies(&*self.vitals.env.disk)?)?;
        let features = INCOMPAT_SHARES | INCOMPAT_SMALL_FILES;
        if superblock.features_incompat & features == features {
            return Ok(());
        }
        superblock.features_incompat |= features;
        superblock.generation += 1;
        superblock_io::write(&*self.vitals.env.disk, &superblock)
            .and_then(|()| superblock_copies::write(&*self.vitals.env.disk, &*self.vitals.env.store, &superblock))
            .inspect_err(|error| self.vitals.fail(error))
    }
}

impl Volume {
    /// Returns whether it is a share, or a snapshot of one.
    pub fn is_share(&self) -> bool {
        self.object.is_share()
    }

    /// Visibility of a share's snapshots in its mount.
    pub fn snapdir(&self) -> SnapDir {
        self.object.settings.read().snapdir
    }

    /// Returns whether the property `readonly` refuses changes of its content.
    pub fn is_set_readonly(&self) -> bool {
        self.object.settings.read().readonly
    }

    /// The properties in force for its files.
    pub(crate) fn in_force(&self) -> Arc<Resolved> {
        self.object.in_force.read().clone()
    }

    /// Returns the bytes of its content, and those that may still be written: as if none of them
    /// could be compressed, and no more than its quota and those of its folders allow.
    pub fn room(&self) -> (u64, u64) {
        let left = self.volumes.writes.quota_left(&self.object);
        let copies = 1 + u64::from(self.object.copies_of(GroupIndex(0)));
        (self.volumes.allocated_bytes(&self.object), self.volumes.space.available_bytes().min(left) / copies)
    }

    /// Facts about the share that outlive its states. Those of shares in other pools differ by
    /// chance only: the pool's identifier is random.
    pub(crate) fn lineage(&self) -> Lineage {
        let TreeNumbers { reserved, generation } = self.object.descriptor.read().numbers;
        let pool = self.volumes.pool_id.chunks(4).fold(0, |sum: u32, part| {
            let word = part.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
            sum.rotate_left(5) ^ word
        });
        let number = self.object.id.0 as u32;
        Lineage {
            generation: pool.wrapping_add(number.wrapping_mul(GENERATION_STEP)).wrapping_add(generation),
            space: number.wrapping_mul(SPACE_STEP).wrapping_add(pool.rotate_left(16)),
            numbers: reserved,
        }
    }

    /// Notes durably that file numbers below `end` may be handed out.
    pub(crate) fn reserve_numbers(&self, end: u64) -> Result<()> {
        let _admin = self.volumes.objects.admin.lock();
        let descriptor = self.object.descriptor.read().clone();
        if descriptor.numbers.reserved >= end || !self.object.is_live() {
            return Ok(());
        }
        let numbers = TreeNumbers { reserved: end, ..descriptor.numbers };
        self.volumes.writes.append_durably(vec![Entry::Object(ObjectDescriptor { numbers, ..descriptor })])
    }

    /// Writes file metadata of a share's tree: it finds room where other writes find the pool full,
    /// first in the reserved room.
    pub(crate) fn write_for_tree(&self, offset: u64, data: Bytes, hint: Hint, aside: &Aside) -> Result<()> {
        let length = data.len() as u64;
        let _guard = self.enter_to_change(offset, length)?;
        let times = 1 + u64::from(self.object.copies_of(BlockIndex::containing(offset).group()));
        let cost = times * cost_of(length);
        let is_set_aside =
            aside.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(cost)).is_ok();
        let room = if is_set_aside {
            self.volumes.space.take_over(cost)
        } else {
            self.volumes.make_room.admit_new(&self.object, length, length, Asks::Tree)?
        };
        self.volumes.vitals.counters.written_bytes.add(length);
        self.write_bytes(offset, data, false, hint, self.volumes.writes.enter_buffer(room)?)
    }

    /// Reserves room for writes of a tree, replacing the rest of its last reservation.
    pub(crate) fn reserve_for_tree(&self, bytes: u64, aside: &Aside) -> Result<()> {
        self.volumes.space.release(aside.0.swap(0, Ordering::AcqRel));
        if bytes > 0 {
            let kept = self.volumes.make_room.admit_new(&self.object, PAGE_COST_TIMES * bytes, 0, Asks::Tree)?.keep();
            aside.0.fetch_add(kept, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Fails like a write of so much new data would for lack of room.
    pub(crate) fn admit_data(&self, bytes: u64) -> Result<()> {
        self.volumes.make_room.admit_new(&self.object, bytes, 0, Asks::Data).map(drop)
    }

    /// Returns the bytes for which trees still find room.
    pub(crate) fn room_for_trees(&self) -> u64 {
        let copies = 1 + u64::from(self.object.copies_of(BlockIndex::containing(NAMES.start).group()));
        self.volumes.space.available_to_trees() / PAGE_COST_TIMES / copies
    }
}
