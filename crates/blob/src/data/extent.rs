//! The parts of a version: frames, extents of frames in one pack, spans that stand for the content
//! of a node, and the names of packs and nodes. Owns how they are clipped to a range, which reads
//! nothing. Their encoding is in `layout`. Plain values; no I/O.

use bytes::Bytes;

/// Bytes of data in a frame; only the last frame of a write may have fewer. A frame is one unit of
/// policy and codec, and as large as a group of a pool, so that a pool can take its stored form.
pub const FRAME_BYTES: u32 = codec::UNIT_BYTES_MAX as u32;

/// Frames in an extent: four times as many as a pack of 64 MiB holds when none of them compresses.
pub const EXTENT_FRAMES_MAX: usize = 2048;

/// Bytes of an encoded node: at most the latency of two requests, and a fan-out of about 500 spans.
pub const NODE_BYTES_MAX: u32 = 32 << 10;

/// Levels of nodes: with a fan-out of 100 or more, far more than the largest blob needs.
pub const LEVEL_MAX: u8 = 12;

/// The random name of one upload session: 128 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Session(pub u128);

/// The name of a pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PackRef {
    /// The incarnation that owns it: 0 is the blob itself, other numbers index the record's list of
    /// origins (clones).
    pub origin: u16,
    /// The head of the log when the session began.
    pub born: u64,
    /// The session that uploaded it.
    pub session: Session,
    /// Its number in the session, from 0.
    pub number: u32,
}

impl PackRef {
    /// Returns its key below `KEY/<inc>/`: `p/<born>-<session>/<number>`.
    pub fn path(&self) -> String {
        format!("p/{:020}-{:032x}/{:08}", self.born, self.session.0, self.number)
    }
}

/// A stored frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Bytes in the pack, below 2^24; 0 for a frame of zeroes.
    pub stored: u32,
    /// Number of the codec in the format.
    pub codec: codec::CodecId,
    /// `format::fragment_checksum` of the stored bytes as those of object 0, epoch 0, block 0.
    pub crc: u32,
}

impl Frame {
    /// A frame of zeroes, which takes no bytes.
    pub const ZERO: Self = Self { stored: 0, codec: codec::CodecId::RAW, crc: 0 };

    /// Returns whether it is all zeroes.
    pub const fn is_zero(&self) -> bool {
        self.stored == 0
    }
}

/// The location of an extent's stored bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// In a pack, the frames one after another.
    Pack {
        /// The pack.
        pack: PackRef,
        /// Byte of the pack where the first frame begins.
        offset: u32,
    },
    /// In the record itself: the stored bytes of all frames, for appends of a few KiB.
    Inline(Bytes),
}

/// A run of frames in one place, and the part of them that is visible.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extent {
    /// Byte of the blob (or of the node's content) where it begins.
    pub start: u64,
    /// Visible bytes of data.
    pub len: u64,
    /// Bytes of the first frame's data before the visible part; less than the frame has.
    pub skip: u32,
    /// Bytes of data in the last frame, 1 to [`FRAME_BYTES`]; all others have [`FRAME_BYTES`].
    pub tail: u32,
    /// Where the frames are.
    pub place: Place,
    /// The frames, 1 to [`EXTENT_FRAMES_MAX`].
    pub frames: Vec<Frame>,
}

impl Extent {
    /// Returns the bytes of data in frame `index`.
    pub fn raw_len(&self, index: usize) -> u32 {
        if index + 1 == self.frames.len() { self.tail } else { FRAME_BYTES }
    }

    /// Returns the stored bytes of all its frames.
    pub fn stored_len(&self) -> u64 {
        self.frames.iter().map(|frame| u64::from(frame.stored)).sum()
    }

    fn clip(&self, from: u64, to: u64) -> Self {
        let position = |at: u64| u64::from(self.skip) + (at - self.start);
        let frame = u64::from(FRAME_BYTES);
        let first = (position(from) / frame) as usize;
        let last = ((position(to) - 1) / frame) as usize;
        let before: u64 = self.frames[..first].iter().map(|frame| u64::from(frame.stored)).sum();
        let kept = self.frames[first..=last].to_vec();
        let bytes: u64 = kept.iter().map(|frame| u64::from(frame.stored)).sum();
        Self {
            start: from,
            len: to - from,
            skip: (position(from) % frame) as u32,
            tail: self.raw_len(last),
            place: match &self.place {
                Place::Pack { pack, offset } => Place::Pack { pack: *pack, offset: offset + before as u32 },
                Place::Inline(all) => Place::Inline(all.slice(before as usize..(before + bytes) as usize)),
            },
            frames: kept,
        }
    }
}

