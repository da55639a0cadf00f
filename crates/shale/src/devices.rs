//! Who has which volume open. Every client gets its volume here, so that `destroy` can refuse while one is in use.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use engine::Pool;
use parking_lot::{Condvar, Mutex};
use surface::{BlockDevice, DeviceInfo, DeviceSet, Error, ErrorKind, Result, Run, WriteOptions, ZeroOptions};

/// How long `destroy` waits for clients to go: a front end opens a volume for a moment just to look at it.
const GOING_PATIENCE: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Register {
    state: Mutex<State>,
    /// A client closed a volume.
    closed: Condvar,
}

#[derive(Default)]
struct State {
    clients: BTreeMap<String, usize>,
    /// Volumes that are being destroyed: nobody may open them meanwhile.
    going: BTreeSet<String>,
}

/// The volumes of an open pool, with a count of the clients of each.
#[derive(Clone)]
pub struct Devices {
    pool: Pool,
    register: Arc<Register>,
}

impl Devices {
    /// Of a pool; nobody has anything open yet.
    pub fn new(pool: Pool) -> Self {
        Self { pool, register: Arc::default() }
    }

    /// Opens a volume. It counts as in use until the result is dropped.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn open(&self, name: &str) -> Result<Arc<dyn BlockDevice>> {
        let in_use = {
            let mut state = self.register.state.lock();
            if state.going.contains(name) {
                return Err(Error::new(ErrorKind::NotFound, format!("volume '{name}' is being destroyed")));
            }
            *state.clients.entry(name.to_owned()).or_default() += 1;
            InUse { name: name.to_owned(), register: Arc::clone(&self.register) }
        };
        let volume: Arc<dyn BlockDevice> = self.pool.volume(name)?;
        Ok(Arc::new(OpenDevice { volume, _in_use: in_use }))
    }

    /// How many clients have the volume open.
    pub fn clients(&self, name: &str) -> usize {
        self.register.state.lock().clients.get(name).copied().unwrap_or(0)
    }

    /// Destroys a volume; one that is in use only with `force`.
    ///
    /// # Errors
    /// `InUse`, `NotFound`, and what the pool says.
    pub fn destroy(&self, name: &str, force: bool) -> Result<()> {
        {
            let mut state = self.register.state.lock();
            let give_up = Instant::now() + GOING_PATIENCE;
            while !force && state.clients.contains_key(name) {
                if self.register.closed.wait_until(&mut state, give_up).timed_out() {
                    break;
                }
            }
            let clients = state.clients.get(name).copied().unwrap_or(0);
            if clients > 0 && !force {
                let message = format!(
                    "volume '{name}' is open by {clients} client(s); disconnect them (or unmount), or destroy with --force"
                );
                return Err(Error::new(ErrorKind::InUse, message));
            }
            state.going.insert(name.to_owned());
        }
        let result = self.pool.destroy_volume(name);
        self.register.state.lock().going.remove(name);
        result
    }

    /// What a front end is shown: all volumes, or those of `names`.
    pub fn shown(&self, names: &[String]) -> Arc<dyn DeviceSet> {
        let names = (!names.is_empty()).then(|| names.iter().cloned().collect());
        Arc::new(Shown { devices: self.clone(), names })
    }
}

/// Counts one client for as long as it lives.
struct InUse {
    name: String,
    register: Arc<Register>,
}

impl Drop for InUse {
    fn drop(&mut self) {
        let mut state = self.register.state.lock();
        if let Some(clients) = state.clients.get_mut(&self.name) {
            *clients -= 1;
            if *clients == 0 {
                state.clients.remove(&self.name);
                self.register.closed.notify_all();
            }
        }
    }
}

struct Shown {
    devices: Devices,
    names: Option<BTreeSet<String>>,
}

impl Shown {
    fn shows(&self, name: &str) -> bool {
        self.names.as_ref().is_none_or(|names| names.contains(name))
    }
}

impl DeviceSet for Shown {
    fn list(&self) -> Result<Vec<DeviceInfo>> {
        let mut list = self.devices.pool.list()?;
        list.retain(|info| self.shows(&info.name));
        Ok(list)
    }

    fn open(&self, name: &str) -> Result<Arc<dyn BlockDevice>> {
        if !self.shows(name) {
            return Err(Error::new(ErrorKind::NotFound, format!("volume '{name}' is not served")));
        }
        self.devices.open(name)
    }
}

/// A volume that counts as in use.
struct OpenDevice {
    volume: Arc<dyn BlockDevice>,
    _in_use: InUse,
}

impl BlockDevice for OpenDevice {
    fn size_bytes(&self) -> u64 {
        self.volume.size_bytes()
    }
    fn block_bytes(&self) -> (u32, u32) {
        self.volume.block_bytes()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.volume.read(offset, buf)
    }
    fn read_cached(&self, offset: u64, buf: &mut [u8]) -> Result<bool> {
        self.volume.read_cached(offset, buf)
    }
    fn write(&self, offset: u64, data: Bytes, options: WriteOptions) -> Result<()> {
        self.volume.write(offset, data, options)
    }
    fn write_would_wait(&self) -> bool {
        self.volume.write_would_wait()
    }
    fn flush(&self) -> Result<()> {
        self.volume.flush()
    }
    fn discard(&self, offset: u64, length: u64) -> Result<()> {
        self.volume.discard(offset, length)
    }
    fn write_zeroes(&self, offset: u64, length: u64, options: ZeroOptions) -> Result<()> {
        self.volume.write_zeroes(offset, length, options)
    }
    fn allocation(&self, offset: u64, length: u64, runs_max: usize) -> Result<Vec<Run>> {
        self.volume.allocation(offset, length, runs_max)
    }
    fn prefetch(&self, offset: u64, length: u64) -> Result<()> {
        self.volume.prefetch(offset, length)
    }
    fn allocated_bytes(&self) -> u64 {
        self.volume.allocated_bytes()
    }
}
