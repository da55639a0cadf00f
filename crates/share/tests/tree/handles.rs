//! Handles of files, which clients keep: no two files have the same number and generation, in any
//! state of the share, and a file keeps its own. Numbers are not reused either.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::{Files, FormatOptions, Pool, PoolEnv, PoolOptions, Properties};
use share::{Caller, Tree};
use sim::Machine;

use crate::run::OPTIONS;

const CALLER: Caller = Caller { uid: 1000, gid: 100 };
const POOL_BYTES: u64 = 16 << 20;

pub fn env(machine: &Machine) -> PoolEnv {
    PoolEnv { standby: None, ..machine.env() }
}

pub fn open_pool(machine: &Machine) -> Pool {
    let options = PoolOptions { workers: 0, memory_bytes: 4 << 20, ..PoolOptions::default() };
    Pool::open(env(machine), options).unwrap()
}

pub fn new_pool(machine: &Machine) -> Pool {
    let format = FormatOptions { capacity_bytes: POOL_BYTES, extent_bytes: 64 << 10, properties: Properties::new() };
    Pool::format(&env(machine), &format).unwrap();
    open_pool(machine)
}

pub fn create(pool: &Pool, name: &str) {
    pool.create_share_with(name, &Properties::new(), &Tree::empty(7, OPTIONS).unwrap()).unwrap();
}

pub fn open(pool: &Pool, name: &str) -> Tree {
    let volume = pool.volume(name).unwrap();
    Tree::open_to_serve(Arc::new(Files::new(volume.clone(), volume).unwrap()), OPTIONS).unwrap()
}

/// Carries a snapshot to another pool, whole or as the difference from another one.
pub fn carry(from: &Pool, (snapshot, parent): (&str, Option<&str>), to: &Pool, name: &str) {
    let mut sender = from.send(snapshot, parent).unwrap();
    let mut receiver = to.receive(name, &Properties::new());
    while let Some(chunk) = sender.next_chunk().unwrap() {
        let (head, body) = chunk.split_first_chunk().unwrap();
        receiver.take(head, body).unwrap();
    }
}

/// A file as the tests know it, and the handle that it has.
type Handle = (u64, u32);

/// All handles assigned on one device, each to one file.
#[derive(Default)]
struct Clients {
    /// Files by their handles.
    kept: BTreeMap<Handle, String>,
    numbers: BTreeMap<(String, u64), String>,
}

impl Clients {
    /// A client learns the handle of a file.
    fn learn(&mut self, tree: &Tree, name: &str, file: &str) -> Handle {
        let (node, inode) = tree.lookup(Tree::ROOT, name.as_bytes()).unwrap();
        let handle = (node, tree.generation(node, &inode));
        if let Some(other) = self.kept.insert(handle, file.to_owned()) {
            assert_eq!(other, file, "HARNESS: the handle {handle:?} of {other} leads to {file}");
        }
        handle
    }

    /// A new file in a session of its own. Files created in one share, in any state of it, have
    /// different numbers, too.
    fn make(&mut self, pool: &Pool, share: &str, name: &str) -> Handle {
        let tree = open(pool, share);
        tree.make(Tree::ROOT, name.as_bytes(), CALLER, libc::S_IFREG | 0o644, 0, 0).unwrap();
        let file = format!("{name} of {share}");
        let handle = self.learn(&tree, name, &file);
        if let Some(other) = self.numbers.insert((share.to_owned(), handle.0), file) {
            panic!("HARNESS: the number {} of {other} was given to {name} of {share}", handle.0);
        }
        tree.close().unwrap();
        handle
    }

    fn learn_again(&mut self, pool: &Pool, share: &str, name: &str, file: &str) -> Handle {
        let tree = open(pool, share);
        let handle = self.learn(&tree, name, file);
        tree.close().unwrap();
        handle
    }
}

