//! Blocks that clones need, as tables, and against the simplest implementation over many random
//! families of objects.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use format::{FragmentRef, Record};
use units::{GroupIndex, ObjectId};

use super::*;

const GROUP: GroupIndex = GroupIndex(5);

fn key(object: u64) -> GroupKey {
    GroupKey { object: ObjectId(object), group: GROUP }
}

fn data(mask: u32, location: u64) -> Record {
    let mut record = Record::default();
    for (first, count) in BlockMask(mask).runs() {
        let live = BlockMask::run(first, count);
        let (first, count) = (first as u8, count as u8);
        let fragment = FragmentRef { live, first, count, codec: 0, stored: 100, checksum: 0, location: location << 8 };
        record.put(FragmentRef { location: fragment.location + u64::from(first), ..fragment }, &mut |_| ());
    }
    record
}

fn holes(mask: u32) -> Record {
    Record { holes: BlockMask(mask), ..Record::default() }
}

/// Some objects: their records of one group, newest first, and the points that see them.
#[derive(Default, Clone)]
struct Family {
    records: BTreeMap<u64, GroupRecords>,
    origins: BTreeMap<u64, (u64, u32)>,
    /// Points of heads and snapshots.
    full: BTreeSet<(u64, u32)>,
    cuts: BTreeMap<u64, Vec<format::Cut>>,
}

impl Family {
    fn object(mut self, id: u64, records: &[(u32, Record)]) -> Self {
        self.records.insert(id, records.iter().map(|(epoch, record)| (Epoch(*epoch), record.clone())).collect());
        self
    }

    fn clone_of(mut self, id: u64, origin: u64, epoch: u32) -> Self {
        self.origins.insert(id, (origin, epoch));
        self
    }

    fn looks(mut self, id: u64, epochs: &[u32]) -> Self {
        self.full.extend(epochs.iter().map(|epoch| (id, *epoch)));
        self
    }

    fn timelines(&self) -> Timelines {
        let mut looks: BTreeMap<u64, BTreeMap<u32, Vec<ObjectId>>> = BTreeMap::new();
        for (id, epoch) in &self.full {
            looks.entry(*id).or_default().entry(*epoch).or_default();
        }
        // The youngest first: whether one is seen is known before its own point counts.
        for id in self.records.keys().rev() {
            if let Some((origin, epoch)) = self.origins.get(id).filter(|_| looks.contains_key(id)).copied() {
                looks.entry(origin).or_default().entry(epoch).or_default().push(ObjectId(*id));
            }
        }
        let mut timelines = HashMap::new();
        for id in self.records.keys() {
            let of = looks.remove(id).unwrap_or_default();
            let is_partial = |epoch: &u32| !self.full.contains(&(*id, *epoch));
            let partial = of.iter().filter(|(epoch, _)| is_partial(epoch));
            let timeline = Timeline {
                points: of.keys().copied().map(Epoch).collect(),
                cuts: self.cuts.get(id).cloned().unwrap_or_default(),
                has_origin: self.origins.contains_key(id),
                clones: partial.map(|(epoch, clones)| (Epoch(*epoch), clones.clone())).collect(),
                below: Vec::new(),
            };
            timelines.insert(ObjectId(*id), Arc::new(timeline));
        }
        timelines
    }

    fn needs(&self, id: u64) -> Vec<(u32, u32)> {
        let found =
            needs(&self.timelines(), key(id), BlockMask::FULL, &mut |key| self.records.get(&key.object.0).cloned());
        found.iter().map(|(epoch, mask)| (epoch.0, mask.0)).collect()
    }

    /// Returns which record answers for a block in a full look, if any does with data.
    fn seen(&self, (id, epoch): (u64, u32), block: u32) -> Option<(u64, Epoch)> {
        let mut level = Some((id, epoch));
        while let Some((id, epoch)) = level {
            let cuts = self.cuts.get(&id).map_or(&[][..], Vec::as_slice);
            let sees =
                |e: Epoch| e.0 <= epoch && !cuts.iter().any(|cut| cut.before.0 <= epoch && cut.hides(e, Epoch(epoch)));
            let mut records = self.records[&id].iter();
            if let Some((epoch, record)) = records.find(|(e, record)| sees(*e) && record.known().has(block)) {
                return record.allocated().has(block).then_some((id, *epoch));
            }
            level = self.origins.get(&id).copied();
        }
        None
    }

