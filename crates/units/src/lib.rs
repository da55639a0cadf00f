//! Newtypes for the numbers that storage code mixes up, limits shared by all crates, human-readable
//! sizes, and suggestions for mistyped words. Stateless, no I/O.

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
/// Bytes of the address space of a share. No volume is that large, so the size of an object
/// identifies its kind.
pub const SHARE_BYTES: u64 = 1 << 63;
/// First block of a share that can hold data: 4 PiB, past the last block of any volume. A block
/// number in the log therefore shows whether its entry belongs to a share.
pub const SHARE_FIRST_BLOCK: u64 = 1 << 40;
/// Copies of a block have addresses of their own: its index plus the number of the copy, shifted by
/// this. No share has that many blocks.
pub const COPY_SHIFT: u32 = 52;
/// Most copies of a block in addition to the block itself: three for users' data, and one more for
/// the names of a share.
pub const COPIES_MAX: u8 = 3;
/// Bytes of an extent by default.
pub const EXTENT_BYTES_DEFAULT: u32 = 1 << 20;
/// Smallest extent: with less than 32 KiB, a raw unit no longer fits after the extent's header.
pub const EXTENT_BYTES_MIN: u32 = 32 << 10;
/// Largest extent: above 16 MiB, a batch's 32-bit lengths and the cleaner's reads become unwieldy.
pub const EXTENT_BYTES_MAX: u32 = 16 << 20;
