//! Every command and flag of the transmission phase.

use std::sync::Arc;

use fe_nbd::wire::{command, command_flag};
use surface::{BlockDevice, ErrorKind};
use testkit::{Memory, Op, noise};

use crate::client::{Answer, Client, DONE, Lines, Setup};

const MIB: u32 = 1 << 20;
const SIZE: u64 = 100 << 20;
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;
const EOVERFLOW: u32 = 75;

fn setup() -> (Setup, Arc<Memory>) {
    let device = Memory::new(SIZE);
    (Setup::new(&[("disk", &device)]), device)
}

/// Runs a test with each way of replying and each transport.
fn with_each(test: impl Fn(&mut Client, &Memory, &Lines)) {
    for kind in ["simple", "structured", "tcp"] {
        let (setup, device) = setup();
        device.set_recording();
        let mut client = match kind {
            "simple" => setup.simple("disk"),
            "structured" => setup.structured("disk"),
            _ => {
                let mut client = setup.raw_tcp();
                client.greet(3);
                client.go("disk");
                client
            }
        };
        println!("with {kind}");
        test(&mut client, &device, &setup.lines);
    }
}

#[test]
fn what_is_written_is_read_at_any_size_and_place() {
    with_each(|client, device, _| {
        // Around every threshold of the implementation: inline, large payload, largest.
        let sizes =
            [1, 511, 4096, 4097, 32 << 10, (32 << 10) - 1, 65537, 128 << 10, (128 << 10) + 1, 3 << 20, 32 << 20];
        for cached in [true, false] {
            device.cached.store(cached, std::sync::atomic::Ordering::Release);
            for (index, size) in sizes.into_iter().enumerate() {
                let (data, offset) = (noise(index as u64, size), 12_345 * index as u64);
                assert_eq!(client.write(offset, &data), DONE);
                assert!(client.read(offset, size as u32) == Answer::Ok(data), "{size} bytes at {offset} differ");
            }
        }
        assert_eq!(client.read(SIZE - 1, 1), Answer::Ok(vec![0]));
    });
}

#[test]
fn many_requests_in_one_packet_are_all_answered() {
    with_each(|client, _, _| {
        // Odd sizes, so that headers and payloads fall across every boundary of the receive buffer.
        let mut wire = Vec::new();
        let mut lengths = std::collections::HashMap::new();
        let mut expected = std::collections::HashMap::new();
        for index in 0..300u64 {
            let data = noise(index, 1000 + 37 * index as usize);
            let (bytes, cookie) = client.encode(command::WRITE, 0, index << 14, data.len() as u32, &data);
            wire.extend(bytes);
            expected.insert(cookie, DONE);
            // A flush between does not hurt, and the read of a write not yet answered may return
            // either content.
            let (bytes, cookie) = client.encode(command::FLUSH, 0, 0, 0, &[]);
            wire.extend(bytes);
            expected.insert(cookie, DONE);
        }
        client.send(&wire);
        while !expected.is_empty() {
            let (cookie, answer) = client.answer(&lengths);
            assert_eq!(expected.remove(&cookie), Some(answer));
        }
        let mut wire = Vec::new();
        for index in 0..300u64 {
            let data = noise(index, 1000 + 37 * index as usize);
            let (bytes, cookie) = client.encode(command::READ, 0, index << 14, data.len() as u32, &[]);
            wire.extend(bytes);
            lengths.insert(cookie, (index << 14, data.len() as u32));
            expected.insert(cookie, Answer::Ok(data));
        }
        client.send(&wire);
        while !expected.is_empty() {
            let (cookie, answer) = client.answer(&lengths);
            assert!(expected.remove(&cookie).unwrap() == answer);
        }
    });
}

