//! What commands report of the files of a share: the documents behind `--json` of `explain` with a
//! path, and of `usage`, which also cross the control socket. Field names are a promise to scripts,
//! as the crate says.

use serde::{Deserialize, Serialize};

use crate::{Remembered, ratio};

/// Consecutive data of a file that is stored with one codec.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PartLine {
    /// Where it begins, in bytes of the file.
    pub offset: u64,
    /// Units.
    pub units: u64,
    /// Bytes of data, in whole blocks.
    pub raw_bytes: u64,
    /// What they take.
    pub stored_bytes: u64,
    /// The codec; `raw`: as it came.
    pub codec: String,
    /// Why it is that one.
    pub why: String,
    /// It was stored when another rule, property or value counted than those in force.
    pub earlier: bool,
}

/// How a file is stored, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FileReport {
    /// Its path in the share.
    pub path: String,
    /// Whether it is a directory: then only what counts for new files is told.
    pub directory: bool,
    /// Its size.
    pub size_bytes: u64,
    /// Bytes of data, in whole blocks.
    pub raw_bytes: u64,
    /// What they take.
    pub stored_bytes: u64,
    /// What counts for it now, and where that comes from, as the extended attribute
    /// `user.shale.compression` says it.
    pub compression: String,
    /// What the rules and properties in force say of its name and its first bytes, where that is
    /// not what counts for it: then it was looked up before these were set.
    pub in_force: Option<String>,
    /// Its type, by its name or its first bytes; empty: not known.
    pub file_type: String,
    /// The memory of files of its type since the pool was opened.
    pub remembered: Option<Remembered>,
    /// The first parts.
    pub parts: Vec<PartLine>,
    /// Parts behind them.
    pub parts_left_out: u64,
    /// Its first unit by other codecs, tried now.
    pub trials: Option<Trials>,
}

/// A unit of a file, compressed by other codecs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trials {
    /// Where it begins, in bytes of the file.
    pub offset: u64,
    /// Its data.
    pub raw_bytes: u64,
    /// What it takes as it is stored; of consecutive units of one codec, on average.
    pub stored_bytes: u64,
    /// What it would take.
    pub others: Vec<OtherLine>,
}

/// What a unit would take by a codec.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherLine {
    /// The codec.
    pub codec: String,
    /// Bytes.
    pub stored_bytes: u64,
}

/// What files take.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct UsageLine {
    /// A directory, a file, or a type of file.
    pub name: String,
    /// Files in it.
    pub files: u64,
    /// Their size.
    pub size_bytes: u64,
    /// Bytes of data, in whole blocks.
    pub raw_bytes: u64,
    /// What they take.
    pub stored_bytes: u64,
    /// `raw_bytes` over `stored_bytes`; none without data.
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

/// What a directory of a share takes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UsageReport {
    /// All of it.
    pub total: UsageLine,
    /// Files and directories directly in it; a directory with all below.
    pub entries: Vec<UsageLine>,
    /// By type of file, the most stored bytes first.
    pub types: Vec<UsageLine>,
}
