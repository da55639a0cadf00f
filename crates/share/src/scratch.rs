//! An immutable object space, with a memory layer over it that takes all writes. A snapshot of a
//! share is opened over one: opening a namespace writes something, which must not, and need not,
//! become part of the snapshot.
//!
//! Written data is kept as whole blocks, discards as ranges.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use parking_lot::RwLock;
use surface::{Capacity, Error, ErrorKind, Lineage, ObjectSpace, Result, Run, Taken};

const BLOCK_BYTES: u64 = 4096;
/// Most blocks of all layers of the program unless [`limit_scratch_memory`] says otherwise, 256 MiB:
/// several times the writes of an opening after a power loss that replays all changes of some
/// seconds. Only copies of names from elsewhere (`foreign`) need more.
static BLOCKS_OF_ALL_MAX: AtomicUsize = AtomicUsize::new(1 << 16);
/// Most ranges kept: a snapshot has a few pending trims.
const RANGES_MAX: usize = 1 << 16;

/// Blocks of all layers.
static BLOCKS_OF_ALL: AtomicUsize = AtomicUsize::new(0);

#[derive(Default)]
struct Layer {
    blocks: HashMap<(u64, u64), Box<[u8]>>,
    /// Files and bytes that read as zeroes unless they have a block.
    discarded: Vec<(Range<u64>, Range<u64>)>,
}

impl Layer {
    /// Counts another block; `false` if all layers together have too many.
    fn try_count() -> bool {
        let most = BLOCKS_OF_ALL_MAX.load(Ordering::Relaxed);
        let one_more = |blocks| (blocks < most).then_some(blocks + 1);
        BLOCKS_OF_ALL.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
    }
}

impl Drop for Layer {
    fn drop(&mut self) {
        BLOCKS_OF_ALL.fetch_sub(self.blocks.len(), Ordering::Relaxed);
    }
}

/// Bounds the memory of all layers of the program together.
pub fn limit_scratch_memory(bytes: u64) {
    BLOCKS_OF_ALL_MAX.store((bytes / BLOCK_BYTES) as usize, Ordering::Relaxed);
}

/// A space with a layer of memory over it.
pub struct Scratch {
    below: Arc<dyn ObjectSpace>,
    blocks_max: usize,
    layer: RwLock<Layer>,
}

impl Scratch {
    /// Over a space without a writer.
    pub fn over(below: Arc<dyn ObjectSpace>) -> Self {
        Self { below, blocks_max: usize::MAX, layer: RwLock::default() }
    }

    /// Whether all of a file was discarded.
    pub fn was_discarded(&self, file: u64) -> bool {
        self.layer
            .read()
            .discarded
            .iter()
            .any(|(files, bytes)| files.contains(&file) && bytes.start == 0 && bytes.end >= 1 << 52)
    }

    /// The blocks that were written and hold data: file, offset, content; by file and offset.
    pub(crate) fn blocks(&self) -> Vec<(u64, u64, Bytes)> {
        let layer = self.layer.read();
        let with_data = layer.blocks.iter().filter(|(_, content)| content.iter().any(|byte| *byte != 0));
        let mut blocks: Vec<_> = with_data
            .map(|((file, block), content)| (*file, block * BLOCK_BYTES, Bytes::copy_from_slice(content)))
            .collect();
        blocks.sort_unstable_by_key(|(file, offset, _)| (*file, *offset));
        blocks
    }

    fn full() -> Error {
        Error::new(ErrorKind::Full, "a snapshot of a share accepts no more changes in memory")
    }

    /// Bytes of a file as they are now, the layer included.
    fn read_in(&self, layer: &Layer, file: u64, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.below.read(file, offset, buf)?;
        let end = offset + buf.len() as u64;
        for (_, bytes) in layer.discarded.iter().filter(|(files, _)| files.contains(&file)) {
            let (from, to) = (bytes.start.max(offset), bytes.end.min(end));
            if from < to {
                buf[(from - offset) as usize..(to - offset) as usize].fill(0);
            }
        }
        if layer.blocks.is_empty() {
            return Ok(());
        }
        for block in offset / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES) {
            let Some(content) = layer.blocks.get(&(file, block)) else { continue };
            let start = block * BLOCK_BYTES;
            let (from, to) = (start.max(offset), (start + BLOCK_BYTES).min(end));
            buf[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&content[(from - start) as usize..(to - start) as usize]);
        }
        Ok(())
    }

    fn write_in(&self, layer: &mut Layer, file: u64, offset: u64, data: &[u8]) -> Result<()> {
        let end = offset + data.len() as u64;
        for block in offset / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES) {
            let start = block * BLOCK_BYTES;
            let mut content = vec![0; BLOCK_BYTES as usize];
            self.read_in(layer, file, start, &mut content)?;
            let (from, to) = (start.max(offset), (start + BLOCK_BYTES).min(end));
            content[(from - start) as usize..(to - start) as usize]
                .copy_from_slice(&data[(from - offset) as usize..(to - offset) as usize]);
            let is_new = !layer.blocks.contains_key(&(file, block));
            if is_new && (layer.blocks.len() >= self.blocks_max || !Layer::try_count()) {
                return Err(Self::full());
            }
            layer.blocks.insert((file, block), content.into());
        }
        Ok(())
    }

    fn discard_in(&self, layer: &mut Layer, files: Range<u64>, bytes: Range<u64>) -> Result<()> {
        if layer.discarded.len() >= RANGES_MAX {
            return Err(Self::full());
        }
        let touched: Vec<(u64, u64)> = layer
            .blocks
            .keys()
            .copied()
            .filter(|(file, block)| {
                let start = block * BLOCK_BYTES;
                files.contains(file) && start < bytes.end && bytes.start < start + BLOCK_BYTES
            })
            .collect();
        for (file, block) in touched {
            let start = block * BLOCK_BYTES;
            let (from, to) = (bytes.start.max(start), bytes.end.min(start + BLOCK_BYTES));
            if let Some(content) = layer.blocks.get_mut(&(file, block)) {
                content[(from - start) as usize..(to - start) as usize].fill(0);
            }
        }
        layer.discarded.push((files, bytes));
        Ok(())
    }
}

