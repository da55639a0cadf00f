//! Turns facts into map records, in a temporary store on disk: facts go in while extents are read,
//! records come out at the end.
//!
//! 1. Facts are put into the store in batches of a bounded size.
//! 2. Wide ranges of holes become facts of those groups in which the object, or one that it came
//!    from, has any.
//! 3. The facts of each record, which are adjacent, are resolved, and the record is stored under
//!    its key in the map. If the pool's own map is there ([`witness`](super::witness)), the result
//!    is compared with it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use env::{MapBatch, MapStore};
use format::{FragmentIdentity, FragmentRef, ObjectDescriptor, RecordKey, record_key, reseal};
use store::base::store_error::store_error;
use store::objects::level::Level;
use surface::Result;
use units::{BlockIndex, BlockMask, COPIES_MAX, Epoch, GroupIndex, ObjectId, Seq};

use super::facts::{Doubt, Fact, Rank, Resolved, fact_range, resolve, winners};
use super::log_objects::Table;
use super::scan::{Scan, WideHole};
use super::witness::{Compared, Witness};

/// Upper bound of facts in memory.
const FACTS_MAX: usize = 16 << 10;

/// Upper bound of records with missing data that are remembered one by one: beyond them, their
/// blocks are only counted.
const GONE_MAX: usize = 1 << 14;

/// Blocks of a record, or of all records of an object in an epoch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Lacks {
    /// Blocks with uncertain content, because a discard or an undo may have been forgotten.
    uncertain: u64,
    /// Blocks that are gone, by the map.
    missing: u64,
}

/// Possible faults in the data of all objects, by the epochs of the affected records: every reader
/// of an epoch sees its faults.
#[derive(Debug, Default)]
pub struct Figures {
    epochs: BTreeMap<(ObjectId, Epoch), Lacks>,
    /// Without the map: blocks that an object had in all epochs, which may be gone.
    missing: BTreeMap<ObjectId, u64>,
    /// Blocks that are gone, by the map.
    pub gone: BTreeMap<(ObjectId, Epoch, GroupIndex), BlockMask>,
    /// Not all of them could be remembered.
    pub is_more_gone: bool,
}

impl Figures {
    fn of(&mut self, key: &RecordKey) -> &mut Lacks {
        self.epochs.entry((key.object, key.epoch)).or_default()
    }

    fn enter_gone(&mut self, key: &RecordKey, gone: BlockMask) {
        if gone.is_empty() {
            return;
        }
        self.of(key).missing += u64::from(gone.count());
        if self.gone.len() < GONE_MAX {
            self.gone.insert((key.object, key.epoch, key.group), gone);
        } else {
            self.is_more_gone = true;
        }
    }

    /// Enters how many blocks of an object may be gone, in any epoch.
    pub fn miss(&mut self, object: ObjectId, blocks: u64) {
        self.missing.insert(object, blocks);
    }

    fn seen(&self, levels: &[Level], count: impl Fn(&Lacks) -> u64) -> u64 {
        let of = |level: &Level| {
            let epochs = self.epochs.range((level.object, Epoch(0))..=(level.object, level.epoch));
            epochs.filter(|((_, epoch), _)| level.sees(*epoch)).map(|(_, lacks)| count(lacks)).sum::<u64>()
        };
        levels.iter().map(of).sum()
    }

    /// Returns the number of uncertain blocks visible through these levels.
    pub fn uncertain(&self, levels: &[Level]) -> u64 {
        self.seen(levels, |lacks| lacks.uncertain)
    }

    /// Blocks that may be gone.
    pub fn missing(&self, levels: &[Level]) -> u64 {
        let objects: BTreeSet<_> = levels.iter().map(|level| level.object).collect();
        let whole = objects.iter().filter_map(|object| self.missing.get(object)).copied();
        whole.fold(self.seen(levels, |lacks| lacks.missing), u64::saturating_add)
    }
}

