//! Random operations on the tree and the model, and the comparison of both.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use share::{Caller, Failure, Options, RECORD_CONTENT_BYTES_MAX, SetAttributes, SetId, Time, Tree};
use sim::Rng;
use surface::OWN_FILES_END;

use crate::compare::compare;
use crate::ground::Ground;
use crate::model::{BLOCK, Model, Outcome};

pub const OPTIONS: Options = Options { now: || Time { seconds: 1_800_000_000, nanoseconds: 5 }, cache_bytes: 1 << 20 };

const CALLER: Caller = Caller { uid: 1000, gid: 100 };

/// A tree under test, its model, and the states that a loss of power may leave.
pub struct Run<G> {
    pub space: G,
    pub tree: Tree,
    pub model: Model,
    pub rng: Rng,
    /// The state that the last commit made durable.
    pub durable: Model,
    /// Contents that blocks have had since, by node and block.
    pub later: BTreeMap<(u64, usize), BTreeSet<Vec<u8>>>,
    /// Blocks that a write has since reached past the former end of the file.
    grown: BTreeSet<(u64, usize)>,
    /// Blocks of which a refused write may have changed the content, which no sync has made durable
    /// since: such a write leaves nothing to commit.
    unsynced: BTreeSet<(u64, usize)>,
    /// States since then, if any of them may have been made durable: in a tight space a commit
    /// comes before many operations.
    between: Vec<Model>,
    seed: u64,
    /// The highest number ever assigned.
    highest: u64,
}

/// Compares the two results; returns the error if they agree on one. `None`: the power is off.
fn agree<T>(real: share::Result<T>, model: Outcome<()>, space: &impl Ground, what: &str) -> Option<Result<T, i32>> {
    if space.is_off() {
        return None;
    }
    match (real, model) {
        (Ok(value), Ok(())) => Some(Ok(value)),
        // In a full space any request for space may be refused, and has no effect then.
        (Err(failure), _) if failure.errno() == libc::ENOSPC && space.is_limited() => Some(Err(libc::ENOSPC)),
        (Err(failure), Err(errno)) if failure.errno() == errno => Some(Err(errno)),
        (real, model) => {
            panic!("HARNESS: {what}: the tree says {:?}, the model {model:?}", real.map(|_| ()).map_err(Failure::errno))
        }
    }
}

impl<G: Ground> Run<G> {
    pub fn new(seed: u64) -> Self {
        let space = G::new(seed);
        let tree = Tree::create(space.space(), seed, OPTIONS).unwrap();
        let model = Model::new(Tree::ROOT);
        Self {
            space,
            tree,
            durable: model.clone(),
            model,
            rng: Rng::new(seed),
            later: BTreeMap::new(),
            grown: BTreeSet::new(),
            unsynced: BTreeSet::new(),
            between: Vec::new(),
            seed,
            highest: 0,
        }
    }

    fn directory(&mut self) -> u64 {
        let all: Vec<u64> = self.model.nodes.keys().copied().filter(|&node| self.model.is_directory(node)).collect();
        *self.rng.pick(&all)
    }

    fn any(&mut self) -> u64 {
        let all: Vec<u64> = self.model.nodes.keys().copied().collect();
        *self.rng.pick(&all)
    }

    fn file(&mut self) -> Option<u64> {
        let is_file = |node: &u64| self.model.nodes[node].mode & libc::S_IFMT == libc::S_IFREG;
        let all: Vec<u64> = self.model.nodes.keys().copied().filter(is_file).collect();
        if all.is_empty() { None } else { Some(*self.rng.pick(&all)) }
    }

    fn a_name(&mut self) -> Vec<u8> {
        let names: [&[u8]; 6] = [b"a", b"b", b"c", b"longer name with spaces", "ümläut".as_bytes(), &[0xff, 0xfe]];
        self.rng.pick(&names).to_vec()
    }

    /// A content of random length; now and then of whole blocks.
    fn some_bytes(&mut self) -> Vec<u8> {
        let length = match self.rng.below(10) {
            // In the inode's record, if the file is as short.
            0..4 => self.rng.below(RECORD_CONTENT_BYTES_MAX + 10),
            4..7 => self.rng.below(3 * BLOCK as u64),
            _ => BLOCK as u64 * self.rng.below(3),
        };
        let mut bytes = vec![0; length as usize + 1];
        self.rng.fill(&mut bytes);
        bytes
    }

    /// Notes that a write ends at `end` of a file that has `before` bytes.
    fn note_growth(&mut self, node: u64, before: usize, end: usize) {
        if end > before {
            self.grown.extend((before / BLOCK..=(end - 1) / BLOCK).map(|block| (node, block)));
        }
    }

