//! Loads a pool's last checkpoint from its map store: the checkpoint itself, and the descriptors,
//! usage pages and deltas that it counts. Owns no state; an opening and `salvage` call it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use env::MapStore;
use format::{
    BATCH_ALIGN, Checkpoint, KEY_CHECKPOINT, ObjectDescriptor, OpenExtent, decode_usage_page, object_key_range,
    parse_object_key, parse_usage_key, usage_key_range,
};
use surface::{Error, ErrorKind, Result};
use units::ExtentIndex;

use crate::base::store_error::store_error;
use crate::log::geometry::Geometry;
use crate::map::deltas::{Deltas, read_deltas};
use crate::space::usage::{Pages, usage_bytes, usage_differs};

/// State loaded from the map store.
pub struct Loaded {
    pub checkpoint: Checkpoint,
    pub objects: Vec<ObjectDescriptor>,
    pub usage: Pages,
    /// Changes that light checkpoints stored apart from the records.
    pub deltas: Deltas,
}

fn damaged(error: format::FormatError) -> Error {
    let text = "the pool's metadata is damaged (`check --repair` repairs it, or reports another remedy)";
    Error::with_source(ErrorKind::Corrupt, text, error)
}

fn gone(what: String) -> Error {
    let text = format!(
        "the pool's metadata is damaged: {what} (`check --repair` repairs it, or reports another \
         remedy)"
    );
    Error::new(ErrorKind::Corrupt, text)
}

/// Loads the last checkpoint from the map store.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if it is missing, damaged, or that of another pool, and if descriptors,
/// usage pages or deltas are missing that it counts.
pub fn load(store: &dyn MapStore, pool: &[u8; 16], geometry: &Geometry) -> Result<Loaded> {
    let Some(bytes) = store.get(KEY_CHECKPOINT).map_err(store_error)? else {
        let text = "the map store holds no checkpoint: the metadata directory is not that of this pool, or `init` was interrupted";
        return Err(Error::new(ErrorKind::Corrupt, text));
    };
    let checkpoint = Checkpoint::decode(&bytes).map_err(damaged)?;
    if checkpoint.pool != *pool {
        let text = "the metadata directory and the data file belong to different pools: restore the matching \
             one; a data file alone is enough for: shale salvage DATA --into NEW";
        return Err(Error::new(ErrorKind::Corrupt, text));
    }
    let mut known = BTreeSet::new();
    let is_new = |e: ExtentIndex| e.0 > 0 && e.0 < geometry.extents() && known.insert(e);
    let beyond =
        |open: &OpenExtent| open.offset > geometry.extent_bytes || !(open.offset as usize).is_multiple_of(BATCH_ALIGN);
    if !checkpoint.log_extents().all(is_new) || known.is_empty() || checkpoint.open.iter().flatten().any(beyond) {
        return Err(Error::new(ErrorKind::Corrupt, "the checkpoint lists extents that do not exist, or one twice"));
    }
    let mut objects = Vec::new();
    let mut failure = None;
    let mut misplaced = None;
    let (from, to) = object_key_range();
    store
        .scan(from, to, &mut |key, value| match (parse_object_key(key), ObjectDescriptor::decode(value)) {
            (Some(id), Ok(object)) if object.id == id => {
                objects.push(object);
                ControlFlow::Continue(())
            }
            (Some(id), Ok(object)) => {
                misplaced = Some((id, object.id));
                ControlFlow::Break(())
            }
            (_, Err(error)) => {
                failure = Some(error);
                ControlFlow::Break(())
            }
            (None, _) => ControlFlow::Continue(()),
        })
        .map_err(store_error)?;
    if let Some((at, found)) = misplaced {
        return Err(gone(format!(
            "the descriptor of object {} was expected, but that of object {} was found",
            at.0, found.0
        )));
    }
    let mut usage = BTreeMap::new();
    let (from, to) = usage_key_range();
    store
        .scan(from, to, &mut |key, value| match (parse_usage_key(key), decode_usage_page(value)) {
            (Some(first), Ok(page)) => {
                usage.insert(first.0, page);
                ControlFlow::Continue(())
            }
            (_, Err(error)) => {
                failure = Some(error);
                ControlFlow::Break(())
            }
            (None, _) => ControlFlow::Continue(()),
        })
        .map_err(store_error)?;
    if let Some(error) = failure {
        return Err(damaged(error));
    }
    if objects.len() != checkpoint.objects as usize {
        return Err(gone(objects_differ(objects.len(), checkpoint.objects)));
    }
    let live = usage_bytes(&usage, geometry);
    if live != checkpoint.live_bytes {
        return Err(gone(usage_differs(live, checkpoint.live_bytes)));
    }
    let deltas = read_deltas(store, checkpoint.deltas)?.map_err(gone)?;
    Ok(Loaded { checkpoint, objects, usage, deltas })
}

pub fn objects_differ(found: usize, expected: u32) -> String {
    format!("there are descriptors of {found} objects, expected {expected}")
}
