//! Reads a pool from its log alone, without its map: `check` compares the map with it, `mend`
//! replaces lost parts of the map by it, and `rescue` copies all of it into another pool. Owns the
//! facts collected from the log until they are resolved. The thread that needs them calls it; it
//! changes neither the log nor the map.
//!
//! 1. The superblock has the geometry; one good copy suffices. If there is none, it is derived from
//!    the log ([`identity`]).
//! 2. All extents are read, once ([`scan`]). Statements of their batches about data become facts in
//!    a temporary store on disk ([`records`]), so that memory is bounded however large the pool is;
//!    statements about objects stay in memory ([`log_objects`]).
//! 3. Batches written after their opening had ended are ignored. Of the facts of each block the
//!    newest wins, by the number of the batch that *made* the data, wherever it was moved to:
//!    [`facts`]. The result is map records, in the same store.
//! 4. The objects are those of the newest complete catalogue, with later changes applied. Data of
//!    unknown objects becomes volumes named `lost-N`, unless it is a dictionary ([`lost`]).
//!
//! Limits of certainty: if the batch of a discard has been freed, the discard is forgotten, and
//! older data shows again if its extent is still there. Every batch newer than a certain number is
//! present ([`scan::Scan::certain_from`]); so only blocks with older data are uncertain, and they
//! are counted. So are blocks of epochs that a rollback may have undone: after very many rollbacks
//! the oldest are no longer listed. So are the writes of an opening for which, after as many
//! crashes, the end found by recovery is no longer listed.
//!
//! If the pool's map is still there, and matches the log, it lists the expected data: missing
//! blocks are counted by it, and blocks that it names are certain ([`witness`]).
//!
//! Only `engine` uses this crate; its interface is whatever that needs, and is no promise to anyone
//! else.
#![allow(missing_docs, reason = "the interface is for `engine` only")]

pub mod complete;
pub mod extent;
pub mod facts;
pub mod identity;
pub mod log_objects;
pub mod lost;
pub mod records;
pub mod report;
pub mod scan;
pub mod witness;

use env::{AlignedBuf, Disk};
use units::ExtentIndex;

pub use facts::{Doubt, Fact, Rank, Resolved, resolve};
pub use log_objects::{LogObjects, Table};
pub use records::{counts, is_doubtful};
pub use scan::Scan;

pub use complete::Completeness;
pub use identity::PoolPrefix;
pub use report::{DamagedRange, SalvageProgress, SalvageReport, SalvageStep, SalvagedVolume};

use store::log::geometry::Geometry;

/// Collects the statements about objects from the batches in an extent. Unreadable parts add
/// nothing.
pub fn read_log_objects(
    disk: &dyn Disk,
    geometry: &Geometry,
    pool: u64,
    extent: ExtentIndex,
    buf: &mut AlignedBuf,
    objects: &mut LogObjects,
) {
    Scan::default().read_extent(disk, geometry.start(extent), buf);
    for located in extent::read(pool, extent, buf).0.iter().filter(|located| !located.is_left_over) {
        objects.batch(&located.batch);
    }
}

/// Returns whether an extent can be read, and its present use consists of batches and zeroes.
/// Otherwise a batch may have lost its header, or a crash has left something. With `to_the_end`
/// also the part after the last of these batches: where freed extents are not punched out, it may
/// be of an earlier use.
pub fn is_whole(disk: &dyn Disk, geometry: &Geometry, pool: u64, extent: ExtentIndex, to_the_end: bool) -> bool {
    let len = geometry.extent_bytes as usize;
    let mut buf = AlignedBuf::new(len);
    if disk.read_at(geometry.start(extent), &mut buf, len).is_err() {
        return false;
    }
    let (found, gaps) = extent::read(pool, extent, &buf[..len]);
    if !to_the_end || !gaps.is_empty() {
        return gaps.is_empty();
    }
    let present = found.iter().filter(|located| !located.is_left_over);
    let end = present.map(|located| located.at + located.batch.batch_bytes).max().unwrap_or(0);
    let rest = found.iter().map(|located| located.at).filter(|at| *at >= end).min().unwrap_or(len);
    buf[end..rest].iter().all(|byte| *byte == 0)
}
