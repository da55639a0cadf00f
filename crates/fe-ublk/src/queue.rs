//! A queue of a device, and the thread that takes and answers its requests. Owns the buffers, and
//! the list of answers to submit. Any thread may answer a request; only the queue's thread calls
//! the kernel, because the driver accepts no other.
//!
//! # One turn of the thread
//!
//! 1. All answers, of this thread or others, are submitted to the kernel in one call. Each also
//!    hands its tag to the kernel again. If there is nothing to do, that call waits.
//! 2. The kernel has handed requests over: each is done at once, or by the pool.
//!
//! When the thread is to end it begins nothing more, and waits for the answers of all that it has
//! begun. Requests that arrive before that stay with the kernel.
//!
//! A thread that answers while this one waits wakes it through an eventfd, which the ring polls.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::Sender;

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use parking_lot::{Condvar, Mutex};
use rustix::event::EventfdFlags;

use crate::memory::{Buffers, Descriptors};
use crate::taken::Taken;
use crate::wire::{self, ABORTED, Descriptor};

type Ring = IoUring<squeue::Entry128, cqueue::Entry>;

/// Marks a completion of the wake-up eventfd, not of a tag.
const WAKE: u64 = u64::MAX;

#[derive(Default)]
struct Signals {
    /// Tags whose requests are answered, and the results.
    answered: Vec<(u16, i32)>,
    /// Requests that are neither answered nor left.
    in_hand: usize,
    /// The thread is to end.
    must_end: bool,
    /// The thread waits, and must be woken.
    is_waiting: bool,
}

/// The part of a queue that all threads share.
pub struct Queue {
    index: u16,
    depth: u16,
    buffers: Buffers,
    signals: Mutex<Signals>,
    /// A request was settled.
    settled: Condvar,
    wake: OwnedFd,
}

/// Takes the requests of a queue.
pub trait Serve {
    /// Begins a request. `is_alone`: the queue has no other one in hand.
    fn serve(&mut self, request: &Descriptor, taken: Taken, is_alone: bool);

    /// The kernel has taken all tags back: it has removed the device.
    fn removed(&mut self);
}

impl Queue {
    /// A queue that the kernel does not know yet, with buffers of so many bytes.
    ///
    /// # Errors
    /// When there is no memory, or no descriptor.
    pub fn new(index: u16, depth: u16, buffer_bytes: usize) -> io::Result<Arc<Self>> {
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let buffers = Buffers::new(depth, buffer_bytes)?;
        Ok(Arc::new(Self { index, depth, buffers, signals: Mutex::default(), settled: Condvar::new(), wake }))
    }

    /// The buffers.
    pub fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// Settles a request; `None`: it is left.
    pub fn settle(&self, tag: u16, result: Option<i32>) {
        self.signal(|signals| {
            signals.in_hand -= 1;
            signals.answered.extend(result.map(|result| (tag, result)));
        });
        self.settled.notify_all();
    }

    /// Waits until no request is in hand. Its thread does so before it ends, unless it fails.
    pub fn await_settled(&self) {
        let mut signals = self.signals.lock();
        self.settled.wait_while(&mut signals, |signals| signals.in_hand > 0);
    }

    /// Requests that are neither answered nor left.
    #[cfg(test)]
    pub fn in_hand(&self) -> usize {
        self.signals.lock().in_hand
    }

    /// Makes the thread end.
    pub fn end(&self) {
        self.signal(|signals| signals.must_end = true);
    }

    fn signal(&self, what: impl FnOnce(&mut Signals)) {
        let mut signals = self.signals.lock();
        what(&mut signals);
        let is_waiting = std::mem::take(&mut signals.is_waiting);
        drop(signals);
        if is_waiting {
            // A counter that is full would wake as well; no other error is possible.
            let _ = rustix::io::retry_on_intr(|| rustix::io::write(&self.wake, &1_u64.to_ne_bytes()));
        }
    }

    /// Serves requests of `/dev/ublkcN` until it must end. `begun` receives once whether the kernel
    /// accepted the tags.
    ///
    /// # Errors
    /// When the kernel refuses an answer, or fails. The device's programs wait then.
    pub fn serve(
        self: &Arc<Self>,
        device: &OwnedFd,
        serve: &mut impl Serve,
        begun: &Sender<io::Result<()>>,
    ) -> io::Result<()> {
        let mut thread_state = match QueueThread::begin(Arc::clone(self), device) {
            Ok(thread_state) => thread_state,
            Err(error) => {
                let _ = begun.send(Err(error));
                return Ok(());
            }
        };
        let _ = begun.send(Ok(()));
        while !thread_state.exchange()? {
            thread_state.take(serve)?;
        }
        Ok(())
    }
}

#[cfg(test)]
impl Queue {
    /// A request of a queue that no kernel knows.
    pub fn taken_in_test(self: &Arc<Self>, tag: u16) -> Taken {
        self.signals.lock().in_hand += 1;
        // SAFETY: no kernel has it; tests take each tag once.
        unsafe { Taken::new(Arc::clone(self), tag) }
    }

    /// The answers that wait for submission.
    pub fn answered(&self) -> Vec<(u16, i32)> {
        self.signals.lock().answered.clone()
    }
}

