//! One pool on one simulated machine, with the model of its expected content.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::sync::Arc;

use engine::{FormatOptions, Pool, PoolEnv, PoolOptions, Training};
use policy::Adoption;
use sim::{Fault, Machine, Model, Rng};
use surface::{BlockDevice, ErrorKind};

use super::campaign::Tally;
use super::machine_env;
use super::ops::choose_properties;

/// Trains on next to nothing, immediately, and adopts any result.
const EAGER: Training = Training {
    sample_bytes: 16 << 10,
    pause_bytes: 32 << 10,
    adoption: Adoption { gain_permille_min: i64::MIN, payback_min: 0 },
};

/// How many shapes have extents of 1 MiB and more: filling them takes time.
const LARGE_EXTENTS_PERCENT: u64 = 3;

/// How large everything is. Small, so that thousands of crashes take minutes.
#[derive(Debug, Clone)]
pub struct Shape {
    pub capacity_bytes: u64,
    pub extent_bytes: u32,
    pub memory_bytes: u64,
    pub checkpoint_log_bytes: u64,
    /// Memory for changes of light checkpoints: the less, the sooner they are folded.
    pub settled_bytes_max: Option<usize>,
    pub age_limit_ms: u64,
    pub volumes_max: usize,
    pub volume_bytes_max: u64,
    pub request_bytes_max: u64,
    /// Whether snapshots and clones are made.
    pub history: bool,
    /// Whether units are small and dictionaries are trained on any amount of data.
    pub dictionaries: bool,
    /// Whether there is standby memory: the death of the program loses nothing then that was
    /// acknowledged.
    pub standby: bool,
    /// Whether some of the volumes are shares.
    pub shares: bool,
    /// Whether there are folders.
    pub folders: bool,
    /// Whether some volumes, folders and pools have the property `copies`.
    pub copies: bool,
}

impl Shape {
    /// A shape for crash tests: few extents, so that they are soon used again, and volumes of a
    /// fraction of the pool or of more than all of it.
    pub fn small(rng: &mut Rng) -> Self {
        if rng.percent(LARGE_EXTENTS_PERCENT) {
            return Self::with_large_extents(rng);
        }
        let extent_bytes = *rng.pick(&[32 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10]);
        let extents = 16 + if rng.coin() { rng.below(12) } else { rng.below(100) };
        Self {
            capacity_bytes: (extents * u64::from(extent_bytes)).min(16 << 20) + rng.below(4) * 4096,
            extent_bytes,
            memory_bytes: *rng.pick(&[256 << 10, 1 << 20, 4 << 20]),
            checkpoint_log_bytes: *rng.pick(&[32 << 10, 128 << 10, 512 << 10, 4 << 20]),
            settled_bytes_max: *rng.pick(&[None, Some(1 << 10), Some(3 << 10), Some(12 << 10)]),
            age_limit_ms: *rng.pick(&[100, 5000]),
            volumes_max: rng.between(1, 4) as usize,
            // The largest are far larger than the pool: ranges of them are discarded and cut off
            // without the write buffer.
            volume_bytes_max: *rng.pick(&[64 << 10, 256 << 10, 256 << 10, 600 << 10, 1200 << 10, 24 << 20]),
            request_bytes_max: *rng.pick(&[96 << 10, 400 << 10]),
            history: true,
            dictionaries: false,
            standby: false,
            shares: false,
            folders: false,
            copies: rng.coin(),
        }
    }

