//! Pools, volumes and shares: the documents that commands print with `--json`, and that cross the
//! control socket. Field names are a promise to scripts, as the crate's head says.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use units::format_size;

use crate::{ImageLine, JobReport, LossLine, LossReport};

/// Kinds of object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ObjectKind {
    /// A volume.
    Volume,
    /// A share.
    Share,
    /// A folder.
    Folder,
    /// A snapshot of a volume or a share.
    Snapshot,
}

impl ObjectKind {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Volume => "volume",
            Self::Share => "share",
            Self::Folder => "folder",
            Self::Snapshot => "snapshot",
        }
    }
}

/// A volume, a share or a folder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VolumeReport {
    /// Permanent number: unique in the pool, unchanged by renaming.
    pub id: u64,
    /// Kind of object.
    pub kind: ObjectKind,
    /// Name, with the folders that it is in.
    pub name: String,
    /// Whether it is a share.
    pub share: bool,
    /// Whether it is a folder: the figures are then sums over all objects in it.
    pub folder: bool,
    /// Size; of a share the bytes that it holds, of a folder 0.
    pub size_bytes: u64,
    /// Logical bytes that hold data.
    pub allocated_bytes: u64,
    /// Stored bytes of that data, including data that only its snapshots and clones refer to.
    pub stored_bytes: u64,
    /// Part of `stored_bytes` that only its snapshots and clones refer to; absent unless asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_stored_bytes: Option<u64>,
    /// `allocated_bytes / stored_bytes`; null when nothing is stored.
    pub ratio: Option<f64>,
    /// Time of creation, in seconds since 1970.
    pub created_unix_s: u64,
    /// Number of clients that have it open.
    pub clients: usize,
    /// Their names, at most the first few.
    pub client_names: Vec<String>,
    /// Properties set on the object itself.
    pub properties: BTreeMap<String, String>,
    /// Snapshot that it was cloned from; null if it is no clone.
    pub origin: Option<String>,
    /// Whether an import into it did not finish.
    pub incomplete: bool,
    /// Whether `allocated_bytes` and `stored_bytes` are exact: unchanged since the last checkpoint.
    pub exact: bool,
    /// Its bookmarks.
    pub bookmarks: Vec<BookmarkLine>,
    /// Reason why a share is not mounted by the server; null if it is, or need not be.
    pub unserved: Option<String>,
    /// Its snapshots, oldest first; absent unless asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshots: Option<Vec<SnapshotReport>>,
}

/// A share that a server could not mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnservedLine {
    /// Name of the share.
    pub share: String,
    /// Reason.
    pub why: String,
}

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SnapshotReport {
    /// Permanent number: unique in the pool, unchanged by renaming.
    pub id: u64,
    /// `snapshot`.
    pub kind: ObjectKind,
    /// Volume or share of the snapshot.
    pub volume: String,
    /// Name after the `@`.
    pub name: String,
    /// Size of the volume then; of a share the bytes that it holds.
    pub size_bytes: u64,
    /// Time of the snapshot, in seconds since 1970.
    pub created_unix_s: u64,
    /// Whether a schedule took it.
    pub scheduled: bool,
    /// Stored bytes reclaimed if this snapshot alone is destroyed.
    pub unique_bytes: u64,
    /// Stored bytes of its data shared with other snapshots or the volume.
    pub shared_bytes: u64,
    /// Logical bytes that hold data.
    pub data_bytes: u64,
    /// Number of clients that have it open.
    pub clients: usize,
    /// Their names, at most the first few.
    pub client_names: Vec<String>,
    /// Whether an import into its volume had not finished.
    pub incomplete: bool,
    /// Tags that protect it from being destroyed.
    pub holds: Vec<String>,
}

/// A bookmark: the identity of a snapshot, as a base for differences.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BookmarkLine {
    /// Full name, `VOLUME#BOOKMARK`.
    pub bookmark: String,
    /// Time of the snapshot, in seconds since 1970.
    pub created_unix_s: u64,
    /// Identity of the snapshot, the same in all pools.
    pub identity: String,
}

