//! Recognises other formats at the beginning of a device, by the signatures of partition tables,
//! file systems and so on.

use env::{AlignedBuf, Disk};

/// Bytes of the beginning that are examined: the farthest signature below is at 128 KiB.
const HEAD_BYTES: usize = 132 << 10;
/// Minimum that is examined if not all of it can be read.
const STEP_BYTES: usize = 4096;

/// Offset of a signature, its bytes, and the format. The most specific come first: a partition
/// table for BIOS is a part of many others.
const MARKS: &[(usize, &[u8], &str)] = &[
    (512, b"EFI PART", "a GPT partition table"),
    (4096, b"EFI PART", "a GPT partition table"),
    (0, b"LUKS\xba\xbe", "a LUKS header"),
    (0, b"XFSB", "an XFS file system"),
    (65600, b"_BHRfS_M", "a btrfs file system"),
    (536, b"LVM2 001", "an LVM physical volume"),
    (0, b"bcfs", "a bcachefs file system"),
    (4120, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca", "a bcache or bcachefs header"),
    (4096, b"\xfc\x4e\x2b\xa9", "a Linux RAID header"),
    (0, b"\xfc\x4e\x2b\xa9", "a Linux RAID header"),
    (131_072, b"\x0c\xb1\xba\x00\x00\x00\x00\x00", "a ZFS label"),
    (1024, b"\x10\x20\xf5\xf2", "an F2FS file system"),
    (4086, b"SWAPSPACE2", "swap space"),
    (0, b"QFI\xfb", "a QCOW2 image"),
    (0, b"hsqs", "a squashfs file system"),
    (32_769, b"CD001", "an ISO 9660 file system"),
    (3, b"NTFS    ", "an NTFS file system"),
    (3, b"EXFAT   ", "an exFAT file system"),
    (82, b"FAT32   ", "a FAT file system"),
    (54, b"FAT1", "a FAT file system"),
    // Two bytes only: after the more specific ones.
    (1080, b"\x53\xef", "an ext2, ext3 or ext4 file system"),
    (510, b"\x55\xaa", "an MBR partition table"),
];

/// Returns the format at the beginning of `disk`, if it is a known one other than a pool.
pub(crate) fn at_beginning(disk: &dyn Disk) -> Option<&'static str> {
    let size = disk.size_bytes().ok()?;
    let mut buf = AlignedBuf::new(HEAD_BYTES);
    let mut len = (size.min(HEAD_BYTES as u64) as usize) / STEP_BYTES * STEP_BYTES;
    while len > 0 && disk.read_at(0, &mut buf, len).is_err() {
        len = if len > STEP_BYTES { STEP_BYTES } else { 0 };
    }
    name_of(&buf[..len])
}

/// See [`at_beginning`].
fn name_of(head: &[u8]) -> Option<&'static str> {
    let has = |at: usize, mark: &[u8]| head.get(at..).is_some_and(|rest| rest.starts_with(mark));
    let found = MARKS.iter().find(|(at, mark, _)| has(*at, mark)).map(|(_, _, name)| *name);
    let is_blank = || !head.is_empty() && head.iter().all(|byte| *byte == 0);
    found.or_else(|| is_blank().then_some("nothing but zeroes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_at_the_beginning_is_named_by_its_most_telling_mark() {
        let with = |marks: &[(usize, &[u8])]| {
            let mut head = vec![0x11; HEAD_BYTES];
            marks.iter().for_each(|(at, mark)| head[*at..*at + mark.len()].copy_from_slice(mark));
            name_of(&head)
        };
        assert_eq!(with(&[]), None);
        assert_eq!(name_of(&[]), None);
        assert_eq!(name_of(&[0; 8192]), Some("nothing but zeroes"));
        assert_eq!(with(&[(510, b"\x55\xaa")]), Some("an MBR partition table"));
        assert_eq!(with(&[(510, b"\x55\xaa"), (512, b"EFI PART")]), Some("a GPT partition table"));
        assert_eq!(with(&[(1080, b"\x53\xef")]), Some("an ext2, ext3 or ext4 file system"));
        for (at, mark, name) in MARKS {
            assert_eq!(with(&[(*at, mark)]), Some(*name));
        }
    }
}
