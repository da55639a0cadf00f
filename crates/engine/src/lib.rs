//! The storage engine: a log of compressed fragments, a map from blocks to fragments, and the
//! rules that keep the two consistent through crashes. Knows nothing of front ends; uses files, time
//! and randomness only through `env`.
//!
//! The rooms, from the lowest floor up: `base`; `buffer` and `log`; `objects`, `space` and `map`;
//! `salvage`; `codecs` and `read`; `checkpoint` and `write`; `fetch`, `clean` and `make_room`;
//! `volume`, `history`, `images` and `replication`; `repair` and `upkeep`; `pool`; `rescue`. A room
//! names only rooms below it (`tools/rooms.txt`), and the head of each names the state that it owns.
//! The order of writes and syncs, on which all guarantees after a crash rest, is decided in `log`,
//! `checkpoint` and `repair::recovery` only.

mod base;
mod buffer;
mod checkpoint;
mod clean;
mod codecs;
mod fetch;
mod history;
mod images;
mod log;
mod make_room;
mod map;
mod objects;
mod pool;
mod read;
mod repair;
mod replication;
mod rescue;
mod salvage;
mod space;
mod upkeep;
mod volume;
mod write;

pub use base::decode_counts::DecodeEffort;
pub use base::loss::{Loss, LossOf};
pub use base::options::{FormatOptions, PoolEnv, PoolOptions, Properties, Training};
pub use base::status::{
    CheckReport, CleanMark, CleanReport, CodecUse, DamageReport, FolderStatus, PROBLEMS_LISTED_MAX, PoolRoom,
    PoolStatus, Problem, Property, PropertySource, QuotaUse, Remembered, SnapshotStatus, SnapshotUsage, StandbyStatus,
    VolumeStatus,
};
pub use base::store_error::store_error_kind;
pub use codecs::trace::TraceRecord;
pub use history::bookmarks::BookmarkStatus;
pub use history::diff::{Changed, DiffPage};
pub use history::holds::Hold;
pub use images::ImageStatus;
pub use images::push::{GroupsPage, PushBase};
pub use objects::effort::{CodecEffort, VolumeEffort};
pub use objects::volume_ref::VolumeRef;
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
