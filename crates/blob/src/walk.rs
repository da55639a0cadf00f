//! Which packs a version names, through its nodes: what GC and a remover need. Owns no cache but the names of nodes that it has
//! seen, which never change what they hold.

use std::collections::{BTreeSet, HashSet};

use format::FormatError;
use object_store::ObjectStoreExt;

use crate::error::Error;
use crate::extent::{NodeHash, NodeRef, PackRef, Piece};
use crate::layout::Layout;
use crate::log::Log;
use crate::record::Record;
use crate::world::READ_TRIES;

/// The packs of a blob that versions of it name.
#[derive(Debug, Default)]
pub(crate) struct Named {
    pub(crate) packs: BTreeSet<PackRef>,
    nodes: HashSet<NodeHash>,
}

impl Named {
    /// Returns what versions name; those whose records are tombstones name nothing.
    pub(crate) async fn by(log: &Log, versions: Vec<u64>) -> Result<Self, Error> {
        let mut named = Self::default();
        for seq in versions {
            let record = log.known(seq).await?;
            if !record.tombstone {
                named.add(log, &record).await?;
            }
        }
        Ok(named)
    }

    /// Adds the packs of the blob itself that a record names. Packs of origins are theirs to delete, and so are the nodes in them, which
    /// cannot name a pack of this blob.
    pub(crate) async fn add(&mut self, log: &Log, record: &Record) -> Result<(), Error> {
        let mut layouts = vec![record.layout.clone()];
        while let Some(layout) = layouts.pop() {
            for piece in layout.pieces() {
                let Some(pack) = piece.pack().filter(|pack| pack.origin == 0) else { continue };
                self.packs.insert(pack);
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
        let failed = match log.world.store.get_range(&path, range.clone()).await {
            Err(object_store::Error::NotFound { .. }) => Error::Lost { path: path.to_string() },
            Err(source) => Error::store(format!("reading {what}"), source),
            Ok(bytes) if NodeHash::of(&bytes) == node.hash => {
                return Layout::decode(&bytes).map_err(|source| Error::Damaged { what, source });
            }
            Ok(_) => {
                let source = FormatError::new("node of a blob", "its bytes have another hash than its name says");
                Error::Damaged { what: what.clone(), source }
            }
        };
        tries += 1;
        if tries == READ_TRIES {
            return Err(failed);
        }
        log.world.pause(tries).await;
    }
}