    /// Records the current content of a file's blocks.
    fn note_blocks(&mut self, node: u64) {
        let content = &self.model.nodes[&node].content;
        for (block, bytes) in content.chunks(BLOCK).enumerate() {
            let mut bytes = bytes.to_vec();
            bytes.resize(BLOCK, 0);
            self.later.entry((node, block)).or_default().insert(bytes);
        }
    }

    /// The space has little room from now on.
    pub fn be_tight(&mut self) {
        self.space.limit(&mut self.rng);
    }

    /// All of it is durable.
    pub fn committed(&mut self) {
        self.unsynced.clear();
        self.names_committed();
    }

    /// All of it is durable, except for what refused writes have left.
    fn names_committed(&mut self) {
        self.durable = self.model.clone();
        self.later.retain(|place, _| self.unsynced.contains(place));
        self.grown.clear();
        self.between.clear();
    }

    /// Runs one operation; `false` if the power has failed.
    pub fn step(&mut self) -> bool {
        if self.space.is_tight() {
            self.between.push(self.model.clone());
        }
        let done = match self.rng.below(100) {
            0..18 => self.make(),
            18..38 => self.write(),
            38..45 => self.truncate(),
            45..50 => self.punch(),
            50..60 => self.remove(),
            60..70 => self.rename(),
            70..75 => self.link(),
            75..80 => self.xattr(),
            80..84 => self.chmod(),
            84..88 => self.forget(),
            88..90 => self.sync_data(),
            90..93 => self.copy(),
            93 => self.nameless(),
            94 => self.snapshot(),
            95 => self.commit(),
            _ => self.sync(),
        };
        done.is_some()
    }

    fn given_out(&mut self, node: u64) {
        assert!(node > self.highest, "HARNESS: number {node} is given out after {}", self.highest);
        self.highest = node;
    }

    fn make(&mut self) -> Option<()> {
        let (directory, name) = (self.directory(), self.a_name());
        let mode =
            *self.rng.pick(&[libc::S_IFREG | 0o644, libc::S_IFREG | 0o600, libc::S_IFDIR | 0o755, libc::S_IFLNK]);
        let may = self.model.may_make(directory, &name);
        let (made, target) = if mode == libc::S_IFLNK {
            (self.tree.make_link(directory, &name, CALLER, b"target/of it"), &b"target/of it"[..])
        } else {
            (self.tree.make(directory, &name, CALLER, mode, 0o022, 0), &b""[..])
        };
        if let Ok((node, inode)) = agree(made, may, &self.space, "make")? {
            let mut new = Model::node(inode.mode, CALLER.uid, directory);
            new.target = target.to_vec();
            self.given_out(node);
            self.model.nodes.insert(node, new);
            self.model.name(directory, &name, node);
        }
        Some(())
    }

    fn nameless(&mut self) -> Option<()> {
        let directory = self.directory();
        let may = if self.model.links(directory) > 0 { Ok(()) } else { Err(libc::ENOENT) };
        let made = self.tree.make_nameless(directory, CALLER, 0o600, 0);
        if let Ok((node, inode)) = agree(made, may, &self.space, "make without a name")? {
            self.given_out(node);
            self.model.nodes.insert(node, Model::node(inode.mode, CALLER.uid, directory));
        }
        Some(())
    }

    fn write(&mut self) -> Option<()> {
        let Some(node) = self.file() else { return Some(()) };
        let bytes = self.some_bytes();
        let offset = match self.rng.below(10) {
            0..=2 => self.rng.below(RECORD_CONTENT_BYTES_MAX + 10),
            3..=6 => self.rng.below(5) * BLOCK as u64,
            _ => self.rng.below(5 * BLOCK as u64),
        } as usize;
        // The possible remains of a truncated write count as written.
        let content = &mut self.model.nodes.get_mut(&node).unwrap().content;
        let before = content.clone();
        content.resize(content.len().max(offset + bytes.len()), 0);
        content[offset..offset + bytes.len()].copy_from_slice(&bytes);
        self.note_growth(node, before.len(), offset + bytes.len());
        self.note_blocks(node);
        let written = self.tree.write(node, offset as u64, Bytes::from(bytes), false);
        if self.space.is_off() {
            self.model.nodes.get_mut(&node).unwrap().content = before;
            return None;
        }
        self.unless_full(node, before, written);
        Some(())
    }