/// Blocks of a group that are dead if the doubtful facts are right.
#[derive(Debug, Default)]
struct Hiding {
    group: Option<(ObjectId, GroupIndex)>,
    blocks: BlockMask,
}

/// A range of holes, and the batches and openings that made it.
type Made<'a> = (WideHole, &'a Vec<(Seq, u64)>);

/// The store, and facts that are not in it yet.
pub struct Facts<'a> {
    store: &'a dyn MapStore,
    batch: MapBatch,
}

impl<'a> Facts<'a> {
    pub fn new(store: &'a dyn MapStore) -> Self {
        Self { store, batch: MapBatch::default() }
    }

    /// Step 1.
    ///
    /// # Errors
    /// Those of the store.
    pub fn put(&mut self, fact: &Fact) -> Result<()> {
        let (key, value) = fact.encode();
        self.batch.put(key, value);
        if self.batch.changes.len() >= FACTS_MAX { self.flush() } else { Ok(()) }
    }

    pub fn flush(&mut self) -> Result<()> {
        if self.batch.changes.is_empty() {
            return Ok(());
        }
        self.store.commit(std::mem::take(&mut self.batch)).map_err(store_error)
    }

    /// Step 2. `chain` returns an object's chain: itself, then its origins.
    ///
    /// # Errors
    /// Those of the store.
    pub fn spread(&mut self, scan: &Scan, chain: impl Fn(ObjectId) -> Vec<ObjectId>) -> Result<()> {
        self.flush()?;
        let mut by_object: BTreeMap<ObjectId, Vec<Made<'_>>> = BTreeMap::new();
        for (hole, ages) in &scan.wide {
            by_object.entry(hole.object).or_default().push((*hole, ages));
        }
        for (object, mut holes) in by_object {
            holes.sort_unstable_by_key(|(hole, _)| hole.first);
            for level in chain(object) {
                self.spread_over(level, &holes)?;
            }
        }
        self.flush()
    }

