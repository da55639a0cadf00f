//! A block device in memory for tests and measurements, with knobs: what is cached, what fails,
//! what is held until told otherwise.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex, RwLock};
use surface::{
    Allocation, BlockDevice, Client, DeviceId, DeviceInfo, DeviceSet, Error, ErrorKind, PendingRead, Result, Run,
    WriteOptions, ZeroOptions,
};

/// Nothing in a test that works takes this long, not even on a machine that stands still for a
/// while.
const PATIENCE: Duration = Duration::from_secs(300);
const CHUNK: usize = 64 << 10;
const BLOCK: usize = 4096;

/// What a device was asked to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    Read { offset: u64, length: usize },
    Write { offset: u64, length: usize, fua: bool },
    Flush,
    Discard { offset: u64, length: u64 },
    Zeroes { offset: u64, length: u64, no_hole: bool },
    Prefetch { offset: u64, length: u64 },
}

struct Chunk {
    data: Box<[u8]>,
    /// Bit `i`: block `i` of the chunk is data.
    present: u16,
}

/// Operations to be held until released.
#[derive(Default)]
pub struct Held {
    reads_at: HashSet<u64>,
    flushes: bool,
    writes: bool,
    waiting: usize,
}

#[derive(Default)]
pub struct Memory {
    chunks: Vec<RwLock<Option<Chunk>>>,
    size: AtomicU64,
    /// `read_cached` answers.
    pub cached: AtomicBool,
    /// `reads_together` answers, and the most reads that were.
    pub together: AtomicBool,
    pub most_together: AtomicUsize,
    /// `write_would_wait` answers.
    pub full_buffer: AtomicBool,
    /// It is a snapshot: `is_read_only` answers.
    pub read_only: AtomicBool,
    /// Keep a list of operations.
    pub record: AtomicBool,
    pub ops: Mutex<Vec<Op>>,
    /// Every operation but `size_bytes` fails so.
    pub fail: Mutex<Option<ErrorKind>>,
    /// What brings data finds no room, and is to be held for so long.
    pub no_room: Mutex<Option<Duration>>,
    /// How often that was so.
    pub refused: AtomicUsize,
    held: Mutex<Held>,
    held_change: Condvar,
    /// Calls of `read` from threads other than readers of cached data, that is: of `read`.
    pub slow_reads: AtomicUsize,
    /// What `read_cached` has copied.
    pub cached_bytes: AtomicUsize,
    /// Names of the threads that flushed.
    pub flush_threads: Mutex<Vec<String>>,
}

impl Memory {
    /// A cached, empty device. It can be resized up to `capacity`.
    pub fn new(size: u64, capacity: u64) -> Arc<Self> {
        let chunks = (0..capacity.div_ceil(CHUNK as u64)).map(|_| RwLock::new(None)).collect();
        let memory = Self { chunks, ..Self::default() };
        memory.size.store(size, Ordering::Release);
        memory.cached.store(true, Ordering::Release);
        Arc::new(memory)
    }

    pub fn resize(&self, size: u64) {
        assert!(size <= (self.chunks.len() * CHUNK) as u64);
        self.size.store(size, Ordering::Release);
    }

    fn find_room(&self) -> Result<()> {
        if self.no_room.lock().is_none() {
            return Ok(());
        }
        self.refused.fetch_add(1, Ordering::AcqRel);
        Err(Error::new(ErrorKind::Full, "no room"))
    }

    /// Reads that begin at `offset` wait, cached or not, from now on.
    pub fn hold_reads_at(&self, offset: u64) {
        self.held.lock().reads_at.insert(offset);
    }

    /// Flushes wait from now on.
    pub fn hold_flushes(&self) {
        self.held.lock().flushes = true;
    }

    /// Writes wait from now on, before anything of them is in the device.
    pub fn hold_writes(&self) {
        self.held.lock().writes = true;
    }

    /// Nothing waits any more.
    pub fn release(&self) {
        let mut held = self.held.lock();
        held.reads_at.clear();
        held.flushes = false;
        held.writes = false;
        self.held_change.notify_all();
    }

    /// Waits until `count` operations are held.
    pub fn wait_for_held(&self, count: usize) {
        let mut held = self.held.lock();
        while held.waiting < count {
            let waited = self.held_change.wait_for(&mut held, PATIENCE);
            assert!(!waited.timed_out(), "only {} of {count} operations came", held.waiting);
        }
    }

    pub fn set_recording(&self) {
        self.record.store(true, Ordering::Release);
    }

