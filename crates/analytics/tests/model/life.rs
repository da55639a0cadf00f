//! Lives of a store: each second that it has is the model's, on every tier.

use std::collections::BTreeMap;

use analytics::{Dataset, Key, Query, Sample, Store};
use report::SeriesReport;

use crate::disk::{MemoryPlace, Random};

pub const START: u64 = 1_800_000_123;
const BUDGET: u64 = 16 << 20;

pub fn name_of(object: u64) -> Option<String> {
    Some(format!("volume-{object}"))
}

pub fn query(dataset: Dataset, by: Option<&str>, from: u64, to: u64, step_s: Option<u64>) -> Query {
    let by = by.map(str::to_owned);
    Query { dataset, by, only: Vec::new(), from, to, step_s, names: BTreeMap::new() }
}

fn store_of(place: &MemoryPlace) -> Store {
    Store::new(Box::new(place.clone()), BUDGET)
}

/// Seconds and their bytes by object.
type Model = BTreeMap<u64, [u64; 3]>;

fn samples_of(values: &[u64; 3]) -> Vec<Sample> {
    let of = |object: usize| Sample {
        key: Key::new(Dataset::BYTES, &["write", "nbd"], object as u64 + 1),
        value: values[object],
    };
    let level = Sample { key: Key::new(Dataset::CAPACITY, &["stored"], 0), value: values.iter().sum::<u64>() + 1000 };
    (0..3).map(of).chain([level]).collect()
}

fn row(random: &mut Random) -> [u64; 3] {
    [random.below(5000), if random.below(4) == 0 { random.below(1 << 30) } else { 0 }, random.below(3)]
}

fn values(report: &SeriesReport, name: &str, step: usize) -> u64 {
    report.series.iter().find(|line| line.name == name).map_or(0, |line| line.values[step])
}

/// Seconds that the store has in the span, compared with the model; the model loses the others.
fn compare(store: &Store, model: &mut Model, from: u64, to: u64, durable: u64, seed: u64) {
    for first in (from..to).step_by(1000) {
        compare_seconds(store, model, first, to.min(first + 1000), durable, seed);
    }
}

fn compare_seconds(store: &Store, model: &mut Model, from: u64, to: u64, durable: u64, seed: u64) {
    let report = store.query(&query(Dataset::BYTES, Some("object"), from, to, Some(1))).unwrap();
    assert_eq!((report.step_s, report.damaged_frames), (1, 0), "seed {seed}");
    for second in from..to {
        let step = (second - from) as usize;
        if report.covered_s[step] == 0 {
            let lost = model.remove(&second).is_some();
            assert!(!lost || second > durable, "seed {seed}: second {second} was durable at {durable}");
            continue;
        }
        let expected = model.get(&second).unwrap_or_else(|| panic!("seed {seed}: {second} was never recorded"));
        for (object, value) in expected.iter().enumerate() {
            let found = values(&report, &format!("volume-{}", object + 1), step);
            assert_eq!(found, *value, "seed {seed}: volume {object} in second {second}");
        }
    }
}

fn compare_sums(store: &Store, model: &Model, from: u64, to: u64, step: u64, seed: u64) {
    let report = store.query(&query(Dataset::BYTES, Some("object"), from, to, Some(step))).unwrap();
    for (place, covered) in report.covered_s.iter().enumerate() {
        let first = report.from_unix_s + place as u64 * report.step_s;
        let rows: Vec<_> = model.range(first..first + report.step_s).collect();
        assert_eq!(*covered, rows.len() as u64, "seed {seed}: {first} by {step} s");
        for object in 0..3 {
            let expected: u64 = rows.iter().map(|(_, values)| values[object]).sum();
            let found = values(&report, &format!("volume-{}", object + 1), place);
            assert_eq!(found, expected, "seed {seed}: volume {object} from {first} by {step} s");
        }
    }
    let levels = store.query(&query(Dataset::CAPACITY, None, from, to, Some(step))).unwrap();
    for (place, covered) in levels.covered_s.iter().enumerate().filter(|(_, covered)| **covered > 0) {
        let first = levels.from_unix_s + place as u64 * levels.step_s;
        let level = |values: &[u64; 3]| values.iter().sum::<u64>() + 1000;
        let rows: Vec<_> = model.range(first..first + levels.step_s).map(|(_, values)| level(values)).collect();
        let line = &levels.series[0];
        assert_eq!(line.values[place], rows.iter().sum::<u64>() / covered, "seed {seed}");
        let bounds = (rows.iter().min(), rows.iter().max());
        assert_eq!((Some(&line.least[place]), Some(&line.peaks[place])), bounds, "seed {seed}");
    }
}

