//! Handing over on real CPUs, with `CAP_SYS_NICE`. The device is a socket, and the test plays the
//! kernel.

use std::thread;

use super::*;
use crate::readers::tests::{Connection, Gate};
use crate::scheduler::tests::{drop_privilege, has_privilege};
use crate::scheduler::{is_normal, only, own_cpus, own_thread};
use crate::wire::opcode;

/// Requests beside a busy program.
const REQUESTS: u64 = 1000;

fn own_cpu() -> usize {
    whereabouts(own_thread().cast_unsigned()).unwrap().cpu
}

/// A number that no thread has: the kernel's limit is lower.
const GONE: u32 = 1 << 30;

/// Returns whether replies can be handed over here. Says why a test is skipped if not.
fn can_hand_over() -> bool {
    let prepared = Handover::new(Arc::default());
    prepared.inspect_err(|reason| eprintln!("skipped: nothing is handed over: {reason}")).is_ok()
}

/// Asks until replies are handed over; pauses are cut short.
fn begin_handing_over(connection: &mut Connection, caller: u32) {
    while !connection.handover().is_alone() && !connection.handover().is_broken.load(Ordering::Relaxed) {
        connection.handover().pause.lock().until = None;
        let number = connection.send(opcode::STATFS, 1, caller);
        assert_eq!(connection.answer(), number);
    }
}

#[test]
fn a_lone_caller_gets_its_replies_on_its_own_cpu() {
    if !can_hand_over() {
        return;
    }
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
        // The leader follows; on a busy machine it ends, and another one begins.
        while *place.lock() != (1, cpu) || counts.figures().handoffs == before {
            connection.handover().pause.lock().until = None;
            connection.ask(1);
        }
    }
    // Each handler has checked that the policy is normal, and the end of each reader as well.
    connection.end();
    bind(own_thread(), &usual).unwrap();
}

#[test]
fn a_request_that_waits_for_another_callers_ends_it() {
    if !can_hand_over() {
        return;
    }
    let (counts, own) = (Arc::new(HandoverCounts::default()), own_thread().cast_unsigned());
    let (gate, handler) = Gate::new(7, false);
    let mut connection = Connection::begin(3, &counts, true, handler);
    // If this thread does not run for long, the watcher ends it before.
    while counts.figures().given_up_queued == 0 {
        begin_handing_over(&mut connection, own);
        connection.send(opcode::STATFS, 7, own);
        while gate.next().0 != 7 {}
        connection.send(opcode::STATFS, 8, GONE);
        gate.go_on.send(()).unwrap();
        connection.answer();
        connection.answer();
    }
    connection.end();
}

/// Otherwise it would be parked on its caller's CPU, and no other one could hand over.
#[test]
fn a_leader_does_not_park() {
    if !can_hand_over() {
        return;
    }
    let counts = Arc::new(HandoverCounts::default());
    let (gate, handler) = Gate::new(7, true);
    let mut connection = Connection::begin(3, &counts, true, handler);
    loop {
        connection.handover().rest();
        connection.send(opcode::STATFS, 7, 1);
        while gate.next().0 != 7 {}
        // It begins while another reader is away, which then comes back.
        begin_handing_over(&mut connection, own_thread().cast_unsigned());
        let leader = connection.handover().leader.load(Ordering::SeqCst);
        gate.go_on.send(()).unwrap();
        connection.answer();
        connection.park_others(1);
        gate.arrived.try_iter().for_each(drop);
        connection.ask(1);
        let thread = gate.next().1;
        if connection.handover().is_led_by(leader) {
            assert_eq!(thread, leader, "the leader is parked");
            break;
        }
    }
    connection.end();
}

/// The program keeps the leader from running as soon as that has the idle policy.
#[test]
fn a_busy_program_on_the_callers_cpu_does_not_hold_requests_up() {
    if !can_hand_over() {
        return;
    }
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
}

/// As behind a busy program, but for certain: the reply does not leave, because its caller's socket
/// is full.
#[test]
fn a_leader_whose_reply_is_not_delivered_is_relieved() {
    if !can_hand_over() {
        return;
    }
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
    let mut is_relieved = false;
    while !is_relieved {
        begin_handing_over(&mut connection, number);
        let before = counts.figures().given_up_stuck;
        let fillers = connection.fill();
        connection.send(opcode::STATFS, 1, number);
        while connection.handover().is_alone() {
            thread::yield_now();
        }
        // Otherwise it ended before, since this thread did not run for long. The reply is not sent
        // yet in either case.
        is_relieved = counts.figures().given_up_stuck > before;
        assert!(!is_relieved || is_normal(leader.load(Ordering::SeqCst)), "the leader stays idle");
        connection.drain(fillers);
        connection.answer();
    }
    drop(end);
    caller.join().unwrap();
    connection.end();
}

