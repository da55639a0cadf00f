//! Usage pages, the form in which the map store keeps the live bytes of extents: their sum, and
//! pages made from a count. Owns no state: `extents` has the counts in memory, checkpoints write
//! them into the store.

use std::collections::BTreeMap;

use env::MapBatch;
use format::{USAGE_PAGE_EXTENTS, encode_usage_page, usage_key};
use surface::{Error, ErrorKind, Result};
use units::ExtentIndex;

use crate::log::geometry::Geometry;

/// Pages by the first extent that they cover.
pub type Pages = BTreeMap<u32, [u32; USAGE_PAGE_EXTENTS]>;

/// Live bytes by all pages: must equal the checkpoint's sum.
pub fn usage_bytes(pages: &Pages, geometry: &Geometry) -> u64 {
    let live = pages.iter().flat_map(|(first, page)| (*first..).zip(page));
    live.filter(|(extent, _)| *extent < geometry.extents()).map(|(_, live)| u64::from(*live)).sum()
}

pub fn usage_differs(found: u64, expected: u64) -> String {
    format!("usage pages count {found} live bytes, expected {expected}: a page is missing or outdated")
}

/// Live bytes of an extent, as a page holds them.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if no extent can have so many.
pub fn usage_of_extent(bytes: u64) -> Result<u32> {
    let text = || format!("records claim {bytes} live bytes of one extent, more than any can have");
    u32::try_from(bytes).map_err(|_| Error::new(ErrorKind::Corrupt, text()))
}

/// Puts the pages of these extents into `batch`, with the live bytes that were counted.
pub fn put_pages(
    batch: &mut MapBatch,
    extents: impl Iterator<Item = u32>,
    counted: impl Fn(ExtentIndex) -> u64,
) -> Result<()> {
    let mut last = None;
    for first in extents.map(|extent| extent - extent % USAGE_PAGE_EXTENTS as u32) {
        if last.replace(first) == Some(first) {
            continue;
        }
        let mut page = [0; USAGE_PAGE_EXTENTS];
        for (slot, index) in page.iter_mut().zip(first..) {
            *slot = usage_of_extent(counted(ExtentIndex(index)))?;
        }
        batch.put(usage_key(ExtentIndex(first)), encode_usage_page(&page));
    }
    Ok(())
}
