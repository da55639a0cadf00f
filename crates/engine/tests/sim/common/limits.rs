//! Quotas and reservations, as far as they explain that something was refused, and when nothing may
//! be.

use std::sync::atomic::{AtomicU64, Ordering};

use engine::{PoolStatus, Properties};
use sim::{ContentKind, Model, TableOp};
use surface::Error;
use units::parse_size;

use super::{Ended, Failure, Op, World};

/// Requests of this program that a quota refused, and that were refused for the sake of
/// reservations.
static BY_QUOTA: AtomicU64 = AtomicU64::new(0);
static BY_RESERVATION: AtomicU64 = AtomicU64::new(0);

/// Extents of a pool that are not for data: that of the superblock, and the reserve.
const EXTENTS_KEPT: u64 = 1 + 6;

/// Extents from which on overwriting has room of its own (`space`).
pub const EXTENTS_WITH_ROOM_TO_OVERWRITE: u64 = 28 * 16;

/// Reserved extents that may be missing: a restart leaves the tails of those that the two streams
/// of data had open.
const EXTENTS_LEFT: u64 = 2;
/// Least extent in which all that is reserved is asked for. In smaller ones two raw units of the
/// largest size do not fit, so that how densely the survivors of cleaning can be packed is not to
/// be foretold: a few extents less can be won than the pool takes for certain.
const CLAIMED_EXTENT_BYTES_MIN: u32 = 128 << 10;
/// Largest single claim on a reservation.
const CLAIM_BYTES_MAX: u64 = 256 << 10;

/// How often quotas and reservations refused something so far.
pub fn refusals() -> (u64, u64) {
    (BY_QUOTA.load(Ordering::Relaxed), BY_RESERVATION.load(Ordering::Relaxed))
}

/// A size that is in force for a volume.
fn limit(model: &Model, volume: &str, key: &str) -> Option<u64> {
    model.property(volume, key).filter(|value| *value != "none").map(|value| parse_size(value).expect("a size"))
}

/// Bytes that an extent takes of anything, as the engine promises them.
pub fn usable_bytes_min(extent_bytes: u64) -> u64 {
    extent_bytes - (extent_bytes / 2).min(128 << 10) - (8 << 10)
}

/// Bytes of the blocks that a request touches. A volume whose end moves from within a block has the
/// rest of that block zeroed first: of a clone, that is a write of its own.
pub fn bytes_asked(model: &Model, op: &Op) -> u64 {
    match op {
        Op::Write { offset, len, .. } | Op::Zero { offset, len, .. } | Op::Discard { offset, len, .. } => {
            (offset + len).next_multiple_of(4096) - offset / 4096 * 4096
        }
        Op::Table(TableOp::Resize { name, .. }) if !model.size_bytes(name).is_multiple_of(4096) => 4096,
        _ => 0,
    }
}

/// The volume that an operation writes to, or resizes.
fn object_of(op: &Op) -> Option<&str> {
    match op {
        Op::Table(TableOp::Resize { name, .. }) => Some(name.as_str()),
        _ => volume_of(op),
    }
}

fn volume_of(op: &Op) -> Option<&str> {
    match op {
        Op::Write { volume, .. } | Op::Zero { volume, .. } | Op::Discard { volume, .. } => Some(volume),
        _ => None,
    }
}

impl World {
    /// Notes a value of the property `copies`.
    pub fn note_copies(&mut self, value: Option<&str>) {
        let copies = value.map_or(1, |value| value.parse().expect("a number"));
        self.copies_most = self.copies_most.max(copies - 1);
    }

    /// Streams of copies that may have an extent of their own: places of files in a share have a
    /// copy more.
    pub fn streams_of_copies(&self) -> u64 {
        self.copies_most + u64::from(self.shape.shares)
    }

    /// In how many places new data of a volume is stored, at most.
    pub fn times(&self, volume: &str) -> u64 {
        let all = self.pool().properties(Some(volume)).unwrap_or_default();
        let copies = all.iter().find(|property| property.key == "copies");
        copies.map_or(1, |property| property.value.parse().expect("a number"))
    }

    /// The same for the blocks that a request touches, in bytes.
    fn bytes_stored(&self, op: &Op) -> u64 {
        bytes_asked(&self.model, op) * object_of(op).map_or(1, |volume| self.times(volume))
    }

