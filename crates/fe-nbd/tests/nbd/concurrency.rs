//! Many requests, many connections, and the guarantees between them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fe_nbd::ServerOptions;
use fe_nbd::wire::{command, command_flag};
use testkit::{Memory, Op, noise};

use crate::client::{Answer, DONE, Setup};

const SIZE: u64 = 64 << 20;

fn device() -> Arc<Memory> {
    let device = Memory::with_capacity(SIZE, 4 * SIZE);
    device.set_recording();
    device
}

#[test]
fn a_slow_request_does_not_keep_later_ones_waiting() {
    let device = device();
    let setup = Setup::new(&[("disk", &device)]);
    for mut client in [setup.simple("disk"), setup.structured("disk")] {
        device.cached.store(false, Ordering::Release);
        device.reads.shut_at(4096);
        let slow = client.request(command::READ, 0, 4096, 4096, &[]);
        device.reads.wait_for(1);
        let fast = client.request(command::READ, 0, 0, 100, &[]);
        let lengths = HashMap::from([(slow, (4096, 4096)), (fast, (0, 100))]);
        assert_eq!(client.answer(&lengths), (fast, Answer::Ok(vec![0; 100])));
        // Cached reads, writes and flushes pass it as well.
        device.cached.store(true, Ordering::Release);
        assert_eq!(client.read(50, 50), Answer::Ok(vec![0; 50]));
        assert_eq!(client.write(SIZE - 10, b"0123456789"), DONE);
        assert_eq!(client.flush(), DONE);
        device.release();
        assert_eq!(client.answer(&lengths), (slow, Answer::Ok(vec![0; 4096])));
    }
}

/// As many flushes as the pool has threads used to stop all reads that were not in memory.
#[test]
fn reads_go_on_while_flushes_wait() {
    let device = device();
    let other = Memory::with_capacity(SIZE, SIZE);
    let setup = Setup::new(&[("disk", &device), ("other", &other)]);
    for count in [16, 64_usize] {
        // New ones: the only request of a client that sends one at a time is executed by the thread
        // that receives them.
        let (mut client, mut elsewhere) = (setup.simple("disk"), setup.structured("other"));
        device.flushes.shut();
        let flushes: HashMap<_, _> =
            (0..count).map(|_| (client.request(command::FLUSH, 0, 0, 0, &[]), (0, 0))).collect();
        device.flushes.wait_for(16);
        for is_cached in [true, false] {
            device.cached.store(is_cached, Ordering::Release);
            other.cached.store(is_cached, Ordering::Release);
            for _ in 0..50 {
                assert_eq!(client.read(4096, 4096), Answer::Ok(vec![0; 4096]));
                assert_eq!(elsewhere.read(4096, 4096), Answer::Ok(vec![0; 4096]));
            }
        }
        assert_eq!((client.write(0, &[1; 100]), elsewhere.write(0, &[1; 100])), (DONE, DONE));
        assert_eq!((client.read(0, 100), elsewhere.read(0, 100)), (Answer::Ok(vec![1; 100]), Answer::Ok(vec![1; 100])));
        device.release();
        for _ in 0..count {
            assert_eq!(client.answer(&flushes).1, DONE);
        }
    }
}

#[test]
fn requests_of_one_connection_are_executed_at_the_same_time() {
    let device = device();
    let setup = Setup::with(&[("disk", &device)], ServerOptions { threads: 8, ..Default::default() });
    let mut client = setup.simple("disk");
    device.cached.store(false, Ordering::Release);
    let mut lengths = HashMap::new();
    for index in 0..8u64 {
        device.reads.shut_at(index * 4096);
        lengths.insert(client.request(command::READ, 0, index * 4096, 4096, &[]), (index * 4096, 4096));
    }
    device.reads.wait_for(8);
    device.release();
    for _ in 0..8 {
        assert_eq!(client.answer(&lengths).1, Answer::Ok(vec![0; 4096]));
    }
}

