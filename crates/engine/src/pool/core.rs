//! The shared state of an open pool. Any thread may call it; `base::ranks` has the order of its
//! locks.

use std::ops::Range;
use std::sync::Arc;

use env::MapBatch;
use format::KEY_END;
use store::base::buffers::BufferPool;
use store::base::jobs::Jobs;
use store::base::shares::Shares;
use store::base::signals::Signals;
use store::base::vitals::Vitals;
use store::buffer::write_buffer::WriteBuffer;
use store::log::Log;
use store::log::catalogue::Catalogue;
use store::log::geometry::Geometry;
use store::map::Map;
use store::map::apply::Applier;
use store::objects::Objects;
use store::space::Space;
use store::space::extents::Extents;

use crate::checkpoint::Checkpoints;
use crate::checkpoint::state::CheckpointState;
use crate::clean::Cleaning;
use crate::codecs::chooser::Chooser;
use crate::codecs::dictionaries::Dictionaries;
use crate::codecs::samples::Sampling;
use crate::fetch::Fetches;
use crate::history::parts::History;
use crate::images::parts::Images;
use crate::make_room::MakeRoom;
use crate::pool::workers::Workers;
use crate::read::Reads;
use crate::repair::Repairs;
use crate::replication::parts::{Intake, Source};
use crate::upkeep::Upkeep;
use crate::volume::parts::Volumes;
use crate::write::Writes;

pub(crate) struct Core {
    pub vitals: Arc<Vitals>,
    pub shares: Shares,
    pub geometry: Geometry,
    pub pool_id: [u8; 16],
    pub buffers: Arc<BufferPool>,
    pub buffer: Arc<WriteBuffer>,
    pub map: Arc<Map>,
    pub objects: Arc<Objects>,
    pub catalogue: Arc<Catalogue>,
    pub log: Arc<Log>,
    pub space: Arc<Space>,
    pub checkpoints: Arc<Checkpoints>,
    pub writes: Arc<Writes>,
    pub fetches: Arc<Fetches>,
    pub clean: Arc<Cleaning>,
    pub volumes: Arc<Volumes>,
    pub history: History,
    pub images: Arc<Images>,
    pub intake: Intake,
    pub source: Arc<Source>,
    pub repairs: Repairs,
    pub upkeep: Arc<Upkeep>,
    pub reads: Arc<Reads>,
    /// State of `compression=auto`.
    pub chooser: Arc<Chooser>,
    pub dictionaries: Arc<Dictionaries>,
    pub signals: Arc<Signals>,
    pub jobs: Arc<Jobs>,
    pub workers: Workers,
    pub make_room: Arc<MakeRoom>,
}

/// Parts that `open` creates before the core.
pub(crate) struct Parts {
    pub vitals: Arc<Vitals>,
    /// Geometry, write buffer, map, objects and catalogue are shared with the core.
    pub applier: Arc<Applier>,
    pub pool_id: [u8; 16],
    pub buffers: Arc<BufferPool>,
    pub log: Log,
    pub extents: Extents,
    pub checkpoint: CheckpointState,
    pub chooser: Chooser,
    /// Unreadable bytes of the data file after the end of the log.
    pub unreadable: Vec<Range<u64>>,
}

