//! Plans as tables, and that modes are monotone.

use std::cell::RefCell;
use std::collections::HashMap;

use codec::CodecId;
use proptest::prelude::*;

use super::*;
use crate::Learned;

/// A table of exact estimates; codecs not listed perform as usual.
#[derive(Debug, Default)]
struct Known(RefCell<HashMap<CodecId, Estimate>>);

impl Table for Known {
    fn cell(&self, _: Key) -> Learned {
        Learned::default()
    }
    fn update(&self, _: Key, _: Learned) {}
    fn estimate(&self, key: Key) -> Estimate {
        self.0.borrow().get(&key.codec).copied().unwrap_or_else(|| crate::prior::prior(key))
    }
}

fn known(list: &[(&str, f64, f64)]) -> Known {
    let entry = |(name, ns_per_kib, saving): &(&str, f64, f64)| {
        let codec: Codec = name.parse().unwrap();
        (codec.id(), Estimate { ns_per_kib: *ns_per_kib, saving: *saving, samples: 100 })
    };
    Known(RefCell::new(list.iter().map(entry).collect()))
}

fn auto(mode: Mode) -> Auto {
    Auto { mode, candidates: "lz4,zstd-1,zstd-3,zstd-9,zstd-19".parse().unwrap(), min_saving_permille: 125 }
}

fn facts(mode: Mode, pressure: Pressure, table: &Known) -> Facts<'_, Known> {
    Facts { auto: auto(mode), size: SizeClass::of(32768), price: 1.0, pressure, table }
}

fn winner(mode: Mode, pressure: Pressure, table: &Known) -> String {
    let winner = facts(mode, pressure, table).plan(Class::DENSE).winner;
    winner.map_or_else(|| "raw".to_owned(), |codec| codec.to_string())
}

/// As measured on a kernel source tree in units of 32 KiB.
fn source() -> Known {
    known(&[
        ("lz4", 1200.0, 0.528),
        ("zstd-1", 2170.0, 0.668),
        ("zstd-3", 2960.0, 0.686),
        ("zstd-9", 15700.0, 0.712),
        ("zstd-19", 217_000.0, 0.722),
    ])
}

#[test]
fn modes_by_table() {
    let nobody_waits = Pressure::default();
    // Base64: nothing for a codec without entropy coding.
    let base64 = known(&[
        ("lz4", 300.0, 0.0),
        ("zstd-1", 1700.0, 0.24),
        ("zstd-3", 2500.0, 0.24),
        ("zstd-9", 9000.0, 0.245),
        ("zstd-19", 80_000.0, 0.25),
    ]);
    let random = known(&[
        ("lz4", 90.0, 0.0),
        ("zstd-1", 400.0, 0.0),
        ("zstd-3", 500.0, 0.0),
        ("zstd-9", 900.0, 0.001),
        ("zstd-19", 40_000.0, 0.002),
    ]);
    for (name, table, expected) in [
        ("source", &source(), ["zstd-3", "lz4", "zstd-3", "zstd-9"]),
        ("base64", &base64, ["zstd-1", "zstd-1", "zstd-1", "zstd-19"]),
        ("random", &random, ["raw", "raw", "raw", "raw"]),
    ] {
        for (mode, expected) in Mode::ALL.into_iter().zip(expected) {
            assert_eq!(winner(mode, nobody_waits, table), expected, "{name}, {mode}");
        }
    }
}

