//! One object in memory: its descriptor, its chain of levels, its figures.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering};

use format::{ObjectDescriptor, ObjectState, Reap, SnapshotIdentity};
use policy::{Resolved, Settings};
use units::{BLOCK_BYTES, BlockIndex, Epoch, GroupIndex, ObjectId, SHARE_BYTES};

use crate::base::ranked::RwLock;
use crate::base::ranks;
use crate::objects::effort::Effort;
use crate::objects::file_layout::holds_names;
use crate::objects::level::Level;

/// One object in memory.
pub struct Object {
    pub id: ObjectId,
    pub descriptor: RwLock<ObjectDescriptor, ranks::Descriptor>,
    /// The descriptor as the last checkpoint captured it, and whether it has changed since.
    captured: RwLock<ObjectDescriptor, ranks::ObjectPart>,
    changed: AtomicBool,
    /// The settings that follow from the properties in force.
    pub settings: RwLock<Settings, ranks::ObjectPart>,
    /// For a share: all properties in force for its files; otherwise the defaults.
    pub in_force: RwLock<Arc<Resolved>, ranks::ObjectPart>,
    /// Held shared by every request, and exclusively by a resize, a snapshot, a rollback or a
    /// deletion.
    pub gate: RwLock<(), ranks::Gate>,
    /// Held shared by a writer that reads a block to change a part of it, exclusively while a large
    /// range is made a hole past the write buffer: the rest of the block would be restored
    /// otherwise.
    pub parts: RwLock<(), ranks::Parts>,
    /// The name that users know: that of a volume with its folders, or `VOLUME@SNAPSHOT`.
    title: RwLock<String, ranks::ObjectPart>,
    levels: RwLock<Arc<[Level]>, ranks::ObjectPart>,
    size_bytes: AtomicU64,
    epoch: Arc<AtomicU32>,
    /// Whether it is a volume, whether it is that or a snapshot, and whether the log may bring data
    /// for it.
    live: AtomicBool,
    readable: AtomicBool,
    growing: AtomicBool,
    /// Whether it is a dictionary, or was one before it was dropped.
    dictionary: AtomicBool,
    /// Raised whenever reaping starts over.
    reap_number: AtomicU64,
    /// As of the last checkpoint.
    allocated_blocks: AtomicU64,
    stored_bytes: AtomicU64,
    /// Estimated change since, in the active and in the frozen overlay.
    active: Estimate,
    frozen: Estimate,
    /// The folders above that have a quota.
    limits: RwLock<Arc<[Arc<Object>]>, ranks::ObjectPart>,
    /// In how many more copies its new data is stored.
    copies: AtomicU8,
    /// The highest number of a copy of data, and of names, that it, or an object that it came from,
    /// may have.
    copies_known: [AtomicU8; 2],
    /// Cost of its data since the pool was opened.
    pub effort: Effort,
    /// See `quota`.
    pub quota: crate::objects::allowance::Allowance,
}

/// No number of a copy: the map has not been asked.
const COPIES_UNKNOWN: u8 = u8::MAX;

/// An estimated change of an object's figures.
#[derive(Default)]
struct Estimate {
    /// Allocated blocks.
    blocks: AtomicI64,
    /// Bytes of live payload.
    bytes: AtomicI64,
}

