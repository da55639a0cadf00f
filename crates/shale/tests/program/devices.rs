//! Open volumes and the operations that they block: in one process, like the doors of a server.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::{Arc, Barrier, mpsc};
use std::time::Duration;

use crate::support::{Dir, noise};
use operations::SendWish;
use operations::{Created, Reply, Request, Which};
use server::devices::{Devices, GonePatience};
use server::pool_dir::OpenPool;
use server::service::this_process;
use server::stream_io::{LocalSource, StreamSource};
use surface::{BlockDevice, Client, DeviceSet, ErrorKind, NamedClient, WriteOptions};
use testkit::PATIENCE;

fn a_client() -> Arc<dyn Client> {
    NamedClient::shared("a test")
}

/// Returns a pool in this process with a volume `v` of 1 MiB of noise, and its snapshots.
fn pool_with(snapshots: &[&str]) -> (OpenPool, Dir) {
    let dir = Dir::with_pool("256M");
    let open = dir.open();
    let pool = open.service.pool();
    pool.create_volume("v", 1 << 20, &Default::default()).unwrap();
    for (number, name) in snapshots.iter().enumerate() {
        let device = open.service.open_volume(&"v".into(), &a_client()).unwrap().1;
        device.write(number as u64 * 65536, noise(65536).into(), WriteOptions::default()).unwrap();
        pool.snapshot("v", name).unwrap();
    }
    (open, dir)
}

fn names(open: &OpenPool) -> Vec<String> {
    open.service.pool().snapshots(Some("v")).unwrap().into_iter().map(|snapshot| snapshot.name).collect()
}

/// Only the volume itself was checked, and clients of the snapshots lost theirs.
#[test]
fn going_back_spares_newer_snapshots_that_clients_have_open() {
    let (open, _dir) = pool_with(&["a", "b", "c"]);
    let devices = open.service.devices();
    let client = devices.open("v@c", &a_client()).unwrap();
    let refused = devices.rollback(&["v@a".to_owned()], true, false).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InUse);
    assert!(refused.to_string().contains("'v@c' is open by 1 client: a test"), "{refused}");
    assert_eq!(names(&open), ["a", "b", "c"]);
    // Clients of older snapshots do not matter.
    let older = devices.open("v@a", &a_client()).unwrap();
    devices.rollback(&["v@b".to_owned()], true, true).unwrap();
    assert_eq!(names(&open), ["a", "b"]);
    drop(client);
    devices.rollback(&["v@a".to_owned()], true, false).unwrap();
    assert_eq!(names(&open), ["a"]);
    drop(older);
    open.close().unwrap();
}

/// A schedule removed a snapshot that was being sent, and the stream failed.
#[test]
fn what_is_being_sent_is_in_use() {
    let (open, _dir) = pool_with(&["a", "b"]);
    let devices = open.service.devices();
    let wish = SendWish { snapshot: Some("v@b".to_owned()), from: Some("a".to_owned()), ..Default::default() };
    let mut source = LocalSource::new(&open.service, &wish, &a_client()).unwrap();
    assert!(source.next_chunk(&|| false).unwrap().is_some());
    assert_eq!((devices.clients("v"), devices.clients("v@a"), devices.clients("v@b")), (0, 1, 1));
    let snapshots = open.service.pool().snapshots(Some("v")).unwrap();
    for snapshot in &snapshots {
        assert_eq!(devices.destroy_idle(snapshot).unwrap_err().kind(), ErrorKind::InUse, "{snapshot:?}");
    }
    assert_eq!(devices.destroy("v", true, false).unwrap_err().kind(), ErrorKind::InUse);
    while source.next_chunk(&|| false).unwrap().is_some() {}
    drop(source);
    devices.destroy_idle(&snapshots[0]).unwrap();
    devices.destroy("v", true, false).unwrap();
    open.close().unwrap();
}

/// While a volume's clients close it, or between two steps of a schedule, another one may get its
/// name.
#[test]
fn what_was_found_by_name_is_meant_whatever_gets_the_name() {
    let (open, _dir) = pool_with(&["a"]);
    let (pool, devices) = (open.service.pool().clone(), open.service.devices().clone());
    let found = pool.snapshots(Some("v")).unwrap();
    let write = |name: &str, data: Vec<u8>| {
        pool.volume(name).unwrap().write(0, data.into(), WriteOptions::default()).unwrap();
    };
    write("v", vec![3; 4096]);
    pool.rename("v", "old").unwrap();
    pool.create_volume("v", 1 << 20, &Default::default()).unwrap();
    pool.snapshot("v", "a").unwrap();
    write("v", vec![7; 4096]);
    pool.rollback(found[0].id, false).unwrap();
    for (name, holds) in [("v", vec![7; 4096]), ("old", noise(4096))] {
        let mut block = [0; 4096];
        pool.volume(name).unwrap().read(0, &mut block).unwrap();
        assert!(block == holds[..], "{name}");
    }
    devices.destroy_idle(&found[0]).unwrap();
    assert!(pool.volume("old@a").is_err() && pool.volume("v@a").is_ok());
    open.close().unwrap();
}

