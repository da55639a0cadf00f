//! Estimates which blocks are written often: a block that is rewritten repeatedly within a while
//! will be rewritten soon, so it goes to the log's hot stream; everything else goes to the cold
//! one, together with data moved by the cleaner. Owns a table of fixed size; a wrong guess affects
//! only the cost of cleaning.
//!
//! The table has buckets of four slots in one word; a slot has 7 bits of the block's hash, the time
//! of its last write, in sixteenths of the window, modulo 128, and a *heat* from 0 to 3: one more
//! for each write within a window of the last one, two less for a later one. A block is hot at a
//! heat of 3, for one window after its last write. A block that is not found replaces the oldest
//! one of its bucket. So a guess costs one cache miss and no lock; a word that two threads write at
//! the same time keeps one of both writes.
//!
//! Data moved by the cleaner is divided in the same way: hot survivors go to the hot stream again.
//!
//! **The window** is one and a half times the live data of a pool that is four fifths full, counted
//! in bytes of the log, so that its length does not depend on compression. (In pools too large for
//! the table's memory, blocks drop out of it sooner, and only the hottest are found.)
//!
//! **Savings.** In a model of a log that is 80 % full and cleaned by `Extents::victims`, of blocks
//! of 4 KiB, four fifths of the writes to a fifth of the blocks, these are bytes written for each
//! of the users':
//!
//! | | four fifths to a fifth | self-similar |
//! | --- | --: | --: |
//! | moves apart from users' writes | 2.63 | 2.45 |
//! | both divided by whether the last interval was within a window of 1.0 (1.5) volumes | 2.23 (2.27) | 2.18 |
//! | the sum of the last two intervals within 2.0 volumes | 2.12 | 2.11 |
//! | the sum of the last three intervals within 3.0 volumes | 2.09 | |
//! | heat of 2 or 3, window of 1.5 volumes | 2.12 | 2.11 |
//! | heat of 3, window of 1.5 volumes | 2.09 | 2.06 |
//! | perfect knowledge of which blocks are hot | 2.06 | |
//!
//! One interval is not enough: of cold blocks, written once in four volumes, a fifth is written
//! within one by chance. With perfect knowledge, and spare space divided in the best way, no
//! cleaner can do with less than 2.00 (`bench`'s `theory`); the victims' formula, which knows
//! nothing of kinds, reaches 2.06. Idle space costs much: 0.07 for each twentieth of the spare
//! space (`clean::pacing` keeps about that much); headers and padding cost 0.03. So measured
//! figures are higher: 2.34 in a pool of 6 GiB, 2.31 in one of 2 GiB, where one interval reaches
//! 2.57. More streams for two kinds of blocks would gain nothing. At uniform overwrites nothing
//! changes. (After SepBIT, Wang et al., *Separating Data via Block Invalidation Time Inference*,
//! FAST 2022: the age at which a block was overwritten predicts how soon it will be again.)

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use units::{BLOCK_BYTES, BlockIndex, BlockMask, GroupIndex, ObjectId};

/// Slots of a bucket: 16 bits each.
const SLOTS: usize = 4;
/// Units of time in a window.
const WINDOW_TICKS: u8 = 16;
/// The window, as parts of the pool's capacity: one and a half times four fifths.
const WINDOW_PARTS: (u64, u64) = (6, 5);
/// Slots, as parts of the blocks that the pool would hold uncompressed.
const SLOT_PARTS: (u64, u64) = (3, 2);
/// Bytes of a slot.
const SLOT_BYTES: u64 = 2;
/// Part of the memory budget.
const MEMORY_DIVISOR: u64 = 64;
const BUCKETS_MIN: u64 = 16;
/// Bits of a slot: the heat lies lowest, above it the tag, above that the time.
const HEAT_BITS: u32 = 2;
const TAG_BITS: u32 = 7;
const TIME_BITS: u32 = 16 - TAG_BITS - HEAT_BITS;
const HEAT_MAX: u8 = (1 << HEAT_BITS) - 1;
const HEAT_HOT: u8 = HEAT_MAX;
/// Heat lost by a write after the window.
const HEAT_LOST: u8 = 2;
/// Start of time, so that unwritten slots are older than a window.
const BEGIN: u64 = 2 * WINDOW_TICKS as u64;

/// State of one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Slot {
    tag: u8,
    time: u8,
    heat: u8,
}

