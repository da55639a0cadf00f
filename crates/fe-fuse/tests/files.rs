//! Operations on the file of a device, through the kernel: data, ends, holes, durability, errors.
//! Starts no processes: between fork and exec a child holds our files open, and an open with
//! O_TRUNC would be refused.

#![allow(clippy::unwrap_used, clippy::panic, clippy::disallowed_methods, reason = "a test, on the real kernel")]

mod common;

use std::fs::OpenOptions;
use std::io::{IoSlice, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use common::{CREATED_UNIX_S, Mounted, flushes};
use rustix::fs::{FallocateFlags, SeekFrom as RawSeek, fallocate, seek};
use rustix::io::{Errno, ReadWriteFlags, pwritev2};
use surface::{BlockDevice, ErrorKind};
use testkit::{Memory, Op, noise};

const MIB: u64 = 1 << 20;
const O_DIRECT: i32 = libc::O_DIRECT;

fn punch() -> FallocateFlags {
    FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE
}

#[test]
fn random_reads_and_writes_agree_with_a_model() {
    const SIZE: usize = 3 * MIB as usize + 1000;
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let mounted = Mounted::new(SIZE as u64);
    let file = mounted.open();
    let mut model = vec![0_u8; SIZE];
    let numbers = noise(seed, 400 * 24);
    for (step, bytes) in numbers.chunks_exact(24).enumerate() {
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let offset = (number(0) % SIZE as u64) as usize;
        // Lengths of all magnitudes.
        let length = ((number(8) >> 8) % (1 << (number(8) % 22))) as usize;
        let end = (offset + length).min(SIZE);
        match number(16) % 5 {
            0 | 1 => {
                let data = noise(seed ^ step as u64, end - offset);
                file.write_all_at(&data, offset as u64).unwrap();
                model[offset..end].copy_from_slice(&data);
            }
            2 if end > offset => {
                fallocate(&file, punch(), offset as u64, (end - offset) as u64).unwrap();
                model[offset..end].fill(0);
            }
            3 if end > offset => {
                fallocate(&file, FallocateFlags::ZERO_RANGE, offset as u64, (end - offset) as u64).unwrap();
                model[offset..end].fill(0);
            }
            _ => {
                let mut data = vec![1; length];
                let got = read_up_to(&file, &mut data, offset as u64);
                assert_eq!(got, end - offset, "seed {seed} step {step}: read of {length} at {offset}");
                assert!(data[..got] == model[offset..end], "seed {seed} step {step}: read of {length} at {offset}");
            }
        }
    }
    let mut all = Vec::new();
    mounted.open().read_to_end(&mut all).unwrap();
    assert!(all == model, "seed {seed}");
}

fn writes(device: &Memory) -> usize {
    device.count(|op| matches!(op, Op::Write { .. }))
}

fn read_up_to(file: &std::fs::File, buf: &mut [u8], offset: u64) -> usize {
    let mut done = 0;
    loop {
        match file.read_at(&mut buf[done..], offset + done as u64).unwrap() {
            0 => return done,
            length => done += length,
        }
    }
}

#[test]
fn the_end_of_the_device_is_the_end_of_the_file() {
    let mounted = Mounted::new(10_000);
    let file = mounted.open();
    assert_eq!(file.metadata().unwrap().len(), 10_000);
    assert_eq!((&file).seek(SeekFrom::End(0)).unwrap(), 10_000);
    assert_eq!(file.read_at(&mut [0; 10], 10_000).unwrap(), 0);
    assert_eq!(file.read_at(&mut [0; 10], 50_000).unwrap(), 0);
    assert_eq!(file.read_at(&mut [0; 10], 9_995).unwrap(), 5);
    assert_eq!(file.write_at(&[7; 10], 9_995).unwrap(), 5, "cut at the end");
    let error = file.write_at(&[7; 10], 10_000).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EFBIG));
    assert_eq!(file.metadata().unwrap().len(), 10_000);
}

