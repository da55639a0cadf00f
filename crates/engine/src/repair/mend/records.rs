//! Rebuilds map records from the log, as of the checkpoint.
//!
//! 1. *Facts*: all extents are read, and the newest facts about these groups win
//!    ([`salvage`](salvage)). Facts after the checkpoint's position are ignored, and
//!    so are facts of undone epochs.
//! 2. *Records* follow from the facts. Records of undone epochs are removed: reaping skipped the
//!    damaged group. The batches that made holes in a record may be gone, and their extents reused.
//!    So three kinds of blocks are counted as doubtful: blocks that may have been discarded; older
//!    data that shows through a rebuilt record; and blocks that a forgotten rollback or crash may
//!    have undone. Snapshots that see such blocks get new identities when the pool is open
//!    (`repair::mend::identities`).
//! 3. *Holes* above them are restored too. The map drops a hole when no data is left below it, but
//!    a rebuilt record may again contain removed data, until it is trimmed again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use format::{
    Cut, FragmentRef, ObjectDescriptor, ObjectState, Origin, Reap, Record, RecordKey, parse_record_key, record_key,
    record_key_range,
};
use salvage::{Doubt, Fact, Rank, Resolved, Scan, counts, is_doubtful, is_whole, resolve};
use store::base::store_error::store_error;
use store::objects::timeline::points_of;
use surface::Result;
use units::{BlockMask, Epoch, ExtentIndex, GroupIndex, ObjectId};

use crate::repair::mend::Mender;
use crate::repair::mend::identities::note;

/// Groups of objects.
type Groups = BTreeSet<(ObjectId, GroupIndex)>;
/// Records as rebuilt from the log.
pub(crate) type LogRecords = BTreeMap<RecordKey, Resolved>;

/// The wanted records.
pub(crate) fn only(wanted: &BTreeMap<RecordKey, String>, log_records: &LogRecords) -> BTreeMap<RecordKey, Record> {
    let record = |key| log_records.get(key).map_or_else(Record::default, |log_records| log_records.record.clone());
    wanted.keys().map(|key| (*key, record(key))).collect()
}