fn live(seed: u64) {
    let mut random = Random::new(seed);
    let (place, mut model) = (MemoryPlace::new(), Model::new());
    let (mut now, mut durable) = (START, 0);
    for _ in 0..6 {
        let mut store = store_of(&place);
        store.open(now);
        compare(&store, &mut model, START, now + 1, durable, seed);
        let seconds = 1 + random.below(900);
        place.die_after(random.below(600));
        for _ in 0..seconds {
            now += 1;
            let values = row(&mut random);
            model.insert(now, values);
            store.record(now, &samples_of(&values), &name_of);
            if now % 10 == 0 {
                store.commit(now);
                if !place.is_dead() && store.health().fault.is_none() {
                    durable = now;
                }
            }
        }
        drop(store);
        place.crash(&mut random);
        // A server that is down.
        now += random.below(100);
    }
    let mut store = store_of(&place);
    store.open(now);
    compare(&store, &mut model, START, now + 1, durable, seed);
    for step in [10, 60, 300] {
        compare_sums(&store, &model, START - START % 300, now, step, seed);
    }
    assert_eq!(place.aside(), 0, "seed {seed}: a crash is no reason to give the history up");
}

#[test]
fn a_store_that_crashes_has_each_durable_second() {
    (0..40).for_each(live);
}

#[test]
fn hours_of_seconds_add_up_on_all_tiers() {
    let mut random = Random::new(7);
    let (place, mut model) = (MemoryPlace::new(), Model::new());
    let mut store = store_of(&place);
    let hours = 8 * 3600;
    for now in START..START + hours {
        if now % 1000 == 777 {
            continue;
        }
        let values = row(&mut random);
        // The second that was left out counts as late: levels are those of the next one.
        if now % 1000 == 778 {
            model.insert(now - 1, [0; 3]);
        }
        model.insert(now, values);
        store.record(now, &samples_of(&values), &name_of);
        if now % 60 == 0 {
            store.commit(now);
        }
    }
    let (from, to) = (START - START % 300, START + hours);
    let sums = |store: &Store, step| {
        let report = store.query(&query(Dataset::BYTES, Some("object"), from, to, Some(step))).unwrap();
        let covered: u64 = report.covered_s.iter().sum();
        (covered, report.series.iter().map(|line| (line.name.clone(), line.total)).collect::<Vec<_>>())
    };
    let expected: u64 = model.values().map(|values| values[1]).sum();
    let (covered, of_tens) = sums(&store, 20);
    assert_eq!((covered, &of_tens[0]), (hours, &("volume-2".to_owned(), expected)));
    for step in [300, 3600] {
        assert_eq!(sums(&store, step), (covered, of_tens.clone()));
    }
    drop(store);
    let mut store = store_of(&place);
    store.open(to);
    let kept = store.query(&query(Dataset::BYTES, None, START, to, Some(300))).unwrap();
    let until = (to - 1) / 60 * 60;
    let expected: u64 = model.range(..=until).map(|(_, values)| values.iter().sum::<u64>()).sum();
    assert_eq!(kept.series[0].total, expected);
    let state = store.state();
    assert!(state.frames[0] <= 122 && state.frames[1] >= 48, "{state:?}");
}