#[test]
fn direct_io_works() {
    let mounted = Mounted::new(4 * MIB);
    let file = mounted.open_with(O_DIRECT);
    // Memory and offsets are aligned as O_DIRECT on a disk wants it.
    let space = noise(1, (MIB + 4096) as usize);
    let skip = space.as_ptr().align_offset(4096);
    let data = &space[skip..skip + MIB as usize];
    file.write_all_at(data, MIB).unwrap();
    let mut space = vec![0; (MIB + 4096) as usize];
    let skip = space.as_ptr().align_offset(4096);
    let back = &mut space[skip..skip + MIB as usize];
    file.read_exact_at(back, MIB).unwrap();
    assert!(data == back);
}

#[test]
fn a_large_write_is_not_chopped_up() {
    let mounted = Mounted::new(8 * MIB);
    let space = noise(1, (MIB + 4096) as usize);
    let skip = space.as_ptr().align_offset(4096);
    mounted.open().write_all_at(&space[skip..skip + MIB as usize], 0).unwrap();
    let mut ops = mounted.vol.recorded();
    ops.retain(|op| matches!(op, Op::Write { .. }));
    assert_eq!(ops, [Op::Write { offset: 0, length: MIB as usize, fua: false }]);
}

#[test]
fn what_is_written_through_another_door_is_seen_at_once() {
    let mounted = Mounted::new(MIB);
    let file = mounted.open();
    let device: &dyn surface::BlockDevice = &*mounted.vol;
    let mut buf = [0; 4096];
    for round in 1..=50_u8 {
        device.write(8192, vec![round; 4096].into(), surface::WriteOptions::default()).unwrap();
        file.read_exact_at(&mut buf, 8192).unwrap();
        assert_eq!(buf, [round; 4096], "a cached page was served");
        // And so does another handle, which might share a cache.
        mounted.open().read_exact_at(&mut buf, 8192).unwrap();
        assert_eq!(buf, [round; 4096]);
    }
}

#[test]
fn each_fsync_is_a_flush_and_nothing_else_is() {
    let mounted = Mounted::new(MIB);
    let flushes = || flushes(&mounted.vol);
    let file = mounted.open();
    file.write_all_at(&[1; 4096], 0).unwrap();
    assert_eq!(writes(&mounted.vol), 1, "a write reaches the device before write(2) returns");
    assert_eq!(flushes(), 0);
    file.sync_data().unwrap();
    assert_eq!(flushes(), 1);
    file.sync_all().unwrap();
    assert_eq!(flushes(), 2);
    file.sync_data().unwrap();
    assert_eq!(flushes(), 3, "also if nothing was written through this file: it may have been through another door");
    drop(file);
    assert_eq!(flushes(), 3);
}

#[test]
fn a_failed_flush_fails_each_fsync() {
    let mounted = Mounted::new(MIB);
    let file = mounted.open();
    mounted.vol.fail(Some(ErrorKind::Unsupported));
    for _ in 0..3 {
        // Were it ENOSYS, the kernel would answer the later ones with success, and not ask.
        assert_eq!(file.sync_data().unwrap_err().raw_os_error(), Some(libc::EOPNOTSUPP));
    }
    mounted.vol.fail(None);
    file.sync_data().unwrap();
    assert_eq!(flushes(&mounted.vol), 4);
}

#[test]
fn synchronous_writes_are_done_with_fua() {
    let mounted = Mounted::new(MIB);
    let fua = || mounted.vol.count(|op| matches!(op, Op::Write { fua: true, .. }));
    mounted.open().write_all_at(&[1; 512], 0).unwrap();
    assert_eq!(fua(), 0);
    mounted.open_with(libc::O_DSYNC).write_all_at(&[2; 512], 512).unwrap();
    assert_eq!(fua(), 1);
    mounted.open_with(libc::O_SYNC).write_all_at(&[3; 512], 1024).unwrap();
    assert_eq!(fua(), 2);
    let written = pwritev2(mounted.open(), &[IoSlice::new(&[4; 512])], 1536, ReadWriteFlags::DSYNC).unwrap();
    assert_eq!((written, fua()), (512, 3));
    mounted.vol.fail(Some(ErrorKind::Io));
    let error = mounted.open_with(libc::O_DSYNC).write_all_at(&[2; 512], 512).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
}

