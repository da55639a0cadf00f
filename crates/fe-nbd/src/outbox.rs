//! Output to one client: owns the queue of replies, the right to send on the channel, and the
//! account of the bytes in flight. Only the writer thread and the reader of the same connection
//! ever wait for the client.
//!
//! The path of a reply:
//! 1. [`Outbox::end`] and [`Outbox::reply`] queue it. If a thread is sending, that thread sends it
//!    as well: done.
//! 2. Otherwise the caller sends (`reply` directly from the caller's bytes), without waiting, until
//!    the queue is empty or the socket is full.
//! 3. The rest is left to the writer thread, which waits for the client up to the stall limit
//!    without progress, and then drops the connection.
//!
//! The account bounds memory: bytes of requests being executed (the reply of a read, the payload of
//! a write) plus bytes queued. The reader stops reading, and answering, when it is full, or when
//! all connections together have too much ([`Budget`]).

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown, sockopt};

use crate::budget::{Budget, OWN_BYTES};
use crate::channel::Channel;

/// Most replies in one system call; the kernel takes up to 1024, a few dozen make its cost vanish.
const REPLIES_PER_SEND: usize = 32;
/// Large buffers kept for the next reads, and the limit of their bytes: about as many as are useful
/// at a moderate depth.
const SPARE_BUFFERS_MAX: usize = 8;
const SPARE_BYTES_MAX: usize = 8 << 20;
/// Buffers smaller than this are cheap to allocate and are not kept.
const SPARE_BUFFER_BYTES_MIN: usize = 32 << 10;

/// The socket's send buffer: accepts a reply of 1 MiB and more from the thread that has it in its
/// CPU's cache. With the usual 208 KiB most of it goes through the writer thread, which slows large
/// reads by a third.
const SOCKET_BUFFER_BYTES: usize = 2 << 20;
/// Cost of a queued reply besides its buffer: its slot in the queue and the allocator's overhead.
/// Without it, a client that reads no replies could have millions of small ones queued.
const REPLY_OVERHEAD_BYTES: usize = 64;
/// How long a reader waits for memory of others before it checks its own connection.
const BUDGET_WAIT: Duration = Duration::from_millis(100);

/// Bytes to send: the first `len` of a buffer.
#[derive(Debug)]
pub struct Reply {
    bytes: Vec<u8>,
    len: usize,
}

impl Reply {
    /// The first `len` bytes of `bytes`.
    pub fn new(bytes: Vec<u8>, len: usize) -> Self {
        debug_assert!(len <= bytes.len());
        Self { bytes, len }
    }

    /// Bytes of memory that it takes in the queue.
    const fn cost(&self) -> usize {
        self.bytes.len() + REPLY_OVERHEAD_BYTES
    }

    /// The bytes to send.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl From<Vec<u8>> for Reply {
    fn from(bytes: Vec<u8>) -> Self {
        let len = bytes.len();
        Self { bytes, len }
    }
}

/// Limits of one connection.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Most bytes in flight.
    pub bytes_max: usize,
    /// Most requests being executed.
    pub requests_max: u32,
    /// Longest wait for a client that reads no replies, or sends no more of a payload.
    pub stall_max: Duration,
}

/// See the module's text.
pub struct Outbox {
    channel: Channel,
    limits: Limits,
    budget: Arc<Budget>,
    state: Mutex<State>,
    /// Something left the account, or the connection was dropped: the reader may look again.
    room: Condvar,
    /// The writer thread has something to do.
    writer: Condvar,
    /// A copy of the count in `state`, readable without the lock.
    requests: AtomicU32,
    /// Whether the writer thread has something to send, readable without the lock.
    stalled: AtomicBool,
}

