//! Numbers of jobs. A later server of the pool does not use those of an earlier one again: a client
//! that asks for its job after a restart, or cancels it, must not meet another one.
//!
//! Owns the file `jobs` in the pool's directory, which has the last reserved number. A server
//! reserves [`RESERVED`] numbers at a time, and returns the rest when it stops; if it is killed,
//! the next one skips them. Commands that open the pool themselves number their jobs from 1: no
//! other process can ask for them.

use std::io;
use std::path::{Path, PathBuf};

/// Numbers per write of the file.
const RESERVED: u64 = 10;

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    /// The last number that was assigned.
    pub(super) last: u64,
    /// The last number that no later server assigns.
    reserved: u64,
    /// `None`: the numbers are not kept.
    file: Option<PathBuf>,
}

impl Numbers {
    /// Continues after the numbers in a file, which may be missing.
    pub(super) fn kept_in(file: PathBuf) -> Self {
        let last = read(&file).unwrap_or_else(|error| {
            log::warn!(
                "the numbers of earlier jobs in {} are unknown: {error}; they go on from the time",
                file.display()
            );
            // More than were ever assigned.
            host::unix_s()
        });
        Self { last, reserved: last, file: Some(file) }
    }

    /// Assigns a number.
    pub(super) fn assign(&mut self) -> u64 {
        self.last += 1;
        if self.last > self.reserved {
            self.reserve(self.last + RESERVED - 1);
        }
        self.last
    }

    /// Returns the reserved numbers that were not assigned.
    pub(super) fn close(&mut self) {
        if self.last < self.reserved {
            self.reserve(self.last);
        }
    }

    /// Notes the last reserved number. A job does not fail because of it.
    fn reserve(&mut self, last: u64) {
        let Some(file) = &self.file else { return };
        match host::replace_file(file, format!("{last}\n").as_bytes(), 0o600) {
            Ok(()) => self.reserved = last,
            Err(error) => log::warn!("the next server may assign job numbers again: {}: {error}", file.display()),
        }
    }
}

fn read(file: &Path) -> io::Result<u64> {
    match std::fs::read_to_string(file) {
        Ok(text) => text.trim().parse().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use testkit::TempDir;

    use super::*;

    #[test]
    fn no_number_is_assigned_twice_whether_a_server_stops_or_is_killed() {
        let dir = TempDir::new("job-numbers");
        let file = dir.join("jobs");
        let mut first = Numbers::kept_in(file.clone());
        assert_eq!([first.assign(), first.assign()], [1, 2]);
        first.close();
        let mut second = Numbers::kept_in(file.clone());
        assert_eq!(second.assign(), 3, "nothing is skipped after a clean stop");
        // It is killed.
        let mut third = Numbers::kept_in(file.clone());
        let assigned: Vec<_> = (0..2 * RESERVED).map(|_| third.assign()).collect();
        assert_eq!((assigned[0], assigned.last().copied()), (3 + RESERVED, Some(2 + 3 * RESERVED)));
        std::fs::write(&file, "no number").unwrap();
        assert!(Numbers::kept_in(file).assign() > 1_000_000);
        let mut unkept = Numbers::default();
        assert_eq!([unkept.assign(), unkept.assign()], [1, 2]);
        unkept.close();
    }
}
