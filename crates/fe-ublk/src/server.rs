//! The block devices of a server: owns them, the pool for their requests, and the thread that
//! follows the sizes of their volumes.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use surface::{DeviceInfo, DeviceSet, Error, ErrorKind, Held, Pool, Result};

use crate::control::Kernel;
use crate::device::{Context, Device, remove};
use crate::mark::Owner;
use crate::takeover::{self, Left, found, left_by};
use crate::wire::State;

/// Time between two looks at the sizes of volumes: an administrator waits for a new size.
const TICK: Duration = Duration::from_secs(1);

/// Sink for messages, one line each.
pub type Log = Arc<dyn Fn(&str) + Send + Sync>;

/// A device that is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// Name of the volume or of the snapshot.
    pub name: String,
    /// Queues, each with a thread; the kernel makes no more than there are processors.
    pub queues: u16,
    /// Requests of a queue at a time, each with a buffer of 256 KiB.
    pub depth: u16,
}

impl Spec {
    /// Most queues that may be asked for.
    pub const QUEUES_MAX: u16 = 64;
    /// Most requests of a queue that may be asked for.
    pub const DEPTH_MAX: u16 = 1024;

    /// A device with as many queues as there are processors, up to 8: more would wait for each
    /// other.
    pub fn of(name: String) -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self { name, queues: cpus.clamp(1, 8) as u16, depth: 64 }
    }
}

/// Settings of a server.
#[derive(Clone)]
pub struct ServerOptions {
    /// Threads for requests that wait, shared by all devices. They wait for the disk, so more than
    /// processors.
    pub threads: usize,
    /// The pool, as the marks of its devices know it.
    pub owner: Owner,
    /// Acknowledged data survives the death of this server. Without that its devices end with it:
    /// a file system would go on with data that is lost.
    pub keeps_acknowledged: bool,
    /// Receives messages about devices, and failures of the storage.
    pub log: Option<Log>,
}

/// Checks that this machine has the driver, and this process the rights to use it.
///
/// # Errors
/// [`Unsupported`](ErrorKind::Unsupported) and [`Denied`](ErrorKind::Denied), with the remedy.
pub fn check() -> Result<()> {
    Kernel::open().map(drop)
}

/// See the module's text.
pub struct Server {
    context: Arc<Context>,
    options: ServerOptions,
    shared: Arc<Shared>,
    ticking: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<Devices>,
    changed: Condvar,
}

#[derive(Default)]
struct Devices {
    all: Vec<Device>,
    is_stopping: bool,
}

impl Server {
    /// Serves a device for each of `specs`. Devices that an earlier server of the pool has left are
    /// taken over, and their requests go on.
    ///
    /// # Errors
    /// Those of [`check`], of the driver, and of opening volumes. Devices that were taken over wait
    /// as before then.
    pub fn start(devices: Arc<dyn DeviceSet>, specs: &[Spec], options: ServerOptions) -> Result<Self> {
        let fail = |error: std::io::Error| Error::from_io("cannot start the ublk server", error);
        let context = Arc::new(Context {
            driver: Arc::new(Kernel::open()?),
            devices,
            pool: Arc::new(Pool::start("ublk", options.threads).map_err(fail)?),
            held: Arc::new(Held::start("ublk-held").map_err(fail)?),
            log: options.log.clone(),
        });
        let shared = Arc::<Shared>::default();
        let mut server = Self { context, options, shared: Arc::clone(&shared), ticking: None };
        let begun = server.begin_all(specs).and_then(|()| {
            let ticking = std::thread::Builder::new().name("ublk-sizes".to_owned());
            server.ticking = Some(ticking.spawn(move || shared.follow_sizes()).map_err(fail)?);
            Ok(())
        });
        begun.inspect_err(|_| server.give_back())?;
        Ok(server)
    }

    fn begin_all(&self, specs: &[Spec]) -> Result<()> {
        let wanted = specs.iter().map(|spec| Ok((spec, self.context.devices.find(&spec.name)?)));
        let wanted = wanted.collect::<Result<Vec<_>>>()?;
        let left = left_by(&*self.context.driver, self.options.owner);
        for Left { volume, info } in &left {
            if info.state == State::Dead {
                remove(&self.context, info.number);
            } else if !wanted.iter().any(|(_, of)| of.id == *volume) {
                self.tell_left(*volume, info.number);
            }
        }
        for (spec, of) in wanted {
            let device = self.begin(spec, &of, &left)?;
            self.shared.state.lock().all.push(device);
        }
        Ok(())
    }

    fn begin(&self, spec: &Spec, of: &DeviceInfo, left: &[Left]) -> Result<Device> {
        let Self { context, options, .. } = self;
        let outlives = options.keeps_acknowledged;
        if let Some(info) = found(left, of.id, outlives)? {
            return Device::take_over(context, spec, of.id, &info);
        }
        let mark = options.owner.mark(of.id).ok_or_else(|| {
            let text = format!("'{}' has the number {}, which has no room in a block device's mark", of.name, of.id.0);
            Error::new(ErrorKind::Unsupported, text)
        })?;
        Device::make(context, spec, of.id, mark, outlives)
    }

