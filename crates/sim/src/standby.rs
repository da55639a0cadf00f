//! Memory that survives the program but not the machine. A program that dies between two stores
//! leaves those done so far; a copy in which it dies has happened in part. After a power loss the
//! memory is gone, or remains with another boot's number, like a file on a disk.
//!
//! New memory becomes visible when it is filled; each access to its location is a point at which
//! the program can die. Files next to the memory stand for journals of shares: the harness creates
//! them, and an opening removes them or skips them.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use env::{Standby, StandbyMemory};
use parking_lot::Mutex;

use crate::Rng;
use crate::power::{Fault, Generation, PointKind, Power, Verdict, power_lost};

/// Standby memory, shared by its location and its users.
#[derive(Debug, Default)]
struct File {
    bytes: Mutex<Vec<u8>>,
    missing: Mutex<MissingSpace>,
}

/// Space that a file has lost. Its bytes read as zeroes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MissingSpace {
    /// None, or all of it has been allocated again.
    #[default]
    Nothing,
    /// A hole.
    Part,
    /// The end: the file is shorter.
    End,
}

impl File {
    fn of(bytes: Vec<u8>) -> Arc<Self> {
        Arc::new(Self { bytes: Mutex::new(bytes), missing: Mutex::default() })
    }

    fn fault(&self) -> Option<String> {
        let why = match *self.missing.lock() {
            MissingSpace::Nothing => return None,
            MissingSpace::Part => "a part of it has been removed",
            MissingSpace::End => "it has been cut off",
        };
        Some(format!("simulated standby memory: {why}"))
    }
}

#[derive(Debug, Default)]
struct State {
    boot: u64,
    /// By pool and copy.
    files: BTreeMap<([u8; 16], u8), Arc<File>>,
    /// How many files were set aside.
    aside: usize,
    /// Number of files next to the memory, by pool and copy.
    beside: BTreeMap<([u8; 16], u8), usize>,
    /// Copies of a pool so far, the original not counted.
    copies: u8,
    /// Most bytes of a file.
    bytes_max: Option<usize>,
}

/// The location of standby memory on a simulated machine; the engine gets a [`StandbyHandle`] to
/// it.
#[derive(Debug)]
pub struct SimStandby {
    state: Arc<Mutex<State>>,
    power: Arc<Power>,
    /// Which copy of the pool is on this disk.
    copy: u8,
}

/// The location as seen by one generation of its user.
#[derive(Debug)]
pub struct StandbyHandle {
    standby: Arc<SimStandby>,
    generation: Generation,
}

#[derive(Debug)]
struct Memory {
    file: Arc<File>,
    /// The address of the file, which no other memory has at the same time.
    identity: u64,
    power: Arc<Power>,
    generation: Generation,
}

impl SimStandby {
    /// A place without any.
    pub fn new(power: Arc<Power>) -> Self {
        Self { state: Arc::default(), power, copy: 0 }
    }

    /// The same place, as another copy of the pool on the same machine sees it.
    pub fn of_copy(&self, power: Arc<Power>) -> Self {
        let mut state = self.state.lock();
        state.copies += 1;
        Self { state: Arc::clone(&self.state), power, copy: state.copies }
    }

    /// How many files were set aside.
    pub fn aside(&self) -> usize {
        self.state.lock().aside
    }

    /// Number of files next to the memory of this copy of the pool.
    pub fn beside(&self, pool: &[u8; 16]) -> usize {
        self.state.lock().beside.get(&(*pool, self.copy)).copied().unwrap_or(0)
    }

    /// Puts `files` files next to the memory of this copy of the pool, replacing the existing ones.
    pub fn put_beside(&self, pool: &[u8; 16], files: usize) {
        self.state.lock().beside.insert((*pool, self.copy), files);
    }

    /// Forgets the memory of this copy of the pool, as if its directory were emptied.
    pub fn empty(&self) {
        let copy = self.copy;
        self.state.lock().files.retain(|(_, of), _| *of != copy);
    }

