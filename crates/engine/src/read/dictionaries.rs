//! Loads dictionaries from the log, and decodes payloads that may need one. Owns no state:
//! `codecs::dictionaries` has the caches.

use std::sync::Arc;

use codec::{CodecId, DictionaryNumber, EncodeDictionary, Workspace, ZstdLevel};
use format::decode_dictionary;
use policy::Settings;
use store::objects::Object;
use surface::{Error, ErrorKind, Result};

use crate::codecs::dictionaries::{EncoderSource, Encoders, find_object};
use crate::read::Reads;

/// Whether the caller holds [`Reads::readers`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Readers {
    /// The reader holds the lock.
    Held,
    /// The reader does not hold the lock.
    Free,
}

impl EncoderSource for Reads {
    fn encoder(&self, number: DictionaryNumber, level: ZstdLevel) -> Option<Arc<EncodeDictionary>> {
        let load = || self.load_dictionary(number, Readers::Free);
        self.dictionaries.encoder(number, level, &*self.vitals.env.clock, load)
    }
}

impl Reads {
    /// The dictionaries with which units of an object are written under these settings, if there
    /// are any.
    pub(crate) fn encoders(&self, object: &Object, settings: &Settings) -> Option<Encoders<'_>> {
        Encoders::of((&self.dictionaries, &self.objects), object, settings, self)
    }

    /// The bytes of a dictionary, verified.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if it is not there or damaged, [`ErrorKind::Io`] if the storage
    /// fails.
    pub(crate) fn load_dictionary(&self, number: DictionaryNumber, readers: Readers) -> Result<Vec<u8>> {
        let object = find_object(&self.objects, number)?;
        let mut content = vec![0; object.size_bytes() as usize];
        let in_extents = matches!(readers, Readers::Free).then(|| self.readers.read());
        self.read_guarded(&object, 0, &mut content, false)?;
        drop(in_extents);
        match decode_dictionary(&content) {
            Ok(bytes) => Ok(bytes.to_vec()),
            Err(error) => Err(Error::new(ErrorKind::Corrupt, format!("dictionary {number} is damaged: {error}"))),
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
            let load = |number| self.load_dictionary(number, readers);
            self.dictionaries.decoder(number, load).map_err(|error| failure = Some(error)).ok()
        };
        let sizes = (dst.len(), payload.len());
        let decode = || codecs.decompress_prefix_with(id, payload, dst, wanted, &mut find);
        let done = self.vitals.counters.decoded.count(id, sizes, &*self.vitals.env.clock, decode);
        done.map_err(|error| failure.unwrap_or_else(|| Error::new(ErrorKind::Corrupt, error.to_string())))
    }
}
