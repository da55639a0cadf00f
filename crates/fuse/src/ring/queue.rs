//! A queue of a ring: requests of one CPU, and the thread that takes and answers them. Owns the
//! entries, and the list of those to submit. Any thread may answer a request; only the queue's
//! thread calls the kernel.
//!
//! The thread is not bound to that CPU: bound, it serves a single caller that keeps its CPU busy 40
//! % slower, and callers on all CPUs no faster (measured on 2 cores).
//!
//! # One turn of the thread
//!
//! 1. All answered entries, by this thread or another, are submitted to the kernel in one call; if
//!    there is nothing to do, that call waits.
//! 2. The kernel has put requests into entries: each is served at once, or passed to other threads,
//!    which answer it.
//!
//! A thread that answers while this one waits wakes it through an eventfd, which the ring reads as
//! well.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::Sender;

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use parking_lot::Mutex;
use rustix::event::EventfdFlags;

use super::abi;
use super::entry::{Memory, PendingRequest};
use crate::io_flusher::become_io_flusher;

type Submissions = IoUring<squeue::Entry128, cqueue::Entry>;

/// Marks a completion of the wake-up eventfd, not of an entry.
const WAKE: u64 = u64::MAX;

/// Completion codes of an entry whose connection has ended, or whose request the kernel has
/// cancelled.
const ENDED: [i32; 4] = [libc::ENOTCONN, libc::ECONNABORTED, libc::ECANCELED, libc::ENOENT];

/// Signals to the thread of a queue.
#[derive(Default)]
struct Signals {
    /// Entries with an answer, and the commit ids of their requests.
    answered: Vec<(usize, u64)>,
    /// The thread must end, even if the kernel still holds entries.
    must_end: bool,
    /// The thread waits, and must be woken.
    is_waiting: bool,
}

/// The queue of a CPU.
pub(super) struct Queue {
    cpu: u16,
    entries: usize,
    memory: Memory,
    signals: Mutex<Signals>,
    wake: OwnedFd,
}

impl Queue {
    pub(super) fn new(cpu: u16, entries: usize) -> io::Result<Arc<Self>> {
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?;
        Ok(Arc::new(Self { cpu, entries, memory: Memory::new(entries)?, signals: Mutex::default(), wake }))
    }

    pub(super) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Queues an answered entry for submission to the kernel.
    pub(super) fn return_entry(&self, index: usize, commit_id: u64) {
        self.signal(|signals| signals.answered.push((index, commit_id)));
    }

    /// Returns the entries that wait for submission.
    #[cfg(test)]
    pub(super) fn answered(&self) -> Vec<(usize, u64)> {
        self.signals.lock().answered.clone()
    }

    /// Makes the thread end although the kernel has not ended the connection.
    pub(super) fn end(&self) {
        self.signal(|signals| signals.must_end = true);
    }

    fn signal(&self, what: impl FnOnce(&mut Signals)) {
        let mut signals = self.signals.lock();
        what(&mut signals);
        let is_waiting = std::mem::take(&mut signals.is_waiting);
        drop(signals);
        if is_waiting {
            let _ = rustix::io::retry_on_intr(|| rustix::io::write(&self.wake, &1_u64.to_ne_bytes()));
        }
    }

    /// Serves requests until the kernel ends the connection. `begun` receives once whether the
    /// kernel accepted the entries.
    pub(super) fn serve(
        self: &Arc<Self>,
        device: &OwnedFd,
        serve: impl Fn(PendingRequest),
        failed: impl FnOnce(),
        begun: &Sender<io::Result<()>>,
    ) {
        become_io_flusher();
        let mut thread_state = match QueueThread::begin(self.clone(), device) {
            Ok(thread_state) => thread_state,
            Err(error) => {
                let _ = begun.send(Err(error));
                return;
            }
        };
        let _ = begun.send(Ok(()));
        while thread_state.outstanding > 0 {
            match thread_state.exchange().and_then(|()| thread_state.take(&serve)) {
                Ok(false) => {}
                Ok(true) => return,
                Err(error) => {
                    log::error!("a queue of the FUSE front end failed, and the mount ends: {error}");
                    failed();
                    return;
                }
            }
        }
        self.memory.release();
    }
}

