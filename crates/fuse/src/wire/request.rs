//! Requests of the kernel: header, operation, arguments. No I/O, no state.

use super::args::{Args, Fixed};
use super::attributes::Time;
use super::{IN_HEADER_BYTES, opcode, u32_at, u64_at};
use crate::answer::WriteData;

/// A malformed message: a length beyond its end, or a name without a terminator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

/// Marks a request that the kernel sends again because the server that took it is gone.
const RESENT: u64 = 1 << 63;

/// `FUSE_EXT_GROUPS`: an extension with the relevant groups of the caller.
const EXTENSION_GROUPS: u32 = 32;

/// One request.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Its number.
    pub unique: u64,
    /// The file or directory that it addresses.
    pub node: u64,
    /// The caller's user id.
    pub uid: u32,
    /// The caller's group id.
    pub gid: u32,
    /// The calling process; 0 for a request of the kernel itself.
    pub pid: u32,
    /// The operation and its arguments.
    pub operation: Operation<'a>,
    extensions: &'a [u8],
}

impl<'a> Request<'a> {
    /// Returns whether the kernel sends it again, so that it may have been carried out already.
    pub const fn is_resent(&self) -> bool {
        self.unique & RESENT != 0
    }

    /// Returns its number, without the mark of a repetition.
    pub const fn number(&self) -> u64 {
        self.unique & !RESENT
    }

    /// Returns the supplementary groups that the kernel sends: for a new file, the group of the
    /// directory if the caller is in it. Empty if it sends none.
    pub fn supplementary_groups(&self) -> impl Iterator<Item = u32> + 'a {
        // `struct fuse_ext_header` (size, type), `nr_groups`, then the groups; sizes are multiples
        // of 8.
        let mut left = self.extensions;
        let mut groups: &[u8] = &[];
        while left.len() >= 8 {
            let size = (u32_at(left, 0) as usize).clamp(8, left.len());
            if u32_at(left, 4) == EXTENSION_GROUPS {
                let count = (u32_at(left, 8) as usize).min(size.saturating_sub(12) / 4);
                groups = left.get(12..12 + 4 * count).unwrap_or_default();
            }
            left = &left[size..];
        }
        groups.chunks_exact(4).map(|group| u32_at(group, 0))
    }
}

/// A time that `utimensat` sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeToSet {
    /// The present.
    Now,
    /// That one.
    At(Time),
}

/// Attributes to set; those that are `None` do not change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// The open file through which the request came.
    pub handle: Option<u64>,
    /// Permissions (and type, which does not change), as in `st_mode`.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Time of the last access.
    pub accessed: Option<TimeToSet>,
    /// Time of the last change of the content.
    pub modified: Option<TimeToSet>,
    /// Time of the last change of the attributes.
    pub changed: Option<Time>,
    /// The caller may not keep the set-user-id and set-group-id bits.
    pub kill_suid_sgid: bool,
}

