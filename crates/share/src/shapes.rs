//! Checks the pages of a database before `redb` sees them. `redb` trusts each page that it reads,
//! and ends the program if one is inconsistent. Checksums protect against damage, but not against
//! the creator of a page: a share may have come in a stream from anywhere.
//!
//! The layout of a page is only known from its parent: widths of keys and values are in the table
//! of the tables. So for each page read, the layouts of its children are recorded, starting with
//! the head; and no page may have two. Pages that this database has written are `redb`'s own.
//!
//! The few pages that are not plain are also compared with their checksums: `redb` has its list of
//! free pages there, and trusts each bit of that.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::backend::PAGE_BYTES;
use crate::content::{ANY, Content, Form, OF_TABLES, Root, definition};
use crate::pages::Layout;

/// Pages whose bits are stored together.
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

/// The structure that a page belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// The table of the tables.
    OfTables,
    Table(Form),
}

impl Part {
    /// The structure that most pages belong to.
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
    /// Known once the head has been examined.
    layout: Option<Layout>,
    /// Pages that are plain.
    plain: Bits,
    /// Structures of other pages, and their checksums.
    special: HashMap<u64, (Part, Option<u128>)>,
    written: Bits,
}

impl Known {
    /// Records the expected structure of a page; `false` if it must belong to another one as well.
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

/// The known structures of a database's pages.
#[derive(Default)]
pub(crate) struct Shapes {
    known: Mutex<Known>,
}

impl Shapes {
    /// `redb` has written a page.
    pub(crate) fn written(&self, offset: u64) {
        self.known.lock().written.set(offset);
    }

    /// Whether a page just read is valid. `head`: the layout, and the roots of the tables of
    /// tables.
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