    /// Bytes of a reservation that may be missing.
    fn bytes_left(&self) -> u64 {
        (EXTENTS_LEFT + self.streams_of_copies()) * u64::from(self.shape.extent_bytes)
    }

    /// Bytes as stored that are reserved for volumes and not used by them; those of one are left
    /// out.
    fn bytes_reserved(&self, model: &Model, except: Option<&str>) -> u64 {
        let stored = self.pool().volumes();
        let unmet = |name: &String| {
            let stored = stored.iter().find(|v| v.name == *name).map_or(0, |v| v.stored_bytes);
            limit(model, name, "reservation").unwrap_or(0).saturating_sub(stored)
        };
        model.names().iter().filter(|name| Some(name.as_str()) != except).map(unmet).sum()
    }

    /// Extents that a request leaves to others.
    pub fn extents_reserved(&self, op: &Op) -> u64 {
        let bytes = self.bytes_reserved(&self.model, volume_of(op));
        bytes.div_ceil(usable_bytes_min(self.shape.extent_bytes.into()))
    }

    /// Claims the reservations in a full pool; a missing one is a failure of the write.
    pub fn claim_reservations(&mut self) -> Result<Ended, Failure> {
        if self.shape.extent_bytes < CLAIMED_EXTENT_BYTES_MIN {
            return Ok(Ended::Well);
        }
        for volume in self.model.names() {
            let stored = self.pool().volumes().into_iter().find(|v| v.name == volume).map_or(0, |v| v.stored_bytes);
            let unmet = limit(&self.model, &volume, "reservation").unwrap_or(0).saturating_sub(stored);
            let size = self.model.size_bytes(&volume);
            let each = unmet.saturating_sub(self.bytes_left()) / self.times(&volume);
            let len = each.min(size).min(CLAIM_BYTES_MAX) / 4096 * 4096;
            if len == 0 {
                continue;
            }
            let offset = self.rng.below((size - len) / 4096 + 1) * 4096;
            let (kind, seed) = (ContentKind::Random, self.rng.next_u64());
            let ended = self.apply(&Op::Write { volume, offset, len, kind, seed, fua: false })?;
            if matches!(ended, Ended::Dark | Ended::Disturbed) {
                return Ok(ended);
            }
        }
        Ok(Ended::Well)
    }

    /// Whether a quota explains that a request was refused; if it says so, it must.
    pub fn judge_quota(&self, op: &Op, error: &Error) -> Result<bool, Failure> {
        if !error.to_string().contains("of its quota") {
            return Ok(false);
        }
        // A share takes its contents along.
        let is_in = |inner: &str, name: &str| inner.strip_prefix(name).is_some_and(|rest| rest.starts_with('/'));
        let stored = |name: &str| {
            let all = self.pool().volumes().into_iter();
            let counted: Vec<_> = all.filter(|v| v.name == name || is_in(&v.name, name)).collect();
            (!counted.is_empty()).then(|| counted.iter().map(|v| v.stored_bytes).sum::<u64>())
        };
        let named = object_of(op);
        // The content of a folder, plus the addition, exceeds its quota.
        let is_beyond = |folder: &str, properties: &Properties, more: u64| {
            let quota = properties.get("quota").filter(|quota| *quota != "none");
            quota.is_some_and(|quota| stored(folder).unwrap_or(0) + more > parse_size(quota).expect("a size"))
        };
        let asked = self.bytes_stored(op);
        let is_moved = |name: &str, old: &str| name == old || name.starts_with(&format!("{old}/"));
        let by_folder = match op {
            Op::Table(TableOp::Rename { old, new }) => {
                let all = self.pool().volumes();
                let moved: u64 = all.iter().filter(|v| is_moved(&v.name, old)).map(|v| v.stored_bytes).sum();
                self.model.folders_above(new).iter().any(|(folder, own)| is_beyond(folder, own, moved))
            }
            _ => named.is_some_and(|name| {
                self.model.folders_above(name).iter().any(|(folder, own)| is_beyond(folder, own, asked))
            }),
        };
        let explained = by_folder
            || named.is_some_and(|name| {
                let quota = limit(&self.model, name, "quota");
                quota.zip(stored(name)).is_some_and(|(quota, stored)| stored + asked > quota)
            });
        if !explained {
            return Err(self.fail(format!("{op:?}: no quota explains: {error}")));
        }
        BY_QUOTA.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }

