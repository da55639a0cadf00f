//! Bytes that the history takes: of a sample, and of 400 days.

use analytics::{Dataset, Frame, Key, Sample, Store, Tier};

use crate::disk::{MemoryPlace, Random};
use crate::life::{START, name_of, query};

/// Counters of a busy server: bursts, pauses, and levels that drift.
fn busy(random: &mut Random, series: u64, second: u64) -> u64 {
    match series % 4 {
        0 => 800 + random.below(200),
        1 if (second / 20).is_multiple_of(3) => random.below(1 << 16),
        2 if random.below(10) == 0 => 4096 * random.below(64),
        3 => 1_000_000 + second * 17,
        _ => 0,
    }
}

#[test]
fn a_sample_takes_about_a_byte() {
    let mut random = Random::new(11);
    let place = MemoryPlace::new();
    let mut store = Store::new(Box::new(place), 128 << 20);
    let (mut samples, mut filled) = (0u64, 0u64);
    for now in START..START + 3000 {
        let row: Vec<_> = (0..100)
            .map(|series| {
                let key = Key::new(Dataset::BYTES, &["write", "nbd"], 1 + series);
                Sample { key, value: busy(&mut random, series, now) }
            })
            .collect();
        samples += row.len() as u64;
        filled += row.iter().filter(|sample| sample.value > 0).count() as u64;
        store.record(now, &row, &name_of);
        if now % 60 == 59 {
            store.commit(now);
        }
    }
    let bytes = store.state().stored_bytes;
    let each = bytes as f64 / samples as f64;
    println!(
        "{bytes} bytes of three tiers for {samples} samples: {each:.2} bytes a sample, {:.2} a sample that is not 0",
        bytes as f64 / filled as f64
    );
    assert!(each < 3.0, "{each} bytes a sample");
}

#[test]
fn four_hundred_days_stay_within_the_budget() {
    const BUDGET: u64 = 2 << 20;
    let mut random = Random::new(13);
    let place = MemoryPlace::new();
    let mut store = Store::new(Box::new(place.clone()), BUDGET);
    let keys: Vec<_> = (0..30).map(|series| Key::new(Dataset::OPS, &["read", "nbd"], 1 + series)).collect();
    let (end, mut now) = (START + 400 * 86_400, START);
    while now < end {
        // An hour of each 200 days has all its seconds.
        let is_dense = (now - START) % (200 * 86_400) < 3600;
        now += if is_dense { 1 } else { 7200 };
        let row: Vec<_> =
            keys.iter().map(|key| Sample { key: key.clone(), value: 1 + random.below(1 << 20) }).collect();
        store.record(now, &row, &name_of);
        if !is_dense || now % 60 == 0 {
            store.commit(now);
            assert_eq!((&store.health().fault, store.health().dropped_frames), (&None, 0));
        }
    }
    let state = store.state();
    println!("{state:?}, {} bytes on disk", place.written_bytes());
    assert!(place.written_bytes() <= BUDGET / 4 * 5, "{} bytes were written", place.written_bytes());
    assert!(state.stored_bytes <= BUDGET && state.frames[2] > 100, "the coarsest tier goes back far: {state:?}");
    let report = store.query(&query(Dataset::OPS, None, now - 30 * 86_400, now, Some(86_400))).unwrap();
    assert!(report.covered_s.iter().skip(1).rev().skip(1).all(|covered| *covered == 12), "{:?}", report.covered_s);
}

#[test]
fn a_frame_keeps_its_bounds_and_loses_no_sum() {
    let mut random = Random::new(17);
    let place = MemoryPlace::new();
    let mut store = Store::new(Box::new(place), 16 << 20);
    let mut total = 0;
    for now in START..START + 3 {
        let row: Vec<_> = (1..2000u64)
            .flat_map(|object| {
                let value = if object == 77 { 1 << 30 } else { random.below(100) };
                ["read", "write"]
                    .map(|operation| Sample { key: Key::new(Dataset::BYTES, &[operation, "nbd"], object), value })
            })
            .collect();
        total += row.iter().map(|sample| sample.value).sum::<u64>();
        store.record(now, &row, &name_of);
    }
    store.commit(START + 10);
    // The frame ends, and is written.
    store.record(START + 100, &[], &name_of);
    store.record(START + 200, &[], &name_of);
    store.commit(START + 200);
    let report = store.query(&query(Dataset::BYTES, Some("object"), START, START + 3, Some(1))).unwrap();
    assert_eq!(report.series.iter().map(|line| line.total).sum::<u64>(), total);
    assert_eq!(report.series[0].name, "volume-77", "the busiest object is told apart");
    assert!(report.folded_objects > 1700 && report.series.iter().any(|line| line.name == "(other)"));
}

#[test]
fn bytes_that_are_no_frame_are_refused() {
    let frame = Frame::new(Tier::Seconds, 600);
    let bytes = frame.encode().unwrap();
    assert_eq!(Frame::decode(&bytes, Tier::Seconds, 600).unwrap(), frame);
    assert!(Frame::decode(&bytes, Tier::Seconds, 660).is_err() && Frame::decode(&bytes, Tier::Tens, 600).is_err());
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(Frame::decode(&flipped, Tier::Seconds, 600).is_err(), "bit {bit}");
    }
    for len in 0..bytes.len() {
        assert!(Frame::decode(&bytes[..len], Tier::Seconds, 600).is_err());
    }
}
