//! One running ring: takes requests out of the available ring and puts answers into the used ring.
//! Owns both positions, the marks in the in-flight memory, and the count of requests under way.
//! Taken from by its queue's thread, answered by any.
//!
//! A guest that breaks the rules breaks its ring: nothing more is taken from it, until the monitor
//! stops and starts it. A ring breaks on an index that jumps, a head out of bounds, more
//! requests under way than descriptors, a chain that is none, a ring that is no longer in guest
//! memory.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::GuestAddress;

use crate::inflight::Tracked;
use crate::memory::Guest;

/// Most descriptors of a ring. Monitors offer up to 1,024.
pub const SIZE_MAX: u16 = 1024;
/// Requests taken at a time, with the lock held: answers of other threads wait for it.
const TAKEN_MAX: u16 = 64;

/// The reason why a ring cannot be started, or was broken.
pub type Broken = &'static str;

const GONE: Broken = "the ring is not in guest memory";

/// A ring that is to be started.
pub struct Setup {
    /// Descriptors.
    pub size: u16,
    /// Descriptor table.
    pub descriptors: GuestAddress,
    /// Available ring.
    pub available: GuestAddress,
    /// Used ring.
    pub used: GuestAddress,
    /// First entry of the available ring that was not taken. In-flight memory knows better.
    pub base: u16,
    /// Whether notifications are suppressed by indices.
    pub has_event_index: bool,
    /// Its part of the in-flight memory.
    pub tracked: Option<Tracked>,
    /// Notified of answers.
    pub call: Option<Notifier>,
}

/// A descriptor that is written to as an event.
#[derive(Clone)]
pub struct Notifier(Arc<OwnedFd>);

impl Notifier {
    /// Of an eventfd or a pipe.
    pub fn new(file: OwnedFd) -> Self {
        Self(Arc::new(file))
    }

    /// Signals the event. A descriptor that cannot take another signal has enough pending.
    pub fn notify(&self) {
        let mut polled = [PollFd::new(&*self.0, PollFlags::OUT)];
        if matches!(poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1..)) {
            // A descriptor that cannot be written to is the monitor's own doing.
            let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
        }
    }
}

/// See the module's text.
pub struct Ring {
    size: u16,
    descriptors: GuestAddress,
    is_tracked: bool,
    state: Mutex<State>,
    /// The last request under way was answered.
    idle: Condvar,
}

struct State {
    queue: Queue,
    tracked: Option<Tracked>,
    call: Option<Notifier>,
    under_way: u16,
    broken: Option<Broken>,
}

impl Ring {
    /// Starts a ring. The heads that come with it were taken by an earlier server, which died: they
    /// are under way.
    ///
    /// # Errors
    /// The reason why it is no ring.
    pub fn start(setup: Setup, memory: &Guest) -> Result<(Self, Vec<u16>), Broken> {
        let Setup { size, descriptors, available, used, base, has_event_index, mut tracked, call } = setup;
        if size == 0 || size > SIZE_MAX {
            return Err("a ring has an odd size");
        }
        let mut queue = Queue::new(size).map_err(|_| "a ring has an odd size")?;
        let unaligned = |_| "a part of the ring is not aligned";
        queue.try_set_desc_table_address(descriptors).map_err(unaligned)?;
        queue.try_set_avail_ring_address(available).map_err(unaligned)?;
        queue.try_set_used_ring_address(used).map_err(unaligned)?;
        queue.set_event_idx(has_event_index);
        queue.set_ready(true);
        if !queue.is_valid(memory) {
            return Err(GONE);
        }
        let used = queue.used_idx(memory, Ordering::Acquire).map_err(|_| GONE)?.0;
        queue.set_next_used(used);
        let left = tracked.as_mut().map(|tracked| tracked.recover(used)).unwrap_or_default();
        // It fits: there are at most `size` of them.
        let under_way = left.len() as u16;
        queue.set_next_avail(if tracked.is_some() { used.wrapping_add(under_way) } else { base });
        let is_tracked = tracked.is_some();
        let state = Mutex::new(State { queue, tracked, call, under_way, broken: None });
        Ok((Self { size, descriptors, is_tracked, state, idle: Condvar::new() }, left))
    }

    /// Descriptors.
    pub const fn size(&self) -> u16 {
        self.size
    }

    /// Descriptor table.
    pub const fn descriptors(&self) -> GuestAddress {
        self.descriptors
    }

    /// Whether the next server can redo requests that this one leaves.
    pub const fn is_tracked(&self) -> bool {
        self.is_tracked
    }

