//! The parts that the volumes of a pool work with, and the state that they share. Owns the claims on
//! trees and the count of large holes; any thread may use it.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use store::base::buffers::BufferPool;
use store::base::ranked::RwLock;
use store::base::ranks;
use store::base::vitals::Vitals;
use store::buffer::write_buffer::WriteBuffer;
use store::log::Log;
use store::map::Map;
use store::map::apply::Applier;
use store::objects::Objects;
use store::space::Space;

use crate::checkpoint::Checkpoints;
use crate::codecs::chooser::Chooser;
use crate::fetch::Fetches;
use crate::make_room::MakeRoom;
use crate::read::Reads;
use crate::volume::claims::Claims;
use crate::write::Writes;

/// See the module.
pub(crate) struct Volumes {
    pub(super) vitals: Arc<Vitals>,
    pub(super) pool_id: [u8; 16],
    pub(super) buffers: Arc<BufferPool>,
    pub(super) buffer: Arc<WriteBuffer>,
    pub(super) map: Arc<Map>,
    pub(super) objects: Arc<Objects>,
    pub(super) log: Arc<Log>,
    pub(super) space: Arc<Space>,
    pub(super) reads: Arc<Reads>,
    pub(super) checkpoints: Arc<Checkpoints>,
    pub(super) writes: Arc<Writes>,
    pub(super) fetches: Arc<Fetches>,
    pub(super) make_room: Arc<MakeRoom>,
    pub(super) chooser: Arc<Chooser>,
    /// Opened trees of shares.
    pub(super) tree_claims: Arc<Claims>,
    /// Held shared while a large range is made a hole past the write buffer; exclusively, for a
    /// moment, by a thread that relies on there being none.
    pub punching: RwLock<(), ranks::Punching>,
    /// Large ranges that were made holes.
    pub punches: AtomicU64,
}

impl Volumes {
    pub(crate) fn new(
        (vitals, pool_id, buffers): (Arc<Vitals>, [u8; 16], Arc<BufferPool>),
        (applier, log, space): (&Applier, Arc<Log>, Arc<Space>),
        (reads, checkpoints, writes): (Arc<Reads>, Arc<Checkpoints>, Arc<Writes>),
        (fetches, make_room, chooser): (Arc<Fetches>, Arc<MakeRoom>, Arc<Chooser>),
    ) -> Self {
        Self {
            vitals,
            pool_id,
            buffers,
            buffer: applier.buffer.clone(),
            map: applier.map.clone(),
            objects: applier.objects.clone(),
            log,
            space,
            reads,
            checkpoints,
            writes,
            fetches,
            make_room,
            chooser,
            tree_claims: Arc::default(),
            punching: RwLock::default(),
            punches: AtomicU64::new(0),
        }
    }
}
