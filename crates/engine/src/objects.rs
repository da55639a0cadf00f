//! The table of objects: descriptors in memory, by id and by name. Owns names and properties; the log and the map own
//! everything that depends on them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};

use format::{ObjectDescriptor, ObjectState};
use parking_lot::RwLock;
use policy::Settings;
use surface::{Error, ErrorKind, Result};
use units::{BLOCK_BYTES, Epoch, ObjectId};

use crate::map::Level;
use crate::options::Properties;

/// One object in memory.
pub(crate) struct Object {
    pub id: ObjectId,
    pub descriptor: RwLock<ObjectDescriptor>,
    /// The descriptor as the last checkpoint captured it, and whether it has changed since.
    captured: RwLock<ObjectDescriptor>,
    changed: AtomicBool,
    /// What the properties in force mean.
    pub settings: RwLock<Settings>,
    /// Held shared by every request, and exclusively by a resize or a deletion.
    pub gate: RwLock<()>,
    size_bytes: AtomicU64,
    epoch: AtomicU32,
    live: AtomicBool,
    /// As of the last checkpoint.
    allocated_blocks: AtomicU64,
    stored_bytes: AtomicU64,
    /// Estimated change of allocated blocks since, in the active and in the frozen overlay.
    allocated_active: AtomicI64,
    allocated_frozen: AtomicI64,
}

impl Object {
    fn new(descriptor: ObjectDescriptor, pool: &Properties) -> Self {
        Self {
            id: descriptor.id,
            captured: RwLock::new(descriptor.clone()),
            changed: AtomicBool::new(false),
            settings: RwLock::new(settings(pool, &descriptor.properties)),
            gate: RwLock::new(()),
            size_bytes: AtomicU64::new(descriptor.size_bytes),
            epoch: AtomicU32::new(descriptor.epoch.0),
            live: AtomicBool::new(descriptor.state == ObjectState::Volume),
            allocated_blocks: AtomicU64::new(descriptor.allocated_blocks),
            stored_bytes: AtomicU64::new(descriptor.stored_bytes),
            allocated_active: AtomicI64::new(0),
            allocated_frozen: AtomicI64::new(0),
            descriptor: RwLock::new(descriptor),
        }
    }

    /// The descriptor, if it has changed since it was captured last.
    pub(crate) fn capture(&self) -> Option<ObjectDescriptor> {
        if !self.changed.swap(false, Ordering::Relaxed) {
            return None;
        }
        let descriptor = self.descriptor.read().clone();
        *self.captured.write() = descriptor.clone();
        Some(descriptor)
    }

    /// The descriptor as it was captured last.
    pub(crate) fn captured(&self) -> ObjectDescriptor {
        self.captured.read().clone()
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Acquire)
    }

    pub(crate) fn epoch(&self) -> Epoch {
        Epoch(self.epoch.load(Ordering::Acquire))
    }

    pub(crate) fn is_live(&self) -> bool {
        self.live.load(Ordering::Acquire)
    }

    /// The way down from the object's head.
    pub(crate) fn levels(&self) -> [Level; 1] {
        [Level { object: self.id, epoch: self.epoch() }]
    }

    /// Logical bytes that hold data: exact at a checkpoint, estimated since.
    pub(crate) fn allocated_bytes(&self) -> u64 {
        let estimate = self.allocated_active.load(Ordering::Relaxed) + self.allocated_frozen.load(Ordering::Relaxed);
        let blocks = self.allocated_blocks.load(Ordering::Relaxed).saturating_add_signed(estimate);
        blocks.saturating_mul(BLOCK_BYTES as u64).min(self.size_bytes().next_multiple_of(BLOCK_BYTES as u64))
    }

    /// Bytes of live payload, as of the last checkpoint.
    pub(crate) fn stored_bytes(&self) -> u64 {
        self.stored_bytes.load(Ordering::Relaxed)
    }

    /// The active overlay changed by so many allocated blocks.
    pub(crate) fn estimate(&self, blocks: i64) {
        self.allocated_active.fetch_add(blocks, Ordering::Relaxed);
    }

    /// A checkpoint begins.
    pub(crate) fn freeze_estimate(&self) {
        let active = self.allocated_active.swap(0, Ordering::Relaxed);
        self.allocated_frozen.fetch_add(active, Ordering::Relaxed);
    }

    /// A checkpoint ended and counted exactly.
    pub(crate) fn settle(&self, allocated_blocks: u64, stored_bytes: u64) {
        self.allocated_blocks.store(allocated_blocks, Ordering::Relaxed);
        self.stored_bytes.store(stored_bytes, Ordering::Relaxed);
        self.allocated_frozen.store(0, Ordering::Relaxed);
    }

    /// Allocated blocks and stored bytes as of the last checkpoint.
    pub(crate) fn settled(&self) -> (u64, u64) {
        (self.allocated_blocks.load(Ordering::Relaxed), self.stored_bytes.load(Ordering::Relaxed))
    }
}

