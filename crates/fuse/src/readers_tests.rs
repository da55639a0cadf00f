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
        assert!(matches!(request.operation, Operation::StatFs | Operation::Read { .. }));
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
    file_system: Arc<Answering>,
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
        let readers = Readers::new(count, device, counts.clone(), handover);
        let mut this = Self { kernel, readers, file_system, threads: Vec::new(), number: 0 };
        (0..count).for_each(|_| this.start());
        this.until(|state| state.parked.len() + usize::from(state.watcher.is_some()) + 1 == count);
        this
    }

    /// Starts the next reader.
    fn start(&mut self) {
        let (readers, file_system, number) = (self.readers.clone(), self.file_system.clone(), self.threads.len());
        self.threads.push(thread::spawn(move || {
            let served = readers.serve(number, &mut Reader::new(readers.device.clone()), &*file_system);
            assert_eq!(is_normal(0), served.is_ok(), "HARNESS: the policy of a reader that ends");
            served
        }));
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

    pub(crate) fn handover(&self) -> &Handover {
        self.readers.handover.as_ref().unwrap()
    }

    /// Asks until one reader is free, and another one is parked.
    pub(crate) fn park_others(&mut self, node: u64) {
        while self.readers.free.load(Ordering::SeqCst) > 1 || self.readers.state.lock().watcher.is_none() {
            self.ask(node);
        }
    }

    /// Readers that are free or parked.
    pub(crate) fn here(&self) -> usize {
        let state = self.readers.state.lock();
        let free = self.readers.free.load(Ordering::SeqCst);
        free + state.parked.len() + usize::from(state.watcher.is_some())
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
        assert_eq!(self.end_with(), 0);
    }

    /// Ends the connection; returns how many readers have failed or panicked.
    pub(crate) fn end_with(self) -> usize {
        drop(self.kernel);
        self.threads.into_iter().map(JoinHandle::join).filter(|ended| !matches!(ended, Ok(Ok(())))).count()
    }
}

pub(crate) fn send(kernel: std::os::fd::BorrowedFd<'_>, number: u64, kind: u32, node: u64, caller: u32) {
    // A header, and arguments.
    let mut message = Vec::new();
    let length: u32 = match kind {
        opcode::FORGET => 48,
        opcode::READ => 80,
        _ => 40,
    };
    message.extend([length.to_ne_bytes(), kind.to_ne_bytes()].concat());
    message.extend([number.to_ne_bytes(), node.to_ne_bytes()].concat());
    message.extend([0_u32, 0, caller, 0].map(u32::to_ne_bytes).concat());
    message.resize(length as usize, 0);
    assert_eq!(rustix::io::write(kernel, &message).unwrap(), message.len());
}

pub(crate) fn answer(kernel: std::os::fd::BorrowedFd<'_>) -> u64 {
    let mut ready = [PollFd::from_borrowed_fd(kernel, PollFlags::IN)];
    let lost = Timespec { tv_sec: LOST.as_secs().cast_signed(), tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut ready, Some(&lost)).unwrap(), 1, "a request has no answer");
    let mut reply = [0; 64];
    let length = rustix::io::read(kernel, &mut reply).unwrap();
    assert_eq!(length, 16, "an error has no payload");
    crate::wire::u64_at(&reply, 8)
}

/// A handler that reports each request's thread, and then waits until the test lets it go on.
pub(crate) struct Gate {
    pub(crate) arrived: Receiver<(u64, i32)>,
    pub(crate) go_on: Sender<()>,
}

