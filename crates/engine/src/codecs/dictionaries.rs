//! Dictionaries in use: prepared for decoding and encoding, in bounded caches, loaded from the log
//! on demand. `training` makes them.
//!
//! A dictionary is an object that users do not see: its content is the dictionary
//! ([`format::encode_dictionary`]), its parent the volume that it was trained for, its number the
//! object's. So the log, the cleaner, scrubbing and checking treat it as they treat data.
//!
//! **Why none is missing.**
//! 1. A dictionary comes into the log in one batch, descriptor and content together, which is
//!    applied before any thread can find it: so every fragment that needs it follows it in the log,
//!    and recovery, which applies a prefix of the log, has it too.
//! 2. Fragments of an object are only compressed with dictionaries of that object or of its origins
//!    ([`Objects::newest_dictionaries`]).
//! 3. A dictionary is kept for as long as its parent is in the table of objects, in any state
//!    (`timeline`). The parent stays there while it has records, and while any of its descendants
//!    is visible; and fragments are decoded only for visible objects.
//! 4. Those that are dropped earlier have been shown to be needed by no fragment
//!    (`dictionary_review`).
//!
//! [`Objects::newest_dictionaries`]: crate::objects::Objects::newest_dictionaries

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use codec::{
    CodecId, DICTIONARY_BYTES_MAX, DecodeDictionary, DictionaryNumber, EncodeDictionary, Workspace, ZstdLevel,
};
use format::{DICTIONARY_FRAME_BYTES, decode_dictionary};
use policy::{DICTIONARIES_IN_FORCE_MAX, Settings, judging_level};
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use surface::{Error, ErrorKind, Result};
use units::ObjectId;

use crate::base::canary::Canary;
use crate::base::ranked::{Mutex, RwLock};
use crate::base::ranks;
use crate::codecs::samples::Sampling;
use crate::objects::Object;
use crate::pool::core::Core;

/// Minimum size of a cache of dictionaries, however small the memory budget is, in bytes.
const CACHE_BYTES_MIN: u64 = 1 << 20;
/// Memory of a prepared dictionary, for the size of the caches' tables.
const USUAL_BYTES: u64 = 128 << 10;
/// Memory of a dictionary prepared to compress at a fast level: the cache holds as many as are in
/// force, so that it does not evict one for another.
const ENCODER_BYTES: u64 = 512 << 10;
/// How long compressing threads skip a dictionary that could not be read: otherwise each batch
/// would wait for the same failing read.
const UNREADABLE_PAUSE_NS: u64 = 60_000_000_000;

#[derive(Clone, Copy)]
struct MemoryWeight;

impl Weighter<u32, Arc<DecodeDictionary>> for MemoryWeight {
    fn weight(&self, _: &u32, dictionary: &Arc<DecodeDictionary>) -> u64 {
        dictionary.memory_bytes() as u64
    }
}

impl Weighter<(u32, ZstdLevel), Arc<EncodeDictionary>> for MemoryWeight {
    fn weight(&self, _: &(u32, ZstdLevel), dictionary: &Arc<EncodeDictionary>) -> u64 {
        dictionary.memory_bytes() as u64
    }
}

/// Whether the caller holds [`Core::readers`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Readers {
    /// The reader holds the lock.
    Held,
    /// The reader does not hold the lock.
    Free,
}

/// The dictionaries of a pool.
pub(crate) struct Dictionaries {
    decoders: Cache<u32, Arc<DecodeDictionary>, MemoryWeight>,
    encoders: Cache<(u32, ZstdLevel), Arc<EncodeDictionary>, MemoryWeight>,
    /// Maximum number of dictionaries for new units of a volume.
    in_force_max: usize,
    /// Damaged and retired ones: nothing more is written with them.
    unusable: Mutex<BTreeSet<ObjectId>, ranks::Unusable>,
    /// Those that could not be read, each with the time before which it is not tried again, in
    /// nanoseconds of the clock.
    unreadable: Mutex<BTreeMap<u32, u64>, ranks::UnreadableDictionaries>,
    pub sampling: Sampling,
    /// Held shared by rounds of the cleaner, which may use a dictionary at their beginning and
    /// append the fragments made with it at their end.
    pub in_use: RwLock<(), ranks::DictionariesInUse>,
    /// Held by the training: one at a time.
    pub training: Mutex<(), ranks::Training>,
}

