//! A simulated world that fails on command, for tests: a [`SimDisk`] and a [`SimStore`] with a
//! common power switch ([`Power`]), a clock and a source of entropy that repeat from a seed, and a
//! byte-exact [`Model`] of the required content of volumes before and after a crash. Knows nothing
//! of the engine: it only uses the traits of `env`, so that the same simulator tests a toy log (see
//! `tests/toy_log.rs`) and the real one.
//!
//! This crate is a test tool: it panics when it is misused or when the code under test breaks the
//! contract of a trait (an unaligned write, a write past the end), because that is a bug and not a
//! fault of the medium.
#![allow(clippy::panic, clippy::unwrap_used, clippy::expect_used)]

mod block;
mod clock;
mod content;
mod disk;
mod entropy;
mod history;
mod image;
mod length;
mod machine;
mod model;
mod power;
mod ring;
mod space;
mod standby;
mod store;
mod table;

pub use block::{Content, digest};
pub use clock::SimClock;
pub use content::{ContentKind, fill_content};
pub use disk::{DiskHandle, SimDisk};
pub use entropy::SimEntropy;
pub use machine::Machine;
pub use model::{Mismatch, Model, Outcome};
pub use power::{Fault, Generation, Point, PointKind, Power, is_power_loss};
pub use ring::SimRing;
pub use space::SimSpace;
pub use standby::{MissingSpace, SimStandby, StandbyHandle};
pub use store::{SimStore, StoreHandle};
pub use table::{Observed, TableOp};
pub use testkit::Rng;