    /// Everything that heads and snapshots see.
    fn all_seen(&self) -> BTreeMap<(u64, u32, u32), (u64, Epoch)> {
        let looks = self.full.iter().flat_map(|look| (0..32).map(move |block| (*look, block)));
        looks.filter_map(|(look, block)| Some(((look.0, look.1, block), self.seen(look, block)?))).collect()
    }

    /// All objects trimmed at once, as by a checkpoint.
    fn trimmed(&self) -> (Self, bool) {
        let (mut after, mut has_lost) = (self.clone(), false);
        let timelines = self.timelines();
        for (id, records) in &mut after.records {
            let needs =
                needs(&timelines, key(*id), BlockMask::FULL, &mut |key| self.records.get(&key.object.0).cloned());
            timelines[&ObjectId(*id)].trim(records, &needs, &GroupRecords::new(), &mut |_, _| has_lost = true);
            records.retain(|(_, record)| !record.is_empty());
        }
        (after, has_lost)
    }
}

#[test]
fn a_clone_needs_what_some_point_of_it_does_not_know() {
    let family =
        || Family::default().object(1, &[(3, data(0xff, 1))]).object(2, &[(4, data(0x0f, 2)), (1, holes(0x03))]);
    let cloned = || family().clone_of(2, 1, 3);
    // (description, family, needed blocks of object 1)
    let cases = [
        ("a head", cloned().looks(2, &[4]), vec![(3, !0x0f)]),
        ("a snapshot from before", cloned().looks(2, &[0, 4]), vec![(3, !0)]),
        ("a snapshot that has the hole", cloned().looks(2, &[1, 4]), vec![(3, !0x03)]),
        ("a snapshot of the origin", cloned().looks(2, &[4]).looks(1, &[3]), vec![]),
        ("its head is elsewhere", cloned().looks(2, &[4]).looks(1, &[9]), vec![(3, !0x0f)]),
        ("nobody", cloned(), vec![]),
        (
            "two clones",
            cloned().object(3, &[(0, data(0x3c, 3))]).clone_of(3, 1, 3).looks(2, &[4]).looks(3, &[0]),
            vec![(3, !0x0c)],
        ),
        (
            "clones of two moments",
            cloned().object(3, &[(0, data(0x3c, 3))]).clone_of(3, 1, 2).looks(2, &[4]).looks(3, &[0]),
            vec![(2, !0x3c), (3, !0x0f)],
        ),
        (
            "a clone of a clone, which is gone",
            cloned().object(3, &[(0, data(0x3c, 3))]).clone_of(3, 2, 1).looks(3, &[0]),
            vec![(3, !0x3f)],
        ),
        (
            "a clone of a clone, which is there",
            cloned().object(3, &[(0, data(0x3c, 3))]).clone_of(3, 2, 1).looks(2, &[4]).looks(3, &[0]),
            vec![(3, !0x0f | !0x3f)],
        ),
    ];
    for (what, family, expected) in cases {
        let expected: Vec<_> = expected.into_iter().map(|(epoch, mask): (u32, i32)| (epoch, mask as u32)).collect();
        assert_eq!(family.needs(1), expected, "{what}");
    }
}

#[test]
fn of_a_clone_that_nobody_can_tell_of_everything_is_needed() {
    let family = Family::default().object(1, &[(3, data(0xff, 1))]).object(2, &[(4, data(0x0f, 2))]);
    let family = family.clone_of(2, 1, 3).looks(2, &[4]);
    let found = needs(&family.timelines(), key(1), BlockMask(0xff), &mut |_| None);
    assert_eq!(found[..], [(Epoch(3), BlockMask(0xff))]);
    let mut timelines = family.timelines();
    timelines.remove(&ObjectId(2));
    let found = needs(&timelines, key(1), BlockMask(0xff), &mut |key| family.records.get(&key.object.0).cloned());
    assert_eq!(found[..], [(Epoch(3), BlockMask(0xff))]);
}

