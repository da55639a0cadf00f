//! What commands report: the documents behind `--json`, which also cross the control socket. Field
//! names are a promise to scripts: they are documented in the help of each command, added to, and
//! not renamed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{ImageLine, JobReport, LossLine, LossReport};

/// A volume.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VolumeReport {
    /// Number, which it keeps whatever it is called, and which no other gets.
    pub id: u64,
    /// Name.
    pub name: String,
    /// Whether it is a share.
    pub share: bool,
    /// Whether it is a folder: then the figures are the sums of everything in it.
    pub folder: bool,
    /// Size that its users see; of a share, which has none, what it holds.
    pub size_bytes: u64,
    /// Logical bytes that hold data.
    pub allocated_bytes: u64,
    /// Bytes that they take in the pool.
    pub stored_bytes: u64,
    /// `allocated_bytes / stored_bytes`; none when nothing is stored.
    pub ratio: Option<f64>,
    /// When it was created, in seconds since 1970.
    pub created_unix_s: u64,
    /// How many clients have it open.
    pub clients: usize,
    /// Who they are, or the first ones of many.
    pub client_names: Vec<String>,
    /// Properties set on the volume itself.
    pub properties: BTreeMap<String, String>,
    /// The other volume's snapshot that it came from.
    pub origin: Option<String>,
    /// It has not got all of the data that an import was to bring.
    pub incomplete: bool,
    /// `allocated_bytes` and `stored_bytes` are exact: nothing has changed them since the last
    /// checkpoint.
    pub exact: bool,
    /// Its bookmarks, `VOLUME#BOOKMARK`.
    pub bookmarks: Vec<BookmarkLine>,
    /// Why a share is not mounted where the server mounts shares; none: it is, or is not meant to.
    pub unserved: Option<String>,
    /// Its snapshots, oldest first, if they were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshots: Option<Vec<SnapshotReport>>,
}

/// A share that a server could not mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnservedLine {
    /// Its name.
    pub share: String,
    /// Why.
    pub why: String,
}

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotReport {
    /// The volume that it is listed under.
    pub volume: String,
    /// The part of its name behind the `@`.
    pub name: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// When it was taken, in seconds since 1970.
    pub created_unix_s: u64,
    /// Whether a schedule made it.
    pub scheduled: bool,
    /// Stored bytes that come back if it alone is destroyed.
    pub unique_bytes: u64,
    /// Stored bytes of what it sees that others see too.
    pub shared_bytes: u64,
    /// Logical bytes that hold data in it.
    pub data_bytes: u64,
    /// How many clients have it open.
    pub clients: usize,
    /// Who they are, or the first ones of many.
    pub client_names: Vec<String>,
    /// As of its volume.
    pub incomplete: bool,
    /// The tags that keep it.
    pub holds: Vec<String>,
}

/// The remains of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BookmarkLine {
    /// `VOLUME#BOOKMARK`.
    pub bookmark: String,
    /// When the snapshot was taken, in seconds since 1970.
    pub created_unix_s: u64,
    /// What the snapshot is called in all pools.
    pub identity: String,
}

/// A tag that keeps a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldLine {
    /// `VOLUME@SNAPSHOT`.
    pub snapshot: String,
    /// The tag.
    pub tag: String,
    /// When it was put there, in seconds since 1970.
    pub created_unix_s: u64,
}

/// A snapshot of which a part has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiveLine {
    /// The volume that it is for.
    pub volume: String,
    /// The part of its name behind the `@`.
    pub snapshot: String,
    /// Whether the volume will be there only when the snapshot is.
    pub is_new: bool,
    /// Bytes of payload that have come.
    pub received_bytes: u64,
    /// Bytes of payload that the sender expected to send.
    pub expected_bytes: u64,
    /// For `shale send --resume`.
    pub token: String,
}

/// A stretch of what has changed between two states.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiffReport {
    /// In order.
    pub changes: Vec<ChangeReport>,
    /// From which byte to go on, unless that was all.
    pub next: Option<u64>,
    /// Size of the older state.
    pub from_bytes: u64,
    /// Size of the newer one.
    pub to_bytes: u64,
}

/// A range that has changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeReport {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// `data` or `hole`: the present content.
    pub now: String,
}

impl VolumeReport {
    /// What it is, in a word.
    pub fn kind(&self) -> &'static str {
        match (self.folder, self.share) {
            (true, _) => "folder",
            (_, true) => "share",
            _ => "volume",
        }
    }
}

