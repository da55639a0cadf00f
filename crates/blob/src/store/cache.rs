//! The interface of a cache for parts of packs outside of memory. Any thread may call it.

use bytes::Bytes;

/// A cache for parts of packs outside of memory, by name. Packs never change, so entries are never
/// invalidated. Data from the cache is verified as data from the store is.
pub trait StoredCache: Send + Sync + std::fmt::Debug {
    /// Returns the bytes stored under a name.
    fn get(&self, name: &str) -> Option<Bytes>;
    /// Stores bytes. A failure costs only another request later.
    fn put(&self, name: &str, bytes: &Bytes);
}
