//! Units of generated data through the whole policy, with the real codecs and a clock that charges
//! their known times.
#![allow(clippy::expect_used)]

use std::collections::BTreeMap;

use codec::{Codec, CodecId, Workspace};
use policy::{
    Attempt, Attempts, Auto, Candidates, Class, Mode, PlainTable, Planner, Pressure, Region, Stored, TEST_CREDIT_NS,
    Why, dst_limit_permille,
};

const MIN_SAVING_PERMILLE: u32 = 125;
const UNIT: usize = 32 << 10;

fn candidates() -> Candidates {
    "lz4,zstd-1,zstd-3,zstd-9".parse().expect("a list")
}

/// Real codecs; the time is a multiple of the raw length, so that a run can be repeated.
struct Real<'a> {
    workspace: &'a mut Workspace,
    raw: &'a [u8],
    tried: Vec<Codec>,
    kept: Option<Codec>,
}

impl Attempts for Real<'_> {
    fn attempt(&mut self, codec: Codec, timed: bool) -> Attempt {
        let mut dst = vec![0; dst_limit_permille(self.raw.len(), MIN_SAVING_PERMILLE)];
        let stored = self.workspace.compress(codec, self.raw, &mut dst);
        let per_kib = match codec.to_string().as_str() {
            "lz4" => 1200,
            "zstd-1" => 2200,
            "zstd-3" => 3000,
            _ => 15_000,
        };
        self.tried.push(codec);
        Attempt { stored, cpu_ns: timed.then_some(self.raw.len() as u64 / 1024 * per_kib) }
    }
    fn keep(&mut self) {
        self.kept = self.tried.last().copied();
    }
}

struct Run {
    table: PlainTable,
    workspace: Workspace,
    regions: BTreeMap<usize, Region>,
    credit_ns: i64,
    at: usize,
    raw: u64,
    stored: u64,
    cpu_ns: u64,
    whys: BTreeMap<&'static str, u32>,
    codecs: BTreeMap<CodecId, u32>,
}

impl Run {
    fn new(credit_ns: i64) -> Self {
        Self {
            table: PlainTable::default(),
            workspace: Workspace::new(),
            regions: BTreeMap::new(),
            credit_ns,
            at: 0,
            raw: 0,
            stored: 0,
            cpu_ns: 0,
            whys: BTreeMap::new(),
            codecs: BTreeMap::new(),
        }
    }

    fn put(&mut self, mode: Mode, pressure: Pressure, unit: &[u8]) -> Stored {
        let auto = Auto { mode, candidates: candidates(), min_saving_permille: MIN_SAVING_PERMILLE };
        let mut planner = Planner::new(auto, 1.0, pressure, &self.table);
        // As the engine does: in the mode `performance`, a run of random units continues in the
        // next region.
        let before = self.regions.get(&(self.at >> 22).wrapping_sub(1)).filter(|_| mode == Mode::Performance);
        let fresh = before.map_or_else(Region::default, |before| before.random_neighbour());
        let region = self.regions.entry(self.at >> 22).or_insert(fresh);
        let mut real = Real { workspace: &mut self.workspace, raw: unit, tried: Vec::new(), kept: None };
        let stored = planner.store(unit, *region, self.credit_ns, true, &mut real);
        assert_eq!(real.kept.map_or(CodecId::RAW, |codec| codec.id()), stored.codec, "what is kept is what is said");
        assert!(real.tried.len() <= candidates().as_slice().len() + 1);
        assert!(stored.test_ns <= stored.cpu_ns);
        *region = stored.region;
        self.at += unit.len();
        self.raw += unit.len() as u64;
        self.stored += stored.bytes as u64;
        self.cpu_ns += stored.cpu_ns;
        *self.whys.entry(stored.why.name()).or_default() += 1;
        *self.codecs.entry(stored.codec).or_default() += 1;
        stored
    }

    fn all(mode: Mode, data: &[Vec<u8>]) -> Self {
        let mut run = Self::new(TEST_CREDIT_NS);
        for unit in data {
            run.put(mode, Pressure::default(), unit);
        }
        run
    }
}

fn noise(seed: u64) -> impl Iterator<Item = u64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    })
}

fn random(seed: u64) -> Vec<u8> {
    noise(seed).flat_map(u64::to_le_bytes).take(UNIT).collect()
}

