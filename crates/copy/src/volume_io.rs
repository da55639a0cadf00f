//! Access of import and export to a volume, in this process or through a server.

use std::fs::File;
use std::sync::Arc;

use bytes::Bytes;
use surface::{BlockDevice, Result, Run, WriteOptions};

/// A volume to copy to or from. All calls may be made from several threads at once.
pub trait VolumeIo: Send + Sync {
    /// Size in bytes.
    fn size_bytes(&self) -> Result<u64>;
    /// Fills `buf` from `offset`.
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()>;
    /// Writes `data` at `offset`.
    fn write(&self, offset: u64, data: Bytes) -> Result<()>;
    /// Turns a range into a hole.
    fn discard(&self, offset: u64, length: u64) -> Result<()>;
    /// See [`BlockDevice::allocation`].
    fn allocation(&self, offset: u64, length: u64, runs_max: u32) -> Result<Vec<Run>>;
    /// Makes all writes durable.
    fn flush(&self) -> Result<()>;
    /// Returns a handle on the same volume that copies to and from `file` on the side of the
    /// volume. None where that has no advantage, because the volume is in this process, and where
    /// the file itself may be served by the process that would copy it, because it is on a FUSE
    /// mount.
    ///
    /// # Errors
    /// When the file cannot be passed on.
    fn with_file(&self, _file: &File) -> Result<Option<Box<dyn FileCopier>>> {
        Ok(None)
    }
}

/// Copies between a volume and a file, at the same offsets on both sides. All calls may be made
/// from several threads at once.
pub trait FileCopier: Send + Sync {
    /// Volume to file.
    fn copy_out(&self, offset: u64, length: u64) -> Result<()>;
    /// File to volume; the last block is filled up with zeroes.
    fn copy_in(&self, offset: u64, length: u64) -> Result<()>;
}

/// A volume of a pool that this process has open.
pub struct LocalVolume(pub Arc<dyn BlockDevice>);

impl VolumeIo for LocalVolume {
    fn size_bytes(&self) -> Result<u64> {
        Ok(self.0.size_bytes())
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.0.read(offset, buf)
    }
    fn write(&self, offset: u64, data: Bytes) -> Result<()> {
        self.0.write(offset, data, WriteOptions::default())
    }
    fn discard(&self, offset: u64, length: u64) -> Result<()> {
        self.0.discard(offset, length)
    }
    fn allocation(&self, offset: u64, length: u64, runs_max: u32) -> Result<Vec<Run>> {
        self.0.allocation(offset, length, runs_max as usize)
    }
    fn flush(&self) -> Result<()> {
        self.0.flush()
    }
}
