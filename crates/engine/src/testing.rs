//! What unit tests of the engine share.

use std::sync::Arc;

use env::Disk;
use sim::Machine;

use crate::options::PoolEnv;

/// The simulated machine with another disk, which is usually a layer over the machine's own.
pub(crate) fn env_on(machine: &Machine, disk: Arc<dyn Disk>) -> PoolEnv {
    PoolEnv {
        disk,
        store: machine.store.handle(),
        clock: Arc::clone(&machine.clock) as _,
        entropy: Arc::clone(&machine.entropy) as _,
    }
}
