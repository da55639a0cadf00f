//! Who has which volume open. Every client gets its volume here, so that `destroy` can refuse while one is in use.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use engine::{Pool, Volume};
use parking_lot::{Condvar, Mutex, MutexGuard};
use surface::{
    BlockDevice, DeviceInfo, DeviceSet, Error, ErrorKind, PendingRead, Result, Run, WriteOptions, ZeroOptions,
};

use crate::names;

/// How long whoever needs a volume for himself waits for its clients to go: a front end opens one for a moment just to look at it, and the
/// server learns of a client that has gone a moment later, longer where the machine is overloaded.
pub const GOING_PATIENCE: Duration = Duration::from_secs(3);

#[derive(Default)]
struct Register {
    state: Mutex<State>,
    /// A client closed a volume, or has done what it wanted to be alone for.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// By the number that a volume or a snapshot keeps, whatever it is called.
    clients: BTreeMap<u64, usize>,
    /// What is being destroyed or taken back: nobody may open it meanwhile.
    going: BTreeSet<u64>,
    /// What its only client works on: whoever wants to open it waits until that is done.
    held: BTreeSet<u64>,
}

impl Register {
    /// Waits a moment for the clients of these to go.
    fn await_none(&self, state: &mut MutexGuard<'_, State>, ids: &[u64]) {
        let is_open = |state: &mut State| ids.iter().any(|id| state.clients.contains_key(id));
        // Whether they went, the caller sees from who is left.
        let _ = self.changed.wait_while_for(state, is_open, GOING_PATIENCE);
    }
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
        let volume = self.pool.volume(name)?;
        let id = volume.id();
        let in_use = {
            let mut state = self.register.state.lock();
            if self.register.changed.wait_while_for(&mut state, |s| s.held.contains(&id), GOING_PATIENCE).timed_out() {
                return Err(Error::new(ErrorKind::InUse, format!("'{name}' is being emptied")));
            }
            self.enter(&mut state, name, id)?
        };
        Ok(Arc::new(OpenDevice { volume, _in_use: in_use }))
    }

    /// Opens a volume that nobody has open, and does something to it before anybody else gets it. Unlike [`alone`](Self::alone), the volume
    /// stays what it is: whoever wants it meanwhile waits.
    ///
    /// # Errors
    /// `InUse`, `NotFound`, and those of `work`.
    pub fn open_alone(
        &self,
        name: &str,
        work: &mut dyn FnMut(&dyn BlockDevice) -> Result<()>,
    ) -> Result<Arc<dyn BlockDevice>> {
        let volume = self.pool.volume(name)?;
        let id = volume.id();
        let in_use = {
            let mut state = self.register.state.lock();
            self.register.await_none(&mut state, &[id]);
            if let Some(clients) = state.clients.get(&id) {
                return Err(Error::new(ErrorKind::InUse, format!("'{name}' is open by {clients} client(s)")));
            }
            let in_use = self.enter(&mut state, name, id)?;
            state.held.insert(id);
            in_use
        };
        let device = OpenDevice { volume, _in_use: in_use };
        let result = work(&device);
        self.register.state.lock().held.remove(&id);
        self.register.changed.notify_all();
        result?;
        Ok(Arc::new(device))
    }

    /// Counts one more client.
    fn enter(&self, state: &mut State, name: &str, id: u64) -> Result<InUse> {
        if state.going.contains(&id) {
            return Err(Error::new(ErrorKind::NotFound, format!("'{name}' is being destroyed or taken back")));
        }
        *state.clients.entry(id).or_default() += 1;
        Ok(InUse { id, register: Arc::clone(&self.register) })
    }

    /// How many clients have the volume or the snapshot open.
    pub fn clients(&self, name: &str) -> usize {
        let Ok(volume) = self.pool.volume(name) else { return 0 };
        self.register.state.lock().clients.get(&volume.id()).copied().unwrap_or(0)
    }

    /// Does something to volumes and snapshots that their clients would not survive; while one is in use only with `force`.
    ///
    /// # Errors
    /// `InUse`, `NotFound`, and those of `work`.
    pub fn alone<T>(&self, names: &[String], force: bool, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let named: Vec<_> =
            names.iter().map(|name| self.pool.volume(name).map(|v| (name, v.id()))).collect::<Result<_>>()?;
        let ids: Vec<u64> = named.iter().map(|(_, id)| *id).collect();
        {
            let mut state = self.register.state.lock();
            if !force {
                self.register.await_none(&mut state, &ids);
            }
            let busy = named.iter().find_map(|(name, id)| Some((*name, state.clients.get(id).copied()?)));
            if let Some((name, clients)) = busy.filter(|_| !force) {
                let message =
                    format!("'{name}' is open by {clients} client(s); disconnect them (or unmount), or say --force");
                return Err(Error::new(ErrorKind::InUse, message));
            }
            state.going.extend(&ids);
        }
        let result = work();
        self.register.state.lock().going.retain(|id| !ids.contains(id));
        result
    }

    /// Destroys a volume or a snapshot; one that is in use only with `force`, and a volume's snapshots if asked for
    /// (`recursive`).
    ///
    /// # Errors
    /// `InUse`, `NotFound`, and what the pool says.
    pub fn destroy(&self, name: &str, recursive: bool, force: bool) -> Result<()> {
        if self.pool.is_being_received(name) {
            // Nobody has it open.
            return self.pool.destroy(name, recursive);
        }
        let mut names = vec![name.to_owned()];
        if recursive && !name.contains('@') {
            names.extend(self.pool.snapshots(Some(name))?.into_iter().map(|s| format!("{name}@{}", s.name)));
        }
        self.alone(&names, force, || self.pool.destroy(name, recursive))
    }

    /// Takes a volume back to a snapshot; one that is in use only with `force`.
    ///
    /// # Errors
    /// `InUse`, `NotFound`, and what the pool says.
    pub fn rollback(&self, snapshot: &str, recursive: bool, force: bool) -> Result<()> {
        let volume = names::volume_of(snapshot).to_owned();
        self.alone(&[volume], force, || self.pool.rollback(snapshot, recursive))
    }

    /// What a front end is shown: all volumes, or those of `names`.
    pub fn shown(&self, names: &[String]) -> Arc<dyn DeviceSet> {
        let names = (!names.is_empty()).then(|| names.iter().cloned().collect());
        Arc::new(Shown { devices: self.clone(), names })
    }
}

