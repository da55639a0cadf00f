//! The content of a disk at a point in time: sparse, and copied on write by page, so that keeping
//! two of them (the visible content, and the one certain to survive) only costs the difference.
//! Knows nothing of durability.

use std::sync::Arc;

/// Bytes of a page: the unit of sharing and of occupation.
pub(crate) const PAGE: usize = 4096;

type Page = Arc<[u8; PAGE]>;

/// A sparse array of bytes. Unwritten ranges read as zeroes.
#[derive(Debug, Clone)]
pub(crate) struct Image {
    pages: Vec<Option<Page>>,
}

impl Image {
    pub fn new(size_bytes: u64) -> Self {
        assert!(
            size_bytes.is_multiple_of(PAGE as u64),
            "size of a simulated disk: {size_bytes} is no multiple of {PAGE}"
        );
        Self { pages: vec![None; (size_bytes / PAGE as u64) as usize] }
    }

    pub fn size_bytes(&self) -> u64 {
        (self.pages.len() * PAGE) as u64
    }

    pub fn read(&self, offset: u64, out: &mut [u8]) {
        for (page, within, range) in pieces(offset, out.len()) {
            let len = range.len();
            match &self.pages[page] {
                Some(bytes) => out[range].copy_from_slice(&bytes[within..within + len]),
                None => out[range].fill(0),
            }
        }
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) {
        for (page, within, range) in pieces(offset, data.len()) {
            let slot = &mut self.pages[page];
            if range.len() == PAGE {
                let whole: [u8; PAGE] = data[range].try_into().unwrap();
                *slot = Some(Arc::new(whole));
                continue;
            }
            let bytes = Arc::make_mut(slot.get_or_insert_with(|| Arc::new([0; PAGE])));
            bytes[within..within + range.len()].copy_from_slice(&data[range]);
        }
    }

    /// Copies the pages that contain the range from another image.
    pub fn copy_pages(&mut self, from: &Self, offset: u64, len: usize) {
        for (page, _, _) in pieces(offset, len) {
            self.pages[page].clone_from(&from.pages[page]);
        }
    }

    pub fn flip_bit(&mut self, offset: u64, bit: u8) {
        let mut byte = [0];
        self.read(offset, &mut byte);
        self.write(offset, &[byte[0] ^ 1 << (bit & 7)]);
    }
}

/// Cuts a range of bytes at page boundaries: page, first byte within it, range within the caller's
/// buffer.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (usize, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let (page, within) = ((at / PAGE as u64) as usize, (at % PAGE as u64) as usize);
        let take = (PAGE - within).min(len - done);
        let range = done..done + take;
        done += take;
        Some((page, within, range))
    })
}
