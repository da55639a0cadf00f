//! The parts of a pool that streams come from and go to.

use std::sync::Arc;

use store::base::buffers::BufferPool;
use store::base::vitals::Vitals;
use store::log::Log;
use store::log::geometry::Geometry;
use store::map::Map;
use store::map::apply::Applier;

use crate::checkpoint::Checkpoints;
use crate::fetch::Fetches;
use crate::make_room::MakeRoom;
use crate::read::Reads;
use crate::volume::parts::Volumes;
use crate::write::Writes;

/// Takes in the chunks of streams. Any thread may call it.
pub(crate) struct Intake {
    pub(super) vitals: Arc<Vitals>,
    pub(super) geometry: Geometry,
    pub(super) buffers: Arc<BufferPool>,
    pub(super) map: Arc<Map>,
    pub(super) log: Arc<Log>,
    pub(super) checkpoints: Arc<Checkpoints>,
    pub(super) writes: Arc<Writes>,
    pub(super) make_room: Arc<MakeRoom>,
}

impl Intake {
    pub(crate) fn new(
        (vitals, buffers): (Arc<Vitals>, Arc<BufferPool>),
        (applier, log): (&Applier, Arc<Log>),
        (checkpoints, writes, make_room): (Arc<Checkpoints>, Arc<Writes>, Arc<MakeRoom>),
    ) -> Self {
        Self {
            vitals,
            geometry: applier.geometry.clone(),
            buffers,
            map: applier.map.clone(),
            log,
            checkpoints,
            writes,
            make_room,
        }
    }
}

/// What streams are read from. Any thread may use it.
pub(crate) struct Source {
    pub(super) vitals: Arc<Vitals>,
    pub(super) map: Arc<Map>,
    pub(super) reads: Arc<Reads>,
    pub(super) fetches: Arc<Fetches>,
    pub(super) volumes: Arc<Volumes>,
}

impl Source {
    pub(crate) fn new(
        (vitals, map): (Arc<Vitals>, Arc<Map>),
        (reads, fetches, volumes): (Arc<Reads>, Arc<Fetches>, Arc<Volumes>),
    ) -> Self {
        Self { vitals, map, reads, fetches, volumes }
    }
}
