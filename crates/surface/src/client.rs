//! Clients: identify the users of open devices. A set of devices asks a client whether it is still
//! connected, and names it in messages.
//!
//! A client that has disconnected may leave requests behind: queued ones, and those in progress. A
//! set of devices admits no other client before those are done, so that an abandoned write never
//! lands after one of the next client.

use std::fmt::Write as _;
use std::sync::Arc;

/// The door of clients that do not say which theirs is.
const OTHER_DOOR: &str = "other";

/// The client that a device is opened for.
pub trait Client: Send + Sync {
    /// Door and identity of the client, for messages: `NBD client 10.0.0.7:4711`.
    fn name(&self) -> String;

    /// The door, as a single word used in documents: its operations are counted under it.
    fn door(&self) -> &'static str {
        OTHER_DOOR
    }

    /// Whether it has disconnected: it sends nothing new, and only its earlier requests are still
    /// being processed. The device opened for it is dropped when they are done.
    fn is_gone(&self) -> bool {
        false
    }

    /// Drops queued requests of a disconnected client that have not started.
    fn give_up(&self) {}
}

/// A client with a fixed name that never disconnects before its last request is done.
#[derive(Debug, Clone)]
pub struct NamedClient {
    door: &'static str,
    name: String,
}

impl NamedClient {
    /// Returns a client with that name.
    pub fn shared(name: impl Into<String>) -> Arc<dyn Client> {
        Self::at(OTHER_DOOR, name)
    }

    /// The same, for a client of a door.
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

/// Longest process name shown, in bytes: the limit of Linux.
const COMMAND_BYTES_MAX: usize = 15;

/// Linux's file with the name of a process's program.
pub fn program_file(pid: u32) -> String {
    format!("/proc/{pid}/comm")
}

/// Describes a process of this machine for messages: `process 4711 (qemu-nbd) of user 0`. `program`
/// is the content of its [`program_file`]; empty if that is no longer readable, and omitted then.
pub fn process_name(pid: u32, program: &[u8], user: Option<u32>) -> String {
    let mut text = format!("process {pid}");
    let command = program.trim_ascii();
    if !command.is_empty() {
        // Any process chooses its own name: escape bytes that could affect a terminal.
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
