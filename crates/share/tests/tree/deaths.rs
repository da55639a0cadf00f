//! Successive deaths of the program: its writes stay, names are restored from the journal, and the
//! next program may die while it restores them. Nothing acknowledged may be lost, nothing done
//! twice, and no data may be left of a removed file.

use std::collections::BTreeMap;
use std::panic::catch_unwind;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use share::{Caller, Journal, Left, RECORD_CONTENT_BYTES_MAX, SetAttributes, Tree};
use sim::{Rng, SimSpace};

use crate::model::BLOCK;
use crate::run::OPTIONS;

const CALLER: Caller = Caller { uid: 1000, gid: 100 };
const NAMES: [&[u8]; 4] = [b"a", b"b", b"c", b"d"];
/// Numbers of files below this are the tree's own.
const FIRST_FILE: u64 = 16;
const SEEDS: u64 = 400;
const DEATHS: usize = 6;

/// A journal that outlives its program: records of the last two commits.
pub struct Kept {
    is_dead: Box<dyn Fn() -> bool + Send + Sync>,
    session: u64,
    records: Mutex<Vec<(u64, Vec<u8>)>>,
}

impl Journal for Kept {
    fn keep(&self, commit: u64, record: &[u8]) {
        // The dead store nothing.
        if (self.is_dead)() {
            return;
        }
        let mut records = self.records.lock();
        records.retain(|(of, _)| of + 1 >= commit);
        records.push((commit, record.to_vec()));
    }
}

impl Kept {
    /// Starts a journal, as a mount does. `is_dead` returns whether the program has died.
    pub fn begin(tree: &Tree, is_dead: impl Fn() -> bool + Send + Sync + 'static) -> share::Result<Arc<Self>> {
        tree.settle()?;
        let kept = Self { is_dead: Box::new(is_dead), session: tree.session(), records: Mutex::default() };
        let journal = Arc::new(kept);
        tree.keep_journal(journal.clone());
        Ok(journal)
    }

    pub fn left(&self) -> Left {
        Left { session: self.session, is_replayed: false, records: self.records.lock().clone() }
    }
}

/// Contents by name.
type Model = BTreeMap<&'static [u8], Vec<u8>>;

struct Run {
    space: Arc<SimSpace>,
    tree: Tree,
    journal: Arc<Kept>,
    model: Model,
    rng: Rng,
    /// All inodes that were ever seen.
    nodes: Vec<u64>,
}

fn begin(space: &Arc<SimSpace>, tree: &Tree) -> share::Result<Arc<Kept>> {
    let space = space.clone();
    Kept::begin(tree, move || space.is_off())
}

/// Actions of the next program: continues the mount, or restores the names, which is recorded, and
/// mounts again.
fn recover(space: &Arc<SimSpace>, left: &Left, goes_on: bool, is_back: &mut bool) -> share::Result<(Tree, Arc<Kept>)> {
    if !*is_back {
        let tree = Tree::take_over(space.clone(), OPTIONS, left)?;
        if goes_on {
            let journal = begin(space, &tree)?;
            return Ok((tree, journal));
        }
        tree.close()?;
        *is_back = !space.is_off();
    }
    let tree = Tree::open(space.clone(), OPTIONS)?;
    let journal = begin(space, &tree)?;
    Ok((tree, journal))
}

impl Run {
    fn new(seed: u64) -> Self {
        let space = SimSpace::new();
        let tree = Tree::create(space.clone(), seed, OPTIONS).unwrap();
        let journal = begin(&space, &tree).unwrap();
        Self { space, tree, journal, model: Model::new(), rng: Rng::new(seed), nodes: Vec::new() }
    }

    fn node(&self, name: &[u8]) -> Option<u64> {
        self.tree.lookup(Tree::ROOT, name).ok().map(|(node, _)| node)
    }

    /// Bytes without zeroes, so that a part that was cut off shows.
    fn some_bytes(&mut self) -> Vec<u8> {
        let length = 1 + self.below(3 * BLOCK as u64) as usize;
        vec![1 + self.rng.below(250) as u8; length]
    }

    /// A length or an offset below a bound, often within the capacity of an inode's record.
    fn below(&mut self, bound: u64) -> u64 {
        let is_small = self.rng.percent(30);
        self.rng.below(if is_small { RECORD_CONTENT_BYTES_MAX + 10 } else { bound })
    }

