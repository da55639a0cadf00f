//! Extents that a write must leave to others: to overwrites, to the trees of shares, and to volumes
//! with a reservation; and how much could still be gained by cleaning. Owns no state. Any thread
//! may call it.

use std::sync::atomic::Ordering;

use crate::objects::object::Object;
use crate::space::Space;
use crate::space::admission::Admitted;
use crate::space::claims::Claim;

/// Share of the pool's extents that only overwrites may take, and the minimum for which that makes
/// sense: cleaning gains nothing from extents of which less than a thirty-second part is dead.
const OVERWRITE_DIVISOR: u64 = 28;
const OVERWRITE_MIN: u64 = 16;
/// Share of the pool's extents that is reserved for the metadata of shares: removing a file writes
/// some before it frees any.
const TREE_DIVISOR: u64 = 64;
/// The largest share, in pools where the other is less than [`TREE_BYTES_MIN`].
const TREE_DIVISOR_SMALL: u64 = 16;
/// Bytes for some commits of a small namespace.
const TREE_BYTES_MIN: u64 = 512 << 10;
/// Upper bound of it: some hundred commits of a namespace of a million files.
const TREE_BYTES_MAX: u64 = 256 << 20;
/// Extents that must have been filled since the pool was opened before their average content is
/// used.
const OPENED_KNOWN: u64 = 32;

impl Space {
    /// Extents that only overwrites may take: a pool that is full for new data still accepts
    /// changes of existing data, because cleaning recovers the blocks that they leave dead. Small
    /// pools cannot afford it.
    fn overwrite_extents(&self) -> u64 {
        let share = u64::from(self.geometry.extents_usable()) / OVERWRITE_DIVISOR;
        if share < OVERWRITE_MIN { 0 } else { share }
    }

    /// Extents that only file metadata of trees may take; none in a pool without shares.
    pub fn tree_extents(&self) -> u64 {
        if !self.has_shares.load(Ordering::Relaxed) {
            return 0;
        }
        let usable = u64::from(self.geometry.extents_usable());
        let share = (usable / TREE_DIVISOR).min(TREE_BYTES_MAX / u64::from(self.geometry.extent_bytes));
        let wanted = TREE_BYTES_MIN.div_ceil(self.geometry.usable_bytes_min());
        share.max(wanted.min(usable / TREE_DIVISOR_SMALL))
    }

    /// Extents that `object` must leave to others: reservations of other volumes, the share of
    /// trees, and the part of the overwriting share that its write has no claim to.
    ///
    /// Where there is no overwriting share, an overwrite leaves nothing. It takes room until its
    /// dead bytes are counted, and would be refused as soon as new data has filled the pool up to
    /// the reservations.
    pub fn extents_promised(&self, object: &Object, claim: Claim) -> u64 {
        let reserved = self.extents_reserved_against(object);
        match (self.overwrite_extents(), claim) {
            (0, Claim::Overwrite) => 0,
            (share, claim) => claim.leaves_of(share) + self.tree_extents() + reserved,
        }
    }

