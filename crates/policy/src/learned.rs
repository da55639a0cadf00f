//! Measurements of each codec on each class of data: running averages of CPU time and saving, each
//! packed into one word, so that the table's owner can update it without a lock. Lost updates cost
//! precision, never correctness.

use std::cell::Cell;

use codec::CodecId;

use crate::Class;
use crate::prior::prior;
use crate::probe::CLASSES;

/// Number of classes of unit size: a unit of 4 KiB costs more per byte than one of 128 KiB, and
/// saves less; small ones with a dictionary are a class of their own.
pub const SIZES: usize = 4;

/// Class of unit size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SizeClass(u8);

impl SizeClass {
    /// Units with a dictionary: zstd saves differently on them.
    pub const WITH_DICTIONARY: Self = Self(3);

    /// Class of a unit size: up to 8 KiB, up to 32 KiB, more.
    pub const fn of(raw_len: usize) -> Self {
        match raw_len {
            0..=8192 => Self(0),
            8193..=32768 => Self(1),
            _ => Self(2),
        }
    }
    /// Its number.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
    /// The class of that number.
    pub const fn new(index: u8) -> Option<Self> {
        if (index as usize) < SIZES { Some(Self(index)) } else { None }
    }
}

/// A cell of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    /// Number of the codec: all are below [`CODEC_NUMBERS`].
    pub codec: CodecId,
    /// Class of the data.
    pub class: Class,
    /// Class of the unit's size.
    pub size: SizeClass,
}

/// Codec numbers that the table has room for.
pub const CODEC_NUMBERS: usize = 128;
/// Cells of a table.
pub const CELLS: usize = CODEC_NUMBERS * CLASSES * SIZES;

impl Key {
    /// The cell for the level that all codecs share; the one of raw is otherwise unused.
    const fn level(self) -> Self {
        Self { codec: CodecId::RAW, ..self }
    }
    /// Its index in a table of [`CELLS`].
    pub const fn index(self) -> usize {
        ((self.codec.0 as usize % CODEC_NUMBERS) * CLASSES + self.class.index()) * SIZES + self.size.index()
    }
}

/// Times are averaged over about this many samples.
const TIME_WINDOW: u64 = 16;
/// Savings are averaged over about this many samples: they vary more from unit to unit.
const SAVING_WINDOW: u64 = 64;
/// A measured time this many times the average is an interruption rather than work, and is clipped
/// to that.
const TIME_OUTLIER: u64 = 4;
const TIME_BITS: u32 = 24;
const SAVING_BITS: u32 = 16;
const COUNT_BITS: u32 = 8;
const SAVING_HALF: f64 = ((1u32 << (SAVING_BITS - 1)) - 1) as f64;

/// One cell: bits 0 to 23 CPU nanoseconds per KiB, 24 to 39 a saving from -1 to 1, 40 to 47 number
/// of time samples, 48 to 55 of saving samples, both up to 255.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Learned(pub u64);

const fn field(word: u64, at: u32, bits: u32) -> u64 {
    (word >> at) & ((1 << bits) - 1)
}

const fn with_field(word: u64, at: u32, bits: u32, value: u64) -> u64 {
    let most = (1 << bits) - 1;
    let value = if value > most { most } else { value };
    word & !(most << at) | value << at
}

impl Learned {
    const SAVING_AT: u32 = TIME_BITS;
    const TIME_COUNT_AT: u32 = TIME_BITS + SAVING_BITS;
    const SAVING_COUNT_AT: u32 = TIME_BITS + SAVING_BITS + COUNT_BITS;

    const fn ns_per_kib(self) -> u64 {
        field(self.0, 0, TIME_BITS)
    }
    /// Samples of time.
    pub const fn times(self) -> u64 {
        field(self.0, Self::TIME_COUNT_AT, COUNT_BITS)
    }
    /// Samples of saving.
    pub const fn savings(self) -> u64 {
        field(self.0, Self::SAVING_COUNT_AT, COUNT_BITS)
    }

    /// Adds a measured time. A clock that does not advance adds nothing.
    #[must_use]
    pub const fn with_time(self, raw_len: usize, cpu_ns: u64) -> Self {
        if raw_len == 0 || cpu_ns == 0 {
            return self;
        }
        let count = self.times();
        let old = self.ns_per_kib();
        let mut sample = cpu_ns.saturating_mul(1024) / raw_len as u64;
        if count >= TIME_OUTLIER && sample > old * TIME_OUTLIER {
            sample = old * TIME_OUTLIER;
        }
        let new = average(old, sample, count, TIME_WINDOW);
        let new = if new == 0 { 1 } else { new };
        Self(with_field(with_field(self.0, 0, TIME_BITS, new), Self::TIME_COUNT_AT, COUNT_BITS, count + 1))
    }

