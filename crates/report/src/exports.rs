//! The documents behind `shale exports --json`, which also cross the control socket. Field names
//! are a promise to scripts, as the crate says.

use serde::{Deserialize, Serialize};

/// A share and a door of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportLine {
    /// The share.
    pub share: String,
    /// The door.
    pub door: String,
    /// What the property says.
    pub access: String,
    /// How it is reached, while it is served.
    pub address: Option<String>,
    /// Why it is not served as the property says, if that is known.
    pub fault: Option<String>,
}

/// Something that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckLine {
    /// What.
    pub what: String,
    /// Whether it is as it must be.
    pub good: bool,
    /// It may be meant so, and clients may stumble over it.
    pub warns: bool,
    /// The finding, and the remedy.
    pub found: String,
}

/// The doors of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ExportsReport {
    /// The directory of their configurations, while they are served.
    pub dir: Option<String>,
    /// Open doors, by share.
    pub exports: Vec<ExportLine>,
    /// The checks made.
    pub checks: Vec<CheckLine>,
}

impl CheckLine {
    /// A finding about `what`.
    pub fn new(what: String, good: bool, found: impl Into<String>) -> Self {
        Self { what, good, warns: false, found: found.into() }
    }
}