/// A tag that protects a snapshot from being destroyed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HoldLine {
    /// Full name of the snapshot, `VOLUME@SNAPSHOT`.
    pub snapshot: String,
    /// The tag.
    pub tag: String,
    /// Time when it was set, in seconds since 1970.
    pub created_unix_s: u64,
}

/// A snapshot received in part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReceiveLine {
    /// Volume that it belongs to.
    pub volume: String,
    /// Name after the `@`.
    pub snapshot: String,
    /// Whether the volume appears only with the complete snapshot.
    pub is_new: bool,
    /// Bytes of payload received.
    pub received_bytes: u64,
    /// Bytes of payload announced by the sender.
    pub expected_bytes: u64,
    /// Token for `shale send --resume`.
    pub token: String,
}

/// Changes between two states, one page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DiffReport {
    /// Changed ranges in order of offset.
    pub changes: Vec<ChangeReport>,
    /// Offset to continue at; null at the end.
    pub next: Option<u64>,
    /// Size of the older state.
    pub from_bytes: u64,
    /// Size of the newer state.
    pub to_bytes: u64,
}

/// A changed range.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ChangeReport {
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
    /// Content in the newer state: `data` or `hole`.
    pub now: String,
}

/// A property in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PropertyReport {
    /// Name of the property.
    pub key: String,
    /// Value in force.
    pub value: String,
    /// Level that sets it: `default`, `pool`, `folder`, `share` or `volume`.
    pub source: String,
    /// Folder or share that it is inherited from; null if it is not inherited from one.
    pub folder: Option<String>,
    /// Values to choose among, the usual ones first; empty where it is a size, a number or a list.
    /// `allowed` may have more.
    pub values: Vec<String>,
    /// Allowed values, in words.
    pub allowed: String,
    /// Its effect.
    pub description: String,
    /// Rules that the value puts in force, by type of file; only `rule-set` has any.
    pub rules: BTreeMap<String, String>,
}

/// Properties of an object or of the pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PropertiesReport {
    /// Changes with the name, the size and the properties set on the object itself.
    pub etag: String,
    /// The properties in force, by name.
    pub properties: Vec<PropertyReport>,
    /// Remarks on a change, for its user; empty if there are none.
    pub notes: Vec<String>,
}

