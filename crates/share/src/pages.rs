//! Reads a database page by page without `redb`, which does nothing more after the first error.
//! Owns the knowledge of `redb`'s format (version 3, `docs/design.md` of the crate): each page is
//! found from the one above it, which has its checksum, so that a page is whole or counts as lost
//! with all below it. In place of a page that has a copy the copy is taken (`copies`), if that has
//! the checksum.
//!
//! Only reads, and takes nothing on trust: every number in a page is checked before it is used.

use std::collections::{BTreeMap, HashMap};

use surface::ObjectSpace;
use xxhash_rust::xxh3::xxh3_128;

use crate::backend::{BRANCH, LEAF, PAGE_BYTES, Place, read_header};
use crate::overlay::Table;

const MAGIC: [u8; 9] = *b"redb\x1a\x0a\xa9\x0d\x0a";

/// Levels of a tree of pages at most: a page has several below it, so it never comes near.
const DEPTH_MAX: u32 = 64;

/// Bytes of a page at most: the largest value is that of an extended attribute, 64 KiB.
const PAGE_BYTES_MAX: u64 = 1 << 24;

/// Names of the tables, as [`Table`] numbers them.
pub(crate) const TABLE_NAMES: [&str; 5] = ["inode", "entry", "xattr", "orphan", "trim"];
pub(crate) const META_NAME: &str = "meta";

/// A page, and what it must hold.
#[derive(Clone, Copy)]
struct Root {
    page: u64,
    sum: u128,
}

/// The state of a database's pages.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Survey {
    /// Pages that are whole.
    pub(crate) pages: u64,
    /// Pages that cannot be read, or are not what the page above says. Pages below a lost one
    /// are lost with it, and not counted.
    pub(crate) lost: u64,
    /// Pages that are lost, and of which the copies are whole.
    pub(crate) copied: u64,
    /// Not even the head can be read.
    pub(crate) has_no_head: bool,
    /// The header before the database is lost, which says no more than the database itself.
    pub(crate) has_no_header: bool,
    /// Tables whose beginning is lost.
    pub(crate) tables_lost: Vec<&'static str>,
}

impl Survey {
    pub(crate) fn is_whole(&self) -> bool {
        !self.is_lossy() && self.copied == 0 && !self.has_no_header
    }

    /// Whether anything is lost for good.
    pub(crate) fn is_lossy(&self) -> bool {
        self.lost > 0 || self.has_no_head || !self.tables_lost.is_empty()
    }
}

/// Takes what a database has: entries of the tables, and the facts of `meta`.
pub(crate) trait Take {
    type Error;
    fn pair(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), Self::Error>;
    fn fact(&mut self, name: &str, value: u64);
}

/// Takes nothing: the pages are only looked at.
pub(crate) struct Nothing;

impl Take for Nothing {
    type Error = std::convert::Infallible;
    fn pair(&mut self, _: Table, _: &[u8], _: &[u8]) -> Result<(), Self::Error> {
        Ok(())
    }
    fn fact(&mut self, _: &str, _: u64) {}
}

/// Takes a key and a value.
type Visit<'a, E> = dyn FnMut(&[u8], &[u8]) -> Result<(), E> + 'a;

struct Pages<'a> {
    space: &'a dyn ObjectSpace,
    place: Place,
    length: u64,
    region_bytes: u64,
    region_head_bytes: u64,
    survey: Survey,
}

/// Widths of keys and values that are the same in all of a table.
#[derive(Clone, Copy)]
struct Widths {
    key: Option<usize>,
    value: Option<usize>,
}

const ANY: Widths = Widths { key: None, value: None };

fn u16_at(bytes: &[u8], at: usize) -> Option<usize> {
    Some(usize::from(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?)))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<usize> {
    usize::try_from(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?)).ok()
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn root_at(bytes: &[u8], at: usize) -> Option<Root> {
    let sum = u128::from_le_bytes(*bytes.get(at.checked_add(8)?..)?.first_chunk()?);
    Some(Root { page: u64_at(bytes, at)?, sum })
}

/// Bytes of a head that say something.
const HEAD_BYTES: usize = 320;

