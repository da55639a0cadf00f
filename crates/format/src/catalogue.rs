//! The catalogue: all descriptors and the pool's properties at a point in time, written into the
//! log periodically, so that the log alone identifies the objects of its fragments. Replay skips
//! it; `salvage` and `check --repair` read it.
//!
//! It is divided into parts, each an entry of a separate batch, so that it fits into small extents
//! with any number of objects. It is complete if and only if all parts are present. Later changes
//! are found in the entries of batches from `as_of` on.

use std::collections::BTreeMap;

use units::{ExtentIndex, Seq};

use crate::cursor::{Cursor, put_uint, seal, unseal};
use crate::descriptor::{put_properties, read_properties};
use crate::incarnations::Incarnations;
use crate::{FormatError, ObjectDescriptor};

const WHAT: &str = "catalogue";
/// Bytes of a part without incarnations, properties and descriptors: as-of 8, part 4, parts 4, next
/// object 8, three counts 2 + 2 + 4, crc32c 4.
pub const CATALOGUE_FIXED_BYTES: usize = 36;

/// One part of a catalogue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CataloguePart {
    /// All batches with a smaller sequence number are accounted for.
    pub as_of: Seq,
    /// Index of this part, from 0, and the number of parts.
    pub part: u32,
    /// See `part`.
    pub parts: u32,
    /// Identifier of the next object: an object with a lower one that is missing from the catalogue
    /// was removed.
    pub next_object: u64,
    /// The recorded openings of the pool; in the first part only.
    pub incarnations: Incarnations,
    /// The pool's properties; in the first part only.
    pub properties: BTreeMap<String, String>,
    /// Descriptors, by id; their figures and reaping state are meaningless.
    pub descriptors: Vec<ObjectDescriptor>,
}

impl CataloguePart {
    /// Encodes: as-of 8, part 4, parts 4, next object 8, incarnations, properties, number of
    /// descriptors 4, each preceded by its length (4), crc32c 4.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_uint(&mut out, self.as_of.0, 8);
        put_uint(&mut out, self.part.into(), 4);
        put_uint(&mut out, self.parts.into(), 4);
        put_uint(&mut out, self.next_object, 8);
        self.incarnations.put(&mut out);
        put_properties(&mut out, &self.properties);
        put_uint(&mut out, self.descriptors.len() as u64, 4);
        for descriptor in &self.descriptors {
            let bytes = descriptor.encode();
            put_uint(&mut out, bytes.len() as u64, 4);
            out.extend_from_slice(&bytes);
        }
        seal(&mut out);
        out
    }

    /// Decodes and checks.
    ///
    /// # Errors
    /// When the checksum, a count or a descriptor is invalid, or the part number is out of range.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new(WHAT, unseal(WHAT, bytes)?);
        let as_of = Seq(cursor.u64()?);
        let (part, parts) = (cursor.u32()?, cursor.u32()?);
        if part >= parts {
            return Err(cursor.fail(format!("part {part} of {parts}")));
        }
        let next_object = cursor.u64()?;
        let incarnations = Incarnations::read(&mut cursor)?;
        let properties = read_properties(&mut cursor)?;
        let count = cursor.u32()?;
        let mut descriptors = Vec::new();
        for _ in 0..count {
            let len = cursor.u32()? as usize;
            descriptors.push(ObjectDescriptor::decode(cursor.bytes(len)?)?);
        }
        cursor.end()?;
        Ok(Self { as_of, part, parts, next_object, incarnations, properties, descriptors })
    }
}

/// The checkpoint's reference to the catalogue: the extents that hold it and must be kept for it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CatalogueRef {
    /// See [`CataloguePart::as_of`]; 0: no catalogue.
    pub as_of: Seq,
    /// Its bytes in the log.
    pub bytes: u64,
    /// Bytes of entries since that change descriptors or properties.
    pub since_bytes: u64,
    /// Extents that hold its parts, ascending.
    pub base: Vec<ExtentIndex>,
    /// Extents that hold those entries, ascending.
    pub since: Vec<ExtentIndex>,
    /// The openings of the pool that are remembered.
    pub incarnations: Incarnations,
}

impl CatalogueRef {
    /// Encodes: as-of 8, bytes 8, bytes since 8, number of extents 4, each 4, the same again for
    /// those since, incarnations.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        for number in [self.as_of.0, self.bytes, self.since_bytes] {
            put_uint(out, number, 8);
        }
        for extents in [&self.base, &self.since] {
            put_uint(out, extents.len() as u64, 4);
            for extent in extents {
                put_uint(out, extent.0.into(), 4);
            }
        }
        self.incarnations.put(out);
    }

    pub(crate) fn read(cursor: &mut Cursor<'_>) -> Result<Self, FormatError> {
        let as_of = Seq(cursor.u64()?);
        let (bytes, since_bytes) = (cursor.u64()?, cursor.u64()?);
        let (base, since) = (read_extents(cursor)?, read_extents(cursor)?);
        Ok(Self { as_of, bytes, since_bytes, base, since, incarnations: Incarnations::read(cursor)? })
    }
}

fn read_extents(cursor: &mut Cursor<'_>) -> Result<Vec<ExtentIndex>, FormatError> {
    let count = cursor.u32()? as usize;
    if cursor.remaining() / 4 < count {
        return Err(cursor.fail(format!("{count} extents in {} bytes", cursor.remaining())));
    }
    let mut extents = Vec::with_capacity(count);
    for _ in 0..count {
        extents.push(ExtentIndex(cursor.u32()?));
    }
    Ok(extents)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Incarnation;
    use units::ObjectId;

    #[test]
    fn round_trips_and_notices_damage() {
        let opening = Incarnation { number: 3, first_seq: Seq(5) };
        let part = CataloguePart {
            as_of: Seq(77),
            part: 1,
            parts: 2,
            next_object: 9,
            incarnations: Incarnations { known: vec![opening], forgotten: None },
            properties: [("mode".to_owned(), "archive".to_owned())].into(),
            descriptors: vec![
                ObjectDescriptor::volume(ObjectId(1), "a", 4096),
                ObjectDescriptor::volume(ObjectId(8), "b", 8192),
            ],
        };
        let bytes = part.encode();
        assert_eq!(CataloguePart::decode(&bytes).unwrap(), part);
        crate::cursor::expect_every_bit_to_count(&bytes, |bytes| CataloguePart::decode(bytes).is_err());
        assert!(CataloguePart::decode(&CataloguePart { part: 2, ..part.clone() }.encode()).is_err());
        let empty = CataloguePart {
            incarnations: Incarnations::default(),
            properties: BTreeMap::new(),
            descriptors: Vec::new(),
            ..part
        };
        assert_eq!(empty.encode().len(), CATALOGUE_FIXED_BYTES);
    }
}
