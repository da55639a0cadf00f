//! The document of `shale reload`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Result of reloading the settings file of a server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReloadReport {
    /// The file.
    pub file: String,
    /// Keys whose new values are in force.
    pub changed: Vec<String>,
    /// Keys whose new values are in force after the next start.
    pub needs_restart: Vec<String>,
    /// Where the server is reached, as it says when it starts.
    pub serving: Vec<String>,
}
