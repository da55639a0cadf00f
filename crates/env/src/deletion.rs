//! Whether a file has been deleted while it is open: the system goes on writing to it, and calls
//! that success, until no process has it open.

use std::fs::File;
use std::io::Result;
use std::os::unix::fs::MetadataExt;

/// The identity of a file when it is opened, to notice later that it has been deleted.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Deletion {
    /// It had a name, as far as its file system tells: some always say that there is none.
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

    /// Whether the file has been deleted meanwhile.
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
