//! The owners of extended attributes that were lost with damaged pages.
//!
//! An inode itself records whether it has ACLs or capabilities. For all other attributes, only
//! their neighbours that can be read show between which inodes they were.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;

use surface::ObjectSpace;

use super::{Tree, xattr};
use crate::inode::Flags;
use crate::overlay::Table;
use crate::reading::{self, Survey, Take};

/// Inodes that have lost extended attributes, or may have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AttributesLost {
    /// Inodes that record ACLs or capabilities which are missing.
    pub certain: BTreeSet<u64>,
    /// Others that may have lost some.
    pub possible: BTreeSet<u64>,
}

impl AttributesLost {
    /// Whether none is lost, and none can be.
    pub fn is_empty(&self) -> bool {
        self.certain.is_empty() && self.possible.is_empty()
    }
}

/// Collects the flags of inodes, and the existing attributes.
#[derive(Default)]
pub(super) struct Recorded {
    said: BTreeMap<u64, Flags>,
}

impl Take for Recorded {
    type Error = Infallible;

    fn pair(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), Infallible> {
        let Some((number, name)) = key.split_first_chunk().map(|(n, name)| (u64::from_be_bytes(*n), name)) else {
            return Ok(());
        };
        // Tables arrive in the order of their numbers: inodes first.
        match table {
            Table::Inodes => {
                let flags = Flags::of_record(value).of_attributes();
                if flags != Flags::default() {
                    self.said.insert(number, flags);
                }
            }
            Table::Xattrs => {
                if let (Some(flag), Some(said)) = (xattr::flag_of(name), self.said.get_mut(&number)) {
                    said.set(flag, false);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn fact(&mut self, _: &str, _: u64) {}
}

/// Collects the inodes within gaps.
struct Between<'a> {
    gaps: &'a [(u64, u64)],
    inodes: BTreeSet<u64>,
}

impl Take for Between<'_> {
    type Error = Infallible;

    fn pair(&mut self, table: Table, key: &[u8], _: &[u8]) -> Result<(), Infallible> {
        let number = key.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        if table == Table::Inodes && self.gaps.iter().any(|(first, last)| (*first..=*last).contains(&number)) {
            self.inodes.insert(number);
        }
        Ok(())
    }

    fn fact(&mut self, _: &str, _: u64) {}
}

impl Recorded {
    /// The loss, by a survey that has handed this all pairs.
    pub(super) fn lost(self, space: &Arc<dyn ObjectSpace>, survey: &Survey) -> AttributesLost {
        let certain: BTreeSet<u64> =
            self.said.into_iter().filter(|(_, left)| *left != Flags::default()).map(|(number, _)| number).collect();
        let mut between = Between { gaps: &survey.xattr_gaps, inodes: BTreeSet::new() };
        if !survey.xattr_gaps.is_empty() {
            let Ok(_) = reading::read(space, &mut between);
        }
        AttributesLost { possible: between.inodes.difference(&certain).copied().collect(), certain }
    }
}

impl Tree {
    /// A sentence for each of the inodes that have lost attributes, with its paths, at most `most`
    /// of them; the certain ones first. Does not mention repairs.
    pub fn attributes_lost_in_words(space: Arc<dyn ObjectSpace>, lost: &AttributesLost, most: usize) -> Vec<String> {
        let certain = lost.certain.iter().map(|inode| (*inode, "its ACL or its capabilities are lost"));
        let possible = lost.possible.iter().map(|inode| (*inode, "extended attributes of it may be lost"));
        let told: Vec<_> = certain.chain(possible).take(most).collect();
        let paths = Self::paths_of_inodes(space, &told.iter().map(|(inode, _)| *inode).collect());
        let words = |(inode, what): &(u64, &str)| match paths.get(inode) {
            Some(paths) => format!("{paths}: {what}"),
            None => format!("inode {inode}: {what}"),
        };
        let mut words: Vec<_> = told.iter().map(words).collect();
        let more = lost.certain.len() + lost.possible.len() - told.len();
        if more > 0 {
            words.push(format!("extended attributes of {more} more files are, or may be, lost"));
        }
        words
    }
}