/// Properties were checked when they were set; a pool from a newer version may hold ones that this one does not know.
fn settings(pool: &Properties, own: &Properties) -> Settings {
    policy::resolve(pool, own).map(|r| r.settings).unwrap_or_default()
}

#[derive(Default)]
struct Table {
    by_id: HashMap<ObjectId, Arc<Object>>,
    by_name: BTreeMap<String, Arc<Object>>,
    pool: Properties,
    next: u64,
    /// Objects in state `Deleting`.
    deleting: usize,
}

/// All objects of a pool, and the pool's own properties.
#[derive(Default)]
pub(crate) struct Objects {
    table: RwLock<Table>,
}

impl Objects {
    pub(crate) fn new(pool: Properties, next: u64) -> Self {
        Self { table: RwLock::new(Table { pool, next, ..Table::default() }) }
    }

    /// Enters a descriptor, or changes the object that has its id.
    pub(crate) fn apply(&self, descriptor: &ObjectDescriptor) {
        let mut table = self.table.write();
        table.next = table.next.max(descriptor.id.0 + 1);
        let (object, was_deleting) = match table.by_id.get(&descriptor.id) {
            Some(object) => {
                let object = object.clone();
                let old = std::mem::replace(&mut *object.descriptor.write(), descriptor.clone());
                // Another volume may have the name of a destroyed one by now.
                if old.state == ObjectState::Volume {
                    table.by_name.remove(&old.name);
                }
                object.size_bytes.store(descriptor.size_bytes, Ordering::Release);
                object.epoch.store(descriptor.epoch.0, Ordering::Release);
                object.live.store(descriptor.state == ObjectState::Volume, Ordering::Release);
                *object.settings.write() = settings(&table.pool, &descriptor.properties);
                (object, old.state == ObjectState::Deleting)
            }
            None => {
                let object = Arc::new(Object::new(descriptor.clone(), &table.pool));
                table.by_id.insert(descriptor.id, object.clone());
                (object, false)
            }
        };
        object.changed.store(true, Ordering::Relaxed);
        match descriptor.state {
            ObjectState::Volume => drop(table.by_name.insert(descriptor.name.clone(), object)),
            // Replay may bring a deletion that the checkpoint knew already.
            ObjectState::Deleting => table.deleting += usize::from(!was_deleting),
        }
    }

    /// Whether a deleted object still has records.
    pub(crate) fn has_deleting(&self) -> bool {
        self.table.read().deleting > 0
    }

    /// Changes the pool's properties, and with them what volumes inherit.
    pub(crate) fn apply_pool(&self, properties: &Properties) {
        let mut table = self.table.write();
        table.pool = properties.clone();
        for object in table.by_id.values() {
            *object.settings.write() = settings(properties, &object.descriptor.read().properties);
        }
    }

    /// Forgets an object whose records are all gone.
    pub(crate) fn remove(&self, id: ObjectId) {
        let mut table = self.table.write();
        if table.by_id.remove(&id).is_some_and(|o| !o.is_live()) {
            table.deleting = table.deleting.saturating_sub(1);
        }
    }

    pub(crate) fn pool_properties(&self) -> Properties {
        self.table.read().pool.clone()
    }

    /// The identifier that the next object gets.
    pub(crate) fn next_id(&self) -> u64 {
        self.table.read().next
    }

    pub(crate) fn get(&self, id: ObjectId) -> Option<Arc<Object>> {
        self.table.read().by_id.get(&id).cloned()
    }

    /// The volume of that name.
    pub(crate) fn named(&self, name: &str) -> Result<Arc<Object>> {
        let table = self.table.read();
        table.by_name.get(name).cloned().ok_or_else(|| {
            let names: Vec<_> = table.by_name.keys().take(8).map(String::as_str).collect();
            let there =
                if names.is_empty() { "it has none".to_owned() } else { format!("it has {}", names.join(", ")) };
            Error::new(ErrorKind::NotFound, format!("the pool has no volume '{name}'; {there}"))
        })
    }

    /// All objects, by id.
    pub(crate) fn all(&self) -> Vec<Arc<Object>> {
        let mut all: Vec<_> = self.table.read().by_id.values().cloned().collect();
        all.sort_unstable_by_key(|o| o.id);
        all
    }

    /// All volumes, by name.
    pub(crate) fn volumes(&self) -> Vec<Arc<Object>> {
        self.table.read().by_name.values().cloned().collect()
    }
}

/// Checks a volume's name: 1 to 255 bytes of letters, digits, `.`, `_`, `-`, not starting with `.` or `-`.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if (1..=255).contains(&name.len()) && name.chars().all(allowed) && !name.starts_with(['.', '-']) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Invalid,
        format!("'{name}' cannot be a volume's name: use 1 to 255 of A-Z a-z 0-9 . _ - and do not begin with . or -"),
    ))
}