impl Gate {
    /// `waits`: nodes whose requests wait. `says_so`: they say so before.
    pub(crate) fn new(waits: u64, says_so: bool) -> (Self, Handler) {
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

    pub(crate) fn next(&self) -> (u64, i32) {
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

#[test]
fn a_reader_that_starts_when_the_others_are_away_reads() {
    let (kernel, device) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let (gate, handler) = Gate::new(7, true);
    let readers = Readers::new(2, Arc::new(device), Arc::default(), None);
    let file_system = Arc::new(Answering(handler));
    let mut connection = Connection { kernel, readers, file_system, threads: Vec::new(), number: 0 };
    connection.start();
    connection.send(opcode::STATFS, 7, 1);
    gate.next();
    connection.until(|_| connection.readers.free.load(Ordering::SeqCst) == 0);
    connection.start();
    // It would rest otherwise.
    let readers = &connection.readers;
    connection.until(|_| readers.free.load(Ordering::SeqCst) > 0 || !readers.is_watched.load(Ordering::SeqCst));
    let second = connection.send(opcode::STATFS, 8, 1);
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
fn a_leader_is_relieved_though_another_reader_takes_requests() {
    let prepared = Handover::new(Arc::default());
    let prepared = prepared.inspect_err(|reason| eprintln!("skipped: nothing is handed over: {reason}"));
    let Ok(handover) = prepared else { return };
    let (_kernel, device) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let readers = Readers::new(2, Arc::new(device), Arc::default(), Some(handover));
    let (handover, mut turn) = (readers.handover.as_ref().unwrap(), Turn::default());
    let asked = Asked { caller: own_thread().cast_unsigned(), waits: true, is_queued: false };
    while !turn.note(handover, asked, || true) {}
    let mut look = Look::default();
    let send = || {
        readers.look(&mut look);
        assert!(!is_normal(0), "the reply has just begun");
        readers.taken.fetch_add(1, Ordering::SeqCst);
        readers.look(&mut look);
        assert!(is_normal(0));
    };
    turn.reply(handover, send).1.unwrap();
    turn.end(handover);
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
        connection.answer();
        connection.answer();
        // One parks again.
        connection.park_others(9);
        gate.arrived.try_iter().for_each(drop);
    }
    connection.end();
}

/// A reader that a test takes through each step, and one that is parked.
struct Steps {
    kernel: OwnedFd,
    readers: Arc<Readers>,
    reader: Reader,
    member: Member,
}

impl Steps {
    fn new() -> Self {
        let (kernel, device) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let device = Arc::new(device);
        let readers = Readers::new(2, device.clone(), Arc::default(), None);
        readers.state.lock().watcher = Some(1);
        let member = Member::join(readers.clone(), 0);
        Self { kernel, readers, reader: Reader::new(device), member }
    }

    fn arrive(&self, (kind, caller): (u32, u32)) {
        send(self.kernel.as_fd(), 2, kind, 1, caller);
    }

    /// Carries out the next message, while these arrive; returns whether the other reader has been
    /// called.
    fn step(&mut self, meanwhile: &[(u32, u32)]) -> bool {
        assert!(self.reader.read().unwrap());
        self.member.took(&self.reader);
        meanwhile.iter().for_each(|&message| self.arrive(message));
        let is_answered = !self.reader.is_forget();
        self.reader.serve_message(&Answering(Box::new(|_| {})));
        self.member.done().unwrap();
        if is_answered {
            answer(self.kernel.as_fd());
        }
        self.readers.state.lock().called[1]
    }
}

#[test]
fn callers_that_wait_for_each_other_bring_another_reader() {
    let mut steps = Steps::new();
    steps.arrive((opcode::STATFS, 1));
    let called: Vec<bool> = (0..6).map(|step| steps.step(&[(opcode::STATFS, 1 + (step + 1) % 2)])).collect();
    assert_eq!(called, [false, false, false, true, true, true], "the first one did not wait");
    assert_eq!(steps.readers.free.load(Ordering::SeqCst), 2);
}

#[test]
fn reads_ahead_in_pairs_bring_another_reader() {
    let mut steps = Steps::new();
    let called: Vec<bool> = (0..6)
        .map(|_| {
            steps.arrive((opcode::READ, 1));
            steps.step(&[(opcode::READ, 1)]);
            steps.step(&[])
        })
        .collect();
    assert_eq!(called, [false, false, false, false, true, true], "half of them are queued");
}

#[test]
fn requests_that_come_one_at_a_time_bring_no_other_reader() {
    let mut steps = Steps::new();
    for _ in 0..20 {
        steps.arrive((opcode::STATFS, 1));
        assert!(!steps.step(&[]));
        // One read in three is queued.
        steps.arrive((opcode::READ, 1));
        assert!(!steps.step(&[(opcode::READ, 1)]));
        assert!(!steps.step(&[]));
    }
}

/// A caller that removes files drops the look-up of each.
#[test]
fn messages_without_an_answer_bring_no_other_reader() {
    let mut steps = Steps::new();
    steps.arrive((opcode::STATFS, 1));
    for _ in 0..20 {
        // The next request comes while a FORGET is carried out.
        assert!(!steps.step(&[(opcode::FORGET, 0)]));
        assert!(!steps.step(&[(opcode::STATFS, 1)]));
        assert_eq!(steps.member.queued, 0);
    }
    for _ in 0..20 {
        // The kernel gives the request before the FORGET.
        assert!(!steps.step(&[(opcode::STATFS, 1), (opcode::FORGET, 0)]));
        assert!(!steps.step(&[]));
        assert!(!steps.step(&[(opcode::STATFS, 1)]));
        assert_eq!(steps.member.queued, 0);
    }
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
    connection.park_others(9);
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
    assert_eq!(connection.end_with(), 1);
}