    /// Adds a sample to the cell's average, which becomes `saving`: -1 to 1.
    #[must_use]
    pub fn with_saving(self, saving: f64) -> Self {
        let code = ((saving.clamp(-1.0, 1.0) + 1.0) * SAVING_HALF) as u64;
        let word = with_field(self.0, Self::SAVING_AT, SAVING_BITS, code);
        Self(with_field(word, Self::SAVING_COUNT_AT, COUNT_BITS, self.savings() + 1))
    }

    /// The value set by [`with_saving`](Self::with_saving), if any.
    pub fn saving(self) -> Option<f64> {
        let code = field(self.0, Self::SAVING_AT, SAVING_BITS) as f64;
        (self.savings() > 0).then_some(code / SAVING_HALF - 1.0)
    }
}

/// The average of `count` samples with one more; old samples fade once there are more than
/// `window`.
const fn average(old: u64, sample: u64, count: u64, window: u64) -> u64 {
    let weight = if count < window { count } else { window - 1 };
    // Rounded to the nearest, so that the average reaches the samples.
    (old * weight + sample + weight.div_ceil(2)) / (weight + 1)
}

/// Expected performance of a codec on a class of data.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// CPU nanoseconds for a KiB of raw data.
    pub ns_per_kib: f64,
    /// Saving as a share of the raw length; units that are stored raw count as nothing saved.
    pub saving: f64,
    /// Number of saving samples, up to 255; 0: it is a guess.
    pub samples: u64,
}

/// A table of measurements.
pub trait Table {
    /// The cell at [`Key::index`].
    fn cell(&self, key: Key) -> Learned;

    /// Replaces it. Concurrent updates may be lost.
    fn update(&self, key: Key, cell: Learned);

    /// The estimate: measured values, or the usual ones where there are none.
    fn estimate(&self, key: Key) -> Estimate {
        let learned = self.cell(key);
        let usual = prior(key);
        let saving = self.level(key) + learned.saving().unwrap_or(usual.saving);
        Estimate {
            ns_per_kib: if learned.times() > 0 { learned.ns_per_kib().max(1) as f64 } else { usual.ns_per_kib },
            saving: saving.clamp(0.0, 1.0),
            samples: learned.savings(),
        }
    }

    /// How much more than usual any codec saves on data of that class.
    fn level(&self, key: Key) -> f64 {
        self.cell(key.level()).saving().unwrap_or(0.0)
    }

    /// Records how long a codec took.
    fn learn_time(&self, key: Key, raw_len: usize, cpu_ns: u64) {
        self.update(key, self.cell(key).with_time(raw_len, cpu_ns));
    }

    /// Records the saving of one unit for each codec tried on it: effective savings, as shares.
    ///
    /// Different codecs are tried on different units. If each were averaged separately, one that is
    /// tried only where it does well would look good. So their common part goes into the level of
    /// the class, and only differences between codecs tried on the same unit go to the codecs.
    fn learn_savings(&self, class: Class, size: SizeClass, tried: &[(CodecId, f64)]) {
        let Some((first, _)) = tried.first() else { return };
        let level = self.level(Key { codec: *first, class, size });
        let usual = |codec: CodecId| {
            let key = Key { codec, class, size };
            self.cell(key).saving().unwrap_or_else(|| prior(key).saving)
        };
        let common = tried.iter().map(|(codec, saving)| saving - usual(*codec)).sum::<f64>() / tried.len() as f64;
        let key = Key { codec: *first, class, size }.level();
        let cell = self.cell(key);
        self.update(key, cell.with_saving(level + (common - level) * weight(cell)));
        if tried.len() < 2 {
            return;
        }
        for (codec, saving) in tried {
            let key = Key { codec: *codec, class, size };
            let (cell, usual) = (self.cell(key), usual(*codec));
            self.update(key, cell.with_saving(usual + (saving - usual - common) * weight(cell)));
        }
    }
}

/// Weight of one more sample of saving: the usual value weighs as much as two samples, and old ones
/// fade.
fn weight(cell: Learned) -> f64 {
    1.0 / (cell.savings() + 2).min(SAVING_WINDOW) as f64
}

/// A table in plain memory: for tests, replays and estimates.
#[derive(Debug, Clone)]
pub struct PlainTable(Vec<Cell<Learned>>);

impl Default for PlainTable {
    fn default() -> Self {
        Self(vec![Cell::default(); CELLS])
    }
}