/// The operation. Names have no NUL and are passed unchanged: any bytes but `/`.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "fields are named as in the system calls that they serve")]
pub enum Operation<'a> {
    Lookup {
        name: &'a [u8],
    },
    /// Drops `lookups` look-ups of a node. Has no answer.
    Forget {
        lookups: u64,
    },
    /// Pairs of node and count, as [`forgotten`] reads them. Has no answer.
    BatchForget {
        pairs: &'a [u8],
    },
    GetAttributes {
        handle: Option<u64>,
    },
    SetAttributes(SetAttributes),
    ReadLink,
    SymLink {
        name: &'a [u8],
        target: &'a [u8],
    },
    MakeNode {
        name: &'a [u8],
        mode: u32,
        device: u32,
        umask: u32,
    },
    MakeDirectory {
        name: &'a [u8],
        mode: u32,
        umask: u32,
    },
    Unlink {
        name: &'a [u8],
    },
    RemoveDirectory {
        name: &'a [u8],
    },
    /// `flags`: `RENAME_NOREPLACE`, `RENAME_EXCHANGE`, `RENAME_WHITEOUT`.
    Rename {
        name: &'a [u8],
        new_directory: u64,
        new_name: &'a [u8],
        flags: u32,
    },
    /// Adds another name for `existing` in the directory.
    Link {
        existing: u64,
        name: &'a [u8],
    },
    Open {
        flags: i32,
    },
    Create {
        name: &'a [u8],
        flags: i32,
        mode: u32,
        umask: u32,
    },
    TemporaryFile {
        flags: i32,
        mode: u32,
        umask: u32,
    },
    Read {
        handle: u64,
        offset: u64,
        size: u32,
    },
    Write {
        handle: u64,
        offset: u64,
        data: WriteData<'a>,
        flags: i32,
        kill_suid_sgid: bool,
    },
    StatFs,
    Release {
        handle: u64,
    },
    Fsync {
        handle: u64,
        data_only: bool,
    },
    Flush {
        handle: u64,
    },
    /// `clears_sgid`: setting an ACL clears the set-group-id bit for this caller.
    SetXattr {
        name: &'a [u8],
        value: &'a [u8],
        flags: i32,
        clears_sgid: bool,
    },
    /// With `size` 0, returns the length of the value.
    GetXattr {
        name: &'a [u8],
        size: u32,
    },
    ListXattr {
        size: u32,
    },
    RemoveXattr {
        name: &'a [u8],
    },
    OpenDirectory {
        flags: i32,
    },
    ReadDirectory {
        handle: u64,
        offset: u64,
        size: u32,
        with_attributes: bool,
    },
    ReleaseDirectory {
        handle: u64,
    },
    FsyncDirectory {
        handle: u64,
        data_only: bool,
    },
    Access {
        mask: u32,
    },
    Ioctl {
        handle: u64,
        command: u32,
        argument: u64,
        data: &'a [u8],
        out_bytes: u32,
    },
    Allocate {
        handle: u64,
        offset: u64,
        length: u64,
        mode: i32,
    },
    Seek {
        handle: u64,
        offset: u64,
        whence: i32,
    },
    /// `wide`: the answer has room for 64 bits.
    CopyRange {
        handle: u64,
        offset: u64,
        to_node: u64,
        to_handle: u64,
        to_offset: u64,
        length: u64,
        wide: bool,
    },
    SyncFs,
    Interrupt,
    Destroy,
    /// An operation that this crate does not know.
    Unknown,
}

/// Iterates over node and number of look-ups in a [`Operation::BatchForget`].
pub fn forgotten(pairs: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    pairs.chunks_exact(16).map(|pair| (u64_at(pair, 0), u64_at(pair, 8)))
}

/// Decodes a request. `header` is `struct fuse_in_header`; `first` and `rest` are the arguments, in
/// one piece (`rest` is empty) or in the two pieces of a ring. `data_in_answer`: a write's data is
/// not in `rest`; instead this many bytes of it are available from the answer.
///
/// # Errors
/// [`Malformed`] if a length or a name exceeds the message.
pub fn decode<'a>(
    header: &[u8],
    first: &'a [u8],
    rest: &'a [u8],
    data_in_answer: Option<usize>,
) -> Result<Request<'a>, Malformed> {
    if header.len() < IN_HEADER_BYTES {
        return Err(Malformed);
    }
    let mut args = Args::new(first, rest);
    let [low, high] = [header[36], header[37]];
    let extension_bytes = usize::from(u16::from_ne_bytes([low, high])) * 8;
    let extensions = if data_in_answer.is_none() { args.take_extensions(extension_bytes)? } else { &[] };
    Ok(Request {
        unique: u64_at(header, 8),
        node: u64_at(header, 16),
        uid: u32_at(header, 24),
        gid: u32_at(header, 28),
        pid: u32_at(header, 32),
        operation: operation(u32_at(header, 4), &mut args, data_in_answer)?,
        extensions,
    })
}