struct State {
    queue: VecDeque<Reply>,
    /// Bytes of the queue's first reply that were sent.
    front_sent: usize,
    /// Bytes in `queue` and in the hands of the sender.
    queued_bytes: usize,
    sender: Sender,
    /// Requests being executed, and their bytes.
    requests: u32,
    request_bytes: usize,
    /// Taken from the budget.
    granted: usize,
    reader_waits: bool,
    /// The reader is done: the writer thread ends.
    finished: bool,
    /// The connection was dropped, and why.
    dropped: Option<&'static str>,
    spare: Vec<Vec<u8>>,
    spare_bytes: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Sender {
    Nobody,
    /// The thread that queued first.
    Replier,
    /// The writer thread, because the socket was full.
    Writer,
}

impl Outbox {
    /// An outbox of a channel on a connected, blocking stream socket.
    pub fn new(channel: Channel, limits: Limits, budget: Arc<Budget>) -> rustix::io::Result<Self> {
        let socket = channel.socket();
        // Only the writer thread sends in blocking mode; this is its patience. And that of the
        // reader within a request.
        sockopt::set_socket_timeout(socket, sockopt::Timeout::Send, Some(limits.stall_max))?;
        sockopt::set_socket_timeout(socket, sockopt::Timeout::Recv, Some(limits.stall_max))?;
        // Best effort: without the right to force it, the system's own limit applies, and the
        // excess goes through the writer thread.
        if sockopt::set_socket_send_buffer_size_force(socket, SOCKET_BUFFER_BYTES).is_err() {
            let _ = sockopt::set_socket_send_buffer_size(socket, SOCKET_BUFFER_BYTES);
        }
        let state = State {
            queue: VecDeque::new(),
            front_sent: 0,
            queued_bytes: 0,
            sender: Sender::Nobody,
            requests: 0,
            request_bytes: 0,
            granted: 0,
            reader_waits: false,
            finished: false,
            dropped: None,
            spare: Vec::new(),
            spare_bytes: 0,
        };
        Ok(Self {
            channel,
            limits,
            budget,
            state: Mutex::new(state),
            room: Condvar::new(),
            writer: Condvar::new(),
            requests: AtomicU32::new(0),
            stalled: AtomicBool::new(false),
        })
    }

    /// The channel, for its reader.
    pub const fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Its socket, to shut it down.
    pub fn socket(&self) -> &OwnedFd {
        self.channel.socket()
    }

    /// Whether nothing is being executed except `others` requests, and no reply is waiting for the
    /// client.
    pub fn is_idle_but(&self, others: u32) -> bool {
        self.requests.load(Ordering::Acquire) == others && !self.stalled.load(Ordering::Acquire)
    }

    /// Charges `bytes` of a request to the account, waiting until there is room. `false` if the
    /// connection was dropped.
    pub fn begin(&self, bytes: usize) -> bool {
        let mut state = self.state.lock();
        loop {
            if state.dropped.is_some() {
                return false;
            }
            if !state.has_room(&self.limits, bytes) {
                self.wait_for_room(&mut state);
            } else if state.is_granted(&self.budget, bytes) {
                break;
            } else {
                MutexGuard::unlocked(&mut state, || self.budget.wait(BUDGET_WAIT));
            }
        }
        state.requests += 1;
        state.request_bytes += bytes;
        self.requests.store(state.requests, Ordering::Release);
        true
    }

    /// Ends a request that began with `bytes`, and sends its reply.
    pub fn end(&self, bytes: usize, reply: Reply) {
        let mut state = self.state.lock();
        state.requests -= 1;
        state.request_bytes -= bytes;
        // Before the reply is sent: the client's next request may arrive immediately, and is then
        // alone.
        self.requests.store(state.requests, Ordering::Release);
        self.wake_reader(&mut state);
        self.queue(state, reply);
    }

    /// Whether [`begin`](Self::begin) would not wait now.
    pub fn has_room(&self, bytes: usize) -> bool {
        let state = self.state.lock();
        state.has_room(&self.limits, bytes) && state.wanted(bytes) <= state.granted
    }