#[test]
fn errors_keep_their_meaning() {
    let mounted = Mounted::new(MIB);
    let file = mounted.open();
    let code = |error: std::io::Error| error.raw_os_error().unwrap();
    for (kind, errno) in [(ErrorKind::Full, libc::ENOSPC), (ErrorKind::Io, libc::EIO), (ErrorKind::Corrupt, libc::EIO)]
    {
        mounted.vol.fail(Some(kind));
        assert_eq!(code(file.write_at(&[1; 4096], 0).unwrap_err()), errno, "{}", kind.name());
        assert_eq!(code(file.read_at(&mut [1; 4096], 0).unwrap_err()), errno, "{}", kind.name());
        assert_eq!(code(file.sync_data().unwrap_err()), errno, "{}", kind.name());
        assert_eq!(fallocate(&file, punch(), 0, 4096).unwrap_err().raw_os_error(), errno, "{}", kind.name());
        assert_eq!(seek(&file, RawSeek::Data(0)).unwrap_err().raw_os_error(), errno, "{}", kind.name());
    }
    mounted.vol.fail(None);
    file.write_all_at(&[1; 4096], 0).unwrap();
}

#[test]
fn holes_are_found() {
    let mounted = Mounted::new(10 * MIB);
    let file = mounted.open();
    let data = |at| seek(&file, RawSeek::Data(at));
    let hole = |at| seek(&file, RawSeek::Hole(at));
    assert_eq!(data(0), Err(Errno::NXIO));
    assert_eq!(hole(5), Ok(5));
    file.write_all_at(&noise(2, 64 * 1024), MIB).unwrap();
    file.write_all_at(&noise(3, 4096), 10 * MIB - 4096).unwrap();
    assert_eq!(data(0), Ok(MIB));
    assert_eq!(data(MIB + 77), Ok(MIB + 77));
    assert_eq!(hole(MIB + 77), Ok(MIB + 64 * 1024));
    assert_eq!(data(MIB + 64 * 1024), Ok(10 * MIB - 4096));
    assert_eq!(hole(10 * MIB - 4096), Ok(10 * MIB), "the end is a hole");
    assert_eq!(data(10 * MIB), Err(Errno::NXIO));
    assert_eq!(hole(10 * MIB), Err(Errno::NXIO));
}

#[test]
fn punching_and_zeroing_reach_the_device_and_give_space_back() {
    let mounted = Mounted::new(10 * MIB);
    let file = mounted.open();
    let blocks = || file.metadata().unwrap().blocks();
    assert_eq!(blocks(), 0);
    file.write_all_at(&noise(2, 4 * MIB as usize), 0).unwrap();
    assert_eq!(blocks(), 4 * MIB / 512);

    fallocate(&file, punch(), MIB, MIB).unwrap();
    assert_eq!(mounted.vol.discarded_bytes(), MIB);
    assert_eq!(blocks(), 3 * MIB / 512);
    fallocate(&file, FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE, 0, MIB).unwrap();
    assert_eq!(mounted.vol.count(|op| matches!(op, Op::Zeroes { .. })), 1);
    assert_eq!(blocks(), 2 * MIB / 512);
    let mut back = vec![1; 2 * MIB as usize];
    file.read_exact_at(&mut back, 0).unwrap();
    assert!(back.iter().all(|&byte| byte == 0));

    // Past the end: there is a hole already, zeroes are impossible.
    fallocate(&file, punch(), 9 * MIB, 5 * MIB).unwrap();
    assert_eq!(mounted.vol.discarded_bytes(), 2 * MIB);
    fallocate(&file, punch(), 20 * MIB, MIB).unwrap();
    assert_eq!(fallocate(&file, FallocateFlags::ZERO_RANGE, 9 * MIB, 5 * MIB), Err(Errno::FBIG));
    assert_eq!(mounted.vol.count(|op| matches!(op, Op::Discard { .. })), 2);
}

