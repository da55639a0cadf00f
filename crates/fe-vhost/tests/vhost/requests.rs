//! Each kind of request, and the configuration.

use std::sync::atomic::Ordering;

use surface::ErrorKind;
use testkit::vhost::{Op, SLOTS, feature};
use testkit::{Memory, Op as Done, Rng, noise};

use crate::{SIZE, Setup};

#[test]
fn what_is_written_is_read_by_every_way() {
    let device = Memory::new(SIZE);
    let setup = Setup::new(&[("disk", &device)]);
    let mut machine = setup.attach("disk", 2);
    for (round, is_indirect) in [false, true].into_iter().enumerate() {
        machine.is_indirect = is_indirect;
        for (number, length) in [512, 1024, 4096, 12288, 128 << 10].into_iter().enumerate() {
            let data = noise(number as u64 + 1, length);
            let offset = (number as u64 + 1) << 20 | (round as u64) << 9;
            machine.ok(0, &Op::Write(offset, data.clone()));
            // Out of the cache, by the pool alone, and by the pool with others.
            for (cached, together) in [(true, false), (false, false), (false, true)] {
                device.cached.store(cached, Ordering::Relaxed);
                device.together.store(together, Ordering::Relaxed);
                let answer = machine.run(1, &Op::Read(offset, length));
                assert_eq!((answer.status, answer.written), (0, length as u32 + 1));
                assert!(answer.data == data, "{length} {cached} {together}");
            }
            device.cached.store(true, Ordering::Relaxed);
        }
    }
}

#[test]
fn a_write_is_cached_and_a_flush_is_one() {
    let device = Memory::new(SIZE);
    let setup = Setup::new(&[("disk", &device)]);
    let mut machine = setup.attach("disk", 1);
    device.set_recording();
    machine.ok(0, &Op::Write(0, vec![1; 4096]));
    machine.ok(0, &Op::Flush);
    assert_eq!(device.recorded(), [Done::Write { offset: 0, length: 4096, fua: false }, Done::Flush]);
    // A flush that waits in the device keeps no other request waiting, and is not answered before.
    device.flushes.shut();
    let flush = machine.submit(0, &Op::Flush);
    device.flushes.wait_for(1);
    machine.ok(0, &Op::Write(4096, vec![2; 4096]));
    assert_eq!(machine.ok(0, &Op::Read(4096, 4096)), vec![2; 4096]);
    assert_eq!(machine.poll(0, flush), None);
    device.flushes.open();
    assert_eq!(machine.wait(0, flush).status, 0);
}

#[test]
fn without_flushes_or_cache_each_write_is_durable_before_it_is_answered() {
    let device = Memory::new(SIZE);
    let setup = Setup::new(&[("disk", &device)]);
    device.set_recording();
    let durable = Done::Write { offset: 0, length: 512, fua: true };
    let mut machine = testkit::vhost::Monitor::new(&setup.socket("disk"), 1);
    machine.wanted = !feature::FLUSH;
    machine.reattach();
    machine.ok(0, &Op::Write(0, vec![1; 512]));
    machine.ok(0, &Op::Discard(4096, 4096));
    machine.ok(0, &Op::Zeroes(4096, 4096, true));
    let recorded = device.recorded();
    assert_eq!(recorded[0], durable);
    assert_eq!((&recorded[2], &recorded[4]), (&Done::Flush, &Done::Flush));

    let mut machine = setup.attach("disk", 1);
    assert_eq!(machine.config(32, 1), [1]);
    machine.ok(0, &Op::Write(0, vec![1; 512]));
    assert!(machine.set_config(32, &[0]));
    assert_eq!(machine.config(32, 1), [0]);
    machine.ok(0, &Op::Write(0, vec![2; 512]));
    let cached = Done::Write { offset: 0, length: 512, fua: false };
    assert_eq!(device.recorded(), [cached.clone(), Done::Flush, durable.clone()]);
    // Also with the next server, of which the guest knows nothing.
    machine.reattach();
    machine.ok(0, &Op::Write(0, vec![3; 512]));
    assert!(machine.set_config(32, &[1]));
    machine.ok(0, &Op::Write(0, vec![4; 512]));
    assert_eq!(device.recorded(), [durable, cached]);
    assert!(!machine.set_config(0, &[0; 8]), "the size is not the guest's to say");
}

#[test]
fn discards_and_zeroes_do_what_their_flags_say() {
    let device = Memory::new(SIZE);
    let setup = Setup::new(&[("disk", &device)]);
    let mut machine = setup.attach("disk", 1);
    machine.ok(0, &Op::Write(0, vec![7; 64 << 10]));
    device.set_recording();
    machine.ok(0, &Op::Discard(4096, 8192));
    machine.ok(0, &Op::Zeroes(16384, 4096, true));
    machine.ok(0, &Op::Zeroes(20480, 4096, false));
    let zeroes = |offset, no_hole| Done::Zeroes { offset, length: 4096, no_hole };
    let discard = Done::Discard { offset: 4096, length: 8192 };
    assert_eq!(device.recorded(), [discard, zeroes(16384, false), zeroes(20480, true)]);
    let mut expected = vec![7; 64 << 10];
    expected[4096..12288].fill(0);
    expected[16384..24576].fill(0);
    assert!(machine.ok(0, &Op::Read(0, 64 << 10)) == expected);
    // Zeroes that must be stored are stored in steps.
    device.recorded();
    machine.ok(0, &Op::Zeroes(4096, SIZE - 4096, false));
    assert_eq!(device.recorded().len(), 2);
}