#[test]
fn performance_by_table() {
    let pressed = |cpus, device_ns_per_kib| Pressure { cpus, device_ns_per_kib, pressed: true, ..Pressure::default() };
    for (what, pressure, expected) in [
        // 100 MB/s: the device takes 10 microseconds for a KiB, so that all the time of zstd-3 is
        // free.
        ("a slow device", pressed(2.0, 10_000.0), "zstd-3"),
        ("a slow device, and others want the CPUs", pressed(0.6, 10_000.0), "zstd-1"),
        // 1 GB/s: two cores compress with lz4 at 1.6 GB/s, and the device then takes twice as much.
        ("a slow device, and others want the CPUs much", pressed(0.4, 10_000.0), "lz4"),
        ("a fast device", pressed(2.0, 1_000.0), "lz4"),
        ("a fast device, and others want the CPUs", pressed(1.0, 1_000.0), "raw"),
        ("a device that is faster than any codec", pressed(2.0, 100.0), "raw"),
        ("an unknown device", pressed(2.0, 0.0), "raw"),
        ("an idle writer", Pressure { demand_ns_per_kib: 100_000.0, ..Pressure::default() }, "zstd-3"),
        (
            "a writer that lz4 keeps up with, but zstd does not",
            Pressure { demand_ns_per_kib: 3_000.0, device_ns_per_kib: 100.0, ..Pressure::default() },
            "lz4",
        ),
        ("a writer that nothing keeps up with", Pressure { demand_ns_per_kib: 500.0, ..Pressure::default() }, "raw"),
    ] {
        assert_eq!(winner(Mode::Performance, pressure, &source()), expected, "{what}");
    }
}

#[test]
fn only_what_might_win_is_tested() {
    let of = |mode| {
        let plan = facts(mode, Pressure::default(), &source()).plan(Class::DENSE);
        names(&plan.contenders)
    };
    assert_eq!(of(Mode::Balanced), "lz4,zstd-1,zstd-3");
    assert_eq!(of(Mode::Energy), "lz4");
    assert_eq!(of(Mode::Archive), "zstd-1,zstd-9,zstd-19");
    // Nothing is known to pay: anything might, but a codec many times as slow is for archives.
    let nothing = known(&[("lz4", 90.0, 0.0), ("zstd-1", 400.0, 0.0), ("zstd-3", 500.0, 0.0)]);
    let nothing = facts(Mode::Balanced, Pressure::default(), &nothing).plan(Class::RANDOM);
    assert_eq!((nothing.winner, names(&nothing.contenders)), (None, "zstd-1,zstd-3".to_owned()));
    let nothing = known(&[
        ("lz4", 900.0, 0.0),
        ("zstd-1", 1400.0, 0.0),
        ("zstd-3", 2500.0, 0.0),
        ("zstd-9", 9000.0, 0.0),
        ("zstd-19", 1e5, 0.0),
    ]);
    let nothing = facts(Mode::Balanced, Pressure::default(), &nothing).plan(Class::DENSE);
    assert_eq!((nothing.winner, nothing.contenders.iter().count()), (None, 4));
}

fn names(list: &Contenders) -> String {
    list.iter().map(|codec| codec.to_string()).collect::<Vec<_>>().join(",")
}

#[test]
fn where_no_contender_saves_enough_others_stand_in_by_table() {
    for (mode, contenders, expected) in [
        (Mode::Energy, "lz4", "zstd-1"),
        (Mode::Balanced, "lz4,zstd-1,zstd-3", "zstd-9"),
        (Mode::Archive, "zstd-1,zstd-9,zstd-19", "zstd-3"),
    ] {
        let table = source();
        let facts = facts(mode, Pressure::default(), &table);
        let plan = facts.plan(Class::DENSE);
        assert_eq!(names(&plan.contenders), contenders, "{mode}");
        assert_eq!(names(&facts.stand_ins(Class::DENSE, &plan.contenders)), expected, "{mode}");
        assert_eq!(names(&facts.stand_ins(Class::RANDOM, &plan.contenders)), "", "{mode}: nothing saves there");
    }
}

#[test]
fn a_fallback_saves_more_for_a_bounded_time() {
    let table = known(&[
        ("lz4", 700.0, 0.30),
        ("zstd-1", 1700.0, 0.31),
        ("zstd-3", 2500.0, 0.32),
        ("zstd-9", 9000.0, 0.33),
        ("zstd-19", 80_000.0, 0.34),
    ]);
    let of = |mode| {
        let plan = facts(mode, Pressure::default(), &table).plan(Class::DENSE);
        (plan.winner.map(|c| c.to_string()), plan.fallback.map(|c| c.to_string()))
    };
    let named = |winner: &str, fallback: Option<&str>| (Some(winner.to_owned()), fallback.map(str::to_owned));
    assert_eq!(of(Mode::Balanced), named("lz4", Some("zstd-3")));
    assert_eq!(of(Mode::Energy), named("lz4", Some("zstd-3")));
    assert_eq!(of(Mode::Performance), named("lz4", None));
}