    /// The same with extents as they are by default, or larger: few of them, and requests that fill
    /// them.
    fn with_large_extents(rng: &mut Rng) -> Self {
        let extent_bytes = *rng.pick(&[1 << 20, 1 << 20, 1 << 20, 2 << 20]);
        Self {
            capacity_bytes: (16 + rng.below(4)) * u64::from(extent_bytes) + rng.below(4) * 4096,
            extent_bytes,
            memory_bytes: *rng.pick(&[1 << 20, 4 << 20, 16 << 20]),
            checkpoint_log_bytes: *rng.pick(&[512 << 10, 4 << 20]),
            settled_bytes_max: *rng.pick(&[None, Some(1 << 10), Some(12 << 10)]),
            age_limit_ms: *rng.pick(&[100, 5000]),
            volumes_max: rng.between(2, 4) as usize,
            volume_bytes_max: *rng.pick(&[1200 << 10, 6 << 20]),
            request_bytes_max: 3 << 20,
            history: true,
            dictionaries: false,
            standby: false,
            shares: false,
            folders: false,
            copies: rng.coin(),
        }
    }

    /// A shape in which dictionaries come and go.
    pub fn with_dictionaries(rng: &mut Rng) -> Self {
        Self { dictionaries: true, ..Self::small(rng) }
    }

    /// A shape with standby memory.
    pub fn with_standby(rng: &mut Rng) -> Self {
        Self { standby: true, ..Self::small(rng) }
    }

    /// A shape in which some of the volumes are shares.
    pub fn with_shares(rng: &mut Rng) -> Self {
        Self { shares: true, ..Self::small(rng) }
    }

    /// A shape in which volumes lie in folders.
    pub fn with_folders(rng: &mut Rng) -> Self {
        Self { folders: true, shares: rng.percent(40), ..Self::small(rng) }
    }

    /// A shape for long runs without crashes.
    pub fn large(rng: &mut Rng) -> Self {
        let small = Self::small(rng);
        Self {
            capacity_bytes: small.capacity_bytes.max(16 << 20),
            memory_bytes: *rng.pick(&[1 << 20, 8 << 20]),
            volumes_max: 4,
            volume_bytes_max: 3 << 20,
            request_bytes_max: small.request_bytes_max.max(512 << 10),
            ..small
        }
    }
}

/// A test has failed; the text says everything that is known.
#[derive(Debug, Clone)]
pub struct Failure(pub String);

impl From<String> for Failure {
    fn from(text: String) -> Self {
        Self(text)
    }
}

/// Operations kept for the report of a failure.
const HISTORY_OPS: usize = 30;

/// A pool, its machine, its model.
pub struct World {
    pub machine: Machine,
    pub model: Model,
    pub shape: Shape,
    pub rng: Rng,
    pub pool: Option<Pool>,
    pub devices: BTreeMap<String, Arc<dyn BlockDevice>>,
    /// A fault other than a crash has happened since the pool was opened: errors are expected until
    /// it is reopened.
    pub disturbed: Option<String>,
    /// Crashes so far.
    pub crashes: u64,
    /// Answers of "full" so far.
    pub fulls: u64,
    pub op_number: u64,
    pub history: VecDeque<String>,
    /// The pool's size has been changed: a crash may have torn one copy of the superblock, which
    /// `check` reports and repairs.
    pub resized: bool,
    /// Extents that are left in use while the pool is made smaller.
    pub mark: Option<u64>,
    /// Records that were replayed from standby memory.
    pub replayed: u64,
    /// Most copies of a block that a property has asked for, in addition to the block itself.
    pub copies_most: u64,
}

impl World {
    /// A machine with a new pool on it, opened.
    pub fn new(seed: u64, shape: impl FnOnce(&mut Rng) -> Shape) -> Result<Self, Failure> {
        let mut world = Self::unformatted(seed, shape);
        let options = world.format_options();
        Pool::format(&world.env(), &options).map_err(|e| Failure(format!("format: {e}")))?;
        world.model = Model::new(options.properties);
        world.open()?;
        Ok(world)
    }

    /// A machine with an empty disk.
    pub fn unformatted(seed: u64, shape: impl FnOnce(&mut Rng) -> Shape) -> Self {
        let mut rng = Rng::new(seed);
        let shape = shape(&mut rng);
        let disk_bytes = shape.capacity_bytes.next_multiple_of(4096);
        Self {
            machine: Machine::new(disk_bytes, rng.next_u64()),
            model: Model::new(BTreeMap::new()),
            shape,
            rng,
            pool: None,
            devices: BTreeMap::new(),
            disturbed: None,
            crashes: 0,
            fulls: 0,
            op_number: 0,
            history: VecDeque::new(),
            resized: false,
            mark: None,
            replayed: 0,
            copies_most: 0,
        }
    }

