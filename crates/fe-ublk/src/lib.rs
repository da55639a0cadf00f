//! Volumes as block devices of this machine, `/dev/ublkbN`, through the kernel's ublk driver: the
//! kernel hands each request of a device over, and takes the answer, by commands of io_uring.
//!
//! ```text
//! server ── device                            a set of devices; one of them, from start to end
//!    │         ├── control ── wire            commands to the driver
//!    │         ├── takeover ── mark           devices that an earlier server has left
//!    │         └── geometry                   size, blocks and limits
//!    │
//!  queue ── memory ── taken ── request        a thread for each queue of a device
//!    └────── task ── execute ── surface::Pool requests on the volume
//! ```
//!
//! The server may die at any time. The kernel keeps its devices: requests wait there, and those
//! that were taken and not answered come again to the next server, which finds the devices by the
//! mark that they carry ([`mark`]). A request may so be done twice, which changes nothing: its
//! issuer has not been told of the first time.
//!
//! Numbers of the kernel are checked before they are used, as if any program had sent them.

mod control;
mod device;
mod execute;
mod geometry;
mod mark;
mod memory;
mod queue;
mod request;
mod server;
mod taken;
mod takeover;
mod task;
mod wire;

pub use mark::Owner;
pub use server::{Log, Server, ServerOptions, Spec, check};