impl Estimate {
    fn add(&self, blocks: i64, bytes: i64) {
        if blocks != 0 {
            self.blocks.fetch_add(blocks, Ordering::Relaxed);
        }
        if bytes != 0 {
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }
}

impl Object {
    pub fn new(descriptor: ObjectDescriptor, settings: Settings) -> Self {
        let object = Self {
            id: descriptor.id,
            captured: RwLock::new(descriptor.clone()),
            changed: AtomicBool::new(false),
            settings: RwLock::new(settings),
            in_force: RwLock::default(),
            gate: RwLock::new(()),
            parts: RwLock::new(()),
            title: RwLock::new(descriptor.name.clone()),
            levels: RwLock::new(Arc::new([])),
            size_bytes: AtomicU64::new(0),
            epoch: Arc::default(),
            live: AtomicBool::new(false),
            readable: AtomicBool::new(false),
            growing: AtomicBool::new(false),
            dictionary: AtomicBool::new(false),
            reap_number: AtomicU64::new(0),
            allocated_blocks: AtomicU64::new(descriptor.allocated_blocks),
            stored_bytes: AtomicU64::new(descriptor.stored_bytes),
            active: Estimate::default(),
            frozen: Estimate::default(),
            limits: RwLock::new(Arc::new([])),
            copies: AtomicU8::new(settings.copies.saturating_sub(1)),
            copies_known: [const { AtomicU8::new(COPIES_UNKNOWN) }; 2],
            effort: Effort::default(),
            quota: crate::objects::allowance::Allowance::default(),
            descriptor: RwLock::new(descriptor.clone()),
        };
        object.replace(descriptor, Arc::new([]));
        object
    }

    /// Sets the descriptor, and the object's chain of `levels`.
    pub fn replace(&self, descriptor: ObjectDescriptor, levels: Arc<[Level]>) {
        self.size_bytes.store(descriptor.size_bytes, Ordering::Release);
        self.epoch.store(descriptor.epoch.0, Ordering::Release);
        self.live.store(descriptor.state == ObjectState::Volume, Ordering::Release);
        let is_readable = matches!(descriptor.state, ObjectState::Volume | ObjectState::Snapshot);
        self.readable.store(is_readable, Ordering::Release);
        self.dictionary.fetch_or(descriptor.state == ObjectState::Dictionary, Ordering::AcqRel);
        let is_growing =
            matches!(descriptor.state, ObjectState::Volume | ObjectState::Incoming | ObjectState::Dictionary);
        self.growing.store(is_growing || self.is_dictionary() || descriptor.image.is_some(), Ordering::Release);
        *self.levels.write() = levels;
        *self.descriptor.write() = descriptor;
        self.changed.store(true, Ordering::Relaxed);
    }

    /// Returns the descriptor, if it has changed since it was last captured.
    pub fn capture(&self) -> Option<ObjectDescriptor> {
        if !self.changed.swap(false, Ordering::Relaxed) {
            return None;
        }
        let descriptor = self.descriptor.read().clone();
        *self.captured.write() = descriptor.clone();
        Some(descriptor)
    }

    /// Returns the descriptor as last captured.
    pub fn captured(&self) -> ObjectDescriptor {
        self.captured.read().clone()
    }

    #[inline]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Acquire)
    }

    /// Whether it is a share, or a moment of one.
    #[inline]
    pub fn is_share(&self) -> bool {
        self.size_bytes() == SHARE_BYTES
    }

    /// Its size; for a share, which has no size, that of its content: for progress.
    pub fn logical_bytes(&self) -> u64 {
        if self.is_share() { self.allocated_bytes() } else { self.size_bytes() }
    }

    #[inline]
    pub fn epoch(&self) -> Epoch {
        Epoch(self.epoch.load(Ordering::Acquire))
    }

    /// Where its newest epoch is kept.
    #[inline]
    pub fn newest(&self) -> Arc<AtomicU32> {
        self.epoch.clone()
    }

