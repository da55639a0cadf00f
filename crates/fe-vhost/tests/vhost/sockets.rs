//! Where the sockets are: they follow the devices, and belong to one server.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;

use fe_vhost::Server;
use surface::ErrorKind;
use testkit::vhost::Op;
use testkit::{Memory, until};

use crate::{SIZE, Setup};

#[test]
fn sockets_come_and_go_with_devices_and_their_names() {
    let device = Memory::new(SIZE);
    let setup = Setup::new(&[("a/b/disk", &device), ("disk@snap", &device)]);
    let mode = |name: &str| std::fs::metadata(setup.socket(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("a/b/disk"), mode("disk@snap")), (0o660, 0o660));
    let mut machine = setup.attach("a/b/disk", 1);
    setup.set.add("late", Memory::new(SIZE), 0);
    until("a socket has come", || setup.socket("late").exists());
    setup.attach("late", 1).ok(0, &Op::Read(0, 512));
    setup.set.rename_all(|name| name.replace("a/b/disk", "c/disk"));
    until("the socket has moved", || setup.socket("c/disk").exists() && !setup.dir.path().join("a").exists());
    // A session keeps its device through a change of name.
    machine.ok(0, &Op::Read(0, 512));
    setup.set.remove("c/disk");
    until("the socket has gone", || !setup.dir.path().join("c").exists());
    machine.ok(0, &Op::Read(0, 512));
}

#[test]
fn sockets_have_the_group_of_their_directory() {
    let device = Memory::new(SIZE);
    let mut setup = Setup::new(&[]);
    setup.stop();
    std::os::unix::fs::chown(setup.dir.path(), None, Some(4711)).unwrap();
    setup.set.add("folder/disk", device, 0);
    setup.start();
    assert_eq!(std::fs::metadata(setup.socket("folder/disk")).unwrap().gid(), 4711);
    assert_eq!(std::fs::metadata(setup.dir.path().join("folder")).unwrap().gid(), 4711);
}

#[test]
fn a_directory_has_one_server() {
    let setup = Setup::new(&[("disk", &Memory::new(SIZE))]);
    let second = Server::start(setup.set.clone(), setup.dir.path(), setup.options());
    let error = second.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InUse);
    assert!(error.to_string().contains("another server has its sockets there"), "{error}");
    setup.attach("disk", 1).ok(0, &Op::Read(0, 512));
}

#[test]
fn sockets_of_a_dead_server_are_replaced_and_those_of_others_are_not() {
    let device = Memory::new(SIZE);
    let mut setup = Setup::new(&[]);
    setup.stop();
    for name in ["disk", "folder/disk", "not-ours"] {
        std::fs::create_dir_all(setup.socket(name).parent().unwrap()).unwrap();
        drop(UnixListener::bind(setup.socket(name)).unwrap());
    }
    std::fs::create_dir(setup.dir.path().join("empty")).unwrap();
    let alive = UnixListener::bind(setup.socket("alive")).unwrap();
    std::fs::write(setup.socket("file"), "mine").unwrap();
    ["disk", "folder/disk", "alive", "file"].iter().for_each(|name| setup.set.add(name, Arc::clone(&device), 0));
    setup.start();
    setup.attach("disk", 1).ok(0, &Op::Read(0, 512));
    setup.attach("folder/disk", 1).ok(0, &Op::Read(0, 512));
    assert!(setup.has_logged("'alive' has no socket: another program answers"));
    assert!(setup.has_logged("'file' has no socket: "));
    assert_eq!(std::fs::read(setup.socket("file")).unwrap(), b"mine");
    drop(UnixStream::connect(setup.socket("alive")).unwrap());
    drop(alive);
    until("its socket is taken over", || UnixStream::connect(setup.socket("alive")).is_ok());
    setup.stop();
    let left = ["file", "not-ours"].map(|name| setup.socket(name).exists());
    assert_eq!((left, setup.dir.path().join("empty").exists()), ([true; 2], true), "files of others");
    assert!(!setup.socket("disk").exists() && !setup.dir.path().join("folder").exists());
}

#[test]
fn a_name_that_is_too_long_for_a_socket_is_told() {
    let name = "n".repeat(120);
    let setup = Setup::new(&[(name.as_str(), &Memory::new(SIZE)), ("disk", &Memory::new(SIZE))]);
    assert!(setup.has_logged("a socket's at most 107"));
    setup.attach("disk", 1).ok(0, &Op::Read(0, 512));
}

#[test]
fn more_sockets_or_sessions_than_allowed_are_refused_and_told() {
    let mut setup = Setup::new(&[("a", &Memory::new(SIZE)), ("b", &Memory::new(SIZE))]);
    setup.stop();
    let options = fe_vhost::ServerOptions { sockets_max: 1, sessions_max: 1, ..setup.options() };
    setup.server = Some(Server::start(setup.set.clone(), setup.dir.path(), options).unwrap());
    assert!(setup.has_logged("'b' has no socket: there are 1 sockets already"));
    let first = setup.attach("a", 1);
    let mut second = UnixStream::connect(setup.socket("a")).unwrap();
    assert_eq!(std::io::Read::read(&mut second, &mut [0]).unwrap(), 0);
    until("that is told", || setup.has_logged("is refused: there are 1 sessions already"));
    drop(first);
    until("there is room", || setup.server.as_ref().unwrap().sessions() == 0);
    setup.attach("a", 1).ok(0, &Op::Read(0, 512));
}