/// The state of a queue's thread.
struct QueueThread {
    queue: Arc<Queue>,
    ring: Ring,
    device: types::Fd,
    descriptors: Descriptors,
    /// Submissions for the next call.
    next: Vec<squeue::Entry128>,
    answered: Vec<(u16, i32)>,
    requests: Vec<u16>,
    /// Tags that the kernel has taken back.
    aborted: u16,
    is_listening: bool,
}

/// Creates a ring for a queue with so many tags.
fn make(depth: u16) -> io::Result<Ring> {
    // One more for the eventfd. The kernel's work for this thread, which copies data too, is done
    // when the thread calls it, which it does after each turn.
    let entries = (u32::from(depth) + 1).next_power_of_two();
    IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(entries)
}

impl QueueThread {
    /// Hands all tags to the kernel.
    fn begin(queue: Arc<Queue>, device: &OwnedFd) -> io::Result<Self> {
        let descriptors = Descriptors::map(device.as_fd(), queue.index, queue.depth)?;
        let depth = usize::from(queue.depth);
        let mut begun = Self {
            ring: make(queue.depth)?,
            device: types::Fd(device.as_raw_fd()),
            descriptors,
            next: Vec::with_capacity(depth + 1),
            answered: Vec::with_capacity(depth),
            requests: Vec::with_capacity(depth),
            aborted: 0,
            is_listening: false,
            queue,
        };
        (0..begun.queue.depth).for_each(|tag| begun.hand_over(wire::FETCH, tag, 0));
        begun.push_all()?;
        if begun.ring.submit()? < depth {
            return Err(io::Error::other("the kernel did not accept all tags of a queue"));
        }
        // Refusals complete at once. There are no requests yet: the device does not run.
        let refused = begun.ring.completion().next();
        refused.map_or(Ok(begun), |refused| Err(io::Error::from_raw_os_error(-refused.result())))
    }

    fn hand_over(&mut self, command: u32, tag: u16, result: i32) {
        let queue = &self.queue;
        let body = wire::io_command(queue.index, tag, result, queue.buffers.address(tag));
        let entry = opcode::UringCmd80::new(self.device, command).cmd(body).build();
        self.next.push(entry.user_data(u64::from(tag)));
    }

    fn push_all(&mut self) -> io::Result<()> {
        let mut submissions = self.ring.submission();
        for entry in self.next.drain(..) {
            // SAFETY: device and eventfd stay open while this thread serves. A buffer stays mapped
            // as long as the queue, and is not touched until the kernel hands a request over.
            unsafe { submissions.push(&entry) }.map_err(io::Error::other)?;
        }
        Ok(())
    }

    /// Step 1: submits answers, and waits if there is nothing to do. Returns whether the thread
    /// ends.
    fn exchange(&mut self) -> io::Result<bool> {
        let mut signals = self.queue.signals.lock();
        std::mem::swap(&mut self.answered, &mut signals.answered);
        let is_last = signals.must_end && signals.in_hand == 0;
        signals.is_waiting = !is_last;
        drop(signals);
        let mut answered = std::mem::take(&mut self.answered);
        answered.drain(..).for_each(|(tag, result)| self.hand_over(wire::COMMIT_AND_FETCH, tag, result));
        self.answered = answered;
        if !self.is_listening {
            self.is_listening = true;
            let poll = opcode::PollAdd::new(types::Fd(self.queue.wake.as_raw_fd()), libc::POLLIN as u32).build();
            self.next.push(squeue::Entry128::from(poll.user_data(WAKE)));
        }
        self.push_all()?;
        match self.ring.submit_and_wait(usize::from(!is_last)) {
            Err(error) if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => Err(error),
            _ => Ok(is_last),
        }
    }

    /// Step 2: begins the requests that came.
    ///
    /// # Errors
    /// When the kernel refuses an answer: its program would wait indefinitely.
    fn take(&mut self, serve: &mut impl Serve) -> io::Result<()> {
        let mut failed = Ok(());
        let depth = u64::from(self.queue.depth);
        for ended in self.ring.completion() {
            match (ended.user_data(), ended.result()) {
                (WAKE, _) => self.is_listening = false,
                // It fits: it is less than the depth.
                (tag, 0) if tag < depth => self.requests.push(tag as u16),
                (_, ABORTED) => self.aborted += 1,
                (_, error) if error < 0 => failed = Err(io::Error::from_raw_os_error(-error)),
                (tag, result) => failed = Err(io::Error::other(format!("tag {tag} with the result {result}"))),
            }
        }
        if !self.is_listening {
            // The count is of no interest.
            let _ = rustix::io::read(&self.queue.wake, &mut [0; 8]);
        }
        let (must_end, in_hand) = {
            let mut signals = self.queue.signals.lock();
            signals.is_waiting = false;
            if !signals.must_end {
                signals.in_hand += self.requests.len();
            }
            (signals.must_end, signals.in_hand)
        };
        let mut requests = std::mem::take(&mut self.requests);
        if must_end {
            // They stay with the kernel.
            requests.clear();
        }
        for tag in requests.drain(..) {
            // SAFETY: the kernel has just handed it over.
            let taken = unsafe { Taken::new(Arc::clone(&self.queue), tag) };
            match self.descriptors.read(tag) {
                Some(request) => serve.serve(&request, taken, in_hand == 1),
                // Dropped, it fails; the kernel never names a tag that it was not given.
                None => drop(taken),
            }
        }
        self.requests = requests;
        if self.aborted == self.queue.depth && !must_end {
            serve.removed();
            self.aborted = 0;
        }
        failed
    }
}
