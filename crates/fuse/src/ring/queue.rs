//! A queue of a ring: requests of one CPU, and the thread that takes and answers them. Owns the
//! entries, and which of them wait to go back.
//!
//! The thread is not bound to that CPU: bound, it serves a lone caller that keeps its CPU busy 40 %
//! slower, and callers on all CPUs at most as fast (measured on 2 cores).
//!
//! # One turn of the thread
//!
//! 1. What has been answered, by this thread or another, goes back to the kernel, all in one call;
//!    if there is nothing to do, that call waits.
//! 2. The kernel has put requests into entries: each is served at once, or handed to other threads,
//!    which answer it.
//!
//! A thread that answers while this one waits wakes it through an eventfd, which is one more thing
//! that the ring reads.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::Sender;

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use parking_lot::Mutex;
use rustix::event::EventfdFlags;

use super::abi;
use super::entry::{Memory, Taken};
use crate::io_flusher::become_io_flusher;

type Submissions = IoUring<squeue::Entry128, cqueue::Entry>;

/// Marks what ends as that which wakes the thread, not an entry.
const WAKE: u64 = u64::MAX;

/// How an entry ends with the connection, or with a request that the kernel has given up.
const ENDED: [i32; 4] = [libc::ENOTCONN, libc::ECONNABORTED, libc::ECANCELED, libc::ENOENT];

/// What is said to the thread of a queue.
#[derive(Default)]
struct Said {
    /// Entries with an answer, and by what the kernel finds their requests.
    answered: Vec<(usize, u64)>,
    /// The thread is to end, whatever the kernel has.
    must_end: bool,
    /// The thread waits, and must be woken.
    is_waiting: bool,
}

/// The queue of a CPU.
pub(super) struct Queue {
    cpu: u16,
    entries: usize,
    memory: Memory,
    said: Mutex<Said>,
    wake: OwnedFd,
}

impl Queue {
    pub(super) fn new(cpu: u16, entries: usize) -> io::Result<Arc<Self>> {
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?;
        Ok(Arc::new(Self { cpu, entries, memory: Memory::new(entries)?, said: Mutex::default(), wake }))
    }

    pub(super) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// An entry has its answer, and goes back to the kernel.
    pub(super) fn give_back(&self, index: usize, commit_id: u64) {
        self.say(|said| said.answered.push((index, commit_id)));
    }

    /// What waits to go back.
    #[cfg(test)]
    pub(super) fn answered(&self) -> Vec<(usize, u64)> {
        self.said.lock().answered.clone()
    }

    /// Lets the thread end although the kernel has not ended.
    pub(super) fn end(&self) {
        self.say(|said| said.must_end = true);
    }

    fn say(&self, what: impl FnOnce(&mut Said)) {
        let mut said = self.said.lock();
        what(&mut said);
        let is_waiting = std::mem::take(&mut said.is_waiting);
        drop(said);
        if is_waiting {
            let _ = rustix::io::retry_on_intr(|| rustix::io::write(&self.wake, &1_u64.to_ne_bytes()));
        }
    }

    /// Serves requests until the kernel has ended. `begun` is told once whether the kernel took the
    /// entries.
    pub(super) fn serve(
        self: &Arc<Self>,
        device: &OwnedFd,
        serve: impl Fn(Taken),
        failed: impl FnOnce(),
        begun: &Sender<io::Result<()>>,
    ) {
        become_io_flusher();
        let mut turn = match Turn::begin(self.clone(), device) {
            Ok(turn) => turn,
            Err(error) => {
                let _ = begun.send(Err(error));
                return;
            }
        };
        let _ = begun.send(Ok(()));
        while turn.with_kernel_or_us > 0 {
            match turn.exchange().and_then(|()| turn.take(&serve)) {
                Ok(false) => {}
                Ok(true) => return,
                Err(error) => {
                    log::error!("a queue of the FUSE front end fails, and the mount ends: {error}");
                    failed();
                    return;
                }
            }
        }
        self.memory.give_back();
    }
}

/// What the thread of a queue has while it serves.
struct Turn {
    queue: Arc<Queue>,
    ring: Submissions,
    device: types::Fd,
    /// Entries that have not ended: the kernel has them, or somebody who will answer.
    with_kernel_or_us: usize,
    /// What goes to the kernel next.
    next: Vec<squeue::Entry128>,
    answered: Vec<(usize, u64)>,
    requests: Vec<usize>,
    /// Where the eventfd's count goes; on the heap, for it must not move.
    count: Box<u64>,
    is_listening: bool,
}

/// A ring as a queue needs it.
pub(super) fn make(entries: usize) -> io::Result<Submissions> {
    // One more for the eventfd; twice as many may end at a time. Tasks of the kernel for this
    // thread are done when it asks: it asks after each request.
    let entries = u32::try_from(entries + 1).unwrap_or(u32::MAX).next_power_of_two();
    IoUring::builder().setup_single_issuer().setup_defer_taskrun().setup_clamp().build(entries)
}

