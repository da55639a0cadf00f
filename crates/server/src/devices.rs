//! Clients of each open volume. Every client opens its volume here, so that `destroy` can refuse
//! while one is in use.

mod shown;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use engine::{Pool, SnapshotStatus, Volume, VolumeRef};
use parking_lot::{Condvar, Mutex, MutexGuard};
use surface::{BlockDevice, Client, DeviceId, Error, ErrorKind, Result};

use crate::clients::{Clients, names_of};
use crate::first_reads::FirstReads;
use crate::open_device::OpenDevice;
use crate::traffic::Traffics;
use operations::names;
pub use shown::Shown;

/// Time that an exclusive operation waits for clients to close the volume, and that an open waits
/// for an exclusive operation. The server notices a closed client late, more so under load.
pub const GOING_PATIENCE: Duration = Duration::from_secs(3);

/// Maximum number of a volume's clients in a list: with one line each, a reply has space for
/// thousands of volumes.
const LISTED_MAX: usize = 16;

/// Timeouts for the requests of a disconnected client.
#[derive(Debug, Clone, Copy)]
pub struct GonePatience {
    /// Grace period before its queued requests are dropped. Draining a full write buffer takes a
    /// second or two on a disk.
    pub finish: Duration,
    /// Further grace period before the next client is refused.
    pub drop: Duration,
}

impl Default for GonePatience {
    /// Together less than the timeout of an NBD handshake.
    fn default() -> Self {
        Self { finish: Duration::from_secs(5), drop: Duration::from_secs(15) }
    }
}

#[derive(Default)]
struct Register {
    patience: GonePatience,
    state: Mutex<State>,
    /// A client closed a volume, or an exclusive operation has ended.
    changed: Condvar,
}

/// Reference counts, by the number of a volume or snapshot, which renaming does not change.
#[derive(Default)]
struct Counts(BTreeMap<DeviceId, usize>);

impl Counts {
    fn of(&self, id: DeviceId) -> usize {
        self.0.get(&id).copied().unwrap_or(0)
    }

    fn add(&mut self, id: DeviceId) {
        *self.0.entry(id).or_default() += 1;
    }

    fn remove(&mut self, id: DeviceId) {
        if let Some(count) = self.0.get_mut(&id) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&id);
            }
        }
    }
}

#[derive(Default)]
struct State {
    clients: Clients,
    /// Volumes and snapshots that are being destroyed: no client may open them.
    going: Counts,
    /// Volumes and snapshots under an exclusive operation that leaves them in place: opening one
    /// waits for its end.
    held: Counts,
}

/// A volume or a snapshot under an exclusive operation.
struct Needed {
    volume: Arc<Volume>,
    /// It will be destroyed.
    goes: bool,
}

impl Register {
    /// Waits for the end of exclusive operations on a volume, up to the timeout; the caller checks
    /// whether any remain.
    fn await_let_go(&self, state: &mut MutexGuard<'_, State>, id: DeviceId) {
        let _ = self.changed.wait_while_for(state, |state| state.held.of(id) > 0, GOING_PATIENCE);
    }

    /// Waits until no client has a volume open and no exclusive operation runs: a client or
    /// operation that arrives during the wait goes first.
    fn await_free(&self, state: &mut MutexGuard<'_, State>, id: DeviceId) {
        let is_taken = |state: &mut State| state.held.of(id) > 0 || state.clients.count(id) > 0;
        let _ = self.changed.wait_while_for(state, is_taken, GOING_PATIENCE);
    }

    /// Waits until the requests of disconnected clients are done, so that none takes effect after
    /// the next operation.
    ///
    /// # Errors
    /// `InUse`, if that takes too long.
    fn await_gone(&self, state: &mut MutexGuard<'_, State>, ids: &[DeviceId]) -> Result<()> {
        loop {
            let gone = state.clients.gone(ids);
            if gone.is_empty() {
                return Ok(());
            }
            let is_there = |state: &mut State| state.clients.has_any(&gone);
            if !self.changed.wait_while_for(state, is_there, self.patience.finish).timed_out() {
                continue;
            }
            gone.iter().for_each(|(_, _, client)| client.give_up());
            if self.changed.wait_while_for(state, is_there, self.patience.drop).timed_out() {
                let message = format!(
                    "requests of a disconnected client are still running ({}): the next client must wait, because \
                     they could take effect after its own; the storage is slow or not responding, try again",
                    names_of(gone.iter().map(|(_, _, client)| client))
                );
                return Err(Error::new(ErrorKind::InUse, message));
            }
        }
    }

