//! Handing over on real CPUs, as root. The device is a socket, and the test plays the kernel.

use std::thread;

use super::*;
use crate::readers::tests::Connection;
use crate::scheduler::{is_normal, only, own_cpus, own_thread};
use crate::wire::opcode;

/// Requests beside a busy program.
const REQUESTS: u64 = 1000;

fn own_cpu() -> usize {
    whereabouts(own_thread().cast_unsigned()).unwrap().cpu
}

/// More than are needed for a leader to begin, pauses included.
const ATTEMPTS: u32 = 1_000_000;

/// A number that no thread has: the kernel's limit is lower.
const GONE: u32 = 1 << 30;

/// Asks until replies are handed over.
fn begin_handing_over(connection: &mut Connection, caller: u32) {
    for _ in 0..ATTEMPTS {
        if connection.readers.is_handing_over() {
            return;
        }
        let number = connection.send(opcode::STATFS, 1, caller);
        assert_eq!(connection.answer(), number);
    }
    panic!("replies are never handed over");
}

#[test]
fn a_lone_caller_gets_its_replies_on_its_own_cpu() {
    let (counts, usual) = (Arc::new(HandoverCounts::default()), own_cpus().unwrap());
    // How many CPUs the thread of the last request had, and the first of them.
    let place = Arc::new(Mutex::new((0, 0)));
    let note = {
        let place = place.clone();
        move |_| {
            let cpus = own_cpus().unwrap();
            *place.lock() = (cpus.count(), (0..CpuSet::MAX_CPU).find(|&cpu| cpus.is_set(cpu)).unwrap());
        }
    };
    let mut connection = Connection::begin(3, &counts, true, Box::new(note));
    let cpus = (0..CpuSet::MAX_CPU).filter(|&cpu| usual.is_set(cpu));
    for cpu in cpus.take(2) {
        bind(own_thread(), &only(cpu)).unwrap();
        let before = counts.figures().handoffs;
        // The leader follows; on a busy machine it pauses in between.
        let is_there = (0..ATTEMPTS).any(|_| {
            connection.ask(1);
            *place.lock() == (1, cpu) && counts.figures().handoffs > before
        });
        assert!(is_there, "{:?} {:?}", *place.lock(), counts.figures());
    }
    // Each handler has checked that the policy is normal, and the end of each reader as well.
    connection.end();
    bind(own_thread(), &usual).unwrap();
}

#[test]
fn requests_that_wait_behind_another_end_it() {
    let counts = Arc::new(HandoverCounts::default());
    let mut connection = Connection::begin(3, &counts, true, Box::new(|_| {}));
    let own = own_thread().cast_unsigned();
    for _ in 0..100 {
        begin_handing_over(&mut connection, own_thread().cast_unsigned());
        // So many at once that some are there when the first one is taken.
        let numbers: Vec<u64> = (0..16).map(|node| connection.send(opcode::STATFS, node, own)).collect();
        for _ in numbers {
            connection.answer();
        }
        if counts.figures().given_up_queued > 0 {
            break;
        }
    }
    assert!(counts.figures().given_up_queued > 0, "{:?}", counts.figures());
    connection.end();
}