    /// Options to make the pool with.
    pub fn format_options(&mut self) -> FormatOptions {
        let mut properties = choose_properties(&mut self.rng);
        if self.shape.dictionaries {
            let unit = *self.rng.pick(&["4K", "8K", "16K", "4K-128K"]);
            for (key, value) in [("compression", "auto"), ("candidates", "lz4,zstd-1,zstd-3"), ("unit", unit)] {
                properties.insert(key.to_owned(), value.to_owned());
            }
        }
        if !self.shape.copies {
            properties.remove("copies");
        }
        self.note_copies(properties.get("copies").map(String::as_str));
        FormatOptions { capacity_bytes: self.shape.capacity_bytes, extent_bytes: self.shape.extent_bytes, properties }
    }

    /// The machine as the engine sees it from now to the next start.
    pub fn env(&self) -> PoolEnv {
        machine_env::env(&self.machine)
    }

    pub fn pool_options(&self) -> PoolOptions {
        PoolOptions {
            memory_bytes: self.shape.memory_bytes,
            workers: 0,
            checkpoint_log_bytes: self.shape.checkpoint_log_bytes,
            settled_bytes_max: self.shape.settled_bytes_max,
            age_limit_ms: self.shape.age_limit_ms,
            training: if self.shape.dictionaries { EAGER } else { Training::default() },
            standby_bytes_max: if self.shape.standby { usize::MAX } else { 0 },
            ..PoolOptions::default()
        }
    }

    pub fn pool(&self) -> &Pool {
        self.pool.as_ref().expect("the pool is open")
    }

    /// Opens the pool, which must succeed.
    pub fn open(&mut self) -> Result<(), Failure> {
        let pool = Pool::open(self.env(), self.pool_options()).map_err(|e| self.fail(format!("open: {e}")))?;
        self.pool = Some(pool);
        self.disturbed = None;
        self.mark = None;
        Ok(())
    }

    /// Drops the pool as a dying process does: nothing is flushed.
    pub fn abandon(&mut self) {
        self.devices.clear();
        self.pool = None;
    }

    /// The device of a volume of the model.
    pub fn device(&mut self, name: &str) -> Result<Arc<dyn BlockDevice>, Failure> {
        if let Some(device) = self.devices.get(name) {
            return Ok(Arc::clone(device));
        }
        let device = super::lens::device(self.pool(), name).map_err(|e| self.fail(format!("volume {name}: {e}")))?;
        self.devices.insert(name.to_owned(), Arc::clone(&device));
        Ok(device)
    }

    /// The pool is closed in good order and opened again.
    pub fn reopen(&mut self) -> Result<(), Failure> {
        self.devices.clear();
        let pool = self.pool.take().expect("the pool is open");
        match pool.close() {
            Ok(()) => self.model.flushed_all(),
            // A pool without room for buffered data, or one that a fault has hit, may report it.
            Err(e) if e.kind() == ErrorKind::Full || self.disturbed.is_some() => {}
            Err(e) => return Err(self.fail(format!("close: {e}"))),
        }
        self.machine.restart();
        self.model.crashed();
        self.open()?;
        self.verify()
    }

    /// The process dies and is restarted; the power stays on.
    pub fn restart(&mut self) -> Result<(), Failure> {
        self.abandon();
        self.machine.power.clear_plan();
        self.machine.restart();
        // Of a disk that failed, less may be there than the program knew.
        if !self.shape.standby || self.disturbed.is_some() {
            self.model.crashed();
        }
        self.open()?;
        self.verify()
    }

