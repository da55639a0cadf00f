//! Attributes of files in replies: `struct fuse_attr`, `struct fuse_entry_out`, `struct
//! fuse_kstatfs`. Plain values.

use std::time::Duration;

/// A point in time: seconds since 1970, which may be negative, and nanoseconds from there on, 0 to
/// 999,999,999.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Seconds since 1970.
    pub seconds: i64,
    /// Nanoseconds within the second.
    pub nanoseconds: u32,
}

impl Time {
    /// Returns the time that is this many nanoseconds after 1970.
    pub const fn from_unix_ns(ns: u64) -> Self {
        // Below 2^34 seconds, and below 10^9 nanoseconds.
        Self { seconds: (ns / 1_000_000_000).cast_signed(), nanoseconds: (ns % 1_000_000_000) as u32 }
    }

    /// Returns nanoseconds since 1970; 0 for an earlier time, the largest number for one after the
    /// year 2554.
    pub fn unix_ns(self) -> u64 {
        u64::try_from(self.seconds)
            .map_or(0, |seconds| seconds.saturating_mul(1_000_000_000).saturating_add(u64::from(self.nanoseconds)))
    }
}

/// The attributes that `stat` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// Inode number.
    pub inode: u64,
    /// Size in bytes.
    pub size: u64,
    /// Space in units of 512 bytes.
    pub blocks: u64,
    /// Time of the last access.
    pub accessed: Time,
    /// Time of the last change of the content.
    pub modified: Time,
    /// Time of the last change of the content or the attributes.
    pub changed: Time,
    /// Type and permissions, as `st_mode`.
    pub mode: u32,
    /// Number of names.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node, in the kernel's 32-bit encoding.
    pub device: u32,
    /// `st_blksize`.
    pub block_bytes: u32,
}

/// Bytes of `struct fuse_attr`.
pub(crate) const ATTRIBUTES_BYTES: usize = 88;

impl Attributes {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        for number in [self.inode, self.size, self.blocks] {
            out.extend(number.to_ne_bytes());
        }
        let times = [self.accessed, self.modified, self.changed];
        times.iter().for_each(|time| out.extend(time.seconds.to_ne_bytes()));
        times.iter().for_each(|time| out.extend(time.nanoseconds.to_ne_bytes()));
        for number in [self.mode, self.links, self.uid, self.gid, self.device, self.block_bytes, 0] {
            out.extend(number.to_ne_bytes());
        }
    }
}

/// The result of a look-up: the file, and how long the kernel may cache it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The node number by which the kernel refers to the file; 0 if there is no such name, which
    /// the kernel may cache for `name_valid`.
    pub node: u64,
    /// Distinguishes files that have the same node number one after another.
    pub generation: u64,
    /// How long the name may be cached.
    pub name_valid: Duration,
    /// How long the attributes may be cached.
    pub attributes_valid: Duration,
    /// The file's attributes.
    pub attributes: Attributes,
}

/// Bytes of `struct fuse_entry_out`.
pub(crate) const ENTRY_BYTES: usize = 40 + ATTRIBUTES_BYTES;

impl Entry {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        for number in [self.node, self.generation, self.name_valid.as_secs(), self.attributes_valid.as_secs()] {
            out.extend(number.to_ne_bytes());
        }
        for number in [self.name_valid.subsec_nanos(), self.attributes_valid.subsec_nanos()] {
            out.extend(number.to_ne_bytes());
        }
        self.attributes.encode(out);
    }
}

/// The result of `statfs`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StatFs {
    /// Size in units of `block_bytes`.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks for users without privileges.
    pub blocks_available: u64,
    /// Most files possible.
    pub files: u64,
    /// Files that can still be created.
    pub files_free: u64,
    /// The unit of the block counts.
    pub block_bytes: u32,
    /// The longest name.
    pub name_bytes_max: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_and_far_ahead_do_not_wrap() {
        let early = Time { seconds: -2, nanoseconds: 500_000_000 };
        assert_eq!(early.unix_ns(), 0);
        assert_eq!(Time { seconds: i64::MAX, nanoseconds: 0 }.unix_ns(), u64::MAX);
        let time = Time::from_unix_ns(1_700_000_000_123_456_789);
        assert_eq!(
            (time.seconds, time.nanoseconds, time.unix_ns()),
            (1_700_000_000, 123_456_789, 1_700_000_000_123_456_789)
        );
    }

    #[test]
    fn structures_have_the_kernels_length() {
        let attributes = Attributes {
            inode: 1,
            size: 2,
            blocks: 3,
            accessed: Time::default(),
            modified: Time { seconds: -1, nanoseconds: 7 },
            changed: Time::default(),
            mode: 0o100_644,
            links: 1,
            uid: 4,
            gid: 5,
            device: 6,
            block_bytes: 4096,
        };
        let mut out = Vec::new();
        attributes.encode(&mut out);
        assert_eq!(out.len(), ATTRIBUTES_BYTES);
        // Offsets of mtime, mtimensec, mode and blksize in `struct fuse_attr`.
        assert_eq!(out[32..40], (-1_i64).to_ne_bytes());
        assert_eq!(out[52..56], 7_u32.to_ne_bytes());
        assert_eq!(out[60..64], 0o100_644_u32.to_ne_bytes());
        assert_eq!(out[80..84], 4096_u32.to_ne_bytes());
        out.clear();
        let valid = Duration::new(9, 8);
        Entry { node: 1, generation: 0, name_valid: valid, attributes_valid: valid, attributes }.encode(&mut out);
        assert_eq!((out.len(), &out[32..36]), (ENTRY_BYTES, &8_u32.to_ne_bytes()[..]));
    }
}
