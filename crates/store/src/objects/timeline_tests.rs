//! Trimming against the simplest implementation of the rule, over many random histories.

use format::{Cut, FragmentRef, Record};
use units::{BlockMask, Epoch};

use super::Timeline;
use crate::base::group::GroupRecords;
use crate::objects::clone_needs::Needs;

/// Returns the epoch that answers for a block at a point, and whether with data or a hole.
fn seen(timeline: &Timeline, records: &GroupRecords, point: Epoch, block: u32) -> Option<(Epoch, bool)> {
    let visible = |epoch: Epoch| epoch <= point && !timeline.cuts.iter().any(|cut| cut.hides(epoch, point));
    let answer = records.iter().find(|(epoch, record)| visible(*epoch) && record.known().has(block));
    answer.map(|(epoch, record)| (*epoch, record.allocated().has(block)))
}

/// A small generator: these tests need variety, not quality.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32 % limit
    }
}

fn fragment(first: u8, count: u8, location: u64) -> FragmentRef {
    let live = BlockMask::run(first.into(), count.into());
    FragmentRef { live, first, count, codec: 0, stored: 100, checksum: 0, location }
}

fn random_history(dice: &mut Dice) -> (Timeline, GroupRecords) {
    let epochs = 1 + dice.below(9);
    let mut records = GroupRecords::new();
    for epoch in (0..=epochs).rev() {
        let mut record = Record::default();
        for part in 0..dice.below(4) {
            let (first, count) = (dice.below(28), 1 + dice.below(4));
            if dice.below(3) == 0 {
                record.put_holes(BlockMask::run(first, count), &mut |_| ());
            } else {
                let location = u64::from(epoch) << 16 | u64::from(part);
                record.put(fragment(first as u8, count as u8, location), &mut |_| ());
            }
        }
        if !record.is_empty() {
            records.push((Epoch(epoch), record));
        }
    }
    let points = (0..=epochs).filter(|_| dice.below(2) == 0).map(Epoch).collect();
    let mut cuts: Vec<Cut> = Vec::new();
    while dice.below(3) == 0 {
        let from = cuts.last().map_or(1, |cut| cut.before.0 + 1);
        let before = from + dice.below(4);
        cuts.push(Cut { after: Epoch(dice.below(before)), before: Epoch(before) });
    }
    (Timeline { points, cuts, has_origin: dice.below(2) == 0, ..Timeline::default() }, records)
}

#[test]
fn trimming_keeps_what_points_see_and_nothing_else() {
    let mut dice = Dice(7);
    let mut trimmed_some = 0;
    for round in 0..20_000 {
        let (timeline, before) = random_history(&mut dice);
        let mut after = before.clone();
        let mut lost = Vec::new();
        let changed = timeline.trim(&mut after, &Needs::new(), &GroupRecords::new(), &mut |_, fragment| {
            lost.extend((0..32).filter(|b| fragment.live.has(*b)).map(|b| (fragment.location, b)));
        });
        trimmed_some += u32::from(changed);
        assert_eq!(changed, after != before, "round {round}");
        for point in &timeline.points {
            for block in 0..32 {
                let (was, is) = (seen(&timeline, &before, *point, block), seen(&timeline, &after, *point, block));
                // A hole with nothing beneath it may go, if there is no origin, but not before the
                // blocks that it hid.
                let same = was == is || was.is_some_and(|(_, data)| !data) && is.is_none() && !timeline.has_origin;
                assert!(same, "round {round}: point {point:?} block {block}: {was:?} became {is:?}");
            }
        }
        for (epoch, record) in &after {
            for block in 0..32 {
                let answers = |point: &Epoch| seen(&timeline, &before, *point, block).is_some_and(|(e, _)| e == *epoch);
                let needed = timeline.points.iter().any(answers);
                assert!(needed || !record.known().has(block), "round {round}: {epoch:?} block {block} is left over");
            }
        }
        // Every block of every fragment is kept or reported, never both.
        let blocks = |records: &GroupRecords| -> Vec<(u64, u32)> {
            let fragments = records.iter().flat_map(|(_, r)| r.fragments.iter());
            fragments.flat_map(|f| (0..32).filter(|b| f.live.has(*b)).map(|b| (f.location, b))).collect()
        };
        let mut all: Vec<_> = blocks(&after).into_iter().chain(lost).collect();
        let mut expected = blocks(&before);
        all.sort_unstable();
        expected.sort_unstable();
        assert_eq!(all, expected, "round {round}");
        // A second trim only removes holes whose hidden blocks are gone, and a third one nothing.
        let mut again = after.clone();
        timeline.trim(&mut again, &Needs::new(), &GroupRecords::new(), &mut |_, _| panic!("round {round}"));
        assert_eq!(blocks(&again), blocks(&after), "round {round}");
        assert!(!timeline.trim(&mut again, &Needs::new(), &GroupRecords::new(), &mut |_, _| ()), "round {round}");
    }
    assert!(trimmed_some > 5000, "{trimmed_some} rounds had something to trim");
}

#[test]
fn a_hole_stays_while_changes_above_the_records_say_something_older() {
    let hole = Record { holes: BlockMask::run(3, 1), ..Record::default() };
    let old = Record { holes: BlockMask::EMPTY, fragments: smallvec::smallvec![fragment(3, 1, 4096)] };
    let timeline = Timeline { points: vec![Epoch(2)], cuts: Vec::new(), has_origin: false, ..Timeline::default() };
    let moved = smallvec::smallvec![(Epoch(1), old.clone())];
    let mut records: GroupRecords = smallvec::smallvec![(Epoch(2), hole.clone()), (Epoch(1), old)];
    assert!(timeline.trim(&mut records, &Needs::new(), &moved, &mut |_, _| ()));
    assert_eq!(records[0].1, hole);
    assert!(records[1].1.is_empty());
    assert!(timeline.trim(&mut records, &Needs::new(), &GroupRecords::new(), &mut |_, _| ()));
    assert!(records.iter().all(|(_, record)| record.is_empty()));
}

#[test]
fn a_thousand_snapshots_of_a_busy_group_cost_little() {
    let records: GroupRecords = (0..1000u32)
        .rev()
        .map(|epoch| {
            (
                Epoch(epoch),
                Record {
                    holes: BlockMask::EMPTY,
                    fragments: smallvec::smallvec![fragment((epoch % 32) as u8, 1, epoch.into())],
                },
            )
        })
        .collect();
    let points: Vec<_> = (0..1000).map(Epoch).collect();
    let timeline = Timeline { points, cuts: Vec::new(), has_origin: false, ..Timeline::default() };
    assert!(timeline.needed(&records, &Needs::new()).iter().all(|mask| mask.count() == 1));
    let head = Timeline { points: vec![Epoch(999)], cuts: Vec::new(), has_origin: false, ..Timeline::default() };
    let needed = head.needed(&records, &Needs::new());
    assert_eq!(needed.iter().filter(|mask| !mask.is_empty()).count(), 32);
}
