//! The storage below a tree under test: an in-memory object space, which guarantees no more than
//! the trait, or a share of a pool on a simulated machine.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use engine::{Files, FormatOptions, Pool, PoolEnv, PoolOptions, Properties};
use parking_lot::Mutex;
use sim::{Fault, Machine, Rng, SimSpace};
use surface::{BlockDevice, ErrorKind, ObjectSpace, WriteOptions};

/// A space that loses power on command.
pub trait Ground: Sized {
    /// Ways in which each loss of power can be played out.
    const OUTCOMES: usize;

    /// Whether it has so little space that a commit may come before any operation.
    fn is_tight(&self) -> bool;

    fn new(seed: u64) -> Self;

    fn space(&self) -> Arc<dyn ObjectSpace>;

    /// Causes a failure after this many more accesses: usually a power loss.
    fn fail_after(&self, accesses: u64, rng: &mut Rng);

    /// Whether a failure has happened.
    fn is_off(&self) -> bool;

    /// The storage when power returns.
    fn after_power_loss(&self, rng: &mut Rng) -> Self;

    /// Files of which it has any record.
    fn files(&self) -> BTreeSet<u64>;

    /// Content of a snapshot.
    fn snapshot(&self) -> Arc<dyn ObjectSpace>;

    /// Limits the space from now on.
    fn limit(&self, rng: &mut Rng);

    fn is_limited(&self) -> bool;

    fn lift_limit(&self);
}

impl Ground for Arc<SimSpace> {
    const OUTCOMES: usize = 5;

    fn is_tight(&self) -> bool {
        SimSpace::is_limited(self)
    }

    fn new(_: u64) -> Self {
        SimSpace::new()
    }

    fn space(&self) -> Arc<dyn ObjectSpace> {
        self.clone()
    }

    fn fail_after(&self, accesses: u64, _: &mut Rng) {
        SimSpace::fail_after(self, accesses);
    }

    fn is_off(&self) -> bool {
        SimSpace::is_off(self)
    }

    fn after_power_loss(&self, rng: &mut Rng) -> Self {
        SimSpace::after_power_loss(self, rng)
    }

    fn files(&self) -> BTreeSet<u64> {
        SimSpace::files(self)
    }

    fn snapshot(&self) -> Arc<dyn ObjectSpace> {
        SimSpace::snapshot(self)
    }

    /// Sometimes less than reported for the tree's own files.
    fn limit(&self, rng: &mut Rng) {
        let own = *rng.pick(&[0, 20, 60, 400]);
        let own_writes = if rng.coin() { rng.below(30) } else { u64::MAX };
        SimSpace::limit(self, rng.below(40), own, own_writes);
    }

    fn is_limited(&self) -> bool {
        SimSpace::is_limited(self)
    }

    fn lift_limit(&self) {
        SimSpace::lift_limit(self);
    }
}

/// A share of a pool.
pub struct OnPool {
    /// Taken by the power loss.
    machine: Mutex<Option<Machine>>,
    pub pool: Pool,
    pub files: Arc<Files>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    is_off: bool,
    /// Bytes of a volume that fills the pool.
    filled: u64,
    is_limited: bool,
}

const CAPACITY_BYTES: u64 = 8 << 20;
const FILLER_BYTES: u64 = 16 << 20;

pub fn env(machine: &Machine) -> PoolEnv {
    PoolEnv { standby: None, ..machine.env() }
}

/// The files of which a share of a pool has any record.
pub fn files_of(files: &Files) -> BTreeSet<u64> {
    let mut found = BTreeSet::new();
    let all = files.each_file(|file| {
        found.insert(file);
        Ok(true)
    });
    all.unwrap();
    found
}

impl OnPool {
    fn open(machine: Machine) -> Self {
        // Without threads: everything happens in the calls of the tree, in one order.
        let options = PoolOptions {
            workers: 0,
            memory_bytes: 1 << 20,
            checkpoint_log_bytes: 512 << 10,
            age_limit_ms: 100,
            ..PoolOptions::default()
        };
        let pool = Pool::open(env(&machine), options).unwrap();
        let volume = pool.volume("share").unwrap();
        let files = Arc::new(Files::new(volume.clone(), volume).unwrap());
        Self { machine: Mutex::new(Some(machine)), pool, files, state: Mutex::default() }
    }

