//! Which names volumes and snapshots can have.

use surface::{Error, ErrorKind, Result};

/// Checks a volume's or a snapshot's name: 1 to 255 bytes of letters, digits, `.`, `_`, `-`, not
/// starting with `.` or `-`.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if (1..=255).contains(&name.len()) && name.chars().all(allowed) && !name.starts_with(['.', '-']) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Invalid,
        format!("'{name}' cannot be a name: use 1 to 255 of A-Z a-z 0-9 . _ - and do not begin with . or -"),
    ))
}