    /// The program dies (if it has not yet) and is restarted, and perhaps dies again while it opens
    /// the pool; the machine stays up. Everything that was acknowledged is there.
    pub fn die(&mut self) -> Result<(), Failure> {
        let mut again = 3;
        loop {
            self.machine.power.cut();
            self.abandon();
            self.machine.power.clear_plan();
            self.machine.restart();
            self.crashes += 1;
            if !self.shape.standby {
                self.model.crashed();
            }
            if again > 0 && self.rng.percent(25) {
                again -= 1;
                self.plan_crash(60);
            }
            let opened = Pool::open(self.env(), self.pool_options());
            if self.machine.power.is_lost() {
                drop(opened);
                continue;
            }
            self.machine.power.clear_plan();
            self.pool = Some(opened.map_err(|e| self.fail(format!("open after the program died: {e}")))?);
            self.disturbed = None;
            self.mark = None;
            break;
        }
        let status = self.pool().status().standby;
        if !status.notes.is_empty() {
            return Err(self.fail(format!("standby memory after the program died: {:?}", status.notes)));
        }
        self.replayed += status.replayed;
        self.verify()
    }

    /// The power fails (if it has not yet) and comes back, perhaps fails again during recovery;
    /// then everything is verified.
    pub fn crash(&mut self) -> Result<(), Failure> {
        let mut again = 3;
        loop {
            self.machine.power.cut();
            self.abandon();
            self.machine.power.clear_plan();
            self.machine.power_cycle();
            self.crashes += 1;
            self.model.crashed();
            if again > 0 && self.rng.percent(25) {
                again -= 1;
                self.plan_crash(12);
            }
            let opened = Pool::open(self.env(), self.pool_options());
            if self.machine.power.is_lost() {
                drop(opened);
                continue;
            }
            self.machine.power.clear_plan();
            self.pool = Some(opened.map_err(|e| self.fail(format!("open after a crash: {e}")))?);
            self.disturbed = None;
            self.mark = None;
            break;
        }
        self.verify()?;
        self.model.settled();
        Ok(())
    }

    /// The power fails at one of the next `within` points.
    pub fn plan_crash(&mut self, within: u64) {
        let point = self.machine.power.next_point() + self.rng.below(within);
        self.machine.power.plan(point, Fault::Crash);
    }

    /// Result of a run, without faults.
    pub fn tally(&self) -> Tally {
        Tally { ops: self.op_number, crashes: self.crashes, fulls: self.fulls, faults: 0 }
    }

    /// A failure with everything that helps to understand it.
    pub fn fail(&self, what: impl std::fmt::Display) -> Failure {
        let mut text =
            format!("{what}\n  at op {}, after {} crashes; {:?}\n", self.op_number, self.crashes, self.shape);
        if let Some(fault) = &self.disturbed {
            let _ = writeln!(text, "  fault in force: {fault}");
        }
        text.push_str("  last operations:\n");
        for line in &self.history {
            let _ = writeln!(text, "    {line}");
        }
        text.push_str("  last points:");
        for (i, point) in self.machine.power.trace().iter().enumerate() {
            text.push_str(if i % 6 == 0 { "\n    " } else { ", " });
            let _ = write!(text, "{point}");
        }
        Failure(text)
    }

    /// Writes a line into the story.
    pub fn note(&mut self, line: String) {
        if self.history.len() == HISTORY_OPS {
            self.history.pop_front();
        }
        self.history.push_back(line);
    }
}

impl World {
    /// A copy of the machine and the model as they are now, without an open pool: to try something
    /// on.
    pub fn fork(&self, seed: u64) -> Self {
        Self {
            machine: self.machine.duplicate(seed),
            model: self.model.clone(),
            shape: self.shape.clone(),
            rng: Rng::new(seed),
            pool: None,
            devices: BTreeMap::new(),
            disturbed: None,
            crashes: 0,
            fulls: 0,
            op_number: self.op_number,
            resized: self.resized,
            mark: None,
            replayed: 0,
            copies_most: self.copies_most,
            history: self.history.clone(),
        }
    }
}
