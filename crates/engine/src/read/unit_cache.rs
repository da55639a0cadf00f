//! Cache of units that small reads decoded. Bounded in bytes.
//!
//! While there is room every unit is kept: data that fits into memory is soon read from there. In a
//! full cache a unit is kept when it is read for the second time within a short while: random reads
//! over much data would only evict one another, and then decoding only the requested part of a unit
//! is cheaper than decoding all of it.
//!
//! The units of a large cache are in an arena of their own: see there. Units that do not fit there,
//! as it is divided in powers of two, are on the heap, and so are those of a small cache: a client
//! that reads much writes little, so that they use memory that the write buffer leaves. Units read
//! ahead come and go, so they use recycled buffers.
//!
//! Units read ahead of a stream are dropped when the stream has passed them: a client that reads
//! much in order seldom returns, and recently used memory is faster than memory that was not. Those
//! of small files stay after their first read as if it had read them from the disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use env::{Arena, ArenaBuf, Pages};
use quick_cache::sync::{Cache, DefaultLifecycle, GuardResult, PlaceholderGuard};
use quick_cache::{DefaultHashBuilder, Weighter};
use store::base::buffers::{BufferPool, PooledBuf};
use store::map::Piece;
use units::{GroupIndex, ObjectId};

/// A unit by its location and its identity: an extent that was reused holds other units under other
/// keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct UnitKey {
    location: u64,
    object: ObjectId,
    group: GroupIndex,
    checksum: u32,
}

impl UnitKey {
    pub(crate) fn new(piece: &Piece, group: GroupIndex) -> Self {
        let fragment = &piece.fragment;
        Self { location: fragment.location, object: piece.object, group, checksum: fragment.checksum }
    }
}

/// A decoded unit.
#[derive(Debug, Clone)]
pub(crate) struct Unit {
    pub bytes: Bytes,
    pub purpose: Purpose,
}

/// Why a unit is in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// It was requested, or is next to data that was.
    Kept,
    /// It was read ahead of a stream, which needs it once.
    Stream,
    /// It was read ahead as a part of a file, whose data ends at byte `end` of the object.
    File { end: u64 },
}

impl Purpose {
    /// Returns whether a unit was read ahead, and a read up to byte `to` of the object has had all
    /// of it, if it ends at byte `unit_end`.
    pub(crate) fn is_passed(self, to: u64, unit_end: u64) -> bool {
        match self {
            Self::Kept => false,
            Self::Stream => to >= unit_end,
            Self::File { end } => to >= end.min(unit_end),
        }
    }
}

impl Unit {
    fn weight(&self) -> u64 {
        self.bytes.len() as u64 + 128
    }
}

#[derive(Clone, Copy)]
struct UnitWeight;

impl Weighter<UnitKey, Unit> for UnitWeight {
    fn weight(&self, _: &UnitKey, unit: &Unit) -> u64 {
        unit.weight()
    }
}

type Guard<'a> = PlaceholderGuard<'a, UnitKey, Unit, UnitWeight, DefaultHashBuilder, DefaultLifecycle<UnitKey, Unit>>;

/// A unit that is being read: others wait for it. If it is dropped without being filled, they read
/// for themselves.
pub(crate) struct Claim<'a> {
    guard: Guard<'a>,
    taken: &'a AtomicU64,
}

impl Claim<'_> {
    /// Puts the unit into the cache.
    pub(crate) fn fill(self, unit: Unit) {
        if unit.purpose == Purpose::Kept {
            self.taken.fetch_add(unit.weight(), Ordering::Relaxed);
        }
        // Refused only if the cache was cleared in the meantime.
        let _ = self.guard.insert(unit);
    }
}

/// Room for a decoded unit.
pub(crate) enum UnitBuffer {
    Arena(ArenaBuf),
    Pooled(PooledBuf),
}

impl UnitBuffer {
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        match self {
            Self::Arena(buf) => buf,
            Self::Pooled(buf) => buf.bytes(),
        }
    }
}

impl AsRef<[u8]> for UnitBuffer {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Arena(buf) => buf,
            Self::Pooled(buf) => buf.as_ref(),
        }
    }
}

/// Recent first reads that are remembered: about a second's worth at full speed, in 128 KiB.
const RECENT: usize = 16384;

/// Caches of this size and more have an arena: a smaller one is soon in use entirely.
const ARENA_BYTES_MIN: usize = 256 << 20;
/// Files that are read ahead take at most this fraction of the cache, and so many bytes: more would
/// lie there for longer than a reader needs them. A cache that has only room for a few files at a
/// time reads none ahead.
const FILES_AHEAD_DIVISOR: u64 = 8;
const FILES_AHEAD_BYTES_MAX: u64 = 1 << 20;
const FILES_AHEAD_BYTES_MIN: u64 = 128 << 10;
/// Fraction of the cache's size that is added to its arena, for units that are being read, or still
/// in use after they left the cache.
const ARENA_SPARE_SHARE: usize = 8;

