//! From a range of blocks to bytes. Owns the cache of decoded units, the groups of images that are
//! being fetched, and places of suspected damage ([`Reads`]); a volume owns its streams that are
//! read ahead. Changes nothing that is stored. Any thread may call it, and waits for the disk.
//! Volumes call it for their clients; `replication`, `upkeep` and `repair` call it for snapshots
//! and for data that they verify.
//!
//! 1. Dirty blocks come from the write buffer, blocks of images that have just arrived from memory
//!    (`images`).
//! 2. The map has the locations of the others (`allocation` answers that alone).
//! 3. Decoded units come from the cache (`unit_cache`). The rest is read, neighbours in one read
//!    (`spans`), verified and decoded (`reader`), with unrequested neighbours while there is room
//!    for them (`prefetch`). Damaged data is read from another copy, if there is one (`copies`).
//! 4. A stream of reads has the next ones read ahead (`read_ahead`), a program that reads the files
//!    of a directory the next files (`files_ahead`).
//!
//! Locations stay valid while the lock `readers` is shared: no extent is filled again in that time.
//! An error names blocks that are not in the pool at all (`lacking`); one for damaged bytes names
//! all objects that see them (`damage_owners`).

pub(crate) mod allocation;
pub(crate) mod copies;
pub(crate) mod damage_owners;
pub(crate) mod dictionaries;
pub(crate) mod ending;
pub(crate) mod files_ahead;
pub(crate) mod images;
pub(crate) mod lacking;
pub(crate) mod prefetch;
pub(crate) mod read_ahead;
pub(crate) mod reader;
pub(crate) mod runs;
pub(crate) mod spans;
pub(crate) mod suspects;
pub(crate) mod unit_cache;

use std::sync::Arc;

use store::base::buffers::BufferPool;
use store::base::users::Users;
use store::base::vitals::Vitals;
use store::buffer::write_buffer::WriteBuffer;
use store::log::geometry::Geometry;
use store::map::Map;
use store::objects::Objects;

use crate::codecs::chooser::Chooser;
use crate::codecs::dictionaries::Dictionaries;
use crate::read::images::Images;
use crate::read::suspects::Suspects;
use crate::read::unit_cache::UnitCache;

/// Reads the data of a pool.
pub(crate) struct Reads {
    vitals: Arc<Vitals>,
    geometry: Geometry,
    buffers: Arc<BufferPool>,
    buffer: Arc<WriteBuffer>,
    map: Arc<Map>,
    objects: Arc<Objects>,
    chooser: Arc<Chooser>,
    dictionaries: Arc<Dictionaries>,
    /// Held while a reader uses locations; a checkpoint waits until all earlier readers are done,
    /// before extents are reused.
    pub readers: Users,
    pub units: UnitCache,
    pub images: Images,
    pub suspects: Suspects,
}

impl Reads {
    /// `unit_bytes`: memory for decoded units.
    pub(crate) fn new(
        (vitals, geometry, buffers): (Arc<Vitals>, Geometry, Arc<BufferPool>),
        (buffer, map, objects): (Arc<WriteBuffer>, Arc<Map>, Arc<Objects>),
        (chooser, dictionaries): (Arc<Chooser>, Arc<Dictionaries>),
        unit_bytes: usize,
    ) -> Self {
        Self {
            units: UnitCache::new(unit_bytes, buffers.clone()),
            suspects: Suspects::new(geometry.clone()),
            readers: Users::default(),
            images: Images::default(),
            vitals,
            geometry,
            buffers,
            buffer,
            map,
            objects,
            chooser,
            dictionaries,
        }
    }
}
