//! Packs: the objects that hold frames and nodes one after another, written in one request and
//! never changed. Owns their encoding. A trailer has a table of the content, so that a pack can be
//! verified, and its data recovered, without the blob's log. Plain values; no I/O.
//!
//! Bytes of a pack, little-endian: magic 8; the stored bytes of each entry; the table; number of
//! entries 4; crc32c of magic, table and number 4; magic of the end 8. An entry of the table has
//! kind 1, codec 1, length of data 3, stored length 3, checksum 4. Kind 1 is a frame, with the
//! checksum of a layout's frame; kind 2 a node: codec 0, no length of data, and crc32c of its
//! bytes. Frames of zeroes have no entry. Valid if and only if the magics, the checksum and the
//! lengths are consistent, and every entry's bytes match their checksum.

use std::collections::BTreeSet;

use bytes::Bytes;
use codec::{CodecId, Workspace};
use format::{Cursor, FormatError, crc32c, put_uint};
use object_store::PutPayload;

use crate::data::extent::{FRAME_BYTES, Frame, NODE_BYTES_MAX, NodeHash, NodeRef, PackRef};
use crate::data::frame::{Encoded, frame_checksum};

const HEAD: &[u8; 8] = b"SHLPACK1";
const TAIL: &[u8; 8] = b"1KCAPLHS";
const ENTRY_BYTES: usize = 12;
const FOOT_BYTES: usize = 16;
const STRUCTURE: &str = "pack of a blob";

/// Default target of a pack's stored bytes: requests cost little then, and an upload still has
/// several in flight.
pub const PACK_BYTES: u32 = 16 << 20;
/// The smallest target.
pub const PACK_BYTES_MIN: u32 = 4 << 20;
/// The largest target: the size of a request that still completes within the timeouts of proxies.
pub const PACK_BYTES_MAX: u32 = 64 << 20;

/// A pack being filled.
#[derive(Debug)]
pub struct PackBuilder {
    parts: Vec<Bytes>,
    bytes: u32,
    table: Vec<u8>,
    entries: u32,
}

impl Default for PackBuilder {
    fn default() -> Self {
        Self { parts: vec![Bytes::from_static(HEAD)], bytes: HEAD.len() as u32, table: Vec::new(), entries: 0 }
    }
}

impl PackBuilder {
    /// Returns the byte where the next entry begins.
    pub const fn offset(&self) -> u32 {
        self.bytes
    }

    /// Returns whether it has no entries.
    pub const fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Returns the bytes of the last entry.
    pub(crate) fn last_part(&self) -> Option<Bytes> {
        self.parts.last().filter(|_| self.entries > 0).cloned()
    }

    /// Appends a frame; one of zeroes takes no space.
    pub fn push_frame(&mut self, encoded: &Encoded) {
        let Frame { stored, codec, crc } = encoded.frame;
        if stored > 0 {
            self.push(1, codec, encoded.raw_len, crc, encoded.stored.clone());
        }
    }

    /// Appends a node to this pack, whose name is `pack`, and returns the node's name.
    pub fn push_node(&mut self, pack: PackRef, node: Bytes) -> NodeRef {
        let named = NodeRef { pack, offset: self.bytes, len: node.len() as u32, hash: NodeHash::of(&node) };
        self.push(2, CodecId::RAW, 0, crc32c(&node), node);
        named
    }

    fn push(&mut self, kind: u64, codec: CodecId, raw: u32, crc: u32, stored: Bytes) {
        put_uint(&mut self.table, kind, 1);
        put_uint(&mut self.table, codec.0.into(), 1);
        put_uint(&mut self.table, raw.into(), 3);
        put_uint(&mut self.table, stored.len() as u64, 3);
        put_uint(&mut self.table, crc.into(), 4);
        self.bytes += stored.len() as u32;
        self.entries += 1;
        self.parts.push(stored);
    }

    /// Appends the trailer and returns the whole pack without copying its parts.
    pub fn finish(self) -> PutPayload {
        let mut trailer = self.table;
        put_uint(&mut trailer, self.entries.into(), 4);
        let crc = crc32c(&[HEAD.as_slice(), &trailer].concat());
        put_uint(&mut trailer, crc.into(), 4);
        trailer.extend_from_slice(TAIL);
        self.parts.into_iter().chain([Bytes::from(trailer)]).collect()
    }
}

/// The result of [`verify_pack`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PackReport {
    /// Frames, not including those of zeroes.
    pub frames: u64,
    /// Nodes.
    pub nodes: u64,
    /// Bytes of data in the frames.
    pub raw: u64,
    /// Bytes of the frames and nodes.
    pub stored: u64,
}

/// Frames of a pack as versions name them: offset, stored bytes, codec, checksum.
pub(crate) type FrameSet = BTreeSet<(u32, u32, CodecId, u32)>;

