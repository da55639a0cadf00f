//! Looks at the pages of a database before `redb` sees them. `redb` trusts each page that it reads,
//! and ends the program if one contradicts itself. Checksums protect from damage to a page, and not
//! from those who made it: a share may have come in a stream from anywhere.
//!
//! The form of a page is only known from the page above it: widths of keys and values are in the
//! table of the tables. So for each page that is read the forms of those below it are noted, from
//! the head on; and no page may have two. Pages that this database has written are `redb`'s own.
//!
//! The few pages that are not plain are compared with their checksums as well: `redb` has its list
//! of free pages there, and trusts each bit of that.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::backend::PAGE_BYTES;
use crate::content::{ANY, Content, Form, OF_TABLES, Root, definition};
use crate::pages::Layout;

/// Pages whose bits lie together.
const CHUNK_PAGES: u64 = 256;

/// Pages, a bit each.
#[derive(Default)]
pub(crate) struct Bits(HashMap<u64, [u64; (CHUNK_PAGES / 64) as usize]>);

impl Bits {
    pub(crate) fn set(&mut self, offset: u64) {
        let page = offset / PAGE_BYTES;
        self.0.entry(page / CHUNK_PAGES).or_default()[(page % CHUNK_PAGES / 64) as usize] |= 1 << (page % 64);
    }

    pub(crate) fn has(&self, offset: u64) -> bool {
        let page = offset / PAGE_BYTES;
        let chunk = self.0.get(&(page / CHUNK_PAGES));
        chunk.is_some_and(|chunk| chunk[(page % CHUNK_PAGES / 64) as usize] & 1 << (page % 64) != 0)
    }
}

/// What a page is part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// The table of the tables.
    OfTables,
    Table(Form),
}

impl Part {
    /// What most pages are part of.
    const PLAIN: Self = Self::Table(ANY);

    fn form(self) -> Form {
        match self {
            Self::OfTables => OF_TABLES,
            Self::Table(form) => form,
        }
    }
}

#[derive(Default)]
struct Known {
    /// Once the head has been looked at.
    layout: Option<Layout>,
    /// Pages that are plain.
    plain: Bits,
    /// What others are part of, and their checksums.
    special: HashMap<u64, (Part, Option<u128>)>,
    written: Bits,
}

impl Known {
    /// Notes what a page must be; `false` if it must be something else as well.
    fn expect(&mut self, root: Root, part: Part) -> bool {
        let Some((offset, _)) = self.layout.as_ref().and_then(|layout| layout.range_of(root.page)) else {
            return false;
        };
        if part == Part::PLAIN {
            self.plain.set(offset);
            return !self.special.contains_key(&offset);
        }
        let (known, sum) = self.special.entry(offset).or_insert((part, Some(root.sum)));
        // As of two commits.
        *sum = sum.filter(|sum| *sum == root.sum);
        *known == part && !self.plain.has(offset)
    }
}

/// The parts of a database that its pages are known to be of.
#[derive(Default)]
pub(crate) struct Shapes {
    known: Mutex<Known>,
}

impl Shapes {
    /// `redb` has written a page.
    pub(crate) fn written(&self, offset: u64) {
        self.known.lock().written.set(offset);
    }

    /// Whether a page that was read is what it must be. `head`: the layout, and the roots of the
    /// tables of tables.
    pub(crate) fn is_right(
        &self,
        offset: u64,
        page: &[u8],
        head: impl FnOnce() -> Option<(Layout, Vec<Root>)>,
    ) -> bool {
        let (part, sum) = {
            let mut known = self.known.lock();
            if known.written.has(offset) {
                return true;
            }
            if known.layout.is_none()
                && let Some((layout, roots)) = head()
            {
                known.layout = Some(layout);
                if !roots.into_iter().all(|root| known.expect(root, Part::OfTables)) {
                    return false;
                }
            }
            known.special.get(&offset).copied().unwrap_or((Part::PLAIN, None))
        };
        let below: Vec<(Root, Part)> = match Content::of(page, part.form(), sum) {
            None => return false,
            Some(Content::Branch(below, _)) => below.into_iter().map(|root| (root, part)).collect(),
            Some(Content::Leaf(_)) if part != Part::OfTables => return true,
            Some(Content::Leaf(tables)) => {
                let tables = tables.into_iter().map(|(_, table)| definition(table)).collect::<Option<Vec<_>>>();
                let Some(tables) = tables else { return false };
                let below = |(root, form): (Option<Root>, Form)| Some((root?, Part::Table(form)));
                tables.into_iter().filter_map(below).collect()
            }
        };
        let mut known = self.known.lock();
        below.into_iter().all(|(root, part)| known.expect(root, part))
    }
}