#[test]
fn preallocation_within_the_size_does_nothing() {
    let mounted = Mounted::new(MIB);
    let file = mounted.open();
    file.write_all_at(&[5; 4096], 0).unwrap();
    fallocate(&file, FallocateFlags::empty(), 0, MIB).unwrap();
    fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 2 * MIB).unwrap();
    assert_eq!(fallocate(&file, FallocateFlags::empty(), 0, MIB + 1), Err(Errno::FBIG));
    assert_eq!(fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096), Err(Errno::OPNOTSUPP));
    assert_eq!(writes(&mounted.vol), 1);
    assert_eq!(file.metadata().unwrap().len(), MIB);
    let mut back = [0; 4096];
    file.read_exact_at(&mut back, 0).unwrap();
    assert_eq!(back, [5; 4096]);
}

#[test]
fn the_size_is_changed_elsewhere() {
    let mounted = Mounted::new(MIB);
    let file = mounted.open();
    file.write_all_at(&[5; 4096], 0).unwrap();
    file.set_len(MIB).unwrap();
    assert_eq!(file.set_len(MIB / 2).unwrap_err().raw_os_error(), Some(libc::EPERM));
    assert_eq!(file.set_len(MIB * 2).unwrap_err().raw_os_error(), Some(libc::EPERM));
    assert_eq!(file.set_len(0).unwrap_err().raw_os_error(), Some(libc::EPERM));
    let truncating = || OpenOptions::new().write(true).truncate(true).open(mounted.path("vol"));
    assert_eq!(truncating().unwrap_err().raw_os_error(), Some(libc::EBUSY), "somebody else has it open");
    assert_eq!(file.metadata().unwrap().len(), MIB);
    let mut back = [0; 4096];
    file.read_exact_at(&mut back, 0).unwrap();
    assert_eq!(back, [5; 4096], "a refused truncation loses nothing");

    mounted.vol.resize(2 * MIB);
    assert_eq!(file.metadata().unwrap().len(), 2 * MIB, "the open file sees it");
    file.write_all_at(&[6; 4096], 2 * MIB - 4096).unwrap();
    mounted.vol.resize(MIB);
    assert_eq!(file.read_at(&mut back, 2 * MIB - 4096).unwrap(), 0);
    assert_eq!(std::fs::metadata(mounted.path("vol")).unwrap().len(), MIB);
}

#[test]
fn opening_with_truncation_empties_and_keeps_the_size() {
    let mounted = Mounted::new(MIB);
    mounted.open().write_all_at(&noise(3, MIB as usize), 0).unwrap();
    let path = mounted.path("vol");
    let file = OpenOptions::new().write(true).truncate(true).open(&path).unwrap();
    assert_eq!(mounted.vol.allocated_bytes(), 0);
    assert_eq!(file.metadata().unwrap().len(), MIB);
    assert_eq!((&file).seek(SeekFrom::End(0)).unwrap(), MIB);
    assert!(std::fs::read(&path).unwrap() == vec![0; MIB as usize]);
    // As cp and dd do after copying: accepting it loses nothing, and nothing may be lost.
    file.write_all_at(&[5; 4096], 8192).unwrap();
    file.set_len(12288).unwrap();
    assert_eq!(file.set_len(4096).unwrap_err().raw_os_error(), Some(libc::EPERM), "data lies behind it");
    assert_eq!(file.set_len(2 * MIB).unwrap_err().raw_os_error(), Some(libc::EPERM));
    assert_eq!(file.metadata().unwrap().len(), MIB);
    drop(file);
    mounted.vol.fail(Some(ErrorKind::Io));
    let failed = OpenOptions::new().write(true).truncate(true).open(&path);
    assert_eq!(failed.unwrap_err().raw_os_error(), Some(libc::EIO));
    mounted.vol.fail(None);
    assert_eq!(&std::fs::read(&path).unwrap()[8192..12288], &[5; 4096], "what could not be emptied is whole");
}

/// Only files of the mount were checked, and an NBD client lost its writes.
#[test]
fn what_is_open_through_another_door_is_not_emptied() {
    let mounted = Mounted::new(MIB);
    let data = noise(3, MIB as usize);
    mounted.open().write_all_at(&data, 0).unwrap();
    let path = mounted.path("vol");
    let truncate = || OpenOptions::new().write(true).truncate(true).open(&path);
    mounted.set.is_open_elsewhere.store(true, Ordering::SeqCst);
    assert_eq!(truncate().unwrap_err().raw_os_error(), Some(libc::EBUSY));
    assert!(std::fs::read(&path).unwrap() == data);
    mounted.set.is_open_elsewhere.store(false, Ordering::SeqCst);
    truncate().unwrap();
    assert_eq!(mounted.vol.allocated_bytes(), 0);
}

