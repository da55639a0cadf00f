//! A block device in memory, for tests and measurements of front ends, with controls: caching,
//! space, failures, and gates where its operations wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use surface::{BlockDevice, Error, ErrorKind, PendingRead, Result, Run, WriteOptions, ZeroOptions};

use super::chunks::{BLOCK, Chunks};
use super::{Gate, Op};

/// Bytes that the device is best read in.
const UNIT: u32 = 64 << 10;

/// The device.
#[derive(Default)]
pub struct Memory {
    chunks: Chunks,
    size: AtomicU64,
    /// `read_cached` answers.
    pub cached: AtomicBool,
    /// `reads_together` answers, and the most reads that were.
    pub together: AtomicBool,
    /// The most reads that were done together.
    pub most_together: AtomicUsize,
    /// `write_would_wait` answers.
    pub full_buffer: AtomicBool,
    /// It is a snapshot: `is_read_only` answers.
    pub read_only: AtomicBool,
    /// Where reads wait that are not answered from memory.
    pub reads: Gate,
    /// Gate for writes, before they change the device.
    pub writes: Gate,
    /// Where flushes wait.
    pub flushes: Gate,
    /// Where discards wait.
    pub discards: Gate,
    /// Where zeroes wait that find space.
    pub zeroes: Gate,
    /// When set, operations that store data find no space, and should be held for this long.
    pub no_room: Mutex<Option<Duration>>,
    /// How often that was so.
    pub refused: AtomicUsize,
    /// Calls of `read`.
    pub slow_reads: AtomicUsize,
    /// Bytes copied by `read_cached`.
    pub cached_bytes: AtomicUsize,
    /// Names of the threads that flushed, if recording.
    pub flush_threads: Mutex<Vec<String>>,
    keeps_record: AtomicBool,
    record: Mutex<Vec<Op>>,
    is_failing: AtomicBool,
    failure: Mutex<Option<ErrorKind>>,
}

impl Memory {
    /// A cached, empty device.
    pub fn new(size: u64) -> Arc<Self> {
        Self::with_capacity(size, size)
    }

    /// The same that can be resized up to `capacity`.
    pub fn with_capacity(size: u64, capacity: u64) -> Arc<Self> {
        let memory = Self { chunks: Chunks::new(capacity), ..Self::default() };
        memory.size.store(size, Ordering::Release);
        memory.cached.store(true, Ordering::Release);
        Arc::new(memory)
    }

    /// Changes the size. Data past the end stays.
    ///
    /// # Panics
    /// When it is more than the capacity.
    pub fn resize(&self, size: u64) {
        assert!(size <= self.chunks.capacity());
        self.size.store(size, Ordering::Release);
    }

    /// Makes all operations fail in that way, or succeed again.
    pub fn fail(&self, kind: Option<ErrorKind>) {
        *self.failure.lock() = kind;
        self.is_failing.store(kind.is_some(), Ordering::Release);
    }

    /// Opens all gates.
    pub fn release(&self) {
        [&self.reads, &self.writes, &self.flushes, &self.discards, &self.zeroes].into_iter().for_each(Gate::open);
    }

    /// Records operations from now on.
    pub fn set_recording(&self) {
        self.keeps_record.store(true, Ordering::Release);
    }

    /// The operations since the last call.
    pub fn recorded(&self) -> Vec<Op> {
        std::mem::take(&mut *self.record.lock())
    }

    /// How many operations of a kind are on record.
    pub fn count(&self, is_of_it: impl Fn(&Op) -> bool) -> usize {
        self.record.lock().iter().filter(|op| is_of_it(op)).count()
    }

    /// Bytes that were discarded, by operations that are on record.
    pub fn discarded_bytes(&self) -> u64 {
        let bytes = |op: &Op| if let Op::Discard { length, .. } = op { *length } else { 0 };
        self.record.lock().iter().map(bytes).sum()
    }

    fn find_room(&self) -> Result<()> {
        if self.no_room.lock().is_none() {
            return Ok(());
        }
        self.refused.fetch_add(1, Ordering::AcqRel);
        Err(Error::new(ErrorKind::Full, "no room"))
    }

