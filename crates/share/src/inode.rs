//! The record of an inode: attributes, and the location of its data.
//!
//! Encoding, little-endian: version 1, flags 1, mode 4, uid 4, gid 4, links 4, device 4, generation
//! 4, size 8, data 8, parent 8, then four times seconds 8 and nanoseconds 4 (accessed, modified,
//! changed, born). With bit 4 of the flags this is followed by the length 2 and the record of its
//! compression (`compression.rs`); then to the end the target of a symbolic link, or with bit 5 the
//! content of a file. Valid if and only if the version is known, the length is at least that of the
//! fixed part, fields end at their stated lengths, content belongs to a regular file and is as long
//! as its size, and data is not in one of the tree's own files.

use surface::OWN_FILES_END;

use crate::compression::Compression;
use crate::failure::{Failure, Result};

/// A point in time, in seconds since 1970 and the nanoseconds within that second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Seconds since 1970, negative before.
    pub seconds: i64,
    /// 0 to 999,999,999.
    pub nanoseconds: u32,
}

/// Flags of an inode. The table of extended attributes is only read if a flag is set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Flags(u8);

impl Flags {
    /// An access ACL with more than the three entries that the mode has.
    pub(crate) const ACCESS_ACL: Self = Self(1);
    /// A default ACL, for new nodes of the directory.
    pub(crate) const DEFAULT_ACL: Self = Self(1 << 1);
    /// `security.capability`, which a change of the content removes.
    pub(crate) const CAPABILITY: Self = Self(1 << 2);
    /// There may be holes: the size does not determine the allocation.
    pub(crate) const SPARSE: Self = Self(1 << 3);

    /// Those that a record has.
    pub(crate) fn of_record(bytes: &[u8]) -> Self {
        Self(bytes.get(1).copied().unwrap_or(0))
    }

    /// The flags for extended attributes.
    pub(crate) const fn of_attributes(self) -> Self {
        Self(self.0 & (Self::ACCESS_ACL.0 | Self::DEFAULT_ACL.0 | Self::CAPABILITY.0))
    }

    pub(crate) const fn has(self, flag: Self) -> bool {
        self.0 & flag.0 != 0
    }

    pub(crate) fn set(&mut self, flag: Self, on: bool) {
        if on { self.0 |= flag.0 } else { self.0 &= !flag.0 }
    }
}

/// An inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inode {
    /// Type and permissions, as `st_mode`.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names that it has; of a directory, 2 and one for each directory in it.
    pub links: u32,
    /// Device number, for device nodes.
    pub device: u32,
    /// The generation of the space in which it was made: of two inodes that had one number in
    /// different states of a share, each has its own.
    pub(crate) generation: u32,
    /// Size in bytes.
    pub size: u64,
    /// The file of the object space that holds its content. Emptying a file gives it a new one, so
    /// that the old content need not go before the change is durable.
    pub(crate) data: u64,
    /// Of a directory: the one that it is in. 0 for the root.
    pub(crate) parent: u64,
    /// Last access.
    pub accessed: Time,
    /// Last change of the content.
    pub modified: Time,
    /// Last change of the content or the attributes.
    pub changed: Time,
    /// When it was made.
    pub born: Time,
    /// Target of a symbolic link.
    pub(crate) target: Box<[u8]>,
    pub(crate) flags: Flags,
    /// The content of a small file; `None`: it is in `data`.
    pub(crate) content: Option<Box<[u8]>>,
    /// Compression of its data, or of files created in it; `None`: no settings.
    pub(crate) compression: Option<Box<Compression>>,
}

impl Inode {
    /// The file of the object space with its content; 0 if it has none.
    pub const fn data_file(&self) -> u64 {
        self.data
    }

    /// Whether it has an access ACL that says more than its mode.
    pub const fn has_access_acl(&self) -> bool {
        self.flags.has(Flags::ACCESS_ACL)
    }

    /// The content of a file stored in its inode's record; `None` if it is in blocks.
    pub fn content(&self) -> Option<&[u8]> {
        self.content.as_deref()
    }
}

const VERSION: u8 = 1;
/// Bits of a record's flags for the parts that follow the fixed one.
const HAS_FIELDS: u8 = 1 << 4;
const HAS_CONTENT: u8 = 1 << 5;
const FIXED_BYTES: usize = 98;

impl Inode {
    /// The type, as `S_IFMT` masks it.
    pub const fn kind(&self) -> u32 {
        self.mode & libc::S_IFMT
    }

    /// Its compression settings.
    pub(crate) fn compression(&self) -> Compression {
        self.compression.as_ref().map(|compression| (**compression).clone()).unwrap_or_default()
    }

