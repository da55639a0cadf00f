//! The inventory of the pool's extents, for salvage, which may have nothing but the data file ([`format::Inventory`] describes the bytes). Owns
//! how far each extent is filled, and which copy is written next.
//!
//! 1. Each batch that is applied says how far it fills its extent, in a running pool and in recovery alike.
//! 2. A checkpoint knows which extents will hold data once it is durable. Before its commit it writes the inventory of them over the older
//!    of the two copies. One sync makes this copy and the log durable.
//!
//! - All extents of the newest durable inventory have the content that it lists. If its checkpoint
//!   was never durable, no extent has been freed since. If it was, an extent is freed only by a
//!   later checkpoint, whose inventory would be the newest.
//! - A crash while a copy is written leaves its header, which is one sector, old or new, and does
//!   not touch the other copy. A header whose body does not match belongs to a checkpoint that was
//!   never durable, or is damaged.
//! - A crash before the sync of step 2 may leave a new copy without the batches that it counts.
//!   Salvage cannot distinguish that from damage, so it reports them as missing and adds that they
//!   may never have been durable. A copy is beyond that doubt if a batch records everything before
//!   the copy's position as durable, or if the copy was written by an orderly close: closing syncs
//!   the log first.

use std::collections::BTreeMap;

use env::{AlignedBuf, Disk};
use format::{
    BATCH_ALIGN, Checkpoint, ExtentEntry, Filled, INVENTORY_HEAD_BYTES, Inventory, InventoryHeader, Superblock,
    inventory_places,
};
use surface::{Error, Result};
use units::{ExtentIndex, ObjectId, Seq};

use crate::base::ranked::Mutex;
use crate::base::ranks;
use crate::log::Position;
use crate::log::geometry::Geometry;

/// State of one copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Copy {
    /// It holds.
    Whole(Inventory),
    /// Its header is valid, its body does not match.
    Torn(Inventory),
    /// Unusable or missing.
    Damaged,
}

impl Copy {
    /// Returns the incarnation and the number, which order copies by age.
    pub fn age(&self) -> Option<(u64, u64)> {
        match self {
            Self::Whole(inventory) | Self::Torn(inventory) => Some((inventory.incarnation, inventory.number)),
            Self::Damaged => None,
        }
    }
}

/// Reads both copies of that pool.
pub fn read(disk: &dyn Disk, pool: u64, extent_bytes: u32) -> [Copy; 2] {
    inventory_places(extent_bytes).map(|(offset, room)| read_copy(disk, pool, offset, room).unwrap_or(Copy::Damaged))
}

fn read_copy(disk: &dyn Disk, pool: u64, offset: u64, room: usize) -> Option<Copy> {
    let mut buf = AlignedBuf::new(room);
    disk.read_at(offset, &mut buf, INVENTORY_HEAD_BYTES).ok()?;
    let header = InventoryHeader::decode(&buf[..INVENTORY_HEAD_BYTES]).ok()?;
    if !header.inventory.pool.starts_with(&pool.to_le_bytes()) || header.body_bytes() > room - INVENTORY_HEAD_BYTES {
        return None;
    }
    let torn = Copy::Torn(header.inventory.clone());
    let len = header.body_bytes().next_multiple_of(BATCH_ALIGN);
    if len > 0 && disk.read_at(offset + INVENTORY_HEAD_BYTES as u64, &mut buf, len).is_err() {
        return Some(torn);
    }
    Some(header.with_body(&buf[..len]).map_or(torn, Copy::Whole))
}

/// Writes the inventory of a new pool, in both places; durable with the next sync.
///
/// # Errors
/// Those of the storage.
pub fn write_first(disk: &dyn Disk, superblock: &Superblock) -> Result<()> {
    let Superblock { pool, extent_bytes, capacity_bytes, .. } = *superblock;
    let extents = Geometry::new(extent_bytes, capacity_bytes).extents();
    let inventory = Inventory {
        pool,
        number: 0,
        incarnation: 0,
        next_seq: Seq(1),
        is_closed: false,
        open: Default::default(),
        extents: Some(vec![ExtentEntry::UNUSED; extents as usize]),
        is_coarse: false,
        pinned: Vec::new(),
        objects: Some(Vec::new()),
    };
    let write = |(offset, room)| write_at(disk, offset, &inventory.encode(room));
    let written = inventory_places(extent_bytes).into_iter().try_for_each(write);
    written.map_err(|e| Error::from_io("writing the inventory of extents failed", e))
}

fn write_at(disk: &dyn Disk, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
    let len = bytes.len().next_multiple_of(BATCH_ALIGN);
    let mut buf = AlignedBuf::new(len);
    buf[..bytes.len()].copy_from_slice(bytes);
    disk.write_at(offset, &buf, len)
}

#[derive(Debug, Default)]
struct State {
    /// Extents with batches applied since they were opened that no checkpoint has taken over.
    filled: BTreeMap<ExtentIndex, Filled>,
    /// The other extents with content, as of the last checkpoint.
    known: BTreeMap<ExtentIndex, ExtentEntry>,
    /// Which copy is written next.
    next: usize,
    /// The other copy is unusable as well.
    is_bare: bool,
}