    /// A handle for a machine that starts now.
    pub fn handle(self: &Arc<Self>) -> Arc<StandbyHandle> {
        Arc::new(StandbyHandle { standby: Arc::clone(self), generation: self.power.generation() })
    }

    /// Bounds the bytes of new files.
    pub fn limit(&self, bytes: usize) {
        self.state.lock().bytes_max = Some(bytes);
    }

    /// The bytes stored for a pool.
    pub fn peek(&self, pool: &[u8; 16]) -> Option<Vec<u8>> {
        self.state.lock().files.get(&(*pool, self.copy)).map(|file| file.bytes.lock().clone())
    }

    /// The pools for which something is stored.
    pub fn pools(&self) -> Vec<[u8; 16]> {
        self.state.lock().files.keys().filter(|(_, copy)| *copy == self.copy).map(|(pool, _)| *pool).collect()
    }

    /// Stores bytes, bypassing all faults.
    pub fn poke(&self, pool: &[u8; 16], bytes: Vec<u8>) {
        self.state.lock().files.insert((*pool, self.copy), File::of(bytes));
    }

    /// Zeroes a range of the memory while it is in use, bypassing all faults.
    pub fn zero(&self, pool: &[u8; 16], range: Range<usize>, missing: MissingSpace) {
        if let Some(file) = self.state.lock().files.get(&(*pool, self.copy)) {
            file.bytes.lock()[range].fill(0);
            *file.missing.lock() = missing;
        }
    }

    /// The machine restarts: with probability one half the memory remains, as if it were on a disk.
    pub(crate) fn settle(&self, rng: &mut Rng) {
        let mut state = self.state.lock();
        state.boot += 1;
        if rng.coin() {
            state.files.clear();
            state.beside.clear();
        }
    }
}

impl Standby for StandbyHandle {
    fn place(&self, _: &[u8; 16]) -> String {
        "simulated standby memory".to_owned()
    }

    fn copy(&self) -> [u8; 32] {
        [self.standby.copy; 32]
    }

    fn pool_path(&self) -> Vec<u8> {
        b"/simulated/pool".to_vec()
    }

    fn others(&self, pool: &[u8; 16]) -> Vec<String> {
        let state = self.standby.state.lock();
        let others = state.files.keys().filter(|(of, copy)| of == pool && *copy != self.standby.copy);
        others.map(|(_, copy)| format!("simulated standby memory of copy {copy}")).collect()
    }

    fn set_aside(&self, pool: &[u8; 16]) -> io::Result<String> {
        let _running = self.standby.power.running();
        self.check()?;
        let mut state = self.standby.state.lock();
        let found = state.files.remove(&(*pool, self.standby.copy)).ok_or(io::ErrorKind::NotFound)?;
        state.aside += usize::from(!found.bytes.lock().is_empty());
        Ok("simulated standby memory that was set aside".to_owned())
    }

    fn boot(&self) -> io::Result<[u8; 16]> {
        let boot = self.standby.state.lock().boot.to_le_bytes();
        Ok(std::array::from_fn(|i| boot[i % 8]))
    }

    fn left(&self, pool: &[u8; 16]) -> io::Result<Option<Arc<dyn StandbyMemory>>> {
        self.check()?;
        let found = self.standby.state.lock().files.get(&(*pool, self.standby.copy)).cloned();
        match found.as_ref().and_then(|file| file.fault()) {
            Some(fault) => Err(io::Error::new(io::ErrorKind::InvalidData, fault)),
            None => Ok(found.map(|file| self.memory(file))),
        }
    }

    fn make(
        &self,
        pool: &[u8; 16],
        bytes: usize,
        fill: &dyn Fn(&dyn StandbyMemory),
    ) -> io::Result<Arc<dyn StandbyMemory>> {
        self.check()?;
        if self.standby.state.lock().bytes_max.is_some_and(|most| bytes > most) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let made = File::of(vec![0; bytes]);
        let memory = self.memory(Arc::clone(&made));
        fill(&*memory);
        let _running = self.standby.power.running();
        self.check()?;
        let mut state = self.standby.state.lock();
        if state.files.contains_key(&(*pool, self.standby.copy)) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        state.files.insert((*pool, self.standby.copy), made);
        Ok(memory)
    }

