//! A sparse block device in memory, with knobs to make it fail or wait, and counters of what
//! reached it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex, RwLock};
use surface::{
    Allocation, BlockDevice, Client, DeviceId, DeviceInfo, DeviceSet, Error, ErrorKind, FolderInfo, PendingRead,
    Result, Run, WriteOptions, ZeroOptions,
};

pub const BLOCK: u64 = 4096;
/// Blocks of one lock: neighbours share it, as requests do.
const GROUP_BLOCKS: u64 = 32;
const SHARDS: u64 = 64;

type Blocks = HashMap<u64, Box<[u8]>>;

/// Calls that reached the device.
#[derive(Default)]
pub struct Counters {
    pub reads: AtomicU64,
    pub writes: AtomicU64,
    pub writes_fua: AtomicU64,
    pub write_bytes_max: AtomicU64,
    pub flushes: AtomicU64,
    pub discards: AtomicU64,
    pub discarded_bytes: AtomicU64,
    pub zeroes: AtomicU64,
}

impl Counters {
    pub fn get(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::SeqCst)
    }
}

/// Where callers wait while it is shut.
#[derive(Default)]
pub struct Gate {
    /// (shut, callers waiting)
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Gate {
    pub fn shut(&self) {
        self.state.lock().0 = true;
    }

    pub fn open(&self) {
        self.state.lock().0 = false;
        self.changed.notify_all();
    }

    /// Until that many callers wait at it.
    pub fn await_callers(&self, callers: usize) {
        let mut state = self.state.lock();
        while state.1 < callers {
            self.changed.wait(&mut state);
        }
    }

    fn pass(&self) {
        let mut state = self.state.lock();
        state.1 += 1;
        self.changed.notify_all();
        while state.0 {
            self.changed.wait(&mut state);
        }
        state.1 -= 1;
    }
}

pub struct MemDevice {
    size: AtomicU64,
    shards: Vec<RwLock<Blocks>>,
    pub counters: Counters,
    pub flush_gate: Gate,
    /// Where reads wait that are not answered at once, if `is_cold`.
    pub read_gate: Gate,
    /// Where writes wait, if `is_full`.
    pub write_gate: Gate,
    /// Where discards wait.
    pub discard_gate: Gate,
    /// Nothing is answered from memory.
    pub is_cold: AtomicBool,
    /// Writes would wait.
    pub is_full: AtomicBool,
    /// It is a snapshot.
    pub is_read_only: AtomicBool,
    fail: Mutex<Option<ErrorKind>>,
}

impl MemDevice {
    pub fn new(size: u64) -> Arc<Self> {
        Arc::new(Self {
            size: AtomicU64::new(size),
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            counters: Counters::default(),
            flush_gate: Gate::default(),
            read_gate: Gate::default(),
            write_gate: Gate::default(),
            discard_gate: Gate::default(),
            is_cold: AtomicBool::new(false),
            is_full: AtomicBool::new(false),
            is_read_only: AtomicBool::new(false),
            fail: Mutex::new(None),
        })
    }

    pub fn resize(&self, size: u64) {
        self.size.store(size, Ordering::SeqCst);
    }

    /// All operations fail in that way, until told otherwise.
    pub fn fail(&self, kind: Option<ErrorKind>) {
        *self.fail.lock() = kind;
    }

    fn shard(&self, block: u64) -> &RwLock<Blocks> {
        &self.shards[(block / GROUP_BLOCKS % SHARDS) as usize]
    }

    fn check(&self, offset: u64, length: u64) -> Result<()> {
        if let Some(kind) = *self.fail.lock() {
            return Err(Error::new(kind, "told to fail"));
        }
        match offset.checked_add(length) {
            Some(end) if end <= self.size_bytes() => Ok(()),
            _ => Err(Error::new(ErrorKind::Invalid, format!("{length} bytes at {offset} are past the end"))),
        }
    }

    /// The parts of a range that lie in one block each: (block, offset in it, length).
    fn parts(offset: u64, length: u64) -> impl Iterator<Item = (u64, usize, usize)> {
        let mut at = offset;
        std::iter::from_fn(move || {
            let end = offset + length;
            (at < end).then(|| {
                let (block, within) = (at / BLOCK, at % BLOCK);
                let part = (BLOCK - within).min(end - at);
                at += part;
                (block, within as usize, part as usize)
            })
        })
    }

