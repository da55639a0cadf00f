//! Beginnings and ends: rings, sessions, servers, and other sizes.

use std::sync::atomic::Ordering;
use std::time::Duration;

use surface::BlockDevice;
use testkit::vhost::{Monitor, Op};
use testkit::{Memory, until};

use crate::{SIZE, Setup};

#[test]
fn stopping_a_ring_answers_what_it_has_taken_and_it_goes_on_where_it_was() {
    let device = Memory::new(SIZE);
    let setup = Setup::new(&[("disk", &device)]);
    let mut machine = setup.attach("disk", 2);
    (0..5).for_each(|_| drop(machine.ok(0, &Op::Read(0, 4096))));
    device.cached.store(false, Ordering::Relaxed);
    device.reads.shut();
    let slot = machine.submit(0, &Op::Read(0, 4096));
    device.reads.wait_for(1);
    let base = std::thread::scope(|scope| {
        let stopping = scope.spawn(|| machine.stop_ring(0));
        // The answer to the message cannot come before that of the read.
        until("it stops", || {
            device.reads.open();
            stopping.is_finished()
        });
        stopping.join().unwrap()
    });
    assert_eq!(base, 6);
    assert_eq!(machine.poll(0, slot).unwrap().status, 0, "it is there when the ring has stopped");
    // Requests wait while it is stopped.
    let late = machine.put(0, &Op::Read(0, 512));
    machine.kick_always(0);
    machine.ok(1, &Op::Read(0, 512));
    assert_eq!(machine.poll(0, late), None);
    machine.restart_ring(0);
    assert_eq!(machine.wait(0, late).status, 0);
}

#[test]
fn a_guest_is_told_of_another_size() {
    let device = Memory::with_capacity(SIZE, 2 * SIZE);
    let setup = Setup::new(&[("disk", &device)]);
    let mut machine = setup.attach("disk", 1);
    assert_eq!(machine.config(0, 8), (SIZE / 512).to_le_bytes());
    device.resize(2 * SIZE);
    machine.await_change();
    assert_eq!(machine.config(0, 8), (2 * SIZE / 512).to_le_bytes());
    machine.ok(0, &Op::Write(2 * SIZE - 512, vec![1; 512]));
    device.resize(SIZE);
    machine.await_change();
    assert_eq!(machine.run(0, &Op::Read(2 * SIZE - 512, 512)).status, 1);
}

#[test]
fn a_server_that_stops_answers_what_it_has_taken_and_the_next_one_goes_on() {
    let device = Memory::new(SIZE);
    let mut setup = Setup::new(&[("disk", &device)]);
    let mut machine = setup.attach("disk", 2);
    let write = machine.submit(0, &Op::Write(0, vec![1; 4096]));
    setup.stop();
    assert!(!setup.socket("disk").exists());
    let late = machine.submit(1, &Op::Read(0, 4096));
    setup.start();
    machine.reattach();
    assert_eq!(machine.wait(0, write).status, 0);
    assert_eq!(machine.wait(1, late).data, vec![1; 4096]);
}

#[test]
fn what_waits_for_room_is_left_to_the_next_server() {
    let device = Memory::new(SIZE);
    let mut setup = Setup::new(&[("disk", &device)]);
    let mut machine = setup.attach("disk", 1);
    *device.no_room.lock() = Some(Duration::from_secs(3600));
    let (first, second) =
        (machine.submit(0, &Op::Write(0, vec![1; 512])), machine.submit(0, &Op::Write(512, vec![2; 512])));
    until("both were refused", || device.refused.load(Ordering::Acquire) >= 2);
    machine.ok(0, &Op::Read(0, 512));
    setup.stop();
    assert_eq!((machine.poll(0, first), machine.poll(0, second)), (None, None));
    *device.no_room.lock() = None;
    setup.start();
    machine.reattach();
    assert_eq!((machine.wait(0, first).status, machine.wait(0, second).status), (0, 0));
    assert_eq!(machine.ok(0, &Op::Read(0, 1024)), [vec![1; 512], vec![2; 512]].concat());
}

#[test]
fn what_waits_for_room_fails_when_the_guest_stops_its_disk() {
    let device = Memory::new(SIZE);
    let setup = Setup::new(&[("disk", &device)]);
    let mut machine = setup.attach("disk", 1);
    *device.no_room.lock() = Some(Duration::from_secs(3600));
    let write = machine.submit(0, &Op::Write(0, vec![1; 512]));
    until("it was refused", || device.refused.load(Ordering::Acquire) >= 1);
    machine.stop_ring(0);
    assert_eq!(machine.poll(0, write).unwrap().status, 1);
}

#[test]
fn several_machines_have_disks_of_one_server() {
    let (one, other) = (Memory::new(SIZE), Memory::new(SIZE));
    let setup = Setup::new(&[("one", &one), ("folder/other", &other)]);
    let mut machines: Vec<Monitor> = ["one", "folder/other", "one"].map(|name| setup.attach(name, 1)).into();
    for (number, machine) in machines.iter_mut().enumerate() {
        machine.ok(0, &Op::Write(number as u64 * 512, vec![number as u8 + 1; 512]));
    }
    assert_eq!(setup.server.as_ref().unwrap().sessions(), 3);
    let mut read = vec![0; 1536];
    one.read(0, &mut read).unwrap();
    assert_eq!(read, [vec![1; 512], vec![0; 512], vec![3; 512]].concat());
    other.read(0, &mut read).unwrap();
    assert_eq!(read, [vec![0; 512], vec![2; 512], vec![0; 512]].concat());
    machines.clear();
    until("all have left", || setup.server.as_ref().unwrap().sessions() == 0);
}
