//! The documents of `send` and `receive`: which streams are asked for, and the facts of a stream.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Sending {
    /// The volume that the snapshot is of.
    pub volume: String,
    /// The snapshot's name, without the volume.
    pub snapshot: String,
    /// The snapshot that the receiver must have.
    pub from: Option<String>,
    /// The image on which it hangs, as `URL@VERSION`; none: it is complete.
    pub image: Option<String>,
    /// Bytes of payload of a whole stream, as far as they are known.
    pub expected_bytes: u64,
    /// Byte of the volume at which the stream begins: 0, unless another one broke off.
    pub start_offset: u64,
}

/// What came of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Received {
    /// The volume.
    pub volume: String,
    /// The snapshot that it has now, without the volume.
    pub snapshot: String,
    /// Whether the volume came into being with it.
    pub is_new: bool,
    /// The image on which the volume hangs because of it, as `URL@VERSION`.
    pub image: Option<String>,
    /// Size of the volume.
    pub size_bytes: u64,
    /// Bytes of the stream.
    pub stream_bytes: u64,
    /// Bytes of payload in it.
    pub payload_bytes: u64,
    /// Fragments in it.
    pub fragments: u64,
    /// Bytes that it made zeroes.
    pub hole_bytes: u64,
}

/// Which stream is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SendWish {
    /// `VOLUME@SNAPSHOT`; may be left out with a token.
    pub snapshot: Option<String>,
    /// The snapshot that the receiver has.
    pub from: Option<String>,
    /// A receiver's token.
    pub resume: Option<String>,
    /// Only what differs from the image that the snapshot falls through to; a token says that
    /// itself.
    pub thin: bool,
}

/// Where a stream is to go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReceiveWish {
    /// Volume.
    pub volume: String,
    /// Properties of a new volume beside those of the stream.
    pub properties: BTreeMap<String, String>,
    /// Even while clients have the volume open.
    pub force: bool,
}

/// A share that a tree is imported into.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportWish {
    /// Name of the share, which is created.
    pub share: String,
    /// Properties of its own.
    pub properties: BTreeMap<String, String>,
}

/// What a pool has of a snapshot that a stream brings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Place {
    /// Whether the volume that it is for has it.
    pub has_it: bool,
    /// Whether that volume is there, or on its way.
    pub exists: bool,
    /// The snapshot from which the stream goes out, under whatever name it is here.
    pub base: Option<String>,
}

/// What is to be sent in one set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetWish {
    /// The volumes: a name, that of a folder or of a share with those in it, or a pattern with `*`
    /// and `?`; and the newest snapshot that is sent of each, without one its newest.
    pub of: String,
    /// The base: a snapshot's name, or `#BOOKMARK`, of each volume.
    pub from: Option<String>,
    /// Every snapshot behind the base, or only the last one.
    pub all: bool,
    /// Of a share, those in it too.
    pub below: bool,
    /// A receiver's token: what comes before its stream is left out.
    pub resume: Option<String>,
    /// Of volumes that come whole and begin as images, only what differs from these.
    pub thin: bool,
}

/// The streams of a set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SetPlan {
    /// In their order.
    pub streams: Vec<SendWish>,
    /// Volumes that they are of.
    pub volumes: u32,
    /// Volumes that are meant and have not got the snapshot.
    pub skipped: Vec<String>,
    /// The folder in which all of them lie, or the share with those in it, with a `/` behind it;
    /// none if that was not asked for.
    pub root: String,
}