impl Slot {
    fn of(bits: u16) -> Self {
        let part = |shift: u32, width: u32| (bits >> shift & ((1 << width) - 1)) as u8;
        Self { heat: part(0, HEAT_BITS), tag: part(HEAT_BITS, TAG_BITS), time: part(HEAT_BITS + TAG_BITS, TIME_BITS) }
    }

    fn bits(self) -> u16 {
        u16::from(self.time) << (HEAT_BITS + TAG_BITS) | u16::from(self.tag) << HEAT_BITS | u16::from(self.heat)
    }

    /// Units of time since its last write.
    fn age(self, now: u8) -> u8 {
        now.wrapping_sub(self.time) & ((1 << TIME_BITS) - 1)
    }

    fn is_hot(self, now: u8) -> bool {
        self.heat >= HEAT_HOT && self.age(now) < WINDOW_TICKS
    }

    /// The slot after a write now.
    fn written(self, now: u8) -> Self {
        let is_soon = self.age(now) < WINDOW_TICKS;
        let heat = if is_soon { (self.heat + 1).min(HEAT_MAX) } else { self.heat.saturating_sub(HEAT_LOST) };
        Self { time: now, heat, ..self }
    }
}

pub(crate) struct Rewrites {
    /// Allocated on first use.
    buckets: OnceLock<Box<[AtomicU64]>>,
    count: u64,
    tick_bytes: u64,
    written_bytes: AtomicU64,
}

impl Rewrites {
    /// Makes a table for a pool of this capacity and this memory budget.
    pub(crate) fn new(capacity_bytes: u64, memory_bytes: u64) -> Self {
        let slots = capacity_bytes / BLOCK_BYTES as u64 * SLOT_PARTS.0 / SLOT_PARTS.1;
        let slots = slots.min(memory_bytes / MEMORY_DIVISOR / SLOT_BYTES);
        let count = (slots / SLOTS as u64).max(BUCKETS_MIN);
        let tick_bytes = (capacity_bytes / WINDOW_PARTS.1 * WINDOW_PARTS.0 / u64::from(WINDOW_TICKS)).max(1);
        Self { buckets: OnceLock::new(), count, tick_bytes, written_bytes: AtomicU64::new(0) }
    }

    /// Notes a write of a block that takes so many bytes of the log, and returns whether it is hot.
    pub(crate) fn note(&self, object: ObjectId, block: BlockIndex, stored_bytes: u64) -> bool {
        let buckets = self.buckets.get_or_init(|| (0..self.count).map(|_| AtomicU64::new(0)).collect());
        let now = self.tick(self.written_bytes.fetch_add(stored_bytes, Ordering::Relaxed));
        let (index, tag) = self.place(object, block);
        let Some(bucket) = buckets.get(index) else { return false };
        let mut slots = slots_of(bucket);
        let found = slots.iter().position(|slot| slot.tag == tag);
        let oldest = || (0..SLOTS).max_by_key(|i| slots[*i].age(now)).unwrap_or(0);
        let at = found.unwrap_or_else(oldest);
        slots[at] = if found.is_some() { slots[at].written(now) } else { Slot { tag, time: now, heat: 0 } };
        let word = slots.iter().rev().fold(0, |word, slot| word << 16 | u64::from(slot.bits()));
        bucket.store(word, Ordering::Relaxed);
        slots[at].is_hot(now)
    }

    /// Whether a block is hot.
    fn is_hot(&self, object: ObjectId, block: BlockIndex) -> bool {
        let now = self.tick(self.written_bytes.load(Ordering::Relaxed));
        let (index, tag) = self.place(object, block);
        let Some(bucket) = self.buckets.get().and_then(|buckets| buckets.get(index)) else { return false };
        slots_of(bucket).iter().any(|slot| slot.tag == tag && slot.is_hot(now))
    }

    /// Returns whether most of these blocks of a group are hot.
    pub(crate) fn are_hot(&self, object: ObjectId, group: GroupIndex, blocks: BlockMask) -> bool {
        let start = group.first_block().0;
        let runs = blocks.runs().flat_map(|(first, count)| u64::from(first)..u64::from(first + count));
        let hot = runs.filter(|block| self.is_hot(object, BlockIndex(start + block))).count();
        2 * hot >= blocks.count() as usize
    }

    /// Returns the time after so many written bytes, modulo that of a slot.
    fn tick(&self, written_bytes: u64) -> u8 {
        ((BEGIN + written_bytes / self.tick_bytes) & ((1 << TIME_BITS) - 1)) as u8
    }

