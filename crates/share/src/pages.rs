//! Reads a database page by page without `redb`, which stops working after the first error. Owns
//! the knowledge of the location of `redb`'s pages (`content` knows their format): each page is
//! found from its parent, which has its checksum, so that a page is either intact or lost together
//! with everything below it. A damaged page with a copy is replaced by the copy (`copies`), if that
//! has the checksum.
//!
//! Read only, and trusts nothing: every number in a page is checked before it is used.

use std::collections::{BTreeMap, HashMap};

use surface::ObjectSpace;
use xxhash_rust::xxh3::xxh3_128;

use crate::backend::{BRANCH, DatabaseFile, LEAF, PAGE_BYTES, read_header};
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
    /// Lost pages whose copies are intact.
    pub(crate) copied: u64,
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
        !self.is_lossy() && self.copied == 0 && !self.has_no_header && !self.contradicts_itself
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
    let (head, commit) = of_file(place.file()).or_else(|| of_file(place.copies()))?;
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

/// The first head that can be read at one of the places, and whether it is a copy.
fn head_at(space: &dyn ObjectSpace, places: &[DatabaseFile]) -> Option<(DatabaseFile, Head, bool)> {
    let itself = places.iter().map(|place| (*place, place.file(), false));
    let copies = places.iter().map(|place| (*place, place.copies(), true));
    itself
        .chain(copies)
        .find_map(|(place, file, is_copy)| Some((place, Head::read(space, file, place.begin())?, is_copy)))
}

/// Locates a database without a header.
pub(crate) fn found_without_header(space: &dyn ObjectSpace) -> Option<DatabaseFile> {
    head_at(space, &[DatabaseFile::First, DatabaseFile::Second]).map(|(place, ..)| place)
}

/// Reads the whole pages of the database of a space, and gives their pairs to `take`.
///
/// # Errors
/// Those of `take`.
pub(crate) fn survey<T: Take>(space: &dyn ObjectSpace, take: &mut T) -> Result<Survey, T::Error> {
    let header = read_header(space).ok().flatten();
    let places = header.map_or(vec![DatabaseFile::First, DatabaseFile::Second], |(place, _)| vec![place]);
    let has_no_header = header.is_none();
    let Some((place, head, is_copy)) = head_at(space, &places) else {
        return Ok(Survey { has_no_head: true, has_no_header, ..Survey::default() });
    };
    // The database records its own approximate length.
    let length = header.map_or(u64::MAX, |(_, length)| length);
    let mut pages = Pages::new(space, place, length, &head);
    pages.survey = Survey { copied: u64::from(is_copy), has_no_header, ..Survey::default() };
    pages.tables(head.tables, take)?;
    Ok(pages.survey)
}

/// Reads a page from its copy, if its checksum in the parent confirms it; `false` if there is no
/// copy, or it does not match.
pub(crate) fn read_copy(
    space: &dyn ObjectSpace,
    place: DatabaseFile,
    length: u64,
    offset: u64,
    out: &mut [u8],
) -> bool {
    let mut copy = vec![0; out.len()];
    let is_there = space.read(place.copies(), place.begin() + offset, &mut copy).is_ok();
    // Checked first: most pages are leaves, which have none.
    if !is_there || !copy.first().is_some_and(|kind| [LEAF, BRANCH].contains(kind)) {
        return false;
    }
    let Some(head) = Head::read(space, place.file(), place.begin()) else { return false };
    let mut pages = Pages::new(space, place, length, &head);
    let wanted = Wanted { offset, copy: &copy };
    let is_right = [head.tables, head.own_tables].into_iter().flatten().any(|root| pages.tables_want(root, &wanted));
    if is_right {
        out.copy_from_slice(&copy);
    }
    is_right
}

/// Positions and checksums of pages: first leaves that were read, and the pages above them. Below
/// those everything is unchanged.
pub(crate) type Seen = HashMap<u64, u128>;

/// The end of the way to a first leaf.
enum FirstLeaf {
    /// Its content.
    Read(Vec<u8>),
    /// A page seen before: the leaf is unchanged.
    Seen,
    /// A page that cannot be read.
    Lost,
}

/// Passes the first leaf of each table to `take`, for both commits in the head, with its position,
/// unless it is in `seen`. Skips leaves longer than an ordinary page. `redb`'s own tables are
/// excluded: no name depends on them, and each commit writes them.
///
/// An unreadable leaf is tried again the next time, whether or not anything has been written by
/// then.
///
/// # Errors
/// Those of `take`.
pub(crate) fn first_leaves<E>(
    space: &dyn ObjectSpace,
    place: DatabaseFile,
    length: u64,
    seen: &mut Seen,
    mut take: impl FnMut(u64, &[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let mut head = [0; HEAD_BYTES];
    if space.read(place.file(), place.begin(), &mut head).is_err() {
        return Ok(());
    }
    for head in [0, 1].into_iter().filter_map(|commit| Head::of(&head, commit)) {
        let pages = Pages::new(space, place, length, &head);
        let Some(root) = head.tables else { continue };
        let (leaf, way) = pages.first_leaf(root, OF_TABLES, seen, &mut take)?;
        let FirstLeaf::Read(tables) = leaf else { continue };
        let Some(Content::Leaf(tables)) = Content::of(&tables, OF_TABLES, None) else { continue };
        let mut is_any_lost = false;
        for (root, form) in tables.into_iter().filter_map(|(_, table)| definition(table)) {
            let Some(root) = root else { continue };
            match pages.first_leaf(root, form, seen, &mut take)? {
                (FirstLeaf::Lost, _) => is_any_lost = true,
                (_, way) => seen.extend(way),
            }
        }
        if !is_any_lost {
            seen.extend(way);
        }
    }
    Ok(())
}

/// A page being looked for, and its possible copy.
struct Wanted<'a> {
    offset: u64,
    copy: &'a [u8],
}

impl Wanted<'_> {
    fn is_right(&self, root: Root, form: Form) -> bool {
        Content::of(self.copy, form, Some(root.sum)).is_some()
    }
}

