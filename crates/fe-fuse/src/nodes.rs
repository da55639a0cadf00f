//! Which inode number belongs to which name, and what the kernel still refers to.
//!
//! A number is a hash of the name: it is the same after a restart, and for every mount of the same set, which is
//! what backup tools and NFS want of an inode number. Numbers that collide take the next free one, in the order of
//! their lookup. Does not know devices.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// The root directory, fixed by the protocol.
pub(crate) const ROOT_INO: u64 = 1;

/// A file that the kernel knows, or that was written while it did.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) ino: u64,
    pub(crate) name: String,
    /// Time of the last change through this mount, in nanoseconds since 1970; 0 if there was none.
    changed_unix_ns: AtomicU64,
    created_unix_s: AtomicU64,
}

impl Node {
    fn new(ino: u64, name: &str) -> Arc<Self> {
        let (changed_unix_ns, created_unix_s) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Self { ino, name: name.to_owned(), changed_unix_ns, created_unix_s })
    }

    /// When the device was created, as of the last lookup: another one may have taken its name since.
    pub(crate) fn created_unix_s(&self) -> u64 {
        self.created_unix_s.load(Ordering::Relaxed)
    }

    /// Notes a change at that time.
    pub(crate) fn changed(&self, unix_ns: u64) {
        self.changed_unix_ns.store(unix_ns, Ordering::Relaxed);
    }

    /// Time of the last change through this mount, if there was one.
    pub(crate) fn changed_unix_ns(&self) -> Option<u64> {
        Some(self.changed_unix_ns.load(Ordering::Relaxed)).filter(|&ns| ns != 0)
    }
}

#[derive(Debug)]
struct Entry {
    node: Arc<Node>,
    /// How often the kernel was told of it, less what it forgot.
    lookups: u64,
}

/// All nodes. Its size is bounded by what the kernel refers to plus the devices that exist: an entry goes when
/// the kernel has forgotten it and its modification time tells nothing, or its device is gone.
#[derive(Debug, Default)]
pub(crate) struct Nodes {
    by_ino: Mutex<HashMap<u64, Entry>>,
}

/// FNV-1a, 64 bits (Fowler, Noll, Vo; offset basis and prime of the reference), kept clear of 0 and the root's number.
fn first_ino(name: &str) -> u64 {
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    hash.max(ROOT_INO + 1)
}

fn next_ino(ino: u64) -> u64 {
    ino.wrapping_add(1).max(ROOT_INO + 1)
}

impl Nodes {
    /// The node of that number, if the kernel was told of it.
    pub(crate) fn get(&self, ino: u64) -> Option<Arc<Node>> {
        self.by_ino.lock().get(&ino).map(|entry| entry.node.clone())
    }

    /// The number that `name` has, or would get now, and when it was last changed.
    pub(crate) fn peek(&self, name: &str) -> (u64, Option<u64>) {
        let by_ino = self.by_ino.lock();
        let mut ino = first_ino(name);
        loop {
            match by_ino.get(&ino) {
                None => return (ino, None),
                Some(entry) if entry.node.name == name => return (ino, entry.node.changed_unix_ns()),
                Some(_) => ino = next_ino(ino),
            }
        }
    }

    /// The kernel is about to be told of `name`: counts it.
    pub(crate) fn looked_up(&self, name: &str, created_unix_s: u64) -> Arc<Node> {
        let mut by_ino = self.by_ino.lock();
        let mut ino = first_ino(name);
        loop {
            let entry = by_ino.entry(ino).or_insert_with(|| Entry { node: Node::new(ino, name), lookups: 0 });
            if entry.node.name == name {
                entry.node.created_unix_s.store(created_unix_s, Ordering::Relaxed);
                entry.lookups += 1;
                return entry.node.clone();
            }
            ino = next_ino(ino);
        }
    }

    /// The kernel forgot `count` lookups of it.
    pub(crate) fn forget(&self, ino: u64, count: u64) {
        let mut by_ino = self.by_ino.lock();
        if let Some(entry) = by_ino.get_mut(&ino) {
            entry.lookups = entry.lookups.saturating_sub(count);
            if entry.lookups == 0 && entry.node.changed_unix_ns().is_none() {
                by_ino.remove(&ino);
            }
        }
    }

    /// Drops what the kernel forgot and `exists` does not confirm.
    pub(crate) fn retain(&self, exists: impl Fn(&str) -> bool) {
        self.by_ino.lock().retain(|_, entry| entry.lookups > 0 || exists(&entry.node.name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_outlives_the_table() {
        let (a, b) = (Nodes::default(), Nodes::default());
        b.looked_up("other", 5);
        let ino = a.looked_up("vol", 5).ino;
        assert_eq!(ino, b.looked_up("vol", 5).ino);
        assert_eq!(ino, b.peek("vol").0);
    }

    #[test]
    fn colliding_names_get_different_numbers() {
        let nodes = Nodes::default();
        let ino = first_ino("vol");
        nodes.by_ino.lock().insert(ino, Entry { node: Node::new(ino, "squatter"), lookups: 1 });
        let vol = nodes.looked_up("vol", 5);
        assert_eq!(vol.ino, ino + 1);
        assert_eq!(nodes.peek("vol").0, ino + 1);
        assert_eq!(nodes.get(ino + 1).unwrap().name, "vol");
        assert_eq!(nodes.get(ino).unwrap().name, "squatter");
    }

    #[test]
    fn forgotten_nodes_go_unless_they_were_changed() {
        let nodes = Nodes::default();
        let plain = nodes.looked_up("plain", 5).ino;
        nodes.looked_up("plain", 5);
        nodes.forget(plain, 1);
        assert!(nodes.get(plain).is_some());
        nodes.forget(plain, 1);
        assert!(nodes.get(plain).is_none());

        let written = nodes.looked_up("written", 5);
        written.changed(7);
        nodes.forget(written.ino, 1);
        assert_eq!(nodes.peek("written"), (written.ino, Some(7)));
        nodes.retain(|name| name == "written");
        assert!(nodes.get(written.ino).is_some());
        nodes.retain(|_| false);
        assert!(nodes.get(written.ino).is_none());
    }

    #[test]
    fn what_the_kernel_refers_to_is_kept() {
        let nodes = Nodes::default();
        let held = nodes.looked_up("held", 5).ino;
        nodes.retain(|_| false);
        assert!(nodes.get(held).is_some());
    }
}
