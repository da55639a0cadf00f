//! A machine with a pool, and its own way to the store of an image.

use std::sync::Arc;

use bytes::Bytes;
use engine::{FormatOptions, Pool, PoolEnv, PoolOptions, Properties};
use sim::Machine;
use surface::{BlockDevice, WriteOptions};

use crate::common::fake_origin::FakeOrigin;
use crate::common::machine_env;

pub const GROUP: usize = 128 << 10;
/// Ends within a block.
pub const IMAGE: usize = 20 * GROUP + 5000;
const ORIGIN_SEED: u64 = 11;

pub struct World {
    pub machine: Machine,
    pub origin: Arc<FakeOrigin>,
    pub pool: Option<Pool>,
}

impl World {
    /// A pool that has no volume yet, and an image of so many bytes.
    pub fn without_volumes(seed: u64, capacity_bytes: u64, image: usize, properties: Properties) -> Self {
        let machine = Machine::new(capacity_bytes, seed);
        let mut world = Self { machine, origin: FakeOrigin::new(ORIGIN_SEED, image), pool: None };
        let format = FormatOptions { capacity_bytes, extent_bytes: 256 << 10, properties };
        Pool::format(&world.env(), &format).unwrap();
        world.open();
        world
    }

    fn env(&self) -> PoolEnv {
        PoolEnv { origins: Some(self.origin.clone()), ..machine_env::env(&self.machine) }
    }

    pub fn open(&mut self) {
        let options = PoolOptions { memory_bytes: 8 << 20, workers: 0, ..PoolOptions::default() };
        self.pool = Some(Pool::open(self.env(), options).unwrap());
    }

    pub fn reopen(&mut self) {
        if let Some(pool) = self.pool.take() {
            pool.close().unwrap();
        }
        self.open();
    }

    pub fn pool(&self) -> &Pool {
        self.pool.as_ref().unwrap()
    }

    pub fn clone_image(&self, name: &str) {
        self.pool().clone_image(&self.origin.image, name, None, &Properties::new()).unwrap();
    }

    /// The image, and zeroes up to the end of a block.
    pub fn expected(&self) -> Vec<u8> {
        let mut expected = self.origin.content.clone();
        expected.resize(expected.len().next_multiple_of(4096), 0);
        expected
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        read(self.pool(), name)
    }

    pub fn check(&self) {
        self.pool().checkpoint().unwrap();
        let report = self.pool().check(false, &mut |_, _| ()).unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
    }
}

pub fn read(pool: &Pool, name: &str) -> Vec<u8> {
    pool.drop_caches();
    let volume = pool.volume(name).unwrap();
    let mut bytes = vec![0xaa; volume.size_bytes() as usize];
    for (index, part) in bytes.chunks_mut(300_000).enumerate() {
        volume.read(index as u64 * 300_000, part).unwrap();
    }
    bytes
}

pub fn write(pool: &Pool, name: &str, model: &mut [u8], offset: usize, data: &Bytes) {
    pool.volume(name).unwrap().write(offset as u64, data.clone(), WriteOptions::default()).unwrap();
    model[offset..offset + data.len()].copy_from_slice(data);
}
