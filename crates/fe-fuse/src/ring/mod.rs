//! Requests of the kernel through rings in memory, one for each CPU (FUSE over io_uring, Linux 6.14 and later, where an administrator allows it):
//! one call takes requests and returns answers, data goes straight between the kernel and where it is read to, and a request is served on the
//! CPU that asks. Without it, each request is a read and a write of `/dev/fuse`, and wakes a thread that may be on another CPU.
//!
//! Reads, writes, flushes and discards are served here; all else is seldom, and goes to `fuser` (`link`), which knows the protocol.
//!
//! # The life of a request
//!
//! 1. The kernel puts it into an entry of the queue of the CPU that asks (`queue`, `entry`); if all are in use it waits in the kernel.
//! 2. The queue's thread serves it, as `requests` says: at once, or on a lane, so that it never waits for a disk.
//! 3. The answer is written into the entry, a read's data directly by whoever reads; **a write is acknowledged, a flush confirmed, when the entry goes back to the kernel**.
//!
//! # The end
//!
//! When the kernel ends the connection it takes back the entries that it has, and refuses those that are answered later; a thread ends when all are
//! accounted for, and only then its memory goes. A connection from which we must part first (a queue that fails) ends when all its descriptors are closed.

mod abi;
mod entry;
mod link;
mod queue;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use bytes::Bytes;
use fuser::{Config, FileHandle, Session, SessionACL};
use rustix::event::EventfdFlags;

use self::abi::{opcode, u32_at, u64_at};
use self::entry::Taken;
use self::link::Link;
use self::queue::Queue;
use crate::directory::DeviceDirectory;
use crate::filesystem::Served;
use crate::lane::become_io_flusher;

/// Where an administrator allows it: `echo Y >` this file.
const ENABLED: &str = "/sys/module/fuse/parameters/enable_uring";

/// CPUs that the machine may have, each of which needs a queue.
const POSSIBLE_CPUS: &str = "/sys/devices/system/cpu/possible";

/// Requests that one queue may have under way: when all of them wait for a disk, so does whatever else comes from that CPU, and a loop device's
/// come from one CPU at a time. Each has room for 1 MiB, which is memory only as far as it was ever used: the kernel takes the one that it used last.
const QUEUE_ENTRIES: usize = 32;

/// Writes of so many bytes are copied by another thread than the queue's, which the kernel has copy them, too.
const LARGE_WRITE_BYTES: usize = 64 << 10;

/// Queues that are worth it: each is a thread.
const QUEUES_MAX: usize = 256;

/// Whether the kernel has rings and lets us use them. The last word has the kernel when it is asked.
pub(crate) fn is_offered() -> bool {
    let enabled = std::fs::read_to_string(ENABLED).is_ok_and(|text| text.trim() == "Y");
    enabled && queues().is_some() && queue::make(QUEUE_ENTRIES).is_ok()
}

/// How many queues there must be; `None` if that cannot be told, or is too much.
fn queues() -> Option<usize> {
    let possible = std::fs::read_to_string(POSSIBLE_CPUS).ok()?;
    cpus(possible.trim()).filter(|&number| number <= QUEUES_MAX)
}

/// How many CPUs a list as `0-3` or `0` has; `None` for one with gaps, which the kernel's numbers of queues do not know either.
fn cpus(list: &str) -> Option<usize> {
    let last = list.strip_prefix("0-").or((list == "0").then_some("0"))?;
    last.parse::<usize>().ok()?.checked_add(1)
}

/// What the threads of the queues share.
struct Doors {
    directory: Arc<DeviceDirectory>,
    link: Link,
    queues: Vec<Arc<Queue>>,
    end: OwnedFd,
}

/// The rings of a mount, and the threads that serve them.
pub(crate) struct Ring {
    doors: Arc<Doors>,
    threads: Vec<JoinHandle<()>>,
    passing: JoinHandle<()>,
    answers: JoinHandle<()>,
}

/// Threads of `fuser`, which serve what the rings do not: seldom, and never long.
const THREADS: usize = 2;

/// Makes a session whose requests come through rings.
///
/// # Errors
/// If the kernel does not take us up on it, or a thread cannot be started. Then the connection is of no use any more.
pub(crate) fn begin(directory: Arc<DeviceDirectory>, device: OwnedFd) -> io::Result<(Session<Served>, Ring)> {
    let refused = |why: &str| io::Error::other(format!("FUSE over io_uring: {why}"));
    let count = queues().ok_or_else(|| refused("cannot tell how many CPUs there are"))?;
    let (link, theirs) = Link::new()?;
    let session =
        greet(&link, theirs, directory.clone(), &device)?.ok_or_else(|| refused("the kernel does not offer it"))?;

    let queues: io::Result<Vec<_>> =
        (0..count).map(|cpu| Queue::new(u16::try_from(cpu).unwrap_or(u16::MAX), QUEUE_ENTRIES)).collect();
    let end = rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?;
    let doors = Arc::new(Doors { directory, link, queues: queues?, end });
    let device = Arc::new(device);

    let (begun, has_begun) = mpsc::channel();
    let mut serving = Vec::with_capacity(count);
    let started = (0..count).try_for_each(|cpu| {
        let (doors, device, begun) = (doors.clone(), device.clone(), begun.clone());
        let serve = move || doors.queues[cpu].serve(&device, &doors, &begun);
        serving.push(thread::Builder::new().name(format!("fuse-cpu-{cpu}")).spawn(serve)?);
        Ok(())
    });
    drop(begun);
    let started = started.and_then(|()| has_begun.iter().take(count).collect::<io::Result<()>>());
    if let Err(error) = started {
        doors.queues.iter().for_each(|queue| queue.end());
        serving.into_iter().for_each(|thread| drop(thread.join()));
        return Err(error);
    }
    let passing = start("fuse-pass", &doors, &device, |doors, device| {
        if !doors.link.pass_on(device, &doors.end) {
            doors.end_all();
        }
        // The kernel has ended, or is to be left: so does `fuser`, one message for each of its threads.
        for _ in 0..THREADS {
            let _ = doors.link.send(&abi::destroy());
        }
    })?;
    let answers = start("fuse-answer", &doors, &device, |doors, device| doors.link.bring_answers(device))?;
    Ok((session, Ring { doors, threads: serving, passing, answers }))
}

