//! Maintenance of stored data that users or schedules request. Owns the progress of each task,
//! which is kept in the map store. Most tasks run in slices that a client requests, on its thread,
//! so that the client decides on the pace; the pool's trainer runs `training`.
//!
//! - `defrag` sorts scattered data, `recompress` recompresses it.
//! - `training` makes dictionaries, `dictionary_review` drops those that no fragment needs.
//! - `calibration` measures codecs on this machine; `explain` explains how data is stored.
//! - `grow` and `shrink` change the size of the pool.

pub(crate) mod calibration;
pub(crate) mod defrag;
pub(crate) mod dictionary_review;
pub(crate) mod explain;
pub(crate) mod explain_map;
pub(crate) mod grow;
pub(crate) mod recompress;
pub(crate) mod shrink;
pub(crate) mod training;

use std::sync::Arc;

use store::base::buffers::BufferPool;
use store::base::ranked::Mutex;
use store::base::ranks;
use store::base::shares::Shares;
use store::base::signals::Signals;
use store::base::vitals::Vitals;
use store::buffer::write_buffer::WriteBuffer;
use store::log::Log;
use store::log::geometry::Geometry;
use store::map::Map;
use store::map::apply::Applier;
use store::objects::Objects;
use store::space::Space;
use units::{GroupIndex, ObjectId};

use crate::checkpoint::Checkpoints;
use crate::clean::Cleaning;
use crate::clean::walked::Walked;
use crate::codecs::chooser::Chooser;
use crate::codecs::dictionaries::Dictionaries;
use crate::make_room::MakeRoom;
use crate::read::Reads;
use crate::volume::parts::Volumes;
use crate::write::Writes;

/// Runs the tasks. Owns those in progress.
pub(crate) struct Upkeep {
    vitals: Arc<Vitals>,
    shares: Shares,
    geometry: Geometry,
    buffers: Arc<BufferPool>,
    buffer: Arc<WriteBuffer>,
    map: Arc<Map>,
    objects: Arc<Objects>,
    log: Arc<Log>,
    space: Arc<Space>,
    reads: Arc<Reads>,
    checkpoints: Arc<Checkpoints>,
    writes: Arc<Writes>,
    clean: Arc<Cleaning>,
    make_room: Arc<MakeRoom>,
    volumes: Arc<Volumes>,
    chooser: Arc<Chooser>,
    dictionaries: Arc<Dictionaries>,
    signals: Arc<Signals>,
    /// The shrink in progress.
    shrinking: Mutex<Option<Shrinking>, ranks::Shrinking>,
    /// Held by a slice of the recompression.
    recompressing: Mutex<(), ranks::Recompressing>,
    /// Progress of the recompression, after its last slice.
    recompressed: Mutex<Walked, ranks::Recompressed>,
    /// Held by the thread that sorts.
    sorting: Mutex<SortWalk, ranks::Sorting>,
}

impl Upkeep {
    pub(crate) fn new(
        (vitals, shares, buffers, signals): (Arc<Vitals>, Shares, Arc<BufferPool>, Arc<Signals>),
        (applier, log, space): (&Applier, Arc<Log>, Arc<Space>),
        (reads, checkpoints, writes): (Arc<Reads>, Arc<Checkpoints>, Arc<Writes>),
        (clean, make_room, volumes): (Arc<Cleaning>, Arc<MakeRoom>, Arc<Volumes>),
        (chooser, dictionaries): (Arc<Chooser>, Arc<Dictionaries>),
    ) -> Self {
        Self {
            vitals,
            shares,
            geometry: applier.geometry.clone(),
            buffers,
            buffer: applier.buffer.clone(),
            map: applier.map.clone(),
            objects: applier.objects.clone(),
            log,
            space,
            reads,
            checkpoints,
            writes,
            clean,
            make_room,
            volumes,
            chooser,
            dictionaries,
            signals,
            shrinking: Mutex::default(),
            recompressing: Mutex::default(),
            recompressed: Mutex::default(),
            sorting: Mutex::default(),
        }
    }
}

/// A shrink in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shrinking {
    /// The new number of extents.
    extents: u32,
    /// Time of the last request for a slice.
    asked_ns: u64,
}

/// Progress of the pass within a volume, in bytes of data; counted while the pool is open, and once
/// from the map if a pass continues after the pool was opened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SortWalk {
    object: ObjectId,
    group: GroupIndex,
    bytes: u64,
}

impl Default for SortWalk {
    /// Before all volumes.
    fn default() -> Self {
        Self { object: ObjectId(0), group: GroupIndex(0), bytes: 0 }
    }
}
