//! The superblock: identifies a data file and its parameters. Two copies, so that a torn rewrite
//! leaves one intact.

use crate::cursor::{Cursor, put_uint, seal, unseal};
use crate::record::LOCATION_BYTES;

/// Bytes of a copy.
pub const SUPERBLOCK_BYTES: usize = 4096;
/// Locations of the copies, in bytes. Both are in extent 0, which otherwise holds the note of the
/// newest opening and the inventory.
pub const SUPERBLOCK_OFFSETS: [u64; 2] = [0, 16384];
/// Distance of the third copy from the end of the data file, whose length is rounded down to whole
/// blocks. Partitioning tools (34 sectors), and most other programs that write to the end of a
/// device, leave this area alone.
pub const SUPERBLOCK_TAIL_BYTES: u64 = 64 << 10;
/// The first eight bytes of a superblock.
pub const SUPERBLOCK_MAGIC: &[u8; 8] = b"ShalePl\x01";
/// Version of the format that this code writes.
pub const FORMAT_VERSION: u32 = 1;
/// Incompatible feature: map records are compact. Every pool has it.
pub const INCOMPAT_COMPACT_RECORDS: u64 = 1 << 0;
/// Incompatible feature: shares may exist. Set before the first one is created, and never cleared.
pub const INCOMPAT_SHARES: u64 = 1 << 1;
/// Incompatible feature: bookmarks may exist. Set before the first one is created, and never
/// cleared.
pub const INCOMPAT_BOOKMARKS: u64 = 1 << 2;
/// Incompatible feature: folders, and objects in them, may exist. Set before the first one is
/// created, and never cleared.
pub const INCOMPAT_FOLDERS: u64 = 1 << 3;

/// Incompatible feature: nested shares may exist, whose parent is a share. Bit 4 is taken.
pub const INCOMPAT_NESTED_SHARES: u64 = 1 << 5;
/// Incompatible feature: images may exist, objects in which a missing record means unknown content.
/// Set before the first one is created, and never cleared.
pub const INCOMPAT_IMAGES: u64 = 1 << 6;
/// Incompatible feature: contents of small files of shares may be in the records of their inodes.
/// Set with [`INCOMPAT_SHARES`].
pub const INCOMPAT_SMALL_FILES: u64 = 1 << 7;
/// Compatible feature: extent 0 has an inventory of all extents. Set when there is one, and never
/// cleared.
pub const COMPAT_INVENTORY: u64 = 1 << 0;
/// Incompatible features that this code knows. A pool with any other bit is not opened.
pub const INCOMPAT_KNOWN: u64 = INCOMPAT_COMPACT_RECORDS
    | INCOMPAT_SHARES
    | INCOMPAT_BOOKMARKS
    | INCOMPAT_FOLDERS
    | INCOMPAT_NESTED_SHARES
    | INCOMPAT_IMAGES
    | INCOMPAT_SMALL_FILES;

/// Why a superblock cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SuperblockError {
    /// The magic number is missing.
    Missing,
    /// It is damaged.
    Damaged(String),
    /// Its version or one of its features is not supported.
    Unsupported(String),
}

impl std::fmt::Display for SuperblockError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Missing => f.write_str("no superblock: this is not the data of a Shale pool"),
            Self::Damaged(why) => write!(f, "superblock is damaged: {why}"),
            Self::Unsupported(why) => write!(f, "this version cannot open the pool: {why}; use a newer shale"),
        }
    }
}

impl std::error::Error for SuperblockError {}

/// The superblock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// Version of the format.
    pub version: u32,
    /// Features without which the pool must not be opened.
    pub features_incompat: u64,
    /// Features without which it must not be written.
    pub features_ro_compat: u64,
    /// Features that may be ignored.
    pub features_compat: u64,
    /// Random identifier.
    pub pool: [u8; 16],
    /// Bytes of an extent.
    pub extent_bytes: u32,
    /// Bytes that the pool uses of the data file.
    pub capacity_bytes: u64,
    /// Seconds since 1970.
    pub created_unix_s: u64,
    /// Raised by each rewrite; the higher copy counts.
    pub generation: u64,
}

/// Location of the third copy in a data file of that size; exists only if the file is long enough
/// and the location is past the pool's data.
pub const fn superblock_end_offset(file_bytes: u64) -> Option<u64> {
    let block = SUPERBLOCK_BYTES as u64;
    (file_bytes / block * block).checked_sub(SUPERBLOCK_TAIL_BYTES)
}

/// Largest pool with extents of that size, as limited by extent numbers and by locations in
/// records.
pub const fn capacity_bytes_max(extent_bytes: u32) -> u64 {
    // A partial extent may follow the last whole one; it is not used.
    let by_extents = ((u32::MAX as u64) + 1) * extent_bytes as u64 - 1;
    let by_places = 1 << (8 * LOCATION_BYTES);
    if by_extents < by_places { by_extents } else { by_places }
}

