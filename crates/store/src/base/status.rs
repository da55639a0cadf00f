//! Figures that a pool reports about itself.
#![warn(missing_docs, reason = "`engine` exports these types")]

use std::collections::BTreeMap;

use surface::DeviceId;
use units::SHARE_BYTES;

use crate::base::loss::{Loss, LossOf};
use crate::base::options::Properties;

/// Figures of one volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeStatus {
    /// Number, which survives renaming and is never reused.
    pub id: DeviceId,
    /// Name.
    pub name: String,
    /// Size that its users see, in bytes; of a share [`SHARE_BYTES`].
    pub size_bytes: u64,
    /// Logical bytes that hold data; each version kept by a snapshot is counted.
    pub allocated_bytes: u64,
    /// Bytes of payload in the log, including data that only its snapshots and clones see.
    pub stored_bytes: u64,
    /// When it was created, in seconds since 1970.
    pub created_unix_s: u64,
    /// Properties set on the volume itself.
    pub properties: Properties,
    /// Number of snapshots and rollbacks that the volume has seen.
    pub epoch: u32,
    /// The other volume's snapshot that it was cloned from, `VOLUME@SNAPSHOT`.
    pub origin: Option<String>,
    /// Whether `allocated_bytes` and `stored_bytes` are exact: nothing has changed them since the
    /// last checkpoint.
    pub is_exact: bool,
}

impl VolumeStatus {
    /// Whether it is a share.
    pub const fn is_share(&self) -> bool {
        self.size_bytes == SHARE_BYTES
    }

    /// The size that its users see; for a share, which has no size, that of its content.
    pub const fn logical_bytes(&self) -> u64 {
        if self.is_share() { self.allocated_bytes } else { self.size_bytes }
    }
}

/// One snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotStatus {
    /// Number, which survives renaming and is never reused.
    pub id: DeviceId,
    /// The volume that it is listed under.
    pub volume: String,
    /// Name: the part after the `@`.
    pub name: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// When it was taken, in seconds since 1970.
    pub created_unix_s: u64,
    /// Whether a schedule made it.
    pub scheduled: bool,
    /// Whether an import into the volume had brought only a part of its data.
    pub incomplete: bool,
}

/// Space used by a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotUsage {
    /// Name: the part after the `@`.
    pub name: String,
    /// Bytes that are freed if it alone is destroyed.
    pub unique_bytes: u64,
    /// Visible bytes that others see too.
    pub shared_bytes: u64,
    /// Logical bytes that hold data in it.
    pub data_bytes: u64,
}

/// State of the standby memory, which keeps acknowledged writes if the process dies; and the
/// outcome for those of the last process that died.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StandbyStatus {
    /// Place of the memory that keeps acknowledged writes until the log has them; `None`: a crash
    /// of the process loses those that were not flushed.
    pub place: Option<String>,
    /// Bytes of that memory.
    pub bytes: u64,
    /// Whether there should be such memory: the pool is served with it.
    pub is_wanted: bool,
    /// Writes and discards that were replayed from it when the pool was opened.
    pub replayed: u64,
    /// Bytes written by these.
    pub replayed_bytes: u64,
    /// Reports of memory that was found and not replayed, and of memory that is wanted but missing.
    pub notes: Vec<String>,
}

/// How full a pool is, as of its last checkpoint: known immediately, however many volumes there
/// are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolRoom {
    /// See [`PoolStatus::live_bytes`].
    pub live_bytes: u64,
    /// See [`PoolStatus::available_bytes`].
    pub available_bytes: u64,
    /// See [`PoolStatus::reserved_bytes`].
    pub reserved_bytes: u64,
    /// See [`PoolStatus::is_full`].
    pub is_full: bool,
    /// See [`PoolStatus::refused_writes`].
    pub refused_writes: u64,
}

/// How much of its quota a volume, a share or a folder uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaUse {
    /// Its name.
    pub name: String,
    /// Whether it is a share.
    pub is_share: bool,
    /// Whether it is a folder.
    pub is_folder: bool,
    /// Stored bytes, with snapshots and with everything in it.
    pub stored_bytes: u64,
    /// Its quota.
    pub quota_bytes: u64,
}

