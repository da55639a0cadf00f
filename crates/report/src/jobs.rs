//! Requests for jobs, and reports on them: the documents of `shale jobs --json`, which also cross
//! the control socket. Field names are a promise to scripts, as the crate's head says.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use surface::{Error, ErrorKind};

use crate::{Calibrated, EstimateReport, RecompressSlice};
use crate::{CleanTotal, PushedLine, RestoreTotal, ScrubSlice, ShrinkSlice, StatusReport};

/// Replaces the name of a file that a reader may not see.
pub const HIDDEN_NAME: &str = "...";
/// The kind of a fault that is a cancellation.
const INTERRUPTED: &str = "interrupted";
/// Limit on the text of a fault, which a client can choose.
const MESSAGE_BYTES_MAX: usize = 4096;

/// Kind of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum JobKind {
    /// `shale recompress`.
    Recompress,
    /// `shale clean`.
    Clean,
    /// `shale clean --sort`.
    Sort,
    /// `shale scrub`.
    Scrub,
    /// `shale calibrate`.
    Calibrate,
    /// A restore of files from a snapshot.
    Restore,
    /// `shale shrink`.
    Shrink,
    /// `shale push`.
    Push,
    /// `shale estimate`.
    Estimate,
    /// `shale import`, whose bytes go through the command, like those of the kinds below.
    Import,
    /// `shale export`.
    Export,
    /// `shale send`.
    Send,
    /// `shale receive`.
    Receive,
}

impl JobKind {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::Recompress,
        Self::Clean,
        Self::Sort,
        Self::Scrub,
        Self::Calibrate,
        Self::Restore,
        Self::Shrink,
        Self::Push,
        Self::Estimate,
        Self::Import,
        Self::Export,
        Self::Send,
        Self::Receive,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Recompress => "recompress",
            Self::Clean => "clean",
            Self::Sort => "sort",
            Self::Scrub => "scrub",
            Self::Calibrate => "calibrate",
            Self::Restore => "restore",
            Self::Shrink => "shrink",
            Self::Push => "push",
            Self::Estimate => "estimate",
            Self::Import => "import",
            Self::Export => "export",
            Self::Send => "send",
            Self::Receive => "receive",
        }
    }

    /// Whether its work is on files, so that its messages may have their names.
    const fn is_on_files(self) -> bool {
        match self {
            Self::Recompress
            | Self::Restore
            | Self::Estimate
            | Self::Import
            | Self::Export
            | Self::Send
            | Self::Receive => true,
            Self::Clean | Self::Sort | Self::Scrub | Self::Calibrate | Self::Shrink | Self::Push => false,
        }
    }

    /// Whether a command does the work, which only it can end.
    pub const fn is_of_command(self) -> bool {
        self.phase_of_client().is_some()
    }

    /// The phase of a job that a client registers; none if clients cannot register this kind.
    pub const fn phase_of_client(self) -> Option<&'static str> {
        match self {
            Self::Import => Some("importing"),
            Self::Export => Some("exporting"),
            Self::Send => Some("sending"),
            Self::Receive => Some("receiving"),
            _ => None,
        }
    }
}

/// Where a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum JobState {
    /// It works, or rests between two slices.
    Running,
    /// It stands still until it is resumed or cancelled.
    Paused,
    /// It was asked to end, and has not yet: it may still come to its end before.
    Cancelling,
    /// It came to its end.
    Done,
    /// It met an error.
    Failed,
    /// A signal, a command or the end of the server ended it early.
    Cancelled,
}

impl JobState {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Running, Self::Paused, Self::Cancelling, Self::Done, Self::Failed, Self::Cancelled];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Cancelling => "cancelling",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether nothing more comes of the job.
    pub const fn has_ended(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Cancelled)
    }
}

/// Pace and starting point of a job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct JobPace {
    /// Limit in bytes a second; null: a tenth of the time while clients use the pool.
    pub rate: Option<u64>,
    /// Starts from the beginning instead of where the last one stopped.
    pub restart: bool,
}

