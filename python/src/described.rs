//! Versions, records and findings as Python dictionaries. Plain conversions.

use std::collections::BTreeMap;

use blob::Record;
use pyo3::prelude::*;

/// The description of a version.
#[derive(IntoPyObject)]
pub struct Info {
    key: String,
    version: u64,
    size: u64,
    created: u64,
    incarnation: String,
    message: String,
    tags: BTreeMap<String, u64>,
}

impl Info {
    pub fn of(key: String, record: &Record) -> Self {
        Self {
            key,
            version: record.seq,
            size: record.size,
            created: record.unix_s,
            incarnation: record.inc.to_string(),
            message: record.message.clone(),
            tags: record.tags.iter().cloned().collect(),
        }
    }
}

/// A record of the log.
#[derive(IntoPyObject)]
pub struct Entry {
    version: u64,
    is_version: bool,
    is_live: bool,
    created: u64,
    size: u64,
    written: u64,
    stored: u64,
    message: String,
    operations: Vec<(String, String, u64, u64)>,
}

/// The result of a verification.
#[derive(IntoPyObject)]
pub struct Checked {
    pub frames: u64,
    pub stored: u64,
    pub damaged: Vec<(u64, u64, String)>,
}

/// Describes a record of a blob whose newest one is `head`.
pub fn entry(record: &Record, head: &Record) -> Entry {
    let operation = |done: &blob::Done| (done.kind.name().to_owned(), done.op.to_string(), done.at, done.len);
    Entry {
        version: record.seq,
        is_version: record.is_version(),
        is_live: !record.tombstone && head.is_live(record.seq),
        created: record.unix_s,
        size: record.size,
        written: record.raw,
        stored: record.stored,
        message: record.message.clone(),
        operations: record.ops.iter().map(operation).collect(),
    }
}
