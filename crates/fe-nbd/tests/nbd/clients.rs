//! In-memory devices that track their clients: requests in progress of disconnected clients are
//! finished before the next client is admitted, as in a real set.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use surface::{
    BlockDevice, Client, DeviceId, DeviceInfo, DeviceSet, PendingRead, Result, Run, WriteOptions, ZeroOptions,
};
use testkit::{Memory, MemorySet, PATIENCE};

/// The devices.
pub struct Devices {
    set: MemorySet,
    clients: Arc<Clients>,
}

impl Devices {
    pub fn of(devices: &[(&str, &Arc<Memory>)], clients: Arc<Clients>) -> Arc<Self> {
        Arc::new(Self { set: MemorySet::of(devices), clients })
    }
}

impl DeviceSet for Devices {
    fn list(&self) -> Result<Vec<DeviceInfo>> {
        self.set.list()
    }

    fn find(&self, name: &str) -> Result<DeviceInfo> {
        self.set.find(name)
    }

    fn look(&self, id: DeviceId) -> Result<DeviceInfo> {
        self.set.look(id)
    }

    fn open(&self, id: DeviceId, client: &Arc<dyn Client>) -> Result<Arc<dyn BlockDevice>> {
        let device = self.set.device(id)?;
        Ok(Arc::new(OpenMemory { device, _in_use: self.clients.enter(id, client) }))
    }
}

/// Those that have a device open.
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
    /// Whether disconnected clients are immediately told to start nothing more.
    is_impatient: bool,
}

impl Clients {
    pub fn be_impatient(&self) {
        self.state.lock().is_impatient = true;
    }

    /// Waits until `count` clients wait for disconnected ones.
    pub fn wait_for_waiting(&self, count: usize) {
        let mut state = self.state.lock();
        while state.waiting < count {
            let waited = self.change.wait_for(&mut state, PATIENCE);
            assert!(!waited.timed_out(), "only {} of {count} clients wait", state.waiting);
        }
    }

    /// The names of the clients that have a device open.
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