    /// Waits for these volumes' clients to close them, up to the timeout; the caller checks which
    /// remain.
    fn await_none(&self, state: &mut MutexGuard<'_, State>, ids: &[DeviceId], patience: Duration) {
        let is_open = |state: &mut State| ids.iter().any(|id| state.clients.count(*id) > 0);
        let _ = self.changed.wait_while_for(state, is_open, patience);
    }
}

/// The volumes of an open pool, with their clients.
#[derive(Clone)]
pub struct Devices {
    pool: Pool,
    register: Arc<Register>,
    first_reads: Arc<FirstReads>,
    traffics: Arc<Traffics>,
}

impl Devices {
    /// Volumes of a pool; no client has a device open yet.
    pub fn new(pool: Pool) -> Self {
        Self::with_patience(pool, GonePatience::default())
    }

    /// As [`new`](Self::new), with other timeouts for disconnected clients.
    pub fn with_patience(pool: Pool, patience: GonePatience) -> Self {
        let register = Arc::new(Register { patience, ..Register::default() });
        Self { pool, register, first_reads: Arc::default(), traffics: Arc::default() }
    }

    /// Returns the recording of a volume's first reads.
    pub fn first_reads(&self) -> &FirstReads {
        &self.first_reads
    }

    /// Returns the operations of clients by volume and door.
    pub fn traffics(&self) -> &Arc<Traffics> {
        &self.traffics
    }

    /// Opens a volume or a snapshot for a client. It is in use until the result is dropped.
    ///
    /// # Errors
    /// `NotFound`, and `InUse` during an exclusive operation.
    pub fn open(&self, name: &str, client: &Arc<dyn Client>) -> Result<Arc<dyn BlockDevice>> {
        self.open_volume(self.pool.volume(name)?, client)
    }

    /// As [`open`](Self::open).
    ///
    /// # Errors
    /// `InUse`, and `NotFound` while it is being destroyed.
    pub fn open_volume(&self, volume: Arc<Volume>, client: &Arc<dyn Client>) -> Result<Arc<dyn BlockDevice>> {
        let in_use = {
            let mut state = self.register.state.lock();
            self.register.await_let_go(&mut state, volume.id());
            self.await_gone(&mut state, &volume)?;
            self.admit(&mut state, &volume, client)?
        };
        Ok(Arc::new(self.opened(volume, in_use, &**client)))
    }

    /// Opens a volume that no client has open, and runs `work` on it before another client gets it:
    /// opening it meanwhile waits. Unlike with [`alone`](Self::alone), the caller has it open
    /// afterwards.
    fn open_alone(
        &self,
        volume: Arc<Volume>,
        client: &Arc<dyn Client>,
        work: &mut dyn FnMut(&dyn BlockDevice) -> Result<()>,
    ) -> Result<Arc<dyn BlockDevice>> {
        let id = volume.id();
        let (in_use, held) = {
            let mut state = self.register.state.lock();
            self.await_gone(&mut state, &volume)?;
            self.register.await_free(&mut state, id);
            if state.clients.count(id) > 0 {
                let message = format!("'{}' is {}", volume.name(), state.clients.words(id));
                return Err(Error::new(ErrorKind::InUse, message));
            }
            (self.admit(&mut state, &volume, client)?, self.keep(&mut state, id, false))
        };
        let device = self.opened(volume, in_use, &**client);
        work(&device)?;
        drop(held);
        Ok(Arc::new(device))
    }

    fn opened(&self, volume: Arc<Volume>, in_use: InUse, client: &dyn Client) -> OpenDevice {
        let traffic = self.traffics.of(volume.id(), client.door());
        OpenDevice::new(volume, in_use, self.first_reads.clone(), traffic)
    }

    fn await_gone(&self, state: &mut MutexGuard<'_, State>, volume: &Volume) -> Result<()> {
        self.register
            .await_gone(state, &[volume.id()])
            .map_err(|error| error.context(format_args!("'{}'", volume.name())))
    }

