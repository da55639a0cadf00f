//! The exports, and the places of the servers' files.

use crate::access::{Access, Door};

/// A share with an open door.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Export {
    /// Number of the export, a part of the handles that NFS clients keep.
    pub id: u16,
    /// Name of the share, with its folders.
    pub name: String,
    /// Where it is mounted.
    pub path: String,
    /// What its doors let through.
    pub nfs: Access,
    /// See `nfs`.
    pub smb: Access,
    /// See `nfs`.
    pub http: Access,
    /// See `nfs`.
    pub ftp: Access,
}

impl Export {
    /// A share as one door exports it; its other doors are shut.
    pub fn through(door: Door, access: Access, id: u16, name: String, path: String) -> Self {
        let of = |own: Door| if own == door { access.clone() } else { Access::default() };
        Self { id, name, path, nfs: of(Door::Nfs), smb: of(Door::Smb), http: of(Door::Http), ftp: of(Door::Ftp) }
    }

    /// What a door lets through.
    pub const fn access(&self, door: Door) -> &Access {
        match door {
            Door::Nfs => &self.nfs,
            Door::Smb => &self.smb,
            Door::Http => &self.http,
            Door::Ftp => &self.ftp,
        }
    }

    /// The name as one word, for protocols that know no folders.
    pub fn word(&self) -> String {
        self.name.replace('/', "-")
    }
}

/// Directories of a server's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// What it keeps while it runs, and from one run to the next.
    pub state: String,
    /// What it has to say.
    pub logs: String,
    /// What the administrator gives to it: passwords.
    pub own: String,
}

/// A path as configurations can name it.
///
/// # Errors
/// If it has characters that mean something in one of them.
pub fn checked_path(path: &str) -> Result<&str, String> {
    let allowed =
        |c: char| c.is_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | '+' | '@' | '=' | ',' | ':' | '~');
    match path.chars().find(|c| !allowed(*c)) {
        None if path.starts_with('/') => Ok(path),
        None => Err(format!("{path}: not an absolute path")),
        Some(c) => Err(format!(
            "{path:?}: {c:?} has a meaning of its own in the configuration of a server: choose a directory without it"
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
