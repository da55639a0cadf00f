//! A POSIX tree in memory, as simple as possible: the reference for the real one.

use std::collections::BTreeMap;

pub const BLOCK: usize = 4096;

/// Content of a file or directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub mode: u32,
    pub uid: u32,
    pub content: Vec<u8>,
    pub target: Vec<u8>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Of a directory: its names.
    pub names: BTreeMap<Vec<u8>, u64>,
    pub parent: u64,
    /// Whether the kernel still refers to it.
    pub is_held: bool,
}

/// All nodes, by the numbers that the real tree gave them.
#[derive(Debug, Clone, Default)]
pub struct Model {
    pub nodes: BTreeMap<u64, Node>,
}

pub type Outcome<T> = Result<T, i32>;

impl Model {
    pub fn new(root: u64) -> Self {
        let mut model = Self::default();
        model.nodes.insert(root, Self::node(libc::S_IFDIR | 0o755, 0, root));
        model
    }

    pub fn node(mode: u32, uid: u32, parent: u64) -> Node {
        Node {
            mode,
            uid,
            content: Vec::new(),
            target: Vec::new(),
            xattrs: BTreeMap::new(),
            names: BTreeMap::new(),
            parent,
            is_held: true,
        }
    }

    pub fn is_directory(&self, node: u64) -> bool {
        self.nodes[&node].mode & libc::S_IFMT == libc::S_IFDIR
    }

    pub fn links(&self, node: u64) -> u32 {
        let names = self.nodes.values().flat_map(|other| other.names.values()).filter(|&&named| named == node).count();
        if !self.is_directory(node) {
            return names as u32;
        }
        if names == 0 && node != share::Tree::ROOT {
            return 0;
        }
        2 + self.nodes[&node].names.values().filter(|&&named| self.is_directory(named)).count() as u32
    }

    fn is_living(&self, directory: u64) -> bool {
        self.links(directory) > 0
    }

    pub fn find(&self, directory: u64, name: &[u8]) -> Option<u64> {
        self.nodes[&directory].names.get(name).copied()
    }

    /// Whether a name may be created there.
    pub fn may_make(&self, directory: u64, name: &[u8]) -> Outcome<()> {
        match () {
            () if !self.is_living(directory) => Err(libc::ENOENT),
            () if self.find(directory, name).is_some() => Err(libc::EEXIST),
            () => Ok(()),
        }
    }

    pub fn name(&mut self, directory: u64, name: &[u8], node: u64) {
        self.nodes.get_mut(&directory).unwrap().names.insert(name.to_vec(), node);
    }

    pub fn remove(&mut self, directory: u64, name: &[u8], wants_directory: bool) -> Outcome<u64> {
        if !self.is_living(directory) {
            return Err(libc::ENOENT);
        }
        let node = self.find(directory, name).ok_or(libc::ENOENT)?;
        match (wants_directory, self.is_directory(node)) {
            (true, false) => return Err(libc::ENOTDIR),
            (false, true) => return Err(libc::EISDIR),
            (true, true) if !self.nodes[&node].names.is_empty() => return Err(libc::ENOTEMPTY),
            _ => {}
        }
        self.nodes.get_mut(&directory).unwrap().names.remove(name);
        Ok(node)
    }

    fn is_within(&self, mut directory: u64, ancestor: u64) -> bool {
        loop {
            if directory == ancestor {
                return true;
            }
            if directory == share::Tree::ROOT {
                return false;
            }
            directory = self.nodes[&directory].parent;
        }
    }

    pub fn rename(&mut self, from: u64, name: &[u8], to: u64, new_name: &[u8], flags: u32) -> Outcome<()> {
        if !self.is_living(from) || !self.is_living(to) {
            return Err(libc::ENOENT);
        }
        let moved = self.find(from, name).ok_or(libc::ENOENT)?;
        let there = self.find(to, new_name);
        if flags & libc::RENAME_NOREPLACE != 0 && there.is_some() {
            return Err(libc::EEXIST);
        }
        if self.is_directory(moved) && self.is_within(to, moved) {
            return Err(libc::EINVAL);
        }
        if flags & libc::RENAME_EXCHANGE != 0 {
            let other = there.ok_or(libc::ENOENT)?;
            if self.is_directory(other) && self.is_within(from, other) {
                return Err(libc::EINVAL);
            }
            self.put_in(to, new_name, moved);
            self.put_in(from, name, other);
            return Ok(());
        }
        if there == Some(moved) {
            return Ok(());
        }
        if let Some(other) = there {
            match (self.is_directory(moved), self.is_directory(other)) {
                (true, false) => return Err(libc::ENOTDIR),
                (false, true) => return Err(libc::EISDIR),
                (true, true) if !self.nodes[&other].names.is_empty() => return Err(libc::ENOTEMPTY),
                _ => {}
            }
        }
        self.nodes.get_mut(&from).unwrap().names.remove(name);
        self.put_in(to, new_name, moved);
        Ok(())
    }

    fn put_in(&mut self, directory: u64, name: &[u8], node: u64) {
        self.name(directory, name, node);
        if self.is_directory(node) {
            self.nodes.get_mut(&node).unwrap().parent = directory;
        }
    }

    /// Whether nothing but the content of a file differs from an earlier state, and not its length.
    pub fn is_overwritten(&self, node: u64, before: &Self) -> bool {
        let names = |model: &Self| {
            let named = |(&directory, of): (&u64, &Node)| {
                let names = of.names.iter().filter(|&(_, &named)| named == node).map(|(name, _)| name.clone());
                (directory, names.collect::<Vec<_>>())
            };
            model.nodes.iter().map(named).filter(|(_, names)| !names.is_empty()).collect::<Vec<_>>()
        };
        let (now, Some(was)) = (&self.nodes[&node], before.nodes.get(&node)) else { return false };
        let same = Node { content: was.content.clone(), is_held: was.is_held, ..now.clone() };
        same == *was && now.content.len() == was.content.len() && names(self) == names(before)
    }

    /// Forgets nodes that have no name and are not held.
    pub fn forget(&mut self, node: u64) {
        if self.links(node) == 0 {
            self.nodes.remove(&node);
        } else {
            self.nodes.get_mut(&node).unwrap().is_held = false;
        }
    }

    /// As after opening it again: without nodes that have no name.
    pub fn reopened(&self) -> Self {
        let mut model = self.clone();
        // A directory that goes has no names, so that once is enough.
        model.nodes.retain(|&node, _| node == share::Tree::ROOT || self.links(node) > 0);
        model
    }
}
