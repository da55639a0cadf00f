//! Salvage: copies the volumes, snapshots and clones of a pool whose map is lost into another pool,
//! from its log alone. Owns the read-only pool between the two. The caller's thread does all of it;
//! the salvaged pool is only read.
//!
//! 1. to 4. Map records and objects are derived from the log (`salvage`).
//! 5. The engine's own reader works on these records and objects ([`view`]): it falls through
//!    epochs and origins, and verifies each fragment.
//! 6. Volumes are rebuilt with the public operations of the other pool ([`rebuild`]): oldest
//!    snapshot first, differences, clones from their origins. Unreadable data is left out and
//!    listed ([`faults`]).

mod faults;
mod images;
mod rebuild;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use codec::DICTIONARY_BYTES_MAX;
use env::{Disk, MapStore};
use format::{COMPAT_INVENTORY, Checkpoint, DICTIONARY_FRAME_BYTES, KEY_CHECKPOINT, dictionary_content_bytes};
use salvage::complete::{Completeness, Expected, MapMark};
use salvage::identity::{self, Identity, PoolPrefix};
use salvage::log_objects::Table;
use salvage::lost;
use salvage::records::{Facts, Figures};
use salvage::report::{SalvageProgress, SalvageReport, SalvageStep};
use salvage::scan::Scan;
use salvage::witness::Witness;
use store::base::options::{PoolEnv, PoolOptions};
use store::log::geometry::Geometry;
use store::log::inventory;
use store::log::superblock_io::WithoutEnd;
use surface::{Error, Result};
use units::{BLOCK_BYTES, ObjectId, Seq};

use self::view::ReadOnlyDisk;
use crate::checkpoint::opening;
use crate::pool::Pool;

/// More blocks than any volume has.
const UNBOUNDED: u64 = 1 << 48;

/// Enters for each object how many of its blocks may be missing, unless the map listed them.
fn miss(figures: &mut Figures, table: &Table, expected: &Expected) {
    if expected.by_map {
        return;
    }
    match (expected.completeness, expected.objects()) {
        (Completeness::Complete | Completeness::UpTo | Completeness::NotKept, _) => {}
        (Completeness::Incomplete | Completeness::InDoubt, Some(objects)) if !expected.misses_objects => {
            for (object, blocks) in objects {
                figures.miss(*object, *blocks);
            }
        }
        // No more than a volume has room for.
        _ => table.objects.keys().for_each(|object| figures.miss(*object, UNBOUNDED)),
    }
}

/// Sources for a salvage in addition to the data file.
#[derive(Clone, Default)]
pub struct SalvageSource {
    /// The pool's identifier, if the data has traces of several.
    pub id: Option<PoolPrefix>,
    /// Its map, if there is one that can be opened. It is only read.
    pub map: Option<Arc<dyn MapStore>>,
}

/// Returns the last checkpoint of a map, if it is readable. An unreadable map is no error.
fn checkpoint_of(store: &dyn MapStore) -> Option<Checkpoint> {
    let bytes = store.get(KEY_CHECKPOINT).ok().flatten()?;
    Checkpoint::decode(&bytes).ok()
}

/// Returns the first digits of the pool identifier in a map that belongs to a pool other than the
/// data. Of a pool known from the log alone, no more digits are known.
fn other_pool(known: &Checkpoint, pool: &[u8; 16]) -> Option<String> {
    let [known, own] = [&known.pool, pool].map(|pool| pool.first_chunk::<8>());
    known.filter(|_| known != own).map(|prefix| identity::hex(prefix))
}

/// Returns the lost objects that are dictionaries, and the bytes of their contents. `old` has all
/// of them as volumes.
fn dictionaries(old: &Pool, lost: &BTreeSet<ObjectId>, scan: &Scan) -> BTreeMap<ObjectId, u64> {
    let helpers = scan.dictionaries();
    let mut found = BTreeMap::new();
    for id in lost {
        let Some(object) = old.core.objects.get(*id) else { continue };
        let padded = object.size_bytes();
        if padded > (DICTIONARY_BYTES_MAX + DICTIONARY_FRAME_BYTES).next_multiple_of(BLOCK_BYTES) as u64 {
            continue;
        }
        let mut content = vec![0; padded as usize];
        let is_read = old.core.reads.read(&object, 0, &mut content).is_ok();
        let bytes = dictionary_content_bytes(&content, BLOCK_BYTES).filter(|_| is_read);
        // A damaged dictionary is still entered: units that were compressed with it are then
        // reported as damaged.
        if let Some(bytes) = bytes.map(|bytes| bytes as u64).or(helpers.contains(id).then_some(padded)) {
            found.insert(*id, bytes);
        }
    }
    found
}

impl Pool {
    /// Returns the bytes that the pool on `disk` may use, if there is one that can be salvaged.
    ///
    /// # Errors
    /// [`surface::ErrorKind::NotFound`], [`surface::ErrorKind::Corrupt`],
    /// [`surface::ErrorKind::Unsupported`]; [`surface::ErrorKind::Conflict`] if there are several
    /// and none is named.
    pub fn capacity_of(disk: &dyn Disk, id: Option<PoolPrefix>) -> Result<u64> {
        Ok(identity::find(disk, id)?.superblock.capacity_bytes)
    }

