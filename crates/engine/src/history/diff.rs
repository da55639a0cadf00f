//! The changes between a snapshot and a later one, or the volume's current state. Nothing is
//! written: who may only read a pool may ask for it.

use surface::{Error, ErrorKind, Result};

use crate::pool::Pool;
use store::map::compare::Comparison;
pub use store::map::compare::{Changed, DiffPage};

impl Pool {
    /// Lists changes from `from`, a snapshot, to `to`, another snapshot or a volume, beginning at
    /// byte `start`. Returns after a bounded number of map records: continue at [`DiffPage::next`].
    /// All writes acknowledged before the call are included; of a volume that is being written,
    /// later ones may or may not be.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::Corrupt`], and the errors of the store.
    pub fn diff(&self, from: &str, to: &str, start: u64) -> Result<DiffPage> {
        let core = &self.core;
        let old = core.objects.snapshot_named(from)?;
        let new = core.objects.readable(to)?;
        loop {
            let (old_levels, new_levels) = (old.levels(), new.levels());
            let sizes = (old.size_bytes(), new.size_bytes());
            let compared = Comparison { map: &core.map, head: Some((&core.buffer, &new)) };
            let page = compared.page((&old_levels, &new_levels), sizes, start)?;
            if let Some(gone) = [&old, &new].into_iter().find(|object| !object.is_readable()) {
                return Err(Error::new(ErrorKind::NotFound, format!("'{}' has been destroyed", gone.title())));
            }
            // As long as both look from the same points, all data that they see is still there.
            if (old.levels(), new.levels()) == (old_levels, new_levels) {
                return Ok(page);
            }
        }
    }
}
