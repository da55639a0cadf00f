//! A front end of the test's own in the list of a server: the order of starts and stops, and that
//! its operations are counted under its door.

use std::sync::{Arc, Mutex};

use operations::{Reply, Request};
use server::front_ends::{Asked, FrontEnd, FrontEnds, Kind, Told, Wanted};
use server::pool_dir::OpenPool;
use server::service::this_process;
use surface::{BlockDevice, DeviceSet, Error, ErrorKind, NamedClient, Result, WriteOptions};

use crate::support::Dir;

/// Actions of a test's front ends, in order.
static DONE: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// Held by the test that uses that list.
static ALONE: Mutex<()> = Mutex::new(());

fn note(text: String) {
    DONE.lock().unwrap().push(text);
}

fn done() -> Vec<String> {
    std::mem::take(&mut *DONE.lock().unwrap())
}

/// A door with one client, which has the volume `v` open until it is closed.
struct Own {
    name: &'static str,
    /// It has a mount that has outlived an earlier server.
    has_resumed: bool,
    open: Option<Arc<dyn BlockDevice>>,
}

impl Own {
    fn begin(name: &'static str, asked: &Asked<'_>) -> Result<Option<Box<dyn FrontEnd>>> {
        let id = asked.devices.find("v")?.id;
        let device = asked.devices.open(id, &NamedClient::at(name, "the client of a test"))?;
        device.write(0, vec![7; 4096].into(), WriteOptions::default())?;
        note(format!("{name} starts"));
        Ok(Some(Box::new(Self { name, has_resumed: name == "resumed", open: Some(device) })))
    }
}

impl FrontEnd for Own {
    fn describe(&self, told: &mut Told) {
        told.lines.push(format!("{} is here", self.name));
        told.document.insert(self.name.to_owned(), self.open.is_some().into());
    }
    fn holds_the_server(&self) -> bool {
        self.name == "first"
    }
    fn follow(&mut self, asked: &Asked<'_>) -> Result<bool> {
        let is_first = self.name == "first";
        if is_first {
            note(format!("first follows {}", asked.args.connections));
        }
        Ok(is_first)
    }
    fn release(&mut self) -> Result<()> {
        if self.name == "busy" { Err(Error::new(ErrorKind::InUse, "busy is used")) } else { Ok(()) }
    }
    fn regain(&mut self) {
        note(format!("{} regains", self.name));
    }
    fn close(&mut self) {
        self.open = None;
        note(format!("{} closes", self.name));
    }
    fn has_resumed(&self) -> bool {
        self.has_resumed
    }
    fn end_new_mounts(&mut self) {
        note(format!("{} ends new mounts", self.name));
    }
    fn stop(self: Box<Self>) {
        note(format!("{} stops", self.name));
    }
}

const UNASKED: Kind = Kind { name: "unasked", is_same: |_, _| false, check: |_| Ok(()), start: |_| Ok(None) };
const FIRST: Kind = Kind { start: |asked| Own::begin("first", asked), ..UNASKED };
const SECOND: Kind = Kind { start: |asked| Own::begin("second", asked), ..UNASKED };
const RESUMED: Kind = Kind { start: |asked| Own::begin("resumed", asked), ..UNASKED };
const BUSY: Kind = Kind { start: |asked| Own::begin("busy", asked), ..UNASKED };
/// Fails with one connection.
const LATER: Kind = Kind {
    start: |asked| if asked.args.connections == 1 { (FAILS.start)(asked) } else { Own::begin("later", asked) },
    ..UNASKED
};
/// Requested with one connection.
const RESUMED_LATER: Kind = Kind {
    start: |asked| if asked.args.connections == 1 { Own::begin("resumed", asked) } else { Ok(None) },
    ..UNASKED
};
const FAILS: Kind = Kind { start: |_| Err(Error::new(ErrorKind::Io, "it fails")), ..UNASKED };
const REFUSED: Kind = Kind { check: |_| Err(Error::new(ErrorKind::Invalid, "not so")), ..UNASKED };

