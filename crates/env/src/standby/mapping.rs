//! A file that is mapped as a whole. Owns the access to its bytes and words, and its lock.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{ErrorKind, Result};
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

use super::StandbyMemory;

/// A file that is mapped as a whole, and locked.
pub(super) struct Mapping {
    memory: NonNull<u8>,
    len: usize,
    /// Device and inode of the file.
    identity: (u64, u64),
    /// Holds the lock.
    file: File,
}

// SAFETY: the memory is shared with other processes anyway; it is reached by copies and by atomic
// words only, and no reference to it is made.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(super) fn of(file: File, len: usize) -> Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address chosen by the system affects nothing else.
        let memory = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, &file, 0) }?;
        let memory = NonNull::new(memory.cast()).ok_or(ErrorKind::OutOfMemory)?;
        let metadata = file.metadata()?;
        Ok(Self { memory, len, identity: (metadata.dev(), metadata.ino()), file })
    }

    /// The address of `len` bytes at `at`, if they are within.
    fn at(&self, at: usize, len: usize) -> Option<*mut u8> {
        let is_within = at.checked_add(len).is_some_and(|end| end <= self.len);
        debug_assert!(is_within, "{len} bytes at {at} of {}", self.len);
        // SAFETY: within the mapping.
        is_within.then(|| unsafe { self.memory.as_ptr().add(at) })
    }

    fn word(&self, at: usize) -> Option<&AtomicU64> {
        debug_assert!(at.is_multiple_of(8), "a word at {at}");
        let word = self.at(at, 8).filter(|_| at.is_multiple_of(8))?;
        // SAFETY: within the mapping, which is page-aligned, and aligned; words are only accessed
        // through this.
        Some(unsafe { AtomicU64::from_ptr(word.cast()) })
    }
}

impl StandbyMemory for Mapping {
    fn len(&self) -> usize {
        self.len
    }

    fn identity(&self) -> (u64, u64) {
        self.identity
    }

    fn is_whole(&self) -> bool {
        self.file.metadata().is_ok_and(|metadata| metadata.len() >= self.len as u64)
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        if let Some(to) = self.at(at, bytes.len()) {
            // SAFETY: within the mapping, to which no reference exists.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
        }
    }

    fn read(&self, at: usize, bytes: &mut [u8]) -> bool {
        let Some(from) = self.at(at, bytes.len()) else { return false };
        // SAFETY: within the mapping, to which no reference exists.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) }
        true
    }

    fn store(&self, at: usize, word: u64) {
        if let Some(there) = self.word(at) {
            there.store(word, Ordering::Release);
        }
    }

    fn load(&self, at: usize) -> u64 {
        self.word(at).map_or(0, |there| there.load(Ordering::Acquire))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `of`, and nothing refers to it any more.
        let _ = unsafe { rustix::mm::munmap(self.memory.as_ptr().cast(), self.len) };
        crate::lock::release(&self.file);
    }
}
