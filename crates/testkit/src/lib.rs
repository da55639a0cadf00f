//! Test tools shared by several crates. Contains no assertions about the program: tests keep those,
//! and use this crate for their surroundings. A tool needed by a single crate stays with the tests
//! of that crate.
//!
//! - Bytes: [`Rng`], [`noise`] and [`mixed`], the same for a seed on every machine.
//! - Places: [`TempDir`], [`MountDir`] and [`LoopDevice`], which are removed when dropped, also
//!   when a test fails.
//! - Other programs: [`run`] and [`starting`].
//! - Time: [`until`] and [`PATIENCE`]. No test sleeps.
//! - Front ends: [`Memory`], a block device in memory that fails or waits on command, and
//!   [`MemorySet`], devices by name.
//! - Virtual machines: [`vhost`], a monitor and its guest's disk driver, which outlive servers.
//!
//! A tool panics when it is misused or when the machine lacks a requirement, and names the cause.
#![allow(clippy::panic, clippy::unwrap_used, clippy::disallowed_methods, reason = "test code, on a real system")]

mod command;
mod loop_device;
mod memory;
mod mixed;
mod mount_dir;
mod noise;
mod rng;
mod temp_dir;
mod until;
pub mod vhost;

pub use command::{run, starting};
pub use loop_device::LoopDevice;
pub use memory::{Gate, Memory, MemorySet, Op};
pub use mixed::mixed;
pub use mount_dir::{MountDir, require_fuse};
pub use noise::noise;
pub use rng::Rng;
pub use temp_dir::TempDir;
pub use until::{PATIENCE, until};
