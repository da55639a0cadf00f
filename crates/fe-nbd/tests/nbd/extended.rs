//! Extended headers: requests and replies with lengths of 64 bits.

use std::time::Duration;

use fe_nbd::ServerOptions;
use fe_nbd::wire::option_reply::ERR_EXT_HEADER_REQD;
use fe_nbd::wire::request::RequestHeader;
use fe_nbd::wire::{self, command, command_flag as flag, option, option_reply, reply_type, transmission_flag};
use surface::{BlockDevice, ZeroOptions};
use testkit::{Memory, Op, noise};

use crate::client::{Client, Setup, meta};

const GIB: u64 = 1 << 30;
const SIZE: u64 = 20 * GIB;

/// A client that sends one request at a time.
struct Extended {
    client: Client,
    next_cookie: u64,
}

/// A reply: its type and its payload.
type Answer = (u16, Vec<u8>);

const DONE: Answer = (reply_type::NONE, Vec::new());

impl Extended {
    fn new(setup: &Setup) -> Self {
        let mut client = setup.options();
        assert_eq!(client.option(option::EXTENDED_HEADERS, &[]), [(option_reply::ACK, vec![])]);
        assert_eq!(client.option(option::SET_META_CONTEXT, &meta("disk", &["base:allocation"])).len(), 2);
        let (_, flags) = client.go("disk");
        assert!(flags & transmission_flag::SEND_DF != 0);
        Self { client, next_cookie: 1 << 63 }
    }

    /// Sends a request; returns its cookie.
    fn request(&mut self, command: u16, flags: u16, offset: u64, length: u64, payload: &[u8]) -> u64 {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        let header = RequestHeader { flags, command, cookie, offset, length }.encode(true);
        assert_eq!(header.len(), 32);
        self.client.send(&[&header, payload].concat());
        cookie
    }

    fn call(&mut self, command: u16, flags: u16, offset: u64, length: u64, payload: &[u8]) -> Answer {
        let cookie = self.request(command, flags, offset, length, payload);
        assert_eq!(self.client.u32(), wire::EXTENDED_REPLY_MAGIC);
        assert_eq!(self.client.receive(2), [0, 1], "the last chunk");
        let kind = u16::from_be_bytes(self.client.receive(2).try_into().unwrap());
        assert_eq!((self.client.u64(), self.client.u64()), (cookie, offset), "what a reply repeats");
        let length = self.client.u64();
        (kind, self.client.receive(usize::try_from(length).unwrap()))
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        assert_eq!(self.call(command::WRITE, flag::PAYLOAD_LEN, offset, data.len() as u64, data), DONE);
    }

    fn read(&mut self, offset: u64, length: u64) -> Vec<u8> {
        let (kind, payload) = self.call(command::READ, 0, offset, length, &[]);
        assert_eq!(kind, reply_type::OFFSET_DATA);
        assert_eq!(payload[..8], offset.to_be_bytes());
        payload[8..].to_vec()
    }

    /// The error number.
    fn refused(&mut self, command: u16, flags: u16, offset: u64, length: u64, payload: &[u8]) -> u32 {
        let (kind, payload) = self.call(command, flags, offset, length, payload);
        assert_eq!(kind, reply_type::ERROR);
        let text = usize::from(u16::from_be_bytes([payload[4], payload[5]]));
        assert_eq!(payload.len(), 6 + text);
        u32::from_be_bytes(payload[..4].try_into().unwrap())
    }

    /// Extents from `offset` on: length and status.
    fn status(&mut self, flags: u16, offset: u64, length: u64) -> Vec<(u64, u32)> {
        let (kind, payload) = self.call(command::BLOCK_STATUS, flags, offset, length, &[]);
        assert_eq!(kind, reply_type::BLOCK_STATUS_EXT);
        assert_eq!(payload[..4], wire::CONTEXT_ALLOCATION_ID.to_be_bytes());
        let count = u32::from_be_bytes(payload[4..8].try_into().unwrap());
        assert_eq!(payload.len(), 8 + 16 * count as usize);
        let extent = |bytes: &[u8]| {
            assert_eq!(bytes[8..12], [0; 4], "padding");
            (u64::from_be_bytes(bytes[..8].try_into().unwrap()), u32::from_be_bytes(bytes[12..].try_into().unwrap()))
        };
        payload[8..].chunks(16).map(extent).collect()
    }
}

