//! Guests and monitors that break the rules: nothing but their own disk suffers.

use testkit::vhost::{BASE, Monitor, Op, RING_SIZE};
use testkit::{Memory, Rng, until};
use vm_memory::{Bytes, GuestAddress};

use crate::{SIZE, Setup};

/// The ring is stopped, the other one and the server go on.
fn is_stopped(setup: &Setup, machine: &mut Monitor, why: &str) {
    machine.kick_always(0);
    until("the ring is stopped", || setup.has_logged(why));
    machine.ok(1, &Op::Read(0, 512));
    // A monitor that stops and starts the ring, as for a guest that boots, has it again.
    machine.stop_ring(0);
}

fn descriptor(address: u64, length: u32, flags: u16, next: u16) -> [u8; 16] {
    let value = u128::from(address) | u128::from(length) << 64 | u128::from(flags) << 96 | u128::from(next) << 112;
    value.to_le_bytes()
}

#[test]
fn an_index_that_jumps_stops_its_ring() {
    let setup = Setup::new(&[("disk", &Memory::new(SIZE))]);
    let mut machine = setup.attach("disk", 2);
    machine.set_available(0, RING_SIZE + 1);
    is_stopped(&setup, &mut machine, "queue 0 is stopped until the guest resets its disk");
    assert!(setup.has_logged("the available index has jumped"));
}

#[test]
fn chains_that_are_none_stop_their_ring() {
    let far = BASE + (1 << 40);
    let cases: [(&[[u8; 16]], &str); 9] = [
        (&[descriptor(BASE, 16, 1, 0)], "a chain has too many descriptors"),
        (&[descriptor(BASE, 16, 1, 999)], "a descriptor lies outside of its table"),
        (&[descriptor(BASE, 16, 0, 0)], "a request has no room for its status"),
        (&[descriptor(BASE, 16, 3, 1), descriptor(BASE, 16, 0, 0)], "follows one to be written"),
        (&[descriptor(BASE, u32::MAX, 1, 1), descriptor(BASE, 1, 2, 0)], "a chain has too many bytes"),
        (&[descriptor(BASE, 20, 4, 0)], "an indirect table has an odd size"),
        (&[descriptor(far, 32, 4, 0)], "a descriptor lies outside of guest memory"),
        (&[descriptor(BASE, 32, 5, 1), descriptor(BASE, 1, 2, 0)], "neither the only one nor the last"),
        (&[descriptor(u64::MAX - 15, 64, 4, 0)], "a descriptor lies outside of guest memory"),
    ];
    for (descriptors, why) in cases {
        let setup = Setup::new(&[("disk", &Memory::new(SIZE))]);
        let mut machine = setup.attach("disk", 2);
        machine.memory.write_slice(&descriptors.concat(), Monitor::table(0)).unwrap();
        machine.set_available(0, 1);
        is_stopped(&setup, &mut machine, why);
    }
}

#[test]
fn data_outside_of_memory_fails_its_request_only() {
    let setup = Setup::new(&[("disk", &Memory::new(SIZE))]);
    let mut machine = setup.attach("disk", 1);
    let places = [0, BASE - 256, BASE + (32 << 20) - 1, u64::MAX, u64::MAX - 511];
    for (op, flags) in [(Op::Read(0, 512), 3), (Op::Write(0, vec![1; 512]), 1)] {
        for place in places {
            let slot = machine.put(0, &op);
            // Its second descriptor is the data.
            let table = GuestAddress(Monitor::table(0).0 + 16 * (u64::from(slot) * 4 + 1));
            machine.memory.write_slice(&descriptor(place, 512, flags, slot * 4 + 2), table).unwrap();
            machine.kick_always(0);
            assert_eq!(machine.wait(0, slot).status, 1, "{op:?} at {place:#x}");
        }
    }
    machine.ok(0, &Op::Read(0, 512));
}

#[test]
fn heads_that_are_taken_twice_are_bounded() {
    let device = Memory::new(SIZE);
    let setup = Setup::new(&[("disk", &device)]);
    let mut machine = setup.attach("disk", 2);
    device.flushes.shut();
    machine.submit(0, &Op::Flush);
    device.flushes.wait_for(1);
    // The same head again and again, although it is not answered. Never more entries than the ring
    // has, however late the server looks: that would be an index that jumps.
    for index in 2..=RING_SIZE + 1 {
        machine.set_available(0, index);
        machine.kick_always(0);
        if index % 32 == 0 {
            machine.ok(1, &Op::Read(0, 512));
        }
    }
    until("the ring is stopped", || setup.has_logged("more requests are under way than there are descriptors"));
    device.flushes.open();
}

