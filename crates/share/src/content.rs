//! The content of pages of `redb`'s trees, and their validity. Owns the knowledge of this part of
//! `redb`'s format (version 3, `docs/design.md` of the crate).
//!
//! Trusts nothing: each length and offset in a page is checked before it is used. A page that
//! passes has no byte that would make `redb` read out of bounds.

use std::str::from_utf8;

use xxhash_rust::xxh3::xxh3_128;

use crate::backend::{BRANCH, LEAF};

/// Doublings of a page at most, 16 MiB: the largest value is that of an extended attribute, 64 KiB.
pub(crate) const ORDER_MAX: u64 = 12;

/// Length of the keys in `redb`'s list of free pages, which begin with their kind.
const FREE_KEY_BYTES: usize = 5;
const FREE_KINDS_MAX: u8 = 5;
const FREE_COMMIT: u8 = 5;

/// Reference to a page, with its expected content.
#[derive(Clone, Copy)]
pub(crate) struct Root {
    pub(crate) page: u64,
    pub(crate) sum: u128,
}

impl Root {
    /// Decodes the reference to a page in a parent page, a table or a head; `None` if the page
    /// would be too long.
    pub(crate) fn at(bytes: &[u8], at: usize) -> Option<Self> {
        let sum = u128::from_le_bytes(*bytes.get(at.checked_add(8)?..)?.first_chunk()?);
        Self::of(u64_at(bytes, at)?, sum)
    }

    fn of(page: u64, sum: u128) -> Option<Self> {
        (page >> 59 <= ORDER_MAX).then_some(Self { page, sum })
    }
}

/// Layout of the keys and values of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Form {
    /// Widths of keys and values that are the same in all of the table.
    pub(crate) key: Option<usize>,
    pub(crate) value: Option<usize>,
    /// Keys are text.
    pub(crate) is_text: bool,
}

/// Bytes of any length, and the table of the tables.
pub(crate) const ANY: Form = Form { key: None, value: None, is_text: false };
pub(crate) const OF_TABLES: Form = Form { is_text: true, ..ANY };