    /// Registers one more client, if no exclusive operation runs on the volume.
    fn admit(&self, state: &mut State, volume: &Volume, client: &Arc<dyn Client>) -> Result<InUse> {
        let id = volume.id();
        if state.held.of(id) > 0 {
            let message = format!("'{}' is being emptied, shrunk, rolled back or received", volume.name());
            return Err(Error::new(ErrorKind::InUse, message));
        }
        if state.going.of(id) > 0 {
            return Err(Error::new(ErrorKind::NotFound, format!("'{}' is being destroyed", volume.name())));
        }
        let number = state.clients.add(id, client);
        Ok(InUse { id, number, register: Arc::clone(&self.register) })
    }

    /// Prevents others from opening a volume; permanently if it `goes`.
    fn keep(&self, state: &mut State, id: DeviceId, goes: bool) -> Kept {
        state.of_fate(goes).add(id);
        Kept { id, goes, register: Arc::clone(&self.register) }
    }

    /// Returns the number of clients that have the volume or the snapshot open.
    pub fn clients(&self, name: &str) -> usize {
        let Ok(volume) = self.pool.volume(name) else { return 0 };
        self.register.state.lock().clients.count(volume.id())
    }

    /// The same, with the names of the first [`LISTED_MAX`] clients for messages.
    pub fn named_clients(&self, name: &str) -> (usize, Vec<String>) {
        let Ok(volume) = self.pool.volume(name) else { return (0, Vec::new()) };
        // Names are determined without the lock: no client waits for another one's name.
        let (count, listed) = {
            let state = self.register.state.lock();
            let open = state.clients.of(volume.id());
            (open.len(), open.iter().take(LISTED_MAX).map(|(_, client)| Arc::clone(client)).collect::<Vec<_>>())
        };
        (count, listed.iter().map(|client| client.name()).collect())
    }

    /// Runs `work` on a volume, which its clients would not survive; if it is in use, only with
    /// `force`. The volume stays: clients that open it meanwhile wait.
    ///
    /// # Errors
    /// `InUse`, `NotFound`, and those of `work`.
    pub fn alone<T>(&self, name: &str, force: bool, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.alone_with(self.pool.volume(name)?, force, work)
    }

    /// As [`alone`](Self::alone).
    ///
    /// # Errors
    /// `InUse`, and those of `work`.
    pub fn alone_with<T>(&self, volume: Arc<Volume>, force: bool, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.with_needed(&[Needed { volume, goes: false }], GOING_PATIENCE, force, work)
    }

    fn with_needed<T>(
        &self,
        needed: &[Needed],
        patience: Duration,
        force: bool,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let ids: Vec<DeviceId> = needed.iter().map(|needed| needed.volume.id()).collect();
        let _kept: Vec<Kept> = {
            let mut state = self.register.state.lock();
            if !patience.is_zero() {
                self.register.await_gone(&mut state, &ids)?;
            }
            if !force {
                self.register.await_none(&mut state, &ids, patience);
            }
            let busy = needed.iter().find(|needed| state.clients.count(needed.volume.id()) > 0).filter(|_| !force);
            if let Some(Needed { volume, .. }) = busy {
                let (name, open) = (volume.name(), state.clients.words(volume.id()));
                let message = format!("'{name}' is {open}; disconnect them (or unmount), or use --force");
                return Err(Error::new(ErrorKind::InUse, message));
            }
            needed.iter().map(|needed| self.keep(&mut state, needed.volume.id(), needed.goes)).collect()
        };
        let done = work()?;
        needed.iter().filter(|needed| needed.goes).for_each(|needed| self.traffics.retire(needed.volume.id()));
        Ok(done)
    }

