//! A vhost-user-blk server for anything that is a [`surface::DeviceSet`]: virtual machine monitors
//! (QEMU, cloud-hypervisor, User Mode Linux) attach volumes as virtio disks through shared memory.
//! Split rings, several queues, in-flight tracking; no packed ring, no migration of a running
//! guest.
//!
//! ```text
//! server ── directory                        sockets, one for each device
//!    │
//! session ── socket ── wire                  messages of the monitor
//!    │  ├── config                           features and configuration space
//!    │  └── memory, inflight                 memory that the monitor shares
//!    │
//!  queue ── ring ── chain ── request         a thread for each ring that runs
//!    └────── execute ── surface::Pool        requests on the device
//! ```
//!
//! A monitor is trusted as far as its socket's permissions reach: it can end its own disk, and by
//! shrinking the memory that it shares, the server. Its *guest* is not trusted: every address goes
//! through `vm_memory`, chains are bounded in descriptors and bytes, and a ring that makes no sense
//! is stopped ([`ring`], [`chain`]).
//!
//! The server may die at any time. A request stays marked in memory that the monitor keeps
//! ([`inflight`]) until its answer is in the ring, and the next server does the marked ones again.

mod caller;
pub mod chain;
pub mod config;
mod directory;
pub mod execute;
pub mod inflight;
pub mod memory;
mod queue;
pub mod request;
pub mod ring;
mod server;
mod session;
mod socket;
mod task;
pub mod wire;

pub use server::{Log, Server, ServerOptions};