#[test]
fn what_is_past_the_end_or_unknown_fails_and_nothing_else() {
    let device = Memory::new(SIZE);
    let setup = Setup::new(&[("disk", &device)]);
    let mut machine = setup.attach("disk", 1);
    for op in [
        Op::Read(SIZE, 512),
        Op::Read(SIZE - 512, 1024),
        Op::Write(SIZE, vec![0; 512]),
        Op::Write(u64::MAX / 512 * 512, vec![0; 512]),
        Op::Write(0, vec![0; 513]),
        Op::Read(0, 100),
        Op::Discard(SIZE - 512, 1024),
        Op::Zeroes(SIZE, 512, false),
    ] {
        assert_eq!(machine.run(0, &op).status, 1, "{op:?}");
    }
    assert_eq!(machine.run(0, &Op::Unknown(77)).status, 2);
    assert_eq!(machine.run(0, &Op::Unknown(0)).status, 0, "a read of nothing");
    device.fail(Some(ErrorKind::Io));
    assert_eq!(machine.run(0, &Op::Read(0, 512)).status, 1);
    assert_eq!(machine.run(0, &Op::Flush).status, 1);
    assert!(setup.has_logged("vhost-user: 'disk': device 'memory', offset 0: made to fail"));
    device.fail(None);
    machine.ok(0, &Op::Read(0, 512));
}

#[test]
fn a_guest_reads_size_queues_and_serial_number() {
    let device = Memory::new(SIZE);
    let setup = Setup::new(&[("disk", &device)]);
    let mut machine = setup.attach("disk", 1);
    let config = machine.config(0, 60);
    assert_eq!(config[..8], (SIZE / 512).to_le_bytes());
    assert_eq!(config[34..36], [4, 0]);
    assert_eq!(machine.config(60, 36), [0; 36], "what other disks have behind it");
    assert_eq!(machine.ok(0, &Op::Identify).trim_ascii_end(), b"pool-0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
}

#[test]
fn a_snapshot_is_read_only() {
    let device = Memory::new(SIZE);
    let setup = Setup::new(&[("disk@snap", &device)]);
    device.read_only.store(true, Ordering::Release);
    let mut machine = setup.attach("disk@snap", 1);
    assert_eq!(machine.features & (feature::DISCARD | feature::WRITE_ZEROES | feature::CONFIG_WCE), 0);
    assert_ne!(machine.features & feature::RO, 0);
    machine.ok(0, &Op::Read(0, 4096));
}

/// Two queues with all their slots taken, for a while, with the content compared at the end.
#[test]
fn deep_queues_do_not_lose_a_request() {
    for wanted in [u64::MAX, !feature::EVENT_IDX, !(feature::EVENT_IDX | feature::INDIRECT_DESC)] {
        let device = Memory::new(SIZE);
        device.together.store(true, Ordering::Relaxed);
        let setup = Setup::new(&[("disk", &device)]);
        let mut machine = testkit::vhost::Monitor::new(&setup.socket("disk"), 2);
        (machine.wanted, machine.is_indirect) = (wanted, true);
        machine.reattach();
        let mut rng = Rng::new(wanted);
        let mut expected = vec![0_u8; 2 << 20];
        for round in 0..60_u32 {
            device.cached.store(rng.coin(), Ordering::Relaxed);
            device.full_buffer.store(rng.coin(), Ordering::Relaxed);
            let mut sent = Vec::new();
            // Each slot of a round has a place of its own, so that their order is free.
            for ring in 0..2 {
                for index in 0..usize::from(SLOTS) {
                    let offset = (ring * usize::from(SLOTS) + index) * 32768 + rng.index(8) * 4096;
                    let op = if rng.coin() {
                        Op::Read(offset as u64, 4096)
                    } else {
                        let data = noise(u64::from(round) << 32 | offset as u64, 4096);
                        expected[offset..offset + 4096].copy_from_slice(&data);
                        Op::Write(offset as u64, data)
                    };
                    sent.push((ring, machine.submit(ring, &op), offset, matches!(op, Op::Read(..))));
                }
            }
            for (ring, slot, offset, is_read) in sent {
                let answer = machine.wait(ring, slot);
                assert_eq!(answer.status, 0);
                assert!(!is_read || answer.data == expected[offset..offset + 4096], "round {round}, {offset}");
            }
        }
        for (index, part) in expected.chunks(128 << 10).enumerate() {
            assert!(machine.ok(1, &Op::Read((index as u64) << 17, 128 << 10)) == part);
        }
    }
}
