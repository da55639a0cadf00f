//! The contract of [`MapStore`], as a test for any implementation.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use crate::{MapBatch, MapStore};

/// Puts an empty store through the contract, without closing it.
///
/// # Panics
/// When the store breaks the contract.
pub fn map_store_contract(store: &dyn MapStore) {
    empty_store(store);
    last_change_wins(store);
    scans_are_ordered_and_stop(store);
    agrees_with_a_map(store);
    store.persist().unwrap();
    store.persist().unwrap();
    store.verify().unwrap();
}

/// All records in `from..to`.
fn records(store: &dyn MapStore, from: &[u8], to: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut found = Vec::new();
    let mut visit = |key: &[u8], value: &[u8]| {
        found.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    };
    store.scan(from, to, &mut visit).unwrap();
    found
}

fn empty_store(store: &dyn MapStore) {
    assert_eq!(store.get(b"nothing").unwrap(), None);
    assert_eq!(records(store, &[], &[0xff; 32]), []);
    store.commit(MapBatch::default()).unwrap();
    store.persist().unwrap();
    assert_eq!(records(store, &[], &[0xff; 32]), []);
}

fn last_change_wins(store: &dyn MapStore) {
    let mut batch = MapBatch::default();
    batch.put(*b"a", *b"1");
    batch.put(*b"b", *b"1");
    batch.delete(*b"a");
    batch.put(*b"c", *b"1");
    batch.delete(*b"c");
    batch.put(*b"c", *b"2");
    batch.put(*b"d", *b"");
    store.commit(batch).unwrap();
    assert_eq!(store.get(b"a").unwrap(), None);
    assert_eq!(store.get(b"b").unwrap().unwrap(), b"1");
    assert_eq!(store.get(b"c").unwrap().unwrap(), b"2");
    assert_eq!(store.get(b"d").unwrap().unwrap(), b"", "empty is not absent");
    let mut batch = MapBatch::default();
    for key in [b"a", b"b", b"c", b"d"] {
        batch.delete(*key);
    }
    store.commit(batch).unwrap();
    assert_eq!(records(store, &[], &[0xff; 32]), []);
}

fn scans_are_ordered_and_stop(store: &dyn MapStore) {
    let mut batch = MapBatch::default();
    for key in [200u8, 3, 3, 9, 0, 255, 100] {
        batch.put(vec![7, key], vec![key]);
    }
    batch.put(vec![7], vec![]);
    batch.put(vec![8], vec![]);
    store.commit(batch).unwrap();
    let keys = |from: &[u8], to: &[u8]| records(store, from, to).into_iter().map(|r| r.0).collect::<Vec<_>>();
    assert_eq!(
        keys(&[7], &[8]),
        [vec![7], vec![7, 0], vec![7, 3], vec![7, 9], vec![7, 100], vec![7, 200], vec![7, 255]]
    );
    assert_eq!(keys(&[7, 3], &[7, 100]), [vec![7, 3], vec![7, 9]], "the end is not part of it");
    assert_eq!(keys(&[7, 4], &[7, 5]), Vec::<Vec<u8>>::new());
    assert_eq!(keys(&[8], &[7]), Vec::<Vec<u8>>::new(), "a range that is none is empty");
    assert_eq!(keys(&[8], &[8]), Vec::<Vec<u8>>::new());
    let mut seen = 0;
    let mut visit = |_: &[u8], _: &[u8]| {
        seen += 1;
        if seen == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    store.scan(&[7], &[8], &mut visit).unwrap();
    assert_eq!(seen, 3);
}

fn agrees_with_a_map(store: &dyn MapStore) {
    let mut model = BTreeMap::new();
    let mut state = 42u64;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for round in 0..50u64 {
        let mut batch = MapBatch::default();
        for _ in 0..random(200) {
            let key = [b"k", &random(500).to_be_bytes()[..]].concat();
            if random(4) == 0 {
                model.remove(&key);
                batch.delete(key);
            } else {
                let value = vec![round as u8; random(600) as usize];
                model.insert(key.clone(), value.clone());
                batch.put(key, value);
            }
        }
        store.commit(batch).unwrap();
        if round % 7 == 0 {
            store.persist().unwrap();
        }
        let key = [b"k", &random(500).to_be_bytes()[..]].concat();
        assert_eq!(store.get(&key).unwrap(), model.get(&key).cloned());
    }
    assert_eq!(records(store, b"k", b"l"), model.into_iter().collect::<Vec<_>>());
}
