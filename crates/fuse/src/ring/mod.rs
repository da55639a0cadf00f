//! Requests of the kernel through rings in memory, one for each CPU (FUSE over io_uring, Linux 6.14
//! and later, where an administrator allows it). One system call takes requests and returns
//! answers, data is copied directly between the kernel and its destination, and a request is served
//! on the CPU of its caller. Without rings, each request is a read and a write of `/dev/fuse`, and
//! wakes a thread that may be on another CPU. Owns the threads of the queues.
//!
//! Messages without an answer (forgotten nodes) and interruptions still arrive through `/dev/fuse`:
//! one thread reads it.
//!
//! # The life of a request
//!
//! 1. The kernel puts it into an entry of the queue of the caller's CPU (`queue`, `entry`); if all
//!    entries are in use it waits in the kernel.
//! 2. The queue's thread passes it to the file system, which answers at once or from another
//!    thread, so that the queue's thread never waits for a disk.
//! 3. The answer is written into the entry, a read's data directly by the thread that reads; **a
//!    write is acknowledged, a flush confirmed, when the entry is submitted to the kernel**.
//!
//! # The end
//!
//! When the kernel ends the connection it returns the entries that it has, and refuses those that
//! are answered later. A queue's thread ends when all entries are accounted for, and only then its
//! memory is released. A connection that the server must end first (a queue that fails) ends when
//! all its descriptors are closed.

mod abi;
mod entry;
mod queue;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use rustix::event::EventfdFlags;

use self::entry::PendingRequest;
use self::queue::Queue;
use crate::answer::Answer;
use crate::device::Reader;
use crate::session::{FileSystem, dispatch};
use crate::wire;
use crate::wire::errno::Errno;
use crate::wire::opcode;

/// Where an administrator allows it: `echo Y >` this file.
const ENABLED: &str = "/sys/module/fuse/parameters/enable_uring";

/// The CPUs that the machine may have, each of which needs a queue.
const POSSIBLE_CPUS: &str = "/sys/devices/system/cpu/possible";

/// Requests of one queue in flight. A request keeps its entry while it waits for a disk, in a lane
/// too: when all entries wait, so do all other requests from that CPU. So there are about as many
/// as the kernel has background requests (256), which a loop device sends from one CPU at a time.
/// Each has room for 1 MiB, of which only the used part takes memory: the kernel prefers the entry
/// that it used last. With the wake-up, a power of two.
const QUEUE_ENTRIES: usize = 255;

/// Most queues: each is a thread.
const QUEUES_MAX: usize = 256;

/// Returns whether the kernel has rings and lets us use them. It may still refuse when it is asked
/// for them.
pub(crate) fn is_offered() -> bool {
    let enabled = std::fs::read_to_string(ENABLED).is_ok_and(|text| text.trim() == "Y");
    enabled && queues().is_some() && queue::make(QUEUE_ENTRIES).is_ok()
}

/// Returns the number of queues; `None` if it is unknown or too large.
fn queues() -> Option<usize> {
    let possible = std::fs::read_to_string(POSSIBLE_CPUS).ok()?;
    cpus(possible.trim()).filter(|&number| number <= QUEUES_MAX)
}

/// Returns the number of CPUs in a list such as `0-3` or `0`; `None` for one with gaps, which the
/// kernel's queue numbers do not support either.
fn cpus(list: &str) -> Option<usize> {
    let last = list.strip_prefix("0-").or((list == "0").then_some("0"))?;
    last.parse::<usize>().ok()?.checked_add(1)
}

/// State shared by the threads of the queues.
struct Shared<F> {
    file_system: Arc<F>,
    queues: Vec<Arc<Queue>>,
    end: OwnedFd,
}

/// The rings of a connection, and the threads that serve them.
pub(crate) struct Rings<F> {
    shared: Arc<Shared<F>>,
    threads: Vec<JoinHandle<()>>,
}

impl<F: FileSystem> Rings<F> {
    /// Registers a queue for each CPU with the kernel. The kernel holds back all requests until
    /// then.
    ///
    /// # Errors
    /// When the kernel refuses them, or a thread cannot be started. The connection is unusable
    /// then.
    pub(crate) fn begin(file_system: Arc<F>, device: Arc<OwnedFd>) -> io::Result<Self> {
        let unknown = || io::Error::other("FUSE over io_uring: cannot determine the number of CPUs");
        let count = queues().ok_or_else(unknown)?;
        let queues: io::Result<Vec<_>> =
            (0..count).map(|cpu| Queue::new(u16::try_from(cpu).unwrap_or(u16::MAX), QUEUE_ENTRIES)).collect();
        let end = rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?;
        let shared = Arc::new(Shared { file_system, queues: queues?, end });
        let (begun, has_begun) = mpsc::channel();
        let mut threads = Vec::with_capacity(count);
        let started = (0..count).try_for_each(|cpu| {
            let (shared, device, begun) = (shared.clone(), device.clone(), begun.clone());
            let serve = move || {
                let (taken, failed) = (|taken| shared.serve(taken), || shared.end_all());
                shared.queues[cpu].serve(&device, taken, failed, &begun);
            };
            threads.push(thread::Builder::new().name(format!("fuse-cpu-{cpu}")).spawn(serve)?);
            Ok(())
        });
        drop(begun);
        let started = started.and_then(|()| has_begun.iter().take(count).collect::<io::Result<()>>());
        if let Err(error) = started {
            shared.end_all();
            threads.into_iter().for_each(|thread| drop(thread.join()));
            return Err(error);
        }
        Ok(Self { shared, threads })
    }

    /// Serves the messages that still arrive through the device, until the connection ends.
    pub(crate) fn serve_device(&self, device: &Arc<OwnedFd>) -> io::Result<()> {
        Reader::new(device.clone()).serve_until(&*self.shared.file_system, &self.shared.end)
    }

    /// Waits for the end of all threads, once the connection has ended. `has_failed` means that the
    /// kernel has not ended it.
    pub(crate) fn finish(self, has_failed: bool) {
        if has_failed {
            self.shared.end_all();
        }
        for thread in self.threads {
            if thread.join().is_err() {
                log::error!("a thread of the FUSE front end panicked: some requests may not have been answered");
            }
        }
    }
}

impl<F: FileSystem> Shared<F> {
    /// Serves a request, at once or later.
    fn serve(&self, taken: PendingRequest) {
        let asked = taken.asked();
        let Some((header, first)) = abi::parts(taken.header(), asked.payload_bytes) else {
            log::error!("the kernel sent a malformed request: operation {}", asked.opcode);
            return taken.fail(Errno::EIO);
        };
        // The reply overwrites the arguments, so they are copied first; only a write's data stays
        // in place.
        let is_write = asked.opcode == opcode::WRITE;
        let rest = if is_write { Vec::new() } else { taken.payload().to_vec() };
        let data_in_answer = is_write.then_some(asked.payload_bytes);
        let decoded = wire::decode(&header, &first, &rest, data_in_answer);
        dispatch(&*self.file_system, decoded, taken);
    }

    /// Ends the mount although the kernel has not: the threads end, and with the last descriptor so
    /// does the connection.
    fn end_all(&self) {
        self.queues.iter().for_each(|queue| queue.end());
        let _ = rustix::io::retry_on_intr(|| rustix::io::write(&self.end, &1_u64.to_ne_bytes()));
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