impl ObjectSpace for Scratch {
    fn read(&self, file: u64, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.read_in(&self.layer.read(), file, offset, buf)
    }

    fn write(&self, file: u64, offset: u64, data: Bytes) -> Result<()> {
        self.write_in(&mut self.layer.write(), file, offset, &data)
    }

    fn discard(&self, file: u64, range: Range<u64>) -> Result<()> {
        self.discard_in(&mut self.layer.write(), file..file.saturating_add(1), range)
    }

    fn discard_files(&self, files: Range<u64>) -> Result<()> {
        self.discard_in(&mut self.layer.write(), files, 0..u64::MAX)
    }

    fn finish_discards(&self) -> Result<()> {
        Ok(())
    }

    /// None of it must ever become durable.
    fn flush(&self) -> Result<()> {
        Ok(())
    }

    /// As in the layer below: nothing in this one belongs to a named file.
    fn allocation(&self, file: u64, offset: u64, length: u64, runs_max: usize) -> Result<Vec<Run>> {
        self.below.allocation(file, offset, length, runs_max)
    }

    fn settle(&self) -> Result<()> {
        self.below.settle()
    }

    /// As below, for the same reason.
    fn stored(&self, file: u64) -> Result<Option<Taken>> {
        self.below.stored(file)
    }

    fn capacity(&self) -> Result<Capacity> {
        let below = self.below.capacity()?;
        Ok(Capacity { total_bytes: below.total_bytes.saturating_sub(below.free_bytes), free_bytes: 0 })
    }

    /// Writes themselves enforce the memory limit.
    fn admit(&self, _: u64) -> Result<()> {
        Ok(())
    }

    fn set_aside(&self, _: u64) -> Result<()> {
        Ok(())
    }

    fn own_room(&self) -> u64 {
        u64::MAX
    }

    fn lineage(&self) -> Option<Lineage> {
        self.below.lineage()
    }
}

#[cfg(test)]
mod tests {
    use sim::SimSpace;

    use super::*;

    fn read(space: &dyn ObjectSpace, file: u64, offset: u64, len: usize) -> Vec<u8> {
        let mut buf = vec![0xee; len];
        space.read(file, offset, &mut buf).unwrap();
        buf
    }

    #[test]
    fn what_is_written_and_discarded_shows_and_changes_nothing_below() {
        let below = SimSpace::new();
        below.write(1, 0, Bytes::from(vec![1; 10_000])).unwrap();
        below.write(2, 0, Bytes::from(vec![2; 5000])).unwrap();
        let scratch = Scratch { blocks_max: 16, ..Scratch::over(below.clone()) };
        scratch.write(1, 4000, Bytes::from(vec![9; 200])).unwrap();
        scratch.discard(1, 4100..8192).unwrap();
        scratch.write(1, 8000, Bytes::from(vec![7; 100])).unwrap();
        scratch.discard_files(2..3).unwrap();
        let mut expected = vec![1; 10_000];
        expected[4000..4100].fill(9);
        expected[4100..8192].fill(0);
        expected[8000..8100].fill(7);
        assert_eq!(read(&scratch, 1, 0, 10_000), expected);
        assert_eq!(read(&scratch, 1, 4050, 5000), expected[4050..9050]);
        assert_eq!(read(&scratch, 2, 0, 5000), vec![0; 5000]);
        assert_eq!(read(&*below, 1, 0, 10_000), vec![1; 10_000]);
        assert_eq!(read(&*below, 2, 0, 5000), vec![2; 5000]);
        let many = Bytes::from(vec![1; 16 * BLOCK_BYTES as usize]);
        assert_eq!(scratch.write(3, 0, many).unwrap_err().kind(), ErrorKind::Full);
    }
}