/// Candidates of which some are too slow to read from.
const SLOW: &str = "gzip-1,zstd-1,lzjb,bzip2-2,zstd-19";

#[test]
fn what_is_slow_to_read_is_for_archives_unless_there_is_nothing_else() {
    let table = known(&[
        ("lzjb", 1000.0, 0.60),
        ("gzip-1", 2000.0, 0.70),
        ("zstd-1", 3000.0, 0.60),
        ("zstd-19", 200_000.0, 0.61),
        ("bzip2-2", 60_000.0, 0.80),
    ]);
    let chosen = |mode, candidates: &str| {
        let auto = Auto { candidates: candidates.parse().unwrap(), ..auto(mode) };
        let plan = Facts { auto, ..facts(mode, Pressure::default(), &table) }.plan(Class::DENSE);
        let slow = plan.contenders.iter().filter(|codec| "gzip-1,lzjb,bzip2-2".contains(&codec.to_string())).count();
        (plan.winner.map(|codec| codec.to_string()).unwrap_or_default(), slow)
    };
    for mode in [Mode::Performance, Mode::Energy, Mode::Balanced] {
        assert_eq!(chosen(mode, SLOW), ("zstd-1".to_owned(), 0), "{mode}");
    }
    assert_eq!(chosen(Mode::Archive, SLOW).0, "bzip2-2");
    assert_eq!(chosen(Mode::Balanced, "gzip-1,bzip2-2").0, "gzip-1");
    assert_eq!(chosen(Mode::Balanced, "bzip2-2").0, "bzip2-2");
}

#[test]
fn what_takes_many_times_as_long_is_for_archives_unless_there_is_nothing_like_it() {
    let considered = |mode, candidates: &str| {
        let auto = Auto { candidates: candidates.parse().unwrap(), ..auto(mode) };
        let table = Known::default();
        let plan = Facts { auto, ..facts(mode, Pressure::default(), &table) }.plan(Class::DENSE);
        plan.contenders.iter().map(|codec| codec.to_string()).collect::<Vec<_>>().join(",")
    };
    for mode in [Mode::Performance, Mode::Energy, Mode::Balanced] {
        let default = considered(mode, Candidates::DEFAULT);
        assert!(!default.contains("zstd-15") && !default.contains("zstd-19"), "{mode}: {default}");
    }
    assert!(considered(Mode::Archive, Candidates::DEFAULT).contains("zstd-15"));
    // A list without any other entropy coder asks for this one.
    assert!(considered(Mode::Balanced, "lz4,zstd-19").contains("zstd-19"));
    assert!(considered(Mode::Balanced, "lz4,lz4hc-12").contains("lz4hc-12"));
}

prop_compose! {
    fn estimates()(list in prop::collection::vec((1.0f64..1e6, 0.0f64..0.95, 0u64..20), 5)) -> Known {
        let codecs = auto(Mode::Balanced).candidates;
        let entry = |(codec, (ns_per_kib, saving, samples)): (&Codec, (f64, f64, u64))| {
            (codec.id(), Estimate { ns_per_kib, saving, samples })
        };
        Known(RefCell::new(codecs.as_slice().iter().zip(list).map(entry).collect()))
    }
}

prop_compose! {
    fn pressures()(cpus in 0.0f64..64.0, device_ns_per_kib in prop_oneof![Just(0.0), 10.0f64..1e6],
                   raw_ns_per_kib in 0.0f64..1000.0, demand_ns_per_kib in prop_oneof![Just(0.0), 10.0f64..1e6],
                   pressed: bool) -> Pressure {
        Pressure { cpus, device_ns_per_kib, raw_ns_per_kib, demand_ns_per_kib, pressed }
    }
}