/// The job that is to be started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum JobWish {
    /// Recompresses a volume, a share, or a part of a share.
    Recompress {
        /// Name.
        volume: String,
        /// Mode; null for that of the properties.
        mode: Option<String>,
        /// Directory or file of a share; null for all of it.
        path: Option<String>,
        /// Pace and starting point.
        #[serde(default)]
        pace: JobPace,
    },
    /// Empties extents that are partly dead.
    Clean {
        /// Cleans until nothing more can be reclaimed.
        #[serde(default)]
        all: bool,
        /// Sorts first, at this pace; null: does not sort.
        sort: Option<JobPace>,
    },
    /// Verifies all data.
    Scrub {
        /// Pace and starting point.
        #[serde(default)]
        pace: JobPace,
    },
    /// Measures the codecs on this machine.
    Calibrate,
}

impl JobWish {
    /// The kind of the job.
    pub const fn kind(&self) -> JobKind {
        match self {
            Self::Recompress { .. } => JobKind::Recompress,
            Self::Clean { sort: None, .. } => JobKind::Clean,
            Self::Clean { sort: Some(_), .. } => JobKind::Sort,
            Self::Scrub { .. } => JobKind::Scrub,
            Self::Calibrate => JobKind::Calibrate,
        }
    }

    /// The object of the job; none for the whole pool.
    pub fn target(&self) -> Option<String> {
        match self {
            Self::Recompress { volume, path: Some(path), .. } => Some(format!("{volume}/{path}")),
            Self::Recompress { volume, path: None, .. } => Some(volume.clone()),
            Self::Clean { .. } | Self::Scrub { .. } | Self::Calibrate => None,
        }
    }
}

/// Reason why a job did not finish.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobFault {
    /// Kind of the error; `interrupted` if the job was cancelled.
    pub kind: String,
    /// The failure and the remedy.
    pub message: String,
}

impl JobFault {
    /// Of a job that was cancelled.
    pub fn cancelled(message: String) -> Self {
        Self { kind: INTERRUPTED.to_owned(), message }
    }

    /// Whether it is a cancellation.
    pub fn is_cancellation(&self) -> bool {
        self.kind == INTERRUPTED
    }

    /// The same, by a name and in words that a list has room for.
    pub fn bounded(mut self) -> Self {
        if !self.is_cancellation() {
            ErrorKind::by_name(&self.kind).name().clone_into(&mut self.kind);
        }
        if self.message.len() > MESSAGE_BYTES_MAX {
            let end = (0..=MESSAGE_BYTES_MAX).rev().find(|end| self.message.is_char_boundary(*end));
            self.message.truncate(end.unwrap_or(0));
            self.message.push_str("...");
        }
        self
    }

    /// Hides its words, which may have the name of a file.
    pub(crate) fn hide(&mut self) {
        self.message = String::from("the reason may have names of files, which need the role operate");
    }

    /// The error that the job met.
    pub fn error(&self) -> Error {
        Error::new(ErrorKind::by_name(&self.kind), self.message.clone())
    }
}

impl From<&Error> for JobFault {
    fn from(error: &Error) -> Self {
        Self { kind: error.kind().name().to_owned(), message: error.to_string() }
    }
}

/// Result of a finished job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobResult {
    /// Of `recompress`.
    Recompressed(Box<RecompressSlice>),
    /// Of `clean`, and of sorting, including the cleaning that it causes.
    Cleaned(CleanTotal),
    /// Of `scrub`.
    Scrubbed(Box<ScrubSlice>),
    /// Of `calibrate`.
    Calibrated(Calibrated),
    /// Of a restore of files.
    Restored(RestoreTotal),
    /// Of `shrink`, with the bytes moved by all of it.
    Shrunk(ShrinkSlice),
    /// Of `push`.
    Pushed(PushedLine),
    /// Of `estimate`.
    Estimated(Box<EstimateReport>),
    /// Of a client's work.
    Moved {
        /// Bytes that went through it.
        bytes: u64,
    },
}

impl JobResult {
    /// For a result of another kind of job: a bug, or a server of another version.
    pub fn unexpected(&self) -> Error {
        Error::new(ErrorKind::Unsupported, format!("the job has a result that does not fit: {self:?}"))
    }
}

