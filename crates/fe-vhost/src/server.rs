//! The server: owns the sockets, the thread that accepts at them, the register of sessions and the
//! pool.
//!
//! The accepting thread also follows the set of devices, once a second: devices that have come get
//! a socket, those that have gone lose theirs, and monitors learn of another size.
//!
//! How it stops: sockets are removed; each session takes nothing more, answers its requests,
//! and closes; requests that wait for room are left in the in-flight memory, to the next server.
//! The monitors reconnect to that.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use rustix::time::Timespec;
use surface::{Client, DeviceId, DeviceSet, Error, Held, Pool, Result};

use crate::caller::Caller;
use crate::directory::Directory;
use crate::execute::Disk;
use crate::session::{Channel, Session};
use crate::socket::Ended;
use crate::task::{Target, Task};

/// Time between two looks at the set of devices: an administrator waits for a new socket, and a
/// guest for its new size.
const TICK: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// Pause after accept failed for want of descriptors or memory: others must give some back first.
const ACCEPT_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Sink for messages about clients, one line each.
pub type Log = Arc<dyn Fn(&str) + Send + Sync>;

/// Limits and sizes of a server. All have defaults.
#[derive(Clone)]
pub struct ServerOptions {
    /// Threads for requests that wait, shared by all sessions. They wait for the disk, so more than
    /// processors. Each has one request's data in memory, some dozens of short reads, or 32 MiB.
    pub threads: usize,
    /// Most sessions at once. Each has a thread, one for each queue, and some 100 descriptors at
    /// most.
    pub sessions_max: usize,
    /// Most sockets, each a descriptor.
    pub sockets_max: usize,
    /// Queues of a disk. Each that a guest uses has a thread.
    pub queues: u16,
    /// Beginning of all serial numbers, which makes them differ from those of another pool. With
    /// the rest they have at most 20 bytes.
    pub serial_prefix: String,
    /// Receives the reasons why sessions ended or were refused, and failures of the storage.
    pub log: Option<Log>,
}

impl Default for ServerOptions {
    /// As many queues as there are processors: more would only wait for each other.
    fn default() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            threads: 16,
            sessions_max: 64,
            sockets_max: 1024,
            queues: cpus.clamp(1, 64) as u16,
            serial_prefix: String::new(),
            log: None,
        }
    }
}

/// A vhost-user-blk server of a set of devices.
pub struct Server {
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

struct Shared {
    devices: Arc<dyn DeviceSet>,
    options: ServerOptions,
    pool: Arc<Pool<Task>>,
    held: Arc<Held>,
    register: Mutex<Register>,
    /// The register became empty.
    empty: Condvar,
    is_stopping: Arc<AtomicBool>,
    /// Wakes the accepting thread when the server stops.
    wake: OwnedFd,
}

#[derive(Default)]
struct Register {
    sessions: HashMap<u64, Entry>,
    next_id: u64,
}

/// A session as the register knows it.
#[derive(Clone)]
struct Entry {
    caller: Arc<Caller>,
    channel: Arc<Channel>,
    /// Once the device is open.
    target: Arc<Mutex<Option<Arc<Target>>>>,
}

impl Server {
    /// Serves `devices` on sockets below `directory` until it is stopped or dropped.
    ///
    /// # Errors
    /// [`InUse`](surface::ErrorKind::InUse) when another server has the directory, and errors of
    /// the system.
    pub fn start(devices: Arc<dyn DeviceSet>, directory: &Path, options: ServerOptions) -> Result<Self> {
        let fail = |error: std::io::Error| Error::from_io("cannot start the vhost-user server", error);
        let mut directory = Directory::open(directory, options.sockets_max)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|error| fail(error.into()))?;
        let shared = Arc::new(Shared {
            devices,
            pool: Arc::new(Pool::start("vhost", options.threads).map_err(fail)?),
            held: Arc::new(Held::start("vhost-held").map_err(fail)?),
            options,
            register: Mutex::default(),
            empty: Condvar::new(),
            is_stopping: Arc::default(),
            wake,
        });
        // The first sockets are there when the server is said to be ready.
        shared.follow(&mut directory);
        let accepting = {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new().name("vhost-accept".to_owned()).spawn(move || shared.accept_all(directory))
        };
        Ok(Self { shared, accepting: Some(accepting.map_err(fail)?) })
    }

    /// Sessions now.
    pub fn sessions(&self) -> usize {
        self.shared.register.lock().sessions.len()
    }

    /// Removes the sockets, answers the requests under way, and closes all sessions.
    pub fn stop(mut self) {
        self.stop_once();
    }

    fn stop_once(&mut self) {
        let Some(accepting) = self.accepting.take() else { return };
        let shared = &self.shared;
        shared.is_stopping.store(true, Ordering::Release);
        // A counter that is full would wake as well; no other error is possible.
        let _ = rustix::io::write(&shared.wake, &1_u64.to_ne_bytes());
        // If it panicked, that was reported; it accepts no more either way.
        drop(accepting.join());
        shared.held.close();
        let mut register = shared.register.lock();
        register.sessions.values().for_each(|entry| entry.caller.hang_up());
        // Only the device can hold them up, and it must not be left with requests half done.
        while !register.sessions.is_empty() {
            shared.empty.wait(&mut register);
        }
        drop(register);
        shared.pool.stop();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop_once();
    }
}