impl Turn {
    /// Registers all entries.
    fn begin(queue: Arc<Queue>, device: &OwnedFd) -> io::Result<Self> {
        let entries = queue.entries;
        let mut ring = make(entries)?;
        let device = types::Fd(device.as_raw_fd());
        let places: Vec<[libc::iovec; 2]> = (0..entries).map(|index| queue.memory.places(index)).collect();
        {
            let mut submissions = ring.submission();
            for (index, places) in places.iter().enumerate() {
                let command = opcode::UringCmd80::new(device, abi::CMD_REGISTER)
                    .cmd(abi::command(queue.cpu, 0))
                    .addr(Some(places.as_ptr() as u64))
                    .build()
                    .user_data(index as u64);
                let command = with_length(command, places.len() as u32);
                // SAFETY: the descriptor lives as long as this thread serves, the memory until the
                // kernel has ended or for ever, and the list of places is read before `submit`
                // returns.
                unsafe { submissions.push(&command) }.map_err(io::Error::other)?;
            }
        }
        // What it has not taken would be read from `places` later.
        if ring.submit()? < entries {
            return Err(io::Error::other("the kernel took less than all entries of a queue"));
        }
        drop(places);
        // What the kernel refuses ends at once. A request that is there already is not lost here:
        // what the kernel has to do for this thread (DEFER_TASKRUN) is done when it waits, and not
        // by the call above.
        let refused = ring.completion().find(|ended| ended.result() < 0);
        if let Some(refused) = refused {
            return Err(io::Error::from_raw_os_error(-refused.result()));
        }
        Ok(Self {
            queue,
            ring,
            device,
            with_kernel_or_us: entries,
            next: Vec::with_capacity(entries + 1),
            answered: Vec::with_capacity(entries),
            requests: Vec::with_capacity(entries),
            count: Box::new(0),
            is_listening: false,
        })
    }

    /// Step 1: gives back what is answered, and waits if nothing is.
    fn exchange(&mut self) -> io::Result<()> {
        let mut said = self.queue.said.lock();
        std::mem::swap(&mut self.answered, &mut said.answered);
        let waits = !said.must_end;
        said.is_waiting = waits;
        drop(said);
        for (index, commit_id) in self.answered.drain(..) {
            let command = opcode::UringCmd80::new(self.device, abi::CMD_COMMIT_AND_FETCH)
                .cmd(abi::command(self.queue.cpu, commit_id))
                .build()
                .user_data(index as u64);
            self.next.push(command);
        }
        if !self.is_listening {
            self.is_listening = true;
            let place = (&raw mut *self.count).cast();
            let read = opcode::Read::new(types::Fd(self.queue.wake.as_raw_fd()), place, 8).build();
            self.next.push(squeue::Entry128::from(read.user_data(WAKE)));
        }
        let mut submissions = self.ring.submission();
        for command in self.next.drain(..) {
            // SAFETY: as in `begin`; the count and the eventfd live as long as the ring, which is
            // dropped before them.
            unsafe { submissions.push(&command) }.map_err(io::Error::other)?;
        }
        drop(submissions);
        let wanted = usize::from(waits);
        match self.ring.submit_and_wait(wanted) {
            Err(error) if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => Err(error),
            _ => Ok(()),
        }
    }

    /// Step 2: serves what has come; whether the thread is to end.
    ///
    /// # Errors
    /// If the kernel did not take an answer although the connection lives: whoever waits for it
    /// would do so for ever.
    fn take(&mut self, serve: impl Fn(Taken)) -> io::Result<bool> {
        let mut failed = Ok(());
        self.requests.clear();
        for ended in self.ring.completion() {
            match (ended.user_data(), ended.result()) {
                (WAKE, _) => self.is_listening = false,
                (index, 0) => self.requests.push(index as usize),
                (_, error) => {
                    self.with_kernel_or_us -= 1;
                    if !ENDED.contains(&-error) {
                        failed = Err(io::Error::from_raw_os_error(-error));
                    }
                }
            }
        }
        let must_end = {
            let mut said = self.queue.said.lock();
            said.is_waiting = false;
            said.must_end
        };
        for &index in &self.requests {
            // SAFETY: the kernel has just given it to us.
            serve(unsafe { Taken::new(self.queue.clone(), index) });
        }
        failed.map(|()| must_end)
    }
}

/// `len` of a submission, for which this command's builder has no word.
fn with_length(mut command: squeue::Entry128, length: u32) -> squeue::Entry128 {
    /// Where `struct io_uring_sqe` has it.
    const LEN: usize = 24;
    const _: () = assert!(size_of::<squeue::Entry128>() == 128);
    // SAFETY: `repr(C)`, of the size that has just been asserted, all plain numbers.
    unsafe { (&raw mut command).cast::<u8>().add(LEN).cast::<u32>().write(length) };
    command
}