#[test]
fn fua_reaches_the_device_or_is_a_flush() {
    with_each(|client, device, _| {
        device.recorded();
        let fua = command_flag::FUA;
        assert_eq!(client.call(command::WRITE, fua, 0, 3, b"abc"), DONE);
        assert_eq!(device.recorded(), [Op::Write { offset: 0, length: 3, fua: true }]);
        assert_eq!(client.call(command::TRIM, fua, 0, 4096, &[]), DONE);
        assert_eq!(device.recorded(), [Op::Discard { offset: 0, length: 4096 }, Op::Flush]);
        assert_eq!(client.call(command::WRITE_ZEROES, fua, 0, 4096, &[]), DONE);
        assert_eq!(device.recorded(), [Op::Zeroes { offset: 0, length: 4096, no_hole: false }, Op::Flush]);
        // It is valid where it has no effect.
        assert_eq!(client.call(command::READ, fua, 0, 1, &[]), Answer::Ok(vec![0]));
        assert_eq!(client.call(command::FLUSH, fua, 0, 0, &[]), DONE);
        assert_eq!(client.call(command::CACHE, fua, 0, 1, &[]), DONE);
        device.recorded();
        assert_eq!(client.call(command::WRITE, 0, 0, 3, b"abc"), DONE);
        assert_eq!(client.call(command::TRIM, 0, 0, 1, &[]), DONE);
        assert!(!device.recorded().contains(&Op::Flush));
    });
}

#[test]
fn trim_and_zeroes_of_any_length_read_as_zeroes() {
    with_each(|client, device, _| {
        let data = noise(1, 64 << 10);
        for command in [command::TRIM, command::WRITE_ZEROES] {
            assert_eq!(client.write(0, &data), DONE);
            assert_eq!(client.call(command, 0, 100, 5000, &[]), DONE);
            let mut expected = data.clone();
            expected[100..5100].fill(0);
            assert!(client.read(0, 64 << 10) == Answer::Ok(expected));
            assert_eq!(client.call(command, 0, 0, SIZE as u32, &[]), DONE);
            assert_eq!(device.allocated_bytes(), 0);
        }
        assert_eq!(client.call(command::WRITE_ZEROES, command_flag::FAST_ZERO, 0, SIZE as u32, &[]), DONE);
        let both = command_flag::FAST_ZERO | command_flag::NO_HOLE;
        assert_eq!(client.call(command::WRITE_ZEROES, both, 0, 4096, &[]).errno(), 95);
        assert_eq!(client.call(command::WRITE_ZEROES, command_flag::NO_HOLE, 0, 65536, &[]), DONE);
        assert_eq!(device.allocated_bytes(), 65536);
    });
}

#[test]
fn stored_zeroes_are_done_in_steps_that_cover_the_range() {
    with_each(|client, device, _| {
        device.recorded();
        assert_eq!(client.call(command::WRITE_ZEROES, command_flag::NO_HOLE, 4096, 70 * MIB, &[]), DONE);
        let ops = device.recorded();
        assert_eq!(ops.len(), 3);
        let mut next = 4096;
        for op in ops {
            let Op::Zeroes { offset, length, no_hole: true } = op else { panic!("{op:?}") };
            assert_eq!(offset, next);
            next += length;
        }
        assert_eq!(next, 4096 + 70 * u64::from(MIB));
    });
}

#[test]
fn block_status_tells_data_and_holes() {
    let (setup, _device) = setup();
    let mut client = setup.structured("disk");
    assert_eq!(client.write(8192, &noise(1, 8192)), DONE);
    let status =
        |client: &mut Client, flags, offset, length| client.call(command::BLOCK_STATUS, flags, offset, length, &[]);
    let all = Answer::Extents(vec![(8192, 3), (8192, 0), (SIZE as u32 - 16384, 3)]);
    assert_eq!(status(&mut client, 0, 0, SIZE as u32), all);
    assert_eq!(status(&mut client, command_flag::REQ_ONE, 0, SIZE as u32), Answer::Extents(vec![(8192, 3)]));
    assert_eq!(status(&mut client, command_flag::REQ_ONE, 100, 50), Answer::Extents(vec![(50, 3)]));
    assert_eq!(status(&mut client, 0, 8191, 2), Answer::Extents(vec![(1, 3), (1, 0)]));
    assert_eq!(status(&mut client, 0, SIZE, 1).errno(), EINVAL);
    assert_eq!(status(&mut client, 0, 0, 0).errno(), EINVAL);
    assert_eq!(setup.simple("disk").call(command::BLOCK_STATUS, 0, 0, 4096, &[]).errno(), EINVAL);
}

