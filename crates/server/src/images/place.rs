//! Identifies the place of a pool in a text that survives restarts of the machine and differs in a
//! copy. Read from sysfs, whenever a pool is opened.
//!
//! A device number does not suffice: device mapper, NVMe and loop devices are numbered in the order
//! of their appearance, and file systems such as btrfs have one number per mount. Instead, in this
//! order:
//!
//! 1. The UUID of a device-mapper device: unique for each logical volume and each snapshot.
//! 2. For a loop device, the place of its file, and the offset in it.
//! 3. The identity of the disk from its maker (`wwid`, `serial`), with the number of the partition.
//! 4. The UUID of the partition.
//! 5. The file system's own number (`f_fsid`): derived from its UUID for ext4 and btrfs, and from
//!    the device number for XFS.
//! 6. The device number.
//!
//! 4 and 5 are the same in a copy of the whole disk, so identities of disks come first.

use std::fs::Metadata;
use std::io::Result;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};

/// Directory of the kernel's devices.
const SYSFS: &str = "/sys";
/// Maximum nesting of loop devices on files of loop devices.
const NESTED_MAX: u32 = 4;
/// Files of a disk's directory that identify it, in the order of their likely uniqueness.
const DISK_IDENTITIES: [&str; 5] = ["wwid", "device/wwid", "serial", "device/cid", "md/uuid"];

/// Returns the place of a pool with that data and that directory.
///
/// # Errors
/// When one of them cannot be inspected.
pub fn place_of(data: &Path, directory: &Path) -> Result<String> {
    let sysfs = Sysfs(Path::new(SYSFS));
    let place = |path: &Path| std::fs::metadata(path).map(|metadata| sysfs.place(path, &metadata, NESTED_MAX));
    Ok(format!("{}\n{}", place(data)?, place(directory)?))
}

struct Sysfs<'a>(&'a Path);

impl Sysfs<'_> {
    fn place(&self, path: &Path, metadata: &Metadata, nested_max: u32) -> String {
        if metadata.file_type().is_block_device() {
            let device = metadata.rdev();
            return self.device(device, nested_max).unwrap_or_else(|| number(device));
        }
        let device = metadata.dev();
        let own_number = || rustix::fs::statvfs(path).ok().map(|found| found.f_fsid).filter(|id| *id != 0);
        let file_system =
            self.device(device, nested_max).or_else(|| own_number().map(|id| format!("file system {id:016x}")));
        format!("{} inode {}", file_system.unwrap_or_else(|| number(device)), metadata.ino())
    }

    /// Names a block device; `None` if it has no stable identity.
    fn device(&self, device: u64, nested_max: u32) -> Option<String> {
        // The path of a partition contains its disk.
        let dir = self.0.join(format!("dev/block/{}", number(device))).canonicalize().ok()?;
        let disk = |dir: &Path| {
            let mapped = word(&dir.join("dm/uuid")).map(|uuid| format!("mapped {uuid}"));
            let identity = || DISK_IDENTITIES.iter().find_map(|name| word(&dir.join(name)));
            mapped.or_else(|| self.backing(dir, nested_max)).or_else(|| Some(format!("disk {}", identity()?)))
        };
        let Some(partition) = word(&dir.join("partition")) else { return disk(&dir) };
        let of_disk = dir.parent().and_then(disk).map(|disk| format!("{disk} partition {partition}"));
        of_disk.or_else(|| {
            let events = std::fs::read_to_string(dir.join("uevent")).ok()?;
            let uuid = events.lines().find_map(|line| line.strip_prefix("PARTUUID="))?;
            Some(format!("partition {uuid}"))
        })
    }

    /// Names a loop device by its file.
    fn backing(&self, dir: &Path, nested_max: u32) -> Option<String> {
        let file = PathBuf::from(word(&dir.join("loop/backing_file"))?);
        let offset = word(&dir.join("loop/offset"))?;
        let metadata = std::fs::metadata(&file).ok()?;
        Some(format!("loop at {offset} of {}", self.place(&file, &metadata, nested_max.checked_sub(1)?)))
    }
}

fn number(device: u64) -> String {
    format!("{}:{}", major(device), minor(device))
}