    /// The state after a change of a file's content that failed for lack of space: the previous
    /// content, or some blocks of the new one. The model continues with that.
    fn unless_full<T>(&mut self, node: u64, before: Vec<u8>, done: share::Result<T>) {
        let Err(failure) = done else { return };
        assert!(
            failure.errno() == libc::ENOSPC && self.space.is_limited(),
            "HARNESS: a change of content: {failure:?}"
        );
        let wanted = self.model.nodes[&node].content.clone();
        let size = self.tree.inode(node).unwrap().size as usize;
        assert!([before.len(), wanted.len()].contains(&size), "HARNESS: {size} bytes after a change that was refused");
        let mut content = vec![0; size];
        assert_eq!(self.tree.read(node, 0, &mut content).unwrap_or(0), size);
        for (block, bytes) in content.chunks(BLOCK).enumerate() {
            let is_of = |version: &[u8]| {
                let version = version.chunks(BLOCK).nth(block).unwrap_or_default();
                bytes.iter().zip(version.iter().chain(std::iter::repeat(&0))).all(|(is, was)| is == was)
            };
            assert!(is_of(&before) || is_of(&wanted), "HARNESS: block {block} after a change that was refused");
            if !is_of(&before) {
                let mut old = before.chunks(BLOCK).nth(block).unwrap_or_default().to_vec();
                old.resize(BLOCK, 0);
                self.later.entry((node, block)).or_default().insert(old);
                self.unsynced.insert((node, block));
            }
        }
        self.model.nodes.get_mut(&node).unwrap().content = content;
    }

    fn truncate(&mut self) -> Option<()> {
        let Some(node) = self.file() else { return Some(()) };
        let size = match self.rng.below(10) {
            0..5 => 0,
            5..7 => self.rng.below(RECORD_CONTENT_BYTES_MAX + 10),
            _ => self.rng.below(6 * BLOCK as u64),
        };
        let before = self.model.nodes[&node].content.clone();
        let length = before.len() as u64;
        let set = SetAttributes { size: Some(size), ..SetAttributes::default() };
        // Such a cut is durable when it returns, with everything before it; it may already be
        // durable if the power fails during it. A content in a record is cut as an attribute is
        // changed.
        let is_in_record = self.tree.inode(node).is_ok_and(|inode| inode.content().is_some());
        let commits = size > 0 && size < length && !is_in_record;
        self.model.nodes.get_mut(&node).unwrap().content.resize(size as usize, 0);
        self.note_blocks(node);
        let done = self.tree.set_attributes(node, &set);
        if self.space.is_off() {
            return None;
        }
        self.unless_full(node, before, done);
        if commits && self.model.nodes[&node].content.len() as u64 == size {
            self.committed();
        }
        Some(())
    }

    fn punch(&mut self) -> Option<()> {
        let Some(node) = self.file() else { return Some(()) };
        let offset = if self.rng.coin() { self.rng.below(600) } else { self.rng.below(4 * BLOCK as u64) };
        let length = 1 + self.rng.below(3 * BLOCK as u64);
        let content = &mut self.model.nodes.get_mut(&node).unwrap().content;
        let before = content.clone();
        let end = content.len().min((offset + length) as usize);
        if let Some(range) = content.get_mut(offset as usize..end) {
            range.fill(0);
        }
        self.note_blocks(node);
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let done = self.tree.allocate(node, offset, length, mode, SetId::Kept);
        if self.space.is_off() {
            return None;
        }
        self.unless_full(node, before, done);
        Some(())
    }

    fn remove(&mut self) -> Option<()> {
        let (directory, name) = (self.directory(), self.a_name());
        let wants_directory = self.rng.percent(40);
        let mut model = self.model.clone();
        let expected = model.remove(directory, &name, wants_directory);
        let real = if wants_directory {
            self.tree.remove_directory(directory, &name)
        } else {
            self.tree.unlink(directory, &name)
        };
        agree(real, expected.map(|_| ()), &self.space, "remove")?.ok();
        self.model = model;
        Some(())
    }

    fn rename(&mut self) -> Option<()> {
        let (from, name, to, new_name) = (self.directory(), self.a_name(), self.directory(), self.a_name());
        let flags = *self.rng.pick(&[0, 0, 0, libc::RENAME_NOREPLACE, libc::RENAME_EXCHANGE]);
        let mut model = self.model.clone();
        let expected = model.rename(from, &name, to, &new_name, flags);
        let real = self.tree.rename(from, &name, to, &new_name, flags);
        if agree(real, expected, &self.space, "rename")?.is_ok() {
            self.model = model;
        }
        Some(())
    }

