//! What only pools with shares have: a feature, by which older programs do not open them, and room
//! for the trees of shares in a full pool.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use format::{INCOMPAT_SHARES, INCOMPAT_SMALL_FILES};
use policy::Resolved;
use surface::{Hint, Result};
use units::BLOCK_BYTES;

use crate::log::superblock_copies;
use crate::log::superblock_io;
use crate::pool::core::Core;
use crate::space::admission::{Asks, GROUP_COST_BYTES, cost_of};
use crate::volume::Volume;

/// A tree writes pages of a block, each of which may cost as much again in the log.
const PAGE_COST_TIMES: u64 = 1 + GROUP_COST_BYTES / BLOCK_BYTES as u64;

/// Bytes that are counted as on their way to the log, for a tree that is about to write them.
#[derive(Debug, Default)]
pub(crate) struct Aside(AtomicU64);

impl Core {
    /// Says durably in the superblock, and in all its copies, that there may be shares. The caller
    /// holds the lock of administration.
    ///
    /// # Errors
    /// What the storage fails with; the pool takes no writes then.
    pub(crate) fn allow_shares(&self) -> Result<()> {
        let mut superblock = superblock_io::choose(&superblock_io::read_copies(&*self.env.disk)?)?;
        let features = INCOMPAT_SHARES | INCOMPAT_SMALL_FILES;
        if superblock.features_incompat & features == features {
            return Ok(());
        }
        superblock.features_incompat |= features;
        superblock.generation += 1;
        superblock_io::write(&*self.env.disk, &superblock)
            .and_then(|()| superblock_copies::write(&*self.env.disk, &*self.env.store, &superblock))
            .inspect_err(|error| self.fail(error))
    }
}

impl Volume {
    /// Whether it is a share, or a moment of one.
    pub fn is_share(&self) -> bool {
        self.object.is_share()
    }

    /// The properties in force for its files.
    pub(crate) fn in_force(&self) -> Arc<Resolved> {
        self.object.in_force.read().clone()
    }

    /// Bytes of content that it holds, and that may still be written: as if none of them could be
    /// compressed, and no more than its quota and those of its folders leave.
    pub fn room(&self) -> (u64, u64) {
        let left = self.core.quota_left(&self.object);
        (self.core.allocated_bytes(&self.object), self.core.available_bytes().min(left))
    }

    /// A write of what a share's tree keeps about files: it finds room where other writes find the
    /// pool full, first in the room set aside.
    pub(crate) fn write_for_tree(&self, offset: u64, data: Bytes, hint: Hint, aside: &Aside) -> Result<()> {
        let length = data.len() as u64;
        let _guard = self.enter_to_change(offset, length)?;
        let cost = cost_of(length);
        let is_set_aside =
            aside.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(cost)).is_ok();
        let _room = if is_set_aside {
            self.core.taken_over(cost)
        } else {
            self.core.brake(length);
            self.core.admit_new(&self.object, length, Asks::Tree)?
        };
        self.core.counters.written_bytes.add(length);
        self.write_bytes(offset, data, false, hint)
    }

    /// Sets room aside for writes of a tree, in place of the rest of that before.
    pub(crate) fn set_aside_for_tree(&self, bytes: u64, aside: &Aside) -> Result<()> {
        self.core.release(aside.0.swap(0, Ordering::AcqRel));
        if bytes > 0 {
            let kept = self.core.admit_new(&self.object, PAGE_COST_TIMES * bytes, Asks::Tree)?.keep();
            aside.0.fetch_add(kept, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Fails as a write of so much new data would for want of room.
    pub(crate) fn admit_data(&self, bytes: u64) -> Result<()> {
        self.core.admit_new(&self.object, bytes, Asks::Data).map(drop)
    }

    /// Bytes that trees still find room for.
    pub(crate) fn room_for_trees(&self) -> u64 {
        self.core.available_to_trees() / PAGE_COST_TIMES
    }
}
