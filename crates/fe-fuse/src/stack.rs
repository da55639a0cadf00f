//! The stack of block devices and file systems that the kernel has built on the files of a mount,
//! and how to write back its caches. Reads sysfs and mountinfo; owns nothing and attaches nothing.
//!
//! 1. Loop devices whose file lies in the mount's directory.
//! 2. Their partitions, and their holders (LVM, md, dm-crypt), recursively.
//! 3. File systems mounted from one of these, identified by device number, or by name (btrfs has
//!    numbers of its own).
//!
//! A device attached from within another mount namespace, under another name of the directory, is
//! not found.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use fuse::mount::{mountinfo, unescaped};
use rustix::fs::{Mode, OFlags};

/// Every block device by name, partitions too.
const SYSFS_BLOCK: &str = "/sys/class/block";

/// Block devices and file systems on top of the files of a mount.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stack {
    /// Loop devices on the files, their partitions, and their holders; by path (`/dev/loop0`).
    pub devices: Vec<PathBuf>,
    /// Where file systems on these devices are mounted.
    pub mounts: Vec<PathBuf>,
}

impl Stack {
    /// Finds the stack on the files in `dir`, or on `dir` itself if that is a file.
    pub fn above(dir: &Path) -> Self {
        Self::found(dir, Path::new(SYSFS_BLOCK), &mountinfo())
    }

    fn found(dir: &Path, block: &Path, mountinfo: &str) -> Self {
        let mut names = BTreeSet::new();
        let mut todo: Vec<String> = names_in(block).filter(|name| is_loop_below(&block.join(name), dir)).collect();
        while let Some(name) = todo.pop() {
            let device = block.join(&name);
            if names.insert(name) {
                todo.extend(names_in(&device.join("holders")));
                todo.extend(names_in(&device).filter(|part| device.join(part).join("partition").exists()));
            }
        }
        let devices: Vec<PathBuf> = names.iter().map(|name| Path::new("/dev").join(name)).collect();
        let numbers: BTreeSet<String> = names
            .iter()
            .filter_map(|name| Some(fs::read_to_string(block.join(name).join("dev")).ok()?.trim().to_owned()))
            .collect();
        let lies_there = |line: &&str| {
            let source = line.split_once(" - ").and_then(|(_, rest)| rest.split(' ').nth(1));
            line.split(' ').nth(2).is_some_and(|number| numbers.contains(number))
                || source.is_some_and(|source| devices.iter().any(|device| device == Path::new(source)))
        };
        let point = |line: &str| Some(PathBuf::from(unescaped(line.split(' ').nth(4)?)));
        let mounts = mountinfo.lines().filter(lies_there).filter_map(point).collect();
        Self { devices, mounts }
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.devices.is_empty() && self.mounts.is_empty()
    }

    /// Writes the kernel's caches for the stack back to the files, and flushes them. Must not be
    /// called by a thread that serves the mount; ends with errors when the mount is aborted in the
    /// meantime. Returns the items that could not be synced, with the reason.
    pub fn sync(&self) -> Vec<String> {
        let mut failed = Vec::new();
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        // File systems first: they write to the devices.
        for dir in &self.mounts {
            let synced = rustix::fs::open(dir, flags | OFlags::DIRECTORY, Mode::empty()).and_then(rustix::fs::syncfs);
            failed.extend(synced.err().map(|errno| format!("{}: {errno}", dir.display())));
        }
        for device in &self.devices {
            let synced = rustix::fs::open(device, flags, Mode::empty()).and_then(rustix::fs::fsync);
            failed.extend(synced.err().map(|errno| format!("{}: {errno}", device.display())));
        }
        failed
    }
}

fn names_in(dir: &Path) -> impl Iterator<Item = String> {
    fs::read_dir(dir).into_iter().flatten().filter_map(|entry| entry.ok()?.file_name().into_string().ok())
}

fn is_loop_below(device: &Path, dir: &Path) -> bool {
    fs::read_to_string(device.join("loop/backing_file"))
        .is_ok_and(|file| Path::new(file.trim_end_matches('\n')).starts_with(dir))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(block: &Path, name: &str, number: &str, backing: Option<&str>) -> PathBuf {
        let dir = block.join(name);
        fs::create_dir_all(dir.join("holders")).unwrap();
        fs::write(dir.join("dev"), format!("{number}\n")).unwrap();
        if let Some(backing) = backing {
            fs::create_dir_all(dir.join("loop")).unwrap();
            fs::write(dir.join("loop/backing_file"), format!("{backing}\n")).unwrap();
        }
        dir
    }

    #[test]
    fn what_lies_on_the_files_is_found_and_nothing_else() {
        let dir = testkit::TempDir::new("fe-fuse-stack");
        let block = dir.path();
        let direct = device(block, "loop0", "7:0", Some("/mnt/shale/vm"));
        device(block, "loop1", "7:1", Some("/mnt/shale-other/vm"));
        device(block, "loop2", "7:2", None);
        device(block, "loop3", "7:3", Some("/mnt/shale/btrfs"));
        device(block, "loop0p1", "259:0", None);
        // sysfs shows a partition within its disk as well, and a holder by name.
        fs::create_dir_all(direct.join("loop0p1")).unwrap();
        fs::write(direct.join("loop0p1/partition"), "1\n").unwrap();
        fs::create_dir_all(block.join("loop0p1/holders/dm-0")).unwrap();
        device(block, "dm-0", "253:0", None);
        let mountinfo = "\
            21 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n\
            30 21 7:1 / /mnt/other rw - ext4 /dev/loop1 rw\n\
            31 21 253:0 / /mnt/my\\040vm rw,noatime shared:7 - ext4 /dev/mapper/vg-vm rw\n\
            32 21 0:44 / /mnt/b rw - btrfs /dev/loop3 rw\n";
        let found = Stack::found(Path::new("/mnt/shale"), block, mountinfo);
        let paths = |list: &[&str]| list.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(found.devices, paths(&["/dev/dm-0", "/dev/loop0", "/dev/loop0p1", "/dev/loop3"]));
        assert_eq!(found.mounts, paths(&["/mnt/my vm", "/mnt/b"]));
        assert!(Stack::found(Path::new("/mnt/sha"), block, mountinfo).is_empty());
    }

    #[test]
    fn what_cannot_be_synced_is_named() {
        let stack = Stack { devices: vec!["/dev/absent".into()], mounts: vec!["/absent".into()] };
        let failed = stack.sync();
        assert_eq!(failed.len(), 2, "{failed:?}");
        assert!(failed[0].starts_with("/absent: ") && failed[1].starts_with("/dev/absent: "), "{failed:?}");
    }
}