impl Core {
    pub(crate) fn new(parts: Parts) -> Self {
        let shares = Shares::of(parts.vitals.options.memory_bytes);
        let geometry = parts.applier.geometry.clone();
        let captured = parts.extents.checkpoint();
        let log = Arc::new(parts.log);
        let space = Arc::new(Space::new(
            (parts.vitals.clone(), geometry.clone()),
            (parts.applier.buffer.clone(), parts.applier.objects.clone(), log.clone()),
            parts.extents,
            shares.write_buffer,
        ));
        let sampling = Sampling::new(parts.vitals.options.training, parts.vitals.options.memory_bytes);
        let dictionaries = Arc::new(Dictionaries::new(shares.dictionaries, sampling));
        let chooser = Arc::new(parts.chooser);
        let applier = &parts.applier;
        let reads = Arc::new(Reads::new(
            (parts.vitals.clone(), geometry.clone(), parts.buffers.clone()),
            (applier.buffer.clone(), applier.map.clone(), applier.objects.clone()),
            (chooser.clone(), dictionaries.clone()),
            shares.units,
        ));
        let signals = Arc::<Signals>::default();
        let checkpoints = Arc::new(Checkpoints::new(
            (parts.vitals.clone(), shares, parts.pool_id),
            (parts.applier.clone(), parts.buffers.clone(), log.clone()),
            (space.clone(), reads.clone(), chooser.clone(), signals.clone()),
            (parts.checkpoint, captured, parts.unreadable),
        ));
        let writes = Arc::new(Writes::new(
            (parts.vitals.clone(), shares, parts.buffers.clone()),
            (&parts.applier, log.clone(), space.clone()),
            (reads.clone(), checkpoints.clone()),
            (chooser.clone(), dictionaries.clone(), signals.clone()),
        ));
        let jobs = Arc::<Jobs>::default();
        let clean = Arc::new(Cleaning::new(
            (parts.vitals.clone(), parts.buffers.clone(), jobs.clone()),
            (parts.applier.clone(), log.clone(), space.clone()),
            (reads.clone(), checkpoints.clone(), writes.clone()),
            (chooser.clone(), dictionaries.clone(), signals.clone()),
        ));
        let fetches = Arc::new(Fetches::new(
            (parts.vitals.clone(), parts.buffers.clone(), jobs.clone()),
            (&parts.applier, log.clone(), space.clone()),
            (reads.clone(), checkpoints.clone(), writes.clone()),
        ));
        let make_room = Arc::new(MakeRoom::new(
            (parts.vitals.clone(), &parts.applier, space.clone()),
            (checkpoints.clone(), writes.clone()),
            (fetches.clone(), clean.clone(), signals.clone()),
        ));
        let volumes = Arc::new(Volumes::new(
            (parts.vitals.clone(), parts.pool_id, parts.buffers.clone()),
            (&parts.applier, log.clone(), space.clone()),
            (reads.clone(), checkpoints.clone(), writes.clone()),
            (fetches.clone(), make_room.clone(), chooser.clone()),
        ));
        let upkeep = Arc::new(Upkeep::new(
            (parts.vitals.clone(), shares, parts.buffers.clone(), signals.clone()),
            (&parts.applier, log.clone(), space.clone()),
            (reads.clone(), checkpoints.clone(), writes.clone()),
            (clean.clone(), make_room.clone(), volumes.clone()),
            (chooser.clone(), dictionaries.clone()),
        ));
        let history = History::new((parts.vitals.clone(), &parts.applier), (checkpoints.clone(), writes.clone()));
        let images = Arc::new(Images::new(
            (parts.vitals.clone(), &parts.applier, space.clone()),
            (reads.clone(), fetches.clone(), signals.clone()),
        ));
        let intake = Intake::new(
            (parts.vitals.clone(), parts.buffers.clone()),
            (&parts.applier, log.clone()),
            (checkpoints.clone(), writes.clone(), make_room.clone()),
        );
        let source = Arc::new(Source::new(
            (parts.vitals.clone(), applier.map.clone()),
            (reads.clone(), fetches.clone(), volumes.clone()),
        ));
        let repairs = Repairs::new(
            (parts.vitals.clone(), parts.pool_id, parts.buffers.clone()),
            (&parts.applier, log.clone(), space.clone()),
            (reads.clone(), checkpoints.clone(), writes.clone(), clean.clone()),
        );
        Self {
            shares,
            space,
            checkpoints,
            writes,
            fetches,
            clean,
            volumes,
            history,
            images,
            intake,
            source,
            repairs,
            upkeep,
            reads,
            dictionaries,
            signals,
            jobs,
            workers: Workers::default(),
            make_room,
            chooser,
            vitals: parts.vitals,
            geometry,
            pool_id: parts.pool_id,
            buffers: parts.buffers,
            buffer: parts.applier.buffer.clone(),
            map: parts.applier.map.clone(),
            objects: parts.applier.objects.clone(),
            catalogue: parts.applier.catalogue.clone(),
            log,
        }
    }

    /// Ends the log for good, and stores its end: then the next opening knows that no batch
    /// follows. Without that note it must assume that one may, which does no harm.
    pub(crate) fn end_log(&self) {
        let Some(end) = self.log.end() else { return };
        let mut batch = MapBatch::default();
        batch.put(KEY_END, end.encode());
        let _ = self.vitals.env.store.commit(batch);
    }
}