    /// Returns the bucket of a block, and the tag that identifies its slot.
    fn place(&self, object: ObjectId, block: BlockIndex) -> (usize, u8) {
        let hash = mix(object.0.rotate_left(40) ^ block.0);
        let tag = (hash & ((1 << TAG_BITS) - 1)) as u8;
        (((u128::from(hash) * u128::from(self.count)) >> 64) as usize, tag)
    }
}

fn slots_of(bucket: &AtomicU64) -> [Slot; SLOTS] {
    let word = bucket.load(Ordering::Relaxed);
    std::array::from_fn(|i| Slot::of((word >> (16 * i)) as u16))
}

/// The finalizer of splitmix64 (Steele et al., 2014): every bit of the result depends on all of
/// `x`.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL_BYTES: u64 = 64 << 20;
    /// Bytes of a block in the log: data of ratio 2.
    const STORED: u64 = 2048;
    /// Blocks that are written within a window.
    const WINDOW: u64 = POOL_BYTES * 6 / 5 / STORED;

    /// The share of the blocks that are hot when they are written.
    fn share(rewrites: &Rewrites, object: u64, blocks: impl Iterator<Item = u64>) -> f64 {
        let (mut hits, mut all) = (0, 0);
        for block in blocks {
            hits += u64::from(rewrites.note(ObjectId(object), BlockIndex(block), STORED));
            all += 1;
        }
        hits as f64 / f64::from(all)
    }

    #[test]
    fn what_comes_again_and_again_within_the_window_is_hot_and_nothing_else() {
        let rewrites = Rewrites::new(POOL_BYTES, 1 << 30);
        let few = || 0..WINDOW / 8;
        assert_eq!(share(&rewrites, 1, few()), 0.0, "the first time");
        assert!(share(&rewrites, 1, few()) < 0.03, "the second time may be chance");
        assert!(share(&rewrites, 1, few()) < 0.03, "and the third");
        assert!(share(&rewrites, 1, few()) > 0.9, "again");
        let known = few().filter(|block| rewrites.is_hot(ObjectId(1), BlockIndex(*block))).count() as f64;
        assert!(known > 0.9 * few().count() as f64, "asked without a write");
        assert!(share(&rewrites, 2, few()) < 0.05, "another object");
        assert!(share(&rewrites, 1, 1 << 30..(1 << 30) + WINDOW) < 0.05, "other blocks, a window full of them");
        let known = few().filter(|block| rewrites.is_hot(ObjectId(1), BlockIndex(*block))).count() as f64;
        assert!(known < 0.05 * few().count() as f64, "too long ago");
        assert!(share(&rewrites, 1, few()) < 0.05, "too long ago");
    }

    #[test]
    fn what_is_written_late_cools_down() {
        let first = Slot { tag: 5, time: 120, heat: 0 };
        assert_eq!(Slot::of(first.bits()), first);
        let hot = first.written(125).written(126).written(127);
        assert_eq!((hot.heat, hot.is_hot(127), hot.is_hot(14), hot.is_hot(15)), (3, true, true, false), "time wraps");
        let late = hot.written(20);
        assert_eq!((late.heat, late.is_hot(20)), (1, false));
        assert!(!late.written(21).is_hot(21) && late.written(21).written(22).is_hot(22));
        assert_eq!(late.written(50).heat, 0);
    }

    #[test]
    fn the_window_is_as_long_whatever_data_compress_to() {
        let rewrites = Rewrites::new(POOL_BYTES, 1 << 30);
        for stored in [4096, 1024] {
            let block = BlockIndex(stored);
            for _ in 0..4 {
                rewrites.note(ObjectId(1), block, stored);
            }
            let rest = |bytes: u64| {
                for other in 0..bytes / stored {
                    rewrites.note(ObjectId(2), BlockIndex(other % 1000), stored);
                }
            };
            rest(POOL_BYTES);
            assert!(rewrites.is_hot(ObjectId(1), block), "{stored}");
            rest(POOL_BYTES / 4);
            assert!(!rewrites.is_hot(ObjectId(1), block), "{stored}");
        }
    }

    #[test]
    fn the_table_is_bounded_by_memory_and_works_in_the_smallest_pools() {
        let rewrites = Rewrites::new(1 << 50, 64 << 20);
        assert_eq!(rewrites.count * SLOTS as u64 * SLOT_BYTES, 1 << 20);
        let rewrites = Rewrites::new(16 * (32 << 10), 1 << 10);
        assert_eq!(rewrites.count, BUCKETS_MIN);
        let note = || rewrites.note(ObjectId(1), BlockIndex(5), 4096);
        assert_eq!([note(), note(), note(), note()], [false, false, false, true]);
    }
}