impl Dictionaries {
    /// `bytes`: memory for prepared dictionaries.
    pub(crate) fn new(bytes: u64, sampling: Sampling) -> Self {
        let bytes = bytes.max(CACHE_BYTES_MIN) / 2;
        let count = (bytes / USUAL_BYTES).max(4) as usize;
        Self {
            decoders: Cache::with_weighter(count, bytes, MemoryWeight),
            encoders: Cache::with_weighter(count, bytes, MemoryWeight),
            in_force_max: ((bytes / ENCODER_BYTES) as usize).clamp(1, DICTIONARIES_IN_FORCE_MAX),
            unusable: Mutex::default(),
            unreadable: Mutex::default(),
            sampling,
            in_use: RwLock::new(()),
            training: Mutex::new(()),
        }
    }

    /// Empties the caches.
    pub(crate) fn clear(&self) {
        self.decoders.clear();
        self.encoders.clear();
    }
}

/// The dictionaries in force for an object's writes, prepared for the requested levels. They are
/// numbered from 1 on, the newest last.
pub(crate) struct Encoders<'a> {
    core: &'a Core,
    /// At least one.
    numbers: Vec<DictionaryNumber>,
    made: Vec<(u8, ZstdLevel, Option<Arc<EncodeDictionary>>)>,
}

impl Encoders<'_> {
    /// How many there are.
    pub(crate) fn count(&self) -> u8 {
        self.numbers.len() as u8
    }

    /// Returns the number of one as fragments name it; `None` for 0.
    pub(crate) fn number(&self, index: u8) -> Option<DictionaryNumber> {
        self.numbers.get(usize::from(index.checked_sub(1)?)).copied()
    }

    /// Returns the one that a fragment names.
    pub(crate) fn find(&self, number: DictionaryNumber) -> Option<u8> {
        self.numbers.iter().position(|known| *known == number).map(|at| at as u8 + 1)
    }

    /// Returns a dictionary at a level; `None` for 0, and if it is unavailable: then units are
    /// compressed without one.
    pub(crate) fn at(&mut self, index: u8, level: ZstdLevel) -> Option<&Arc<EncodeDictionary>> {
        let number = self.number(index)?;
        let known = self.made.iter().position(|(of, made, _)| (*of, *made) == (index, level));
        let place = known.unwrap_or_else(|| {
            self.made.push((index, level, self.core.encoder(number, level)));
            self.made.len() - 1
        });
        self.made.get(place).and_then(|(_, _, dictionary)| dictionary.as_ref())
    }
}

/// A dictionary's number is its object's; the format ensures that it fits.
fn object_of(number: DictionaryNumber) -> ObjectId {
    ObjectId(number.0.into())
}

