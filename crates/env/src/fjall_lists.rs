//! The table lists of the map store's library: each keyspace is a directory in which the file
//! `current` names the list in force among the files `v0`, `v1`, ...
//!
//! The library treats a keyspace without `current` as unfinished, and removes its tables. A store
//! is only complete when both of its keyspaces are: a file that is missing later was lost.

use std::io::{ErrorKind, Result};
use std::path::{Path, PathBuf};

use crate::fjall_store::hash_file;

const CURRENT: &str = "current";
/// Directory of the library's own keyspace, which names the others.
const NAMES: &str = "0";
/// Directory of the map's keyspace, assumed where no other exists.
const MAP: &str = "1";

/// Directories of the keyspaces, in order.
fn keyspaces(lsm: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(lsm.join("keyspaces"))? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

/// Returns the files `current` missing from the store in `lsm`.
pub(crate) fn lists_gone(lsm: &Path) -> Result<Vec<PathBuf>> {
    let mut all = match keyspaces(lsm) {
        // The library has an error for that.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        all => all?,
    };
    let names = lsm.join("keyspaces").join(NAMES);
    if all.iter().all(|directory| *directory == names) {
        all.push(names.with_file_name(MAP));
    }
    if !all.contains(&names) {
        all.push(names);
    }
    let mut gone = Vec::new();
    for directory in all {
        let current = directory.join(CURRENT);
        if !current.try_exists()? {
            gone.push(current);
        }
    }
    Ok(gone)
}

/// Returns the only list in a keyspace's directory, and its number; `None` if there are several,
/// since the one in force is unknown then.
fn only_list(directory: &Path) -> Result<Option<(u64, PathBuf)>> {
    let mut only = None;
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix('v')).and_then(|number| number.parse().ok());
        match number {
            Some(number) if only.is_none() => only = Some((number, entry.path())),
            Some(_) => return Ok(None),
            None => {}
        }
    }
    Ok(only)
}

/// Recreates missing files `current` where their content can be determined, and returns them. The
/// caller syncs their directories.
pub(crate) fn restore_lists(lsm: &Path) -> Result<Vec<PathBuf>> {
    let mut made = Vec::new();
    for current in lists_gone(lsm)? {
        let Some(directory) = current.parent().filter(|directory| directory.is_dir()) else { continue };
        let Some((number, list)) = only_list(directory)? else { continue };
        // Number 8, XXH3 of the list 16, kind of checksum 1; little-endian.
        let content = [&number.to_le_bytes()[..], &hash_file(&list)?.to_le_bytes(), &[0]].concat();
        let new = directory.join("current.new");
        std::fs::write(&new, content)?;
        std::fs::File::open(&new).and_then(|file| file.sync_all())?;
        std::fs::rename(&new, &current)?;
        made.push(current);
    }
    Ok(made)
}
