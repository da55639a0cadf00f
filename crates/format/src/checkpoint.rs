//! The checkpoint's record, and the pages of extent usage.

use std::collections::BTreeMap;

use units::{ExtentIndex, Seq};

use crate::batch::STREAMS;
use crate::cursor::{Cursor, put_uint, seal, unseal};
use crate::descriptor::{put_properties, read_properties};
use crate::{CatalogueRef, FormatError};

/// How far a stream has filled its extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenExtent {
    /// Where it is; not 0.
    pub extent: ExtentIndex,
    /// Bytes filled so far: the stream's next batch begins there, if it fits.
    pub offset: u32,
}

/// Ties the map to the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// Identifier of the pool, as in the superblock.
    pub pool: [u8; 16],
    /// Number of this opening of the pool; batches of another one do not continue the log.
    pub incarnation: u64,
    /// Sequence number of the first batch of this incarnation.
    pub incarnation_first_seq: Seq,
    /// Sequence number of the next batch: all earlier ones are in the map.
    pub next_seq: Seq,
    /// The extent that each stream was filling; `None`: its next batch opens one.
    pub open: [Option<OpenExtent>; STREAMS],
    /// The extents to be opened next, in order, by any stream that needs one.
    pub extents: Vec<ExtentIndex>,
    /// Identifier that the next object gets.
    pub next_object: u64,
    /// Checkpoints taken since the pool was made.
    pub number: u64,
    /// Properties of the pool.
    pub properties: BTreeMap<String, String>,
    /// Number of objects, which must equal the number of descriptors stored with it: a missing one
    /// would be a lost volume.
    pub objects: u32,
    /// Live bytes of all extents: the sum over the usage pages. Lost pages make the sum too small.
    pub live_bytes: u64,
    /// Number of deltas on top of the records.
    pub deltas: u32,
    /// Where the catalogue is.
    pub catalogue: CatalogueRef,
}

impl Checkpoint {
    /// All extents that the log may write to before the next checkpoint.
    pub fn log_extents(&self) -> impl Iterator<Item = ExtentIndex> {
        self.open.iter().flatten().map(|open| open.extent).chain(self.extents.iter().copied())
    }

    /// Encodes: pool 16, incarnation 8, its first sequence number 8, next sequence number 8, per
    /// stream its open extent 4 (0: none) and offset 4, next object 8, number 8, objects 4, live
    /// bytes 8, deltas 4, properties, catalogue, number of extents 4, each 4, crc32c 4.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128 + 4 * self.extents.len());
        out.extend_from_slice(&self.pool);
        put_uint(&mut out, self.incarnation, 8);
        put_uint(&mut out, self.incarnation_first_seq.0, 8);
        put_uint(&mut out, self.next_seq.0, 8);
        for open in self.open {
            put_uint(&mut out, open.map_or(0, |open| open.extent.0).into(), 4);
            put_uint(&mut out, open.map_or(0, |open| open.offset).into(), 4);
        }
        put_uint(&mut out, self.next_object, 8);
        put_uint(&mut out, self.number, 8);
        put_uint(&mut out, self.objects.into(), 4);
        put_uint(&mut out, self.live_bytes, 8);
        put_uint(&mut out, self.deltas.into(), 4);
        put_properties(&mut out, &self.properties);
        self.catalogue.put(&mut out);
        put_uint(&mut out, self.extents.len() as u64, 4);
        for extent in &self.extents {
            put_uint(&mut out, extent.0.into(), 4);
        }
        seal(&mut out);
        out
    }

    /// Decodes and checks.
    ///
    /// # Errors
    /// When the checksum or a length does not hold.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new("checkpoint", unseal("checkpoint", bytes)?);
        let mut pool = [0; 16];
        pool.copy_from_slice(cursor.bytes(16)?);
        let incarnation = cursor.u64()?;
        let (incarnation_first_seq, next_seq) = (Seq(cursor.u64()?), Seq(cursor.u64()?));
        let mut open = [None; STREAMS];
        for slot in &mut open {
            let (extent, offset) = (ExtentIndex(cursor.u32()?), cursor.u32()?);
            *slot = (extent.0 != 0).then_some(OpenExtent { extent, offset });
            if slot.is_none() && offset != 0 {
                return Err(cursor.fail(format!("byte {offset} of no extent")));
            }
        }
        let mut checkpoint = Self {
            pool,
            incarnation,
            incarnation_first_seq,
            next_seq,
            open,
            next_object: cursor.u64()?,
            number: cursor.u64()?,
            objects: cursor.u32()?,
            live_bytes: cursor.u64()?,
            deltas: cursor.u32()?,
            properties: read_properties(&mut cursor)?,
            catalogue: CatalogueRef::read(&mut cursor)?,
            extents: Vec::new(),
        };
        let count = cursor.u32()? as usize;
        if cursor.remaining() != 4 * count {
            return Err(cursor.fail(format!("{count} extents in {} bytes", cursor.remaining())));
        }
        for _ in 0..count {
            checkpoint.extents.push(ExtentIndex(cursor.u32()?));
        }
        Ok(checkpoint)
    }
}