    fn spread_over(&mut self, level: ObjectId, holes: &[Made<'_>]) -> Result<()> {
        let (mut next, mut open): (usize, Vec<usize>) = (0, Vec::new());
        let mut known = None;
        let (from, to) = object_range(level);
        let store = self.store;
        pages(store, &from, &to, &mut |facts| {
            for fact in facts {
                let group = fact.key.group;
                if known.replace(group) == Some(group) {
                    continue;
                }
                while holes.get(next).is_some_and(|(hole, _)| hole.first.group() <= group) {
                    open.push(next);
                    next += 1;
                }
                open.retain(|index| holes[*index].0.end() > group.first_block().0);
                for index in &open {
                    let (hole, ages) = &holes[*index];
                    for (seq, incarnation) in ages.iter() {
                        self.put(&hole.fact(group, *seq, *incarnation))?;
                    }
                }
            }
            self.flush()
        })
    }

    /// Step 3, for the objects in the table. Returns the figures. `progress` gets objects done.
    ///
    /// # Errors
    /// Those of the store, of the map and of `progress`.
    pub fn resolve(
        mut self,
        scan: &Scan,
        table: &Table,
        witness: Option<&Witness>,
        progress: &mut dyn FnMut(ObjectId) -> Result<()>,
    ) -> Result<Figures> {
        self.flush()?;
        let is_doubtful = |fact: &Fact| is_doubtful(scan, table.objects.get(&fact.key.object), fact);
        let certain_from = witness.map_or_else(|| scan.certain_by_inventory(), |witness| scan.certain_by_map(witness));
        let against = Against { doubt: Doubt { certain_from, is_doubtful: &is_doubtful }, scan, table, witness };
        let mut figures = Figures::default();
        let mut hiding = Hiding::default();
        let mut open: Vec<Fact> = Vec::new();
        let store = self.store;
        let (from, to) = fact_range();
        pages(store, from, to, &mut |facts| {
            for fact in facts {
                if open.last().is_some_and(|last| last.key != fact.key) {
                    self.close(&mut open, &against, &mut hiding, &mut figures)?;
                }
                if happened(scan, fact) && table.objects.contains_key(&fact.key.object) {
                    progress(fact.key.object)?;
                    open.push(*fact);
                }
            }
            Ok(())
        })?;
        self.close(&mut open, &against, &mut hiding, &mut figures)?;
        self.flush()?;
        if let Some(witness) = witness {
            self.count_forgotten(witness, table, &mut figures)?;
        }
        Ok(figures)
    }

    fn close(
        &mut self,
        facts: &mut Vec<Fact>,
        against: &Against<'_>,
        hiding: &mut Hiding,
        figures: &mut Figures,
    ) -> Result<()> {
        let Some(mut key) = facts.first().map(|fact| fact.key) else { return Ok(()) };
        if key.group.copy() > 0 {
            self.close_copy(facts, against)?;
            let number = key.group.copy();
            key.group = key.group.nth_copy(0);
            // The log may have nothing of the original any more; then its first copy stands for it.
            for lower in 0..number {
                if !self.facts_of(&key, lower, against.scan)?.is_empty() {
                    return Ok(());
                }
            }
        }
        let by_copies = if against.scan.has_copies { self.add_copies(&key, facts, against)? } else { BlockMask::EMPTY };
        let torn: Vec<Fact> = facts.extract_if(.., |fact| is_torn(against.scan, fact)).collect();
        let torn = behind(facts, &torn);
        if facts.is_empty() {
            figures.of(&key).uncertain += u64::from(torn.count());
            return Ok(());
        }
        let Compared { confirmed, gone, bared } =
            against.witness.map_or(Ok(Compared::default()), |witness| witness.compare(&key, facts))?;
        let (confirmed, gone) = (confirmed.or(by_copies), gone.minus(by_copies));
        let resolved = resolve(facts, &against.doubt, confirmed);
        facts.clear();
        let has_origin = against.table.objects.get(&key.object).is_some_and(|object| object.origin.is_some());
        let uncertain = hiding.uncertain(&key, &resolved, has_origin).or(bared).or(torn);
        figures.of(&key).uncertain += u64::from(uncertain.count());
        figures.enter_gone(&key, gone);
        self.batch.put(record_key(&key), resolved.record.encode());
        if self.batch.changes.len() >= FACTS_MAX { self.flush() } else { Ok(()) }
    }
}

impl Facts<'_> {
    /// Writes the record of a copy. Whether copies are missing or uncertain matters to nobody.
    fn close_copy(&mut self, facts: &mut Vec<Fact>, against: &Against<'_>) -> Result<()> {
        facts.retain(|fact| !is_torn(against.scan, fact));
        if let Some(fact) = facts.first() {
            let resolved = resolve(facts, &against.doubt, BlockMask::EMPTY);
            self.batch.put(record_key(&fact.key), resolved.record.encode());
            facts.clear();
        }
        if self.batch.changes.len() >= FACTS_MAX { self.flush() } else { Ok(()) }
    }

    /// Returns the facts of a record, or of the copy of that number, that happened.
    fn facts_of(&self, key: &RecordKey, number: u8, scan: &Scan) -> Result<Vec<Fact>> {
        let mut found = Vec::new();
        let mut from = record_key(&RecordKey { group: key.group.nth_copy(number), ..*key }).to_vec();
        from[..1].copy_from_slice(fact_range().0);
        let to = [&from[..], &[0xff; 34]].concat();
        self.store
            .scan(&from, &to, &mut |key, value| {
                found.extend(Fact::decode(key, value));
                ControlFlow::Continue(())
            })
            .map_err(store_error)?;
        found.retain(|fact| happened(scan, fact));
        Ok(found)
    }