/// Figures of a pool. Sizes in bytes; counters since the pool was opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PoolStatus {
    /// Identifier, in hexadecimal.
    pub id: String,
    /// Bytes that the log may use.
    pub capacity_bytes: u64,
    /// Bytes of an extent.
    pub extent_bytes: u64,
    /// Extents that can be used immediately.
    pub extents_free: u64,
    /// All extents that can hold data.
    pub extents_total: u64,
    /// Sum of the volumes' sizes.
    pub logical_bytes: u64,
    /// Logical bytes that hold data.
    pub allocated_bytes: u64,
    /// Bytes of live fragments: exact at a checkpoint, estimated since.
    pub live_bytes: u64,
    /// Those of them that belong to destroyed volumes: clones still need them, or they are being
    /// removed.
    pub unlisted_bytes: u64,
    /// Logical bytes that hold data in destroyed volumes: not in `allocated_bytes`.
    pub unlisted_allocated_bytes: u64,
    /// Trained dictionaries of volumes, and their live bytes.
    pub dictionaries: u64,
    /// See `dictionaries`.
    pub dictionary_bytes: u64,
    /// Objects with destroyed parts whose space is still being freed.
    pub reaping: u64,
    /// Bytes of used extents that hold nothing live: dead fragments, batch headers, padding.
    pub dead_bytes: u64,
    /// Bytes in free extents, or the free space of the file system if that is less.
    pub free_bytes: u64,
    /// Bytes that are kept for volumes with reservations, and not used by them yet.
    pub reserved_bytes: u64,
    /// These volumes, with the bytes kept for each, the largest first.
    pub reserved_for: Vec<(String, u64)>,
    /// Bytes of free extents that data may not use: for cleaning, and for the log's own needs.
    pub kept_bytes: u64,
    /// Bytes that were discarded, overwritten or destroyed since the last checkpoint: the next one
    /// makes them available.
    pub returning_bytes: u64,
    /// Bytes, as stored, of new data for which there is room if all dead data is cleaned, estimated
    /// conservatively.
    pub available_bytes: u64,
    /// Whether a write was refused for lack of room, and nothing has changed since.
    pub is_full: bool,
    /// The file system has less room than the pool: growing the pool does not help.
    pub is_short_below: bool,
    /// Writes that found no room, including those that were held and tried again.
    pub refused_writes: u64,
    /// Whether live and dead bytes are exact: nothing has changed them since the last checkpoint.
    pub is_exact: bool,
    /// Bytes that the map store occupies on disk.
    pub map_bytes: u64,
    /// Bytes that front ends wrote.
    pub written_bytes: u64,
    /// Bytes of compressed fragments that were appended for users.
    pub fragment_bytes: u64,
    /// Bytes written to the data file, headers and padding included.
    pub log_bytes: u64,
    /// Bytes read from the data file.
    pub read_disk_bytes: u64,
    /// Bytes that front ends read.
    pub read_bytes: u64,
    /// Bytes that were read ahead, decoded.
    pub ahead_bytes: u64,
    /// Those of them that a read has used.
    pub ahead_used_bytes: u64,
    /// Checkpoints taken.
    pub checkpoints: u64,
    /// Light checkpoints taken: they free space without changing the records of the map.
    pub light_checkpoints: u64,
    /// Groups of the map that were merged after light checkpoints.
    pub folded_groups: u64,
    /// Flushes requested, and disk syncs that served them.
    pub flushes: u64,
    /// See `flushes`.
    pub syncs: u64,
    /// Memory that survives the process.
    pub standby: StandbyStatus,
    /// Log replayed by the last open: batches, and bytes read.
    pub recovered_batches: u64,
    /// See `recovered_batches`.
    pub recovered_bytes: u64,
    /// Nanoseconds that recovery took.
    pub recovery_ns: u64,
    /// Extents that were cleaned, bytes of fragments that were moved for it (or rewritten by
    /// sorting), and nanoseconds that it took.
    pub cleaned_extents: u64,
    /// See `cleaned_extents`.
    pub moved_bytes: u64,
    /// Bytes of the log that were rewritten at a user's request: to recompress, and to sort.
    pub rewritten_bytes: u64,
    /// See `cleaned_extents`.
    pub cleaning_ns: u64,
    /// Fragments that were read from another copy, because they are damaged.
    pub reads_of_copies: u64,
    /// Damaged fragments that were replaced by another copy.
    pub repaired_fragments: u64,
    /// Bytes of fragments that the cleaner recompressed (the property `cold-mode`), before and
    /// after.
    pub cold_before_bytes: u64,
    /// See `cold_before_bytes`.
    pub cold_after_bytes: u64,
    /// Bytes of the catalogue in the log, from which `salvage` would know names and sizes; 0: the
    /// pool is too full for one.
    pub catalogue_bytes: u64,
    /// Extents that are kept only for it.
    pub catalogue_extents: u64,
    /// Data that could not be moved because it is damaged, at most the first hundred.
    pub damages: Vec<String>,
    /// Set when a write to the data file failed permanently: the reason. Writes are refused until
    /// the pool is reopened.
    pub failed: Option<String>,
}

