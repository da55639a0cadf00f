//! Dictionaries in use: prepared for decoding and encoding, in bounded caches, loaded from the log when they are needed. How they come to be is
//! in `training`.
//!
//! A dictionary is an object that users do not see: its content is the dictionary ([`format::encode_dictionary`]), its parent the volume that it was
//! trained for, its number the object's. So the log, the cleaner, scrubbing and checking treat it as they treat data.
//!
//! **Why none is missing.**
//! 1. A dictionary comes into the log in one batch, descriptor and content together, which is applied before anybody can find it: so
//!    every fragment that needs it lies behind it in the log, and recovery, which applies a prefix of the log, has it too.
//! 2. Fragments of an object are only compressed with dictionaries of that object or of those that it came from ([`Objects::newest_dictionary`]).
//! 3. A dictionary is kept for as long as its parent is in the table of objects, in whatever state (`timeline`). The parent stays there while it has
//!    records, and while anything that came from it is seen; and fragments are decoded of objects only that are seen.
//! 4. Those that are given up earlier have been shown to be needed by no fragment (`dictionary_review`).
//!
//! [`Objects::newest_dictionary`]: crate::objects::Objects::newest_dictionary

use std::collections::BTreeSet;
use std::sync::Arc;

use codec::{
    CodecId, DICTIONARY_BYTES_MAX, DecodeDictionary, DictionaryNumber, EncodeDictionary, Workspace, ZstdLevel,
};
use format::{DICTIONARY_FRAME_BYTES, decode_dictionary};
use parking_lot::{Mutex, RwLock};
use policy::{Settings, judging_level};
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use surface::{Error, ErrorKind, Result};
use units::ObjectId;

use crate::core::Core;
use crate::objects::Object;
use crate::samples::Sampling;

/// Dictionaries that a cache holds at least, however small the memory budget is, in bytes.
const CACHE_BYTES_MIN: u64 = 1 << 20;
/// What a prepared dictionary takes, for the size of the caches' tables.
const USUAL_BYTES: u64 = 128 << 10;

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
    /// He does.
    Held,
    /// He does not.
    Free,
}

/// What a pool knows of its dictionaries.
pub(crate) struct Dictionaries {
    decoders: Cache<u32, Arc<DecodeDictionary>, MemoryWeight>,
    encoders: Cache<(u32, ZstdLevel), Arc<EncodeDictionary>, MemoryWeight>,
    /// Those that could not be loaded or are retired: nothing more is written with them.
    unusable: Mutex<BTreeSet<ObjectId>>,
    pub sampling: Sampling,
    /// Held shared by rounds of the cleaner, which may use a dictionary at their beginning and append what they made of it at their end.
    pub in_use: RwLock<()>,
    /// Held by whoever trains: one at a time.
    pub training: Mutex<()>,
}

impl Dictionaries {
    /// `bytes`: what prepared dictionaries may take.
    pub(crate) fn new(bytes: u64, sampling: Sampling) -> Self {
        let bytes = bytes.max(CACHE_BYTES_MIN) / 2;
        let count = (bytes / USUAL_BYTES).max(4) as usize;
        Self {
            decoders: Cache::with_weighter(count, bytes, MemoryWeight),
            encoders: Cache::with_weighter(count, bytes, MemoryWeight),
            unusable: Mutex::default(),
            sampling,
            in_use: RwLock::new(()),
            training: Mutex::new(()),
        }
    }

    /// Nothing more is written with these.
    fn retire(&self, ids: &BTreeSet<ObjectId>) {
        self.unusable.lock().extend(ids.iter().copied());
    }

    /// Empties the caches.
    pub(crate) fn clear(&self) {
        self.decoders.clear();
        self.encoders.clear();
    }
}

/// The dictionary in force for what an object writes, prepared for the levels that are asked for.
pub(crate) struct Encoders<'a> {
    core: &'a Core,
    number: DictionaryNumber,
    made: Vec<(ZstdLevel, Option<Arc<EncodeDictionary>>)>,
}