    /// Adds intact facts of a record's copies as facts of the record itself, at the places of the
    /// copies. A copy is a little newer than its original, and has the same content: so it decides
    /// where the original, or the batch that had it, is gone. Units of which the original is intact
    /// are left out. With a map, so are blocks that it confirms without copies, and copies that it
    /// does not name. Returns the blocks of which it names copies that are intact.
    fn add_copies(&self, key: &RecordKey, facts: &mut Vec<Fact>, against: &Against<'_>) -> Result<BlockMask> {
        let of_rank = |facts: &[Fact], rank: Rank| {
            let is_of = |(_, winner): &(u32, Option<&Fact>)| winner.is_some_and(|winner| winner.rank == rank);
            let blocks = (0..).zip(winners(facts)).filter(is_of);
            blocks.fold(BlockMask::EMPTY, |mask, (block, _)| mask.or(BlockMask::run(block, 1)))
        };
        let same = |one: &Fact, other: &Fact| {
            let unit = |fact: &Fact| FragmentRef { location: 0, live: BlockMask::EMPTY, ..fact.fragment };
            other.rank == Rank::Intact && unit(one) == unit(other)
        };
        let own = match against.witness {
            Some(witness) => witness.compare(key, facts)?.confirmed.minus(of_rank(facts, Rank::Damaged)),
            None => BlockMask::EMPTY,
        };
        let mut named = BlockMask::EMPTY;
        for number in 1..=COPIES_MAX {
            let copies = self.facts_of(key, number, against.scan)?;
            let mut usable = BlockMask::FULL;
            if let Some(witness) = against.witness {
                let copy = RecordKey { group: key.group.nth_copy(number), ..*key };
                usable = witness.compare(&copy, &copies)?.confirmed.and(of_rank(&copies, Rank::Intact));
                named = named.or(usable);
            }
            for mut fact in copies {
                let live = fact.fragment.live.and(usable).minus(own);
                if fact.rank != Rank::Intact || live.is_empty() {
                    continue;
                }
                let FragmentRef { first, count, codec, stored, checksum, .. } = fact.fragment;
                let identity = |key: &RecordKey| FragmentIdentity {
                    object: key.object,
                    epoch: key.epoch,
                    first: BlockIndex(key.group.first_block().0 + u64::from(first)),
                    count,
                    codec,
                };
                let checksum = reseal(checksum, &identity(&fact.key), &identity(key), stored);
                fact.fragment = FragmentRef { live, checksum, ..fact.fragment };
                fact.key = *key;
                if !facts.iter().any(|known| same(&fact, known)) {
                    facts.push(fact);
                }
            }
        }
        Ok(named)
    }
}

/// Sources that facts are compared with.
struct Against<'a> {
    doubt: Doubt<'a>,
    scan: &'a Scan,
    table: &'a Table,
    witness: Option<&'a Witness>,
}

impl Facts<'_> {
    /// Counts blocks that the map has in records of which the log has no facts at all.
    fn count_forgotten(&self, witness: &Witness, table: &Table, figures: &mut Figures) -> Result<()> {
        witness.each(&mut |key, record| {
            let is_known = table.objects.contains_key(&key.object) && key.group.copy() == 0;
            if is_known && self.store.get(&record_key(&key)).map_err(store_error)?.is_none() {
                figures.enter_gone(&key, record.allocated());
                figures.of(&key).uncertain += u64::from(record.holes.count());
            }
            Ok(())
        })
    }
}

impl Hiding {
    /// Returns the uncertain blocks of a record. Records of a group come newest first. Blocks below
    /// in an origin are not searched.
    fn uncertain(&mut self, key: &RecordKey, resolved: &Resolved, has_origin: bool) -> BlockMask {
        let group = Some((key.object, key.group));
        if self.group != group {
            *self = Self { group, blocks: BlockMask::EMPTY };
        }
        if has_origin {
            return resolved.uncertain.or(resolved.hiding);
        }
        // All older epochs, because a point need not see each of them.
        let hidden = self.blocks.and(resolved.record.allocated());
        self.blocks = self.blocks.or(resolved.hiding);
        resolved.uncertain.or(hidden)
    }
}

/// Returns whether a fact is valid: its batch happened, and no crash has torn it.
pub fn counts(scan: &Scan, fact: &Fact) -> bool {
    happened(scan, fact) && !is_torn(scan, fact)
}

