//! Dictionaries in use: prepared for decoding and encoding, in bounded caches. Owns these. They are
//! loaded from the log on demand (`read::dictionaries`); `training` makes them.
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
//! [`Objects::newest_dictionaries`]: store::objects::Objects::newest_dictionaries

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use codec::{DICTIONARY_BYTES_MAX, DecodeDictionary, DictionaryNumber, EncodeDictionary, ZstdLevel};
use env::Clock;
use format::DICTIONARY_FRAME_BYTES;
use policy::{DICTIONARIES_IN_FORCE_MAX, Settings, judging_level};
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use store::base::canary::Canary;
use store::base::ranked::{Mutex, RwLock};
use store::base::ranks;
use store::objects::{Object, Objects};
use surface::{Error, ErrorKind, Result};
use units::ObjectId;

use crate::codecs::samples::Sampling;

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

    /// Compresses nothing with these from now on, except batches in flight.
    pub(crate) fn retire(&self, ids: &BTreeSet<ObjectId>) {
        self.unusable.lock().extend(ids.iter().copied());
    }

    /// Allows their use again: they have turned out to be needed.
    pub(crate) fn recall(&self, ids: &BTreeSet<ObjectId>) {
        self.unusable.lock().retain(|id| !ids.contains(id));
    }

    /// The dictionaries with which units of an object are written under these settings.
    fn in_force(&self, objects: &Objects, object: &Object, settings: &Settings) -> Vec<DictionaryNumber> {
        if !settings.dictionary || judging_level(settings).is_none() {
            return Vec::new();
        }
        let unusable = self.unusable.lock();
        let ids = objects.newest_dictionaries(object, self.in_force_max, |id| !unusable.contains(&id));
        ids.iter().filter_map(|id| u32::try_from(id.0).ok().map(DictionaryNumber)).collect()
    }

    /// Returns a dictionary prepared to compress at a level, from the content that `load` returns
    /// if the cache has it not. `None` if it cannot be used now.
    pub(crate) fn encoder(
        &self,
        number: DictionaryNumber,
        level: ZstdLevel,
        clock: &dyn Clock,
        load: impl FnOnce() -> Result<Vec<u8>>,
    ) -> Option<Arc<EncodeDictionary>> {
        if let Some(known) = self.encoders.get(&(number.0, level)) {
            return Some(known);
        }
        if self.unreadable.lock().get(&number.0).is_some_and(|until| clock.now_ns() < *until) {
            return None;
        }
        let bytes = match load() {
            Ok(bytes) => Some(bytes),
            Err(error) if error.kind() == ErrorKind::Corrupt => None,
            // A failed read may succeed later.
            Err(_) => {
                let until = clock.now_ns().saturating_add(UNREADABLE_PAUSE_NS);
                self.unreadable.lock().insert(number.0, until);
                return None;
            }
        };
        self.unreadable.lock().remove(&number.0);
        let prepared = bytes.and_then(|bytes| EncodeDictionary::prepare(number, &bytes, level));
        match prepared {
            Some(prepared) => {
                let prepared = Arc::new(prepared);
                self.encoders.insert((number.0, level), Arc::clone(&prepared));
                Some(prepared)
            }
            None => {
                self.unusable.lock().insert(object_of(number));
                None
            }
        }
    }

    /// Returns a dictionary prepared to decompress, from the content that `load` returns if the
    /// cache has it not.
    ///
    /// # Errors
    /// Those of loading it; [`ErrorKind::Corrupt`] if it is invalid.
    pub(crate) fn decoder(
        &self,
        number: DictionaryNumber,
        load: impl Fn(DictionaryNumber) -> Result<Vec<u8>>,
    ) -> Result<Arc<DecodeDictionary>> {
        if let Some(known) = self.decoders.get(&number.0) {
            return Ok(known);
        }
        let mut bytes = load(number)?;
        if Canary::WrongDictionary.is_planted()
            && let Ok(other) = load(DictionaryNumber(number.0 - 1))
        {
            bytes = other;
        }
        let prepared = DecodeDictionary::prepare(number, &bytes).ok_or_else(|| {
            Error::new(ErrorKind::Corrupt, format!("dictionary {number} is invalid, or there is no memory for it"))
        })?;
        let prepared = Arc::new(prepared);
        self.decoders.insert(number.0, Arc::clone(&prepared));
        Ok(prepared)
    }
}

/// Returns the object whose content is a dictionary.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if there is none, or its length is impossible.
pub(crate) fn find_object(objects: &Objects, number: DictionaryNumber) -> Result<Arc<Object>> {
    let corrupt = |text: String| Error::new(ErrorKind::Corrupt, text);
    let object = objects.get(object_of(number)).filter(|object| object.is_dictionary());
    let object = object.ok_or_else(|| corrupt(format!("dictionary {number}, which the data needs, is missing")))?;
    let length = object.size_bytes() as usize;
    if length > DICTIONARY_BYTES_MAX + DICTIONARY_FRAME_BYTES {
        return Err(corrupt(format!("dictionary {number} has an impossible length of {length} bytes")));
    }
    Ok(object)
}

/// Prepares dictionaries, which it loads where the cache has none: implemented by `read`.
pub(crate) trait EncoderSource: Sync {
    /// `None` if it cannot be used now.
    fn encoder(&self, number: DictionaryNumber, level: ZstdLevel) -> Option<Arc<EncodeDictionary>>;
}

/// The dictionaries in force for an object's writes, prepared for the requested levels. They are
/// numbered from 1 on, the newest last.
pub(crate) struct Encoders<'a> {
    source: &'a dyn EncoderSource,
    /// At least one.
    numbers: Vec<DictionaryNumber>,
    made: Vec<(u8, ZstdLevel, Option<Arc<EncodeDictionary>>)>,
}

impl<'a> Encoders<'a> {
    /// The dictionaries with which units of an object are written under these settings, if there
    /// are any.
    pub(crate) fn of(
        (dictionaries, objects): (&Dictionaries, &Objects),
        object: &Object,
        settings: &Settings,
        source: &'a dyn EncoderSource,
    ) -> Option<Self> {
        let numbers = dictionaries.in_force(objects, object, settings);
        (!numbers.is_empty()).then_some(Self { source, numbers, made: Vec::new() })
    }

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
            self.made.push((index, level, self.source.encoder(number, level)));
            self.made.len() - 1
        });
        self.made.get(place).and_then(|(_, _, dictionary)| dictionary.as_ref())
    }
}

/// A dictionary's number is its object's; the format ensures that it fits.
fn object_of(number: DictionaryNumber) -> ObjectId {
    ObjectId(number.0.into())
}
