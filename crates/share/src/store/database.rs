//! The namespace's database: its tables, its facts, and the steps of a commit.

use std::ops::Bound;
use std::sync::Arc;

use parking_lot::RwLock;
use redb::{AccessGuard, Database, ReadOnlyTable, ReadableDatabase, StorageError, TableDefinition, WriteTransaction};

use super::FIRST_NUMBER;
use crate::contained::{Contained, checked};
use crate::failure::{Failure, Result};
use crate::overlay::{Overlay, Table};

type Bytes = &'static [u8];

pub(crate) const TABLES: [TableDefinition<'_, Bytes, Bytes>; 5] = [
    TableDefinition::new("inode"),
    TableDefinition::new("entry"),
    TableDefinition::new("xattr"),
    TableDefinition::new("orphan"),
    TableDefinition::new("trim"),
];
pub(crate) const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");

/// Names of the facts; a database may lack the last one.
pub(crate) const FACTS: [&str; 9] =
    ["secret", "used", "reserved", "clean", "commit", "session", "replayed", "generation", "loose"];

/// Opens the database of a commit once more, to read it.
pub(crate) type Reopen = Arc<dyn Fn() -> Result<Contained<Database>> + Send + Sync>;

/// Tables of a commit.
struct Tables {
    tables: Contained<[ReadOnlyTable<Bytes, Bytes>; 5]>,
    /// The database of these tables, if it was opened for them alone.
    _database: Option<Contained<Database>>,
}

impl Tables {
    fn of(database: &Database) -> Result<Contained<[ReadOnlyTable<Bytes, Bytes>; 5]>> {
        checked(|| {
            let transaction = database.begin_read()?;
            let open = |table: Table| transaction.open_table(TABLES[table as usize]);
            let [inodes, entries, xattrs, orphans, trims] = Table::ALL;
            Ok(Contained::new([open(inodes)?, open(entries)?, open(xattrs)?, open(orphans)?, open(trims)?]))
        })
    }

    fn reopen(reopen: &Reopen) -> Result<Arc<Self>> {
        let database = reopen()?;
        Ok(Arc::new(Self { tables: Self::of(&database)?, _database: Some(database) }))
    }

    fn get(&self, table: Table, key: &[u8]) -> std::result::Result<Option<Vec<u8>>, StorageError> {
        checked(|| Ok(self.tables[table as usize].get(key)?.map(|value| value.value().to_vec())))
    }
}

/// Whether a database has stopped because of an earlier error.
fn has_stopped(error: &StorageError) -> bool {
    matches!(error, StorageError::PreviousIo | StorageError::DatabaseClosed)
}

/// The database as of a commit.
///
/// `redb` stops reading after a storage error. The database is then reopened, so that one damaged
/// page does not make all other names inaccessible.
pub(super) struct Base {
    tables: RwLock<Arc<Tables>>,
    reopen: Reopen,
}

impl Base {
    pub(super) fn read(database: &Database, reopen: Reopen) -> Result<Self> {
        let tables = match Tables::of(database) {
            Ok(tables) => Arc::new(Tables { tables, _database: None }),
            // A reader may have hit a damaged page in the meantime.
            Err(_) => Tables::reopen(&reopen)?,
        };
        Ok(Self { tables: RwLock::new(tables), reopen })
    }

    /// Replacement tables for ones that have stopped.
    fn replacement(&self, stopped: &Arc<Tables>) -> Result<Arc<Tables>> {
        let mut tables = self.tables.write();
        // Another reader may have done this already.
        if Arc::ptr_eq(&tables, stopped) {
            *tables = Tables::reopen(&self.reopen)?;
        }
        Ok(tables.clone())
    }

    /// Retries a read that failed because `stopped` had stopped. If that fails too, the page itself
    /// is damaged, and is not read a third time just to report it again.
    fn retry_read<T>(
        &self,
        stopped: &Arc<Tables>,
        mut read: impl FnMut(&Arc<Tables>) -> std::result::Result<T, StorageError>,
    ) -> Result<T> {
        match read(&self.replacement(stopped)?) {
            // Another reader has hit a damaged page: these tables are for this reader alone.
            Err(error) if has_stopped(&error) => Ok(read(&Tables::reopen(&self.reopen)?)?),
            read => Ok(read?),
        }
    }

    pub(super) fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let tables = self.tables.read().clone();
        match tables.get(table, key) {
            Err(error) if has_stopped(&error) => self.retry_read(&tables, |tables| tables.get(table, key)),
            found => Ok(found?),
        }
    }

    /// Keys and values from `from` up to `to`.
    pub(super) fn range<'a>(&'a self, table: Table, from: &[u8], to: &'a [u8]) -> Result<Stored<'a>> {
        let tables = self.tables.read().clone();
        let mut stored =
            Stored { base: self, table, from: from.to_vec(), has_returned: false, to, tables, range: None };
        match stored.open(&stored.tables) {
            Ok(range) => stored.range = Some(range),
            // It is reopened when the first key is requested.
            Err(error) if has_stopped(&error) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(stored)
    }
}

type Range = Contained<redb::Range<'static, Bytes, Bytes>>;
type Pair = (AccessGuard<'static, Bytes>, AccessGuard<'static, Bytes>);

/// A range of a table, which continues in a reopened database.
pub(super) struct Stored<'a> {
    base: &'a Base,
    table: Table,
    /// The last key returned, or the start of the range.
    from: Vec<u8>,
    /// Whether a key was returned.
    has_returned: bool,
    to: &'a [u8],
    /// The tables of `range`.
    tables: Arc<Tables>,
    range: Option<Range>,
}