#[test]
fn reads_that_are_done_together_get_each_its_own_answer() {
    let device = device();
    device.together.store(true, Ordering::Release);
    // One thread: while it is held in the first read, the others wait for it.
    let setup = Setup::with(&[("disk", &device)], ServerOptions { threads: 1, ..Default::default() });
    for mut client in [setup.simple("disk"), setup.structured("disk")] {
        device.cached.store(true, Ordering::Release);
        let data = noise(5, 64 * 4096);
        assert_eq!(client.write(0, &data), DONE);
        device.cached.store(false, Ordering::Release);
        device.reads.shut_at(0);
        let mut lengths = HashMap::new();
        for index in 0..64u64 {
            let (offset, length) = (index * 4096, 4096 - index as u32);
            lengths.insert(client.request(command::READ, 0, offset, length, &[]), (offset, length));
        }
        // A write, and a read too long to be executed with others, wait for their turn.
        let large = client.request(command::READ, 0, 4096, 2 << 20, &[]);
        lengths.insert(large, (4096, 2 << 20));
        device.reads.wait_for(1);
        device.release();
        for _ in 0..65 {
            let (cookie, answer) = client.answer(&lengths);
            let (offset, length) = lengths[&cookie];
            let mut expected = data.clone();
            expected.resize(4 << 20, 0);
            assert_eq!(answer, Answer::Ok(expected[offset as usize..][..length as usize].to_vec()), "{offset}");
        }
        assert_eq!(client.flush(), DONE);
    }
    assert!(device.most_together.load(Ordering::Acquire) > 1);
}

#[test]
fn a_flush_on_one_connection_follows_writes_answered_on_another() {
    let device = device();
    let setup = Setup::new(&[("disk", &device)]);
    let (mut one, mut two) = (setup.simple("disk"), setup.structured("disk"));
    for full in [false, true] {
        // Once inline, once through the pool.
        device.full_buffer.store(full, Ordering::Release);
        device.recorded();
        assert_eq!(one.write(0, b"abc"), DONE);
        assert_eq!(two.flush(), DONE);
        assert_eq!(device.recorded(), [Op::Write { offset: 0, length: 3, fua: false }, Op::Flush]);
        assert_eq!(two.read(0, 3), Answer::Ok(b"abc".to_vec()));
    }
}

#[test]
fn a_held_flush_is_not_answered_early_and_holds_nobody_else() {
    let device = device();
    let setup = Setup::new(&[("disk", &device)]);
    let (mut one, mut two) = (setup.simple("disk"), setup.simple("disk"));
    device.flushes.shut();
    let flush = one.request(command::FLUSH, 0, 0, 0, &[]);
    device.flushes.wait_for(1);
    assert_eq!(one.write(0, b"later"), DONE);
    assert_eq!(two.read(0, 5), Answer::Ok(b"later".to_vec()));
    device.release();
    assert_eq!(one.answer(&HashMap::new()), (flush, DONE));
}

#[test]
fn a_resize_is_seen_by_new_connections() {
    let device = device();
    let setup = Setup::new(&[("disk", &device)]);
    let mut old = setup.simple("disk");
    device.resize(2 * SIZE);
    let mut new = setup.options();
    assert_eq!(new.go("disk").0, 2 * SIZE);
    assert_eq!(new.write(2 * SIZE - 3, b"end"), DONE);
    device.resize(SIZE / 2);
    // The current size applies, regardless of the one that the old session announced.
    assert_eq!(old.read(SIZE - 3, 3).errno(), 22);
    assert_eq!(old.write(SIZE - 3, b"end").errno(), 28);
    assert_eq!(old.read(SIZE / 2 - 3, 3), Answer::Ok(vec![0; 3]));
}