    fn link(&mut self) -> Option<()> {
        let (node, directory, name) = (self.any(), self.directory(), self.a_name());
        let expected =
            if self.model.is_directory(node) { Err(libc::EPERM) } else { self.model.may_make(directory, &name) };
        let real = self.tree.link(node, directory, &name);
        if agree(real, expected, &self.space, "link")?.is_ok() {
            self.model.name(directory, &name, node);
        }
        Some(())
    }

    fn xattr(&mut self) -> Option<()> {
        let node = self.any();
        let name = self.rng.pick(&[&b"user.a"[..], b"user.b"]).to_vec();
        let had = self.model.nodes[&node].xattrs.contains_key(&name);
        if self.rng.percent(30) {
            let expected = if had { Ok(()) } else { Err(libc::ENODATA) };
            if agree(self.tree.remove_xattr(node, &name), expected, &self.space, "removexattr")?.is_ok() {
                self.model.nodes.get_mut(&node).unwrap().xattrs.remove(&name);
            }
        } else {
            let value = self.some_bytes();
            if agree(self.tree.set_xattr(node, &name, &value, 0, false), Ok(()), &self.space, "setxattr")?.is_ok() {
                self.model.nodes.get_mut(&node).unwrap().xattrs.insert(name, value);
            }
        }
        Some(())
    }

    fn chmod(&mut self) -> Option<()> {
        let node = self.any();
        let mode = self.rng.below(0o1000) as u32;
        let set = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
        if agree(self.tree.set_attributes(node, &set), Ok(()), &self.space, "chmod")?.is_ok() {
            let node = self.model.nodes.get_mut(&node).unwrap();
            node.mode = node.mode & libc::S_IFMT | mode;
        }
        Some(())
    }

    fn forget(&mut self) -> Option<()> {
        let node = self.any();
        agree(self.tree.forget(node), Ok(()), &self.space, "forget")?.ok();
        self.model.forget(node);
        Some(())
    }

    fn copy(&mut self) -> Option<()> {
        let (Some(from), Some(to)) = (self.file(), self.file()) else { return Some(()) };
        let (offset, to_offset) = (self.rng.below(9000), self.rng.below(9000));
        let length = 1 + self.rng.below(9000);
        if from == to {
            return Some(());
        }
        let source = &self.model.nodes[&from].content;
        let piece: Vec<u8> = source.iter().skip(offset as usize).take(length as usize).copied().collect();
        let before = self.model.nodes[&to].content.clone();
        if !piece.is_empty() {
            let content = &mut self.model.nodes.get_mut(&to).unwrap().content;
            content.resize(content.len().max(to_offset as usize + piece.len()), 0);
            content[to_offset as usize..to_offset as usize + piece.len()].copy_from_slice(&piece);
        }
        if !piece.is_empty() {
            self.note_growth(to, before.len(), to_offset as usize + piece.len());
        }
        self.note_blocks(to);
        let done = self.tree.copy_range((from, offset), (to, to_offset), length, SetId::Kept);
        if self.space.is_off() {
            self.model.nodes.get_mut(&to).unwrap().content = before;
            return None;
        }
        let copied = done.map(|done| assert_eq!(done, piece.len() as u64));
        self.unless_full(to, before, copied);
        Some(())
    }

    fn sync(&mut self) -> Option<()> {
        let synced = self.tree.sync();
        if self.space.is_off() {
            return None;
        }
        if agree(synced, Ok(()), &self.space, "sync")?.is_ok() {
            self.committed();
        }
        Some(())
    }

    /// `fdatasync` of a file: of the states that a loss of power might have left, those remain in
    /// which the file differs in nothing but the bytes of its content, which are the current ones.
    /// The current state is one of them: the tree may have found that it needs a record.
    fn sync_data(&mut self) -> Option<()> {
        let Some(node) = self.file() else { return Some(()) };
        let synced = self.tree.sync_data(&[node]);
        if self.space.is_off() {
            return None;
        }
        if agree(synced, Ok(()), &self.space, "fdatasync")?.is_err() {
            return Some(());
        }
        let states = std::iter::once(self.durable.clone()).chain(std::mem::take(&mut self.between));
        let mut left = states.filter(|state| self.model.is_overwritten(node, state)).collect::<Vec<_>>();
        if left.is_empty() {
            self.committed();
            return Some(());
        }
        left.push(self.model.clone());
        let content = &self.model.nodes[&node].content;
        for file in left.iter_mut().filter_map(|state| state.nodes.get_mut(&node)) {
            file.content.clone_from(content);
        }
        self.durable = left.remove(0);
        self.between = left;
        self.later.retain(|(of, _), _| *of != node);
        self.unsynced.retain(|(of, _)| *of != node);
        self.grown.retain(|(of, _)| *of != node);
        Some(())
    }

