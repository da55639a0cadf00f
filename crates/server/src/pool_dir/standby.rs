//! Place of a server's standby memory, which holds acknowledged data until the log has it, so that
//! the death of the server loses none.
//!
//! Every opening looks for memory that a server left: in the default directory, and in those that
//! the file `standby` in the pool's directory names, one per line. A server with another directory
//! adds it before it opens the pool, because the server may die at any point of that. The other
//! lines are removed once the pool is open: their memory was taken over, or set aside with a
//! message.

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use engine::StandbyStatus;
use env::{FileStandby, STANDBY_DIR};
use surface::{Error, ErrorKind, Result};
use units::format_size;

use super::PoolDir;
use operations::{kind_of, path_error};

/// Whether a server makes standby memory, and in which directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServeStandby {
    /// No standby memory.
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
        path if path.starts_with('/') && !path.contains('\n') => Ok(ServeStandby::In(path.into())),
        _ => Err("'off', or the absolute path of a directory on a file system in memory".to_owned()),
    }
}

impl PoolDir {
    /// Returns the standby memory of the pool.
    ///
    /// # Errors
    /// When the directory given to the server cannot be used, or cannot be recorded.
    pub(super) fn standby(&self, data: &Path, wanted: Option<&ServeStandby>) -> Result<FileStandby> {
        let usual = Path::new(STANDBY_DIR);
        let note = self.root().join("standby");
        let owner = std::fs::metadata(self.root()).map_err(|e| path_error("cannot look at", self.root(), e))?.uid();
        let earlier = read_note(&note);
        let dir = match wanted {
            Some(ServeStandby::In(dir)) => dir.as_path(),
            Some(ServeStandby::Off) | None => usual,
        };
        let root = self.root().canonicalize().map_err(|error| path_error("cannot find", self.root(), error))?;
        let standby = FileStandby::new(dir, owner).of_copy(&root, data);
        let mut standby = standby.map_err(|error| path_error("cannot look at", data, error))?;
        for earlier in earlier.iter().map(PathBuf::as_path).chain([usual]) {
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
            return Err(Error::new(ErrorKind::Invalid, format!("--standby {}: not a directory", dir.display())));
        }
        if !standby.is_in_memory().map_err(refused)? {
            let dir = dir.display();
            log::warn!("--standby {dir} is not on a file system in memory: each write goes to its disk as well");
        }
        if earlier.last().map(PathBuf::as_path) != Some(dir) {
            let mut dirs: Vec<&Path> = earlier.iter().map(PathBuf::as_path).filter(|earlier| *earlier != dir).collect();
            dirs.push(dir);
            write_note(&note, &dirs)?;
        }
        Ok(standby)
    }

    /// Forgets all but the newest of the directories in which a server may have left memory, once
    /// the pool is open.
    pub(super) fn forget_earlier_standby(&self) -> Result<()> {
        let note = self.root().join("standby");
        match &read_note(&note)[..] {
            [] | [_] => Ok(()),
            [.., newest] => write_note(&note, &[newest]),
        }
    }
}

fn read_note(note: &Path) -> Vec<PathBuf> {
    let bytes = std::fs::read(note).unwrap_or_default();
    let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| PathBuf::from(std::ffi::OsString::from_vec(line.to_vec()))).collect()
}

fn write_note(note: &Path, dirs: &[&Path]) -> Result<()> {
    let lines: Vec<&[u8]> = dirs.iter().map(|dir| dir.as_os_str().as_bytes()).collect();
    host::replace_file(note, &lines.join(&b'\n'), 0o666).map_err(|error| path_error("cannot write", note, error))
}

/// Logs the outcome of replaying an earlier server's memory.
pub(super) fn tell_standby(status: &StandbyStatus) {
    status.notes.iter().for_each(|note| log::warn!("{note}"));
    if status.replayed > 0 {
        let (requests, were) =
            if status.replayed == 1 { ("write or discard", "was") } else { ("writes and discards", "were") };
        log::info!(
            "{} {requests} ({} of data) that a server had acknowledged before it died {were} replayed to the log",
            status.replayed,
            format_size(status.replayed_bytes)
        );
    }
}

/// Describes the guarantee for acknowledged writes, in one line.
pub fn promise(place: Option<&str>, bytes: u64) -> String {
    match place {
        Some(place) => {
            format!(
                "survive the death of the server (in {place}, {}), flushed ones a power failure",
                format_size(bytes)
            )
        }
        None => "survive the death of the server, or a power failure, only if they were flushed".to_owned(),
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
    fn directories_are_noted_one_a_line() {
        let dir = testkit::TempDir::new("standby-note");
        let note = dir.path().join("standby");
        assert!(read_note(&note).is_empty());
        write_note(&note, &[Path::new("/run/one"), Path::new("/run/two")]).unwrap();
        assert_eq!(read_note(&note), [Path::new("/run/one"), Path::new("/run/two")]);
        std::fs::write(&note, "/run/one").unwrap();
        assert_eq!(read_note(&note), [Path::new("/run/one")]);
    }

    #[test]
    fn the_promise_names_the_place() {
        assert!(promise(Some("/dev/shm/x"), 1 << 20).contains("/dev/shm/x, 1 MiB"));
        assert!(promise(None, 0).contains("only if they were flushed"));
    }
}
