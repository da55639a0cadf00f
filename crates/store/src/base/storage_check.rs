//! A wrapper of the storage for debug builds, and so all tests: it checks that a thread that calls
//! the storage holds no lock that all others need (`ranked::expect_storage`). In other builds it is
//! the plain storage.

use crate::base::options::PoolEnv;

/// The environment in which a pool is opened.
pub fn checked(env: PoolEnv) -> PoolEnv {
    #[cfg(debug_assertions)]
    let env = PoolEnv {
        disk: std::sync::Arc::new(checks::CheckedDisk(env.disk)),
        store: std::sync::Arc::new(checks::CheckedStore(env.store)),
        ..env
    };
    env
}

#[cfg(debug_assertions)]
mod checks {
    use std::io::Result;
    use std::sync::Arc;

    use env::{AlignedBuf, Disk, DiskLayer, MapStore, ReadRing, StoreLayer};

    use crate::base::ranked::expect_storage;

    pub(super) struct CheckedDisk(pub Arc<dyn Disk>);
    pub(super) struct CheckedStore(pub Arc<dyn MapStore>);

    impl DiskLayer for CheckedDisk {
        fn below(&self) -> &dyn Disk {
            &*self.0
        }
        fn read_at(&self, offset: u64, buf: &mut AlignedBuf, len: usize) -> Result<()> {
            expect_storage();
            self.0.read_at(offset, buf, len)
        }
        fn read_ring(&self) -> Option<Box<dyn ReadRing + '_>> {
            self.0.read_ring()
        }
        fn write_at(&self, offset: u64, buf: &AlignedBuf, len: usize) -> Result<()> {
            expect_storage();
            self.0.write_at(offset, buf, len)
        }
        fn sync(&self) -> Result<()> {
            expect_storage();
            self.0.sync()
        }
        fn reserve(&self, offset: u64, len: u64) -> Result<()> {
            expect_storage();
            self.0.reserve(offset, len)
        }
        fn punch(&self, offset: u64, len: u64) -> Result<()> {
            expect_storage();
            self.0.punch(offset, len)
        }
    }

    impl StoreLayer for CheckedStore {
        fn below(&self) -> &dyn MapStore {
            expect_storage();
            &*self.0
        }
    }
}
