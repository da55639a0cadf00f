//! `FS_IOC_GETFLAGS` and `FS_IOC_SETFLAGS`, used by `lsattr` and `chattr`. Called by any thread
//! that serves requests.

use fuse::Errno;
use fuse::wire::reply;
use share::Tree;

use crate::served::errno;

/// `_IOR('f', 1, long)` and `_IOW('f', 2, long)` of `linux/fs.h`. By convention their argument has
/// four bytes, and the kernel sends and expects four.
const GET_FLAGS: u32 = 0x8008_6601;
const SET_FLAGS: u32 = 0x4008_6602;

/// `FS_IOC_FSGETXATTR`, `_IOR('X', 31, struct fsxattr)`: the kernel also queries these flags before
/// it sets others. None of them is supported here.
const GET_MORE_FLAGS: u32 = 0x801c_581f;
const MORE_FLAGS_BYTES: usize = 28;

/// Most bytes of an answer: the size that the kernel expects for the flags.
const OUT_BYTES_MAX: usize = 8;

/// Returns whether an ioctl changes something.
pub(crate) const fn sets(command: u32) -> bool {
    command == SET_FLAGS
}

/// Answers an ioctl.
pub(crate) fn ioctl(tree: &Tree, node: u64, command: u32, data: &[u8], out_bytes: u32) -> Result<Vec<u8>, Errno> {
    match command {
        GET_FLAGS => {
            let mut out = tree.flags(node).map_err(errno)?.to_le_bytes().to_vec();
            out.resize((out_bytes as usize).min(OUT_BYTES_MAX), 0);
            Ok(reply::ioctl(0, &out))
        }
        GET_MORE_FLAGS => {
            // Fails if the node does not exist.
            tree.flags(node).map_err(errno)?;
            Ok(reply::ioctl(0, &[0; MORE_FLAGS_BYTES][..(out_bytes as usize).min(MORE_FLAGS_BYTES)]))
        }
        SET_FLAGS => {
            let flags = data.first_chunk().map(|bytes| u32::from_le_bytes(*bytes)).ok_or(Errno::EINVAL)?;
            tree.set_flags(node, flags).map_err(errno)?;
            Ok(reply::ioctl(0, &[]))
        }
        _ => Err(Errno::ENOTTY),
    }
}