/// A property in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PropertyReport {
    /// Name.
    pub key: String,
    /// Value in force.
    pub value: String,
    /// `default`, `pool`, `volume`, `folder` or `share`.
    pub source: String,
    /// The folder, or the share, that it is inherited from.
    pub folder: Option<String>,
}

/// A pool. See the help of `shale status` for the fields.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)] // each is documented in the help of `shale status`
pub struct StatusReport {
    pub pool: String,
    pub data: String,
    pub id: String,
    pub served: bool,
    pub pid: u32,
    pub nbd: Vec<String>,
    pub nbd_connections: u64,
    pub nbd_connections_max: u64,
    pub mount: Option<String>,
    /// The directory below which it is served as mounted shares.
    pub shares: Option<String>,
    /// Those that could not be mounted there.
    pub unserved_shares: Vec<UnservedLine>,
    pub uptime_s: u64,
    /// The worst that is to be said.
    pub health: String,
    pub used_percent: f64,
    pub available_bytes: u64,
    pub reserved_bytes: u64,
    pub reserved_for: Vec<ReservedLine>,
    pub kept_bytes: u64,
    /// What the next checkpoint makes available.
    pub returning_bytes: u64,
    /// The highest level of 80, 90 and 95 that the pool has come to; 0: none.
    pub full_level: u32,
    pub full: bool,
    /// The file system below has less room than the pool: `shale grow` does not help.
    pub short_below: bool,
    pub refused_writes: u64,
    pub exact: bool,
    pub scrub: ScrubLine,
    pub capacity_bytes: u64,
    pub extent_bytes: u64,
    pub extents_free: u64,
    pub extents_total: u64,
    pub volumes: u64,
    pub logical_bytes: u64,
    pub allocated_bytes: u64,
    pub stored_bytes: u64,
    pub unlisted_bytes: u64,
    pub unlisted_allocated_bytes: u64,
    pub dictionaries: u64,
    pub dictionary_bytes: u64,
    pub reaping: u64,
    pub dead_bytes: u64,
    pub free_bytes: u64,
    pub map_bytes: u64,
    pub ratio: Option<f64>,
    pub saving_percent: Option<f64>,
    pub written_bytes: u64,
    pub fragment_bytes: u64,
    pub log_bytes: u64,
    pub disk_written_bytes: u64,
    pub write_amplification: Option<f64>,
    pub read_bytes: u64,
    pub read_disk_bytes: u64,
    pub checkpoints: u64,
    pub light_checkpoints: u64,
    pub flushes: u64,
    pub syncs: u64,
    pub recovered_batches: u64,
    pub recovered_bytes: u64,
    pub recovery_ms: f64,
    pub standby: Option<String>,
    pub standby_bytes: u64,
    pub replayed_writes: u64,
    pub replayed_bytes: u64,
    pub standby_notes: Vec<String>,
    pub names_at_risk: bool,
    pub jobs: Vec<JobReport>,
    pub cleaned_extents: u64,
    pub moved_bytes: u64,
    pub rewritten_bytes: u64,
    pub cleaning_ms: f64,
    pub cleaning_bytes_per_s: Option<f64>,
    pub cold_before_bytes: u64,
    pub cold_after_bytes: u64,
    pub catalogue_bytes: u64,
    pub catalogue_extents: u64,
    pub damages: Vec<String>,
    pub damages_unlisted: u64,
    pub damages_acknowledged: u64,
    pub receives: Vec<ReceiveLine>,
    /// Images of which volumes need something.
    pub images: Vec<ImageLine>,
    pub incomplete: Vec<String>,
    pub bookmarks: u64,
    pub holds: u64,
    pub held_snapshots: u64,
    pub losses: Vec<LossLine>,
    pub memory_budget_bytes: u64,
    pub memory_resident_bytes: u64,
    pub failed: Option<String>,
}

impl StatusReport {
    /// What destroyed volumes hold still, apart from what has been fetched of images: logical bytes
    /// that hold data, and what they take.
    pub fn of_destroyed(&self) -> (u64, u64) {
        let local = self.images.iter().map(|image| image.local_bytes).sum();
        let stored = self.images.iter().map(|image| image.stored_bytes).sum();
        (self.unlisted_allocated_bytes.saturating_sub(local), self.unlisted_bytes.saturating_sub(stored))
    }
}

/// What is kept for a volume with a reservation, and not used by it yet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservedLine {
    /// Its name.
    pub volume: String,
    /// Bytes, as stored.
    pub bytes: u64,
}