fn operation<'a>(code: u32, args: &mut Args<'a>, data_in_answer: Option<usize>) -> Result<Operation<'a>, Malformed> {
    Ok(match code {
        opcode::LOOKUP => Operation::Lookup { name: args.name()? },
        opcode::FORGET => Operation::Forget { lookups: args.fixed(8)?.u64(0) },
        opcode::BATCH_FORGET => {
            let count = args.fixed(8)?.u32(0) as usize;
            Operation::BatchForget { pairs: args.data(count.checked_mul(16).ok_or(Malformed)?)? }
        }
        opcode::GETATTR => {
            const HAS_HANDLE: u32 = 1;
            let fixed = args.fixed(16)?;
            Operation::GetAttributes { handle: (fixed.u32(0) & HAS_HANDLE != 0).then(|| fixed.u64(8)) }
        }
        opcode::SETATTR => Operation::SetAttributes(attributes_to_set(args.fixed(88)?)),
        opcode::READLINK => Operation::ReadLink,
        opcode::SYMLINK => Operation::SymLink { name: args.name()?, target: args.name()? },
        opcode::MKNOD => {
            let fixed = args.fixed(16)?;
            let (mode, device, umask) = (fixed.u32(0), fixed.u32(4), fixed.u32(8));
            Operation::MakeNode { name: args.name()?, mode, device, umask }
        }
        opcode::MKDIR => {
            let fixed = args.fixed(8)?;
            Operation::MakeDirectory { name: args.name()?, mode: fixed.u32(0), umask: fixed.u32(4) }
        }
        opcode::UNLINK => Operation::Unlink { name: args.name()? },
        opcode::RMDIR => Operation::RemoveDirectory { name: args.name()? },
        opcode::RENAME => {
            let new_directory = args.fixed(8)?.u64(0);
            Operation::Rename { name: args.name()?, new_directory, new_name: args.name()?, flags: 0 }
        }
        opcode::RENAME2 => {
            let fixed = args.fixed(16)?;
            let (new_directory, flags) = (fixed.u64(0), fixed.u32(8));
            Operation::Rename { name: args.name()?, new_directory, new_name: args.name()?, flags }
        }
        opcode::LINK => Operation::Link { existing: args.fixed(8)?.u64(0), name: args.name()? },
        opcode::OPEN => Operation::Open { flags: args.fixed(8)?.i32(0) },
        opcode::OPENDIR => Operation::OpenDirectory { flags: args.fixed(8)?.i32(0) },
        opcode::CREATE => {
            let fixed = args.fixed(16)?;
            let (flags, mode, umask) = (fixed.i32(0), fixed.u32(4), fixed.u32(8));
            Operation::Create { name: args.name()?, flags, mode, umask }
        }
        opcode::TMPFILE => {
            let fixed = args.fixed(16)?;
            Operation::TemporaryFile { flags: fixed.i32(0), mode: fixed.u32(4), umask: fixed.u32(8) }
        }
        opcode::READ => {
            let fixed = args.fixed(40)?;
            Operation::Read { handle: fixed.u64(0), offset: fixed.u64(8), size: fixed.u32(16) }
        }
        opcode::READDIR | opcode::READDIRPLUS => {
            let fixed = args.fixed(40)?;
            let (handle, offset, size) = (fixed.u64(0), fixed.u64(8), fixed.u32(16));
            Operation::ReadDirectory { handle, offset, size, with_attributes: code == opcode::READDIRPLUS }
        }
        opcode::WRITE => write(args, data_in_answer)?,
        opcode::STATFS => Operation::StatFs,
        opcode::RELEASE => Operation::Release { handle: args.fixed(24)?.u64(0) },
        opcode::RELEASEDIR => Operation::ReleaseDirectory { handle: args.fixed(24)?.u64(0) },
        opcode::FLUSH => Operation::Flush { handle: args.fixed(24)?.u64(0) },
        opcode::FSYNC | opcode::FSYNCDIR => {
            let fixed = args.fixed(16)?;
            let (handle, data_only) = (fixed.u64(0), fixed.u32(8) & 1 != 0);
            match code {
                opcode::FSYNC => Operation::Fsync { handle, data_only },
                _ => Operation::FsyncDirectory { handle, data_only },
            }
        }
        opcode::SETXATTR => {
            // `struct fuse_setxattr_in` in the layout of `FUSE_SETXATTR_EXT`, which every session
            // requests.
            const CLEARS_SGID: u32 = 1;
            let fixed = args.fixed(16)?;
            let (size, flags, clears_sgid) = (fixed.u32(0), fixed.i32(4), fixed.u32(8) & CLEARS_SGID != 0);
            Operation::SetXattr { name: args.name()?, value: args.data(size as usize)?, flags, clears_sgid }
        }
        opcode::GETXATTR => {
            let size = args.fixed(8)?.u32(0);
            Operation::GetXattr { name: args.name()?, size }
        }
        opcode::LISTXATTR => Operation::ListXattr { size: args.fixed(8)?.u32(0) },
        opcode::REMOVEXATTR => Operation::RemoveXattr { name: args.name()? },
        opcode::ACCESS => Operation::Access { mask: args.fixed(8)?.u32(0) },
        opcode::IOCTL => {
            let fixed = args.fixed(32)?;
            let (handle, command, argument) = (fixed.u64(0), fixed.u32(12), fixed.u64(16));
            let data = args.data(fixed.u32(24) as usize)?;
            Operation::Ioctl { handle, command, argument, data, out_bytes: fixed.u32(28) }
        }
        opcode::FALLOCATE => {
            let fixed = args.fixed(32)?;
            let (handle, offset, length) = (fixed.u64(0), fixed.u64(8), fixed.u64(16));
            Operation::Allocate { handle, offset, length, mode: fixed.i32(24) }
        }
        opcode::LSEEK => {
            let fixed = args.fixed(24)?;
            Operation::Seek { handle: fixed.u64(0), offset: fixed.u64(8), whence: fixed.i32(16) }
        }
        opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => {
            let fixed = args.fixed(56)?;
            Operation::CopyRange {
                handle: fixed.u64(0),
                offset: fixed.u64(8),
                to_node: fixed.u64(16),
                to_handle: fixed.u64(24),
                to_offset: fixed.u64(32),
                length: fixed.u64(40),
                wide: code == opcode::COPY_FILE_RANGE_64,
            }
        }
        opcode::SYNCFS => Operation::SyncFs,
        opcode::INTERRUPT => Operation::Interrupt,
        opcode::DESTROY => Operation::Destroy,
        _ => Operation::Unknown,
    })
}

