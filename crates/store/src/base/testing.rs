//! Shared helpers of unit tests of the parts of a pool.

use std::sync::Arc;

use env::Disk;
use sim::Machine;

use crate::base::options::{PoolEnv, PoolOptions};
use crate::base::vitals::Vitals;

/// The simulated machine with another disk, which is usually a layer over the machine's own.
pub fn env_on(machine: &Machine, disk: Arc<dyn Disk>) -> PoolEnv {
    PoolEnv {
        disk,
        store: machine.store.handle(),
        clock: Arc::clone(&machine.clock) as _,
        entropy: Arc::clone(&machine.entropy) as _,
        standby: Some(machine.standby.handle()),
        origins: None,
    }
}

/// The shared state of a pool on that machine that has no other parts.
pub(crate) fn vitals_on(machine: &Machine) -> Arc<Vitals> {
    Arc::new(Vitals::new(env_on(machine, machine.disk.handle()), PoolOptions::default()))
}