fn happened(scan: &Scan, fact: &Fact) -> bool {
    scan.log_objects.openings.happened(fact.incarnation, fact.seq)
}

/// Returns whether a fact is data of a batch that was written in part: by a crash before it was
/// durable, or because the rest was damaged later. The two cannot be distinguished.
fn is_torn(scan: &Scan, fact: &Fact) -> bool {
    fact.rank == Rank::Damaged && fact.seq >= scan.durable_before
}

/// Returns the blocks for which ignored torn facts are newer than all valid ones: if the torn data
/// was flushed, these show older data.
fn behind(facts: &[Fact], torn: &[Fact]) -> BlockMask {
    let mut behind = BlockMask::EMPTY;
    if torn.is_empty() {
        return behind;
    }
    for (block, winner) in (0..).zip(winners(facts)) {
        let is_newer = |torn: &&Fact| winner.is_none_or(|winner| winner.made < torn.made);
        if torn.iter().filter(|torn| torn.fragment.live.has(block)).any(|torn| is_newer(&torn)) {
            behind = behind.or(BlockMask::run(block, 1));
        }
    }
    behind
}

/// Returns whether a fact of an object may have been undone, or may never have happened. Moved data
/// keeps the number of the batch that made it.
pub fn is_doubtful(scan: &Scan, object: Option<&ObjectDescriptor>, fact: &Fact) -> bool {
    let may_be_undone = object.is_some_and(|object| object.undone.may_hide(fact.key.epoch));
    may_be_undone || fact.made >= scan.log_objects.openings.certain_end_of(fact.incarnation)
}

/// The keys of the facts of an object.
fn object_range(object: ObjectId) -> (Vec<u8>, Vec<u8>) {
    let start = |object| {
        let epoch = Epoch(u32::MAX);
        let mut key = record_key(&RecordKey { object, group: GroupIndex(0), epoch }).to_vec();
        key[..1].copy_from_slice(fact_range().0);
        key
    };
    (start(object), start(ObjectId(object.0.saturating_add(1))))
}

/// Passes on the facts in a range of keys, a bounded number at a time; the store may be changed in
/// between.
fn pages(store: &dyn MapStore, from: &[u8], to: &[u8], visit: &mut dyn FnMut(&[Fact]) -> Result<()>) -> Result<()> {
    let mut from = from.to_vec();
    loop {
        let mut page = Vec::new();
        let mut last = None;
        store
            .scan(&from, to, &mut |key, value| {
                page.extend(Fact::decode(key, value));
                last = Some(key.to_vec());
                if page.len() < FACTS_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })
            .map_err(store_error)?;
        let Some(last) = last else { return Ok(()) };
        visit(&page)?;
        from = last;
        from.push(0);
    }
}

#[cfg(test)]
mod tests {
    use format::FragmentRef;
    use units::GroupIndex;

    use super::*;

    #[test]
    fn torn_data_leaves_doubt_where_nothing_is_newer() {
        let fact = |made: u64, live: u32| {
            let key = RecordKey { object: ObjectId(3), group: GroupIndex(9), epoch: Epoch(2) };
            let fragment = FragmentRef {
                live: BlockMask(live),
                first: 0,
                count: 32,
                codec: 65,
                stored: 9000,
                checksum: 77,
                location: 4096,
            };
            Fact { key, made: Seq(made), rank: Rank::Intact, seq: Seq(made), incarnation: 4, fragment }
        };
        let torn = [fact(9, 0x0ff0), fact(10, 0x3000)];
        // Block 4 was moved, and the copy is torn; block 5 was written again.
        let facts = [fact(1, 0xff00), fact(9, 0x10), fact(11, 0x20)];
        assert_eq!(behind(&facts, &torn), BlockMask(0x3fc0));
        assert_eq!((behind(&[], &torn), behind(&facts, &[])), (BlockMask(0x3ff0), BlockMask::EMPTY));
    }
}