#[test]
fn every_command_is_answered_in_extended_chunks() {
    let device = Memory::new(SIZE);
    let setup = Setup::new(&[("disk", &device)]);
    let mut client = Extended::new(&setup);
    for (offset, length) in [(0, 1), (5 * GIB, 5000), (19 * GIB, 2 << 20)] {
        let data = noise(offset, length);
        client.write(offset, &data);
        assert_eq!(client.read(offset, length as u64), data);
    }
    // Cached reads are answered by the reader, others by the pool.
    device.cached.store(false, std::sync::atomic::Ordering::Release);
    assert_eq!(client.read(5 * GIB, 5000), noise(5 * GIB, 5000));
    assert_eq!(client.call(command::READ, 0, 7, 0, &[]), DONE);
    assert_eq!(client.call(command::WRITE, flag::PAYLOAD_LEN | flag::FUA, 0, 3, b"abc"), DONE);
    assert_eq!(client.call(command::FLUSH, 0, 0, 0, &[]), DONE);
    assert_eq!(client.call(command::CACHE, 0, 0, SIZE, &[]), DONE);
    assert_eq!(client.read(0, 3), b"abc");
}

#[test]
fn whole_devices_are_zeroed_and_trimmed_in_one_request() {
    let device = Memory::new(SIZE);
    let setup = Setup::new(&[("disk", &device)]);
    for (command, flags) in [(command::TRIM, flag::FUA), (command::WRITE_ZEROES, flag::FUA)] {
        let mut client = Extended::new(&setup);
        for offset in [0, 6 * GIB, SIZE - 4096] {
            client.write(offset, &noise(offset, 4096));
        }
        assert_eq!(device.allocated_bytes(), 3 * 4096);
        assert_eq!(client.call(command, flags, 0, SIZE, &[]), DONE);
        assert_eq!(device.allocated_bytes(), 0);
        // Past 4 GiB, and not all of it.
        client.write(4096, &noise(1, 4096));
        client.write(7 * GIB, &noise(2, 4096));
        assert_eq!(client.call(command, flags, 8192, SIZE - 8192, &[]), DONE);
        assert_eq!(device.allocated_bytes(), 4096);
        assert_eq!(client.call(command, 0, 0, 8192, &[]), DONE);
    }
}

#[test]
fn extents_are_longer_than_4_gib_and_a_reply_is_bounded() {
    let device = Memory::new(SIZE);
    let setup = Setup::new(&[("disk", &device)]);
    let mut client = Extended::new(&setup);
    client.write(10 * GIB, &noise(1, 4096));
    let hole = wire::state::HOLE | wire::state::ZERO;
    assert_eq!(client.status(0, 0, SIZE), [(10 * GIB, hole), (4096, 0), (10 * GIB - 4096, hole)]);
    assert_eq!(client.status(flag::REQ_ONE, 1, SIZE - 1), [(10 * GIB - 1, hole)]);
    // Of a longer range the client asks for the rest again.
    let setup = Setup::new(&[("disk", &Memory::new(66 * GIB))]);
    let extents = Extended::new(&setup).status(0, GIB, 65 * GIB);
    assert_eq!(extents, [(64 * GIB, hole)]);
}