impl Shared {
    fn log(&self, text: std::fmt::Arguments<'_>) {
        if let Some(log) = &self.options.log {
            log(&format!("vhost-user: {text}"));
        }
    }

    /// The accepting thread. The directory is its own: its sockets go when it ends.
    fn accept_all(self: &Arc<Self>, mut directory: Directory) {
        let mut is_short = false;
        while !self.is_stopping.load(Ordering::Acquire) {
            let mut waiting: Vec<_> =
                directory.doors().map(|door| PollFd::from_borrowed_fd(door.listener(), PollFlags::IN)).collect();
            waiting.push(PollFd::new(&self.wake, PollFlags::IN));
            let polled = poll(&mut waiting, Some(&TICK));
            drop(waiting);
            match polled {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    self.log(format_args!("waiting for clients failed: {error}"));
                    self.pause();
                }
            }
            for door in directory.doors() {
                match rustix::net::accept_with(door.listener(), SocketFlags::CLOEXEC) {
                    Ok(socket) => {
                        is_short = false;
                        self.admit(socket, door.device(), door.name());
                    }
                    Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                        if !std::mem::replace(&mut is_short, true) {
                            self.log(format_args!(
                                "no file descriptors or memory for another client: it waits; raise the limit (ulimit -n, \
                                 LimitNOFILE=)"
                            ));
                        }
                        self.pause();
                    }
                    // No client, or one that left at once.
                    Err(_) => {}
                }
            }
            self.follow(&mut directory);
        }
    }

    fn pause(&self) {
        // The pause is over on every result.
        let _ = poll(&mut [PollFd::new(&self.wake, PollFlags::IN)], Some(&ACCEPT_PAUSE));
    }

    /// Gives each device its socket, and notifies monitors of other sizes.
    fn follow(&self, directory: &mut Directory) {
        match self.devices.list() {
            Ok(list) => directory.follow(&list, |text| self.log(format_args!("{text}"))),
            // The same failure meets every command; the sockets stay.
            Err(_) => return,
        }
        let entries: Vec<_> = self.register.lock().sessions.values().cloned().collect();
        for entry in entries {
            let target = entry.target.lock().clone();
            if let Some(target) = target {
                entry.channel.tell(target.disk.device().size_bytes());
            }
        }
    }

    fn admit(self: &Arc<Self>, socket: OwnedFd, id: DeviceId, name: &str) {
        let caller = Caller::new(socket);
        let mut register = self.register.lock();
        if register.sessions.len() >= self.options.sessions_max {
            drop(register);
            let most = self.options.sessions_max;
            self.log(format_args!("'{name}': {} is refused: there are {most} sessions already", caller.name()));
            return;
        }
        let session = register.next_id;
        register.next_id += 1;
        let entry = Entry { caller, channel: Arc::default(), target: Arc::default() };
        register.sessions.insert(session, entry.clone());
        drop(register);
        let (shared, name) = (Arc::clone(self), name.to_owned());
        let serve = move || {
            if let Err(why) = shared.serve(entry, id, &name) {
                shared.log(format_args!("'{name}': {why}"));
            }
            shared.leave(session);
        };
        if let Err(error) = std::thread::Builder::new().name("vhost-session".to_owned()).spawn(serve) {
            self.log(format_args!("no thread for another client: {error}"));
            self.leave(session);
        }
    }

    fn leave(&self, session: u64) {
        let mut register = self.register.lock();
        register.sessions.remove(&session);
        if register.sessions.is_empty() {
            self.empty.notify_all();
        }
    }

    /// Serves one monitor. None of its requests is under way when this returns.
    fn serve(&self, entry: Entry, id: DeviceId, name: &str) -> std::result::Result<(), String> {
        let client: Arc<dyn Client> = entry.caller.clone();
        let who = client.name();
        let device = self.devices.open(id, &client).map_err(|error| format!("{who} is refused: {error}"))?;
        let serial = format!("{}{:x}", self.options.serial_prefix, id.0);
        let target = Arc::new(Target {
            reads_together: device.reads_together(),
            disk: Disk::new(device, &serial),
            name: name.to_owned(),
            caller: Arc::clone(&entry.caller),
            held: Arc::clone(&self.held),
            is_stopping: Arc::clone(&self.is_stopping),
            is_draining: AtomicBool::new(false),
            log: self.options.log.clone(),
            told: AtomicU32::new(0),
        });
        *entry.target.lock() = Some(Arc::clone(&target));
        let session = Session::new(target, Arc::clone(&entry.channel), Arc::clone(&self.pool), self.options.queues);
        let ended = session.run();
        *entry.target.lock() = None;
        match ended {
            Ended::Closed => Ok(()),
            Ended::Broken(why) => Err(format!("{who} is disconnected: {why}")),
        }
    }
}
