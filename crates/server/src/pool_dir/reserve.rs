//! Space held back in a pool's directory, so that the pool can be opened when its file system is
//! completely full: opening writes a little to the map, and destroying an object, which frees
//! space, a little more.
//!
//! It is a file of zeroes with allocated blocks. Opening the pool with less free space than its
//! size removes it; opening or closing the pool with twice as much recreates it. Nothing depends on
//! it: where it cannot be made, the pool does without.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::PoolDir;

/// Room for a checkpoint of a few megabytes, some changes of volumes, and the file system's own
/// metadata.
const BYTES: u64 = 4 << 20;

impl PoolDir {
    /// `reserve`.
    pub fn reserve_path(&self) -> PathBuf {
        self.root.join("reserve")
    }

    /// Frees the reserve before the pool is opened, if there is too little space without it.
    pub(super) fn use_reserve(&self) {
        let path = self.reserve_path();
        if host::free_bytes(&self.root).is_ok_and(|free| free < BYTES) && is_ours(&path) {
            drop(std::fs::remove_file(path));
        }
    }

    /// Makes the reserve if it is missing and there is enough space.
    pub(super) fn keep_reserve(&self) {
        let path = self.reserve_path();
        let there_is = host::free_bytes(&self.root).is_ok_and(|free| free >= 2 * BYTES);
        match path.symlink_metadata() {
            Ok(found) if found.len() == BYTES && found.blocks() * 512 >= BYTES => {}
            // In a copy of the pool it may have no blocks.
            Ok(_) if there_is && is_ours(&path) => drop(allocate(File::options().write(true), &path)),
            Ok(_) => {}
            Err(_) if there_is => {
                if allocate(File::options().write(true).create_new(true).mode(0o600), &path).is_err() && is_ours(&path)
                {
                    drop(std::fs::remove_file(path));
                }
            }
            Err(_) => {}
        }
    }
}

/// Returns whether a file is the reserve, or a remnant of making it, and not other data under its
/// name.
fn is_ours(path: &Path) -> bool {
    let is_zero = || std::fs::read(path).is_ok_and(|bytes| policy::is_zero(&bytes));
    path.symlink_metadata()
        .is_ok_and(|found| found.is_file() && (found.len() == 0 || found.len() == BYTES && is_zero()))
}

fn allocate(options: &OpenOptions, path: &Path) -> std::io::Result<()> {
    let file = options.open(path)?;
    Ok(rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, BYTES)?)
}

#[cfg(test)]
mod tests {
    use testkit::TempDir;

    use super::*;

    #[test]
    fn it_has_blocks_and_is_made_whole_again() {
        let dir = TempDir::new("reserve");
        let pool = PoolDir::new(dir.path());
        pool.keep_reserve();
        let blocks = || std::fs::metadata(pool.reserve_path()).map_or(0, |found| found.blocks() * 512);
        assert!(blocks() >= BYTES);
        // There is enough space.
        pool.use_reserve();
        assert!(blocks() >= BYTES);
        std::fs::File::create(pool.reserve_path()).unwrap().set_len(BYTES).unwrap();
        assert!(blocks() < BYTES);
        pool.keep_reserve();
        assert!(blocks() >= BYTES);
    }

    #[test]
    fn what_somebody_else_has_under_its_name_stays() {
        let dir = TempDir::new("reserve-other");
        let pool = PoolDir::new(dir.path());
        for other in [&b"data"[..], &vec![1; BYTES as usize], &[0; 5]] {
            std::fs::write(pool.reserve_path(), other).unwrap();
            pool.keep_reserve();
            assert!(std::fs::read(pool.reserve_path()).unwrap() == other && !is_ours(&pool.reserve_path()));
        }
        std::fs::write(pool.reserve_path(), b"").unwrap();
        pool.keep_reserve();
        assert!(is_ours(&pool.reserve_path()) && pool.reserve_path().metadata().unwrap().len() == BYTES);
    }
}