/// The state of a queue's thread.
struct QueueThread {
    queue: Arc<Queue>,
    ring: Submissions,
    device: types::Fd,
    /// Entries that have not ended: they are with the kernel, or with a thread that will answer.
    outstanding: usize,
    /// Submissions for the next call.
    next: Vec<squeue::Entry128>,
    answered: Vec<(usize, u64)>,
    requests: Vec<usize>,
    /// Destination of the eventfd's count; on the heap, because it must not move.
    count: Box<u64>,
    is_listening: bool,
}

/// Creates a ring with the settings of a queue.
pub(super) fn make(entries: usize) -> io::Result<Submissions> {
    // One more for the eventfd; twice as many completions may be pending. The kernel's work for
    // this thread is done when the thread calls it, which it does after each request.
    let entries = u32::try_from(entries + 1).unwrap_or(u32::MAX).next_power_of_two();
    IoUring::builder().setup_single_issuer().setup_defer_taskrun().setup_clamp().build(entries)
}

impl QueueThread {
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
                // SAFETY: the descriptor stays open while this thread serves, the memory stays
                // mapped until the kernel has ended or permanently, and the list of addresses is
                // read before `submit` returns.
                unsafe { submissions.push(&command) }.map_err(io::Error::other)?;
            }
        }
        // Submissions that it has not consumed would read `places` later.
        if ring.submit()? < entries {
            return Err(io::Error::other("the kernel did not accept all entries of a queue"));
        }
        drop(places);
        // Refusals complete at once. A request that is already there is not lost here: the kernel's
        // work for this thread (DEFER_TASKRUN) is done when the thread waits, not by the call
        // above.
        let refused = ring.completion().find(|ended| ended.result() < 0);
        if let Some(refused) = refused {
            return Err(io::Error::from_raw_os_error(-refused.result()));
        }
        Ok(Self {
            queue,
            ring,
            device,
            outstanding: entries,
            next: Vec::with_capacity(entries + 1),
            answered: Vec::with_capacity(entries),
            requests: Vec::with_capacity(entries),
            count: Box::new(0),
            is_listening: false,
        })
    }

    /// Step 1: submits the answered entries, and waits if there are none.
    fn exchange(&mut self) -> io::Result<()> {
        let mut signals = self.queue.signals.lock();
        std::mem::swap(&mut self.answered, &mut signals.answered);
        let waits = !signals.must_end;
        signals.is_waiting = waits;
        drop(signals);
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

    /// Step 2: serves the requests that arrived; returns whether the thread should end.
    ///
    /// # Errors
    /// When the kernel refuses an answer although the connection is alive: its caller would wait
    /// indefinitely.
    fn take(&mut self, serve: impl Fn(PendingRequest)) -> io::Result<bool> {
        let mut failed = Ok(());
        self.requests.clear();
        for ended in self.ring.completion() {
            match (ended.user_data(), ended.result()) {
                (WAKE, _) => self.is_listening = false,
                (index, 0) => self.requests.push(index as usize),
                (_, error) => {
                    self.outstanding -= 1;
                    if !ENDED.contains(&-error) {
                        failed = Err(io::Error::from_raw_os_error(-error));
                    }
                }
            }
        }
        let must_end = {
            let mut signals = self.queue.signals.lock();
            signals.is_waiting = false;
            signals.must_end
        };
        for &index in &self.requests {
            // SAFETY: the kernel has just passed the entry to us.
            serve(unsafe { PendingRequest::new(self.queue.clone(), index) });
        }
        failed.map(|()| must_end)
    }
}

/// Sets `len` of a submission, for which this command's builder has no method.
fn with_length(mut command: squeue::Entry128, length: u32) -> squeue::Entry128 {
    /// Its offset in `struct io_uring_sqe`.
    const LEN: usize = 24;
    const _: () = assert!(size_of::<squeue::Entry128>() == 128);
    // SAFETY: `repr(C)`, of the size that has just been asserted, and all fields are plain
    // integers.
    unsafe { (&raw mut command).cast::<u8>().add(LEN).cast::<u32>().write(length) };
    command
}
