//! Readers of a device that is a socket: a test plays the kernel.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::*;
use crate::handover::HandoverCounts;
use crate::scheduler::{is_normal, own_thread};
use crate::wire::init::{Capabilities, Limits};
use crate::wire::opcode;
use crate::wire::request::{Operation, Request};
use crate::{Answer, Errno};

/// Longest wait for an answer: a request that was lost never gets one.
const LOST: Duration = Duration::from_secs(60);

type Handler = Box<dyn Fn(u64) + Send + Sync>;

/// Answers each request with `ENOENT` after calling a function with its node.
pub(crate) struct Answering(pub(crate) Handler);

impl FileSystem for Answering {
    fn capabilities(&self, offered: Capabilities) -> Capabilities {
        offered
    }

    fn limits(&self) -> Limits {
        Limits { write_bytes_max: 4096, background_max: 16 }
    }

    fn serve<A: Answer>(&self, request: &Request<'_>, answer: A) {
        assert!(is_normal(0), "HARNESS: a request is carried out by an idle thread");
        assert!(matches!(request.operation, Operation::StatFs));
        (self.0)(request.node);
        answer.fail(Errno::ENOENT);
    }

    fn forget(&self, node: u64, _lookups: u64) {
        (self.0)(node);
    }

    fn ended(&self) {}
}

/// A connection whose kernel is the test.
pub(crate) struct Connection {
    kernel: OwnedFd,
    pub(crate) readers: Arc<Readers>,
    threads: Vec<JoinHandle<io::Result<()>>>,
    number: u64,
}

impl Connection {
    /// Serves with `count` readers, one of which hands replies over if `hands_over`.
    pub(crate) fn begin(count: usize, counts: &Arc<HandoverCounts>, hands_over: bool, handler: Handler) -> Self {
        let (kernel, device) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let (device, file_system) = (Arc::new(device), Arc::new(Answering(handler)));
        let handover = hands_over.then(|| Handover::new(counts.clone()).unwrap());
        let readers = Readers::new(count, device.clone(), Some(counts.clone()), handover);
        let start = |number| {
            let (readers, device, file_system) = (readers.clone(), device.clone(), file_system.clone());
            thread::spawn(move || {
                let served = readers.serve(number, &mut Reader::new(device), &*file_system);
                assert!(is_normal(0), "HARNESS: a reader ends with the idle policy");
                served
            })
        };
        let threads: Vec<_> = (0..count).map(start).collect();
        let this = Self { kernel, readers, threads, number: 0 };
        this.until(|state| state.parked.len() + usize::from(state.watcher.is_some()) + 1 == count);
        this
    }

    /// Serves with `count` readers, and plain replies.
    fn plain(count: usize, handler: Handler) -> Self {
        Self::begin(count, &Arc::default(), false, handler)
    }

    /// Waits for a state that the readers reach without further requests.
    fn until(&self, is_reached: impl Fn(&State) -> bool) {
        while !is_reached(&self.readers.state.lock()) {
            thread::yield_now();
        }
    }

    /// Sends a message without waiting for its answer; returns its number.
    pub(crate) fn send(&mut self, kind: u32, node: u64, caller: u32) -> u64 {
        self.number += 2;
        send(self.kernel.as_fd(), self.number, kind, node, caller);
        self.number
    }

    /// Waits for an answer; returns the number of its request.
    pub(crate) fn answer(&self) -> u64 {
        answer(self.kernel.as_fd())
    }

    pub(crate) fn ask(&mut self, node: u64) {
        let number = self.send(opcode::STATFS, node, own_thread().cast_unsigned());
        assert_eq!(self.answer(), number);
    }

    /// Sends the kernel messages until a reply would wait for it; returns how many.
    pub(crate) fn fill(&self) -> usize {
        let filler = [0; 1024];
        let send = || rustix::net::send(&*self.readers.device, &filler, rustix::net::SendFlags::DONTWAIT);
        std::iter::from_fn(|| send().ok()).count()
    }

    /// Takes those messages.
    pub(crate) fn drain(&self, count: usize) {
        for _ in 0..count {
            assert_eq!(rustix::io::read(&self.kernel, &mut [0; 2048]).unwrap(), 1024);
        }
    }

    /// Ends the connection, and checks that all readers end.
    pub(crate) fn end(self) {
        drop(self.kernel);
        for thread in self.threads {
            thread.join().unwrap().unwrap();
        }
    }
}