    /// Operations that are held now.
    pub fn held(&self) -> usize {
        self.held.lock().waiting
    }

    pub fn allocated(&self) -> u64 {
        self.allocated_bytes()
    }

    pub fn recorded(&self) -> Vec<Op> {
        std::mem::take(&mut *self.ops.lock())
    }

    fn hold_while(&self, is_held: impl Fn(&Held) -> bool) {
        let mut held = self.held.lock();
        if !is_held(&held) {
            return;
        }
        held.waiting += 1;
        self.held_change.notify_all();
        // A test that failed releases nothing; its server must still stop.
        while is_held(&held) && !self.held_change.wait_for(&mut held, PATIENCE).timed_out() {}
        held.waiting -= 1;
    }

    fn begin(&self, offset: u64, length: u64, op: Op) -> Result<()> {
        if self.record.load(Ordering::Relaxed) {
            self.ops.lock().push(op);
            if let Some(kind) = *self.fail.lock() {
                let text = format!("device 'memory', offset {offset}: made to fail with {}", kind.name());
                return Err(Error::new(kind, text));
            }
        }
        match offset.checked_add(length) {
            Some(end) if end <= self.size_bytes() => Ok(()),
            _ => Err(Error::new(ErrorKind::Invalid, format!("{length} bytes at {offset} are past the end"))),
        }
    }

    fn copy_out(&self, offset: u64, buf: &mut [u8]) {
        let mut at = offset as usize;
        let mut rest = buf;
        while !rest.is_empty() {
            let within = at % CHUNK;
            let count = rest.len().min(CHUNK - within);
            let (now, later) = rest.split_at_mut(count);
            match &*self.chunks[at / CHUNK].read() {
                Some(chunk) => now.copy_from_slice(&chunk.data[within..within + count]),
                None => now.fill(0),
            }
            at += count;
            rest = later;
        }
    }

    /// Fills a range from `source` (of the range's length), or with zeroes that are data (`stored`)
    /// or holes.
    fn fill(&self, offset: u64, length: u64, source: Option<&[u8]>, stored: bool) {
        let (mut at, end) = (offset as usize, (offset + length) as usize);
        while at < end {
            let within = at % CHUNK;
            let count = (end - at).min(CHUNK - within);
            let mut slot = self.chunks[at / CHUNK].write();
            if slot.is_none() && source.is_none() && !stored {
                at += count;
                continue;
            }
            let chunk = slot.get_or_insert_with(|| Chunk { data: vec![0; CHUNK].into_boxed_slice(), present: 0 });
            match source {
                Some(source) => {
                    let from = at - offset as usize;
                    chunk.data[within..within + count].copy_from_slice(&source[from..from + count]);
                }
                None => chunk.data[within..within + count].fill(0),
            }
            if source.is_some() || stored {
                for block in within / BLOCK..=(within + count - 1) / BLOCK {
                    chunk.present |= 1 << block;
                }
            } else {
                for block in within.div_ceil(BLOCK)..(within + count) / BLOCK {
                    chunk.present &= !(1 << block);
                }
            }
            at += count;
        }
    }
}