fn text(seed: u64) -> Vec<u8> {
    const WORDS: [&str; 24] = [
        "storage",
        "engine",
        "the",
        "of",
        "block",
        "writes",
        "and",
        "a",
        "compressed",
        "extent",
        "log",
        "map",
        "every",
        "checksum",
        "is",
        "verified",
        "before",
        "unit",
        "decoded",
        "to",
        "reader",
        "epoch",
        "snapshot",
        "in",
    ];
    let mut out = Vec::new();
    for number in noise(seed) {
        out.extend_from_slice(WORDS[(number >> 32) as usize % WORDS.len()].as_bytes());
        out.push(if number.is_multiple_of(13) { b'\n' } else { b' ' });
        if number.is_multiple_of(5) {
            out.extend_from_slice((number % 100_000).to_string().as_bytes());
        }
        if out.len() >= UNIT {
            break;
        }
    }
    out.truncate(UNIT);
    out
}

/// Six bits in each byte: an entropy coder saves a quarter, lz4 nothing.
fn base64(seed: u64) -> Vec<u8> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    noise(seed).map(|n| DIGITS[(n >> 40) as usize % 64]).take(UNIT).collect()
}

/// The same random bytes twice: invisible to the probe.
fn twice(seed: u64) -> Vec<u8> {
    let half = random(seed);
    [&half[..UNIT / 2], &half[..UNIT / 2]].concat()
}

#[test]
fn each_kind_gets_what_pays() {
    for (name, make, most, mode) in [
        ("text", text as fn(u64) -> Vec<u8>, 0.5, Mode::Balanced),
        ("text", text, 0.5, Mode::Archive),
        ("base64", base64, 0.78, Mode::Balanced),
        ("base64", base64, 0.78, Mode::Energy),
        ("repeated", twice, 0.52, Mode::Balanced),
        ("repeated", twice, 0.52, Mode::Archive),
    ] {
        let data: Vec<_> = (1..=300).map(make).collect();
        let run = Run::all(mode, &data);
        let share = run.stored as f64 / run.raw as f64;
        assert!(share <= most, "{name}, {mode}: {share:.3}, {:?} {:?}", run.whys, run.codecs);
    }
}

#[test]
fn random_data_costs_a_few_early_ends_and_in_performance_nothing() {
    let data: Vec<_> = (1..=1000).map(random).collect();
    let run = Run::all(Mode::Balanced, &data);
    assert_eq!(run.stored, run.raw);
    let tried = run.whys.get("check").copied().unwrap_or(0);
    assert!((60..200).contains(&tried), "{:?}", run.whys);
    let run = Run::all(Mode::Performance, &data);
    assert_eq!(run.stored, run.raw);
    assert!(run.whys["random-run"] > 700, "{:?}", run.whys);
    // A unit in a hundred may look like something else.
    assert!(run.cpu_ns <= 10 * UNIT as u64 / 1024 * 15_000, "nothing is compressed: {} ns, {:?}", run.cpu_ns, run.whys);
}

#[test]
fn a_change_of_data_is_followed_within_units() {
    for mode in [Mode::Balanced, Mode::Archive, Mode::Energy, Mode::Performance] {
        let mut run = Run::new(TEST_CREDIT_NS);
        for seed in 1..=100 {
            run.put(mode, Pressure::default(), &random(seed));
        }
        let raw_until = (1..=20).position(|seed| run.put(mode, Pressure::default(), &text(seed)).codec != CodecId::RAW);
        // `performance` probes one in sixteen by then.
        let most = if mode == Mode::Performance { 16 } else { 4 };
        assert!(raw_until.is_some_and(|units| units <= most), "{mode}: {raw_until:?}");
    }
}

#[test]
fn small_objects_lose_nothing_to_an_early_end() {
    // 400 units of mixed kinds, as one object and as 400, so that no region ever gets a second
    // unit.
    let make = [text, base64, twice, text];
    let data: Vec<_> = (1..=400).map(|seed| make[seed as usize % 4](seed)).collect();
    for mode in [Mode::Energy, Mode::Balanced, Mode::Archive] {
        let together = Run::all(mode, &data);
        for credit_ns in [TEST_CREDIT_NS, 0] {
            let mut run = Run::new(credit_ns);
            for unit in &data {
                run.at += 1 << 22;
                run.put(mode, Pressure::default(), unit);
            }
            let (small, large) = (run.stored as f64, together.stored as f64);
            assert!(
                small <= large * 1.02,
                "{mode}, credit {credit_ns}: {small} {:?} against {large} {:?}",
                run.codecs,
                together.codecs
            );
        }
    }
}

