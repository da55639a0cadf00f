//! Clients: for whom a device is opened. A set of devices asks a client whether it is still there,
//! and names it in messages.
//!
//! A client that has gone may have left requests behind: its last requests, and those that are
//! being done. A set of devices lets no other client in before those are done, so that an abandoned
//! write never lands behind one of the next client.

use std::fmt::Write as _;
use std::sync::Arc;

/// The door of clients that do not say which theirs is.
const OTHER_DOOR: &str = "other";

/// The client that a device is opened for.
pub trait Client: Send + Sync {
    /// The door that it came through and who it is, for messages: `NBD client 10.0.0.7:4711`.
    fn name(&self) -> String;

    /// The door that it came through, in a word that documents use: its operations are counted
    /// under it.
    fn door(&self) -> &'static str {
        OTHER_DOOR
    }

    /// Whether it has gone: nothing new comes from it, only what it had sent is still being done.
    /// The device that was opened for it is dropped when that is done.
    fn is_gone(&self) -> bool {
        false
    }

    /// Drops what a client that has gone had sent, as far as it has not begun.
    fn give_up(&self) {}
}

/// A client that has a name and never goes before its last request is done.
#[derive(Debug, Clone)]
pub struct NamedClient {
    door: &'static str,
    name: String,
}

impl NamedClient {
    /// Returns a client of that name.
    pub fn shared(name: impl Into<String>) -> Arc<dyn Client> {
        Self::at(OTHER_DOOR, name)
    }

    /// The same, of a client that came through a door.
    pub fn at(door: &'static str, name: impl Into<String>) -> Arc<dyn Client> {
        Arc::new(Self { door, name: name.into() })
    }
}

impl Client for NamedClient {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn door(&self) -> &'static str {
        self.door
    }
}

/// Longest name of a process that is shown, in bytes: as long as Linux keeps it.
const COMMAND_BYTES_MAX: usize = 15;

/// The file in which Linux tells the name of a process's program.
pub fn program_file(pid: u32) -> String {
    format!("/proc/{pid}/comm")
}

/// A process of this machine as messages name it: `process 4711 (qemu-nbd) of user 0`. `program`
/// is what its [`program_file`] holds; where that cannot be read any more it is empty, and left
/// out.
pub fn process_name(pid: u32, program: &[u8], user: Option<u32>) -> String {
    let mut text = format!("process {pid}");
    let command = program.trim_ascii();
    if !command.is_empty() {
        // Any process chooses its name: odd bytes of it do not reach a terminal.
        let _ = write!(text, " ({})", command[..command.len().min(COMMAND_BYTES_MAX)].escape_ascii());
    }
    if let Some(user) = user {
        let _ = write!(text, " of user {user}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_named_with_its_program_where_that_is_known() {
        assert_eq!(process_name(4711, b"qemu-nbd\n", Some(7)), "process 4711 (qemu-nbd) of user 7");
        assert_eq!(process_name(9, b"a\x1b[2Jbcdefghijklmn", None), "process 9 (a\\x1b[2Jbcdefghijk)");
        assert_eq!(process_name(u32::MAX, b"", None), "process 4294967295");
    }
}
