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
        origins: None,
    }
}

/// The incompatible features of each copy of the superblock, as the disk has them.
pub fn features(machine: &Machine) -> Vec<u64> {
    let mut bytes = vec![0; format::SUPERBLOCK_BYTES];
    let read = |offset: &u64| {
        machine.disk.peek(*offset, &mut bytes);
        format::Superblock::decode(&bytes).map_or(0, |superblock| superblock.features_incompat)
    };
    format::SUPERBLOCK_OFFSETS.iter().map(read).collect()
}