/// A small generator: these tests need variety, not quality.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32 % limit
    }

    fn mask(&mut self) -> u32 {
        let full = [0, 0xffff, 0xffff_ffff, 0xff00_00ff][self.below(4) as usize];
        (full ^ (self.below(1 << 16) << self.below(16))) & if self.below(3) == 0 { 0x0fff_fff0 } else { !0 }
    }

    fn family(&mut self) -> Family {
        let mut family = Family::default();
        for id in 1..=u64::from(2 + self.below(5)) {
            let mut records = GroupRecords::new();
            for epoch in (0..4).rev() {
                if self.below(2) == 0 {
                    continue;
                }
                let (written, discarded) = (self.mask(), if self.below(2) == 0 { 0 } else { self.mask() });
                let mut record = data(written, id << 8 | u64::from(epoch));
                record.put_holes(BlockMask(discarded), &mut |_| ());
                if !record.is_empty() {
                    records.push((Epoch(epoch), record));
                }
            }
            family.records.insert(id, records);
            if id > 1 && self.below(5) > 0 {
                family.origins.insert(id, (1 + u64::from(self.below(id as u32 - 1)), self.below(4)));
            }
            if self.below(4) == 0 {
                let before = 1 + self.below(3);
                let after = self.below(before);
                family.cuts.insert(id, vec![format::Cut { after: Epoch(after), before: Epoch(before) }]);
            }
            family.full.extend((0..4).filter(|_| self.below(5) == 0).map(|epoch| (id, epoch)));
        }
        family
    }
}

#[test]
fn heads_and_snapshots_see_what_they_saw_and_nothing_else_is_kept() {
    let mut dice = Dice(11);
    let mut lost_some = 0;
    for round in 0..20_000 {
        let family = dice.family();
        let seen = family.all_seen();
        let (after, has_lost) = family.trimmed();
        lost_some += u32::from(has_lost);
        assert_eq!(after.all_seen(), seen, "round {round}");
        let answers: BTreeSet<_> = seen.iter().map(|((_, _, block), (id, epoch))| (*id, *epoch, *block)).collect();
        for (id, records) in &after.records {
            for (epoch, record) in records {
                let kept = (0..32).filter(|block| record.allocated().has(*block));
                for block in kept {
                    let is_seen = answers.contains(&(*id, *epoch, block));
                    assert!(is_seen, "round {round}: object {id}, {epoch:?}, block {block} is left over");
                }
            }
        }
        let (again, has_lost) = after.trimmed();
        assert!(!has_lost && again.all_seen() == seen, "round {round}: again");
    }
    assert!(lost_some > 5000, "{lost_some} rounds had something to trim");
}

#[test]
fn what_is_needed_never_becomes_more_as_clones_are_written() {
    let mut dice = Dice(13);
    for round in 0..5000 {
        let mut family = dice.family();
        for _ in 0..4 {
            let before: Vec<_> = family.records.keys().map(|id| family.needs(*id)).collect();
            // The newest epoch of some object is written or discarded: there, or in a new one.
            let ids: Vec<_> = family.records.keys().copied().collect();
            let id = ids[dice.below(ids.len() as u32) as usize];
            let newest = Epoch(3);
            let records = family.records.get_mut(&id).unwrap();
            if records.first().is_none_or(|(epoch, _)| *epoch != newest) {
                records.insert(0, (newest, Record::default()));
            }
            let mask = BlockMask(dice.mask());
            if dice.below(2) == 0 {
                records[0].1.put_holes(mask, &mut |_| ());
            } else {
                for fragment in data(mask.0, 9 << 20 | round).fragments {
                    records[0].1.put(fragment, &mut |_| ());
                }
            }
            let (trimmed, _) = family.trimmed();
            for (id, before) in ids.iter().zip(before) {
                for (now, before) in family.needs(*id).iter().zip(before) {
                    assert_eq!(now.1 & !before.1, 0, "round {round}: object {id}");
                }
            }
            family = trimmed;
        }
    }
}
