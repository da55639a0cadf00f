//! The outside world behind small traits, so that the engine runs unchanged in the simulator:
//! [`Clock`], [`Entropy`], [`Disk`], [`MapStore`], and their real implementations. This is the only
//! crate of the storage stack that touches files, time and randomness; the lints that forbid those
//! calls elsewhere are lifted here.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod aligned;
mod allocator;
mod arena;
mod block_device;
mod clock;
mod cpus;
mod deletion;
mod descriptors;
mod disk;
mod durable_mark;
mod entropy;
mod file_disk;
mod file_space;
mod fjall_errors;
mod fjall_lists;
mod fjall_repair;
mod fjall_store;
mod journal_tail;
mod lock;
mod map_store;
mod origin;
mod place;
mod pool_env;
mod rapl;
mod read_ring;
mod standby;
pub mod testing;
mod uring;

pub use aligned::AlignedBuf;
pub use allocator::{Allocator, tune_allocator};
pub use arena::{Arena, ArenaBuf, HUGE_PAGE_BYTES, Pages};
pub use clock::{Clock, SystemClock, monotonic_ns, wall_time};
pub use cpus::{KeepOff, current_cpu, use_all_cpus};
pub use descriptors::descriptors_share;
pub use disk::{Disk, DiskLayer};
pub use entropy::{Entropy, SystemEntropy};
pub use file_disk::FileDisk;
pub use fjall_store::{FjallOptions, FjallStore};
pub use lock::{PoolLock, try_hold};
pub use map_store::{MapBatch, MapError, MapStore, ScanStep, StoreLayer};
pub use origin::{OriginError, Origins, RemoteGroup, RemoteImage, Wait};
pub use place::{FilePlace, HostPlace, PlacedFile};
pub use pool_env::PoolEnv;
pub use rapl::Rapl;
pub use read_ring::{EndedRead, ReadRing};
pub use standby::{Beside, FileStandby, STANDBY_DIR, Standby, StandbyMemory};
