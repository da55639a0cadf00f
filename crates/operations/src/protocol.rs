//! Requests and replies: their documents, encoding and decoding. No sockets here.
//!
//! Request: `{"version":1,"request":{"op":"create","volume":"vm",...}}`. Reply:
//! `{"version":1,"reply":{...}}` or `{"version":1,"error":{"kind":"not-found","message":"..."}}`.

use std::collections::BTreeMap;
use std::io::BufRead;

use serde::{Deserialize, Serialize};
use surface::{Error, ErrorKind, Result};

use report::{
    BookmarkLine, DatasetsReport, Detail, DiffReport, ExportsReport, FileReport, HeatmapReport, HoldLine, JobFault,
    JobKind, JobReport, JobWish, MarkLine, PropertyReport, ReceiveLine, RecompressSlice, Region, ScrubSlice,
    SeriesReport, ShrinkSlice, SnapshotReport, SortSlice, StatusReport, TraceLine, TrafficReport, UsageReport,
    VolumeReport, WorksheetLine,
};

use crate::streams::{Place, ReceiveWish, SendWish, Sending, SetPlan, SetWish};

/// Version of the protocol. Raised when a request or reply changes its meaning; new requests alone
/// do not raise it.
pub const VERSION: u32 = 1;

/// Longest line. A list of 10,000 volumes with properties takes about 4 MiB; this leaves room, and
/// bounds what a peer can make us buffer.
pub const LINE_BYTES_MAX: usize = 16 << 20;

/// A version of a blob that a volume is to begin as.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageAddress {
    /// URL without version.
    pub location: String,
    /// The incarnation, in 32 hexadecimal digits.
    pub incarnation: String,
    /// The version.
    pub version: u64,
    /// Its size.
    pub size_bytes: u64,
}

/// A question about the pool's history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeriesWish {
    /// The dataset.
    pub dataset: String,
    /// The breakdown; none: the sum of all.
    pub by: Option<String>,
    /// Breakdowns and their values: only these; several of one breakdown: any of them.
    pub only: Vec<(String, String)>,
    /// The first second, since 1970.
    pub from_unix_s: u64,
    /// The second after the last one.
    pub to_unix_s: u64,
    /// Seconds of a step; none: a few hundred steps. The answer has the step that it came to.
    pub step_s: Option<u64>,
}

/// A snapshot that is to become a version of a blob.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushWish {
    /// `VOLUME@SNAPSHOT`.
    pub snapshot: String,
    /// URL of the blob that the volume was cloned from or pushed to, or of a new one.
    pub url: String,
    /// URL of the blob that is to get the version, if that is another one.
    pub to: Option<String>,
    /// Over a newer version, too.
    pub replace: bool,
    /// What the blob's log is to say.
    pub message: String,
    /// How groups are stored that do not go as they are.
    pub properties: Vec<(String, String)>,
}

/// What a push did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushedLine {
    /// URL of the blob.
    pub blob: String,
    /// The version that it made; `base_version`: nothing was changed, and none was made.
    pub version: u64,
    /// The version that it was made on; 0: none.
    pub base_version: u64,
    /// Whether it was there already.
    pub earlier: bool,
    /// Groups that changed.
    pub groups: u64,
    /// Those of them that went as they were stored.
    pub as_stored: u64,
    /// Those of them that became holes.
    pub holes: u64,
    /// Bytes of the range that they are in, of 128 KiB each.
    pub bytes: u64,
    /// Bytes that they take in the store.
    pub stored_bytes: u64,
}

/// What a command asks of the jobs of an open pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum JobRequest {
    /// Starts a job.
    Start {
        /// Which one.
        wish: JobWish,
        /// It goes on when the connection ends that started it.
        background: bool,
    },
    /// Lists those under way, and the last that ended: [`Reply::Jobs`].
    List,
    /// Tells how a job is.
    Watch {
        /// Its number.
        id: u64,
        /// Waits until its state has changed since then; none: tells at once.
        seen: Option<u64>,
        /// Waits that long at most.
        patience_ms: u64,
    },
    /// Asks a job to stand still.
    Pause {
        /// Its number.
        id: u64,
    },
    /// Takes that back.
    Resume {
        /// Its number.
        id: u64,
    },
    /// Asks a job to end.
    Cancel {
        /// Its number.
        id: u64,
        /// Because a signal came to the command that started it.
        interrupted: bool,
    },
    /// Registers work that the client does itself, until this connection ends.
    Register {
        /// What it does.
        kind: JobKind,
        /// What it is about.
        target: Option<String>,
    },
    /// Tells how far that is. The answer says whether it was cancelled.
    Tell {
        /// Bytes that are done.
        bytes_done: u64,
        /// All of them, if that is known.
        bytes_total: Option<u64>,
    },
    /// Tells its outcome.
    Finish {
        /// Bytes that were done.
        bytes_done: u64,
        /// Why it did not come to its end.
        fault: Option<JobFault>,
    },
}