    fn fault(&self, pool: &[u8; 16], memory: &dyn StandbyMemory) -> Option<String> {
        let state = self.standby.state.lock();
        match state.files.get(&(*pool, self.standby.copy)) {
            None => Some("simulated standby memory: it has been removed".to_owned()),
            Some(found) if identity(found) != memory.identity().0 => {
                Some("simulated standby memory: another file has taken its place".to_owned())
            }
            Some(found) => found.fault(),
        }
    }

    fn remove(&self, pool: &[u8; 16]) -> io::Result<()> {
        let _running = self.standby.power.running();
        self.check()?;
        self.standby.state.lock().files.remove(&(*pool, self.standby.copy));
        Ok(())
    }

    fn has_beside(&self, pool: &[u8; 16]) -> bool {
        self.standby.beside(pool) > 0
    }

    fn pass_over_beside(&self, pool: &[u8; 16], is_void: bool) -> Vec<String> {
        let _running = self.standby.power.running();
        if self.check().is_err() {
            return Vec::new();
        }
        let passed_over = self.standby.state.lock().beside.remove(&(*pool, self.standby.copy)).unwrap_or(0);
        let kept = if is_void { 0 } else { passed_over };
        (0..kept).map(|number| format!("simulated file {number} beside standby memory")).collect()
    }
}

fn identity(file: &Arc<File>) -> u64 {
    Arc::as_ptr(file) as u64
}

impl StandbyHandle {
    fn check(&self) -> io::Result<()> {
        match self.standby.power.point(self.generation, PointKind::Keep, 0, 0) {
            Verdict::Dead | Verdict::Fail(Fault::Crash) => Err(power_lost()),
            Verdict::Proceed | Verdict::Fail(_) => Ok(()),
        }
    }

    fn memory(&self, file: Arc<File>) -> Arc<dyn StandbyMemory> {
        let identity = identity(&file);
        Arc::new(Memory { file, identity, power: Arc::clone(&self.standby.power), generation: self.generation })
    }
}

impl StandbyMemory for Memory {
    fn len(&self) -> usize {
        self.file.bytes.lock().len()
    }

    fn identity(&self) -> (u64, u64) {
        (self.identity, 0)
    }

    fn is_whole(&self) -> bool {
        *self.file.missing.lock() != MissingSpace::End
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        let _running = self.power.running();
        let len = match self.power.point(self.generation, PointKind::Keep, at as u64, bytes.len() as u64) {
            Verdict::Dead => return,
            // It dies in the middle.
            Verdict::Fail(Fault::Crash) => bytes.len() / 2,
            Verdict::Proceed | Verdict::Fail(_) => bytes.len(),
        };
        self.file.bytes.lock()[at..at + len].copy_from_slice(&bytes[..len]);
    }

    fn read(&self, at: usize, bytes: &mut [u8]) -> bool {
        let held = self.file.bytes.lock();
        let Some(found) = held.get(at..at + bytes.len()) else { return false };
        bytes.copy_from_slice(found);
        true
    }

    fn store(&self, at: usize, word: u64) {
        let _running = self.power.running();
        assert!(at.is_multiple_of(8), "a word at {at}");
        match self.power.point(self.generation, PointKind::Keep, at as u64, 8) {
            Verdict::Dead | Verdict::Fail(Fault::Crash) => {}
            Verdict::Proceed | Verdict::Fail(_) => {
                self.file.bytes.lock()[at..at + 8].copy_from_slice(&word.to_le_bytes());
            }
        }
    }

    fn load(&self, at: usize) -> u64 {
        let held = self.file.bytes.lock();
        held.get(at..at + 8).map_or(0, |word| u64::from_le_bytes(std::array::from_fn(|i| word[i])))
    }
}
