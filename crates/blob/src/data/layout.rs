//! The layout of a version: a sorted list of pieces that do not overlap. Ranges without a piece
//! read as zeroes. The record of a version carries one, and each node holds one. Owns how a write
//! is laid over it, and its encoding. Plain values; no I/O.
//!
//! This is the design's root and overlay in one list. A commit lays its own pieces over the list
//! and clips the ones below. When the encoded list exceeds [`LAYOUT_BYTES_MAX`], a fold moves
//! neighbouring pieces into a node and replaces them with one span. A writer that loses a race lays
//! the same pieces over the newer list: nothing is read, merged or uploaded again.
//!
//! Bytes of a layout, little-endian: number of packs 2; per pack origin 2, born 8, session 16,
//! number 4; number of pieces 4; per piece its kind 1, then
//!
//! - kind 1, extent in a pack: start 8, len 8, skip 3, tail - 1 3, pack 2 (place in the list),
//!   offset 4, number of frames 2, frames;
//! - kind 2, extent in the record: start 8, len 8, skip 3, tail - 1 3, number of frames 2, frames,
//!   the stored bytes;
//! - kind 3, span: start 8, len 8, skip 8, level 1, pack 2, offset 4, length 4, hash 16.
//!
//! A frame is stored length 3, codec 1, checksum 4. Valid if and only if pieces are in ascending
//! order and do not overlap, nothing ends beyond 2^62, each extent has 1 to 2048 frames and shows
//! no more than they have, begins in its first and ends in its last frame, every pack is named in
//! the list and used, and no frame of a codec other than raw is empty.

use std::collections::BTreeSet;

use bytes::Bytes;
use codec::CodecId;
use format::{Cursor, FormatError, put_uint};

use crate::data::extent::{
    EXTENT_FRAMES_MAX, Extent, FRAME_BYTES, Frame, LEVEL_MAX, NODE_BYTES_MAX, NodeHash, NodeRef, PackRef, Piece, Place,
    Session, Span,
};

/// Encoded bytes of a record's layout at which a committer begins to fold: the size of one small
/// request. A committer that has just lost a race may commit more, up to eight times this, rather
/// than fold again.
pub const LAYOUT_BYTES_MAX: usize = 8 << 10;

/// The end of the largest possible blob: 4 EiB, so that the sum of two offsets does not overflow.
pub(crate) const END_MAX: u64 = 1 << 62;

const STRUCTURE: &str = "layout of a blob";

/// The data of an operation: pieces with offsets relative to 0, as the uploader returns them. It
/// can be laid over any layout.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Run {
    /// Sorted and not overlapping.
    pub pieces: Vec<Piece>,
    /// Bytes of data.
    pub len: u64,
}

/// The pieces of a version.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Layout {
    pieces: Vec<Piece>,
}

impl Layout {
    /// Returns its pieces, in order.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Consumes the layout and returns its pieces, in order.
    pub(crate) fn into_pieces(self) -> Vec<Piece> {
        self.pieces
    }

    /// Returns the pieces that overlap `from..to`.
    pub fn overlapping(&self, from: u64, to: u64) -> &[Piece] {
        let first = self.pieces.partition_point(|piece| piece.end() <= from);
        let last = self.pieces.partition_point(|piece| piece.start() < to);
        &self.pieces[first..last.max(first)]
    }

    /// Makes the range `from..to` a hole, which reads as zeroes.
    pub fn clear(&mut self, from: u64, to: u64) {
        self.replace(from, to, Vec::new());
    }

    /// Lays a run over the bytes from `start` on, clipping the pieces there.
    pub fn lay(&mut self, start: u64, run: &Run) {
        let shifted = run.pieces.iter().map(|piece| {
            let mut piece = piece.clone();
            piece.set_start(start + piece.start());
            piece
        });
        self.replace(start, start + run.len, shifted.collect());
    }

    /// Replaces the content of a range with `pieces`, all of which are within it.
    pub fn replace(&mut self, from: u64, to: u64, pieces: Vec<Piece>) {
        if from >= to {
            return;
        }
        let first = self.pieces.partition_point(|piece| piece.end() <= from);
        let last = self.pieces.partition_point(|piece| piece.start() < to).max(first);
        let before = self.pieces.get(first).filter(|_| first < last).and_then(|piece| piece.clip(0, from));
        let after =
            last.checked_sub(1).filter(|last| *last >= first).and_then(|last| self.pieces[last].clip(to, u64::MAX));
        self.pieces.splice(first..last, before.into_iter().chain(pieces).chain(after));
    }

    /// Creates a layout from pieces that are in order and do not overlap.
    pub fn of(pieces: Vec<Piece>) -> Self {
        debug_assert!(pieces.windows(2).all(|pair| pair[0].end() <= pair[1].start()));
        Self { pieces }
    }

