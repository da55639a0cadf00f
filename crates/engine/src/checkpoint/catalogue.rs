//! The catalogue: keeps names, sizes, snapshots and properties in the log after the batches that
//! set them are gone. Owns when a new one is made; `log::catalogue` knows which extents must be
//! kept for it (*pins*), `format` has the bytes.
//!
//! Pinned are the extents that hold the newest durable catalogue, and those with entries since that
//! change descriptors or mark an opening (below). Most of them hold live data anyway; one that does
//! not is kept *idle*. A new catalogue releases all of them. It is made at the beginning of a
//! checkpoint, whose sync makes it durable, and whose commit exchanges the pins:
//! 1. *Whether*: there is none; or entries since are as large as a catalogue; or idle extents are
//!    larger than it. So its cost is proportional to the changes, whatever the number of objects.
//! 2. *Capture* all descriptors while no batch is applied, and start noting entries again.
//! 3. *Append* it in parts. Their extents are noted when they are applied.
//!
//! **Space.** A new one is made from space that no other user of the pool needs. When little is
//! left, an idle catalogue takes space from writers: then it moves to the end of the open extent,
//! by way of one more checkpoint; and if even that does not fit, it is dropped: `salvage` would
//! know less, and `status` says so, until there is room again. So no pin can ever keep a pool full.
//!
//! Replay notes entries as it meets them, and skips parts: the catalogue that the checkpoint names
//! is still there.
//!
//! **Openings.** Recovery ends at the first batch that is not whole. After that end, anywhere in
//! the listed extents, there may be whole batches of the opening that crashed: they never happened.
//! The map store knows that; the log alone must know it too, or salvage would restore data that
//! users have seen undone. Finding them would mean reading the whole list (heads may be torn), so
//! nothing searches for them. Instead each opening *marks* itself: after its first checkpoint it
//! appends an empty batch, whose header has the opening's number and its first sequence number *f*,
//! and syncs it before any client is served.
//! - A client that has been served knows a state without the dead batches, and the mark is durable.
//!   It is pinned until a catalogue lists the opening. So the log has *f*, and salvage leaves out
//!   everything that earlier openings wrote from *f* on.
//! - A crash before the mark is durable: no client has been served since the crash before, so
//!   nothing that was not durable then was promised; the dead batches hold only such data, and
//!   salvage may show it or not. Recovery ends at *f* once more (the checkpoint of the crashed
//!   opening names it, and nothing else was written under it), and its mark hides them from then
//!   on.
//! - An opening after an orderly end is marked and not remembered beyond that: closing a pool ends
//!   its log for good, and stores the end in the map store ([`LogEnd`](format::LogEnd)). If
//!   recovery ends there too, no batch follows. So crashes are remembered, not commands.
//! - A log that continues under another number after a failed write marks that as well, with the
//!   next checkpoint; the failed batches were never acknowledged, and are written again, under the
//!   new number, before any flush is.

use format::{BATCH_FIXED_BYTES, CATALOGUE_FIXED_BYTES, CataloguePart, Entry, Incarnations, ObjectDescriptor};
use store::log::Purpose;
use store::log::prepared::Prepared;
use units::Seq;

use crate::checkpoint::Checkpoints;

/// Bytes of entries since a catalogue that justify a new one, however small it is.
const SINCE_BYTES_MIN: u64 = 64 << 10;
/// Largest part, and the share of an extent that one takes: small enough to fit in the rest of most
/// extents.
const PART_BYTES_MAX: usize = 64 << 10;
const PART_DIVISOR: usize = 4;
/// Extents in addition to the reserve below which idle ones are not kept: the smallest pools have
/// about as many in all.
const SHORT_EXTENTS: u64 = 4;

impl Checkpoints {
    /// Whether so few extents are left that idle ones must not be kept.
    pub(crate) fn is_short_of_extents(&self, available: u64) -> bool {
        available < self.geometry.reserve_extents() + SHORT_EXTENTS
    }

    /// Records in the log the opening under which it continues, unless that is done. Without room
    /// for that the next checkpoint tries again.
    pub(crate) fn mark_opening(&self) {
        let is_due = self.catalogue.is_mark_due();
        let mark = || std::iter::once(Prepared::metadata(Vec::new(), &self.buffers));
        if is_due && !self.log.is_broken() && self.append_batches(mark(), Purpose::Rescue) {
            self.catalogue.marked();
        }
    }

