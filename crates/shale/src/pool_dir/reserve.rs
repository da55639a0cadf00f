//! The room that a pool's directory holds back, so that the pool can be opened when its file system is full to the last byte: opening
//! writes a little to the map, and destroying something, which makes room, a little more.
//!
//! It is a file of zeroes with real blocks. Whoever opens the pool while there is less room than it has removes it; it is made anew when a pool
//! is opened or closed where there is twice as much. Nothing depends on it: where it cannot be made, there is none.

use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::PoolDir;
use crate::system;

/// A checkpoint of a few megabytes, some changes of volumes, and what the file system takes for them.
const BYTES: u64 = 4 << 20;

impl PoolDir {
    /// `reserve`.
    pub fn reserve_path(&self) -> PathBuf {
        self.root.join("reserve")
    }

    /// Before the pool is opened: gives the room back if there is too little without it.
    pub(super) fn use_reserve(&self) {
        if system::free_bytes(&self.root).is_ok_and(|free| free < BYTES) {
            drop(std::fs::remove_file(self.reserve_path()));
        }
    }

    /// Holds the room back from now on, if it is not yet and there is enough.
    pub(super) fn keep_reserve(&self) {
        let path = self.reserve_path();
        // A copy of the pool may have it without its blocks.
        if path.metadata().is_ok_and(|found| found.blocks() * 512 >= BYTES) {
            return;
        }
        if system::free_bytes(&self.root).is_ok_and(|free| free >= 2 * BYTES) && allocate(&path).is_err() {
            drop(std::fs::remove_file(path));
        }
    }
}

fn allocate(path: &Path) -> std::io::Result<()> {
    let file = std::fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    Ok(rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, BYTES)?)
}

#[cfg(test)]
mod tests {
    use env::testing::TempDir;

    use super::*;

    #[test]
    fn it_has_blocks_and_is_made_whole_again() {
        let dir = TempDir::new("reserve");
        let pool = PoolDir::new(dir.path());
        pool.keep_reserve();
        let blocks = || std::fs::metadata(pool.reserve_path()).map_or(0, |found| found.blocks() * 512);
        assert!(blocks() >= BYTES);
        // There is room.
        pool.use_reserve();
        assert!(blocks() >= BYTES);
        std::fs::File::create(pool.reserve_path()).unwrap().set_len(BYTES).unwrap();
        assert!(blocks() < BYTES);
        pool.keep_reserve();
        assert!(blocks() >= BYTES);
    }
}