/// Returns the number of the volume `v` at the front ends' door.
fn id(devices: &Devices) -> surface::DeviceId {
    devices.shown(&[]).find("v").unwrap().id
}

/// A client that arrived while a volume was shrunk or rolled back did not find it: an NBD client
/// gave up.
#[test]
fn a_volume_that_stays_is_waited_for() {
    let (open, _dir) = pool_with(&[]);
    let devices = open.service.devices();
    let (shown, id) = (devices.shown(&[]), id(devices));
    for _ in 0..20 {
        let begun = Barrier::new(2);
        std::thread::scope(|threads| {
            let waiting = threads.spawn(|| {
                begun.wait();
                shown.open(id, &a_client()).map(drop)
            });
            let work = || {
                begun.wait();
                Ok(())
            };
            devices.alone("v", false, work).unwrap();
            waiting.join().unwrap().unwrap();
        });
    }
    devices
        .alone("v", false, || {
            assert_eq!(shown.look(id)?.size_bytes, 1 << 20);
            assert_eq!(
                shown.open(id, &a_client()).map(drop).unwrap_err().kind(),
                ErrorKind::InUse,
                "patience has an end"
            );
            Ok(())
        })
        .unwrap();
    shown.open(id, &a_client()).unwrap();
    drop(shown);
    open.close().unwrap();
}

/// A look-up counted as a client, and waited for the emptying of the volume.
#[test]
fn a_look_waits_for_nobody_and_keeps_nobody_waiting() {
    let (open, _dir) = pool_with(&["s"]);
    let devices = open.service.devices();
    let (shown, id) = (devices.shown(&[]), id(devices));
    let emptied = shown.open_alone(id, &a_client(), &mut |device| {
        assert_eq!(shown.look(id)?, shown.find("v")?);
        assert_eq!(shown.list()?.len(), 2);
        assert_eq!(devices.clients("v"), 1);
        device.discard(0, 1 << 20)
    });
    drop(emptied.unwrap());
    assert_eq!(devices.clients("v"), 0);
    drop(shown);
    open.close().unwrap();
}

/// Between two requests another client may rename a volume that was created or found by its name.
#[test]
fn a_volume_is_changed_by_its_number_under_another_name() {
    let (open, _dir) = pool_with(&[]);
    let (pool, service) = (open.service.pool(), &open.service);
    let handle = |request| service.handle(&this_process(), request).unwrap();
    let create = || Request::Create {
        volume: "new".to_owned(),
        size_bytes: 1 << 20,
        properties: Default::default(),
        parents: false,
    };
    let Reply::Created(Created { id, .. }) = handle(create()) else { panic!("another reply") };
    pool.rename("new", "renamed").unwrap();
    let Reply::Created(Created { id: other, .. }) = handle(create()) else { panic!("another reply") };
    let object = Which::Known { id, name: "new".to_owned() };
    handle(Request::Set {
        object: Some(object.clone()),
        changes: [("unit".to_owned(), Some("8K".to_owned()))].into(),
        if_match: None,
    });
    let size_bytes = 1 << 16;
    handle(Request::Resize { object: object.clone(), size_bytes, shrink: true, force: false, if_match: None });
    let status = |name: &str| pool.volumes().into_iter().find(|volume| volume.name == name);
    assert_eq!(status("renamed").unwrap().size_bytes, 1 << 16);
    assert_eq!(status("renamed").unwrap().properties.len(), 1);
    let destroy = Request::Destroy { object, recursive: false, force: false, if_match: None };
    handle(destroy.clone());
    assert!(status("renamed").is_none());
    let gone = service.handle(&this_process(), destroy).unwrap_err();
    assert!(gone.kind() == ErrorKind::NotFound && gone.to_string().contains("'new' is gone"), "{gone}");
    let new = status("new").unwrap();
    assert_eq!((new.id.0, new.size_bytes, new.properties.len()), (other, 1 << 20, 0));
    open.close().unwrap();
}

/// An open that waited for an exclusive operation emptied the volume under a client that had opened
/// it meanwhile, or under another open that emptied it.
#[test]
fn a_volume_that_somebody_has_just_opened_is_not_emptied() {
    let (open, _dir) = pool_with(&[]);
    let devices = open.service.devices();
    let (shown, id) = (devices.shown(&[]), id(devices));
    // On a machine that stalls, the timeout may pass before a client's turn.
    let is_well =
        |opened: surface::Result<_>| assert!(opened.err().is_none_or(|error| error.kind() == ErrorKind::InUse));
    let a_while = || (0..1000).for_each(|_| std::thread::yield_now());
    for _ in 0..30 {
        let begun = Barrier::new(4);
        let empty = || {
            begun.wait();
            let emptied = shown.open_alone(id, &a_client(), &mut |_| {
                assert_eq!(devices.clients("v"), 1);
                a_while();
                assert_eq!(devices.clients("v"), 1);
                Ok(())
            });
            is_well(emptied);
        };
        std::thread::scope(|threads| {
            threads.spawn(empty);
            threads.spawn(empty);
            threads.spawn(|| {
                begun.wait();
                let client = shown.open(id, &a_client());
                a_while();
                is_well(client);
            });
            let work = || {
                begun.wait();
                a_while();
                Ok(())
            };
            devices.alone("v", false, work).unwrap();
        });
    }
    drop(shown);
    open.close().unwrap();
}