proptest! {
    /// archive is never expected to store more than balanced, nor balanced more than energy;
    /// performance never takes more CPU time than balanced, whatever the load.
    #[test]
    fn modes_are_monotone(table in estimates(), pressure in pressures(), price in 0.1f64..100.0) {
        let chosen = |mode| {
            let facts = Facts { price, ..facts(mode, pressure, &table) };
            facts.plan(Class::DENSE).winner.map(|codec| facts.estimate(codec, Class::DENSE))
        };
        let saving = |mode| chosen(mode).map_or(0.0, |e| e.saving);
        let time = |mode| chosen(mode).map_or(0.0, |e| e.ns_per_kib);
        prop_assert!(saving(Mode::Archive) >= saving(Mode::Balanced));
        prop_assert!(saving(Mode::Balanced) >= saving(Mode::Energy));
        prop_assert!(time(Mode::Performance) <= time(Mode::Balanced));
        prop_assert!(time(Mode::Archive) <= ARCHIVE_CPU_MULTIPLE * time(Mode::Balanced) || time(Mode::Balanced) == 0.0);
    }

    /// The same where earlier modes exclude codecs that decode slowly.
    #[test]
    fn archives_store_no_more_whatever_others_leave_out(
        list in prop::collection::vec((1.0f64..1e6, 0.0f64..0.95), 5),
        pressure in pressures(),
    ) {
        let names: Vec<&str> = SLOW.split(',').collect();
        let entries: Vec<_> = names.iter().zip(&list).map(|(name, (ns, saving))| (*name, *ns, *saving)).collect();
        let table = known(&entries);
        let chosen = |mode| {
            let auto = Auto { candidates: SLOW.parse().unwrap(), ..auto(mode) };
            let facts = Facts { auto, ..facts(mode, pressure, &table) };
            facts.plan(Class::DENSE).winner.map(|codec| facts.estimate(codec, Class::DENSE))
        };
        let saving = |mode| chosen(mode).map_or(0.0, |e| e.saving);
        prop_assert!(saving(Mode::Archive) >= saving(Mode::Balanced));
        prop_assert!(saving(Mode::Balanced) >= saving(Mode::Energy));
        prop_assert!(chosen(Mode::Performance).map_or(0.0, |e| e.ns_per_kib) <= chosen(Mode::Balanced).map_or(0.0, |e| e.ns_per_kib));
    }

    /// A heavier load never makes performance spend more CPU time.
    #[test]
    fn load_never_raises_the_effort(table in estimates(), pressure in pressures(), less in 0.1f64..1.0) {
        let of = |pressure| {
            let facts = facts(Mode::Performance, pressure, &table);
            facts.plan(Class::DENSE).winner.map(|codec| facts.estimate(codec, Class::DENSE).ns_per_kib)
        };
        // The fastest way changes with the CPUs, so only a writer that has to wait is certain to
        // get less.
        let pressure = Pressure { device_ns_per_kib: 0.0, pressed: true, ..pressure };
        let loaded = Pressure { cpus: pressure.cpus * less, ..pressure };
        prop_assert!(of(loaded).unwrap_or(0.0) <= of(pressure).unwrap_or(0.0));
    }

    /// The winner is among the candidates tested, and a test that confirms the estimates finds it
    /// again.
    #[test]
    fn a_test_confirms_what_is_true(table in estimates(), mode in prop::sample::select(Mode::ALL.to_vec())) {
        let facts = facts(mode, Pressure::default(), &table);
        let plan = facts.plan(Class::DENSE);
        let stand_ins = facts.stand_ins(Class::DENSE, &plan.contenders);
        prop_assert!(stand_ins.iter().all(|codec| plan.contenders.iter().all(|other| other != codec)));
        prop_assert!(stand_ins.iter().count() + plan.contenders.iter().count() <= CANDIDATES_MAX);
        if let Some(winner) = plan.winner {
            prop_assert!(plan.contenders.iter().any(|codec| codec == winner));
        }
        if mode == Mode::Balanced || mode == Mode::Energy {
            let entrants = plan.contenders.iter().map(|codec| Entrant { codec, estimate: facts.estimate(codec, Class::DENSE) });
            prop_assert_eq!(facts.choose(entrants).map(|e| e.codec), plan.winner);
        }
    }
}