/// What a command asks of an open pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Request {
    /// Answers at once: the server is there, and speaks this version.
    Hello,
    /// Creates a volume: [`Reply::Created`].
    Create {
        /// Name.
        volume: String,
        /// Size, a multiple of 4096.
        size_bytes: u64,
        /// Properties of its own.
        properties: BTreeMap<String, String>,
    },
    /// Creates a share: [`Reply::Created`].
    CreateShare {
        /// Name.
        share: String,
        /// Properties of its own.
        properties: BTreeMap<String, String>,
    },
    /// Creates a folder: [`Reply::Created`].
    CreateFolder {
        /// Name.
        folder: String,
        /// Properties of its own.
        properties: BTreeMap<String, String>,
    },
    /// Lists the folders: [`Reply::Volumes`].
    Folders,
    /// Lists the exports by network protocols: [`Reply::Exports`].
    Exports {
        /// What stands in the way, too, and what a client would see.
        check: bool,
    },
    /// Deletes a volume, a folder or a snapshot.
    Destroy {
        /// Name, `VOLUME`, `FOLDER`, `VOLUME@SNAPSHOT` or `VOLUME#BOOKMARK`.
        volume: String,
        /// The one with this number, whatever it is called by now; none: whichever has the name.
        id: Option<u64>,
        /// A volume's snapshots with it, and everything in a folder.
        recursive: bool,
        /// Even while a client has it open.
        force: bool,
    },
    /// Asks whether the pool would refuse a [`Request::Destroy`] or a [`Request::Rollback`],
    /// clients left aside: [`Reply::Done`] if not. Nothing is changed.
    Allowed {
        /// That request.
        request: Box<Request>,
    },
    /// Gives up what a stream has brought of a volume or a snapshot, and nothing that is complete.
    GiveUp {
        /// Name, `VOLUME` or `VOLUME@SNAPSHOT`.
        title: String,
    },
    /// Takes a snapshot.
    Snapshot {
        /// Of this volume.
        volume: String,
        /// The part of its name behind the `@`.
        name: String,
    },
    /// Takes snapshots of everything in a folder, at one moment: [`Reply::Taken`].
    SnapshotFolder {
        /// The folder.
        folder: String,
        /// The part of their names behind the `@`.
        name: String,
    },
    /// Takes several snapshots, at one moment, all or none: [`Reply::Taken`].
    SnapshotTogether {
        /// `VOLUME@SNAPSHOT`.
        snapshots: Vec<String>,
    },
    /// Makes a volume from a snapshot.
    Clone {
        /// `VOLUME@SNAPSHOT`.
        snapshot: String,
        /// Name of the new volume.
        volume: String,
        /// Properties beside those of the snapshot's volume.
        properties: BTreeMap<String, String>,
    },
    /// Makes a volume that begins as a version of a blob: [`Reply::Created`].
    CloneImage {
        /// The version.
        image: ImageAddress,
        /// Name of the new volume.
        volume: String,
        /// Its size, if it is to be larger than the image.
        size_bytes: Option<u64>,
        /// Properties of its own.
        properties: BTreeMap<String, String>,
    },
    /// Makes a snapshot a version of a blob: [`Reply::Pushed`].
    Push(PushWish),
    /// Rolls volumes and shares back to snapshots: none of them if one is refused or in use.
    Rollback {
        /// `VOLUME@SNAPSHOT` of each.
        snapshots: Vec<String>,
        /// Newer snapshots are given up.
        recursive: bool,
        /// Even while a client has a volume open.
        force: bool,
    },
    /// Gives a volume, a folder or a snapshot another name.
    Rename {
        /// `VOLUME`, `FOLDER` or `VOLUME@SNAPSHOT`.
        old: String,
        /// The same of it.
        new: String,
    },
    /// Makes a clone the owner of the snapshots that it came from.
    Promote {
        /// Name of the clone.
        volume: String,
    },
    /// Puts a tag on a snapshot, which keeps it.
    Hold {
        /// `VOLUME@SNAPSHOT`.
        snapshot: String,
        /// The tag.
        tag: String,
    },
    /// Takes a tag off a snapshot.
    Release {
        /// `VOLUME@SNAPSHOT`.
        snapshot: String,
        /// The tag.
        tag: String,
    },
    /// Makes a bookmark of a snapshot.
    Bookmark {
        /// `VOLUME@SNAPSHOT`.
        snapshot: String,
        /// The part of its name behind the `#`.
        name: String,
    },
    /// Lists the bookmarks: [`Reply::Bookmarks`].
    Bookmarks {
        /// Of one volume, or of all.
        volume: Option<String>,
    },
    /// Lists the tags of snapshots: [`Reply::Holds`].
    Holds {
        /// Of one snapshot, of a volume's, or of all.
        of: Option<String>,
    },
    /// Lists the snapshots: [`Reply::Snapshots`].
    Snapshots {
        /// Of one volume, or of all.
        volume: Option<String>,
    },
    /// What has changed between two states, page by page: [`Reply::Diff`].
    Diff {
        /// `VOLUME@SNAPSHOT`.
        from: String,
        /// `VOLUME@SNAPSHOT` or `VOLUME`.
        to: String,
        /// Byte to begin at.
        start: u64,
    },
    /// Changes the size of a volume.
    Resize {
        /// Name.
        volume: String,
        /// As for [`Request::Destroy`].
        id: Option<u64>,
        /// New size, a multiple of 4096.
        size_bytes: u64,
        /// It may become smaller.
        shrink: bool,
        /// Even while a client has it open that could lose what it just writes.
        force: bool,
    },
    /// Lists the volumes: [`Reply::Volumes`].
    List,
    /// Figures of the pool: [`Reply::Status`].
    Status,
    /// Properties in force: [`Reply::Properties`].
    Get {
        /// Of a volume, of a folder, or of the pool.
        volume: Option<String>,
    },
    /// Sets properties, all or none.
    Set {
        /// Of a volume, of a folder, or of the pool.
        volume: Option<String>,
        /// As for [`Request::Destroy`]; only with a volume.
        id: Option<u64>,
        /// Key, and value or none to inherit again.
        changes: Vec<(String, Option<String>)>,
    },
    /// Makes the pool larger.
    Grow {
        /// New capacity.
        capacity_bytes: u64,
    },
    /// Goes on making the pool smaller: [`Reply::Shrunk`].
    Shrink {
        /// New capacity.
        capacity_bytes: u64,
        /// At most so many rounds of moving.
        rounds: u32,
    },
    /// Gives up making the pool smaller.
    ShrinkEnd,
    /// Makes everything durable and takes a checkpoint.
    Checkpoint,
    /// An administrator knows what is damaged, and what repairs have lost.
    Acknowledge,
    /// How far the last sorting came: [`Reply::Sorted`].
    SortReport,
    /// How far the last scrub came: [`Reply::Scrubbed`].
    ScrubReport,
    /// How far the last recompression of a volume or a share came: [`Reply::Recompressed`].
    RecompressReport {
        /// Name.
        volume: String,
        /// In this mode; none: by its properties.
        mode: Option<String>,
        /// Of a share, only this directory or file.
        path: Option<String>,
    },
    /// How regions of a volume are stored: [`Reply::Regions`].
    Explain {
        /// Name.
        volume: String,
        /// From this byte on.
        from: u64,
        /// At most so many regions.
        count: usize,
    },
    /// Why one region is stored as it is: [`Reply::Region`].
    ExplainRegion {
        /// Name.
        volume: String,
        /// A byte of the region.
        offset: u64,
    },
    /// Why a file of a share is stored as it is: [`Reply::File`].
    ExplainFile {
        /// The share, or a snapshot of one.
        share: String,
        /// Path in it.
        path: String,
    },
    /// What the files of a share take: [`Reply::Usage`].
    Usage {
        /// The share, or a snapshot of one.
        share: String,
        /// Of this directory or file; empty: of all.
        path: String,
    },
    /// Begins to trace choices if no trace runs yet, and takes the records so far:
    /// [`Reply::Trace`].
    Trace {
        /// At most so many records.
        count: usize,
    },
    /// Begins to trace the first reads of a volume's groups if that is not traced yet, and takes
    /// the numbers so far: [`Reply::Groups`].
    TraceReads {
        /// The volume.
        volume: String,
        /// So many of them are known.
        from: usize,
    },
    /// Ends that.
    TraceReadsEnd,
    /// What clients do, and how long it takes: [`Reply::Traffic`].
    Traffic {
        /// To this volume, share or snapshot only.
        volume: Option<String>,
        /// Its number, if that is known: it may have another name by now.
        id: Option<u64>,
    },
    /// Ends tracing.
    TraceEnd,
    /// Starts a job, or asks something of one: [`Reply::Job`].
    Job(JobRequest),
    /// Which streams a set has: [`Reply::Plan`].
    PlanSend(SetWish),
    /// What there is of a snapshot that a stream brings, and of its base: [`Reply::Place`].
    Place {
        /// The volume that it is for.
        volume: String,
        /// The snapshot's identity.
        to: [u8; 16],
        /// The base's.
        from: Option<[u8; 16]>,
    },
    /// Turns the connection into one that carries a stream out of the pool: [`Reply::Sending`],
    /// then what `streams` says.
    Send(SendWish),
    /// Turns the connection into one that carries a stream into the pool.
    Receive(ReceiveWish),
    /// What is being received, or was until the stream broke off: [`Reply::Receives`].
    Receives,
    /// Turns the connection into a stream of [`super::bulk`] frames for a volume.
    Bulk {
        /// Name.
        volume: String,
        /// As for [`Request::Destroy`].
        id: Option<u64>,
    },
    /// The datasets of the pool's history, and the state of its store: [`Reply::Datasets`].
    AnalyticsDatasets,
    /// A dataset over a span: [`Reply::Series`].
    Series(SeriesWish),
    /// Operations by duration over a span, of the dataset `latency`: [`Reply::Heatmap`].
    Heatmap(SeriesWish),
    /// What happened in a span: [`Reply::Marks`].
    Marks {
        /// The first second, since 1970.
        from_unix_s: u64,
        /// The second after the last one.
        to_unix_s: u64,
    },
    /// Lists saved sets of graphs ([`Reply::Worksheets`]), or changes one.
    Worksheets {
        /// The name, and the graphs, or none to delete it.
        change: Option<(String, Option<String>)>,
    },
}

