//! `access.json`: users and tokens. Read once, replaced as a whole.

use std::path::Path;

use operations::{Role, TokenLine, UserLine};
use serde::{Deserialize, Serialize};
use surface::{Error, ErrorKind, Result};

use super::secret::{Digest, Password};

/// Version of the file.
const VERSION: u32 = 1;

/// A user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredUser {
    pub(super) name: String,
    pub(super) role: Role,
    pub(super) password: Password,
    pub(super) password_set_unix_s: u64,
}

impl StoredUser {
    /// Returns its line in lists.
    pub(super) fn line(&self) -> UserLine {
        UserLine { name: self.name.clone(), role: self.role, password_set_unix_s: self.password_set_unix_s }
    }
}

/// A token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredToken {
    pub(super) name: String,
    pub(super) role: Role,
    pub(super) digest: Digest,
    pub(super) created_unix_s: u64,
    pub(super) expires_unix_s: Option<u64>,
    pub(super) last_used_unix_s: Option<u64>,
}

impl StoredToken {
    /// Returns its line in lists.
    pub(super) fn line(&self) -> TokenLine {
        TokenLine {
            name: self.name.clone(),
            role: self.role,
            created_unix_s: self.created_unix_s,
            expires_unix_s: self.expires_unix_s,
            last_used_unix_s: self.last_used_unix_s,
        }
    }
}

/// Content of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Contents {
    version: u32,
    /// By name.
    pub(super) users: Vec<StoredUser>,
    /// By name.
    pub(super) tokens: Vec<StoredToken>,
}

impl Default for Contents {
    fn default() -> Self {
        Self { version: VERSION, users: Vec::new(), tokens: Vec::new() }
    }
}

impl Contents {
    /// Reads the file; a missing file is empty.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(Error::from_io(format!("cannot read {}", path.display()), error)),
        };
        let contents: Self = serde_json::from_slice(&bytes)
            .map_err(|error| Error::with_source(ErrorKind::Corrupt, format!("{} is damaged", path.display()), error))?;
        if contents.version != VERSION {
            let text = format!("{} has version {}, this program {VERSION}", path.display(), contents.version);
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        Ok(contents)
    }

    /// Replaces the file: after a crash it has the old or the new content.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let bytes = serde_json::to_vec_pretty(self)
            .map_err(|error| Error::with_source(ErrorKind::Invalid, "users and tokens cannot be encoded", error))?;
        host::replace_file(path, &bytes, 0o600)
            .map_err(|error| Error::from_io(format!("cannot write {}", path.display()), error))
    }

    /// Returns the user of that name.
    pub(super) fn user(&self, name: &str) -> Option<&StoredUser> {
        self.users.iter().find(|user| user.name == name)
    }

    /// Adds a user, or replaces the one of that name.
    pub(super) fn put_user(&mut self, user: StoredUser) {
        self.users.retain(|known| known.name != user.name);
        self.users.push(user);
        self.users.sort_by(|a, b| a.name.cmp(&b.name));
    }
}