impl Core {
    /// The dictionaries with which units of an object are written under these settings, if there
    /// are any.
    pub(crate) fn encoders(&self, object: &Object, settings: &Settings) -> Option<Encoders<'_>> {
        if !settings.dictionary || judging_level(settings).is_none() {
            return None;
        }
        let unusable = self.dictionaries.unusable.lock();
        let most = self.dictionaries.in_force_max;
        let ids = self.objects.newest_dictionaries(object, most, |id| !unusable.contains(&id));
        let numbers: Vec<_> = ids.iter().filter_map(|id| u32::try_from(id.0).ok().map(DictionaryNumber)).collect();
        (!numbers.is_empty()).then_some(Encoders { core: self, numbers, made: Vec::new() })
    }

    /// Compresses nothing with these from now on, except batches in flight.
    pub(crate) fn retire_dictionaries(&self, ids: &BTreeSet<ObjectId>) {
        self.dictionaries.unusable.lock().extend(ids.iter().copied());
    }

    /// Allows their use again: they have turned out to be needed.
    pub(crate) fn recall_dictionaries(&self, ids: &BTreeSet<ObjectId>) {
        self.dictionaries.unusable.lock().retain(|id| !ids.contains(id));
    }

    fn encoder(&self, number: DictionaryNumber, level: ZstdLevel) -> Option<Arc<EncodeDictionary>> {
        let cache = &self.dictionaries.encoders;
        if let Some(known) = cache.get(&(number.0, level)) {
            return Some(known);
        }
        let unreadable = &self.dictionaries.unreadable;
        let is_paused = unreadable.lock().get(&number.0).is_some_and(|until| self.vitals.env.clock.now_ns() < *until);
        if is_paused {
            return None;
        }
        let bytes = match self.load_dictionary(number, Readers::Free) {
            Ok(bytes) => Some(bytes),
            Err(error) if error.kind() == ErrorKind::Corrupt => None,
            // A failed read may succeed later.
            Err(_) => {
                unreadable.lock().insert(number.0, self.vitals.env.clock.now_ns().saturating_add(UNREADABLE_PAUSE_NS));
                return None;
            }
        };
        unreadable.lock().remove(&number.0);
        let prepared = bytes.and_then(|bytes| EncodeDictionary::prepare(number, &bytes, level));
        match prepared {
            Some(prepared) => {
                let prepared = Arc::new(prepared);
                cache.insert((number.0, level), Arc::clone(&prepared));
                Some(prepared)
            }
            None => {
                self.dictionaries.unusable.lock().insert(object_of(number));
                None
            }
        }
    }

    fn decoder(&self, number: DictionaryNumber, readers: Readers) -> Result<Arc<DecodeDictionary>> {
        let cache = &self.dictionaries.decoders;
        if let Some(known) = cache.get(&number.0) {
            return Ok(known);
        }
        let mut bytes = self.load_dictionary(number, readers)?;
        if Canary::WrongDictionary.is_planted()
            && let Ok(other) = self.load_dictionary(DictionaryNumber(number.0 - 1), readers)
        {
            bytes = other;
        }
        let prepared = DecodeDictionary::prepare(number, &bytes).ok_or_else(|| {
            Error::new(ErrorKind::Corrupt, format!("dictionary {number} is invalid, or there is no memory for it"))
        })?;
        let prepared = Arc::new(prepared);
        cache.insert(number.0, Arc::clone(&prepared));
        Ok(prepared)
    }

    /// The bytes of a dictionary, verified.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if it is not there or damaged, [`ErrorKind::Io`] if the storage
    /// fails.
    pub(crate) fn load_dictionary(&self, number: DictionaryNumber, readers: Readers) -> Result<Vec<u8>> {
        let corrupt = |text: String| Error::new(ErrorKind::Corrupt, text);
        let object = self.objects.get(object_of(number)).filter(|object| object.is_dictionary());
        let object = object.ok_or_else(|| corrupt(format!("dictionary {number}, which the data needs, is missing")))?;
        let length = object.size_bytes() as usize;
        if length > DICTIONARY_BYTES_MAX + DICTIONARY_FRAME_BYTES {
            return Err(corrupt(format!("dictionary {number} has an impossible length of {length} bytes")));
        }
        let mut content = vec![0; length];
        let in_extents = matches!(readers, Readers::Free).then(|| self.readers.read());
        self.read_guarded(&object, 0, &mut content, false)?;
        drop(in_extents);
        match decode_dictionary(&content) {
            Ok(bytes) => Ok(bytes.to_vec()),
            Err(error) => Err(corrupt(format!("dictionary {number} is damaged: {error}"))),
        }
    }

    /// Decodes at least the first `wanted` bytes of a verified payload of an object; `dst` is as
    /// long as the unit.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if it cannot be decoded, and the errors of loading the dictionary
    /// that it needs.
    pub(crate) fn decode(
        &self,
        readers: Readers,
        object: &Object,
        codecs: &mut Workspace,
        (id, payload): (CodecId, &[u8]),
        dst: &mut [u8],
        wanted: usize,
    ) -> Result<()> {
        let mut failure = None;
        let mut find = |number| {
            // A dictionary never needs one: a record that claims so is damaged, and must not cause
            // a loop.
            if object.is_dictionary() {
                return None;
            }
            self.decoder(number, readers).map_err(|error| failure = Some(error)).ok()
        };
        let sizes = (dst.len(), payload.len());
        let decode = || codecs.decompress_prefix_with(id, payload, dst, wanted, &mut find);
        let done = self.vitals.counters.decoded.count(id, sizes, &*self.vitals.env.clock, decode);
        done.map_err(|error| failure.unwrap_or_else(|| Error::new(ErrorKind::Corrupt, error.to_string())))
    }
}
