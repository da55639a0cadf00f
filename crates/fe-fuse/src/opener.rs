//! The process that opened a file of the mount, for messages.

use std::path::Path;

use surface::{Client, program_file};

use crate::options::DOOR;

/// The process that opened a file. Another program, or the kernel, may hold the file after it has
/// ended.
pub(crate) struct Opener {
    /// Its number; 0 if it is in another namespace.
    pub(crate) pid: u32,
    /// In words.
    pub(crate) process: String,
}

impl Client for Opener {
    fn name(&self) -> String {
        let process = &self.process;
        if self.pid == 0 || Path::new(&program_file(self.pid)).exists() {
            return format!("file in the mount, {process}");
        }
        format!("file in the mount, opened by {process}, which has ended: a loop device may hold it (losetup -a)")
    }

    fn door(&self) -> &'static str {
        DOOR
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_has_ended_is_not_named_as_the_holder() {
        let name = |pid| Opener { pid, process: format!("process {pid} (losetup)") }.name();
        let own = std::process::id();
        assert_eq!(name(own), format!("file in the mount, process {own} (losetup)"));
        // Above the highest number of a process.
        let ended = name(u32::MAX);
        assert!(ended.contains("which has ended") && ended.contains("losetup -a"), "{ended}");
    }
}
