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

/// A job started without another wish continues without its caller.
const fn yes() -> bool {
    true
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
    /// Whether it continues when the connection ends that started it.
    #[serde(default = "yes")]
    pub background: bool,
    /// Message for the blob's log.
    #[serde(default)]
    pub message: String,
    /// Properties for groups that are compressed again.
    #[serde(default)]
    pub properties: BTreeMap<String, String>,
}