impl Table for PlainTable {
    fn cell(&self, key: Key) -> Learned {
        self.0[key.index()].get()
    }
    fn update(&self, key: Key, cell: Learned) {
        self.0[key.index()].set(cell);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = Key { codec: CodecId::LZ4, class: Class::DENSE, size: SizeClass::of(4096) };

    #[test]
    fn averages_reach_what_is_measured_and_follow_it() {
        let table = PlainTable::default();
        let class = KEY.class;
        let zstd = Key { codec: "zstd-3".parse::<codec::Codec>().unwrap().id(), ..KEY };
        let expect = |key: Key, ns: f64, saving: f64| {
            let estimate = table.estimate(key);
            assert!((estimate.ns_per_kib / ns - 1.0).abs() < 0.02, "{estimate:?}, expected {ns}");
            assert!((estimate.saving - saving).abs() < 0.02, "{estimate:?}, expected {saving}");
        };
        for _ in 0..400 {
            table.learn_time(KEY, 4096, 8000);
            table.learn_time(zstd, 4096, 20_000);
            table.learn_savings(class, KEY.size, &[(KEY.codec, 0.5), (zstd.codec, 0.75)]);
        }
        expect(KEY, 2000.0, 0.5);
        expect(zstd, 5000.0, 0.75);
        assert_eq!(table.estimate(KEY).samples, 255);
        // Samples of a single codec shift the others too, and keep their distance.
        for _ in 0..400 {
            table.learn_time(KEY, 4096, 16_000);
            table.learn_savings(class, KEY.size, &[(KEY.codec, 0.2)]);
        }
        expect(KEY, 4000.0, 0.2);
        expect(zstd, 5000.0, 0.45);
        // Nothing drops below zero, and cells without new samples are kept.
        for _ in 0..400 {
            table.learn_savings(class, KEY.size, &[(zstd.codec, 0.0)]);
        }
        assert_eq!(table.estimate(KEY).saving, 0.0);
        for _ in 0..400 {
            table.learn_savings(class, KEY.size, &[(zstd.codec, 0.6)]);
        }
        expect(KEY, 4000.0, 0.35);
    }

    #[test]
    fn a_codec_that_is_tried_only_where_all_are_good_does_not_look_better() {
        let table = PlainTable::default();
        let (class, size) = (KEY.class, KEY.size);
        let [strong, weak] = ["zstd-9", "zstd-1"].map(|name| name.parse::<codec::Codec>().unwrap().id());
        for round in 0..300 {
            table.learn_savings(class, size, &[(weak, 0.3)]);
            if round % 3 == 0 {
                table.learn_savings(class, size, &[(weak, 0.8), (strong, 0.81)]);
            }
        }
        let saving = |codec| table.estimate(Key { codec, class, size }).saving;
        assert!((saving(strong) - saving(weak) - 0.01).abs() < 0.01, "{} {}", saving(strong), saving(weak));
    }

    #[test]
    fn an_interruption_does_not_count_in_full() {
        let mut cell = Learned::default();
        for _ in 0..20 {
            cell = cell.with_time(1024, 1000);
        }
        assert!(cell.with_time(1024, 50_000_000).ns_per_kib() < 1300);
    }

    #[test]
    fn what_teaches_nothing_changes_nothing() {
        let cell = Learned::default().with_time(4096, 5000);
        assert_eq!(cell.with_time(4096, 0), cell);
        assert_eq!(cell.with_time(0, 5), cell);
        let table = PlainTable::default();
        table.learn_savings(KEY.class, KEY.size, &[]);
        assert_eq!(table.estimate(KEY), prior(KEY));
    }

    #[test]
    fn every_cell_has_a_place_of_its_own() {
        let mut seen = std::collections::BTreeSet::new();
        for codec in codec::Codec::all() {
            for class in Class::all() {
                for size in (0..SIZES as u8).filter_map(SizeClass::new) {
                    assert!(seen.insert(Key { codec: codec.id(), class, size }.index()));
                }
            }
        }
        assert!(seen.last().is_some_and(|last| *last < CELLS));
    }

    proptest::proptest! {
        #[test]
        fn no_word_and_no_sample_breaks_an_average(word: u64, raw in 1usize..200_000, saving in 0.0f64..=1.0, ns: u64) {
            let table = PlainTable(vec![Cell::new(Learned(word)); CELLS]);
            table.learn_time(KEY, raw, ns);
            table.learn_savings(KEY.class, KEY.size, &[(KEY.codec, saving), (CodecId(77), 1.0 - saving)]);
            let estimate = table.estimate(KEY);
            assert!((0.0..=1.0).contains(&estimate.saving));
            assert!(estimate.ns_per_kib > 0.0);
        }
    }
}
