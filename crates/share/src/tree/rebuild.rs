//! Rebuilds a damaged database from its intact parts.
//!
//! The new one is created in the other of its two files (`backend`), and becomes current when it is
//! durable: a crash in between leaves the damaged one, and the next attempt starts over.

use std::collections::HashMap;
use std::sync::Arc;

use surface::ObjectSpace;

use super::lost_attributes::{AttributesLost, Recorded};
use super::{Namespace, Options, Tree};
use crate::backend::{self, Backend};
use crate::failure::Result;
use crate::overlay::{Key, Table};
use crate::pages::{self, Survey, Take};
use crate::store::{Rebuilt, Surviving};

/// The state of a tree's database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamesSurvey {
    /// Pages that are whole.
    pub pages: u64,
    /// Pages that are not; those below them are not counted.
    pub pages_lost: u64,
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
        let (pages, lost) = (survey.pages, survey.lost);
        let problem = if survey.is_whole() {
            String::new()
        } else if !survey.is_lossy() && survey.contradicts_itself {
            "the names of the share are damaged: their tables are inconsistent".to_owned()
        } else if !survey.is_lossy() {
            "the names of the share are damaged: only the header of their database is lost".to_owned()
        } else if survey.has_no_head {
            "the names of the share are lost: the beginning of their database cannot be read".to_owned()
        } else if survey.tables_lost.is_empty() {
            let of_what = if survey.loses_names() { "" } else { ", all of them of extended attributes" };
            let all = pages + lost;
            format!("the names of the share are damaged: {lost} of {all} pages cannot be read{of_what}")
        } else {
            let tables = survey.tables_lost.join(", ");
            format!(
                "the names of the share are damaged: {lost} pages cannot be read, and these tables are lost: {tables}"
            )
        };
        let (is_whole, is_lossy, loses_names) = (survey.is_whole(), survey.is_lossy(), survey.loses_names());
        Self { pages, pages_lost: lost, is_whole, is_lossy, loses_names, attributes, problem }
    }
}

/// Collects changes up to the size of a transaction.
struct Collect {
    rebuilt: Rebuilt,
    facts: HashMap<String, u64>,
    pairs: Vec<(Table, Key, Box<[u8]>)>,
    count: u64,
}

/// Pairs of one transaction, some MiB.
const PAIRS_MAX: usize = 1 << 15;

impl Take for Collect {
    type Error = crate::Failure;

    fn pair(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<()> {
        self.pairs.push((table, key.into(), value.into()));
        self.count += 1;
        if self.pairs.len() >= PAIRS_MAX { self.write() } else { Ok(()) }
    }

    fn fact(&mut self, name: &str, value: u64) {
        self.facts.insert(name.to_owned(), value);
    }
}

impl Collect {
    fn write(&mut self) -> Result<()> {
        self.rebuilt.write(std::mem::take(&mut self.pairs))
    }
}

impl Tree {
    /// Reads all pages of the database of a space, with their checksums; `None` if there is no
    /// tree. It must not change in the meantime.
    ///
    /// # Errors
    /// Only if it is unknown whether there is a tree.
    pub fn survey(space: &dyn ObjectSpace) -> Result<Option<NamesSurvey>> {
        if matches!(backend::read_header(space), Ok(None)) && backend::current_file(space).is_none() {
            return Ok(None);
        }
        let mut said = Recorded::default();
        let Ok(found) = pages::survey(space, &mut said);
        Ok(Some(NamesSurvey::new(&found, said.lost(space, &found))))
    }

    /// Rebuilds the database of a tree from its intact pages. [`Self::repair`] must follow, which
    /// handles everything lost with the other pages. `random`: two random numbers, to replace lost
    /// facts.
    ///
    /// # Errors
    /// Those of the space.
    pub fn rebuild(space: &Arc<dyn ObjectSpace>, options: Options, random: [u64; 2]) -> Result<()> {
        let counts = backend::current_file(&**space).unwrap_or(backend::DatabaseFile::First);
        let place = counts.other();
        backend::discard(&**space, place)?;
        let facts = {
            let backend = Backend::create_in(space.clone(), place, counts)?;
            let Namespace { database, facts, .. } = Namespace::with(backend, options)?;
            let rebuilt = Rebuilt::new(database);
            let mut collect = Collect { rebuilt, facts: HashMap::new(), pairs: Vec::new(), count: 0 };
            let survey = pages::survey(&**space, &mut collect)?;
            collect.write()?;
            let Collect { rebuilt, facts: found, .. } = collect;
            let surviving = Surviving { facts: found, is_whole: survey.is_whole(), random };
            rebuilt.finish(&surviving)?;
            facts
        };
        space.flush()?;
        backend::make_current(&**space, place, facts.length())?;
        Ok(())
    }
}