impl Stored<'_> {
    /// The rest of the range.
    fn open(&self, tables: &Tables) -> std::result::Result<Range, StorageError> {
        let from = &self.from[..];
        let from = if self.has_returned { Bound::Excluded(from) } else { Bound::Included(from) };
        checked(|| {
            let table = &tables.tables[self.table as usize];
            Ok(Contained::new(table.range::<&[u8]>((from, Bound::Excluded(self.to)))?))
        })
    }

    /// The next key of a range, with its value.
    fn next_of(range: &mut Range) -> std::result::Result<Option<Pair>, StorageError> {
        checked(|| {
            let pair = range.next().transpose()?;
            // They lie within their page.
            if let Some((key, value)) = &pair {
                let _ = (key.value(), value.value());
            }
            Ok(pair)
        })
    }

    /// The next key with its value.
    pub(super) fn take_next(&mut self) -> Result<Option<Pair>> {
        let next = self.range.as_mut().map_or(Err(StorageError::PreviousIo), Self::next_of);
        let pair = match next {
            Err(error) if has_stopped(&error) => {
                let (tables, range, pair) = self.base.retry_read(&self.tables, |tables| {
                    let mut range = self.open(tables)?;
                    let pair = Self::next_of(&mut range)?;
                    Ok((tables.clone(), range, pair))
                })?;
                (self.tables, self.range) = (tables, Some(range));
                pair
            }
            next => next?,
        };
        if let Some((key, _)) = &pair {
            self.from.clear();
            self.from.extend_from_slice(key.value());
            self.has_returned = true;
        }
        Ok(pair)
    }
}

/// Facts of the table `meta`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Meta {
    pub(crate) secret: u64,
    pub(crate) used: u64,
    pub(crate) reserved: u64,
    pub(crate) clean: bool,
    /// Number of the commit that wrote this.
    pub(crate) commit: u64,
    /// Number of the opening.
    pub(crate) session: u64,
    /// Number of the opening whose journal is in the database; 0: none.
    pub(crate) replayed: u64,
    /// Files with smaller numbers may have data past their ends, because a session did not end
    /// cleanly.
    pub(crate) loose: u64,
    /// Generation of the space when it was opened last.
    pub(crate) generation: u32,
}

/// The changes written by a commit.
pub(crate) struct Frozen {
    pub(super) overlay: Arc<Overlay>,
    pub(super) meta: Meta,
    /// The ranges to discard once it is durable.
    pub(crate) trims: Vec<(u64, u64)>,
    /// The last change in it.
    pub(crate) changes: u64,
}

impl Frozen {
    /// Writes it into the database. Durable when it returns.
    pub(crate) fn commit(&self, database: &Database) -> Result<()> {
        checked(|| self.write(database))
    }

    fn write(&self, database: &Database) -> Result<()> {
        let mut transaction = database.begin_write()?;
        // Opening after a power loss, and opening a snapshot, then only read the database's head.
        // And all earlier writes are durable before the head refers to this state: data before the
        // sizes that show it.
        transaction.set_quick_repair(true);
        for table in Table::ALL {
            let mut written = transaction.open_table(TABLES[table as usize])?;
            for (key, value) in self.overlay.table(table) {
                match value {
                    Some(value) => drop(written.insert(&key[..], &value[..])?),
                    None => drop(written.remove(&key[..])?),
                }
            }
        }
        write_meta(&transaction, &self.meta)?;
        Ok(transaction.commit()?)
    }
}

pub(super) fn write_meta(transaction: &WriteTransaction, meta: &Meta) -> Result<()> {
    let Meta { secret, used, reserved, clean, commit, session, replayed, loose, generation } = *meta;
    let mut meta = transaction.open_table(META)?;
    let facts = [("secret", secret), ("used", used), ("reserved", reserved), ("clean", u64::from(clean))];
    let more = [("commit", commit), ("session", session), ("replayed", replayed), ("loose", loose)];
    let more = more.into_iter().chain([("generation", u64::from(generation))]);
    for (name, value) in facts.into_iter().chain(more) {
        meta.insert(name, value)?;
    }
    Ok(())
}

/// The facts of a database.
pub(crate) fn meta(database: &Database) -> Result<Meta> {
    checked(|| read_meta(database))
}

fn read_meta(database: &Database) -> Result<Meta> {
    let table = database.begin_read()?.open_table(META)?;
    let fact = |name| -> Result<u64> {
        let value = table.get(name)?.map(|value| value.value());
        value.ok_or_else(|| Failure::damaged(format_args!("its table of facts lacks '{name}'")))
    };
    Ok(Meta {
        secret: fact("secret")?,
        used: fact("used")?,
        reserved: fact("reserved")?,
        clean: fact("clean")? != 0,
        commit: fact("commit")?,
        session: fact("session")?,
        replayed: fact("replayed")?,
        loose: table.get("loose")?.map_or(0, |value| value.value()),
        generation: fact("generation")? as u32,
    })
}

/// Makes the tables of a new database, and its facts. Durable when it returns.
pub(crate) fn create(database: &Database, secret: u64) -> Result<()> {
    let (used, reserved) = (FIRST_NUMBER, FIRST_NUMBER);
    let meta =
        Meta { secret, used, reserved, clean: true, commit: 0, session: 0, replayed: 0, loose: 0, generation: 0 };
    Frozen { overlay: Arc::default(), meta, trims: Vec::new(), changes: 0 }.commit(database)
}
