//! Objects by number and by name: pages of them, versions, and previews of changes.

use std::collections::BTreeMap;

use crate::support::Dir;
use operations::{AnyObject, Created, ListWish, ObjectOrder, ObjectPage, Reply, Request, Which};
use report::{ObjectChange, ObjectKind, PropertiesReport};
use server::pool_dir::OpenPool;
use server::service::this_process;
use surface::{ErrorKind, NamedClient, Result};

fn handle(open: &OpenPool, request: Request) -> Result<Reply> {
    open.service.handle(&this_process(), request)
}

fn create(open: &OpenPool, name: &str, size_bytes: u64) -> u64 {
    let volume = name.to_owned();
    match handle(open, Request::Create { volume, size_bytes, properties: BTreeMap::new(), parents: true }).unwrap() {
        Reply::Created(Created { id, .. }) => id,
        other => panic!("{other:?}"),
    }
}

fn page(open: &OpenPool, wish: ListWish) -> ObjectPage {
    match handle(open, Request::ListObjects(wish)).unwrap() {
        Reply::Objects(page) => page,
        other => panic!("{other:?}"),
    }
}

fn names(page: &ObjectPage) -> Vec<&str> {
    page.objects.iter().map(|object| object.name.as_str()).collect()
}

fn set(open: &OpenPool, object: Which, value: &str, if_match: Option<String>) -> Result<PropertiesReport> {
    let changes = BTreeMap::from([("compression".to_owned(), Some(value.to_owned()))]);
    match handle(open, Request::Set { object: Some(object), changes, if_match })? {
        Reply::Properties(report) => Ok(report),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_list_comes_in_pages_that_have_each_object_once() {
    let dir = Dir::with_pool("256M");
    let open = dir.open();
    for name in ["a/x/deep", "a/one", "a/two", "b", "c"] {
        create(&open, name, 1 << 20);
    }
    for (sort, descending) in [(ObjectOrder::Name, false), (ObjectOrder::Id, true), (ObjectOrder::Ratio, false)] {
        let whole = page(&open, ListWish { sort, descending, ..ListWish::default() });
        assert_eq!((whole.objects.len(), whole.total, whole.next.clone()), (7, 7, None));
        let (mut seen, mut cursor) = (Vec::new(), None);
        loop {
            let part = page(&open, ListWish { sort, descending, limit: 2, cursor, ..ListWish::default() });
            assert_eq!(part.total, 7);
            seen.extend(part.objects.iter().map(|object| object.name.clone()));
            cursor = part.next;
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!(seen, names(&whole), "{sort:?}");
    }
    let first = page(&open, ListWish { limit: 3, ..ListWish::default() });
    assert_eq!(names(&first), ["a", "a/one", "a/two"]);
    // Objects created and destroyed between two pages neither repeat nor hide the others.
    create(&open, "a/before", 1 << 20);
    let destroy = Request::Destroy { object: "a/two".into(), recursive: false, force: false, if_match: None };
    handle(&open, destroy).unwrap();
    let second = page(&open, ListWish { limit: 3, cursor: first.next, ..ListWish::default() });
    assert_eq!(names(&second), ["a/x", "a/x/deep", "b"]);
    let one = page(&open, ListWish { name: Some("a/x".to_owned()), ..ListWish::default() });
    assert_eq!(names(&one), ["a/x"]);
    let direct = ListWish { parent: Some("a".into()), recursive: false, ..ListWish::default() };
    assert_eq!(names(&page(&open, direct)), ["a/before", "a/one", "a/x"]);
    let folders = page(&open, ListWish { kind: Some(ObjectKind::Folder), ..ListWish::default() });
    assert_eq!(names(&folders), ["a", "a/x"]);
    let found = page(&open, ListWish { matching: Some("ee".to_owned()), ..ListWish::default() });
    assert_eq!(names(&found), ["a/x/deep"]);
    let top = page(&open, ListWish { recursive: false, ..ListWish::default() });
    assert_eq!(names(&top), ["a", "b", "c"]);
    let wrong = ListWish { cursor: Some("next".to_owned()), ..ListWish::default() };
    assert_eq!(handle(&open, Request::ListObjects(wrong)).unwrap_err().kind(), ErrorKind::Invalid);
    let missing = ListWish { parent: Some(Which::Id(999)), ..ListWish::default() };
    assert_eq!(handle(&open, Request::ListObjects(missing)).unwrap_err().kind(), ErrorKind::NotFound);
    open.close().unwrap();
}

#[test]
fn an_object_keeps_its_number_and_changes_its_version() {
    let dir = Dir::with_pool("256M");
    let open = dir.open();
    let id = create(&open, "v", 1 << 20);
    let object = |which: Which| match handle(&open, Request::Object { object: which, usage: true }).unwrap() {
        Reply::Object(report) => *report,
        other => panic!("{other:?}"),
    };
    let before = object(Which::Id(id));
    let short = set(&open, Which::Id(id), "zstd", Some(before.etag.clone())).unwrap();
    assert_eq!(short.notes, ["compression=zstd means compression=zstd-3"]);
    assert_ne!(short.etag, before.etag);
    let stale = set(&open, Which::Id(id), "lz4", Some(before.etag.clone())).unwrap_err();
    assert_eq!(stale.kind(), ErrorKind::Conflict);
    assert!(stale.to_string().contains("read it again"), "{stale}");
    let rename = |if_match| Request::Rename { object: Which::Id(id), name: "w".to_owned(), if_match };
    assert_eq!(handle(&open, rename(Some(before.etag))).unwrap_err().kind(), ErrorKind::Conflict);
    handle(&open, rename(Some(short.etag.clone()))).unwrap();
    // Another object has the name now.
    let other = create(&open, "v", 1 << 20);
    handle(&open, Request::Snapshot { object: Which::Id(id), name: "s".to_owned() }).unwrap();
    let AnyObject::Snapshot(snapshot) = object("w@s".into()).object else { panic!("no snapshot") };
    assert_eq!((snapshot.kind, snapshot.volume.as_str()), (ObjectKind::Snapshot, "w"));
    assert!(matches!(object(Which::Id(snapshot.id)).object, AnyObject::Snapshot(same) if same == snapshot));
    let AnyObject::Volume(volume) = object(Which::Id(id)).object else { panic!("no volume") };
    assert_eq!((volume.name.as_str(), volume.kind), ("w", ObjectKind::Volume));
    let known = Which::Known { id, name: "v".to_owned() };
    let destroy = |object: Which| Request::Destroy { object, recursive: true, force: false, if_match: None };
    handle(&open, destroy(known.clone())).unwrap();
    let gone = handle(&open, destroy(known)).unwrap_err();
    assert!(gone.kind() == ErrorKind::NotFound && gone.to_string().contains("'v' is gone"), "{gone}");
    let gone = handle(&open, Request::Object { object: Which::Id(id), usage: false }).unwrap_err();
    assert!(gone.to_string().contains(&format!("object {id} is gone")), "{gone}");
    assert!(matches!(object("v".into()).object, AnyObject::Volume(volume) if volume.id == other));
    open.close().unwrap();
}

#[test]
fn a_preview_lists_the_open_objects_and_changes_nothing() {
    let dir = Dir::with_pool("256M");
    let open = dir.open();
    let id = create(&open, "f/v", 1 << 20);
    create(&open, "f/idle", 1 << 20);
    handle(&open, Request::Snapshot { object: "f/v".into(), name: "a".to_owned() }).unwrap();
    handle(&open, Request::Snapshot { object: "f/v".into(), name: "b".to_owned() }).unwrap();
    let client = NamedClient::at("nbd", "a test");
    let devices = open.service.devices();
    let held = [devices.open("f/v", &client).unwrap(), devices.open("f/v@b", &client).unwrap()];
    let preview = |request: &Request| match handle(&open, Request::Preview { request: Box::new(request.clone()) }) {
        Ok(Reply::Affected(affected)) => {
            Ok(affected.into_iter().map(|line| (line.name, line.change, line.client_names)).collect::<Vec<_>>())
        }
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error),
    };
    let line = |name: &str, change| (name.to_owned(), change, vec!["a test".to_owned()]);
    let destroy = Request::Destroy { object: "f".into(), recursive: true, force: true, if_match: None };
    let all = [line("f/v", ObjectChange::Destroyed), line("f/v@b", ObjectChange::Destroyed)];
    assert_eq!(preview(&destroy).unwrap(), all);
    let rollback = Request::Rollback { snapshots: vec!["f/v@a".into()], recursive: true, force: true };
    let back = [line("f/v", ObjectChange::RolledBack), line("f/v@b", ObjectChange::Destroyed)];
    assert_eq!(preview(&rollback).unwrap(), back);
    let resize =
        |size_bytes, shrink| Request::Resize { object: Which::Id(id), size_bytes, shrink, force: true, if_match: None };
    assert_eq!(preview(&resize(1 << 16, true)).unwrap(), [line("f/v", ObjectChange::Shrunk)]);
    assert_eq!(preview(&resize(1 << 30, true)).unwrap(), []);
    let refused = Request::Destroy { object: "f".into(), recursive: false, force: true, if_match: None };
    assert!(preview(&refused).is_err(), "it has something in it");
    drop(held);
    assert_eq!(preview(&destroy).unwrap(), []);
    assert_eq!(page(&open, ListWish::default()).total, 3, "a preview has destroyed something");
    open.close().unwrap();
}