#[test]
fn hostile_lengths_are_refused_or_close() {
    let device = Memory::new(SIZE);
    let setup = Setup::new(&[("disk", &device)]);
    let mut client = Extended::new(&setup);
    let (invalid, no_space, overflow) = (22, 28, 75);
    for length in [SIZE + 1, 1 << 63, u64::MAX] {
        assert_eq!(client.refused(command::TRIM, 0, 0, length, &[]), invalid);
        assert_eq!(client.refused(command::TRIM, 0, u64::MAX, length, &[]), invalid);
        assert_eq!(client.refused(command::WRITE_ZEROES, 0, 1, length, &[]), no_space);
        assert_eq!(client.refused(command::BLOCK_STATUS, 0, 0, length, &[]), invalid);
        assert_eq!(client.refused(command::CACHE, 0, SIZE, length, &[]), invalid);
        assert_eq!(client.refused(command::READ, 0, 0, length, &[]), invalid);
    }
    assert_eq!(client.refused(command::READ, 0, 0, (32 << 20) + 1, &[]), overflow);
    assert_eq!(client.refused(command::READ, 0, 0, 1 << 32, &[]), overflow);
    // A payload is where the flag says so.
    assert_eq!(client.refused(command::TRIM, flag::PAYLOAD_LEN, 0, 5, b"12345"), invalid);
    assert_eq!(client.refused(77, flag::PAYLOAD_LEN, 0, 5, b"12345"), invalid);
    let long = vec![7; (32 << 20) + 1];
    assert_eq!(client.refused(command::WRITE, flag::PAYLOAD_LEN, 0, long.len() as u64, &long), invalid);
    assert_eq!(client.read(0, 3), [0; 3], "still in step");
    // Writes have one in any case: QEMU does not set the flag. What looks like a request is data.
    let request = RequestHeader { flags: 0, command: command::DISC, cookie: 1, offset: 0, length: 0 }.encode(true);
    assert_eq!(client.call(command::WRITE, flag::FUA, 8192, request.len() as u64, &request), DONE);
    assert_eq!(client.read(8192, request.len() as u64), request);
    assert_eq!(client.refused(command::WRITE, 0, SIZE, 4096, &[0; 4096]), no_space);
    assert_eq!(client.refused(command::WRITE, 0, 0, long.len() as u64, &long), invalid);
    assert_eq!(client.read(0, 3), [0; 3], "still in step");
    let mut client = client.client;
    let flags = flag::PAYLOAD_LEN;
    for length in [1 << 32, u64::MAX] {
        let header = RequestHeader { flags, command: command::WRITE, cookie: 1, offset: 0, length };
        client.send(&header.encode(true));
        client.expect_close();
        client = Extended::new(&setup).client;
    }
    // Without them agreed on, the flag and the header mean nothing.
    let mut compact = setup.structured("disk");
    assert_eq!(compact.call(command::WRITE, flag::PAYLOAD_LEN, 0, 3, b"abc").errno(), invalid);
    let header = RequestHeader { flags: 0, command: command::FLUSH, cookie: 1, offset: 0, length: 0 };
    compact.send(&header.encode(true));
    compact.expect_close();
    client.send(&header.encode(false));
    client.send(&[0; 4]);
    client.expect_close();
}

#[test]
fn extended_headers_take_precedence_over_structured_replies() {
    let device = Memory::new(SIZE);
    let setup = Setup::new(&[("disk", &device)]);
    let mut client = setup.options();
    client.refused(option::EXTENDED_HEADERS, b"x", option_reply::ERR_INVALID);
    client.negotiate_structured();
    assert_eq!(client.option(option::EXTENDED_HEADERS, &[]), [(option_reply::ACK, vec![])]);
    client.refused(option::STRUCTURED_REPLY, &[], ERR_EXT_HEADER_REQD);
    client.send_option(option::EXPORT_NAME, b"disk");
    client.expect_close();
    setup.lines.wait_for("EXPORT_NAME after extended headers");
}

#[test]
fn zeroes_that_are_stored_are_done_in_steps() {
    let device = Memory::new(SIZE);
    let setup = Setup::new(&[("disk", &device)]);
    let mut client = Extended::new(&setup);
    assert_eq!(client.call(command::WRITE_ZEROES, flag::NO_HOLE, GIB - 4096, 100 << 20, &[]), DONE);
    assert_eq!(device.allocated_bytes(), 100 << 20);
    device.write_zeroes(0, SIZE, ZeroOptions::default()).unwrap();
    assert_eq!(device.allocated_bytes(), 0);
}

/// A request over the whole device would keep a server that stops for as long as it takes.
#[test]
fn a_long_request_ends_after_its_step_when_the_server_stops() {
    let device = Memory::new(SIZE);
    device.set_recording();
    let options = ServerOptions { stop_grace: Duration::ZERO, ..ServerOptions::default() };
    let mut setup = Setup::with(&[("disk", &device)], options);
    let mut extended = Extended::new(&setup);
    device.discards.shut();
    extended.request(command::TRIM, 0, 0, SIZE, &[]);
    device.discards.wait_for(1);
    let server = setup.server.take().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| server.stop());
        // It drops the connection at the end of its grace, while the device is busy.
        extended.client.expect_close();
        device.release();
    });
    assert_eq!(device.recorded().into_iter().filter(|op| matches!(op, Op::Discard { .. })).count(), 1);
}
