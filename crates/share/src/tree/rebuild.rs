//! Copies the readable records of a database (`reading`) into a new one: of a damaged database, or
//! of one from elsewhere (`foreign`).
//!
//! The new one is created in the other of its two files (`backend`), and becomes current when it is
//! durable: a crash in between leaves the damaged one, and the next attempt starts over.

use std::collections::HashMap;
use std::sync::Arc;

use surface::ObjectSpace;

use super::lost_attributes::{AttributesLost, Recorded};
use super::{Namespace, Options, Tree};
use crate::backend::{self, Backend, DatabaseFile};
use crate::failure::{Failure, Result};
use crate::foreign;
use crate::overlay::{Key, Table};
use crate::reading::{self, Checked, Survey, Take};
use crate::store::{Rebuilt, Surviving};

/// The state of a tree's database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamesSurvey {
    /// Records that can be read: inodes, names, extended attributes and others.
    pub records: u64,
    /// Ranges of records that cannot.
    pub gaps: u64,
    /// Whether it is intact.
    pub is_whole: bool,
    /// Whether anything is lost for good.
    pub is_lossy: bool,
    /// Whether anything but extended attributes is lost for good.
    pub loses_names: bool,
    /// The owners of lost extended attributes.
    pub attributes: AttributesLost,
    /// The fault as text; empty if there is none.
    pub problem: String,
}

impl NamesSurvey {
    fn new(survey: &Survey, attributes: AttributesLost) -> Self {
        let problem = if survey.is_whole() { String::new() } else { problem(survey) };
        let (is_whole, is_lossy, loses_names) = (survey.is_whole(), survey.is_lossy(), survey.loses_names());
        let (records, gaps) = (survey.pairs, survey.gaps);
        Self { records, gaps, is_whole, is_lossy, loses_names, attributes, problem }
    }
}

/// The fault of a database that is not whole.
fn problem(survey: &Survey) -> String {
    let gaps = survey.gaps;
    if survey.was_ended {
        return "the names of the share came from elsewhere, and the process that reads them has ended early: receive \
                the share again from its source"
            .to_owned();
    }
    if survey.has_no_head {
        return "the names of the share are lost: the beginning of their database cannot be read".to_owned();
    }
    if !survey.tables_lost.is_empty() {
        let tables = survey.tables_lost.join(", ");
        return format!(
            "the names of the share are damaged: {gaps} ranges of records cannot be read, and these tables are lost: \
             {tables}"
        );
    }
    if gaps > 0 {
        let of_what = if survey.loses_names() { "" } else { ", all of them of extended attributes" };
        return format!("the names of the share are damaged: {gaps} ranges of records cannot be read{of_what}");
    }
    let what = match survey.checked {
        Checked::Wrong => "some of their pages have an older content, or that of others",
        _ if survey.contradicts_itself => "their tables are inconsistent",
        Checked::OwnTablesLost => "only the list of free pages of their database is lost",
        Checked::Right => "only the header of their database is lost",
    };
    format!("the names of the share are damaged: {what}")
}

/// Collects changes up to the size of a transaction.
struct Collect {
    rebuilt: Rebuilt,
    facts: HashMap<String, u64>,
    pairs: Vec<(Table, Key, Box<[u8]>)>,
    bytes: usize,
}

/// Pairs of one transaction, and their bytes.
const PAIRS_MAX: usize = 1 << 15;
const BYTES_MAX: usize = 8 << 20;

impl Take for Collect {
    type Error = Failure;

    fn pair(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<()> {
        self.pairs.push((table, key.into(), value.into()));
        self.bytes += key.len() + value.len();
        if self.pairs.len() >= PAIRS_MAX || self.bytes >= BYTES_MAX { self.write() } else { Ok(()) }
    }

    fn fact(&mut self, name: &str, value: u64) {
        self.facts.insert(name.to_owned(), value);
    }
}

impl Collect {
    fn write(&mut self) -> Result<()> {
        self.bytes = 0;
        self.rebuilt.write(std::mem::take(&mut self.pairs))
    }
}

/// Copies the readable records of a space's database into the other of its two files. If
/// `is_accepted`, the copy becomes the current one, and the space is sealed. `random`: two random
/// numbers, to replace lost facts.
///
/// # Errors
/// `ENOSPC` if there is no space for the copy; those of the space.
pub(crate) fn copy_database(
    space: &Arc<dyn ObjectSpace>,
    options: Options,
    random: [u64; 2],
    is_accepted: impl FnOnce(&Survey) -> bool,
) -> Result<Survey> {
    let counts = reading::located(space).map_or(DatabaseFile::First, |(place, _)| place);
    let place = counts.other();
    backend::discard(&**space, place)?;
    let backend = Backend::create_in(space.clone(), place, counts)?;
    let facts = backend.facts();
    match fill(space, backend, options, random, is_accepted) {
        Ok((survey, true)) => {
            space.flush()?;
            backend::make_current(&**space, place, facts.length())?;
            foreign::seal(&**space)?;
            Ok(survey)
        }
        Ok((survey, false)) => {
            backend::discard(&**space, place)?;
            Ok(survey)
        }
        Err(failure) => {
            // The next attempt starts over, and needs the space.
            let _ = backend::discard(&**space, place);
            Err(if facts.was_full() { Failure::new(libc::ENOSPC) } else { failure })
        }
    }
}

/// Fills a new database with the readable records of the current one. Returns whether it is
/// accepted, and durable in that case.
fn fill(
    space: &Arc<dyn ObjectSpace>,
    backend: Backend,
    options: Options,
    random: [u64; 2],
    is_accepted: impl FnOnce(&Survey) -> bool,
) -> Result<(Survey, bool)> {
    let rebuilt = Rebuilt::new(Namespace::with(backend, options)?.database);
    let mut collect = Collect { rebuilt, facts: HashMap::new(), pairs: Vec::new(), bytes: 0 };
    let survey = reading::read(space, &mut collect)?;
    if survey.was_ended {
        // Another reading may find more.
        return Err(Failure::damaged(format_args!("they came from elsewhere, and cannot be read to their end")));
    }
    if !is_accepted(&survey) {
        return Ok((survey, false));
    }
    collect.write()?;
    let Collect { rebuilt, facts, .. } = collect;
    rebuilt.finish(&Surviving { facts, is_whole: survey.is_whole(), random })?;
    Ok((survey, true))
}

impl Tree {
    /// Reads all of the database of a space, and has its checksums compared; `None` if there is no
    /// tree. It must not change in the meantime.
    ///
    /// # Errors
    /// Only if it is unknown whether there is a tree.
    pub fn survey(space: Arc<dyn ObjectSpace>) -> Result<Option<NamesSurvey>> {
        if matches!(backend::read_header(&*space), Ok(None)) && reading::located(&space).is_none() {
            return Ok(None);
        }
        let mut said = Recorded::default();
        let Ok(mut found) = reading::read(&space, &mut said);
        // A database from elsewhere is copied before it is used.
        if !found.is_lossy() && !found.has_no_header && foreign::is_sealed(&*space) {
            found.checked = reading::check(&space);
        }
        Ok(Some(NamesSurvey::new(&found, said.lost(&space, &found))))
    }

    /// Rebuilds the database of a tree from its readable records. [`Self::repair`] must follow,
    /// which handles everything lost with the rest. `random`: two random numbers, to replace lost
    /// facts.
    ///
    /// # Errors
    /// Those of the space.
    pub fn rebuild(space: &Arc<dyn ObjectSpace>, options: Options, random: [u64; 2]) -> Result<()> {
        copy_database(space, options, random, |_| true).map(drop)
    }
}