/// No client could open the volume any more.
#[test]
fn who_panics_lets_go_of_a_volume() {
    let (open, _dir) = pool_with(&[]);
    let devices = open.service.devices();
    let (shown, id) = (devices.shown(&[]), id(devices));
    let panics = |work: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_err();
    panics(&|| devices.alone("v", false, || panic!("on purpose")).unwrap());
    panics(&|| drop(shown.open_alone(id, &a_client(), &mut |_| panic!("on purpose"))));
    assert_eq!(devices.clients("v"), 0);
    drop(shown.open(id, &a_client()).unwrap());
    drop(shown);
    open.close().unwrap();
}

/// A volume found by name stays the same under any later name.
#[test]
fn a_volume_is_found_by_its_number_under_another_name() {
    let (open, _dir) = pool_with(&[]);
    let (pool, devices) = (open.service.pool(), open.service.devices());
    let (all, id) = (devices.shown(&[]), id(devices));
    pool.rename("v", "w").unwrap();
    pool.create_volume("v", 2 << 20, &Default::default()).unwrap();
    assert_eq!(all.look(id).unwrap().name, "w");
    assert_eq!(all.open(id, &a_client()).unwrap().size_bytes(), 1 << 20);
    assert_ne!(all.find("v").unwrap().id, id);
    // A door that shows only `v` shows the new one.
    let some = devices.shown(&["v".to_owned()]);
    assert_eq!(some.find("v").unwrap().size_bytes, 2 << 20);
    for kind in [some.look(id).map(drop), some.open(id, &a_client()).map(drop)] {
        assert_eq!(kind.unwrap_err().kind(), ErrorKind::NotFound);
    }
    pool.destroy("w", false).unwrap();
    assert_eq!(all.look(id).unwrap_err().kind(), ErrorKind::NotFound);
    drop((all, some));
    open.close().unwrap();
}

/// A client that reports that it has disconnected, and notifies a test of each query.
struct Gone {
    asked: mpsc::Sender<&'static str>,
}

impl Client for Gone {
    fn name(&self) -> String {
        "one that has gone".to_owned()
    }
    fn is_gone(&self) -> bool {
        let _ = self.asked.send("asked");
        true
    }
    fn give_up(&self) {
        let _ = self.asked.send("given up");
    }
}

/// A disconnected client's requests took effect after writes of the volume's next client.
#[test]
fn the_next_client_waits_for_what_one_that_has_gone_left() {
    let (open, _dir) = pool_with(&["a"]);
    let devices = open.service.devices();
    let shown = devices.shown(&[]);
    let id = shown.find("v").unwrap().id;
    type Next<'a> = &'a (dyn Fn() + Sync);
    let ways: [Next<'_>; 4] = [
        &|| drop(shown.open(id, &a_client()).unwrap()),
        &|| drop(shown.open_alone(id, &a_client(), &mut |_| Ok(())).unwrap()),
        &|| devices.alone("v", true, || Ok(())).unwrap(),
        &|| devices.rollback(&["v@a".to_owned()], false, false).unwrap(),
    ];
    for next in ways {
        let (asked, told) = mpsc::channel();
        let gone: Arc<dyn Client> = Arc::new(Gone { asked: asked.clone() });
        let left = shown.open(id, &gone).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                next();
                let _ = asked.send("the next one is in");
            });
            assert_eq!(told.recv_timeout(PATIENCE).unwrap(), "asked");
            // The register is locked from that query until it waits.
            assert_eq!(devices.clients("v"), 1);
            left.write(0, vec![1; 4096].into(), WriteOptions::default()).unwrap();
            while let Ok(word) = told.try_recv() {
                assert_ne!(word, "the next one is in");
            }
            drop(left);
            while told.recv_timeout(PATIENCE).unwrap() != "the next one is in" {}
        });
    }
    open.close().unwrap();
}

#[test]
fn what_a_client_that_has_gone_left_is_given_up_and_then_the_next_one_is_refused() {
    let (open, _dir) = pool_with(&[]);
    let patience = GonePatience { finish: Duration::ZERO, drop: Duration::ZERO };
    let devices = Devices::with_patience(open.service.pool().clone(), patience);
    let (asked, told) = mpsc::channel();
    let gone: Arc<dyn Client> = Arc::new(Gone { asked });
    let stuck = devices.open("v", &gone).unwrap();
    let refused = devices.open("v", &a_client()).map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InUse);
    assert!(refused.to_string().contains("'v': requests of a disconnected client"), "{refused}");
    assert!(refused.to_string().contains("(one that has gone)"), "{refused}");
    assert!(told.try_iter().any(|word| word == "given up"));
    drop(stuck);
    devices.open("v", &a_client()).unwrap();
    open.close().unwrap();
}