impl<'a> Pages<'a> {
    fn new(space: &'a dyn ObjectSpace, place: DatabaseFile, length: u64, head: &Head) -> Self {
        let (survey, gaps) = (Survey::default(), Vec::new());
        let (met, depth, pairs) = (Bits::default(), None, 0);
        Self { space, place, length, layout: head.layout(), survey, gaps, met, depth, pairs }
    }

    /// The first leaf from `root` on, and the pages on the way to it that are not in `seen`.
    fn first_leaf<E>(
        &self,
        mut root: Root,
        form: Form,
        seen: &Seen,
        take: &mut impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(FirstLeaf, Vec<(u64, u128)>), E> {
        let mut way = Vec::new();
        while way.len() < DEPTH_MAX as usize {
            let Some((start, _)) = self.range_of(root.page) else { break };
            if seen.get(&start) == Some(&root.sum) {
                return Ok((FirstLeaf::Seen, way));
            }
            way.push((start, root.sum));
            let Some((page, is_copy)) = self.load(root, form) else { break };
            match Content::of(&page, form, None) {
                Some(Content::Branch(below, _)) => root = below[0],
                Some(Content::Leaf(_)) => {
                    if !is_copy && page.len() as u64 == PAGE_BYTES {
                        take(start, &page)?;
                    }
                    return Ok((FirstLeaf::Read(page), way));
                }
                None => break,
            }
        }
        Ok((FirstLeaf::Lost, way))
    }

    /// Whether a page of these tables is the wanted one, and its copy is valid.
    fn tables_want(&mut self, root: Root, wanted: &Wanted<'_>) -> bool {
        let mut roots = vec![(root, OF_TABLES)];
        let Ok(()) = self.walk::<std::convert::Infallible>(root, OF_TABLES, Within::ALL, &mut |_, table| {
            roots.extend(definition(table).and_then(|(root, form)| Some((root?, form))));
            Ok(())
        });
        roots.into_iter().any(|(root, form)| self.wants(root, form, 0, wanted) == Some(true))
    }

    /// The same for the pages from `root` on; `None`: it is a leaf, and so are its siblings.
    fn wants(&self, root: Root, form: Form, depth: u32, wanted: &Wanted<'_>) -> Option<bool> {
        let is_it = |root: &Root| self.range_of(root.page).is_some_and(|(start, _)| start == wanted.offset);
        if is_it(&root) {
            return Some(wanted.is_right(root, form));
        }
        let Some((page, _)) = self.load(root, form).filter(|_| depth < DEPTH_MAX) else { return Some(false) };
        let Some(Content::Branch(below, _)) = Content::of(&page, form, None) else { return None };
        if let Some(root) = below.iter().find(|root| is_it(root)) {
            return Some(wanted.is_right(*root, form));
        }
        let found = below.into_iter().map(|root| self.wants(root, form, depth + 1, wanted));
        // The first leaf, or the page, ends it.
        Some(found.take_while(Option::is_some).flatten().any(|is_right| is_right))
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

    /// The bytes of a page in a file.
    fn read(&self, file: u64, page: u64) -> Option<Vec<u8>> {
        let (start, bytes) = self.range_of(page)?;
        let mut content = vec![0; bytes as usize];
        self.space.read(file, self.place.begin() + start, &mut content).ok()?;
        Some(content)
    }

    /// A page that is whole, and whether it is the copy.
    fn load(&self, root: Root, form: Form) -> Option<(Vec<u8>, bool)> {
        let is_whole = |page: &Vec<u8>| Content::of(page, form, Some(root.sum)).is_some();
        if let Some(page) = self.read(self.place.file(), root.page).filter(is_whole) {
            return Some((page, false));
        }
        let copy = self.read(self.place.copies(), root.page)?;
        let is_right = is_whole(&copy) || crate::canary!("stale-copy-taken");
        is_right.then_some((copy, true))
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
        let is_copy = loaded.as_ref().is_some_and(|(_, is_copy)| *is_copy);
        let Some(content) = loaded.as_ref().and_then(|(page, _)| Content::of(page, form, None)) else {
            self.survey.lost += 1;
            self.gaps.push((within.first, within.last));
            return Ok(());
        };
        self.survey.copied += u64::from(is_copy);
        self.survey.pages += u64::from(!is_copy);
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
