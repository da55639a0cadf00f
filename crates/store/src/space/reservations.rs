//! Reservations of volumes: the unused part of each is kept from all other volumes. Owns their sum.
//! Counted when properties or stored bytes have changed. Any thread may call it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use surface::{Error, ErrorKind};
use units::format_size;

use crate::objects::object::Object;
use crate::space::Space;

/// Upper bound of volumes named in a message, to keep it readable.
const RESERVED_NAMED_MAX: usize = 3;

impl Space {
    /// Returns the unused part of each volume's reservation, in bytes, if the reservations were
    /// those of `reserved`.
    pub fn unmet(&self, reserved: impl Fn(&Object) -> u64) -> impl Iterator<Item = (Arc<Object>, u64)> {
        self.objects.volumes().into_iter().map(move |object| {
            let unmet = reserved(&object).saturating_sub(object.stored_bytes());
            (object, unmet)
        })
    }

    /// Counts the unused part of reservations, checks whether there are shares, and withholds an
    /// extent for each copy of data that may come: before it comes, because a full pool has none
    /// left for a removal. Called when properties or stored bytes have changed.
    pub fn count_reservations(&self) {
        let mut total = 0_u64;
        for (object, unmet) in self.unmet(|object| object.settings.read().reservation_bytes) {
            object.quota.unmet.store(unmet, Ordering::Relaxed);
            total = unmet.saturating_add(total);
        }
        self.reserved_unmet.store(total, Ordering::Relaxed);
        let objects = self.objects.volumes();
        self.has_shares.store(objects.iter().any(|object| object.is_share()), Ordering::Relaxed);
        self.geometry.note_copies(objects.iter().map(|object| object.copies_max()).max().unwrap_or(0));
    }

    /// Returns the bytes kept for each volume with a reservation, as of the last checkpoint: name
    /// and bytes, the largest first.
    pub fn reserved_for(&self) -> Vec<(String, u64)> {
        if self.reserved_unmet.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let of = |object: Arc<Object>| (object.title(), object.quota.unmet.load(Ordering::Relaxed));
        let mut all: Vec<_> = self.objects.volumes().into_iter().map(of).filter(|(_, bytes)| *bytes > 0).collect();
        all.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        all
    }

    /// Describes the kept part of the remaining room, as a suffix for the message of a full pool.
    fn reserved_words(&self) -> String {
        let for_cleaning = format_size(self.geometry.reserve_extents() * u64::from(self.geometry.extent_bytes));
        let all = self.reserved_for();
        if all.is_empty() {
            return format!("; {for_cleaning} are kept for cleaning");
        }
        let total = all.iter().fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
        let named =
            all.iter().take(RESERVED_NAMED_MAX).map(|(name, bytes)| format!("'{name}' {}", format_size(*bytes)));
        let named = named.collect::<Vec<_>>().join(", ");
        let more = match all.len().saturating_sub(RESERVED_NAMED_MAX) {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        format!(
            "; {} are kept for volumes with a reservation ({named}{more}), {for_cleaning} for cleaning",
            format_size(total)
        )
    }

    /// Extents that are kept for volumes other than `object`.
    pub(crate) fn extents_reserved_against(&self, object: &Object) -> u64 {
        let total = self.reserved_unmet.load(Ordering::Relaxed);
        if total == 0 {
            return 0;
        }
        let others = total.saturating_sub(object.quota.unmet.load(Ordering::Relaxed));
        others.div_ceil(self.geometry.usable_bytes_min())
    }

    /// Bytes of reservations that are not used.
    pub fn reserved_unmet(&self) -> u64 {
        self.reserved_unmet.load(Ordering::Relaxed)
    }

    /// Returns the error of a full pool. If the file system has no room, that error is its source.
    pub fn full_error(&self) -> Error {
        if self.is_tight() {
            let text = "the file system below the pool's data has no room left: free some there, or discard or \
                 destroy data (reads, discards and deletions still work)";
            return Error::with_source(ErrorKind::Full, text, std::io::Error::from(std::io::ErrorKind::StorageFull));
        }
        let text = format!(
            "the pool is full: discard or destroy data (reads, discards and deletions still work){}",
            self.reserved_words()
        );
        Error::new(ErrorKind::Full, text)
    }
}
