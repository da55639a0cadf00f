//! Nodes: lists of pieces that were moved out of a record into a pack. Owns how long lists are
//! folded into nodes, how nodes are read, and how a range of a version becomes extents. Any task
//! may read; a commit's leader folds.
//!
//! Folding goes level by level: neighbouring pieces of level n and below become nodes of level n +
//! 1, until the list is short. A blob that is only appended to gets one node for each hundred or so
//! appends, and one above for each hundred of those. Spans that writes have clipped are dissolved
//! first, so that overwriting does not make the tree deeper: this is the copy-on-write of a
//! B+-tree, paid once for all writes since the last fold.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt;
use quick_cache::sync::Cache;

use crate::data::extent::{LEVEL_MAX, NODE_BYTES_MAX, NodeHash, NodeRef, Piece, Span};
use crate::data::fetch::Fetcher;
use crate::data::layout::Layout;
use crate::error::Error;
use crate::protocol::record::Record;

/// Decoded nodes kept: 20 MiB at most, the inner nodes of a blob of 10 TiB and 400 of its leaves.
const NODES_CACHED: usize = 512;
/// Nodes read at once: they are small, so latency counts.
const NODES_AT_ONCE: usize = 16;
/// Nodes that one fold reads to dissolve clipped spans; the next fold dissolves the rest.
const DISSOLVED_MAX: usize = 256;
/// Bytes of a list after a fold: half of the limit, so that the next commit does not fold again at
/// once.
pub(crate) const FOLDED_BYTES: usize = crate::data::layout::LAYOUT_BYTES_MAX / 2;

/// Moves pieces into nodes until the list takes at most `limit` bytes. `put` stores a node's bytes
/// and names it.
pub(crate) fn fold(mut pieces: Vec<Piece>, limit: usize, put: &mut dyn FnMut(Bytes) -> NodeRef) -> Vec<Piece> {
    for level in 0..LEVEL_MAX {
        if Layout::of(pieces.clone()).encoded_bytes() <= limit {
            break;
        }
        let mut folded = Vec::new();
        let mut run: Vec<Piece> = Vec::new();
        for piece in pieces {
            if piece.level() <= level {
                run.push(piece);
            } else {
                fold_run(std::mem::take(&mut run), level, &mut folded, put);
                folded.push(piece);
            }
        }
        fold_run(run, level, &mut folded, put);
        pieces = folded;
    }
    pieces
}

/// Makes nodes of a run of neighbours; a single piece stays as it is.
fn fold_run(run: Vec<Piece>, level: u8, folded: &mut Vec<Piece>, put: &mut dyn FnMut(Bytes) -> NodeRef) {
    let mut node: Vec<Piece> = Vec::new();
    let mut bytes = 0;
    for piece in run {
        // A single piece takes at least as many bytes as it adds to a list.
        let more = Layout::of(vec![piece.clone()]).encoded_bytes();
        if bytes + more > NODE_BYTES_MAX as usize {
            make_node(std::mem::take(&mut node), level, folded, put);
            bytes = 0;
        }
        bytes += more;
        node.push(piece);
    }
    make_node(node, level, folded, put);
}

fn make_node(mut pieces: Vec<Piece>, level: u8, folded: &mut Vec<Piece>, put: &mut dyn FnMut(Bytes) -> NodeRef) {
    let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else { return };
    if pieces.len() == 1 && (level > 0 || first.level() > 0) {
        folded.append(&mut pieces);
        return;
    }
    let (start, end) = (first.start(), last.end());
    for piece in &mut pieces {
        piece.set_start(piece.start() - start);
    }
    let mut bytes = Vec::new();
    Layout::of(pieces).encode(&mut bytes);
    let node = put(bytes.into());
    folded.push(Piece::Span(Span { start, len: end - start, skip: 0, level: level + 1, node }));
}

/// Reads nodes and caches them.
#[derive(Debug)]
pub(crate) struct Tree {
    fetcher: Fetcher,
    nodes: Cache<NodeHash, Arc<Layout>>,
}

impl Tree {
    pub(crate) fn new(fetcher: Fetcher) -> Self {
        Self { fetcher, nodes: Cache::new(NODES_CACHED) }
    }

    pub(crate) const fn fetcher(&self) -> &Fetcher {
        &self.fetcher
    }

    /// Returns the visible pieces of a span's node, at their offsets; their packs have the origins
    /// that `record` gives them.
    pub(crate) async fn open(&self, record: &Record, span: &Span) -> Result<Vec<Piece>, Error> {
        let node = self.node(record, span).await?;
        let what = || format!("node at {} of pack {}", span.node.offset, span.node.pack.path());
        let mut pieces = Vec::new();
        for piece in node.overlapping(span.skip, span.skip + span.len) {
            let Some(mut piece) = piece.clip(span.skip, span.skip + span.len) else { continue };
            if piece.level() >= span.level {
                return Err(Error::damaged(
                    what(),
                    format!("its level is {}, but it has a child of level {}", span.level, piece.level()),
                ));
            }
            piece.set_start(span.start + (piece.start() - span.skip));
            if let Some(pack) = piece.pack_mut() {
                let origin = record.resolve(span.node.pack.origin, pack.origin);
                let unknown = || {
                    Error::damaged(what(), format!("it names origin {}, which the record does not know", pack.origin))
                };
                pack.origin = origin.ok_or_else(unknown)?;
            }
            pieces.push(piece);
        }
        Ok(pieces)
    }

