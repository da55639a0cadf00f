//! One connection in transmission: its reader thread, which decides where each request is executed.
//! Owns the receive buffer and the batch of replies; sending belongs to the outbox, the threads for
//! blocking work to the pool.
//!
//! The steps of a request:
//! 1. One recv returns many requests. Each is checked ([`crate::admit`]); refused requests are
//!    answered immediately.
//! 2. Reads of cached data and writes that need not wait are executed here. Their replies are
//!    collected in a batch. The device has accepted a write before its reply is even collected.
//! 3. A client that sends one request at a time gets everything executed here, which avoids a
//!    thread switch. Requests beyond the connection's own memory allowance wait for the account
//!    first, as in step 4.
//! 4. All others go to the pool, and are answered from there, in any order.
//! 5. The batch is sent when it is large, and before anything that may wait.
//!
//! A flush covers the writes answered before it was received: those were accepted by the device
//! (steps 2 to 4) before their replies were sent, and the device guarantees that its flush covers
//! them, on any thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use rustix::io::Errno;
use surface::{ErrorKind, Lane, Pool, WriteOptions};

use crate::admit::{Command, Range, Refusal, Verdict, admit};
use crate::budget::OWN_BYTES;
use crate::execute::{Outcome, Request, Served, Task};
use crate::outbox::Reply;
use crate::polling::Polling;
use crate::receive::{LARGE_PAYLOAD_BYTES, Receiver};
use crate::wire::reply;
use crate::wire::reply::Echo;
use crate::wire::request::{RequestHeader, header_bytes};

/// Largest cached read that is copied here rather than by the pool.
const INLINE_READ_BYTES_MAX: usize = 128 << 10;
/// Bytes of the batch: the largest inline read always fits after an unsent batch.
const BATCH_BYTES: usize = INLINE_READ_BYTES_MAX + BATCH_SEND_BYTES + 1024;
/// The batch is sent when it holds this much: enough to make the system call cheap, little enough
/// that the client has something to do while the rest is being done.
const BATCH_SEND_BYTES: usize = 32 << 10;
/// Longest refused payload that is skipped to save the connection; more than eight times the limit
/// is no mistake.
const SKIP_BYTES_MAX: u64 = 256 << 20;
/// Consecutive single requests after which a client is assumed to send one at a time.
const LONE_STREAK: u32 = 8;

/// Why a connection ended.
pub type Ended = &'static str;

/// A connection in transmission.
pub struct Connection {
    served: Arc<Served>,
    pool: Arc<Pool<Task>>,
    lane: Lane,
    receiver: Receiver,
    batch: Batch,
    lone_streak: u32,
    polling: Polling,
}

/// Replies that have not been sent.
struct Batch {
    bytes: Vec<u8>,
    used: usize,
}

/// Continue, or the reason for closing the connection.
type Flow = Result<(), Ended>;

const STALLED: Ended = "the client did not send the rest of a write for too long";
const GIVEN_UP: Ended =
    "another client waited for the requests of this disconnected one: the remaining ones were dropped";
const GONE: Ended = "the client closed the connection";

impl Connection {
    /// Creates a connection, starting with the bytes that the handshake read too much.
    pub fn new(served: Arc<Served>, pool: Arc<Pool<Task>>, rest: &[u8]) -> Self {
        let lane = pool.open();
        let batch = Batch { bytes: vec![0; BATCH_BYTES], used: 0 };
        Self { served, pool, lane, receiver: Receiver::new(rest), batch, lone_streak: 0, polling: Polling::default() }
    }

    /// Serves until the client leaves, breaks the protocol, or `stop` is set and the socket shut
    /// down for reading; returns when all requests were answered.
    pub fn run(mut self, stop: &AtomicBool) -> Ended {
        let ended = loop {
            if let Err(ended) = self.requests() {
                break ended;
            }
            if !self.send_batch() {
                break GONE;
            }
            if stop.load(Ordering::Acquire) {
                break "the server is stopping";
            }
            match self.receive() {
                Ok(1..) => {}
                Ok(0) if stop.load(Ordering::Acquire) => break "the server is stopping",
                Ok(0) | Err(_) => break GONE,
            }
        };
        self.send_batch();
        self.served.outbox.finish();
        self.pool.close(self.lane);
        self.served.outbox.dropped().unwrap_or(ended)
    }

