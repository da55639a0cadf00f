//! The catalogue of operations: each request, its path, the role that it needs and its effect. The
//! control socket, HTTP, the OpenAPI description and the checks of roles are generated from it.

use std::collections::BTreeMap;

use report::{JobFault, JobKind, JobWish};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::about::{About, Effect, Method, Reach, catalogue};
use crate::caller::Role;
use crate::estimates::EstimateWish;
use crate::history::SeriesWish;
use crate::images::{ImageAddress, PushWish};
use crate::objects::{ListWish, Which};
use crate::reply::Reply;
use crate::streams::{ImportWish, ReceiveWish, SendWish, SetWish};

/// A job started without another wish continues without its caller.
const fn yes() -> bool {
    true
}

/// Lines of the audit log without another wish: a screen or two.
const fn audit_lines() -> usize {
    100
}

/// Entries of a page without another wish.
const fn files_page() -> u32 {
    1000
}

/// Cells of a map without another wish.
const fn map_cells() -> u32 {
    1024
}

catalogue! {
    /// Does nothing: the server is there, and speaks this version.
    Hello => Done { socket "opens a connection", Read, Read, [] },
    /// Creates a volume.
    Create {
        /// Name.
        volume: String,
        /// Size in bytes, a multiple of 4096.
        size_bytes: u64,
        /// Properties of its own.
        #[serde(default)]
        properties: BTreeMap<String, String>,
        /// Creates missing folders of the name.
        #[serde(default)]
        parents: bool,
    } => Created { POST "/volumes", Admin, Change, ["create", "import"], "create volume '{volume}' of {size_bytes} bytes, {properties}" },
    /// Creates a share.
    CreateShare {
        /// Name.
        share: String,
        /// Properties of its own.
        #[serde(default)]
        properties: BTreeMap<String, String>,
        /// Creates missing folders of the name.
        #[serde(default)]
        parents: bool,
    } => Created { POST "/shares", Admin, Change, ["create", "import"], "create share '{share}', {properties}" },
    /// Creates a folder.
    CreateFolder {
        /// Name.
        folder: String,
        /// Properties of its own.
        #[serde(default)]
        properties: BTreeMap<String, String>,
        /// Creates missing folders of the name.
        #[serde(default)]
        parents: bool,
    } => Created { POST "/folders", Admin, Change, ["create", "receive"], "create folder {folder}, {properties}" },
    /// Lists the folders.
    Folders => Volumes { GET "/folders", Read, Read, ["list"] },
    /// Lists the exports by network protocols.
    Exports {
        /// Also checks whether clients can use them.
        #[serde(default)]
        check: bool,
    } => Exports { GET "/exports", Read, Read, ["exports"] },
    /// Destroys a volume, a share, a folder, a snapshot or a bookmark.
    Destroy {
        /// The object; a bookmark by its name, `VOLUME#BOOKMARK`.
        object: Which,
        /// Includes the snapshots of a volume, or all objects in a folder.
        #[serde(default)]
        recursive: bool,
        /// Takes it from clients that have it open.
        #[serde(default)]
        force: bool,
        /// Fails unless the object still has this ETag; null: does not check.
        if_match: Option<String>,
    } => Done { DELETE "/objects/{object}", Admin, Destroy, ["destroy", "import"], "destroy {object}, recursive: {recursive}, force: {force}" },
    /// Returns the open objects that a `destroy`, `rollback`, `resize` or `receive` would take from
    /// their clients. Fails as a `destroy` or a `rollback` would, apart from clients.
    Preview {
        /// That request.
        #[serde(deserialize_with = "crate::wire::previewed")]
        request: Box<Request>,
    } => Affected { POST "/preview", Operate, Read, ["destroy", "rollback", "resize", "receive"] },
    /// Drops a snapshot received in part.
    GiveUp {
        /// Name: `VOLUME` or `VOLUME@SNAPSHOT`.
        title: String,
    } => Done { DELETE "/receives/{title}", Admin, Destroy, ["destroy"], "drop the received part of '{title}'" },
    /// Takes a snapshot.
    Snapshot {
        /// Volume or share.
        object: Which,
        /// Name after the `@`.
        name: String,
    } => Done { POST "/objects/{object}/snapshots", Operate, Change, ["snapshot"], "take snapshot '{name}' of {object}" },
    /// Takes snapshots of all objects in a folder, at one moment.
    SnapshotFolder {
        /// The folder.
        folder: Which,
        /// Name after the `@`.
        name: String,
    } => Taken { POST "/folders/{folder}/snapshots", Operate, Change, ["snapshot"], "take snapshots '{name}' in folder {folder}" },
    /// Takes several snapshots at one moment, all or none.
    SnapshotTogether {
        /// Their names, `VOLUME@SNAPSHOT`.
        snapshots: Vec<String>,
    } => Taken { POST "/snapshots", Operate, Change, ["snapshot"], "take snapshots {snapshots}" },
    /// Clones a snapshot: creates a volume with its content.
    Clone {
        /// The snapshot.
        object: Which,
        /// Name of the new volume.
        volume: String,
        /// Properties that differ from those of the snapshot's volume.
        #[serde(default)]
        properties: BTreeMap<String, String>,
    } => Created { POST "/objects/{object}/clones", Admin, Change, ["clone", "receive"], "clone {object} as '{volume}', {properties}" },
    /// Creates a volume with the content of a version of a blob.
    CloneImage {
        /// The version.
        image: ImageAddress,
        /// Name of the new volume.
        volume: String,
        /// Its size; null: that of the image.
        size_bytes: Option<u64>,
        /// Properties of its own.
        #[serde(default)]
        properties: BTreeMap<String, String>,
    } => Created { POST "/images", Admin, Change, ["clone"], "clone image {image} as '{volume}', {properties}" },
    /// Starts a job that makes a snapshot a version of a blob.
    Push(PushWish) => Job { POST "/objects/{snapshot}/push", Admin, Change Long, ["push"], "push '{snapshot}' for {url} to {to|the same blob}, replace: {replace}" },
    /// Rolls volumes and shares back to snapshots, all or none.
    Rollback {
        /// The snapshots, one of each.
        snapshots: Vec<Which>,
        /// Destroys newer snapshots.
        #[serde(default)]
        recursive: bool,
        /// Changes a volume even while clients have it open.
        #[serde(default)]
        force: bool,
    } => Done { POST "/rollback", Admin, Destroy, ["rollback"], "roll back to {snapshots}, recursive: {recursive}, force: {force}" },
    /// Renames a volume, a share, a folder or a snapshot.
    Rename {
        /// The object.
        object: Which,
        /// New name: `VOLUME`, `FOLDER` or `VOLUME@SNAPSHOT`.
        name: String,
        /// Fails unless the object still has this ETag; null: does not check.
        if_match: Option<String>,
    } => Done { PUT "/objects/{object}/name", Admin, Change, ["rename"], "rename {object} to '{name}'" },
    /// Makes a clone the owner of the snapshots that it came from.
    Promote {
        /// The clone.
        object: Which,
    } => Done { POST "/objects/{object}/promote", Admin, Change, ["promote"], "promote {object}" },
    /// Puts a tag on a snapshot, which protects it from being destroyed.
    Hold {
        /// The snapshot.
        object: Which,
        /// The tag.
        tag: String,
    } => Done { PUT "/objects/{object}/holds/{tag}", Operate, Change, ["hold"], "hold {object} with tag '{tag}'" },
    /// Removes a tag from a snapshot.
    Release {
        /// The snapshot.
        object: Which,
        /// The tag.
        tag: String,
    } => Done { DELETE "/objects/{object}/holds/{tag}", Operate, Change, ["release"], "release {object} from tag '{tag}'" },
    /// Makes a bookmark of a snapshot.
    Bookmark {
        /// The snapshot.
        object: Which,
        /// Name after the `#`.
        name: String,
    } => Done { POST "/objects/{object}/bookmarks", Operate, Change, ["bookmark"], "bookmark {object} as '{name}'" },
    /// Lists bookmarks.
    Bookmarks {
        /// Volume; null for all.
        object: Option<Which>,
    } => Bookmarks { GET "/bookmarks" | "/objects/{object}/bookmarks", Read, Read, ["bookmarks", "destroy"] },
    /// Lists the tags of snapshots.
    Holds {
        /// Snapshot, or volume for all its snapshots; null for all.
        object: Option<Which>,
    } => Holds { GET "/holds" | "/objects/{object}/holds", Read, Read, ["holds"] },
    /// Lists snapshots.
    Snapshots {
        /// Volume, share or folder; null for all.
        object: Option<Which>,
        /// Only snapshots with this name after the `@`; null for all.
        name: Option<String>,
        /// Includes those of everything in a folder, or of the shares in a share.
        #[serde(default)]
        below: bool,
    } => Snapshots { GET "/snapshots" | "/objects/{object}/snapshots", Read, Read, ["list", "destroy", "snapshot", "rollback"] },
    /// Lists the changes between two states of a volume, page by page.
    Diff {
        /// The newer state: a snapshot, or the current state of a volume.
        object: Which,
        /// The older state: a snapshot.
        from: Which,
        /// Byte to begin at.
        #[serde(default)]
        start: u64,
    } => Diff { GET "/objects/{object}/diff", Read, Read, ["diff"] },
    /// Changes the size of a volume.
    Resize {
        /// The volume.
        object: Which,
        /// New size in bytes, a multiple of 4096.
        size_bytes: u64,
        /// Allows a smaller size, which cuts data off.
        #[serde(default)]
        shrink: bool,
        /// Cuts off even while clients have it open.
        #[serde(default)]
        force: bool,
        /// Fails unless the object still has this ETag; null: does not check.
        if_match: Option<String>,
    } => Done { PUT "/objects/{object}/size", Admin, Destroy, ["resize", "import"], "resize {object} to {size_bytes} bytes, shrink: {shrink}, force: {force}" },
    /// Lists volumes, shares and folders, page by page.
    ListObjects(ListWish) => Objects { GET "/objects", Read, Read, [] },
    /// Returns a volume, a share, a folder or a snapshot.
    Object {
        /// The object.
        object: Which,
        /// Includes the bytes that only snapshots hold, for which the map of the object is read.
        #[serde(default)]
        usage: bool,
    } => Object { GET "/objects/{object}", Read, Read, [] },
    /// Lists the volumes and shares.
    List => Volumes { GET "/volumes", Read, Read, ["list", "create", "resize", "destroy"] },
    /// Returns state and figures of the pool.
    Status => Status { GET "/pool", Read, Read, ["status", "df", "resize"] },
    /// Reads the configuration of the server again, and serves as it says.
    Reload => Reloaded { socket "may end the door that it came by", Admin, Change, ["reload"], "reload the configuration" },
    /// Returns the properties in force.
    Get {
        /// Volume, share or folder; null for the pool.
        object: Option<Which>,
    } => Properties { GET "/pool/properties" | "/objects/{object}/properties", Read, Read, ["get", "set", "inherit", "list", "import"] },
    /// Sets properties, all or none.
    Set {
        /// Volume, share or folder; null for the pool.
        object: Option<Which>,
        /// Value by key; null inherits again.
        changes: BTreeMap<String, Option<String>>,
        /// Fails unless the object still has this ETag; null: does not check.
        if_match: Option<String>,
    } => Properties { PATCH "/pool/properties" | "/objects/{object}/properties", Admin, Change, ["set", "inherit", "import"], "set {changes} on {object|the pool}" },
    /// Makes the pool larger.
    Grow {
        /// New capacity in bytes.
        capacity_bytes: u64,
    } => Done { PUT "/pool/capacity", Admin, Change, ["grow"], "grow the pool to {capacity_bytes} bytes" },
    /// Starts a job that makes the pool smaller. A job that is cancelled leaves it as large as it
    /// was.
    Shrink {
        /// New capacity in bytes.
        capacity_bytes: u64,
        /// Whether it continues when the connection ends that started it.
        #[serde(default = "yes")]
        background: bool,
    } => Job { POST "/pool/shrink", Admin, Change Long, ["shrink"], "shrink the pool to {capacity_bytes} bytes" },
    /// Makes all data durable and takes a checkpoint.
    Checkpoint => Done { POST "/pool/checkpoint", Operate, Change, ["status", "list", "import"], "take a checkpoint" },
    /// Acknowledges the known damage, and the losses of repairs.
    Acknowledge => Done { POST "/pool/acknowledgement", Admin, Change, ["status"], "acknowledge damage and losses" },
    /// Returns the progress of the last sorting.
    SortReport => Sorted { GET "/pool/sort", Read, Read, ["clean"] },
    /// Returns the progress of the last scrub.
    ScrubReport => Scrubbed { GET "/pool/scrub", Read, Read, ["scrub"] },
    /// Returns the progress of the last recompression of a volume or a share.
    RecompressReport {
        /// Volume or share.
        object: Which,
        /// Mode; null for that of the properties.
        mode: Option<String>,
        /// Directory or file of a share; null for all of it.
        path: Option<String>,
    } => Recompressed { GET "/objects/{object}/recompression", Read, Read, ["recompress"] },
    /// Returns how regions of a volume are stored, page by page.
    Explain {
        /// Volume or snapshot.
        object: Which,
        /// Byte to begin at.
        #[serde(default)]
        from: u64,
        /// Limit on the regions.
        count: usize,
    } => Regions { GET "/objects/{object}/explain", Read, Read, ["explain"] },
    /// Returns a map of an object by codec. Data that is still in the write buffer is not in it.
    ExplainMap {
        /// Volume, share or snapshot.
        object: Which,
        /// Limit on the cells, at most 4096.
        #[serde(default = "map_cells")]
        cells: u32,
    } => ExplainMap { GET "/objects/{object}/explain-map", Read, Read, [] },
    /// Explains how a region of a volume is stored.
    ExplainRegion {
        /// Volume or snapshot.
        object: Which,
        /// Byte in the region.
        offset: u64,
    } => Region { GET "/objects/{object}/explain/{offset}", Read, Read, ["explain"] },
    /// Explains how a file of a share is stored.
    ExplainFile {
        /// Share, or snapshot of one.
        object: Which,
        /// Path in it.
        path: String,
    } => File { GET "/objects/{object}/explain-file", Operate, Read, ["explain"] },
    /// Returns the space that files of a share take.
    Usage {
        /// Share, or snapshot of one.
        object: Which,
        /// Directory or file; empty for all.
        #[serde(default)]
        path: String,
    } => Usage { GET "/objects/{object}/usage", Operate, Read, ["usage"] },
    /// Lists a directory of a share. Over HTTP a file is answered with its bytes instead, to
    /// callers with the role admin.
    Files {
        /// Share, or snapshot of one.
        object: Which,
        /// Directory or file; empty for the root. Links are not followed.
        #[serde(default)]
        path: String,
        /// Snapshot of the share, by its name after the `@`; null for the share's current state.
        at: Option<String>,
        /// Limit on the entries of the page, at most 1000.
        #[serde(default = "files_page")]
        limit: u32,
        /// Continues a list: `next` of the page before; null for the first page.
        cursor: Option<String>,
    } => Files { GET "/objects/{object}/files/{path*}", Operate, Read, [] },
    /// Returns size and version of a file, whose bytes its caller may read.
    FileVersion {
        /// Share, or snapshot of one.
        object: Which,
        /// The file. Links are not followed.
        path: String,
        /// Snapshot of the share, by its name after the `@`; null for the share's current state.
        at: Option<String>,
    } => FileVersion { socket "HTTP has the bytes at the path of the list", Admin, Read, [] },
    /// Restores a file or a directory of a share from a snapshot. Nothing is overwritten unless
    /// `replace` says so; entries that the snapshot has not are never removed.
    Restore {
        /// Share.
        object: Which,
        /// File or directory in the snapshot.
        path: String,
        /// The snapshot, by its name after the `@`.
        at: String,
        /// Path in the share to restore to, in a directory that exists; null for where it was.
        to: Option<String>,
        /// Replaces files that exist.
        #[serde(default)]
        replace: bool,
    } => Job { POST "/objects/{object}/files/{path*}/restore", Admin, Destroy Long, [], "restore '{path}' of {object} from snapshot '{at}' to {to|its place}, replace: {replace}" },
    /// Starts a trace of the choices of codecs unless one runs, and returns the records so far.
    Trace {
        /// Limit on the records.
        count: usize,
    } => Trace { socket "a trace ends with its connection", Operate, Read, ["trace"] },
    /// Starts a trace of the first reads of a volume's groups unless one runs, and returns the
    /// numbers so far.
    TraceReads {
        /// The volume.
        object: Which,
        /// Number of groups already known.
        from: usize,
    } => Groups { socket "a trace ends with its connection", Operate, Read, ["trace"] },
    /// Ends a trace of first reads.
    TraceReadsEnd => Done { socket "a trace ends with its connection", Operate, Read, ["trace"] },
    /// Returns counts and latencies of clients' operations.
    Traffic {
        /// Volume, share or snapshot; null for all.
        object: Option<Which>,
    } => Traffic { GET "/figures" | "/objects/{object}/figures", Read, Read, ["iostat", "top"] },
    /// Ends a trace of choices.
    TraceEnd => Done { socket "a trace ends with its connection", Operate, Read, ["trace"] },
    /// Starts a job.
    StartJob {
        /// The work.
        wish: JobWish,
        /// Whether it continues when the connection ends that started it.
        #[serde(default = "yes")]
        background: bool,
    } => Job { POST "/jobs", Operate, Change Long, ["recompress", "clean", "scrub", "calibrate"], "start job {wish}" },
    /// Starts a job that estimates the stored size of an object's data with other settings. A running
    /// job for the object is joined if it compares the same settings, and replaced otherwise.
    StartEstimate(EstimateWish) => Job { POST "/objects/{object}/estimates", Operate, Read Long, ["estimate"] },
    /// Returns the newest estimate of an object, also while its job is under way.
    Estimate {
        /// Volume, share, or snapshot of one.
        object: Which,
    } => Estimate { GET "/objects/{object}/estimates", Read, Read, ["estimate"] },
    /// Lists the jobs under way, and the last ones that ended.
    Jobs => Jobs { GET "/jobs", Read, Read, ["jobs"] },
    /// Returns the state of a job, now or when it has changed.
    WatchJob {
        /// Its number.
        id: u64,
        /// Waits until its `changes` differ from this; null: does not wait.
        seen: Option<u64>,
        /// Limit on the waiting, in milliseconds.
        #[serde(default)]
        patience_ms: u64,
    } => Job { GET "/jobs/{id}", Read, Read, ["jobs", "recompress", "clean", "scrub", "calibrate", "estimate"] },
    /// Pauses a job after the slice under way.
    PauseJob {
        /// Its number.
        id: u64,
    } => Job { POST "/jobs/{id}/pause", Operate, Change, ["jobs"], "pause job {id}" },
    /// Resumes a paused job.
    ResumeJob {
        /// Its number.
        id: u64,
    } => Job { POST "/jobs/{id}/resume", Operate, Change, ["jobs"], "resume job {id}" },
    /// Cancels a job after the slice under way.
    CancelJob {
        /// Its number.
        id: u64,
        /// Whether a signal to the command that started it is the reason.
        #[serde(default)]
        interrupted: bool,
    } => Job { DELETE "/jobs/{id}", Operate, Change, ["jobs", "recompress", "clean", "scrub", "calibrate", "estimate"], "cancel job {id}" },
    /// Registers work that the client does itself, until this connection ends.
    RegisterJob {
        /// Kind of work.
        kind: JobKind,
        /// Object that it is about; null for none.
        target: Option<String>,
    } => Job { socket "the job ends with its connection", Operate, Read, ["import", "export", "send", "receive"] },
    /// Reports the progress of registered work. The answer says whether it was cancelled.
    TellJob {
        /// Bytes done.
        bytes_done: u64,
        /// All bytes; null if that is not known.
        bytes_total: Option<u64>,
    } => Job { socket "the job ends with its connection", Operate, Read, ["import", "export", "send", "receive"] },
    /// Reports the outcome of registered work.
    FinishJob {
        /// Bytes done.
        bytes_done: u64,
        /// Reason why it did not finish; null if it did.
        fault: Option<JobFault>,
    } => Job { socket "the job ends with its connection", Operate, Read, ["import", "export", "send", "receive"] },
    /// Lists the streams of a set.
    PlanSend(SetWish) => Plan { socket "part of sending", Read, Read, ["send"] },
    /// Returns the state of a snapshot that a stream brings, and of its base.
    Place {
        /// The volume of the stream.
        volume: String,
        /// Identity of the snapshot.
        to: [u8; 16],
        /// Identity of the base; null: the stream is complete.
        from: Option<[u8; 16]>,
    } => Place { socket "part of receiving", Read, Read, ["receive"] },
    /// Turns the connection into one that carries a stream out of the pool.
    Send(SendWish) => Sending { socket "a stream needs a connection of its own", Admin, Read, ["send"] },
    /// Turns the connection into one that carries a stream into the pool.
    Receive(ReceiveWish) => Done { socket "a stream needs a connection of its own", Admin, Change, ["receive"], "receive into '{volume}', {properties}, force: {force}" },
    /// Creates a share, and turns the connection into one that carries its tree.
    ImportTree(ImportWish) => Created { socket "a stream needs a connection of its own", Admin, Change, ["import"], "create share '{share}', {properties}, and import a tree" },
    /// Lists the snapshots received in part.
    Receives => Receives { GET "/receives", Read, Read, ["destroy", "receive"] },
    /// Turns the connection into one that carries bulk data of a volume.
    Bulk {
        /// The volume.
        object: Which,
    } => Bulk { socket "a stream needs a connection of its own", Admin, Change, ["import", "export"], "open {object} for bulk data" },
    /// Lists the users who can log in over HTTP.
    Users => Users { GET "/users", Admin, Read, ["passwd"] },
    /// Sets the password of a user and ends the user's sessions. Creates the user if it does not
    /// exist.
    SetPassword {
        /// Name of the user.
        name: String,
        /// The password; null: unchanged, for a user that exists.
        password: Option<String>,
        /// Role of the user; null: unchanged, and `admin` for a new user.
        role: Option<Role>,
    } => Done { POST "/users", Admin, Change, ["passwd"], "set the password or the role of user '{name}', role: {role|unchanged}" },
    /// Removes a user, and ends the user's sessions.
    RemoveUser {
        /// Name of the user.
        name: String,
    } => Done { DELETE "/users/{name}", Admin, Change, ["passwd"], "remove user '{name}'" },
    /// Lists the tokens of programs.
    Tokens => Tokens { GET "/tokens", Admin, Read, ["token"] },
    /// Makes a token for a program.
    CreateToken {
        /// Name of the token.
        name: String,
        /// Role of its owner.
        role: Role,
        /// When it expires, in seconds since 1970; null: never.
        expires_unix_s: Option<u64>,
    } => Token { POST "/tokens", Admin, Change, ["token"], "create token '{name}' with the role {role}" },
    /// Revokes a token: the next request with it is refused.
    RevokeToken {
        /// Name of the token.
        name: String,
    } => Done { DELETE "/tokens/{name}", Admin, Change, ["token"], "revoke token '{name}'" },
    /// Lists the newest lines of the audit log.
    Audit {
        /// Limit on the lines.
        #[serde(default = "audit_lines")]
        limit: usize,
    } => Audit { GET "/audit", Admin, Read, ["history"] },
    /// Lists the datasets of the history, and returns the state of their store.
    AnalyticsDatasets => Datasets { GET "/analytics/datasets", Read, Read, ["stats"] },
    /// Returns a dataset over a span.
    Series(SeriesWish) => Series { GET "/analytics/series", Read, Read, ["stats"] },
    /// Returns operations by duration over a span, of the dataset `latency`.
    Heatmap(SeriesWish) => Heatmap { GET "/analytics/heatmap", Read, Read, [] },
    /// Returns the changes in a span, oldest first.
    Marks {
        /// First second, since 1970.
        from_unix_s: u64,
        /// Second after the last one.
        to_unix_s: u64,
    } => Marks { GET "/analytics/marks", Read, Read, ["stats"] },
    /// Lists the saved sets of graphs.
    Worksheets => Worksheets { GET "/worksheets", Read, Read, [] },
    /// Saves a set of graphs.
    SaveWorksheet {
        /// Name of the set.
        name: String,
        /// The graphs, in the form of the program that saves them.
        body: String,
    } => Done { PUT "/worksheets/{name}", Operate, Change, [], "save worksheet '{name}'" },
    /// Removes a saved set of graphs.
    RemoveWorksheet {
        /// Name of the set.
        name: String,
    } => Done { DELETE "/worksheets/{name}", Operate, Change, [], "remove worksheet '{name}'" },
}

