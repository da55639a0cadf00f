//! A share as a volume of the model: its bytes are those of a few files, in places where a mistake
//! would show.

use std::sync::Arc;

use bytes::Bytes;
use engine::{Files, Pool};
use surface::{
    BlockDevice, Error, ErrorKind, ObjectSpace, PendingRead, Result, Run, WriteOptions, ZeroOptions, read_each,
};

/// Size of every share in the model; no volume has it.
pub const SHARE_BYTES: u64 = PLACES.len() as u64 * PIECE_BYTES;
const PIECE_BYTES: u64 = 40 << 10;
/// The last file that there can be.
const FILE_LAST: u64 = (1 << 42) - (1 << 32) - 1;
/// Files and their offsets at which pieces of the model begin: adjacent, across the ends of windows
/// and pieces, far away, at the end.
const PLACES: [(u64, u64); 13] = [
    (1, 0),
    (1, PIECE_BYTES),
    (16, (1 << 20) - (12 << 10)),
    (16, (8 << 20) - 4096),
    (17, 0),
    (17, 64 << 20),
    (18, 3 << 40),
    (18, (16 << 40) - (8 << 10)),
    (19, (1 << 52) - PIECE_BYTES),
    (1 << 40, 0),
    (FILE_LAST, 0),
    (20, 1 << 20),
    (20, (512 << 20) + 4096),
];

/// Where each piece of the model lies: the file, its first byte there, and its length.
pub fn pieces() -> impl Iterator<Item = (u64, u64, u64)> {
    PLACES.into_iter().map(|(file, from)| (file, from, PIECE_BYTES))
}

/// A share, or a moment of one.
pub struct Lens {
    volume: Arc<engine::Volume>,
    files: Files,
}

/// A volume, a share or a snapshot of the pool, as the model has it.
pub fn device(pool: &Pool, name: &str) -> Result<Arc<dyn BlockDevice>> {
    let volume = pool.volume(name)?;
    if !volume.is_share() {
        return Ok(volume);
    }
    Ok(Arc::new(Lens { files: Files::new(volume.clone(), volume.clone())?, volume }))
}

/// The size that the model knows.
pub const fn size_in_model(size_bytes: u64) -> u64 {
    if size_bytes == units::SHARE_BYTES { SHARE_BYTES } else { size_bytes }
}

impl Lens {
    fn each(&self, offset: u64, length: u64, mut work: impl FnMut(u64, u64, u64, u64) -> Result<()>) -> Result<()> {
        if offset.checked_add(length).is_none_or(|end| end > SHARE_BYTES) {
            return Err(Error::new(ErrorKind::Invalid, "past the end of the model's share"));
        }
        let mut at = offset;
        while at < offset + length {
            let (file, begin) = PLACES[(at / PIECE_BYTES) as usize];
            let skip = at % PIECE_BYTES;
            let len = (PIECE_BYTES - skip).min(offset + length - at);
            work(file, begin + skip, at - offset, len)?;
            at += len;
        }
        Ok(())
    }
}

impl BlockDevice for Lens {
    fn size_bytes(&self) -> u64 {
        SHARE_BYTES
    }

    fn is_read_only(&self) -> bool {
        self.volume.is_read_only()
    }

    fn block_bytes(&self) -> (u32, u32) {
        self.volume.block_bytes()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let length = buf.len() as u64;
        self.each(offset, length, |file, from, done, len| {
            self.files.read(file, from, &mut buf[done as usize..(done + len) as usize])
        })
    }

    fn reads_together(&self) -> bool {
        false
    }

    fn read_many(&self, next: &mut dyn FnMut() -> Option<Box<dyn PendingRead>>) {
        read_each(self, next);
    }

    fn read_cached(&self, offset: u64, buf: &mut [u8]) -> Result<bool> {
        let mut is_cached = true;
        self.each(offset, buf.len() as u64, |file, from, done, len| {
            is_cached &= self.files.read_cached(file, from, &mut buf[done as usize..(done + len) as usize])?;
            Ok(())
        })?;
        Ok(is_cached)
    }

    fn write(&self, offset: u64, data: Bytes, options: WriteOptions) -> Result<()> {
        self.each(offset, data.len() as u64, |file, from, done, len| {
            self.files.write(file, from, data.slice(done as usize..(done + len) as usize))
        })?;
        if options.fua { self.flush() } else { Ok(()) }
    }

    fn write_would_wait(&self) -> bool {
        self.volume.write_would_wait()
    }

    fn flush(&self) -> Result<()> {
        self.files.flush()
    }

    fn discard(&self, offset: u64, length: u64) -> Result<()> {
        if self.volume.is_read_only() {
            // A discard of a hole changes nothing, and is not refused.
            return Err(Error::new(ErrorKind::ReadOnly, "a moment of a share in the model"));
        }
        if (offset, length) == (0, SHARE_BYTES) {
            self.files.discard_files(16..20)?;
            return [1, 20, 1 << 40, FILE_LAST].iter().try_for_each(|file| self.files.discard(*file, 0..u64::MAX));
        }
        self.each(offset, length, |file, from, _, len| self.files.discard(file, from..from + len))
    }

    fn write_zeroes(&self, offset: u64, length: u64, options: ZeroOptions) -> Result<()> {
        self.discard(offset, length)?;
        if options.fua { self.flush() } else { Ok(()) }
    }

    fn allocation(&self, offset: u64, length: u64, runs_max: usize) -> Result<Vec<Run>> {
        let mut runs: Vec<Run> = Vec::new();
        let mut is_over = false;
        self.each(offset, length, |file, from, _, len| {
            let mut told = 0;
            while told < len && !is_over {
                for run in self.files.allocation(file, from + told, len - told, runs_max)? {
                    let count = runs.len();
                    match runs.last_mut().filter(|last| last.allocation == run.allocation) {
                        Some(last) => last.length += run.length,
                        None if count == runs_max => is_over = true,
                        None => runs.push(run),
                    }
                    if is_over {
                        break;
                    }
                    told += run.length;
                }
            }
            Ok(())
        })?;
        Ok(runs)
    }

    fn prefetch(&self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }

    fn allocated_bytes(&self) -> u64 {
        self.volume.allocated_bytes()
    }
}
