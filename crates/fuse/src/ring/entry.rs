//! The entries of a queue: memory into which the kernel puts a request, and from which it takes the
//! answer. Owns that memory, and the rule about access to it.
//!
//! An entry belongs to the kernel from its registration, or the commit of its answer, until the
//! kernel reports a request in it. From then until the answer there is one [`PendingRequest`] for
//! the entry, which is the only access to its memory. It may move between threads.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{io, ptr};

use rustix::mm::{MapFlags, ProtFlags};

use super::abi::{self, RingRequest};
use super::queue::Queue;
use crate::REQUEST_BYTES_MAX;
use crate::answer::Answer;
use crate::wire::errno::Errno;

/// Bytes for the header of an entry: one page, so that payloads are page-aligned.
const HEADER_PLACE_BYTES: usize = 4096;

/// Bytes for arguments and data of an entry: the kernel requires room for the largest request.
const PAYLOAD_PLACE_BYTES: usize = REQUEST_BYTES_MAX as usize;

const ENTRY_BYTES: usize = HEADER_PLACE_BYTES + PAYLOAD_PLACE_BYTES;

/// The memory of a queue's entries.
pub(super) struct Memory {
    base: *mut u8,
    entries: usize,
    /// Whether the kernel has returned all entries, so that it no longer writes to any.
    is_released: AtomicBool,
}

// SAFETY: it is plain memory, not tied to a thread; the rule at the head of this file governs
// access to its parts.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub(super) fn new(entries: usize) -> io::Result<Self> {
        // SAFETY: new memory at an address that the kernel chooses.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                entries * ENTRY_BYTES,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        Ok(Self { base: base.cast(), entries, is_released: AtomicBool::new(false) })
    }

    /// Records that the kernel will not write to any entry again.
    pub(super) fn release(&self) {
        self.is_released.store(true, Ordering::Release);
    }

    /// Returns header and payload of an entry in the form that the kernel expects.
    pub(super) fn places(&self, index: usize) -> [libc::iovec; 2] {
        let header = self.header(index);
        [
            libc::iovec { iov_base: header.cast(), iov_len: abi::REQUEST_HEADER_BYTES },
            libc::iovec { iov_base: self.payload(index).cast(), iov_len: PAYLOAD_PLACE_BYTES },
        ]
    }

    fn header(&self, index: usize) -> *mut u8 {
        assert!(index < self.entries, "entry {index} of {}", self.entries);
        // SAFETY: within the memory, as has just been asserted.
        unsafe { self.base.add(index * ENTRY_BYTES) }
    }

    fn payload(&self, index: usize) -> *mut u8 {
        // SAFETY: the payload of each entry follows its header.
        unsafe { self.header(index).add(HEADER_PLACE_BYTES) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // If the kernel may still write there, the addresses must never be reused.
        if self.is_released.load(Ordering::Acquire) {
            // SAFETY: there are no references to it: a taken request holds the queue that owns it,
            // and the kernel no longer uses it.
            let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.entries * ENTRY_BYTES) };
        }
    }
}

/// A request that was taken from the kernel and waits for its answer. One that is dropped is
/// answered with `EIO`.
pub(super) struct PendingRequest {
    queue: Arc<Queue>,
    index: usize,
    asked: RingRequest,
    is_answered: bool,
}

impl PendingRequest {
    /// Wraps the request in an entry for which the kernel has just reported one.
    ///
    /// # Safety
    /// The entry must belong to us, and have no other `PendingRequest`.
    pub(super) unsafe fn new(queue: Arc<Queue>, index: usize) -> Self {
        let asked = RingRequest { opcode: 0, unique: 0, commit_id: 0, payload_bytes: 0 };
        let mut taken = Self { queue, index, asked, is_answered: false };
        taken.asked = abi::asked(taken.header());
        taken
    }

    pub(super) fn asked(&self) -> RingRequest {
        self.asked
    }

    /// `struct fuse_uring_req_header`.
    pub(super) fn header(&self) -> &[u8] {
        // SAFETY: the entry belongs to us while `self` exists, and a mutable borrow of it borrows
        // `self` mutably.
        unsafe { std::slice::from_raw_parts(self.queue.memory().header(self.index), abi::REQUEST_HEADER_BYTES) }
    }

