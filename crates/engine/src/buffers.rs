//! Aligned buffers that are used again: allocating and clearing a megabyte for each batch would cost as much as copying it.

use std::sync::Arc;

use env::AlignedBuf;
use parking_lot::Mutex;

/// Bytes kept: for each batch that may wait for a writer with the default budget, and those that are being filled or read.
const KEPT_BYTES_MAX: usize = 12 << 20;
/// Larger buffers are not kept: they come from unusual extents.
const BUFFER_BYTES_MAX: usize = 2 << 20;
/// Smallest buffer.
const BUFFER_BYTES_MIN: usize = 4 << 10;
/// Sizes are powers of two, and from this one on three steps between them, so that every buffer serves many lengths and none is much
/// longer than was asked for: a batch is a little more than a megabyte.
const STEPPED_BYTES_MIN: usize = 32 << 10;
const STEPS: usize = 4;
/// One list for each size.
const CLASSES: usize = ((BUFFER_BYTES_MAX / BUFFER_BYTES_MIN).ilog2() as usize + 1) * STEPS;

struct Kept {
    /// The last one that came back is used first: it is still in the processor's cache.
    classes: [Vec<AlignedBuf>; CLASSES],
    bytes: usize,
}

impl Default for Kept {
    fn default() -> Self {
        Self { classes: std::array::from_fn(|_| Vec::new()), bytes: 0 }
    }
}

#[derive(Default)]
pub(crate) struct BufferPool {
    kept: Mutex<Kept>,
}

/// The least size of buffers that holds `len` bytes.
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

impl BufferPool {
    /// A buffer of at least `len` bytes with any content.
    pub(crate) fn get(&self, len: usize) -> AlignedBuf {
        let len = size_for(len);
        let kept = class_of(len).and_then(|class| {
            let mut kept = self.kept.lock();
            let buf = kept.classes[class].pop()?;
            kept.bytes -= len;
            Some(buf)
        });
        kept.unwrap_or_else(|| AlignedBuf::new(len))
    }

    /// Gives a buffer back.
    pub(crate) fn put(&self, buf: AlignedBuf) {
        let Some(class) = class_of(buf.len()) else { return };
        let mut kept = self.kept.lock();
        if kept.bytes + buf.len() <= KEPT_BYTES_MAX {
            kept.bytes += buf.len();
            kept.classes[class].push(buf);
        }
    }
}

/// A buffer of some length; it goes back when it is dropped.
pub(crate) struct PooledBuf {
    /// `None` only while it is dropped.
    buf: Option<AlignedBuf>,
    len: usize,
    home: Arc<BufferPool>,
}

impl PooledBuf {
    /// Exactly `len` bytes with any content.
    pub(crate) fn new(home: &Arc<BufferPool>, len: usize) -> Self {
        Self { buf: Some(home.get(len)), len, home: home.clone() }
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
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
        assert_eq!(pool.kept.lock().bytes, KEPT_BYTES_MAX);
        pool.put(pool.get(3 << 20));
        pool.put(AlignedBuf::new(12 << 10));
        pool.put(AlignedBuf::new(36 << 10));
        assert_eq!(pool.kept.lock().bytes, KEPT_BYTES_MAX, "none is of a class");
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
