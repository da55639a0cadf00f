//! The replies of operations, and the documents in them that no report has.

use report::{
    AffectedLine, BookmarkLine, DatasetsReport, Detail, DiffReport, EstimateReport, ExplainMap, ExportsReport,
    FileReport, FileVersion, FilesReport, HeatmapReport, HoldLine, JobReport, MarkLine, PropertiesReport, ReceiveLine,
    RecompressSlice, Region, ReloadReport, ScrubSlice, SeriesReport, SnapshotReport, SortSlice, StatusReport,
    TraceLine, TrafficReport, UsageReport, VolumeReport, WorksheetLine,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use surface::{Error, ErrorKind};

use crate::access::{AuditLine, NewToken, TokenLine, UserLine};
use crate::objects::{ObjectPage, ObjectReport};
use crate::streams::{Place, Sending, SetPlan};

/// A new object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Created {
    /// Its permanent number.
    pub id: u64,
    /// Remarks on it, for its user; empty if there are none.
    pub notes: Vec<String>,
}

/// The answer of an open pool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// Success; changes are durable.
    Done,
    /// The new object exists, and is durable.
    Created(Created),
    /// Open objects that a change would take from their clients.
    Affected(Vec<AffectedLine>),
    /// Volumes and shares, or folders, by name.
    Volumes(Vec<VolumeReport>),
    /// Full names of the snapshots that were taken.
    Taken(Vec<String>),
    /// Snapshots, by volume and age.
    Snapshots(Vec<SnapshotReport>),
    /// Bookmarks, by volume and age.
    Bookmarks(Vec<BookmarkLine>),
    /// Exports by network protocols.
    Exports(ExportsReport),
    /// Tags of snapshots.
    Holds(Vec<HoldLine>),
    /// Changes between two states.
    Diff(DiffReport),
    /// State and figures of the pool.
    Status(Box<StatusReport>),
    /// Properties in force.
    Properties(PropertiesReport),
    /// A page of a list of objects.
    Objects(ObjectPage),
    /// An object.
    Object(Box<ObjectReport>),
    /// Outcome of a reload.
    Reloaded(ReloadReport),
    /// Progress of sorting.
    Sorted(SortSlice),
    /// Progress of a scrub.
    Scrubbed(Box<ScrubSlice>),
    /// Progress of a recompression.
    Recompressed(Box<RecompressSlice>),
    /// Regions of a volume.
    Regions {
        /// The regions that hold data.
        regions: Vec<Region>,
        /// Byte to continue at; null at the end.
        next: Option<u64>,
    },
    /// A map of an object by codec.
    ExplainMap(Box<ExplainMap>),
    /// A region in detail.
    Region(Box<Detail>),
    /// A file of a share in detail.
    File(Box<FileReport>),
    /// Space taken by files.
    Usage(Box<UsageReport>),
    /// A directory or a file of a share.
    Files(Box<FilesReport>),
    /// A file whose bytes can be read.
    FileVersion(Box<FileVersion>),
    /// Records of the trace.
    Trace(Vec<TraceLine>),
    /// Numbers of groups, in the order of their first reads.
    Groups(Vec<u64>),
    /// Client traffic since the server began.
    Traffic(Box<TrafficReport>),
    /// An estimate.
    Estimate(Box<EstimateReport>),
    /// A job.
    Job(Box<JobReport>),
    /// Jobs by number, without their results.
    Jobs(Vec<JobReport>),
    /// The streams of a set.
    Plan(SetPlan),
    /// State of a snapshot that a stream brings.
    Place(Place),
    /// A stream follows on the connection.
    Sending(Sending),
    /// Snapshots received in part.
    Receives(Vec<ReceiveLine>),
    /// Frames of bulk data may follow on the connection.
    Bulk {
        /// Permanent number of the volume.
        id: u64,
    },
    /// Users by name.
    Users {
        /// The users.
        users: Vec<UserLine>,
    },
    /// Tokens by name.
    Tokens {
        /// The tokens.
        tokens: Vec<TokenLine>,
    },
    /// A new token.
    Token(Box<NewToken>),
    /// Lines of the audit log, oldest first.
    Audit {
        /// The lines.
        entries: Vec<AuditLine>,
    },
    /// Datasets of the history.
    Datasets(Box<DatasetsReport>),
    /// A dataset over a span.
    Series(Box<SeriesReport>),
    /// Operations by duration.
    Heatmap(Box<HeatmapReport>),
    /// Changes, oldest first.
    Marks(Vec<MarkLine>),
    /// Saved sets of graphs, by name.
    Worksheets(Vec<WorksheetLine>),
}

impl Reply {
    /// For a new object.
    pub const fn created(id: u64) -> Self {
        Self::Created(Created { id, notes: Vec::new() })
    }

    /// Adds notes for the user, where the reply has a place for them.
    #[must_use]
    pub fn with_notes(mut self, more: Vec<String>) -> Self {
        match &mut self {
            Self::Created(Created { notes, .. }) | Self::Properties(PropertiesReport { notes, .. }) => {
                notes.extend(more);
            }
            _ => {}
        }
        self
    }

    /// For a reply that does not fit the request: a bug, or a server of another kind.
    pub fn unexpected(&self) -> Error {
        Error::new(ErrorKind::Unsupported, format!("the pool's server gave an answer that does not fit: {self:?}"))
    }

    /// The document in it, for interfaces that know the operation from the request; none:
    /// [`Reply::Done`], which has none.
    ///
    /// # Errors
    /// When it cannot be encoded.
    pub fn document(&self) -> surface::Result<Option<Value>> {
        let encoded = serde_json::to_value(self)
            .map_err(|error| Error::with_source(ErrorKind::Invalid, "a reply cannot be encoded", error))?;
        match encoded {
            Value::Object(object) => Ok(object.into_iter().next().map(|(_, document)| document)),
            _ => Ok(None),
        }
    }
}