/// Introduces the kernel and `fuser` to each other; `None` if one of them does not know rings.
fn greet(
    link: &Link,
    theirs: OwnedFd,
    directory: Arc<DeviceDirectory>,
    device: &OwnedFd,
) -> io::Result<Option<Session<Served>>> {
    /// The protocol's version, whose first number stands in front of what `FUSE_INIT` says.
    const MAJOR: u32 = 7;
    let mut message = link::room();
    let length = link::read_device(device, &mut message)?;
    let init = &message[..length];
    if abi::opcode_of(init) != opcode::INIT || u32_at(init, abi::IN_HEADER_BYTES) != MAJOR {
        return Ok(None);
    }
    link.send(init)?;
    let mut config = Config::default();
    config.n_threads = Some(THREADS);
    let session = Session::from_fd(Served(directory), theirs, SessionACL::All, config)?;
    let Some(answer) = link.receive()?.filter(|answer| abi::takes_rings(answer)) else { return Ok(None) };
    // From here on the kernel keeps all requests until there is a queue for each CPU.
    rustix::io::write(device, &answer)?;
    // What can be read may be gone when it is (an interruption of what has just been answered): whoever passes it on waits in `poll` only.
    rustix::fs::fcntl_setfl(device, rustix::fs::fcntl_getfl(device)? | rustix::fs::OFlags::NONBLOCK)?;
    Ok(Some(session))
}

/// Starts a thread that works between the kernel and `fuser`.
fn start(
    name: &str,
    doors: &Arc<Doors>,
    device: &Arc<OwnedFd>,
    work: impl FnOnce(&Doors, &OwnedFd) + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let (doors, device) = (doors.clone(), device.clone());
    thread::Builder::new().name(name.to_owned()).spawn(move || {
        become_io_flusher();
        work(&doors, &device);
    })
}

impl Doors {
    /// Serves a request, at once or later.
    fn serve(&self, taken: Taken) {
        let arguments = abi::op_in(taken.header());
        // All of them begin with the number of the open file: `fuse_read_in`, `fuse_write_in`, `fuse_fsync_in`, `fuse_fallocate_in`.
        let file = FileHandle(u64_at(arguments, 0));
        let (offset, length) = (u64_at(arguments, 8), u32_at(arguments, 16));
        match taken.asked().opcode {
            opcode::READ => self.directory.serve_read(file, offset, length, taken),
            opcode::WRITE => {
                let flags = u32_at(arguments, 32).cast_signed();
                let copy = |taken: &Taken| Bytes::copy_from_slice(taken.payload());
                if taken.payload().len() >= LARGE_WRITE_BYTES {
                    self.directory.serve_large_write(file, offset, flags, taken, copy);
                } else {
                    self.directory.serve_write(file, offset, copy(&taken), flags, taken);
                }
            }
            opcode::FSYNC => self.directory.serve_fsync(file, taken),
            opcode::FALLOCATE => {
                let mode = u32_at(arguments, 24).cast_signed();
                self.directory.serve_fallocate(file, offset, u64_at(arguments, 16), mode, taken);
            }
            _ => self.link.ask(taken),
        }
    }

    /// Ends the mount though the kernel has not: the threads end, and with the last descriptor so does the connection.
    fn end_all(&self) {
        self.queues.iter().for_each(|queue| queue.end());
        let _ = rustix::io::retry_on_intr(|| rustix::io::write(&self.end, &1_u64.to_ne_bytes()));
    }
}

impl Ring {
    /// Waits for the end of all threads, once `fuser` has ended. `has_failed`: that it has not ended because the kernel had.
    pub(crate) fn finish(self, has_failed: bool) {
        if has_failed {
            self.doors.end_all();
        }
        for thread in self.threads.into_iter().chain([self.passing, self.answers]) {
            if thread.join().is_err() {
                log::error!("a thread of the FUSE front end panicked: requests may have been left unanswered");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_queues_as_cpus() {
        assert_eq!((cpus("0"), cpus("0-1"), cpus("0-127")), (Some(1), Some(2), Some(128)));
        assert_eq!((cpus(""), cpus("1-2"), cpus("0-3,8-11"), cpus("0-")), (None, None, None, None));
    }
}
