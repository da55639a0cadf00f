//! Operations on the table of volumes, and its observable state. Each is durable when it returns;
//! the one in flight at a crash may or may not have happened.

use std::collections::BTreeMap;

/// A change of the table of volumes or of properties.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TableOp {
    /// A new volume, all zeroes.
    Create {
        /// Name.
        name: String,
        /// Size in bytes.
        size_bytes: u64,
        /// Properties set on it.
        properties: BTreeMap<String, String>,
    },
    /// A new folder.
    CreateFolder {
        /// Name.
        name: String,
        /// Properties set on it.
        properties: BTreeMap<String, String>,
    },
    /// A volume goes, with its snapshots; or a folder does, with everything in it; or a snapshot
    /// does.
    Destroy {
        /// Name.
        name: String,
    },
    /// Keeps a volume's state.
    Snapshot {
        /// The volume.
        volume: String,
        /// The part of the name after the `@`.
        name: String,
    },
    /// Keeps the states of all volumes in a folder, at one point in time.
    SnapshotFolder {
        /// The folder.
        folder: String,
        /// The part of the names after the `@`.
        name: String,
    },
    /// A new volume, as a snapshot is.
    Clone {
        /// Full name of the snapshot.
        snapshot: String,
        /// Name.
        name: String,
        /// Properties set on it in addition to those of the snapshot's volume.
        properties: BTreeMap<String, String>,
    },
    /// Reverts a volume to one of its snapshots; newer snapshots are destroyed.
    Rollback {
        /// Full name of the snapshot.
        snapshot: String,
    },
    /// A volume, a folder or a snapshot gets another name.
    Rename {
        /// Name.
        old: String,
        /// New name.
        new: String,
    },
    /// A clone takes over the snapshots in its past.
    Promote {
        /// Name.
        name: String,
    },
    /// A volume gets another size.
    Resize {
        /// Name.
        name: String,
        /// New size in bytes.
        size_bytes: u64,
    },
    /// Properties are set or unset on a volume, or on the pool.
    Set {
        /// The volume or the folder; `None` is the pool.
        name: Option<String>,
        /// Key, and value or `None` to unset.
        changes: Vec<(String, Option<String>)>,
    },
}

/// One volume, snapshot or folder as observed after a start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    /// Size in bytes; 0 of a folder.
    pub size_bytes: u64,
    /// Properties set on the volume or the folder itself.
    pub properties: BTreeMap<String, String>,
    /// Whether it is a snapshot.
    pub is_snapshot: bool,
    /// Number of snapshots and rollbacks that a volume has seen; 0 for a snapshot.
    pub epoch: u32,
}

/// Applies changes to a set of properties.
pub(crate) fn apply_properties(to: &mut BTreeMap<String, String>, changes: &[(String, Option<String>)]) {
    for (key, value) in changes {
        match value {
            Some(value) => to.insert(key.clone(), value.clone()),
            None => to.remove(key),
        };
    }
}
