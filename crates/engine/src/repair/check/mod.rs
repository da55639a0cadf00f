//! `check`: reads and verifies every structure and every checksum, and compares the map with its
//! own counts.

pub(crate) mod catalogue;
pub(crate) mod data;
pub(crate) mod history;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use env::MapBatch;
use format::{
    Checkpoint, FragmentRef, KEY_CHECKPOINT, KEY_LEARNED, ObjectDescriptor, Record, RecordKey, decode_learned,
    object_key, object_key_range, parse_object_key, parse_record_key, record_key,
};
use store::base::group::GroupKey;
use store::base::status::{CheckReport, CleanMark, Problem};
use store::base::store_error::store_error;
use store::log::{superblock_copies, superblock_io};
use store::map::Piece;
use store::objects::Object;
use store::space::rule::Rule;
use store::space::usage::{put_pages, usage_of_extent};
use surface::Result;
use units::{BLOCK_BYTES, Epoch, ExtentIndex, ObjectId};

use crate::clean::round::Round;
use crate::pool::Pool;
use crate::read::damage_owners::{Concerned, Place};
use crate::repair::Repairs;

/// Map records in memory at the same time.
const RECORDS_MAX: usize = 4096;

/// Rounds of the cleaner for an extent with damaged headers: one moves it, if a checkpoint has made
/// room; other rounds may be running.
const EVACUATION_ROUNDS_MAX: usize = 8;

/// A fragment to verify: the key of its record, and its fields there.
pub(crate) struct Entry {
    pub key: RecordKey,
    pub piece: Piece,
}

/// Fragments that records refer to in one extent.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counted {
    pub live_bytes: u64,
    pub fragments: u64,
}

/// An extent with damaged headers.
pub(crate) struct DamagedHeaders {
    pub extent: ExtentIndex,
    /// Readable fragments that no header names.
    pub unnamed: usize,
    /// Unreadable live bytes there: they stay.
    pub damaged_bytes: u64,
}

pub(crate) struct Checker<'a> {
    pub parts: &'a Repairs,
    pub report: CheckReport,
    pub counted: BTreeMap<ExtentIndex, Counted>,
    pub repair: bool,
    pub done_bytes: u64,
    /// Extents with damaged headers.
    pub headers: Vec<DamagedHeaders>,
    /// Problems that were repaired before the pool was opened.
    mended: u64,
    /// Damaged fragments of which another copy is intact: repaired at the end of the check.
    pub copied: Copied,
}

/// Damaged fragments that can be repaired from another copy.
#[derive(Default)]
pub(crate) struct Copied {
    pub count: u64,
    /// Those in the report's list of problems, with their positions there.
    pub listed: Vec<(usize, Entry)>,
}

