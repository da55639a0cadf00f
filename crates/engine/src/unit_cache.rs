//! Decoded units that small reads left behind. Bounded in bytes.

use bytes::Bytes;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use units::{GroupIndex, ObjectId};

use crate::map::Piece;

/// A unit by its place and by what it is: an extent that was used again holds other units under other keys.
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

#[derive(Clone, Copy)]
struct UnitWeight;

impl Weighter<UnitKey, Bytes> for UnitWeight {
    fn weight(&self, _: &UnitKey, unit: &Bytes) -> u64 {
        unit.len() as u64 + 128
    }
}

pub(crate) struct UnitCache {
    cache: Cache<UnitKey, Bytes, UnitWeight>,
}

impl UnitCache {
    pub(crate) fn new(bytes: usize) -> Self {
        // Sized for 4 KiB units; larger ones are fewer.
        Self { cache: Cache::with_weighter((bytes / 8192).max(16), bytes as u64, UnitWeight) }
    }
    pub(crate) fn get(&self, key: &UnitKey) -> Option<Bytes> {
        self.cache.get(key)
    }
    pub(crate) fn insert(&self, key: UnitKey, unit: Bytes) {
        self.cache.insert(key, unit);
    }
    pub(crate) fn clear(&self) {
        self.cache.clear();
    }
}
