//! Rebuilds the description of a pool's directory before the pool is opened, for `check --repair`,
//! if its content is known for certain.

use std::fs::File;
use std::os::unix::fs::FileExt;

use format::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock};
use surface::{ErrorKind, Result};

use super::{Config, PoolDir, State};

/// Rewrites `pool.json` if it is lost or damaged and the data lies in the directory, its default
/// place. Skips a pool that a salvage was still filling.
///
/// # Errors
/// When it cannot be written. A description that stays lost is reported by the caller when it opens
/// the pool.
pub fn mend_description(dir: &PoolDir) -> Result<()> {
    let lost = match dir.config() {
        Err(error) if error.kind() == ErrorKind::Corrupt => error,
        _ => return Ok(()),
    };
    let Ok(_held) = dir.lock()? else { return Ok(()) };
    let superblock = superblock_of(dir);
    let is_made = dir.map_path().is_dir() && !dir.salvage_path().exists();
    let Some(superblock) = superblock.filter(|_| is_made) else { return Ok(()) };
    let config = Config { state: State::Ready, data: DATA.into(), created_unix_s: superblock.created_unix_s };
    config.write(&dir.config_path())?;
    log::warn!("{lost}: it was rebuilt, for the data in {}", dir.root().join(DATA).display());
    Ok(())
}

/// Name of the data file if it lies in the pool's directory.
const DATA: &str = "data";

fn superblock_of(dir: &PoolDir) -> Option<Superblock> {
    let file = File::open(dir.root().join(DATA)).ok()?;
    SUPERBLOCK_OFFSETS.iter().find_map(|offset| {
        let mut bytes = [0; SUPERBLOCK_BYTES];
        file.read_exact_at(&mut bytes, *offset).ok()?;
        Superblock::decode(&bytes).ok()
    })
}