    /// Receives the available bytes, waiting if there are none.
    fn receive(&mut self) -> rustix::io::Result<usize> {
        let (receiver, channel) = (&mut self.receiver, self.served.outbox.channel());
        let looked = self.polling.poll(|| match receiver.receive(channel, false) {
            Err(Errno::WOULDBLOCK) => None,
            received => Some(received),
        });
        looked.unwrap_or_else(|| {
            loop {
                match receiver.receive(channel, true) {
                    // Between requests a client may be silent for as long as it likes.
                    Err(Errno::WOULDBLOCK) => {}
                    received => return received,
                }
            }
        })
    }

    /// Closes a connection that never ran.
    pub fn close(self) {
        self.pool.close(self.lane);
    }

    /// Does all requests that were received whole.
    fn requests(&mut self) -> Flow {
        let extended = self.served.session.replies.is_extended();
        let header_bytes = header_bytes(extended);
        while let Some((header, rest)) = self.receiver.bytes().split_at_checked(header_bytes) {
            if self.served.caller.is_given_up() {
                return Err(GIVEN_UP);
            }
            let header = RequestHeader::decode(header, extended).ok_or("wrong magic in a request")?;
            let echo = Echo { cookie: header.cookie, offset: header.offset };
            match admit(&header, self.served.session, self.served.device.size_bytes()) {
                Verdict::Disconnect => return Err("the client disconnected"),
                Verdict::Refuse(refusal) => {
                    self.receiver.take(header_bytes);
                    self.refuse(echo, &refusal)?;
                }
                Verdict::Run(Command::Write { range, fua }) => {
                    let length = range.length as usize;
                    if length < LARGE_PAYLOAD_BYTES && rest.len() < length {
                        // The rest comes with the next recv, together with more.
                        return Ok(());
                    }
                    self.receiver.take(header_bytes);
                    self.write(echo, range, fua)?;
                }
                Verdict::Run(command) => {
                    self.receiver.take(header_bytes);
                    let request = Request { echo, command, payload: Bytes::new() };
                    match command {
                        Command::Read(range) => self.read(request, range)?,
                        Command::Flush => self.here_or_pool(request, 0, false)?,
                        _ => self.queue(request)?,
                    }
                }
            }
        }
        Ok(())
    }

    fn refuse(&mut self, echo: Echo, refusal: &Refusal) -> Flow {
        if refusal.payload_bytes > SKIP_BYTES_MAX {
            return Err("a refused write is too long to be skipped");
        }
        if refusal.payload_bytes > 0 {
            self.flush_batch()?;
            // The whole payload first, then the reply: if the reply arrives before libnbd has sent
            // everything, libnbd takes it for a reply to an unknown request, and closes the
            // connection.
            match self.receiver.skip(self.served.outbox.channel(), refusal.payload_bytes as usize) {
                Ok(true) => {}
                Ok(false) | Err(_) => return Err(GONE),
            }
        }
        self.push(&reply::error(self.served.session.replies, echo, refusal.errno, refusal.why))
    }

    fn read(&mut self, request: Request, range: Range) -> Flow {
        let replies = self.served.session.replies;
        let (header, length) = (reply::read_header_bytes(replies, range.length), range.length as usize);
        if length > INLINE_READ_BYTES_MAX || length == 0 {
            return self.here_or_pool(request, 0, false);
        }
        let (start, end) = (self.batch.used, self.batch.used + header + length);
        let bytes = &mut self.batch.bytes[start..end];
        match self.served.device.read_cached(range.offset, &mut bytes[header..]) {
            Ok(true) => {
                reply::put_read_header(&mut bytes[..header], replies, request.echo, range.length);
                self.note_lone();
                self.batch.used = end;
                self.send_large_batch()
            }
            Ok(false) => self.here_or_pool(request, 0, false),
            Err(error) => {
                let reply = self.served.error(request.echo, &error);
                self.push(reply.as_bytes())
            }
        }
    }

