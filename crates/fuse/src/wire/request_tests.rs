//! Requests in the kernel's layout, and malformed ones.

use proptest::prelude::*;

use super::*;

fn header(code: u32, extension_words: u16) -> Vec<u8> {
    let mut header = vec![0; IN_HEADER_BYTES];
    header[4..8].copy_from_slice(&code.to_ne_bytes());
    header[8..16].copy_from_slice(&7_u64.to_ne_bytes());
    header[16..24].copy_from_slice(&9_u64.to_ne_bytes());
    header[24..28].copy_from_slice(&1000_u32.to_ne_bytes());
    header[32..36].copy_from_slice(&55_u32.to_ne_bytes());
    header[36..38].copy_from_slice(&extension_words.to_ne_bytes());
    header
}

fn numbers(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

#[test]
fn the_header_says_who_asks_about_what() {
    let request = decode(&header(opcode::LOOKUP, 0), b"name\0", b"", None).unwrap();
    assert_eq!((request.unique, request.node, request.uid, request.pid), (7, 9, 1000, 55));
    assert!(matches!(request.operation, Operation::Lookup { name: b"name" }));
    assert!(!request.is_resent());
    let mut again = header(opcode::STATFS, 0);
    again[8..16].copy_from_slice(&(1_u64 << 63 | 7).to_ne_bytes());
    assert!(decode(&again, b"", b"", None).unwrap().is_resent());
}

#[test]
fn a_request_of_a_ring_is_that_of_the_device() {
    let fixed = [&5_u64.to_ne_bytes()[..], &numbers(&[1, 0])].concat();
    let names = b"old\0new\0";
    let whole = [&fixed[..], names].concat();
    for (first, rest) in [(&whole[..], &b""[..]), (&fixed[..], &names[..])] {
        let request = decode(&header(opcode::RENAME2, 0), first, rest, None).unwrap();
        let Operation::Rename { name, new_directory, new_name, flags } = request.operation else { panic!() };
        assert_eq!((name, new_directory, new_name, flags), (&b"old"[..], 5, &b"new"[..], 1));
    }
}

#[test]
fn a_write_has_its_data_with_it_or_in_the_answer() {
    let mut fixed = vec![0; 40];
    fixed[8..16].copy_from_slice(&4096_u64.to_ne_bytes());
    fixed[16..20].copy_from_slice(&3_u32.to_ne_bytes());
    fixed[20..24].copy_from_slice(&4_u32.to_ne_bytes());
    let data_of = |first: &[u8], in_answer| {
        let request = decode(&header(opcode::WRITE, 0), first, b"", in_answer).ok()?;
        let Operation::Write { offset: 4096, data, kill_suid_sgid: true, .. } = request.operation else { panic!() };
        Some(match data {
            WriteData::Here(bytes) => (bytes.to_vec(), 0),
            WriteData::InAnswer(bytes) => (Vec::new(), bytes),
        })
    };
    assert_eq!(data_of(&[&fixed[..], b"abc"].concat(), None), Some((b"abc".to_vec(), 0)));
    assert_eq!(data_of(&fixed, Some(3)), Some((Vec::new(), 3)));
    assert_eq!((data_of(&fixed, Some(4)), data_of(&[&fixed[..], b"ab"].concat(), None)), (None, None));
}

#[test]
fn attributes_to_set_are_those_that_are_marked() {
    let mut fixed = vec![0; 88];
    fixed[0..4].copy_from_slice(&(1_u32 | 1 << 3 | 1 << 5 | 1 << 7 | 1 << 11).to_ne_bytes());
    fixed[16..24].copy_from_slice(&77_u64.to_ne_bytes());
    fixed[40..48].copy_from_slice(&(-3_i64).to_ne_bytes());
    fixed[60..64].copy_from_slice(&u32::MAX.to_ne_bytes());
    fixed[68..72].copy_from_slice(&0o640_u32.to_ne_bytes());
    let request = decode(&header(opcode::SETATTR, 0), &fixed, b"", None).unwrap();
    let Operation::SetAttributes(set) = request.operation else { panic!() };
    let expected = SetAttributes {
        mode: Some(0o640),
        size: Some(77),
        accessed: Some(TimeToSet::Now),
        modified: Some(TimeToSet::At(Time { seconds: -3, nanoseconds: 999_999_999 })),
        kill_suid_sgid: true,
        ..SetAttributes::default()
    };
    assert_eq!(set, expected);
}

#[test]
fn groups_come_in_an_extension_that_is_no_part_of_the_name() {
    let extension = numbers(&[24, EXTENSION_GROUPS, 2, 100, 101, 0]);
    let body = [&numbers(&[0o644, 0, 0o22, 0])[..], b"new\0\0\0\0\0", &extension].concat();
    let request = decode(&header(opcode::MKNOD, 3), &body, b"", None).unwrap();
    assert!(matches!(request.operation, Operation::MakeNode { name: b"new", umask: 0o22, .. }));
    assert_eq!(request.supplementary_groups().collect::<Vec<_>>(), [100, 101]);
    // A count beyond the end is truncated.
    let lying = numbers(&[16, EXTENSION_GROUPS, u32::MAX, 100]);
    let body = [&b"new\0\0\0\0\0"[..], &lying].concat();
    let request = decode(&header(opcode::LOOKUP, 2), &body, b"", None).unwrap();
    assert_eq!(request.supplementary_groups().collect::<Vec<_>>(), [100]);
    assert!(decode(&header(opcode::LOOKUP, 9), b"short\0", b"", None).is_err());
}

#[test]
fn lengths_that_are_not_there_are_refused() {
    let batch = [&numbers(&[u32::MAX, 0])[..], &[0; 32]].concat();
    assert!(decode(&header(opcode::BATCH_FORGET, 0), &batch, b"", None).is_err());
    let value = [&numbers(&[u32::MAX, 0, 0, 0])[..], b"user.x\0abc"].concat();
    assert!(decode(&header(opcode::SETXATTR, 0), &value, b"", None).is_err());
    assert!(decode(&header(opcode::READ, 0), &[0; 39], b"", None).is_err());
    assert!(decode(&[0; 39], b"", b"", None).is_err());
    let good = [&numbers(&[2, 0])[..], &[1; 32]].concat();
    let request = decode(&header(opcode::BATCH_FORGET, 0), &good, b"", None).unwrap();
    let Operation::BatchForget { pairs } = request.operation else { panic!() };
    assert_eq!(forgotten(pairs).count(), 2);
}

proptest! {
    #[test]
    fn no_bytes_make_the_decoder_panic(
        code in 0_u32..60,
        words in 0_u16..6,
        first in proptest::collection::vec(any::<u8>(), 0..160),
        rest in proptest::collection::vec(any::<u8>(), 0..160),
        in_answer in proptest::option::of(0_usize..200),
    ) {
        if let Ok(request) = decode(&header(code, words), &first, &rest, in_answer) {
            let _ = request.supplementary_groups().count();
            if let Operation::BatchForget { pairs } = request.operation {
                let _ = forgotten(pairs).count();
            }
        }
    }
}
