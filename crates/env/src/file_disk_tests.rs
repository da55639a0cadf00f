//! Tests of [`FileDisk`] on a real file system, and on a loop device where there is one.

use super::*;
use testkit::{LoopDevice, TempDir, starting};

fn filled(len: usize, seed: u8) -> AlignedBuf {
    let mut buf = AlignedBuf::new(len);
    for (index, byte) in buf.iter_mut().enumerate() {
        *byte = (index as u8).wrapping_mul(31).wrapping_add(seed) ^ (index >> 8) as u8;
    }
    buf
}

#[test]
fn what_is_written_is_read_at_every_alignment() {
    let dir = TempDir::new("disk");
    let disk = FileDisk::create(&dir.path().join("data"), 1 << 20).unwrap();
    let data = filled(65536, 3);
    disk.write_at(8192, &data, 65536).unwrap();
    disk.sync().unwrap();
    let align = disk.read_alignment();
    assert!(align == 512 || align == 4096);
    let mut buf = AlignedBuf::new(65536);
    for (skip, len) in [(0, 65536), (align, align), (4096, 8192), (65536 - align, align)] {
        buf.fill(0xee);
        disk.read_at(8192 + skip as u64, &mut buf, len).unwrap();
        assert_eq!(buf[..len], data[skip..skip + len]);
        assert!(buf[len..].iter().all(|b| *b == 0xee), "no more than asked for");
    }
    assert_eq!(disk.written_bytes(), 65536);
    assert_eq!(disk.read_bytes(), (65536 + align + 8192 + align) as u64);
}

#[test]
fn what_was_never_written_reads_as_zeroes_also_past_the_end() {
    let dir = TempDir::new("disk-zero");
    let path = dir.path().join("data");
    let disk = FileDisk::create(&path, 16384).unwrap();
    disk.write_at(12288, &filled(4096, 9), 4096).unwrap();
    let mut buf = filled(16384, 1);
    disk.read_at(8192, &mut buf, 16384).unwrap();
    assert!(buf[..4096].iter().all(|b| *b == 0));
    assert_eq!(buf[4096..8192], filled(4096, 9)[..]);
    assert!(buf[8192..16384].iter().all(|b| *b == 0));
    buf.fill(1);
    disk.read_at(1 << 40, &mut buf, 4096).unwrap();
    assert!(buf[..4096].iter().all(|b| *b == 0));
    // A file that was cut at an odd place.
    drop(disk);
    OpenOptions::new().write(true).open(&path).unwrap().set_len(12288 + 100).unwrap();
    let disk = FileDisk::open(&path).unwrap();
    buf.fill(1);
    disk.read_at(12288, &mut buf, 4096).unwrap();
    assert_eq!(buf[..100], filled(4096, 9)[..100]);
    assert!(buf[100..4096].iter().all(|b| *b == 0));
}

#[test]
fn holes_of_a_file_are_told_from_data() {
    let dir = TempDir::new("disk-holes");
    let disk = FileDisk::create(&dir.path().join("data"), 16 << 20).unwrap();
    assert_eq!(disk.data_from(0), None);
    disk.write_at(4 << 20, &filled(65536, 9), 65536).unwrap();
    disk.sync().unwrap();
    assert_eq!(disk.data_from(0), Some(4 << 20));
    assert_eq!(disk.data_from((4 << 20) + 4096), Some((4 << 20) + 4096));
    assert_eq!(disk.data_from(5 << 20), None);
}

#[test]
fn it_is_sparse_and_punching_gives_space_back() {
    let dir = TempDir::new("disk-punch");
    let disk = FileDisk::create(&dir.path().join("data"), 1 << 30).unwrap();
    assert_eq!(disk.size_bytes().unwrap(), 1 << 30);
    let empty = disk.occupied_bytes().unwrap();
    disk.reserve(1 << 20, 1 << 20).unwrap();
    disk.write_at(1 << 20, &filled(1 << 20, 1), 1 << 20).unwrap();
    disk.write_at(2 << 20, &filled(1 << 20, 2), 1 << 20).unwrap();
    disk.sync().unwrap();
    let full = disk.occupied_bytes().unwrap();
    assert!(full >= empty + (2 << 20), "{empty} {full}");
    disk.punch(1 << 20, 1 << 20).unwrap();
    disk.sync().unwrap();
    assert!(disk.occupied_bytes().unwrap() <= full - (1 << 20));
    assert_eq!(disk.size_bytes().unwrap(), 1 << 30);
    let mut buf = AlignedBuf::new(1 << 20);
    disk.read_at(2 << 20, &mut buf, 1 << 20).unwrap();
    assert_eq!(buf[..], filled(1 << 20, 2)[..]);
}