impl Encoders<'_> {
    /// Its number.
    pub(crate) fn number(&self) -> DictionaryNumber {
        self.number
    }

    /// The dictionary at a level; `None` if it cannot be had: then one compresses without.
    pub(crate) fn at(&mut self, level: ZstdLevel) -> Option<&Arc<EncodeDictionary>> {
        let known = self.made.iter().position(|(made, _)| *made == level);
        let index = known.unwrap_or_else(|| {
            self.made.push((level, self.core.encoder(self.number, level)));
            self.made.len() - 1
        });
        self.made.get(index).and_then(|(_, dictionary)| dictionary.as_ref())
    }
}

/// A dictionary's number is its object's; the format sees to it that it fits.
fn object_of(number: DictionaryNumber) -> ObjectId {
    ObjectId(number.0.into())
}

impl Core {
    /// The dictionary with which units of an object are written under these settings, if there is one.
    pub(crate) fn encoders(&self, object: &Object, settings: &Settings) -> Option<Encoders<'_>> {
        if !settings.dictionary || judging_level(settings).is_none() {
            return None;
        }
        let unusable = self.dictionaries.unusable.lock();
        let id = self.objects.newest_dictionary(object, |id| !unusable.contains(&id))?;
        let number = DictionaryNumber(u32::try_from(id.0).ok()?);
        Some(Encoders { core: self, number, made: Vec::new() })
    }

    /// Nothing is compressed with these from now on, but for what is under way.
    pub(crate) fn retire_dictionaries(&self, ids: &BTreeSet<ObjectId>) {
        self.dictionaries.retire(ids);
    }

    fn encoder(&self, number: DictionaryNumber, level: ZstdLevel) -> Option<Arc<EncodeDictionary>> {
        let cache = &self.dictionaries.encoders;
        if let Some(known) = cache.get(&(number.0, level)) {
            return Some(known);
        }
        let bytes = self.load_dictionary(number, Readers::Free).ok();
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
        let bytes = self.load_dictionary(number, readers)?;
        let prepared = DecodeDictionary::prepare(number, &bytes).ok_or_else(|| {
            Error::new(ErrorKind::Corrupt, format!("dictionary {number} is none, or there is no memory for it"))
        })?;
        let prepared = Arc::new(prepared);
        cache.insert(number.0, Arc::clone(&prepared));
        Ok(prepared)
    }

    /// The bytes of a dictionary, verified.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if it is not there or damaged, [`ErrorKind::Io`] if the storage fails.
    pub(crate) fn load_dictionary(&self, number: DictionaryNumber, readers: Readers) -> Result<Vec<u8>> {
        let corrupt = |text: String| Error::new(ErrorKind::Corrupt, text);
        let object = self.objects.get(object_of(number)).filter(|object| object.is_dictionary());
        let object =
            object.ok_or_else(|| corrupt(format!("dictionary {number}, which the data needs, is not there")))?;
        let length = object.size_bytes() as usize;
        if length > DICTIONARY_BYTES_MAX + DICTIONARY_FRAME_BYTES {
            return Err(corrupt(format!("dictionary {number} is said to have {length} bytes")));
        }
        let mut content = vec![0; length];
        match readers {
            Readers::Held => self.read_guarded(&object, 0, &mut content, false)?,
            Readers::Free => self.read(&object, 0, &mut content)?,
        }
        match decode_dictionary(&content) {
            Ok(bytes) => Ok(bytes.to_vec()),
            Err(error) => Err(corrupt(format!("dictionary {number} is damaged: {error}"))),
        }
    }

    /// Decodes the first `wanted` bytes at least of a payload of an object that has been verified; `dst` is as long as the unit.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if it cannot be decoded, and whatever loading the dictionary that it needs fails with.
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
            // A dictionary needs none itself: whatever says so is damaged, and must not lead in a circle.
            if object.is_dictionary() {
                return None;
            }
            self.decoder(number, readers).map_err(|error| failure = Some(error)).ok()
        };
        let done = codecs.decompress_prefix_with(id, payload, dst, wanted, &mut find);
        done.map_err(|error| failure.unwrap_or_else(|| Error::new(ErrorKind::Corrupt, error.to_string())))
    }
}
