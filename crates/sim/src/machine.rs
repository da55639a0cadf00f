//! A whole machine: one power switch, a disk, a map store, a clock, a source of identifiers.

use std::sync::Arc;

use env::PoolEnv;

use crate::{Power, Rng, SimClock, SimDisk, SimEntropy, SimStandby, SimStore};

/// The parts of a simulated machine. They outlive the program under test, which gets handles.
#[derive(Debug)]
pub struct Machine {
    /// The power switch and the plan of faults.
    pub power: Arc<Power>,
    /// The disk.
    pub disk: Arc<SimDisk>,
    /// The map store.
    pub store: Arc<SimStore>,
    /// Memory that outlives the program.
    pub standby: Arc<SimStandby>,
    /// The clock.
    pub clock: Arc<SimClock>,
    /// The source of identifiers.
    pub entropy: Arc<SimEntropy>,
    rng: Rng,
}

impl Machine {
    /// A machine with an empty disk of this size.
    pub fn new(disk_bytes: u64, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let power = Arc::new(Power::default());
        Self {
            disk: Arc::new(SimDisk::new(Arc::clone(&power), disk_bytes, rng.next_u64())),
            store: Arc::new(SimStore::new(Arc::clone(&power))),
            standby: Arc::new(SimStandby::new(Arc::clone(&power))),
            clock: Arc::new(SimClock::default()),
            entropy: Arc::new(SimEntropy::new(rng.next_u64())),
            power,
            rng,
        }
    }

    /// Returns handles from now to the machine's next start.
    pub fn env(&self) -> PoolEnv {
        PoolEnv {
            disk: self.disk.handle(),
            store: self.store.handle(),
            clock: Arc::clone(&self.clock) as _,
            entropy: Arc::clone(&self.entropy) as _,
            standby: Some(self.standby.handle()),
            origins: None,
        }
    }

    /// Selects the outcome of later power losses, independent of the events before them.
    pub const fn reseed(&mut self, seed: u64) {
        self.rng = Rng::new(seed);
    }

    /// The power fails (if it has not yet) and returns: the disk and the store hold the surviving
    /// state. Handles from before are dead.
    pub fn power_cycle(&mut self) {
        self.power.cut();
        let _stopped = self.power.stopped();
        self.disk.settle(&mut self.rng);
        self.store.settle(&mut self.rng);
        self.standby.settle(&mut self.rng);
        self.power.start();
    }

    /// The program has died and is restarted; the power stayed on, so no write is lost, and none
    /// has become certain either. Handles from before are dead.
    pub fn restart(&mut self) {
        let _stopped = self.power.stopped();
        self.disk.restart(&mut self.rng);
        self.store.restart(&mut self.rng);
        self.power.start();
    }

    /// A copy of the disk and the store as they are now, on the same machine.
    pub fn copy(&self, seed: u64) -> Self {
        let copy = self.duplicate(seed);
        Self { standby: Arc::new(self.standby.of_copy(Arc::clone(&copy.power))), ..copy }
    }

    /// Another machine with a copy of the disk and the store as they are now.
    pub fn duplicate(&self, seed: u64) -> Self {
        let power = Arc::new(Power::default());
        Self {
            disk: Arc::new(self.disk.duplicate(Arc::clone(&power))),
            store: Arc::new(self.store.duplicate(Arc::clone(&power))),
            standby: Arc::new(SimStandby::new(Arc::clone(&power))),
            clock: Arc::new(SimClock::default()),
            entropy: Arc::new(SimEntropy::new(seed)),
            power,
            rng: Rng::new(seed),
        }
    }
}
