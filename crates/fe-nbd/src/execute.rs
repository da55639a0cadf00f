//! Executes commands on the device, and produces their replies. Stateless; may wait for the device,
//! never for the client.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use surface::{
    Allocation, BlockDevice, CHANGES, Client, Error, ErrorKind, Held, Job, PendingRead, READS, WriteOptions,
    ZeroOptions,
};

use crate::admit::{Command, Range, Session};
use crate::caller::Caller;
use crate::errno::Errno;
use crate::outbox::{Outbox, Reply};
use crate::server::Log;
use crate::wire::{reply, reply::Echo, state};

/// Step size for zeroes that are stored: a step takes about as long as the largest write, so that a
/// client's request for 4 GiB of zeroes does not occupy a thread of the pool while others wait.
const STORED_ZEROES_STEP_BYTES: u64 = 32 << 20;
/// Holes are made in larger steps: they cost a map record per group, not data.
const HOLES_STEP_BYTES: u64 = 1 << 30;
/// Most of a range that is brought into memory by one request, which is a hint only.
const CACHE_BYTES_MAX: u64 = 64 << 20;
/// Longest read that is done together with others: longer ones keep a device busy, and a thread,
/// for long.
const JOINED_READ_BYTES_MAX: u64 = 1 << 20;
/// Most failures logged for one connection: enough to recognise the fault, too few to fill a disk.
const FAILURES_LOGGED_MAX: u32 = 100;
/// Most extents in one reply to block status: 128 KiB of reply, 256 KiB of an extended one. Clients
/// ask again for the rest.
const EXTENTS_MAX: usize = 16 << 10;
/// Most of a range that is looked at for block status, however long its extents are: a client that
/// asks about a whole device does not occupy a thread for long.
const STATUS_BYTES_MAX: u64 = 64 << 30;

/// The parts of a connection in transmission that execution needs.
pub struct Served {
    /// The device.
    pub device: Arc<dyn BlockDevice>,
    /// The agreement of the handshake.
    pub session: Session,
    /// Whether it does several reads at a time for one thread.
    pub reads_together: bool,
    /// The way to the client.
    pub outbox: Outbox,
    /// The client.
    pub caller: Arc<Caller>,
    /// Reports storage failures to the server's owner.
    pub failures: Failures,
    /// Writes that wait for room.
    pub held: Arc<Held>,
}

/// Result of a request, or of one step of it.
pub enum Outcome {
    /// It is done: the reply.
    Done(Reply),
    /// Something is left, which the request then is.
    Left,
    /// There was no space; the request is unchanged, and should be held for at most the given time.
    Full(Duration, Error),
}

/// Reports storage failures; a client with simple replies only gets an error number.
pub struct Failures {
    /// Name of the device.
    pub name: String,
    /// Where they go.
    pub log: Option<Log>,
    /// Number of failures reported.
    pub reported: AtomicU32,
}

impl Failures {
    fn report(&self, error: &Error) {
        // Other errors are the client's fault, or reach the owner by other means.
        let is_failure = matches!(error.kind(), ErrorKind::Io | ErrorKind::Corrupt);
        if let Some(log) = &self.log
            && is_failure
            && self.reported.fetch_add(1, Ordering::Relaxed) < FAILURES_LOGGED_MAX
        {
            log(&format!("nbd: export '{}': {error}", self.name));
        }
    }
}

/// A command with the name that the client gave it.
#[derive(Debug, Clone)]
pub struct Request {
    /// For its reply.
    pub echo: Echo,
    /// The command.
    pub command: Command,
    /// The payload of a write; empty for all others.
    pub payload: Bytes,
}

impl Request {
    /// Bytes that it takes from the connection's account while it is executed.
    pub const fn bytes(&self) -> usize {
        match self.command {
            Command::Read(range) => range.length as usize,
            Command::Write { range, .. } => range.length as usize,
            Command::BlockStatus { .. } => EXTENTS_MAX * size_of::<surface::Run>(),
            _ => 0,
        }
    }
}

/// A request in the pool.
pub struct Task {
    /// Its connection, which also takes the reply.
    pub served: Arc<Served>,
    /// The remaining request.
    pub request: Request,
    /// The bytes charged to the account.
    pub bytes: usize,
}

impl Job for Task {
    fn class(&self) -> usize {
        match self.request.command {
            Command::Read(_) | Command::Cache(_) | Command::BlockStatus { .. } => READS,
            _ => CHANGES,
        }
    }