#[test]
fn it_becomes_longer_and_shorter() {
    let dir = TempDir::new("disk-size");
    let path = dir.path().join("data");
    let disk = FileDisk::create(&path, 1 << 20).unwrap();
    let on_disk = || (disk.size_bytes().unwrap(), std::fs::metadata(&path).unwrap().len());
    let read = |offset| {
        let mut buf = filled(4096, 200);
        disk.read_at(offset, &mut buf, 4096).unwrap();
        buf
    };
    disk.grow(3 << 20).unwrap();
    assert_eq!(on_disk(), (3 << 20, 3 << 20));
    // It never truncates a longer file.
    disk.grow(2 << 20).unwrap();
    assert_eq!(on_disk(), (3 << 20, 3 << 20));
    for (mib, seed) in [(0, 1), (1, 2), (2, 3)] {
        disk.write_at(mib << 20, &filled(1 << 20, seed), 1 << 20).unwrap();
    }
    disk.sync().unwrap();
    let full = disk.occupied_bytes().unwrap();
    disk.shrink(2 << 20).unwrap();
    assert_eq!(on_disk(), (2 << 20, 2 << 20));
    assert!(disk.occupied_bytes().unwrap() <= full - (1 << 20), "what is cut off is given back");
    assert_eq!(read((2 << 20) - 4096)[..], filled(1 << 20, 2)[(1 << 20) - 4096..]);
    disk.shrink(3 << 20).unwrap();
    assert_eq!(on_disk(), (2 << 20, 2 << 20), "it never becomes longer by that");
    // Truncated data does not come back.
    disk.grow(3 << 20).unwrap();
    assert_eq!(read(2 << 20)[..], [0; 4096]);
    disk.write_at((3 << 20) - 4096, &filled(4096, 4), 4096).unwrap();
    disk.sync().unwrap();
    assert_eq!(read((3 << 20) - 4096)[..], filled(4096, 4)[..]);
    let refused = disk.grow(u64::MAX).unwrap_err();
    assert!(refused.to_string().contains("growing"), "{refused}");
    assert_eq!(on_disk(), (3 << 20, 3 << 20), "what is refused changes nothing");
}

#[test]
fn create_clobbers_nothing() {
    let dir = TempDir::new("disk-clobber");
    let path = dir.path().join("data");
    std::fs::write(&path, b"precious").unwrap();
    let error = FileDisk::create(&path, 1 << 20).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    std::fs::write(&path, b"").unwrap();
    assert_eq!(FileDisk::create(&path, 1 << 20).unwrap().size_bytes().unwrap(), 1 << 20);
}

/// A process that another thread just starts has a copy of each descriptor until its program is
/// loaded.
#[test]
fn a_copy_of_the_descriptor_does_not_hold() {
    let dir = TempDir::new("disk-copy");
    let path = dir.path().join("data");
    let disk = FileDisk::create(&path, 1 << 20).unwrap();
    let copy = disk.file.try_clone().unwrap();
    drop(disk);
    drop(FileDisk::open(&path).unwrap());
    drop(copy);
}

/// Bytes that this thread has had devices read; `None` where the system does not count them.
fn read_by_devices() -> Option<u64> {
    let counters = std::fs::read_to_string("/proc/thread-self/io").ok()?;
    counters.lines().find_map(|line| line.strip_prefix("read_bytes: "))?.parse().ok()
}