#[test]
fn damage_is_a_gap_or_a_new_beginning_and_never_the_end() {
    for seed in 0..100 {
        let mut random = Random::new(1000 + seed);
        let place = MemoryPlace::new();
        let mut store = store_of(&place);
        let mut now = START;
        let feed = |store: &mut Store, now: &mut u64, random: &mut Random, seconds: u64| {
            for _ in 0..seconds {
                *now += 1;
                store.record(*now, &samples_of(&row(random)), &name_of);
                if now.is_multiple_of(10) {
                    store.commit(*now);
                }
            }
        };
        feed(&mut store, &mut now, &mut random, 400);
        let stays_open = seed % 3 == 0;
        if !stays_open {
            drop(store);
            store = store_of(&place);
        }
        match seed % 5 {
            0 => place.cut(random.below(place.len() as u64) as usize),
            4 => place.extend(1 + random.below(1 << 21) as usize),
            1 => (0..8192).for_each(|byte| place.flip(byte, random.below(8) as u8)),
            _ => {
                for _ in 0..1 + random.below(200) {
                    // Most of the file is empty: the start has the head and the first pages.
                    let end =
                        if random.below(2) == 0 { place.len() as u64 } else { (64 << 10).min(place.len() as u64) };
                    place.flip(random.below(end) as usize, random.below(8) as u8);
                }
            }
        }
        store.open(now);
        let _ = store.query(&query(Dataset::BYTES, Some("object"), START, now, Some(1)));
        // Long enough for the file to grow.
        feed(&mut store, &mut now, &mut random, 600);
        assert_eq!(store.health().fault, None, "seed {seed}");
        let report = store.query(&query(Dataset::BYTES, None, now - 30, now, Some(1))).unwrap();
        assert_eq!(report.covered_s.iter().sum::<u64>(), 30, "seed {seed}: it goes on");
    }
}

#[test]
fn a_block_that_changes_below_an_open_store_is_noticed() {
    let place = MemoryPlace::new();
    let mut store = store_of(&place);
    let mut random = Random::new(3);
    // Frames of more bytes than the database keeps in memory.
    let feed = |store: &mut Store, from: u64, to: u64, random: &mut Random| {
        for now in from..to {
            let value = |object| Sample {
                key: Key::new(Dataset::BYTES, &["write", "nbd"], object),
                value: random.below(1 << 30),
            };
            store.record(now, &(1..200).map(value).collect::<Vec<_>>(), &name_of);
            if now % 60 == 0 {
                store.commit(now);
            }
        }
    };
    feed(&mut store, START, START + 1200, &mut random);
    assert!(store.set_worksheet("sheet", Some("{}")));
    store.commit(START + 1200);
    assert!(store.state().stored_bytes > 1 << 20);
    (4096..place.len()).step_by(4096).for_each(|page| place.flip(page + 100, 1));
    let report = store.query(&query(Dataset::BYTES, None, START, START + 1200, Some(1))).unwrap();
    assert!(report.damaged_frames > 10, "{} frames are damaged", report.damaged_frames);
    feed(&mut store, START + 1200, START + 1400, &mut random);
    assert_eq!((place.aside(), store.health().set_aside, &store.health().fault), (1, 1, &None));
    assert_eq!(store.worksheets().count(), 1, "those are in memory, and are written again");
}

#[test]
fn without_room_it_waits_and_goes_on_later() {
    let mut random = Random::new(5);
    let (place, mut model) = (MemoryPlace::new(), Model::new());
    let mut store = store_of(&place);
    let (from, mut faults) = (START, 0);
    for now in from..from + 1500 {
        match now - from {
            300 => place.set_free(1 << 20),
            500 => place.set_free(u64::MAX),
            700 => place.allow(Some(place.len() / 2)),
            900 => place.allow(None),
            _ => {}
        }
        let values = row(&mut random);
        model.insert(now, values);
        store.record(now, &samples_of(&values), &name_of);
        if now % 10 == 0 {
            store.commit(now);
            faults += u64::from(store.health().fault.is_some());
        }
    }
    assert!(faults >= 20, "{faults} commits failed");
    assert_eq!((store.health().fault.as_deref(), store.health().set_aside), (None, 0));
    store.commit(from + 1500);
    drop(store);
    let mut store = store_of(&place);
    store.open(from + 1500);
    compare(&store, &mut model, from, from + 1500, from + 1499, 5);
    compare_sums(&store, &model, from - from % 300, from + 1500, 300, 5);
}