#[test]
fn attributes_tell_the_truth() {
    let mounted = Mounted::with_options(
        MIB,
        &fe_fuse::MountOptions { now: || UNIX_EPOCH + Duration::new(1_800_000_000, 5), ..Default::default() },
    );
    let path = mounted.path("vol");
    let before = std::fs::metadata(&path).unwrap();
    assert!(before.is_file());
    assert_eq!(before.mode() & 0o7777, 0o600);
    assert_eq!((before.uid(), before.gid(), before.nlink()), (0, 0, 1));
    assert_eq!(before.blksize(), 128 << 10, "programs read as much at a time");
    assert_eq!(before.mtime(), CREATED_UNIX_S as i64);
    let mut file = mounted.open();
    file.write_all(&[1]).unwrap();
    let after = std::fs::metadata(&path).unwrap();
    assert_eq!((after.mtime(), after.mtime_nsec()), (1_800_000_000, 5));
    assert_eq!(after.blocks(), 8);
    assert_eq!(after.ino(), before.ino());

    // As cp -p and tar do afterwards.
    file.set_modified(UNIX_EPOCH + Duration::from_secs(1_750_000_000)).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().mtime(), 1_750_000_000);
    file.set_permissions(before.permissions()).unwrap();
    let error = std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EPERM));
}

#[test]
fn reads_do_not_wait_behind_flushes() {
    let mounted = Mounted::with_options(MIB, &fe_fuse::MountOptions { threads: 2, ..Default::default() });
    // The kernel admits one fsync of a file at a time: several volumes, whose flushes all wait at
    // one gate.
    let names: Vec<String> = (0..64).map(|number| format!("v{number}")).collect();
    for name in &names {
        mounted.set.add(name, mounted.vol.clone(), 1);
    }
    mounted.vol.flushes.shut();
    thread::scope(|scope| {
        let _released = mounted.released();
        for name in &names {
            let file = OpenOptions::new().write(true).open(mounted.path(name)).unwrap();
            scope.spawn(move || file.sync_data().unwrap());
        }
        // As many as wait at once; the others are queued.
        mounted.vol.flushes.wait_for(8);
        let mut buf = [1; 4096];
        mounted.open().read_exact_at(&mut buf, 0).unwrap();
        assert_eq!(buf, [0; 4096]);
        mounted.open().write_all_at(&[1; 4096], 0).unwrap();
        for name in &names {
            assert_eq!(std::fs::metadata(mounted.path(name)).unwrap().len(), MIB);
        }
        mounted.vol.cached.store(false, Ordering::SeqCst);
        mounted.open().read_exact_at(&mut buf, 0).unwrap();
        assert_eq!(buf, [1; 4096]);
        mounted.vol.flushes.open();
    });
}

/// The open emptied the device on one of the few receiving threads, and each lookup of it waited
/// for that on another.
#[test]
fn nothing_else_waits_while_a_device_is_emptied() {
    let mounted = Mounted::with_options(MIB, &fe_fuse::MountOptions { threads: 1, ..Default::default() });
    mounted.open().write_all_at(&noise(3, MIB as usize), 0).unwrap();
    mounted.set.add("other", Memory::new(MIB), 1);
    let other = OpenOptions::new().read(true).open(mounted.path("other")).unwrap();
    let path = mounted.path("vol");
    mounted.vol.discards.shut();
    thread::scope(|scope| {
        let _released = mounted.released();
        let emptied = scope.spawn(|| OpenOptions::new().write(true).truncate(true).open(&path).unwrap());
        mounted.vol.discards.wait_for(1);
        let opened = scope.spawn(|| OpenOptions::new().read(true).open(&path).unwrap());
        let mut buf = [1; 4096];
        for _ in 0..4 {
            assert_eq!(std::fs::metadata(&path).unwrap().len(), MIB);
            other.read_exact_at(&mut buf, 0).unwrap();
            assert_eq!(buf, [0; 4096]);
        }
        assert_eq!(
            std::fs::read_dir(mounted.mount.dir()).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum::<u64>(),
            2 * MIB
        );
        rustix::fs::statvfs(mounted.mount.dir()).unwrap();
        mounted.vol.discards.open();
        opened.join().unwrap().read_exact_at(&mut buf, 0).unwrap();
        assert_eq!(buf, [0; 4096]);
        emptied.join().unwrap();
    });
}