    /// Runs one operation; returns the model after it, and its result.
    fn operation(&mut self) -> (Model, share::Result<()>) {
        let mut model = self.model.clone();
        let name = *self.rng.pick(&NAMES);
        let Some(node) = self.node(name) else {
            model.insert(name, Vec::new());
            let made = self.tree.make(Tree::ROOT, name, CALLER, libc::S_IFREG | 0o644, 0, 0);
            return (model, made.map(|(node, _)| self.nodes.push(node)));
        };
        let done = match self.rng.below(10) {
            0..4 => {
                let (bytes, offset) = (self.some_bytes(), self.below(4 * BLOCK as u64) as usize);
                let content = model.entry(name).or_default();
                content.resize(content.len().max(offset + bytes.len()), 0);
                content[offset..offset + bytes.len()].copy_from_slice(&bytes);
                self.tree.write(node, offset as u64, Bytes::from(bytes), false).map(drop)
            }
            4..7 => {
                let size = if self.rng.below(4) == 0 { 0 } else { self.below(6 * BLOCK as u64) };
                model.entry(name).or_default().resize(size as usize, 0);
                let size = SetAttributes { size: Some(size), ..SetAttributes::default() };
                self.tree.set_attributes(node, &size).map(drop)
            }
            7 => {
                model.remove(name);
                self.tree.unlink(Tree::ROOT, name).and_then(|node| self.tree.forget(node))
            }
            8 => self.tree.sync(),
            _ => self.tree.commit(),
        };
        (model, done)
    }

    /// The content of the tree.
    fn held(&self) -> Model {
        let content = |node: u64| {
            let mut bytes = vec![0; self.tree.inode(node).unwrap().size as usize];
            assert_eq!(self.tree.read(node, 0, &mut bytes).unwrap(), bytes.len());
            bytes
        };
        NAMES.into_iter().filter_map(|name| self.node(name).map(|node| (name, content(node)))).collect()
    }

    /// Whether the tree matches the model before or after the operation interrupted by a death;
    /// data of that one may be partly there.
    fn is_one_of(&self, before: &Model, after: &Model) -> bool {
        let held = self.held();
        let keys = |model: &Model| model.keys().copied().collect::<Vec<_>>();
        if keys(&held) != keys(before) && keys(&held) != keys(after) {
            return false;
        }
        held.iter().all(|(name, bytes)| {
            let [old, new] = [before, after].map(|model| model.get(name).map_or(&[][..], |content| &content[..]));
            let is_size = [old.len(), new.len()].contains(&bytes.len());
            let at = |content: &[u8], at: usize| content.get(at).copied().unwrap_or(0);
            is_size && bytes.iter().enumerate().all(|(index, byte)| *byte == at(old, index) || *byte == at(new, index))
        })
    }

    /// Data of files that no inode has.
    fn left_over(&mut self) -> Vec<u64> {
        self.nodes
            .extend(NAMES.into_iter().filter_map(|name| self.tree.lookup(Tree::ROOT, name).ok()).map(|found| found.0));
        let known: Vec<u64> =
            self.nodes.iter().filter_map(|node| self.tree.inode(*node).ok()).map(|inode| inode.data_file()).collect();
        self.space.files().into_iter().filter(|file| *file >= FIRST_FILE && !known.contains(file)).collect()
    }

    /// The program dies, and so may its successors, until one of them continues.
    fn die(&mut self, after: &Model) {
        let left = self.journal.left();
        self.space = self.space.snapshot();
        let (goes_on, mut deaths, mut is_back) = (self.rng.coin(), self.rng.below(4), false);
        (self.tree, self.journal) = loop {
            self.space.fail_after(if deaths > 0 { self.rng.below(40) } else { u64::MAX });
            deaths = deaths.saturating_sub(1);
            let recovered = recover(&self.space, &left, goes_on, &mut is_back);
            match recovered {
                Ok(recovered) if !self.space.is_off() => break recovered,
                Err(failure) if !self.space.is_off() => panic!("HARNESS: a recovery fails: {failure:?}"),
                died => drop(died),
            }
            self.space = self.space.snapshot();
        };
        self.space.fail_after(u64::MAX);
        assert!(self.is_one_of(&self.model, after), "HARNESS: what was acknowledged has changed with a death");
        self.model = self.held();
        let left_over = self.left_over();
        assert!(left_over.is_empty(), "HARNESS: data of files that are gone: {left_over:?}");
    }
}

fn die_again_and_again(seed: u64) {
    let mut run = Run::new(seed);
    for _ in 0..DEATHS {
        for _ in 0..run.rng.below(12) {
            let (model, done) = run.operation();
            done.unwrap();
            run.model = model;
        }
        // In every second case in the middle of an operation.
        let mut after = run.model.clone();
        if run.rng.coin() {
            run.space.fail_after(run.rng.below(8));
            let (model, done) = run.operation();
            if done.is_ok() {
                run.model.clone_from(&model);
            }
            after = model;
        }
        run.die(&after);
    }
    run.tree.close().unwrap();
    let Run { space, tree, journal, model, rng, nodes } = run;
    drop(tree);
    let tree = Tree::open(space.clone(), OPTIONS).unwrap();
    let mut run = Run { space, tree, journal, model, rng, nodes };
    run.tree.commit().unwrap();
    assert_eq!(run.tree.check().unwrap(), Vec::<String>::new(), "HARNESS: seed {seed}");
    assert_eq!(run.held(), run.model, "HARNESS: seed {seed}");
    assert!(run.left_over().is_empty(), "HARNESS: seed {seed}: data of files that are gone");
}