    /// The change of the table that was refused with these words, and the model as it would be
    /// after it.
    fn refused_change<'a>(&self, op: &'a Op, error: &Error, words: &str) -> Option<(&'a TableOp, Model)> {
        let Op::Table(change) = op else { return None };
        if !error.to_string().contains(words) {
            return None;
        }
        let mut after = self.model.clone();
        after.table_done(change);
        Some((change, after))
    }

    /// Whether reservations that do not fit explain that a change of the table was refused; if it
    /// says so, they must.
    pub fn judge_reservation(&self, op: &Op, error: &Error) -> Result<bool, Failure> {
        let Some((change, after)) = self.refused_change(op, error, "reserv") else { return Ok(false) };
        let status = self.pool().status();
        let wanted = self.bytes_reserved(&after, None);
        if !matches!(change, TableOp::Create { .. } | TableOp::Clone { .. } | TableOp::Set { .. })
            || status.live_bytes + wanted
                <= room_bytes(&status, self.mark, self.streams_of_copies()).saturating_sub(self.tree_bytes(&status))
        {
            return Err(self.fail(format!("{op:?}: no reservation explains: {error}")));
        }
        BY_RESERVATION.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }

    /// Whether a change was refused because a volume would have more reserved than its quota lets
    /// it use; if it says so, one must.
    pub fn judge_contradiction(&self, op: &Op, error: &Error) -> Result<bool, Failure> {
        let Some((_, after)) = self.refused_change(op, error, "could never use all of its reservation") else {
            return Ok(false);
        };
        let contradicts = |name: &String| {
            let [reserved, quota] = ["reservation", "quota"].map(|key| limit(&after, name, key));
            reserved.zip(quota).is_some_and(|(reserved, quota)| reserved > quota)
        };
        if !after.names().iter().any(contradicts) {
            return Err(self.fail(format!("{op:?}: nothing explains: {error}")));
        }
        Ok(true)
    }

    /// Extents that are kept for the trees of shares in a pool that has any: SHARES.md says
    /// how many.
    pub fn tree_extents(&self, status: &PoolStatus) -> u64 {
        // A share that was destroyed counts until nothing of it is left.
        if !self.shape.shares && !self.pool().volumes().iter().any(|volume| volume.is_share()) {
            return 0;
        }
        let (usable, each) = (usable_extents(status, self.mark) + 1, usable_bytes_min(status.extent_bytes));
        let share = (usable / 64).min((256 << 20) / status.extent_bytes);
        share.max((512u64 << 10).div_ceil(each).min(usable / 16))
    }

    /// Bytes that surely fit into these.
    fn tree_bytes(&self, status: &PoolStatus) -> u64 {
        self.tree_extents(status) * usable_bytes_min(status.extent_bytes)
    }

    /// Space reserved for a volume is available when it is claimed.
    pub fn judge_reserved(&self, op: &Op, error: &Error) -> Result<(), Failure> {
        let Some(name) = volume_of(op) else { return Ok(()) };
        let stored = self.pool().volumes().into_iter().find(|v| v.name == name).map_or(0, |v| v.stored_bytes);
        let unmet = limit(&self.model, name, "reservation").unwrap_or(0).saturating_sub(stored);
        if self.bytes_stored(op) + self.bytes_left() <= unmet {
            let told = format!("{unmet} bytes are reserved for '{name}' and not used, {:?}", self.pool().status());
            return Err(self.fail(format!("{op:?}: {told}: {error}")));
        }
        if self.extents_reserved(op) > 0 {
            BY_RESERVATION.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Extents that a pool may use: those before the mark of one that is becoming smaller, but for the
/// superblock's.
pub fn usable_extents(status: &PoolStatus, mark: Option<u64>) -> u64 {
    mark.map_or(status.extents_total, |mark| mark - 1)
}

/// Bytes that surely fit into a pool, however they are packed; each stream of copies has an extent
/// that is not for data.
pub fn room_bytes(status: &PoolStatus, mark: Option<u64>, streams_of_copies: u64) -> u64 {
    let kept = EXTENTS_KEPT + streams_of_copies;
    (usable_extents(status, mark) + 1).saturating_sub(kept) * usable_bytes_min(status.extent_bytes)
}
