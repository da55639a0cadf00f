//! Map records are rebuilt from the log, as of the checkpoint.
//!
//! 1. *Facts*: all extents are read, and the newest facts about these groups count ([`salvage`](crate::salvage)). What lies where the log goes on
//!    does not, nor what belongs to epochs that were undone.
//! 2. *Records* are what the facts come to; those of epochs that were undone (whoever reaped passed the damaged group by) go. The batches that made holes in them may be gone, their extents used again: blocks that may have been
//!    discarded are counted, and so is older data that shows where a record that is rebuilt says nothing.
//! 3. *Holes* above them come back, too: the map forgets a hole when nothing is left below it, and a record that is rebuilt may have again
//!    what had been removed from it, until that is looked for anew.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use env::MapBatch;
use format::{
    FragmentRef, ObjectDescriptor, Origin, Reap, Record, RecordKey, object_key, parse_record_key, record_key,
    record_key_range,
};
use surface::Result;
use units::{BlockMask, Epoch, GroupIndex, ObjectId};

use crate::map::store_error;
use crate::mend::Mender;
use crate::mend_missing::Shortage;
use crate::salvage::{Fact, Rank, Resolved, Scan, counts, resolve};

/// Groups of objects.
type Groups = BTreeSet<(ObjectId, GroupIndex)>;
/// What the log says of records.
type Told = BTreeMap<RecordKey, Resolved>;

impl Mender<'_> {
    /// All steps for these records. With `short` they may be missing: those count of which `short` is the sum. Whether any was rebuilt.
    pub(crate) fn records(&mut self, damaged: &BTreeMap<RecordKey, String>, short: Option<Shortage>) -> Result<bool> {
        let above = self.above(damaged);
        let mut told = self.facts(&above.union(&self.below(damaged)).copied().collect())?;
        for key in damaged.keys() {
            told.entry(*key).or_default();
        }
        let record = |key: &RecordKey| &told[key].record;
        let is_wanted = |key: &RecordKey| short.as_ref().is_none_or(|short| short.fits(record(key), self.geometry));
        let rebuilt: Vec<_> = damaged.iter().filter(|(key, _)| is_wanted(key)).collect();
        if let Some(short) = short {
            short.explained(rebuilt.iter().map(|(key, _)| record(key)), self.geometry)?;
        }
        let mut batch = MapBatch::default();
        let mut concerned: BTreeSet<ObjectId> = rebuilt.iter().map(|(key, _)| key.object).collect();
        for (key, why) in &rebuilt {
            let record = record(key);
            let (data, uncertain) = (record.allocated().count(), self.uncertain(key, &told).count());
            let detail = format!(
                "128 KiB from here: {why}; rebuilt from the log, with data in {data} blocks; of these, and of older ones \
                 that show between them, {uncertain} may have been discarded"
            );
            if record.is_empty() {
                batch.delete(record_key(key));
            } else {
                batch.put(record_key(key), record.encode());
            }
            self.forget_undone(key, &mut batch)?;
            let name = self.found.descriptors.get(&key.object).map(|d| d.name.clone());
            let place = name.map(|name| (name, key.group.first_block().offset_bytes()));
            self.problem("record", place, detail);
        }
        let untouched = |key: &RecordKey| above.contains(&(key.object, key.group)) && !damaged.contains_key(key);
        for (key, resolved) in told.iter().filter(|(key, _)| untouched(key)) {
            if let Some(record) = self.with_holes(key, resolved.record.holes)? {
                batch.put(record_key(key), record.encode());
                concerned.insert(key.object);
            }
        }
        // What the log still has and nobody needs any more is looked for anew.
        for descriptor in concerned.iter().filter_map(|id| self.found.descriptors.get(id)) {
            let reap = Some(Reap::from(GroupIndex(0)));
            batch.put(object_key(descriptor.id), ObjectDescriptor { reap, ..descriptor.clone() }.encode());
        }
        self.env.store.commit(batch).map_err(store_error)?;
        Ok(true)
    }

    /// Step 1.
    fn facts(&self, groups: &Groups) -> Result<Told> {
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
        let certain_from = scan.certain_from();
        let is_data = |rank| matches!(rank, Rank::Intact | Rank::Damaged);
        // Where the log goes on there is nothing that the checkpoint knows of.
        let is_ahead = |fragment: &FragmentRef| ahead.contains(&self.geometry.extent_at(fragment.location));
        let resolved = |mut facts: Vec<Fact>| {
            facts.retain(|fact| counts(&scan, fact) && !(is_data(fact.rank) && is_ahead(&fact.fragment)));
            resolve(&facts, certain_from)
        };
        let counting = facts.into_iter().filter(|(key, _)| !self.is_undone(key));
        Ok(counting.map(|(key, facts)| (key, resolved(facts))).collect())
    }

    /// Blocks of a record that is rebuilt, and older ones that show where it says nothing, that may have been discarded: at most these.
    fn uncertain(&self, key: &RecordKey, told: &Told) -> BlockMask {
        let first = |object| RecordKey { object, group: key.group, epoch: Epoch(0) };
        let own = told.range(first(key.object)..*key);
        let newest = |origin: Origin| RecordKey { epoch: origin.epoch, ..first(origin.object) };
        let origins = self.origins(key.object).flat_map(|origin| told.range(first(origin.object)..=newest(origin)));
        let older = own.chain(origins).fold(BlockMask::EMPTY, |mask, (_, older)| mask.or(older.uncertain));
        let resolved = &told[key];
        resolved.uncertain.or(older.minus(resolved.record.known()))
    }

    /// Step 3, for one record: what it is with these holes that it does not have.
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

    /// Whether a record belongs to an epoch that was undone: the map has nothing there, and what it had is nobody's any more.
    fn is_undone(&self, key: &RecordKey) -> bool {
        let undone = self.found.descriptors.get(&key.object).map_or(&[][..], |descriptor| &descriptor.undone);
        undone.iter().any(|cut| cut.hides(key.epoch, cut.before))
    }

    /// Takes records of epochs that were undone out of a damaged record's group: whoever reaped passed it by.
    fn forget_undone(&self, damaged: &RecordKey, batch: &mut MapBatch) -> Result<()> {
        let RecordKey { object, group, .. } = *damaged;
        let (from, to) = record_key_range(object, group, GroupIndex(group.0 + 1));
        let mut forget = |key: &[u8], _: &[u8]| {
            if parse_record_key(key).is_some_and(|key| self.is_undone(&key)) {
                batch.delete(key);
            }
            ControlFlow::Continue(())
        };
        self.env.store.scan(&from, &to, &mut forget).map_err(store_error)
    }

    /// The groups through which damaged records are seen: of their objects, and of what came from these.
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

    /// The groups that show through damaged records: of what their objects came from.
    fn below(&self, damaged: &BTreeMap<RecordKey, String>) -> Groups {
        damaged.keys().flat_map(|key| self.origins(key.object).map(|origin| (origin.object, key.group))).collect()
    }

    /// Where an object came from, where that came from, and so on: their numbers descend.
    fn origins(&self, object: ObjectId) -> impl Iterator<Item = Origin> {
        let origin = |object| self.found.descriptors.get(&object).and_then(|d| d.origin);
        std::iter::successors(origin(object), move |last| origin(last.object))
    }
}