    pub(crate) fn set_compression(&mut self, compression: Compression) {
        self.compression = (!compression.is_empty()).then(|| Box::new(compression));
    }

    /// Whether two versions of an inode are equal but for their times.
    pub(crate) fn differs_in_times_only(&self, other: &Self) -> bool {
        // All fields, so that no new one is forgotten.
        #[rustfmt::skip]
        let Self {
            mode, uid, gid, links, device, generation, size, data, parent, born, target, flags, content, compression,
            accessed: _, modified: _, changed: _,
        } = self;
        let numbers = (*mode, *uid, *gid, *links, *device, *generation);
        numbers == (other.mode, other.uid, other.gid, other.links, other.device, other.generation)
            && (*size, *data, *parent, *born) == (other.size, other.data, other.parent, other.born)
            && (target, flags, content, compression)
                == (&other.target, &other.flags, &other.content, &other.compression)
    }

    /// Whether it is a directory.
    pub const fn is_directory(&self) -> bool {
        self.kind() == libc::S_IFDIR
    }

    /// Whether it is a file with content.
    pub const fn is_file(&self) -> bool {
        self.kind() == libc::S_IFREG
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let fields = self.compression.as_ref().map(|compression| compression.encode()).unwrap_or_default();
        let last = self.content.as_ref().unwrap_or(&self.target);
        let has_fields = if fields.is_empty() { 0 } else { HAS_FIELDS };
        let has_content = if self.content.is_some() { HAS_CONTENT } else { 0 };
        let mut out = Vec::with_capacity(FIXED_BYTES + 2 + fields.len() + last.len());
        out.extend([VERSION, self.flags.0 | has_fields | has_content]);
        for number in [self.mode, self.uid, self.gid, self.links, self.device, self.generation] {
            out.extend(number.to_le_bytes());
        }
        for number in [self.size, self.data, self.parent] {
            out.extend(number.to_le_bytes());
        }
        for time in [self.accessed, self.modified, self.changed, self.born] {
            out.extend(time.seconds.to_le_bytes());
            out.extend(time.nanoseconds.to_le_bytes());
        }
        if !fields.is_empty() {
            // Two fields of at most 257 bytes, and those of later versions, which were decoded with
            // their length.
            out.extend((fields.len() as u16).to_le_bytes());
            out.extend(&fields);
        }
        out.extend(last);
        out
    }