    /// Returns the packs that it names directly, without those that only its nodes name.
    pub fn packs(&self) -> BTreeSet<PackRef> {
        self.pieces.iter().filter_map(Piece::pack).collect()
    }

    /// Returns the number of bytes that [`encode`](Self::encode) appends.
    pub fn encoded_bytes(&self) -> usize {
        2 + 4 + self.packs().len() * 30 + self.pieces.iter().map(piece_bytes).sum::<usize>()
    }

    /// Appends its bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let packs: Vec<PackRef> = self.packs().into_iter().collect();
        let place = |pack: &PackRef| packs.binary_search(pack).unwrap_or(0) as u64;
        put_uint(out, packs.len() as u64, 2);
        for pack in &packs {
            put_uint(out, pack.origin.into(), 2);
            put_uint(out, pack.born, 8);
            out.extend_from_slice(&pack.session.0.to_le_bytes());
            put_uint(out, pack.number.into(), 4);
        }
        put_uint(out, self.pieces.len() as u64, 4);
        for piece in &self.pieces {
            match piece {
                Piece::Extent(extent) => encode_extent(out, extent, place),
                Piece::Span(span) => {
                    put_uint(out, 3, 1);
                    for field in [span.start, span.len, span.skip] {
                        put_uint(out, field, 8);
                    }
                    put_uint(out, span.level.into(), 1);
                    put_uint(out, place(&span.node.pack), 2);
                    put_uint(out, span.node.offset.into(), 4);
                    put_uint(out, span.node.len.into(), 4);
                    out.extend_from_slice(&span.node.hash.0.to_le_bytes());
                }
            }
        }
    }

    /// Decodes the output of [`encode`](Self::encode), which must fill `bytes`.
    ///
    /// # Errors
    /// When the bytes are not a valid layout.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new(STRUCTURE, bytes);
        let packs = decode_packs(&mut cursor)?;
        let count = cursor.u32()? as usize;
        if count > cursor.remaining() {
            return Err(cursor.fail(format!("{count} pieces in {} bytes", cursor.remaining())));
        }
        let mut layout = Self::default();
        let mut end = 0;
        for _ in 0..count {
            let piece = decode_piece(&mut cursor, &packs)?;
            if piece.start() < end {
                return Err(cursor
                    .fail(format!("a piece at {} begins before {end}, where the previous one ends", piece.start())));
            }
            end = piece.end();
            layout.pieces.push(piece);
        }
        cursor.end()?;
        if layout.packs().len() != packs.len() {
            return Err(cursor.fail("the list has a pack that no piece uses"));
        }
        Ok(layout)
    }
}

fn piece_bytes(piece: &Piece) -> usize {
    match piece {
        Piece::Extent(Extent { place: Place::Pack { .. }, frames, .. }) => 31 + frames.len() * 8,
        Piece::Extent(Extent { place: Place::Inline(bytes), frames, .. }) => 25 + frames.len() * 8 + bytes.len(),
        Piece::Span(_) => 52,
    }
}

fn encode_extent(out: &mut Vec<u8>, extent: &Extent, place: impl Fn(&PackRef) -> u64) {
    put_uint(out, if matches!(extent.place, Place::Inline(_)) { 2 } else { 1 }, 1);
    put_uint(out, extent.start, 8);
    put_uint(out, extent.len, 8);
    put_uint(out, extent.skip.into(), 3);
    put_uint(out, u64::from(extent.tail.saturating_sub(1)), 3);
    if let Place::Pack { pack, offset } = &extent.place {
        put_uint(out, place(pack), 2);
        put_uint(out, (*offset).into(), 4);
    }
    put_uint(out, extent.frames.len() as u64, 2);
    for frame in &extent.frames {
        put_uint(out, frame.stored.into(), 3);
        put_uint(out, frame.codec.0.into(), 1);
        put_uint(out, frame.crc.into(), 4);
    }
    if let Place::Inline(bytes) = &extent.place {
        out.extend_from_slice(bytes);
    }
}

fn decode_packs(cursor: &mut Cursor<'_>) -> Result<Vec<PackRef>, FormatError> {
    let mut packs: Vec<PackRef> = Vec::new();
    for _ in 0..cursor.u16()? {
        let (origin, born) = (cursor.u16()?, cursor.u64()?);
        let session = Session(u128_of(cursor)?);
        let pack = PackRef { origin, born, session, number: cursor.u32()? };
        if packs.last().is_some_and(|last| *last >= pack) {
            return Err(cursor.fail("packs are not in order"));
        }
        packs.push(pack);
    }
    Ok(packs)
}

