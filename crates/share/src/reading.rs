//! Reads a database that may be damaged or crafted, by `redb` itself: it knows where its pages are
//! and how they are laid out, and this program does not.
//!
//! 1. The database is opened as a reader, which needs its head and its tables and nothing else
//!    (`source`). Each step is contained (`contained`), and all steps together are bounded.
//! 2. Each table is read in the order of its keys. A step that fails, and a key that does not come
//!    after the one before, end the pass: `redb` reads nothing more after an error.
//! 3. The next key that can be read is searched by opening the database again at greater and
//!    greater keys, and then between the last one that failed and the first one that did not. The
//!    pass continues there, and the keys in between are a gap.
//!
//! A step that succeeds has read the stored content: the space verifies all that it reads, and a
//! page that a repair has left without data is an error. `redb` compares its own checksums only in
//! [`check`].

use std::ops::Bound;
use std::sync::Arc;

use redb::{Builder, ConcurrencyMode, ReadTransaction, ReadableDatabase, ReadableTableMetadata};
use surface::ObjectSpace;

use crate::backend::{Backend, DatabaseFile, read_header};
use crate::contained::{Contained, contained};
use crate::foreign::is_sealed;
use crate::inode::Inode;
use crate::isolated;
use crate::names;
use crate::overlay::Table;
use crate::scratch::Scratch;
use crate::source::{Budget, Source};
use crate::store::{FACTS, META, TABLES};

const META_NAME: &str = "meta";
/// Names of the tables, as [`Table`] numbers them, and that of the facts.
pub(crate) const TABLE_NAMES: [&str; 6] = ["inode", "entry", "xattr", "orphan", "trim", META_NAME];

/// Facts that every database has: all but `loose`.
const FACTS_LEAST: usize = FACTS.len() - 1;

/// Limit for the length of a database that `redb` opens to check it: it allocates memory for all of
/// it.
const BYTES_MAX: u64 = 1 << 40;

/// Pages that a check has in memory.
const CHECK_CACHE_BYTES: usize = 16 << 20;

/// Places in a range of keys, between its last readable one and one that a search finds, that are
/// tried for readable pages between damaged ones.
const PARTS: u128 = 64;

/// Length of a file of a space without the header before the database.
const FILE_BYTES: u64 = 1 << 51;

/// The damage of a database.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Survey {
    /// Pairs that were read.
    pub(crate) pairs: u64,
    /// Ranges of keys that cannot be read.
    pub(crate) gaps: u64,
    /// Of these, ranges of extended attributes.
    pub(crate) gaps_of_xattrs: u64,
    /// Ranges of inodes (inclusive) whose extended attributes may be lost.
    pub(crate) xattr_gaps: Vec<(u64, u64)>,
    /// The process that read it has ended early (`isolated`).
    pub(crate) was_ended: bool,
    /// Not even the head can be read.
    pub(crate) has_no_head: bool,
    /// Whether the header before the database is lost; it contains nothing that the database does
    /// not.
    pub(crate) has_no_header: bool,
    /// Tables whose beginning is lost.
    pub(crate) tables_lost: Vec<&'static str>,
    /// A table that can be read from end to end has another number of pairs than it says.
    pub(crate) contradicts_itself: bool,
    /// The result of [`check`].
    pub(crate) checked: Checked,
}

/// Whether the pages of a database have the content that `redb` has written.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Checked {
    /// As far as is known.
    #[default]
    Right,
    /// All but the tables of `redb` itself, of which some part cannot be read.
    OwnTablesLost,
    /// Some have an older content, or that of another page.
    Wrong,
}

impl Survey {
    pub(crate) fn is_whole(&self) -> bool {
        !self.is_lossy() && !self.has_no_header && !self.contradicts_itself && self.checked == Checked::Right
    }

    /// Whether anything is lost for good.
    pub(crate) fn is_lossy(&self) -> bool {
        self.gaps > 0
            || self.was_ended
            || self.has_no_head
            || !self.tables_lost.is_empty()
            || self.checked == Checked::Wrong
    }

    /// Whether anything but extended attributes is lost for good.
    pub(crate) fn loses_names(&self) -> bool {
        let of_xattrs = TABLE_NAMES[Table::Xattrs as usize];
        self.has_no_head
            || self.was_ended
            || self.gaps > self.gaps_of_xattrs
            || self.tables_lost.iter().any(|table| *table != of_xattrs)
            || self.checked == Checked::Wrong
    }
}

/// Receives the content of a database: entries of the tables, in the order of the tables and of
/// their keys, and the facts of `meta`.
pub(crate) trait Take {
    type Error;
    fn pair(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), Self::Error>;
    fn fact(&mut self, name: &str, value: u64);
}

/// Locates the database of a space, with its length if its header is there; `None`: there is no
/// evidence of one.
pub(crate) fn located(space: &Arc<dyn ObjectSpace>) -> Option<(DatabaseFile, Option<u64>)> {
    if let Ok(Some((place, length))) = read_header(&**space) {
        return Some((place, Some(length)));
    }
    match isolated::starter().filter(|_| !is_sealed(&**space)) {
        Some(start) => isolated::locate(start, &**space),
        None => located_here(space),
    }
}