impl Form {
    fn fits(self, keys: &[&[u8]]) -> bool {
        let is_fit = |key: &&[u8]| match self.key {
            Some(FREE_KEY_BYTES) => key[0] <= FREE_KINDS_MAX,
            Some(_) => true,
            None => !self.is_text || from_utf8(key).is_ok(),
        };
        // Numbers are in another order than their bytes.
        keys.iter().all(is_fit) && (self.key.is_some() || keys.is_sorted_by(|before, behind| before < behind))
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<usize> {
    Some(usize::from(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?)))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<usize> {
    usize::try_from(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?)).ok()
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Decodes a table's definition: its root, and its layout. `None` if it is not a table.
pub(crate) fn definition(bytes: &[u8]) -> Option<(Option<Root>, Form)> {
    // Type 1, length 8, root: whether there is one 1, page 8, sum 16, length 8; widths: whether
    // there is one 1, width 4; alignments 4 and 4; types of keys, with their length 4, and values.
    if *bytes.first()? != 3 {
        return None;
    }
    let root = if *bytes.get(9)? == 0 { None } else { Some(Root::at(bytes, 10)?) };
    let width = |at: usize| Some(if *bytes.get(at)? == 0 { None } else { Some(u32_at(bytes, at + 1)?) });
    let (key, value) = (width(42)?, width(47)?);
    let (keys, values) = bytes.get(64..)?.split_at_checked(u32_at(bytes, 60)?)?;
    let is_text = type_name(keys)? == "&str";
    type_name(values)?;
    Some((root, Form { key, value, is_text }))
}

/// Number of pairs according to the table, and according to its root.
pub(crate) fn recorded_counts(bytes: &[u8]) -> Option<(u64, u64)> {
    Some((u64_at(bytes, 1)?, if *bytes.get(9)? == 0 { 0 } else { u64_at(bytes, 34)? }))
}

/// The name of a type, preceded by a byte for its kind.
fn type_name(bytes: &[u8]) -> Option<&str> {
    let (kind, name) = bytes.split_first()?;
    from_utf8(name).ok().filter(|_| (1..=4).contains(kind))
}

/// The content of a page.
pub(crate) enum Content<'a> {
    /// Keys and values.
    Leaf(Vec<(&'a [u8], &'a [u8])>),
    /// Child pages, and the numeric prefixes of the keys between them; none if the keys are not
    /// numbers.
    Branch(Vec<Root>, Vec<u64>),
}

/// Parts of a page that follow each other from `start` on, and where they end. They have a width,
/// or their ends are at `ends_at`.
fn parts(page: &[u8], count: usize, width: Option<usize>, ends_at: usize, start: usize) -> Option<(Vec<&[u8]>, usize)> {
    let mut from = start;
    let part = |n: usize| {
        let to = match width {
            Some(width) => from.checked_add(width)?,
            None => u32_at(page, ends_at + 4 * n)?,
        };
        let part = page.get(from..to)?;
        from = to;
        Some(part)
    };
    let parts = (0..count).map(part).collect::<Option<Vec<_>>>()?;
    Some((parts, from))
}

impl<'a> Content<'a> {
    /// Decodes a page; `None` if it is invalid, or if its checksum is not `sum`, unless that was
    /// checked before.
    pub(crate) fn of(page: &'a [u8], form: Form, sum: Option<u128>) -> Option<Self> {
        let count = u16_at(page, 2).filter(|count| *count > 0)?;
        let is_right = |end: usize| sum.is_none_or(|sum| xxh3_128(&page[..end]) == sum);
        let ends = |width: Option<usize>| if width.is_none() { 4 * count } else { 0 };
        match *page.first()? {
            LEAF => {
                let values_at = 4 + ends(form.key);
                let (keys, keys_end) = parts(page, count, form.key, 4, values_at + ends(form.value))?;
                let (values, end) = parts(page, count, form.value, values_at, keys_end)?;
                let pairs: Vec<_> = keys.iter().copied().zip(values).collect();
                let of_free = |(key, value): &(&[u8], &[u8])| key[0] != FREE_COMMIT || value.len() == 8;
                let fits = form.fits(&keys) && (form.key != Some(FREE_KEY_BYTES) || pairs.iter().all(of_free));
                (fits && is_right(end)).then_some(Self::Leaf(pairs))
            }
            BRANCH => {
                let (sums_at, pages_at) = (8, 8 + 16 * (count + 1));
                let ends_at = pages_at + 8 * (count + 1);
                let (keys, end) = parts(page, count, form.key, ends_at, ends_at + ends(form.key))?;
                if !form.fits(&keys) || !is_right(end) {
                    return None;
                }
                let below = |n: usize| {
                    let sum = u128::from_le_bytes(*page.get(sums_at + 16 * n..)?.first_chunk()?);
                    Root::of(u64_at(page, pages_at + 8 * n)?, sum)
                };
                let number = |key: &&[u8]| Some(u64::from_be_bytes(*key.first_chunk()?));
                let between = keys.iter().map(number).collect::<Option<Vec<_>>>().unwrap_or_default();
                (0..=count).map(below).collect::<Option<Vec<_>>>().map(|below| Self::Branch(below, between))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A leaf of two keys and values of any length.
    fn leaf() -> Vec<u8> {
        let mut page = vec![LEAF, 0, 2, 0];
        for end in [21_u32, 23, 25, 28] {
            page.extend(end.to_le_bytes());
        }
        page.extend(b"abcvvwww");
        page
    }

    fn is_page(page: &[u8], form: Form) -> bool {
        Content::of(page, form, None).is_some()
    }

    #[test]
    fn ends_that_contradict_each_other_make_no_page() {
        assert!(is_page(&leaf(), ANY));
        for (at, end) in [(4, 19), (4, 24), (4, 255), (8, 20), (8, 26), (12, 22), (12, 29), (16, 24), (16, 29)] {
            let mut page = leaf();
            page[at] = end;
            assert!(!is_page(&page, ANY), "{end} at {at}");
        }
        for count in [0, 3, 255] {
            let mut page = leaf();
            page[2] = count;
            assert!(!is_page(&page, ANY), "{count}");
        }
        (0..leaf().len()).for_each(|length| assert!(!is_page(&leaf()[..length], ANY), "{length}"));
    }

    #[test]
    fn keys_out_of_order_or_that_are_no_text_make_no_page() {
        let mut page = leaf();
        (page[20], page[21]) = (b'b', b'a');
        assert!(!is_page(&page, ANY));
        page[20] = 0xff;
        assert!(!is_page(&page, ANY));
        let mut page = leaf();
        page[21] = 0xff;
        assert!(is_page(&page, ANY) && !is_page(&page, OF_TABLES));
    }

    #[test]
    fn a_page_below_that_no_page_could_be_makes_no_branch() {
        let mut page = vec![BRANCH, 0, 1, 0, 0, 0, 0, 0];
        page.extend([0; 32]);
        for below in [7_u64, 8] {
            page.extend(below.to_le_bytes());
        }
        page.extend(61_u32.to_le_bytes());
        page.push(b'k');
        assert!(is_page(&page, ANY));
        page[55] = (ORDER_MAX as u8) << 3;
        assert!(is_page(&page, ANY));
        page[55] = (ORDER_MAX as u8 + 1) << 3;
        assert!(!is_page(&page, ANY));
    }

    #[test]
    fn keys_of_the_list_of_free_pages_are_known_ones() {
        let form = Form { key: Some(FREE_KEY_BYTES), ..ANY };
        let page = |kind: u8, length: usize| {
            let mut page = vec![LEAF, 0, 1, 0];
            page.extend((13 + length as u32).to_le_bytes());
            page.extend([kind, 0, 0, 0, 0]);
            page.extend(vec![0; length]);
            page
        };
        assert!(is_page(&page(3, 20), form) && is_page(&page(5, 8), form));
        assert!(!is_page(&page(5, 7), form) && !is_page(&page(6, 20), form));
    }
}
