//! Whether the namespace agrees with itself.

use std::collections::HashMap;

use super::Tree;
use crate::backend::ROOT;
use crate::failure::Result;

impl Tree {
    /// What is wrong with the namespace, a sentence each; nothing if it agrees with itself. Nothing may change
    /// it meanwhile, and no orphan be open.
    ///
    /// # Errors
    /// Those of reading it.
    pub fn check(&self) -> Result<Vec<String>> {
        let state = self.state.read();
        let inodes: HashMap<u64, _> = state.all_inodes()?.into_iter().collect();
        let orphans = state.orphans()?;
        let mut wrong = Vec::new();
        // Names by inode, and directories by the one that they are in.
        let mut names: HashMap<u64, u32> = HashMap::new();
        let mut directories: HashMap<u64, u32> = HashMap::new();
        for (directory, named) in state.all_entries()? {
            let name = String::from_utf8_lossy(&named.name).into_owned();
            if !inodes.get(&directory).is_some_and(|inode| inode.is_directory()) {
                wrong.push(format!("name '{name}' is in inode {directory}, which is no directory"));
            }
            let Some(inode) = inodes.get(&named.inode) else {
                wrong.push(format!(
                    "name '{name}' of directory {directory} means inode {}, which is not there",
                    named.inode
                ));
                continue;
            };
            if inode.kind() != named.kind {
                wrong.push(format!("name '{name}' of directory {directory} has another type than its inode"));
            }
            if inode.is_directory() {
                *directories.entry(directory).or_default() += 1;
                if inode.parent != directory {
                    wrong.push(format!("directory '{name}' is in {directory}, and says {}", inode.parent));
                }
            }
            *names.entry(named.inode).or_default() += 1;
        }
        let mut data: HashMap<u64, u64> = HashMap::new();
        for (&number, inode) in &inodes {
            let named = names.get(&number).copied().unwrap_or(0);
            let expected = match inode.is_directory() {
                // `.`, the name in its parent (the root's is its own), and `..` of those in it.
                true if named == 0 && number != ROOT => 0,
                true => 2 + directories.get(&number).copied().unwrap_or(0),
                false => named,
            };
            if inode.links != expected {
                wrong.push(format!("inode {number} counts {} links and has {expected}", inode.links));
            }
            let is_orphan = orphans.contains(&number);
            if (inode.links == 0) != is_orphan {
                wrong.push(format!("inode {number} has {} links; listed as an orphan: {is_orphan}", inode.links));
            }
            if inode.data != 0
                && let Some(other) = data.insert(inode.data, number)
            {
                wrong.push(format!("inodes {number} and {other} have the same data"));
            }
        }
        wrong.extend(
            orphans
                .iter()
                .filter(|orphan| !inodes.contains_key(orphan))
                .map(|orphan| format!("orphan {orphan} is not there")),
        );
        wrong.sort();
        Ok(wrong)
    }

    /// How many inodes there are, for checks that none is left behind.
    ///
    /// # Errors
    /// Those of reading the namespace.
    pub fn inode_count(&self) -> Result<u64> {
        Ok(self.state.read().all_inodes()?.len() as u64)
    }

    /// How many extended attributes there are, for checks that none is left behind.
    ///
    /// # Errors
    /// Those of reading the namespace.
    pub fn xattr_count(&self) -> Result<u64> {
        self.state.read().xattr_count()
    }
}
