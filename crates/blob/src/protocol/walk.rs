//! The packs that a version names, directly and through its nodes, for GC and removal; optionally
//! the frames in them, for an audit. Owns no cache but the set of nodes that it has seen, whose
//! content never changes. Used by one task.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::RangeInclusive;

use format::FormatError;
use object_store::ObjectStoreExt;

use crate::data::extent::{Extent, Frame, NodeHash, NodeRef, PackRef, Piece, Place};
use crate::data::layout::Layout;
use crate::data::pack::FrameSet;
use crate::error::Error;
use crate::protocol::log::Log;
use crate::protocol::record::Record;
use crate::store::backend::READ_TRIES;
use crate::store::store_errors::is_absent;

/// The packs of a blob that versions of it name.
#[derive(Debug, Default)]
pub(crate) struct Named {
    pub(crate) packs: BTreeSet<PackRef>,
    nodes: HashSet<NodeHash>,
    watch: Option<Watch>,
}

/// The frames that versions name in some packs.
#[derive(Debug)]
struct Watch {
    packs: RangeInclusive<PackRef>,
    frames: BTreeMap<PackRef, FrameSet>,
    /// Remaining capacity for frames.
    left: usize,
}

impl Watch {
    fn see(&mut self, extent: &Extent) {
        let Place::Pack { pack, offset } = extent.place else { return };
        if pack.origin != 0 || self.left == 0 || !self.packs.contains(&pack) {
            return;
        }
        let (frames, mut at) = (self.frames.entry(pack).or_default(), offset);
        for frame in &extent.frames {
            let Frame { stored, codec, crc } = *frame;
            if stored > 0 && frames.insert((at, stored, codec, crc)) {
                self.left = self.left.saturating_sub(1);
            }
            at = at.saturating_add(stored);
        }
    }
}

impl Named {
    /// Returns the packs that versions name. Versions whose records are tombstones name nothing.
    pub(crate) async fn by(log: &Log, versions: Vec<u64>) -> Result<Self, Error> {
        let mut named = Self::default();
        for seq in versions {
            let record = log.read_existing(seq).await?;
            if !record.tombstone {
                named.add(log, &record).await?;
            }
        }
        Ok(named)
    }

    /// Starts empty, and will collect the frames named in a range of packs, if there are fewer than
    /// `most`.
    pub(crate) fn watching(packs: RangeInclusive<PackRef>, most: usize) -> Self {
        Self { watch: Some(Watch { packs, frames: BTreeMap::new(), left: most }), ..Self::default() }
    }

    /// Returns the frames named in the watched packs; `None` if there are too many, or no packs
    /// were watched.
    pub(crate) fn frames(&mut self) -> Option<BTreeMap<PackRef, FrameSet>> {
        self.watch.take().filter(|watch| watch.left > 0).map(|watch| watch.frames)
    }

    /// Adds the blob's own packs that a record names. Packs of origins, and the nodes in them,
    /// belong to the origins and cannot name a pack of this blob.
    pub(crate) async fn add(&mut self, log: &Log, record: &Record) -> Result<(), Error> {
        let mut layouts = vec![record.layout.clone()];
        while let Some(layout) = layouts.pop() {
            for piece in layout.pieces() {
                let Some(pack) = piece.pack().filter(|pack| pack.origin == 0) else { continue };
                self.packs.insert(pack);
                if let (Some(watch), Piece::Extent(extent)) = (&mut self.watch, piece) {
                    watch.see(extent);
                }
                if let Piece::Span(span) = piece
                    && self.nodes.insert(span.node.hash)
                {
                    layouts.push(read_node(log, &span.node).await?);
                }
            }
        }
        Ok(())
    }
}

async fn read_node(log: &Log, node: &NodeRef) -> Result<Layout, Error> {
    let path = log.key.pack(log.inc, &node.pack);
    let what = format!("node at byte {} of {path}", node.offset);
    let range = u64::from(node.offset)..u64::from(node.offset) + u64::from(node.len);
    let mut tries = 0;
    loop {
        let failed = match log.backend.store.get_range(&path, range.clone()).await {
            Err(error) if is_absent(&error) => Error::Lost { path: path.to_string() },
            Err(source) => Error::store(format!("reading {what}"), source),
            Ok(bytes) if NodeHash::of(&bytes) == node.hash => {
                return Layout::decode(&bytes).map_err(|source| Error::Damaged { what, source });
            }
            Ok(_) => {
                let source = FormatError::new("node of a blob", "its hash does not match its name");
                Error::Damaged { what: what.clone(), source }
            }
        };
        tries += 1;
        if tries == READ_TRIES {
            return Err(failed);
        }
        log.backend.pause(tries).await;
    }
}
