//! A share exists completely or not at all, wherever the power fails during its creation or a
//! change of its state: created, cloned, received, promoted, rolled back.

use std::sync::Arc;

use engine::{Files, Pool, Properties};
use share::{Caller, Scratch, Tree};
use sim::{Fault, Machine};

use crate::handles::{carry, create, new_pool, open, open_pool};
use crate::run::OPTIONS;

const CALLER: Caller = Caller { uid: 1000, gid: 100 };
const POOL_BYTES: u64 = 16 << 20;

/// The work that power interrupts.
#[derive(Debug, Clone, Copy)]
enum Work {
    Create,
    Clone,
    Receive,
    Difference,
    Promote,
    Rollback,
}

const ALL: [Work; 6] = [Work::Create, Work::Clone, Work::Receive, Work::Difference, Work::Promote, Work::Rollback];

fn make(pool: &Pool, share: &str, name: &str) {
    let tree = open(pool, share);
    tree.make(Tree::ROOT, name.as_bytes(), CALLER, libc::S_IFREG | 0o644, 0, 0).unwrap();
    tree.close().unwrap();
}

/// The chunks of a snapshot's stream.
fn chunks(pool: &Pool, snapshot: &str, parent: Option<&str>) -> Vec<Vec<u8>> {
    let mut sender = pool.send(snapshot, parent).unwrap();
    std::iter::from_fn(|| sender.next_chunk().unwrap().map(|chunk| chunk.to_vec())).collect()
}

fn receive(pool: &Pool, name: &str, chunks: &[Vec<u8>]) -> surface::Result<()> {
    let mut receiver = pool.receive(name, &Properties::new());
    for chunk in chunks {
        let (head, body) = chunk.split_first_chunk().unwrap();
        receiver.take(head, body)?;
    }
    Ok(())
}

fn begin(work: Work, pool: &Pool, streams: &[Vec<Vec<u8>>; 2]) -> surface::Result<()> {
    match work {
        Work::Create => {
            let content = Tree::empty(9, OPTIONS).unwrap();
            pool.create_share_with("new", &Properties::new(), &content).map(drop)
        }
        Work::Clone => pool.clone_snapshot("s@one", "new", &Properties::new()),
        Work::Receive => receive(pool, "new", &streams[0]),
        Work::Difference => receive(pool, "copy", &streams[1]),
        Work::Promote => pool.promote("clone"),
        Work::Rollback => pool.rollback("s@one", true),
    }
}

/// Names in the root of a share, which must be in order.
fn names(pool: &Pool, share: &str, about: &str) -> Vec<String> {
    let volume = pool.volume(share).unwrap();
    let files = Arc::new(Files::new(volume.clone(), volume.clone()).unwrap());
    let is_moment = share.contains('@');
    let tree = if is_moment {
        Tree::open_to_serve(Arc::new(Scratch::over(files)), OPTIONS)
    } else {
        Tree::open_to_serve(files, OPTIONS)
    };
    let tree = tree.unwrap_or_else(|failure| panic!("HARNESS: {about}: '{share}' cannot be opened: {failure:?}"));
    assert_eq!(tree.check().unwrap(), Vec::<String>::new(), "HARNESS: {about}: '{share}'");
    let (found, lost) = tree.names(Tree::ROOT);
    assert!(lost.is_none(), "HARNESS: {about}: names of '{share}' are lost");
    if !is_moment {
        tree.close().unwrap();
    }
    found.into_iter().map(|name| String::from_utf8(name.name).unwrap()).collect()
}

/// A share `s` with a snapshot and a later name, a clone of the snapshot, and a copy of it.
fn world(seed: u64) -> (Machine, [Vec<Vec<u8>>; 2]) {
    let machine = Machine::new(POOL_BYTES, seed);
    let pool = new_pool(&machine);
    create(&pool, "s");
    make(&pool, "s", "first");
    pool.snapshot("s", "one").unwrap();
    carry(&pool, ("s@one", None), &pool, "copy");
    make(&pool, "s", "second");
    pool.snapshot("s", "two").unwrap();
    pool.clone_snapshot("s@one", "clone", &Properties::new()).unwrap();
    let streams = [chunks(&pool, "s@two", None), chunks(&pool, "s@two", Some("s@one"))];
    pool.close().unwrap();
    (machine, streams)
}

/// Whether power went at that access, before the work was done.
fn is_interrupted(work: Work, access: u64, fault: Fault) -> bool {
    let about = format!("{work:?}, {fault:?} at access {access}");
    let (mut machine, streams) = world(access);
    let pool = open_pool(&machine);
    machine.power.plan(machine.power.next_point() + access, fault);
    let done = begin(work, &pool, &streams);
    let was_cut = machine.power.is_lost() || !machine.power.take_fired().is_empty();
    assert!(was_cut || done.is_ok(), "HARNESS: {about}: {done:?}");
    machine.power.cut();
    drop(pool);
    machine.power.clear_plan();
    machine.power_cycle();
    machine.power.take_fired();
    let pool = open_pool(&machine);
    let (one, two) = (["first".to_owned()], ["first".to_owned(), "second".to_owned()]);
    let is_there = |share: &str| pool.volume(share).is_ok();
    for volume in pool.volumes() {
        let mut found = names(&pool, &volume.name, &about);
        found.sort_unstable();
        let expected: &[&[String]] = match (volume.name.as_str(), work) {
            ("new", Work::Create) => &[&[]],
            ("new", Work::Receive) => &[&two],
            ("s", Work::Rollback) if done.is_ok() => &[&one],
            ("s", Work::Rollback) | ("copy", Work::Difference) => &[&one, &two],
            ("s", _) => &[&two],
            _ => &[&one],
        };
        assert!(expected.contains(&&found[..]), "HARNESS: {about}: '{}' has {found:?}", volume.name);
    }
    if done.is_ok() {
        let expected = match work {
            Work::Create | Work::Clone => "new",
            Work::Receive => "new@two",
            Work::Difference => "copy@two",
            Work::Promote => "clone@one",
            Work::Rollback => "s@one",
        };
        assert!(is_there(expected), "HARNESS: {about}: '{expected}' was acknowledged, and is not there");
    }
    for snapshot in pool.snapshots(None).unwrap() {
        names(&pool, &format!("{}@{}", snapshot.volume, snapshot.name), &about);
    }
    let problems = pool.check(false, &mut |_, _| ()).unwrap().problems;
    assert!(problems.is_empty(), "HARNESS: {about}: {problems:?}");
    // It can be done again, or is refused because it was done.
    let _ = begin(work, &pool, &streams);
    pool.close().unwrap();
    was_cut
}

#[test]
fn a_share_is_there_whole_or_not_at_all() {
    for work in ALL {
        for fault in [Fault::Crash, Fault::ShortWrite] {
            let cut = (0..).take_while(|access| is_interrupted(work, *access, fault)).count();
            println!("{work:?}: {fault:?} at each of {cut} accesses");
            assert!(cut >= 2, "HARNESS: {work:?} has {cut} accesses only");
        }
    }
}

/// The smallest extents take a new share, too.
#[test]
fn a_share_fits_into_the_smallest_extent() {
    let machine = Machine::new(POOL_BYTES, 1);
    let format =
        engine::FormatOptions { capacity_bytes: POOL_BYTES, extent_bytes: 32 << 10, properties: Properties::new() };
    Pool::format(&crate::handles::env(&machine), &format).unwrap();
    let pool = open_pool(&machine);
    create(&pool, "s");
    assert_eq!(names(&pool, "s", "smallest extents"), Vec::<String>::new());
    pool.close().unwrap();
}
