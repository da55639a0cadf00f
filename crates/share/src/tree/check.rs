//! Whether the namespace agrees with itself.

use super::Tree;
use super::census::Census;
use crate::failure::Result;

impl Tree {
    /// Faults of the namespace, a sentence each; none if it agrees with itself. Nothing may change
    /// it meanwhile, and no orphan be open.
    ///
    /// # Errors
    /// Those of reading it.
    pub fn check(&self) -> Result<Vec<String>> {
        let census = Census::take(&self.state.read())?;
        Ok(census.wrongs().iter().map(|wrong| census.words(wrong)).collect())
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
