//! The parts of a pool that its history needs, and the lock under which clones are reparented.

use std::sync::Arc;

use store::base::ranked::Mutex;
use store::base::ranks;
use store::base::vitals::Vitals;
use store::log::geometry::Geometry;
use store::map::Map;
use store::map::apply::Applier;
use store::objects::Objects;

use crate::checkpoint::Checkpoints;
use crate::write::Writes;

/// Steps of snapshots, clones and folders that need no whole pool. Any thread may call it.
pub(crate) struct History {
    pub(super) vitals: Arc<Vitals>,
    pub(super) geometry: Geometry,
    pub(super) map: Arc<Map>,
    pub(super) objects: Arc<Objects>,
    pub(super) checkpoints: Arc<Checkpoints>,
    pub(super) writes: Arc<Writes>,
    /// The full checkpoint after which clones were last reparented, by its count; held while that
    /// is done.
    pub passed_on: Mutex<u64, ranks::PassedOn>,
}

impl History {
    pub(crate) fn new(
        (vitals, applier): (Arc<Vitals>, &Applier),
        (checkpoints, writes): (Arc<Checkpoints>, Arc<Writes>),
    ) -> Self {
        Self {
            vitals,
            geometry: applier.geometry.clone(),
            map: applier.map.clone(),
            objects: applier.objects.clone(),
            checkpoints,
            writes,
            passed_on: Mutex::new(0),
        }
    }
}