/// The last scrub of a pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubLine {
    /// When it began, in seconds since 1970; 0: the pool was never scrubbed.
    pub started_unix_s: u64,
    /// When it ended; 0: it has not.
    pub finished_unix_s: u64,
    /// It is under way now.
    pub running: bool,
    /// Bytes of data that it has gone through, as stored.
    pub bytes_done: u64,
    /// All there are.
    pub bytes_total: u64,
    /// Damages that it found.
    pub found: u64,
}

/// What `check` found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CheckSummary {
    /// Nothing wrong is left.
    pub clean: bool,
    /// Map records read.
    pub records: u64,
    /// Fragments read, verified and decoded.
    pub fragments: u64,
    /// Their bytes.
    pub fragment_bytes: u64,
    /// How long it took.
    pub seconds: f64,
    /// How much is wrong in all, and how much of that is left.
    pub problems_total: u64,
    /// See `problems_total`.
    pub problems_left: u64,
    /// Volumes and snapshots that are concerned, with the number of problems of each.
    pub volumes: BTreeMap<String, u64>,
    /// Kinds of problem, with the number of each.
    pub kinds: BTreeMap<&'static str, u64>,
    /// The faults, the first thousand.
    pub problems: Vec<ProblemReport>,
    /// What can be said of the end of the log, if that was not an orderly one.
    pub log_end: Option<String>,
    /// What opening the pool has put right, and is no problem of it.
    pub notes: Vec<String>,
    /// What was dropped, because `--accept-loss` said so.
    pub loss: Option<LossReport>,
    /// Shares of which names are lost for good, by `--repair`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names_lost: Vec<String>,
    /// Shares in which extended attributes of files are lost for good, or may be, by `--repair`:
    /// `problems` has the paths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attributes_lost: Vec<String>,
    /// Whether a repair may mend something of it.
    #[serde(skip)]
    pub is_mendable: bool,
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProblemReport {
    /// A stable name, as in the help of `shale check`.
    pub kind: String,
    /// Volume that is concerned, if any.
    pub volume: Option<String>,
    /// Byte offset in the volume, if any.
    pub offset: Option<u64>,
    /// Bytes from there that are concerned, if they are known and lie together.
    pub length: Option<u64>,
    /// The value found and the value expected.
    pub detail: String,
    /// Whether it was mended.
    pub repaired: bool,
}

/// What an import or an export did.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TransferSummary {
    /// The volume.
    pub volume: String,
    /// The file read (import).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The file written (export).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Size of the volume.
    pub size_bytes: u64,
    /// Bytes copied.
    pub copied_bytes: u64,
    /// Bytes of holes that were skipped.
    pub hole_bytes: u64,
    /// Logical bytes of the volume that hold data now, those of its snapshots not counted (import).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocated_bytes: Option<u64>,
    /// Whether `stored_bytes` and `ratio` count what only snapshots of the volume hold, too
    /// (import).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub with_snapshots: Option<bool>,
    /// Bytes that the volume and its snapshots take in the pool (import).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stored_bytes: Option<u64>,
    /// What they hold over `stored_bytes` (import).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// How long it took.
    pub seconds: f64,
    /// Size over time.
    pub bytes_per_second: u64,
}

/// `part` times as much, or none if there is nothing to compare with.
pub fn ratio(whole: u64, part: u64) -> Option<f64> {
    (part > 0).then(|| whole as f64 / part as f64)
}

/// Bytes written to disks for each byte that clients wrote, compressed. Bytes that are rewritten
/// because a user asks for it are no price of these writes. Where they are the most of all, nothing
/// is told: their headers and their part of the map, which cannot be told apart, would be most of
/// the rest.
pub fn write_amplification(disk_bytes: u64, rewritten_bytes: u64, fragment_bytes: u64) -> Option<f64> {
    let own = disk_bytes.saturating_sub(rewritten_bytes);
    ratio(own, fragment_bytes).filter(|_| own >= rewritten_bytes)
}

/// A ratio as people read it.
pub fn show_ratio(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}x"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_pool_has_no_ratio() {
        assert_eq!(ratio(0, 0), None);
        assert_eq!(show_ratio(None), "-");
        assert_eq!(show_ratio(ratio(300, 100)), "3.00x");
    }

    #[test]
    fn what_is_rewritten_on_request_is_no_price_of_writes() {
        assert_eq!(write_amplification(300, 0, 100), Some(3.0));
        assert_eq!(write_amplification(300, 100, 100), Some(2.0));
        assert_eq!(write_amplification(51 << 20, 50 << 20, 8 << 10), None);
        assert_eq!(write_amplification(300, 0, 0), None);
    }
}
