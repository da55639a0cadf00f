//! At the end, one volume is left, and is rewritten entirely: then nothing else may be kept.

use std::sync::atomic::{AtomicU64, Ordering};

use sim::{ContentKind, TableOp};

use super::{Ended, Failure, Op, World};

/// Checkpoints in which everything must have come back.
const CHECKPOINTS_MAX: u64 = 400;
/// Largest volume that is written as a whole.
const SIZE_MAX: u64 = 3 << 20;

/// How often it came to a verdict, and how often over a clone.
static JUDGED: AtomicU64 = AtomicU64::new(0);
static CLONES: AtomicU64 = AtomicU64::new(0);

/// How often nothing was left, and how often nothing was left of an origin.
pub fn judged() -> (u64, u64) {
    (JUDGED.load(Ordering::Relaxed), CLONES.load(Ordering::Relaxed))
}

impl World {
    /// Destroys everything but one volume, a clone if there is one, writes over it, and demands
    /// that nothing is stored but that. Says nothing if there is no such volume, or not enough
    /// room.
    pub fn verify_no_leak(&mut self) -> Result<(), Failure> {
        // A clone of a share needs a block of its origin that no file's content overwrites.
        let is_small = |name: &String| {
            let size = self.model.size_bytes(name);
            size <= SIZE_MAX && size != super::lens::SHARE_BYTES
        };
        let small: Vec<_> = self.model.names().into_iter().filter(is_small).collect();
        let Some(kept) = small.iter().find(|name| self.model.is_clone(name)).or(small.first()).cloned() else {
            return Ok(());
        };
        let is_done = |ended: Ended| ended == Ended::Well;
        let limits = ["quota", "reservation"].map(|key| (key.to_owned(), None)).to_vec();
        let mut ops = vec![Op::Table(TableOp::Set { name: Some(kept.clone()), changes: limits })];
        // Half of the time it is written over first: then it is the origin that goes later.
        let writes_first = self.rng.coin();
        let mut writes = Vec::new();
        for offset in (0..self.model.size_bytes(&kept)).step_by(128 << 10) {
            let len = (self.model.size_bytes(&kept) - offset).min(128 << 10);
            let (kind, seed) = (ContentKind::Random, self.rng.next_u64());
            writes.push(Op::Write { volume: kept.clone(), offset, len, kind, seed, fua: false });
        }
        let (volumes, snapshots): (Vec<_>, Vec<_>) =
            self.model.all_names().into_iter().filter(|name| *name != kept).partition(|name| !name.contains('@'));
        let destroys = snapshots.into_iter().chain(volumes).map(|name| Op::Table(TableOp::Destroy { name }));
        if writes_first {
            ops.append(&mut writes);
        }
        ops.extend(destroys);
        ops.extend(writes);
        for op in ops {
            if !is_done(self.apply(&op)?) {
                return Ok(());
            }
        }
        for round in 0.. {
            if !is_done(self.apply(&Op::Checkpoint)?) {
                return Ok(());
            }
            if self.pool().status().reaping == 0 {
                break;
            }
            if round == CHECKPOINTS_MAX {
                return Err(self.fail("leaks: reaping does not end"));
            }
        }
        let (status, volumes) = (self.pool().status(), self.pool().volumes());
        let stored = volumes.iter().map(|volume| volume.stored_bytes).sum::<u64>();
        if status.unlisted_bytes > 0 || status.live_bytes - status.dictionary_bytes != stored {
            return Err(self.fail(format!("leaks: only '{kept}' is left, and {status:?} is kept, {volumes:?}")));
        }
        JUDGED.fetch_add(1, Ordering::Relaxed);
        CLONES.fetch_add(u64::from(self.model.is_clone(&kept)), Ordering::Relaxed);
        self.verify_check()?;
        self.verify_volume(&kept)
    }
}