#[test]
fn block_status_of_many_extents_is_cut_off() {
    let device = Memory::new(256 << 20);
    let setup = Setup::new(&[("disk", &device)]);
    let mut client = setup.structured("disk");
    for block in (0..65536u64).step_by(2) {
        device.write(block * 4096, vec![1; 4096].into(), Default::default()).unwrap();
    }
    let mut covered = 0u64;
    while covered < 256 << 20 {
        let answer = client.call(command::BLOCK_STATUS, 0, covered, ((256 << 20) - covered) as u32, &[]);
        let Answer::Extents(extents) = answer else { panic!("{answer:?}") };
        assert!(!extents.is_empty() && extents.len() <= 16 << 10);
        for (length, status) in extents {
            assert_eq!((length, status), (4096, if (covered / 4096).is_multiple_of(2) { 0 } else { 3 }));
            covered += u64::from(length);
        }
    }
}

#[test]
fn df_is_taken_with_structured_replies_only() {
    let (setup, _device) = setup();
    let df = command_flag::DF;
    assert_eq!(setup.structured("disk").call(command::READ, df, 0, MIB, &[]), Answer::Ok(vec![0; MIB as usize]));
    assert_eq!(setup.simple("disk").call(command::READ, df, 0, 10, &[]).errno(), EINVAL);
}

#[test]
fn ranges_past_the_end_are_refused_and_change_nothing() {
    with_each(|client, device, _| {
        for (offset, length) in [(SIZE, 1), (SIZE - 1, 2), (u64::MAX, 1), (u64::MAX - 10, 4096), (1 << 63, 1 << 20)] {
            let data = vec![1; length as usize];
            assert_eq!(client.call(command::READ, 0, offset, length, &[]).errno(), EINVAL);
            assert_eq!(client.call(command::WRITE, 0, offset, length, &data).errno(), ENOSPC);
            assert_eq!(client.call(command::WRITE_ZEROES, 0, offset, length, &[]).errno(), ENOSPC);
            assert_eq!(client.call(command::TRIM, 0, offset, length, &[]).errno(), EINVAL);
            assert_eq!(client.call(command::CACHE, 0, offset, length, &[]).errno(), EINVAL);
        }
        assert_eq!(device.allocated_bytes(), 0);
        assert_eq!(client.read(0, 1), Answer::Ok(vec![0]));
    });
}

#[test]
fn flags_that_are_not_valid_are_refused() {
    with_each(|client, _, _| {
        use command_flag::{FAST_ZERO, NO_HOLE, REQ_ONE};
        for bit in (0..16).map(|b| 1u16 << b) {
            for (command, valid) in [
                (command::READ, if client.structured { 0b101 } else { 1 }),
                (command::WRITE, 1),
                (command::FLUSH, 1),
                (command::TRIM, 1),
                (command::CACHE, 1),
                (command::WRITE_ZEROES, 1 | NO_HOLE | FAST_ZERO),
                (command::BLOCK_STATUS, 1 | REQ_ONE),
            ] {
                if bit & valid == 0 {
                    let length = if command == command::FLUSH { 0 } else { 3 };
                    let payload: &[u8] = if command == command::WRITE { b"abc" } else { &[] };
                    let answer = client.call(command, bit, 0, length, payload);
                    assert_eq!(answer.errno(), EINVAL, "command {command}, flag {bit:#x}");
                }
            }
        }
    });
}

#[test]
fn too_long_and_empty_requests() {
    with_each(|client, device, _| {
        let payload = vec![7; 32 * MIB as usize + 1];
        assert_eq!(client.write(0, &payload).errno(), EINVAL);
        assert_eq!(client.call(command::READ, 0, 0, 32 * MIB + 1, &[]).errno(), EOVERFLOW);
        assert_eq!(device.allocated_bytes(), 0);
        assert_eq!(client.read(0, 32 * MIB), Answer::Ok(vec![0; 32 << 20]));
        for command in [command::READ, command::WRITE, command::TRIM, command::WRITE_ZEROES, command::CACHE] {
            assert_eq!(client.call(command, 0, SIZE, 0, &[]), DONE, "command {command}");
        }
        assert_eq!(client.call(command::FLUSH, 0, 1, 0, &[]).errno(), EINVAL);
        assert_eq!(client.call(command::FLUSH, 0, 0, 1, &[]).errno(), EINVAL);
        for command in [8, 9, 255, u16::MAX] {
            assert_eq!(client.call(command, 0, 0, 0, &[]).errno(), EINVAL);
        }
    });
}

