//! Clients that break the protocol, stall, or ask for too much: each costs its own connection and
//! nothing else.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fe_nbd::ServerOptions;
use fe_nbd::wire::{self, command, option, option_reply};
use surface::BlockDevice;
use testkit::{Memory, noise, until};

use crate::client::{Answer, DONE, Setup, info};

const SIZE: u64 = 64 << 20;

fn with(options: ServerOptions) -> (Setup, Arc<Memory>) {
    let device = Memory::new(SIZE);
    device.set_recording();
    (Setup::with(&[("disk", &device)], options), device)
}

fn setup() -> (Setup, Arc<Memory>) {
    with(ServerOptions::default())
}

/// The server still serves.
fn is_well(setup: &Setup) {
    assert_eq!(setup.simple("disk").read(0, 3), Answer::Ok(vec![0; 3]));
}

#[test]
fn unknown_client_flags_close() {
    let (setup, _device) = setup();
    for flags in [4, 7, 1 << 31, u32::MAX] {
        let mut client = setup.raw();
        client.greet(flags);
        client.expect_close();
    }
    is_well(&setup);
}

#[test]
fn wrong_magic_closes() {
    let (setup, _device) = setup();
    let mut client = setup.options();
    client.send(b"GET / HTTP/1.1\r\n\r\n");
    client.expect_close();
    for mut client in [setup.simple("disk"), setup.structured("disk")] {
        client.send(&[0; 28]);
        client.expect_close();
    }
    let mut client = setup.simple("disk");
    let (mut bytes, _) = client.encode(command::READ, 0, 0, 1, &[]);
    bytes[0] ^= 1;
    client.send(&bytes);
    client.expect_close();
    setup.lines.wait_for("wrong magic in a request");
    is_well(&setup);
}

#[test]
fn requests_before_wrong_magic_are_answered() {
    let (setup, device) = setup();
    let mut client = setup.simple("disk");
    device.flushes.shut();
    let (mut bytes, flush) = client.encode(command::FLUSH, 0, 0, 0, &[]);
    bytes.extend([0; 28]);
    client.send(&bytes);
    device.flushes.wait_for(1);
    device.release();
    assert_eq!(client.answer(&Default::default()), (flush, DONE));
    client.expect_close();
}

#[test]
fn too_long_options_and_too_many_close() {
    let (setup, _device) = setup();
    for (option, length) in [(option::INFO, u32::MAX), (option::INFO, 2 << 20), (option::EXPORT_NAME, 40_000)] {
        let mut client = setup.options();
        let mut bytes = wire::OPTION_MAGIC.to_be_bytes().to_vec();
        bytes.extend(option.to_be_bytes());
        bytes.extend(u32::to_be_bytes(length));
        client.send(&bytes);
        client.expect_close();
    }
    let mut client = setup.options();
    for _ in 0..1024 {
        client.refused(99, &[], option_reply::ERR_UNSUP);
    }
    client.send_option(99, &[]);
    client.expect_close();
    is_well(&setup);
}

/// Each listed export raises the limit once, not each time it is queried.
#[test]
fn a_client_that_lists_for_ever_is_cut_off() {
    let (one, two) = (Memory::new(SIZE), Memory::new(SIZE));
    let setup = Setup::new(&[("one", &one), ("two", &two)]);
    let mut client = setup.options();
    for _ in 0..1024 + 2 * 8 {
        assert_eq!(client.option(option::LIST, &[]).len(), 3);
    }
    client.send_option(option::LIST, &[]);
    client.expect_close();
    setup.lines.wait_for("too many options");
    assert_eq!(setup.simple("one").read(0, 3), Answer::Ok(vec![0; 3]));
}

#[test]
fn a_handshake_that_takes_too_long_ends() {
    // If the client itself is delayed until it is closed, before it has sent its request, the test
    // proves nothing. It retries with more time.
    let is_ended = |handshake_max| {
        let (setup, _device) = with(ServerOptions { handshake_max, ..Default::default() });
        // One sends nothing, one stops in the middle of an option.
        let mut silent = setup.raw();
        silent.receive(18);
        let mut half = setup.raw();
        half.receive(18);
        let begun = half.try_send(&3u32.to_be_bytes()).and_then(|()| half.try_send(&wire::OPTION_MAGIC.to_be_bytes()));
        silent.expect_close();
        half.expect_close();
        setup.lines.wait_for("the handshake took too long");
        begun.is_ok()
    };
    assert!((0..4).map(|power| Duration::from_millis(50 * 10u64.pow(power))).any(is_ended));
}