impl BlockDevice for Memory {
    fn size_bytes(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Acquire)
    }

    fn block_bytes(&self) -> (u32, u32) {
        (BLOCK as u32, CHUNK as u32)
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.slow_reads.fetch_add(1, Ordering::AcqRel);
        self.begin(offset, buf.len() as u64, Op::Read { offset, length: buf.len() })?;
        self.hold_while(|held| held.reads_at.contains(&offset));
        self.copy_out(offset, buf);
        Ok(())
    }

    fn reads_together(&self) -> bool {
        self.together.load(Ordering::Relaxed)
    }

    /// Begins all that there are, and ends them in the opposite order.
    fn read_many(&self, next: &mut dyn FnMut() -> Option<Box<dyn PendingRead>>) {
        loop {
            let mut reads: Vec<_> = std::iter::from_fn(&mut *next).collect();
            if reads.is_empty() {
                return;
            }
            self.most_together.fetch_max(reads.len(), Ordering::AcqRel);
            while let Some(mut read) = reads.pop() {
                let offset = read.offset();
                let result = self.read(offset, read.buf());
                read.finish(result);
            }
        }
    }

    fn read_cached(&self, offset: u64, buf: &mut [u8]) -> Result<bool> {
        if !self.cached.load(Ordering::Relaxed) {
            return Ok(false);
        }
        self.begin(offset, buf.len() as u64, Op::Read { offset, length: buf.len() })?;
        self.copy_out(offset, buf);
        self.cached_bytes.fetch_add(buf.len(), Ordering::Release);
        Ok(true)
    }

    fn write(&self, offset: u64, data: Bytes, options: WriteOptions) -> Result<()> {
        self.begin(offset, data.len() as u64, Op::Write { offset, length: data.len(), fua: options.fua })?;
        self.hold_while(|held| held.writes);
        self.find_room()?;
        self.fill(offset, data.len() as u64, Some(&data), true);
        Ok(())
    }

    fn write_would_wait(&self) -> bool {
        self.full_buffer.load(Ordering::Relaxed)
    }

    fn full_wait(&self) -> Option<Duration> {
        *self.no_room.lock()
    }

    fn flush(&self) -> Result<()> {
        self.begin(0, 0, Op::Flush)?;
        if self.record.load(Ordering::Relaxed) {
            let name = std::thread::current().name().unwrap_or_default().to_owned();
            self.flush_threads.lock().push(name);
        }
        self.hold_while(|held| held.flushes);
        Ok(())
    }

    fn discard(&self, offset: u64, length: u64) -> Result<()> {
        self.begin(offset, length, Op::Discard { offset, length })?;
        self.fill(offset, length, None, false);
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, length: u64, options: ZeroOptions) -> Result<()> {
        self.begin(offset, length, Op::Zeroes { offset, length, no_hole: options.no_hole })?;
        if options.no_hole {
            self.find_room()?;
        }
        self.fill(offset, length, None, options.no_hole);
        Ok(())
    }

    fn allocation(&self, offset: u64, length: u64, runs_max: usize) -> Result<Vec<Run>> {
        self.begin(offset, length, Op::Prefetch { offset, length })?;
        let mut runs: Vec<Run> = Vec::new();
        let (mut at, end) = (offset as usize, (offset + length) as usize);
        while at < end {
            let count = (BLOCK - at % BLOCK).min(end - at);
            let chunk = self.chunks[at / CHUNK].read();
            let is_data = chunk.as_ref().is_some_and(|c| c.present >> (at % CHUNK / BLOCK) & 1 == 1);
            let allocation = if is_data { Allocation::Data } else { Allocation::Hole };
            if let Some(last) = runs.last_mut().filter(|last| last.allocation == allocation) {
                last.length += count as u64;
            } else if runs.len() == runs_max {
                break;
            } else {
                runs.push(Run { length: count as u64, allocation });
            }
            at += count;
        }
        Ok(runs)
    }

    fn prefetch(&self, offset: u64, length: u64) -> Result<()> {
        self.begin(offset, length, Op::Prefetch { offset, length })
    }

    fn allocated_bytes(&self) -> u64 {
        self.chunks.iter().map(|c| c.read().as_ref().map_or(0, |c| c.present.count_ones() as u64 * BLOCK as u64)).sum()
    }
}

/// Devices by name, and who has them open: what clients that have gone had under way is waited for,
/// as a real set does.
#[derive(Default)]
pub struct Devices {
    devices: Vec<(String, Arc<Memory>)>,
    clients: Arc<Clients>,
}

#[derive(Default)]
pub struct Clients {
    state: Mutex<ClientsState>,
    change: Condvar,
}

#[derive(Default)]
struct ClientsState {
    open: Vec<(u64, DeviceId, Arc<dyn Client>)>,
    next: u64,
    waiting: usize,
    /// Who has gone is told at once that nothing more is to be begun.
    is_impatient: bool,
}

impl Clients {
    pub fn be_impatient(&self) {
        self.state.lock().is_impatient = true;
    }

    /// Waits until so many clients wait for those that have gone.
    pub fn wait_for_waiting(&self, count: usize) {
        let mut state = self.state.lock();
        while state.waiting < count {
            let waited = self.change.wait_for(&mut state, PATIENCE);
            assert!(!waited.timed_out(), "only {} of {count} clients wait", state.waiting);
        }
    }

    /// The names of those that have a device open.
    pub fn names(&self) -> Vec<String> {
        self.state.lock().open.iter().map(|(_, _, client)| client.name()).collect()
    }