fn write<'a>(args: &mut Args<'a>, data_in_answer: Option<usize>) -> Result<Operation<'a>, Malformed> {
    const KILL_SUID_SGID: u32 = 4;
    let fixed = args.fixed(40)?;
    let size = fixed.u32(16) as usize;
    let data = match data_in_answer {
        Some(bytes) if bytes == size => WriteData::InAnswer(bytes),
        Some(_) => return Err(Malformed),
        None => WriteData::Here(args.data(size)?),
    };
    Ok(Operation::Write {
        handle: fixed.u64(0),
        offset: fixed.u64(8),
        data,
        flags: fixed.i32(32),
        kill_suid_sgid: fixed.u32(20) & KILL_SUID_SGID != 0,
    })
}

/// Reads `struct fuse_setattr_in`; the bits of `valid` are `FATTR_*`.
fn attributes_to_set(fixed: Fixed<'_>) -> SetAttributes {
    const MODE: u32 = 1;
    const UID: u32 = 1 << 1;
    const GID: u32 = 1 << 2;
    const SIZE: u32 = 1 << 3;
    const ATIME: u32 = 1 << 4;
    const MTIME: u32 = 1 << 5;
    const HANDLE: u32 = 1 << 6;
    const ATIME_NOW: u32 = 1 << 7;
    const MTIME_NOW: u32 = 1 << 8;
    const CTIME: u32 = 1 << 10;
    const KILL_SUID_SGID: u32 = 1 << 11;
    let valid = fixed.u32(0);
    let is = |bit: u32| valid & bit != 0;
    // A time is less than a second after its seconds field, whatever the message contains.
    let time = |seconds: usize, nanoseconds: usize| Time {
        seconds: fixed.u64(seconds).cast_signed(),
        nanoseconds: fixed.u32(nanoseconds).min(999_999_999),
    };
    let time_to_set = |bit, now, seconds, nanoseconds| match () {
        () if is(now) => Some(TimeToSet::Now),
        () if is(bit) => Some(TimeToSet::At(time(seconds, nanoseconds))),
        () => None,
    };
    SetAttributes {
        handle: is(HANDLE).then(|| fixed.u64(8)),
        size: is(SIZE).then(|| fixed.u64(16)),
        accessed: time_to_set(ATIME, ATIME_NOW, 32, 56),
        modified: time_to_set(MTIME, MTIME_NOW, 40, 60),
        changed: is(CTIME).then(|| time(48, 64)),
        mode: is(MODE).then(|| fixed.u32(68)),
        uid: is(UID).then(|| fixed.u32(76)),
        gid: is(GID).then(|| fixed.u32(80)),
        kill_suid_sgid: is(KILL_SUID_SGID),
    }
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
