//! Newtypes for the numbers that storage code mixes up, the limits that all crates share,
//! human-readable sizes, and what a mistyped word was meant to be. Owns no state and does no I/O.

mod index;
mod nearest;
mod size;
mod text;

pub use index::{BlockIndex, BlockMask, Epoch, ExtentIndex, GroupIndex, ObjectId, Seq};
pub use nearest::{did_you_mean, nearest};
pub use size::{ParseSizeError, format_size, parse_size};
pub use text::{is_hidden, shown};

/// Bytes of a block, the unit of mapping.
pub const BLOCK_BYTES: usize = 4096;
/// Blocks of a group, the key of a map record. A unit never crosses a group.
pub const GROUP_BLOCKS: usize = 32;
/// Bytes of a group.
pub const GROUP_BYTES: usize = BLOCK_BYTES * GROUP_BLOCKS;
/// Largest object: 2^38 blocks = 1 PiB. The log stores a block's index in five bytes (2^40);
/// the margin keeps every sum of an index and a count within it.
pub const OBJECT_BLOCKS_MAX: u64 = 1 << 38;
/// Largest object in bytes.
pub const OBJECT_BYTES_MAX: u64 = OBJECT_BLOCKS_MAX * BLOCK_BYTES as u64;
/// Bytes of the address space of a share. No volume is as large: so the size says what an object
/// is.
pub const SHARE_BYTES: u64 = 1 << 63;
/// First block of a share that holds anything: 4 PiB, behind the last block of any volume. So the
/// log tells by a block whether an entry is of a share.
pub const SHARE_FIRST_BLOCK: u64 = 1 << 40;
/// Smallest and largest extent: below 32 KiB a raw unit no longer fits behind its header, above 16 MiB
/// Bytes of an extent unless told otherwise.
pub const EXTENT_BYTES_DEFAULT: u32 = 1 << 20;
/// a batch's 32-bit lengths and the cleaner's reads become unwieldy.
pub const EXTENT_BYTES_MIN: u32 = 32 << 10;
/// See [`EXTENT_BYTES_MIN`].
pub const EXTENT_BYTES_MAX: u32 = 16 << 20;
