//! Reads a database page by page without `redb`, which stops working after the first error. Owns
//! the knowledge of the location of `redb`'s pages (`content` knows their format): each page is
//! found from its parent, which has its checksum, so that a page is either intact or lost together
//! with everything below it.
//!
//! Read only, and trusts nothing: every number in a page is checked before it is used.

use std::collections::BTreeMap;

use surface::ObjectSpace;
use xxhash_rust::xxh3::xxh3_128;

use crate::backend::{DatabaseFile, PAGE_BYTES, read_header};
use crate::content::{Content, Form, OF_TABLES, ORDER_MAX, Root, definition, recorded_counts, u32_at, u64_at};
use crate::overlay::Table;
use crate::shapes::Bits;

const MAGIC: [u8; 9] = *b"redb\x1a\x0a\xa9\x0d\x0a";

/// Most levels of a tree of pages: a page has several children, so this is never reached.
const DEPTH_MAX: u32 = 64;

/// Names of the tables, as [`Table`] numbers them.
pub(crate) const TABLE_NAMES: [&str; 5] = ["inode", "entry", "xattr", "orphan", "trim"];
pub(crate) const META_NAME: &str = "meta";

/// The state of a database's pages.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Survey {
    /// Pages that are whole.
    pub(crate) pages: u64,
    /// Pages that are unreadable, or do not match the parent. Pages below a lost one are lost with
    /// it, and not counted.
    pub(crate) lost: u64,
    /// Not even the head can be read.
    pub(crate) has_no_head: bool,
    /// Whether the header before the database is lost; it contains nothing that the database does
    /// not.
    pub(crate) has_no_header: bool,
    /// Tables whose root is lost.
    pub(crate) tables_lost: Vec<&'static str>,
    /// Of the lost pages, those of extended attributes.
    pub(crate) lost_of_xattrs: u64,
    /// Ranges of inodes (inclusive) whose extended attributes may be lost.
    pub(crate) xattr_gaps: Vec<(u64, u64)>,
    /// Whether all pages are intact, and yet contradict each other about a table, or there is a
    /// table that does not belong in a database of names.
    pub(crate) contradicts_itself: bool,
    /// Where the last page ends.
    pub(crate) end: u64,
}

impl Survey {
    pub(crate) fn is_whole(&self) -> bool {
        !self.is_lossy() && !self.has_no_header && !self.contradicts_itself
    }

    /// Whether anything is lost for good.
    pub(crate) fn is_lossy(&self) -> bool {
        self.lost > 0 || self.has_no_head || !self.tables_lost.is_empty()
    }

    /// Whether anything but extended attributes is lost for good.
    pub(crate) fn loses_names(&self) -> bool {
        let of_xattrs = TABLE_NAMES[Table::Xattrs as usize];
        self.has_no_head || self.lost > self.lost_of_xattrs || self.tables_lost.iter().any(|table| *table != of_xattrs)
    }
}

/// Receives the content of a database: entries of the tables, and the facts of `meta`.
pub(crate) trait Take {
    type Error;
    fn pair(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), Self::Error>;
    fn fact(&mut self, name: &str, value: u64);
}

/// Takes a key and a value.
type Visit<'a, E> = dyn FnMut(&[u8], &[u8]) -> Result<(), E> + 'a;

/// Positions of the pages of a database.
pub(crate) struct Layout {
    region_bytes: u64,
    region_head_bytes: u64,
}

impl Layout {
    /// Position and length of a page.
    pub(crate) fn range_of(&self, page: u64) -> Option<(u64, u64)> {
        let order = page >> 59;
        if order > ORDER_MAX {
            return None;
        }
        let bytes = PAGE_BYTES << order;
        let (index, region) = (page & (0xf_ffff >> order), page >> 20 & 0xf_ffff);
        let within = PAGE_BYTES + self.region_head_bytes + index * bytes;
        Some((region.checked_mul(self.region_bytes)?.checked_add(within)?, bytes))
    }
}

struct Pages<'a> {
    space: &'a dyn ObjectSpace,
    place: DatabaseFile,
    length: u64,
    layout: Layout,
    survey: Survey,
    /// Between which numbers, both included, keys are lost that begin with one.
    gaps: Vec<(u64, u64)>,
    /// Pages that were met, whole or not.
    met: Bits,
    /// Of the table that is read: how deep its leaves are, and how many pairs it has.
    depth: Option<u32>,
    pairs: u64,
}

