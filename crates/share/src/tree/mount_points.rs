//! Names at the root that are not for files: directories on which other trees are mounted, and the
//! name of the snapshots. Owns which they are.
//!
//! While the other tree is not mounted, and for those who hold the directory from before, the
//! directory itself is in sight. A name there would be hidden by the mount, and be in its way
//! later: so it is refused, with `EBUSY`. A name that is there already can be taken away.
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

    /// What had a name has it no more.
    pub(super) fn unnamed(&mut self, directory: u64, name: &[u8], node: u64) {
        if self.has(directory, name) {
            self.directories.remove(&node);
        }
    }
}

/// Fails for the name of the snapshots, which nothing else is given.
pub(super) fn refuse_kept_name(directory: u64, name: &[u8]) -> Result<()> {
    let is_kept = directory == ROOT && name == KEPT_NAME && !crate::canary!("name-of-snapshots-given");
    if is_kept { Err(Failure::new(libc::EEXIST)) } else { Ok(()) }
}

/// Fails if a name must not be given: in such a directory, or to a file that cannot be one.
/// `is_empty_directory`: the name is for a directory that has nothing in it.
pub(super) fn admit_name(state: &State, directory: u64, name: &[u8], is_empty_directory: bool) -> Result<()> {
    refuse_kept_name(directory, name)?;
    let points = &state.mount_points;
    let is_refused = points.directories.contains(&directory) || points.has(directory, name) && !is_empty_directory;
    if is_refused && !crate::canary!("names-below-a-mount") { Err(Failure::new(libc::EBUSY)) } else { Ok(()) }
}

impl Tree {
    /// Gives another name to a file of older times that has the name of the snapshots, which hide
    /// it. Returns the other name, if there was such a file.
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

    /// Keeps names at the root, and no others, for mounts of other trees: directories of these
    /// names take nothing.
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
