//! Memory that survives the process but not the machine. Owns the interface of such memory, and its
//! location; does not interpret its bytes.
//!
//! - [`files`]: files on a memory file system, their ownership and access.
//! - [`mapping`]: access to the bytes of such a file.
//! - [`beside`]: files that are valid only together with the memory.
//! - [`boot`]: identifies the current boot of the machine.

mod beside;
mod boot;
mod files;
mod mapping;

use std::io::Result;
use std::sync::Arc;

pub use beside::Beside;
pub use files::{FileStandby, STANDBY_DIR};

/// A place for standby memory of pools.
pub trait Standby: Send + Sync {
    /// Where it is, for people.
    fn place(&self, pool: &[u8; 16]) -> String;

    /// Which copy of the pool this is: device and inode of the data, and of the directory.
    fn copy(&self) -> [u8; 32];

    /// Where the pool is, for people.
    fn pool_path(&self) -> Vec<u8>;

    /// Locations of memory that belongs to other copies of the pool, and must not be used.
    fn others(&self, pool: &[u8; 16]) -> Vec<String>;

    /// Renames the existing memory of this pool to keep it; returns the new name.
    ///
    /// # Errors
    /// When it cannot be renamed.
    fn set_aside(&self, pool: &[u8; 16]) -> Result<String>;

    /// Identifies this boot of the machine: memory left by another boot is void.
    ///
    /// # Errors
    /// When the system does not report it.
    fn boot(&self) -> Result<[u8; 16]>;

    /// Returns the memory that another process left for this pool, if any, and locks it.
    ///
    /// # Errors
    /// When it exists but cannot be used: it belongs to another user, is in use, or is not a plain
    /// file.
    fn left(&self, pool: &[u8; 16]) -> Result<Option<Arc<dyn StandbyMemory>>>;

    /// Creates new memory of this size. `fill` writes its initial content over zeroes. The memory
    /// becomes visible only afterwards: an opening that dies in between leaves none at all.
    ///
    /// # Errors
    /// When there is no space, or something exists already.
    fn make(&self, pool: &[u8; 16], bytes: usize, fill: &dyn Fn(&dyn StandbyMemory)) -> Result<Arc<dyn StandbyMemory>>;

    /// Returns the reason why the next process would not find this memory complete. `None` if it
    /// would.
    fn fault(&self, pool: &[u8; 16], memory: &dyn StandbyMemory) -> Option<String>;

    /// Removes the memory of this pool.
    ///
    /// # Errors
    /// When it cannot be removed.
    fn remove(&self, pool: &[u8; 16]) -> Result<()>;

    /// Whether files exist that a process made next to the memory of this pool.
    fn has_beside(&self, _pool: &[u8; 16]) -> bool {
        false
    }

    /// Handles files next to memory that was left by an earlier process and is not used: removes
    /// them (`is_void`: they are from another boot), or keeps them under other names, which are
    /// returned. A no-op where only memory exists.
    fn pass_over_beside(&self, _pool: &[u8; 16], _is_void: bool) -> Vec<String> {
        Vec::new()
    }
}

/// Standby memory. Ranges outside of it are a bug of the caller: nothing is read or written then.
///
/// Bytes that two threads write at the same time, or one writes and one reads, are unspecified:
/// users keep their ranges apart.
pub trait StandbyMemory: Send + Sync {
    /// Bytes.
    fn len(&self) -> usize;

    /// Device and inode, or other numbers that no other memory has at the same time.
    fn identity(&self) -> (u64, u64);

    /// Whether all of it can still be read. If not, access may kill the process.
    fn is_whole(&self) -> bool;

    /// Whether its length is zero.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes into it.
    fn write(&self, at: usize, bytes: &[u8]);

    /// Copies bytes out of it; `false` if the range does not exist.
    fn read(&self, at: usize, bytes: &mut [u8]) -> bool;

    /// Stores a word at a multiple of eight bytes, ordered after everything written before.
    fn store(&self, at: usize, word: u64);

    /// Loads a word from a multiple of eight bytes; 0 outside.
    fn load(&self, at: usize) -> u64;
}
