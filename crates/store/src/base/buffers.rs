//! A pool of aligned buffers: allocating and clearing a megabyte for each batch would cost as much
//! as copying it.

use std::sync::Arc;

use env::{AlignedBuf, Arena, HUGE_PAGE_BYTES, Pages};

use crate::base::ranked::Mutex;
use crate::base::ranks;

/// Bytes of buffers kept: a part of the memory budget, and a lower bound, enough for each batch
/// that may wait for a writer, and those being filled or read.
const KEPT_DIVISOR: u64 = 16;
const KEPT_BYTES_MIN: usize = 12 << 20;
const KEPT_BYTES_MAX: usize = 32 << 20;
/// Larger buffers are not kept: they come from unusual extents.
const BUFFER_BYTES_MAX: usize = 2 << 20;
/// Smallest buffer.
const BUFFER_BYTES_MIN: usize = 4 << 10;
/// Sizes are powers of two, and from this one on with three steps between them, so that every
/// buffer serves many lengths and none is much longer than requested: a batch is a little more than
/// a megabyte.
const STEPPED_BYTES_MIN: usize = 32 << 10;
const STEPS: usize = 4;
/// Larger reads use huge pages; a read of one page is a single segment anyway.
const SMALL_READ_BYTES_MAX: usize = 4 << 10;
/// Large reads in flight: a part of the memory budget, and an upper bound of 128 requests of 128
/// KiB (a read of 65 KiB takes a buffer of that size as well).
const LARGE_READS_DIVISOR: u64 = 24;
const LARGE_READS_BYTES_MAX: u64 = 16 << 20;
/// One list for each size.
const CLASSES: usize = ((BUFFER_BYTES_MAX / BUFFER_BYTES_MIN).ilog2() as usize + 1) * STEPS;

#[derive(Default)]
struct Class {
    /// The buffer returned last is used first: it is still in the processor's cache.
    buffers: Vec<AlignedBuf>,
    /// When one was last requested, counted in requests of all classes.
    asked: u64,
}

struct Kept {
    classes: [Class; CLASSES],
    bytes: usize,
    requests: u64,
}

pub struct BufferPool {
    bytes_max: usize,
    kept: Mutex<Kept, ranks::Buffers>,
    /// Huge pages for reads. `None` where there is little memory.
    huge: Option<Arc<Arena>>,
}

impl Default for BufferPool {
    fn default() -> Self {
        Self::new(0)
    }
}

/// Bytes of large reads that a pool with so much memory may have in flight: about the bytes in huge
/// pages.
pub fn large_reads_bytes(memory_bytes: u64) -> u64 {
    (memory_bytes / LARGE_READS_DIVISOR).min(LARGE_READS_BYTES_MAX)
}

/// Returns the smallest buffer size that holds `len` bytes.
fn size_for(len: usize) -> usize {
    let power = len.next_power_of_two().max(BUFFER_BYTES_MIN);
    if power < STEPPED_BYTES_MIN { power } else { len.next_multiple_of(power / 2 / STEPS) }
}

/// The list of buffers of exactly `len` bytes.
fn class_of(len: usize) -> Option<usize> {
    let is_kept = (BUFFER_BYTES_MIN..=BUFFER_BYTES_MAX).contains(&len) && size_for(len) == len;
    is_kept.then(|| {
        let power = len.next_power_of_two();
        let below = (power - len) / (power / 2 / STEPS);
        (power / BUFFER_BYTES_MIN).ilog2() as usize * STEPS + below
    })
}

impl Kept {
    /// Returns the class that was not requested for longest.
    fn stalest(&mut self) -> Option<&mut Class> {
        self.classes.iter_mut().filter(|class| !class.buffers.is_empty()).min_by_key(|class| class.asked)
    }
}

impl BufferPool {
    /// Returns a pool for this memory budget.
    pub fn new(memory_bytes: u64) -> Self {
        let bytes_max = ((memory_bytes / KEPT_DIVISOR) as usize).clamp(KEPT_BYTES_MIN, KEPT_BYTES_MAX);
        let classes = std::array::from_fn(|_| Class::default());
        let huge_bytes = large_reads_bytes(memory_bytes) as usize / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
        // Without them reads are slower; there is no other effect.
        let reserve = || Arena::reserve(huge_bytes, Pages::Huge).ok();
        let huge = (huge_bytes > 0).then(reserve).flatten();
        Self { bytes_max, kept: Mutex::new(Kept { classes, bytes: 0, requests: 0 }), huge }
    }

    /// A buffer of at least `len` bytes with any content, for the device to read into.
    #[inline]
    pub fn get_for_reading(&self, len: usize) -> AlignedBuf {
        self.get_large(len).unwrap_or_else(|| self.get(len))
    }

    /// Returns a buffer in huge pages of at least `len` bytes with any content, if the length
    /// justifies one and there is room, for a caller that otherwise has a buffer of its own.
    pub fn get_large(&self, len: usize) -> Option<AlignedBuf> {
        let arena = self.huge.as_ref().filter(|_| len > SMALL_READ_BYTES_MAX)?;
        AlignedBuf::of_arena(arena, len)
    }

    /// A buffer of at least `len` bytes with any content.
    pub fn get(&self, len: usize) -> AlignedBuf {
        let len = size_for(len);
        let kept = class_of(len).and_then(|class| {
            let mut kept = self.kept.lock();
            kept.requests += 1;
            kept.classes[class].asked = kept.requests;
            let buf = kept.classes[class].buffers.pop()?;
            kept.bytes -= len;
            Some(buf)
        });
        kept.unwrap_or_else(|| AlignedBuf::new(len))
    }