    pub(crate) fn decode(number: u64, bytes: &[u8]) -> Result<Self> {
        let damaged = || Failure::damaged(format_args!("inode {number} has a record of {} bytes", bytes.len()));
        let (fixed, behind) = bytes.split_at_checked(FIXED_BYTES).ok_or_else(damaged)?;
        if fixed[0] != VERSION {
            return Err(damaged());
        }
        let (flags, has_content) = (Flags(fixed[1] & !(HAS_FIELDS | HAS_CONTENT)), fixed[1] & HAS_CONTENT != 0);
        let (compression, last) = if fixed[1] & HAS_FIELDS == 0 {
            (None, behind)
        } else {
            let (length, rest) = behind.split_first_chunk().ok_or_else(damaged)?;
            let fields = rest.split_at_checked(u16::from_le_bytes(*length).into()).ok_or_else(damaged)?;
            let said = Compression::decode(fields.0).ok_or_else(damaged)?;
            ((!said.is_empty()).then(|| Box::new(said)), fields.1)
        };
        let mut rest = &fixed[2..];
        let mut u32 = || take(&mut rest).map(u32::from_le_bytes);
        let (mode, uid, gid, links, device, generation) = (u32(), u32(), u32(), u32(), u32(), u32());
        let mut u64 = || take(&mut rest).map(u64::from_le_bytes);
        let (size, data, parent) = (u64(), u64(), u64());
        let mut time = || {
            let seconds = take(&mut rest).map(i64::from_le_bytes)?;
            Some(Time { seconds, nanoseconds: take(&mut rest).map(u32::from_le_bytes)? })
        };
        let times = (time(), time(), time(), time());
        // All are present, because the fixed part is.
        let whole = || {
            Some(Self {
                mode: mode?,
                uid: uid?,
                gid: gid?,
                links: links?,
                device: device?,
                generation: generation?,
                size: size?,
                data: data?,
                parent: parent?,
                accessed: times.0?,
                modified: times.1?,
                changed: times.2?,
                born: times.3?,
                target: if has_content { Box::default() } else { last.into() },
                flags,
                content: has_content.then(|| last.into()),
                compression,
            })
        };
        let agrees = |inode: &Self| {
            // No file has its content in one of the tree's own: writing there would overwrite
            // names.
            let has_own_data = inode.data == 0 || inode.data >= OWN_FILES_END;
            has_own_data
                && inode.content.as_ref().is_none_or(|content| inode.is_file() && content.len() as u64 == inode.size)
        };
        whole().filter(agrees).ok_or_else(damaged)
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, left) = rest.split_first_chunk()?;
    *rest = left;
    Some(*taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_comes_back_as_it_was_and_a_short_one_is_refused() {
        let mut flags = Flags::default();
        flags.set(Flags::CAPABILITY, true);
        let inode = Inode {
            mode: libc::S_IFLNK | 0o777,
            uid: 1,
            gid: 2,
            links: 3,
            device: 4,
            generation: u32::MAX - 1,
            size: 5,
            data: OWN_FILES_END,
            parent: 7,
            accessed: Time { seconds: -8, nanoseconds: 9 },
            modified: Time { seconds: i64::MAX, nanoseconds: 10 },
            changed: Time::default(),
            born: Time { seconds: 11, nanoseconds: 12 },
            target: b"a/target"[..].into(),
            flags,
            content: None,
            compression: None,
        };
        let bytes = inode.encode();
        assert_eq!(bytes[..2], [1, Flags::CAPABILITY.0]);
        assert_eq!(Inode::decode(1, &bytes).unwrap(), inode);
        let mut said = inode.clone();
        let fields = Compression::decode(&[1, 3, 0, 1, 0, 99, 1, 7]).unwrap();
        said.set_compression(fields);
        let with_fields = said.encode();
        assert_eq!((with_fields[0], with_fields.len()), (1, bytes.len() + 2 + 8));
        assert_eq!(Inode::decode(1, &with_fields).unwrap(), said);
        assert!(Inode::decode(1, &with_fields[..FIXED_BYTES + 6]).is_err());
        assert!(Inode::decode(1, &bytes[..FIXED_BYTES - 1]).is_err());
        assert!(Inode::decode(1, &[&[9], &bytes[1..]].concat()).is_err());
        let own = Inode { data: OWN_FILES_END - 1, ..inode.clone() };
        assert!(Inode::decode(1, &own.encode()).is_err(), "data in a file of the tree's own");
        // A small file.
        let mut small = said.clone();
        (small.mode, small.target, small.content) = (libc::S_IFREG, Box::default(), Some(b"12345"[..].into()));
        let with_content = small.encode();
        assert_eq!((with_content[0], with_content.len()), (1, FIXED_BYTES + 2 + 8 + 5));
        assert_eq!(Inode::decode(1, &with_content).unwrap(), small);
        assert!(Inode::decode(1, &with_content[..FIXED_BYTES + 2 + 8 + 4]).is_err(), "shorter than its size");
        (small.content, small.size) = (Some(Box::default()), 0);
        small.set_compression(Compression::default());
        assert_eq!(small.encode().len(), FIXED_BYTES);
        assert_eq!(Inode::decode(1, &small.encode()).unwrap(), small);
        small.mode = libc::S_IFLNK;
        assert!(Inode::decode(1, &small.encode()).is_err(), "a link has no content");
        flags.set(Flags::CAPABILITY, false);
        assert_eq!(flags, Flags::default());
    }

    #[test]
    fn versions_that_differ_in_more_than_times_are_told_apart() {
        let fixed = Inode { mode: libc::S_IFREG | 0o644, ..Inode::decode(1, &record_of_zeroes()).unwrap() };
        let later = Time { seconds: 1, nanoseconds: 2 };
        let touched = Inode { accessed: later, modified: later, changed: later, ..fixed.clone() };
        assert!(touched.differs_in_times_only(&fixed) && fixed.differs_in_times_only(&touched));
        let mut sparse = Flags::default();
        sparse.set(Flags::SPARSE, true);
        let others = [
            Inode { mode: libc::S_IFREG | 0o600, ..touched.clone() },
            Inode { uid: 1, ..touched.clone() },
            Inode { gid: 1, ..touched.clone() },
            Inode { links: 1, ..touched.clone() },
            Inode { device: 1, ..touched.clone() },
            Inode { generation: 1, ..touched.clone() },
            Inode { size: 1, ..touched.clone() },
            Inode { data: OWN_FILES_END, ..touched.clone() },
            Inode { parent: 1, ..touched.clone() },
            Inode { born: later, ..touched.clone() },
            Inode { target: b"x"[..].into(), ..touched.clone() },
            Inode { flags: sparse, ..touched.clone() },
            Inode { content: Some(Box::default()), ..touched.clone() },
            Inode { compression: Some(Box::default()), ..touched },
        ];
        for other in others {
            assert!(!other.differs_in_times_only(&fixed), "{other:?}");
        }
    }

    fn record_of_zeroes() -> Vec<u8> {
        let mut record = vec![0; FIXED_BYTES];
        record[0] = VERSION;
        record
    }
}
