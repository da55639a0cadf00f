//! A block device of this machine, from its start to its end. Owns the threads of its queues, and
//! the order of the steps that the kernel demands.
//!
//! | | steps |
//! | --- | --- |
//! | made | the driver adds it; volume opened; parameters; queues; the driver starts it |
//! | taken over | volume opened; the driver prepares it; queues; the driver lets requests in |
//! | stopped | kernel caches written; the driver stops it; queues end; the driver deletes it |
//! | left | the driver keeps new requests back; queues end, and with them this server's part |

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use surface::{BlockDevice, Client, DeviceId, DeviceSet, Error, ErrorKind, Held, Lane, NamedClient, Pool, Result};

use crate::control::Driver;
use crate::execute::Disk;
use crate::geometry::{self, BUFFER_BYTES};
use crate::queue::Queue;
use crate::server::{Log, Spec};
use crate::takeover::{check_shape, failed, path, prepare};
use crate::task::{Dispatch, Target, Task};
use crate::wire::{Info, features};

/// The door's name in documents.
const DOOR: &str = "ublk";
/// Time for file systems on a device that is in use to be written back before it is removed. Well
/// within the 90 s after which systemd kills, with time left to close the pool.
const SYNC_PATIENCE: Duration = Duration::from_secs(45);
/// Time for a queue to have a tag without a request when the device is left.
const QUIESCE_PATIENCE: Duration = Duration::from_secs(5);

/// State that all devices of a server share.
pub struct Context {
    /// The kernel's driver.
    pub driver: Arc<dyn Driver>,
    /// The volumes.
    pub devices: Arc<dyn DeviceSet>,
    /// Threads for requests that wait.
    pub pool: Arc<Pool<Task>>,
    /// Writes that wait for room.
    pub held: Arc<Held>,
    /// Sink for messages.
    pub log: Option<Log>,
}

impl Context {
    /// Logs a message.
    pub fn tell(&self, text: &str) {
        if let Some(log) = &self.log {
            log(&format!("ublk: {text}"));
        }
    }

    fn open(&self, id: DeviceId, number: u32) -> Result<Arc<dyn BlockDevice>> {
        let client: Arc<dyn Client> = NamedClient::at(DOOR, format!("block device {} (ublk)", path(number)));
        self.devices.open(id, &client)
    }
}

/// See the module's text.
pub struct Device {
    context: Arc<Context>,
    spec: Spec,
    number: u32,
    flags: u64,
    target: Arc<Target>,
    queues: Queues,
    /// Sectors that the kernel knows.
    sectors: AtomicU64,
    is_size_told: AtomicBool,
    was_taken_over: bool,
}

impl Device {
    /// Makes a device for a volume, which carries `mark`. `outlives`: it waits for the next server
    /// when this one dies.
    ///
    /// # Errors
    /// Those of the driver, and of opening the volume. Nothing is left of the device then.
    pub fn make(context: &Arc<Context>, spec: &Spec, id: DeviceId, mark: u64, outlives: bool) -> Result<Self> {
        let wanted = Info {
            queues: spec.queues,
            depth: spec.depth,
            buffer_bytes: BUFFER_BYTES,
            number: u32::MAX,
            flags: if outlives {
                let quiesce = context.driver.features() & features::QUIESCE;
                features::USER_RECOVERY | features::USER_RECOVERY_REISSUE | quiesce
            } else {
                0
            },
            mark,
            ..Info::default()
        };
        let info = context.driver.add(&wanted).map_err(|error| failed("a block device (ublk)", "be made", error))?;
        Self::begin(context, spec, id, &info, false).inspect_err(|_| remove(context, info.number))
    }

    /// Takes over a device that an earlier server has left.
    ///
    /// # Errors
    /// Those of the driver, and of opening the volume. The device waits as before then.
    pub fn take_over(context: &Arc<Context>, spec: &Spec, id: DeviceId, info: &Info) -> Result<Self> {
        Self::begin(context, spec, id, info, true)
    }

