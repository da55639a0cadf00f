//! Sums against odd clocks: each increment that was recorded is in the sum of each tier, whether
//! ticks are late, doubled or set back, and whether the database is open.

use analytics::{Dataset, Key, Sample, Store};

use crate::disk::{MemoryPlace, Random};
use crate::life::{START, name_of, query};

const DAY_S: u64 = 86_400;

/// A counter, and the store that is given its increments.
struct Life {
    place: MemoryPlace,
    store: Store,
    now: u64,
    counter: u64,
}

impl Life {
    fn new(now: u64) -> Self {
        let place = MemoryPlace::new();
        let store = Store::new(Box::new(place.clone()), 64 << 20);
        Self { place, store, now, counter: 0 }
    }

    fn tick(&mut self, more: u64) {
        self.counter += more;
        let bytes = Sample { key: Key::new(Dataset::BYTES, &["write", "ftp"], 1), value: more };
        let level = Sample { key: Key::new(Dataset::CAPACITY, &["live"], 0), value: 1000 };
        self.store.record(self.now, &[bytes, level], &name_of);
    }

    fn restart(&mut self) {
        self.store.commit(self.now);
        self.store = Store::new(Box::new(self.place.clone()), 64 << 20);
    }

    /// The sum and the level of the tier that answers for a span of that length.
    fn sums(&self, before: u64, after: u64, tier_s: u64) -> (u64, u64, u64) {
        let (from, to) = (START - before, START + after);
        let step = Some((to - from).div_ceil(1000).next_multiple_of(tier_s));
        let of = |dataset| self.store.query(&query(dataset, None, from, to, step)).unwrap();
        let (bytes, level) = (of(Dataset::BYTES), of(Dataset::CAPACITY));
        assert_eq!(bytes.resolution_s, tier_s);
        let total = |report: &report::SeriesReport| report.series.first().map_or(0, |line| line.total);
        (total(&bytes), total(&level), level.series[0].peaks.iter().copied().max().unwrap())
    }

    fn check(&self, tiers: &[(u64, u64, u64)], why: &str) {
        for (before, after, tier_s) in tiers {
            let expected = (self.counter, 1000, 1000);
            assert_eq!(self.sums(*before, *after, *tier_s), expected, "{why}, by {tier_s} s");
        }
    }
}

/// Spans that each tier answers for. The seconds of the last two hours are kept.
const TIERS: [(u64, u64, u64); 3] = [(3600, 5400, 1), (DAY_S / 2, DAY_S / 4, 10), (100 * DAY_S, DAY_S, 300)];

#[test]
fn ticks_that_are_late_doubled_or_set_back_lose_no_increment() {
    for seed in 0..60 {
        let mut random = Random::new(900 + seed);
        let mut life = Life::new(START);
        life.store.open(START);
        for tick in 0..1500 {
            let (step, size) = (random.below(100), random.below(1 << 24));
            let passed = match step {
                0..8 => 0,
                8..14 => 2 + random.below(9),
                14..16 => 10 + random.below(50),
                _ => 1,
            };
            life.now += passed;
            match random.below(300) {
                0..6 => life.now -= 1 + random.below(5),
                6..8 => life.now -= random.below(1200).min(life.now.saturating_sub(START - 3000)),
                _ => {}
            }
            life.now = life.now.min(START + 4000);
            life.tick(size);
            if tick % 10 == 0 {
                life.store.commit(life.now);
            }
            if random.below(400) == 0 {
                life.restart();
                life.store.open(life.now);
            }
            if tick % 100 == 0 {
                life.check(&TIERS, &format!("seed {seed}, tick {tick}"));
            }
        }
        life.check(&TIERS, &format!("seed {seed}"));
        life.restart();
        life.store.open(life.now);
        life.check(&TIERS, &format!("seed {seed}, after a restart"));
        assert_eq!(life.store.health().dropped_frames, 0);
    }
}

#[test]
fn a_tick_just_before_its_second_costs_no_increment_a_minute_later() {
    let mut life = Life::new(START);
    (0..10).for_each(|_| {
        life.now += 1;
        life.tick(5);
    });
    // The wait ended early: two ticks in one second, and then one in each.
    life.tick(7);
    for _ in 0..200 {
        life.now += 1;
        life.tick(5);
    }
    life.check(&TIERS, "an early tick");
    assert!(life.store.marks(0, 1 << 40).unwrap().is_empty(), "the clock was not set back");
}

#[test]
fn a_clock_set_back_to_a_span_without_seconds_adds_to_its_sums() {
    let mut life = Life::new(START - 3000);
    life.store.open(life.now);
    for _ in 0..4 * 3600 {
        life.now += 1;
        life.tick(3);
        if life.now.is_multiple_of(60) {
            life.store.commit(life.now);
        }
    }
    // Seconds of the first hours are gone.
    for back in [3 * 3600, 3 * 3600 + 1000] {
        life.now -= back;
        (0..100).for_each(|_| {
            life.now += 1;
            life.tick(11);
        });
        life.check(&TIERS[1..], "while it is recorded");
        life.store.commit(life.now);
        life.now += back;
        life.tick(1);
        life.check(&TIERS[1..], "afterwards");
    }
    life.restart();
    life.store.open(life.now);
    life.check(&TIERS[1..], "after a restart");
}

#[test]
fn a_database_that_opens_late_sums_up_what_both_sides_have() {
    for (down, closed) in [(1, 30), (5, 200), (90, 400), (700, 100), (1, 590)] {
        let mut life = Life::new(START);
        life.store.open(life.now);
        (0..1234).for_each(|_| {
            life.now += 1;
            life.tick(3);
        });
        life.restart();
        life.place.set_free(1 << 20);
        life.now += down;
        life.store.open(life.now);
        for _ in 0..closed {
            life.now += 1;
            life.tick(5);
        }
        life.place.set_free(u64::MAX);
        life.store.commit(life.now);
        assert_eq!(life.store.health().fault, None);
        for _ in 0..1300 {
            life.now += 1;
            life.tick(2);
        }
        // The coarsest tier has the sums that no increment may miss; which one answers is not asked.
        life.check(&TIERS[2..], &format!("down for {down} s, closed for {closed} s"));
    }
}
