//! Writes that find no space and are held: they succeed when there is some, fail when they time out
//! or the server stops, and block no one else.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fe_nbd::ServerOptions;
use fe_nbd::wire::{command, command_flag};
use testkit::{Memory, Op, until};

use crate::client::{Answer, DONE, Setup};

const SIZE: u64 = 4 << 20;
const LONG: Duration = Duration::from_secs(3600);
const ENOSPC: u32 = 28;

fn full(most: Duration) -> Arc<Memory> {
    let device = Memory::new(SIZE);
    *device.no_room.lock() = Some(most);
    device
}

/// Waits until `count` writes have failed.
fn wait_for_refused(device: &Memory, count: usize) {
    until("writes find no room", || device.refused.load(Ordering::Acquire) >= count);
}

/// Small and large writes, with a full write buffer and with one that is not, more of them than the
/// server has threads: a discard, which frees space, still gets through.
#[test]
fn held_writes_come_through_when_there_is_room() {
    for through_pool in [false, true] {
        let device = full(LONG);
        device.full_buffer.store(through_pool, Ordering::Release);
        let setup = Setup::new(&[("disk", &device)]);
        let mut client = setup.simple("disk");
        let mut cookies = Vec::new();
        for number in 0..40 {
            let length = if number % 8 == 0 { 64 << 10 } else { 4096 };
            let data = vec![number as u8 + 1; length];
            cookies.push(client.request(command::WRITE, 0, number * (64 << 10), length as u32, &data));
        }
        cookies.push(client.request(command::WRITE_ZEROES, command_flag::NO_HOLE, 3 << 20, 4096, b""));
        wait_for_refused(&device, 41);
        assert_eq!(client.call(command::TRIM, 0, 1 << 20, 4096, b""), DONE, "a discard is not held");
        assert_eq!(client.read(3 << 20, 2), Answer::Ok(vec![0; 2]));
        *device.no_room.lock() = None;
        let mut done: Vec<_> = (0..41).map(|_| client.answer(&HashMap::new())).collect();
        done.sort_by_key(|(cookie, _)| *cookie);
        cookies.sort_unstable();
        assert_eq!(done, cookies.into_iter().map(|cookie| (cookie, DONE)).collect::<Vec<_>>());
        for number in 0..40 {
            assert_eq!(client.read(number * (64 << 10), 1), Answer::Ok(vec![number as u8 + 1]));
        }
    }
}

#[test]
fn held_writes_fail_when_their_time_is_over_or_the_server_stops() {
    let device = full(Duration::from_millis(1));
    let setup = Setup::new(&[("disk", &device)]);
    let mut client = setup.simple("disk");
    assert_eq!(client.write(0, b"late").errno(), ENOSPC);
    assert!(device.refused.load(Ordering::Acquire) > 1, "it was tried again");
    *device.no_room.lock() = Some(LONG);
    let cookie = client.request(command::WRITE, 0, 0, 4, b"held");
    let tried = device.refused.load(Ordering::Acquire);
    wait_for_refused(&device, tried + 1);
    drop(setup);
    let (answered, answer) = client.answer(&HashMap::new());
    assert_eq!((answered, answer.errno()), (cookie, ENOSPC));
}

/// Its steps would keep a server that stops for as long as they take, before its grace period.
#[test]
fn a_held_request_ends_after_its_step_when_the_server_stops() {
    const LENGTH: u32 = 96 << 20;
    let device = Memory::new(LENGTH.into());
    *device.no_room.lock() = Some(LONG);
    device.set_recording();
    device.zeroes.shut();
    let options = ServerOptions { stop_grace: Duration::ZERO, ..ServerOptions::default() };
    let mut setup = Setup::with(&[("disk", &device)], options);
    let mut client = setup.simple("disk");
    client.request(command::WRITE_ZEROES, command_flag::NO_HOLE, 0, LENGTH, b"");
    wait_for_refused(&device, 1);
    *device.no_room.lock() = None;
    device.zeroes.wait_for(1);
    drop(device.recorded());
    let server = setup.server.take().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| server.stop());
        // It drops the connection at the end of its grace, while the device is busy.
        client.expect_close();
        device.release();
    });
    assert_eq!(device.count(|op| matches!(op, Op::Zeroes { .. })), 0, "no further step");
}

/// Disconnected clients are not waited for: the next client is admitted, and nothing of the old one
/// lands after its writes.
#[test]
fn held_writes_of_a_client_that_has_gone_are_dropped() {
    let device = full(LONG);
    let setup = Setup::new(&[("disk", &device)]);
    let mut client = setup.simple("disk");
    client.request(command::WRITE, 0, 0, 4, b"gone");
    wait_for_refused(&device, 1);
    drop(client);
    let mut next = setup.simple("disk");
    *device.no_room.lock() = None;
    assert_eq!(next.write(0, b"next"), DONE);
    drop(next);
    drop(setup);
    let mut found = [0; 4];
    surface::BlockDevice::read(&*device, 0, &mut found).unwrap();
    assert_eq!(&found, b"next");
}