/// Bytes of a head that say something.
pub(crate) const HEAD_BYTES: usize = 320;

/// The head of a database: the roots of its tables and of `redb`'s own as of the last commit, and
/// the positions of pages.
struct Head {
    tables: Option<Root>,
    own_tables: Option<Root>,
    region_bytes: u64,
    region_head_bytes: u64,
}

impl Head {
    /// The head in a file of a space.
    fn read(space: &dyn ObjectSpace, file: u64, begin: u64) -> Option<Self> {
        let mut head = [0; HEAD_BYTES];
        space.read(file, begin, &mut head).ok()?;
        let first = usize::from(head[9] & 1);
        // A commit in two phases has written the first one wholly. If it is damaged all the same,
        // the second is the commit before.
        Self::of(&head, first).or_else(|| Self::of(&head, 1 - first))
    }

    fn layout(&self) -> Layout {
        Layout { region_bytes: self.region_bytes, region_head_bytes: self.region_head_bytes }
    }

    /// Decodes one of the two commits in a head.
    fn of(head: &[u8; HEAD_BYTES], commit: usize) -> Option<Self> {
        let number = |at| u32_at(head, at).unwrap_or(0) as u64;
        let (head_pages, data_pages) = (number(16), number(20));
        if head[..9] != MAGIC || number(12) != PAGE_BYTES || data_pages == 0 {
            return None;
        }
        let slot = slot_of(head, commit)?;
        Some(Self {
            tables: if slot[1] == 0 { None } else { Some(Root::at(slot, 8)?) },
            own_tables: if slot[2] == 0 { None } else { Some(Root::at(slot, 40)?) },
            region_bytes: (head_pages + data_pages) * PAGE_BYTES,
            region_head_bytes: head_pages * PAGE_BYTES,
        })
    }
}

/// The part of a head for one of its two commits, if its checksum is right.
fn slot_of(head: &[u8; HEAD_BYTES], commit: usize) -> Option<&[u8]> {
    let slot = &head[64 + commit * 128..][..128];
    let sum = slot[112..].first_chunk().map(|sum| u128::from_le_bytes(*sum));
    (sum == Some(xxh3_128(&slot[..112]))).then_some(slot)
}

/// Pages of a region: only the first page of a database is outside of regions, and this program
/// makes them this large.
const REGION_PAGES: u32 = 1 << 20;

/// Value of the flags byte: the first of two commits is current, it was made in two phases, and the
/// pages in use must be counted.
const COUNT_ANEW: u8 = 2 | 4;

/// Builds a head for a database that refers to its tables as of the last commit and to none of
/// `redb`'s internal ones; `None` if there is none, or if its regions are not those of this
/// program.
pub(crate) fn bare_head(space: &dyn ObjectSpace, place: DatabaseFile) -> Option<[u8; HEAD_BYTES]> {
    let of_file = |file: u64| {
        let mut head = [0; HEAD_BYTES];
        space.read(file, place.begin(), &mut head).ok()?;
        let first = usize::from(head[9] & 1);
        let commit = [first, 1 - first].into_iter().find(|commit| Head::of(&head, *commit).is_some())?;
        Some((head, commit))
    };
    let (head, commit) = of_file(place.file())?;
    if (u32_at(&head, 16)?, u32_at(&head, 20)?) != (0, REGION_PAGES as usize) {
        return None;
    }
    let tables = &slot_of(&head, commit)?[..40];
    let mut bare = [0; HEAD_BYTES];
    bare[..24].copy_from_slice(&head[..24]);
    bare[9] = COUNT_ANEW;
    // The number of the last commit, and of the one before.
    for (at, number) in [(64, 2_u64), (192, 1)] {
        let slot = &mut bare[at..][..128];
        slot[..40].copy_from_slice(tables);
        // No tables of `redb`'s own.
        slot[2] = 0;
        slot[104..112].copy_from_slice(&number.to_le_bytes());
        let sum = xxh3_128(&slot[..112]);
        slot[112..].copy_from_slice(&sum.to_le_bytes());
    }
    Some(bare)
}

