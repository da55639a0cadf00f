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
/// Sizes are powers of two, so that every buffer serves many lengths; one list for each.
const CLASSES: usize = (BUFFER_BYTES_MAX / BUFFER_BYTES_MIN).ilog2() as usize + 1;

#[derive(Default)]
struct Kept {
    /// The last one that came back is used first: it is still in the processor's cache.
    classes: [Vec<AlignedBuf>; CLASSES],
    bytes: usize,
}

#[derive(Default)]
pub(crate) struct BufferPool {
    kept: Mutex<Kept>,
}

/// The list of buffers of exactly `len` bytes.
fn class_of(len: usize) -> Option<usize> {
    let is_kept = len.is_power_of_two() && (BUFFER_BYTES_MIN..=BUFFER_BYTES_MAX).contains(&len);
    is_kept.then(|| (len / BUFFER_BYTES_MIN).ilog2() as usize)
}

impl BufferPool {
    /// A buffer of at least `len` bytes with any content.
    pub(crate) fn get(&self, len: usize) -> AlignedBuf {
        let len = len.next_power_of_two().max(BUFFER_BYTES_MIN);
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
        assert_eq!(buf.len(), 512 << 10);
        buf[0] = 7;
        pool.put(buf);
        assert_eq!(pool.get(1 << 10).len(), BUFFER_BYTES_MIN);
        assert_eq!(pool.get(512 << 10)[0], 7, "used again");
        let many: Vec<_> = (0..20).map(|_| pool.get(1 << 20)).collect();
        many.into_iter().for_each(|buf| pool.put(buf));
        assert_eq!(pool.kept.lock().bytes, KEPT_BYTES_MAX);
        pool.put(pool.get(3 << 20));
        pool.put(AlignedBuf::new(12 << 10));
        assert_eq!(pool.kept.lock().bytes, KEPT_BYTES_MAX, "neither is of a class");
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