/// Without direct I/O, pages left in memory by a failed sync were read after the pool had been
/// reopened, as if they were on the device.
#[test]
fn what_the_system_has_in_memory_can_be_forgotten() {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    const LEN: usize = 65536;
    let dir = TempDir::new("disk-forget");
    let file = File::options().read(true).write(true).create_new(true).open(dir.path().join("data")).unwrap();
    if read_by_devices().is_none() {
        eprintln!("skipped: the system does not count what devices read");
        return;
    }
    if u64::try_from(rustix::fs::fstatfs(&file).unwrap().f_type) == Ok(TMPFS_MAGIC) {
        eprintln!("skipped: what lies in memory only cannot be forgotten");
        return;
    }
    let read_back = || {
        let mut bytes = [0; LEN];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, [7; LEN]);
        read_by_devices().unwrap()
    };
    file.write_at(&[7; LEN], 0).unwrap();
    // The kernel keeps pages that it is currently using, so one attempt may miss some.
    let forgotten = (0..100).any(|_| {
        forget_cached(&file).unwrap();
        let counted = read_by_devices().unwrap();
        read_back() - counted >= LEN as u64
    });
    assert!(forgotten, "what was read back never came from the device");
}

/// As `init --force` does with existing data.
fn claim_and_empty(path: &Path, capacity_bytes: u64) -> Result<FileDisk> {
    let disk = FileDisk::claim(path, capacity_bytes)?;
    disk.empty(capacity_bytes)?;
    Ok(disk)
}

/// An `init --force` onto the data of a pool that was served emptied it, and only then found it
/// held.
#[test]
fn what_another_holds_is_not_emptied() {
    let dir = TempDir::new("disk-over");
    let path = dir.path().join("data");
    let disk = FileDisk::create(&path, 1 << 20).unwrap();
    disk.write_at(4096, &filled(4096, 7), 4096).unwrap();
    assert_eq!(claim_and_empty(&path, 1 << 21).unwrap_err().kind(), ErrorKind::ResourceBusy);
    let mut buf = AlignedBuf::new(4096);
    disk.read_at(4096, &mut buf, 4096).unwrap();
    assert_eq!(buf[..], filled(4096, 7)[..]);
    drop(disk);
    let disk = claim_and_empty(&path, 1 << 21).unwrap();
    assert_eq!(disk.size_bytes().unwrap(), 1 << 21);
    disk.read_at(4096, &mut buf, 4096).unwrap();
    assert!(buf.iter().all(|byte| *byte == 0));
}

/// An `init --force` whose size was refused had already emptied the old pool's data.
#[test]
fn what_is_claimed_is_not_emptied_yet() {
    let dir = TempDir::new("disk-claim");
    let path = dir.path().join("data");
    let disk = FileDisk::create(&path, 1 << 20).unwrap();
    disk.write_at(4096, &filled(4096, 7), 4096).unwrap();
    drop(disk);
    // Longer than any file: the content stays.
    for claims in [FileDisk::claim, claim_and_empty] {
        claims(&path, 1 << 63).unwrap_err();
    }
    let disk = FileDisk::claim(&path, 1 << 21).unwrap();
    assert_eq!(disk.size_bytes().unwrap(), 1 << 21);
    let mut buf = AlignedBuf::new(4096);
    disk.read_at(4096, &mut buf, 4096).unwrap();
    assert_eq!(buf[..], filled(4096, 7)[..]);
    disk.empty(1 << 19).unwrap();
    assert_eq!(disk.size_bytes().unwrap(), 1 << 19);
    disk.read_at(4096, &mut buf, 4096).unwrap();
    assert!(buf.iter().all(|byte| *byte == 0));
    assert_eq!(FileDisk::claim(&path, 1 << 20).unwrap_err().kind(), ErrorKind::ResourceBusy);
}

#[test]
fn it_is_held_by_one_at_a_time() {
    let dir = TempDir::new("disk-held");
    let path = dir.path().join("data");
    let disk = FileDisk::create(&path, 1 << 20).unwrap();
    let error = FileDisk::open(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceBusy);
    assert!(error.to_string().contains("in use"), "{error}");
    drop(disk);
    FileDisk::open(&path).unwrap();
}