/// The same, in this process.
pub(crate) fn located_here(space: &Arc<dyn ObjectSpace>) -> Option<(DatabaseFile, Option<u64>)> {
    if let Ok(Some((place, length))) = read_header(&**space) {
        return Some((place, Some(length)));
    }
    // The header is lost, and a database identifies itself.
    let has_one = |place: &DatabaseFile| Reading::of(space, *place, FILE_BYTES).transaction().is_some();
    [DatabaseFile::First, DatabaseFile::Second].into_iter().find(has_one).map(|place| (place, None))
}

/// Reads the database of a space as far as it can be read, and gives its pairs to `take`; one from
/// elsewhere in a process of its own.
///
/// # Errors
/// Those of `take`.
pub(crate) fn read<T: Take>(space: &Arc<dyn ObjectSpace>, take: &mut T) -> Result<Survey, T::Error> {
    match isolated::starter().filter(|_| !is_sealed(&**space)) {
        Some(start) => isolated::read(start, space, take),
        None => read_here(space, take),
    }
}

/// The same, in this process.
///
/// # Errors
/// Those of `take`.
pub(crate) fn read_here<T: Take>(space: &Arc<dyn ObjectSpace>, take: &mut T) -> Result<Survey, T::Error> {
    let Some((place, length)) = located_here(space) else {
        return Ok(Survey { has_no_head: true, has_no_header: true, ..Survey::default() });
    };
    let mut reading = Reading::of(space, place, length.unwrap_or(FILE_BYTES).min(FILE_BYTES));
    reading.survey.has_no_header = length.is_none();
    if reading.transaction().is_none() {
        reading.survey.has_no_head = true;
        return Ok(reading.survey);
    }
    for table in Table::ALL {
        reading.walk(table, take)?;
    }
    reading.facts(take);
    Ok(reading.survey)
}

/// Has `redb` compare all pages with their checksums. Only for a database that this pool has
/// written, and that can be read from end to end.
pub(crate) fn check(space: &Arc<dyn ObjectSpace>) -> Checked {
    let below: Arc<dyn ObjectSpace> = Arc::new(Scratch::over(space.clone()));
    let Ok(Some(backend)) = Backend::open(below) else { return Checked::Right };
    let facts = backend.facts();
    let is_right = facts.length() <= BYTES_MAX
        && contained(|| {
            let mut builder = Builder::new();
            builder.set_cache_size(CHECK_CACHE_BYTES).set_check_integrity_on_open(true);
            builder.create_with_backend(backend).ok().map(drop)
        })
        .is_some();
    match (is_right, facts.was_damaged()) {
        (true, _) => Checked::Right,
        (false, true) => Checked::OwnTablesLost,
        (false, false) => Checked::Wrong,
    }
}

type Pairs = Contained<redb::Range<'static, &'static [u8], &'static [u8]>>;

/// A key, and its value.
type Pair = (Vec<u8>, Vec<u8>);

struct Reading {
    space: Arc<dyn ObjectSpace>,
    place: DatabaseFile,
    length: u64,
    budget: Arc<Budget>,
    survey: Survey,
}

/// The first 16 bytes of a key as a number, zeroes after its end.
fn position(key: &[u8]) -> u128 {
    let mut bytes = [0; 16];
    let length = key.len().min(bytes.len());
    bytes[..length].copy_from_slice(&key[..length]);
    u128::from_be_bytes(bytes)
}

/// Whether a pair has the form of a record of a table. One without belongs to a page that
/// contradicts itself.
fn is_record(table: Table, key: &[u8], value: &[u8]) -> bool {
    match table {
        Table::Inodes => key.len() == 8 && Inode::decode(number(position(key)), value).is_ok(),
        Table::Entries => names::cookie_of(key).is_some() && names::decode(value).is_ok(),
        Table::Xattrs => key.len() > 8,
        Table::Orphans => key.len() == 8,
        Table::Trims => key.len() == 8 && value.len() >= 8,
    }
}

/// The number that keys at a position begin with.
fn number(position: u128) -> u64 {
    (position >> 64) as u64
}

impl Reading {
    fn of(space: &Arc<dyn ObjectSpace>, place: DatabaseFile, length: u64) -> Self {
        Self { space: space.clone(), place, length, budget: Budget::new(), survey: Survey::default() }
    }

    /// The tables as of the last commit.
    fn transaction(&self) -> Option<ReadTransaction> {
        contained(|| {
            let source = Source::new(self.space.clone(), self.place, self.length, self.budget.clone());
            let mut builder = Builder::new();
            // Without a cache each step that `redb` makes is a read, and all of them are bounded.
            builder.set_cache_size(0).set_concurrency_mode(ConcurrencyMode::SingleWriter);
            builder.open_read_only_with_backend(source).ok()?.begin_read().ok()
        })
    }

    /// The pairs of a table from a key on, and how many the table says that it has.
    fn pairs(&self, table: Table, from: Bound<&[u8]>) -> Option<(Pairs, u64)> {
        let transaction = self.transaction()?;
        contained(move || {
            let table = transaction.open_table(TABLES[table as usize]).ok()?;
            let pairs = Contained::new(table.range::<&[u8]>((from, Bound::Unbounded)).ok()?);
            Some((pairs, table.len().ok()?))
        })
    }

