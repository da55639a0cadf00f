//! Memory that outlives the process and not the machine. Owns what such memory offers, and a place
//! for it; knows nothing of what its bytes mean.
//!
//! - [`files`]: files on a file system in memory, whose they are and who may have them.
//! - [`mapping`]: how the bytes of such a file are reached.
//! - [`beside`]: files that count only together with the memory.
//! - [`boot`]: which boot of the machine this is.

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

    /// Where there is memory of other copies of the pool, or of older programs, which is not ours.
    fn others(&self, pool: &[u8; 16]) -> Vec<String>;

    /// Keeps the memory that is there for this pool under another name, which is returned.
    ///
    /// # Errors
    /// When it stays where it is.
    fn set_aside(&self, pool: &[u8; 16]) -> Result<String>;

    /// A number of this boot of the machine: what another boot left is not from the memory of this
    /// one.
    ///
    /// # Errors
    /// When the system does not tell.
    fn boot(&self) -> Result<[u8; 16]>;

    /// What another process left for this pool, if anything; it is held from now on.
    ///
    /// # Errors
    /// When there is something, and it cannot be used: of another user, in use, of a wrong kind.
    fn left(&self, pool: &[u8; 16]) -> Result<Option<Arc<dyn StandbyMemory>>>;

    /// Makes new memory of so many bytes. `fill` writes its content over zeroes. The memory gets
    /// its place only then: an opening that dies in between leaves no memory at all.
    ///
    /// # Errors
    /// When there is no room, or something is there already.
    fn make(&self, pool: &[u8; 16], bytes: usize, fill: &dyn Fn(&dyn StandbyMemory)) -> Result<Arc<dyn StandbyMemory>>;

    /// Returns the reason why the next process would not find this memory, or not all of it. `None`
    /// if it would.
    fn fault(&self, pool: &[u8; 16], memory: &dyn StandbyMemory) -> Option<String>;

    /// Removes the memory that is there for this pool.
    ///
    /// # Errors
    /// When it stays.
    fn remove(&self, pool: &[u8; 16]) -> Result<()>;

    /// Whether there are files that a process made beside the memory of this pool.
    fn has_beside(&self, _pool: &[u8; 16]) -> bool {
        false
    }

    /// The memory that an earlier process left does not count: nor do files that it made beside it.
    /// Removes them (`is_void`: they are of another boot), or keeps them under other names, which
    /// are returned. A place that has memory alone does nothing.
    fn pass_over_beside(&self, _pool: &[u8; 16], _is_void: bool) -> Vec<String> {
        Vec::new()
    }
}

/// Standby memory. Ranges that lie outside of it are a bug of the caller: nothing is read or
/// written then.
///
/// Bytes that two threads write at the same time, or one writes and one reads, are unspecified: who
/// uses it keeps their ranges apart.
pub trait StandbyMemory: Send + Sync {
    /// Bytes.
    fn len(&self) -> usize;

    /// Device and inode, or other numbers that no other memory has at the same time.
    fn identity(&self) -> (u64, u64);

    /// Whether all of it can still be read. Where it cannot, its use may end the process.
    fn is_whole(&self) -> bool;

    /// Whether it has none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes into it.
    fn write(&self, at: usize, bytes: &[u8]);

    /// Copies bytes out of it; `false`: they are not there.
    fn read(&self, at: usize, bytes: &mut [u8]) -> bool;

    /// Stores a word at a multiple of eight bytes, behind all that was written before.
    fn store(&self, at: usize, word: u64);

    /// Loads a word from a multiple of eight bytes; 0 outside.
    fn load(&self, at: usize) -> u64;
}