    fn begin(context: &Arc<Context>, spec: &Spec, id: DeviceId, info: &Info, is_left: bool) -> Result<Self> {
        let (driver, path) = (&context.driver, path(info.number));
        check_shape(info)?;
        let volume = context.open(id, info.number)?;
        if is_left {
            prepare(&**driver, info, &|text| context.tell(text))?;
        } else {
            let parameters = geometry::parameters(&*volume, info.buffer_bytes);
            let set = driver.set_parameters(info.number, &parameters);
            set.map_err(|error| failed(&path, "be set up", error))?;
        }
        let target = Arc::new(Target {
            reads_together: volume.reads_together(),
            disk: Disk::new(volume),
            name: spec.name.clone(),
            held: Arc::clone(&context.held),
            is_stopping: AtomicBool::new(false),
            is_left: AtomicBool::new(false),
            log: context.log.clone(),
            told: AtomicU32::new(0),
        });
        let queues = Queues::start(info, &target, &context.pool);
        let queues = queues.map_err(|error| failed(&path, "be served", error))?;
        let sectors = if is_left {
            driver.end_recovery(info.number).and_then(|()| driver.sectors(info.number))
        } else {
            driver.start(info.number).map(|()| geometry::sectors(target.disk.device()))
        };
        let sectors = match sectors {
            Ok(sectors) => AtomicU64::new(sectors),
            Err(error) => {
                queues.end();
                return Err(failed(&path, "be started", error));
            }
        };
        let device = Self {
            context: Arc::clone(context),
            spec: spec.clone(),
            number: info.number,
            flags: info.flags,
            target,
            queues,
            sectors,
            is_size_told: AtomicBool::new(false),
            was_taken_over: is_left,
        };
        if is_left {
            context.tell(&format!("'{}': {path} was taken over from process {}", spec.name, info.pid));
            if (info.queues, info.depth) != (spec.queues, spec.depth) {
                context.tell(&format!(
                    "'{}': {path} keeps its {} queues of {} requests until it is removed",
                    spec.name, info.queues, info.depth
                ));
            }
            device.follow_size();
        }
        Ok(device)
    }

    /// How it was asked for.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// The block device.
    pub fn path(&self) -> String {
        path(self.number)
    }

    /// Whether an earlier server has made it.
    pub fn was_taken_over(&self) -> bool {
        self.was_taken_over
    }

    /// Whether it waits for the next server when this one dies.
    pub fn outlives(&self) -> bool {
        self.flags & features::USER_RECOVERY != 0
    }

    /// Makes the kernel follow the size of the volume.
    pub fn follow_size(&self) {
        let (driver, path) = (&self.context.driver, self.path());
        let sectors = geometry::sectors(self.target.disk.device());
        if self.sectors.load(Ordering::Relaxed) == sectors {
            return;
        }
        let changed = if driver.features() & features::UPDATE_SIZE == 0 {
            Err("the kernel cannot resize it (Linux 6.16 can): the device that is made after an orderly stop of the \
                 server has the new size"
                .to_owned())
        } else {
            driver.update_size(self.number, sectors).map_err(|error| format!("the kernel does not resize it: {error}"))
        };
        match changed {
            Ok(()) => self.sectors.store(sectors, Ordering::Relaxed),
            Err(why) if !self.is_size_told.swap(true, Ordering::Relaxed) => {
                self.context.tell(&format!("'{}': {path}: {why}", self.spec.name));
            }
            Err(_) => {}
        }
    }

    /// Refuses if a file system, or another driver, uses it.
    ///
    /// # Errors
    /// [`InUse`](ErrorKind::InUse).
    pub fn check_free(&self) -> Result<()> {
        let path = self.path();
        match rustix::fs::open(&path, OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty()) {
            Err(Errno::BUSY) => {
                let text = format!("{path} ('{}') is in use: unmount it first", self.spec.name);
                Err(Error::new(ErrorKind::InUse, text))
            }
            // The driver decides about all else.
            _ => Ok(()),
        }
    }

    /// Has its held requests tried a last time from now on.
    pub fn begin_stop(&self) {
        self.target.is_stopping.store(true, Ordering::Release);
    }

    /// Leaves its held requests to the next server from now on.
    pub fn begin_leaving(&self) {
        if self.outlives() {
            self.target.is_left.store(true, Ordering::Release);
        } else {
            self.begin_stop();
        }
    }

    /// Removes it. A file system on it is written back first; programs that go on get errors. One
    /// whose queue has failed waits already, and is left to the next server.
    pub fn stop(self) {
        if self.outlives() && self.target.is_left.load(Ordering::Acquire) {
            return self.queues.end();
        }
        self.begin_stop();
        self.write_back();
        let (driver, name) = (&self.context.driver, &self.spec.name);
        if let Err(error) = driver.stop(self.number) {
            self.context.tell(&format!("'{name}': {}", failed(&self.path(), "be stopped", error)));
        }
        self.queues.end();
        if let Err(error) = driver.delete(self.number) {
            self.context.tell(&format!("'{name}': {}", failed(&path(self.number), "be removed", error)));
        }
    }

