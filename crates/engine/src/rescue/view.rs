//! A read-only pool: the engine's own reader on records that were rebuilt from the log, over the
//! unchanged data file.

use std::io::{Error as IoError, ErrorKind as IoErrorKind, Result as IoResult};
use std::sync::Arc;

use env::{AlignedBuf, Disk};
use format::Superblock;
use salvage::log_objects::Table;
use store::base::buffers::BufferPool;
use store::base::options::{PoolEnv, PoolOptions};
use store::base::ranked::Mutex;
use store::base::shares::Shares;
use store::base::vitals::Vitals;
use store::buffer::write_buffer::WriteBuffer;
use store::log::catalogue::Catalogue;
use store::log::geometry::Geometry;
use store::log::inventory::Inventories;
use store::log::{Log, Position, Sink};
use store::map::Map;
use store::map::apply::Applier;
use store::objects::Objects;
use store::space::extents::Extents;
use surface::Result;
use units::Seq;

use crate::checkpoint::state::CheckpointState;
use crate::codecs::chooser::Chooser;
use crate::codecs::pressure::Meter;
use crate::pool::Pool;
use crate::pool::core::{Core, Parts};

/// A disk that refuses all changes.
pub(crate) struct ReadOnlyDisk(pub Arc<dyn Disk>);

fn refused() -> IoError {
    IoError::new(IoErrorKind::ReadOnlyFilesystem, "a pool is not changed while it is salvaged")
}

impl Disk for ReadOnlyDisk {
    fn read_alignment(&self) -> usize {
        self.0.read_alignment()
    }
    fn read_at(&self, offset: u64, buf: &mut AlignedBuf, len: usize) -> IoResult<()> {
        self.0.read_at(offset, buf, len)
    }
    fn write_at(&self, _: u64, _: &AlignedBuf, _: usize) -> IoResult<()> {
        Err(refused())
    }
    fn sync(&self) -> IoResult<()> {
        Err(refused())
    }
    fn reserve(&self, _: u64, _: u64) -> IoResult<()> {
        Err(refused())
    }
    fn punch(&self, _: u64, _: u64) -> IoResult<()> {
        Err(refused())
    }
    fn grow(&self, _: u64) -> IoResult<()> {
        Err(refused())
    }
    fn size_bytes(&self) -> IoResult<u64> {
        self.0.size_bytes()
    }
    fn occupied_bytes(&self) -> IoResult<u64> {
        self.0.occupied_bytes()
    }
}

/// The pool of `superblock` with the objects of `table`, on the records in `env.store`. It has no
/// threads and no extents to fill.
///
/// # Errors
/// When the table is not consistent.
pub(crate) fn view(env: PoolEnv, superblock: &Superblock, table: &Table, options: &PoolOptions) -> Result<Pool> {
    let options = PoolOptions { workers: 0, ..options.clone() };
    let geometry = Geometry::new(superblock.extent_bytes, superblock.capacity_bytes);
    let shares = Shares::of(options.memory_bytes);
    let objects = Arc::new(Objects::new(table.properties.clone(), table.next_object));
    let descriptors: Vec<_> = table.objects.values().cloned().collect();
    objects.load(&descriptors)?;
    let applier = Arc::new(Applier {
        map: Arc::new(Map::new(env.store.clone(), shares.groups, Arc::default())),
        objects,
        buffer: Arc::new(WriteBuffer::new()),
        catalogue: Arc::new(Catalogue::default()),
        deaths: Mutex::default(),
        geometry: geometry.clone(),
        inventories: Inventories::default(),
    });
    let buffers = Arc::new(BufferPool::default());
    let meter = Arc::new(Meter::new(env.clock.clone(), options.workers));
    let chooser = Chooser::new(env.clock.clone(), meter, options.memory_bytes, None);
    let position = Position {
        incarnation: 0,
        incarnation_first_seq: Seq(1),
        next_seq: Seq(1),
        open: Default::default(),
        extents: Vec::new(),
        passed: Vec::new(),
        dropped: Vec::new(),
    };
    let vitals = Arc::new(Vitals::new(env, options));
    let log = Log::new(
        geometry.clone(),
        superblock.pool,
        vitals.env.disk.clone(),
        applier.clone() as Arc<dyn Sink>,
        vitals.clone(),
        buffers.clone(),
        position,
        Seq(1),
        shares.write_buffer / 4,
    );
    let core = Core::new(Parts {
        vitals,
        applier,
        pool_id: superblock.pool,
        buffers,
        log,
        extents: Extents::new(&geometry, std::collections::BTreeMap::new(), 0),
        checkpoint: CheckpointState::new(0, Vec::new()),
        chooser,
        unreadable: Vec::new(),
    });
    Ok(Pool { core: Arc::new(core) })
}