/// As the fuzz target does it, from its own inputs.
#[test]
fn a_campaign_over_images_of_rings() {
    let seeds = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/vhost_ring");
    let images: Vec<Vec<u8>> =
        std::fs::read_dir(seeds).unwrap().map(|entry| std::fs::read(entry.unwrap().path()).unwrap()).collect();
    images.iter().for_each(|image| crate::image::run(image));
    for seed in 0..20_000 {
        let mut rng = Rng::new(seed);
        let mut image = rng.pick(&images).clone();
        for _ in 0..rng.between(1, 12) {
            // The knobs, the rings and the headers, which have the first KiB.
            let place = rng.index(0x600);
            image[place] = if rng.coin() { rng.next_u64() as u8 } else { rng.below(32) as u8 };
        }
        crate::image::run(&image);
    }
}

/// Rings, tables and headers are written over by chance while the server works on them.
#[test]
fn rings_of_noise_hurt_nothing_but_themselves() {
    for seed in 0..40 {
        let setup = Setup::new(&[("disk", &Memory::new(SIZE)), ("other", &Memory::new(SIZE))]);
        let machine = setup.attach("disk", 1);
        let mut rng = Rng::new(seed);
        for _ in 0..50 {
            for _ in 0..rng.between(1, 20) {
                // The table with little numbers as well, so that some chains are long.
                let reach = if rng.coin() { 0x3000 } else { 0x20000 };
                let place = BASE + rng.below(reach);
                let value = if rng.coin() { rng.next_u64() } else { BASE + rng.below(0x40000) };
                let value = if rng.percent(30) { value & 0xff } else { value };
                machine
                    .memory
                    .write_slice(&value.to_le_bytes()[..rng.between(1, 8) as usize], GuestAddress(place))
                    .unwrap();
            }
            machine.kick_always(0);
        }
        drop(machine);
        setup.attach("other", 1).ok(0, &Op::Read(0, 4096));
        // The ring is forgotten with its session.
        setup.attach("disk", 1).ok(0, &Op::Read(0, 4096));
    }
}

#[test]
fn messages_that_are_none_end_their_session_only() {
    let setup = Setup::new(&[("disk", &Memory::new(SIZE))]);
    let header = |request: u32, flags: u32, size: u32| [request, flags, size].map(u32::to_le_bytes).concat();
    let cases = [
        header(1, 2, 0),
        header(99, 1, 0),
        header(1, 1, u32::MAX),
        header(2, 1, 4),
        [header(5, 1, 8), vec![1, 0, 0, 0, 0, 0, 0, 0]].concat(),
        [header(12, 1, 8), vec![0; 8]].concat(),
        [header(11, 1, 8), vec![0xff; 8]].concat(),
        [header(2, 1, 8), vec![0xff; 8]].concat(),
        [header(31, 1, 24), vec![0xff; 24]].concat(),
        [header(8, 1, 8), vec![0xff; 8]].concat(),
        vec![1, 0, 0],
    ];
    for bytes in cases {
        let mut bad = setup.attach("disk", 1);
        assert!(bad.breaks(&bytes), "{bytes:?}");
    }
    setup.attach("disk", 1).ok(0, &Op::Read(0, 512));
}

#[test]
fn messages_of_noise_hurt_nobody_else() {
    let setup = Setup::new(&[("disk", &Memory::new(SIZE))]);
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let mut bytes = Vec::new();
        for _ in 0..rng.between(1, 10) {
            let size = rng.below(64) as u32;
            bytes.extend([rng.below(42) as u32, 1, size].map(u32::to_le_bytes).concat());
            bytes.extend((0..size).map(|_| if rng.coin() { 0 } else { rng.next_u64() as u8 }));
        }
        let mut bad = setup.attach("disk", 1);
        bad.breaks(&bytes);
    }
    setup.attach("disk", 1).ok(0, &Op::Read(0, 512));
}