    /// Appends a new catalogue if one is due. `pressing`: idle extents take space from writers. If
    /// there is no room for it, or the log cannot be written, the present one stays.
    pub(crate) fn renew_catalogue(&self, pressing: bool) {
        if !self.catalogue.has_begun() || self.log.is_broken() || !(pressing || self.is_catalogue_due()) {
            return;
        }
        let spare = self.space.extents_spare();
        let extent_bytes = u64::from(self.geometry.extent_bytes);
        // Step 2. A change of a descriptor appends an entry: none is applied between the capture
        // and the note.
        let (mut parts, before) = self.log.while_still(|as_of| {
            let descriptors = self.objects.all().iter().map(|object| object.descriptor.read().clone()).collect();
            let (incarnations, before) = self.catalogue.begin_growing(as_of);
            (self.divide_catalogue(as_of, descriptors, &incarnations), before)
        });
        let bytes: u64 = parts.iter().map(|part| part.batch_bytes() as u64).sum();
        let extents = bytes.div_ceil(extent_bytes - PART_BYTES_MAX.min(extent_bytes as usize / PART_DIVISOR) as u64);
        let fits = if pressing { extents <= 1 || extents < spare } else { extents < spare };
        let is_appended = if fits {
            let _aside = self.space.reserve(if pressing { 0 } else { bytes });
            let purpose = if pressing { Purpose::Rescue } else { Purpose::Clean };
            self.append_batches(parts.drain(..), purpose)
        } else {
            false
        };
        self.catalogue.end_growing(before, is_appended.then_some(bytes));
    }

    /// Step 1.
    pub(crate) fn is_catalogue_due(&self) -> bool {
        self.catalogue.ask(|pins, is_wanted| {
            if is_wanted || pins.as_of.is_none() {
                return true;
            }
            let extents = self.space.extents.lock();
            let idle = pins.extents().into_iter().filter(|e| extents.is_idle(*e)).count() as u64;
            // Data in the part that the pool is about to lose must go.
            let is_beyond = pins.extents().last().is_some_and(|last| last.0 >= self.geometry.extents_usable());
            let own = pins.bytes.div_ceil(self.geometry.extent_bytes.into());
            pins.since_bytes >= pins.bytes.max(SINCE_BYTES_MIN) || idle > own || is_beyond
        })
    }

    fn divide_catalogue(
        &self,
        as_of: Seq,
        descriptors: Vec<ObjectDescriptor>,
        incarnations: &Incarnations,
    ) -> Vec<Prepared> {
        let max = PART_BYTES_MAX.min(self.geometry.extent_bytes as usize / PART_DIVISOR);
        let properties = self.objects.pool_properties();
        let part = CataloguePart {
            as_of,
            part: 0,
            parts: 1,
            next_object: self.objects.next_id(),
            incarnations: incarnations.clone(),
            properties,
            descriptors: Vec::new(),
        };
        let mut bytes = BATCH_FIXED_BYTES + part.encode().len();
        let mut parts = vec![part];
        for mut descriptor in descriptors {
            descriptor.reap = None;
            let cost = 4 + descriptor.encode().len();
            let Some(last) = parts.last_mut() else { break };
            if bytes + cost <= max {
                bytes += cost;
                last.descriptors.push(descriptor);
                continue;
            }
            bytes = BATCH_FIXED_BYTES + CATALOGUE_FIXED_BYTES + cost;
            let part = CataloguePart {
                part: last.part + 1,
                incarnations: Incarnations::default(),
                properties: std::collections::BTreeMap::new(),
                descriptors: vec![descriptor],
                ..*last
            };
            parts.push(part);
        }
        let count = parts.len() as u32;
        let prepared =
            |part| Prepared::metadata(vec![Entry::Catalogue(CataloguePart { parts: count, ..part })], &self.buffers);
        parts.into_iter().map(prepared).collect()
    }

    /// Step 3. Returns `false` if there is no room, or a part fits in no extent, or the log fails,
    /// which the next writer will notice.
    fn append_batches(&self, parts: impl Iterator<Item = Prepared>, purpose: Purpose) -> bool {
        let mut last = None;
        for part in parts {
            match self.log.append(part, purpose) {
                Ok(ticket) => last = Some(ticket),
                Err(_) => return false,
            }
        }
        last.is_none_or(|ticket| self.log.wait_applied(ticket).is_ok())
    }
}