    /// Destroys a volume, a folder or a snapshot; with `recursive`, also a volume's snapshots and
    /// everything in a folder or a share. Objects in use are destroyed only with `force`.
    ///
    /// # Errors
    /// `InUse`, `NotFound`, and those of the pool.
    pub fn destroy<'a>(&self, meant: impl Into<VolumeRef<'a>>, recursive: bool, force: bool) -> Result<()> {
        let volume = match meant.into() {
            VolumeRef::Name(name) if self.pool.is_folder(name) => return self.destroy_folder(name, recursive, force),
            // No client can have it open.
            VolumeRef::Name(name) if self.pool.is_being_received(name) => return self.pool.destroy(name, recursive),
            meant => self.pool.volume_by_ref(meant)?,
        };
        let (id, name) = (volume.id(), volume.name());
        let needed = match recursive && !name.contains('@') {
            true if volume.is_share() => self.inside(&name)?,
            true => {
                let mut needed = self.going(&self.pool.snapshots(Some(&name))?)?;
                needed.insert(0, Needed { volume, goes: true });
                needed
            }
            false => vec![Needed { volume, goes: true }],
        };
        self.with_needed(&needed, GOING_PATIENCE, force, || self.pool.destroy(id, recursive))
    }

    /// Destroys a folder; with `recursive`, everything in it.
    fn destroy_folder(&self, name: &str, recursive: bool, force: bool) -> Result<()> {
        let needed = if recursive { self.inside(name)? } else { Vec::new() };
        self.with_needed(&needed, GOING_PATIENCE, force, || self.pool.destroy(name, recursive))
    }

    /// Returns everything in a folder or a share.
    fn inside(&self, name: &str) -> Result<Vec<Needed>> {
        let mut needed = Vec::new();
        for (id, volume) in self.pool.volumes_in(name)? {
            needed.push(Needed { volume: self.pool.volume_of(id)?, goes: true });
            needed.extend(self.going(&self.pool.snapshots(Some(&volume))?)?);
        }
        Ok(needed)
    }

    /// Destroys a snapshot, if no client has it open.
    ///
    /// # Errors
    /// `InUse`, `NotFound`, and those of the pool.
    pub fn destroy_idle(&self, snapshot: &SnapshotStatus) -> Result<()> {
        let going = self.going(std::slice::from_ref(snapshot))?;
        self.with_needed(&going, Duration::ZERO, false, || self.pool.destroy(snapshot.id, false))
    }

    fn going(&self, snapshots: &[SnapshotStatus]) -> Result<Vec<Needed>> {
        snapshots.iter().map(|snapshot| Ok(Needed { volume: self.pool.volume_of(snapshot.id)?, goes: true })).collect()
    }

    /// Rolls a volume back to a snapshot; with `recursive`, newer snapshots are destroyed. If any
    /// of these is in use, only with `force`.
    ///
    /// # Errors
    /// `InUse`, `NotFound`, and those of the pool.
    pub fn rollback(&self, snapshots: &[String], recursive: bool, force: bool) -> Result<()> {
        let (mut ids, mut needed) = (Vec::new(), Vec::new());
        for snapshot in snapshots {
            let volume = names::volume_of(snapshot);
            // By its number: while its clients close it, another object may get its name.
            let id = self.pool.volume(snapshot)?.id();
            needed.push(Needed { volume: self.pool.volume(volume)?, goes: false });
            if recursive {
                // Oldest first.
                let all = self.pool.snapshots(Some(volume))?;
                let newer = all.iter().position(|snapshot| snapshot.id == id).map_or(&[][..], |at| &all[at + 1..]);
                needed.extend(self.going(newer)?);
            }
            ids.push(id);
        }
        self.with_needed(&needed, GOING_PATIENCE, force, || {
            for (done, id) in ids.into_iter().enumerate() {
                self.pool.rollback(id, recursive).map_err(|error| match done {
                    0 => error,
                    _ => error.context(format_args!("after {} were rolled back", snapshots[..done].join(", "))),
                })?;
            }
            Ok(())
        })
    }

    /// Returns the volumes for a front end: all, or those of `names`.
    pub fn shown(&self, names: &[String]) -> Arc<Shown> {
        Arc::new(Shown::new(self.clone(), names))
    }
}

impl State {
    fn of_fate(&mut self, goes: bool) -> &mut Counts {
        if goes { &mut self.going } else { &mut self.held }
    }
}

/// Registers one client for as long as it lives.
pub(crate) struct InUse {
    id: DeviceId,
    number: u64,
    register: Arc<Register>,
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.register.state.lock().clients.remove(self.id, self.number);
        self.register.changed.notify_all();
    }
}

/// Prevents others from opening a volume for as long as it lives.
struct Kept {
    id: DeviceId,
    /// It is being destroyed.
    goes: bool,
    register: Arc<Register>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.register.state.lock().of_fate(self.goes).remove(self.id);
        self.register.changed.notify_all();
    }
}

/// Returns whether an object named `inner` lies in the folder `outer`.
pub fn is_in(inner: &str, outer: &str) -> bool {
    inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with('/'))
}