fn send(kernel: std::os::fd::BorrowedFd<'_>, number: u64, kind: u32, node: u64, caller: u32) {
    // A header, and the arguments of FORGET.
    let mut message = Vec::new();
    let length: u32 = if kind == opcode::FORGET { 48 } else { 40 };
    message.extend([length.to_ne_bytes(), kind.to_ne_bytes()].concat());
    message.extend([number.to_ne_bytes(), node.to_ne_bytes()].concat());
    message.extend([0_u32, 0, caller, 0].map(u32::to_ne_bytes).concat());
    message.resize(length as usize, 0);
    assert_eq!(rustix::io::write(kernel, &message).unwrap(), message.len());
}

fn answer(kernel: std::os::fd::BorrowedFd<'_>) -> u64 {
    let mut ready = [PollFd::from_borrowed_fd(kernel, PollFlags::IN)];
    let lost = Timespec { tv_sec: LOST.as_secs().cast_signed(), tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut ready, Some(&lost)).unwrap(), 1, "a request has no answer");
    let mut reply = [0; 64];
    let length = rustix::io::read(kernel, &mut reply).unwrap();
    assert_eq!(length, 16, "an error has no payload");
    crate::wire::u64_at(&reply, 8)
}

/// A handler that reports each request's thread, and then waits until the test lets it go on.
struct Gate {
    arrived: Receiver<(u64, i32)>,
    go_on: Sender<()>,
}

impl Gate {
    /// `waits`: nodes whose requests wait. `says_so`: they say so before.
    fn new(waits: u64, says_so: bool) -> (Self, Handler) {
        let ((arrive, arrived), (go_on, wait)) = (mpsc::channel(), mpsc::channel());
        let wait = Mutex::new(wait);
        let handler = move |node| {
            let _ = arrive.send((node, own_thread()));
            if node == waits {
                if says_so {
                    before_wait();
                }
                let _ = wait.lock().recv_timeout(LOST);
            }
        };
        (Self { arrived, go_on }, Box::new(handler))
    }

    fn next(&self) -> (u64, i32) {
        self.arrived.recv_timeout(LOST).expect("a request was not taken")
    }
}

#[test]
fn one_reader_serves_all_requests_that_come_one_at_a_time() {
    let (gate, handler) = Gate::new(u64::MAX, false);
    let counts = Arc::<HandoverCounts>::default();
    let mut connection = Connection::begin(4, &counts, false, handler);
    let threads: BTreeSet<i32> = (0..200)
        .map(|node| {
            connection.ask(node);
            gate.next().1
        })
        .collect();
    // On a busy machine a reader may not run for so long that another one takes over.
    assert!(threads.len() as u64 <= 1 + counts.figures().takeovers, "{threads:?}");
    connection.end();
}

#[test]
fn another_reader_is_called_before_one_waits() {
    let (gate, handler) = Gate::new(7, true);
    let mut connection = Connection::plain(3, handler);
    connection.send(opcode::STATFS, 7, 1);
    let waiting = gate.next().1;
    // Called at once, not by the watcher: it is counted, and one is parked still.
    connection.until(|state| state.watcher.is_some() && state.parked.is_empty());
    let second = connection.send(opcode::STATFS, 8, 1);
    assert_ne!(gate.next().1, waiting);
    assert_eq!(connection.answer(), second, "the first one still waits");
    gate.go_on.send(()).unwrap();
    connection.answer();
    connection.end();
}

/// The handler waits for the next request without having said that it may wait.
#[test]
fn a_reader_that_waits_unexpectedly_is_relieved() {
    let (gate, handler) = Gate::new(7, false);
    let mut connection = Connection::plain(2, handler);
    let first = connection.send(opcode::STATFS, 7, 1);
    let stuck = gate.next().1;
    let second = connection.send(opcode::STATFS, 8, 1);
    assert_ne!(gate.next().1, stuck);
    assert_eq!(connection.answer(), second);
    gate.go_on.send(()).unwrap();
    assert_eq!(connection.answer(), first);
    connection.end();
}