    fn zero(&self, offset: u64, length: u64) {
        for (block, within, part) in Self::parts(offset, length) {
            let mut blocks = self.shard(block).write();
            if part == BLOCK as usize {
                blocks.remove(&block);
            } else if let Some(content) = blocks.get_mut(&block) {
                content[within..within + part].fill(0);
            }
        }
    }
}

impl BlockDevice for MemDevice {
    fn size_bytes(&self) -> u64 {
        self.size.load(Ordering::SeqCst)
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only.load(Ordering::SeqCst)
    }

    fn block_bytes(&self) -> (u32, u32) {
        (BLOCK as u32, 32 * 1024)
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        if self.is_cold.load(Ordering::SeqCst) {
            self.read_gate.pass();
        }
        self.counters.reads.fetch_add(1, Ordering::SeqCst);
        self.check(offset, buf.len() as u64)?;
        let mut rest = buf;
        for (block, within, part) in Self::parts(offset, rest.len() as u64) {
            let (head, tail) = rest.split_at_mut(part);
            match self.shard(block).read().get(&block) {
                Some(content) => head.copy_from_slice(&content[within..within + part]),
                None => head.fill(0),
            }
            rest = tail;
        }
        Ok(())
    }

    fn reads_together(&self) -> bool {
        false
    }

    fn read_many(&self, next: &mut dyn FnMut() -> Option<Box<dyn PendingRead>>) {
        surface::read_each(self, next);
    }

    fn read_cached(&self, offset: u64, buf: &mut [u8]) -> Result<bool> {
        if self.is_cold.load(Ordering::SeqCst) {
            return Ok(false);
        }
        self.read(offset, buf).map(|()| true)
    }

    fn write(&self, offset: u64, data: Bytes, options: WriteOptions) -> Result<()> {
        if self.is_full.load(Ordering::SeqCst) {
            self.write_gate.pass();
        }
        self.counters.writes.fetch_add(1, Ordering::SeqCst);
        self.counters.writes_fua.fetch_add(u64::from(options.fua), Ordering::SeqCst);
        self.counters.write_bytes_max.fetch_max(data.len() as u64, Ordering::SeqCst);
        self.check(offset, data.len() as u64)?;
        let mut rest = &data[..];
        for (block, within, part) in Self::parts(offset, data.len() as u64) {
            let (head, tail) = rest.split_at(part);
            let mut blocks = self.shard(block).write();
            let content = blocks.entry(block).or_insert_with(|| vec![0; BLOCK as usize].into());
            content[within..within + part].copy_from_slice(head);
            rest = tail;
        }
        Ok(())
    }

    fn write_would_wait(&self) -> bool {
        self.is_full.load(Ordering::SeqCst)
    }

    fn flush(&self) -> Result<()> {
        self.counters.flushes.fetch_add(1, Ordering::SeqCst);
        self.flush_gate.pass();
        self.check(0, 0)
    }

    fn discard(&self, offset: u64, length: u64) -> Result<()> {
        self.counters.discards.fetch_add(1, Ordering::SeqCst);
        self.discard_gate.pass();
        self.counters.discarded_bytes.fetch_add(length, Ordering::SeqCst);
        self.check(offset, length)?;
        self.zero(offset, length);
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, length: u64, _options: ZeroOptions) -> Result<()> {
        self.counters.zeroes.fetch_add(1, Ordering::SeqCst);
        self.check(offset, length)?;
        self.zero(offset, length);
        Ok(())
    }

    fn allocation(&self, offset: u64, length: u64, runs_max: usize) -> Result<Vec<Run>> {
        self.check(offset, length)?;
        let mut runs: Vec<Run> = Vec::new();
        for (block, _, part) in Self::parts(offset, length) {
            let stored = self.shard(block).read().contains_key(&block);
            let allocation = if stored { Allocation::Data } else { Allocation::Hole };
            let full = runs.len() == runs_max;
            match runs.last_mut() {
                Some(run) if run.allocation == allocation => run.length += part as u64,
                _ if full => break,
                _ => runs.push(Run { length: part as u64, allocation }),
            }
        }
        Ok(runs)
    }

    fn prefetch(&self, _offset: u64, _length: u64) -> Result<()> {
        Ok(())
    }

    fn allocated_bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.read().len() as u64 * BLOCK).sum()
    }
}

struct Member {
    id: DeviceId,
    device: Arc<MemDevice>,
    created_unix_s: u64,
}