#[test]
fn what_is_no_disk_is_refused_by_name() {
    let dir = TempDir::new("disk-refused");
    for (path, kind) in [
        (dir.path().join("missing"), ErrorKind::NotFound),
        (dir.path().to_owned(), ErrorKind::InvalidInput),
        (PathBuf::from("/dev/null"), ErrorKind::InvalidInput),
    ] {
        let error = FileDisk::open(&path).unwrap_err();
        assert_eq!(error.kind(), kind);
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    }
}

#[test]
fn requests_that_do_not_fit_are_refused() {
    let dir = TempDir::new("disk-unaligned");
    let disk = FileDisk::create(&dir.path().join("data"), 1 << 20).unwrap();
    let mut buf = AlignedBuf::new(4096);
    assert_eq!(disk.write_at(0, &buf, 8192).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(disk.write_at(512, &buf, 4096).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(disk.write_at(0, &buf, 512).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(disk.read_at(0, &mut buf, 8192).unwrap_err().kind(), ErrorKind::InvalidInput);
    let message = disk.write_at(512, &buf, 4096).unwrap_err().to_string();
    assert!(message.contains("4096 bytes at 512") && message.contains("/data"), "{message}");
}

/// A write that the file system has no room for.
#[test]
fn a_full_file_system_is_storage_full() {
    let dir = TempDir::new("disk-full");
    let _alone = starting();
    // tmpfs with a size stands in for a full disk; without the right to mount there is nothing to
    // test.
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1m", "none"])
        .arg(dir.path())
        .stderr(std::process::Stdio::null())
        .status();
    if !mounted.is_ok_and(|s| s.success()) {
        eprintln!("skipped: cannot mount a tmpfs");
        return;
    }
    let disk = FileDisk::create(&dir.path().join("data"), 8 << 20).unwrap();
    let result = disk.write_at(0, &filled(4 << 20, 1), 4 << 20);
    let reserved = disk.reserve(0, 4 << 20);
    drop(disk);
    assert!(std::process::Command::new("umount").arg(dir.path()).status().unwrap().success());
    assert_eq!(result.unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(reserved.unwrap_err().kind(), ErrorKind::StorageFull);
}

#[test]
fn a_block_device_is_a_disk_and_a_mounted_one_is_refused() {
    let dir = TempDir::new("disk-device");
    let image = dir.path().join("image");
    OpenOptions::new().write(true).create_new(true).open(&image).unwrap().set_len(32 << 20).unwrap();
    // The hold on the device is released and reacquired: no other process may hold it in between,
    // not even through a copied descriptor.
    let _alone = starting();
    let Ok(attached) = LoopDevice::attach(&image, false) else {
        eprintln!("skipped: cannot attach a loop device");
        return;
    };
    let device = Path::new(&attached.0);
    let error = FileDisk::create(device, 33 << 20).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let disk = FileDisk::create(device, 32 << 20).unwrap();
    assert!(disk.is_block_device());
    disk.grow(32 << 20).unwrap();
    assert_eq!(disk.grow(33 << 20).unwrap_err().kind(), ErrorKind::StorageFull);
    disk.shrink(1 << 20).unwrap();
    assert_eq!(disk.size_bytes().unwrap(), 32 << 20, "a device is as large as it is");
    assert_eq!(FileDisk::open(device).unwrap_err().kind(), ErrorKind::ResourceBusy);
    let data = filled(8192, 5);
    disk.write_at(4096, &data, 8192).unwrap();
    disk.sync().unwrap();
    disk.reserve(0, 1 << 20).unwrap();
    // The storage below the device gets discarded ranges back, and nothing else is lost.
    disk.write_at(1 << 20, &filled(1 << 20, 6), 1 << 20).unwrap();
    disk.sync().unwrap();
    let occupied_bytes = || std::fs::metadata(&image).unwrap().blocks() * 512;
    let before = occupied_bytes();
    disk.punch(1 << 20, 1 << 20).unwrap();
    assert_eq!(occupied_bytes(), before - (1 << 20));
    let mut buf = AlignedBuf::new(8192);
    disk.read_at(1 << 20, &mut buf, 8192).unwrap();
    assert!(buf.iter().all(|byte| *byte == 0));
    disk.read_at(4096, &mut buf, 8192).unwrap();
    assert_eq!(buf[..], data[..]);
    let error = disk.read_at((32 << 20) - 4096, &mut buf, 8192).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    drop(disk);

    let made = std::process::Command::new("mkfs.ext4").arg("-q").arg(device).status().unwrap();
    assert!(made.success(), "the device is still held");
    let at = TempDir::new("disk-mounted");
    let mounted = std::process::Command::new("mount").arg(device).arg(at.path()).status();
    if !mounted.is_ok_and(|s| s.success()) {
        eprintln!("skipped: cannot mount a loop device");
        return;
    }
    let refusal = FileDisk::open(device);
    assert!(std::process::Command::new("umount").arg(at.path()).status().unwrap().success());
    let error = refusal.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceBusy);
    assert!(error.to_string().contains("mounted"), "{error}");
}

#[test]
fn what_was_written_is_known_to_have_its_space() {
    let dir = TempDir::new("space");
    let disk = FileDisk::create(&dir.path().join("data"), 4 << 20).unwrap();
    disk.write_at(1 << 20, &AlignedBuf::new(64 << 10), 64 << 10).unwrap();
    assert!(disk.has_space(1 << 20, 64 << 10));
    assert!(!disk.has_space(1 << 20, 128 << 10) && !disk.has_space(0, 4096) && !disk.has_space(3 << 20, 4096));
    disk.punch(1 << 20, 64 << 10).unwrap();
    assert!(!disk.has_space(1 << 20, 4096));
    let room = disk.room_bytes();
    assert!(room > 0 && room < u64::MAX, "{room}");
}

/// A disk with a pattern that does not repeat, where reads can be under way together.
fn disk_with_ring(dir: &TempDir) -> Option<(FileDisk, Vec<u8>)> {
    const BYTES: usize = 4 << 20;
    let disk = FileDisk::create(&dir.path().join("data"), BYTES as u64).unwrap();
    let data = filled(BYTES, 7);
    disk.write_at(0, &data, BYTES).unwrap();
    disk.sync().unwrap();
    if disk.read_ring().is_none() {
        eprintln!("io_uring or direct I/O is missing here: not tested");
        return None;
    }
    let data = data.to_vec();
    Some((disk, data))
}

#[test]
fn reads_under_way_together_end_each_with_its_bytes() {
    let dir = TempDir::new("disk-ring");
    let Some((disk, data)) = disk_with_ring(&dir) else { return };
    let before = disk.read_bytes();
    let range = |tag: usize| (tag * 7919 % 900 * 4096, (1 + tag % 33) * 4096);
    let mut ring = disk.read_ring().unwrap();
    assert!(ring.wait().is_none(), "nothing has begun");
    let (mut ended, mut bytes) = (vec![false; 500], 0);
    let mut end = |ended_read: crate::EndedRead| {
        let (offset, len) = range(ended_read.tag);
        assert!(ended_read.whole, "{len} bytes at {offset}");
        assert!(ended_read.buf[..len] == data[offset..offset + len], "{len} bytes at {offset}");
        assert!(!std::mem::replace(&mut ended[ended_read.tag], true));
        bytes += len as u64;
    };
    // More than a ring has room for, then one for one.
    for tag in 0..500 {
        let (offset, len) = range(tag);
        ring.begin(tag, offset as u64, AlignedBuf::new(len), len);
        if tag >= 200 {
            end(ring.wait().unwrap());
        }
    }
    while let Some(read) = ring.wait() {
        end(read);
    }
    assert!(ended.iter().all(|ended| *ended));
    assert_eq!(disk.read_bytes() - before, bytes);
}

#[test]
fn a_read_that_comes_in_part_is_not_called_whole() {
    let dir = TempDir::new("disk-ring-end");
    let Some((disk, data)) = disk_with_ring(&dir) else { return };
    let mut ring = disk.read_ring().unwrap();
    for (tag, offset) in [(4 << 20) - 4096, (4 << 20) - 8192, 4 << 20].into_iter().enumerate() {
        ring.begin(tag, offset, AlignedBuf::new(8192), 8192);
    }
    let mut whole: Vec<_> = std::iter::from_fn(|| ring.wait()).map(|read| (read.tag, read.whole)).collect();
    whole.sort_unstable();
    assert_eq!(whole, [(0, false), (1, true), (2, false)]);
    // As with `read_at`, bytes past the end are zeroes.
    let mut buf = AlignedBuf::new(8192);
    disk.read_at((4 << 20) - 4096, &mut buf, 8192).unwrap();
    assert!(buf[..4096] == data[(4 << 20) - 4096..] && buf[4096..8192].iter().all(|byte| *byte == 0));
}

#[test]
fn a_ring_that_is_dropped_leaves_nothing_under_way() {
    let dir = TempDir::new("disk-ring-drop");
    let Some((disk, data)) = disk_with_ring(&dir) else { return };
    for _ in 0..50 {
        let mut ring = disk.read_ring().unwrap();
        for tag in 0..100 {
            ring.begin(tag, tag as u64 * 4096, AlignedBuf::new(32 << 10), 32 << 10);
        }
        drop(ring.wait());
        drop(ring);
        // The next one of this thread is the same for the kernel, and must not hear of dropped
        // reads.
        let mut ring = disk.read_ring().unwrap();
        assert!(ring.wait().is_none());
        ring.begin(1000, 4096, AlignedBuf::new(4096), 4096);
        let read = ring.wait().unwrap();
        assert!(read.tag == 1000 && read.buf[..4096] == data[4096..8192]);
    }
}

/// Operation continued as if the file existed, and the data was lost when the server stopped.
#[test]
fn a_file_that_is_deleted_while_it_is_in_use_is_missed() {
    let dir = TempDir::new("disk-deleted");
    let path = dir.path().join("data");
    let disk = FileDisk::create(&path, 1 << 20).unwrap();
    let data = filled(8192, 5);
    disk.write_at(4096, &data, 8192).unwrap();
    disk.sync().unwrap();
    std::fs::rename(&path, dir.path().join("elsewhere")).unwrap();
    disk.sync().unwrap();
    std::fs::remove_file(dir.path().join("elsewhere")).unwrap();
    for _ in 0..2 {
        let error = disk.sync().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        // Its advice works.
        let text = error.to_string();
        let copy = text.split_whitespace().find(|word| word.starts_with("/proc/")).unwrap();
        let found = std::fs::read(copy).unwrap();
        assert!(found.len() == 1 << 20 && found[4096..12288] == data[..]);
    }
}

/// On file systems that say of every file that it has no name, the first sync failed.
#[test]
fn a_file_that_never_had_a_name_is_not_called_deleted() {
    let dir = TempDir::new("disk-nameless");
    let path = dir.path().join("data");
    let file = std::fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let disk = FileDisk::open(std::path::Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd()))).unwrap();
    disk.write_at(0, &filled(4096, 5), 4096).unwrap();
    disk.sync().unwrap();
}

/// Another process's file, or a user's link, was removed together with the failed one.
#[test]
fn what_was_there_before_stays_when_a_file_cannot_be_made() {
    let dir = TempDir::new("disk-others");
    let (link, path) = (dir.path().join("link"), dir.path().join("data"));
    std::os::unix::fs::symlink("nowhere/data", &link).unwrap();
    assert!(FileDisk::create(&link, 1 << 20).is_err());
    assert!(link.symlink_metadata().is_ok());
    let disk = FileDisk::create(&path, 1 << 20).unwrap();
    assert!(disk.is_new());
    assert_eq!(FileDisk::create(&path, 1 << 20).unwrap_err().kind(), ErrorKind::ResourceBusy);
    drop(disk);
    assert_eq!(FileDisk::create(&path, 1 << 20).unwrap_err().kind(), ErrorKind::AlreadyExists);
    std::fs::write(&path, []).unwrap();
    assert!(!FileDisk::create(&path, 1 << 20).unwrap().is_new());
    let large = dir.path().join("large");
    assert!(FileDisk::create(&large, u64::MAX / 2).is_err());
    assert!(!large.exists(), "nothing is left of what was made");
}
