//! Classifies failures of the map store's library and files: damage, a full file system, or errors
//! that only reopening clears.

use std::io::ErrorKind;
use std::path::Path;

use crate::map_store::MapError;

pub(crate) fn failed(path: &Path, error: std::io::Error) -> MapError {
    if is_full(&error) {
        return full(path, &error);
    }
    let corrupt = error.kind() == ErrorKind::InvalidData;
    MapError { corrupt, full: false, message: format!("{}: {error}", path.display()) }
}

fn is_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

fn full(path: &Path, error: &std::io::Error) -> MapError {
    let message = format!("the file system that holds {} is full; make room there ({error})", path.display());
    MapError { corrupt: false, full: true, message }
}

pub(crate) fn missing(dir: &Path) -> MapError {
    MapError { corrupt: true, full: false, message: format!("{} holds no map store", dir.display()) }
}

pub(crate) fn lost_mark(path: &Path, how: &str) -> MapError {
    let message = format!("{} {how}; `shale check --repair` recreates it from the store", path.display());
    MapError { corrupt: true, full: false, message }
}

pub(crate) fn lost_list(path: &Path) -> MapError {
    let message = format!(
        "{} is missing, which names the list of the map's tables; `shale check --repair` recreates it if that list exists",
        path.display()
    );
    MapError { corrupt: true, full: false, message }
}

pub(crate) fn deleted(dir: &Path) -> MapError {
    MapError {
        corrupt: true,
        full: false,
        message: format!(
            "{} was deleted while it was in use: everything written there is lost; rebuild the map from the log",
            dir.display()
        ),
    }
}

pub(crate) fn lost_commits(dir: &Path, durable: u64, found: u64) -> MapError {
    MapError {
        corrupt: true,
        full: false,
        message: format!(
            "{} has lost durable data: {durable} commits were durable, {found} are left; rebuild the map from the log",
            dir.display()
        ),
    }
}

pub(crate) fn library_error(dir: &Path, error: &fjall::Error) -> MapError {
    use fjall::{Error, LsmError};
    let corrupt = match error {
        Error::Storage(LsmError::Io(e)) | Error::Io(e) if is_full(e) => return full(dir, e),
        Error::Storage(LsmError::Io(e)) | Error::Io(e) => {
            // The library only opens files named by its lists, and never reads past a file's end or
            // at impossible offsets, unless a name or a length is damaged; and it never creates a
            // file that exists, unless another one is missing.
            use ErrorKind::{AlreadyExists, InvalidData, InvalidInput, NotFound, UnexpectedEof};
            matches!(e.kind(), AlreadyExists | InvalidData | InvalidInput | NotFound | UnexpectedEof)
        }
        Error::Poisoned | Error::Locked | Error::KeyspaceDeleted => false,
        _ => true,
    };
    let what = match error {
        Error::Poisoned => {
            "stopped after an earlier I/O error; free space or repair the disk, then open it again".to_owned()
        }
        Error::Locked => "in use by another process".to_owned(),
        Error::Storage(LsmError::Io(e)) | Error::Io(e) => e.to_string(),
        other => format!("its files are damaged ({other:?})"),
    };
    MapError { corrupt, full: false, message: format!("{}: {what}", dir.display()) }
}