#[test]
fn clients_over_the_limit_are_told_and_then_closed() {
    let patient = Duration::from_secs(3600);
    let options = ServerOptions { connections_max: 2, handshake_crowded_max: patient, ..Default::default() };
    let (setup, _device) = with(options);
    let (mut first, second) = (setup.simple("disk"), setup.simple("disk"));
    let mut third = setup.options();
    for (option, data) in [(option::LIST, vec![]), (option::GO, info(b"disk", &[])), (option::INFO, info(b"", &[]))] {
        let text = third.refused(option, &data, option_reply::ERR_POLICY);
        assert!(text.contains("all 2 connections"), "{text}");
    }
    // Eight get the reason; all others are closed without a greeting.
    let told: Vec<_> = (0..7).map(|_| setup.options()).collect();
    setup.raw().expect_close();
    assert_eq!(first.read(0, 1), Answer::Ok(vec![0]));
    drop((second, third, told));
    // Room again, as soon as the server has noticed.
    until("the server has noticed", || setup.server().connections() <= 1);
    let mut client = setup.options();
    client.go("disk");
}

/// Sixty-four clients that only connected locked out all others for the thirty seconds that a
/// handshake may take.
#[test]
fn clients_that_say_nothing_keep_nobody_out() {
    let options = ServerOptions { connections_max: 2, handshake_crowded_max: Duration::ZERO, ..Default::default() };
    let (setup, _device) = with(options);
    let mut served = setup.simple("disk");
    // Only with an answer its handshake is over for the server, too.
    assert_eq!(served.read(0, 1), Answer::Ok(vec![0]));
    for _ in 0..3 {
        let silent: Vec<_> = (0..6).map(|_| setup.raw()).collect();
        assert_eq!(setup.simple("disk").read(0, 1), Answer::Ok(vec![0]));
        drop(silent);
        until("the server has noticed", || setup.server().connections() <= 1);
    }
    assert_eq!(served.read(0, 1), Answer::Ok(vec![0]), "who is served stays");
}

/// libnbd reported a bug of the server, and disconnected.
#[test]
fn a_refused_write_was_answered_before_its_payload_had_come() {
    let (setup, device) = setup();
    let mut client = setup.simple("disk");
    let payload = vec![7; 33 << 20];
    let (head, last) = payload.split_at(payload.len() - 1);
    client.request(command::WRITE, 0, 0, payload.len() as u32, head);
    // A socket holds much less: the server is skipping already.
    assert!(!client.has_received());
    client.send(last);
    assert_eq!(client.receive(16)[4..8], 22u32.to_be_bytes(), "EINVAL");
    assert_eq!(device.allocated_bytes(), 0);
    is_well(&setup);
}

#[test]
fn huge_writes_are_skipped_or_close() {
    let (setup, device) = setup();
    // 33 MiB: skipped, in a test of requests. 4 GiB: closed, before any of it was sent.
    let mut client = setup.simple("disk");
    client.request(command::WRITE, 0, 0, u32::MAX, &[]);
    client.expect_close();
    setup.lines.wait_for("too long to be skipped");
    assert_eq!(device.allocated_bytes(), 0);
    is_well(&setup);
}

#[test]
fn a_write_that_never_comes_whole_is_not_done() {
    let (setup, device) = setup();
    for length in [1000u32, 1 << 20] {
        let mut client = setup.simple("disk");
        client.request(command::WRITE, 0, 0, length, &[1; 500]);
        client.shutdown_write();
        client.expect_close();
        // A refused write whose payload is incomplete.
        let mut client = setup.simple("disk");
        client.request(command::WRITE, 0, SIZE, length, &[1; 500]);
        client.shutdown_write();
        client.expect_close();
    }
    assert_eq!(device.allocated_bytes(), 0);
    is_well(&setup);
}