    /// Leaves it to the next server: requests wait from now on. One that ends with its server is
    /// removed.
    pub fn leave(self) {
        if !self.outlives() {
            return self.stop();
        }
        self.begin_leaving();
        if self.flags & features::QUIESCE != 0
            && let Err(error) = self.context.driver.quiesce(self.number, QUIESCE_PATIENCE)
        {
            // Without it the kernel hands some requests over twice, which changes nothing.
            self.context.tell(&format!("'{}': {}", self.spec.name, failed(&self.path(), "be quiesced", error)));
        }
        self.queues.end();
    }

    /// Removes it if this server has made it, and leaves it to the next one otherwise.
    pub fn give_back(self) {
        if self.was_taken_over { self.leave() } else { self.stop() }
    }

    /// Writes the kernel's caches of the device back.
    fn write_back(&self) {
        let path = self.path();
        // Written by programs that have the device open.
        if let Ok(file) = rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            && let Err(error) = rustix::fs::fsync(&file)
        {
            self.context.tell(&format!("'{}': {path} could not be written back: {error}", self.spec.name));
        }
        if self.check_free().is_ok() {
            return;
        }
        let (send, done) = mpsc::channel();
        // All file systems: which of them lie on the device, perhaps through others, is not known.
        // In a thread of its own, because one of them may not answer.
        let synced = thread::Builder::new().name("ublk-sync".to_owned()).spawn(move || {
            rustix::fs::sync();
            let _ = send.send(());
        });
        let is_synced = synced.is_ok() && done.recv_timeout(SYNC_PATIENCE).is_ok();
        let was = if is_synced {
            "was synced".to_owned()
        } else {
            format!("could not be synced within {} s", SYNC_PATIENCE.as_secs())
        };
        self.context.tell(&format!(
            "'{}': {path} is in use, {was}, and is removed now: later operations there fail; to avoid this, unmount \
             before the server stops",
            self.spec.name
        ));
    }
}

/// Removes a device that no queue serves.
pub fn remove(context: &Context, number: u32) {
    let removed = context.driver.stop(number).and_then(|()| context.driver.delete(number));
    if let Err(error) = removed {
        context.tell(&failed(&path(number), "be removed", error).to_string());
    }
}

/// The threads of a device's queues.
struct Queues {
    queues: Vec<Arc<Queue>>,
    threads: Vec<JoinHandle<()>>,
    pool: Arc<Pool<Task>>,
    lane: Lane,
}

impl Queues {
    /// Starts a thread for each; all tags are with the kernel when this returns.
    fn start(info: &Info, target: &Arc<Target>, pool: &Arc<Pool<Task>>) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let file = Arc::new(rustix::fs::open(format!("/dev/ublkc{}", info.number), flags, Mode::empty())?);
        let queues: io::Result<Vec<_>> =
            (0..info.queues).map(|index| Queue::new(index, info.depth, info.buffer_bytes as usize)).collect();
        let mut started = Self { queues: queues?, threads: Vec::new(), pool: Arc::clone(pool), lane: pool.open() };
        let begun = started.begin(&file, info, target);
        // The threads have the file: it is closed with the last of them.
        drop(file);
        match begun {
            Ok(()) => Ok(started),
            Err(error) => {
                started.end();
                Err(error)
            }
        }
    }

    fn begin(&mut self, file: &Arc<OwnedFd>, info: &Info, target: &Arc<Target>) -> io::Result<()> {
        let (begun, has_begun) = mpsc::channel();
        for (index, queue) in self.queues.iter().enumerate() {
            let (queue, file, begun) = (Arc::clone(queue), Arc::clone(file), begun.clone());
            let mut dispatch = Dispatch::new(Arc::clone(target), Arc::clone(&self.pool), self.lane);
            let target = Arc::clone(target);
            let serve = move || {
                if let Err(error) = queue.serve(&file, &mut dispatch, &begun) {
                    target.is_left.store(true, Ordering::Release);
                    target.tell(&format!(
                        "queue {index} has failed, and the device waits for the next server: {error}; restart the server"
                    ));
                }
            };
            let name = format!("ublk{}-{index}", info.number);
            self.threads.push(thread::Builder::new().name(name).spawn(serve)?);
        }
        drop(begun);
        has_begun.iter().take(self.queues.len()).collect()
    }

    /// Ends the threads once they have answered all that they have begun.
    fn end(self) {
        self.queues.iter().for_each(|queue| queue.end());
        for thread in self.threads {
            // If it panicked, that was reported; it takes nothing more either way.
            drop(thread.join());
        }
        self.queues.iter().for_each(|queue| queue.await_settled());
        self.pool.close(self.lane);
    }
}
