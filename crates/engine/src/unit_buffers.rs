//! Buffers of units that are read ahead, used again while they are still in the processor's cache: clearing new ones and giving old
//! ones back would cost half as much as decoding into them.

use std::sync::Arc;

use parking_lot::Mutex;

/// Bytes kept: the units of two windows of a stream.
const KEPT_BYTES_MAX: usize = 4 << 20;

#[derive(Debug, Default)]
struct Kept {
    /// The last one that came back is used first.
    buffers: Vec<Vec<u8>>,
    bytes: usize,
}

/// Where they wait.
#[derive(Debug, Default, Clone)]
pub(crate) struct UnitBuffers {
    kept: Arc<Mutex<Kept>>,
}

/// One that is in use; it goes back when it is dropped.
#[derive(Debug)]
pub(crate) struct UnitBuffer {
    bytes: Vec<u8>,
    home: UnitBuffers,
}

impl UnitBuffers {
    /// A buffer of `len` bytes with any content.
    pub(crate) fn get(&self, len: usize) -> UnitBuffer {
        let mut kept = self.kept.lock();
        let bytes = match kept.buffers.iter().rposition(|b| b.len() == len) {
            Some(at) => {
                kept.bytes -= len;
                kept.buffers.remove(at)
            }
            None => {
                drop(kept);
                vec![0; len]
            }
        };
        UnitBuffer { bytes, home: self.clone() }
    }
}

impl UnitBuffer {
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl AsRef<[u8]> for UnitBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for UnitBuffer {
    fn drop(&mut self) {
        let mut kept = self.home.kept.lock();
        kept.bytes += self.bytes.len();
        kept.buffers.push(std::mem::take(&mut self.bytes));
        // Those of another size, that nobody asks for any more, go first.
        while kept.bytes > KEPT_BYTES_MAX {
            let oldest = kept.buffers.remove(0);
            kept.bytes -= oldest.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_and_are_bounded() {
        let buffers = UnitBuffers::default();
        let mut one = buffers.get(4096);
        one.bytes().fill(7);
        drop(bytes::Bytes::from_owner(one).slice(1..));
        assert_eq!(buffers.get(8192).as_ref(), [0; 8192], "another size is another buffer");
        assert_eq!(buffers.get(4096).as_ref(), [7; 4096]);
        let many: Vec<_> = (0..KEPT_BYTES_MAX / 32768 * 2).map(|_| buffers.get(32768)).collect();
        drop(many);
        let kept = buffers.kept.lock();
        assert!(kept.bytes <= KEPT_BYTES_MAX && kept.bytes == kept.buffers.iter().map(Vec::len).sum::<usize>());
        assert!(kept.buffers.iter().all(|b| b.len() == 32768));
    }
}
