//! The content of a device: blocks that hold data, and holes.

use parking_lot::RwLock;
use surface::{Allocation, Run};

const CHUNK: usize = 64 << 10;
pub(super) const BLOCK: usize = 4096;

struct Chunk {
    data: Box<[u8]>,
    /// Bit `i`: block `i` of the chunk is data.
    present: u16,
}

/// Chunks with a lock each; only those that were written take memory.
#[derive(Default)]
pub(super) struct Chunks(Vec<RwLock<Option<Chunk>>>);

impl Chunks {
    pub(super) fn new(capacity: u64) -> Self {
        Self((0..capacity.div_ceil(CHUNK as u64)).map(|_| RwLock::new(None)).collect())
    }

    pub(super) const fn capacity(&self) -> u64 {
        (self.0.len() * CHUNK) as u64
    }

    pub(super) fn read(&self, offset: u64, buf: &mut [u8]) {
        let mut at = offset as usize;
        let mut rest = buf;
        while !rest.is_empty() {
            let within = at % CHUNK;
            let count = rest.len().min(CHUNK - within);
            let (now, later) = rest.split_at_mut(count);
            match &*self.0[at / CHUNK].read() {
                Some(chunk) => now.copy_from_slice(&chunk.data[within..within + count]),
                None => now.fill(0),
            }
            at += count;
            rest = later;
        }
    }

    /// Fills a range from `source` (of the range's length), or with zeroes that are data (`stored`)
    /// or holes.
    pub(super) fn fill(&self, offset: u64, length: u64, source: Option<&[u8]>, stored: bool) {
        let (mut at, end) = (offset as usize, (offset + length) as usize);
        while at < end {
            let within = at % CHUNK;
            let count = (end - at).min(CHUNK - within);
            let mut slot = self.0[at / CHUNK].write();
            if slot.is_none() && source.is_none() && !stored {
                at += count;
                continue;
            }
            let chunk = slot.get_or_insert_with(|| Chunk { data: vec![0; CHUNK].into_boxed_slice(), present: 0 });
            match source {
                Some(source) => {
                    let from = at - offset as usize;
                    chunk.data[within..within + count].copy_from_slice(&source[from..from + count]);
                }
                None => chunk.data[within..within + count].fill(0),
            }
            if source.is_some() || stored {
                for block in within / BLOCK..=(within + count - 1) / BLOCK {
                    chunk.present |= 1 << block;
                }
            } else {
                for block in within.div_ceil(BLOCK)..(within + count) / BLOCK {
                    chunk.present &= !(1 << block);
                }
            }
            at += count;
        }
    }

    pub(super) fn allocation(&self, offset: u64, length: u64, runs_max: usize) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        let (mut at, end) = (offset as usize, (offset + length) as usize);
        while at < end {
            let count = (BLOCK - at % BLOCK).min(end - at);
            let chunk = self.0[at / CHUNK].read();
            let is_data = chunk.as_ref().is_some_and(|c| c.present >> (at % CHUNK / BLOCK) & 1 == 1);
            let allocation = if is_data { Allocation::Data } else { Allocation::Hole };
            if let Some(last) = runs.last_mut().filter(|last| last.allocation == allocation) {
                last.length += count as u64;
            } else if runs.len() == runs_max {
                break;
            } else {
                runs.push(Run { length: count as u64, allocation });
            }
            at += count;
        }
        runs
    }

    pub(super) fn allocated_bytes(&self) -> u64 {
        let blocks = |chunk: &Chunk| u64::from(chunk.present.count_ones());
        self.0.iter().map(|chunk| chunk.read().as_ref().map_or(0, blocks)).sum::<u64>() * BLOCK as u64
    }
}