fn u128_of(cursor: &mut Cursor<'_>) -> Result<u128, FormatError> {
    let (low, high) = (cursor.u64()?, cursor.u64()?);
    Ok(u128::from(high) << 64 | u128::from(low))
}

fn decode_piece(cursor: &mut Cursor<'_>, packs: &[PackRef]) -> Result<Piece, FormatError> {
    let kind = cursor.u8()?;
    let (start, len) = (cursor.u64()?, cursor.u64()?);
    if len == 0 || start.checked_add(len).is_none_or(|end| end > END_MAX) {
        return Err(cursor.fail(format!("a piece of {len} bytes at {start}")));
    }
    let pack_of = |cursor: &mut Cursor<'_>| {
        let place = cursor.u16()?;
        packs.get(usize::from(place)).copied().ok_or_else(|| cursor.fail(format!("pack {place} of {}", packs.len())))
    };
    match kind {
        1 | 2 => decode_extent(cursor, kind == 2, (start, len), pack_of).map(Piece::Extent),
        3 => {
            let skip = cursor.u64()?;
            let level = cursor.u8()?;
            let pack = pack_of(cursor)?;
            let (offset, bytes) = (cursor.u32()?, cursor.u32()?);
            let hash = NodeHash(u128_of(cursor)?);
            if skip > END_MAX || bytes == 0 || bytes > NODE_BYTES_MAX || level == 0 || level > LEVEL_MAX {
                return Err(cursor.fail(format!("a node of level {level} and {bytes} bytes, from {skip} on")));
            }
            Ok(Piece::Span(Span { start, len, skip, level, node: NodeRef { pack, offset, len: bytes, hash } }))
        }
        _ => Err(cursor.fail(format!("a piece of kind {kind}"))),
    }
}