#[test]
fn a_clock_that_is_set_is_followed() {
    let place = MemoryPlace::new();
    let mut store = store_of(&place);
    let put = |store: &mut Store, now: u64, value: u64| store.record(now, &samples_of(&[value, 0, 0]), &name_of);
    let at = |store: &Store, from: u64, to: u64| {
        let report = store.query(&query(Dataset::BYTES, None, from, to, Some(1))).unwrap();
        (report.covered_s.iter().sum::<u64>(), report.series.first().map_or(0, |line| line.total))
    };
    (0..100).for_each(|second| put(&mut store, START + second, 1));
    // Two seconds back: rows continue after the last one.
    (0..3).for_each(|second| put(&mut store, START + 98 + second, 10));
    assert_eq!(at(&store, START, START + 200), (103, 130));
    // An hour back: the rows are where the clock says, and a mark says why.
    let back = START - 3600;
    (0..50).for_each(|second| put(&mut store, back + second, 100));
    assert_eq!(at(&store, back, back + 60), (50, 5000));
    let marks = store.marks(0, 1 << 40).unwrap();
    assert_eq!(marks.len(), 1);
    assert_eq!((marks[0].unix_s, marks[0].text.as_str()), (back, "clock set back by 3702 s"));
    store.commit(back + 50);
    // Forward again, and back into recorded seconds: newer figures add to older ones.
    (0..20).for_each(|second| put(&mut store, START + 200 + second, 3));
    (0..20).for_each(|second| put(&mut store, START + second, 7));
    assert_eq!(at(&store, START, START + 20), (20, 160));
    assert_eq!(at(&store, START + 20, START + 103), (83, 110));
    store.commit(START + 20);
    drop(store);
    let mut store = store_of(&place);
    store.open(START + 300);
    assert_eq!(at(&store, back, back + 60), (50, 5000));
    assert_eq!(at(&store, START, START + 103), (103, 270));
    assert_eq!(store.marks(0, 1 << 40).unwrap().len(), 2);
}

#[test]
fn marks_and_worksheets_survive() {
    let place = MemoryPlace::new();
    let mut store = store_of(&place);
    store.open(START);
    (0..3).for_each(|number| store.mark(START, &format!("mark {number}")));
    assert!(store.set_worksheet("cost of gzip", Some("{}")) && store.set_worksheet("b", Some("[]")));
    assert!(!store.set_worksheet("long", Some(&"x".repeat(20_000))) && !store.set_worksheet("none", None));
    store.commit(START);
    assert!(store.set_worksheet("b", None));
    store.commit(START + 1);
    drop(store);
    let mut store = store_of(&place);
    store.open(START + 2);
    let texts: Vec<_> = store.marks(START, START + 1).unwrap().into_iter().map(|mark| mark.text).collect();
    assert_eq!(texts, ["mark 0", "mark 1", "mark 2"]);
    assert_eq!(store.worksheets().collect::<Vec<_>>(), [("cost of gzip", "{}")]);
}

#[test]
fn a_question_that_makes_no_sense_says_what_would() {
    let store = store_of(&MemoryPlace::new());
    let said = |by: Option<&str>, from, to, step| {
        store.query(&query(Dataset::CODEC_RAW, by, from, to, step)).map(|_| ()).unwrap_err().to_string()
    };
    assert_eq!(said(Some("door"), 0, 9, None), "codec.raw has no breakdown 'door'; it has codec, object");
    assert!(said(None, 9, 9, None).contains("empty"));
    assert!(said(None, 0, 1 << 40, Some(1)).contains("2000 steps"));
}

#[test]
fn questions_with_any_numbers_are_answered_or_refused() {
    let place = MemoryPlace::new();
    let mut store = store_of(&place);
    for second in 0..20 {
        store.record(START + second, &samples_of(&[1, 0, 0]), &name_of);
    }
    store.mark(START, "begun");
    let ends = [0, 1, START, START + 20, 1 << 40, 1 << 53, 1 << 56, 10u64.pow(18), u64::MAX >> 1, u64::MAX];
    let (mut answered, mut refused) = (0, 0);
    for from in ends {
        for to in ends {
            for step in ends.map(Some).into_iter().chain([None]) {
                match store.query(&query(Dataset::BYTES, None, from, to, step)) {
                    Ok(report) => {
                        assert!(report.covered_s.len() <= 2001, "{from} to {to}, step {step:?}");
                        answered += 1;
                    }
                    Err(_) => refused += 1,
                }
            }
            assert_eq!(store.marks(from, to).is_ok(), from < to && to <= 1 << 40, "marks from {from} to {to}");
        }
    }
    assert!(answered > 20 && refused > 20, "{answered} answered, {refused} refused");
}