    /// The next pair; `None` if it cannot be read, `Some(None)` after the last.
    fn next(pairs: &mut Pairs) -> Option<Option<Pair>> {
        contained(|| match pairs.next() {
            None => Some(None),
            Some(Ok((key, value))) => Some(Some((key.value().to_vec(), value.value().to_vec()))),
            Some(Err(_)) => None,
        })
    }

    /// Passes all pairs of a table to `take` that can be read.
    fn walk<T: Take>(&mut self, table: Table, take: &mut T) -> Result<(), T::Error> {
        self.budget = Budget::new();
        let Some((mut pairs, count)) = self.pairs(table, Bound::Unbounded) else {
            self.survey.tables_lost.push(TABLE_NAMES[table as usize]);
            self.lost(table, 0, u64::MAX);
            return Ok(());
        };
        let (gaps, mut found, mut last, mut searched) = (self.survey.gaps, 0, None::<Vec<u8>>, None);
        loop {
            match Self::next(&mut pairs) {
                Some(None) => break,
                Some(Some((key, value))) if last.as_ref().is_none_or(|last| *last < key) => {
                    found += 1;
                    if is_record(table, &key, &value) {
                        take.pair(table, &key, &value)?;
                    } else {
                        self.survey.gaps += 1;
                        self.survey.gaps_of_xattrs += u64::from(table == Table::Xattrs);
                        self.lost(table, number(position(&key)), number(position(&key)));
                    }
                    last = Some(key);
                }
                // The page is lost, or belongs elsewhere.
                _ => {
                    let before = last.as_deref().map_or(0, position);
                    // The page that a search has found cannot be read any more.
                    if searched.replace(before) == Some(before) {
                        break;
                    }
                    let next = self.readable_after(table, before);
                    let first_after = next.as_ref().map_or(u64::MAX, |(_, first)| first.map_or(u64::MAX, number));
                    self.survey.gaps += 1;
                    self.survey.gaps_of_xattrs += u64::from(table == Table::Xattrs);
                    self.lost(table, number(before), first_after);
                    match next.and_then(|(from, _)| self.pairs(table, Bound::Included(&from.to_be_bytes()))) {
                        Some((again, _)) => pairs = again,
                        None => break,
                    }
                }
            }
        }
        self.survey.pairs += found;
        self.survey.contradicts_itself |= gaps == self.survey.gaps && count != found;
        Ok(())
    }

    /// Records the inodes whose pairs may be lost.
    fn lost(&mut self, table: Table, first: u64, last: u64) {
        if table == Table::Xattrs {
            self.survey.xattr_gaps.push((first, last));
        }
    }

    /// The first position after one from which a table can be read, as far as a search finds it,
    /// and the position of the key found there; `None` if the rest is lost.
    fn readable_after(&self, table: Table, before: u128) -> Option<(u128, Option<u128>)> {
        let found_from = |from: u128| {
            let bytes = from.to_be_bytes();
            let (mut pairs, _) = self.pairs(table, Bound::Included(&bytes))?;
            let next = Self::next(&mut pairs)?.map(|(key, _)| position(&key));
            // A page that belongs elsewhere.
            next.is_none_or(|key| key >= from).then_some(next)
        };
        // Keys of one number, or of more.
        let unit = match table {
            Table::Inodes | Table::Orphans | Table::Trims => 1 << 64,
            Table::Entries | Table::Xattrs => 1,
        };
        let (mut failed, mut step) = (before, unit);
        let mut found = loop {
            let from = before.saturating_add(step);
            if let Some(next) = found_from(from) {
                break (from, next);
            }
            if from == u128::MAX {
                return None;
            }
            (failed, step) = (from, step.saturating_mul(2));
        };
        // Readable pages between damaged ones: the first of some places that can be read.
        let part = (found.0 - before) / PARTS;
        let parts = if part < unit { 0 } else { PARTS };
        if parts > 0 {
            failed = before;
        }
        for n in 1..parts {
            let at = before + n * part;
            match found_from(at) {
                Some(next) => {
                    found = (at, next);
                    break;
                }
                None => failed = at,
            }
        }
        while found.0 - failed > unit {
            let middle = failed + (found.0 - failed) / 2;
            match found_from(middle) {
                Some(next) => found = (middle, next),
                None => failed = middle,
            }
        }
        Some(found)
    }

    fn facts<T: Take>(&mut self, take: &mut T) {
        let fact = |name: &str| {
            let transaction = self.transaction()?;
            contained(move || transaction.open_table(META).ok()?.get(name).ok()?.map(|value| value.value()))
        };
        let found = FACTS.map(fact);
        for (name, value) in FACTS.into_iter().zip(found) {
            if let Some(value) = value {
                take.fact(name, value);
            }
        }
        if found[..FACTS_LEAST].iter().any(Option::is_none) {
            self.survey.tables_lost.push(META_NAME);
        }
    }
}