    /// Reserves room for fetched groups of an image, if there is plenty: they can be fetched again.
    pub fn try_admit_fetched(&self, image: &Object, bytes: u64) -> Option<Admitted<'_>> {
        self.try_admit(bytes, self.extents_promised(image, Claim::New))
    }

    /// Extents that `object` must leave free now, out of those [promised](Self::extents_promised)
    /// to others.
    ///
    /// Promised extents need not lie idle. As long as cleaning could gain twice as many, none are
    /// kept free; below that, the number grows until all are kept when cleaning could gain no more
    /// than that. So new data finds the pool full at the same point as if they were always kept,
    /// and a log of which a fifth is dead is not cleaned as if it were fuller than it is, which
    /// would cost every write.
    ///
    /// `bytes`: the size of the request. An overwrite leaves as much dead, as long as it compresses
    /// alike, so it is not included. Where it takes more than it leaves, more is live at the next
    /// checkpoint, and less can be gained.
    pub fn extents_kept(&self, object: &Object, bytes: u64, claim: Claim) -> u64 {
        let asking = if claim == Claim::Overwrite { 0 } else { bytes };
        self.extents_kept_of(self.extents_promised(object, claim), asking, self.extents_lacking_below())
    }

    /// The same, if so many are promised to others, the bytes `asking` reduce what can be gained,
    /// and the file system lacks room for some free extents.
    pub(super) fn extents_kept_of(&self, promised: u64, asking: u64, lacking_below: u64) -> u64 {
        if promised == 0 {
            return 0;
        }
        promised.min((2 * promised).saturating_sub(self.extents_winnable(asking, lacking_below)))
    }

    /// Extents that the metadata of an object's tree must leave to others: reservations of other
    /// volumes apply as they do to overwriting.
    pub fn extents_promised_by_tree(&self, object: &Object) -> u64 {
        if self.overwrite_extents() == 0 { 0 } else { self.extents_reserved_against(object) }
    }

    /// Those of them that it must leave free now.
    pub fn extents_kept_from_tree(&self, object: &Object) -> u64 {
        self.extents_kept_of(self.extents_promised_by_tree(object), 0, self.extents_lacking_below())
    }

    /// Conservative estimate of the extents before the reserve that would be free if all dead data
    /// were cleaned, as far as the file system had room at the last look: cleaning gains no space
    /// that it lacks.
    fn extents_winnable(&self, asking: u64, lacking_below: u64) -> u64 {
        self.extents_winnable_in_all(asking).saturating_sub(lacking_below)
    }

    /// Free extents for which the file system had no room at the last look.
    fn extents_lacking_below(&self) -> u64 {
        let free = self.extents_free_or_listed();
        free.saturating_sub(self.extents_left_below())
    }

    /// The same estimate as if the file system had room for the whole pool: data on its way counts
    /// in full, `asking` included, and no data counts as dead because of writes since the last
    /// checkpoint.
    fn extents_winnable_in_all(&self, asking: u64) -> u64 {
        let extents = u64::from(self.geometry.extents_usable()).saturating_sub(1 + self.geometry.reserve_extents());
        let live = self.live_bytes();
        let coming = self.committed_bytes() + asking + self.log.bytes_since_checkpoint();
        let opened = self.vitals.counters.opened_extents.get();
        let taken = if opened < OPENED_KNOWN {
            (live + coming).div_ceil(self.geometry.usable_bytes_min())
        } else {
            // As densely as since the pool was opened: headers, padding and tails of extents take
            // room too.
            let payload = self.vitals.counters.fragment_bytes.get() + self.vitals.counters.moved_bytes.get();
            let packed = u128::from(live) * u128::from(opened) / u128::from(payload.max(1));
            u64::try_from(packed).unwrap_or(u64::MAX) + coming.div_ceil(u64::from(self.geometry.extent_bytes))
        };
        extents.saturating_sub(taken)
    }

    /// Bytes of new data, without a reservation, for which there is still room once all dead data
    /// has been cleaned, as far as the file system has room.
    pub fn available_bytes(&self) -> u64 {
        let free = self.extents_free_or_listed();
        let left_below = self.free_bytes_below(free) / u64::from(self.geometry.extent_bytes);
        let lacking_below = free.saturating_sub(left_below);
        let promised = self.overwrite_extents() + self.tree_extents() + self.extents_reserved() + lacking_below;
        self.extents_winnable_in_all(0).saturating_sub(promised) * self.bytes_per_extent()
    }

    /// Bytes of file metadata that certainly still find room, by the last look at the file system:
    /// called for many changes of a tree.
    pub fn available_to_trees(&self) -> u64 {
        let winnable = self.extents_winnable(0, self.extents_lacking_below());
        winnable.saturating_sub(self.extents_reserved()) * self.geometry.usable_bytes_min()
    }

    /// Extents of unused reservations.
    fn extents_reserved(&self) -> u64 {
        self.reserved_unmet.load(Ordering::Relaxed).div_ceil(self.geometry.usable_bytes_min())
    }

    /// Average payload of an extent since the pool was opened; until that is known, its size.
    fn bytes_per_extent(&self) -> u64 {
        let opened = self.vitals.counters.opened_extents.get();
        let payload = self.vitals.counters.fragment_bytes.get() + self.vitals.counters.moved_bytes.get();
        let size = u64::from(self.geometry.extent_bytes);
        if opened < OPENED_KNOWN { size } else { (payload / opened).clamp(size / 2, size) }
    }
}