impl Pool {
    /// Verifies everything. The pool should be idle: data written during the check may be reported
    /// as missing. `progress` gets bytes done and bytes to do.
    ///
    /// Repairs made while the pool was opened with [`repair`](crate::PoolOptions::repair) are
    /// listed first. With `repair`, a damaged superblock copy is rewritten, usage counts are
    /// corrected, and damaged records are removed and named in the report; their blocks then show
    /// older data of snapshots and origins, or zeroes. Live data next to damaged headers is moved
    /// to other extents, where the log alone can find it again.
    ///
    /// # Errors
    /// When the check itself cannot go on; damage is reported, not returned.
    pub fn check(&self, repair: bool, progress: &mut dyn FnMut(u64, u64)) -> Result<CheckReport> {
        // Clones may still hold records that they no longer need. These are not damage: reap them
        // first.
        self.core.objects.begin_circles();
        self.core.history.flush_and_checkpoint()?;
        // An object whose clones were reparented would be destroyed, unseen, and still there.
        let passing_on = self.core.history.passed_on.lock();
        while self.core.objects.has_reaping() {
            self.core.checkpoints.take()?;
        }
        // No checkpoint may move anything while the map is being read.
        let still = self.core.checkpoints.take_and_hold()?;
        let notes = std::mem::take(&mut *self.core.repairs.opening_notes.lock());
        let log_end = self.core.repairs.losses.lock().end.clone();
        let mut report = CheckReport { log_end, notes, ..CheckReport::default() };
        std::mem::take(&mut *self.core.repairs.mended.lock()).into_iter().for_each(|problem| report.add(problem));
        let mut checker = Checker {
            parts: &self.core.repairs,
            mended: report.problems_total,
            report,
            counted: BTreeMap::new(),
            headers: Vec::new(),
            copied: Copied::default(),
            repair,
            done_bytes: 0,
        };
        checker.superblock()?;
        checker.store()?;
        checker.objects()?;
        checker.records()?;
        checker.data(progress)?;
        checker.usage()?;
        checker.history()?;
        checker.catalogue()?;
        checker.costs()?;
        if repair {
            self.core.vitals.env.store.persist().map_err(store_error)?;
        }
        let Checker { mut report, headers, copied, .. } = checker;
        drop((still, passing_on));
        // Moving an extent's data elsewhere repairs fragments as well.
        let before = self.core.vitals.counters.repaired_fragments.get();
        for headers in headers {
            let repaired = repair && self.core.repairs.evacuate(&headers)?;
            if !repaired {
                self.core.reads.suspects.note_extent(headers.extent);
            }
            let detail = headers.words(self.core.geometry.start(headers.extent), repair, repaired);
            report.add(Problem { kind: "header", detail, repaired, ..Problem::default() });
        }
        // So that `status` knows of it, too. Damage that has another copy is repaired by that.
        self.core.repairs.enter_suspects()?;
        let repaired = self.core.vitals.counters.repaired_fragments.get() - before;
        self.core.repairs.withdraw(&copied, repaired, &mut report)?;
        Ok(report)
    }
}

impl DamagedHeaders {
    /// Describes the damaged headers, and the result of a repair if one was asked for.
    fn words(&self, start: u64, repair: bool, repaired: bool) -> String {
        let fragments = match self.unnamed {
            1 => "1 fragment".to_owned(),
            count => format!("{count} fragments"),
        };
        let then = match (repair, repaired) {
            (false, _) => "shale check --repair moves all readable data elsewhere",
            (true, true) => "all readable data was moved elsewhere",
            (true, false) => "not all readable data could be moved elsewhere: copy it (shale export, shale send)",
        };
        format!(
            "headers in the extent at byte {start} of the data file are damaged: {fragments} can still be read, \
             but not be found without the map, and not by salvage: {then}"
        )
    }
}

impl Repairs {
    /// Corrects the report on fragments that were not repaired, although another copy was intact.
    /// Those in its list are looked up; of the others only the number is known, from that of all
    /// that were `repaired`.
    fn withdraw(&self, copied: &Copied, repaired: u64, report: &mut CheckReport) -> Result<()> {
        let mut listed_left = 0;
        for (position, entry) in &copied.listed {
            if self.is_in_use(entry)?
                && let Some(problem) = report.problems.get_mut(*position)
            {
                problem.repaired = false;
                listed_left += 1;
            }
        }
        let listed = copied.listed.len() as u64;
        let unlisted_repaired = repaired.saturating_sub(listed - listed_left);
        report.problems_left += listed_left + (copied.count - listed).saturating_sub(unlisted_repaired);
        Ok(())
    }

    /// Returns whether a fragment still has live blocks where the check has found it.
    fn is_in_use(&self, entry: &Entry) -> Result<bool> {
        let RecordKey { object, group, epoch } = entry.key;
        let Some(object) = self.objects.get(object) else { return Ok(false) };
        let fragment = &entry.piece.fragment;
        let same = |found: &FragmentRef| (found.stored, found.checksum) == (fragment.stored, fragment.checksum);
        let key = GroupKey { object: object.id, group };
        let live = self.map.lives_at(key, object.epoch(), epoch, fragment.location, same)?;
        Ok(!live.is_empty())
    }

