//! The documents of `send` and `receive`: which streams are asked for, and the facts of a stream.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Header of a stream that is sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Sending {
    /// The volume that the snapshot is of.
    pub volume: String,
    /// The snapshot's name, without the volume.
    pub snapshot: String,
    /// The snapshot that the receiver must have.
    pub from: Option<String>,
    /// The image that it depends on, as `URL@VERSION`; none: the stream is complete.
    pub image: Option<String>,
    /// Estimated payload bytes of the whole stream.
    pub expected_bytes: u64,
    /// Byte of the volume at which the stream begins: 0, unless it resumes another one.
    pub start_offset: u64,
}

/// Outcome of a received stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Received {
    /// The volume.
    pub volume: String,
    /// The snapshot that it has now, without the volume.
    pub snapshot: String,
    /// Whether the stream created the volume.
    pub is_new: bool,
    /// The image that the volume depends on since then, as `URL@VERSION`.
    pub image: Option<String>,
    /// Size of the volume.
    pub size_bytes: u64,
    /// Bytes of the stream.
    pub stream_bytes: u64,
    /// Bytes of payload in it.
    pub payload_bytes: u64,
    /// Fragments in it.
    pub fragments: u64,
    /// Bytes that it turned into holes.
    pub hole_bytes: u64,
}

/// A request for one stream.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SendWish {
    /// `VOLUME@SNAPSHOT`; optional with a token.
    pub snapshot: Option<String>,
    /// The snapshot that the receiver has.
    pub from: Option<String>,
    /// A receiver's token.
    pub resume: Option<String>,
    /// Only differences from the image that backs the snapshot; a token includes this choice.
    pub thin: bool,
}

/// Destination of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReceiveWish {
    /// Volume.
    pub volume: String,
    /// Properties of a new volume, in addition to those of the stream.
    pub properties: BTreeMap<String, String>,
    /// Receive even while clients have the volume open.
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

/// State of a pool with regard to the snapshot in a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Place {
    /// Whether the destination volume has the snapshot.
    pub has_it: bool,
    /// Whether that volume exists, or is being received.
    pub exists: bool,
    /// The base of the stream, by its name in this pool.
    pub base: Option<String>,
}

/// A request for the streams of several volumes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetWish {
    /// The volumes: a name, a folder, a share with the shares in it, or a pattern with `*` and `?`;
    /// optionally `@SNAPSHOT`, the last snapshot to send of each. The default is its newest.
    pub of: String,
    /// The base: a snapshot's name, or `#BOOKMARK`, of each volume.
    pub from: Option<String>,
    /// Every snapshot since the base, or only the last one.
    pub all: bool,
    /// Of a share, include the shares in it.
    pub below: bool,
    /// A receiver's token: streams before the interrupted one are left out.
    pub resume: Option<String>,
    /// Of volumes without a base that an image backs, only differences from that image.
    pub thin: bool,
}

/// The streams of a set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SetPlan {
    /// The streams, in order.
    pub streams: Vec<SendWish>,
    /// Number of volumes in the set.
    pub volumes: u32,
    /// Selected volumes that lack the snapshot.
    pub skipped: Vec<String>,
    /// The folder or share that contains all of them, with a trailing `/`; empty if neither was
    /// requested.
    pub root: String,
}
