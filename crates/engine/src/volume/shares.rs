//! That a pool has shares: older programs do not open it from then on.

use format::INCOMPAT_SHARES;
use surface::Result;

use crate::log::superblock_copies;
use crate::log::superblock_io;
use crate::pool::core::Core;
use crate::volume::Volume;

impl Core {
    /// Says durably in the superblock, and in all its copies, that there may be shares. The caller
    /// holds the lock of administration.
    ///
    /// # Errors
    /// What the storage fails with; the pool takes no writes then.
    pub(crate) fn allow_shares(&self) -> Result<()> {
        let mut superblock = superblock_io::choose(&superblock_io::read_copies(&*self.env.disk)?)?;
        if superblock.features_incompat & INCOMPAT_SHARES != 0 {
            return Ok(());
        }
        superblock.features_incompat |= INCOMPAT_SHARES;
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

    /// Bytes of content that it holds, and that may still be written: as if none of them could be
    /// compressed, and no more than its quota leaves.
    pub fn room(&self) -> (u64, u64) {
        let quota = self.object.settings.read().quota_bytes;
        let left = quota.map_or(u64::MAX, |quota| quota.saturating_sub(self.object.stored_now()));
        (self.core.allocated_bytes(&self.object), self.core.available_bytes().min(left))
    }
}
