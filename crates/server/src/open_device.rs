//! A volume that a client has open: marks it as in use, and counts the client's operations.
//!
//! A read from memory that finds nothing there is not an operation: the client reads again by
//! another call. Neither is a hint to bring a range into memory.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use engine::Volume;
use surface::{
    Began, BlockDevice, Error, ErrorKind, Hint, OpKind, PendingRead, Result, Run, Traffic, WriteOptions, ZeroOptions,
};

use crate::devices::InUse;
use crate::first_reads::FirstReads;

/// See the module's text.
pub(crate) struct OpenDevice {
    volume: Arc<Volume>,
    _in_use: InUse,
    first_reads: Arc<FirstReads>,
    traffic: Arc<Traffic>,
}

impl OpenDevice {
    pub(crate) fn new(volume: Arc<Volume>, in_use: InUse, first_reads: Arc<FirstReads>, traffic: Arc<Traffic>) -> Self {
        Self { volume, _in_use: in_use, first_reads, traffic }
    }

    /// Refuses changes of a volume that is `readonly`. The tree of a share may change, and its
    /// mount refuses.
    fn check_writable(&self) -> Result<()> {
        if self.volume.is_share() || !self.volume.is_set_readonly() {
            return Ok(());
        }
        let name = self.volume.name();
        let text = format!("volume '{name}' is readonly: `shale set POOL {name} readonly=off` allows changes");
        Err(Error::new(ErrorKind::ReadOnly, text))
    }

    fn counted<T>(&self, kind: OpKind, bytes: u64, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let began = self.traffic.begin();
        let result = work();
        end(&self.traffic, kind, began, bytes, &result);
        result
    }
}

/// Counts an operation, and its failure.
fn end<T>(traffic: &Traffic, kind: OpKind, began: Began, bytes: u64, result: &Result<T>) {
    if let Err(error) = result {
        traffic.fail(error.kind());
    }
    traffic.end(kind, began, if result.is_ok() { bytes } else { 0 });
}

/// A batched read, counted when it is finished.
struct CountedRead {
    read: Box<dyn PendingRead>,
    traffic: Arc<Traffic>,
    began: Began,
    bytes: u64,
}

impl PendingRead for CountedRead {
    fn offset(&self) -> u64 {
        self.read.offset()
    }
    fn buf(&mut self) -> &mut [u8] {
        self.read.buf()
    }
    fn finish(self: Box<Self>, result: Result<()>) {
        // Before the client has the answer: it finds its own reads in the counts.
        end(&self.traffic, OpKind::Read, self.began, self.bytes, &result);
        self.read.finish(result);
    }
}

impl BlockDevice for OpenDevice {
    fn size_bytes(&self) -> u64 {
        self.volume.size_bytes()
    }
    fn is_read_only(&self) -> bool {
        self.volume.is_read_only() || self.check_writable().is_err()
    }
    fn block_bytes(&self) -> (u32, u32) {
        self.volume.block_bytes()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.first_reads.note(self.volume.id(), offset, buf.len());
        self.counted(OpKind::Read, buf.len() as u64, || self.volume.read(offset, buf))
    }
    fn reads_together(&self) -> bool {
        self.volume.reads_together()
    }
    fn read_many(&self, next: &mut dyn FnMut() -> Option<Box<dyn PendingRead>>) {
        self.volume.read_many(&mut || {
            let mut read = next()?;
            let began = self.traffic.begin();
            let len = read.buf().len();
            self.first_reads.note(self.volume.id(), read.offset(), len);
            Some(Box::new(CountedRead { read, traffic: Arc::clone(&self.traffic), began, bytes: len as u64 }))
        });
    }
    fn read_cached(&self, offset: u64, buf: &mut [u8]) -> Result<bool> {
        self.first_reads.note(self.volume.id(), offset, buf.len());
        let (began, bytes) = (self.traffic.begin(), buf.len() as u64);
        let is_found = self.volume.read_cached(offset, buf)?;
        if is_found {
            self.traffic.end(OpKind::Read, began, bytes);
        }
        Ok(is_found)
    }
    fn write(&self, offset: u64, data: Bytes, options: WriteOptions) -> Result<()> {
        self.check_writable()?;
        self.counted(OpKind::Write, data.len() as u64, || self.volume.write(offset, data, options))
    }
    fn write_hinted(&self, offset: u64, data: Bytes, hint: Hint) -> Result<()> {
        self.check_writable()?;
        self.counted(OpKind::Write, data.len() as u64, || self.volume.write_hinted(offset, data, hint))
    }
    fn write_would_wait(&self) -> bool {
        self.volume.write_would_wait()
    }
    fn full_wait(&self) -> Option<Duration> {
        self.volume.full_wait()
    }
    fn flush(&self) -> Result<()> {
        self.counted(OpKind::Flush, 0, || self.volume.flush())
    }
    fn discard(&self, offset: u64, length: u64) -> Result<()> {
        self.check_writable()?;
        self.counted(OpKind::Discard, length, || self.volume.discard(offset, length))
    }
    fn write_zeroes(&self, offset: u64, length: u64, options: ZeroOptions) -> Result<()> {
        self.check_writable()?;
        let kind = if options.no_hole { OpKind::Write } else { OpKind::Discard };
        self.counted(kind, length, || self.volume.write_zeroes(offset, length, options))
    }
    fn allocation(&self, offset: u64, length: u64, runs_max: usize) -> Result<Vec<Run>> {
        self.counted(OpKind::Look, 0, || self.volume.allocation(offset, length, runs_max))
    }
    fn prefetch(&self, offset: u64, length: u64) -> Result<()> {
        self.volume.prefetch(offset, length)
    }
    fn allocated_bytes(&self) -> u64 {
        self.volume.allocated_bytes()
    }
}
