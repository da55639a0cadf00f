//! Exports, and the directories of the servers' files.

use crate::access::{Access, Door};

/// A share with an open door.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Export {
    /// Number of the export, part of the handles that NFS clients keep.
    pub id: u16,
    /// Name of the share, with its folders.
    pub name: String,
    /// Where it is mounted.
    pub path: String,
    /// Access rules of its doors.
    pub nfs: Access,
    /// See `nfs`.
    pub smb: Access,
    /// See `nfs`.
    pub http: Access,
    /// See `nfs`.
    pub ftp: Access,
}

impl Export {
    /// A share as exported by one door; its other doors are closed.
    pub fn through(door: Door, access: Access, id: u16, name: String, path: String) -> Self {
        let of = |own: Door| if own == door { access.clone() } else { Access::default() };
        Self { id, name, path, nfs: of(Door::Nfs), smb: of(Door::Smb), http: of(Door::Http), ftp: of(Door::Ftp) }
    }

    /// Access rules of a door.
    pub const fn access(&self, door: Door) -> &Access {
        match door {
            Door::Nfs => &self.nfs,
            Door::Smb => &self.smb,
            Door::Http => &self.http,
            Door::Ftp => &self.ftp,
        }
    }

    /// The name as a single word, for protocols without folders.
    pub fn word(&self) -> String {
        self.name.replace('/', "-")
    }
}

/// Directories of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// State, both temporary and persistent.
    pub state: String,
    /// Logs.
    pub logs: String,
    /// Files provided by the administrator: passwords.
    pub own: String,
}

/// Checks that configurations can contain a path.
///
/// # Errors
/// If it has characters that are special in one of them.
pub fn checked_path(path: &str) -> Result<&str, String> {
    let allowed =
        |c: char| c.is_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | '+' | '@' | '=' | ',' | ':' | '~');
    match path.chars().find(|c| !allowed(*c)) {
        None if path.starts_with('/') => Ok(path),
        None => Err(format!("{path}: not an absolute path")),
        Some(c) => Err(format!(
            "{path:?}: {c:?} is a special character in server configurations: choose a directory without it"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_would_be_read_otherwise_are_refused() {
        for path in ["/srv/shares", "/srv/Häuser/a-b_c.d"] {
            assert_eq!(checked_path(path), Ok(path));
        }
        for path in
            ["srv", "", "/a b", "/a\"b", "/a\nb", "/a;b", "/a#b", "/a%b", "/a$b", "/a*b", "/a{b", "/a>b", "/a\\b"]
        {
            assert!(checked_path(path).is_err(), "{path:?}");
        }
    }
}
