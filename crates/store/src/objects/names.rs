//! Which names volumes, folders and snapshots can have, messages that list them, and names that are
//! taken by a stream in progress.

use surface::{Error, ErrorKind, Result};
use units::did_you_mean;

use crate::objects::{Object, Objects};

/// Longest name of a volume with its folders and its snapshot's name: an NBD export name and a path
/// component both allow this much. Also bounds the nesting of folders.
pub const TITLE_BYTES_MAX: usize = 255;

/// Names that an error message lists.
const NAMES_LISTED_MAX: usize = 8;

/// Checks one part of a name, or that of a snapshot, a bookmark or a tag: 1 to 255 bytes of
/// letters, digits, `.`, `_`, `-`, not starting with `.` or `-`.
pub fn check_name(name: &str) -> Result<()> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if (1..=255).contains(&name.len()) && name.chars().all(allowed) && !name.starts_with(['.', '-']) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Invalid,
        format!("'{name}' is not a valid name: use 1 to 255 of A-Z a-z 0-9 . _ - and do not begin with . or -"),
    ))
}

/// Checks the name of a snapshot that a user takes or renames: scheduled ones are the server's, and
/// their names are the times at which they were taken.
pub fn check_own_snapshot_name(name: &str) -> Result<()> {
    check_name(name)?;
    if policy::is_scheduled_name(name) {
        let text = format!("'{name}' is reserved for scheduled snapshots (snapshots=hourly): choose another name");
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    Ok(())
}

/// Checks the full name of a volume or a folder: parts that pass [`check_name`], separated by `/`,
/// together at most [`TITLE_BYTES_MAX`] bytes.
pub fn check_full_name(name: &str) -> Result<()> {
    let wrong = |why: &str| Err(Error::new(ErrorKind::Invalid, format!("'{name}' is not a valid name: {why}")));
    if name.len() > TITLE_BYTES_MAX {
        return wrong(&format!("it has {} bytes with its folders, at most {TITLE_BYTES_MAX} are allowed", name.len()));
    }
    if !name.contains('/') {
        return check_name(name);
    }
    if name.split('/').any(str::is_empty) {
        return wrong("use the form FOLDER/NAME: without a / at the beginning or end, and without two in a row");
    }
    name.split('/').try_for_each(|part| check_name(part).map_err(|error| error.context(format_args!("'{name}'"))))
}

/// Returns some names, for a message.
pub(crate) fn name_list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<_> = names.take(NAMES_LISTED_MAX + 1).collect();
    match names.len() {
        0 => "none".to_owned(),
        n if n > NAMES_LISTED_MAX => format!("{} and more", names[..NAMES_LISTED_MAX].join(", ")),
        _ => names.join(", "),
    }
}

/// The error for a name that is not among the `known` ones; `what` says what there is none of.
pub fn missing<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a str> + Clone) -> Error {
    let (there, suggestion) = (name_list(known.clone()), did_you_mean(name, known));
    Error::new(ErrorKind::NotFound, format!("{what} '{name}'; it has {there}{suggestion}"))
}

impl Objects {
    /// Fails if a volume or a snapshot of that name is being received.
    pub fn check_not_coming(&self, title: &str) -> Result<()> {
        match self.partial_named(title) {
            Some(_) => {
                let text =
                    format!("'{title}' is being received: let that finish, or abandon it with destroy --partial");
                Err(Error::new(ErrorKind::Exists, text))
            }
            None => Ok(()),
        }
    }

    /// Fails if a snapshot of a volume is being received: its epochs must stay the same.
    pub fn check_no_receive(&self, volume: &Object) -> Result<()> {
        match self.partial_of(volume.id) {
            Some(partial) => {
                let text = format!(
                    "'{}' is receiving '{}': let that finish, or abandon it with destroy --partial",
                    volume.title(),
                    partial.title()
                );
                Err(Error::new(ErrorKind::InUse, text))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_names_are_parts_with_slashes_between() {
        let long = format!("{0}/{0}", "x".repeat(127));
        for good in ["a", "projects/web/db1", "A/b.c/d_e-f", &"x".repeat(255), &long] {
            assert!(check_full_name(good).is_ok(), "{good}");
        }
        let (too_long, deep) = (format!("{long}x"), ["a"; 129].join("/"));
        for bad in [
            "", "/", "/a", "a/", "a//b", "..", "a/..", "a/../b", ".", "a/.b", "a/-b", "a/b@c", "a/b c", "a\0",
            &too_long, &deep,
        ] {
            assert_eq!(check_full_name(bad).unwrap_err().kind(), ErrorKind::Invalid, "{bad}");
        }
        assert!(check_full_name("a//b").unwrap_err().to_string().contains("two in a row"));
        assert!(check_full_name("a/../b").unwrap_err().to_string().contains("'..'"));
        assert!(check_full_name(&too_long).unwrap_err().to_string().contains("256 bytes"));
    }
}