fn decode_extent(
    cursor: &mut Cursor<'_>,
    is_inline: bool,
    (start, len): (u64, u64),
    pack_of: impl Fn(&mut Cursor<'_>) -> Result<PackRef, FormatError>,
) -> Result<Extent, FormatError> {
    let (skip, tail) = (cursor.uint(3)? as u32, cursor.uint(3)? as u32 + 1);
    let named = if is_inline { None } else { Some((pack_of(cursor)?, cursor.u32()?)) };
    let count = usize::from(cursor.u16()?);
    if count == 0 || count > EXTENT_FRAMES_MAX || tail > FRAME_BYTES {
        return Err(cursor.fail(format!("an extent of {count} frames, the last one of {tail} bytes")));
    }
    let mut frames = Vec::with_capacity(count.min(cursor.remaining() / 8 + 1));
    for _ in 0..count {
        let (stored, codec, crc) = (cursor.uint(3)? as u32, CodecId(cursor.u8()?), cursor.u32()?);
        if stored == 0 && (codec != CodecId::RAW || crc != 0) {
            return Err(cursor.fail(format!("a frame of {codec} without bytes")));
        }
        frames.push(Frame { stored, codec, crc });
    }
    // It must begin in its first frame and end in its last one.
    let (shown, raw) = (u64::from(skip) + len, (count as u64 - 1) * u64::from(FRAME_BYTES) + u64::from(tail));
    let in_first = skip < if count == 1 { tail } else { FRAME_BYTES };
    if !in_first || shown > raw || shown <= raw - u64::from(tail) {
        return Err(cursor.fail(format!("{len} bytes from {skip} on of {count} frames that hold {raw}")));
    }
    let stored: u64 = frames.iter().map(|frame| u64::from(frame.stored)).sum();
    let place = match named {
        Some((pack, offset)) if u64::from(offset) + stored <= u64::from(u32::MAX) => Place::Pack { pack, offset },
        Some((_, offset)) => return Err(cursor.fail(format!("{stored} bytes at {offset} of a pack"))),
        None => Place::Inline(Bytes::copy_from_slice(cursor.bytes(stored as usize)?)),
    };
    Ok(Extent { start, len, skip, tail, place, frames })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: u64 = FRAME_BYTES as u64;

    /// Frames of one pack, distinguishable by their stored lengths and checksums.
    fn extent(start: u64, len: u64, number: u32) -> Piece {
        let count = len.div_ceil(FRAME) as u32;
        let frames =
            (0..count).map(|i| Frame { stored: 100 + i, codec: CodecId::LZ4, crc: number << 16 | i }).collect();
        let pack = PackRef { origin: 0, born: 7, session: Session(u128::from(number) << 90 | 5), number };
        let tail = (len - u64::from(count - 1) * FRAME) as u32;
        Piece::Extent(Extent { start, len, skip: 0, tail, place: Place::Pack { pack, offset: 64 }, frames })
    }

    fn run(len: u64, number: u32) -> Run {
        Run { pieces: vec![extent(0, len, number)], len }
    }

    /// The frame that a byte comes from, and the offset of the byte in it.
    fn bytes_of(layout: &Layout, at: u64) -> Option<(u32, u64, u32)> {
        let [Piece::Extent(extent)] = layout.overlapping(at, at + 1) else { return None };
        let position = at - extent.start + u64::from(extent.skip);
        let Place::Pack { offset, .. } = extent.place else { return None };
        let index = (position / FRAME) as usize;
        let before: u32 = extent.frames[..index].iter().map(|frame| frame.stored).sum();
        Some((extent.frames[index].crc, position % FRAME, offset + before))
    }

    #[test]
    fn writes_clip_what_is_below_and_every_byte_keeps_its_frame() {
        let mut random = 88172645463325252u64;
        let mut next = move |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        let mut layout = Layout::default();
        let mut writes: Vec<(u64, u64, u32)> = Vec::new();
        for number in 1..200 {
            let (start, len) = (next(40 * FRAME), 1 + next(if number % 3 == 0 { 9 } else { 6 * FRAME }));
            layout.lay(start, &run(len, number));
            writes.push((start, len, number));
            let mut bytes = Vec::new();
            layout.encode(&mut bytes);
            assert_eq!(bytes.len(), layout.encoded_bytes());
            assert_eq!(Layout::decode(&bytes).unwrap(), layout, "after write {number}");
            for _ in 0..50 {
                let at = next(50 * FRAME);
                let expected = writes.iter().rev().find(|(start, len, _)| (*start..start + len).contains(&at)).map(
                    |(start, _, number)| {
                        let index = ((at - start) / FRAME) as u32;
                        let offset = 64 + (0..index).map(|i| 100 + i).sum::<u32>();
                        (number << 16 | index, (at - start) % FRAME, offset)
                    },
                );
                assert_eq!(bytes_of(&layout, at), expected, "byte {at} after write {number}");
            }
        }
    }

    #[test]
    fn an_inline_extent_keeps_the_bytes_of_the_frames_that_show() {
        let frames =
            vec![Frame { stored: 3, codec: CodecId::LZ4, crc: 1 }, Frame { stored: 2, codec: CodecId::RAW, crc: 2 }];
        let place = Place::Inline(Bytes::from_static(b"abcde"));
        let piece = Piece::Extent(Extent { start: 0, len: FRAME + 2, skip: 0, tail: 2, place, frames });
        let mut layout = Layout::default();
        layout.lay(10, &Run { pieces: vec![piece], len: FRAME + 2 });
        let mut bytes = Vec::new();
        layout.encode(&mut bytes);
        assert_eq!(Layout::decode(&bytes).unwrap(), layout);
        layout.clear(0, 10 + FRAME + 1);
        let [Piece::Extent(left)] = layout.pieces() else { panic!("{layout:?}") };
        assert_eq!((left.start, left.len, left.skip, left.tail), (11 + FRAME, 1, 1, 2));
        assert_eq!(left.place, Place::Inline(Bytes::from_static(b"de")));
    }

    #[test]
    fn a_span_is_shifted_and_clipped_without_its_node() {
        let pack = PackRef { origin: 0, born: 1, session: Session(9), number: 0 };
        let node = NodeRef { pack, offset: 4, len: 99, hash: NodeHash::of(b"x") };
        let span = Piece::Span(Span { start: 0, len: 1000, skip: 0, level: 1, node });
        let mut layout = Layout::default();
        layout.lay(500, &Run { pieces: vec![span], len: 1000 });
        layout.lay(700, &run(50, 1));
        let shown: Vec<(u64, u64, u64)> = layout
            .pieces()
            .iter()
            .map(|piece| (piece.start(), piece.len(), if let Piece::Span(span) = piece { span.skip } else { 0 }))
            .collect();
        assert_eq!(shown, [(500, 200, 0), (700, 50, 0), (750, 750, 250)]);
        let mut bytes = Vec::new();
        layout.encode(&mut bytes);
        assert_eq!(Layout::decode(&bytes).unwrap(), layout);
        assert_eq!(layout.packs().len(), 2);
    }

    #[test]
    fn hostile_bytes_are_refused_and_never_panic() {
        let mut layout = Layout::default();
        layout.lay(0, &run(3 * FRAME, 1));
        layout.lay(FRAME, &run(10, 2));
        let mut bytes = Vec::new();
        layout.encode(&mut bytes);
        for cut in 0..bytes.len() {
            assert!(Layout::decode(&bytes[..cut]).is_err(), "{cut} bytes");
        }
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            // Flips in checksums, lengths and sessions still give valid layouts, which must encode
            // to the same bytes.
            if let Ok(decoded) = Layout::decode(&bytes) {
                let mut again = Vec::new();
                decoded.encode(&mut again);
                assert_eq!(again, bytes, "bit {bit}");
            }
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
