//! The simulated machine as the engine sees it.

use engine::PoolEnv;
use sim::Machine;

/// From now to the machine's next start.
pub fn env(machine: &Machine) -> PoolEnv {
    machine.env()
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