#[test]
fn a_later_mode_stores_no_more_and_performance_takes_no_more_time() {
    let make = [text, random, base64, twice, text, text];
    let data: Vec<_> = (1..=900).map(|seed| make[(seed as usize / 16) % 6](seed)).collect();
    let of = |mode| Run::all(mode, &data);
    let (energy, balanced, archive) = (of(Mode::Energy), of(Mode::Balanced), of(Mode::Archive));
    assert!(archive.stored <= balanced.stored, "{} {}", archive.stored, balanced.stored);
    assert!(balanced.stored <= energy.stored, "{} {}", balanced.stored, energy.stored);
    for pressed in [false, true] {
        for device_ns_per_kib in [0.0, 1000.0, 10_000.0] {
            let pressure = Pressure { pressed, device_ns_per_kib, cpus: 2.0, ..Pressure::default() };
            let mut run = Run::new(TEST_CREDIT_NS);
            for unit in &data {
                run.put(Mode::Performance, pressure, unit);
            }
            assert!(run.cpu_ns <= balanced.cpu_ns, "{} {} {:?}", run.cpu_ns, balanced.cpu_ns, run.whys);
        }
    }
}

/// Dictionaries that help with some data: for each, the fraction that it leaves of plain zstd's
/// output.
struct Helped<'a> {
    workspace: &'a mut Workspace,
    raw: &'a [u8],
    leaves: &'a [f64],
    helper: u8,
    attempts: u32,
    kept: Option<u8>,
}

impl Attempts for Helped<'_> {
    fn attempt(&mut self, codec: Codec, timed: bool) -> Attempt {
        self.attempts += 1;
        let mut dst = vec![0; dst_limit_permille(self.raw.len(), MIN_SAVING_PERMILLE)];
        let stored = self.workspace.compress(codec, self.raw, &mut dst);
        let share = self.leaves.get(usize::from(self.helper).wrapping_sub(1)).filter(|_| codec != Codec::Lz4);
        let stored = stored.map(|bytes| (bytes as f64 * share.unwrap_or(&1.0)) as usize);
        Attempt { stored, cpu_ns: timed.then_some(40_000) }
    }
    fn keep(&mut self) {
        self.kept = Some(self.helper);
    }
    fn dictionaries(&self) -> u8 {
        self.leaves.len() as u8
    }
    fn help(&mut self, dictionary: u8) {
        self.helper = dictionary;
    }
}

#[test]
fn each_region_gets_the_dictionary_that_helps_it_and_none_where_all_do_harm() {
    let auto = Auto { mode: Mode::Balanced, candidates: candidates(), min_saving_permille: MIN_SAVING_PERMILLE };
    for (leaves, best) in [(&[0.8, 0.9][..], 1), (&[1.1, 0.8, 0.9], 2), (&[1.05, 1.2], 0), (&[1.1, 1.2, 1.3, 0.9], 4)] {
        let (table, mut workspace) = (PlainTable::default(), Workspace::new());
        let mut planner = Planner::new(auto, 1.0, Pressure::default(), &table);
        let (mut region, mut used, mut attempts, mut test_ns) = (Region::default(), 0, 0, 0);
        for seed in 1..=600 {
            let raw = &text(seed)[..4096];
            let mut unit = Helped { workspace: &mut workspace, raw, leaves, helper: 9, attempts: 0, kept: None };
            let stored = planner.store(raw, region, TEST_CREDIT_NS, true, &mut unit);
            region = stored.region;
            used += u32::from(unit.kept == Some(best));
            attempts += unit.attempts;
            test_ns += stored.test_ns;
            assert!(stored.test_ns <= stored.cpu_ns);
        }
        assert_eq!(region.dictionary(), Some(best), "{leaves:?}");
        assert!(used >= 598, "{leaves:?}: {used} of 600");
        let in_vain = attempts - 600;
        assert!(
            in_vain < 150 && test_ns >= u64::from(in_vain) * 40_000,
            "{leaves:?}: {in_vain} more than there are units"
        );
    }
}