    /// Takes requests that are there, and asks the guest for no notification; their heads go to
    /// `heads`, and are in bounds.
    ///
    /// # Errors
    /// The reason why the ring is broken. Heads taken before that are to be answered nevertheless.
    pub fn take(&self, memory: &Guest, heads: &mut Vec<u16>) -> Result<(), Broken> {
        let mut state = self.state.lock();
        if let Some(broken) = state.broken {
            return Err(broken);
        }
        let taken = self.take_from(&mut state, memory, heads);
        state.broken = taken.err();
        taken
    }

    fn take_from(&self, state: &mut State, memory: &Guest, heads: &mut Vec<u16>) -> Result<(), Broken> {
        let State { queue, tracked, under_way, .. } = state;
        let gone = |_| GONE;
        queue.disable_notification(memory).map_err(gone)?;
        let available = queue.avail_idx(memory, Ordering::Acquire).map_err(gone)?.0;
        let waiting = available.wrapping_sub(queue.next_avail());
        if waiting > self.size {
            return Err("the available index has jumped");
        }
        for _ in 0..waiting.min(TAKEN_MAX) {
            let chain = queue.iter(memory).map_err(|_| "the available index has jumped")?.next();
            let head = chain.ok_or(GONE)?.head_index();
            if head >= self.size {
                return Err("a head lies outside of the descriptor table");
            }
            if *under_way >= self.size {
                return Err("more requests are under way than there are descriptors");
            }
            if let Some(tracked) = tracked {
                tracked.begin(head);
            }
            *under_way += 1;
            heads.push(head);
        }
        Ok(())
    }

    /// Asks the guest for notifications; `true`: requests arrived before it could see that.
    ///
    /// # Errors
    /// The reason why the ring is broken.
    pub fn await_kick(&self, memory: &Guest) -> Result<bool, Broken> {
        let mut state = self.state.lock();
        match state.broken {
            Some(broken) => Err(broken),
            None => state.queue.enable_notification(memory).map_err(|_| GONE),
        }
    }

    /// Whether requests are there that were not taken.
    pub fn has_more(&self, memory: &Guest) -> bool {
        let state = self.state.lock();
        let available = state.queue.avail_idx(memory, Ordering::Relaxed);
        available.is_ok_and(|available| available.0 != state.queue.next_avail())
    }

    /// Puts an answer into the used ring, of which so many bytes were written.
    pub fn complete(&self, memory: &Guest, head: u16, written: u32) {
        let mut state = self.state.lock();
        let State { queue, tracked, call, under_way, broken } = &mut *state;
        if let Some(tracked) = tracked {
            tracked.link(head);
        }
        let mut told = None;
        if queue.add_used(memory, head, written).is_ok() {
            if let Some(tracked) = tracked {
                tracked.end(head, queue.next_used());
            }
            if queue.needs_notification(memory).unwrap_or(true) {
                told.clone_from(call);
            }
        } else {
            *broken = Some(GONE);
        }
        *under_way = under_way.saturating_sub(1);
        if *under_way == 0 {
            self.idle.notify_all();
        }
        drop(state);
        if let Some(call) = told {
            call.notify();
        }
    }

    /// Leaves a request without an answer: its mark stays in the in-flight memory.
    pub fn leave(&self) {
        let mut state = self.state.lock();
        state.under_way = state.under_way.saturating_sub(1);
        if state.under_way == 0 {
            self.idle.notify_all();
        }
    }

    /// Takes nothing more.
    pub fn break_it(&self, why: Broken) {
        self.state.lock().broken.get_or_insert(why);
    }

    /// Requests that were taken and not answered.
    pub fn under_way(&self) -> u16 {
        self.state.lock().under_way
    }

    /// Waits until all that was taken is answered or left, and returns the first entry of the
    /// available ring that was not taken.
    pub fn drain(&self) -> u16 {
        let mut state = self.state.lock();
        while state.under_way > 0 {
            self.idle.wait(&mut state);
        }
        state.queue.next_avail()
    }

    /// Replaces the notifier and signals the new one: signals to the old one may have been lost.
    pub fn set_call(&self, call: Option<Notifier>) {
        if let Some(call) = &call {
            call.notify();
        }
        self.state.lock().call = call;
    }

    /// Signals the guest after a reconnection: the dead server may have answered without a signal.
    pub fn nudge(&self) {
        let call = self.state.lock().call.clone();
        if let Some(call) = call {
            call.notify();
        }
    }
}