/// Whether no commit in a head has an impossible reference to a page.
pub(crate) fn is_head_right(head: &[u8; HEAD_BYTES]) -> bool {
    let is_right = |slot: &[u8], flag: usize, at: usize| slot[flag] == 0 || Root::at(slot, at).is_some();
    (0..2).filter_map(|commit| slot_of(head, commit)).all(|slot| is_right(slot, 1, 8) && is_right(slot, 2, 40))
}

/// Positions of pages, and the roots of the tables of tables, for both commits in the head.
pub(crate) fn roots(space: &dyn ObjectSpace, place: DatabaseFile) -> Option<(Layout, Vec<Root>)> {
    let mut head = [0; HEAD_BYTES];
    space.read(place.file(), place.begin(), &mut head).ok()?;
    let heads: Vec<Head> = [0, 1].into_iter().filter_map(|commit| Head::of(&head, commit)).collect();
    let roots = heads.iter().flat_map(|head| [head.tables, head.own_tables]).flatten().collect();
    Some((heads.first()?.layout(), roots))
}

/// The first head that can be read at one of the places.
fn head_at(space: &dyn ObjectSpace, places: &[DatabaseFile]) -> Option<(DatabaseFile, Head)> {
    places.iter().find_map(|place| Some((*place, Head::read(space, place.file(), place.begin())?)))
}

/// Locates a database without a header.
pub(crate) fn found_without_header(space: &dyn ObjectSpace) -> Option<DatabaseFile> {
    head_at(space, &[DatabaseFile::First, DatabaseFile::Second]).map(|(place, _)| place)
}

/// Reads the whole pages of the database of a space, and gives their pairs to `take`.
///
/// # Errors
/// Those of `take`.
pub(crate) fn survey<T: Take>(space: &dyn ObjectSpace, take: &mut T) -> Result<Survey, T::Error> {
    let header = read_header(space).ok().flatten();
    let places = header.map_or(vec![DatabaseFile::First, DatabaseFile::Second], |(place, _)| vec![place]);
    let has_no_header = header.is_none();
    let Some((place, head)) = head_at(space, &places) else {
        return Ok(Survey { has_no_head: true, has_no_header, ..Survey::default() });
    };
    // The database records its own approximate length.
    let length = header.map_or(u64::MAX, |(_, length)| length);
    let mut pages = Pages::new(space, place, length, &head);
    pages.survey = Survey { has_no_header, ..Survey::default() };
    pages.tables(head.tables, take)?;
    Ok(pages.survey)
}

impl<'a> Pages<'a> {
    fn new(space: &'a dyn ObjectSpace, place: DatabaseFile, length: u64, head: &Head) -> Self {
        let (survey, gaps) = (Survey::default(), Vec::new());
        let (met, depth, pairs) = (Bits::default(), None, 0);
        Self { space, place, length, layout: head.layout(), survey, gaps, met, depth, pairs }
    }

    fn tables<T: Take>(&mut self, root: Option<Root>, take: &mut T) -> Result<(), T::Error> {
        let mut found: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        if let Some(root) = root {
            let mut enter = |name: &[u8], table: &[u8]| {
                found.insert(name.to_vec(), table.to_vec());
                Ok(())
            };
            self.walk::<T::Error>(root, OF_TABLES, Within::ALL, &mut enter)?;
        }
        let is_known = |name: &Vec<u8>| TABLE_NAMES.iter().chain([&META_NAME]).any(|known| known.as_bytes() == name);
        self.survey.contradicts_itself |= !found.keys().all(is_known);
        for (table, name) in Table::ALL.into_iter().zip(TABLE_NAMES) {
            match found.get(name.as_bytes()).and_then(|table| definition(table)) {
                Some((Some(root), form)) => {
                    let lost = self.survey.lost;
                    self.gaps.clear();
                    self.walk_table(root, form, &found[name.as_bytes()], &mut |key, value| {
                        take.pair(table, key, value)
                    })?;
                    if table == Table::Xattrs {
                        self.survey.lost_of_xattrs = self.survey.lost - lost;
                        self.survey.xattr_gaps = std::mem::take(&mut self.gaps);
                    }
                }
                Some((None, _)) => {}
                None => {
                    self.survey.tables_lost.push(name);
                    if table == Table::Xattrs {
                        self.survey.xattr_gaps.push((0, u64::MAX));
                    }
                }
            }
        }
        match found.get(META_NAME.as_bytes()).and_then(|table| definition(table)) {
            Some((Some(root), form)) => {
                self.walk_table(root, form, &found[META_NAME.as_bytes()], &mut |key, value| {
                    if let (Ok(name), Some(value)) = (std::str::from_utf8(key), u64_at(value, 0)) {
                        take.fact(name, value);
                    }
                    Ok(())
                })?
            }
            _ => self.survey.tables_lost.push(META_NAME),
        }
        Ok(())
    }