/// What an open pool answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// It is done; changes are durable.
    Done,
    /// As [`Reply::Done`], with notes for the user.
    Noted(Vec<String>),
    /// The volume is there, and durable.
    Created {
        /// Its number, which it keeps.
        id: u64,
    },
    /// The volumes, or the folders, by name.
    Volumes(Vec<VolumeReport>),
    /// Snapshots were taken: their full names.
    Taken(Vec<String>),
    /// The snapshots, by volume and age.
    Snapshots(Vec<SnapshotReport>),
    /// The bookmarks, by volume and age.
    Bookmarks(Vec<BookmarkLine>),
    /// The exports by network protocols.
    Exports(ExportsReport),
    /// Tags of snapshots.
    Holds(Vec<HoldLine>),
    /// What has changed.
    Diff(DiffReport),
    /// Figures of the pool.
    Status(Box<StatusReport>),
    /// Properties in force.
    Properties(Vec<PropertyReport>),
    /// How far sorting is.
    Sorted(SortSlice),
    /// How far shrinking is.
    Shrunk(ShrinkSlice),
    /// How far scrubbing is.
    Scrubbed(Box<ScrubSlice>),
    /// How far recompression is.
    Recompressed(Box<RecompressSlice>),
    /// Regions, and where to go on.
    Regions {
        /// The regions that hold data.
        regions: Vec<Region>,
        /// Where there may be more.
        next: Option<u64>,
    },
    /// A region in detail.
    Region(Box<Detail>),
    /// A file of a share in detail.
    File(Box<FileReport>),
    /// What files take.
    Usage(Box<UsageReport>),
    /// What has been traced.
    Trace(Vec<TraceLine>),
    /// Numbers of groups, in the order of their first reads.
    Groups(Vec<u64>),
    /// What clients have done since the server began.
    Traffic(Box<TrafficReport>),
    /// A job.
    Job(Box<JobReport>),
    /// Jobs by number, without their results.
    Jobs(Vec<JobReport>),
    /// A snapshot became a version.
    Pushed(PushedLine),
    /// The streams of a set.
    Plan(SetPlan),
    /// What there is.
    Place(Place),
    /// A stream follows.
    Sending(Sending),
    /// Snapshots that are being received.
    Receives(Vec<ReceiveLine>),
    /// Bulk frames may follow.
    Bulk {
        /// Number of the volume.
        id: u64,
    },
    /// Datasets.
    Datasets(Box<DatasetsReport>),
    /// A dataset over a span.
    Series(Box<SeriesReport>),
    /// Operations by duration.
    Heatmap(Box<HeatmapReport>),
    /// What happened, the latest last.
    Marks(Vec<MarkLine>),
    /// Saved sets of graphs.
    Worksheets(Vec<WorksheetLine>),
}