/// A job and its state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JobReport {
    /// Number, from 1 since the pool was opened.
    pub id: u64,
    /// Kind of work.
    pub kind: JobKind,
    /// Volume, share or path; null if it is the whole pool.
    pub target: Option<String>,
    /// The part of `target` that is the path of a file in a share. Not in the document.
    #[serde(skip)]
    pub path: Option<String>,
    /// State.
    pub state: JobState,
    /// Rises with each change of `state`.
    pub changes: u64,
    /// Current part of the work.
    pub phase: String,
    /// Bytes that this part has processed.
    pub bytes_done: u64,
    /// Bytes that it will process; null if that is not known.
    pub bytes_total: Option<u64>,
    /// Bytes in a second of work; null if that is not known yet.
    pub bytes_per_second: Option<u64>,
    /// Estimated seconds left; null if that is not known.
    pub seconds_left: Option<u64>,
    /// Start, in seconds since 1970.
    pub started_unix_s: u64,
    /// End, in seconds since 1970; null while it is under way.
    pub ended_unix_s: Option<u64>,
    /// Duration without pauses.
    pub seconds: f64,
    /// Whether it continues without the command that started it.
    pub background: bool,
    /// Remark on its progress.
    pub said: String,
    /// `pause` or `cancel` until the current slice is done; else null.
    pub asked: Option<String>,
    /// Reason why it failed or was cancelled; null otherwise.
    pub error: Option<JobFault>,
    /// Result of a job that is done; null in lists.
    pub result: Option<JobResult>,
}

impl StatusReport {
    /// The import under way into an object, if any.
    pub fn import_into(&self, name: &str) -> Option<&JobReport> {
        let is_meant = |job: &&JobReport| job.kind == JobKind::Import && job.target.as_deref() == Some(name);
        self.jobs.iter().filter(|job| !job.state.has_ended()).find(is_meant)
    }

    /// Volumes and snapshots that are incomplete without an import under way.
    pub fn left_incomplete(&self) -> impl Iterator<Item = &String> {
        self.incomplete.iter().filter(move |name| self.import_into(name).is_none())
    }
}

impl JobReport {
    /// The job in words: `job 3 (recompress vm)`.
    pub fn title(&self) -> String {
        let target = self.target.as_ref().map_or_else(String::new, |target| format!(" {target}"));
        format!("job {} ({}{target})", self.id, self.kind.name())
    }

    /// Hides the names of files, for a reader who may not see them.
    pub fn hide_file_names(&mut self) {
        if let (Some(target), Some(path)) = (&mut self.target, self.path.take()) {
            let share = target.strip_suffix(&path).unwrap_or_default();
            *target = format!("{share}{HIDDEN_NAME}");
        }
        if let Some(fault) = self.error.as_mut().filter(|_| self.kind.is_on_files()) {
            fault.hide();
        }
        match &mut self.result {
            Some(JobResult::Restored(total)) => {
                total.kept_first = total.kept_first.take().map(|_| HIDDEN_NAME.to_owned());
            }
            Some(JobResult::Scrubbed(slice)) => slice.damages.clear(),
            Some(JobResult::Estimated(report)) => report.hide_file_names(),
            Some(
                JobResult::Recompressed(_)
                | JobResult::Cleaned(_)
                | JobResult::Calibrated(_)
                | JobResult::Shrunk(_)
                | JobResult::Pushed(_)
                | JobResult::Moved { .. },
            )
            | None => {}
        }
    }
}

impl JobReport {
    /// A job under way.
    pub fn sample() -> Self {
        Self {
            id: 3,
            kind: JobKind::Recompress,
            target: Some("vm".to_owned()),
            path: None,
            state: JobState::Running,
            changes: 0,
            phase: "recompressing".to_owned(),
            bytes_done: 1 << 20,
            bytes_total: Some(4 << 20),
            bytes_per_second: Some(1 << 10),
            seconds_left: Some(3 << 10),
            started_unix_s: 1,
            ended_unix_s: None,
            seconds: 1024.0,
            background: true,
            said: "to 40%".to_owned(),
            asked: None,
            error: None,
            result: None,
        }
    }
}