/// A few files that were being emptied had all the threads that open files.
#[test]
fn files_are_opened_while_many_are_emptied() {
    let mounted = Mounted::new(MIB);
    let busy = Memory::new(MIB);
    let names: Vec<String> = (0..8).map(|number| format!("v{number}")).collect();
    for name in &names {
        mounted.set.add(name, busy.clone(), 1);
    }
    let write = |name: &String| OpenOptions::new().write(true).open(mounted.path(name)).unwrap();
    write(&names[0]).write_all_at(&[1; 4096], 0).unwrap();
    busy.discards.shut();
    thread::scope(|scope| {
        let emptied = names.iter().map(|name| {
            let path = mounted.path(name);
            scope.spawn(move || OpenOptions::new().write(true).truncate(true).open(path).unwrap())
        });
        let emptied: Vec<_> = emptied.collect();
        busy.discards.wait_for(4);
        // No thread is left waiting at the gate if this fails.
        let (send, opened) = std::sync::mpsc::channel();
        let path = mounted.path("vol");
        scope.spawn(move || send.send(std::fs::File::open(path).unwrap()));
        let opened = opened.recv_timeout(Duration::from_secs(100));
        busy.discards.open();
        emptied.into_iter().for_each(|thread| drop(thread.join().unwrap()));
        opened.expect("an open waited for files to be emptied");
    });
    assert_eq!(busy.allocated_bytes(), 0);
}

#[test]
fn nothing_else_waits_behind_cold_reads_or_a_full_buffer() {
    let mounted = Mounted::with_options(MIB, &fe_fuse::MountOptions { threads: 2, ..Default::default() });
    mounted.open().write_all_at(&noise(9, MIB as usize), 0).unwrap();
    mounted.set.add("warm", Memory::new(MIB), 1);
    mounted.vol.cached.store(false, Ordering::SeqCst);
    mounted.vol.full_buffer.store(true, Ordering::SeqCst);
    mounted.vol.reads.shut();
    mounted.vol.writes.shut();
    let expected = noise(9, MIB as usize);
    thread::scope(|scope| {
        let _released = mounted.released();
        let (mounted, expected) = (&mounted, &expected);
        for number in 0..5_usize {
            let (reader, writer) = (mounted.open(), mounted.open());
            scope.spawn(move || {
                let mut buf = [0; 8192];
                reader.read_exact_at(&mut buf, (number * 8192) as u64).unwrap();
                assert!(buf == expected[number * 8192..][..8192]);
            });
            scope.spawn(move || writer.write_all_at(&[number as u8; 4096], MIB / 2 + number as u64 * 4096).unwrap());
        }
        mounted.vol.reads.wait_for(5);
        mounted.vol.writes.wait_for(5);
        let warm = OpenOptions::new().read(true).write(true).open(mounted.path("warm")).unwrap();
        warm.write_all_at(&[3; 4096], 0).unwrap();
        let mut buf = [0; 4096];
        warm.read_exact_at(&mut buf, 0).unwrap();
        assert_eq!(buf, [3; 4096]);
        warm.sync_data().unwrap();
        // And writes do not keep reads of the same volume from being done.
        mounted.vol.reads.open();
        mounted.open().read_exact_at(&mut buf, 0).unwrap();
        assert!(buf == expected[..4096]);
        mounted.vol.writes.open();
    });
    mounted.vol.cached.store(true, Ordering::SeqCst);
    let mut buf = [0; 4096];
    mounted.open().read_exact_at(&mut buf, MIB / 2 + 4 * 4096).unwrap();
    assert_eq!(buf, [4; 4096]);
}