/// Returns the content of a file, unless it is empty.
fn word(file: &Path) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::makedev;
    use testkit::TempDir;

    use super::*;

    /// Files of a device, and their contents.
    type Files<'a> = &'a [(&'a str, &'a str)];

    /// Builds a sysfs of devices: name below `devices`, number, and files.
    fn sysfs(devices: &[(&str, u64, Files<'_>)]) -> TempDir {
        let dir = TempDir::new("sysfs");
        std::fs::create_dir_all(dir.join("dev/block")).unwrap();
        for (name, device, files) in devices {
            let device_dir = dir.join("devices").join(name);
            std::fs::create_dir_all(&device_dir).unwrap();
            symlink(&device_dir, dir.join("dev/block").join(number(*device))).unwrap();
            for (file, content) in *files {
                std::fs::create_dir_all(device_dir.join(file).parent().unwrap()).unwrap();
                std::fs::write(device_dir.join(file), content).unwrap();
            }
        }
        dir
    }

    #[test]
    fn devices_are_named_by_what_stays() {
        let dir = sysfs(&[
            ("dm-0", makedev(252, 0), &[("dm/uuid", "LVM-abc\n"), ("wwid", "not this\n")]),
            ("dm-1", makedev(252, 1), &[("dm/uuid", "\n")]),
            ("nvme0n1", makedev(259, 0), &[("wwid", "eui.0025\n")]),
            ("nvme0n1/nvme0n1p2", makedev(259, 2), &[("partition", "2\n"), ("uevent", "PARTUUID=same\n")]),
            ("sda", makedev(8, 0), &[("device/wwid", "naa.5000\n")]),
            ("vda", makedev(254, 0), &[("serial", "\n")]),
            ("vda/vda1", makedev(254, 1), &[("partition", "1\n"), ("uevent", "DEVNAME=vda1\nPARTUUID=12-34\n")]),
            ("vda/vda2", makedev(254, 2), &[("partition", "2\n"), ("uevent", "DEVNAME=vda2\n")]),
        ]);
        let sysfs = Sysfs(dir.path());
        let name = |major, minor| sysfs.device(makedev(major, minor), NESTED_MAX);
        assert_eq!(name(252, 0).as_deref(), Some("mapped LVM-abc"));
        assert_eq!(name(252, 1), None, "made without a UUID");
        assert_eq!(name(259, 0).as_deref(), Some("disk eui.0025"));
        assert_eq!(name(259, 2).as_deref(), Some("disk eui.0025 partition 2"));
        assert_eq!(name(8, 0).as_deref(), Some("disk naa.5000"));
        assert_eq!(name(254, 1).as_deref(), Some("partition 12-34"));
        assert_eq!((name(254, 0), name(254, 2), name(9, 9)), (None, None, None));
    }

    /// Attaching a file again gives it another number; a copy of the file has another inode.
    #[test]
    fn a_loop_device_is_named_by_its_file() {
        let files = TempDir::new("backing");
        let [original, copy] = ["original", "copy"].map(|name| files.join(name).to_str().unwrap().to_owned());
        std::fs::write(&original, b"disk").unwrap();
        std::fs::copy(&original, &copy).unwrap();
        let attached = |file: &str, minor: u32, offset: &str| {
            let of_loop: &[(&str, &str)] = &[("loop/backing_file", file), ("loop/offset", offset)];
            let dir = sysfs(&[("loop", makedev(7, minor), of_loop)]);
            Sysfs(dir.path()).device(makedev(7, minor), NESTED_MAX)
        };
        let named = attached(&original, 3, "0\n");
        assert!(named.is_some());
        assert_eq!(named, attached(&original, 5, "0\n"));
        assert_ne!(named, attached(&copy, 3, "0\n"));
        assert_ne!(named, attached(&original, 3, "4096\n"));
        assert_eq!(attached("/no/such/file", 3, "0\n"), None);
    }

    #[test]
    fn files_have_places_of_their_own() {
        let files = TempDir::new("places");
        let [one, two] = ["one", "two"].map(|name| files.join(name));
        std::fs::write(&one, b"").unwrap();
        std::fs::write(&two, b"").unwrap();
        let place = |data: &Path| place_of(data, files.path()).unwrap();
        assert_eq!(place(&one), place(&one));
        assert_ne!(place(&one), place(&two));
        std::fs::remove_file(&one).unwrap();
        assert!(place_of(&one, files.path()).is_err());
    }
}