/// State and figures of a pool. Counters begin when the pool is opened.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StatusReport {
    /// Directory of the pool.
    pub pool: String,
    /// Data file or block device.
    pub data: String,
    /// Identifier of the pool, in hexadecimal digits.
    pub id: String,
    /// Whether a server has the pool open.
    pub served: bool,
    /// Process that has the pool open.
    pub pid: u32,
    /// Addresses on which it is served over NBD.
    pub nbd: Vec<String>,
    /// NBD connections now.
    pub nbd_connections: u64,
    /// Limit on NBD connections (`serve --connections`).
    pub nbd_connections_max: u64,
    /// Directory where volumes are files; null without a mount.
    pub mount: Option<String>,
    /// Directory below which the shares are mounted; null without mounted shares.
    pub shares: Option<String>,
    /// Shares that could not be mounted there.
    pub unserved_shares: Vec<UnservedLine>,
    /// Seconds since the pool was opened.
    pub uptime_s: u64,
    /// The most severe state: `ok`, `scrubbing`, `nearly-full`, `incomplete`, `full`,
    /// `recovered-with-loss`, `image-gone`, `image-damaged`, `share-unserved`, `damaged` or
    /// `failed`.
    pub health: String,
    /// Stored bytes in percent of the bytes that the pool can store.
    pub used_percent: f64,
    /// Stored bytes that new data can take once all dead space is cleaned.
    pub available_bytes: u64,
    /// Bytes reserved for volumes and not used yet.
    pub reserved_bytes: u64,
    /// Unused reservations by volume.
    pub reserved_for: Vec<ReservedLine>,
    /// Bytes kept free for the cleaner.
    pub kept_bytes: u64,
    /// Bytes discarded or destroyed since the last checkpoint; the next one makes them
    /// available.
    pub returning_bytes: u64,
    /// The highest of 80, 90 and 95 that `used_percent` has reached; 0 below 80.
    pub full_level: u32,
    /// Whether new data is refused.
    pub full: bool,
    /// Volumes, shares and folders that have refused data because of their quota.
    pub at_quota: Vec<QuotaLine>,
    /// Whether the file system below has less room than the capacity: `shale grow` cannot
    /// help then.
    pub short_below: bool,
    /// Writes that found no space, each attempt of a held write counted.
    pub refused_writes: u64,
    /// Whether the figures of allocated, stored and dead bytes are exact or estimated.
    pub exact: bool,
    /// The last scrub.
    pub scrub: ScrubLine,
    /// Size of the log: stored bytes of all data and overhead.
    pub capacity_bytes: u64,
    /// Size of an extent.
    pub extent_bytes: u64,
    /// Extents without live or dead data.
    pub extents_free: u64,
    /// All extents.
    pub extents_total: u64,
    /// Number of volumes and shares.
    pub volumes: u64,
    /// Sum of the sizes of the volumes.
    pub logical_bytes: u64,
    /// Logical bytes that hold data.
    pub allocated_bytes: u64,
    /// Live stored bytes that hold them.
    pub stored_bytes: u64,
    /// The part of `stored_bytes` held by images and destroyed volumes.
    pub unlisted_bytes: u64,
    /// The part of `allocated_bytes` held by images and destroyed volumes.
    pub unlisted_allocated_bytes: u64,
    /// Number of trained dictionaries.
    pub dictionaries: u64,
    /// The part of `stored_bytes` that dictionaries take.
    pub dictionary_bytes: u64,
    /// Destroyed objects whose space is still being reclaimed.
    pub reaping: u64,
    /// Stored bytes that the cleaner has not reclaimed yet.
    pub dead_bytes: u64,
    /// Free bytes in the pool and in the file system below.
    pub free_bytes: u64,
    /// Bytes of the map.
    pub map_bytes: u64,
    /// `allocated_bytes / stored_bytes`; null when nothing is stored.
    pub ratio: Option<f64>,
    /// `100 * (1 - stored_bytes / allocated_bytes)`; null when nothing is allocated.
    pub saving_percent: Option<f64>,
    /// Bytes written by clients since the pool was opened.
    pub written_bytes: u64,
    /// Compressed bytes of `written_bytes`.
    pub fragment_bytes: u64,
    /// Bytes written to the data file.
    pub log_bytes: u64,
    /// Bytes written to the data file and the map.
    pub disk_written_bytes: u64,
    /// `(disk_written_bytes - rewritten_bytes) / fragment_bytes`; null if nothing was
    /// written, or more was rewritten than written.
    pub write_amplification: Option<f64>,
    /// Bytes read by clients since the pool was opened.
    pub read_bytes: u64,
    /// Bytes read from the data file.
    pub read_disk_bytes: u64,
    /// Bytes that were read ahead, decoded.
    pub read_ahead_bytes: u64,
    /// Those of them that a client has read. The others are still in memory, or were useless.
    pub read_ahead_used_bytes: u64,
    /// Full checkpoints since the pool was opened.
    pub checkpoints: u64,
    /// Checkpoints that only reclaimed space.
    pub light_checkpoints: u64,
    /// Flushes that clients asked for.
    pub flushes: u64,
    /// Syncs of the data file.
    pub syncs: u64,
    /// Batches replayed when the pool was opened.
    pub recovered_batches: u64,
    /// Bytes replayed when the pool was opened.
    pub recovered_bytes: u64,
    /// Milliseconds of that replay.
    pub recovery_ms: f64,
    /// File that keeps acknowledged writes if the server dies; null without standby memory.
    pub standby: Option<String>,
    /// Size of that file.
    pub standby_bytes: u64,
    /// Writes recovered from that file when the pool was opened.
    pub replayed_writes: u64,
    /// Bytes recovered from that file when the pool was opened.
    pub replayed_bytes: u64,
    /// Contents of that file that were not used, or the reason why there is no such file.
    pub standby_notes: Vec<String>,
    /// Whether the death of the server would lose unsynced names in shares.
    pub names_at_risk: bool,
    /// Jobs under way.
    pub jobs: Vec<JobReport>,
    /// Extents emptied by the cleaner since the pool was opened.
    pub cleaned_extents: u64,
    /// Bytes moved by the cleaner and by sorting.
    pub moved_bytes: u64,
    /// Bytes rewritten by recompression and sorting.
    pub rewritten_bytes: u64,
    /// Milliseconds spent cleaning.
    pub cleaning_ms: f64,
    /// Bytes of extents emptied in a second of cleaning; null if nothing was cleaned.
    pub cleaning_bytes_per_s: Option<f64>,
    /// Bytes that the cleaner recompressed by `cold-mode`, before.
    pub cold_before_bytes: u64,
    /// The same bytes after recompression.
    pub cold_after_bytes: u64,
    /// Size of the catalogue in the log, which salvage reads; 0 if there was no space.
    pub catalogue_bytes: u64,
    /// Extents kept for the catalogue alone.
    pub catalogue_extents: u64,
    /// Fragments read from another copy since the pool was opened, because they are damaged.
    pub copies_read: u64,
    /// Damaged fragments replaced by another copy since the pool was opened.
    pub repaired_fragments: u64,
    /// Damage that is neither repaired nor acknowledged.
    pub damages: Vec<String>,
    /// Damages beyond the list in `damages`.
    pub damages_unlisted: u64,
    /// Acknowledged damages.
    pub damages_acknowledged: u64,
    /// Snapshots received in part.
    pub receives: Vec<ReceiveLine>,
    /// Images that volumes still depend on.
    pub images: Vec<ImageLine>,
    /// Volumes and snapshots whose import did not finish, by name.
    pub incomplete: Vec<String>,
    /// Number of bookmarks.
    pub bookmarks: u64,
    /// Number of tags on snapshots.
    pub holds: u64,
    /// Snapshots with at least one tag.
    pub held_snapshots: u64,
    /// Unacknowledged losses of repairs.
    pub losses: Vec<LossLine>,
    /// Memory that the pool may use.
    pub memory_budget_bytes: u64,
    /// Resident memory of the process.
    pub memory_resident_bytes: u64,
    /// Reason why writes are refused; null if they are not.
    pub failed: Option<String>,
}