impl Reply {
    /// [`Reply::Done`], or [`Reply::Noted`] where there are notes.
    pub fn done_with(notes: Vec<String>) -> Self {
        if notes.is_empty() { Self::Done } else { Self::Noted(notes) }
    }

    /// For a reply that does not fit the request: a bug, or a server of another kind.
    pub fn unexpected(&self) -> Error {
        Error::new(ErrorKind::Unsupported, format!("the pool's server gave an answer that does not fit: {self:?}"))
    }
}

#[derive(Serialize, Deserialize)]
struct ErrorDocument {
    kind: String,
    message: String,
}

#[derive(Serialize, Deserialize)]
struct Envelope<T> {
    version: u32,
    #[serde(flatten)]
    body: T,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Outgoing<'a> {
    Request(&'a Request),
    Reply(&'a Reply),
    Error(ErrorDocument),
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Incoming {
    Request(Request),
    Reply(Reply),
    Error(ErrorDocument),
}

fn encode(body: Outgoing<'_>) -> Result<Vec<u8>> {
    let mut line = serde_json::to_vec(&Envelope { version: VERSION, body })
        .map_err(|error| Error::with_source(ErrorKind::Invalid, "a control message cannot be encoded", error))?;
    if line.len() >= LINE_BYTES_MAX {
        let message = format!("a control message of {} bytes is longer than {LINE_BYTES_MAX}", line.len());
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    line.push(b'\n');
    Ok(line)
}

fn decode(line: &[u8]) -> Result<Incoming> {
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    // The version first: a message of another version may not parse at all.
    let malformed = |error| Error::with_source(ErrorKind::Invalid, "a control message cannot be understood", error);
    let Version { version } = serde_json::from_slice(line).map_err(malformed)?;
    if version != VERSION {
        let message = format!(
            "the other side of the control socket speaks version {version}, this program {VERSION}; \
             use the same version of shale on both sides"
        );
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    serde_json::from_slice(line).map(|envelope: Envelope<Incoming>| envelope.body).map_err(malformed)
}

/// The line of a request.
///
/// # Errors
/// When it is too long.
pub fn encode_request(request: &Request) -> Result<Vec<u8>> {
    encode(Outgoing::Request(request))
}

/// The line of a reply, or of the error instead of it.
///
/// # Errors
/// When it is too long.
pub fn encode_reply(reply: &Result<Reply>) -> Result<Vec<u8>> {
    match reply {
        Ok(reply) => encode(Outgoing::Reply(reply)),
        Err(error) => {
            let document = ErrorDocument { kind: error.kind().name().to_owned(), message: error.to_string() };
            encode(Outgoing::Error(document))
        }
    }
}

/// The request of a line.
///
/// # Errors
/// `Invalid` for nonsense, `Unsupported` for another version.
pub fn decode_request(line: &[u8]) -> Result<Request> {
    match decode(line)? {
        Incoming::Request(request) => Ok(request),
        _ => Err(Error::new(ErrorKind::Invalid, "a request was expected on the control socket")),
    }
}

/// The reply of a line.
///
/// # Errors
/// The error that the server sent, or one about the line.
pub fn decode_reply(line: &[u8]) -> Result<Reply> {
    match decode(line)? {
        Incoming::Reply(reply) => Ok(reply),
        Incoming::Error(document) => Err(Error::new(ErrorKind::by_name(&document.kind), document.message)),
        Incoming::Request(_) => Err(Error::new(ErrorKind::Invalid, "a reply was expected on the control socket")),
    }
}

/// Reads one line of at most [`LINE_BYTES_MAX`] bytes, without its end; none at the end of the
/// stream.
///
/// # Errors
/// I/O errors; `InvalidData` for a line that is too long or ends in the middle.
pub fn read_line(reader: &mut impl BufRead) -> std::io::Result<Option<Vec<u8>>> {
    use std::io::{Error, ErrorKind::InvalidData, ErrorKind::UnexpectedEof, Read};
    let mut line = Vec::new();
    reader.by_ref().take(LINE_BYTES_MAX as u64).read_until(b'\n', &mut line)?;
    match line.pop() {
        None => Ok(None),
        Some(b'\n') => Ok(Some(line)),
        Some(_) if line.len() + 1 >= LINE_BYTES_MAX => Err(Error::new(InvalidData, "a control message is too long")),
        Some(_) => Err(Error::new(UnexpectedEof, "a control message ends in the middle")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use report::JobPace;

    #[test]
    fn requests_round_trip() {
        let requests = [
            Request::Hello,
            Request::Create {
                volume: "vm".to_owned(),
                size_bytes: 1 << 40,
                properties: BTreeMap::from([("compression".to_owned(), "zstd-3".to_owned())]),
            },
            Request::Destroy { volume: "vm".to_owned(), id: Some(7), recursive: false, force: true },
            Request::GiveUp { title: "vm@s".to_owned() },
            Request::Allowed {
                request: Box::new(Request::Rollback {
                    snapshots: vec!["vm@s".to_owned()],
                    recursive: true,
                    force: true,
                }),
            },
            Request::Snapshot { volume: "vm".to_owned(), name: "s".to_owned() },
            Request::SnapshotFolder { folder: "a/b".to_owned(), name: "s".to_owned() },
            Request::SnapshotTogether { snapshots: vec!["a/b@s".to_owned(), "c@t".to_owned()] },
            Request::CreateFolder { folder: "a/b".to_owned(), properties: BTreeMap::new() },
            Request::Folders,
            Request::Rollback { snapshots: vec!["vm@s".to_owned()], recursive: true, force: false },
            Request::Hold { snapshot: "vm@s".to_owned(), tag: "t".to_owned() },
            Request::Release { snapshot: "vm@s".to_owned(), tag: "t".to_owned() },
            Request::Holds { of: Some("vm".to_owned()) },
            Request::Bookmark { snapshot: "vm@s".to_owned(), name: "s".to_owned() },
            Request::Bookmarks { volume: None },
            Request::Place { volume: "vm".to_owned(), to: [7; 16], from: None },
            Request::PlanSend(SetWish {
                of: "vm*@s".to_owned(),
                from: Some("#b".to_owned()),
                all: true,
                below: false,
                resume: None,
                thin: true,
            }),
            Request::Snapshots { volume: None },
            Request::Diff { from: "vm@s".to_owned(), to: "vm".to_owned(), start: 1 << 60 },
            Request::Resize { volume: "vm".to_owned(), id: None, size_bytes: 4096, shrink: false, force: false },
            Request::Grow { capacity_bytes: 1 << 40 },
            Request::Shrink { capacity_bytes: 1 << 30, rounds: 7 },
            Request::ShrinkEnd,
            Request::List,
            Request::Status,
            Request::Get { volume: None },
            Request::Set { volume: Some("a".to_owned()), id: Some(3), changes: vec![("unit".to_owned(), None)] },
            Request::Checkpoint,
            Request::Acknowledge,
            Request::SortReport,
            Request::ScrubReport,
            Request::RecompressReport {
                volume: "vm".to_owned(),
                mode: Some("archive".to_owned()),
                path: Some("a".to_owned()),
            },
            Request::Explain { volume: "vm".to_owned(), from: 1 << 40, count: 7 },
            Request::ExplainRegion { volume: "vm".to_owned(), offset: 4096 },
            Request::ExplainFile { share: "home".to_owned(), path: "a/b.c".to_owned() },
            Request::Usage { share: "home@monday".to_owned(), path: String::new() },
            Request::Trace { count: 100 },
            Request::TraceEnd,
            Request::Traffic { volume: Some("vm@monday".to_owned()), id: Some(3) },
            Request::Job(JobRequest::Start {
                wish: JobWish::Recompress {
                    volume: "home".to_owned(),
                    mode: Some("archive".to_owned()),
                    path: Some("a".to_owned()),
                    pace: JobPace { rate: Some(u64::MAX), restart: true },
                },
                background: true,
            }),
            Request::Job(JobRequest::List),
            Request::Job(JobRequest::Watch { id: u64::MAX, seen: Some(3), patience_ms: 200 }),
            Request::Job(JobRequest::Cancel { id: 1, interrupted: true }),
            Request::Job(JobRequest::Register { kind: JobKind::Send, target: Some("vm@s".to_owned()) }),
            Request::Job(JobRequest::Tell { bytes_done: 3, bytes_total: None }),
            Request::Job(JobRequest::Finish {
                bytes_done: 3,
                fault: Some(JobFault { kind: "full".to_owned(), message: "no room".to_owned() }),
            }),
            Request::Send(SendWish {
                snapshot: Some("vm@s".to_owned()),
                from: None,
                resume: Some("x".to_owned()),
                thin: true,
            }),
            Request::Receive(ReceiveWish { volume: "vm".to_owned(), properties: BTreeMap::new(), force: true }),
            Request::Receives,
            Request::Bulk { volume: "vm".to_owned(), id: Some(7) },
            Request::AnalyticsDatasets,
            Request::Series(SeriesWish {
                dataset: "bytes".to_owned(),
                by: Some("object".to_owned()),
                only: vec![("door".to_owned(), "nbd".to_owned())],
                from_unix_s: 1,
                to_unix_s: 2,
                step_s: None,
            }),
            Request::Marks { from_unix_s: 1, to_unix_s: 2 },
            Request::Worksheets { change: Some(("a".to_owned(), None)) },
        ];
        for request in requests {
            let line = encode_request(&request).unwrap();
            assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
            assert_eq!(decode_request(&line[..line.len() - 1]).unwrap(), request);
        }
    }

    #[test]
    fn replies_and_errors_round_trip() {
        let status = StatusReport { capacity_bytes: u64::MAX, ratio: Some(2.5), ..StatusReport::default() };
        let reply = Reply::Status(Box::new(status));
        assert_eq!(decode_reply(&encode_reply(&Ok(reply.clone())).unwrap()).unwrap(), reply);
        assert_eq!(decode_reply(&encode_reply(&Ok(Reply::Done)).unwrap()).unwrap(), Reply::Done);
        for name in [
            "invalid",
            "not-found",
            "exists",
            "in-use",
            "full",
            "corrupt",
            "io",
            "read-only",
            "unsupported",
            "conflict",
        ] {
            let kind = ErrorKind::by_name(name);
            assert_eq!(kind.name(), name);
            let line = encode_reply(&Err(Error::new(kind, "volume \"x\"\nnewline"))).unwrap();
            let error = decode_reply(&line).unwrap_err();
            assert_eq!((error.kind(), error.to_string().as_str()), (kind, "volume \"x\"\nnewline"));
        }
    }

    #[test]
    fn another_version_is_told_apart_from_nonsense() {
        for other in [&br#"{"version":0,"request":{"op":"list"}}"#[..], br#"{"version":3,"request":{"op":"teleport"}}"#]
        {
            assert_eq!(decode_request(other).unwrap_err().kind(), ErrorKind::Unsupported, "{other:?}");
        }
        for nonsense in
            [&b""[..], b"{}", b"GET / HTTP/1.1", br#"{"version":1}"#, br#"{"version":1,"request":{"op":"x"}}"#]
        {
            assert_eq!(decode_request(nonsense).unwrap_err().kind(), ErrorKind::Invalid, "{nonsense:?}");
        }
        // By this a command tells that the server is older than the request.
        let unknown = decode_request(br#"{"version":1,"request":{"op":"teleport","do":"start"}}"#).unwrap_err();
        assert!(unknown.to_string().contains("unknown variant `teleport`"), "{unknown}");
        let reply = encode_reply(&Ok(Reply::Done)).unwrap();
        assert_eq!(decode_request(&reply).unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[test]
    fn a_line_without_end_does_not_fill_memory() {
        let mut endless = std::io::BufReader::new(std::io::repeat(b'x'));
        assert_eq!(read_line(&mut endless).unwrap_err().kind(), std::io::ErrorKind::InvalidData);
        assert_eq!(read_line(&mut &b"ab"[..]).unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
        assert_eq!(read_line(&mut &b"ab\nc"[..]).unwrap(), Some(b"ab".to_vec()));
        assert_eq!(read_line(&mut &b""[..]).unwrap(), None);
    }
}
