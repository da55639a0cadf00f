//! The documents of `shale exports --json`, which also cross the control socket. Field names are a
//! promise to scripts, as the crate's head says.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An export of a share by one protocol.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExportLine {
    /// Name of the share.
    pub share: String,
    /// Protocol: `nfs`, `smb`, `http` or `ftp`.
    pub door: String,
    /// Value of the property.
    pub access: String,
    /// Address for clients; null while it is not served.
    pub address: Option<String>,
    /// Reason why it is not served as the property says; null if it is, or if the reason is not
    /// known.
    pub fault: Option<String>,
}

/// Result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CheckLine {
    /// Subject of the check.
    pub what: String,
    /// Whether it is as it must be.
    pub good: bool,
    /// Whether it may be intended, but surprises clients.
    pub warns: bool,
    /// Finding and remedy.
    pub found: String,
}

/// Exports of a pool by network protocols.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct ExportsReport {
    /// Directory of the configurations of the protocols' servers; null while nothing is served.
    pub dir: Option<String>,
    /// Exports by share.
    pub exports: Vec<ExportLine>,
    /// Results of the checks, if these were asked for.
    pub checks: Vec<CheckLine>,
}

impl CheckLine {
    /// A finding about `what`.
    pub fn new(what: String, good: bool, found: impl Into<String>) -> Self {
        Self { what, good, warns: false, found: found.into() }
    }
}
