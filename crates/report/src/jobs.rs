//! Wishes for jobs, and reports on them: the documents behind `shale jobs --json`, which also
//! cross the control socket. Field names are a promise to scripts, as the crate says.

use serde::{Deserialize, Serialize};
use surface::{Error, ErrorKind};

use crate::{Calibrated, RecompressSlice};
use crate::{CleanTotal, ScrubSlice};

/// The kind of a fault that is a cancellation.
const INTERRUPTED: &str = "interrupted";
/// Longest words on a fault that are kept: a client can send any.
const MESSAGE_BYTES_MAX: usize = 4096;

/// What a job does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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
    pub const ALL: [Self; 9] = [
        Self::Recompress,
        Self::Clean,
        Self::Sort,
        Self::Scrub,
        Self::Calibrate,
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
            Self::Import => "import",
            Self::Export => "export",
            Self::Send => "send",
            Self::Receive => "receive",
        }
    }

    /// Whether a command does the work, which only it can end.
    pub const fn is_of_command(self) -> bool {
        self.phase_of_client().is_some()
    }

    /// What a client does in a job that it registers; none: it cannot.
    pub const fn phase_of_client(self) -> Option<&'static str> {
        match self {
            Self::Import => Some("importing"),
            Self::Export => Some("exporting"),
            Self::Send => Some("sending"),
            Self::Receive => Some("receiving"),
            Self::Recompress | Self::Clean | Self::Sort | Self::Scrub | Self::Calibrate => None,
        }
    }
}

/// Where a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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

/// How a job is paced, and where it begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobPace {
    /// Most bytes in a second; none: a tenth of the time while others use the pool.
    pub rate: Option<u64>,
    /// Begins anew, instead of where the last one stopped.
    pub restart: bool,
}

/// The job that is to be started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum JobWish {
    /// Recompresses a volume, a share, or a part of one.
    Recompress {
        /// Name.
        volume: String,
        /// In this mode; none: by its properties.
        mode: Option<String>,
        /// Of a share, only this directory or file.
        path: Option<String>,
        /// How fast, and from where.
        pace: JobPace,
    },
    /// Empties extents that are partly dead.
    Clean {
        /// Until nothing is left to win.
        all: bool,
        /// Sorts first.
        sort: Option<JobPace>,
    },
    /// Verifies all data.
    Scrub {
        /// How fast, and from where.
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

    /// What the job is about, if that is not the pool.
    pub fn target(&self) -> Option<String> {
        match self {
            Self::Recompress { volume, path: Some(path), .. } => Some(format!("{volume}/{path}")),
            Self::Recompress { volume, path: None, .. } => Some(volume.clone()),
            Self::Clean { .. } | Self::Scrub { .. } | Self::Calibrate => None,
        }
    }
}

/// Why a job did not come to its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobFault {
    /// The kind of the error, as in `{"error":...}` of all commands; `interrupted`: it was
    /// cancelled.
    pub kind: String,
    /// What happened, and what to do.
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

/// What came of a job that is done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobResult {
    /// Of `recompress`.
    Recompressed(Box<RecompressSlice>),
    /// Of `clean`, and of sorting, when the cleaning behind it is done as well.
    Cleaned(CleanTotal),
    /// Of `scrub`.
    Scrubbed(Box<ScrubSlice>),
    /// Of `calibrate`.
    Calibrated(Calibrated),
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

/// A job, as it is at a moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobReport {
    /// Its number, from 1 on since the pool was opened.
    pub id: u64,
    /// What it does.
    pub kind: JobKind,
    /// The volume, the share, or the path in one, that it is about; none: the pool.
    pub target: Option<String>,
    /// Where it is.
    pub state: JobState,
    /// Rises whenever `state` changes.
    pub changes: u64,
    /// The part of its work that is under way.
    pub phase: String,
    /// Bytes that this part has gone through.
    pub bytes_done: u64,
    /// All that it will go through; none: that is not known.
    pub bytes_total: Option<u64>,
    /// Bytes in a second of work; none: that is not known yet.
    pub bytes_per_second: Option<u64>,
    /// Seconds that are left at that rate; none: that is not known.
    pub seconds_left: Option<u64>,
    /// When it was started, in seconds since 1970.
    pub started_unix_s: u64,
    /// When it ended; none: it has not.
    pub ended_unix_s: Option<u64>,
    /// How long it has worked, without pauses.
    pub seconds: f64,
    /// It goes on without the command that started it.
    pub background: bool,
    /// Words of its own on how it is going.
    pub said: String,
    /// `pause` or `cancel`, until it does so: behind the slice that it works on.
    pub asked: Option<String>,
    /// Why it failed or was cancelled.
    pub error: Option<JobFault>,
    /// What came of it. Left out of lists.
    pub result: Option<JobResult>,
}

impl JobReport {
    /// The job in words: `job 3 (recompress vm)`.
    pub fn title(&self) -> String {
        let target = self.target.as_ref().map_or_else(String::new, |target| format!(" {target}"));
        format!("job {} ({}{target})", self.id, self.kind.name())
    }
}

impl JobReport {
    /// A job under way.
    pub fn sample() -> Self {
        Self {
            id: 3,
            kind: JobKind::Recompress,
            target: Some("vm".to_owned()),
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