    fn write(&mut self, echo: Echo, range: Range, fua: bool) -> Flow {
        let length = range.length as usize;
        let is_large = length >= LARGE_PAYLOAD_BYTES;
        let reserved = if is_large { length } else { 0 };
        let payload = if is_large {
            // Accounted for before memory is allocated.
            self.flush_batch()?;
            if !self.served.outbox.begin(reserved) {
                return Err(GONE);
            }
            match self.receiver.large_payload(self.served.outbox.channel(), length) {
                Ok(Some(payload)) => payload,
                other => {
                    self.served.outbox.end(reserved, Reply::from(Vec::new()));
                    return Err(if other == Err(Errno::WOULDBLOCK) { STALLED } else { GONE });
                }
            }
        } else {
            self.receiver.small_payload(length)
        };
        let may_wait = fua || length == 0 || self.served.device.write_would_wait();
        if may_wait {
            let request = Request { echo, command: Command::Write { range, fua }, payload };
            return self.here_or_pool(request, reserved, is_large);
        }
        self.note_lone();
        let done = self.served.device.write(range.offset, payload.clone(), WriteOptions { fua });
        let reply = match done {
            Err(error) if error.kind() == ErrorKind::Full && self.served.device.full_wait().is_some() => {
                // Retried in the pool, which holds it if there is still no space.
                let request = Request { echo, command: Command::Write { range, fua }, payload };
                return if is_large { self.submit(request, reserved) } else { self.queue(request) };
            }
            Ok(()) if !is_large => return self.push(&reply::done(self.served.session.replies, echo)),
            Ok(()) => Reply::from(reply::done(self.served.session.replies, echo).to_vec()),
            Err(error) => self.served.error(echo, &error),
        };
        if is_large {
            self.served.outbox.end(reserved, reply);
            return Ok(());
        }
        self.push(reply.as_bytes())
    }

    /// Executes a request that may wait: here if the client sends one at a time, otherwise in the
    /// pool. `is_begun`: it is accounted for already, with `reserved` bytes.
    fn here_or_pool(&mut self, mut request: Request, mut reserved: usize, mut is_begun: bool) -> Flow {
        let others = u32::from(is_begun);
        if !self.is_alone(others) || self.lone_streak < LONE_STREAK {
            self.note_lone_with(others);
            return if is_begun { self.submit(request, reserved) } else { self.queue(request) };
        }
        if !is_begun && request.bytes() > OWN_BYTES {
            // Accounted for before memory is allocated: many of these, each alone on its
            // connection, would use too much.
            (reserved, is_begun) = (request.bytes(), true);
            if !self.served.outbox.begin(reserved) {
                return Err(GONE);
            }
        }
        // Long requests are split into steps only in the pool, so one executed here is a single
        // step, unless it finds no space: then the pool holds it.
        let Outcome::Done(reply) = self.served.execute(&mut request) else {
            return if is_begun { self.submit(request, reserved) } else { self.queue(request) };
        };
        // A client that has sent more in the meantime does not send one at a time, and had to wait.
        // (The end of the stream and errors reappear at the next receive.)
        if let Ok(1..) = self.receiver.receive(self.served.outbox.channel(), false) {
            self.lone_streak = 0;
        }
        if is_begun {
            self.served.outbox.end(reserved, reply);
            return Ok(());
        }
        let alive = self.served.outbox.reply(reply.as_bytes());
        self.served.outbox.recycle(reply);
        if alive { Ok(()) } else { Err(GONE) }
    }

    fn queue(&mut self, request: Request) -> Flow {
        let bytes = request.bytes();
        if !self.served.outbox.has_room(bytes) {
            // The wait for room may be long: finished replies are sent first.
            self.flush_batch()?;
        }
        if !self.served.outbox.begin(bytes) {
            return Err(GONE);
        }
        self.submit(request, bytes)
    }

    fn submit(&self, request: Request, bytes: usize) -> Flow {
        self.pool.submit(self.lane, Task { served: Arc::clone(&self.served), request, bytes });
        Ok(())
    }

    /// Whether this client has nothing in flight except the current request, which `others`
    /// requests of the account represent.
    fn is_alone(&self, others: u32) -> bool {
        self.batch.used == 0 && self.receiver.bytes().is_empty() && self.served.outbox.is_idle_but(others)
    }

    fn note_lone(&mut self) {
        self.note_lone_with(0);
    }

    fn note_lone_with(&mut self, others: u32) {
        self.lone_streak = if self.is_alone(others) { self.lone_streak.saturating_add(1) } else { 0 };
    }

    /// Puts a reply into the batch.
    fn push(&mut self, reply: &[u8]) -> Flow {
        let end = self.batch.used + reply.len();
        self.batch.bytes[self.batch.used..end].copy_from_slice(reply);
        self.batch.used = end;
        self.send_large_batch()
    }

    fn send_large_batch(&mut self) -> Flow {
        if self.batch.used >= BATCH_SEND_BYTES { self.flush_batch() } else { Ok(()) }
    }

    fn flush_batch(&mut self) -> Flow {
        if self.send_batch() { Ok(()) } else { Err(GONE) }
    }

    /// Sends the batch; `false` if the connection was dropped.
    fn send_batch(&mut self) -> bool {
        if self.batch.used == 0 {
            return true;
        }
        let used = std::mem::take(&mut self.batch.used);
        self.served.outbox.reply(&self.batch.bytes[..used])
    }
}