    /// Moves all readable live data out of an extent. Returns whether the extent is empty
    /// afterwards. Extents that the log has open or listed stay as they are.
    fn evacuate(&self, headers: &DamagedHeaders) -> Result<bool> {
        let extent = headers.extent;
        let within = (extent, ExtentIndex(extent.0 + 1));
        let filled_by = CleanMark::NEVER;
        let away = Rule {
            live_max: u32::MAX,
            greedy: false,
            within,
            filled_by,
            away: true,
            despite_damage: true,
            recodes: false,
        };
        for _ in 0..EVACUATION_ROUNDS_MAX {
            let round = self.clean.clean_round_shared(away)?;
            self.checkpoints.take()?;
            if !matches!(round, Round::Cleaned { .. } | Round::NeedsCheckpoint | Round::Busy) {
                break;
            }
            if u64::from(self.space.extents.lock().live_of(extent)) <= headers.damaged_bytes {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Checker<'_> {
    pub(crate) fn problem(
        &mut self,
        kind: &'static str,
        place: Option<(&Object, u64)>,
        detail: String,
        repaired: bool,
    ) {
        let volume = place.map(|(object, _)| object.title());
        let offset = place.map(|(_, offset)| offset);
        self.report.add(Problem { kind, volume, offset, detail, repaired, ..Problem::default() });
    }

    /// Like `problem_at`, for a problem that several volumes see.
    pub(crate) fn problem_seen(
        &mut self,
        kind: &'static str,
        seen: Concerned,
        offset: u64,
        detail: String,
        repaired: bool,
    ) {
        let detail = format!("{detail}{}", seen.others_suffix());
        let mut runs = seen.blocks.runs();
        let only = runs.next().filter(|_| runs.next().is_none() && kind == "fragment");
        let length = only.map(|(_, count)| u64::from(count) * BLOCK_BYTES as u64);
        let volume = Some(seen.name);
        seen.others.iter().for_each(|other| self.report.concerns(other.clone()));
        self.report.add(Problem { kind, volume, others: seen.others, offset: Some(offset), length, detail, repaired });
    }

    fn superblock(&mut self) -> Result<()> {
        let disk = &*self.parts.vitals.env.disk;
        let copies = superblock_io::read_copies(disk)?;
        let good = superblock_io::choose(&copies)?;
        for (copy, offset) in copies.iter().zip(format::SUPERBLOCK_OFFSETS) {
            let wrong = match copy {
                Ok(copy) if *copy == good => continue,
                Ok(_) => "is older than the other one".to_owned(),
                Err(error) => error.to_string(),
            };
            if self.repair {
                superblock_io::write(disk, &good)?;
            }
            self.problem("superblock", None, format!("copy at byte {offset} of the data file: {wrong}"), self.repair);
        }
        // Opening the pool has written both: any damage of them is newer.
        let end = superblock_copies::read_end(disk).filter(|(offset, _)| *offset >= good.capacity_bytes);
        let stored = superblock_copies::stored_damage(&*self.parts.vitals.env.store);
        for wrong in superblock_copies::end_damage(end.as_ref()).into_iter().chain(stored) {
            if self.repair {
                superblock_copies::write(disk, &*self.parts.vitals.env.store, &good)?;
            }
            self.problem("superblock", None, wrong, self.repair);
        }
        Ok(())
    }

    fn store(&mut self) -> Result<()> {
        if let Err(error) = self.parts.vitals.env.store.verify() {
            self.problem("map-store", None, error.to_string(), false);
        }
        Ok(())
    }

    /// The measured costs of codecs: worth reporting, although losing them does no harm.
    fn costs(&mut self) -> Result<()> {
        let store = &self.parts.vitals.env.store;
        let kept = store.get(KEY_LEARNED).map_err(store_error)?;
        let Some(Err(error)) = kept.map(|bytes| decode_learned(&bytes)) else { return Ok(()) };
        if self.repair {
            let mut batch = MapBatch::default();
            batch.delete(KEY_LEARNED);
            store.commit(batch).map_err(store_error)?;
        }
        self.problem("costs", None, format!("the learned costs of codecs: {error}"), self.repair);
        Ok(())
    }

    /// Returns the checkpoint in the store; `None` if it is missing or unreadable.
    fn last_checkpoint(&self) -> Result<Option<Checkpoint>> {
        let bytes = self.parts.vitals.env.store.get(KEY_CHECKPOINT).map_err(store_error)?;
        Ok(bytes.and_then(|bytes| Checkpoint::decode(&bytes).ok()))
    }

    /// Compares descriptors in the store with those in memory. A damaged or missing one is
    /// rewritten.
    fn objects(&mut self) -> Result<()> {
        let store = &self.parts.vitals.env.store;
        let mut wrong: BTreeMap<ObjectId, String> = BTreeMap::new();
        let mut there = BTreeSet::new();
        let (from, to) = object_key_range();
        store
            .scan(from, to, &mut |key, value| {
                let id = parse_object_key(key).unwrap_or(ObjectId(0));
                match ObjectDescriptor::decode(value) {
                    Ok(descriptor) if descriptor.id == id => drop(there.insert(id)),
                    Ok(descriptor) => drop(wrong.insert(id, format!("it is that of object {}", descriptor.id.0))),
                    Err(error) => drop(wrong.insert(id, error.to_string())),
                }
                ControlFlow::Continue(())
            })
            .map_err(store_error)?;
        // Descriptors of objects created since the checkpoint come with the next one.
        let next_object = self.last_checkpoint()?.map_or(0, |last| last.next_object);
        let mut batch = MapBatch::default();
        for object in self.parts.objects.all().into_iter().filter(|object| object.id.0 < next_object) {
            if there.contains(&object.id) {
                continue;
            }
            let why = wrong.remove(&object.id).unwrap_or_else(|| "it is missing".to_owned());
            if self.repair {
                let (allocated_blocks, stored_bytes) = object.settled();
                let descriptor = ObjectDescriptor { allocated_blocks, stored_bytes, ..object.captured() };
                batch.put(object_key(object.id), descriptor.encode());
            }
            let detail = format!("the descriptor of '{}' in the map store: {why}", object.title());
            self.problem("object", None, detail, self.repair);
        }
        for (id, why) in wrong {
            self.problem("object", None, format!("descriptor of object {}: {why}", id.0), false);
        }
        store.commit(batch).map_err(store_error)
    }

    /// Reads all records, a bounded number at a time: the fragments that they refer to are counted,
    /// and read later.
    fn records(&mut self) -> Result<()> {
        let mut from = vec![b'R'];
        loop {
            let mut page: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
            self.parts
                .vitals
                .env
                .store
                .scan(&from, b"S", &mut |key, value| {
                    page.push((key.to_vec(), value.to_vec()));
                    if page.len() < RECORDS_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
                })
                .map_err(store_error)?;
            let Some((last, _)) = page.last() else { return Ok(()) };
            from.clone_from(last);
            from.push(0);
            for (key, value) in &page {
                self.record(key, value)?;
            }
        }
    }

    fn record(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let Some(id) = parse_record_key(key) else {
            self.problem("record", None, format!("key {key:02x?} is malformed"), false);
            return Ok(());
        };
        self.report.records += 1;
        let Some(object) = self.parts.objects.get(id.object) else {
            self.problem("object", None, format!("records of object {}, which does not exist", id.object.0), false);
            return Ok(());
        };
        let offset = id.group.first_block().offset_bytes();
        let record = match Record::decode(value) {
            Ok(record) => record,
            Err(error) => {
                let place = Place { group: id.group, epoch: id.epoch, fragment: None };
                let seen = Concerned::of(&self.parts.objects, &self.parts.map, &object, place);
                let repaired = self.remove(&id)?;
                self.problem_seen("record", seen, offset, format!("128 KiB from here: {error}"), repaired);
                return Ok(());
            }
        };
        // Data cut off since a snapshot is legitimate there.
        let is_alone = object.is_live() && object.epoch() == Epoch(0);
        if offset >= object.size_bytes() && is_alone && !record.fragments.is_empty() {
            self.problem("record", Some((&object, offset)), "is past the end of the volume".to_owned(), false);
        }
        for fragment in record.fragments {
            let extent = self.parts.geometry.extent_at(fragment.location);
            let counted = self.counted.entry(extent).or_default();
            counted.live_bytes += u64::from(fragment.live_bytes());
            counted.fragments += 1;
        }
        Ok(())
    }

    fn remove(&mut self, id: &RecordKey) -> Result<bool> {
        if self.repair {
            let mut batch = MapBatch::default();
            batch.delete(record_key(id));
            self.parts.vitals.env.store.commit(batch).map_err(store_error)?;
            self.parts.map.drop_cache();
            let sees = |object: &&Arc<Object>| {
                object.levels().iter().any(|level| level.object == id.object && level.sees(id.epoch))
            };
            for object in self.parts.objects.all().iter().filter(sees) {
                if object.descriptor.read().identity.is_some() {
                    object.estrange(self.parts.vitals.new_identity()?);
                }
            }
        }
        Ok(self.repair)
    }

    /// See [`Repairs::audit_history`].
    fn history(&mut self) -> Result<()> {
        // Unreadable records are in no count, so the figures can only be those of the readable
        // ones. Repaired data is counted.
        let is_sound = self.report.problems_total == self.mended + self.copied;
        for finding in self.parts.audit_history(self.repair)? {
            if is_sound {
                let place = finding.offset.map(|offset| (&*finding.object, offset));
                self.problem("history", place, finding.text, finding.repaired);
            }
        }
        Ok(())
    }

    /// Compares the live bytes of each extent with the recount.
    fn usage(&mut self) -> Result<()> {
        let mut wrong = Vec::new();
        {
            let extents = self.parts.space.extents.lock();
            for index in 0..self.parts.geometry.extents() {
                let extent = ExtentIndex(index);
                let counted = self.counted.get(&extent).map_or(0, |counted| counted.live_bytes);
                let recorded = u64::from(extents.live_of(extent));
                if counted != recorded {
                    wrong.push((extent, recorded, counted));
                }
                if counted > 0 && extents.is_free(extent) {
                    wrong.push((extent, recorded, counted));
                }
            }
        }
        if self.repair && !wrong.is_empty() {
            self.rewrite_usage(&wrong)?;
        }
        for (extent, recorded, counted) in wrong {
            let hint = if counted < recorded {
                ": a map record is missing, and its blocks show older data or zeroes"
            } else {
                ""
            };
            let detail = format!("extent {} has {recorded} live bytes recorded, but {counted} counted{hint}", extent.0);
            self.problem("usage", None, detail, self.repair);
        }
        Ok(())
    }

    fn rewrite_usage(&mut self, wrong: &[(ExtentIndex, u64, u64)]) -> Result<()> {
        let store = &self.parts.vitals.env.store;
        let mut batch = MapBatch::default();
        let counted = |extent| self.counted.get(&extent).map_or(0, |counted| counted.live_bytes);
        put_pages(&mut batch, wrong.iter().map(|(extent, _, _)| extent.0), counted)?;
        // No checkpoint is taken during a check, so this is still the last one, and the extents
        // match it.
        let mut extents = self.parts.space.extents.lock();
        for (extent, _, counted) in wrong {
            extents.recount(*extent, usage_of_extent(*counted)?);
        }
        if let Some(mut last) = self.last_checkpoint()? {
            last.live_bytes = extents.live_bytes();
            batch.put(KEY_CHECKPOINT, last.encode());
        }
        self.parts.space.publish(&extents);
        drop(extents);
        store.commit(batch).and_then(|()| store.persist()).map_err(store_error)
    }
}