    /// Background activity.
    fn commit(&mut self) -> Option<()> {
        let committed = self.tree.commit();
        if self.space.is_off() {
            return None;
        }
        if agree(committed, Ok(()), &self.space, "commit")?.is_ok() {
            self.names_committed();
        }
        Some(())
    }

    /// A snapshot has everything that was done before it.
    fn snapshot(&mut self) -> Option<()> {
        let taken = self.tree.snapshot(|| self.space.snapshot());
        if self.space.is_off() {
            return None;
        }
        let Ok(taken) = agree(taken, Ok(()), &self.space, "snapshot")? else { return Some(()) };
        let tree = Tree::open(taken, OPTIONS).unwrap();
        if let Err(difference) = compare(&tree, &self.model.reopened(), |_, _, _| false) {
            panic!("HARNESS: seed {}: in a snapshot {difference}", self.seed);
        }
        self.committed();
        Some(())
    }

    /// Everything in the tree is as in the model.
    pub fn compare(&self) {
        if let Err(difference) = compare(&self.tree, &self.model, |_, _, _| false) {
            panic!("HARNESS: {difference}");
        }
    }

    /// Power returns: the tree must be in a state since the last `fsync`, and continues from there.
    pub fn recover(&mut self) {
        // Unflushed data may have been written or not in many combinations.
        for _ in 1..G::OUTCOMES {
            let space = self.space.after_power_loss(&mut self.rng);
            self.opened(&space);
        }
        let space = self.space.after_power_loss(&mut self.rng);
        (self.tree, self.model) = self.opened(&space);
        self.space = space;
        // The current content of blocks is one of the permitted ones.
        let files: Vec<u64> = self.model.nodes.keys().copied().collect();
        for node in files {
            let length = self.model.nodes[&node].content.len();
            let mut content = vec![0; length];
            if length > 0 {
                assert_eq!(self.tree.read(node, 0, &mut content).unwrap(), length);
            }
            self.model.nodes.get_mut(&node).unwrap().content = content;
        }
        self.committed();
    }

    /// Files of the space that no inode has.
    fn left_over(&self, tree: &Tree, space: &G) -> BTreeSet<u64> {
        let models = [&self.model, &self.durable].into_iter().chain(&self.between);
        let nodes: BTreeSet<u64> = models.flat_map(|model| model.nodes.keys().copied()).collect();
        let known: BTreeSet<u64> =
            nodes.into_iter().filter_map(|node| tree.inode(node).ok()).map(|inode| inode.data_file()).collect();
        let is_left = |file: &u64| *file >= OWN_FILES_END && !known.contains(file);
        space.files().into_iter().filter(is_left).collect()
    }

    /// Opens the state left by a power loss, and identifies it.
    fn opened(&self, space: &G) -> (Tree, Model) {
        let seed = self.seed;
        let tree = Tree::open(space.space(), OPTIONS).unwrap();
        let wrong = tree.check().unwrap();
        assert!(wrong.is_empty(), "HARNESS: seed {seed}: {wrong:?}");
        let left_over = self.left_over(&tree, space);
        assert!(left_over.is_empty(), "HARNESS: seed {seed}: something is left of files that are gone: {left_over:?}");
        let may_be = |node: u64, block: usize, bytes: &[u8]| {
            let versions = self.later.get(&(node, block));
            if versions.is_some_and(|versions| versions.iter().any(|version| version.starts_with(bytes))) {
                return true;
            }
            // Overwritten data may still be there, whatever happened to the names. A size that
            // shows new data is different.
            let before = self.durable.nodes.get(&node).map(|node| &node.content[..]).unwrap_or_default();
            let before = before.chunks(BLOCK).nth(block).unwrap_or_default();
            let old = bytes.iter().zip(before.iter().chain(std::iter::repeat(&0))).all(|(is, was)| is == was);
            old && !self.grown.contains(&(node, block)) && !before.is_empty()
        };
        // The durable state, the last one, and all between, the latest first.
        let between = self.between.iter().rev().map(Model::reopened);
        let states = [self.durable.reopened(), self.model.reopened()].into_iter().chain(between);
        let mut differences = Vec::new();
        for state in states {
            match compare(&tree, &state, may_be) {
                Ok(()) => return (tree, state),
                Err(difference) => differences.push(difference),
            }
        }
        let (first, second) = (&differences[0], &differences[1]);
        panic!("HARNESS: seed {seed}: neither what was durable ({first}) nor what was to be ({second})")
    }
}
