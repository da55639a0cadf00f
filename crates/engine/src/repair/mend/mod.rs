//! Repairs a map store before the pool is opened, when `check --repair` asks for it: damaged
//! descriptors, map records and usage pages, each of which keeps a pool from being opened.
//!
//! 1. *Find*: all descriptors, records and usage pages are decoded, and compared with the
//!    checkpoint's counts. The checkpoint, and changes stored by light checkpoints, must be whole;
//!    otherwise only `salvage` helps.
//! 2. *Descriptors*, damaged and missing ones, are restored from the catalogue and the log entries
//!    after it, as of the checkpoint (`repair::mend::objects`). There is no other source.
//! 3. *Records* are rebuilt from the log, as of the checkpoint (`repair::mend::records`). Usage
//!    pages count the bytes that records refer to (`repair::mend::balance`), so missing records
//!    show there (`repair::mend::missing`), and so does data of damaged ones that the log has lost.
//!    Anything uncertain is refused.
//! 4. *Figures*, usage and those of the affected objects, are recounted from all records: a used
//!    extent must not appear to be free.
//!
//! All of it is one batch of the store, durable before the pool is opened. Before that, the
//! superblock names the features that records may have. Replay then applies the log after the
//! checkpoint as usual. Snapshots that see doubtful records get new identities when all records are
//! restored (`repair::mend::identities`).

pub(crate) mod balance;
pub(crate) mod identities;
pub(crate) mod missing;
pub(crate) mod objects;
pub(crate) mod records;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use env::MapBatch;
use format::{
    Checkpoint, KEY_CHECKPOINT, ObjectDescriptor, Record, RecordKey, Superblock, decode_usage_page, object_key,
    object_key_range, parse_object_key, parse_record_key, parse_usage_key, usage_key_range,
};
use store::base::options::PoolEnv;
use store::base::status::Problem;
use store::base::store_error::store_error;
use store::log::geometry::Geometry;
use store::log::superblock_io::{self, WithoutEnd};
use store::map::deltas::read_deltas;
use store::map::overlay::Overlay;
use store::space::usage::{Pages, put_pages, usage_bytes, usage_differs};
use surface::{Error, ErrorKind, Result};
use units::{ExtentIndex, ObjectId};

/// Upper bound of damaged records that are rebuilt in one go; with more, the store is not worth
/// trusting.
const RECORDS_MAX: usize = 10_000;

pub(crate) fn hopeless(what: impl std::fmt::Display) -> Error {
    let text = format!(
        "{what}; nothing in the map store can replace it: `shale salvage POOL --into NEW` rebuilds the pool from its log"
    );
    Error::new(ErrorKind::Corrupt, text)
}

/// The content of a store, and its faults.
#[derive(Default)]
pub(crate) struct Found {
    pub descriptors: BTreeMap<ObjectId, ObjectDescriptor>,
    /// Why each is unusable.
    pub damaged_descriptors: BTreeMap<ObjectId, String>,
    /// Objects for which the map has records.
    pub owners: BTreeSet<ObjectId>,
    pub damaged_records: BTreeMap<RecordKey, String>,
    pub damaged_pages: Vec<String>,
    pub pages: Pages,
    /// Changes stored by light checkpoints.
    pub settled: Overlay,
}

pub(crate) struct Mender<'a> {
    pub env: &'a PoolEnv,
    pub geometry: &'a Geometry,
    pub pool: u64,
    pub checkpoint: Checkpoint,
    pub found: Found,
    /// Objects whose descriptor or records come from the log.
    pub concerned: BTreeSet<ObjectId>,
    /// Records that come from the log.
    pub rebuilt: BTreeMap<RecordKey, Record>,
    /// All changes.
    pub batch: MapBatch,
    /// Findings about extents: see [`is_whole`](Self::is_whole).
    pub whole: RefCell<BTreeMap<(ExtentIndex, bool), bool>>,
    problems: Vec<Problem>,
}

/// Repairs the map store as far as possible; returns a report of the repairs.
///
/// # Errors
/// [`ErrorKind::Corrupt`] for damage that cannot be repaired, and the errors of store and disk.
pub(crate) fn mend(env: &PoolEnv, superblock: &Superblock, geometry: &Geometry) -> Result<Vec<Problem>> {
    let pool = &superblock.pool;
    let env = &PoolEnv { disk: Arc::new(WithoutEnd(env.disk.clone())), ..env.clone() };
    let Some(bytes) = env.store.get(KEY_CHECKPOINT).map_err(store_error)? else { return Ok(Vec::new()) };
    let checkpoint = Checkpoint::decode(&bytes).map_err(|error| hopeless(format!("the {error}")))?;
    if checkpoint.pool != *pool {
        // Loading it reports the same.
        return Ok(Vec::new());
    }
    let mut id = [0; 8];
    id.copy_from_slice(&pool[..8]);
    let settled = read_deltas(&*env.store, checkpoint.deltas)?.map_err(hopeless)?.settled;
    let found = Found { settled, ..Found::default() };
    let pool = u64::from_le_bytes(id);
    let mut mender = Mender {
        env,
        geometry,
        pool,
        checkpoint,
        found,
        concerned: BTreeSet::new(),
        rebuilt: BTreeMap::new(),
        batch: MapBatch::default(),
        whole: RefCell::default(),
        problems: Vec::new(),
    };
    mender.find()?;
    mender.objects()?;
    mender.records()?;
    mender.figures()?;
    superblock_io::bring_up_to_date(&*env.disk, superblock)?;
    env.store.commit(std::mem::take(&mut mender.batch)).and_then(|()| env.store.persist()).map_err(store_error)?;
    Ok(mender.problems)
}

