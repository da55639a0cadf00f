//! Quotas and reservations: how much of the pool a volume may take, a share together with its
//! content, or all volumes in a folder together, and how much is kept for a volume. Both count live
//! bytes as stored, the volume's snapshots included, which are known exactly at checkpoints.
//!
//! **Quota.** Between two checks, a volume may write as many bytes as it was below its quota, as if
//! none of them could be compressed. When they are used up, dirty data is drained, a checkpoint
//! counts, and the remainder is the next allowance. So only writes in flight at that moment can
//! pass the quota, and the nearer it is, the more often it is checked. A volume at its quota may
//! still overwrite its own data, if neither a snapshot nor a clone keeps it. The quota of a folder
//! is the same with an allowance shared by all volumes in it, and with the sum of their stored
//! bytes.
//!
//! **Reservation.** The unused part of a volume's reservation is a wall for all other volumes
//! (`space::promises`). A volume that overwrites its own data leaves as much dead. It is stopped
//! there only if the new data compresses less well; in pools too small to have room for
//! overwriting, not even then.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use store::base::options::Properties;
use store::base::status::QuotaUse;
use store::map::Piece;
use store::objects::object::Object;
use store::objects::properties;
use surface::{Error, ErrorKind, Result};
use units::{BlockIndex, BlockMask, GROUP_BLOCKS, GroupIndex, ObjectId, format_size};

use crate::write::Writes;