impl StatusReport {
    /// Logical and stored bytes that destroyed volumes still hold, not counting data fetched from
    /// images.
    pub fn of_destroyed(&self) -> (u64, u64) {
        let local = self.images.iter().map(|image| image.local_bytes).sum();
        let stored = self.images.iter().map(|image| image.stored_bytes).sum();
        (self.unlisted_allocated_bytes.saturating_sub(local), self.unlisted_bytes.saturating_sub(stored))
    }
}

/// A volume, a share or a folder at its quota.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QuotaLine {
    /// Its name.
    pub name: String,
    /// Whether it is a volume, a share or a folder.
    pub kind: ObjectKind,
    /// Stored bytes, with snapshots and with everything in it.
    pub stored_bytes: u64,
    /// Its quota.
    pub quota_bytes: u64,
}

impl QuotaLine {
    /// In words.
    pub fn words(&self) -> String {
        let (stored, quota) = (format_size(self.stored_bytes), format_size(self.quota_bytes));
        format!("{} '{}' uses {stored} of its quota of {quota}, and refuses new data", self.kind.name(), self.name)
    }
}

/// Unused part of a reservation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReservedLine {
    /// Name of the volume.
    pub volume: String,
    /// Stored bytes reserved.
    pub bytes: u64,
}

/// The last scrub of a pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ScrubLine {
    /// Start, in seconds since 1970; 0 if the pool was never scrubbed.
    pub started_unix_s: u64,
    /// End, in seconds since 1970; 0 if it did not finish.
    pub finished_unix_s: u64,
    /// Whether it is under way now.
    pub running: bool,
    /// Stored bytes verified.
    pub bytes_done: u64,
    /// Stored bytes of all data.
    pub bytes_total: u64,
    /// Damages found.
    pub found: u64,
}