/// Runs `work` with a pool that has a volume `v`, and the input of front ends' starts.
fn with(work: impl FnOnce(&OpenPool, &Asked<'_>)) {
    let _alone = ALONE.lock();
    done();
    let dir = Dir::with_pool("256M");
    let open = dir.open();
    open.service.pool().create_volume("v", 1 << 20, &Default::default()).unwrap();
    let args = Wanted { connections: 64, memory: 64 << 20, ..Wanted::default() };
    let asked = Asked {
        args: &args,
        service: &open.service,
        keeper: None,
        devices: open.service.devices().shown(&[]),
        over: Arc::new(|_| {}),
    };
    work(&open, &asked);
    drop(asked);
    open.close().unwrap();
}

/// Starts front ends, and records when all are checked.
fn start(kinds: &[Kind], asked: &Asked<'_>) -> (FrontEnds, Result<()>) {
    let mut front_ends = FrontEnds::of(kinds);
    let started = front_ends.start(asked, || note("all are checked".to_owned()));
    (front_ends, started)
}

#[test]
fn front_ends_start_in_order_are_told_of_and_end_in_reverse() {
    with(|open, asked| {
        let (front_ends, started) = start(&[FIRST, UNASKED, SECOND], asked);
        started.unwrap();
        assert_eq!(done(), ["all are checked", "first starts", "second starts"]);
        assert_eq!(open.service.devices().clients("v"), 2);
        let told = front_ends.describe();
        assert_eq!(told.lines, ["first is here", "second is here"]);
        assert_eq!((&told.document["first"], &told.document["nbd"]), (&true.into(), &serde_json::json!([])));
        assert!(front_ends.hold_the_server());
        let counted = match open.service.handle(&this_process(), Request::Traffic { object: None }).unwrap() {
            Reply::Traffic(report) => report,
            other => panic!("{other:?}"),
        };
        let doors = counted.volumes[0].doors.iter();
        let writes = |line: &report::OperationLine| line.operation == "write" && line.count == 1;
        let counts: Vec<_> = doors.map(|door| (door.door.as_str(), door.operations.iter().any(writes))).collect();
        assert_eq!(counts, [("first", true), ("second", true)]);
        front_ends.stop();
        assert_eq!(done(), ["first closes", "second closes", "second stops", "first stops"]);
        assert_eq!(open.service.devices().clients("v"), 0);
        let (second, started) = start(&[SECOND], asked);
        started.unwrap();
        assert!(!second.hold_the_server());
        second.stop();
    });
}

#[test]
fn a_front_end_that_fails_takes_those_before_it_down() {
    with(|open, asked| {
        let (front_ends, failed) = start(&[FIRST, SECOND, FAILS], asked);
        assert_eq!(failed.unwrap_err().to_string(), "it fails");
        assert!(!front_ends.have_resumed());
        front_ends.stop();
        let ends = ["first closes", "second closes", "second stops", "first stops"];
        assert_eq!(done(), [&["all are checked", "first starts", "second starts"][..], &ends].concat());
        assert_eq!(open.service.devices().clients("v"), 0);
        let (_, refused) = start(&[FIRST, REFUSED], asked);
        assert_eq!(refused.unwrap_err().to_string(), "not so");
        assert!(done().is_empty(), "nothing starts before all are checked");
    });
}

/// They were unmounted, and programs that waited for a starting server were cut off.
#[test]
fn a_start_that_fails_leaves_mounts_of_an_earlier_server() {
    with(|_, asked| {
        let (mut front_ends, failed) = start(&[FIRST, RESUMED, SECOND, FAILS], asked);
        failed.unwrap_err();
        assert!(front_ends.have_resumed());
        done();
        front_ends.leave_mounts();
        let closed = ["first closes", "resumed closes", "second closes"];
        assert_eq!(done(), [&closed[..], &["second stops", "resumed ends new mounts", "first stops"]].concat());
        front_ends.stop();
        assert_eq!(done(), ["resumed closes", "resumed stops"]);
    });
}

/// Returns `asked` with other settings.
fn with_connections<'a>(asked: &Asked<'a>, args: &'a Wanted) -> Asked<'a> {
    Asked {
        args,
        service: asked.service,
        keeper: None,
        devices: Arc::clone(&asked.devices),
        over: Arc::clone(&asked.over),
    }
}

#[test]
fn a_change_reaches_those_that_follow_and_starts_the_others_again() {
    with(|open, asked| {
        let (mut front_ends, started) = start(&[FIRST, UNASKED, SECOND], asked);
        started.unwrap();
        done();
        let args = Wanted { connections: 7, ..asked.args.clone() };
        let changed = front_ends.change(asked, &with_connections(asked, &args)).unwrap();
        assert_eq!(changed.len(), 3);
        assert_eq!(done(), ["second closes", "second stops", "first follows 7", "second starts"]);
        assert_eq!(open.service.devices().clients("v"), 2);
        front_ends.stop();
        assert_eq!(done(), ["first closes", "second closes", "second stops", "first stops"]);
    });
}

/// A block device that waited would be removed otherwise.
#[test]
fn a_change_that_fails_leaves_what_it_has_taken_over() {
    with(|open, asked| {
        let (mut front_ends, started) = start(&[RESUMED_LATER, LATER], asked);
        started.unwrap();
        done();
        let args = Wanted { connections: 1, ..asked.args.clone() };
        front_ends.change(asked, &with_connections(asked, &args)).unwrap_err();
        let tried = ["later closes", "later stops", "resumed starts"];
        let undone = ["resumed ends new mounts", "resumed closes", "resumed stops", "later starts"];
        assert_eq!(done(), [&tried[..], &undone].concat());
        assert_eq!(open.service.devices().clients("v"), 1);
        front_ends.stop();
        done();
    });
}

#[test]
fn a_change_that_fails_leaves_all_as_it_was() {
    with(|open, asked| {
        let (mut front_ends, started) = start(&[FIRST, SECOND, LATER], asked);
        started.unwrap();
        done();
        let args = Wanted { connections: 1, ..asked.args.clone() };
        let failed = front_ends.change(asked, &with_connections(asked, &args)).unwrap_err();
        assert_eq!(failed.to_string(), "nothing was changed: it fails");
        let tried =
            ["later closes", "later stops", "second closes", "second stops", "first follows 1", "second starts"];
        let undone = ["second closes", "second stops", "first follows 64", "second starts", "later starts"];
        assert_eq!(done(), [&tried[..], &undone].concat());
        assert_eq!(open.service.devices().clients("v"), 3);
        front_ends.stop();
        let (mut front_ends, started) = start(&[BUSY, SECOND], asked);
        started.unwrap();
        done();
        let failed = front_ends.change(asked, &with_connections(asked, &args)).unwrap_err();
        assert_eq!(
            (failed.kind(), failed.to_string().as_str()),
            (ErrorKind::InUse, "nothing was changed: busy is used")
        );
        assert_eq!(done(), ["second closes", "second stops", "busy regains", "second starts"]);
        let (_, refused) = start(&[REFUSED], asked);
        refused.unwrap_err();
        front_ends.stop();
        done();
    });
}