impl Writes {
    /// See [`Pool::at_quota`](crate::pool::Pool::at_quota).
    pub(crate) fn at_quota(&self) -> Vec<QuotaUse> {
        let objects = &self.objects;
        let reached = |object: Arc<Object>| {
            let refused = Some(object.quota.refused.load(Ordering::Relaxed)).filter(|bytes| *bytes > 0)?;
            self.quota_use(&object).filter(|used| used.quota_bytes.saturating_sub(used.stored_bytes) < refused)
        };
        let mut all: Vec<_> = objects.volumes().into_iter().chain(objects.folders()).filter_map(reached).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// See [`Pool::quota_use`](crate::pool::Pool::quota_use).
    pub(crate) fn quota_use(&self, object: &Object) -> Option<QuotaUse> {
        let quota_bytes = object.settings.read().quota_bytes?;
        let is_share = object.is_share();
        Some(QuotaUse {
            name: object.title(),
            is_share,
            is_folder: !is_share && !object.is_live(),
            stored_bytes: self.objects.stored_now_with(object),
            quota_bytes,
        })
    }

    /// Allows `length` bytes to be written to an object if its quota and those of the folders above
    /// permit, or if it `overwrites` its own data.
    ///
    /// # Errors
    /// [`ErrorKind::Full`] if it does not, and those of draining and of checkpoints.
    pub(crate) fn charge(&self, object: &Object, length: u64, overwrites: impl FnOnce() -> Result<bool>) -> Result<()> {
        let Some(reached) = self.quota_reached(object, length)? else { return Ok(()) };
        if overwrites()? { Ok(()) } else { Err(reached) }
    }

    /// Takes `length` bytes out of the allowances of an object and of the folders above; an error
    /// if one of them does not allow it.
    fn quota_reached(&self, object: &Object, length: u64) -> Result<Option<Error>> {
        let text = |what: String, (quota, stored): (u64, u64)| {
            let (quota, stored) = (format_size(quota), format_size(stored));
            let text = format!(
                "{what} uses {stored} of its quota of {quota}: {}, destroy snapshots, or raise the quota",
                if object.is_share() { "remove files" } else { "discard data" }
            );
            Error::new(ErrorKind::Full, text)
        };
        if let Some(reached) = self.spend(object, length, || self.objects.stored_with(object))? {
            return Ok(Some(text(format!("{} '{}'", object.kind_word(), object.title()), reached)));
        }
        for folder in object.limits().iter() {
            if let Some(reached) = self.spend(folder, length, || self.objects.stored_with(folder))? {
                let kind = if folder.is_share() { "share" } else { "folder" };
                let what = format!("'{}' cannot grow: the {kind} '{}'", object.title(), folder.title());
                return Ok(Some(text(what, reached)));
            }
        }
        Ok(None)
    }

    /// Takes `length` bytes out of the allowance of a volume or a folder, which is recomputed when
    /// it is used up. Returns the quota and the stored bytes if it does not allow that.
    fn spend(&self, limited: &Object, length: u64, stored: impl Fn() -> u64) -> Result<Option<(u64, u64)>> {
        if limited.settings.read().quota_bytes.is_none() || limited.quota.take(length) {
            return Ok(None);
        }
        let _looking = limited.quota.looking.lock();
        loop {
            let Some(quota) = limited.settings.read().quota_bytes else { return Ok(None) };
            if limited.quota.take(length) {
                return Ok(None);
            }
            self.drain_all()?;
            self.checkpoints.take_light()?;
            // Before the lock on the settings: it needs the table of objects, which is held by a
            // change of these.
            let stored = stored();
            // A change of the quota waits for this, and then forgets the room that the old one
            // allowed.
            let settings = limited.settings.read();
            if settings.quota_bytes != Some(quota) {
                continue;
            }
            let Some(left) = quota.saturating_sub(stored).checked_sub(length) else {
                limited.quota.refused.store(length, Ordering::Relaxed);
                return Ok(Some((quota, stored)));
            };
            limited.quota.bytes.store(left, Ordering::Relaxed);
            return Ok(None);
        }
    }

    /// Bytes that a volume may still take by its quota and those of the folders above.
    pub(crate) fn quota_left(&self, object: &Object) -> u64 {
        let left = |limited: &Object| {
            let quota = limited.settings.read().quota_bytes;
            quota.map_or(u64::MAX, |quota| quota.saturating_sub(self.objects.stored_now_with(limited)))
        };
        let own = left(object);
        let of_folders = object.limits().iter().map(|folder| left(folder)).min();
        own.min(of_folders.unwrap_or(u64::MAX))
    }

    /// Returns whether all of a range holds data that only the volume itself sees: overwriting it
    /// leaves as much dead.
    pub(crate) fn overwrites(&self, object: &Object, offset: u64, length: u64) -> Result<bool> {
        if length == 0 {
            return Ok(true);
        }
        let seen = self.objects.seen_up_to(object);
        let is_own = |piece: &Piece| piece.object == object.id && seen.is_none_or(|seen| piece.epoch > seen);
        let (first, last) = (BlockIndex::containing(offset), BlockIndex::containing(offset + length - 1));
        for group in (first.group().0..=last.group().0).map(GroupIndex) {
            let start = group.first_block().0;
            let (low, high) = (first.0.max(start), (last.0 + 1).min(start + GROUP_BLOCKS as u64));
            let wanted = BlockMask::run((low - start) as u32, (high - low) as u32);
            if !wanted.minus(self.reads.data_mask(object, group, wanted, is_own)?).is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Refuses a reservation that does not fit in addition to the pool's live data and other
    /// reservations.
    ///
    /// # Errors
    /// [`ErrorKind::Full`].
    pub(crate) fn check_reservation(&self, id: ObjectId, bytes: u64) -> Result<()> {
        let known = self.objects.get(id);
        if known.as_ref().map_or(0, |object| object.settings.read().reservation_bytes) >= bytes {
            return Ok(());
        }
        let of_a_new_one = if known.is_some() { 0 } else { bytes };
        let reserved = |object: &Object| if object.id == id { bytes } else { object.settings.read().reservation_bytes };
        self.check_reserved(reserved, of_a_new_one, &format!("a reservation of {}", format_size(bytes)))
    }

    /// Like `check_reservation`, for the reservations that volumes would inherit from the pool if
    /// these were its properties and they asked for more than now; also fails if the properties
    /// would conflict.
    ///
    /// # Errors
    /// [`ErrorKind::Full`], and [`ErrorKind::Invalid`] for properties that make no sense.
    pub(crate) fn check_inherited(&self, pool: &Properties) -> Result<()> {
        let (mut all, mut is_more, mut count) = (BTreeMap::new(), false, 0_u64);
        for object in self.objects.volumes() {
            let descriptor = object.descriptor.read().clone();
            let own = &descriptor.properties;
            let (then, now) = (self.objects.inherited_from(pool, &descriptor), self.objects.inherited(&descriptor));
            let after = properties::resolved_after(&object.title(), (&now, own), (&then, own))?;
            let reserved = after.reservation_bytes;
            is_more |= reserved > object.settings.read().reservation_bytes;
            count += u64::from(reserved > 0);
            all.insert(object.id, reserved);
        }
        if !is_more {
            return Ok(());
        }
        let reserved = |object: &Object| all.get(&object.id).copied().unwrap_or(0);
        self.check_reserved(reserved, 0, &format!("the reservations of {count} volumes"))
    }

    /// Checks that the unused part of reservations fits in addition to the pool's live data, if
    /// each volume's were that of `reserved` and a new volume had `of_a_new_one` bytes.
    fn check_reserved(&self, reserved: impl Fn(&Object) -> u64, of_a_new_one: u64, what: &str) -> Result<()> {
        let extents = u64::from(self.geometry.extents_usable()) - 1 - self.geometry.reserve_extents();
        let extents = extents.saturating_sub(self.space.tree_extents());
        let room = extents * self.geometry.usable_bytes_min();
        // Both as of one checkpoint: space that a volume has freed since is no longer live, and is
        // unmet again.
        let look = || {
            let _no_checkpoint = self.checkpoints.state.lock();
            let wanted = self.space.unmet(&reserved).fold(of_a_new_one, |sum, (_, unmet)| sum.saturating_add(unmet));
            let live = self.space.extents.lock().live_bytes();
            (live, live.saturating_add(wanted) <= room)
        };
        if look().1 {
            return Ok(());
        }
        // Space freed since the last checkpoint has not been counted yet.
        self.checkpoints.take_light()?;
        let (live, fits) = look();
        if fits {
            return Ok(());
        }
        let left = format_size(room.saturating_sub(live));
        let (each, extent) = (self.geometry.usable_bytes_min(), u64::from(self.geometry.extent_bytes));
        let text = format!(
            "{what} does not fit: {left} are free, including existing reservations (of each extent of {}, {} can \
             be guaranteed for any data; larger extents lose less)",
            format_size(extent),
            format_size(each)
        );
        Err(Error::new(ErrorKind::Full, text))
    }
}
