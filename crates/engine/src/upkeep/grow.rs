//! Growing a pool while it is in use.
//!
//! 1. The storage makes room, durably: a file becomes longer, a device must have the bytes. A
//!    length that is not synced may be lost in a crash that the superblock survives. 2. The
//!    superblock says so, durably, in both copies: a crash in between leaves the old size or the
//!    new one, and either is right. A sync that fails ends all writing, here as anywhere. 3. The
//!    new extents are free.

use store::log::superblock_copies;
use store::log::superblock_io;
use surface::{Error, ErrorKind, Result};
use units::format_size;

use crate::pool::Pool;

impl Pool {
    /// Grows the pool to `capacity_bytes`, rounded down to whole extents; it cannot become smaller.
    /// Durable on return, and usable immediately, even by a full pool.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if it would become smaller or have too many extents;
    /// [`ErrorKind::Full`] or [`ErrorKind::Io`] if the storage has not got the room.
    pub fn grow(&self, capacity_bytes: u64) -> Result<()> {
        let core = &self.core;
        core.vitals.check_failed()?;
        let _admin = core.objects.admin.lock();
        let extent_bytes = u64::from(core.geometry.extent_bytes);
        let now = u64::from(core.geometry.extents()) * extent_bytes;
        let capacity_bytes = capacity_bytes / extent_bytes * extent_bytes;
        // A device keeps room for the copy of the superblock at its end, if that does not make the
        // pool smaller.
        let with_end =
            superblock_copies::capacity_with_end(&*core.vitals.env.disk, capacity_bytes) / extent_bytes * extent_bytes;
        let capacity_bytes = if with_end >= now { with_end } else { capacity_bytes };
        if capacity_bytes == now {
            return Ok(());
        }
        if capacity_bytes < now {
            let (now, wanted) = (format_size(now), format_size(capacity_bytes));
            let text = format!(
                "the pool has {now} and cannot be made {wanted} large: it can only grow (shrink makes it smaller)"
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let most = format::capacity_bytes_max(core.geometry.extent_bytes) / extent_bytes * extent_bytes;
        let extents = u32::try_from(capacity_bytes / extent_bytes).ok().filter(|_| capacity_bytes <= most);
        let Some(extents) = extents else {
            let text = format!("with extents of this size a pool has at most {}", format_size(most));
            return Err(Error::new(ErrorKind::Invalid, text));
        };
        core.vitals
            .env
            .disk
            .grow(capacity_bytes)
            .map_err(|e| Error::from_io("the data file or device cannot grow", e))?;
        let synced = core.vitals.env.disk.sync().map_err(|e| Error::from_io("syncing the larger data file failed", e));
        synced.inspect_err(|error| core.vitals.fail(error))?;
        let mut superblock = superblock_io::choose(&superblock_io::read_copies(&*core.vitals.env.disk)?)?;
        superblock.capacity_bytes = capacity_bytes;
        superblock.generation += 1;
        superblock_io::write(&*core.vitals.env.disk, &superblock).inspect_err(|error| core.vitals.fail(error))?;
        superblock_copies::write(&*core.vitals.env.disk, &*core.vitals.env.store, &superblock)
            .inspect_err(|error| core.vitals.fail(error))?;
        core.geometry.grow(extents);
        {
            let mut all = core.space.extents.lock();
            all.grow(extents as usize);
            core.space.publish(&all);
        }
        core.space.forget_full();
        // The log gets some of them at once, for writers that wait for room.
        core.checkpoints.take()
    }
}