    /// Reports a device that waits, and whose volume is not asked for.
    fn tell_left(&self, volume: surface::DeviceId, number: u32) {
        let path = takeover::path(number);
        match self.context.devices.look(volume) {
            Ok(info) => self.context.tell(&format!(
                "{path} waits, as an earlier server left it: --ublk {} serves it again, and then an orderly stop \
                 removes it",
                info.name
            )),
            // Nothing can serve it any more.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.context.tell(&format!("{path} is removed: its volume was destroyed"));
                remove(&self.context, number);
            }
            Err(_) => {}
        }
    }

    /// Volumes and their block devices.
    pub fn served(&self) -> Vec<(String, String)> {
        self.shared.state.lock().all.iter().map(|device| (device.spec().name.clone(), device.path())).collect()
    }

    /// Whether an earlier server has made any of the devices.
    pub fn has_taken_over(&self) -> bool {
        self.shared.state.lock().all.iter().any(Device::was_taken_over)
    }

    /// Refuses if any device is in use.
    ///
    /// # Errors
    /// [`InUse`](ErrorKind::InUse).
    pub fn check_free(&self) -> Result<()> {
        self.shared.state.lock().all.iter().try_for_each(Device::check_free)
    }

    /// Serves `specs` from now on: devices come and go, and the others stay.
    ///
    /// # Errors
    /// [`InUse`](ErrorKind::InUse) for a device that would go, and those of a start. The devices
    /// are as before then; one that had to be made again may have another number.
    pub fn follow(&mut self, specs: &[Spec]) -> Result<()> {
        let mut state = self.shared.state.lock();
        let goes = |device: &Device| !specs.contains(device.spec());
        state.all.iter().filter(|device| goes(device)).try_for_each(Device::check_free)?;
        let (gone, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut state.all).into_iter().partition(goes);
        state.all = kept;
        let old: Vec<_> = gone.iter().map(|device| device.spec().clone()).collect();
        gone.into_iter().for_each(Device::stop);
        let left = left_by(&*self.context.driver, self.options.owner);
        let make = |spec: &Spec| self.begin(spec, &self.context.devices.find(&spec.name)?, &left);
        let is_new = |spec: &&Spec| !state.all.iter().any(|device| device.spec() == *spec);
        let new: Vec<_> = specs.iter().filter(is_new).cloned().collect();
        let mut made = Vec::new();
        for spec in &new {
            match make(spec) {
                Ok(device) => made.push(device),
                Err(error) => {
                    made.into_iter().for_each(Device::give_back);
                    for spec in &old {
                        match make(spec) {
                            Ok(device) => state.all.push(device),
                            Err(lost) => self.context.tell(&format!("'{}' cannot be served again: {lost}", spec.name)),
                        }
                    }
                    return Err(error);
                }
            }
        }
        state.all.extend(made);
        Ok(())
    }

    /// Leaves the devices to the next server: their requests wait. Returns whether there are any.
    pub fn leave(&mut self) -> bool {
        let devices = self.end();
        let is_left = devices.iter().any(Device::outlives);
        devices.iter().for_each(Device::begin_leaving);
        self.context.held.close();
        devices.into_iter().for_each(Device::leave);
        is_left
    }

    /// Removes the devices that this server has made, and leaves the others to the next one.
    pub fn give_back(&mut self) {
        let (old, new): (Vec<_>, Vec<_>) = self.end().into_iter().partition(Device::was_taken_over);
        old.iter().for_each(Device::begin_leaving);
        new.iter().for_each(Device::begin_stop);
        self.context.held.close();
        new.into_iter().for_each(Device::stop);
        old.into_iter().for_each(Device::leave);
    }

    /// Removes all devices.
    pub fn stop(mut self) {
        self.stop_once();
    }

    fn stop_once(&mut self) {
        let devices = self.end();
        devices.iter().for_each(Device::begin_stop);
        self.context.held.close();
        devices.into_iter().for_each(Device::stop);
        self.context.pool.stop();
    }

    /// Ends the thread, and takes the devices.
    fn end(&mut self) -> Vec<Device> {
        let mut state = self.shared.state.lock();
        state.is_stopping = true;
        let devices = std::mem::take(&mut state.all);
        drop(state);
        self.shared.changed.notify_all();
        if let Some(ticking) = self.ticking.take() {
            // If it panicked, that was reported.
            drop(ticking.join());
        }
        devices
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop_once();
    }
}

impl Shared {
    fn follow_sizes(&self) {
        let mut state = self.state.lock();
        while !state.is_stopping {
            state.all.iter().for_each(Device::follow_size);
            self.changed.wait_for(&mut state, TICK);
        }
    }
}
