//! Attacks on the start of TLS: injected bytes, handshakes that are cut, slow, or none at all. Each
//! costs its own connection, and none makes the server take plain bytes for those of TLS.

use std::io::{Read, Write};
use std::time::Duration;

use fe_nbd::ServerOptions;
use fe_nbd::wire::{self, option, option_reply};
use rustls::ClientConnection;
use testkit::until;

use crate::client::{Answer, info};
use crate::tls::{SIZE, Secured, Wanted, keys};

fn bytes_of(option: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = wire::OPTION_MAGIC.to_be_bytes().to_vec();
    bytes.extend(option.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

fn is_well(secured: &Secured) {
    let mut client = secured.encrypted(None);
    assert_eq!(client.go("disk").0, SIZE);
    assert_eq!(client.read(0, 3), Answer::Ok(vec![0; 3]));
}

/// Bytes from before TLS were executed after it in many servers (for NBD: CVE-2021-3716).
#[test]
fn options_in_one_packet_with_the_request_for_tls_are_not_taken() {
    for required in [true, false] {
        let secured = Secured::new(Wanted { required, ..Wanted::default() });
        for injected in [bytes_of(option::STRUCTURED_REPLY, &[]), bytes_of(option::LIST, &[]), vec![0x16], vec![0]] {
            let mut client = secured.options();
            client.send(&[bytes_of(option::STARTTLS, &[]), injected].concat());
            // Not even an ACK: the client cannot mistake it for a server that has seen nothing.
            client.expect_close();
        }
        secured.setup.lines.wait_for_many("data after the request for TLS", 4);
        is_well(&secured);
    }
}

/// The same bytes, but they arrive while the server waits for the handshake.
#[test]
fn options_behind_the_request_for_tls_are_no_handshake() {
    let secured = Secured::new(Wanted::default());
    let mut client = secured.options();
    assert_eq!(client.option(option::STARTTLS, &[]), [(option_reply::ACK, vec![])]);
    client.send(&bytes_of(option::GO, &info(b"disk", &[])));
    let mut socket = client.into_tcp();
    let mut answer = Vec::new();
    // An alert of TLS, or a reset; nothing of NBD.
    let _ = socket.read_to_end(&mut answer);
    assert!(answer.is_empty() || answer[0] == 21, "{answer:?}");
    secured.setup.lines.wait_for("TLS failed: ");
    is_well(&secured);
}

#[test]
fn what_was_agreed_before_tls_is_forgotten() {
    let secured = Secured::new(Wanted { required: false, ..Wanted::default() });
    let mut client = secured.options();
    client.negotiate_structured();
    client.option(option::SET_META_CONTEXT, &crate::client::meta("disk", &["base:allocation"]));
    assert_eq!(client.option(option::STARTTLS, &[]), [(option_reply::ACK, vec![])]);
    let mut client = client.encrypt(keys(secured.authority.config(None))).unwrap();
    // It asserts replies without structure.
    client.structured = false;
    let selected = crate::client::meta("disk", &["base:allocation"]);
    client.refused(option::SET_META_CONTEXT, &selected, option_reply::ERR_INVALID);
    client.go("disk");
    assert_eq!(client.read(0, 100), Answer::Ok(vec![0; 100]));
    assert_eq!(client.call(wire::command::BLOCK_STATUS, 0, 0, 4096, &[]).errno(), 22);
}

/// The client's bytes of a handshake, flight by flight.
fn flights(secured: &Secured) -> Vec<usize> {
    let mut client = secured.options();
    assert_eq!(client.option(option::STARTTLS, &[]).len(), 1);
    let (mut socket, mut keys) = (client.into_tcp(), keys(secured.authority.config(None)));
    let mut flights = Vec::new();
    while keys.is_handshaking() || keys.wants_write() {
        let flight = flight(&mut keys);
        if !flight.is_empty() {
            socket.write_all(&flight).unwrap();
            flights.push(flight.len());
            continue;
        }
        keys.read_tls(&mut socket).unwrap();
        keys.process_new_packets().unwrap();
    }
    flights
}

fn flight(keys: &mut ClientConnection) -> Vec<u8> {
    let mut flight = Vec::new();
    while keys.wants_write() {
        keys.write_tls(&mut flight).unwrap();
    }
    flight
}

/// Within the record's header, its body, between records, and one byte before the end.
#[test]
fn a_handshake_that_is_cut_costs_its_connection_only() {
    let secured = Secured::new(Wanted::default());
    let flights = flights(&secured);
    assert_eq!(flights.len(), 2, "ClientHello, then Finished");
    let mut count = 0;
    for (index, length) in flights.iter().enumerate() {
        for cut in [0, 1, 4, 5, 6, length / 2, length - 1] {
            let mut client = secured.options();
            assert_eq!(client.option(option::STARTTLS, &[]).len(), 1);
            let (mut socket, mut keys) = (client.into_tcp(), keys(secured.authority.config(None)));
            if index > 0 {
                socket.write_all(&flight(&mut keys)).unwrap();
                while !keys.wants_write() {
                    keys.read_tls(&mut socket).unwrap();
                    keys.process_new_packets().unwrap();
                }
            }
            let flight = flight(&mut keys);
            socket.write_all(&flight[..cut.min(flight.len() - 1)]).unwrap();
            drop(socket);
            count += 1;
        }
    }
    secured.setup.lines.wait_for_many("handshake", count);
    until("all are gone", || secured.setup.server().connections() == 0);
    is_well(&secured);
}

#[test]
fn a_handshake_comes_a_byte_at_a_time() {
    let secured = Secured::new(Wanted::default());
    let mut client = secured.options();
    assert_eq!(client.option(option::STARTTLS, &[]).len(), 1);
    let (mut socket, mut keys) = (client.into_tcp(), keys(secured.authority.config(None)));
    let mut last = Vec::new();
    while keys.is_handshaking() || keys.wants_write() {
        let flight = flight(&mut keys);
        if flight.is_empty() {
            keys.read_tls(&mut socket).unwrap();
            keys.process_new_packets().unwrap();
            continue;
        }
        last.clone_from(&flight);
        flight.iter().for_each(|byte| socket.write_all(&[*byte]).unwrap());
    }
    assert!(!last.is_empty());
    // The first option, a byte in each record.
    let mut stream = rustls::StreamOwned::new(keys, socket);
    for byte in bytes_of(option::ABORT, &[]) {
        stream.write_all(&[byte]).unwrap();
        stream.flush().unwrap();
    }
    let mut reply = [0; 20];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(reply[..8], wire::OPTION_REPLY_MAGIC.to_be_bytes());
}

#[test]
fn a_silent_client_has_the_time_of_a_handshake() {
    // If the client itself is delayed until it is closed, before the server has agreed to TLS, the
    // test proves nothing. It retries with more time.
    let is_ended = |handshake_max| {
        let options = ServerOptions { handshake_max, ..ServerOptions::default() };
        let secured = Secured::new(Wanted { options, ..Wanted::default() });
        let mut socket = secured.setup.raw_tcp().into_tcp();
        // An error means that it was too late.
        let _ = socket.write_all(&[&3u32.to_be_bytes()[..], &bytes_of(option::STARTTLS, &[])].concat());
        let mut received = Vec::new();
        let _ = socket.read_to_end(&mut received);
        secured.setup.lines.wait_for("the handshake took too long");
        // The greeting, and the agreement.
        received.len() == 18 + 20
    };
    assert!((0..4).map(|power| Duration::from_millis(50 * 10u64.pow(power))).any(is_ended));
}

#[test]
fn clients_that_stop_in_the_handshake_of_tls_keep_nobody_out() {
    let options =
        ServerOptions { connections_max: 4, handshake_crowded_max: Duration::ZERO, ..ServerOptions::default() };
    let secured = Secured::new(Wanted { options, ..Wanted::default() });
    let silent: Vec<_> = (0..4)
        .map(|_| {
            let mut client = secured.options();
            assert_eq!(client.option(option::STARTTLS, &[]).len(), 1);
            client
        })
        .collect();
    is_well(&secured);
    drop(silent);
}

#[test]
fn a_changed_record_ends_the_connection_without_an_answer() {
    let secured = Secured::new(Wanted::default());
    let mut client = secured.options();
    assert_eq!(client.option(option::STARTTLS, &[]).len(), 1);
    let (mut socket, mut keys) = (client.into_tcp(), keys(secured.authority.config(None)));
    while keys.is_handshaking() {
        keys.complete_io(&mut socket).unwrap();
    }
    keys.writer().write_all(&bytes_of(option::GO, &info(b"disk", &[]))).unwrap();
    let mut record = flight(&mut keys);
    *record.last_mut().unwrap() ^= 1;
    socket.write_all(&record).unwrap();
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer);
    // At most an alert.
    assert!(answer.len() < 40, "{answer:?}");
    secured.setup.lines.wait_for("TLS failed: ");
    is_well(&secured);
}