    fn begin(&self, offset: u64, length: u64, op: Op) -> Result<()> {
        if self.keeps_record.load(Ordering::Acquire) {
            self.record.lock().push(op);
        }
        if self.is_failing.load(Ordering::Acquire)
            && let Some(kind) = *self.failure.lock()
        {
            let text = format!("device 'memory', offset {offset}: made to fail with {}", kind.name());
            return Err(Error::new(kind, text));
        }
        match offset.checked_add(length) {
            Some(end) if end <= self.size_bytes() => Ok(()),
            _ => Err(Error::new(ErrorKind::Invalid, format!("{length} bytes at {offset} are past the end"))),
        }
    }
}

impl BlockDevice for Memory {
    fn size_bytes(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Acquire)
    }

    fn block_bytes(&self) -> (u32, u32) {
        (BLOCK as u32, UNIT)
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.slow_reads.fetch_add(1, Ordering::AcqRel);
        self.begin(offset, buf.len() as u64, Op::Read { offset, length: buf.len() })?;
        self.reads.pass(offset);
        self.chunks.read(offset, buf);
        Ok(())
    }

    fn reads_together(&self) -> bool {
        self.together.load(Ordering::Relaxed)
    }

    /// Starts all available reads, and ends them in the opposite order.
    fn read_many(&self, next: &mut dyn FnMut() -> Option<Box<dyn PendingRead>>) {
        loop {
            let mut reads: Vec<_> = std::iter::from_fn(&mut *next).collect();
            if reads.is_empty() {
                return;
            }
            self.most_together.fetch_max(reads.len(), Ordering::AcqRel);
            while let Some(mut read) = reads.pop() {
                let offset = read.offset();
                let result = self.read(offset, read.buf());
                read.finish(result);
            }
        }
    }

    fn read_cached(&self, offset: u64, buf: &mut [u8]) -> Result<bool> {
        if !self.cached.load(Ordering::Relaxed) {
            return Ok(false);
        }
        self.begin(offset, buf.len() as u64, Op::Read { offset, length: buf.len() })?;
        self.chunks.read(offset, buf);
        self.cached_bytes.fetch_add(buf.len(), Ordering::Release);
        Ok(true)
    }

    fn write(&self, offset: u64, data: Bytes, options: WriteOptions) -> Result<()> {
        self.begin(offset, data.len() as u64, Op::Write { offset, length: data.len(), fua: options.fua })?;
        self.writes.pass(offset);
        self.find_room()?;
        self.chunks.fill(offset, data.len() as u64, Some(&data), true);
        Ok(())
    }

    fn write_would_wait(&self) -> bool {
        self.full_buffer.load(Ordering::Relaxed)
    }

    fn full_wait(&self) -> Option<Duration> {
        *self.no_room.lock()
    }

    fn flush(&self) -> Result<()> {
        self.begin(0, 0, Op::Flush)?;
        if self.keeps_record.load(Ordering::Relaxed) {
            let name = std::thread::current().name().unwrap_or_default().to_owned();
            self.flush_threads.lock().push(name);
        }
        self.flushes.pass(0);
        Ok(())
    }

    fn discard(&self, offset: u64, length: u64) -> Result<()> {
        self.begin(offset, length, Op::Discard { offset, length })?;
        self.discards.pass(offset);
        self.chunks.fill(offset, length, None, false);
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, length: u64, options: ZeroOptions) -> Result<()> {
        self.begin(offset, length, Op::Zeroes { offset, length, no_hole: options.no_hole })?;
        if options.no_hole {
            self.find_room()?;
        }
        self.zeroes.pass(offset);
        self.chunks.fill(offset, length, None, options.no_hole);
        Ok(())
    }

    fn allocation(&self, offset: u64, length: u64, runs_max: usize) -> Result<Vec<Run>> {
        self.begin(offset, length, Op::Allocation { offset, length })?;
        Ok(self.chunks.allocation(offset, length, runs_max))
    }

    fn prefetch(&self, offset: u64, length: u64) -> Result<()> {
        self.begin(offset, length, Op::Prefetch { offset, length })
    }

    fn allocated_bytes(&self) -> u64 {
        self.chunks.allocated_bytes()
    }
}