    fn enter(self: &Arc<Self>, id: DeviceId, client: &Arc<dyn Client>) -> InUse {
        let mut state = self.state.lock();
        let of_device = state.open.iter().filter(|(_, other, client)| *other == id && client.is_gone());
        let gone: Vec<(u64, Arc<dyn Client>)> =
            of_device.map(|(number, _, client)| (*number, client.clone())).collect();
        if state.is_impatient {
            gone.iter().for_each(|(_, client)| client.give_up());
        }
        state.waiting += 1;
        self.change.notify_all();
        while gone.iter().any(|(number, _)| state.open.iter().any(|(open, _, _)| open == number)) {
            assert!(!self.change.wait_for(&mut state, PATIENCE).timed_out(), "a client that has gone keeps its device");
        }
        state.waiting -= 1;
        let number = state.next;
        state.next += 1;
        state.open.push((number, id, client.clone()));
        InUse { number, clients: self.clone() }
    }
}

struct InUse {
    number: u64,
    clients: Arc<Clients>,
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.clients.state.lock().open.retain(|(number, _, _)| *number != self.number);
        self.clients.change.notify_all();
    }
}

impl Devices {
    pub fn of(devices: &[(&str, &Arc<Memory>)]) -> Arc<Self> {
        Self::with_clients(devices, Arc::default())
    }

    pub fn with_clients(devices: &[(&str, &Arc<Memory>)], clients: Arc<Clients>) -> Arc<Self> {
        let devices = devices.iter().map(|(n, d)| ((*n).to_owned(), Arc::clone(d))).collect();
        Arc::new(Self { devices, clients })
    }
}

impl DeviceSet for Devices {
    fn list(&self) -> Result<Vec<DeviceInfo>> {
        let info = |(number, (name, device)): (usize, &(String, Arc<Memory>))| DeviceInfo {
            id: DeviceId(number as u64),
            name: name.clone(),
            size_bytes: device.size_bytes(),
            allocated_bytes: device.allocated_bytes(),
            created_unix_s: 0,
            read_only: device.is_read_only(),
        };
        Ok(self.devices.iter().enumerate().map(info).collect())
    }

    fn find(&self, name: &str) -> Result<DeviceInfo> {
        let missing = || Error::new(ErrorKind::NotFound, format!("no device named '{name}'"));
        self.list()?.into_iter().find(|info| info.name == name).ok_or_else(missing)
    }

    fn look(&self, id: DeviceId) -> Result<DeviceInfo> {
        let missing = || Error::new(ErrorKind::NotFound, format!("no device {}", id.0));
        self.list()?.into_iter().find(|info| info.id == id).ok_or_else(missing)
    }

    fn open(&self, id: DeviceId, client: &Arc<dyn Client>) -> Result<Arc<dyn BlockDevice>> {
        let missing = || Error::new(ErrorKind::NotFound, format!("no device {}", id.0));
        let (_, device) = self.devices.get(id.0 as usize).ok_or_else(missing)?;
        Ok(Arc::new(OpenMemory { device: Arc::clone(device), _in_use: self.clients.enter(id, client) }))
    }
}

/// A device that a client has open.
struct OpenMemory {
    device: Arc<Memory>,
    _in_use: InUse,
}

impl BlockDevice for OpenMemory {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }
    fn is_read_only(&self) -> bool {
        self.device.is_read_only()
    }
    fn block_bytes(&self) -> (u32, u32) {
        self.device.block_bytes()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.device.read(offset, buf)
    }
    fn reads_together(&self) -> bool {
        self.device.reads_together()
    }
    fn read_many(&self, next: &mut dyn FnMut() -> Option<Box<dyn PendingRead>>) {
        self.device.read_many(next);
    }
    fn read_cached(&self, offset: u64, buf: &mut [u8]) -> Result<bool> {
        self.device.read_cached(offset, buf)
    }
    fn write(&self, offset: u64, data: Bytes, options: WriteOptions) -> Result<()> {
        self.device.write(offset, data, options)
    }
    fn write_would_wait(&self) -> bool {
        self.device.write_would_wait()
    }
    fn full_wait(&self) -> Option<Duration> {
        self.device.full_wait()
    }
    fn flush(&self) -> Result<()> {
        self.device.flush()
    }
    fn discard(&self, offset: u64, length: u64) -> Result<()> {
        self.device.discard(offset, length)
    }
    fn write_zeroes(&self, offset: u64, length: u64, options: ZeroOptions) -> Result<()> {
        self.device.write_zeroes(offset, length, options)
    }
    fn allocation(&self, offset: u64, length: u64, runs_max: usize) -> Result<Vec<Run>> {
        self.device.allocation(offset, length, runs_max)
    }
    fn prefetch(&self, offset: u64, length: u64) -> Result<()> {
        self.device.prefetch(offset, length)
    }
    fn allocated_bytes(&self) -> u64 {
        self.device.allocated_bytes()
    }
}
