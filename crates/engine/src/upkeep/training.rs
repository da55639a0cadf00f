//! Training of a volume's dictionaries: in the background, from samples of its writes, judged by
//! samples that were held out, and adopted when they pay.
//!
//! 1. Samples of a volume are complete (`samples`).
//! 2. Dictionaries are trained with three quarters of them: one with all, and one for each part of
//!    the volume, because a volume holds several kinds of data, which lie in different places.
//! 3. The held-out samples are compressed in the present state, with the best dictionary in force
//!    for their part or none, and with each new one.
//! 4. Those that pay ([`policy::Adoption::select`]), if the volume still wants them, and there is
//!    room, go into the log: each its descriptor and content in one batch. When it is applied, the
//!    volume's next small units may use it; the regions learn which of them do
//!    ([`policy::Region`]).
//!
//! Old dictionaries stay, since fragments need them. Their number is bounded; those that no
//! fragment needs any more are dropped at the end of a recompression (`dictionary_review`).

use std::sync::{Arc, Weak};
use std::time::Duration;

use format::{ObjectDescriptor, ObjectState, encode_dictionary};
use policy::{Settings, dst_limit, judging_level, train_dictionaries};
use store::log::Purpose;
use store::log::prepared::Prepared;
use store::objects::object::Object;
use surface::{ErrorKind, Result};
use units::{BLOCK_BYTES, BlockIndex, GroupIndex, ObjectId};

use crate::codecs::samples::Samples;
use crate::pool::Pool;
use crate::read::dictionaries::Readers;
use crate::upkeep::Upkeep;
use crate::write::whole_object;

/// Upper bound of dictionaries of one volume: a replaced one stays.
pub(crate) const DICTIONARIES_MAX: usize = 16;
/// A dictionary takes at most this part of an extent, because it goes into the log in one piece.
const EXTENT_DIVISOR: usize = 4;
/// Interval at which the trainer looks for complete samples.
const PERIOD: Duration = Duration::from_millis(500);

/// The trainer's thread.
pub(crate) fn run(upkeep: &Weak<Upkeep>) {
    while let Some(upkeep) = upkeep.upgrade() {
        if upkeep.signals.rest(PERIOD) {
            return;
        }
        // Nothing depends on it: an error here occurs again where data is written.
        if upkeep.vitals.check_failed().is_ok() {
            let _ = upkeep.train_some(false);
        }
    }
}

impl Pool {
    /// Trains dictionaries now with the samples collected so far, instead of when there are enough
    /// of them; returns how many were adopted.
    ///
    /// # Errors
    /// When the storage fails.
    pub fn train(&self) -> Result<u64> {
        self.core.vitals.check_failed()?;
        let mut adopted = 0;
        while let Some(one) = self.core.upkeep.train_some(true)? {
            adopted += one;
        }
        Ok(adopted)
    }
}

impl Upkeep {
    /// Runs all steps for one volume whose samples are complete, or with `now` for one that has
    /// some. Returns how many dictionaries it got; `None`: there is no such volume.
    pub(crate) fn train_some(&self, now: bool) -> Result<Option<u64>> {
        let _alone = self.dictionaries.training.lock();
        let alive = |id| self.objects.get(id).is_some_and(|object| object.is_live());
        let taken = self.dictionaries.sampling.take(self.vitals.env.clock.now_ns(), now, alive);
        let Some((id, samples)) = taken else { return Ok(None) };
        let Some(object) = self.objects.get(id) else { return Ok(Some(0)) };
        let settings = *object.settings.read();
        let mut adopted = 0;
        for dictionary in self.trained(&object, &settings, &samples) {
            adopted += match self.adopt(&object, &dictionary) {
                // No room: other data is more important.
                Err(error) if error.kind() == ErrorKind::Full => 0,
                result => u64::from(result?),
            };
        }
        self.dictionaries.sampling.trained(id, adopted > 0);
        Ok(Some(adopted))
    }

    /// Steps 2 and 3: returns dictionaries that pay.
    fn trained(&self, object: &Object, settings: &Settings, samples: &Samples) -> Vec<Vec<u8>> {
        let Some(level) = judging_level(settings).filter(|_| settings.dictionary) else { return Vec::new() };
        let most = self.geometry.extent_bytes as usize / EXTENT_DIVISOR;
        let present = self.dictionaries_in_force(object, settings);
        let limit = |raw| dst_limit(raw, settings);
        let adoption = &self.vitals.options.training.adoption;
        train_dictionaries(&samples.parts(), &present, (level, &limit), most, samples.written_bytes, adoption)
    }

    /// Returns the bytes of the dictionaries in force for the object's new units, as far as they
    /// can be read.
    fn dictionaries_in_force(&self, object: &Object, settings: &Settings) -> Vec<Vec<u8>> {
        let encoders = self.reads.encoders(object, settings);
        let numbers = encoders.iter().flat_map(|all| (1..=all.count()).filter_map(|index| all.number(index)));
        numbers.filter_map(|number| self.reads.load_dictionary(number, Readers::Free).ok()).collect()
    }

    /// Step 4. Returns `false` if the volume is gone or does not want it any more, has too many, or
    /// there is no room.
    fn adopt(&self, object: &Arc<Object>, dictionary: &[u8]) -> Result<bool> {
        let content = encode_dictionary(dictionary);
        let _admin = self.objects.admin.lock();
        let id = ObjectId(self.objects.next_id());
        let is_wanted = object.is_live() && object.settings.read().dictionary;
        if !is_wanted
            || u32::try_from(id.0).is_err()
            || self.objects.dictionaries_of(object.id).len() >= DICTIONARIES_MAX
        {
            return Ok(false);
        }
        self.vitals.check_failed()?;
        self.checkpoints.heal()?;
        // Like admitted data. It may leave the tail of an extent unused.
        let copies = object.copies_of(GroupIndex(0));
        let bytes = content.len() as u64 + u64::from(self.geometry.extent_bytes);
        let _room = self.space.reserve((1 + u64::from(copies)) * bytes);
        if !self.space.has_room_before(self.space.soft_wall()) {
            return Ok(false);
        }
        let descriptor = ObjectDescriptor {
            state: ObjectState::Dictionary,
            parent: Some(object.id),
            created_unix_s: self.vitals.env.clock.unix_s(),
            ..ObjectDescriptor::volume(id, "dictionary", content.len() as u64)
        };
        let batch = self.dictionary_batch(descriptor, &content);
        // As many as of the data that cannot be read without it.
        let more = self.writes.parts_of_copies(&batch, |_, _| copies);
        let mut ticket = self.writes.append(batch, Purpose::Data)?;
        for mut copy in more {
            copy.begun = Some(ticket.incarnation);
            ticket = self.writes.append(copy, Purpose::Data)?;
        }
        self.log.wait_applied(ticket)?;
        Ok(true)
    }

    /// A dictionary's descriptor and content.
    fn dictionary_batch(&self, descriptor: ObjectDescriptor, content: &[u8]) -> Prepared {
        let mut padded = content.to_vec();
        padded.resize(content.len().next_multiple_of(BLOCK_BYTES), 0);
        let blocks: Vec<_> = (0..).map(BlockIndex).zip(padded.chunks(BLOCK_BYTES)).collect();
        whole_object::batch(descriptor, &blocks, self.geometry.unit_blocks_max(), &self.buffers)
    }
}
