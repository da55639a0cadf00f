//! Disconnected clients: their requests in progress are finished, or dropped, before the next
//! client of the device is admitted.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use fe_nbd::ServerOptions;
use fe_nbd::wire::command;
use testkit::{Memory, Op};

use crate::client::{Answer, Client, DONE, Setup};

const SIZE: u64 = 64 << 20;

fn device() -> Arc<Memory> {
    let device = Memory::new(SIZE);
    device.set_recording();
    device
}

fn write_of(offset: u64, length: usize) -> Op {
    Op::Write { offset, length, fua: false }
}

/// A client that sends two writes, the first of which is held in the device, and disconnects
/// without an answer.
fn go_with_two_writes(device: &Memory, mut client: Client, through_pool: bool) {
    device.full_buffer.store(through_pool, Ordering::Release);
    device.writes.shut();
    client.request(command::WRITE, 0, 0, 4, b"OLD1");
    device.writes.wait_for(1);
    client.request(command::WRITE, 0, 0, 5, b"OLD-2");
    drop(client);
}

/// Admits another client after one that has disconnected, and runs `meanwhile` in between.
fn next_writes(setup: &Setup, tcp: bool, meanwhile: impl FnOnce()) -> Answer {
    std::thread::scope(|scope| {
        let next = scope.spawn(|| {
            let mut client = if tcp { setup.raw_tcp() } else { setup.raw() };
            client.greet(3);
            client.go("disk");
            assert_eq!(client.write(0, b"NEWEST"), DONE);
            assert_eq!(client.flush(), DONE);
            client.read(0, 6)
        });
        setup.clients.wait_for_waiting(1);
        assert!(!next.is_finished());
        meanwhile();
        next.join().unwrap()
    })
}

#[test]
fn what_a_gone_client_sent_is_written_before_the_next_one_is_let_in() {
    for (tcp, through_pool) in [(false, false), (false, true), (true, false), (true, true)] {
        let device = device();
        // One thread of the pool: requests read so far wait there for the held write.
        let setup = Setup::with(&[("disk", &device)], ServerOptions { threads: 1, ..Default::default() });
        let mut gone = if tcp { setup.raw_tcp() } else { setup.raw() };
        gone.greet(3);
        gone.go("disk");
        go_with_two_writes(&device, gone, through_pool);
        let answer = next_writes(&setup, tcp, || device.release());
        assert_eq!(answer, Answer::Ok(b"NEWEST".to_vec()));
        let mut order = device.recorded();
        order.retain(|op| matches!(op, Op::Write { .. }));
        // The second one is not started if the client was gone when the first one was answered,
        // before the second was read.
        let all = [write_of(0, 4), write_of(0, 5), write_of(0, 6)];
        let is_right = order == all || order == [write_of(0, 4), write_of(0, 6)];
        assert!(is_right, "tcp {tcp}, pool {through_pool}: {order:?}");
    }
}

#[test]
fn what_a_gone_client_sent_is_dropped_where_it_takes_too_long() {
    for through_pool in [false, true] {
        let device = device();
        let setup = Setup::with(&[("disk", &device)], ServerOptions { threads: 1, ..Default::default() });
        setup.clients.be_impatient();
        go_with_two_writes(&device, setup.simple("disk"), through_pool);
        let answer = next_writes(&setup, false, || device.release());
        assert_eq!(answer, Answer::Ok(b"NEWEST".to_vec()));
        let mut order = device.recorded();
        order.retain(|op| matches!(op, Op::Write { .. }));
        assert_eq!(
            order,
            [write_of(0, 4), write_of(0, 6)],
            "what had begun is done, nothing more; pool {through_pool}"
        );
    }
}

#[test]
fn connections_that_are_still_there_are_not_waited_for() {
    let device = device();
    device.full_buffer.store(true, Ordering::Release);
    let setup = Setup::new(&[("disk", &device)]);
    let mut first = setup.simple("disk");
    device.writes.shut();
    let write = first.request(command::WRITE, 0, 0, 3, b"old");
    device.writes.wait_for(1);
    // Another connection of the same client, or of another one.
    let mut second = setup.simple("disk");
    assert_eq!(second.read(0, 3), Answer::Ok(vec![0; 3]));
    device.release();
    assert_eq!(first.answer(&std::collections::HashMap::new()), (write, DONE));
}

#[test]
fn clients_are_named_by_process_or_by_address() {
    let device = device();
    let setup = Setup::new(&[("disk", &device)]);
    let _unix = setup.simple("disk");
    let mut tcp = setup.raw_tcp();
    tcp.greet(3);
    tcp.go("disk");
    let names = setup.clients.names();
    assert!(names[0].starts_with(&format!("NBD client process {} (", std::process::id())), "{names:?}");
    assert!(names[0].contains(") of user "), "{names:?}");
    assert!(names[1].starts_with("NBD client 127.0.0.1:"), "{names:?}");
}
