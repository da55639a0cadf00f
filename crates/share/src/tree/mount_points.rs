//! Names at the root that are not available to files: directories on which other trees are mounted,
//! and the name of the snapshots. Owns the set of these names.
//!
//! While the other tree is not mounted, and for processes that opened the directory before, the
//! directory itself is visible. A name created there would be hidden by the mount, and later be in
//! its way: so it is refused, with `EBUSY`. An existing name can be removed.
//!
//! A file with the name of the snapshots would be hidden by them: it is refused with `EEXIST`.

use std::collections::HashSet;

use super::Tree;
use crate::backend::ROOT;
use crate::failure::{Failure, Result};
use crate::names::KEPT_NAME;
use crate::store::State;

/// The names, and the directories that they mean.
#[derive(Debug, Default)]
pub(crate) struct MountPoints {
    names: HashSet<Vec<u8>>,
    directories: HashSet<u64>,
}

impl MountPoints {
    fn has(&self, directory: u64, name: &[u8]) -> bool {
        directory == ROOT && self.names.contains(name)
    }

    /// A directory has got a name.
    pub(super) fn named(&mut self, directory: u64, name: &[u8], node: u64) {
        if self.has(directory, name) {
            self.directories.insert(node);
        }
    }

    /// A node has lost a name.
    pub(super) fn unnamed(&mut self, directory: u64, name: &[u8], node: u64) {
        if self.has(directory, name) {
            self.directories.remove(&node);
        }
    }
}

/// Fails for the name of the snapshots, which nothing else may have.
pub(super) fn refuse_kept_name(directory: u64, name: &[u8]) -> Result<()> {
    let is_kept = directory == ROOT && name == KEPT_NAME && !crate::canary!("name-of-snapshots-given");
    if is_kept { Err(Failure::new(libc::EEXIST)) } else { Ok(()) }
}

/// Fails if a name must not be assigned: within such a directory, or to a file where only a
/// directory is allowed. `is_empty_directory`: the name is for an empty directory.
pub(super) fn admit_name(state: &State, directory: u64, name: &[u8], is_empty_directory: bool) -> Result<()> {
    refuse_kept_name(directory, name)?;
    let points = &state.mount_points;
    let is_refused = points.directories.contains(&directory) || points.has(directory, name) && !is_empty_directory;
    if is_refused && !crate::canary!("names-below-a-mount") { Err(Failure::new(libc::EBUSY)) } else { Ok(()) }
}

impl Tree {
    /// Renames a file that has the name of the snapshots, which would hide it. Returns the new
    /// name, if there was such a file.
    ///
    /// # Errors
    /// Those of the namespace.
    pub fn free_kept_name(&self) -> Result<Option<Vec<u8>>> {
        if self.state.read().find(ROOT, KEPT_NAME)?.is_none() {
            return Ok(None);
        }
        let mut number = 1_u64;
        loop {
            let name = [KEPT_NAME, b"-", number.to_string().as_bytes()].concat();
            match self.rename(ROOT, KEPT_NAME, ROOT, &name, libc::RENAME_NOREPLACE) {
                Err(failure) if failure.errno() == libc::EEXIST => number += 1,
                renamed => return renamed.map(|()| Some(name)),
            }
        }
    }

    /// Reserves exactly these names at the root for mounts of other trees: directories with these
    /// names accept no entries.
    ///
    /// # Errors
    /// Those of the namespace.
    pub fn keep_for_mounts(&self, names: impl IntoIterator<Item = Vec<u8>>) -> Result<()> {
        let mut state = self.state.write();
        let mut points = MountPoints { names: names.into_iter().collect(), directories: HashSet::new() };
        for name in &points.names {
            if let Some((_, named)) = state.find(ROOT, name)?
                && named.kind == libc::S_IFDIR
            {
                points.directories.insert(named.inode);
            }
        }
        state.mount_points = points;
        Ok(())
    }
}
