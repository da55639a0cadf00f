//! Questions about the history of a pool's figures. Owns their form; any thread may use it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use surface::{Error, ErrorKind, Result};

/// A question about the history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SeriesWish {
    /// Name of the dataset.
    pub dataset: String,
    /// The breakdown; null: the sum.
    pub by: Option<String>,
    /// Filters `BREAKDOWN=VALUE`; several of one breakdown keep any of their values.
    #[serde(default)]
    pub only: Vec<String>,
    /// First second, since 1970.
    pub from_unix_s: u64,
    /// Second after the last one.
    pub to_unix_s: u64,
    /// Seconds of a step; null: a few hundred steps. The answer has the step that was used.
    pub step_s: Option<u64>,
}

impl SeriesWish {
    /// The filters as breakdowns and values.
    ///
    /// # Errors
    /// `Invalid` for a filter without `=`.
    pub fn filters(&self) -> Result<Vec<(String, String)>> {
        let pair = |filter: &String| match filter.split_once('=') {
            Some((breakdown, value)) => Ok((breakdown.to_owned(), value.to_owned())),
            None => Err(Error::new(ErrorKind::Invalid, format!("a filter is BREAKDOWN=VALUE, not '{filter}'"))),
        };
        self.only.iter().map(pair).collect()
    }
}