impl Request {
    /// The objects that it names; not those in a request that it only asks about.
    pub fn objects(&self) -> impl Iterator<Item = &Which> {
        let (one, many): (Option<&Which>, &[Which]) = match self {
            Self::Destroy { object, .. }
            | Self::Snapshot { object, .. }
            | Self::SnapshotFolder { folder: object, .. }
            | Self::Clone { object, .. }
            | Self::Rename { object, .. }
            | Self::Promote { object }
            | Self::Hold { object, .. }
            | Self::Release { object, .. }
            | Self::Bookmark { object, .. }
            | Self::Resize { object, .. }
            | Self::Object { object, .. }
            | Self::RecompressReport { object, .. }
            | Self::Explain { object, .. }
            | Self::ExplainRegion { object, .. }
            | Self::ExplainFile { object, .. }
            | Self::Usage { object, .. }
            | Self::ExplainMap { object, .. }
            | Self::Files { object, .. }
            | Self::FileVersion { object, .. }
            | Self::Restore { object, .. }
            | Self::TraceReads { object, .. }
            | Self::StartEstimate(EstimateWish { object, .. })
            | Self::Estimate { object }
            | Self::Bulk { object } => (Some(object), &[]),
            Self::Bookmarks { object }
            | Self::Holds { object }
            | Self::Snapshots { object, .. }
            | Self::Get { object }
            | Self::Set { object, .. }
            | Self::Traffic { object }
            | Self::ListObjects(ListWish { parent: object, .. }) => (object.as_ref(), &[]),
            Self::Diff { object, from, .. } => (Some(object), std::slice::from_ref(from)),
            Self::Rollback { snapshots, .. } => (None, snapshots),
            _ => (None, &[]),
        };
        one.into_iter().chain(many)
    }