#[test]
fn a_half_closed_client_gets_all_its_answers() {
    let (setup, device) = setup();
    for mut client in [setup.simple("disk"), setup.structured("disk")] {
        device.cached.store(false, Ordering::Release);
        device.reads.shut_at(0);
        let read = client.request(command::READ, 0, 0, 4096, &[]);
        device.reads.wait_for(1);
        let write = client.request(command::WRITE, 0, 8192, 5, b"bytes");
        client.shutdown_write();
        let lengths = [(read, (0, 4096))].into();
        assert_eq!(client.answer(&lengths), (write, DONE));
        device.release();
        assert_eq!(client.answer(&lengths), (read, Answer::Ok(vec![0; 4096])));
        client.expect_close();
    }
}

#[test]
fn a_client_that_vanishes_with_requests_in_flight_costs_nothing() {
    let (setup, device) = setup();
    device.cached.store(false, Ordering::Release);
    device.reads.shut_at(0);
    let mut client = setup.simple("disk");
    for _ in 0..10 {
        client.request(command::READ, 0, 0, 1 << 20, &[]);
    }
    device.reads.wait_for(10);
    drop(client);
    device.release();
    setup.lines.wait_for("ended");
    is_well(&setup);
}

#[test]
fn a_client_that_takes_no_replies_holds_no_thread_and_is_dropped() {
    let options = ServerOptions { threads: 2, stall_max: Duration::from_millis(200), ..Default::default() };
    let (setup, device) = with(options);
    for cached in [false, true] {
        device.cached.store(cached, Ordering::Release);
        let mut stuck = setup.simple("disk");
        // 64 MiB of replies in large reads, then small ones for as long as the server takes
        // requests.
        for _ in 0..64 {
            let (request, _) = stuck.encode(command::READ, 0, 0, 1 << 20, &[]);
            // It may have been dropped by now, if this thread was held up.
            let _ = stuck.try_send(&request);
        }
        // Both threads of the pool are free for others all the time.
        device.cached.store(false, Ordering::Release);
        let mut client = setup.simple("disk");
        for index in 0..100 {
            assert_eq!(client.read(index * 4096, 4096), Answer::Ok(vec![0; 4096]));
        }
        device.cached.store(cached, Ordering::Release);
        let (request, _) = stuck.encode(command::READ, 0, 0, 4096, &[]);
        while stuck.try_send(&request).is_ok() {}
        setup.lines.wait_for_many("did not read its replies for too long", 1 + usize::from(cached));
    }
    is_well(&setup);
}

/// Cached reads are answered by the reader itself, and count all the same.
#[test]
fn clients_that_take_no_cached_data_share_the_budget() {
    let clients = 10;
    let budget = 8 << 20;
    let options =
        ServerOptions { bytes_in_flight_total: budget, stall_max: Duration::from_millis(500), ..Default::default() };
    let (setup, device) = with(options);
    let mut stuck: Vec<_> = (0..clients).map(|_| setup.simple("disk")).collect();
    for client in &mut stuck {
        for _ in 0..1000 {
            let (request, _) = client.encode(command::READ, 0, 0, 64 << 10, &[]);
            // It may have been dropped by now, if this thread was held up.
            let _ = client.try_send(&request);
        }
    }
    setup.lines.wait_for_many("did not read its replies for too long", clients);
    let read = device.cached_bytes.load(Ordering::Acquire);
    // For each: half of the budget, its own allowance, the contents of the two sockets, and a
    // batch.
    let most = clients * (budget / 2 + (1 << 20) + (8 << 20) + (1 << 20));
    assert!(read <= most, "{read} bytes were read for clients that took none of them, more than {most}");
    is_well(&setup);
}

