//! Results of `auto` on data that defies the usual estimates, with the real codecs. Times are the
//! usual ones, which makes runs repeatable.

use codec::Workspace;

use super::*;
use crate::prior::usual_ns_per_kib;
use crate::{Mode, PlainTable, TEST_CREDIT_NS, test_credit_earned};

const UNIT: usize = 32 << 10;
const UNITS_PER_REGION: usize = 128;

/// Compresses, and reports the usual time.
struct Real<'a> {
    workspace: &'a mut Workspace,
    unit: &'a [u8],
    dst: Vec<u8>,
    attempts: u64,
}

impl Attempts for Real<'_> {
    fn attempt(&mut self, codec: Codec, timed: bool) -> Attempt {
        self.attempts += 1;
        let stored = self.workspace.compress(codec, self.unit, &mut self.dst);
        let cpu_ns = (usual_ns_per_kib(codec.id()) * self.unit.len() as f64 / 1024.0) as u64;
        Attempt { stored, cpu_ns: timed.then_some(cpu_ns) }
    }
    fn keep(&mut self) {}
}

/// The stored size of units, with `auto` in a mode, and attempts for that.
fn by_auto(mode: Mode, units: &[Vec<u8>]) -> (usize, u64) {
    let (table, mut workspace) = (PlainTable::default(), Workspace::new());
    let auto = Auto { mode, candidates: Default::default(), min_saving_permille: 125 };
    let (mut bytes, mut tried, mut credit_ns) = (0, 0, TEST_CREDIT_NS);
    let mut before = Region::default();
    for region in units.chunks(UNITS_PER_REGION) {
        let mut remembered = before.checked_neighbour();
        for unit in region {
            let mut attempts = Real { workspace: &mut workspace, unit, dst: vec![0; limit(unit)], attempts: 0 };
            let mut planner = Planner::new(auto, 1.0, Pressure::default(), &table);
            let stored = planner.store(unit, remembered, credit_ns, true, &mut attempts);
            credit_ns -= stored.test_ns as i64;
            credit_ns += test_credit_earned(credit_ns, stored.cpu_ns - stored.test_ns);
            remembered = stored.region;
            bytes += stored.bytes;
            tried += attempts.attempts;
        }
        before = remembered;
    }
    (bytes, tried)
}

fn limit(unit: &[u8]) -> usize {
    crate::dst_limit_permille(unit.len(), 125)
}

/// The same with one codec.
fn by(codec: &str, units: &[Vec<u8>]) -> usize {
    let (codec, mut workspace) = (codec.parse().unwrap(), Workspace::new());
    let stored = |unit: &Vec<u8>| {
        let mut dst = vec![0; limit(unit)];
        workspace.compress(codec, unit, &mut dst).unwrap_or(unit.len())
    };
    units.iter().map(stored).sum()
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| (self.next() >> 40) as u8).collect()
    }
}

/// Hexadecimal digits carry half their length, which an entropy coder finds and a search for
/// repetitions spoils.
#[test]
fn hexadecimal_digits_take_the_codec_that_saves_most_of_them() {
    let mut random = Random(7);
    let digits =
        |random: &mut Random| random.bytes(UNIT / 2).iter().flat_map(|b| format!("{b:02x}").into_bytes()).collect();
    let units: Vec<Vec<u8>> = (0..2 * UNITS_PER_REGION).map(|_| digits(&mut random)).collect();
    let (quick, slow) = (by("zstd-1", &units), by("zstd-9", &units));
    assert!(quick < slow, "zstd-9 is as good by now: {quick} {slow}");
    for mode in [Mode::Archive, Mode::Balanced, Mode::Energy] {
        let (stored, _) = by_auto(mode, &units);
        assert!(stored <= quick + quick / 50, "{mode}: {stored}, zstd-1 {quick}, zstd-9 {slow}");
    }
}

/// Random bytes with repeated short pieces, as in images compressed line by line: invisible to the
/// probe, and nearly so to lz4.
#[test]
fn what_looks_random_and_is_not_is_found() {
    let mut random = Random(11);
    let unit = |random: &mut Random| {
        let mut unit = random.bytes(256);
        while unit.len() < UNIT {
            if random.next() % 100 < 45 {
                let from = (random.next() % (unit.len() as u64 - 16)) as usize;
                let piece = unit[from..from + 10].to_vec();
                unit.extend(piece);
            } else {
                let fresh = random.bytes(12);
                unit.extend(fresh);
            }
        }
        unit.truncate(UNIT);
        unit
    };
    let units: Vec<Vec<u8>> = (0..2 * UNITS_PER_REGION).map(|_| unit(&mut random)).collect();
    assert!(units.iter().all(|unit| probe(unit).class.is_random()));
    let raw = UNIT * units.len();
    let best = by("zstd-1", &units).min(by("zstd-3", &units));
    assert!(best < raw * 9 / 10, "no example: {best} of {raw}");
    let (stored, _) = by_auto(Mode::Balanced, &units);
    assert!(raw - stored >= (raw - best) * 3 / 4, "{stored}, {best} can be had of {raw}");
}

/// Random data costs few attempts, however long it is.
#[test]
fn random_data_is_hardly_tried() {
    let mut random = Random(5);
    let units: Vec<Vec<u8>> = (0..6 * UNITS_PER_REGION).map(|_| random.bytes(UNIT)).collect();
    let (stored, attempts) = by_auto(Mode::Balanced, &units);
    assert_eq!(stored, UNIT * units.len());
    let most = units.len() as u64 / 8;
    assert!(attempts <= most, "{attempts} attempts for {} units, {most} would do", units.len());
}
