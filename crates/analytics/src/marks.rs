//! Marks on the time line, and worksheets: small texts stored in the database of the frames. Owns
//! both lists, in memory and in the order of their keys in the table.

use std::collections::{BTreeMap, BTreeSet};

use crate::database::{Change, Database, Fault, cost_of};
use crate::query::{QueryError, SECOND_MAX, check_span};

/// Kinds of values in the table; lower numbers are those of the tiers.
const MARKS: u8 = 16;
const WORKSHEETS: u8 = 17;
/// A mark for each hour of 85 days; with more, the oldest go.
const MARKS_MAX: usize = 2048;
/// Bytes of a mark's text; a longer one is cut.
pub const MARK_BYTES_MAX: usize = 256;
/// Worksheets of a store.
pub const WORKSHEETS_MAX: usize = 100;
/// Bytes of a worksheet with its name.
pub const WORKSHEET_BYTES_MAX: usize = 16 << 10;
/// Bits of a mark's number that distinguish marks of the same second.
const SAME_SECOND_BITS: u32 = 8;

/// An event on the time line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// When, in seconds since 1970.
    pub unix_s: u64,
    /// The event, in words.
    pub text: String,
}

/// See the module's text.
#[derive(Default)]
pub(crate) struct Notes {
    marks: BTreeMap<u64, String>,
    worksheets: BTreeMap<u64, (String, String)>,
    /// Changes that are not in the table yet, by kind and number.
    changed: BTreeSet<(u8, u64)>,
}

fn sealed(text: &str) -> Vec<u8> {
    let mut value = crc32c::crc32c(text.as_bytes()).to_le_bytes().to_vec();
    value.extend_from_slice(text.as_bytes());
    value
}

fn opened(value: &[u8]) -> Option<String> {
    let (checksum, text) = value.split_first_chunk()?;
    (crc32c::crc32c(text) == u32::from_le_bytes(*checksum)).then(|| String::from_utf8(text.to_vec()).ok())?
}

impl Notes {
    /// Reads the notes of the database; newer ones stay.
    pub(crate) fn load(&mut self, database: &Database) -> Result<(), Fault> {
        let mut keys = Vec::new();
        database.scan(|kind, at, _| {
            if kind == MARKS || kind == WORKSHEETS {
                keys.push((kind, at));
            }
        })?;
        for (kind, at) in keys {
            let Some(text) = database.read(kind, at)?.and_then(|value| opened(&value)) else { continue };
            if kind == MARKS {
                self.marks.entry(at).or_insert(text);
            } else if let Some((name, body)) = text.split_once('\0') {
                self.worksheets.entry(at).or_insert_with(|| (name.to_owned(), body.to_owned()));
            }
        }
        Ok(())
    }

    pub(crate) fn mark(&mut self, unix_s: u64, text: &str) {
        let first = unix_s.min(SECOND_MAX) << SAME_SECOND_BITS;
        let mut numbers = first..first | ((1 << SAME_SECOND_BITS) - 1);
        // The last place of a second stays the last one's.
        let end = numbers.end;
        let number = numbers.find(|number| !self.marks.contains_key(number)).unwrap_or(end);
        let text = &text[..text.floor_char_boundary(MARK_BYTES_MAX)];
        self.marks.insert(number, text.to_owned());
        self.changed.insert((MARKS, number));
        while self.marks.len() > MARKS_MAX {
            if let Some((oldest, _)) = self.marks.pop_first() {
                self.changed.insert((MARKS, oldest));
            }
        }
    }

    /// # Errors
    /// For an empty span, and for one that no clock reaches.
    pub(crate) fn marks(&self, from: u64, to: u64) -> Result<Vec<Mark>, QueryError> {
        check_span(from, to)?;
        let all = self.marks.range(from << SAME_SECOND_BITS..to << SAME_SECOND_BITS);
        Ok(all.map(|(number, text)| Mark { unix_s: number >> SAME_SECOND_BITS, text: text.clone() }).collect())
    }

    pub(crate) fn worksheets(&self) -> impl Iterator<Item = (&str, &str)> {
        self.worksheets.values().map(|(name, body)| (&name[..], &body[..]))
    }

    /// Stores a worksheet, or removes it. Returns `false` if it is too long, if there is no room for
    /// another one, or if the one to remove does not exist.
    pub(crate) fn set_worksheet(&mut self, name: &str, body: Option<&str>) -> bool {
        let known = self.worksheets.iter().find(|(_, (known, _))| known == name).map(|(number, _)| *number);
        let number = match (known, body) {
            (None, None) => return false,
            (Some(number), _) => number,
            (None, Some(_)) => match (0..WORKSHEETS_MAX as u64).find(|number| !self.worksheets.contains_key(number)) {
                Some(number) => number,
                None => return false,
            },
        };
        match body {
            Some(body) if name.len() + body.len() > WORKSHEET_BYTES_MAX || name.contains('\0') => return false,
            Some(body) => drop(self.worksheets.insert(number, (name.to_owned(), body.to_owned()))),
            None => drop(self.worksheets.remove(&number)),
        }
        self.changed.insert((WORKSHEETS, number));
        true
    }

    /// The changes that the table lacks.
    pub(crate) fn changes(&self) -> Vec<Change> {
        let change = |(kind, at): &(u8, u64)| {
            let value = match *kind {
                MARKS => self.marks.get(at).map(|text| sealed(text)),
                _ => self.worksheets.get(at).map(|(name, body)| sealed(&format!("{name}\0{body}"))),
            };
            match value {
                Some(value) => Change::Put { kind: *kind, at: *at, value },
                None => Change::Remove { kind: *kind, at: *at },
            }
        };
        self.changed.iter().map(change).collect()
    }

    pub(crate) fn committed(&mut self) {
        self.changed.clear();
    }

    /// Everything has to be written again: another database takes the place of the old one.
    pub(crate) fn rewrite(&mut self) {
        self.changed.extend(self.marks.keys().map(|at| (MARKS, *at)));
        self.changed.extend(self.worksheets.keys().map(|at| (WORKSHEETS, *at)));
    }

    /// Estimate of their bytes on disk.
    pub(crate) fn cost_bytes(&self) -> u64 {
        let marks: u64 = self.marks.values().map(|text| cost_of(text.len() + 4)).sum();
        marks + self.worksheets.values().map(|(name, body)| cost_of(name.len() + body.len() + 5)).sum::<u64>()
    }
}
