use super::*;
use crate::protocol::life::{Hint, Life};
use crate::{Extent, Frame, Piece, Place, Run, Session};

fn record() -> Record {
    let pack = PackRef { origin: 1, born: 3, session: Session(77), number: 2 };
    let frame = Frame { stored: 5, codec: codec::CodecId::RAW, crc: 9 };
    let extent =
        Extent { start: 0, len: 5, skip: 0, tail: 5, place: Place::Pack { pack, offset: 8 }, frames: vec![frame] };
    let mut record = Record::genesis(Inc(7));
    record.layout.lay(10, &Run { pieces: vec![Piece::Extent(extent)], len: 5 });
    record.seq = 9;
    record.nonce = Nonce(11);
    record.previous = Nonce(10);
    record.fence = 4;
    record.size = 15;
    (record.version, record.versions) = (9, 4);
    record.message = "first import".into();
    record.ops = vec![Done { op: OpId(5), kind: OpKind::Append, at: 10, len: 5 }];
    record.expired = vec![(1, 2), (4, 6)];
    record.tags = vec![("a".into(), 2), ("b".into(), 7)];
    record.origins = vec![Origin { location: "b/source".into(), inc: Inc(8), version: 6, numbers: vec![] }];
    record
}

#[test]
fn a_record_comes_back_and_every_bit_counts() {
    let mut workspace = Workspace::new();
    let record = record();
    let bytes = record.encode(&mut workspace).unwrap();
    assert_eq!(Record::decode(&bytes, &mut workspace).unwrap(), record);
    for bit in 0..bytes.len() * 8 {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(Record::decode(&bytes, &mut workspace).is_err(), "bit {bit}");
    }
    for len in 0..bytes.len() {
        assert!(Record::decode(&bytes[..len], &mut workspace).is_err(), "{len} bytes");
    }
}

#[test]
fn a_tombstone_keeps_the_operations_and_little_else() {
    let mut workspace = Workspace::new();
    let tombstone = record().into_tombstone();
    let bytes = tombstone.encode(&mut workspace).unwrap();
    let back = Record::decode(&bytes, &mut workspace).unwrap();
    assert!(back.tombstone && back.layout.pieces().is_empty());
    assert_eq!((back.seq, back.nonce, &back.ops), (9, Nonce(11), &record().ops));
    assert_eq!((back.version, back.versions), (9, 4));
    assert!(bytes.len() < 256, "{} bytes", bytes.len());
}

#[test]
fn live_versions_are_the_newest_the_kept_and_those_that_did_not_expire() {
    let mut record = record();
    assert_eq!(record.live(), [2, 3, 7, 8, 9]);
    assert!(record.is_live(9) && !record.is_live(10) && !record.is_live(4));
    record.expire(3, 3);
    assert_eq!(record.expired, [(1, 6)], "ranges that touch are one");
    record.tags.clear();
    assert_eq!(record.live(), [7, 8, 9]);
}

#[test]
fn a_closed_blob_has_the_versions_that_were_not_given_up() {
    let closed = Record { closed: true, ..record() };
    assert_eq!(closed.live(), [3, 7, 8]);
    assert!(!closed.is_live(2) && !closed.is_live(9), "neither a tag nor the newest record holds anything");
}

#[test]
fn what_does_not_fit_together_is_refused() {
    type Change = fn(&mut Record);
    let changes: [(&str, Change); 8] = [
        ("a nonce of 0", |record| record.nonce = Nonce(0)),
        ("a fence in the future", |record| record.fence = 10),
        ("no operation", |record| record.ops.clear()),
        ("a piece behind the end", |record| record.size = 14),
        ("a pack of an unknown origin", |record| record.origins.clear()),
        ("ranges that touch", |record| record.expired = vec![(1, 2), (3, 4)]),
        ("the record itself expired", |record| record.expired = vec![(9, 9)]),
        ("tags in disorder", |record| record.tags.reverse()),
    ];
    for (what, change) in changes {
        let mut record = record();
        change(&mut record);
        let bytes = record.encode(&mut Workspace::new()).unwrap();
        assert!(Record::decode(&bytes, &mut Workspace::new()).is_err(), "{what}");
    }
}

#[test]
fn a_pack_in_a_node_is_called_what_the_record_calls_it() {
    let mut record = record();
    record.origins.push(Origin { location: "c".into(), inc: Inc(9), version: 1, numbers: vec![1] });
    assert_eq!([record.resolve(0, 2), record.resolve(1, 0), record.resolve(2, 1)], [Some(2), Some(1), Some(1)]);
    assert_eq!([record.resolve(2, 2), record.resolve(3, 1)], [None, None]);
}

#[test]
fn lives_and_hints_come_back_and_every_bit_counts() {
    for life in [Life::Born(Inc(5)), Life::Gone] {
        let bytes = life.encode();
        assert_eq!((bytes.len(), Life::decode(&bytes).unwrap()), (29, life));
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Life::decode(&bytes).is_err(), "bit {bit}");
        }
    }
    let hint = Hint { life: 3, inc: Inc(5), seq: 90 };
    let mut bytes = hint.encode();
    assert_eq!((bytes.len(), Hint::decode(&bytes).unwrap()), (44, hint));
    bytes[20] ^= 1;
    assert!(Hint::decode(&bytes).is_err());
}
