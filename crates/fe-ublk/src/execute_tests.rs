//! Requests against a volume in memory.

use std::sync::atomic::Ordering;

use testkit::{Memory, Op};

use super::*;

const SIZE: u64 = 4 << 30;

/// Does a request to its end, and returns the answer and the number of steps.
fn run(volume: &Arc<Memory>, mut work: Work, buffer: &mut [u8]) -> (i32, usize) {
    let disk = Disk::new(volume.clone());
    for steps in 1.. {
        match disk.step(&mut work, buffer) {
            Outcome::Left => {}
            Outcome::Done(answer) | Outcome::Failed(answer, _) => return (answer, steps),
            Outcome::Full(..) => panic!("it is to be held"),
        }
    }
    unreachable!()
}

#[test]
fn data_comes_back_as_it_was_written() {
    let volume = Memory::new(SIZE);
    let mut buffer = vec![7; 8192];
    assert_eq!(run(&volume, Work::Write { offset: 512, length: 4096, fua: false }, &mut buffer), (4096, 1));
    buffer.fill(0xee);
    assert_eq!(run(&volume, Work::Read { offset: 0, length: 8192 }, &mut buffer), (8192, 1));
    assert_eq!(buffer, [vec![0; 512], vec![7; 4096], vec![0; 3584]].concat());
    buffer.fill(0xee);
    let disk = Disk::new(volume.clone());
    assert_eq!(disk.read_cached(&Work::Read { offset: 512, length: 512 }, &mut buffer), Some(512));
    assert_eq!(buffer[..513], [vec![7; 512], vec![0xee]].concat());
    volume.cached.store(false, Ordering::Release);
    assert_eq!(disk.read_cached(&Work::Read { offset: 512, length: 512 }, &mut buffer), None);
    assert_eq!(disk.read_cached(&Work::Flush, &mut buffer), None);
}

#[test]
fn durability_is_asked_for_as_the_program_does() {
    let volume = Memory::new(SIZE);
    volume.set_recording();
    let mut buffer = vec![1; 512];
    run(&volume, Work::Write { offset: 0, length: 512, fua: true }, &mut buffer);
    run(&volume, Work::Flush, &mut buffer);
    run(&volume, Work::WriteZeroes { range: Range { offset: 0, length: 512 }, no_hole: true, fua: true }, &mut buffer);
    let expected = [
        Op::Write { offset: 0, length: 512, fua: true },
        Op::Flush,
        Op::Zeroes { offset: 0, length: 512, no_hole: true },
        Op::Flush,
    ];
    assert_eq!(volume.recorded(), expected);
}

#[test]
fn long_ranges_are_done_in_steps_that_end_at_whole_blocks() {
    let volume = Memory::new(SIZE);
    volume.set_recording();
    let gib = 1 << 30;
    let range = Range { offset: gib - 512, length: gib };
    assert_eq!(run(&volume, Work::Discard(range), &mut []), (0, 3));
    let discard = |offset, length| Op::Discard { offset, length };
    assert_eq!(volume.recorded(), [discard(gib - 512, 512), discard(gib, gib - 512)]);
    let range = Range { offset: 0, length: 80 << 20 };
    assert_eq!(run(&volume, Work::WriteZeroes { range, no_hole: true, fua: false }, &mut []), (0, 4));
    assert_eq!(run(&volume, Work::WriteZeroes { range, no_hole: false, fua: false }, &mut []), (0, 2));
    let zeroes = |offset, length, no_hole| Op::Zeroes { offset, length, no_hole };
    let step = 32 << 20;
    assert_eq!(
        volume.recorded(),
        [zeroes(0, step, true), zeroes(step, step, true), zeroes(2 * step, 16 << 20, true), zeroes(0, 80 << 20, false)]
    );
}

#[test]
fn failures_have_an_errno_that_says_what_can_be_done() {
    let volume = Memory::new(SIZE);
    for (kind, errno) in [
        (ErrorKind::Io, libc::EIO),
        (ErrorKind::Corrupt, libc::ENODATA),
        (ErrorKind::Full, libc::ENOSPC),
        (ErrorKind::Unsupported, libc::EOPNOTSUPP),
        (ErrorKind::ReadOnly, libc::EIO),
    ] {
        volume.fail(Some(kind));
        let mut buffer = vec![0; 512];
        for work in
            [Work::Read { offset: 0, length: 512 }, Work::Write { offset: 0, length: 512, fua: false }, Work::Flush]
        {
            assert_eq!(run(&volume, work, &mut buffer), (-errno, 1), "{work:?}");
        }
    }
    volume.fail(None);
    assert_eq!(run(&volume, Work::Refused(libc::EINVAL), &mut []), (-libc::EINVAL, 1));
    assert_eq!(run(&volume, Work::Read { offset: SIZE, length: 512 }, &mut [0; 512]), (-libc::EIO, 1), "past the end");
    // No request reaches beyond its buffer, even with a wrong length.
    assert_eq!(run(&volume, Work::Read { offset: 0, length: 513 }, &mut [0; 512]), (-libc::EIO, 1));
    assert_eq!(run(&volume, Work::Write { offset: 0, length: 513, fua: false }, &mut [0; 512]), (-libc::EIO, 1));
}

#[test]
fn a_write_that_finds_no_room_stays_as_it_was() {
    let volume = Memory::new(SIZE);
    let most = Duration::from_secs(60);
    *volume.no_room.lock() = Some(most);
    let range = Range { offset: 0, length: 80 << 20 };
    for work in
        [Work::Write { offset: 0, length: 512, fua: false }, Work::WriteZeroes { range, no_hole: true, fua: false }]
    {
        let mut tried = work;
        let outcome = Disk::new(volume.clone()).step(&mut tried, &mut [1; 512]);
        assert!(matches!(outcome, Outcome::Full(held, _) if held == most), "{outcome:?}");
        assert_eq!(tried, work);
    }
}