    async fn node(&self, record: &Record, span: &Span) -> Result<Arc<Layout>, Error> {
        let read = async {
            let bytes = self.fetcher.node(record, &span.node).await?;
            let what = || format!("node at {} of pack {}", span.node.offset, span.node.pack.path());
            Layout::decode(&bytes).map(Arc::new).map_err(|source| Error::Damaged { what: what(), source })
        };
        // Concurrent readers of a node that is not cached share one read.
        self.nodes.get_or_insert_async(&span.node.hash, read).await
    }

    /// Replaces spans that `which` selects with their visible pieces, until it selects none.
    async fn dissolve(
        &self,
        record: &Record,
        mut pieces: Vec<Piece>,
        mut which: impl FnMut(&[Piece]) -> Vec<bool>,
    ) -> Result<Vec<Piece>, Error> {
        loop {
            let picked = which(&pieces);
            if !picked.contains(&true) {
                return Ok(pieces);
            }
            let opened = futures_util::stream::iter(pieces.into_iter().zip(picked)).map(|(piece, picked)| async move {
                match piece {
                    Piece::Span(span) if picked => self.open(record, &span).await,
                    piece => Ok(vec![piece]),
                }
            });
            let mut opened = opened.buffered(NODES_AT_ONCE);
            pieces = Vec::new();
            while let Some(part) = opened.next().await {
                pieces.extend(part?);
            }
        }
    }

    /// Returns the extents in `from..to`, clipped to the range. Gaps between them read as zeroes.
    pub(crate) async fn extents(&self, record: &Record, from: u64, to: u64) -> Result<Vec<Piece>, Error> {
        let top = record.layout.overlapping(from, to).iter().filter_map(|piece| piece.clip(from, to)).collect();
        self.dissolve(record, top, |pieces| pieces.iter().map(|piece| piece.level() > 0).collect()).await
    }

    /// Returns a record's pieces, with those that touch a range replaced by extents. The ranges are
    /// in ascending order and do not overlap.
    pub(crate) async fn opened_at(
        &self,
        record: &Record,
        ranges: &[std::ops::Range<u64>],
    ) -> Result<Vec<Piece>, Error> {
        let is_touched = |piece: &Piece| {
            let next = ranges.partition_point(|range| range.end <= piece.start());
            piece.level() > 0 && ranges.get(next).is_some_and(|range| range.start < piece.end())
        };
        self.dissolve(record, record.layout.pieces().to_vec(), |pieces| pieces.iter().map(is_touched).collect()).await
    }

    /// Returns the first byte in `from..to` that an extent holds. The content of a damaged node is
    /// unknown, so its range counts as data.
    pub(crate) async fn next_data(&self, record: &Record, from: u64, to: u64) -> Result<Option<u64>, Error> {
        if from >= to {
            return Ok(None);
        }
        for piece in record.layout.overlapping(from, to) {
            // Its visible pieces, from the last to the first.
            let mut ahead: Vec<Piece> = piece.clip(from, to).into_iter().collect();
            while let Some(piece) = ahead.pop() {
                let Piece::Span(span) = piece else { return Ok(Some(piece.start())) };
                match self.open(record, &span).await {
                    Ok(shown) => ahead.extend(shown.into_iter().rev()),
                    Err(error) if error.is_damage() => return Ok(Some(span.start)),
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(None)
    }

    /// Folds a record's layout: dissolves clipped spans, then makes nodes of neighbours.
    pub(crate) async fn fold(
        &self,
        record: &Record,
        put: &mut (dyn FnMut(Bytes) -> NodeRef + Send),
    ) -> Result<Vec<Piece>, Error> {
        let mut budget = DISSOLVED_MAX;
        let pieces = self.dissolve(record, record.layout.pieces().to_vec(), |pieces| {
            let mut uses: HashMap<NodeHash, usize> = HashMap::new();
            for piece in pieces {
                if let Piece::Span(span) = piece {
                    *uses.entry(span.node.hash).or_default() += 1;
                }
            }
            let mut pick = |piece: &Piece| match piece {
                Piece::Span(span) if budget > 0 && (span.skip > 0 || uses[&span.node.hash] > 1) => {
                    budget -= 1;
                    true
                }
                _ => false,
            };
            pieces.iter().map(&mut pick).collect()
        });
        Ok(fold(pieces.await?, FOLDED_BYTES, put))
    }
}
