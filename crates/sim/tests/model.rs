//! Tests of the model itself: the content that it accepts and rejects.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use sim::{Model, Observed, Outcome, TableOp};

const SIZE: u64 = 64 << 10;

fn model() -> Model {
    let mut model = Model::new(BTreeMap::new());
    model.table_done(&TableOp::Create { name: "v".into(), size_bytes: SIZE, properties: BTreeMap::new() });
    model
}

fn block(byte: u8) -> Vec<u8> {
    vec![byte; 4096]
}

/// Whether a read of the first block may give this.
fn allows(model: &Model, data: &[u8]) -> bool {
    model.clone().check_read("v", 0, data).is_ok()
}

#[test]
fn a_crash_leaves_what_was_flushed_or_anything_newer() {
    let mut model = model();
    for byte in 1..=4 {
        model.write("v", 0, &block(byte), Outcome::Done);
        if byte == 2 {
            model.flushed("v");
        }
    }
    assert!(allows(&model, &block(4)) && !allows(&model, &block(3)));
    model.crashed();
    let allowed: Vec<u8> = (0..=5).filter(|byte| allows(&model, &block(*byte))).collect();
    assert_eq!(allowed, [2, 3, 4]);
    // Content that was read once is the actual content.
    model.check_read("v", 0, &block(3)).unwrap();
    model.settled();
    model.crashed();
    assert!(allows(&model, &block(3)) && !allows(&model, &block(2)) && !allows(&model, &block(4)));
}

#[test]
fn what_was_only_seen_is_not_durable_after_a_restart() {
    let mut model = model();
    model.write("v", 0, &block(1), Outcome::Done);
    model.crashed();
    model.check_read("v", 0, &block(1)).unwrap();
    model.crashed();
    assert!(allows(&model, &block(0)), "nobody flushed it");
    model.check_read("v", 0, &block(1)).unwrap();
    model.flushed("v");
    model.crashed();
    assert!(!allows(&model, &block(0)));
}

#[test]
fn mixes_are_wrong() {
    let mut model = model();
    model.write("v", 0, &block(1), Outcome::Durable);
    model.write("v", 0, &block(2), Outcome::Failed);
    let mut mix = block(1);
    mix[2048..].fill(2);
    assert!(allows(&model, &block(1)) && allows(&model, &block(2)) && !allows(&model, &mix));
    let error = model.check_read("v", 0, &mix).unwrap_err();
    assert!(error.to_string().contains("nobody ever wrote"), "{error}");
}

#[test]
fn unaligned_writes_and_zeroes_change_only_their_bytes() {
    let mut model = model();
    model.write("v", 0, &[7; 8192], Outcome::Done);
    model.write("v", 4090, &[8; 12], Outcome::Done);
    model.zero("v", 1, 2, Outcome::Done);
    let mut expected = vec![7; 8192];
    expected[4090..4102].fill(8);
    expected[1..3].fill(0);
    model.check_read("v", 0, &expected).unwrap();
    model.check_read("v", 4000, &expected[4000..5000]).unwrap();
    model.zero("v", 4000, 5000, Outcome::Done);
    expected[4000..].fill(0);
    model.check_read("v", 0, &expected).unwrap();
    model.check_zeroes("v", 4096, 8192).unwrap();
    assert!(model.check_zeroes("v", 0, 4096).is_err());
}

#[test]
fn what_was_cut_off_is_gone() {
    let mut model = model();
    model.write("v", 0, &[7; 16384], Outcome::Done);
    model.table_done(&TableOp::Resize { name: "v".into(), size_bytes: 6000 });
    model.table_done(&TableOp::Resize { name: "v".into(), size_bytes: SIZE });
    let mut expected = vec![0; 16384];
    expected[..6000].fill(7);
    model.check_read("v", 0, &expected).unwrap();
}

#[test]
fn a_change_in_doubt_has_happened_or_not() {
    let observed = |sizes: &[(&str, u64)]| -> BTreeMap<String, Observed> {
        let entry = |(name, size_bytes): &(&str, u64)| {
            (
                (*name).to_owned(),
                Observed { size_bytes: *size_bytes, properties: BTreeMap::new(), is_snapshot: false, epoch: 0 },
            )
        };
        sizes.iter().map(entry).collect()
    };
    let none = BTreeMap::new();
    for (sizes, right) in [
        (&[("v", SIZE)][..], true),
        (&[("v", SIZE), ("w", 4096)], true),
        (&[("v", SIZE), ("w", 8192)], false),
        (&[("w", 4096)], false),
        (&[], false),
    ] {
        let mut model = model();
        model.table_in_doubt(TableOp::Create { name: "w".into(), size_bytes: 4096, properties: BTreeMap::new() });
        assert_eq!(model.resolve(&observed(sizes), &none).is_ok(), right, "{sizes:?}");
        if right {
            // The doubt is over.
            let other = if sizes.len() == 1 { observed(&[("v", SIZE), ("w", 4096)]) } else { observed(&[("v", SIZE)]) };
            assert!(model.resolve(&other, &none).is_err());
        }
    }
}

#[test]
fn a_snapshot_keeps_what_was_acknowledged_and_is_durable() {
    let mut model = model();
    model.write("v", 0, &block(1), Outcome::Done);
    model.table_done(&TableOp::Snapshot { volume: "v".into(), name: "s".into() });
    model.write("v", 0, &block(2), Outcome::Done);
    model.crashed();
    model.check_read("v@s", 0, &block(1)).unwrap();
    assert!(model.check_read("v@s", 0, &block(2)).is_err());
    assert!(allows(&model, &block(1)) && allows(&model, &block(2)) && !allows(&model, &block(0)));
    model.table_done(&TableOp::Rollback { snapshot: "v@s".into() });
    assert!(allows(&model, &block(1)) && !allows(&model, &block(2)));
}

#[test]
fn a_promotion_moves_what_the_clone_came_from() {
    let mut model = model();
    for name in ["a", "b", "c"] {
        model.table_done(&TableOp::Snapshot { volume: "v".into(), name: name.into() });
    }
    let clone = TableOp::Clone { snapshot: "v@b".into(), name: "w".into(), properties: BTreeMap::new() };
    model.table_done(&clone);
    assert_eq!(model.newer_than("v@a"), ["v@b", "v@c"]);
    model.table_done(&TableOp::Promote { name: "w".into() });
    assert_eq!(
        (model.snapshots_of("w"), model.snapshots_of("v")),
        (vec!["w@a".to_owned(), "w@b".to_owned()], vec!["v@c".to_owned()])
    );
    assert!(!model.can_roll_back("w@a") && model.can_roll_back("v@c"));
    assert!(model.promotion("w").is_none());
    // And back.
    assert_eq!(model.promotion("v").unwrap().len(), 2);
    model.table_done(&TableOp::Rename { old: "w".into(), new: "x".into() });
    assert_eq!(model.all_names(), ["v", "v@c", "x", "x@a", "x@b"]);
}