#[test]
fn a_watcher_that_rests_is_woken_by_the_next_request() {
    let (gate, handler) = Gate::new(7, false);
    let mut connection = Connection::plain(2, handler);
    for _ in 0..3 {
        let rests = |connection: &Connection| !connection.readers.is_watched.load(Ordering::SeqCst);
        while !rests(&connection) {
            thread::yield_now();
        }
        connection.send(opcode::STATFS, 7, 1);
        gate.next();
        connection.send(opcode::STATFS, 8, 1);
        assert_eq!(gate.next().0, 8, "the watcher took over");
        gate.go_on.send(()).unwrap();
        (connection.answer(), connection.answer());
        // One parks again.
        while connection.readers.state.lock().watcher.is_none() {
            connection.ask(9);
            gate.next();
        }
    }
    connection.end();
}

#[test]
fn requests_that_queue_up_bring_another_reader() {
    let (kernel, device) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let device = Arc::new(device);
    let readers = Readers::new(2, device.clone(), None, None);
    readers.state.lock().watcher = Some(1);
    let (mut reader, mut member) = (Reader::new(device), Member::join(readers.clone(), 0));
    // One at a time, or with nothing behind but messages without an answer: none is called.
    let kinds = [opcode::STATFS, opcode::FORGET, opcode::FORGET, opcode::FORGET, opcode::FORGET, opcode::STATFS];
    for pending in [&kinds[..1], &kinds[..1], &kinds[..1], &kinds[..1], &kinds[..]] {
        pending.iter().for_each(|&kind| send(kernel.as_fd(), 2, kind, 1, 1));
        for _ in pending {
            assert!(reader.read().unwrap());
            member.took(&reader);
            member.done().unwrap();
        }
        assert!(!readers.state.lock().called[1]);
    }
    (0..6).for_each(|_| send(kernel.as_fd(), 2, opcode::STATFS, 1, 1));
    let called: Vec<bool> = (0..6)
        .map(|_| {
            assert!(reader.read().unwrap());
            member.took(&reader);
            member.done().unwrap();
            readers.state.lock().called[1]
        })
        .collect();
    assert_eq!(called, [false, false, false, true, true, true], "the first did not wait behind another");
    assert_eq!(readers.free.load(Ordering::SeqCst), 2);
}

/// Requests of four callers, of which some wait and some say so, while readers park and are called.
#[test]
fn no_request_is_lost() {
    const EACH: u64 = 500;
    let handler = |node: u64| match node % 5 {
        0 => before_wait(),
        1 => thread::yield_now(),
        _ => {}
    };
    let connection = Connection::plain(4, Box::new(handler));
    let kernel = connection.kernel.as_fd();
    thread::scope(|scope| {
        for caller in 1..=4_u64 {
            scope.spawn(move || {
                for node in 0..EACH {
                    send(kernel, caller << 32 | node, opcode::STATFS, node, 1);
                    if node % 7 == caller {
                        thread::yield_now();
                    }
                }
            });
        }
        let answered: BTreeSet<u64> = (0..4 * EACH).map(|_| answer(kernel)).collect();
        assert_eq!(answered.len() as u64, 4 * EACH, "one answer each");
    });
    let free = connection.readers.free.load(Ordering::SeqCst);
    assert!((1..=4).contains(&free));
    connection.end();
}

#[test]
fn a_spare_reader_parks_again() {
    let (gate, handler) = Gate::new(7, true);
    let mut connection = Connection::plain(2, handler);
    connection.send(opcode::STATFS, 7, 1);
    gate.next();
    connection.until(|state| state.watcher.is_none());
    gate.go_on.send(()).unwrap();
    connection.answer();
    while connection.readers.state.lock().watcher.is_none() {
        connection.ask(9);
        gate.next();
    }
    assert_eq!(connection.readers.free.load(Ordering::SeqCst), 1);
    connection.end();
}

/// Another reader must be there for the requests that follow.
#[test]
fn a_handler_that_panics_leaves_the_device_to_another_reader() {
    let mut connection = Connection::plain(2, Box::new(|node| assert_ne!(node, 7, "HARNESS: a handler panics")));
    connection.ask(1);
    let number = connection.send(opcode::STATFS, 7, 1);
    assert_eq!(connection.answer(), number, "EIO");
    for node in 20..40 {
        connection.ask(node);
    }
    let Connection { kernel, threads, .. } = connection;
    drop(kernel);
    let ended: Vec<bool> = threads.into_iter().map(|thread| thread.join().is_ok()).collect();
    assert_eq!(ended.iter().filter(|&&is_ok| !is_ok).count(), 1);
}