/// Result of `check`.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct CheckSummary {
    /// Whether no problem is left.
    pub clean: bool,
    /// Map records read.
    pub records: u64,
    /// Fragments read, verified and decoded.
    pub fragments: u64,
    /// Bytes of these fragments.
    pub fragment_bytes: u64,
    /// Duration.
    pub seconds: f64,
    /// Number of problems.
    pub problems_total: u64,
    /// Number of problems that were not repaired.
    pub problems_left: u64,
    /// Number of problems by volume and snapshot.
    pub volumes: BTreeMap<String, u64>,
    /// Number of problems by kind.
    pub kinds: BTreeMap<&'static str, u64>,
    /// The problems, the first thousand.
    pub problems: Vec<ProblemReport>,
    /// State of the end of the log; null after an orderly shutdown.
    pub log_end: Option<String>,
    /// Corrections made when the pool was opened, which are no problems.
    pub notes: Vec<String>,
    /// Batches dropped because of `--accept-loss`; null if there are none.
    pub loss: Option<LossReport>,
    /// Shares with names lost for good by `--repair`; absent if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names_lost: Vec<String>,
    /// Shares with extended attributes lost for good, or possibly so, by `--repair`; absent if
    /// there are none. `problems` has the paths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attributes_lost: Vec<String>,
    /// Whether a repair may correct some of it.
    #[serde(skip)]
    pub is_mendable: bool,
}

/// A problem found by a check or a scrub.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProblemReport {
    /// Stable name of the kind, listed in the help of `shale check`.
    pub kind: String,
    /// Volume or snapshot; null if it concerns none.
    pub volume: Option<String>,
    /// Byte offset in it; null if unknown.
    pub offset: Option<u64>,
    /// Affected bytes from there; null if they are not known or not contiguous.
    pub length: Option<u64>,
    /// Value found and value expected.
    pub detail: String,
    /// Whether it was repaired.
    pub repaired: bool,
}

/// Result of an import or an export.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct TransferSummary {
    /// Name of the volume.
    pub volume: String,
    /// File read; absent for an export.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// File written; absent for an import.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Size of the volume.
    pub size_bytes: u64,
    /// Bytes copied.
    pub copied_bytes: u64,
    /// Bytes of holes, which were skipped.
    pub hole_bytes: u64,
    /// Logical bytes of the volume that hold data now, without snapshots; absent for an export.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocated_bytes: Option<u64>,
    /// Whether `stored_bytes` and `ratio` include the snapshots of the volume; absent for an
    /// export.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub with_snapshots: Option<bool>,
    /// Stored bytes of the volume and its snapshots; absent for an export.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stored_bytes: Option<u64>,
    /// Logical bytes over `stored_bytes`; absent for an export.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// Duration.
    pub seconds: f64,
    /// Size over duration.
    pub bytes_per_second: u64,
}

/// `part` times as much, or none if there is nothing to compare with.
pub fn ratio(whole: u64, part: u64) -> Option<f64> {
    (part > 0).then(|| whole as f64 / part as f64)
}

/// Bytes written to disks for each compressed byte that clients wrote, without bytes that were
/// rewritten on a user's request. `None` if those are the majority: their headers and their part of
/// the map cannot be subtracted, and would dominate the result.
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