    fn header_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `header`.
        unsafe { std::slice::from_raw_parts_mut(self.queue.memory().header(self.index), abi::REQUEST_HEADER_BYTES) }
    }

    /// Returns the data of the request after its first argument.
    pub(super) fn payload(&self) -> &[u8] {
        let bytes = self.asked.payload_bytes.min(PAYLOAD_PLACE_BYTES);
        // SAFETY: as in `header`.
        unsafe { std::slice::from_raw_parts(self.queue.memory().payload(self.index), bytes) }
    }

    /// Returns the memory for the reply's payload.
    fn room(&mut self) -> &mut [u8] {
        // SAFETY: as in `header`.
        unsafe { std::slice::from_raw_parts_mut(self.queue.memory().payload(self.index), PAYLOAD_PLACE_BYTES) }
    }

    /// Answers with the payload in the entry, or with a negative errno.
    fn finish(mut self, error: i32, payload_bytes: usize) {
        self.commit(error, payload_bytes);
    }

    fn commit(&mut self, error: i32, payload_bytes: usize) {
        let unique = self.asked.unique;
        abi::answer(self.header_mut(), unique, error, payload_bytes);
        self.is_answered = true;
        self.queue.return_entry(self.index, self.asked.commit_id);
    }

    /// Answers with a copy of `payload`, or with a negative errno.
    pub(super) fn finish_with(mut self, error: i32, payload: &[u8]) {
        match self.room().get_mut(..payload.len()) {
            Some(room) => {
                room.copy_from_slice(payload);
                self.finish(error, payload.len());
            }
            None => self.fail(Errno::EIO),
        }
    }
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        if !self.is_answered {
            self.commit(-Errno::EIO.code(), 0);
        }
    }
}

impl Answer for PendingRequest {
    fn fail(self, errno: Errno) {
        self.finish(-errno.code(), 0);
    }

    fn bytes(self, payload: &[u8]) {
        self.finish_with(0, payload);
    }

    fn fill(mut self, wanted: usize, how: impl FnOnce(&mut [u8]) -> Result<Option<usize>, Errno>) -> Option<Self> {
        let wanted = wanted.min(PAYLOAD_PLACE_BYTES);
        match how(&mut self.room()[..wanted]) {
            Ok(Some(length)) => self.finish(0, length.min(wanted)),
            Ok(None) => return Some(self),
            Err(errno) => self.fail(errno),
        }
        None
    }

    fn data(&self) -> &[u8] {
        self.payload()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a request in an entry of a queue that no kernel knows.
    fn taken(queue: &Arc<Queue>, index: usize, unique: u64) -> PendingRequest {
        // SAFETY: the entry has no other owner.
        let mut taken = unsafe { PendingRequest::new(queue.clone(), index) };
        taken.asked = RingRequest { opcode: crate::wire::opcode::READ, unique, commit_id: unique, payload_bytes: 0 };
        taken
    }

    /// Returns error, number and bytes of the answer in an entry.
    fn answer(queue: &Queue, index: usize) -> (i32, u64, Vec<u8>) {
        // SAFETY: the entry has no owner any more.
        let (header, payload) = unsafe {
            (
                std::slice::from_raw_parts(queue.memory().header(index), abi::REQUEST_HEADER_BYTES),
                std::slice::from_raw_parts(queue.memory().payload(index), 16),
            )
        };
        let length = abi::asked(header).payload_bytes;
        (abi::error_of(header), abi::unique_of(header), payload[..length].to_vec())
    }

    #[test]
    fn each_request_gets_one_answer_in_its_own_entry() {
        let queue = Queue::new(0, 4).unwrap();
        let (read, write, dropped, failed) =
            (taken(&queue, 0, 10), taken(&queue, 1, 11), taken(&queue, 2, 12), taken(&queue, 3, 13));
        assert!(queue.answered().is_empty());
        failed.fail(Errno::ENOSPC);
        assert!(
            read.fill(5, |room| {
                room.copy_from_slice(b"bytes");
                Ok(Some(4))
            })
            .is_none()
        );
        write.written(4096);
        drop(dropped);
        assert_eq!(queue.answered(), [(3, 13), (0, 10), (1, 11), (2, 12)]);
        assert_eq!(answer(&queue, 0), (0, 10, b"byte".to_vec()));
        assert_eq!(answer(&queue, 1), (0, 11, [&4096_u32.to_ne_bytes()[..], &[0; 4]].concat()));
        assert_eq!(
            answer(&queue, 2),
            (-libc::EIO, 12, vec![]),
            "a forgotten request gives an error, and its caller does not wait forever"
        );
        assert_eq!(answer(&queue, 3), (-libc::ENOSPC, 13, vec![]));
    }

    #[test]
    fn a_read_that_is_not_done_at_once_is_answered_later() {
        let queue = Queue::new(0, 1).unwrap();
        let read = taken(&queue, 0, 7).fill(4, |_| Ok(None)).unwrap();
        assert!(queue.answered().is_empty());
        std::thread::spawn(move || assert!(read.fill(4, |_| Err(Errno::EIO)).is_none())).join().unwrap();
        assert_eq!((queue.answered(), answer(&queue, 0).0), (vec![(0, 7)], -libc::EIO));
    }

    #[test]
    fn an_answer_larger_than_its_room_is_an_error() {
        let queue = Queue::new(0, 1).unwrap();
        taken(&queue, 0, 7).finish_with(0, &vec![1; PAYLOAD_PLACE_BYTES + 1]);
        assert_eq!(answer(&queue, 0), (-libc::EIO, 7, vec![]));
    }
}