/// A client that sends one request at a time is served by its own reader, which allocated memory
/// for a large read before asking for it.
#[test]
fn clients_with_one_large_read_each_share_the_budget() {
    let options = ServerOptions { bytes_in_flight_total: 64 << 20, ..Default::default() };
    let (setup, device) = with(options);
    let (at, length): (u64, u32) = (4096, 32 << 20);
    let mut lone: Vec<_> = (0..4).map(|_| setup.simple("disk")).collect();
    for client in &mut lone {
        for _ in 0..16 {
            assert_eq!(client.read(0, 1), Answer::Ok(vec![0]));
        }
    }
    device.reads.shut_at(at);
    let requests: Vec<_> = lone.iter_mut().map(|client| client.request(command::READ, 0, at, length, &[])).collect();
    device.reads.wait_for(1);
    // Enough time for all of them to get there.
    let mut other = setup.simple("disk");
    for _ in 0..1000 {
        assert_eq!(other.read(0, 1), Answer::Ok(vec![0]));
    }
    assert_eq!(device.reads.waiting(), 1, "a second one would be more than the budget leaves");
    device.release();
    // Each gets its turn when another has used up its own.
    std::thread::scope(|threads| {
        for (client, request) in lone.iter_mut().zip(requests) {
            threads.spawn(move || {
                let (cookie, answer) = client.answer(&[(request, (at, length))].into());
                assert!(cookie == request && matches!(answer, Answer::Ok(data) if data.len() == length as usize));
            });
        }
    });
}

/// It would keep its reservation, and clients that need as much would wait.
#[test]
fn a_client_that_stops_within_a_write_is_dropped() {
    let options =
        ServerOptions { bytes_in_flight_total: 64 << 20, stall_max: Duration::from_secs(1), ..Default::default() };
    let (setup, _device) = with(options);
    let mut stuck = setup.simple("disk");
    stuck.request(command::WRITE, 0, 0, 32 << 20, &[1; 100]);
    let data = vec![2; 32 << 20];
    let writes = |_| {
        let mut client = setup.simple("disk");
        let (request, _) = client.encode(command::WRITE, 0, SIZE / 2, data.len() as u32, &data);
        // On a machine that stalls it may be mistaken for one that has stopped.
        client.try_send(&request).is_ok() && client.answer(&Default::default()).1 == DONE
    };
    assert!((0..10).any(writes), "nobody else could write as much");
    stuck.expect_close();
    setup.lines.wait_for("did not send the rest of a write for too long");
    is_well(&setup);
}

#[test]
fn what_is_in_flight_is_bounded() {
    let limit = 3;
    let options = ServerOptions { requests_in_flight_max: limit, threads: 8, ..Default::default() };
    let (setup, device) = with(options);
    device.cached.store(false, Ordering::Release);
    let mut client = setup.simple("disk");
    let mut lengths = std::collections::HashMap::new();
    for index in 0..8u64 {
        device.reads.shut_at(index);
        lengths.insert(client.request(command::READ, 0, index, 1, &[]), (index, 1));
    }
    device.reads.wait_for(limit as usize);
    let mut other = setup.simple("disk");
    assert_eq!(other.read(100, 1), Answer::Ok(vec![0]));
    // There are eight threads, and eight reads were sent, but only three were started.
    assert_eq!(device.reads.waiting(), limit as usize);
    device.release();
    for _ in 0..8 {
        assert_eq!(client.answer(&lengths).1, Answer::Ok(vec![0]));
    }
}

#[test]
fn a_budget_smaller_than_a_request_still_serves_it() {
    let (setup, device) = with(ServerOptions { bytes_in_flight_max: 1000, ..Default::default() });
    for cached in [true, false] {
        device.cached.store(cached, Ordering::Release);
        let mut client = setup.structured("disk");
        let data = vec![5; 3 << 20];
        assert_eq!(client.write(0, &data), DONE);
        let mut lengths = std::collections::HashMap::new();
        for _ in 0..20 {
            lengths.insert(client.request(command::READ, 0, 0, 3 << 20, &[]), (0, 3 << 20));
        }
        for _ in 0..20 {
            assert!(client.answer(&lengths).1 == Answer::Ok(data.clone()));
        }
    }
}

#[test]
fn random_bytes_never_hurt() {
    let (setup, _device) = setup();
    for seed in 0..200 {
        let bytes = noise(seed, 300);
        let mut client = if seed % 2 == 0 { setup.options() } else { setup.simple("disk") };
        // Sometimes with a right beginning.
        if seed % 4 < 2 {
            let magic: &[u8] =
                if seed % 2 == 0 { &wire::OPTION_MAGIC.to_be_bytes() } else { &wire::REQUEST_MAGIC.to_be_bytes() };
            client.send(magic);
        }
        // The server may have closed before all was sent.
        let _ = client.try_send(&bytes);
    }
    is_well(&setup);
}
