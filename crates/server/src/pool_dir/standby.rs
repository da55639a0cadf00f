//! Where a server keeps what it has acknowledged until the log has it, so that the server's death
//! loses none of it.
//!
//! Every opening looks for what a server left: in the directory that the file `standby` in the
//! pool's directory names, where a server was told another one than the usual, and in the usual
//! one.

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use engine::StandbyStatus;
use env::{FileStandby, STANDBY_DIR};
use surface::{Error, ErrorKind, Result};
use units::format_size;

use super::PoolDir;
use operations::{kind_of, path_error};

/// Whether a server makes standby memory, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServeStandby {
    /// None.
    Off,
    /// In this directory.
    In(PathBuf),
}

/// Reads `off`, or a directory, for clap.
///
/// # Errors
/// A message that names the allowed forms.
pub fn parse_standby(text: &str) -> std::result::Result<ServeStandby, String> {
    match text {
        "off" => Ok(ServeStandby::Off),
        path if path.starts_with('/') => Ok(ServeStandby::In(path.into())),
        _ => Err("'off', or the absolute path of a directory on a file system in memory".to_owned()),
    }
}

impl PoolDir {
    /// Where standby memory of the pool is, or is going to be.
    ///
    /// # Errors
    /// When the directory that a server was told cannot be used, or cannot be noted.
    pub(super) fn standby(&self, data: &Path, wanted: Option<&ServeStandby>) -> Result<FileStandby> {
        let usual = Path::new(STANDBY_DIR);
        let note = self.root().join("standby");
        let owner = std::fs::metadata(self.root()).map_err(|e| path_error("cannot look at", self.root(), e))?.uid();
        let earlier = std::fs::read(&note).ok().map(|bytes| PathBuf::from(std::ffi::OsString::from_vec(bytes)));
        let dir = match wanted {
            Some(ServeStandby::In(dir)) => dir.as_path(),
            Some(ServeStandby::Off) | None => usual,
        };
        let root = self.root().canonicalize().map_err(|error| path_error("cannot find", self.root(), error))?;
        let standby = FileStandby::new(dir, owner).of_copy(&root, data);
        let mut standby = standby.map_err(|error| path_error("cannot look at", data, error))?;
        if let Some(earlier) = &earlier {
            standby = standby.or_left_in(earlier);
        }
        if dir == usual {
            return Ok(standby);
        }
        let refused = |error: std::io::Error| {
            let text = format!("--standby {}: {error}", dir.display());
            Error::with_source(kind_of(&error), text, error)
        };
        if !std::fs::metadata(dir).map_err(refused)?.is_dir() {
            return Err(Error::new(ErrorKind::Invalid, format!("--standby {}: it is no directory", dir.display())));
        }
        if !standby.is_in_memory().map_err(refused)? {
            let dir = dir.display();
            log::warn!("--standby {dir} is not on a file system in memory: each write goes to its disk as well");
        }
        if earlier.as_deref() != Some(dir) {
            // A file left where an earlier note says would not be found any more: it is taken over
            // now, or told.
            let new = note.with_extension("new");
            std::fs::write(&new, dir.as_os_str().as_bytes())
                .and_then(|()| std::fs::rename(&new, &note))
                .map_err(|error| path_error("cannot write", &note, error))?;
        }
        Ok(standby)
    }
}

/// Says what was made of what an earlier server left.
pub(super) fn tell_standby(status: &StandbyStatus) {
    status.notes.iter().for_each(|note| log::warn!("{note}"));
    if status.replayed > 0 {
        let (requests, were) =
            if status.replayed == 1 { ("write or discard", "was") } else { ("writes and discards", "were") };
        log::info!(
            "{} {requests} ({} of data) that a server had acknowledged before it died {were} brought to the log",
            status.replayed,
            format_size(status.replayed_bytes)
        );
    }
}

/// What is promised of acknowledged writes, in one line.
pub fn promise(place: Option<&str>, bytes: u64) -> String {
    match place {
        Some(place) => {
            format!(
                "survive the death of the server (in {place}, {}), flushed ones a loss of power",
                format_size(bytes)
            )
        }
        None => "survive the death of the server, or a loss of power, only if they were flushed".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_must_be_absolute() {
        assert_eq!(parse_standby("off"), Ok(ServeStandby::Off));
        assert_eq!(parse_standby("/run/shale"), Ok(ServeStandby::In("/run/shale".into())));
        assert!(parse_standby("shm").is_err());
    }

    #[test]
    fn the_promise_names_the_place() {
        assert!(promise(Some("/dev/shm/x"), 1 << 20).contains("/dev/shm/x, 1 MiB"));
        assert!(promise(None, 0).contains("only if they were flushed"));
    }
}
