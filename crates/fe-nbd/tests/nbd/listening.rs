//! Addresses, socket files, and their ownership.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;

use fe_nbd::wire::{option, option_reply};
use fe_nbd::{Listen, Server, ServerOptions};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, socket};
use surface::ErrorKind;
use testkit::{Memory, MemorySet, TempDir};

use crate::client::{Answer, Client, Setup, info};

fn start(listen: &[Listen]) -> surface::Result<Server> {
    let device = Memory::new(1 << 20);
    Server::start(Arc::new(MemorySet::of(&[("disk", &device)])), listen, ServerOptions::default())
}

fn kind_of_failure(listen: &[Listen]) -> ErrorKind {
    match start(listen) {
        Ok(_) => panic!("started on {listen:?}"),
        Err(error) => {
            assert!(listen.is_empty() || error.to_string().contains("cannot listen on"), "{error}");
            error.kind()
        }
    }
}

/// A socket file without a listener. Closing a listener does not reliably create one: a process
/// just being started by another test briefly has a copy of it.
fn make_stale(path: &Path) {
    let unheard = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    bind(&unheard, &SocketAddrUnix::new(path).unwrap()).unwrap();
}

#[test]
fn a_stale_socket_is_replaced_and_removed_at_the_end() {
    let scratch = TempDir::new("nbd");
    let path = scratch.join("nbd.sock");
    make_stale(&path);
    assert!(path.exists());
    let server = start(&[Listen::Unix(path.clone())]).unwrap();
    let mut client = Client::unix(std::os::unix::net::UnixStream::connect(&path).unwrap());
    client.greet(3);
    client.go("disk");
    assert_eq!(client.read(0, 1), Answer::Ok(vec![0]));
    server.stop();
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
}

#[test]
fn a_live_socket_is_in_use_and_stays() {
    let scratch = TempDir::new("nbd");
    let listen = [Listen::Unix(scratch.join("nbd.sock"))];
    let server = start(&listen).unwrap();
    assert_eq!(kind_of_failure(&listen), ErrorKind::InUse);
    let mut client = Client::unix(std::os::unix::net::UnixStream::connect(scratch.join("nbd.sock")).unwrap());
    client.greet(3);
    client.go("disk");
    drop(server);
    client.expect_close();
}

#[test]
fn other_files_are_left_alone() {
    let scratch = TempDir::new("nbd");
    let path = scratch.join("precious");
    std::fs::write(&path, b"data").unwrap();
    assert_eq!(kind_of_failure(&[Listen::Unix(path.clone())]), ErrorKind::Exists);
    assert_eq!(std::fs::read(&path).unwrap(), b"data");
}

#[test]
fn a_socket_that_is_no_longer_ours_is_not_removed() {
    let scratch = TempDir::new("nbd");
    let path = scratch.join("nbd.sock");
    let server = start(&[Listen::Unix(path.clone())]).unwrap();
    std::fs::remove_file(&path).unwrap();
    let _others = UnixListener::bind(&path).unwrap();
    server.stop();
    assert!(path.exists());
}

#[test]
fn impossible_addresses_are_refused_with_a_kind() {
    let scratch = TempDir::new("nbd");
    assert_eq!(kind_of_failure(&[Listen::Unix(scratch.join("no/such/dir.sock"))]), ErrorKind::NotFound);
    assert_eq!(kind_of_failure(&[Listen::Unix(scratch.join("x".repeat(200)))]), ErrorKind::Invalid);
    assert_eq!(kind_of_failure(&[Listen::parse("203.0.113.1:0").unwrap()]), ErrorKind::Invalid);
    assert_eq!(kind_of_failure(&[]), ErrorKind::Invalid);
}

#[test]
fn a_taken_port_is_in_use_and_nothing_is_left_behind() {
    let scratch = TempDir::new("nbd");
    let server = start(&[Listen::parse(":0").unwrap()]).unwrap();
    let taken = server.local_addresses()[0].clone();
    let path = scratch.join("nbd.sock");
    assert_eq!(kind_of_failure(&[Listen::Unix(path.clone()), taken]), ErrorKind::InUse);
    assert!(!path.exists());
}

