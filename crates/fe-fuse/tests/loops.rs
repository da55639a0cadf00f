//! Real file systems on loop devices on our files: the most common use; and the behaviour of cp and
//! dd.

#![allow(clippy::unwrap_used, clippy::panic, clippy::disallowed_methods, reason = "a test, on the real kernel")]

mod common;

use std::os::unix::fs::FileExt;
use std::path::Path;

use common::{FileSystem, Mounted, attached, flushes, sysfs};
use fe_fuse::{MountOptions, WhenBusy, mount};
use surface::BlockDevice;
use testkit::{LoopDevice, MountDir, TempDir, noise, run};

const MIB: u64 = 1 << 20;

/// Writes files into a file system; checks them later.
fn fill(dir: &Path) {
    for number in 0..20_u64 {
        std::fs::create_dir(dir.join(number.to_string())).unwrap();
        // 0 bytes to 5 MiB, of odd lengths.
        let data = noise(number, (number * number * number * 761) as usize);
        std::fs::write(dir.join(number.to_string()).join("file"), data).unwrap();
    }
}

fn compare(dir: &Path) {
    for number in 0..20_u64 {
        let back = std::fs::read(dir.join(number.to_string()).join("file")).unwrap();
        assert!(back == noise(number, (number * number * number * 761) as usize), "file {number} differs");
    }
}

fn remove(dir: &Path) {
    for number in 0..20_u64 {
        std::fs::remove_dir_all(dir.join(number.to_string())).unwrap();
    }
}

#[test]
fn ext4_on_a_buffered_loop_device() {
    let mounted = Mounted::new(512 * MIB);
    let device = attached(&mounted.path("vol"), false);
    assert_eq!(sysfs(&device, "loop/dio"), "0");
    ext4(&mounted, &device);
}

#[test]
fn ext4_on_a_direct_loop_device() {
    let mounted = Mounted::new(512 * MIB);
    let device = attached(&mounted.path("vol"), true);
    assert_eq!(sysfs(&device, "loop/dio"), "1", "the kernel refused direct I/O on our file");
    ext4(&mounted, &device);
}

fn ext4(mounted: &Mounted, device: &LoopDevice) {
    assert_ne!(sysfs(device, "queue/discard_max_bytes"), "0", "no discard");
    run("mkfs.ext4", &["-q", &device.0]);
    assert!(mounted.vol.discarded_bytes() >= 512 * MIB, "mkfs discards the device");
    assert!(mounted.vol.allocated_bytes() < 64 * MIB, "an empty file system takes little");

    let fs = FileSystem::mount(device);
    fill(fs.dir.path());
    let before = flushes(&mounted.vol);
    run("sync", &["-f", fs.dir.path().to_str().unwrap()]);
    assert!(flushes(&mounted.vol) > before, "sync of the file system above reaches the device");
    let full = mounted.vol.allocated_bytes();
    assert!(full > 20 * MIB);
    fs.unmount();
    run("e2fsck", &["-fn", &device.0]);

    let fs = FileSystem::mount(device);
    compare(fs.dir.path());
    remove(fs.dir.path());
    run("sync", &["-f", fs.dir.path().to_str().unwrap()]);
    let discarded = mounted.vol.discarded_bytes();
    run("fstrim", &[fs.dir.path()]);
    assert!(mounted.vol.discarded_bytes() > discarded + 20 * MIB, "fstrim reaches the device");
    assert!(mounted.vol.allocated_bytes() < full - 20 * MIB);
    fs.unmount();
    run("e2fsck", &["-fn", &device.0]);
}

#[test]
fn xfs_on_a_direct_loop_device() {
    let mounted = Mounted::new(512 * MIB);
    let device = attached(&mounted.path("vol"), true);
    run("mkfs.xfs", &["-q", &device.0]);
    assert!(mounted.vol.discarded_bytes() >= 512 * MIB, "mkfs discards the device");
    let fs = FileSystem::mount(&device);
    fill(fs.dir.path());
    fs.unmount();
    run("xfs_repair", &["-n", &device.0]);
    let fs = FileSystem::mount(&device);
    compare(fs.dir.path());
    remove(fs.dir.path());
    // XFS frees the space of removed files in the background; unmounting waits for that.
    fs.unmount();
    let fs = FileSystem::mount(&device);
    let discarded = mounted.vol.discarded_bytes();
    run("fstrim", &[fs.dir.path()]);
    assert!(mounted.vol.discarded_bytes() > discarded + 20 * MIB);
    fs.unmount();
    run("xfs_repair", &["-n", &device.0]);
}

