//! Objects on the wire: how a request names one, and the documents of lists of them.

use std::fmt;

use report::{ObjectKind, SnapshotReport, VolumeReport};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A volume, a share, a folder or a snapshot that a request is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, deny_unknown_fields)]
pub enum Which {
    /// The object with this permanent number.
    Id(u64),
    /// The object that has this name now.
    Name(String),
    /// The object with this number. The name, under which the caller knows it, is for messages.
    Known {
        /// Permanent number.
        id: u64,
        /// Name, possibly an earlier one.
        name: String,
    },
}

impl Which {
    /// An object with a known number, if there is one, under a name.
    pub fn known(name: impl Into<String>, id: Option<u64>) -> Self {
        let name = name.into();
        id.map_or(Self::Name(name.clone()), |id| Self::Known { id, name })
    }

    /// Its number, if the request has it.
    pub const fn id(&self) -> Option<u64> {
        match self {
            Self::Id(id) | Self::Known { id, .. } => Some(*id),
            Self::Name(_) => None,
        }
    }
}

impl From<&str> for Which {
    fn from(name: &str) -> Self {
        Self::Name(name.to_owned())
    }
}

impl From<String> for Which {
    fn from(name: String) -> Self {
        Self::Name(name)
    }
}

impl From<&String> for Which {
    fn from(name: &String) -> Self {
        Self::Name(name.clone())
    }
}

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => write!(f, "object {id}"),
            Self::Name(name) | Self::Known { name, .. } => write!(f, "'{name}'"),
        }
    }
}

/// Orders of a list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ObjectOrder {
    /// By name.
    #[default]
    Name,
    /// By permanent number, which is the order of creation.
    Id,
    /// By stored bytes.
    Stored,
    /// By logical bytes that hold data.
    Allocated,
    /// By compression ratio; objects without one are the lowest.
    Ratio,
}

/// The objects of a list, and their order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListWish {
    /// Folder, or share for those in it; null for the whole pool.
    pub parent: Option<Which>,
    /// Includes the objects in folders below; without it only those directly in `parent`.
    #[serde(default = "yes")]
    pub recursive: bool,
    /// Only objects of this kind; null for all. Snapshots have a list of their own.
    pub kind: Option<ObjectKind>,
    /// Only the object of this name; null for all.
    pub name: Option<String>,
    /// Only objects whose name contains this text; null for all.
    pub matching: Option<String>,
    /// Order.
    #[serde(default)]
    pub sort: ObjectOrder,
    /// Reverses the order.
    #[serde(default)]
    pub descending: bool,
    /// Limit on the objects of the page, at most 1000.
    #[serde(default = "page")]
    pub limit: u32,
    /// Continues a list: `next` of the page before; null for the first page.
    pub cursor: Option<String>,
}

const fn yes() -> bool {
    true
}

/// Objects of a page without another wish.
const fn page() -> u32 {
    200
}

impl Default for ListWish {
    fn default() -> Self {
        Self {
            parent: None,
            recursive: yes(),
            kind: None,
            name: None,
            matching: None,
            sort: ObjectOrder::default(),
            descending: false,
            limit: page(),
            cursor: None,
        }
    }
}

/// A page of a list of objects.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ObjectPage {
    /// The objects.
    pub objects: Vec<VolumeReport>,
    /// `cursor` of the next page; null at the end.
    pub next: Option<String>,
    /// Number of objects in the whole list.
    pub total: u64,
}

/// A volume, a share, a folder or a snapshot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum AnyObject {
    /// A volume, a share or a folder.
    Volume(VolumeReport),
    /// A snapshot.
    Snapshot(SnapshotReport),
}

/// An object, and the version of everything that can be changed of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ObjectReport {
    /// Changes with the name, the size and the properties set on the object.
    pub etag: String,
    /// The object.
    #[serde(flatten)]
    pub object: AnyObject,
}