/// Verifies a whole pack from its trailer alone: every checksum, and that every frame decodes.
///
/// # Errors
/// The first inconsistency, with its offset.
pub fn verify_pack(bytes: &[u8], workspace: &mut Workspace) -> Result<PackReport, FormatError> {
    verify_named(bytes, &FrameSet::new(), workspace)
}

/// Verifies a whole pack, and that it has the frames that versions name, so that it is not a
/// different pack.
pub(crate) fn verify_named(
    bytes: &[u8],
    named: &FrameSet,
    workspace: &mut Workspace,
) -> Result<PackReport, FormatError> {
    let wrong = |detail: String| FormatError::new(STRUCTURE, detail);
    let foot =
        bytes.len().checked_sub(FOOT_BYTES).ok_or_else(|| wrong(format!("{} bytes are too few", bytes.len())))?;
    let (body, footer) = bytes.split_at(foot);
    let mut cursor = Cursor::new(STRUCTURE, footer);
    let (entries, crc) = (cursor.u32()? as usize, cursor.u32()?);
    if cursor.rest() != TAIL || !body.starts_with(HEAD) {
        return Err(wrong("it does not begin and end with the magic bytes".into()));
    }
    let table_at = entries
        .checked_mul(ENTRY_BYTES)
        .and_then(|table| body.len().checked_sub(table))
        .filter(|at| *at >= HEAD.len())
        .ok_or_else(|| wrong(format!("{entries} entries in {} bytes", bytes.len())))?;
    if crc != crc32c(&[HEAD.as_slice(), &bytes[table_at..foot + 4]].concat()) {
        return Err(wrong("the table's checksum does not match".into()));
    }
    let (mut report, mut at) = (PackReport::default(), HEAD.len());
    let mut table = Cursor::new(STRUCTURE, &body[table_at..]);
    let mut raw = vec![0; FRAME_BYTES as usize];
    let mut had = FrameSet::new();
    for index in 0..entries {
        let (kind, codec) = (table.u8()?, CodecId(table.u8()?));
        let (raw_len, stored_len, crc) = (table.uint(3)? as u32, table.uint(3)? as usize, table.u32()?);
        let end = Some(at + stored_len).filter(|end| *end <= table_at);
        let Some(stored) = end.map(|end| &body[at..end]) else {
            return Err(wrong(format!("entry {index} at {at} extends past the end of the entries at {table_at}")));
        };
        let found = match kind {
            1 if raw_len > 0 && raw_len <= FRAME_BYTES => frame_checksum(codec, raw_len, stored),
            2 if raw_len == 0 && stored_len <= NODE_BYTES_MAX as usize => crc32c(stored),
            _ => return Err(wrong(format!("entry {index} is of kind {kind} and has {raw_len} bytes of data"))),
        };
        if found != crc {
            return Err(wrong(format!("entry {index} at {at} has checksum {found:#010x}, expected {crc:#010x}")));
        }
        if kind == 1 {
            let decoded = workspace.decompress(codec, stored, &mut raw[..raw_len as usize]);
            decoded.map_err(|error| wrong(format!("entry {index} at {at}: {error}")))?;
            report.frames += 1;
            report.raw += u64::from(raw_len);
            had.insert((at as u32, stored_len as u32, codec, crc));
        } else {
            report.nodes += 1;
        }
        report.stored += stored_len as u64;
        at += stored_len;
    }
    if at != table_at {
        return Err(wrong(format!("there are {} bytes between the last entry and the table", table_at - at)));
    }
    if let Some((at, stored, ..)) = named.difference(&had).next() {
        return Err(wrong(format!(
            "a version names {stored} bytes at {at}, but the pack has different bytes there: it is a different pack"
        )));
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::extent::Session;

    fn pack() -> Vec<u8> {
        let mut builder = PackBuilder::default();
        let data = Bytes::from_static(b"not compressed at all");
        let crc = frame_checksum(CodecId::RAW, data.len() as u32, &data);
        let frame = Frame { stored: data.len() as u32, codec: CodecId::RAW, crc };
        builder.push_frame(&Encoded { frame, raw_len: data.len() as u32, stored: data });
        builder.push_frame(&Encoded { frame: Frame::ZERO, raw_len: 9, stored: Bytes::new() });
        let name = PackRef { origin: 0, born: 1, session: Session(2), number: 3 };
        let node = builder.push_node(name, Bytes::from_static(b"a node"));
        assert_eq!((node.offset, node.len), (29, 6));
        Bytes::from(builder.finish()).to_vec()
    }

    #[test]
    fn a_pack_is_verified_alone_and_every_bit_counts() {
        let mut bytes = pack();
        let report = verify_pack(&bytes, &mut Workspace::new()).unwrap();
        assert_eq!(report, PackReport { frames: 1, nodes: 1, raw: 21, stored: 27 });
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(verify_pack(&bytes, &mut Workspace::new()).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        for cut in 0..bytes.len() {
            assert!(verify_pack(&bytes[..cut], &mut Workspace::new()).is_err(), "{cut} bytes");
        }
    }
}