/// The test below, which the canaries run, too.
pub fn no_handle_leads_to_another_file() {
    let (machine, elsewhere) = (Machine::new(POOL_BYTES, 1), Machine::new(POOL_BYTES, 2));
    let (mut pool, other) = (new_pool(&machine), new_pool(&elsewhere));
    let mut clients = Clients::default();
    create(&pool, "s");
    let kept = clients.make(&pool, "s", "kept");
    pool.snapshot("s", "one").unwrap();
    for round in 0..3 {
        clients.make(&pool, "s", &format!("made in round {round}"));
        if round == 1 {
            pool.close().unwrap();
            pool = open_pool(&machine);
            clients.make(&pool, "s", "made after another opening");
        }
        pool.rollback("s@one", true).unwrap();
        let again = clients.learn_again(&pool, "s", "kept", "kept of s");
        assert_eq!(again, kept, "HARNESS: a file that a rollback leaves has another handle");
    }
    // A clone may get the device of its origin: their handles differ.
    pool.clone_snapshot("s@one", "clone", &Properties::new()).unwrap();
    clients.make(&pool, "s", "made in the origin");
    clients.make(&pool, "clone", "made in the clone");
    clients.learn_again(&pool, "clone", "kept", "kept of clone");
    pool.promote("clone").unwrap();
    for share in ["s", "clone"] {
        clients.make(&pool, share, "made after the promotion");
        clients.learn_again(&pool, share, "kept", &format!("kept of {share}"));
    }
    // A difference that was made elsewhere, over files of a local session that was rolled back.
    pool.snapshot("clone", "two").unwrap();
    carry(&pool, ("clone@two", None), &other, "copy");
    for (round, from, to) in [(0, "two", "three"), (1, "three", "four")] {
        clients.make(&other, "copy", &format!("made in the copy {round}"));
        other.rollback(&*format!("copy@{from}"), true).unwrap();
        clients.make(&pool, "clone", &format!("sent in round {round}"));
        pool.snapshot("clone", to).unwrap();
        carry(&pool, (&format!("clone@{to}"), Some(&format!("clone@{from}"))), &other, "copy");
        let name = format!("sent in round {round}");
        clients.learn_again(&other, "copy", &name, &format!("{name} of copy"));
        clients.learn_again(&other, "copy", "kept", "kept of copy");
    }
    clients.make(&other, "copy", "made in the copy at last");
    // A share of the same name.
    pool.destroy("s", true).unwrap();
    create(&pool, "s");
    for name in ["kept", "made in round 0"] {
        let tree = open(&pool, "s");
        tree.make(Tree::ROOT, name.as_bytes(), CALLER, libc::S_IFREG | 0o644, 0, 0).unwrap();
        clients.learn(&tree, name, &format!("{name} of the second s"));
        tree.close().unwrap();
    }
    pool.close().unwrap();
    other.close().unwrap();
}

#[test]
fn handles_lead_to_one_file_whatever_becomes_of_the_share() {
    no_handle_leads_to_another_file();
}

/// The kernel takes the root for generation 0, and refuses it with another one.
#[test]
fn the_root_has_generation_0() {
    let machine = Machine::new(POOL_BYTES, 1);
    let pool = new_pool(&machine);
    create(&pool, "s");
    let tree = open(&pool, "s");
    let (node, inode) = tree.lookup(Tree::ROOT, b"..").unwrap();
    assert_eq!((node, tree.generation(node, &inode)), (Tree::ROOT, 0));
    tree.close().unwrap();
    pool.close().unwrap();
}

/// The pool reserves numbers for a tree far in advance: a session without a rollback continues
/// where the previous one ended.
#[test]
fn numbers_go_on_where_the_last_session_ended() {
    let machine = Machine::new(POOL_BYTES, 1);
    let pool = new_pool(&machine);
    create(&pool, "s");
    let mut clients = Clients::default();
    let numbers: Vec<u64> = (0..4).map(|at| clients.make(&pool, "s", &at.to_string()).0).collect();
    assert_eq!(numbers, [16, 17, 18, 19]);
    pool.close().unwrap();
}