#[test]
fn errors_of_the_device_become_codes_with_text() {
    with_each(|client, device, lines| {
        for (kind, errno) in [
            (ErrorKind::Invalid, 22),
            (ErrorKind::NotFound, 5),
            (ErrorKind::Exists, 22),
            (ErrorKind::InUse, 1),
            (ErrorKind::Full, 28),
            (ErrorKind::Corrupt, 5),
            (ErrorKind::Io, 5),
            (ErrorKind::Unsupported, 95),
        ] {
            device.fail(Some(kind));
            for cached in [true, false] {
                device.cached.store(cached, std::sync::atomic::Ordering::Release);
                for (command, length, payload) in [
                    (command::READ, 8, 0),
                    (command::READ, 1 << 20, 0),
                    (command::WRITE, 8, 8),
                    (command::WRITE, 1 << 20, 1 << 20),
                    (command::FLUSH, 0, 0),
                    (command::TRIM, 8, 0),
                    (command::WRITE_ZEROES, 8, 0),
                    (command::CACHE, 8, 0),
                ] {
                    let answer = client.call(command, 0, 0, length, &vec![1; payload]);
                    let Answer::Error(code, text) = answer else { panic!("{answer:?}") };
                    assert_eq!(code, errno, "{kind:?}, command {command}");
                    assert!(!client.structured || text.contains("device 'memory'"), "{text}");
                }
            }
        }
        lines.wait_for("export 'disk': device 'memory', offset 0: made to fail with corrupt");
        device.fail(None);
        assert_eq!(client.read(0, 1), Answer::Ok(vec![0]));
    });
}

#[test]
fn disconnect_closes_without_an_answer() {
    let (setup, _device) = setup();
    let mut client = setup.simple("disk");
    client.request(command::DISC, 0, 0, 0, &[]);
    client.expect_close();
    setup.lines.wait_for("the client disconnected");
}

#[test]
fn a_lone_client_is_served_on_its_reader_and_a_busy_one_in_the_pool() {
    let (setup, device) = setup();
    device.set_recording();
    let mut client = setup.simple("disk");
    for _ in 0..20 {
        assert_eq!(client.flush(), DONE);
    }
    let threads = std::mem::take(&mut *device.flush_threads.lock());
    assert!(threads[0].starts_with("nbd-work"), "{threads:?}");
    assert!(threads[19].starts_with("nbd-read"), "{threads:?}");
    // Two at once are both started, which the reader alone could not do.
    device.flushes.shut();
    let (first, _) = client.encode(command::FLUSH, 0, 0, 0, &[]);
    let (second, _) = client.encode(command::FLUSH, 0, 0, 0, &[]);
    client.send(&[first, second].concat());
    device.flushes.wait_for(2);
    device.release();
    for _ in 0..2 {
        assert_eq!(client.answer(&Default::default()).1, DONE);
    }
    let threads = std::mem::take(&mut *device.flush_threads.lock());
    assert!(threads.iter().all(|t| t.starts_with("nbd-work")), "{threads:?}");
}

#[test]
fn a_request_that_had_to_wait_for_a_lone_one_ends_the_streak() {
    let (setup, device) = setup();
    device.set_recording();
    let mut client = setup.simple("disk");
    for _ in 0..20 {
        assert_eq!(client.flush(), DONE);
    }
    device.flushes.shut();
    let flush = client.request(command::FLUSH, 0, 0, 0, &[]);
    device.flushes.wait_for(1);
    // The reader is in the device now; this waits in the socket, which is the price of serving lone
    // clients fast.
    let read = client.request(command::READ, 0, 0, 4, &[]);
    device.release();
    let lengths = [(read, (0, 4))].into();
    assert_eq!(client.answer(&lengths), (flush, DONE));
    assert_eq!(client.answer(&lengths), (read, Answer::Ok(vec![0; 4])));
    device.flush_threads.lock().clear();
    // Paid once: the next one goes to the pool.
    assert_eq!(client.flush(), DONE);
    let threads = std::mem::take(&mut *device.flush_threads.lock());
    assert!(threads[0].starts_with("nbd-work"), "{threads:?}");
}
