//! From an accepted write to a batch in the log ([`Writes`]). Owns the parts that are compressed
//! ahead of a flush, and the heat of groups. Volumes call it with writes that `make_room` has
//! admitted and that their quota allows (`quota`). Any thread may call it, and waits for drains,
//! checkpoints and the data file.
//!
//! 1. A write waits for room in the write buffer and in the standby memory (`room`), and is put
//!    there. **Here the write is acknowledged.**
//! 2. A drain takes the oldest groups, compresses their units, and appends one batch (`drain`).
//!    Workers do it as the buffer fills, a flush does it for all earlier writes, and in a pool that
//!    is bound by flushes a worker does a part of it ahead (`precompress`).
//! 3. When the batch is applied, the groups leave the buffer.
//! 4. A flush drains everything and syncs the log (`room`). **Here it is acknowledged.**
//!
//! New objects with content come into the log by themselves (`whole_object`).

pub(crate) mod copies;
pub(crate) mod drain;
pub(crate) mod precompress;
pub(crate) mod quota;
pub(crate) mod room;
pub(crate) mod whole_object;
pub(crate) mod write_heat;

use std::sync::Arc;

use store::base::buffers::BufferPool;
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

use crate::checkpoint::Checkpoints;
use crate::codecs::chooser::Chooser;
use crate::codecs::dictionaries::Dictionaries;
use crate::read::Reads;
use crate::write::precompress::Ahead;
use crate::write::write_heat::Rewrites;

/// Brings data into the write buffer, and from there into the log.
pub(crate) struct Writes {
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
    chooser: Arc<Chooser>,
    dictionaries: Arc<Dictionaries>,
    signals: Arc<Signals>,
    pub ahead: Ahead,
    /// Groups written lately.
    pub rewrites: Rewrites,
}

impl Writes {
    pub(crate) fn new(
        (vitals, shares, buffers): (Arc<Vitals>, Shares, Arc<BufferPool>),
        (applier, log, space): (&Applier, Arc<Log>, Arc<Space>),
        (reads, checkpoints): (Arc<Reads>, Arc<Checkpoints>),
        (chooser, dictionaries, signals): (Arc<Chooser>, Arc<Dictionaries>, Arc<Signals>),
    ) -> Self {
        let geometry = applier.geometry.clone();
        let capacity_bytes = u64::from(geometry.extents()) * u64::from(geometry.extent_bytes);
        Self {
            rewrites: Rewrites::new(capacity_bytes, vitals.options.memory_bytes),
            ahead: Ahead::new(),
            vitals,
            shares,
            geometry,
            buffers,
            buffer: applier.buffer.clone(),
            map: applier.map.clone(),
            objects: applier.objects.clone(),
            log,
            space,
            reads,
            checkpoints,
            chooser,
            dictionaries,
            signals,
        }
    }
}
