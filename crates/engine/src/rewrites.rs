//! Which blocks were written lately: what has been rewritten once within a while will be rewritten soon, so it goes to the log's hot stream;
//! what comes for the first time in that while goes to the cold one, beside what the cleaner moves. Owns a table of fixed size; what it
//! says is a guess that nothing but the cost of cleaning depends on.
//!
//! The table has buckets of four slots in one word; a slot has 8 bits of the block's hash and the time of its last write, in sixteenths of the
//! window, modulo 256. A block that is not found replaces the oldest one of its bucket. So a guess costs one cache miss and no lock; a word
//! that two threads write at the same time keeps one of both writes.
//!
//! What the cleaner moves is divided in the same way: survivors that were written within the window go to the hot stream again.
//!
//! **The window** is one and a half times what the pool would hold uncompressed, counted in blocks written. In a model of a log that is 80 %
//! full and cleaned by `Extents::victims`, of blocks of 4 KiB, four fifths of the writes to a fifth of the blocks, moves apart cost 2.63 bytes
//! a byte, with users' writes divided 2.53, and with survivors divided as well 2.28; nobody can do with less than 2.00. At a self-similar skew
//! these are 2.45, 2.28 and 2.21; at uniform overwrites nothing changes. Half and one and a half times that window cost 2.40 and 2.38. (After
//! SepBIT, Wang et al., *Separating Data via Block Invalidation Time Inference*, FAST 2022: the age at which a block was overwritten
//! foretells how soon it will be again.) In pools that are larger than the memory for the table it is shorter, and finds only the hottest.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use units::{BLOCK_BYTES, BlockIndex, ObjectId};

/// Slots of a bucket: 16 bits each.
const SLOTS: usize = 4;
/// Units of time in a window.
const WINDOW_TICKS: u8 = 16;
/// Bytes of a slot.
const SLOT_BYTES: u64 = 2;
/// Part of the memory budget.
const MEMORY_DIVISOR: u64 = 64;
const BUCKETS_MIN: u64 = 16;
/// When time begins, so that slots that nobody has written are older than a window.
const BEGIN: u64 = 2 * WINDOW_TICKS as u64;

pub(crate) struct Rewrites {
    /// Made when it is first asked.
    buckets: OnceLock<Box<[AtomicU64]>>,
    count: u64,
    written: AtomicU64,
}

impl Rewrites {
    /// For a pool of so many bytes and a memory budget of so many.
    pub(crate) fn new(capacity_bytes: u64, memory_bytes: u64) -> Self {
        let window = capacity_bytes / BLOCK_BYTES as u64 * 3 / 2;
        let slots = window.min(memory_bytes / MEMORY_DIVISOR / SLOT_BYTES);
        let count = (slots / SLOTS as u64).max(BUCKETS_MIN);
        Self { buckets: OnceLock::new(), count, written: AtomicU64::new(0) }
    }

    /// Notes that a block is written, and tells whether it was within the window.
    pub(crate) fn note(&self, object: ObjectId, block: BlockIndex) -> bool {
        let buckets = self.buckets.get_or_init(|| (0..self.count).map(|_| AtomicU64::new(0)).collect());
        let now = self.tick(self.written.fetch_add(1, Ordering::Relaxed));
        let (index, tag) = self.place(object, block);
        let Some(bucket) = buckets.get(index) else { return false };
        let mut slots = slots_of(bucket);
        let age = |slot: u16| now.wrapping_sub((slot >> 8) as u8);
        let found = slots.iter().position(|slot| *slot as u8 == tag);
        let oldest = || (0..SLOTS).max_by_key(|i| age(slots[*i])).unwrap_or(0);
        let at = found.unwrap_or_else(oldest);
        let is_recent = found.is_some() && age(slots[at]) < WINDOW_TICKS;
        slots[at] = u16::from(now) << 8 | u16::from(tag);
        let word = slots.iter().rev().fold(0, |word, slot| word << 16 | u64::from(*slot));
        bucket.store(word, Ordering::Relaxed);
        is_recent
    }

    /// Whether a block was written within the window.
    pub(crate) fn is_recent(&self, object: ObjectId, block: BlockIndex) -> bool {
        let now = self.tick(self.written.load(Ordering::Relaxed));
        let (index, tag) = self.place(object, block);
        let Some(bucket) = self.buckets.get().and_then(|buckets| buckets.get(index)) else { return false };
        slots_of(bucket).iter().any(|slot| *slot as u8 == tag && now.wrapping_sub((slot >> 8) as u8) < WINDOW_TICKS)
    }

    /// The time when so many blocks have been written.
    fn tick(&self, written: u64) -> u8 {
        let tick_blocks = (self.count * SLOTS as u64 / u64::from(WINDOW_TICKS)).max(1);
        (BEGIN + written / tick_blocks) as u8
    }

    /// The bucket of a block, and what its slot is recognised by.
    fn place(&self, object: ObjectId, block: BlockIndex) -> (usize, u8) {
        let hash = mix(object.0.rotate_left(40) ^ block.0);
        (((u128::from(hash) * u128::from(self.count)) >> 64) as usize, hash as u8)
    }
}

fn slots_of(bucket: &AtomicU64) -> [u16; SLOTS] {
    let word = bucket.load(Ordering::Relaxed);
    std::array::from_fn(|i| (word >> (16 * i)) as u16)
}

/// The finalizer of splitmix64 (Steele et al., 2014): every bit of the result depends on all of `x`.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL_BYTES: u64 = 64 << 20;
    /// Blocks written within the window.
    const WINDOW: u64 = POOL_BYTES / 4096 * 3 / 2;

    fn share(rewrites: &Rewrites, object: u64, blocks: impl Iterator<Item = u64>) -> f64 {
        let (mut hits, mut all) = (0, 0);
        for block in blocks {
            hits += u64::from(rewrites.note(ObjectId(object), BlockIndex(block)));
            all += 1;
        }
        hits as f64 / f64::from(all)
    }

    #[test]
    fn what_comes_again_within_the_window_is_found_and_nothing_else() {
        let rewrites = Rewrites::new(POOL_BYTES, 1 << 30);
        let few = || 0..WINDOW / 4;
        assert!(share(&rewrites, 1, few()) < 0.03, "the first time");
        assert!(share(&rewrites, 1, few()) > 0.9, "again");
        let known = few().filter(|block| rewrites.is_recent(ObjectId(1), BlockIndex(*block))).count() as f64;
        assert!(known > 0.9 * few().count() as f64, "asked without a write");
        assert!(share(&rewrites, 2, few()) < 0.03, "another object");
        assert!(share(&rewrites, 1, 1 << 30..(1 << 30) + WINDOW) < 0.03, "other blocks, a window full of them");
        assert!(share(&rewrites, 1, few()) < 0.05, "too long ago");
    }

    #[test]
    fn the_table_is_bounded_by_memory_and_works_in_the_smallest_pools() {
        let rewrites = Rewrites::new(1 << 50, 64 << 20);
        assert_eq!(rewrites.count * SLOTS as u64 * SLOT_BYTES, 1 << 20);
        let rewrites = Rewrites::new(16 * (32 << 10), 1 << 10);
        assert_eq!(rewrites.count, BUCKETS_MIN);
        assert!(!rewrites.note(ObjectId(1), BlockIndex(5)));
        assert!(rewrites.note(ObjectId(1), BlockIndex(5)));
    }
}
