//! Requests of the kernel through rings in memory, one for each CPU (FUSE over io_uring, Linux 6.14
//! and later, where an administrator allows it): one call takes requests and returns answers, data
//! goes straight between the kernel and the place that it is read to, and a request is served on
//! the CPU that asks. Without rings, each request is a read and a write of `/dev/fuse`, and wakes a
//! thread that may be on another CPU.
//!
//! Messages without an answer (forgotten nodes) and interruptions still come through `/dev/fuse`:
//! one thread reads it.
//!
//! # The life of a request
//!
//! 1. The kernel puts it into an entry of the queue of the CPU that asks (`queue`, `entry`); if all
//!    entries are in use it waits in the kernel.
//! 2. The queue's thread has the file system serve it: at once, or from another thread, so that it
//!    never waits for a disk.
//! 3. The answer is written into the entry, a read's data directly by the thread that reads; **a
//!    write is acknowledged, a flush confirmed, when the entry goes back to the kernel**.
//!
//! # The end
//!
//! When the kernel ends the connection it takes back the entries that it has, and refuses those
//! that are answered later; a queue's thread ends when all entries are accounted for, and only then
//! its memory goes. A connection from which the server must part first (a queue that fails) ends
//! when all its descriptors are closed.

mod abi;
mod entry;
mod queue;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use rustix::event::EventfdFlags;

use self::entry::Taken;
use self::queue::Queue;
use crate::answer::Answer;
use crate::device::Reader;
use crate::session::{FileSystem, dispatch};
use crate::wire;
use crate::wire::errno::Errno;
use crate::wire::opcode;

/// Where an administrator allows it: `echo Y >` this file.
const ENABLED: &str = "/sys/module/fuse/parameters/enable_uring";

/// CPUs that the machine may have, each of which needs a queue.
const POSSIBLE_CPUS: &str = "/sys/devices/system/cpu/possible";

/// Requests that one queue may have under way: when all of them wait for a disk, so does whatever
/// else comes from that CPU, and a loop device's come from one CPU at a time. Each has room for 1
/// MiB, which is memory only as far as it was ever used: the kernel takes the one that it used
/// last.
const QUEUE_ENTRIES: usize = 32;

/// Queues that are worth it: each is a thread.
const QUEUES_MAX: usize = 256;

/// Whether the kernel has rings and lets us use them. The last word has the kernel when it is
/// asked.
pub(crate) fn is_offered() -> bool {
    let enabled = std::fs::read_to_string(ENABLED).is_ok_and(|text| text.trim() == "Y");
    enabled && queues().is_some() && queue::make(QUEUE_ENTRIES).is_ok()
}

/// How many queues there must be; `None` if that cannot be told, or is too much.
fn queues() -> Option<usize> {
    let possible = std::fs::read_to_string(POSSIBLE_CPUS).ok()?;
    cpus(possible.trim()).filter(|&number| number <= QUEUES_MAX)
}

/// How many CPUs a list as `0-3` or `0` has; `None` for one with gaps, which the kernel's numbers
/// of queues do not know either.
fn cpus(list: &str) -> Option<usize> {
    let last = list.strip_prefix("0-").or((list == "0").then_some("0"))?;
    last.parse::<usize>().ok()?.checked_add(1)
}

/// What the threads of the queues share.
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
    /// Gives the kernel a queue for each CPU. The kernel keeps all requests until it has them.
    ///
    /// # Errors
    /// If the kernel does not take them, or a thread cannot be started. The connection is of no use
    /// then.
    pub(crate) fn begin(file_system: Arc<F>, device: Arc<OwnedFd>) -> io::Result<Self> {
        let unknown = || io::Error::other("FUSE over io_uring: the number of CPUs cannot be told");
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

    /// Serves what still comes through the device, until the connection ends.
    pub(crate) fn serve_device(&self, device: &Arc<OwnedFd>) -> io::Result<()> {
        Reader::new(device.clone()).serve_until(&*self.shared.file_system, &self.shared.end)
    }

    /// Waits for the end of all threads, once the connection has ended. `has_failed`: the kernel
    /// has not ended it.
    pub(crate) fn finish(self, has_failed: bool) {
        if has_failed {
            self.shared.end_all();
        }
        for thread in self.threads {
            if thread.join().is_err() {
                log::error!("a thread of the FUSE front end panicked: requests may have been left unanswered");
            }
        }
    }
}

impl<F: FileSystem> Shared<F> {
    /// Serves a request, at once or later.
    fn serve(&self, taken: Taken) {
        let asked = taken.asked();
        let Some((header, first)) = abi::parts(taken.header(), asked.payload_bytes) else {
            log::error!("a request of the kernel contradicts itself: operation {}", asked.opcode);
            return taken.fail(Errno::EIO);
        };
        // The reply goes where the arguments lie, so they are taken out first; only a write's data
        // stays.
        let is_write = asked.opcode == opcode::WRITE;
        let rest = if is_write { Vec::new() } else { taken.payload().to_vec() };
        let data_in_answer = is_write.then_some(asked.payload_bytes);
        let decoded = wire::decode(&header, &first, &rest, data_in_answer);
        dispatch(&*self.file_system, decoded, taken);
    }

    /// Ends the mount though the kernel has not: the threads end, and with the last descriptor so
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