/// The owner.
#[derive(Debug, Default)]
pub struct Inventories {
    state: Mutex<State, ranks::Inventory>,
}

impl Inventories {
    /// Loads the copy that belongs to the loaded checkpoint. The other one is written next.
    pub fn load(disk: &dyn Disk, checkpoint: &Checkpoint, extent_bytes: u32) -> Self {
        let (mut state, mut id) = (State::default(), [0; 8]);
        id.copy_from_slice(&checkpoint.pool[..8]);
        let pool = u64::from_le_bytes(id);
        let copies = read(disk, pool, extent_bytes);
        state.is_bare = copies.iter().all(|copy| *copy == Copy::Damaged);
        state.next = usize::from(copies[1].age() < copies[0].age());
        for (index, copy) in copies.into_iter().enumerate() {
            let Copy::Whole(inventory) = copy else { continue };
            if (inventory.incarnation, inventory.number) != (checkpoint.incarnation, checkpoint.number) {
                continue;
            }
            state.next = 1 - index;
            let entries = inventory.extents.unwrap_or_default().into_iter().enumerate();
            let used = entries.filter(|(_, entry)| *entry != ExtentEntry::UNUSED);
            state.known = used.map(|(index, entry)| (ExtentIndex(index as u32), entry)).collect();
            let open = inventory.open.into_iter().flatten();
            state.filled = open.filter(|(_, filled)| filled.last != Seq(0)).collect();
        }
        Self { state: Mutex::new(state) }
    }

    /// Step 1: a batch has been applied that ends at byte `end` of an extent.
    pub fn note(&self, extent: ExtentIndex, end: u32, last: Seq) {
        self.state.lock().filled.insert(extent, Filled { end, last });
    }

    /// Returns the current state, for a checkpoint.
    pub fn capture(&self) -> BTreeMap<ExtentIndex, Filled> {
        self.state.lock().filled.clone()
    }

    /// Returns the known fill of extents that will have content.
    fn of(&self, used: Vec<ExtentIndex>, filled: &BTreeMap<ExtentIndex, Filled>) -> BTreeMap<ExtentIndex, ExtentEntry> {
        let state = self.state.lock();
        let entry = |extent: &ExtentIndex| {
            let passed = filled.get(extent).map(|filled| ExtentEntry::of(*filled));
            passed.or_else(|| state.known.get(extent).copied()).unwrap_or(ExtentEntry::UNKNOWN)
        };
        used.into_iter().map(|extent| (extent, entry(&extent))).collect()
    }
}

/// A checkpoint's view of the inventory.
pub struct Stand<'a> {
    /// Number of the checkpoint.
    pub number: u64,
    pub position: &'a Position,
    /// See [`Inventories::capture`].
    pub filled: &'a BTreeMap<ExtentIndex, Filled>,
    /// Objects and their blocks of data.
    pub objects: Vec<(ObjectId, u64)>,
    /// Extents that hold the catalogue, or later entries.
    pub pinned: Vec<ExtentIndex>,
    /// Extents that will have content.
    pub used: Vec<ExtentIndex>,
    /// The log ends here.
    pub is_closed: bool,
}

impl Inventories {
    /// Step 2, before the sync. If a copy cannot be written, it is skipped: salvage then reports
    /// that completeness is unknown. The caller holds the checkpoint's lock, so there is one
    /// writer.
    pub fn write(&self, disk: &dyn Disk, geometry: &Geometry, pool: [u8; 16], stand: Stand<'_>) {
        let Stand { number, position, filled, objects, pinned, used, is_closed } = stand;
        let known = self.of(used, filled);
        let mut entries = vec![ExtentEntry::UNUSED; geometry.extents() as usize];
        for (extent, entry) in &known {
            if let Some(slot) = entries.get_mut(extent.0 as usize) {
                *slot = *entry;
            }
        }
        let open = position.open.map(|open| {
            let open = open?;
            let last = filled.get(&open.extent).filter(|filled| filled.end == open.offset).map_or(Seq(0), |f| f.last);
            Some((open.extent, Filled { end: open.offset, last }))
        });
        let inventory = Inventory {
            pool,
            number,
            incarnation: position.incarnation,
            next_seq: position.next_seq,
            is_closed,
            open,
            extents: Some(entries),
            is_coarse: false,
            pinned,
            objects: Some(objects),
        };
        let places = inventory_places(geometry.extent_bytes);
        let (next, is_bare) = {
            let state = self.state.lock();
            (state.next, state.is_bare)
        };
        let order = if is_bare { vec![next, 1 - next] } else { vec![next] };
        for index in order {
            let (offset, room) = places[index];
            // A failure needs no handling: salvage recognises an invalid copy.
            drop(write_at(disk, offset, &inventory.encode(room)));
        }
        let mut state = self.state.lock();
        state.known = known;
        state.is_bare = false;
    }

    /// Notes that the checkpoint is durable: the next one writes over the other copy, and passed
    /// extents are not filled any more.
    pub fn is_durable(&self, position: &Position) {
        let mut state = self.state.lock();
        state.next = 1 - state.next;
        for extent in &position.passed {
            state.filled.remove(extent);
        }
    }
}
