//! The harness that drives the engine on a simulated machine and compares it with the model:
//! [`World`] is one pool on one machine with its model, [`Op`] is an operation on it, [`campaign`]
//! runs many seeds. Both test binaries of the engine include it; parts that one of them does not
//! use are dead code, or unused imports, there.
#![allow(dead_code, unused_imports, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod anatomy;
pub mod apply;
pub mod campaign;
pub mod fake_origin;
pub mod leaks;
pub mod lens;
pub mod limits;
pub mod lz4_pool;
pub mod machine_env;
pub mod ops;
pub mod salvage;
pub mod together;
pub mod verify;
pub mod world;

use bytes::Bytes;

pub use apply::Ended;
pub use campaign::{Campaign, Tally};
pub use ops::Op;
pub use world::{Failure, Shape, World};

/// Bytes that no codec makes smaller.
pub fn noise(seed: u64, length: usize) -> Bytes {
    testkit::noise(seed, length).into()
}
