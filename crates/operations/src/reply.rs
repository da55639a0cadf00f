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
use crate::caller::Role;
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
        /// Bytes of data in the write buffer, which are in no region yet.
        buffered_bytes: u64,
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

    /// Returns the part of it that a caller of that role may see: without names of files for those
    /// who may not list them. Each variant has its decision here.
    #[must_use]
    pub fn seen_by(mut self, role: Role) -> Self {
        if role.sees_file_names() {
            return self;
        }
        match &mut self {
            Self::Job(job) => job.hide_file_names(),
            Self::Jobs(jobs) => jobs.iter_mut().for_each(JobReport::hide_file_names),
            Self::Status(status) => status.jobs.iter_mut().for_each(JobReport::hide_file_names),
            Self::Estimate(estimate) => estimate.hide_file_names(),
            // Findings of damage are made without them, marks are recorded without them.
            Self::Scrubbed(_) | Self::Marks(_) => {}
            // Of operations that need a higher role.
            Self::File(_)
            | Self::Usage(_)
            | Self::Files(_)
            | Self::FileVersion(_)
            | Self::Trace(_)
            | Self::Groups(_)
            | Self::Affected(_)
            | Self::Taken(_)
            | Self::Created(_)
            | Self::Reloaded(_)
            | Self::Sending(_)
            | Self::Bulk { .. }
            | Self::Users { .. }
            | Self::Tokens { .. }
            | Self::Token(_)
            | Self::Audit { .. } => {}
            // About objects and the pool.
            Self::Done
            | Self::Volumes(_)
            | Self::Snapshots(_)
            | Self::Bookmarks(_)
            | Self::Exports(_)
            | Self::Holds(_)
            | Self::Diff(_)
            | Self::Properties(_)
            | Self::Objects(_)
            | Self::Object(_)
            | Self::Sorted(_)
            | Self::Recompressed(_)
            | Self::Regions { .. }
            | Self::ExplainMap(_)
            | Self::Region(_)
            | Self::Traffic(_)
            | Self::Plan(_)
            | Self::Place(_)
            | Self::Receives(_)
            | Self::Datasets(_)
            | Self::Series(_)
            | Self::Heatmap(_)
            | Self::Worksheets(_) => {}
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

#[cfg(test)]
mod tests {
    use report::{JobFault, JobKind, JobResult, JobState, RestoreTotal, ScrubSlice};

    use super::*;

    const SECRET: &str = "plans/secret.txt";

    /// Jobs of each kind, with the name of a file wherever one can be.
    fn jobs() -> Vec<JobReport> {
        let fault = || JobFault { kind: "io".to_owned(), message: format!("cannot write {SECRET}") };
        let of = |kind| JobReport {
            kind,
            target: Some(format!("home/{SECRET}")),
            path: Some(SECRET.to_owned()),
            ..JobReport::sample()
        };
        let mut jobs: Vec<_> = JobKind::ALL.into_iter().map(of).collect();
        jobs.extend(
            [JobKind::Restore, JobKind::Export, JobKind::Import, JobKind::Estimate, JobKind::Recompress]
                .map(|kind| JobReport { state: JobState::Failed, error: Some(fault()), ..of(kind) }),
        );
        let total = RestoreTotal { restored: 2, kept: 1, kept_first: Some(SECRET.to_owned()), bytes: 3 };
        let estimate = EstimateReport::begun(7, Some(SECRET.to_owned()), Default::default(), 3);
        let estimate = EstimateReport { error: Some(fault()), ..estimate };
        let problem = report::ProblemReport {
            kind: "fragment".to_owned(),
            volume: Some("home".to_owned()),
            offset: Some(0),
            length: None,
            detail: format!("/{SECRET}, byte 0: checksum"),
            repaired: false,
        };
        let scrub = ScrubSlice { found: 1, damages: vec![problem], ..ScrubSlice::default() };
        let results = [
            (JobKind::Restore, JobResult::Restored(total)),
            (JobKind::Estimate, JobResult::Estimated(Box::new(estimate))),
            (JobKind::Scrub, JobResult::Scrubbed(Box::new(scrub))),
        ];
        let done = |(kind, result)| JobReport { state: JobState::Done, result: Some(result), ..of(kind) };
        jobs.extend(results.map(done));
        jobs
    }

    #[test]
    fn names_of_files_in_jobs_and_estimates_are_for_those_who_may_list_files() {
        let estimate = EstimateReport::begun(7, Some(SECRET.to_owned()), Default::default(), 3);
        let status = StatusReport { jobs: jobs(), ..StatusReport::default() };
        let mut replies =
            vec![Reply::Jobs(jobs()), Reply::Status(Box::new(status)), Reply::Estimate(Box::new(estimate))];
        replies.extend(jobs().into_iter().map(|job| Reply::Job(Box::new(job))));
        for reply in replies {
            for role in [Role::Operate, Role::Admin] {
                assert_eq!(reply.clone().seen_by(role), reply);
            }
            let seen = serde_json::to_string(&reply.clone().seen_by(Role::Read)).unwrap();
            assert!(!seen.contains("secret"), "{seen}");
            assert!(serde_json::to_string(&reply).unwrap().contains("secret"));
        }
    }

    #[test]
    fn all_else_of_a_job_is_for_everyone() {
        let Reply::Jobs(seen) = Reply::Jobs(jobs()).seen_by(Role::Read) else { panic!("other reply") };
        for (seen, job) in seen.iter().zip(jobs()) {
            assert_eq!(seen.target.as_deref(), Some("home/..."));
            assert_eq!((seen.kind, seen.state, seen.bytes_done), (job.kind, job.state, job.bytes_done));
            assert_eq!(seen.error.as_ref().map(|fault| &fault.kind), job.error.as_ref().map(|fault| &fault.kind));
            assert_eq!(seen.result.is_some(), job.result.is_some());
        }
        let of_volume = JobReport::sample();
        let seen = Reply::Job(Box::new(of_volume.clone())).seen_by(Role::Read);
        assert_eq!(seen, Reply::Job(Box::new(of_volume)), "a job on a volume");
    }
}