    /// Position and length of a page, if it is within the database.
    fn range_of(&self, page: u64) -> Option<(u64, u64)> {
        self.layout
            .range_of(page)
            .filter(|(start, bytes)| start.checked_add(*bytes).is_some_and(|end| end <= self.length))
    }

    /// A page that is whole.
    fn load(&self, root: Root, form: Form) -> Option<Vec<u8>> {
        let (start, bytes) = self.range_of(root.page)?;
        let mut content = vec![0; bytes as usize];
        self.space.read(self.place.file(), self.place.begin() + start, &mut content).ok()?;
        Content::of(&content, form, Some(root.sum)).is_some().then_some(content)
    }

    /// The same for a whole table, whose definition is `said`.
    fn walk_table<E>(&mut self, root: Root, form: Form, said: &[u8], visit: &mut Visit<'_, E>) -> Result<(), E> {
        let lost = self.survey.lost;
        (self.depth, self.pairs) = (None, 0);
        self.walk(root, form, Within::ALL, visit)?;
        let is_right = recorded_counts(said) == Some((self.pairs, self.pairs));
        self.survey.contradicts_itself |= !is_right && self.survey.lost == lost;
        Ok(())
    }

    /// Marks a page as visited; `false` if it, or a part of it, was visited before. Then it does
    /// not belong here, whatever its checksum.
    fn meet(&mut self, root: Root) -> bool {
        let Some((start, bytes)) = self.range_of(root.page) else { return false };
        let parts = (start..start + bytes).step_by(PAGE_BYTES as usize);
        let is_new = !parts.clone().any(|part| self.met.has(part));
        parts.for_each(|part| self.met.set(part));
        self.survey.end = self.survey.end.max(start + bytes);
        is_new
    }

    /// Passes the pairs of a page, and of those below it, to `visit`.
    fn walk<E>(&mut self, root: Root, form: Form, within: Within, visit: &mut Visit<'_, E>) -> Result<(), E> {
        let is_new = within.depth < DEPTH_MAX && self.meet(root);
        let loaded = if is_new { self.load(root, form) } else { None };
        let Some(content) = loaded.as_ref().and_then(|page| Content::of(page, form, None)) else {
            self.survey.lost += 1;
            self.gaps.push((within.first, within.last));
            return Ok(());
        };
        self.survey.pages += 1;
        match content {
            Content::Leaf(pairs) => {
                self.pairs += pairs.len() as u64;
                self.survey.contradicts_itself |= *self.depth.get_or_insert(within.depth) != within.depth;
                for (key, value) in pairs {
                    visit(key, value)?;
                }
            }
            Content::Branch(below, between) => {
                for (n, page) in below.into_iter().enumerate() {
                    self.walk(page, form, within.part(n, &between), visit)?;
                }
            }
        }
        Ok(())
    }
}

/// How deep a page is, and the numbers that keys in it begin with, both ends included.
#[derive(Clone, Copy)]
struct Within {
    depth: u32,
    first: u64,
    last: u64,
}

impl Within {
    const ALL: Self = Self { depth: 0, first: 0, last: u64::MAX };

    /// The range of the nth child of a branch. `between`: prefixes of the keys between its
    /// children.
    fn part(self, n: usize, between: &[u64]) -> Self {
        let first = n.checked_sub(1).and_then(|before| between.get(before)).copied();
        let last = between.get(n).copied();
        Self { depth: self.depth + 1, first: first.unwrap_or(self.first), last: last.unwrap_or(self.last) }
    }
}