    fn run(mut self) -> Option<Self> {
        // Writes are bounded by the account. The others may cover the whole device: a server that
        // stops would wait for all steps of requests that nobody can be told are done.
        let is_write = matches!(self.request.command, Command::Write { .. });
        let is_unanswerable = self.served.outbox.dropped().is_some() && !is_write;
        if is_unanswerable || self.served.caller.is_given_up() {
            // Nothing reads the reply, or another client waits for the device.
            self.served.outbox.end(self.bytes, Reply::from(Vec::new()));
            return None;
        }
        match self.served.execute(&mut self.request) {
            Outcome::Done(reply) => {
                self.served.outbox.end(self.bytes, reply);
                None
            }
            Outcome::Left => Some(self),
            Outcome::Full(most, _) => {
                self.hold(most);
                None
            }
        }
    }

    fn is_joined(&self) -> bool {
        self.served.reads_together
            && matches!(self.request.command, Command::Read(range) if (1..=JOINED_READ_BYTES_MAX).contains(&range.length))
    }

    fn join(self, next: &mut dyn FnMut() -> Option<Self>) {
        let device = Arc::clone(&self.served.device);
        let mut first = Some(self);
        device.read_many(&mut || {
            loop {
                match Reading::new(first.take().or_else(&mut *next)?) {
                    Ok(reading) => return Some(Box::new(reading)),
                    // Its client is gone: nothing is executed.
                    Err(task) => drop(task.run()),
                }
            }
        });
    }
}

impl Task {
    /// Holds a request that found no space: it is retried until it is answered or its client has
    /// disconnected. Its thread continues with others.
    fn hold(self, most: Duration) {
        let served = Arc::clone(&self.served);
        // One queue for each connection.
        let queue = Arc::as_ptr(&served) as usize;
        served.held.retry(queue, most, self, Self::try_again);
    }

    /// Retries the request; `None`: it was answered.
    fn try_again(mut self, is_last: bool) -> Option<Self> {
        let served = Arc::clone(&self.served);
        // A disconnected client sends nothing more, and the next one waits until its requests are
        // finished.
        let is_last = is_last || served.caller.is_gone();
        let reply = loop {
            if served.outbox.dropped().is_some() || served.caller.is_given_up() {
                break Reply::from(Vec::new());
            }
            match served.execute(&mut self.request) {
                Outcome::Done(reply) => break reply,
                Outcome::Left => {}
                Outcome::Full(_, error) if is_last => break served.error(self.request.echo, &error),
                Outcome::Full(..) => return Some(self),
            }
        };
        served.outbox.end(self.bytes, reply);
        None
    }
}

/// A read that is done together with others.
struct Reading {
    task: Task,
    reply: ReadReply,
}

impl Reading {
    /// Returns the task if no client waits for its data any more.
    fn new(task: Task) -> Result<Self, Task> {
        let Command::Read(range) = task.request.command else { return Err(task) };
        if task.served.outbox.dropped().is_some() {
            return Err(task);
        }
        let reply = task.served.read_reply(range);
        Ok(Self { task, reply })
    }
}

impl PendingRead for Reading {
    fn offset(&self) -> u64 {
        self.reply.range.offset
    }

    fn buf(&mut self) -> &mut [u8] {
        self.reply.data()
    }

    fn finish(self: Box<Self>, result: surface::Result<()>) {
        let Self { task, reply } = *self;
        let reply = reply.finish(&task.served, task.request.echo, result);
        task.served.outbox.end(task.bytes, reply);
    }
}

/// The reply to a read that is being filled in: room for its header, then the data.
struct ReadReply {
    range: Range,
    bytes: Vec<u8>,
    header: usize,
}

impl ReadReply {
    fn data(&mut self) -> &mut [u8] {
        &mut self.bytes[self.header..self.header + self.range.length as usize]
    }

    /// The reply with the data, or with an error.
    fn finish(self, served: &Served, echo: Echo, result: surface::Result<()>) -> Reply {
        let Self { range, mut bytes, header } = self;
        if let Err(error) = result {
            return served.error(echo, &error);
        }
        reply::put_read_header(&mut bytes[..header], served.session.replies, echo, range.length);
        Reply::new(bytes, header + range.length as usize)
    }
}

impl Request {
    /// Whether there is nothing to do: the range is empty, which the protocol leaves undefined and
    /// this server allows.
    const fn is_empty(&self) -> bool {
        match self.command {
            Command::Flush => false,
            Command::Read(range) | Command::Cache(range) => range.length == 0,
            Command::Write { range, .. } | Command::Trim { range, .. } => range.length == 0,
            Command::WriteZeroes { range, .. } | Command::BlockStatus { range, .. } => range.length == 0,
        }
    }
}

