//! The report of a loss: data that a repair drops.
#![warn(missing_docs, reason = "`engine` exports these types")]

use std::fmt;

use units::format_size;

/// Volumes and snapshots named in a summary: as many as fit in a status line.
const NAMED_IN_SUMMARY: usize = 8;

/// Loss of one volume or snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LossOf {
    /// Name, `VOLUME` or `VOLUME@SNAPSHOT`.
    pub name: String,
    /// Dropped batches that concerned it.
    pub batches: u64,
    /// Bytes that they had written.
    pub written_bytes: u64,
    /// Bytes that they had discarded.
    pub discarded_bytes: u64,
    /// Stored bytes in the part of the data that was cut off: they can no longer be read.
    pub cut_off_bytes: u64,
    /// Other changes that are lost, in words.
    pub changes: Vec<String>,
}

impl fmt::Display for LossOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = self.changes.clone();
        if self.written_bytes > 0 {
            parts.push(format!("loses {} of written data", format_size(self.written_bytes)));
        }
        if self.discarded_bytes > 0 {
            parts.push(format!("shows {} again that had been discarded", format_size(self.discarded_bytes)));
        }
        if self.cut_off_bytes > 0 {
            parts.push(format!("cannot be read in {} that were cut off", format_size(self.cut_off_bytes)));
        }
        write!(f, "{}: {}", self.name, parts.join(", "))
    }
}

/// Data that was, or may have been, flushed, and that opening a damaged pool with
/// [`repair`](crate::PoolOptions::repair) drops.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Loss {
    /// The damage.
    pub what: String,
    /// Number of the first batch that is dropped; 0 if no batch is.
    pub first_batch: u64,
    /// All batches before this one were certainly flushed; `first_batch` if no batch is known to
    /// be.
    pub flushed_before: u64,
    /// Batches from the first one on whose header was found.
    pub batches: u64,
    /// Those of them that are whole: `salvage` would keep them.
    pub batches_whole: u64,
    /// Batches among them that were not found: each may have affected any volume.
    pub batches_unknown: u64,
    /// Affected volumes and snapshots by name, as far as known.
    pub volumes: Vec<LossOf>,
    /// Number of affected ones; those beyond the first thousand are not in `volumes`.
    pub volumes_total: u64,
}

impl Loss {
    /// Returns all known facts, one a line.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![self.what.clone()];
        lines.extend(self.how_far());
        lines.extend(self.volumes.iter().map(LossOf::to_string));
        if self.volumes_total > self.volumes.len() as u64 {
            lines.push(format!("and {} more", self.volumes_total - self.volumes.len() as u64));
        }
        if self.first_batch > 0 && (self.batches_unknown > 0 || self.batches == 0) {
            let text = "the lost batches may have written, created or changed any volume and any snapshot; those \
                 changes are lost as well";
            lines.push(text.to_owned());
        }
        lines.push(self.advice());
        lines
    }

    fn how_far(&self) -> Option<String> {
        let first = self.first_batch;
        if first == 0 {
            return None;
        }
        let found = match self.batches {
            0 => "none of them was found".to_owned(),
            n => format!("{n} of them were found, {} whole", self.batches_whole),
        };
        let unknown = match self.batches_unknown {
            0 => String::new(),
            n => format!(", {n} between them are missing"),
        };
        let flushed = match self.flushed_before.saturating_sub(first) {
            0 => "it is unknown whether any of them was flushed".to_owned(),
            n => format!("{n} of them were certainly flushed"),
        };
        Some(format!(
            "the pool reverts to batch {}: batch {first} and all later ones are dropped ({found}{unknown}); \
             {flushed}",
            first - 1
        ))
    }

    fn advice(&self) -> String {
        if self.batches_whole > 0 {
            format!(
                "`shale salvage POOL --into NEW` would recover {} of {} batches into another pool, if this one \
                 is not opened before",
                self.batches_whole,
                self.batches + self.batches_unknown
            )
        } else {
            "`shale salvage POOL --into NEW` copies the remaining data into another pool, and changes nothing \
             here"
                .to_owned()
        }
    }

    /// Returns the facts in one line, for the note that is shown later.
    pub fn summary(&self) -> String {
        let named: Vec<_> = self.volumes.iter().take(NAMED_IN_SUMMARY).map(LossOf::to_string).collect();
        let more = self.volumes_total.saturating_sub(named.len() as u64);
        let more = if more > 0 { format!("; and {more} more") } else { String::new() };
        let parts = [Some(self.what.clone()), self.how_far(), (!named.is_empty()).then(|| named.join("; "))];
        parts.into_iter().flatten().collect::<Vec<_>>().join("; ") + &more
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines().join("; "))
    }
}

impl std::error::Error for Loss {}