/// Hash of a node's bytes: xxh3, 128 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeHash(pub u128);

impl NodeHash {
    /// Hashes the bytes of a node.
    pub fn of(bytes: &[u8]) -> Self {
        Self(xxhash_rust::xxh3::xxh3_128(bytes))
    }
}

/// The name of a node: a list of pieces that was moved out of a record. Because of the hash, the
/// record authenticates everything below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeRef {
    /// The pack that it is in.
    pub pack: PackRef,
    /// Byte of the pack where it begins.
    pub offset: u32,
    /// Bytes, 1 to [`NODE_BYTES_MAX`].
    pub len: u32,
    /// Of these bytes.
    pub hash: NodeHash,
}

/// A range whose pieces are in a node. Their offsets are relative to the node, so a span can be
/// shifted (an append that lost a race) and clipped (a later write over it) without reading the
/// node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Byte of the blob (or of the parent's content) where it begins.
    pub start: u64,
    /// Visible bytes of data.
    pub len: u64,
    /// Bytes of the node's content before the visible part.
    pub skip: u64,
    /// 1 if the node contains extents only, else one more than the highest level of its spans; at
    /// most [`LEVEL_MAX`]. A reader refuses a node whose children do not have lower levels, so
    /// damage cannot make it loop.
    pub level: u8,
    /// The node.
    pub node: NodeRef,
}

/// An extent or a span.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Frames.
    Extent(Extent),
    /// A node's content.
    Span(Span),
}

impl Piece {
    /// Returns the byte where it begins.
    pub const fn start(&self) -> u64 {
        match self {
            Self::Extent(extent) => extent.start,
            Self::Span(span) => span.start,
        }
    }

    /// Returns the visible bytes of data; never 0.
    pub const fn len(&self) -> u64 {
        match self {
            Self::Extent(extent) => extent.len,
            Self::Span(span) => span.len,
        }
    }

    /// Returns whether nothing is visible; always false in a layout.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the byte after its last one.
    pub const fn end(&self) -> u64 {
        self.start() + self.len()
    }

    /// Returns the level of a span; 0 for an extent.
    pub const fn level(&self) -> u8 {
        match self {
            Self::Extent(_) => 0,
            Self::Span(span) => span.level,
        }
    }

    /// Returns the pack that it names; `None` if its bytes are in the record.
    pub const fn pack(&self) -> Option<PackRef> {
        match self {
            Self::Extent(Extent { place: Place::Pack { pack, .. }, .. }) => Some(*pack),
            Self::Extent(_) => None,
            Self::Span(span) => Some(span.node.pack),
        }
    }

    /// Returns the pack that it names, so that the caller can change its origin.
    pub const fn pack_mut(&mut self) -> Option<&mut PackRef> {
        match self {
            Self::Extent(Extent { place: Place::Pack { pack, .. }, .. }) => Some(pack),
            Self::Extent(_) => None,
            Self::Span(span) => Some(&mut span.node.pack),
        }
    }

    /// Returns the part of it in `from..to`; `None` if they do not overlap.
    pub fn clip(&self, from: u64, to: u64) -> Option<Self> {
        let (from, to) = (from.max(self.start()), to.min(self.end()));
        if from >= to {
            return None;
        }
        Some(match self {
            Self::Extent(extent) => Self::Extent(extent.clip(from, to)),
            Self::Span(span) => {
                Self::Span(Span { start: from, len: to - from, skip: span.skip + (from - span.start), ..*span })
            }
        })
    }

    /// Moves it to another place of the blob.
    pub const fn set_start(&mut self, start: u64) {
        match self {
            Self::Extent(extent) => extent.start = start,
            Self::Span(span) => span.start = start,
        }
    }
}