    /// Sends replies of requests that are not in the account: the reader's own. Waits while the
    /// account is full. `false` if the connection was dropped.
    pub fn reply(&self, bytes: &[u8]) -> bool {
        let mut state = self.state.lock();
        loop {
            if state.dropped.is_some() {
                return false;
            }
            if state.queued_bytes >= self.limits.bytes_max {
                self.wait_for_room(&mut state);
            } else if state.is_granted(&self.budget, bytes.len()) {
                break;
            } else {
                MutexGuard::unlocked(&mut state, || self.budget.wait(BUDGET_WAIT));
            }
        }
        let mut rest = bytes;
        if state.sender == Sender::Nobody {
            // No thread is sending, so the queue is empty: straight from the caller's buffer.
            state.sender = Sender::Replier;
            drop(state);
            // An error here recurs in `queue`, or in the next recv.
            if let Ok(sent) = self.channel.send(rest, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                rest = &rest[sent..];
            }
            state = self.state.lock();
            state.sender = Sender::Nobody;
            if rest.is_empty() && state.queue.is_empty() {
                state.return_surplus(&self.budget);
                self.wake_reader(&mut state);
                return state.dropped.is_none();
            }
            if !rest.is_empty() {
                // Others may have queued in the meantime; the rest of a partly sent reply must
                // precede theirs.
                state.push_front(Reply::from(rest.to_vec()));
            }
            state.sender = Sender::Replier;
            drop(state);
            self.send(Sender::Replier, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
            return true;
        }
        self.queue(state, Reply::from(rest.to_vec()));
        true
    }

    /// Waits until everything was executed and sent, or the connection was dropped; then ends the
    /// writer thread.
    pub fn finish(&self) {
        let mut state = self.state.lock();
        while state.requests > 0
            || (state.dropped.is_none() && !(state.queue.is_empty() && state.sender == Sender::Nobody))
        {
            self.wait_for_room(&mut state);
        }
        if state.dropped.is_none() {
            self.channel.close();
        }
        state.finished = true;
        self.writer.notify_all();
    }

    /// Drops the connection: nothing more is sent, and threads that wait for the client are woken.
    pub fn drop_connection(&self, why: &'static str) {
        let mut state = self.state.lock();
        self.drop_locked(&mut state, why);
    }

    /// Why the connection was dropped, if it was.
    pub fn dropped(&self) -> Option<&'static str> {
        self.state.lock().dropped
    }

    /// A buffer of at least `len` bytes of undefined content (zeroes or an earlier reply to the
    /// same client).
    pub fn buffer(&self, len: usize) -> Vec<u8> {
        if len < SPARE_BUFFER_BYTES_MIN {
            return vec![0; len];
        }
        let mut state = self.state.lock();
        // Not one that is many times too large: it would be missed.
        if let Some(index) = state.spare.iter().rposition(|b| b.len() >= len && b.len() / 4 <= len) {
            let buffer = state.spare.swap_remove(index);
            state.spare_bytes -= buffer.len();
            self.budget.unkeep(buffer.len());
            return buffer;
        }
        drop(state);
        vec![0; len.next_multiple_of(SPARE_BUFFER_BYTES_MIN)]
    }

    /// Takes a reply's buffer back for the next reads.
    pub fn recycle(&self, reply: Reply) {
        if reply.bytes.len() >= SPARE_BUFFER_BYTES_MIN {
            self.state.lock().keep(reply.bytes, &self.budget);
        }
    }

    /// The writer thread: sends replies that others could not send without waiting. Ends after
    /// [`finish`](Self::finish).
    pub fn write(&self) {
        let mut state = self.state.lock();
        loop {
            while state.sender != Sender::Writer {
                if state.finished {
                    return;
                }
                self.writer.wait(&mut state);
            }
            drop(state);
            self.send(Sender::Writer, SendFlags::NOSIGNAL);
            state = self.state.lock();
        }
    }

