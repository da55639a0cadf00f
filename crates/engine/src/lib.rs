//! The storage engine: log, map, write buffer, reader, checkpoints, recovery.

mod options;
mod status;

pub use options::{FormatOptions, PoolEnv, PoolOptions, Properties};
pub use status::{CheckReport, PoolStatus, Problem, Property, PropertySource, VolumeStatus};
