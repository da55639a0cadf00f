//! The storage engine: a log of compressed fragments, a map from blocks to fragments, and what
//! keeps the two true to each other through crashes. Knows nothing of front ends; sees files, time
//! and randomness only through `env`.
//!
//! Layers, from the top: [`Pool`] and [`Volume`] (byte ranges, names) / `write_buffer`, `drain`,
//! `reader` (blocks, units) / `map`, `overlay` (where blocks lie), `log`, `extents` (where batches
//! go) / `checkpoint`, `recovery` (how map and log meet). The order of writes and syncs, on which
//! all promises after a crash rest, is decided in `log`, `checkpoint` and `recovery` only.

mod ahead;
mod allocation;
mod apply;
mod backing;
mod below;
mod bookmarks;
mod buffers;
mod calibration;
mod canary;
mod catalogue;
mod check;
mod check_catalogue;
mod check_data;
mod check_history;
mod checkpoint;
mod checkpoint_due;
mod chooser;
mod clean_pass;
mod cleaner;
mod cold;
mod concerned;
mod core;
mod costs;
mod counters;
mod damages;
mod deaths;
mod deltas;
mod devices;
mod dictionaries;
mod dictionary_review;
mod diff;
mod drain;
mod explain;
mod extent_scan;
mod extents;
mod files;
mod fold;
mod foreign;
mod geometry;
mod give_back;
mod group_pages;
mod grow;
mod hash;
mod history;
mod history_usage;
mod holds;
mod inventory;
#[cfg(test)]
mod late_moves_tests;
mod log;
mod log_reads;
mod loss;
mod map;
mod mend;
mod mend_balance;
mod mend_identities;
mod mend_missing;
mod mend_objects;
mod mend_records;
mod merge;
mod moved_from;
mod names;
mod need;
mod object;
mod objects;
mod opening;
mod options;
mod overlay;
mod pass_on;
mod pieces;
mod points;
mod pool;
mod pool_properties;
mod prefetch;
mod prefill;
mod prepared;
mod pressure;
mod properties;
mod punch;
mod quota;
mod read_ahead;
mod read_many;
mod reader;
mod reap;
mod receive;
mod receive_chunk;
mod receive_fit;
mod receives;
mod recode;
mod recompress;
mod recovery;
#[cfg(test)]
mod recovery_tests;
mod regions;
mod residents;
mod rewrites;
#[cfg(test)]
mod room_tests;
mod salvage;
mod samples;
mod scratch;
mod scrub;
mod send;
mod send_pages;
mod settle;
mod shares;
mod shrink;
mod sort;
mod sorted;
mod space;
mod standby;
mod standby_open;
#[cfg(test)]
mod standby_tests;
mod status;
mod superblock_copies;
mod superblock_io;
mod survivors;
mod syncs;
#[cfg(test)]
mod testing;
mod timeline;
mod trace;
mod training;
mod unit_cache;
mod usage;
mod victim_reads;
mod volume;
mod walked;
mod workers;
mod write_buffer;

pub use bookmarks::BookmarkStatus;
pub use calibration::{Calibration, CalibrationEffort, CodecSpeed};
pub use cleaner::CleanMark;
pub use damages::DamageReport;
pub use devices::Meant;
pub use diff::{Changed, DiffPage};
pub use explain::{CodecUse, RegionDetail, RegionReport, Remembered, Trial};
pub use files::Files;
pub use holds::Hold;
pub use loss::{Loss, LossOf};
pub use map::store_error_kind;
pub use options::{FormatOptions, PoolEnv, PoolOptions, Properties, Training};
pub use pool::Pool;
pub use receive::{ReceiveReport, Receiver};
pub use receives::ReceiveStatus;
pub use recompress::RecompressReport;
pub use salvage::{
    Completeness, DamagedRange, PoolPrefix, SalvageProgress, SalvageReport, SalvageStep, SalvagedVolume,
};
pub use scrub::ScrubReport;
pub use send::Sender;
pub use shrink::ShrinkReport;
pub use sort::SortReport;
pub use status::{
    CheckReport, CleanReport, PROBLEMS_LISTED_MAX, PoolStatus, Problem, Property, PropertySource, SnapshotStatus,
    SnapshotUsage, StandbyStatus, VolumeStatus,
};
pub use trace::TraceRecord;
pub use volume::Volume;