    fn queue(&self, mut state: MutexGuard<'_, State>, reply: Reply) {
        if state.dropped.is_some() {
            state.return_surplus(&self.budget);
            return;
        }
        state.queued_bytes += reply.cost();
        state.queue.push_back(reply);
        state.return_surplus(&self.budget);
        if state.sender == Sender::Nobody {
            state.sender = Sender::Replier;
            drop(state);
            self.send(Sender::Replier, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    }

    /// Sends the queue until it is empty or, if `flags` say not to wait, the socket is full.
    fn send(&self, me: Sender, flags: SendFlags) {
        let mut batch: VecDeque<Reply> = VecDeque::new();
        let mut front_sent = 0;
        loop {
            let mut state = self.state.lock();
            debug_assert!(state.sender == me);
            // Sent replies are returned, the others go back to the front.
            while let Some(reply) = batch.pop_back() {
                state.queue.push_front(reply);
                state.front_sent = front_sent;
            }
            if state.dropped.is_some() || state.queue.is_empty() {
                if state.dropped.is_some() {
                    state.queue.clear();
                }
                state.sender = Sender::Nobody;
                self.stalled.store(false, Ordering::Release);
                self.wake_reader(&mut state);
                return;
            }
            let count = state.queue.len().min(REPLIES_PER_SEND);
            batch.extend(state.queue.drain(..count));
            front_sent = std::mem::take(&mut state.front_sent);
            drop(state);

            let wanted = batch.iter().map(|r| r.len).sum::<usize>() - front_sent;
            let sent = self.send_once(&batch, front_sent, flags);
            let mut state = self.state.lock();
            match sent {
                Ok(sent) => {
                    front_sent = state.settle(&mut batch, front_sent + sent, &self.budget);
                    self.wake_reader(&mut state);
                    if sent == wanted || me == Sender::Writer {
                        continue;
                    }
                }
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) if me == Sender::Replier => {}
                Err(Errno::AGAIN) => {
                    self.drop_locked(&mut state, "the client did not read its replies for too long");
                    continue;
                }
                Err(_) => {
                    self.drop_locked(&mut state, "the client closed its side");
                    continue;
                }
            }
            // The socket is full: the rest is the writer's.
            while let Some(reply) = batch.pop_back() {
                state.queue.push_front(reply);
            }
            state.front_sent = front_sent;
            state.sender = Sender::Writer;
            self.stalled.store(true, Ordering::Release);
            self.writer.notify_one();
            return;
        }
    }

    fn send_once(&self, batch: &VecDeque<Reply>, front_sent: usize, flags: SendFlags) -> rustix::io::Result<usize> {
        let mut skip = front_sent;
        let bytes = batch.iter().map(|r| &r.bytes[std::mem::take(&mut skip)..r.len]);
        if batch.len() == 1 {
            return bytes.into_iter().next().map_or(Ok(0), |b| self.channel.send(b, flags));
        }
        let mut slices = [IoSlice::new(&[]); REPLIES_PER_SEND];
        for (slice, bytes) in slices.iter_mut().zip(bytes) {
            *slice = IoSlice::new(bytes);
        }
        self.channel.send_vectored(&slices[..batch.len()], flags)
    }

    fn drop_locked(&self, state: &mut State, why: &'static str) {
        if state.dropped.is_none() {
            state.dropped = Some(why);
            // Wakes the reader in recv and the writer in send. It can only fail if the client was
            // faster.
            let _ = rustix::net::shutdown(self.channel.socket(), Shutdown::Both);
        }
        state.queue.clear();
        state.front_sent = 0;
        state.queued_bytes = 0;
        state.return_surplus(&self.budget);
        state.reader_waits = false;
        self.room.notify_all();
    }

    fn wait_for_room(&self, state: &mut MutexGuard<'_, State>) {
        state.reader_waits = true;
        self.room.wait(state);
    }

    fn wake_reader(&self, state: &mut State) {
        if std::mem::take(&mut state.reader_waits) {
            self.room.notify_all();
        }
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        self.budget.release(state.granted);
        self.budget.unkeep(state.spare_bytes);
    }
}

impl State {
    fn has_room(&self, limits: &Limits, bytes: usize) -> bool {
        let fits = self.requests < limits.requests_max && self.in_flight() + bytes <= limits.bytes_max;
        // One request is always allowed, however large: it was admitted, so it must be possible.
        self.is_idle() || fits
    }

    /// Whether nothing is in flight.
    const fn is_idle(&self) -> bool {
        self.requests == 0 && self.queued_bytes == 0
    }

