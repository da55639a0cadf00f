//! Checks the consistency of the namespace.

use super::Tree;
use super::census::Census;
use crate::failure::Result;

impl Tree {
    /// Returns the faults of the namespace, one sentence each; none if it is consistent. It must
    /// not change during the check, and no orphan may be open.
    ///
    /// # Errors
    /// Those of reading it.
    pub fn check(&self) -> Result<Vec<String>> {
        let census = Census::take(&self.state.read())?;
        Ok(census.wrongs().iter().map(|wrong| census.words(wrong)).collect())
    }

    /// Number of inodes, for checks that none is leaked.
    ///
    /// # Errors
    /// Those of reading the namespace.
    pub fn inode_count(&self) -> Result<u64> {
        Ok(self.state.read().all_inodes()?.len() as u64)
    }

    /// Number of extended attributes, for checks that none is leaked.
    ///
    /// # Errors
    /// Those of reading the namespace.
    pub fn xattr_count(&self) -> Result<u64> {
        self.state.read().xattr_count()
    }
}
