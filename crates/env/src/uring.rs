//! [`ReadRing`] on io_uring. Owns the thread's ring; the kernel's part is created once for each
//! thread that reads this way.
//!
//! The ring belongs to one thread, and completions are processed only when that thread asks: the
//! cheapest mode of the kernel, where available (since 6.1). Without io_uring (before 5.6, or
//! forbidden by the administrator, as in many containers) there is no ring, and callers read in
//! other ways.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use io_uring::{IoUring, opcode, types};

use crate::{AlignedBuf, EndedRead, ReadRing};

/// Most reads under way in a ring; more wait in it.
const ENTRIES: u32 = 64;
/// As soon as this many reads are queued they are submitted, without waiting for any: the device
/// works on them while the caller does other things.
const SUBMIT_AT: usize = 4;
/// A read of this size is submitted immediately: the system call is cheap in comparison, and
/// processing earlier completions takes so long that the device would be idle.
const LARGE_BYTES: usize = 32 << 10;

/// How often a kernel that refuses to continue is asked for accepted reads, and the interval: far
/// longer than a device takes, but bounded, because of the resources that the caller holds.
const REFUSALS_MAX: u32 = 100;
const REFUSAL_PAUSE: Duration = Duration::from_millis(1);

/// Whether io_uring turned out to be missing, or not permitted.
static IS_MISSING: AtomicBool = AtomicBool::new(false);

thread_local! {
    static SPARE: Cell<Option<Box<IoUring>>> = const { Cell::new(None) };
}

struct Slot {
    tag: usize,
    buf: AlignedBuf,
    len: usize,
}

/// Reads of a file.
pub(crate) struct FileRing<'a> {
    file: &'a File,
    read_bytes: &'a AtomicU64,
    /// `None` during drop, and once the kernel has refused to continue: then reads in progress end
    /// without data.
    ring: Option<Box<IoUring>>,
    /// By number of the read as the kernel knows it.
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
    /// Begun, and not known to the kernel.
    waiting: VecDeque<(usize, u64)>,
    /// Known to the kernel.
    under_way: usize,
}

impl<'a> FileRing<'a> {
    /// A ring for this thread, if the kernel has any; counts the bytes that it reads.
    pub(crate) fn new(file: &'a File, read_bytes: &'a AtomicU64) -> Option<Self> {
        if IS_MISSING.load(Ordering::Relaxed) {
            return None;
        }
        let ring = match SPARE.take() {
            Some(ring) => ring,
            None => match make() {
                Ok(ring) => Box::new(ring),
                Err(_) => {
                    IS_MISSING.store(true, Ordering::Relaxed);
                    return None;
                }
            },
        };
        let (slots, free, waiting) = (Vec::new(), Vec::new(), VecDeque::new());
        Some(Self { file, read_bytes, ring: Some(ring), slots, free, waiting, under_way: 0 })
    }

    /// Submits the queued reads, as far as the kernel accepts them, and waits until at least
    /// `ended` of all have completed.
    fn submit(&mut self, ended: usize) {
        let Some(ring) = &mut self.ring else { return };
        {
            let mut queue = ring.submission();
            while self.under_way < ENTRIES as usize
                && let Some((index, offset)) = self.waiting.pop_front()
            {
                let Some(Slot { buf, len, .. }) = &mut self.slots[index] else { continue };
                let (memory, len) = (buf[..*len].as_mut_ptr(), *len as u32);
                let read = opcode::Read::new(types::Fd(self.file.as_raw_fd()), memory, len).offset(offset);
                // SAFETY: the descriptor and the buffer live until the read has completed: the file
                // is borrowed for longer than this ring lives, the slot keeps the buffer, whose
                // memory does not move with it, and `drop` waits for reads in progress.
                let taken = unsafe { queue.push(&read.build().user_data(index as u64)) };
                if taken.is_err() {
                    self.waiting.push_front((index, offset));
                    break;
                }
                self.under_way += 1;
            }
        }
        // Reads that the kernel does not accept now (EAGAIN, EBUSY, EINTR) stay queued, and the
        // next call retries them. Other errors mean that the kernel has since been told to deny
        // rings to this process. Accepted reads may still complete, but need not: a ring in the
        // cheapest mode reports completions only when asked.
        let mut refusals = 0;
        while let Err(error) = ring.submit_and_wait(ended) {
            let is_refused = !matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY | libc::EINTR));
            if is_refused {
                IS_MISSING.store(true, Ordering::Relaxed);
            }
            if ring.completion().len() >= ended {
                break;
            }
            if is_refused && ring.submission().len() == self.under_way {
                self.ring = None;
                break;
            }
            if is_refused && refusals == REFUSALS_MAX {
                self.abandon_ring();
                break;
            }
            if is_refused {
                refusals += 1;
                std::thread::sleep(REFUSAL_PAUSE);
            } else {
                std::thread::yield_now();
            }
        }
    }

    /// Abandons the ring with its reads. Their buffers are leaked, because the kernel may still
    /// write to them.
    fn abandon_ring(&mut self) {
        for (index, slot) in self.slots.iter_mut().enumerate() {
            if let Some(slot) = slot
                && self.waiting.iter().all(|(waiting, _)| *waiting != index)
            {
                let fresh = AlignedBuf::new(slot.buf.len());
                std::mem::forget(std::mem::replace(&mut slot.buf, fresh));
            }
        }
        std::mem::forget(self.ring.take());
    }

    /// A started read that the ring will never complete.
    fn end_unread(&mut self) -> Option<EndedRead> {
        let (index, Slot { tag, buf, .. }) =
            self.slots.iter_mut().enumerate().find_map(|(index, slot)| Some((index, slot.take()?)))?;
        self.free.push(index);
        Some(EndedRead { tag, buf, whole: false })
    }
}