/// A folder, with the sums over everything in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FolderStatus {
    /// Number, which survives renaming.
    pub id: DeviceId,
    /// Full name.
    pub name: String,
    /// Volumes and shares in it, and in the folders in it.
    pub volumes: u64,
    /// Logical bytes with data in these.
    pub allocated_bytes: u64,
    /// Bytes that these occupy in the pool.
    pub stored_bytes: u64,
    /// When it was created, in seconds since 1970.
    pub created_unix_s: u64,
    /// Properties set on the folder itself.
    pub properties: Properties,
    /// Both figures are exact: nothing has changed them since the last checkpoint.
    pub is_exact: bool,
}

/// A property and where its value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Property {
    /// Name.
    pub key: String,
    /// Value in force.
    pub value: String,
    /// Where it was set.
    pub source: PropertySource,
}

/// Where a property's value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PropertySource {
    /// Built in.
    Default,
    /// Set on the pool.
    Pool,
    /// Set on the folder of that name, which is above.
    Folder(String),
    /// Set on the volume itself, or on the requested folder.
    Own,
}

/// A moment of the log, as the number of extents filled until then. The target of a pass over the
/// pool is the set of extents filled at its mark, so that it ends while writers fill others: each
/// extent of the target is emptied once at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CleanMark(pub u32);

impl CleanMark {
    /// After all moments.
    pub const NEVER: Self = Self(u32::MAX);
}

impl Default for CleanMark {
    fn default() -> Self {
        Self::NEVER
    }
}

/// Result of cleaning on demand.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CleanReport {
    /// Extents that were emptied during the pass, by any thread.
    pub extents_cleaned: u64,
    /// Bytes of fragments that were moved for this.
    pub bytes_moved: u64,
    /// The log's mark when the pass began: its target.
    pub mark: CleanMark,
    /// Remaining extents of the target of which more than a twentieth is dead.
    pub extents_todo: u64,
    /// Whether there is nothing more to do, or nothing more that can be done.
    pub is_finished: bool,
    /// Free extents before and after.
    pub extents_free_before: u64,
    /// See `extents_free_before`.
    pub extents_free_after: u64,
}

/// Result of `check`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Fragments read, verified and decoded.
    pub fragments: u64,
    /// Their bytes.
    pub fragment_bytes: u64,
    /// Map records read.
    pub records: u64,
    /// The problems, the first [`PROBLEMS_LISTED_MAX`]; empty when the pool is clean.
    pub problems: Vec<Problem>,
    /// Number of problems in all.
    pub problems_total: u64,
    /// Number of unrepaired problems.
    pub problems_left: u64,
    /// Volumes and snapshots with problems, listed or not, with the number for each.
    pub volumes: BTreeMap<String, u64>,
    /// Kinds of problem, listed or not, with the number of each.
    pub kinds: BTreeMap<&'static str, u64>,
    /// Description of the log's end as the opening found it, if it was not orderly. Not a problem,
    /// but reported.
    pub log_end: Option<String>,
    /// Corrections by the opening that a crash may explain as well. Not problems, but reported.
    pub notes: Vec<String>,
}

/// Upper bound of problems that are listed one by one: a pool on a dead disk has one for each
/// fragment.
pub const PROBLEMS_LISTED_MAX: usize = 1000;

