//! The simulated machine as the engine sees it.

use std::sync::Arc;

use engine::PoolEnv;
use sim::Machine;

/// From now to the machine's next start.
pub fn env(machine: &Machine) -> PoolEnv {
    PoolEnv {
        disk: machine.disk.handle(),
        store: machine.store.handle(),
        clock: Arc::clone(&machine.clock) as _,
        entropy: Arc::clone(&machine.entropy) as _,
        standby: Some(machine.standby.handle()),
    }
}
