//! Recompression of a share, or of a directory or a file in one, by the current rules. Owns the
//! list of files of the running recompression.
//!
//! 1. At the beginning the tree is walked: each file is looked up again in the rules, by its
//!    current name. Without another mode, new writes to it use that rule from then on, too.
//! 2. Slices of the pool are rewritten; the list supplies the hint for the data at an address. Data
//!    of other files stays unchanged. Files made during the recompression follow the current rules
//!    anyway.
//!
//! After a restart in the middle, or when a recompression that was cancelled is begun again, the
//! list is rebuilt.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use engine::{Files, RecompressReport, Volume};
use parking_lot::Mutex;
use policy::{InForce, Mode};
use surface::{Error, ErrorKind, Hint, Result};

use crate::service::Service;
use crate::share_files::{Opened, Walk};

/// A part of a share to be recompressed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Wish {
    share: u64,
    path: String,
    mode: Option<String>,
}

/// Hints for the files that are recompressed.
#[derive(Default)]
struct Wanted {
    /// Hint for the beginning of each file, by its number.
    beginnings: HashMap<u64, Hint>,
    /// Hints for the rest of large files: address ranges, by their first address.
    rest: BTreeMap<u64, (u64, Hint)>,
}

impl Wanted {
    fn add(&mut self, files: &Files, file: u64, hint: Hint) -> Result<()> {
        self.beginnings.insert(file, hint);
        for (addresses, _) in files.places(file)?.into_iter().skip(1) {
            self.rest.insert(addresses.start, (addresses.end, hint));
        }
        Ok(())
    }

    fn at(&self, address: u64) -> Option<Hint> {
        match Files::in_beginning(address) {
            Some(file) => self.beginnings.get(&file).copied(),
            None => {
                let (_, (end, hint)) = self.rest.range(..=address).next_back()?;
                (address < *end).then_some(*hint)
            }
        }
    }
}

/// The running recompression of a share, if any.
#[derive(Default)]
pub struct Recompressing(Mutex<Option<(Wish, Wanted)>>);

impl Recompressing {
    /// Recompresses a slice of a share.
    ///
    /// # Errors
    /// `NotFound`, and those of the pool.
    pub fn slice(
        &self,
        service: &Service,
        volume: &Arc<Volume>,
        path: &str,
        mode: Option<&str>,
        (bytes, restart): (u64, bool),
    ) -> Result<RecompressReport> {
        let pool = service.pool();
        let (id, share) = (volume.id(), volume.name());
        let recompress = |advise: &engine::Advise<'_>| pool.recompress_files(id, path, mode, bytes, restart, advise);
        if bytes == 0 {
            return recompress(&|_| None);
        }
        let wish = Wish { share: id.0, path: path.to_owned(), mode: mode.map(str::to_owned) };
        let mut known = self.0.lock();
        if restart || known.as_ref().is_none_or(|(of, _)| *of != wish) {
            let wanted = service.with_writable(volume, |opened| wanted(opened, &share, path, mode))?;
            // The slices follow the extents of the last checkpoint.
            pool.checkpoint()?;
            *known = Some((wish, wanted));
        }
        let report = match &*known {
            Some((_, wanted)) => recompress(&|address| wanted.at(address))?,
            None => return Ok(RecompressReport::default()),
        };
        if report.is_finished {
            *known = None;
        }
        Ok(report)
    }

    /// Drops the list: no slice follows. A later recompression makes another one.
    pub fn end(&self) {
        *self.0.lock() = None;
    }
}

/// Step 1.
fn wanted(opened: &Opened, share: &str, path: &str, mode: Option<&str>) -> Result<Wanted> {
    let mut resolved = opened.files.in_force();
    if let Some(mode) = mode {
        let mode = mode.parse::<Mode>().map_err(|e| Error::new(ErrorKind::Invalid, e.to_string()))?;
        resolved = Arc::new(resolved.in_mode(mode));
    }
    let (node, inode) = opened.find(share, path)?;
    let name = path.rsplit('/').find(|name| !name.is_empty()).unwrap_or_default();
    let mut found = Wanted::default();
    Walk::new(opened, share).each_file((name.to_owned(), node, inode), &mut |name, node, inode| {
        match opened.tree.decide_again(node, name.as_bytes(), &resolved, mode.is_none()) {
            Ok(hint) => found.add(&opened.files, inode.data_file(), hint),
            // It was removed, or cannot be read: skipped.
            Err(_) => Ok(()),
        }
    })?;
    // Rules for data that is becoming durable are decided, too.
    opened
        .tree
        .commit()
        .map_err(|failure| crate::share_trees::error_of(share, "its tree cannot be made durable", failure))?;
    Ok(found)
}
