//! Inode numbers of devices, and the kernel's references to them.
//!
//! A number is derived from the device's permanent number in its set: it is the same after a
//! restart, and in every mount of the same set, as backup tools and NFS expect of an inode number;
//! it survives a rename, and is never reused. (If it were derived from a name, the kernel would
//! invalidate the open files of a device as soon as another one took the name.) Does not know
//! devices.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use surface::DeviceId;

/// The root directory, fixed by the protocol.
pub(crate) const ROOT_INO: u64 = 1;

/// Inode number of device 0. A set numbers its devices consecutively, so none comes near the end.
const FIRST_INO: u64 = ROOT_INO + 1;

/// The device of an inode number; `None` for the root directory's.
pub(crate) const fn device_of(ino: u64) -> Option<DeviceId> {
    if ino < FIRST_INO { None } else { Some(DeviceId(ino - FIRST_INO)) }
}

/// The inode number of a device.
pub(crate) const fn ino_of(id: DeviceId) -> u64 {
    id.0.saturating_add(FIRST_INO)
}

/// A file that the kernel knows, or that was written while it did.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) id: DeviceId,
    /// When the device was created.
    pub(crate) created_unix_s: u64,
    /// As of the last lookup.
    name: Mutex<String>,
    /// Time of the last change through this mount, in nanoseconds since 1970; 0 if there was none.
    changed_unix_ns: AtomicU64,
}

impl Node {
    fn new(id: DeviceId, created_unix_s: u64) -> Arc<Self> {
        Arc::new(Self { id, created_unix_s, name: Mutex::default(), changed_unix_ns: AtomicU64::new(0) })
    }

    pub(crate) fn ino(&self) -> u64 {
        ino_of(self.id)
    }

    /// Its name as of the last lookup, for messages.
    pub(crate) fn name(&self) -> String {
        self.name.lock().clone()
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
    /// How often the kernel looked it up, less the lookups that it forgot.
    lookups: u64,
}

/// All nodes. Their number is bounded by the kernel's references plus the existing devices: an
/// entry is removed when the kernel has forgotten it and it has no modification time, or its device
/// is gone.
#[derive(Debug, Default)]
pub(crate) struct Nodes {
    by_ino: Mutex<HashMap<u64, Entry>>,
}

impl Nodes {
    /// Returns the node with that number, if the kernel knows it.
    pub(crate) fn get(&self, ino: u64) -> Option<Arc<Node>> {
        self.by_ino.lock().get(&ino).map(|entry| entry.node.clone())
    }

    /// Counts a lookup of a device by the kernel.
    pub(crate) fn looked_up(&self, id: DeviceId, name: &str, created_unix_s: u64) -> Arc<Node> {
        let mut by_ino = self.by_ino.lock();
        let new = || Entry { node: Node::new(id, created_unix_s), lookups: 0 };
        let entry = by_ino.entry(ino_of(id)).or_insert_with(new);
        entry.lookups += 1;
        let node = entry.node.clone();
        drop(by_ino);
        name.clone_into(&mut node.name.lock());
        node
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

    /// Removes nodes that the kernel forgot and `exists` does not confirm.
    pub(crate) fn retain(&self, exists: impl Fn(DeviceId) -> bool) {
        self.by_ino.lock().retain(|_, entry| entry.lookups > 0 || exists(entry.node.id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: DeviceId = DeviceId(7);

    #[test]
    fn the_number_outlives_the_table_and_the_name() {
        let (a, b) = (Nodes::default(), Nodes::default());
        b.looked_up(DeviceId(0), "other", 5);
        let node = a.looked_up(ID, "vol", 5);
        assert_eq!(node.ino(), b.looked_up(ID, "vol", 5).ino());
        assert_eq!(node.ino(), a.looked_up(ID, "new", 5).ino());
        assert_eq!(node.name(), "new");
        assert!(ino_of(DeviceId(0)) > ROOT_INO);
        assert_ne!(node.ino(), a.looked_up(DeviceId(8), "vol", 5).ino());
    }

    #[test]
    fn forgotten_nodes_go_unless_they_were_changed() {
        let nodes = Nodes::default();
        let plain = nodes.looked_up(DeviceId(1), "plain", 5).ino();
        nodes.looked_up(DeviceId(1), "plain", 5);
        nodes.forget(plain, 1);
        assert!(nodes.get(plain).is_some());
        nodes.forget(plain, 1);
        assert!(nodes.get(plain).is_none());

        let written = nodes.looked_up(DeviceId(2), "written", 5);
        written.changed(9);
        nodes.forget(written.ino(), 1);
        assert_eq!(nodes.get(written.ino()).unwrap().changed_unix_ns(), Some(9));
        nodes.retain(|id| id == DeviceId(2));
        assert!(nodes.get(written.ino()).is_some());
        nodes.retain(|_| false);
        assert!(nodes.get(written.ino()).is_none());
    }

    #[test]
    fn what_the_kernel_refers_to_is_kept() {
        let nodes = Nodes::default();
        let held = nodes.looked_up(ID, "held", 5).ino();
        nodes.retain(|_| false);
        assert!(nodes.get(held).is_some());
    }
}