pub(crate) struct UnitCache {
    /// Fingerprints of units that were read and not kept, by hash.
    recent: Box<[AtomicU64]>,
    bytes: u64,
    /// Bytes added to stay since the cache was empty.
    taken: AtomicU64,
    cache: Cache<UnitKey, Unit, UnitWeight>,
    /// `None` in a small cache, and where there is no address space for it.
    arena: Option<Arc<Arena>>,
    buffers: Arc<BufferPool>,
}

impl UnitCache {
    pub(crate) fn new(bytes: usize, buffers: Arc<BufferPool>) -> Self {
        // Sized for 4 KiB units; larger ones are fewer.
        let recent = (0..RECENT).map(|_| AtomicU64::new(0)).collect();
        let cache = Cache::with_weighter((bytes / 8192).max(16), bytes as u64, UnitWeight);
        let reserve = || Arena::reserve(bytes + bytes / ARENA_SPARE_SHARE, Pages::Small).ok();
        let arena = (bytes >= ARENA_BYTES_MIN).then(reserve).flatten();
        Self { recent, bytes: bytes as u64, taken: AtomicU64::new(0), cache, arena, buffers }
    }
    fn in_arena(&self, len: usize) -> Option<ArenaBuf> {
        self.arena.as_ref()?.buffer(len)
    }
    /// Exactly `len` bytes with any content.
    pub(crate) fn buffer(&self, len: usize) -> UnitBuffer {
        let pooled = || UnitBuffer::Pooled(PooledBuf::new(&self.buffers, len));
        self.in_arena(len).map_or_else(pooled, UnitBuffer::Arena)
    }
    pub(crate) fn get(&self, key: &UnitKey) -> Option<Unit> {
        self.cache.get(key)
    }
    /// Returns the unit if it is cached, or as soon as its claimant has read it.
    pub(crate) fn wait_for(&self, key: &UnitKey, patience: Duration) -> Option<Unit> {
        match self.cache.get_value_or_guard(key, Some(patience)) {
            GuardResult::Value(unit) => Some(unit),
            GuardResult::Guard(_) | GuardResult::Timeout => None,
        }
    }
    /// Claims a unit that is neither cached nor claimed by another thread.
    pub(crate) fn claim(&self, key: &UnitKey) -> Option<Claim<'_>> {
        match self.cache.get_value_or_guard(key, Some(Duration::ZERO)) {
            GuardResult::Guard(guard) => Some(Claim { guard, taken: &self.taken }),
            GuardResult::Value(_) | GuardResult::Timeout => None,
        }
    }
    /// Whether the unit, which is not in the cache, should be kept now.
    pub(crate) fn is_wanted(&self, key: &UnitKey) -> bool {
        let mark = key.location ^ u64::from(key.checksum).rotate_left(32) | 1;
        let slot = mark.wrapping_mul(store::base::hash::MULTIPLIER) >> 50;
        let again = self.recent[slot as usize % RECENT].swap(mark, Ordering::Relaxed) == mark;
        again || self.taken.load(Ordering::Relaxed) < self.bytes
    }
    /// Returns whether unrequested units may be read.
    pub(crate) fn has_plenty_of_room(&self) -> bool {
        self.taken.load(Ordering::Relaxed) < self.bytes / 2
    }
    /// Keeps a copy of a unit.
    pub(crate) fn insert(&self, key: UnitKey, bytes: &[u8]) {
        // It stays, so that outside of the arena it takes no more than it is long.
        let copy = match self.in_arena(bytes.len()) {
            Some(mut copy) => {
                copy.copy_from_slice(bytes);
                Bytes::from_owner(copy)
            }
            None => Bytes::copy_from_slice(bytes),
        };
        let unit = Unit { bytes: copy, purpose: Purpose::Kept };
        self.taken.fetch_add(unit.weight(), Ordering::Relaxed);
        self.cache.insert(key, unit);
    }
    /// A unit that was read ahead has been read. Returns its bytes; 0 if it is gone already.
    pub(crate) fn passed(&self, key: UnitKey) -> u64 {
        let Some((_, unit)) = self.cache.remove(&key) else { return 0 };
        let is_roomy = self.taken.load(Ordering::Relaxed) < self.bytes;
        if is_roomy && matches!(unit.purpose, Purpose::File { .. }) {
            self.insert(key, &unit.bytes);
        }
        unit.bytes.len() as u64
    }
    /// Bytes that units of files may take before any of them is read; 0: none.
    pub(crate) fn files_ahead_max(&self) -> u64 {
        let bytes = (self.bytes / FILES_AHEAD_DIVISOR).min(FILES_AHEAD_BYTES_MAX);
        if bytes < FILES_AHEAD_BYTES_MIN { 0 } else { bytes }
    }
    pub(crate) fn clear(&self) {
        self.cache.clear();
        self.taken.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_a_claimed_unit_gets_it_or_is_told_to_read_it() {
        let cache = UnitCache::new(1 << 20, Arc::default());
        let key = UnitKey { location: 4096, object: ObjectId(1), group: GroupIndex(0), checksum: 7 };
        let patience = Duration::from_secs(60);
        assert!(cache.wait_for(&key, patience).is_none(), "nobody is reading it");
        let claim = cache.claim(&key).unwrap();
        assert!(cache.claim(&key).is_none());
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| cache.wait_for(&key, patience));
            claim.fill(Unit { bytes: Bytes::from_static(b"unit"), purpose: Purpose::Stream });
            assert_eq!(waiter.join().unwrap().unwrap().bytes, "unit");
        });
        cache.clear();
        let claim = cache.claim(&key).unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| cache.wait_for(&key, patience));
            drop(claim);
            assert!(waiter.join().unwrap().is_none());
        });
    }

    #[test]
    fn a_large_cache_has_an_arena_and_what_does_not_fit_lies_in_the_pool() {
        let is_in_arena = |buffer: &UnitBuffer| matches!(buffer, UnitBuffer::Arena(_));
        assert!(!is_in_arena(&UnitCache::new(ARENA_BYTES_MIN - 1, Arc::default()).buffer(4096)));
        let cache = UnitCache::new(ARENA_BYTES_MIN, Arc::default());
        let held: Vec<_> = (0..ARENA_BYTES_MIN / (128 << 10) * 2).map(|_| cache.buffer(128 << 10)).collect();
        assert!(is_in_arena(&held[0]) && !is_in_arena(&held[held.len() - 1]));
        assert!(held.iter().all(|buffer| buffer.as_ref().len() == 128 << 10));
        drop(held);
        assert!(is_in_arena(&cache.buffer(5000)), "all of it came back");
    }

    #[test]
    fn a_unit_of_a_file_stays_after_its_first_read_while_there_is_room_and_one_of_a_stream_does_not() {
        let cache = UnitCache::new(1 << 20, Arc::default());
        let key = |location| UnitKey { location, object: ObjectId(1), group: GroupIndex(0), checksum: 7 };
        let fill = |location, purpose| {
            cache.claim(&key(location)).unwrap().fill(Unit { bytes: Bytes::from_static(&[7; 4096]), purpose });
        };
        let end = Purpose::File { end: 3000 };
        assert!(!end.is_passed(2999, 4096) && end.is_passed(3000, 4096) && end.is_passed(2048, 2048));
        assert!(!Purpose::Stream.is_passed(3000, 4096) && !Purpose::Kept.is_passed(4096, 4096));
        fill(1 << 20, Purpose::Stream);
        assert_eq!((cache.passed(key(1 << 20)), cache.get(&key(1 << 20)).is_none()), (4096, true));
        fill(2 << 20, end);
        assert_eq!(cache.passed(key(2 << 20)), 4096);
        assert_eq!(cache.get(&key(2 << 20)).map(|unit| unit.purpose), Some(Purpose::Kept));
        while cache.taken.load(Ordering::Relaxed) < cache.bytes {
            cache.insert(key(3 << 20), &[7; 32 << 10]);
        }
        fill(4 << 20, end);
        assert_eq!((cache.passed(key(4 << 20)), cache.get(&key(4 << 20)).is_none()), (4096, true));
        assert_eq!(cache.passed(key(4 << 20)), 0, "counted once");
    }

    #[test]
    fn files_are_read_ahead_into_an_eighth_of_the_cache_and_at_most_a_mebibyte() {
        let max = |bytes| UnitCache::new(bytes, Arc::default()).files_ahead_max();
        assert_eq!([max(64 << 20), max(4 << 20), max(1 << 20), max((1 << 20) - 1)], [1 << 20, 512 << 10, 128 << 10, 0]);
    }

    #[test]
    fn a_unit_is_wanted_while_there_is_room_and_then_the_second_time() {
        let cache = UnitCache::new(1 << 20, Arc::default());
        let key = |location| UnitKey { location, object: ObjectId(1), group: GroupIndex(0), checksum: 7 };
        for i in 0..32 {
            assert!(cache.is_wanted(&key(i << 40)), "{i}");
            cache.insert(key(i << 40), &[7; 32 << 10]);
        }
        assert!(!cache.is_wanted(&key(4096)));
        assert!(cache.is_wanted(&key(4096)));
        let wanted = (1..1000).filter(|i| cache.is_wanted(&key(i << 20))).count();
        assert_eq!(wanted, 0, "units read once are not kept");
        cache.clear();
        assert!(cache.is_wanted(&key(12 << 20)));
    }
}
