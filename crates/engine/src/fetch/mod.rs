//! Fetches groups of images that a request needs, keeps them in the pool, and drops them again.
//! Owns no state: `read::images` has the groups in progress. Threads of clients, readers and the
//! thread of `images::hydrate` call it; they wait for stores here, and hold no lock then.
//!
//! 1. A request that needs unknown blocks fails with `MissingGroups` as the source of its error. It
//!    releases all locks, fetches the groups (`requests`), and is retried. Arrived groups are held
//!    in memory until then. For a stream of reads, the next groups are fetched in parallel
//!    (`ahead`).
//! 2. Arrived groups are appended to the log as data of the image's object (`keep`), not synced.
//! 3. When they take more than their share, or the pool has no room for a write, the groups that
//!    were not read for longest are dropped: the next full checkpoint removes their records.
//!
//! `images` explains what a record of an image means.

mod ahead;
mod keep;
mod requests;

use std::sync::Arc;

use store::base::buffers::BufferPool;
use store::base::jobs::Jobs;
use store::base::vitals::Vitals;
use store::log::Log;
use store::log::geometry::Geometry;
use store::map::Map;
use store::map::apply::Applier;
use store::objects::Objects;
use store::space::Space;

use crate::checkpoint::Checkpoints;
use crate::read::Reads;
use crate::write::Writes;

/// Fetches groups of images, and keeps them.
pub(crate) struct Fetches {
    vitals: Arc<Vitals>,
    geometry: Geometry,
    buffers: Arc<BufferPool>,
    map: Arc<Map>,
    objects: Arc<Objects>,
    log: Arc<Log>,
    space: Arc<Space>,
    reads: Arc<Reads>,
    checkpoints: Arc<Checkpoints>,
    writes: Arc<Writes>,
    jobs: Arc<Jobs>,
}

impl Fetches {
    pub(crate) fn new(
        (vitals, buffers, jobs): (Arc<Vitals>, Arc<BufferPool>, Arc<Jobs>),
        (applier, log, space): (&Applier, Arc<Log>, Arc<Space>),
        (reads, checkpoints, writes): (Arc<Reads>, Arc<Checkpoints>, Arc<Writes>),
    ) -> Self {
        Self {
            vitals,
            geometry: applier.geometry.clone(),
            buffers,
            map: applier.map.clone(),
            objects: applier.objects.clone(),
            log,
            space,
            reads,
            checkpoints,
            writes,
            jobs,
        }
    }
}