/// Another thread may need a lock under which it answers, while its caller computes on its CPU.
#[test]
fn a_leader_whose_caller_computes_does_not_stay_idle() {
    if !can_hand_over() {
        return;
    }
    let mut connection = Connection::begin(3, &Arc::default(), true, Box::new(|_| {}));
    let (is_over, (tell, number)) = (Arc::new(AtomicBool::new(false)), std::sync::mpsc::channel());
    let caller = {
        let is_over = is_over.clone();
        thread::spawn(move || {
            tell.send(own_thread().cast_unsigned()).unwrap();
            while !is_over.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        })
    };
    let number = number.recv().unwrap();
    let mut is_relieved = false;
    while !is_relieved {
        begin_handing_over(&mut connection, number);
        let leader = connection.handover().leader.load(Ordering::SeqCst);
        // The reply does not leave.
        let fillers = connection.fill();
        connection.send(opcode::STATFS, 1, number);
        let is_alone = || connection.handover().is_led_by(leader);
        while is_alone() && connection.handover().replying.load(Ordering::SeqCst) == 0 {
            thread::yield_now();
        }
        // It is idle within microseconds, but this thread may not run before it is relieved.
        if (0..1000).any(|_| leader != 0 && !is_normal(leader)) {
            while is_alone() && !is_normal(leader) {
                thread::yield_now();
            }
            is_relieved = is_alone();
        }
        connection.drain(fillers);
        connection.answer();
    }
    is_over.store(true, Ordering::Relaxed);
    caller.join().unwrap();
    connection.end();
}

/// As if the caller had been killed: it is looked for, and not there.
#[test]
fn a_caller_that_has_ended_is_answered_plainly() {
    if !can_hand_over() {
        return;
    }
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
    if !can_hand_over() {
        return;
    }
    let counts = Arc::new(HandoverCounts::default());
    let (handover, mut turn) = (Handover::new(counts.clone()).unwrap(), Turn::default());
    let usual = own_cpus().unwrap();
    let caller = own_thread().cast_unsigned();
    let mut reply = |is_late, caller| {
        turn.was_late = is_late;
        turn.note(&handover, Asked { caller, waits: true, is_queued: false }, || true)
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
    if !can_hand_over() {
        return;
    }
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
    if !can_hand_over() {
        return;
    }
    let counts = Arc::new(HandoverCounts::default());
    let handover = Handover::new(counts.clone()).unwrap();
    let thread = own_thread();
    assert!(handover.begin(thread, thread.cast_unsigned()));
    let reply = |send: &dyn Fn()| handover.reply(thread, 0, send).1.unwrap();
    assert!(reply(&|| assert!(!is_normal(0))).is_some() && is_normal(0));
    reply(&|| {
        thread::scope(|scope| drop(scope.spawn(|| handover.give_up(GiveUp::Stuck))));
        assert!(is_normal(0), "the watcher sets the policy");
    });
    assert!(reply(&|| assert!(is_normal(0))).is_none() && counts.figures().given_up_stuck == 1);
}

#[test]
fn a_leader_whose_caller_runs_is_relieved_without_giving_up() {
    if !can_hand_over() {
        return;
    }
    let counts = Arc::new(HandoverCounts::default());
    let handover = Handover::new(counts.clone()).unwrap();
    let (thread, usual) = (own_thread(), own_cpus().unwrap());
    assert!(handover.begin(thread, thread.cast_unsigned()));
    // The caller is this thread, so it runs; or it may not have waited.
    for waiting in [thread.cast_unsigned(), 0, GONE] {
        let relieve = || {
            assert!(!is_normal(0));
            handover.relieve();
            assert!(is_normal(0));
        };
        assert!(handover.reply(thread, waiting, relieve).1.unwrap().is_some());
    }
    assert!(handover.is_led_by(thread), "it goes on");
    assert_eq!(counts.figures(), HandoverFigures { handoffs: 3, ..HandoverFigures::default() });
    handover.rest();
    assert_eq!(own_cpus().unwrap().count(), usual.count());
}

#[test]
fn a_leader_that_stays_idle_ends_and_the_others_go_on() {
    if !has_privilege() || !can_hand_over() {
        return;
    }
    let counts = Arc::new(HandoverCounts::default());
    let handler = |node| {
        if node == 7 {
            drop_privilege();
        }
    };
    let mut connection = Connection::begin(3, &counts, true, Box::new(handler));
    while !connection.handover().is_broken.load(Ordering::Relaxed) {
        begin_handing_over(&mut connection, own_thread().cast_unsigned());
        connection.ask(7);
    }
    // Others answer, and it is no longer counted.
    while connection.here() == 3 {
        connection.ask(8);
    }
    connection.ask(8);
    assert_eq!((connection.here(), connection.end_with()), (2, 1));
}
