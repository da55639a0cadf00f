//! Documents of the operations on images: clones of blobs and pushes to them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A version of a blob that becomes the initial content of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImageAddress {
    /// URL without version.
    pub location: String,
    /// The incarnation, in 32 hexadecimal digits.
    pub incarnation: String,
    /// The version.
    pub version: u64,
    /// Size of that version.
    pub size_bytes: u64,
}

/// A snapshot that becomes a version of a blob.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PushWish {
    /// `VOLUME@SNAPSHOT`.
    pub snapshot: String,
    /// URL of the blob that the volume was cloned from or pushed to, or of a new one.
    pub url: String,
    /// URL of the blob that gets the version; null: that of `url`.
    pub to: Option<String>,
    /// Replaces a newer version.
    #[serde(default)]
    pub replace: bool,
    /// Message for the blob's log.
    #[serde(default)]
    pub message: String,
    /// Properties for groups that are compressed again.
    #[serde(default)]
    pub properties: BTreeMap<String, String>,
}

/// Result of a push.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PushedLine {
    /// URL of the blob.
    pub blob: String,
    /// The new version; equal to `base_version` if nothing was changed.
    pub version: u64,
    /// The version that it is based on; 0: none.
    pub base_version: u64,
    /// Whether an earlier push had made this version.
    pub earlier: bool,
    /// Groups that changed.
    pub groups: u64,
    /// Changed groups that were copied as they are stored.
    pub as_stored: u64,
    /// Changed groups that became holes.
    pub holes: u64,
    /// Bytes of the changed groups, 128 KiB each.
    pub bytes: u64,
    /// Their bytes in the store.
    pub stored_bytes: u64,
}
