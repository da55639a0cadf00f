//! The database: one table of values in parts. Owns the `redb` database.
//!
//! A value lies in parts of at most [`PART_BYTES_MAX`] bytes, so that a part with its key fills one
//! page and frames of all sizes waste half a page each. A commit is durable when it returns, and
//! all or nothing.

use std::fmt;

use env::FilePlace;
use redb::{Builder, ReadableDatabase, TableDefinition};

use crate::guarded::{Guarded, WasFull};

/// Kind, time or number, part.
type PartKey = (u8, u64, u16);
const TABLE: TableDefinition<'_, PartKey, &[u8]> = TableDefinition::new("frames-1");

/// A page has 4,096 bytes; its header, the key and the lengths take at most the remaining 128.
const PART_BYTES_MAX: usize = 3968;
/// Two parts of at most this size share a page.
const SMALL_PART_BYTES: usize = 1900;
/// Limit on the database's cache.
const CACHE_BYTES: usize = 512 << 10;
/// Bytes of a page, with its share of the index pages above it.
const PAGE_COST_BYTES: u64 = 4096 + 64;

/// Why the database does not do something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    /// There is no room, or no right to write.
    Full(String),
    /// It cannot be read or written, and is replaced if it does not open.
    Broken(String),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(text) | Self::Broken(text) => f.write_str(text),
        }
    }
}

type Result<T> = std::result::Result<T, Fault>;

/// Estimate of a value's bytes on disk.
pub(crate) fn cost_of(len: usize) -> u64 {
    let (whole, rest) = (len / PART_BYTES_MAX, len % PART_BYTES_MAX);
    let rest = match rest {
        0 => 0,
        // Small neighbours fill their pages by half at least.
        1..=SMALL_PART_BYTES => (2 * rest as u64 + 128).min(PAGE_COST_BYTES),
        _ => PAGE_COST_BYTES,
    };
    whole as u64 * PAGE_COST_BYTES + rest
}

/// A change of one value.
pub(crate) enum Change {
    Put { kind: u8, at: u64, value: Vec<u8> },
    Remove { kind: u8, at: u64 },
}

pub(crate) struct Database {
    redb: redb::Database,
    was_full: WasFull,
}

impl Database {
    /// Opens the database of a place, or creates it. All pages of it are read and checked.
    pub(crate) fn open(place: &dyn FilePlace) -> Result<Self> {
        let was_full = WasFull::default();
        let fault = |error: &dyn fmt::Display| {
            let text = format!("{} cannot be opened: {error}", place.name());
            if was_full.get() { Fault::Full(text) } else { Fault::Broken(text) }
        };
        let file = place.open().map_err(|error| {
            use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem, StorageFull};
            let text = format!("{} cannot be opened: {error}", place.name());
            match error.kind() {
                StorageFull | PermissionDenied | ReadOnlyFilesystem => Fault::Full(text),
                _ => Fault::Broken(text),
            }
        })?;
        let mut builder = Builder::new();
        builder.set_cache_size(CACHE_BYTES).set_check_integrity_on_open(true);
        let redb = builder.create_with_backend(Guarded::new(file, was_full.clone())).map_err(|error| fault(&error))?;
        let database = Self { redb, was_full: was_full.clone() };
        // The table is there from now on, and has the form that it is read with.
        database.write(&[]).map_err(|error| fault(&error))?;
        Ok(database)
    }

    fn fault(&self, error: &dyn fmt::Display) -> Fault {
        if self.was_full.get() { Fault::Full(error.to_string()) } else { Fault::Broken(error.to_string()) }
    }

    /// Calls `each` with kind, number and length of each value, in order.
    pub(crate) fn scan(&self, mut each: impl FnMut(u8, u64, usize)) -> Result<()> {
        let broken = |error: &dyn fmt::Display| self.fault(error);
        let table = self.redb.begin_read().map_err(|error| broken(&error))?;
        let table = table.open_table(TABLE).map_err(|error| broken(&error))?;
        let mut last: Option<(u8, u64, usize)> = None;
        for entry in table.range::<PartKey>(..).map_err(|error| broken(&error))? {
            let (key, value) = entry.map_err(|error| broken(&error))?;
            let (kind, at, _) = key.value();
            let len = value.value().len();
            match &mut last {
                Some(last) if (last.0, last.1) == (kind, at) => last.2 += len,
                _ => {
                    if let Some((kind, at, len)) = last.replace((kind, at, len)) {
                        each(kind, at, len);
                    }
                }
            }
        }
        if let Some((kind, at, len)) = last {
            each(kind, at, len);
        }
        Ok(())
    }

    /// A value; `None` if it does not exist or one of its parts is missing.
    pub(crate) fn read(&self, kind: u8, at: u64) -> Result<Option<Vec<u8>>> {
        let broken = |error: &dyn fmt::Display| self.fault(error);
        let table = self.redb.begin_read().map_err(|error| broken(&error))?;
        let table = table.open_table(TABLE).map_err(|error| broken(&error))?;
        let mut value = Vec::new();
        let range = table.range((kind, at, 0)..=(kind, at, u16::MAX)).map_err(|error| broken(&error))?;
        let mut parts = 0;
        for entry in range {
            let (key, part) = entry.map_err(|error| broken(&error))?;
            if key.value().2 != parts {
                return Ok(None);
            }
            parts += 1;
            value.extend_from_slice(part.value());
        }
        Ok((parts > 0).then_some(value))
    }

    /// Makes the changes, all or none. They are durable on return.
    pub(crate) fn write(&self, changes: &[Change]) -> Result<()> {
        let broken = |error: &dyn fmt::Display| self.fault(error);
        let transaction = self.redb.begin_write().map_err(|error| broken(&error))?;
        {
            let mut table = transaction.open_table(TABLE).map_err(|error| broken(&error))?;
            for change in changes {
                let (kind, at, value) = match change {
                    Change::Put { kind, at, value } => (*kind, *at, &value[..]),
                    Change::Remove { kind, at } => (*kind, *at, &[][..]),
                };
                let mut parts = 0u16;
                for part in value.chunks(PART_BYTES_MAX) {
                    table.insert((kind, at, parts), part).map_err(|error| broken(&error))?;
                    parts = parts.saturating_add(1);
                }
                // Of a longer value that was there.
                let rest = (kind, at, parts)..=(kind, at, u16::MAX);
                table.retain_in(rest, |_, _| false).map_err(|error| broken(&error))?;
            }
        }
        transaction.commit().map_err(|error| broken(&error))
    }

    /// Whether the last failure was for want of room.
    pub(crate) fn is_full(&self) -> bool {
        self.was_full.get()
    }
}
