//! Effects of a change on the clients of objects: the document of a preview. Field names are a
//! promise to scripts, as the crate says.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Change of an object that its clients notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ObjectChange {
    /// It is destroyed.
    Destroyed,
    /// It becomes smaller.
    Shrunk,
    /// It returns to a snapshot.
    RolledBack,
    /// It gets the content of a stream.
    Received,
}

/// An object that clients have open, and that a change takes from them or changes under them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AffectedLine {
    /// Permanent number.
    pub id: u64,
    /// Name.
    pub name: String,
    /// The change.
    pub change: ObjectChange,
    /// Number of clients that have it open.
    pub clients: usize,
    /// Their names, at most the first few.
    pub client_names: Vec<String>,
    /// Directories where file systems on it are mounted.
    pub mounts: Vec<String>,
}