impl Served {
    /// Does a request, or one step of a long one.
    pub fn execute(&self, request: &mut Request) -> Outcome {
        let (echo, replies) = (request.echo, self.session.replies);
        let device = self.device.as_ref();
        if request.is_empty() {
            if !matches!(request.command, Command::Read(_)) {
                return Outcome::Done(reply::done(replies, echo).to_vec().into());
            }
            let mut bytes = vec![0; reply::read_header_bytes(replies, 0)];
            reply::put_read_header(&mut bytes, replies, echo, 0);
            return Outcome::Done(bytes.into());
        }
        let done = match &mut request.command {
            Command::Read(range) => return Outcome::Done(self.read(echo, *range)),
            Command::BlockStatus { range, one } => return Outcome::Done(self.block_status(echo, *range, *one)),
            Command::Write { range, fua } => {
                let options = WriteOptions { fua: *fua };
                match device.write(range.offset, request.payload.clone(), options) {
                    Err(error) => return self.failed(echo, error),
                    done => done,
                }
            }
            Command::Flush => device.flush(),
            Command::Cache(range) => device.prefetch(range.offset, range.length.min(CACHE_BYTES_MAX)),
            Command::Trim { range, fua } => {
                let step = take_step(range, HOLES_STEP_BYTES);
                match device.discard(step.offset, step.length) {
                    Ok(()) if range.length > 0 => return Outcome::Left,
                    Ok(()) if *fua => device.flush(),
                    done => done,
                }
            }
            Command::WriteZeroes { range, fua, no_hole } => {
                let before = *range;
                let step = take_step(range, if *no_hole { STORED_ZEROES_STEP_BYTES } else { HOLES_STEP_BYTES });
                // FUA is the flush after the last step, which covers all of them.
                let options = ZeroOptions { fua: false, no_hole: *no_hole };
                match device.write_zeroes(step.offset, step.length, options) {
                    Ok(()) if range.length > 0 => return Outcome::Left,
                    Ok(()) if *fua => device.flush(),
                    Err(error) if *no_hole => {
                        *range = before;
                        return self.failed(echo, error);
                    }
                    done => done,
                }
            }
        };
        Outcome::Done(match done {
            Ok(()) => reply::done(replies, echo).to_vec().into(),
            Err(error) => self.error(echo, &error),
        })
    }

    /// The outcome of a failed request that carried data.
    fn failed(&self, echo: Echo, error: Error) -> Outcome {
        let most = self.device.full_wait().filter(|_| error.kind() == ErrorKind::Full);
        match most {
            Some(most) => Outcome::Full(most, error),
            None => Outcome::Done(self.error(echo, &error)),
        }
    }

    /// The reply to a request that failed.
    pub fn error(&self, echo: Echo, error: &Error) -> Reply {
        self.failures.report(error);
        reply::error(self.session.replies, echo, Errno::from(error.kind()), &error.to_string()).into()
    }

    fn read(&self, echo: Echo, range: Range) -> Reply {
        let mut reply = self.read_reply(range);
        let result = self.device.read(range.offset, reply.data());
        reply.finish(self, echo, result)
    }

    fn read_reply(&self, range: Range) -> ReadReply {
        let header = reply::read_header_bytes(self.session.replies, range.length);
        ReadReply { range, bytes: self.outbox.buffer(header + range.length as usize), header }
    }

    fn block_status(&self, echo: Echo, range: Range, one: bool) -> Reply {
        let runs_max = if one { 1 } else { EXTENTS_MAX };
        let length = range.length.min(STATUS_BYTES_MAX);
        let runs = match self.device.allocation(range.offset, length, runs_max) {
            Ok(runs) => runs,
            Err(error) => return self.error(echo, &error),
        };
        let mut left = length;
        let mut extents = Vec::with_capacity(runs.len().min(runs_max));
        for run in runs.iter().take(runs_max) {
            let length = run.length.min(left);
            if length == 0 {
                break;
            }
            left -= length;
            let status = match run.allocation {
                Allocation::Data => 0,
                Allocation::Hole => state::HOLE | state::ZERO,
            };
            extents.push((length, status));
        }
        if extents.is_empty() {
            // A status of 0 guarantees nothing and is always correct; a reply without extents is
            // not allowed.
            extents.push((length, 0));
        }
        reply::block_status(self.session.replies, echo, &extents).into()
    }
}

/// Takes a step off the start of `range`: up to the next multiple of `step_bytes`, so that only the
/// ends of the whole are not whole blocks.
fn take_step(range: &mut Range, step_bytes: u64) -> Range {
    let to_boundary = step_bytes - range.offset % step_bytes;
    let length = range.length.min(to_boundary);
    let step = Range { offset: range.offset, length };
    range.offset += length;
    range.length -= length;
    step
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_cover_the_range_and_end_at_multiples() {
        let whole = Range { offset: (5 << 30) - 100, length: u64::from(u32::MAX) * 5 };
        let (mut rest, mut next) = (whole, whole.offset);
        while rest.length > 0 {
            let step = take_step(&mut rest, HOLES_STEP_BYTES);
            assert_eq!(step.offset, next);
            assert!(step.length > 0 && step.length <= HOLES_STEP_BYTES);
            next += step.length;
            assert!(rest.length == 0 || next % HOLES_STEP_BYTES == 0);
        }
        assert_eq!(next, whole.offset + whole.length);
    }
}
