//! A number that records how much of the map store was durable, stored next to it. Owns one small
//! file; does not interpret the number.
//!
//! The file has two slots, 4096 bytes apart, written alternately, so that a write torn by a crash
//! leaves the other one. A slot is valid if and only if it holds, little-endian: the magic number,
//! the number, and the number's complement.

use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::deletion::Deletion;

const MAGIC: u64 = u64::from_le_bytes(*b"shaledur");
const SLOT_BYTES: usize = 24;
const SLOT_DISTANCE: u64 = 4096;

/// The file, open.
#[derive(Debug)]
pub(crate) struct DurableMark {
    file: File,
    value: u64,
    deletion: Deletion,
}

impl DurableMark {
    /// Makes the file with the number 0.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
        let mut mark = Self { deletion: Deletion::of(&file)?, file, value: 0 };
        mark.write(0)?;
        Ok(mark)
    }

    /// Recreates the file with that number, in place of a damaged one.
    pub(crate) fn replace(path: &Path, value: u64) -> Result<Self> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut mark = Self::create(path)?;
        mark.write(value)?;
        Ok(mark)
    }

    /// Opens the file and reads the number.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidData`] when neither slot is valid.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let slots = [read_slot(&file, 0)?, read_slot(&file, SLOT_DISTANCE)?];
        match slots.into_iter().flatten().max() {
            Some(value) => Ok(Self { deletion: Deletion::of(&file)?, file, value }),
            None => Err(Error::new(ErrorKind::InvalidData, format!("{} is damaged in both places", path.display()))),
        }
    }

    /// The number.
    pub(crate) fn value(&self) -> u64 {
        self.value
    }

    /// Whether the file has been deleted: data written then cannot be found again.
    ///
    /// # Errors
    /// Of fstat.
    pub(crate) fn is_deleted(&self) -> Result<bool> {
        self.deletion.has_come(&self.file)
    }

    /// Raises the number, durably.
    pub(crate) fn write(&mut self, value: u64) -> Result<()> {
        let mut slot = [0; SLOT_BYTES];
        slot[..8].copy_from_slice(&MAGIC.to_le_bytes());
        slot[8..16].copy_from_slice(&value.to_le_bytes());
        slot[16..].copy_from_slice(&(!value).to_le_bytes());
        // Never the slot with the current number: it must survive until this write is complete.
        let offset = if read_slot(&self.file, 0)? == Some(self.value) { SLOT_DISTANCE } else { 0 };
        self.file.write_all_at(&slot, offset)?;
        self.file.sync_data()?;
        self.value = value;
        Ok(())
    }
}

fn read_slot(file: &File, offset: u64) -> Result<Option<u64>> {
    let mut slot = [0; SLOT_BYTES];
    match file.read_exact_at(&mut slot, offset) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let [magic, value, complement] = [0, 8, 16].map(|at| {
        let mut word = [0; 8];
        word.copy_from_slice(&slot[at..at + 8]);
        u64::from_le_bytes(word)
    });
    Ok((magic == MAGIC && value == !complement).then_some(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::TempDir;

    #[test]
    fn it_remembers_and_survives_a_torn_write_of_either_slot() {
        let dir = TempDir::new("mark");
        let path = dir.path().join("mark");
        let mut mark = DurableMark::create(&path).unwrap();
        for value in 1..6 {
            mark.write(value).unwrap();
            let mut survivors = Vec::new();
            for offset in [0, SLOT_DISTANCE] {
                let whole = std::fs::read(&path).unwrap();
                OpenOptions::new().write(true).open(&path).unwrap().write_all_at(&[0xff; 12], offset).unwrap();
                survivors.push(DurableMark::open(&path).unwrap().value());
                std::fs::write(&path, whole).unwrap();
            }
            survivors.sort_unstable();
            assert_eq!(survivors, [value - 1, value]);
            assert_eq!(DurableMark::open(&path).unwrap().value(), value);
        }
    }

    #[test]
    fn damage_in_both_places_is_an_error() {
        let dir = TempDir::new("mark-damage");
        let path = dir.path().join("mark");
        drop(DurableMark::create(&path).unwrap());
        std::fs::write(&path, [7; 5000]).unwrap();
        assert_eq!(DurableMark::open(&path).unwrap_err().kind(), ErrorKind::InvalidData);
        std::fs::write(&path, []).unwrap();
        assert_eq!(DurableMark::open(&path).unwrap_err().kind(), ErrorKind::InvalidData);
    }
}