/// The head of a database: the roots of its tables and of `redb`'s own as of the last commit, and
/// where pages lie.
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

    /// What a head says of one of the two commits that it has.
    fn of(head: &[u8; HEAD_BYTES], commit: usize) -> Option<Self> {
        let number = |at| u32_at(head, at).unwrap_or(0) as u64;
        let (head_pages, data_pages) = (number(16), number(20));
        if head[..9] != MAGIC || number(12) != PAGE_BYTES || data_pages == 0 {
            return None;
        }
        let slot = &head[64 + commit * 128..][..128];
        let sum = slot[112..].first_chunk().map(|sum| u128::from_le_bytes(*sum));
        if sum != Some(xxh3_128(&slot[..112])) {
            return None;
        }
        Some(Self {
            tables: if slot[1] == 0 { None } else { Some(root_at(slot, 8)?) },
            own_tables: if slot[2] == 0 { None } else { Some(root_at(slot, 40)?) },
            region_bytes: (head_pages + data_pages) * PAGE_BYTES,
            region_head_bytes: head_pages * PAGE_BYTES,
        })
    }
}

/// The first head that can be read at one of the places, and whether it is a copy.
fn head_at(space: &dyn ObjectSpace, places: &[Place]) -> Option<(Place, Head, bool)> {
    let itself = places.iter().map(|place| (*place, place.file(), false));
    let copies = places.iter().map(|place| (*place, place.copies(), true));
    itself
        .chain(copies)
        .find_map(|(place, file, is_copy)| Some((place, Head::read(space, file, place.begin())?, is_copy)))
}

/// Where a database is if there is no header that says it.
pub(crate) fn found_without_header(space: &dyn ObjectSpace) -> Option<Place> {
    head_at(space, &[Place::First, Place::Second]).map(|(place, ..)| place)
}

/// Reads the whole pages of the database of a space, and gives their pairs to `take`.
///
/// # Errors
/// Those of `take`.
pub(crate) fn survey<T: Take>(space: &dyn ObjectSpace, take: &mut T) -> Result<Survey, T::Error> {
    let header = read_header(space).ok().flatten();
    let places = header.map_or(vec![Place::First, Place::Second], |(place, _)| vec![place]);
    let has_no_header = header.is_none();
    let Some((place, head, is_copy)) = head_at(space, &places) else {
        return Ok(Survey { has_no_head: true, has_no_header, ..Survey::default() });
    };
    // The database says itself how long it is, about.
    let length = header.map_or(u64::MAX, |(_, length)| length);
    let mut pages = Pages::new(space, place, length, &head);
    pages.survey = Survey { copied: u64::from(is_copy), has_no_header, ..Survey::default() };
    pages.tables(head.tables, take)?;
    Ok(pages.survey)
}

