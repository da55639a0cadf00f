//! An object space in files, which survives the program that uses it, as a pool with standby memory
//! does.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use bytes::Bytes;
use rustix::fs::{FallocateFlags, SeekFrom};
use surface::{Allocation, Capacity, Error, ObjectSpace, Result, Run};

pub struct FileSpace(pub PathBuf);

fn failed(error: io::Error) -> Error {
    Error::from_io("space in files", error)
}

impl FileSpace {
    fn open(&self, file: u64) -> Result<File> {
        let path = self.0.join(file.to_string());
        File::options().read(true).write(true).create(true).truncate(false).open(path).map_err(failed)
    }
}

impl ObjectSpace for FileSpace {
    fn read(&self, file: u64, mut offset: u64, mut buf: &mut [u8]) -> Result<()> {
        let file = self.open(file)?;
        while !buf.is_empty() {
            match file.read_at(buf, offset).map_err(failed)? {
                0 => {
                    buf.fill(0);
                    break;
                }
                read => {
                    buf = &mut buf[read..];
                    offset += read as u64;
                }
            }
        }
        Ok(())
    }

    fn write(&self, file: u64, offset: u64, data: Bytes) -> Result<()> {
        self.open(file)?.write_all_at(&data, offset).map_err(failed)
    }

    fn discard(&self, file: u64, range: Range<u64>) -> Result<()> {
        let file = self.open(file)?;
        let end = range.end.min(file.metadata().map_err(failed)?.len());
        if range.start < end {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&file, flags, range.start, end - range.start)
                .map_err(|errno| failed(errno.into()))?;
        }
        Ok(())
    }

    fn discard_files(&self, files: Range<u64>) -> Result<()> {
        for entry in fs::read_dir(&self.0).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let number = path.file_name().and_then(|name| name.to_str()?.parse().ok());
            if number.is_some_and(|number| files.contains(&number)) {
                fs::remove_file(path).map_err(failed)?;
            }
        }
        Ok(())
    }

    fn finish_discards(&self) -> Result<()> {
        Ok(())
    }

    /// The death of the program loses nothing.
    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn allocation(&self, file: u64, offset: u64, length: u64, _: usize) -> Result<Vec<Run>> {
        let file = self.open(file)?;
        let data = rustix::fs::seek(&file, SeekFrom::Data(offset)).unwrap_or(u64::MAX);
        let (until, allocation) = match rustix::fs::seek(&file, SeekFrom::Hole(offset)) {
            Ok(hole) if data == offset => (hole, Allocation::Data),
            _ => (data, Allocation::Hole),
        };
        Ok(vec![Run { length: until.saturating_sub(offset).min(length), allocation }])
    }

    fn capacity(&self) -> Result<Capacity> {
        Ok(Capacity { total_bytes: 1 << 40, free_bytes: 1 << 40 })
    }

    fn admit(&self, _: u64) -> Result<()> {
        Ok(())
    }

    fn set_aside(&self, _: u64) -> Result<()> {
        Ok(())
    }

    fn own_room(&self) -> u64 {
        1 << 40
    }
}