#[test]
fn tcp_serves_like_unix() {
    let device = Memory::new(1 << 20);
    let setup = Setup::new(&[("disk", &device)]);
    let mut client = setup.raw_tcp();
    client.greet(3);
    client.go("disk");
    assert_eq!(client.write(5, b"over tcp"), crate::client::DONE);
    assert_eq!(setup.simple("disk").read(5, 8), Answer::Ok(b"over tcp".to_vec()));
}

fn connected(path: &Path) -> Client {
    let mut client = Client::unix(std::os::unix::net::UnixStream::connect(path).unwrap());
    client.greet(3);
    client.go("disk");
    client
}

#[test]
fn addresses_come_and_go_while_clients_of_others_stay() {
    let scratch = TempDir::new("nbd");
    let [stays, goes, comes] = ["stays", "goes", "comes"].map(|name| scratch.join(name));
    let unix = |path: &Path| Listen::Unix(path.to_owned());
    let mut server = start(&[unix(&stays), unix(&goes)]).unwrap();
    let (mut kept, closed) = (connected(&stays), connected(&goes));
    server.listen(&[unix(&comes), unix(&stays)], None).unwrap();
    closed.expect_close();
    assert!(!goes.exists());
    assert_eq!(kept.read(0, 1), Answer::Ok(vec![0]));
    for path in [&comes, &stays] {
        assert_eq!(connected(path).read(0, 1), Answer::Ok(vec![0]));
    }
    // All or nothing: the first could be bound, the second is no socket.
    let precious = scratch.join("precious");
    std::fs::write(&precious, b"data").unwrap();
    let refused = server.listen(&[unix(&goes), unix(&precious)], None).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Exists);
    assert!(!goes.exists());
    assert_eq!(kept.read(0, 1), Answer::Ok(vec![0]));
    assert_eq!(connected(&comes).read(0, 1), Answer::Ok(vec![0]));
    server.stop();
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 1);
}

#[test]
fn an_address_is_replaced_by_another_one_of_its_port() {
    let mut server = start(&[Listen::parse(":0").unwrap()]).unwrap();
    let Listen::Tcp(here) = server.local_addresses()[0].clone() else { panic!("no TCP") };
    let answers = || {
        let mut client = Client::tcp(std::net::TcpStream::connect(here).unwrap());
        client.greet(3);
        client.go("disk");
        client.read(0, 1)
    };
    let all = Listen::parse(&format!("0.0.0.0:{}", here.port())).unwrap();
    for address in [&all, &Listen::Tcp(here), &all] {
        server.listen(std::slice::from_ref(address), None).unwrap();
        assert_eq!(server.local_addresses(), std::slice::from_ref(address));
        assert_eq!(answers(), Answer::Ok(vec![0]), "{address}");
    }
    // If the other one cannot be had, the first serves on.
    let scratch = TempDir::new("nbd");
    let precious = scratch.join("precious");
    std::fs::write(&precious, b"data").unwrap();
    let refused = server.listen(&[Listen::Tcp(here), Listen::Unix(precious)], None).unwrap_err();
    assert_eq!((refused.kind(), server.local_addresses()), (ErrorKind::Exists, std::slice::from_ref(&all)));
    assert_eq!(answers(), Answer::Ok(vec![0]));
}

#[test]
fn the_most_connections_change_and_none_is_closed() {
    let scratch = TempDir::new("nbd");
    let path = scratch.join("nbd.sock");
    let server = start(&[Listen::Unix(path.clone())]).unwrap();
    let mut clients = [connected(&path), connected(&path)];
    server.set_connections_max(2);
    let mut refused = Client::unix(std::os::unix::net::UnixStream::connect(&path).unwrap());
    refused.greet(3);
    let why = refused.refused(option::GO, &info(b"disk", &[]), option_reply::ERR_POLICY);
    assert!(why.contains("all 2 connections"), "{why}");
    clients.iter_mut().for_each(|client| assert_eq!(client.read(0, 1), Answer::Ok(vec![0])));
    // The refused one may count until it is closed.
    server.set_connections_max(4);
    assert_eq!(connected(&path).read(0, 1), Answer::Ok(vec![0]));
}
