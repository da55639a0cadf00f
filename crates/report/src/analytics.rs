//! The documents of a pool's history: datasets, series, heat maps, marks. `shale stats --json`
//! prints them, and they cross the control socket.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The form of the documents here: raised when a field changes its meaning or goes.
pub const ANALYTICS_VERSION: u32 = 1;

/// A dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DatasetLine {
    /// Its name.
    pub dataset: String,
    /// `count`, `bytes` or `ns`.
    pub unit: String,
    /// `sum` of amounts, or `gauge` for levels.
    pub shape: String,
    /// Breakdowns and filters that it allows.
    pub breakdowns: Vec<String>,
    /// One line for users.
    pub text: String,
}

/// The datasets, and the state of their store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DatasetsReport {
    /// Of this document: [`ANALYTICS_VERSION`].
    pub version: u32,
    /// The datasets.
    pub datasets: Vec<DatasetLine>,
    /// The store.
    pub store: AnalyticsState,
}

/// The state of a store of history.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AnalyticsState {
    /// Bytes that it may take; 0: the history is off.
    pub budget_bytes: u64,
    /// Bytes that its frames take, about.
    pub stored_bytes: u64,
    /// First seconds of the tiers, finest first; `null` for a tier without a frame.
    pub oldest_unix_s: Vec<Option<u64>>,
    /// Frames of the tiers, finest first.
    pub frames: Vec<u64>,
    /// Frames that were found damaged since the server began, each a gap.
    pub damaged_frames: u64,
    /// Frames that could not be written since the server began, each a gap of its tier.
    pub dropped_frames: u64,
    /// How often the database was set aside since the server began, because it could not be read.
    pub set_aside: u64,
    /// Why nothing is stored now.
    pub fault: Option<String>,
}

/// Values of one series.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SeriesLine {
    /// The value of the breakdown; `total` without one, `(other)` for objects that share one
    /// series, `(rest)` for series beyond the bound.
    pub name: String,
    /// Of amounts: their sum. Of levels: the mean.
    pub total: u64,
    /// Of amounts: the sum of each step. Of levels: the mean over the seconds that were sampled.
    pub values: Vec<u64>,
    /// The largest second of each step; of sums of several series the largest one of them.
    pub peaks: Vec<u64>,
    /// Of levels: the smallest second of each step.
    pub least: Vec<u64>,
}

/// A dataset over a span.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SeriesReport {
    /// Of this document: [`ANALYTICS_VERSION`].
    pub version: u32,
    /// The dataset.
    pub dataset: String,
    /// `count`, `bytes` or `ns`.
    pub unit: String,
    /// `sum` or `gauge`.
    pub shape: String,
    /// The breakdown; `null`: none.
    pub by: Option<String>,
    /// The first second of the first step, since 1970.
    pub from_unix_s: u64,
    /// Seconds of a step.
    pub step_s: u64,
    /// Seconds of the finest step that was read.
    pub resolution_s: u64,
    /// Seconds of each step that were sampled; 0: a gap.
    pub covered_s: Vec<u64>,
    /// The series, the largest first.
    pub series: Vec<SeriesLine>,
    /// Frames in the span that are damaged, each a gap.
    pub damaged_frames: u64,
    /// Objects without a series of their own in some frame of the span.
    pub folded_objects: u64,
    /// Series for which some frame had no place.
    pub left_out_series: u64,
}

/// Operations by duration over a span.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HeatmapReport {
    /// Of this document: [`ANALYTICS_VERSION`].
    pub version: u32,
    /// The first second of the first step, since 1970.
    pub from_unix_s: u64,
    /// Seconds of a step.
    pub step_s: u64,
    /// Seconds of each step that were sampled; 0: a gap.
    pub covered_s: Vec<u64>,
    /// Ends of the buckets in nanoseconds; the last bucket has none.
    pub bucket_ends_ns: Vec<u64>,
    /// For each bucket, operations by step.
    pub counts: Vec<Vec<u64>>,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MarkLine {
    /// When, in seconds since 1970.
    pub unix_s: u64,
    /// The event, in words.
    pub text: String,
}

/// A set of graphs that a user saved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WorksheetLine {
    /// Its name.
    pub name: String,
    /// The graphs, in the form of the program that saved them.
    pub body: String,
}