impl Superblock {
    /// Encodes: magic 8, version 4, extent bytes 4, features 3 x 8, pool 16, capacity 8, created 8,
    /// generation 8, zeroes, and in the last four bytes the crc32c of everything before.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(SUPERBLOCK_BYTES);
        out.extend_from_slice(SUPERBLOCK_MAGIC);
        put_uint(&mut out, self.version.into(), 4);
        put_uint(&mut out, self.extent_bytes.into(), 4);
        put_uint(&mut out, self.features_incompat, 8);
        put_uint(&mut out, self.features_ro_compat, 8);
        put_uint(&mut out, self.features_compat, 8);
        out.extend_from_slice(&self.pool);
        put_uint(&mut out, self.capacity_bytes, 8);
        put_uint(&mut out, self.created_unix_s, 8);
        put_uint(&mut out, self.generation, 8);
        out.resize(SUPERBLOCK_BYTES - 4, 0);
        seal(&mut out);
        out
    }

    /// Decodes a copy and checks that this code supports it. Magic number, version and checksum are
    /// in the same place in every version, which distinguishes a newer format from a damaged one.
    ///
    /// # Errors
    /// See [`SuperblockError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, SuperblockError> {
        if !bytes.starts_with(SUPERBLOCK_MAGIC) {
            return Err(SuperblockError::Missing);
        }
        let damaged = |e: crate::FormatError| SuperblockError::Damaged(e.detail);
        let body = unseal("superblock", bytes).map_err(damaged)?;
        let mut cursor = Cursor::new("superblock", &body[SUPERBLOCK_MAGIC.len()..]);
        let version = cursor.u32().map_err(damaged)?;
        if version != FORMAT_VERSION {
            return Err(SuperblockError::Unsupported(format!(
                "format version {version}, this version supports {FORMAT_VERSION}"
            )));
        }
        let mut read = || -> Result<Self, crate::FormatError> {
            let extent_bytes = cursor.u32()?;
            let mut superblock = Self {
                version,
                extent_bytes,
                features_incompat: cursor.u64()?,
                features_ro_compat: cursor.u64()?,
                features_compat: cursor.u64()?,
                pool: [0; 16],
                capacity_bytes: 0,
                created_unix_s: 0,
                generation: 0,
            };
            superblock.pool.copy_from_slice(cursor.bytes(16)?);
            superblock.capacity_bytes = cursor.u64()?;
            superblock.created_unix_s = cursor.u64()?;
            superblock.generation = cursor.u64()?;
            Ok(superblock)
        };
        let superblock = read().map_err(damaged)?;
        let unknown = (superblock.features_incompat & !INCOMPAT_KNOWN) | superblock.features_ro_compat;
        if unknown != 0 {
            return Err(SuperblockError::Unsupported(format!("unknown feature flags {unknown:#x}")));
        }
        let extent = superblock.extent_bytes;
        if !extent.is_power_of_two() || !(units::EXTENT_BYTES_MIN..=units::EXTENT_BYTES_MAX).contains(&extent) {
            return Err(SuperblockError::Damaged(format!("extents of {extent} bytes")));
        }
        // Extent 0 is not part of the log.
        let extents_min = 2 * u64::from(extent);
        if !(extents_min..=capacity_bytes_max(extent)).contains(&superblock.capacity_bytes) {
            return Err(SuperblockError::Damaged(format!("capacity of {} bytes", superblock.capacity_bytes)));
        }
        Ok(superblock)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Superblock {
        Superblock {
            version: FORMAT_VERSION,
            features_incompat: 0,
            features_ro_compat: 0,
            features_compat: 1 << 60,
            pool: [9; 16],
            extent_bytes: 1 << 20,
            capacity_bytes: 20 << 30,
            created_unix_s: 1,
            generation: 1,
        }
    }

    #[test]
    fn round_trips_and_notices_damage() {
        let mut bytes = sample().encode();
        assert_eq!(Superblock::decode(&bytes), Ok(sample()));
        bytes[100] ^= 4;
        assert!(matches!(Superblock::decode(&bytes), Err(SuperblockError::Damaged(_))));
        bytes[0] = 0;
        assert_eq!(Superblock::decode(&bytes), Err(SuperblockError::Missing));
        assert_eq!(Superblock::decode(&[]), Err(SuperblockError::Missing));
    }

    #[test]
    fn a_capacity_without_an_extent_for_the_log_is_damage() {
        for (capacity_bytes, is_right) in [(0, false), (1 << 20, false), ((2 << 20) - 1, false), (2 << 20, true)] {
            let superblock = Superblock { capacity_bytes, ..sample() };
            assert_eq!(Superblock::decode(&superblock.encode()).is_ok(), is_right, "{capacity_bytes}");
        }
    }

    #[test]
    fn unknown_versions_and_features_are_refused_by_name() {
        let newer = Superblock { version: 9, ..sample() };
        assert!(matches!(Superblock::decode(&newer.encode()), Err(SuperblockError::Unsupported(w)) if w.contains('9')));
        let known = Superblock { features_incompat: INCOMPAT_COMPACT_RECORDS, ..sample() };
        assert_eq!(Superblock::decode(&known.encode()), Ok(known.clone()));
        let incompat = Superblock { features_incompat: INCOMPAT_COMPACT_RECORDS | (1 << 40), ..sample() };
        assert!(
            matches!(Superblock::decode(&incompat.encode()), Err(SuperblockError::Unsupported(w)) if w.contains("0x10000000000"))
        );
    }
}
