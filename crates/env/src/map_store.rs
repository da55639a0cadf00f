//! The key-value store that holds the map: ordered keys, atomic batches, durability on demand.

use std::ops::ControlFlow;

/// Result of one step of a scan: continue, or stop.
pub type ScanStep = ControlFlow<()>;

/// An error of the map store.
#[derive(Debug)]
pub struct MapError {
    /// The store's own checksums found damage (then repeating does not help).
    pub corrupt: bool,
    /// The file system that holds the store has no room.
    pub full: bool,
    /// Description of the failure.
    pub message: String,
}

impl std::fmt::Display for MapError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "map store: {}", self.message)
    }
}

impl std::error::Error for MapError {}

/// Changes applied together: for equal keys, later ones win.
#[derive(Debug, Default)]
pub struct MapBatch {
    /// Key, and the value to put or `None` to delete.
    pub changes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

impl MapBatch {
    /// Sets a key.
    pub fn put(&mut self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) {
        self.changes.push((key.into(), Some(value.into())));
    }
    /// Removes a key.
    pub fn delete(&mut self, key: impl Into<Vec<u8>>) {
        self.changes.push((key.into(), None));
    }
}

/// An ordered key-value store.
///
/// A committed batch is visible at once and as a whole. After a crash the store holds the state
/// after some committed batch: at least the last one before a [`persist`](Self::persist) that
/// returned, perhaps a later one, never a part of one.
pub trait MapStore: Send + Sync {
    /// The value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, MapError>;

    /// Visits the keys in `from..to` with their values, in ascending order, until `visit` breaks.
    fn scan(&self, from: &[u8], to: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> ScanStep) -> Result<(), MapError>;

    /// Applies a batch atomically. Not durable before [`persist`](Self::persist).
    fn commit(&self, batch: MapBatch) -> Result<(), MapError>;

    /// Makes all committed batches durable.
    fn persist(&self) -> Result<(), MapError>;

    /// Bytes that the store occupies on disk.
    fn occupied_bytes(&self) -> u64;

    /// Reads everything and verifies the store's own checksums.
    fn verify(&self) -> Result<(), MapError> {
        self.scan(&[], &[0xff; 32], &mut |_, _| ControlFlow::Continue(()))
    }
}

/// A store that wraps another one. By default, each call is forwarded.
pub trait StoreLayer: Send + Sync {
    /// The other one, which each call asks for.
    fn below(&self) -> &dyn MapStore;

    /// See [`MapStore::get`].
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, MapError> {
        self.below().get(key)
    }

    /// See [`MapStore::scan`].
    fn scan(&self, from: &[u8], to: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> ScanStep) -> Result<(), MapError> {
        self.below().scan(from, to, visit)
    }
}

impl<T: StoreLayer> MapStore for T {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, MapError> {
        StoreLayer::get(self, key)
    }
    fn scan(&self, from: &[u8], to: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> ScanStep) -> Result<(), MapError> {
        StoreLayer::scan(self, from, to, visit)
    }
    fn commit(&self, batch: MapBatch) -> Result<(), MapError> {
        self.below().commit(batch)
    }
    fn persist(&self) -> Result<(), MapError> {
        self.below().persist()
    }
    fn occupied_bytes(&self) -> u64 {
        self.below().occupied_bytes()
    }
    fn verify(&self) -> Result<(), MapError> {
        self.below().verify()
    }
}
