//! Options for creating and for opening a pool.
#![warn(missing_docs, reason = "`engine` exports these types")]

use std::collections::BTreeMap;

pub use env::PoolEnv;

/// Properties as a user writes them: key to value.
pub type Properties = BTreeMap<String, String>;

/// Options for a new pool.
#[derive(Debug, Clone)]
pub struct FormatOptions {
    /// Bytes of the data file that the pool may use, superblock extent included.
    pub capacity_bytes: u64,
    /// Bytes of an extent: a power of two, 32 KiB to 16 MiB.
    pub extent_bytes: u32,
    /// Properties of the pool, inherited by its volumes.
    pub properties: Properties,
}

/// How dictionaries are trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Training {
    /// Bytes of samples of a volume for one training, if the memory budget allows: bounds its
    /// memory and its CPU time. They are sampled from four times as many written bytes.
    pub sample_bytes: usize,
    /// Bytes of small units that a volume writes between a training and the samples for the next
    /// one; twice as many after each training without success.
    pub pause_bytes: u64,
    /// When a dictionary is adopted.
    pub adoption: policy::Adoption,
}

impl Training {
    /// The default. 4 MiB: with half of it dictionaries gain a tenth less, with twice as much
    /// hardly more. 1 GiB: a training takes about two seconds of CPU time, a tenth of the time for
    /// compressing that much.
    pub const USUAL: Self = Self { sample_bytes: 4 << 20, pause_bytes: 1 << 30, adoption: policy::Adoption::USUAL };
}

impl Default for Training {
    fn default() -> Self {
        Self::USUAL
    }
}

/// Options for opening a pool.
#[derive(Debug, Clone)]
pub struct PoolOptions {
    /// Budget for the write buffer, the map's dirty records, the group cache and the decoded units,
    /// in bytes. The map store's own memory is part of it, but is set where the store is opened.
    pub memory_bytes: u64,
    /// Worker threads that compress, drain and decompress. With 0 the pool starts no thread at all:
    /// all work is done inside the caller's calls, in one order, as the simulator needs it.
    pub workers: usize,
    /// Bytes of log after which a checkpoint is taken: bounds the time of recovery.
    pub checkpoint_log_bytes: u64,
    /// Memory for changes stored by light checkpoints until they are merged into the map's records,
    /// in bytes; `None`: as much as for the changes between two checkpoints.
    pub settled_bytes_max: Option<usize>,
    /// Age in milliseconds at which a dirty block is drained even without memory pressure.
    pub age_limit_ms: u64,
    /// For `check --repair` only: repairs the map store first, and a log that is damaged where it
    /// was durable, as far as no data is lost by that. If data is lost, opening fails with an error
    /// whose source is a [`Loss`](crate::Loss). [`Pool::check`](crate::Pool::check) reports the
    /// repairs.
    pub repair: bool,
    /// With `repair`: opens the pool without damaged or cut off data, and remembers the loss.
    pub accept_loss: bool,
    /// How dictionaries are trained.
    pub training: Training,
    /// Upper bound of standby memory to create; 0: none. Memory left by an earlier process is taken
    /// over in any case.
    pub standby_bytes_max: usize,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self {
            memory_bytes: 512 << 20,
            workers: 2,
            checkpoint_log_bytes: 768 << 20,
            settled_bytes_max: None,
            age_limit_ms: 5000,
            repair: false,
            accept_loss: false,
            training: Training::default(),
            standby_bytes_max: 0,
        }
    }
}