/// Reads a page from its copy, if the pages above it say that this is the right one; `false` if it
/// has none, or they do not.
pub(crate) fn read_copy(space: &dyn ObjectSpace, place: Place, length: u64, offset: u64, out: &mut [u8]) -> bool {
    let mut copy = vec![0; out.len()];
    let is_there = space.read(place.copies(), place.begin() + offset, &mut copy).is_ok();
    // Looked at first: most pages are leaves, and have none.
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

/// Pages by where they lie, with their checksums: first leaves that were read, and the pages above
/// them. Below those nothing is new.
pub(crate) type Seen = HashMap<u64, u128>;

/// The end of the way to a first leaf.
enum FirstLeaf {
    /// Its content.
    Read(Vec<u8>),
    /// A page that has been seen: the leaf is as it was.
    Seen,
    /// A page that cannot be read.
    Lost,
}

/// Hands the first leaf of each table to `take`, as of both commits that the head has, with the
/// place where it lies, as far as it is not in `seen`. Not one that is longer than a page mostly
/// is. `redb`'s own tables are left out: no name is lost with them, and each commit writes them.
///
/// A leaf that cannot be read is looked for again the next time, whether or not anything has been
/// written by then.
///
/// # Errors
/// Those of `take`.
pub(crate) fn first_leaves<E>(
    space: &dyn ObjectSpace,
    place: Place,
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
        let (leaf, way) = pages.first_leaf(root, ANY, seen, &mut take)?;
        let FirstLeaf::Read(tables) = leaf else { continue };
        let Some(Content::Leaf(tables)) = Content::of(&tables, ANY, None) else { continue };
        let mut is_any_lost = false;
        for (root, widths) in tables.into_iter().filter_map(|(_, table)| definition(table)) {
            let Some(root) = root else { continue };
            match pages.first_leaf(root, widths, seen, &mut take)? {
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

/// A page that is looked for, and the copy that it may have.
struct Wanted<'a> {
    offset: u64,
    copy: &'a [u8],
}

impl Wanted<'_> {
    fn is_right(&self, root: Root, widths: Widths) -> bool {
        Content::of(self.copy, widths, Some(root.sum)).is_some()
    }
}

impl<'a> Pages<'a> {
    fn new(space: &'a dyn ObjectSpace, place: Place, length: u64, head: &Head) -> Self {
        let (region_bytes, region_head_bytes) = (head.region_bytes, head.region_head_bytes);
        Self { space, place, length, region_bytes, region_head_bytes, survey: Survey::default() }
    }

    /// The first leaf from `root` on, and the pages on the way to it that are not in `seen`.
    fn first_leaf<E>(
        &self,
        mut root: Root,
        widths: Widths,
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
            let Some((page, is_copy)) = self.load(root, widths) else { break };
            match Content::of(&page, widths, None) {
                Some(Content::Branch(below)) => root = below[0],
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

    /// Whether a page of some tables is wanted, and its copy is what it must be.
    fn tables_want(&mut self, root: Root, wanted: &Wanted<'_>) -> bool {
        let mut roots = vec![(root, ANY)];
        let Ok(()) = self.walk::<std::convert::Infallible>(root, ANY, 0, &mut |_, table| {
            roots.extend(definition(table).and_then(|(root, widths)| Some((root?, widths))));
            Ok(())
        });
        roots.into_iter().any(|(root, widths)| self.wants(root, widths, 0, wanted) == Some(true))
    }

    /// The same of the pages from `root` on; `None`: it is a leaf, and so are all beside it.
    fn wants(&self, root: Root, widths: Widths, depth: u32, wanted: &Wanted<'_>) -> Option<bool> {
        let is_it = |root: &Root| self.range_of(root.page).is_some_and(|(start, _)| start == wanted.offset);
        if is_it(&root) {
            return Some(wanted.is_right(root, widths));
        }
        let Some((page, _)) = self.load(root, widths).filter(|_| depth < DEPTH_MAX) else { return Some(false) };
        let Some(Content::Branch(below)) = Content::of(&page, widths, None) else { return None };
        if let Some(root) = below.iter().find(|root| is_it(root)) {
            return Some(wanted.is_right(*root, widths));
        }
        let found = below.into_iter().map(|root| self.wants(root, widths, depth + 1, wanted));
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
            self.walk::<T::Error>(root, ANY, 0, &mut enter)?;
        }
        for (table, name) in Table::ALL.into_iter().zip(TABLE_NAMES) {
            match found.get(name.as_bytes()).and_then(|table| definition(table)) {
                Some((Some(root), widths)) => {
                    self.walk(root, widths, 0, &mut |key, value| take.pair(table, key, value))?;
                }
                Some((None, _)) => {}
                None => self.survey.tables_lost.push(name),
            }
        }
        match found.get(META_NAME.as_bytes()).and_then(|table| definition(table)) {
            Some((Some(root), widths)) => self.walk(root, widths, 0, &mut |key, value| {
                if let (Ok(name), Some(value)) = (std::str::from_utf8(key), u64_at(value, 0)) {
                    take.fact(name, value);
                }
                Ok(())
            })?,
            _ => self.survey.tables_lost.push(META_NAME),
        }
        Ok(())
    }

    /// Where a page lies, and how long it is.
    fn range_of(&self, page: u64) -> Option<(u64, u64)> {
        let order = page >> 59;
        let bytes = PAGE_BYTES.checked_shl(u32::try_from(order).ok()?)?;
        let (index, region) = (page & (0xf_ffff >> order), page >> 20 & 0xf_ffff);
        let start = PAGE_BYTES + region * self.region_bytes + self.region_head_bytes + index * bytes;
        (bytes <= PAGE_BYTES_MAX && start.checked_add(bytes)? <= self.length).then_some((start, bytes))
    }

    /// The bytes of a page in a file.
    fn read(&self, file: u64, page: u64) -> Option<Vec<u8>> {
        let (start, bytes) = self.range_of(page)?;
        let mut content = vec![0; bytes as usize];
        self.space.read(file, self.place.begin() + start, &mut content).ok()?;
        Some(content)
    }

    /// A page that is whole, and whether it is the copy.
    fn load(&self, root: Root, widths: Widths) -> Option<(Vec<u8>, bool)> {
        let is_whole = |page: &Vec<u8>| Content::of(page, widths, Some(root.sum)).is_some();
        if let Some(page) = self.read(self.place.file(), root.page).filter(is_whole) {
            return Some((page, false));
        }
        let copy = self.read(self.place.copies(), root.page)?;
        let is_right = is_whole(&copy) || crate::canary!("stale-copy-taken");
        is_right.then_some((copy, true))
    }

    /// Hands the pairs of a page, and of those below it, to `visit`.
    fn walk<E>(&mut self, root: Root, widths: Widths, depth: u32, visit: &mut Visit<'_, E>) -> Result<(), E> {
        let loaded = self.load(root, widths).filter(|_| depth < DEPTH_MAX);
        let is_copy = loaded.as_ref().is_some_and(|(_, is_copy)| *is_copy);
        let Some(content) = loaded.as_ref().and_then(|(page, _)| Content::of(page, widths, None)) else {
            self.survey.lost += 1;
            return Ok(());
        };
        self.survey.copied += u64::from(is_copy);
        self.survey.pages += u64::from(!is_copy);
        match content {
            Content::Leaf(pairs) => {
                for (key, value) in pairs {
                    visit(key, value)?;
                }
            }
            Content::Branch(below) => {
                for page in below {
                    self.walk(page, widths, depth + 1, visit)?;
                }
            }
        }
        Ok(())
    }
}

/// What a table is: its root, and the widths of its keys and values.
fn definition(bytes: &[u8]) -> Option<(Option<Root>, Widths)> {
    // Type 1, length 8, root: whether there is one 1, page 8, sum 16, length 8; widths: whether
    // there is one 1, width 4.
    if *bytes.first()? != 3 {
        return None;
    }
    let root = if *bytes.get(9)? == 0 { None } else { Some(root_at(bytes, 10)?) };
    let width = |at: usize| Some(if *bytes.get(at)? == 0 { None } else { Some(u32_at(bytes, at + 1)?) });
    Some((root, Widths { key: width(42)?, value: width(47)? }))
}

enum Content<'a> {
    Leaf(Vec<(&'a [u8], &'a [u8])>),
    Branch(Vec<Root>),
}

impl<'a> Content<'a> {
    /// Content of a page; `None` if its checksum is not `sum`, unless that was looked at before.
    fn of(page: &'a [u8], widths: Widths, sum: Option<u128>) -> Option<Self> {
        let count = u16_at(page, 2).filter(|count| *count > 0)?;
        let is_right = |end: usize| page.get(..end).is_some_and(|bytes| sum.is_none_or(|sum| xxh3_128(bytes) == sum));
        match *page.first()? {
            LEAF => {
                let keys_at = 4;
                let values_at = keys_at + if widths.key.is_none() { 4 * count } else { 0 };
                let start = values_at + if widths.value.is_none() { 4 * count } else { 0 };
                let key_end = |n: usize| match widths.key {
                    Some(width) => Some(start + width * (n + 1)),
                    None => u32_at(page, keys_at + 4 * n),
                };
                let keys_end = key_end(count - 1)?;
                let value_end = |n: usize| match widths.value {
                    Some(width) => Some(keys_end + width * (n + 1)),
                    None => u32_at(page, values_at + 4 * n),
                };
                if !is_right(value_end(count - 1)?) {
                    return None;
                }
                let (mut pairs, mut key_from, mut value_from) = (Vec::with_capacity(count), start, keys_end);
                for n in 0..count {
                    let (key_to, value_to) = (key_end(n)?, value_end(n)?);
                    pairs.push((page.get(key_from..key_to)?, page.get(value_from..value_to)?));
                    (key_from, value_from) = (key_to, value_to);
                }
                Some(Self::Leaf(pairs))
            }
            BRANCH => {
                let (sums, pages) = (8, 8 + 16 * (count + 1));
                let keys = pages + 8 * (count + 1);
                let end = match widths.key {
                    Some(width) => keys + width * count,
                    None => u32_at(page, keys + 4 * (count - 1))?,
                };
                if !is_right(end) {
                    return None;
                }
                let below = |n: usize| {
                    let sum = u128::from_le_bytes(*page.get(sums + 16 * n..)?.first_chunk()?);
                    Some(Root { page: u64_at(page, pages + 8 * n)?, sum })
                };
                (0..=count).map(below).collect::<Option<Vec<_>>>().map(Self::Branch)
            }
            _ => None,
        }
    }
}