#[test]
fn stopping_finishes_what_is_in_flight() {
    let device = device();
    let mut setup = Setup::new(&[("disk", &device)]);
    let mut client = setup.simple("disk");
    let idle = setup.simple("disk");
    let greeting = setup.raw();
    device.cached.store(false, Ordering::Release);
    device.reads.shut_at(0);
    device.flushes.shut();
    let read = client.request(command::READ, 0, 0, 1 << 20, &[]);
    let flush = client.request(command::FLUSH, 0, 0, 0, &[]);
    device.reads.wait_for(1);
    device.flushes.wait_for(1);
    let server = setup.server.take().unwrap();
    let stopping = std::thread::spawn(move || server.stop());
    // The idle one is closed although the other is still busy, which shows that stopping has begun.
    idle.expect_close();
    drop(greeting);
    assert!(!stopping.is_finished());
    device.release();
    let lengths = HashMap::from([(read, (0, 1 << 20))]);
    let mut answers = HashMap::from([client.answer(&lengths), client.answer(&lengths)]);
    assert!(answers.remove(&read) == Some(Answer::Ok(vec![0; 1 << 20])));
    assert_eq!(answers.remove(&flush), Some(DONE));
    client.expect_close();
    stopping.join().unwrap();
    assert!(!setup.socket.exists());
}

#[test]
fn stopping_does_not_wait_for_a_client_that_takes_nothing() {
    let device = device();
    let options = ServerOptions { stop_grace: Duration::from_millis(50), ..Default::default() };
    let mut setup = Setup::with(&[("disk", &device)], options);
    let mut client = setup.simple("disk");
    device.cached.store(false, Ordering::Release);
    device.reads.shut_at(0);
    for _ in 0..4 {
        client.request(command::READ, 0, 0, 16 << 20, &[]);
    }
    device.reads.wait_for(4);
    device.release();
    // Never reads. The stall limit is a minute; the grace period ends this.
    setup.server.take().unwrap().stop();
    setup.lines.wait_for("the server stopped before");
}

#[test]
fn connections_in_parallel_keep_their_data_apart() {
    let device = device();
    let setup = Setup::with(&[("disk", &device)], ServerOptions { threads: 3, ..Default::default() });
    std::thread::scope(|scope| {
        for lane in 0..6u64 {
            let setup = &setup;
            let device = &device;
            scope.spawn(move || {
                let mut client = if lane % 2 == 0 { setup.simple("disk") } else { setup.structured("disk") };
                for round in 0..60u64 {
                    // The way through the server changes under way.
                    device.cached.store(round % 3 != 0, Ordering::Release);
                    device.full_buffer.store(round % 5 == 0, Ordering::Release);
                    let length = [700, 4096, 40_000, 300_000][(round % 4) as usize];
                    let (base, data) = (lane * (8 << 20), noise(lane << 32 | round, length));
                    let mut expected = HashMap::new();
                    let mut wire = Vec::new();
                    for slot in 0..8u64 {
                        let flags = if slot == 5 { command_flag::FUA } else { 0 };
                        let offset = base + slot * (1 << 19);
                        let (bytes, cookie) = client.encode(command::WRITE, flags, offset, length as u32, &data);
                        wire.extend(bytes);
                        expected.insert(cookie, DONE);
                    }
                    client.send(&wire);
                    while !expected.is_empty() {
                        let (cookie, answer) = client.answer(&HashMap::new());
                        assert_eq!(expected.remove(&cookie), Some(answer));
                    }
                    let mut lengths = HashMap::new();
                    for slot in 0..8u64 {
                        let offset = base + slot * (1 << 19);
                        let cookie = client.request(command::READ, 0, offset, length as u32, &[]);
                        lengths.insert(cookie, (offset, length as u32));
                    }
                    for _ in 0..8 {
                        let (cookie, answer) = client.answer(&lengths);
                        assert!(answer == Answer::Ok(data.clone()), "lane {lane}, round {round}, cookie {cookie}");
                    }
                }
            });
        }
    });
}