/// Extents of a usage page.
pub const USAGE_PAGE_EXTENTS: usize = 256;

/// Encodes a page: the live payload bytes of 256 consecutive extents, 4 each, crc32c 4.
pub fn encode_usage_page(live: &[u32; USAGE_PAGE_EXTENTS]) -> Vec<u8> {
    let mut out = Vec::with_capacity(4 * USAGE_PAGE_EXTENTS + 4);
    for bytes in live {
        put_uint(&mut out, (*bytes).into(), 4);
    }
    seal(&mut out);
    out
}

/// Inverse of [`encode_usage_page`].
///
/// # Errors
/// When the checksum or the length does not hold.
pub fn decode_usage_page(bytes: &[u8]) -> Result<[u32; USAGE_PAGE_EXTENTS], FormatError> {
    let mut cursor = Cursor::new("usage page", unseal("usage page", bytes)?);
    let mut live = [0; USAGE_PAGE_EXTENTS];
    for slot in &mut live {
        *slot = cursor.u32()?;
    }
    cursor.end()?;
    Ok(live)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_and_usage_round_trip() {
        let checkpoint = Checkpoint {
            pool: [3; 16],
            incarnation: 4,
            incarnation_first_seq: Seq(100),
            next_seq: Seq(120),
            open: [None, Some(OpenExtent { extent: ExtentIndex(3), offset: 8192 }), None, None, None],
            extents: vec![ExtentIndex(5), ExtentIndex(9)],
            next_object: 17,
            number: 2,
            objects: 5,
            live_bytes: 1 << 40,
            deltas: 3,
            properties: BTreeMap::new(),
            catalogue: CatalogueRef {
                as_of: Seq(90),
                bytes: 4096,
                since_bytes: 100,
                base: vec![ExtentIndex(3)],
                since: vec![ExtentIndex(5), ExtentIndex(7)],
                incarnations: crate::Incarnations {
                    known: vec![crate::Incarnation { number: 4, first_seq: Seq(100) }],
                    forgotten: None,
                },
            },
        };
        let bytes = checkpoint.encode();
        assert_eq!(Checkpoint::decode(&bytes).unwrap(), checkpoint);
        assert_eq!(checkpoint.log_extents().collect::<Vec<_>>(), [ExtentIndex(3), ExtentIndex(5), ExtentIndex(9)]);
        assert!(Checkpoint::decode(&bytes[..bytes.len() - 1]).is_err());
        let mut live = [0; USAGE_PAGE_EXTENTS];
        live[255] = u32::MAX;
        let mut page = encode_usage_page(&live);
        assert_eq!(decode_usage_page(&page).unwrap(), live);
        page[1] ^= 1;
        assert!(decode_usage_page(&page).is_err());
    }
}
