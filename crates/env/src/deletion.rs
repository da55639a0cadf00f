//! Detects the deletion of an open file: the system keeps accepting writes to it, and reports
//! success, until the last process closes it.

use std::fs::File;
use std::io::Result;
use std::os::unix::fs::MetadataExt;

/// The identity of a file when it is opened, to notice later that it has been deleted.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Deletion {
    /// Whether it had a name according to its file system: some always report none.
    had_name: bool,
}

impl Deletion {
    /// Of a file that has just been opened. (By default it is something that cannot be deleted.)
    ///
    /// # Errors
    /// Of fstat.
    pub(crate) fn of(file: &File) -> Result<Self> {
        Ok(Self { had_name: has_name(file)? })
    }

    /// Whether the file has been deleted since.
    ///
    /// # Errors
    /// Of fstat.
    pub(crate) fn has_come(self, file: &File) -> Result<bool> {
        Ok(self.had_name && !has_name(file)?)
    }
}

fn has_name(file: &File) -> Result<bool> {
    Ok(file.metadata()?.nlink() > 0)
}
