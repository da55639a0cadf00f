//! Storage as seen by front ends: block devices, a set of them by name, and errors classified by
//! their remedy. Depends neither on the engine nor on the transport.

mod client;
mod device;
mod error;
mod held;
mod pool;
mod space;
mod traffic;

pub use client::{Client, NamedClient, process_name, program_file};
pub use device::{
    Advice, Allocation, BlockDevice, DeviceId, DeviceInfo, DeviceSet, FolderInfo, Hint, PendingRead, Run, WriteOptions,
    ZeroOptions, read_each,
};
pub use error::{Error, ErrorKind, Result};
pub use held::{Attempt, Held};
pub use pool::{CHANGES, Job, Lane, Pool, READS};
pub use space::{Capacity, LOG_FILE, Lineage, OWN_FILES_END, ObjectSpace, SEAL, Taken};
pub use traffic::{BUCKETS, Began, OpCounts, OpKind, Traffic, bucket_end_ns};
