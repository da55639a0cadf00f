//! Callers of operations: their roles, and the records of their calls.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::support::Dir;
use operations::{Audit, AuditRecord, CATALOGUE, Caller, Effect, Reply, Request, Role, Who};
use server::service::this_process;
use surface::ErrorKind;

fn caller(role: Role) -> Caller {
    Caller { who: Who::User("anna".to_owned()), from: "192.0.2.7".to_owned(), role }
}

fn create(volume: &str) -> Request {
    Request::Create { volume: volume.to_owned(), size_bytes: 1 << 20, properties: BTreeMap::new(), parents: false }
}

/// Keeps records as text.
#[derive(Default)]
struct Kept(Mutex<Vec<String>>);

impl Audit for Kept {
    fn record(&self, record: &AuditRecord<'_>) {
        let outcome = record.error.map_or("done", |error| error.kind().name());
        let text = format!("{} {} {}: {outcome}", record.caller.who, record.about.op(), record.text);
        self.0.lock().unwrap().push(text);
    }
}

#[test]
fn a_role_allows_its_operations_and_no_other_ones() {
    let dir = Dir::with_pool("256M");
    let open = dir.open();
    let handle = |role, request| open.service.handle(&caller(role), request);
    for (role, request) in [
        (Role::Read, create("v")),
        (Role::Operate, create("v")),
        (Role::Read, Request::Snapshot { object: "v".into(), name: "s".to_owned() }),
        (Role::Read, Request::Checkpoint),
        (Role::Operate, Request::Grow { capacity_bytes: 1 << 40 }),
    ] {
        let denied = handle(role, request).unwrap_err();
        assert_eq!(denied.kind(), ErrorKind::Denied);
        assert!(denied.to_string().contains("user anna"), "{denied}");
    }
    assert_eq!(handle(Role::Read, Request::List).unwrap(), Reply::Volumes(Vec::new()), "nothing was created");
    assert!(matches!(handle(Role::Admin, create("v")).unwrap(), Reply::Created(_)));
    let snapshot = Request::Snapshot { object: "v".into(), name: "s".to_owned() };
    assert_eq!(handle(Role::Operate, snapshot).unwrap(), Reply::Done);
    assert!(CATALOGUE.iter().all(|about| about.effect == Effect::Read || about.needs > Role::Read));
    open.close().unwrap();
}

#[test]
fn changes_and_refusals_are_recorded_and_reading_is_not() {
    let dir = Dir::with_pool("256M");
    let open = dir.open();
    let kept = Arc::new(Kept::default());
    open.service.set_audit(kept.clone());
    let handle = |caller: &Caller, request| open.service.handle(caller, request);
    handle(&this_process(), Request::Status).unwrap();
    handle(&caller(Role::Admin), create("v")).unwrap();
    handle(&caller(Role::Admin), create("v")).unwrap_err();
    handle(&caller(Role::Read), Request::Exports { check: false }).unwrap();
    handle(&caller(Role::Read), Request::Usage { object: "v".into(), path: String::new() }).unwrap_err();
    handle(&caller(Role::Read), Request::Checkpoint).unwrap_err();
    let expected = [
        "user anna create create volume 'v' of 1048576 bytes, no properties: done",
        "user anna create create volume 'v' of 1048576 bytes, no properties: exists",
        "user anna usage : denied",
        "user anna checkpoint take a checkpoint: denied",
    ];
    assert_eq!(*kept.0.lock().unwrap(), expected);
    open.close().unwrap();
}