impl Mender<'_> {
    pub(crate) fn problem(&mut self, kind: &'static str, place: Option<(String, u64)>, detail: String) {
        self.problem_that(kind, place, detail, true);
    }

    pub(crate) fn problem_that(
        &mut self,
        kind: &'static str,
        place: Option<(String, u64)>,
        detail: String,
        repaired: bool,
    ) {
        let (volume, offset) = place.map_or((None, None), |(volume, offset)| (Some(volume), Some(offset)));
        self.problems.push(Problem { kind, volume, offset, detail, repaired, ..Problem::default() });
    }

    /// Step 1.
    fn find(&mut self) -> Result<()> {
        let found = &mut self.found;
        let store = &self.env.store;
        let (from, to) = object_key_range();
        store
            .scan(from, to, &mut |key, value| {
                let Some(id) = parse_object_key(key) else { return ControlFlow::Continue(()) };
                match ObjectDescriptor::decode(value) {
                    Ok(descriptor) if descriptor.id == id => drop(found.descriptors.insert(id, descriptor)),
                    Ok(other) => {
                        let text = format!("it is that of object {}", other.id.0);
                        found.damaged_descriptors.insert(id, text);
                    }
                    Err(error) => drop(found.damaged_descriptors.insert(id, error.to_string())),
                }
                ControlFlow::Continue(())
            })
            .map_err(store_error)?;
        found.owners = found.settled.keys().into_iter().map(|key| key.object).collect();
        store
            .scan(b"R", b"S", &mut |key, value| {
                let Some(key) = parse_record_key(key) else { return ControlFlow::Continue(()) };
                found.owners.insert(key.object);
                if let Err(error) = Record::decode(value) {
                    found.damaged_records.insert(key, error.to_string());
                }
                if found.damaged_records.len() <= RECORDS_MAX {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            })
            .map_err(store_error)?;
        if found.damaged_records.len() > RECORDS_MAX {
            return Err(hopeless(format!("more than {RECORDS_MAX} map records are damaged")));
        }
        let (from, to) = usage_key_range();
        store
            .scan(from, to, &mut |key, value| {
                match (parse_usage_key(key), decode_usage_page(value)) {
                    (Some(first), Ok(page)) => drop(found.pages.insert(first.0, page)),
                    (_, Err(error)) => found.damaged_pages.push(error.to_string()),
                    (None, Ok(_)) => {}
                }
                ControlFlow::Continue(())
            })
            .map_err(store_error)?;
        let live = usage_bytes(&found.pages, self.geometry);
        if found.damaged_pages.is_empty() && live != self.checkpoint.live_bytes {
            found.damaged_pages.push(usage_differs(live, self.checkpoint.live_bytes));
        }
        Ok(())
    }

    /// Step 4.
    fn figures(&mut self) -> Result<()> {
        if self.problems.is_empty() && self.found.damaged_pages.is_empty() {
            return Ok(());
        }
        let live = self.live(&self.rebuilt)?;
        let extents = self.geometry.extents();
        put_pages(&mut self.batch, 0..extents, |extent| live.extents.get(&extent).copied().unwrap_or(0))?;
        self.checkpoint.live_bytes = live.extents.range(..ExtentIndex(extents)).map(|(_, bytes)| bytes).sum();
        self.batch.put(KEY_CHECKPOINT, self.checkpoint.encode());
        for descriptor in self.concerned.iter().filter_map(|id| self.found.descriptors.get(id)) {
            let (allocated_blocks, stored_bytes) = live.objects.get(&descriptor.id).copied().unwrap_or_default();
            let descriptor = ObjectDescriptor { allocated_blocks, stored_bytes, ..descriptor.clone() };
            self.batch.put(object_key(descriptor.id), descriptor.encode());
        }
        for why in std::mem::take(&mut self.found.damaged_pages) {
            self.problem("usage", None, format!("{why}; live bytes were recounted from all records"));
        }
        Ok(())
    }
}