    /// What a message calls it.
    #[inline]
    pub fn kind_word(&self) -> &'static str {
        if self.is_share() { "share" } else { "volume" }
    }

    /// Whether it is a volume: then it can be written.
    #[inline]
    pub fn is_live(&self) -> bool {
        self.live.load(Ordering::Acquire)
    }

    /// Returns whether it accepts data: a volume does, and one being received.
    pub(crate) fn is_growing(&self) -> bool {
        self.growing.load(Ordering::Acquire)
    }

    /// Whether it is a volume or a snapshot.
    #[inline]
    pub fn is_readable(&self) -> bool {
        self.readable.load(Ordering::Acquire)
    }

    /// Whether it is a dictionary.
    #[inline]
    pub fn is_dictionary(&self) -> bool {
        self.dictionary.load(Ordering::Acquire)
    }

    /// The name that users know.
    pub fn title(&self) -> String {
        self.title.read().clone()
    }

    pub(crate) fn set_title(&self, title: String) {
        *self.title.write() = title;
    }

    /// The folders above that have a quota.
    #[inline]
    pub fn limits(&self) -> Arc<[Arc<Self>]> {
        self.limits.read().clone()
    }

    pub(crate) fn set_limits(&self, limits: Arc<[Arc<Self>]>) {
        *self.limits.write() = limits;
    }

    /// Sets the settings that follow from the properties in force.
    pub(crate) fn set_settings(&self, settings: Settings) {
        self.copies.store(settings.copies.saturating_sub(1), Ordering::Relaxed);
        *self.settings.write() = settings;
    }

    /// Returns in how many more copies new data of a group is stored: names and inodes of a share
    /// in one more than its files.
    #[inline]
    pub fn copies_of(&self, group: GroupIndex) -> u8 {
        self.copies.load(Ordering::Relaxed) + u8::from(self.has_names_at(group.first_block()))
    }

    /// Most copies in which its new data is stored, in addition to the data itself.
    pub fn copies_max(&self) -> u8 {
        self.copies.load(Ordering::Relaxed) + u8::from(self.is_share())
    }

    /// Whether it is a share with names or places of files in this block.
    #[inline]
    pub fn has_names_at(&self, block: BlockIndex) -> bool {
        self.is_share() && holds_names(block)
    }

    /// Returns the highest number of a copy of data, or of names, that it, or an object that it came
    /// from, may have; `None`: the map has not been asked since the pool was opened.
    #[inline]
    pub fn copies_known(&self, of_names: bool) -> Option<u8> {
        let known = self.copies_known[usize::from(of_names)].load(Ordering::Acquire);
        (known != COPIES_UNKNOWN).then_some(known)
    }

    /// Notes that it may have copies up to this number; returns the highest number.
    pub fn note_copies(&self, of_names: bool, number: u8) -> u8 {
        let more = |known: u8| Some(if known == COPIES_UNKNOWN { number } else { known.max(number) });
        let known = &self.copies_known[usize::from(of_names)];
        let before = known.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        before.map_or(number, |known| if known == COPIES_UNKNOWN { number } else { known.max(number) })
    }

    /// A change only removes an empty level from the chain, or restores one with a descriptor from
    /// the past.
    pub(crate) fn set_levels(&self, levels: Arc<[Level]>) {
        *self.levels.write() = levels;
    }

    /// Returns the chain of levels of the object. It does not change while its gate is held, except
    /// for empty levels (`history::reparent`).
    #[inline]
    pub fn levels(&self) -> Arc<[Level]> {
        self.levels.read().clone()
    }

    /// Assigns a new identity to a snapshot: it may show other data from now on.
    pub fn estrange(&self, identity: SnapshotIdentity) {
        self.descriptor.write().identity = Some(identity);
        self.changed.store(true, Ordering::Relaxed);
    }

    /// Starts reaping over: all its groups must be checked for dead records.
    pub(crate) fn restart_reap(&self) {
        let mut descriptor = self.descriptor.write();
        descriptor.reap = Some(Reap::from(descriptor.reap.map_or(GroupIndex(0), |reap| reap.next)));
        self.reap_number.fetch_add(1, Ordering::Relaxed);
        self.changed.store(true, Ordering::Relaxed);
    }

    /// Returns how often reaping was started.
    pub(crate) fn reap_number(&self) -> u64 {
        self.reap_number.load(Ordering::Relaxed)
    }

    /// Applies `change`, which a checkpoint has stored for the captured descriptor, to the current
    /// one, unless `number` shows that reaping has started over since. Returns whether it did.
    pub fn reaped(&self, number: u64, change: impl Fn(&mut ObjectDescriptor)) -> bool {
        change(&mut self.captured.write());
        let holds = self.reap_number() == number;
        if holds {
            change(&mut self.descriptor.write());
        }
        holds
    }

    /// Returns whether the figures are exact: nothing has changed since the last checkpoint.
    #[inline]
    pub fn is_exact(&self) -> bool {
        let is_zero = |estimate: &Estimate| {
            estimate.blocks.load(Ordering::Relaxed) == 0 && estimate.bytes.load(Ordering::Relaxed) == 0
        };
        is_zero(&self.active) && is_zero(&self.frozen)
    }

    /// Returns logical bytes that hold data, including data that only snapshots see: exact at a
    /// checkpoint, estimated since.
    pub fn allocated_bytes(&self) -> u64 {
        self.allocated_now().saturating_mul(BLOCK_BYTES as u64).min(self.allocated_bytes_max())
    }

    /// Returns blocks that hold data: exact at a checkpoint, estimated since. Too many if blocks
    /// were overwritten of which memory did not know that they are allocated.
    fn allocated_now(&self) -> u64 {
        // In this order: see `freeze_estimate`.
        let estimate = self.active.blocks.load(Ordering::Acquire) + self.frozen.blocks.load(Ordering::Relaxed);
        self.allocated_blocks.load(Ordering::Relaxed).saturating_add_signed(estimate)
    }

    /// Upper bound of allocated bytes: without snapshots, its size.
    fn allocated_bytes_max(&self) -> u64 {
        if self.epoch() > Epoch(0) { u64::MAX } else { self.size_bytes().next_multiple_of(BLOCK_BYTES as u64) }
    }

    /// Bytes of live payload, as of the last checkpoint.
    pub fn stored_bytes(&self) -> u64 {
        self.stored_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of live payload: exact at a checkpoint, estimated since.
    pub fn stored_now(&self) -> u64 {
        let since = self.active.bytes.load(Ordering::Relaxed) + self.frozen.bytes.load(Ordering::Relaxed);
        let stored = self.stored_bytes().saturating_add_signed(since);
        let (allocated, most) = (self.allocated_now().saturating_mul(BLOCK_BYTES as u64), self.allocated_bytes_max());
        if allocated <= most {
            return stored;
        }
        // The excess was overwritten.
        u64::try_from(u128::from(stored) * u128::from(most) / u128::from(allocated)).unwrap_or(u64::MAX)
    }

    /// Estimates the stored size of so many existing blocks: the average of the object.
    pub(crate) fn stored_for(&self, blocks: u32) -> i64 {
        if blocks == 0 {
            return 0;
        }
        let bytes = u128::from(self.stored_now()) * u128::from(blocks) / u128::from(self.allocated_now().max(1));
        i64::try_from(bytes).unwrap_or(i64::MAX)
    }

    /// Adds to the estimate: the active overlay changed by so many allocated blocks, and about so
    /// many bytes of live payload.
    pub fn estimate(&self, blocks: i64, bytes: i64) {
        self.active.add(blocks, bytes);
    }

    /// Begins a checkpoint. A concurrent count of the allocated bytes counts them twice rather than
    /// not at all: a volume that seems empty is not copied.
    pub fn freeze_estimate(&self) {
        let blocks = self.active.blocks.load(Ordering::Relaxed);
        self.frozen.add(blocks.max(0), self.active.bytes.swap(0, Ordering::Relaxed));
        self.active.blocks.fetch_sub(blocks, Ordering::Release);
        self.frozen.add(blocks.min(0), 0);
    }

    /// Ends a checkpoint, which counted exactly.
    pub fn settle(&self, allocated_blocks: u64, stored_bytes: u64) {
        self.allocated_blocks.store(allocated_blocks, Ordering::Relaxed);
        self.stored_bytes.store(stored_bytes, Ordering::Relaxed);
        self.frozen.blocks.store(0, Ordering::Relaxed);
        self.frozen.bytes.store(0, Ordering::Relaxed);
    }

    /// Allocated blocks and stored bytes as of the last checkpoint.
    pub fn settled(&self) -> (u64, u64) {
        (self.allocated_blocks.load(Ordering::Relaxed), self.stored_bytes.load(Ordering::Relaxed))
    }
}
