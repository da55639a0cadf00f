//! What all parts of an open pool share: its environment, options and counters, whether it still
//! accepts requests, and whether it is being closed. Owns the latter two. Fatal failures, after
//! which only recovery can establish the state, are reported here; every new operation checks
//! first. Any thread may call it. It calls nothing but the locks of this room.

use std::sync::atomic::{AtomicBool, Ordering};

use format::SnapshotIdentity;
use surface::{Error, ErrorKind, Result};

use crate::base::counters::Counters;
use crate::base::options::{PoolEnv, PoolOptions};
use crate::base::ranked::Mutex;
use crate::base::ranks;

/// See the module.
pub struct Vitals {
    pub env: PoolEnv,
    pub options: PoolOptions,
    /// In memory of their own: every operation changes some of them, and only reads the others.
    pub counters: Box<Counters>,
    failed: Mutex<Option<String>, ranks::Failed>,
    /// Whether there is a reason, to be read without the lock.
    has_failed: AtomicBool,
    /// The data file has been deleted: it is gone when the pool closes it.
    is_deleted: AtomicBool,
    closed: AtomicBool,
    /// The pool is being closed.
    ends: AtomicBool,
    /// The pool is being closed, and the space of listed extents must be freed.
    sheds_list: AtomicBool,
}

impl Vitals {
    pub fn new(env: PoolEnv, options: PoolOptions) -> Self {
        Self {
            env,
            options,
            counters: Box::default(),
            failed: Mutex::default(),
            has_failed: AtomicBool::new(false),
            is_deleted: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            ends: AtomicBool::new(false),
            sheds_list: AtomicBool::new(false),
        }
    }

    /// Returns an identity for a new snapshot, or for one that may show other data from now on.
    pub fn new_identity(&self) -> Result<SnapshotIdentity> {
        let mut identity = [0; 16];
        self.env
            .entropy
            .fill(&mut identity)
            .map_err(|e| Error::from_io("reading random bytes for the snapshot's identity", e))?;
        Ok(SnapshotIdentity(identity))
    }

    /// Returns whether all work is done inside the caller's calls.
    #[inline]
    pub fn is_inline(&self) -> bool {
        self.options.workers == 0
    }

    /// Makes the pool read-only: the map store or a sync failed, and only recovery can establish
    /// the state. The first reason is kept.
    pub fn fail(&self, why: &Error) {
        self.failed.lock().get_or_insert_with(|| why.to_string());
        if is_deletion(why) {
            self.is_deleted.store(true, Ordering::Release);
        }
        self.has_failed.store(true, Ordering::Release);
    }

    /// Notes that the data file has been deleted: no error advises to close the pool, because its
    /// data would be gone.
    pub(crate) fn note_deleted(&self) {
        self.is_deleted.store(true, Ordering::Release);
    }

    /// Refuses all requests from now on: another process may open the pool.
    pub fn close(&self) {
        self.fail(&Error::new(ErrorKind::Io, "it has been closed"));
        self.closed.store(true, Ordering::Release);
    }

    /// Whether the pool has been closed.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Why writes are refused, if they are.
    pub fn failure(&self) -> Option<String> {
        self.failed.lock().clone()
    }

    /// Fails if writes are refused.
    pub fn check_failed(&self) -> Result<()> {
        if !self.has_failed.load(Ordering::Acquire) {
            return Ok(());
        }
        let why = self.failure().unwrap_or_default();
        let reopen = "; close and reopen it: all flushed data is safe";
        let advice = if self.is_deleted.load(Ordering::Acquire) { "" } else { reopen };
        Err(Error::new(ErrorKind::Io, format!("the pool accepts no writes since an error ({why}){advice}")))
    }

    /// Notes that the last checkpoint of the pool is about to be taken; `sheds_list`: the space of
    /// the extents on the log's list must be freed.
    pub fn end(&self, sheds_list: bool) {
        self.ends.store(true, Ordering::Relaxed);
        self.sheds_list.store(sheds_list, Ordering::Relaxed);
    }

    /// Returns whether the pool is being closed.
    pub fn is_ending(&self) -> bool {
        self.ends.load(Ordering::Relaxed)
    }

    /// Returns whether the pool is being closed, and the log must keep few extents on its list.
    pub fn sheds_list(&self) -> bool {
        self.sheds_list.load(Ordering::Relaxed)
    }
}

/// Returns whether an I/O error among the causes means that the data file is gone.
fn is_deletion(error: &Error) -> bool {
    let causes = std::iter::successors(std::error::Error::source(error), |error| error.source());
    let mut causes = causes.filter_map(|cause| cause.downcast_ref::<std::io::Error>());
    causes.any(|cause| cause.kind() == std::io::ErrorKind::NotFound)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io;

    use sim::Machine;
    use surface::{Error, ErrorKind};

    use crate::base::testing::vitals_on;

    /// A user who followed the advice, after growing the pool, lost all data.
    #[test]
    fn nobody_is_told_to_close_a_pool_whose_data_has_been_deleted() {
        for (kind, is_advised) in [(io::ErrorKind::NotFound, false), (io::ErrorKind::Other, true)] {
            let vitals = vitals_on(&Machine::new(4 << 20, 1));
            let below = io::Error::new(kind, "do not stop it before you have made a copy");
            vitals.fail(&Error::from_io("syncing the larger data file failed", below));
            // A consequential error does not mention the deletion.
            vitals.fail(&Error::new(ErrorKind::Io, "it cannot be written"));
            let text = vitals.check_failed().unwrap_err().to_string();
            assert_eq!(text.contains("close and reopen"), is_advised, "{text}");
            assert!(text.contains("made a copy"), "{text}");
        }
    }
}