/// Devices by name.
#[derive(Default)]
pub struct MemSet {
    devices: RwLock<BTreeMap<String, Member>>,
    /// Number and time of creation, by name.
    folders: RwLock<BTreeMap<String, (DeviceId, u64)>>,
    next: AtomicU64,
    /// A client of another front end has all of them open.
    pub is_open_elsewhere: AtomicBool,
    /// A device under an exclusive operation: opening it waits.
    held: Mutex<Option<DeviceId>>,
    let_go: Condvar,
}

impl MemSet {
    pub fn add(&self, name: &str, device: Arc<MemDevice>, created_unix_s: u64) {
        let id = DeviceId(self.next.fetch_add(1, Ordering::SeqCst));
        self.devices.write().insert(name.to_owned(), Member { id, device, created_unix_s });
    }

    pub fn add_folder(&self, name: &str, created_unix_s: u64) {
        let id = DeviceId(self.next.fetch_add(1, Ordering::SeqCst));
        self.folders.write().insert(name.to_owned(), (id, created_unix_s));
    }

    /// Gives a folder another name, and everything in it.
    pub fn rename_folder(&self, old: &str, new: &str) {
        let inside = format!("{old}/");
        let renamed = |name: String| match name.strip_prefix(&inside) {
            Some(rest) => format!("{new}/{rest}"),
            None if name == old => new.to_owned(),
            None => name,
        };
        let (mut devices, mut folders) = (self.devices.write(), self.folders.write());
        *devices = std::mem::take(&mut *devices).into_iter().map(|(name, member)| (renamed(name), member)).collect();
        *folders = std::mem::take(&mut *folders).into_iter().map(|(name, folder)| (renamed(name), folder)).collect();
    }

    pub fn remove(&self, name: &str) {
        self.devices.write().remove(name);
    }

    pub fn rename(&self, old: &str, new: &str) {
        let mut devices = self.devices.write();
        let device = devices.remove(old).unwrap();
        devices.insert(new.to_owned(), device);
    }
}

impl MemSet {
    fn member<T>(&self, id: DeviceId, get: impl FnOnce(&str, &Member) -> T) -> Result<T> {
        let devices = self.devices.read();
        let found = devices.iter().find(|(_, member)| member.id == id);
        let gone = || Error::new(ErrorKind::NotFound, format!("there is no device {}", id.0));
        found.map(|(name, member)| get(name, member)).ok_or_else(gone)
    }
}

fn info(name: &str, member: &Member) -> DeviceInfo {
    DeviceInfo {
        id: member.id,
        name: name.to_owned(),
        size_bytes: member.device.size_bytes(),
        allocated_bytes: member.device.allocated_bytes(),
        created_unix_s: member.created_unix_s,
        read_only: member.device.is_read_only(),
    }
}

impl DeviceSet for MemSet {
    fn list(&self) -> Result<Vec<DeviceInfo>> {
        Ok(self.devices.read().iter().map(|(name, member)| info(name, member)).collect())
    }

    fn folders(&self) -> Result<Vec<FolderInfo>> {
        let info = |(name, (id, created_unix_s)): (&String, &(DeviceId, u64))| FolderInfo {
            id: *id,
            name: name.clone(),
            created_unix_s: *created_unix_s,
        };
        Ok(self.folders.read().iter().map(info).collect())
    }

    fn find(&self, name: &str) -> Result<DeviceInfo> {
        let missing = || Error::new(ErrorKind::NotFound, format!("there is no {name}"));
        self.devices.read().get(name).map(|member| info(name, member)).ok_or_else(missing)
    }

    fn look(&self, id: DeviceId) -> Result<DeviceInfo> {
        self.member(id, info)
    }

    fn open(&self, id: DeviceId, _client: &Arc<dyn Client>) -> Result<Arc<dyn BlockDevice>> {
        self.let_go.wait_while(&mut self.held.lock(), |held| *held == Some(id));
        self.member(id, |_, member| member.device.clone() as Arc<dyn BlockDevice>)
    }

    fn open_alone(
        &self,
        id: DeviceId,
        client: &Arc<dyn Client>,
        work: &mut dyn FnMut(&dyn BlockDevice) -> Result<()>,
    ) -> Result<Arc<dyn BlockDevice>> {
        if self.is_open_elsewhere.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::InUse, format!("device {} is open elsewhere", id.0)));
        }
        let device = self.open(id, client)?;
        *self.held.lock() = Some(id);
        let result = work(&*device);
        *self.held.lock() = None;
        self.let_go.notify_all();
        result.map(|()| device)
    }
}