#[test]
fn deaths_in_turn_lose_nothing_and_repeat_nothing() {
    (0..SEEDS).for_each(die_again_and_again);
}

/// A cut interrupted by a death is finished by the next program. If that one dies, too, the one
/// after it must not cut off later data.
#[test]
fn a_cut_is_not_done_again_after_a_second_death() {
    let mut run = Run::new(1);
    let node = run.tree.make(Tree::ROOT, b"a", CALLER, libc::S_IFREG | 0o644, 0, 0).unwrap().0;
    run.tree.write(node, 0, Bytes::from(vec![1; 3 * BLOCK]), false).unwrap();
    run.tree.sync().unwrap();
    // The record of the cut is durable, and the data that it cuts off still exists.
    run.space.fail_after(2);
    let size = SetAttributes { size: Some(5), ..SetAttributes::default() };
    assert!(run.tree.set_attributes(node, &size).is_err());
    let cut: Model = [(NAMES[0], vec![1; 5])].into();
    run.model.clone_from(&cut);
    run.die(&cut);
    run.tree.write(node, 5, Bytes::from(vec![2; 3 * BLOCK]), false).unwrap();
    run.model = [(NAMES[0], [vec![1; 5], vec![2; 3 * BLOCK]].concat())].into();
    let written = run.model.clone();
    run.die(&written);
    assert_eq!(run.held(), written);
}

/// A file was removed, and all of it is durable. The space's record of it must disappear with the
/// tree's discards, and not with some later flush, because there is none.
#[test]
fn an_idle_program_that_dies_leaves_nothing_of_a_file_that_is_gone() {
    let mut run = Run::new(1);
    let node = run.tree.make(Tree::ROOT, b"a", CALLER, libc::S_IFREG | 0o644, 0, 0).unwrap().0;
    run.tree.write(node, 0, Bytes::from(vec![1; 3 * BLOCK]), false).unwrap();
    run.tree.commit().unwrap();
    assert!(run.space.files().contains(&node));
    run.tree.unlink(Tree::ROOT, b"a").unwrap();
    run.tree.forget(node).unwrap();
    run.tree.commit().unwrap();
    run.die(&Model::new());
    assert!(!run.space.files().contains(&node));
}

/// Changes that the database has are not restored, and records that the program makes on its own
/// are not counted.
#[test]
fn only_changes_that_were_lost_without_the_journal_are_counted() {
    let run = Run::new(1);
    let brought_back = || {
        let left = run.journal.left();
        let tree = Tree::take_over(run.space.snapshot(), OPTIONS, &left).unwrap();
        (tree.brought_back(), left.records.len() as u64)
    };
    let make = |name| run.tree.make(Tree::ROOT, name, CALLER, libc::S_IFREG | 0o644, 0, 0).unwrap().0;
    let gone = make(b"a");
    run.tree.write(gone, 0, Bytes::from(vec![1; 3 * BLOCK]), false).unwrap();
    make(b"b");
    assert_eq!(brought_back(), (3, 3));
    run.tree.commit().unwrap();
    assert_eq!(brought_back(), (0, 3));
    run.tree.unlink(Tree::ROOT, b"a").unwrap();
    run.tree.forget(gone).unwrap();
    assert_eq!(brought_back(), (2, 5));
    run.tree.commit().unwrap();
    // Two of the last commit, followed by the record that the data was discarded.
    assert_eq!(brought_back(), (0, 3));
    make(b"c");
    assert_eq!(brought_back(), (1, 4));
}

#[test]
fn planted_bugs_are_caught() {
    for name in ["cut-done-again", "discards-not-finished"] {
        share::canary::plant(Some(name));
        let ran = catch_unwind(|| (0..SEEDS).for_each(die_again_and_again));
        share::canary::plant(None);
        let said = ran.err().unwrap_or_else(|| panic!("NOT CAUGHT: {name}"));
        let text = said.downcast_ref::<String>().cloned();
        let text = text.or_else(|| said.downcast_ref::<&str>().map(|&text| text.to_owned())).unwrap_or_default();
        assert!(text.contains("HARNESS:"), "NOT CAUGHT: {name} failed otherwise: {text}");
    }
}
