//! A file in memory that loses a random part of its unsynced writes at a crash, and random numbers.

use std::io::{Error, ErrorKind, Result};
use std::sync::Arc;

use env::{FilePlace, PlacedFile};
use parking_lot::Mutex;

const SECTOR: usize = 512;

/// xorshift64*.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

enum Op {
    Write(usize, Vec<u8>),
    Len(usize),
}

#[derive(Default)]
struct Inner {
    now: Vec<u8>,
    durable: Vec<u8>,
    unsynced: Vec<Op>,
    /// Writes and syncs until everything fails.
    left: Option<u64>,
    /// Bytes that the file may have.
    room: Option<usize>,
    free: u64,
    aside: u64,
    /// Pages that were ever written.
    written: std::collections::BTreeSet<usize>,
}

impl Inner {
    fn step(&mut self) -> Result<()> {
        match &mut self.left {
            Some(0) => Err(Error::other("the machine is dead")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

#[derive(Clone)]
pub struct MemoryPlace(Arc<Mutex<Inner>>);

impl MemoryPlace {
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(Inner { free: u64::MAX, ..Inner::default() })))
    }

    pub fn die_after(&self, steps: u64) {
        self.0.lock().left = Some(steps);
    }

    pub fn is_dead(&self) -> bool {
        self.0.lock().left == Some(0)
    }

    /// The machine comes back with the durable data and a random part of the rest.
    pub fn crash(&self, random: &mut Random) {
        let mut inner = self.0.lock();
        let ops = std::mem::take(&mut inner.unsynced);
        for op in ops {
            match op {
                Op::Len(len) => {
                    if random.below(2) == 0 {
                        inner.durable.resize(len, 0);
                    }
                }
                Op::Write(offset, data) => {
                    let mut at = 0;
                    while at < data.len() {
                        let end = ((offset + at) / SECTOR * SECTOR + SECTOR - offset).min(data.len());
                        if random.below(2) == 0 && offset + end <= inner.durable.len() {
                            inner.durable[offset + at..offset + end].copy_from_slice(&data[at..end]);
                        }
                        at = end;
                    }
                }
            }
        }
        inner.now = inner.durable.clone();
        inner.left = None;
    }

    /// Flips a bit of the medium.
    pub fn flip(&self, at: usize, bit: u8) {
        let mut inner = self.0.lock();
        inner.now[at] ^= 1 << bit;
        if at < inner.durable.len() {
            inner.durable[at] ^= 1 << bit;
        }
    }

    pub fn len(&self) -> usize {
        self.0.lock().now.len()
    }

    /// Appends garbage.
    pub fn extend(&self, more: usize) {
        let mut inner = self.0.lock();
        let (now, durable) = (inner.now.len() + more, inner.durable.len() + more);
        inner.now.resize(now, 0xa5);
        inner.durable.resize(durable, 0xa5);
    }

    pub fn cut(&self, len: usize) {
        let mut inner = self.0.lock();
        inner.now.truncate(len);
        inner.durable.truncate(len);
    }

    pub fn allow(&self, room: Option<usize>) {
        self.0.lock().room = room;
    }

    pub fn set_free(&self, free: u64) {
        self.0.lock().free = free;
    }

    pub fn aside(&self) -> u64 {
        self.0.lock().aside
    }

    /// Bytes of pages that were ever written: a file of this machine has holes elsewhere.
    pub fn written_bytes(&self) -> u64 {
        self.0.lock().written.len() as u64 * 4096
    }
}

impl FilePlace for MemoryPlace {
    fn open(&self) -> Result<Box<dyn PlacedFile>> {
        Ok(Box::new(MemoryFile(self.0.clone())))
    }

    fn set_aside(&self) -> Result<()> {
        let mut inner = self.0.lock();
        inner.step()?;
        inner.aside += 1;
        inner.now.clear();
        inner.durable.clear();
        inner.unsynced.clear();
        inner.written.clear();
        Ok(())
    }

    fn remove(&self) -> Result<()> {
        self.set_aside()
    }

    fn room_bytes(&self) -> Result<u64> {
        Ok(self.0.lock().free)
    }

    fn name(&self) -> String {
        "memory".to_owned()
    }
}

struct MemoryFile(Arc<Mutex<Inner>>);

impl std::fmt::Debug for MemoryFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MemoryFile")
    }
}

impl PlacedFile for MemoryFile {
    fn len(&self) -> Result<u64> {
        Ok(self.0.lock().now.len() as u64)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let inner = self.0.lock();
        let found = inner.now.get(offset as usize..offset as usize + out.len());
        out.copy_from_slice(found.ok_or(Error::from(ErrorKind::UnexpectedEof))?);
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let mut inner = self.0.lock();
        inner.step()?;
        let offset = offset as usize;
        if inner.room.is_some_and(|room| offset + data.len() > room) {
            return Err(Error::from(ErrorKind::StorageFull));
        }
        if inner.now.len() < offset + data.len() {
            inner.now.resize(offset + data.len(), 0);
        }
        inner.now[offset..offset + data.len()].copy_from_slice(data);
        inner.unsynced.push(Op::Write(offset, data.to_vec()));
        inner.written.extend(offset / 4096..(offset + data.len()).div_ceil(4096));
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<()> {
        let mut inner = self.0.lock();
        inner.step()?;
        inner.now.resize(len as usize, 0);
        inner.unsynced.push(Op::Len(len as usize));
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let mut inner = self.0.lock();
        inner.step()?;
        inner.durable = inner.now.clone();
        inner.unsynced.clear();
        Ok(())
    }
}
