//! Requests for estimates of an object's stored size. Owns their form; any thread may use it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::objects::Which;

/// An estimate that continues without its caller.
const fn yes() -> bool {
    true
}

/// The estimate that is to be made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EstimateWish {
    /// Volume, share, or snapshot of one.
    pub object: Which,
    /// Directory or file of a share; null for all of it.
    pub path: Option<String>,
    /// Codecs to compare, besides the setting in force and the modes of auto; null for the usual
    /// ones.
    pub choices: Option<Vec<String>>,
    /// Properties to assume instead of those in force.
    #[serde(default)]
    pub properties: BTreeMap<String, String>,
    /// Bytes to read; null: rounds of more and more, until each margin is below a point.
    pub sample_bytes: Option<u64>,
    /// Draws other samples.
    #[serde(default)]
    pub seed: u64,
    /// Whether it continues when the connection ends that started it.
    #[serde(default = "yes")]
    pub background: bool,
}

impl EstimateWish {
    /// Of an object, with the usual codecs.
    pub const fn of(object: Which) -> Self {
        Self {
            object,
            path: None,
            choices: None,
            properties: BTreeMap::new(),
            sample_bytes: None,
            seed: 0,
            background: true,
        }
    }
}