impl CheckReport {
    /// Counts a problem, and lists it if there is room.
    pub fn add(&mut self, problem: Problem) {
        self.problems_total += 1;
        self.problems_left += u64::from(!problem.repaired);
        *self.kinds.entry(problem.kind).or_default() += 1;
        if let Some(volume) = &problem.volume {
            self.concerns(volume.clone());
        }
        if self.problems.len() < PROBLEMS_LISTED_MAX {
            self.problems.push(problem);
        }
    }

    /// Counts a problem of a volume or a snapshot.
    pub fn concerns(&mut self, volume: String) {
        *self.volumes.entry(volume).or_default() += 1;
    }
}

impl Problem {
    /// The end of the pool's data is gone.
    pub fn cut_off(what: String) -> Self {
        Self { kind: "data", detail: what, repaired: true, ..Self::default() }
    }

    /// A snapshot, `VOLUME@SNAPSHOT`, has a new identity.
    pub fn estranged(title: &str) -> Self {
        let text = "may show data that had been discarded or rolled back: it has a new identity, and is a \
             different snapshot for streams";
        Self { kind: "object", detail: format!("'{title}' {text}"), repaired: true, ..Self::default() }
    }

    /// The log was damaged where it was durable, and only the damaged data itself was lost.
    pub fn log_damage(what: String) -> Self {
        Self { kind: "log", detail: what, repaired: true, ..Self::default() }
    }

    /// The dropped data, by volume.
    pub fn losses(loss: &Loss) -> impl Iterator<Item = Self> {
        let kind = "lost";
        let all = Self { kind, detail: loss.what.clone(), repaired: true, ..Self::default() };
        let of = move |of: &LossOf| {
            let detail = of.to_string();
            Self { kind, volume: Some(of.name.clone()), detail, repaired: true, ..Self::default() }
        };
        std::iter::once(all).chain(loss.volumes.iter().map(of))
    }
}

/// One problem found by a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Problem {
    /// A stable name: `superblock`, `record`, `fragment`, `header`, `usage`, `overlap`, `object`,
    /// `history`, `catalogue`, `costs`, `map-store`, `log`, `data`; `lost` is data that a repair
    /// was allowed to drop.
    pub kind: &'static str,
    /// Affected volume or snapshot, if any: the volume if it is affected, otherwise the newest
    /// snapshot that sees the place.
    pub volume: Option<String>,
    /// Other volumes and snapshots that see the place. `detail` names the first of them.
    pub others: Vec<String>,
    /// Byte offset in the volume, if any.
    pub offset: Option<u64>,
    /// Affected bytes from there, if they are known and contiguous.
    pub length: Option<u64>,
    /// Found and expected state, with locations.
    pub detail: String,
    /// Whether `check --repair` repaired it.
    pub repaired: bool,
}

/// Known damage, and the last scrub.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DamageReport {
    /// When the last scrub began and ended, in seconds since 1970; 0 if it never did.
    pub started_unix_s: u64,
    /// See `started_unix_s`.
    pub finished_unix_s: u64,
    /// Whether it is running now.
    pub is_scrubbing: bool,
    /// Live bytes that it has processed, and the total.
    pub bytes_done: u64,
    /// See `bytes_done`.
    pub bytes_total: u64,
    /// Damages that it found.
    pub found: u64,
    /// Damaged fragments that were repaired from another copy since it began, by the scrub or by a
    /// look at suspected places.
    pub repaired: u64,
    /// Known damage that was not acknowledged.
    pub damages: Vec<Problem>,
    /// Damages beyond the list.
    pub unlisted: u64,
    /// Damages that were acknowledged.
    pub acknowledged: u64,
}

/// Amount of a region that is stored with one codec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodecUse {
    /// The codec; `raw`: uncompressed.
    pub codec: String,
    /// Fragments.
    pub units: u64,
    /// Bytes of live data.
    pub raw_bytes: u64,
    /// Their stored size.
    pub stored_bytes: u64,
}

/// The memory of a region, if there is one.
#[derive(Debug, Clone, PartialEq)]
pub struct Remembered {
    /// Codec that won the last test; `raw`: none paid.
    pub winner: String,
    /// Class of data that was tested.
    pub class: u8,
    /// Average saving since, as a share.
    pub saving: f64,
    /// Units since the test, up to 127.
    pub units_since_test: u32,
}
