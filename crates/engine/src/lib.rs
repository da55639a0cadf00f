//! The storage engine: pools and their volumes. Owns the order of all steps: when data is compressed,
//! written, made durable, moved and freed. Knows nothing of front ends; uses files, time and
//! randomness only through `env`.
//!
//! It stands on two crates: `store` has the parts (log, map, write buffer, objects, space), `salvage`
//! reads a log without its map. The rooms, from the lowest floor up: `codecs` and `read`;
//! `checkpoint` and `write`; `fetch`, `clean` and `make_room`; `volume`, `history`, `images` and
//! `replication`; `repair` and `upkeep`; `pool`; `rescue`. A room names only rooms below it
//! (`tools/rooms.txt`), and the head of each names the state that it owns. The order of writes and
//! syncs, on which all guarantees after a crash rest, is decided in `store::log`, `checkpoint` and
//! `repair::recovery` only.

mod checkpoint;
mod clean;
mod codecs;
mod fetch;
mod history;
mod images;
mod make_room;
mod pool;
mod read;
mod repair;
mod replication;
mod rescue;
mod upkeep;
mod volume;
mod write;

pub use codecs::trace::TraceRecord;
pub use history::bookmarks::BookmarkStatus;
pub use history::diff::{Changed, DiffPage};
pub use history::holds::Hold;
pub use images::ImageStatus;
pub use images::push::{GroupsPage, PushBase};
pub use pool::Pool;
pub use pool::creation::FileBlock;
pub use pool::figures::{MachineFigures, PoolFigures};
pub use read::ending::Unwritten;
pub use repair::scrub::ScrubReport;
pub use replication::receive::{ReceiveReport, Receiver};
pub use replication::receives::ReceiveStatus;
pub use replication::send::Sender;
pub use rescue::SalvageSource;
pub use salvage::{
    Completeness, DamagedRange, PoolPrefix, SalvageProgress, SalvageReport, SalvageStep, SalvagedVolume,
};
pub use store::base::decode_counts::DecodeEffort;
pub use store::base::loss::{Loss, LossOf};
pub use store::base::options::{FormatOptions, PoolEnv, PoolOptions, Properties, Training};
pub use store::base::status::{
    CheckReport, CleanMark, CleanReport, CodecUse, DamageReport, FolderStatus, PROBLEMS_LISTED_MAX, PoolRoom,
    PoolStatus, Problem, Property, PropertySource, QuotaUse, Remembered, SnapshotStatus, SnapshotUsage, StandbyStatus,
    VolumeStatus,
};
pub use store::base::store_error::store_error_kind;
pub use store::objects::effort::{CodecEffort, VolumeEffort};
pub use store::objects::volume_ref::VolumeRef;
pub use upkeep::calibration::{Calibration, CalibrationEffort, CodecSpeed};
pub use upkeep::defrag::SortReport;
pub use upkeep::explain::{RegionDetail, RegionReport, Trial};
pub use upkeep::explain_map::{CELLS_MAX, CodecMap, MapCell};
pub use upkeep::recompress::{Advise, RecompressReport};
pub use upkeep::shrink::ShrinkReport;
pub use volume::Volume;
pub use volume::claims::{TreeClaim, TreeUse};
pub use volume::files::Files;
pub use volume::files::stored::{FilePart, FileStored};