    fn fill(&self, rng: &mut Rng, bytes: u64) {
        let mut state = self.state.lock();
        state.is_limited = true;
        let volume = self.pool.volume("filler").unwrap();
        let end = state.filled + bytes;
        while state.filled < end.min(FILLER_BYTES) {
            let mut block = vec![0; 32 << 10];
            rng.fill(&mut block);
            match volume.write(state.filled, Bytes::from(block), WriteOptions::default()) {
                Ok(()) => state.filled += 32 << 10,
                Err(error) if error.kind() == ErrorKind::Full => return,
                // The power has failed in the meantime.
                Err(_) => return,
            }
        }
    }
}

impl Ground for OnPool {
    const OUTCOMES: usize = 1;

    fn is_tight(&self) -> bool {
        true
    }

    fn new(seed: u64) -> Self {
        let machine = Machine::new(CAPACITY_BYTES, seed);
        let format =
            FormatOptions { capacity_bytes: CAPACITY_BYTES, extent_bytes: 64 << 10, properties: Properties::new() };
        let pool = Pool::format(&env(&machine), &format)
            .and_then(|_| Pool::open(env(&machine), PoolOptions { workers: 0, ..PoolOptions::default() }));
        let pool = pool.unwrap();
        pool.create_share("share", &Properties::new()).unwrap();
        pool.create_volume("filler", FILLER_BYTES, &Properties::new()).unwrap();
        pool.close().unwrap();
        Self::open(machine)
    }

    fn space(&self) -> Arc<dyn ObjectSpace> {
        self.files.clone()
    }

    /// Power goes; in every eighth case a write to the disk is cut short instead, and the pool with
    /// it.
    fn fail_after(&self, accesses: u64, rng: &mut Rng) {
        let machine = self.machine.lock();
        let power = &machine.as_ref().unwrap().power;
        let fault = if rng.below(8) == 0 { Fault::ShortWrite } else { Fault::Crash };
        power.plan(power.next_point() + accesses, fault);
    }

    fn is_off(&self) -> bool {
        let mut state = self.state.lock();
        let machine = self.machine.lock();
        let power = &machine.as_ref().unwrap().power;
        state.is_off |= power.is_lost() || !power.take_fired().is_empty();
        state.is_off
    }

    fn after_power_loss(&self, rng: &mut Rng) -> Self {
        let mut machine = self.machine.lock().take().unwrap();
        machine.power.cut();
        machine.power.clear_plan();
        machine.reseed(rng.next_u64());
        machine.power_cycle();
        machine.power.take_fired();
        let again = Self::open(machine);
        // The data that filled the pool is no longer needed.
        again.pool.volume("filler").unwrap().discard(0, FILLER_BYTES).unwrap();
        again
    }

    fn files(&self) -> BTreeSet<u64> {
        files_of(&self.files)
    }

    fn snapshot(&self) -> Arc<dyn ObjectSpace> {
        // All of them are removed at once.
        let name = format!("s{}", self.pool.snapshots(Some("share")).map_or(0, |all| all.len()));
        let taken = self.pool.snapshot("share", &name).and_then(|_| self.pool.volume(&format!("share@{name}")));
        match taken {
            Ok(volume) => Arc::new(share::Scratch::over(Arc::new(Files::new(volume.clone(), volume).unwrap()))),
            Err(error) => {
                assert!(self.is_off(), "HARNESS: no snapshot can be taken: {error}");
                // Not examined.
                SimSpace::new()
            }
        }
    }

    fn limit(&self, rng: &mut Rng) {
        let bytes = *rng.pick(&[2 << 20, 4 << 20, FILLER_BYTES]);
        self.fill(rng, bytes);
    }

    fn is_limited(&self) -> bool {
        self.state.lock().is_limited
    }

    fn lift_limit(&self) {
        // As a user does who finds the pool full.
        for snapshot in self.pool.snapshots(Some("share")).unwrap() {
            self.pool.destroy(&format!("share@{}", snapshot.name), false).unwrap();
        }
        self.pool.volume("filler").unwrap().discard(0, FILLER_BYTES).unwrap();
        self.pool.checkpoint().unwrap();
        let mut state = self.state.lock();
        (state.filled, state.is_limited) = (0, false);
    }
}
