//! The files of a share as a population, without its mount: the service lists them in the tree, and
//! reads them through it.

use std::collections::BTreeMap;
use std::sync::Arc;

use share::RECORD_CONTENT_BYTES_MAX;
use surface::Result;

use super::population::{HOLES_FROM_BYTES, Item, OTHER, Origin, Population, Runs, Small, strata};

/// Reads the files of a share.
pub trait ShareFiles: Send + Sync {
    /// Reads from `offset` of a file; returns the number of bytes before its end.
    ///
    /// # Errors
    /// When the file is gone or cannot be read.
    fn read(&self, file: u64, offset: u64, buf: &mut [u8]) -> Result<usize>;

    /// The ranges of a file that hold data, as offset and length, in ascending order.
    ///
    /// # Errors
    /// When the file is gone or cannot be read.
    fn data(&self, file: u64) -> Result<Vec<(u64, u64)>>;
}

/// A file of a share.
#[derive(Debug, Clone, Copy)]
pub struct ShareFile<'a> {
    /// Its number.
    pub file: u64,
    /// Its name, without directories.
    pub name: &'a str,
    /// Its type, as far as the share knows it; else empty.
    pub word: &'a str,
    /// Its size.
    pub size_bytes: u64,
}

/// Files of a share found so far.
pub struct ShareScan {
    files: Arc<dyn ShareFiles>,
    unit_bytes: usize,
    types: BTreeMap<String, Vec<Item>>,
    small: Small,
}

impl ShareScan {
    /// Of these files, in windows of `unit_bytes`.
    pub fn new(files: Arc<dyn ShareFiles>, unit_bytes: usize) -> Self {
        Self { files, unit_bytes, types: BTreeMap::new(), small: Small::default() }
    }

    /// Adds a file; one that has gone since is left out.
    pub fn add(&mut self, found: ShareFile<'_>) {
        let ShareFile { file, name, word, size_bytes } = found;
        let mut runs = Runs::new(self.unit_bytes as u64);
        if size_bytes <= RECORD_CONTENT_BYTES_MAX {
            self.small.files += u64::from(size_bytes > 0);
            self.small.bytes += size_bytes;
        } else if size_bytes < HOLES_FROM_BYTES {
            runs.add(0, size_bytes);
        } else {
            let Ok(data) = self.files.data(file) else { return };
            data.into_iter().for_each(|(offset, length)| runs.add(offset, length));
        }
        let word = if word.is_empty() { OTHER } else { word };
        let origin = Origin::Share(Arc::clone(&self.files), file);
        let item = Item { origin, name: name.to_owned(), head: Vec::new(), size_bytes, runs: runs.windows };
        self.types.entry(word.to_owned()).or_default().push(item);
    }

    /// All files that were added.
    pub fn population(self) -> Population {
        Population { strata: strata(self.types), small: self.small, unit_bytes: self.unit_bytes }
    }
}
