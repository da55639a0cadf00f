//! Files of a share: the documents that `explain` with a path and `usage` print with `--json`, and
//! that cross the control socket. Field names are a promise to scripts, as the crate's head says.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Remembered, ratio};

/// Consecutive data of a file stored with one codec.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PartLine {
    /// Byte offset in the file.
    pub offset: u64,
    /// Units.
    pub units: u64,
    /// Bytes of data, in whole blocks.
    pub raw_bytes: u64,
    /// Stored bytes.
    pub stored_bytes: u64,
    /// Codec; `raw` if it is not compressed.
    pub codec: String,
    /// Reason for the codec.
    pub why: String,
    /// Whether it was stored under other rules or properties than those in force.
    pub earlier: bool,
}

/// How a file is stored, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FileReport {
    /// Path in the share.
    pub path: String,
    /// Whether it is a directory: only the rules for new files are reported then.
    pub directory: bool,
    /// Size.
    pub size_bytes: u64,
    /// Bytes of data, in whole blocks.
    pub raw_bytes: u64,
    /// Stored bytes.
    pub stored_bytes: u64,
    /// Compression that applies to it and where that is set, as in the extended attribute
    /// `user.shale.compression`.
    pub compression: String,
    /// Compression that its name and first bytes would get now; null if that is the same.
    pub in_force: Option<String>,
    /// Type of the file, by its name or first bytes; empty if it is not known.
    pub file_type: String,
    /// Result of the last test for files of this type; null if there was none.
    pub remembered: Option<Remembered>,
    /// Which extended attributes the files of its share do not have, and the consequences; null if
    /// they have all.
    pub absent_xattrs: Option<String>,
    /// Parts of the file, the first ones.
    pub parts: Vec<PartLine>,
    /// Number of parts that are not listed.
    pub parts_left_out: u64,
    /// Its first unit compressed by other codecs; null for a file without units.
    pub trials: Option<Trials>,
}

/// A unit of a file, compressed by other codecs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Trials {
    /// Byte offset of the unit in the file.
    pub offset: u64,
    /// Bytes of data in the unit.
    pub raw_bytes: u64,
    /// Stored bytes now; of consecutive units with one codec, the average.
    pub stored_bytes: u64,
    /// Stored bytes by other codecs.
    pub others: Vec<OtherLine>,
}

/// Size of a unit by one codec.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OtherLine {
    /// Name of the codec.
    pub codec: String,
    /// Stored bytes.
    pub stored_bytes: u64,
}

/// Space taken by files.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UsageLine {
    /// Directory, file or file type.
    pub name: String,
    /// Number of files.
    pub files: u64,
    /// Sum of their sizes.
    pub size_bytes: u64,
    /// Bytes of data, in whole blocks.
    pub raw_bytes: u64,
    /// Stored bytes.
    pub stored_bytes: u64,
    /// `raw_bytes / stored_bytes`; null without data.
    pub ratio: Option<f64>,
}

impl UsageLine {
    /// Adds the figures of another line.
    pub fn add(&mut self, other: &Self) {
        self.files += other.files;
        self.size_bytes += other.size_bytes;
        self.raw_bytes += other.raw_bytes;
        self.stored_bytes += other.stored_bytes;
    }

    /// Computes the ratio.
    #[must_use]
    pub fn done(self) -> Self {
        let ratio = ratio(self.raw_bytes, self.stored_bytes).filter(|_| self.raw_bytes > 0);
        Self { ratio, ..self }
    }
}

/// Space taken by a directory of a share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UsageReport {
    /// Sum.
    pub total: UsageLine,
    /// Entries of the directory; a directory includes everything below it.
    pub entries: Vec<UsageLine>,
    /// By file type, ordered by stored bytes.
    pub types: Vec<UsageLine>,
}