    /// Rebuilds in this pool all readable data of the pool on `from.disk`, which is not changed.
    /// `from.store` is an empty store for temporary use: about 100 bytes for each fragment. After
    /// an error this pool holds only a part.
    ///
    /// # Errors
    /// [`surface::ErrorKind::NotFound`] without a superblock, [`surface::ErrorKind::Corrupt`] if
    /// both copies are damaged, and the errors of the temporary store, of this pool and of
    /// `progress`, [`surface::ErrorKind::Full`] among them. Damage in the other pool is reported,
    /// not returned.
    pub fn salvage(
        &self,
        from: &PoolEnv,
        options: &PoolOptions,
        progress: SalvageProgress<'_>,
    ) -> Result<SalvageReport> {
        self.salvage_of(&SalvageSource::default(), from, options, progress)
    }

    /// Like [`salvage`](Self::salvage), with given facts about the pool.
    ///
    /// # Errors
    /// The same, and [`surface::ErrorKind::Conflict`] if there are several pools and none is named.
    pub fn salvage_of(
        &self,
        source: &SalvageSource,
        from: &PoolEnv,
        options: &PoolOptions,
        progress: SalvageProgress<'_>,
    ) -> Result<SalvageReport> {
        let env = PoolEnv { disk: Arc::new(ReadOnlyDisk(Arc::new(WithoutEnd(from.disk.clone())))), ..from.clone() };
        // Step 1.
        let Identity { mut superblock, origin_note } = identity::find(&*env.disk, source.id)?;
        if let Some(map) = source.map.as_ref().filter(|_| origin_note.is_some()) {
            superblock = identity::completed(superblock, &**map);
        }
        let is_kept = origin_note.is_some() || superblock.features_compat & COMPAT_INVENTORY != 0;
        let geometry = Geometry::new(superblock.extent_bytes, superblock.capacity_bytes);
        let mut id = [0; 8];
        id.copy_from_slice(&superblock.pool[..8]);
        // Step 2.
        let (mut scan, mut facts) = (Scan::default(), Facts::new(&*env.store));
        let pool = u64::from_le_bytes(id);
        let known = source.map.as_ref().and_then(|map| checkpoint_of(&**map));
        let mark = known.as_ref().filter(|known| known.pool == superblock.pool).map(MapMark::of);
        let witness = source.map.as_ref().filter(|_| mark.is_some());
        let witness = witness.map(|map| Witness::of(map, &superblock.pool, &geometry)).transpose();
        let (witness, unbelieved) = witness.map_or_else(|why| (None, Some(why)), |witness| (witness, None));
        scan.expected = Expected::by(inventory::read(&*env.disk, pool, geometry.extent_bytes), is_kept, mark);
        if let Some(witness) = &witness {
            witness.enter_openings(&mut scan.log_objects.openings);
        }
        scan.read_all(&*env.disk, &geometry, pool, &mut |fact| facts.put(&fact), &mut |done, total| {
            progress(SalvageStep::Scan, done, total)
        })?;
        let noted = opening::read_note(&*env.disk, superblock.pool).unwrap_or(0);
        scan.finish(noted);
        if let Some(witness) = &witness {
            scan.finish_by_map(witness, noted);
        }
        scan.expected.by_map &= witness.is_some();
        let witness = witness.as_ref().filter(|_| scan.expected.by_map);
        // Step 4 comes before step 3, which leaves out data that no point needs.
        let (mut logged, mut by_map) = (scan.log_objects.table(Seq(u64::MAX)), None);
        // The map has less about rollbacks: it has already forgotten undone epochs, which the log
        // still has.
        let is_short = logged.as_of.is_none() || logged.is_outdated || scan.expected.misses_objects;
        if let Some(witness) = witness.filter(|_| is_short || scan.expected.is_gone) {
            let text = "the catalogue in the log may be damaged: names, sizes and snapshots are those of the map";
            by_map = Some(text.to_owned());
            logged = scan.log_objects.table_since(witness.table());
            scan.expected.misses_objects = false;
        }
        let mut report = SalvageReport::new(&geometry, &scan, &logged);
        report.notes.extend(origin_note.into_iter().chain(by_map));
        if let Some(other) = known.and_then(|known| other_pool(&known, &superblock.pool)) {
            report.note_other_pool(&other, &identity::hex(&id), source.id.is_some());
        }
        report.notes.extend(unbelieved.map(|why| format!("the map is not used, because it is damaged: {why}")));
        let length =
            env.disk.size_bytes().map_err(|e| Error::from_io("the size of the data cannot be determined", e))?;
        report.note_length(length, &geometry);
        let (mut table, mut lost) = lost::complete(logged, &scan);
        facts.spread(&scan, |object| lost::chain(&table, object))?;
        let objects = table.objects.len() as u64;
        let mut figures = facts.resolve(&scan, &table, witness, &mut |object| {
            progress(SalvageStep::Map, table.objects.range(..=object).count() as u64, objects)
        })?;
        miss(&mut figures, &table, &scan.expected);
        // Steps 5 and 6.
        let mut old = view::view(env.clone(), &superblock, &table, options)?;
        let dictionaries = dictionaries(&old, &lost, &scan);
        if !dictionaries.is_empty() {
            lost::enter_dictionaries(&mut table, &mut lost, dictionaries);
            old = view::view(env, &superblock, &table, options)?;
        }
        rebuild::rebuild(&old, self, &lost, &figures, &mut report, progress)?;
        Ok(report)
    }
}
