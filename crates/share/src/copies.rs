//! Second copies of the pages that others depend on: the head of the namespace's database, its
//! branch pages, and the first leaf of each table. The loss of one of these would lose all names
//! below it: the table of the tables is a leaf, and so is the root of each small table. The first
//! leaves also contain the facts and the root directory, without which no tree opens.
//!
//! A copy is stored in another file of the space, at the same offset, so no fragment holds both;
//! and its hint keeps it out of the medium block that the page is written to. It is durable when
//! the page is: branches are copied as they are written. First leaves, identified only by their
//! position in the tree, are copied before the flush that precedes the head referring to them.
//!
//! Pages are never overwritten while a commit needs them: so the copy of such a page is the right
//! one, unless a program unaware of copies wrote the page. Readers compare a copy with the checksum
//! in the parent page.
//!
//! Where a branch has become a leaf, its old copy is discarded: the copies take a few hundredths of
//! the database's space.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use surface::{Allocation, Hint, ObjectSpace, Result};

use crate::backend::{BRANCH, DatabaseFile, PAGE_BYTES};
use crate::pages::{self, Seen};

/// Pages whose copies are looked up together.
const CHUNK_PAGES: u64 = 256;
const WORDS: usize = (CHUNK_PAGES / 64) as usize;

/// Most runs in a reply about the copies of a chunk of pages.
const RUNS_MAX: usize = 512;

/// Pages that are remembered for first leaves.
const SEEN_MAX: usize = 4096;

/// The copies of a database.
pub(crate) struct Copies {
    space: Arc<dyn ObjectSpace>,
    place: DatabaseFile,
    /// Pages that may have a copy, one bit each, for the chunks looked up so far.
    known: Mutex<HashMap<u64, [u64; WORDS]>>,
    /// The state of first leaves.
    first: Mutex<First>,
}

/// First leaves, and the pages above them.
#[derive(Default)]
struct First {
    /// Those that are as they were when they were copied.
    seen: Seen,
    /// The head has been written since the last search.
    is_due: bool,
}

impl Copies {
    pub(crate) fn of(space: Arc<dyn ObjectSpace>, place: DatabaseFile) -> Self {
        Self { space, place, known: Mutex::default(), first: Mutex::default() }
    }

    /// Gives a page that is written at `offset` of the database a copy if others hang on it.
    pub(crate) fn write(&self, offset: u64, data: &Bytes) -> Result<()> {
        let end = offset + data.len() as u64;
        let pages = offset / PAGE_BYTES..end.div_ceil(PAGE_BYTES);
        let is_upper = offset < PAGE_BYTES || data.first() == Some(&BRANCH);
        {
            let mut first = self.first.lock();
            first.seen.remove(&offset);
            first.is_due |= offset < PAGE_BYTES;
        }
        let had_copies = self.note(pages, is_upper);
        if is_upper {
            // The head is shorter than a page. A copy that cannot be read is written all the same.
            let mut copy = data.to_vec();
            copy.resize(data.len().next_multiple_of(PAGE_BYTES as usize), 0);
            return self.write_copy(offset, Bytes::from(copy));
        }
        if had_copies { self.discard(offset..end) } else { Ok(()) }
    }

    /// Copies the first leaves of the tables, in a database of that length. Called before each
    /// flush, when all pages referenced by a head are written.
    pub(crate) fn copy_first_leaves(&self, length: u64) -> Result<()> {
        let mut first = self.first.lock();
        if !std::mem::take(&mut first.is_due) || crate::canary!("first-leaves-not-copied") {
            return Ok(());
        }
        if first.seen.len() > SEEN_MAX {
            first.seen.clear();
        }
        let copied = pages::first_leaves(&*self.space, self.place, length, &mut first.seen, |start, leaf| {
            self.note(start / PAGE_BYTES..(start / PAGE_BYTES) + 1, true);
            self.write_copy(start, Bytes::copy_from_slice(leaf))
        });
        copied.inspect_err(|_| *first = First { is_due: true, ..First::default() })
    }

    fn write_copy(&self, offset: u64, data: Bytes) -> Result<()> {
        let hint = Hint { is_copy: true, ..Hint::default() };
        self.space.write_hinted(self.place.copies(), self.place.begin() + offset, data, hint)
    }

    /// The database ends at `range.start` from now on.
    pub(crate) fn cut(&self, range: Range<u64>) -> Result<()> {
        self.note(range.start.div_ceil(PAGE_BYTES)..range.end.div_ceil(PAGE_BYTES), false);
        self.discard(range)
    }

    fn discard(&self, range: Range<u64>) -> Result<()> {
        let begin = self.place.begin();
        self.space.discard(self.place.copies(), begin + range.start..begin + range.end)
    }

    /// Records whether pages have copies from now on; returns whether any of them may have had one.
    fn note(&self, pages: Range<u64>, have: bool) -> bool {
        let mut known = self.known.lock();
        let mut had = false;
        for page in pages {
            let chunk = known.entry(page / CHUNK_PAGES).or_insert_with_key(|chunk| self.look(*chunk));
            let (word, bit) = ((page % CHUNK_PAGES / 64) as usize, 1 << (page % 64));
            had |= chunk[word] & bit != 0;
            chunk[word] = if have { chunk[word] | bit } else { chunk[word] & !bit };
        }
        had
    }

    /// Looks up the pages of a chunk that may have copies: all, if unknown.
    fn look(&self, chunk: u64) -> [u64; WORDS] {
        let mut bits = [0; WORDS];
        let (mut at, end) = (chunk * CHUNK_PAGES * PAGE_BYTES, (chunk + 1) * CHUNK_PAGES * PAGE_BYTES);
        while at < end {
            let before = at;
            let runs = self.space.allocation(self.place.copies(), self.place.begin() + at, end - at, RUNS_MAX);
            for run in runs.unwrap_or_default() {
                let to = at.saturating_add(run.length).min(end);
                if run.allocation == Allocation::Data {
                    for page in at / PAGE_BYTES..to.div_ceil(PAGE_BYTES) {
                        bits[(page % CHUNK_PAGES / 64) as usize] |= 1 << (page % 64);
                    }
                }
                at = to;
            }
            if at == before {
                return [u64::MAX; WORDS];
            }
        }
        bits
    }
}