#[test]
fn without_a_budget_the_newest_dictionary_helps() {
    let auto = Auto { mode: Mode::Balanced, candidates: candidates(), min_saving_permille: MIN_SAVING_PERMILLE };
    let (table, mut workspace) = (PlainTable::default(), Workspace::new());
    let raw = &text(1)[..4096];
    let leaves = &[0.7, 0.9];
    let mut unit = Helped { workspace: &mut workspace, raw, leaves, helper: 9, attempts: 0, kept: None };
    let stored =
        Planner::new(auto, 1.0, Pressure::default(), &table).store(raw, Region::default(), 0, false, &mut unit);
    assert_eq!((unit.kept, unit.attempts, stored.region.dictionary()), (Some(2), 1, None));
    let random = &random(1)[..4096];
    let mut unit = Helped { workspace: &mut workspace, raw: random, leaves, helper: 9, attempts: 0, kept: None };
    Planner::new(auto, 1.0, Pressure::default(), &table).store(
        random,
        Region::default(),
        TEST_CREDIT_NS,
        false,
        &mut unit,
    );
    // One for each codec that tests data that looks random.
    assert!(unit.attempts <= 2, "random data is no occasion to compare dictionaries: {}", unit.attempts);
}

/// A credit too small for a candidate a hundred times as expensive tests the others.
#[test]
fn a_small_credit_tests_what_it_pays_for() {
    let tried = |credit_ns| {
        let auto = Auto { mode: Mode::Balanced, candidates: candidates(), min_saving_permille: MIN_SAVING_PERMILLE };
        let (table, mut workspace) = (PlainTable::default(), Workspace::new());
        let raw = text(7);
        let mut real = Real { workspace: &mut workspace, raw: &raw, tried: Vec::new(), kept: None };
        let mut planner = Planner::new(auto, 1.0, Pressure::default(), &table);
        let stored = planner.store(&raw, Region::default(), credit_ns, true, &mut real);
        (stored.why, real.tried.len())
    };
    let (all, some, none) = (tried(TEST_CREDIT_NS), tried(600_000), tried(0));
    assert_eq!((all.0, some.0, none.0), (Why::TestFirst, Why::TestFirst, Why::ClassWinner));
    assert!(all.1 > some.1 && some.1 > 1, "{all:?} {some:?}");
}

#[test]
fn without_a_budget_nothing_is_tested() {
    let mut run = Run::new(0);
    for seed in 1..=300 {
        let stored = run.put(Mode::Archive, Pressure::default(), &text(seed));
        assert_eq!((stored.why, stored.test_ns), (Why::ClassWinner, 0));
        assert!(stored.class < Class::DENSE);
    }
}

#[test]
fn the_same_facts_give_the_same_decisions() {
    let data: Vec<_> = (1..=200).map(|seed| if seed % 3 == 0 { random(seed) } else { text(seed) }).collect();
    let (one, other) = (Run::all(Mode::Balanced, &data), Run::all(Mode::Balanced, &data));
    assert_eq!((one.stored, one.whys, one.codecs), (other.stored, other.whys, other.codecs));
}

/// A region remembers the winner of a test under `archive`; other modes ignore a codec that they
/// would not consider.
#[test]
fn what_won_under_archive_is_left_when_the_mode_changes() {
    let strong: Codec = "zstd-15".parse().expect("a codec");
    let (table, mut workspace, unit) = (PlainTable::default(), Workspace::new(), text(1));
    let mut put = |mode, region| {
        let auto = Auto {
            mode,
            candidates: "lz4,zstd-1,zstd-15".parse().expect("a list"),
            min_saving_permille: MIN_SAVING_PERMILLE,
        };
        let mut real = Real { workspace: &mut workspace, raw: &unit, tried: Vec::new(), kept: None };
        // No budget remains for tests.
        Planner::new(auto, 1.0, Pressure::default(), &table).store(&unit, region, 0, false, &mut real)
    };
    let class = put(Mode::Balanced, Region::default()).class;
    let region = Region::default().after_test(class, strong.id(), UNIT, UNIT / 4);
    let stored = put(Mode::Archive, region);
    assert_eq!((stored.codec, stored.why), (strong.id(), Why::RegionWinner));
    for mode in [Mode::Balanced, Mode::Energy] {
        let stored = put(mode, region);
        assert_ne!(stored.codec, strong.id(), "{mode}");
        assert_eq!(stored.why, Why::ClassWinner, "{mode}");
    }
}