    /// Returns a buffer to the pool. If there are too many, those of unrequested sizes are freed.
    pub fn put(&self, buf: AlignedBuf) {
        let Some(class) = class_of(buf.len()).filter(|_| !buf.is_of_arena()) else { return };
        let mut dropped = Vec::new();
        let mut kept = self.kept.lock();
        kept.bytes += buf.len();
        kept.classes[class].buffers.push(buf);
        while kept.bytes > self.bytes_max
            && let Some(buf) = kept.stalest().and_then(|class| class.buffers.pop())
        {
            kept.bytes -= buf.len();
            dropped.push(buf);
        }
        // Freeing memory takes time: not under the lock.
        drop(kept);
    }
}

/// A buffer that returns to the pool when it is dropped.
pub struct PooledBuf {
    /// `None` only during the drop.
    buf: Option<AlignedBuf>,
    len: usize,
    home: Arc<BufferPool>,
}

impl PooledBuf {
    /// Exactly `len` bytes with any content.
    pub fn new(home: &Arc<BufferPool>, len: usize) -> Self {
        Self { buf: Some(home.get(len)), len, home: home.clone() }
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        self.buf.as_deref_mut().map_or(&mut [], |buf| &mut buf[..self.len])
    }
}

impl AsRef<[u8]> for PooledBuf {
    fn as_ref(&self) -> &[u8] {
        self.buf.as_deref().map_or(&[], |buf| &buf[..self.len])
    }
}

impl Drop for PooledBuf {
    fn drop(&mut self) {
        if let Some(buf) = self.buf.take() {
            self.home.put(buf);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_serves_every_length_of_its_class_and_no_more_are_kept_than_allowed() {
        let pool = BufferPool::default();
        let mut buf = pool.get(300 << 10);
        assert_eq!(buf.len(), 320 << 10);
        buf[0] = 7;
        pool.put(buf);
        assert_eq!(pool.get(1 << 10).len(), BUFFER_BYTES_MIN);
        assert_eq!(pool.get(257 << 10)[0], 7, "used again");
        let many: Vec<_> = (0..20).map(|_| pool.get(1 << 20)).collect();
        many.into_iter().for_each(|buf| pool.put(buf));
        assert_eq!(pool.kept.lock().bytes, KEPT_BYTES_MIN);
        pool.put(pool.get(3 << 20));
        pool.put(AlignedBuf::new(12 << 10));
        pool.put(AlignedBuf::new(36 << 10));
        assert_eq!(pool.kept.lock().bytes, KEPT_BYTES_MIN, "none is of a class");
    }

    #[test]
    fn reads_of_more_than_a_page_have_huge_pages_as_long_as_there_are_any() {
        let pool = BufferPool::new(48 << 20);
        assert!(pool.get_large(4096).is_none() && !pool.get_for_reading(4096).is_of_arena());
        let all: Vec<_> = (0..3).map(|_| pool.get_for_reading(1 << 20)).collect();
        assert_eq!(all.iter().map(AlignedBuf::is_of_arena).collect::<Vec<_>>(), [true, true, false]);
        all.into_iter().for_each(|buf| pool.put(buf));
        assert_eq!(pool.kept.lock().bytes, 1 << 20, "what is the arena's goes back there");
        for len in [4097, 100_000] {
            assert!(pool.get_large(len).is_some_and(|buf| buf.len() >= len));
        }
        assert!(BufferPool::new(47 << 20).get_large(1 << 20).is_none());
    }

    /// A store full of buffer sizes that are no longer requested must accept others; otherwise each
    /// batch is allocated and cleared again.
    #[test]
    fn sizes_that_are_asked_for_no_more_make_room() {
        let pool = BufferPool::default();
        let many: Vec<_> = (0..20).map(|_| pool.get(1 << 20)).collect();
        many.into_iter().for_each(|buf| pool.put(buf));
        let mut buf = pool.get(2 << 20);
        buf[0] = 7;
        pool.put(buf);
        assert_eq!(pool.kept.lock().bytes, KEPT_BYTES_MIN);
        assert_eq!(pool.get(2 << 20)[0], 7, "used again");
    }

    #[test]
    fn every_size_has_a_list_of_its_own_and_wastes_little() {
        let mut lists = std::collections::BTreeMap::new();
        for len in (1..=BUFFER_BYTES_MAX).step_by(509) {
            let size = size_for(len);
            assert!(size >= len && (size <= BUFFER_BYTES_MIN.max(2 * len)), "{len}: {size}");
            assert!(len < STEPPED_BYTES_MIN || size <= len + len / 4 + 1, "{len}: {size}");
            let list = class_of(size).unwrap();
            assert!(list < CLASSES && *lists.entry(list).or_insert(size) == size, "{len}: {size}");
        }
    }

    #[test]
    fn the_buffer_of_a_unit_comes_back_when_nobody_reads_it_any_more() {
        let pool = Arc::new(BufferPool::default());
        let mut unit = PooledBuf::new(&pool, 5000);
        unit.bytes().fill(7);
        let part = bytes::Bytes::from_owner(unit).slice(1..);
        assert_eq!(pool.get(5000)[0], 0, "it is in use");
        assert_eq!(part, vec![7; 4999]);
        drop(part);
        assert_eq!(pool.get(8192)[..5000], [7; 5000]);
    }
}
