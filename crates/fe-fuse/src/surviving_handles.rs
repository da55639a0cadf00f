//! Memory that survives the program: the open files of a mount.
//!
//! An unnamed file in memory with a slot of 32 bytes for each handle: node 8, number of the request
//! that opened it 8, flags 8 (1: in use, 2: opened with `O_TRUNC`); an unused slot is zeroes. A
//! slot lies within one page, so that a program that is killed writes it completely or not at all.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use parking_lot::Mutex;
use rustix::fs::MemfdFlags;

use crate::handles::HANDLES_MAX;

const PLACE_BYTES: usize = 32;
const IN_USE: u64 = 1;
const EMPTIED: u64 = 2;

/// An open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Opened {
    pub(crate) handle: u64,
    pub(crate) node: u64,
    /// The number of the request that opened it.
    pub(crate) request: u64,
    pub(crate) was_emptied: bool,
}

/// The open files, as the next program finds them.
#[derive(Debug)]
pub(crate) struct SurvivingHandles {
    memory: File,
    /// Files that were open when another program served the mount.
    earlier: Mutex<Vec<Opened>>,
}

impl SurvivingHandles {
    pub(crate) fn new() -> io::Result<Self> {
        let memory = File::from(rustix::fs::memfd_create("shale-handles", MemfdFlags::CLOEXEC)?);
        memory.set_len((HANDLES_MAX * PLACE_BYTES) as u64)?;
        Ok(Self { memory, earlier: Mutex::default() })
    }

    /// Reads the memory left by another program.
    pub(crate) fn left(memory: OwnedFd) -> io::Result<Self> {
        let mut bytes = vec![0; HANDLES_MAX * PLACE_BYTES];
        let memory = File::from(memory);
        memory.read_exact_at(&mut bytes, 0)?;
        let number = |place: &[u8], at| {
            place.get(at..).and_then(|rest: &[u8]| rest.first_chunk()).map_or(0, |bytes| u64::from_le_bytes(*bytes))
        };
        let places = (0_u64..).zip(bytes.chunks_exact(PLACE_BYTES));
        let opened = places.filter(|(_, place)| number(place, 16) & IN_USE != 0).map(|(handle, place)| Opened {
            handle,
            node: number(place, 0),
            request: number(place, 8),
            was_emptied: number(place, 16) & EMPTIED != 0,
        });
        let earlier = Mutex::new(opened.collect());
        Ok(Self { memory, earlier })
    }

    pub(crate) fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    /// Files that were open when another program served the mount.
    pub(crate) fn earlier(&self) -> Vec<Opened> {
        self.earlier.lock().clone()
    }

    /// The handle of an open that another program did and could not answer.
    pub(crate) fn opened_by(&self, request: u64) -> Option<u64> {
        self.earlier.lock().iter().find(|opened| opened.request == request).map(|opened| opened.handle)
    }

    pub(crate) fn opened(&self, opened: Opened) {
        let flags = IN_USE | if opened.was_emptied { EMPTIED } else { 0 };
        self.put(opened.handle, [opened.node, opened.request, flags, 0]);
    }

    pub(crate) fn closed(&self, handle: u64) {
        self.put(handle, [0; 4]);
        self.earlier.lock().retain(|opened| opened.handle != handle);
    }

    fn put(&self, handle: u64, numbers: [u64; 4]) {
        let bytes = numbers.map(u64::to_le_bytes).concat();
        if let Err(error) = self.memory.write_all_at(&bytes, handle * PLACE_BYTES as u64) {
            log::error!("an open file will not survive this program: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_program_knows_the_open_files() {
        let kept = SurvivingHandles::new().unwrap();
        let (a, b) = (
            Opened { handle: 3, node: 9, request: 77, was_emptied: true },
            Opened { handle: 65_535, node: 10, request: 78, was_emptied: false },
        );
        kept.opened(Opened { handle: 4, ..a });
        kept.opened(a);
        kept.opened(b);
        kept.closed(4);
        let left = SurvivingHandles::left(kept.memory().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!(left.earlier(), [a, b]);
        assert_eq!((left.opened_by(78), left.opened_by(1)), (Some(65_535), None));
        left.closed(3);
        assert_eq!((left.opened_by(77), left.earlier()), (None, vec![b]));
    }
}