    /// Whether it is about a file by name, though everyone may call its operation.
    pub const fn names_file(&self) -> bool {
        matches!(self, Self::RecompressReport { path: Some(_), .. })
    }

    /// Spells short values of properties out, such as `compression=zstd`, and returns a note on each.
    pub fn spell_out(&mut self) -> Vec<String> {
        let mut notes = Vec::new();
        let spell = |(key, value): (&String, &mut String)| {
            if let Some(meant) = policy::spelled_out(key, value) {
                notes.push(format!("{key}={value} means {key}={meant}"));
                *value = meant;
            }
        };
        match self {
            Self::Create { properties, .. }
            | Self::CreateShare { properties, .. }
            | Self::CreateFolder { properties, .. }
            | Self::Clone { properties, .. }
            | Self::CloneImage { properties, .. }
            | Self::Push(PushWish { properties, .. })
            | Self::StartEstimate(EstimateWish { properties, .. })
            | Self::ImportTree(ImportWish { properties, .. })
            | Self::Receive(ReceiveWish { properties, .. }) => properties.iter_mut().for_each(spell),
            Self::Set { changes, .. } => {
                changes.iter_mut().filter_map(|(key, value)| Some((key, value.as_mut()?))).for_each(spell);
            }
            _ => {}
        }
        notes
    }

    /// The version that its object must have.
    pub fn if_match(&self) -> Option<&str> {
        match self {
            Self::Destroy { if_match, .. }
            | Self::Resize { if_match, .. }
            | Self::Rename { if_match, .. }
            | Self::Set { if_match, .. } => if_match.as_deref(),
            _ => None,
        }
    }
}