/// The newest ways first.
fn make() -> io::Result<IoUring> {
    IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .build(ENTRIES)
        .or_else(|_| IoUring::builder().setup_coop_taskrun().build(ENTRIES))
        .or_else(|_| IoUring::new(ENTRIES))
}

impl ReadRing for FileRing<'_> {
    fn begin(&mut self, tag: usize, offset: u64, buf: AlignedBuf, len: usize) {
        let len = len.min(buf.len());
        let slot = Some(Slot { tag, buf, len });
        let index = match self.free.pop() {
            Some(index) => {
                self.slots[index] = slot;
                index
            }
            None => {
                self.slots.push(slot);
                self.slots.len() - 1
            }
        };
        if self.ring.is_none() {
            return;
        }
        self.waiting.push_back((index, offset));
        if (len >= LARGE_BYTES || self.waiting.len() >= SUBMIT_AT) && self.under_way < ENTRIES as usize {
            self.submit(0);
        }
    }

    fn wait(&mut self) -> Option<EndedRead> {
        loop {
            let Some(ring) = &mut self.ring else { return self.end_unread() };
            let entry = ring.completion().next();
            let Some(entry) = entry else {
                if self.under_way == 0 && self.waiting.is_empty() {
                    return None;
                }
                self.submit(1);
                continue;
            };
            let index = entry.user_data() as usize;
            self.under_way -= 1;
            let Some(Slot { tag, buf, len }) = self.slots.get_mut(index).and_then(Option::take) else { continue };
            self.free.push(index);
            let whole = usize::try_from(entry.result()) == Ok(len);
            if whole {
                self.read_bytes.fetch_add(len as u64, Ordering::Relaxed);
            } else if [-libc::EINVAL, -libc::EOPNOTSUPP, -libc::ENOSYS].contains(&entry.result()) {
                IS_MISSING.store(true, Ordering::Relaxed);
            }
            return Some(EndedRead { tag, buf, whole });
        }
    }
}

impl Drop for FileRing<'_> {
    fn drop(&mut self) {
        self.waiting.clear();
        while self.wait().is_some() {}
        SPARE.set(self.ring.take());
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;
    use testkit::{TempDir, starting};

    /// Runs in a process of its own, which has no rings afterwards.
    #[test]
    #[ignore = "the child of a_kernel_that_refuses_to_go_on_ends_all_reads"]
    fn read_without_a_kernel() {
        let dir = TempDir::new("ring-refused");
        let path = dir.path().join("data");
        std::fs::write(&path, [7; 8192]).unwrap();
        let (file, counter) = (File::open(&path).unwrap(), AtomicU64::new(0));
        let Some(mut ring) = FileRing::new(&file, &counter) else { return };
        ring.begin(1, 0, AlignedBuf::new(4096), 4096);
        let nothing = File::open("/dev/null").unwrap();
        let number = ring.ring.as_ref().unwrap().as_raw_fd();
        // SAFETY: both descriptors are open, and the holder of the second one only asks the kernel
        // by its number.
        assert_eq!(unsafe { libc::dup2(nothing.as_raw_fd(), number) }, number);
        for tag in 1..10 {
            let read = ring.wait().unwrap();
            assert!(read.tag == tag && !read.whole);
            assert!(ring.wait().is_none());
            ring.begin(tag + 1, 4096, read.buf, 4096);
        }
        assert_eq!(ring.slots.len(), 1, "places are used again");
        drop(ring);
        assert!(FileRing::new(&file, &counter).is_none());
    }

    /// Also runs in a process of its own.
    #[test]
    #[ignore = "the child of reads_that_a_kernel_keeps_are_given_up"]
    fn read_what_never_comes() {
        let (pipe, mut writer) = std::io::pipe().unwrap();
        let (file, counter) = (File::from(std::os::fd::OwnedFd::from(pipe)), AtomicU64::new(0));
        let Some(mut ring) = FileRing::new(&file, &counter) else { return };
        // As many as are submitted at once, and one that is not.
        for tag in 0..=SUBMIT_AT {
            ring.begin(tag, 0, AlignedBuf::new(4096), 4096);
        }
        assert_eq!((ring.under_way, ring.waiting.len()), (SUBMIT_AT, 1));
        let nothing = File::open("/dev/null").unwrap();
        let number = ring.ring.as_ref().unwrap().as_raw_fd();
        // SAFETY: as above.
        assert_eq!(unsafe { libc::dup2(nothing.as_raw_fd(), number) }, number);
        let first = ring.wait().unwrap();
        writer.write_all(&[7; 4096]).unwrap();
        let mut ended = vec![first];
        ended.extend(std::iter::from_fn(|| ring.wait()));
        ended.sort_by_key(|read| read.tag);
        assert!(ended.iter().map(|read| read.tag).eq(0..=SUBMIT_AT));
        assert!(ended.iter().all(|read| !read.whole && read.buf[..4096] == [0; 4096]));
        drop(ring);
        assert!(FileRing::new(&file, &counter).is_none());
    }

    fn passes_in_a_child(test: &str) {
        let _alone = starting();
        let mut child = Command::new(std::env::current_exe().unwrap());
        let name = format!("uring::tests::{test}");
        child.args(["--ignored", "--exact", &name]).stdout(Stdio::null());
        assert!(child.status().unwrap().success());
    }

    /// The kernel was asked endlessly.
    #[test]
    fn a_kernel_that_refuses_to_go_on_ends_all_reads() {
        passes_in_a_child("read_without_a_kernel");
    }

    /// They were waited for without end.
    #[test]
    fn reads_that_a_kernel_keeps_are_given_up() {
        passes_in_a_child("read_what_never_comes");
    }
}