    /// Bytes of requests being executed and of replies that wait.
    const fn in_flight(&self) -> usize {
        self.request_bytes + self.queued_bytes
    }

    /// The connection's share of the budget with `bytes` more in flight.
    const fn wanted(&self, bytes: usize) -> usize {
        (self.in_flight() + bytes).saturating_sub(OWN_BYTES)
    }

    /// Takes the additional share for `bytes` from the budget; `false`: it is not available now.
    fn is_granted(&mut self, budget: &Budget, bytes: usize) -> bool {
        let more = self.wanted(bytes).saturating_sub(self.granted);
        let may = more == 0 || budget.take(self.granted, more, self.is_idle());
        if may {
            self.granted += more;
        }
        may
    }

    /// Returns the share that is no longer needed to the budget.
    fn return_surplus(&mut self, budget: &Budget) {
        let wanted = self.wanted(0);
        if wanted < self.granted {
            budget.release(self.granted - wanted);
            self.granted = wanted;
        }
    }

    fn push_front(&mut self, reply: Reply) {
        debug_assert!(self.front_sent == 0);
        if self.dropped.is_none() {
            self.queued_bytes += reply.cost();
            self.queue.push_front(reply);
        }
    }

    /// Removes the replies from `batch` that were completely sent, given `sent` bytes; returns how
    /// many bytes of the first remaining reply were sent.
    fn settle(&mut self, batch: &mut VecDeque<Reply>, mut sent: usize, budget: &Budget) -> usize {
        while let Some(front) = batch.front()
            && sent >= front.len
        {
            sent -= front.len;
            if let Some(reply) = batch.pop_front() {
                // Zero after a drop: from then on nothing is charged.
                self.queued_bytes = self.queued_bytes.saturating_sub(reply.cost());
                self.keep(reply.bytes, budget);
            }
        }
        self.return_surplus(budget);
        sent
    }

    fn keep(&mut self, buffer: Vec<u8>, budget: &Budget) {
        let fits = self.spare.len() < SPARE_BUFFERS_MAX && self.spare_bytes + buffer.len() <= SPARE_BYTES_MAX;
        if buffer.len() >= SPARE_BUFFER_BYTES_MIN && fits && budget.keep(buffer.len()) {
            self.spare_bytes += buffer.len();
            self.spare.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    const MIB: usize = 1 << 20;

    fn outbox(budget: &Arc<Budget>) -> (Outbox, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let limits = Limits { bytes_max: 64 * MIB, requests_max: 256, stall_max: Duration::from_secs(300) };
        (Outbox::new(Channel::plain(Arc::new(ours.into())), limits, Arc::clone(budget)).unwrap(), theirs)
    }

    /// An unread reply holds as much as the request did.
    #[test]
    fn what_is_in_flight_is_taken_from_the_budget_until_the_client_has_it() {
        let budget = Arc::new(Budget::new(64 * MIB));
        let (first, mut client) = outbox(&budget);
        for _ in 0..32 {
            assert!(first.has_room(0) && first.begin(MIB));
        }
        assert!(first.begin(MIB), "half of the budget, and what is its own");
        assert!(!first.has_room(MIB));
        let (second, _other) = outbox(&budget);
        assert!(second.begin(16 * MIB), "there is some for others");
        // The socket takes a part of this, and the rest waits for the client.
        for _ in 0..33 {
            first.end(MIB, Reply::from(vec![7; MIB]));
        }
        assert!(!budget.take(0, 32 * MIB, false), "it is still there");
        let mut taken = vec![0; 33 * MIB];
        std::thread::scope(|scope| {
            scope.spawn(|| first.write());
            client.read_exact(&mut taken).unwrap();
            first.finish();
        });
        assert!(taken.iter().all(|byte| *byte == 7));
        second.end(16 * MIB, Reply::from(vec![0; 16]));
        assert!(budget.take(0, 32 * MIB, false), "all of it came back");
        budget.release(32 * MIB);
        assert!(second.begin(16 * MIB));
        drop(second);
        assert!(budget.take(0, 32 * MIB, false), "with the connection, too");
    }
}