/// Counts one client for as long as it lives.
struct InUse {
    id: u64,
    register: Arc<Register>,
}

impl Drop for InUse {
    fn drop(&mut self) {
        let mut state = self.register.state.lock();
        if let Some(clients) = state.clients.get_mut(&self.id) {
            *clients -= 1;
            if *clients == 0 {
                state.clients.remove(&self.id);
                self.register.changed.notify_all();
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
        // A volume's snapshots are shown with it.
        let volume = names::volume_of(name);
        self.names.as_ref().is_none_or(|names| names.contains(volume))
    }

    fn check_shown(&self, name: &str) -> Result<()> {
        if self.shows(name) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::NotFound, format!("volume '{name}' is not served")))
    }
}

impl DeviceSet for Shown {
    fn list(&self) -> Result<Vec<DeviceInfo>> {
        let mut list = self.devices.pool.list()?;
        list.retain(|info| self.shows(&info.name));
        Ok(list)
    }

    fn open(&self, name: &str) -> Result<Arc<dyn BlockDevice>> {
        self.check_shown(name)?;
        self.devices.open(name)
    }

    fn open_alone(
        &self,
        name: &str,
        work: &mut dyn FnMut(&dyn BlockDevice) -> Result<()>,
    ) -> Result<Arc<dyn BlockDevice>> {
        self.check_shown(name)?;
        self.devices.open_alone(name, work)
    }
}

/// A volume that counts as in use.
struct OpenDevice {
    volume: Arc<Volume>,
    _in_use: InUse,
}

impl BlockDevice for OpenDevice {
    fn size_bytes(&self) -> u64 {
        self.volume.size_bytes()
    }
    fn is_read_only(&self) -> bool {
        self.volume.is_read_only()
    }
    fn block_bytes(&self) -> (u32, u32) {
        self.volume.block_bytes()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.volume.read(offset, buf)
    }
    fn reads_together(&self) -> bool {
        self.volume.reads_together()
    }
    fn read_many(&self, next: &mut dyn FnMut() -> Option<Box<dyn PendingRead>>) {
        self.volume.read_many(next);
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
