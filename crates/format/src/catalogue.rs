//! The catalogue: all descriptors and the pool's properties as of one moment, written into the log from time to time, so that the log
//! alone tells what its fragments belong to. Replay passes over it; `salvage` and `check --repair` read it.
//!
//! It is divided into parts, each an entry of a batch of its own, so that it fits in small extents, however many objects there are. It is
//! complete if and only if all its parts are there. What it does not know yet, the entries of batches from `as_of` on tell.

use std::collections::BTreeMap;

use units::{ExtentIndex, Seq};

use crate::cursor::{Cursor, put_uint, seal, unseal};
use crate::descriptor::{put_properties, read_properties};
use crate::{FormatError, ObjectDescriptor};

const WHAT: &str = "catalogue";
/// Bytes of a part beside incarnations, properties and descriptors: as-of 8, part 4, parts 4, next object 8, three counts 2 + 2 + 4, crc32c 4.
pub const CATALOGUE_FIXED_BYTES: usize = 36;
/// Bytes of an incarnation.
const INCARNATION_BYTES: usize = 16;
/// Most incarnations that are remembered.
pub const INCARNATIONS_MAX: usize = 128;

/// An opening of the pool: its number, and the sequence number of its first batch. Batches of older ones from there on never happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Incarnation {
    /// Number of the opening.
    pub number: u64,
    /// Sequence number of its first batch.
    pub first_seq: Seq,
}

/// Enters an opening into a list of them, oldest first, which keeps what tells anything: one that wrote nothing says no more than
/// the next one, and beyond [`INCARNATIONS_MAX`] the oldest go.
pub fn enter_incarnation(known: &mut Vec<Incarnation>, new: Incarnation) {
    if known.last().is_some_and(|last| last.number >= new.number) {
        return;
    }
    known.retain(|old| old.first_seq < new.first_seq);
    known.push(new);
    let over = known.len().saturating_sub(INCARNATIONS_MAX);
    known.drain(..over);
}

/// One part of a catalogue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CataloguePart {
    /// All batches with a smaller sequence number are accounted for.
    pub as_of: Seq,
    /// Index of this part, from 0, and how many there are.
    pub part: u32,
    /// See `part`.
    pub parts: u32,
    /// Identifier that the next object gets: one below it that the catalogue does not have is gone.
    pub next_object: u64,
    /// The last openings of the pool, oldest first; of the first part, others have none.
    pub incarnations: Vec<Incarnation>,
    /// The pool's properties; of the first part, others have none.
    pub properties: BTreeMap<String, String>,
    /// Descriptors, by id; figures and reaping mean nothing.
    pub descriptors: Vec<ObjectDescriptor>,
}

impl CataloguePart {
    /// Encodes: as-of 8, part 4, parts 4, next object 8, number of incarnations 2, each 16 (number 8, first sequence number 8),
    /// properties, number of descriptors 4, each behind its length (4), crc32c 4.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_uint(&mut out, self.as_of.0, 8);
        put_uint(&mut out, self.part.into(), 4);
        put_uint(&mut out, self.parts.into(), 4);
        put_uint(&mut out, self.next_object, 8);
        put_uint(&mut out, self.incarnations.len() as u64, 2);
        for incarnation in &self.incarnations {
            put_uint(&mut out, incarnation.number, 8);
            put_uint(&mut out, incarnation.first_seq.0, 8);
        }
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
    /// When the checksum, a count or a descriptor does not hold, or the part is none of its parts.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new(WHAT, unseal(WHAT, bytes)?);
        let as_of = Seq(cursor.u64()?);
        let (part, parts) = (cursor.u32()?, cursor.u32()?);
        if part >= parts {
            return Err(cursor.fail(format!("part {part} of {parts}")));
        }
        let next_object = cursor.u64()?;
        let incarnations = read_incarnations(&mut cursor)?;
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

/// What a checkpoint remembers of the catalogue: which extents hold it, and must be kept for it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CatalogueRef {
    /// See [`CataloguePart::as_of`]; 0: there is none.
    pub as_of: Seq,
    /// Its bytes in the log.
    pub bytes: u64,
    /// Bytes of entries since that change descriptors or properties.
    pub since_bytes: u64,
    /// Extents that hold its parts, ascending.
    pub base: Vec<ExtentIndex>,
    /// Extents that hold those entries, ascending.
    pub since: Vec<ExtentIndex>,
    /// The last openings of the pool, oldest first.
    pub incarnations: Vec<Incarnation>,
}

impl CatalogueRef {
    /// Encodes: as-of 8, bytes 8, bytes since 8, number of extents 4, each 4, the same again for those since, number of incarnations 2,
    /// each 16.
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
        put_uint(out, self.incarnations.len() as u64, 2);
        for incarnation in &self.incarnations {
            put_uint(out, incarnation.number, 8);
            put_uint(out, incarnation.first_seq.0, 8);
        }
    }

    pub(crate) fn read(cursor: &mut Cursor<'_>) -> Result<Self, FormatError> {
        let as_of = Seq(cursor.u64()?);
        let (bytes, since_bytes) = (cursor.u64()?, cursor.u64()?);
        let (base, since) = (read_extents(cursor)?, read_extents(cursor)?);
        Ok(Self { as_of, bytes, since_bytes, base, since, incarnations: read_incarnations(cursor)? })
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

fn read_incarnations(cursor: &mut Cursor<'_>) -> Result<Vec<Incarnation>, FormatError> {
    let count = usize::from(cursor.u16()?);
    if count > INCARNATIONS_MAX || cursor.remaining() < count * INCARNATION_BYTES {
        return Err(cursor.fail(format!("{count} incarnations in {} bytes", cursor.remaining())));
    }
    let mut incarnations = Vec::with_capacity(count);
    for _ in 0..count {
        incarnations.push(Incarnation { number: cursor.u64()?, first_seq: Seq(cursor.u64()?) });
    }
    Ok(incarnations)
}

#[cfg(test)]
mod tests {
    use super::*;
    use units::ObjectId;

    #[test]
    fn round_trips_and_notices_damage() {
        let part = CataloguePart {
            as_of: Seq(77),
            part: 1,
            parts: 2,
            next_object: 9,
            incarnations: vec![Incarnation { number: 3, first_seq: Seq(5) }],
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
        let empty =
            CataloguePart { incarnations: Vec::new(), properties: BTreeMap::new(), descriptors: Vec::new(), ..part };
        assert_eq!(empty.encode().len(), CATALOGUE_FIXED_BYTES);
    }

    #[test]
    fn openings_that_wrote_nothing_and_very_old_ones_are_forgotten() {
        let mut known = Vec::new();
        let mut enter = |number, first| enter_incarnation(&mut known, Incarnation { number, first_seq: Seq(first) });
        enter(1, 1);
        enter(2, 10);
        enter(3, 10);
        enter(3, 10);
        enter(4, 12);
        let told: Vec<_> = known.iter().map(|i| (i.number, i.first_seq.0)).collect();
        assert_eq!(told, [(1, 1), (3, 10), (4, 12)]);
        for number in 5..500 {
            enter_incarnation(&mut known, Incarnation { number, first_seq: Seq(100 + number) });
        }
        assert_eq!((known.len(), known[0].number), (INCARNATIONS_MAX, 372));
    }
}