/// The program keeps the leader from running as soon as that has the idle policy.
#[test]
fn a_busy_program_on_the_callers_cpu_does_not_hold_requests_up() {
    let (counts, is_over) = (Arc::new(HandoverCounts::default()), Arc::new(AtomicBool::new(false)));
    let usual = own_cpus().unwrap();
    let mut connection = Connection::begin(3, &counts, true, Box::new(|_| {}));
    bind(own_thread(), &only(own_cpu())).unwrap();
    let hog = {
        let is_over = is_over.clone();
        // It inherits the CPU.
        let (begun, has_begun) = std::sync::mpsc::channel();
        let hog = thread::spawn(move || {
            begun.send(()).unwrap();
            while !is_over.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        has_begun.recv().unwrap();
        hog
    };
    (0..REQUESTS).for_each(|node| connection.ask(node));
    is_over.store(true, Ordering::Relaxed);
    hog.join().unwrap();
    bind(own_thread(), &usual).unwrap();
    connection.end();
    let figures = counts.figures();
    assert!(figures.handoffs + figures.given_up_stuck > 0, "it was never tried: {figures:?}");
    // A pause follows each relief, and doubles.
    assert!(figures.given_up_stuck <= 12, "{figures:?}");
}

/// As behind a busy program, but for certain: the reply does not leave, because its caller's socket
/// is full.
#[test]
fn a_leader_whose_reply_is_not_delivered_is_relieved() {
    let (counts, leader) = (Arc::new(HandoverCounts::default()), Arc::new(AtomicI32::new(0)));
    let its = leader.clone();
    let note = move |_| its.store(own_thread(), Ordering::SeqCst);
    let mut connection = Connection::begin(3, &counts, true, Box::new(note));
    // The caller waits, which a thread that looks for the relief does not.
    let ((tell, number), (end, waits)) = (std::sync::mpsc::channel(), std::sync::mpsc::channel::<()>());
    let caller = thread::spawn(move || {
        tell.send(own_thread().cast_unsigned()).unwrap();
        waits.recv().unwrap_err();
    });
    let number = number.recv().unwrap();
    let is_relieved = (0..20).any(|_| {
        begin_handing_over(&mut connection, number);
        let before = counts.figures().given_up_stuck;
        let fillers = connection.fill();
        connection.send(opcode::STATFS, 1, number);
        let began = now();
        while connection.readers.is_handing_over() {
            assert!(began.elapsed() < PAUSE_MAX, "the leader is not relieved");
            thread::yield_now();
        }
        // Otherwise it ended before, since this thread did not run for long. The reply is not sent
        // yet in either case.
        let is_relieved = counts.figures().given_up_stuck > before;
        assert!(!is_relieved || is_normal(leader.load(Ordering::SeqCst)), "the leader stays idle");
        connection.drain(fillers);
        connection.answer();
        is_relieved
    });
    assert!(is_relieved, "{:?}", counts.figures());
    drop(end);
    caller.join().unwrap();
    connection.end();
}

/// As if the caller had been killed: it is looked for, and not there.
#[test]
fn a_caller_that_has_ended_is_answered_plainly() {
    let counts = Arc::new(HandoverCounts::default());
    let mut connection = Connection::begin(2, &counts, true, Box::new(|_| {}));
    let ask_for = |connection: &mut Connection, caller| {
        for node in 0..200 {
            let number = connection.send(opcode::STATFS, node, caller);
            assert_eq!(connection.answer(), number);
        }
    };
    ask_for(&mut connection, GONE);
    ask_for(&mut connection, 0);
    assert_eq!(counts.figures().handoffs, 0);
    // One that ends while replies are handed over.
    begin_handing_over(&mut connection, own_thread().cast_unsigned());
    ask_for(&mut connection, GONE);
    connection.end();
}

#[test]
fn replies_that_are_late_now_and_then_do_not_end_it() {
    let counts = Arc::new(HandoverCounts::default());
    let (handover, mut turn) = (Handover::new(counts.clone()).unwrap(), Turn::new());
    let usual = own_cpus().unwrap();
    let caller = own_thread().cast_unsigned();
    let mut reply = |is_late, caller| {
        turn.was_late = is_late;
        turn.note(&handover, caller, false, || true)
    };
    (0..QUIET_MIN).for_each(|_| _ = reply(false, caller));
    assert!((0..1000).all(|number| reply(number % 16 == 0, caller)), "one in sixteen");
    assert!((0..1000).any(|number| !reply(number % 4 == 0, caller)), "one in four");
    assert_eq!((counts.figures().given_up_late, own_cpus().unwrap().count()), (1, usual.count()));
    // Another caller waited.
    handover.pause.lock().until = None;
    (0..=QUIET_MIN).for_each(|_| _ = reply(false, caller));
    assert!(reply(false, caller) && !reply(true, GONE));
    assert_eq!(counts.figures().given_up_late, 2);
}

#[test]
fn the_pause_after_giving_up_doubles() {
    let counts = Arc::new(HandoverCounts::default());
    let handover = Handover::new(counts.clone()).unwrap();
    let (thread, usual) = (own_thread(), own_cpus().unwrap());
    let mut lengths = Vec::new();
    for _ in 0..8 {
        assert!(handover.begin(thread, thread.cast_unsigned()));
        assert!(!handover.begin(thread, thread.cast_unsigned()), "there is a leader");
        assert_eq!(own_cpus().unwrap().count(), 1);
        handover.give_up(GiveUp::Late);
        handover.give_up(GiveUp::Late);
        assert_eq!(own_cpus().unwrap().count(), usual.count());
        assert!(handover.pause.lock().until.take().is_some());
        handover.pause.lock().until = Some(now() + 100 * PAUSE_MAX);
        assert!(!handover.begin(thread, thread.cast_unsigned()), "it pauses");
        let mut pause = handover.pause.lock();
        lengths.push(pause.length.as_secs());
        pause.until = None;
    }
    assert_eq!((lengths, counts.figures().given_up_late), (vec![2, 4, 8, 16, 32, 60, 60, 60], 8));
    assert!(handover.begin(thread, thread.cast_unsigned()));
    handover.pause.lock().began -= PAUSE_MAX + PAUSE_MIN;
    handover.give_up(GiveUp::Late);
    assert_eq!(handover.pause.lock().length, 2 * PAUSE_MIN, "a long spell resets it");
}

#[test]
fn a_leader_that_was_relieved_sends_its_reply_plainly() {
    let counts = Arc::new(HandoverCounts::default());
    let handover = Handover::new(counts.clone()).unwrap();
    let thread = own_thread();
    assert!(handover.begin(thread, thread.cast_unsigned()));
    let took = handover.reply(thread, || assert!(!is_normal(0))).unwrap();
    assert!(took.is_some() && is_normal(0));
    // While it replies.
    handover
        .reply(thread, || {
            thread::scope(|scope| drop(scope.spawn(|| handover.give_up(GiveUp::Stuck))));
            assert!(is_normal(0), "the watcher sets the policy");
        })
        .unwrap();
    let took = handover.reply(thread, || assert!(is_normal(0))).unwrap();
    assert!(took.is_none() && counts.figures().given_up_stuck == 1);
}