impl Mender<'_> {
    /// All steps, for records that are damaged and for those that are gone.
    pub(crate) fn records(&mut self) -> Result<()> {
        let mut wanted = std::mem::take(&mut self.found.damaged_records);
        let mut log_records = self.rebuild_groups(&wanted)?;
        let missing = self.missing_records(&only(&wanted, &log_records), &self.doubtful(&wanted, &log_records))?;
        if !missing.is_empty() {
            wanted.extend(missing);
            log_records = self.rebuild_groups(&wanted)?;
        }
        self.rebuild(&wanted, log_records)
    }

    /// Returns the extents in which records have data that may have been discarded, or overwritten
    /// by a lost part of the log.
    pub(crate) fn doubtful(
        &self,
        wanted: &BTreeMap<RecordKey, String>,
        log_records: &LogRecords,
    ) -> BTreeSet<ExtentIndex> {
        wanted
            .keys()
            .filter_map(|key| log_records.get(key))
            .flat_map(|log_records| self.doubtful_of(log_records))
            .collect()
    }

    fn doubtful_of(&self, resolved: &Resolved) -> BTreeSet<ExtentIndex> {
        let fragments = resolved.record.fragments.iter().filter(|f| !f.live.and(resolved.old).is_empty());
        fragments.map(|fragment| self.geometry.extent_at(fragment.location)).collect()
    }

    /// See [`is_whole`]. Each extent is read once.
    pub(crate) fn is_whole(&self, extent: ExtentIndex, to_the_end: bool) -> bool {
        let read = || is_whole(&*self.env.disk, self.geometry, self.pool, extent, to_the_end);
        *self.whole.borrow_mut().entry((extent, to_the_end)).or_insert_with(read)
    }

    /// Steps 2 and 3.
    fn rebuild(&mut self, wanted: &BTreeMap<RecordKey, String>, mut log_records: LogRecords) -> Result<()> {
        log_records.retain(|key, _| !self.is_undone(key));
        self.rebuilt = only(wanted, &log_records);
        let mut hiding: BTreeMap<GroupIndex, BlockMask> = BTreeMap::new();
        for (key, log_records) in &log_records {
            let of_group = hiding.entry(key.group).or_default();
            *of_group = of_group.or(log_records.hiding);
        }
        for (key, why) in wanted {
            let record = &self.rebuilt[key];
            let (data, uncertain) = (record.allocated().count(), self.uncertain(key, &log_records, &hiding).count());
            // A loss at the end of an extent leaves no gap.
            let doubtful = log_records.get(key).map(|log_records| self.doubtful_of(log_records)).unwrap_or_default();
            let is_certain = doubtful.iter().all(|extent| self.is_whole(*extent, true));
            let lost = if is_certain { "" } else { ", or overwritten by a lost part of the log" };
            let detail = format!(
                "128 KiB from here: {why}; rebuilt from the log, with data in {data} blocks; of these, and of \
                 older ones that show between them, {uncertain} may have been discarded or rolled back{lost}"
            );
            let name = self.found.descriptors.get(&key.object).map(|d| d.name.clone());
            let place = name.map(|name| (name, key.group.first_block().offset_bytes()));
            self.problem_that("record", place, detail, is_certain);
            if uncertain > 0 {
                note(&mut self.batch, key);
            }
            self.forget_undone(key)?;
        }
        let above = self.above(wanted);
        let untouched = |key: &RecordKey| above.contains(&(key.object, key.group)) && !wanted.contains_key(key);
        for (key, resolved) in log_records.iter().filter(|(key, _)| untouched(key)) {
            if let Some(record) = self.with_holes(key, resolved.record.holes.minus(resolved.hiding))? {
                self.rebuilt.insert(*key, record);
            }
        }
        for (key, record) in &self.rebuilt {
            if record.is_empty() {
                self.batch.delete(record_key(key));
            } else {
                self.batch.put(record_key(key), record.encode());
            }
            // Data that the log still has, but that is no longer needed, is reaped from the start.
            if let Some(descriptor) = self.found.descriptors.get_mut(&key.object) {
                descriptor.reap = Some(Reap::from(GroupIndex(0)));
                self.concerned.insert(key.object);
            }
        }
        Ok(())
    }

    /// Rebuilds the groups of these records from the log, with all records that show through them
    /// or are seen through.
    pub(crate) fn rebuild_groups(&self, wanted: &BTreeMap<RecordKey, String>) -> Result<LogRecords> {
        if wanted.is_empty() {
            return Ok(LogRecords::new());
        }
        self.facts(&self.above(wanted).union(&self.below(wanted)).copied().collect())
    }

    /// Step 1.
    fn facts(&self, groups: &Groups) -> Result<LogRecords> {
        let mut facts = BTreeMap::new();
        let mut scan = Scan::default();
        scan.read_all(
            &*self.env.disk,
            self.geometry,
            self.pool,
            &mut |fact| {
                if groups.contains(&(fact.key.object, fact.key.group)) && fact.seq < self.checkpoint.next_seq {
                    facts.entry(fact.key).or_insert_with(Vec::new).push(fact);
                }
                Ok(())
            },
            &mut |_, _| Ok(()),
        )?;
        for (hole, ages) in &scan.wide {
            let groups = groups.range((hole.object, hole.first.group())..).map(|(object, group)| (*object, *group));
            let within =
                |(object, group): &(ObjectId, GroupIndex)| *object == hole.object && group.first_block().0 < hole.end();
            for (object, group) in groups.take_while(within) {
                let key = RecordKey { object, group, epoch: hole.epoch };
                for (seq, incarnation) in ages.iter().filter(|(seq, _)| *seq < self.checkpoint.next_seq) {
                    facts.entry(key).or_insert_with(Vec::new).push(hole.fact(group, *seq, *incarnation));
                }
            }
        }
        let ahead: BTreeSet<_> = self.checkpoint.extents.iter().copied().collect();
        let is_doubtful = |fact: &Fact| is_doubtful(&scan, self.found.descriptors.get(&fact.key.object), fact);
        let certain_from = scan.certain_from(self.checkpoint.next_seq);
        let doubt = Doubt { certain_from, is_doubtful: &is_doubtful };
        let is_data = |rank| matches!(rank, Rank::Intact | Rank::Damaged);
        // At the log's end there is nothing that the checkpoint knows.
        let is_ahead = |fragment: &FragmentRef| ahead.contains(&self.geometry.extent_at(fragment.location));
        let resolved = |mut facts: Vec<Fact>| {
            facts.retain(|fact| counts(&scan, fact) && !(is_data(fact.rank) && is_ahead(&fact.fragment)));
            resolve(&facts, &doubt, BlockMask::EMPTY)
        };
        Ok(facts.into_iter().map(|(key, facts)| (key, resolved(facts))).collect())
    }

    /// `hiding`: the blocks that any record of a group hides, if the doubtful data is right.
    fn uncertain(
        &self,
        key: &RecordKey,
        log_records: &LogRecords,
        hiding: &BTreeMap<GroupIndex, BlockMask>,
    ) -> BlockMask {
        let first = |object| RecordKey { object, group: key.group, epoch: Epoch(0) };
        let own = log_records.range(first(key.object)..*key);
        let newest = |origin: Origin| RecordKey { epoch: origin.epoch, ..first(origin.object) };
        let origins =
            self.origins(key.object).flat_map(|origin| log_records.range(first(origin.object)..=newest(origin)));
        let (mut uncertain, mut data) = (BlockMask::EMPTY, self.rebuilt[key].allocated());
        for (_, older) in own.chain(origins) {
            uncertain = uncertain.or(older.uncertain);
            data = data.or(older.record.allocated());
        }
        let own = log_records.get(key).map_or(BlockMask::EMPTY, |own| own.uncertain);
        let hiding = hiding.get(&key.group).copied().unwrap_or(BlockMask::EMPTY);
        own.or(uncertain.minus(self.rebuilt[key].known())).or(hiding.and(data))
    }

    /// Step 3, for one record: the record with these holes that it does not have.
    fn with_holes(&self, key: &RecordKey, holes: BlockMask) -> Result<Option<Record>> {
        let stored = self.env.store.get(&record_key(key)).map_err(store_error)?;
        let Ok(mut record) = stored.map_or(Ok(Record::default()), |bytes| Record::decode(&bytes)) else {
            return Ok(None);
        };
        let missing = holes.minus(record.known());
        if missing.is_empty() || !self.found.descriptors.contains_key(&key.object) {
            return Ok(None);
        }
        record.put_holes(missing, &mut |_| ());
        Ok(Some(record))
    }

    /// Returns whether a record belongs to an undone epoch that no point sees: its data is no longer
    /// needed. The map may have no record there any more, even if the descriptor has the cut: one
    /// that was restored from the catalogue does not know that the cut was reaped afterwards, and
    /// the log's newest descriptor no longer hides a record that is put back.
    pub(crate) fn is_undone(&self, key: &RecordKey) -> bool {
        let is_unseen = |cut: &Cut| cut.hides(key.epoch, cut.before) && !self.is_seen_within(key.object, cut);
        self.found
            .descriptors
            .get(&key.object)
            .is_some_and(|descriptor| descriptor.undone.hides(key.epoch) || descriptor.cuts.iter().any(is_unseen))
    }

    /// Returns whether an object is seen from an epoch within a cut: by a snapshot or a clone that was
    /// made before the rollback.
    fn is_seen_within(&self, object: ObjectId, cut: &Cut) -> bool {
        let all = &self.found.descriptors;
        all.values().any(|descriptor| {
            let looks = |other: &ObjectDescriptor| {
                other.state != ObjectState::Bookmark
                    && other.origin.is_some_and(|origin| origin.object == descriptor.id)
            };
            let is_seen = descriptor.state == ObjectState::Deleting && all.values().any(looks);
            let (_, look) = points_of(descriptor, is_seen, false);
            look.is_some_and(|look| look.object == object && cut.hides(look.epoch, cut.before))
        })
    }

    /// Removes records of undone epochs from a damaged record's group, which reaping has skipped.
    fn forget_undone(&mut self, damaged: &RecordKey) -> Result<()> {
        let RecordKey { object, group, .. } = *damaged;
        let (from, to) = record_key_range(object, group, GroupIndex(group.0 + 1));
        let mut undone = Vec::new();
        let mut look = |key: &[u8], _: &[u8]| {
            undone.extend(parse_record_key(key).filter(|key| self.is_undone(key)));
            ControlFlow::Continue(())
        };
        self.env.store.scan(&from, &to, &mut look).map_err(store_error)?;
        self.rebuilt.extend(undone.into_iter().map(|key| (key, Record::default())));
        Ok(())
    }

    /// Returns the groups through which damaged records are seen: of their objects, and of their
    /// clones.
    fn above(&self, damaged: &BTreeMap<RecordKey, String>) -> Groups {
        let mut came_from: BTreeMap<ObjectId, Vec<ObjectId>> = BTreeMap::new();
        for descriptor in self.found.descriptors.values().filter(|d| d.state.has_records()) {
            if let Some(origin) = descriptor.origin {
                came_from.entry(origin.object).or_default().push(descriptor.id);
            }
        }
        let mut above = Groups::new();
        for key in damaged.keys() {
            let mut left = vec![key.object];
            while let Some(object) = left.pop() {
                if above.insert((object, key.group)) {
                    left.extend(came_from.get(&object).into_iter().flatten());
                }
            }
        }
        above
    }

    /// Returns the groups of origins that show through damaged records.
    fn below(&self, damaged: &BTreeMap<RecordKey, String>) -> Groups {
        damaged.keys().flat_map(|key| self.origins(key.object).map(|origin| (origin.object, key.group))).collect()
    }

    /// Returns an object's origin, the origin of that, and so on: their numbers descend.
    fn origins(&self, object: ObjectId) -> impl Iterator<Item = Origin> {
        let origin = |object| self.found.descriptors.get(&object).and_then(|d| d.origin);
        std::iter::successors(origin(object), move |last| origin(last.object))
    }
}
