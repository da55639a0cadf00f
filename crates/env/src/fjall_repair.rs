//! Opens a map store whose small files, apart from the map itself, are lost or damaged.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::durable_mark::DurableMark;
use crate::fjall_errors::failed;
use crate::fjall_lists::restore_lists;
use crate::fjall_store::{FjallOptions, FjallStore, LSM_DIR, MARK_FILE, sync_dir};
use crate::map_store::MapError;

/// Content of the library's file `version` in its current version.
const VERSION: [u8; 4] = *b"FJL\x03";

impl FjallStore {
    /// Opens the store in `dir`, and recreates small files that are lost or damaged: the library's
    /// `version`, whose content is fixed; `durable`, which then declares everything in the store
    /// durable; and `current` of a keyspace with a single table list. Also returns the files
    /// recreated.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_for_repair(dir: &Path, options: FjallOptions) -> Result<(Self, Vec<PathBuf>), MapError> {
        let (lsm, mark_path) = (dir.join(LSM_DIR), dir.join(MARK_FILE));
        let mut made = Vec::new();
        // Without it there is nothing to repair.
        if !lsm.join("keyspaces").is_dir() {
            return Self::open(dir, options).map(|store| (store, made));
        }
        let version = lsm.join("version");
        let is_like_one =
            std::fs::read(&version).is_ok_and(|bytes| bytes.len() == VERSION.len() && bytes[..3] == VERSION[..3]);
        if !is_like_one {
            std::fs::write(&version, VERSION).map_err(|e| failed(&version, e))?;
            std::fs::File::open(&version).and_then(|file| file.sync_all()).map_err(|e| failed(&version, e))?;
            sync_dir(&lsm)?;
            made.push(version);
        }
        for list in restore_lists(&lsm).map_err(|e| failed(&lsm, e))? {
            list.parent().map_or(Ok(()), sync_dir)?;
            made.push(list);
        }
        let mark = match DurableMark::open(&mark_path) {
            Ok(mark) => Some(mark),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidData) => None,
            Err(error) => return Err(failed(&mark_path, error)),
        };
        if mark.is_none() {
            made.push(mark_path);
        }
        Ok((Self::open_with_mark(dir, options, mark)?, made))
    }
}
