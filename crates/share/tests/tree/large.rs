//! Files of more than a MiB in a share of a pool, where a table records the location of the rest of
//! each. The table is freed after the data: neither a death of the program nor a power loss may
//! leak it.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use engine::{Files, FormatOptions, Pool, PoolEnv, PoolOptions, Properties};
use share::{Caller, Tree};
use sim::{Fault, Machine};
use surface::OWN_FILES_END;

use crate::deaths::Kept;
use crate::ground::files_of;
use crate::model::BLOCK;
use crate::run::OPTIONS;

const CALLER: Caller = Caller { uid: 1000, gid: 100 };
const POOL_BYTES: u64 = 8 << 20;
/// Where a file has a block: in its beginning, and in two pieces.
const PLACES: [u64; 3] = [0, 3 << 20, 20 << 20];

/// The kind of end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Program,
    Power,
}

fn env(machine: &Machine) -> PoolEnv {
    machine.env()
}

fn open(machine: &Machine) -> (Pool, Arc<Files>) {
    let options =
        PoolOptions { workers: 0, memory_bytes: 4 << 20, standby_bytes_max: usize::MAX, ..PoolOptions::default() };
    let pool = Pool::open(env(machine), options).unwrap();
    let volume = pool.volume("share").unwrap();
    let files = Arc::new(Files::new(volume.clone(), volume).unwrap());
    (pool, files)
}

fn new_machine(seed: u64) -> Machine {
    let machine = Machine::new(POOL_BYTES, seed);
    let format = FormatOptions { capacity_bytes: POOL_BYTES, extent_bytes: 64 << 10, properties: Properties::new() };
    Pool::format(&env(&machine), &format).unwrap();
    let pool = Pool::open(env(&machine), PoolOptions { workers: 0, ..PoolOptions::default() }).unwrap();
    pool.create_share("share", &Properties::new()).unwrap();
    pool.close().unwrap();
    machine
}

fn make(tree: &Tree, name: &[u8]) -> share::Result<u64> {
    let (node, _) = tree.make(Tree::ROOT, name, CALLER, libc::S_IFREG | 0o644, 0, 0)?;
    for (place, fill) in PLACES.into_iter().zip(1..) {
        tree.write(node, place, Bytes::from(vec![fill; BLOCK]), false)?;
    }
    Ok(node)
}

/// One file takes the place of another, and that is durable; then a server is idle, and then it is
/// asked for something durable.
fn replace(tree: &Tree) -> share::Result<()> {
    let gone = tree.lookup(Tree::ROOT, b"gone")?.0;
    tree.rename(Tree::ROOT, b"new", Tree::ROOT, b"gone", 0)?;
    tree.forget(gone)?;
    tree.commit()?;
    tree.make(Tree::ROOT, b"later", CALLER, libc::S_IFREG | 0o644, 0, 0)?;
    tree.sync()?;
    tree.commit()
}

/// Checks the names of large files, and the content of each.
fn verify(tree: &Tree, what: &str) -> BTreeSet<u64> {
    assert_eq!(tree.check().unwrap(), Vec::<String>::new(), "{what}");
    let mut known = BTreeSet::new();
    for name in [&b"gone"[..], b"new", b"kept"] {
        // Renamed or not, but nothing else.
        let Ok((node, inode)) = tree.lookup(Tree::ROOT, name) else {
            assert_eq!(name, b"new", "{what}");
            continue;
        };
        known.insert(inode.data_file());
        for (place, fill) in PLACES.into_iter().zip(1_u8..) {
            let mut found = vec![0; BLOCK];
            assert_eq!(tree.read(node, place, &mut found).unwrap(), BLOCK, "{what}");
            assert!(found.iter().all(|byte| *byte == fill), "{what}: other bytes at {place}");
        }
    }
    known
}

/// Whether the end came at that access, and not after the last one.
fn comes_to_an_end(end: End, access: u64, seed: u64) -> bool {
    let what = format!("end of {end:?} at access {access}, seed {seed}");
    let mut machine = new_machine(seed);
    let (pool, files) = open(&machine);
    let tree = Tree::create(files.clone(), seed, OPTIONS).unwrap();
    let power = Arc::clone(&machine.power);
    let journal = Kept::begin(&tree, move || power.is_lost()).unwrap();
    for name in [&b"gone"[..], b"new", b"kept"] {
        make(&tree, name).unwrap();
    }
    tree.commit().unwrap();
    machine.power.number_standby(end == End::Program);
    machine.power.plan(machine.power.next_point() + access, Fault::Crash);
    let done = replace(&tree);
    let has_ended = machine.power.is_lost();
    assert!(has_ended || done.is_ok(), "{what}: {done:?}");
    machine.power.cut();
    let left = journal.left();
    drop((tree, journal, files, pool));
    machine.power.clear_plan();
    match end {
        End::Program => machine.restart(),
        End::Power => machine.power_cycle(),
    }
    machine.power.number_standby(false);
    let (pool, files) = open(&machine);
    if end == End::Program {
        assert_eq!(pool.status().standby.notes, Vec::<String>::new(), "{what}");
        Tree::take_over(files.clone(), OPTIONS, &left).unwrap().close().unwrap();
    }
    let tree = Tree::open(files.clone(), OPTIONS).unwrap();
    let known = verify(&tree, &what);
    let is_left = |file: &u64| *file >= OWN_FILES_END && !known.contains(file);
    let left_over: Vec<u64> = files_of(&files).into_iter().filter(is_left).collect();
    assert!(left_over.is_empty(), "HARNESS: {what}: something is left of files that are gone: {left_over:?}");
    tree.close().unwrap();
    drop((tree, files));
    pool.close().unwrap();
    has_ended
}

fn ends_anywhere(end: End, seed: u64) -> u64 {
    (0..).take_while(|access| comes_to_an_end(end, *access, seed)).count() as u64
}

#[test]
fn nothing_is_left_of_a_replaced_file_wherever_the_program_dies() {
    let points = ends_anywhere(End::Program, 1);
    assert!(points > 40, "only {points} points");
}

#[test]
fn nothing_is_left_of_a_replaced_file_wherever_power_goes() {
    for seed in 0..4 {
        let points = ends_anywhere(End::Power, seed);
        assert!(points > 10, "only {points} points");
    }
}

#[test]
fn a_table_that_is_left_behind_is_noticed() {
    share::canary::plant(Some("discards-not-finished"));
    let ran = std::panic::catch_unwind(|| ends_anywhere(End::Program, 1));
    share::canary::plant(None);
    let said = ran.expect_err("NOT CAUGHT: discards-not-finished");
    let said = said.downcast_ref::<String>().expect("NOT CAUGHT: not by an assertion of the test");
    assert!(said.contains("HARNESS:"), "NOT CAUGHT: discards-not-finished failed otherwise: {said}");
}
