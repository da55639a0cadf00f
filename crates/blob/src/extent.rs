//! What a version's bytes are made of: frames, extents of frames in one pack, spans that stand for a node's content, and the
//! names of packs and nodes. Owns how a range is clipped out of them without reading anything. Their bytes are in `layout`.

use bytes::Bytes;

/// Bytes of data in a frame; only the last frame of a write may have less. A frame is one unit of policy and codec, and as
/// large as a group of a pool, so that a pool can take it as it is stored.
pub const FRAME_BYTES: u32 = codec::UNIT_BYTES_MAX as u32;

/// Frames in an extent: what a pack of 64 MiB holds when none of them shrinks, four times over for those that do.
pub const EXTENT_FRAMES_MAX: usize = 2048;

/// Bytes of an encoded node: two requests' worth of latency at most, and a fan-out of about 500 spans.
pub const NODE_BYTES_MAX: u32 = 32 << 10;

/// Levels of nodes: with a fan-out of 100 or more, far more than the largest blob needs.
pub const LEVEL_MAX: u8 = 12;

/// The random name of one upload session: 128 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Session(pub u128);

/// Names a pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PackRef {
    /// Which incarnation it belongs to: 0 is the blob's own, others are numbers in the record's list of origins (clones).
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

/// One frame as it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Bytes in the pack, below 2^24. None: the frame is all zeroes.
    pub stored: u32,
    /// Number of its codec in the format.
    pub codec: codec::CodecId,
    /// `format::fragment_checksum` of the stored bytes as those of object 0, epoch 0, block 0.
    pub crc: u32,
}

impl Frame {
    /// A frame of zeroes, which takes no bytes.
    pub const ZERO: Self = Self { stored: 0, codec: codec::CodecId::RAW, crc: 0 };

    /// Whether it is all zeroes.
    pub const fn is_zero(&self) -> bool {
        self.stored == 0
    }
}

/// Where the stored bytes of an extent are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// In a pack, one frame behind the other.
    Pack {
        /// The pack.
        pack: PackRef,
        /// Byte of the pack where the first frame begins.
        offset: u32,
    },
    /// In the record itself: the stored bytes of all frames, for appends of a few KiB.
    Inline(Bytes),
}

/// A run of frames in one place, and the part of them that shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extent {
    /// Byte of the blob (or of the node's content) where it begins.
    pub start: u64,
    /// Bytes of data that show.
    pub len: u64,
    /// Bytes of the first frame's data that do not show; less than the frame has.
    pub skip: u32,
    /// Bytes of data in the last frame, 1 to [`FRAME_BYTES`]; all others have [`FRAME_BYTES`].
    pub tail: u32,
    /// Where the frames are.
    pub place: Place,
    /// The frames, 1 to [`EXTENT_FRAMES_MAX`].
    pub frames: Vec<Frame>,
}

impl Extent {
    /// Returns bytes of data in frame `index`.
    pub fn raw_len(&self, index: usize) -> u32 {
        if index + 1 == self.frames.len() { self.tail } else { FRAME_BYTES }
    }

    /// Returns the bytes that all its frames take.
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
    /// Hashes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(xxhash_rust::xxh3::xxh3_128(bytes))
    }
}

/// Names a node: a list of pieces that was moved out of a record. The hash makes the record authenticate all below it.
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

/// A range whose pieces are in a node. Their starts count from the node's own beginning: so a span can be shifted (an append
/// that lost a race) and clipped (a write over it) without reading the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Byte of the blob (or of the parent's content) where it begins.
    pub start: u64,
    /// Bytes of data that show.
    pub len: u64,
    /// Bytes of the node's content in front of those.
    pub skip: u64,
    /// 1 if the node holds extents only, else one more than the highest level of its spans; at most [`LEVEL_MAX`]. A reader
    /// that finds a level that does not fall refuses the node, so no damage makes it walk for ever.
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

    /// Returns bytes of data that show; never 0.
    pub const fn len(&self) -> u64 {
        match self {
            Self::Extent(extent) => extent.len,
            Self::Span(span) => span.len,
        }
    }

    /// Tells whether nothing shows; never so in a layout.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the byte behind it.
    pub const fn end(&self) -> u64 {
        self.start() + self.len()
    }

    /// Returns 0 for an extent, the level of a span.
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

    /// Returns the pack that it names, to give it another origin.
    pub const fn pack_mut(&mut self) -> Option<&mut PackRef> {
        match self {
            Self::Extent(Extent { place: Place::Pack { pack, .. }, .. }) => Some(pack),
            Self::Extent(_) => None,
            Self::Span(span) => Some(&mut span.node.pack),
        }
    }

    /// Returns the part of it from `from` to before `to`; `None` if they have no byte in common.
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
