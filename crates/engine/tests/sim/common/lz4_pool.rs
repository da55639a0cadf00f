//! A pool on a simulated machine, written with lz4, for tests that make data smaller afterwards.

use bytes::Bytes;
use engine::{FormatOptions, Pool, PoolEnv, PoolOptions, Properties};
use sim::{ContentKind, Machine, Rng, fill_content};
use surface::{BlockDevice, WriteOptions};

use super::machine_env;

pub const EXTENT: u64 = 256 << 10;

pub struct Lz4Pool {
    pub machine: Machine,
    pub pool: Option<Pool>,
}

impl Lz4Pool {
    pub fn new(capacity: u64) -> Self {
        let machine = Machine::new(capacity, 5);
        let mut made = Self { machine, pool: None };
        let properties = Properties::from([("compression".to_owned(), "lz4".to_owned())]);
        let format = FormatOptions { capacity_bytes: capacity, extent_bytes: EXTENT as u32, properties };
        Pool::format(&made.env(), &format).unwrap();
        made.open();
        made
    }

    pub fn env(&self) -> PoolEnv {
        machine_env::env(&self.machine)
    }

    pub fn open(&mut self) {
        let options = PoolOptions { memory_bytes: 16 << 20, workers: 0, ..PoolOptions::default() };
        self.pool = Some(Pool::open(self.env(), options).unwrap());
    }

    pub fn pool(&self) -> &Pool {
        self.pool.as_ref().unwrap()
    }

    pub fn fill(&self, name: &str, kind: ContentKind, bytes: usize) -> Vec<u8> {
        let mut rng = Rng::new(bytes as u64);
        let mut data = vec![0; bytes];
        for block in data.chunks_mut(4096) {
            fill_content(&mut rng, kind, block);
        }
        self.pool().create_volume(name, bytes as u64, &Properties::new()).unwrap();
        let volume = self.pool().volume(name).unwrap();
        for (index, chunk) in data.chunks(128 << 10).enumerate() {
            let at = (index * (128 << 10)) as u64;
            volume.write(at, Bytes::copy_from_slice(chunk), WriteOptions::default()).unwrap();
        }
        self.pool().checkpoint().unwrap();
        data
    }

    pub fn content(&self, name: &str, bytes: usize) -> Vec<u8> {
        self.pool().drop_caches();
        let mut data = vec![0; bytes];
        self.pool().volume(name).unwrap().read(0, &mut data).unwrap();
        data
    }

    pub fn check(&self) {
        let report = self.pool().check(false, &mut |_, _| ()).unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
    }
}
