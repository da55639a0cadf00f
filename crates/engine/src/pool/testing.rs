//! Shared helpers of unit tests that need a whole pool.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use env::Disk;
use sim::Machine;
use store::base::options::{FormatOptions, PoolEnv, PoolOptions};

use crate::pool::Pool;

/// The simulated machine with another disk, which is usually a layer over the machine's own.
pub(crate) fn env_on(machine: &Machine, disk: Arc<dyn Disk>) -> PoolEnv {
    PoolEnv { disk, ..machine.env() }
}

/// A new pool with extents of 64 KiB on that machine, with `disk` instead of its own, and this
/// number of workers.
pub(crate) fn pool_on(machine: &Machine, disk: Arc<dyn Disk>, capacity_bytes: u64, workers: usize) -> Pool {
    pool_in(env_on(machine, disk), capacity_bytes, workers)
}

/// The same, in that environment.
pub(crate) fn pool_in(env: PoolEnv, capacity_bytes: u64, workers: usize) -> Pool {
    let options = FormatOptions { capacity_bytes, extent_bytes: 64 << 10, properties: Default::default() };
    Pool::format(&env, &options).unwrap();
    open_on(env, workers)
}

/// The pool on that machine, opened again.
pub(crate) fn reopen_on(machine: &Machine, disk: Arc<dyn Disk>) -> Pool {
    open_on(env_on(machine, disk), 0)
}

fn open_on(env: PoolEnv, workers: usize) -> Pool {
    Pool::open(env, PoolOptions { workers, ..PoolOptions::default() }).unwrap()
}