#[test]
fn a_grown_volume_grows_its_loop_device() {
    let mounted = Mounted::new(64 * MIB);
    let device = attached(&mounted.path("vol"), true);
    let size = || run("blockdev", &["--getsize64", &device.0]).trim().parse::<u64>().unwrap();
    assert_eq!(size(), 64 * MIB);
    run("mkfs.ext4", &["-q", &device.0]);
    mounted.vol.resize(256 * MIB);
    // As documented: some kernels need the stat.
    assert_eq!(std::fs::metadata(mounted.path("vol")).unwrap().len(), 256 * MIB);
    run("losetup", &["-c", &device.0]);
    assert_eq!(size(), 256 * MIB);
    run("e2fsck", &["-fp", &device.0]);
    run("resize2fs", &[&device.0]);
    let fs = FileSystem::mount(&device);
    std::fs::write(fs.dir.join("large"), noise(1, 100 * MIB as usize)).unwrap();
    fs.unmount();
    run("e2fsck", &["-fn", &device.0]);
}

#[test]
fn what_a_file_system_above_holds_in_memory_can_be_brought_down() {
    let mounted = Mounted::new(128 * MIB);
    assert!(mounted.mount.stack().is_empty());
    let device = attached(&mounted.path("vol"), true);
    run("mkfs.ext4", &["-q", &device.0]);
    let fs = FileSystem::mount(&device);
    fill(fs.dir.path());
    let stack = mounted.mount.stack();
    assert_eq!(stack.devices, [Path::new(&device.0)]);
    assert_eq!(stack.mounts, [fs.dir.path().canonicalize().unwrap()]);
    assert_eq!(stack.sync(), Vec::<String>::new());
    assert!(mounted.vol.allocated_bytes() > 20 * MIB, "what was written lately is still in memory");
    let before = flushes(&mounted.vol);
    stack.sync();
    assert!(flushes(&mounted.vol) > before);

    // As after unplugging a disk: afterwards, another loop device on the content of the volume has
    // every file.
    mounted.mount.unmount(WhenBusy::Abort).unwrap();
    drop((fs, device));
    let dir = MountDir::new("fe-fuse");
    let again = mount(mounted.set.clone(), dir.path(), &MountOptions::default()).unwrap();
    {
        let device = attached(&dir.join("vol"), true);
        let fs = FileSystem::mount(&device);
        compare(fs.dir.path());
        fs.unmount();
        run("e2fsck", &["-fn", &device.0]);
    }
    again.unmount(WhenBusy::Abort).unwrap();
}

#[test]
fn a_volume_under_a_loop_device_is_not_emptied() {
    let mounted = Mounted::new(MIB);
    mounted.open().write_all_at(&noise(4, MIB as usize), 0).unwrap();
    let device = attached(&mounted.path("vol"), true);
    let emptied = std::fs::OpenOptions::new().write(true).truncate(true).open(mounted.path("vol"));
    assert_eq!(emptied.unwrap_err().raw_os_error(), Some(libc::EBUSY));
    assert_eq!(mounted.vol.allocated_bytes(), MIB);
    drop(device);
}

#[test]
fn zeroing_a_loop_device_stores_nothing() {
    let mounted = Mounted::new(64 * MIB);
    mounted.open().write_all_at(&noise(4, 8 * MIB as usize), 0).unwrap();
    let device = attached(&mounted.path("vol"), true);
    run("blkdiscard", &["--zeroout", "--length", "4194304", &device.0]);
    assert_eq!(mounted.vol.allocated_bytes(), 4 * MIB);
    run("blkdiscard", &[&device.0]);
    assert_eq!(mounted.vol.allocated_bytes(), 0);
}

#[test]
fn cp_and_dd_leave_nothing_of_what_was_there() {
    let mounted = Mounted::new(4 * MIB);
    let path = mounted.path("vol");
    let volume = path.to_str().unwrap();
    let dir = TempDir::new("fe-fuse");
    let image = dir.join("image");
    let source = image.to_str().unwrap();
    // Data, a hole, data, and a hole at the end; in all less than the volume.
    let mut expected = vec![0; 4 * MIB as usize];
    let file = std::fs::File::create(&image).unwrap();
    for (seed, at) in [(1, 0), (2, 2 * MIB)] {
        let data = noise(seed, MIB as usize / 2);
        file.write_all_at(&data, at).unwrap();
        expected[at as usize..at as usize + data.len()].copy_from_slice(&data);
    }
    file.set_len(3 * MIB).unwrap();
    let input = format!("if={source}");
    let output = format!("of={volume}");
    let copies: [&[&str]; 5] = [
        &["cp", source, volume],
        &["cp", "--sparse=always", source, volume],
        &["cp", "--sparse=never", source, volume],
        &["dd", "status=none", "bs=64K", &input, &output],
        &["dd", "status=none", "bs=64K", "conv=sparse", &input, &output],
    ];
    for copy in copies {
        mounted.open().write_all_at(&noise(9, 4 * MIB as usize), 0).unwrap();
        run(copy[0], &copy[1..]);
        assert!(std::fs::read(&path).unwrap() == expected, "{copy:?}");
    }
    // Where only a part is to be written, the rest stays.
    run("dd", &["status=none", "bs=64K", "count=1", "seek=1", "conv=notrunc", &input, &output]);
    expected.copy_within(0..65536, 65536);
    assert!(std::fs::read(&path).unwrap() == expected, "dd conv=notrunc");
}
