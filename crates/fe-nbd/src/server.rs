//! The server: owns the listeners, the accepting thread, the register of connections and the pool.
//!
//! Shutdown: no more clients are accepted and socket files are removed; each connection stops
//! reading, finishes the requests it has read, and closes; connections still open at the end of the
//! grace period are dropped; the pool ends last.
//!
//! [`Server::listen`] changes the addresses of a running server: the accepting thread hands its
//! listeners back, and another one goes on with those that are wanted. Clients that connect in
//! between wait in the kernel.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::net::Shutdown;
use surface::{DeviceSet, Error, ErrorKind, Held, Pool, Result};

use crate::budget::Budget;
use crate::caller::Caller;
use crate::clock::{Deadline, timespec};
use crate::connection::Connection;
use crate::execute::{Failures, Served, Task};
use crate::greet::{Failed, Terms, greet};
use crate::listen::{Listen, Listener};
use crate::negotiate::Established;
use crate::outbox::{Limits, Outbox};
use crate::secure::Tls;
use crate::shortage::Shortage;

/// Clients beyond the limit that get the reason in a handshake; further ones are closed without
/// one.
const REFUSALS_MAX: usize = 8;
/// Advice in the log after an error of accept(2), logged once until it is over.
const ADVICE: &str = "; clients are refused until then: close some, or raise the limit (ulimit -n, LimitNOFILE=)";
/// Pause after accept failed for lack of descriptors or memory: others must release some first.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Receives the server's messages about its clients, one line each.
pub type Log = Arc<dyn Fn(&str) + Send + Sync>;

/// Limits and sizes of a server. All have defaults.
#[derive(Clone)]
pub struct ServerOptions {
    /// Threads for requests that wait, shared by all connections. They wait for the disk, so more
    /// than processors.
    pub threads: usize,
    /// Most connections. Each has two threads, 1 MiB in flight of its own plus its share of
    /// `bytes_in_flight_total`, half a MiB of buffers, and up to 4 MiB in the kernel's.
    pub connections_max: usize,
    /// Most bytes of requests and replies of one connection in memory at once. 64 MiB are two of
    /// the largest requests, or depth 64 of 1 MiB.
    pub bytes_in_flight_max: usize,
    /// Most bytes of requests and replies of all connections in memory at once, in addition to the
    /// 1 MiB of each. One connection gets at most half of it. Another quarter of it may be held by
    /// buffers for later reads.
    pub bytes_in_flight_total: usize,
    /// Most requests of one connection that wait in the pool. Clients rarely use more than 128.
    pub requests_in_flight_max: u32,
    /// Longest handshake.
    pub handshake_max: Duration,
    /// Longest handshake while all connections are taken: a new client then takes the place of the
    /// one that is longest in its own, so that silent clients keep no other client out.
    pub handshake_crowded_max: Duration,
    /// Longest time for which a client may leave its replies unread, or send no more of a write.
    pub stall_max: Duration,
    /// Longest time that stopping waits for clients to take their last replies.
    pub stop_grace: Duration,
    /// TLS; none: clients that ask for it are refused it.
    pub tls: Option<Arc<Tls>>,
    /// Receives the reasons why connections ended or were refused, and storage failures.
    pub log: Option<Log>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            threads: 16,
            connections_max: 64,
            bytes_in_flight_max: 64 << 20,
            bytes_in_flight_total: 128 << 20,
            requests_in_flight_max: 256,
            handshake_max: Duration::from_secs(30),
            handshake_crowded_max: Duration::from_secs(1),
            stall_max: Duration::from_secs(60),
            stop_grace: Duration::from_secs(10),
            tls: None,
            log: None,
        }
    }
}

impl fmt::Debug for ServerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerOptions")
            .field("threads", &self.threads)
            .field("connections_max", &self.connections_max)
            .field("bytes_in_flight_max", &self.bytes_in_flight_max)
            .field("bytes_in_flight_total", &self.bytes_in_flight_total)
            .field("requests_in_flight_max", &self.requests_in_flight_max)
            .finish_non_exhaustive()
    }
}

/// An NBD server of a set of devices.
pub struct Server {
    shared: Arc<Shared>,
    addresses: Vec<Listen>,
    accepting: Option<JoinHandle<Accepting>>,
}

/// State of the accepting thread.
struct Accepting {
    listeners: Vec<Listener>,
    /// TLS for the clients that it accepts.
    tls: Option<Arc<Tls>>,
    shortage: Shortage,
}

struct Shared {
    devices: Arc<dyn DeviceSet>,
    options: ServerOptions,
    /// Most connections; that of `options` is the first value.
    connections_max: AtomicUsize,
    pool: Arc<Pool<Task>>,
    budget: Arc<Budget>,
    /// Writes that wait for room in the storage.
    held: Arc<Held>,
    register: Mutex<Register>,
    /// The register became empty.
    empty: Condvar,
    stop: AtomicBool,
    /// Ends the accepting thread, which returns its state.
    hand_back: AtomicBool,
    /// Wakes the accepting thread for that.
    wake: OwnedFd,
}

#[derive(Default)]
struct Register {
    connections: HashMap<u64, Known>,
    next_id: u64,
}

impl Register {
    /// Ends the handshake that has lasted longest, if that is longer than it may while others wait.
    fn give_up_a_greeting(&mut self) -> bool {
        let is_late = |peer: &Peer| matches!(peer, Peer::Greeting { crowded, .. } if crowded.left().is_zero());
        let late = self.connections.iter_mut().filter(|(_, known)| is_late(&known.peer));
        let Some((_, known)) = late.min_by_key(|(id, _)| **id) else { return false };
        if let Peer::Greeting { socket, .. } = std::mem::replace(&mut known.peer, Peer::Leaving) {
            // An error means that the client has disconnected already.
            let _ = rustix::net::shutdown(&socket, Shutdown::Both);
        }
        true
    }
}

/// A connection as the register knows it.
struct Known {
    /// The address that the client connected to.
    address: Listen,
    peer: Peer,
}

impl Known {
    /// Takes no more requests from the client; those under way are answered.
    fn end(&self) {
        // An error means that the client has disconnected: its thread notices that, too.
        let _ = match &self.peer {
            Peer::Greeting { socket, .. } => rustix::net::shutdown(socket, Shutdown::Both),
            Peer::Leaving => Ok(()),
            Peer::Serving(served) => rustix::net::shutdown(served.outbox.socket(), Shutdown::Read),
        };
    }
}

/// The state of a connection.
enum Peer {
    /// In its handshake: the socket can be shut down.
    Greeting { socket: Arc<OwnedFd>, crowded: Deadline },
    /// Its handshake was given up for another client's; its thread is about to end.
    Leaving,
    /// In transmission.
    Serving(Arc<Served>),
}

impl Server {
    /// Listens on all of `listen` and serves `devices` until it is stopped or dropped.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] for an address that is taken, [`ErrorKind::Invalid`] for an empty list,
    /// and errors of the system.
    pub fn start(devices: Arc<dyn DeviceSet>, listen: &[Listen], options: ServerOptions) -> Result<Self> {
        if listen.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, "an NBD server needs an address to listen on"));
        }
        let listeners = listen.iter().map(Listener::bind).collect::<Result<Vec<_>>>()?;
        let fail = |error: std::io::Error| Error::from_io("cannot start the NBD server", error);
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|e| fail(e.into()))?;
        let shared = Arc::new(Shared {
            devices,
            pool: Arc::new(Pool::start("nbd", options.threads).map_err(fail)?),
            held: Arc::new(Held::start("nbd-held").map_err(fail)?),
            budget: Arc::new(Budget::new(options.bytes_in_flight_total)),
            connections_max: AtomicUsize::new(options.connections_max),
            options,
            register: Mutex::default(),
            empty: Condvar::new(),
            stop: AtomicBool::new(false),
            hand_back: AtomicBool::new(false),
            wake,
        });
        let tls = shared.options.tls.clone();
        let mut server = Self { shared, addresses: Vec::new(), accepting: None };
        // Its reserve is taken before the server reports that it is ready.
        server.accept(Accepting { listeners, tls, shortage: Shortage::default() })?;
        Ok(server)
    }

    /// Starts the accepting thread.
    fn accept(&mut self, mut accepting: Accepting) -> Result<()> {
        self.addresses = accepting.listeners.iter().map(|listener| listener.address.clone()).collect();
        let shared = Arc::clone(&self.shared);
        let body = move || {
            accept_all(&shared, &mut accepting);
            accepting
        };
        let started = std::thread::Builder::new().name("nbd-accept".to_owned()).spawn(body);
        self.accepting = Some(started.map_err(|error| Error::from_io("cannot start the NBD server", error))?);
        Ok(())
    }

    /// Ends the accepting thread, and returns its state; `None` after the server was stopped, or if
    /// the thread panicked, which was reported.
    fn take_back(&mut self) -> Option<Accepting> {
        let accepting = self.accepting.take()?;
        self.shared.hand_back.store(true, Ordering::Release);
        // A counter that is full would wake as well; no other error is possible.
        let _ = rustix::io::write(&self.shared.wake, &1u64.to_ne_bytes());
        let accepting = accepting.join().ok();
        // It is not full, and was written above.
        let _ = rustix::io::read(&self.shared.wake, &mut [0; 8]);
        self.shared.hand_back.store(false, Ordering::Release);
        accepting
    }

    /// Listens on all of `listen` from now on, and on nothing else: addresses that stay keep their
    /// clients, and connections through those that go are closed when their requests are answered.
    /// `tls` is for the clients accepted from now on.
    ///
    /// # Errors
    /// Those of [`start`](Self::start); it then listens as before.
    pub fn listen(&mut self, listen: &[Listen], tls: Option<Arc<Tls>>) -> Result<()> {
        let mut accepting = self
            .take_back()
            .ok_or_else(|| Error::new(ErrorKind::InUse, "the NBD server is stopping, and listens on nothing new"))?;
        let changed = Listener::change(&mut accepting.listeners, listen).map(|gone| {
            accepting.tls = tls;
            let register = self.shared.register.lock();
            let is_gone = |known: &&Known| gone.contains(&known.address);
            register.connections.values().filter(is_gone).for_each(Known::end);
        });
        self.accept(accepting).and(changed)
    }

    /// Sets the most connections at once; none of those that there are is closed.
    pub fn set_connections_max(&self, most: usize) {
        self.shared.connections_max.store(most, Ordering::Relaxed);
    }

    /// Where it listens, with the ports that were free.
    pub fn local_addresses(&self) -> &[Listen] {
        &self.addresses
    }

    /// Connections now, those in their handshake included.
    pub fn connections(&self) -> usize {
        self.shared.register.lock().connections.len()
    }

    /// Returns a function with the result of [`connections`](Self::connections) while the server
    /// exists; then 0.
    pub fn counter(&self) -> Arc<dyn Fn() -> usize + Send + Sync> {
        let shared = Arc::downgrade(&self.shared);
        Arc::new(move || shared.upgrade().map_or(0, |shared| shared.register.lock().connections.len()))
    }

    /// Stops accepting, finishes requests in flight, closes all connections, removes socket files.
    pub fn stop(mut self) {
        self.stop_once();
    }

    fn stop_once(&mut self) {
        if self.accepting.is_none() {
            return;
        }
        self.shared.stop.store(true, Ordering::Release);
        // The listeners go, and their socket files.
        drop(self.take_back());
        let shared = &self.shared;
        // Their steps are among the requests that the grace period is for.
        shared.held.begin_close();

        let mut register = shared.register.lock();
        register.connections.values().for_each(Known::end);
        let deadline = Deadline::after(shared.options.stop_grace);
        while !register.connections.is_empty() {
            if shared.empty.wait_until(&mut register, deadline.instant()).timed_out() {
                for known in register.connections.values() {
                    if let Peer::Serving(served) = &known.peer {
                        served.outbox.drop_connection("the server stopped before the client had read its replies");
                    }
                }
                break;
            }
        }
        // Only the device can still hold them now: until each write, or step of a longer request,
        // that has begun is done.
        while !register.connections.is_empty() {
            shared.empty.wait(&mut register);
        }
        drop(register);
        shared.held.close();
        shared.pool.stop();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop_once();
    }
}

/// The accepting thread.
fn accept_all(shared: &Arc<Shared>, Accepting { listeners, tls, shortage }: &mut Accepting) {
    while !shared.hand_back.load(Ordering::Acquire) {
        let mut waiting: Vec<_> = listeners.iter().map(|l| PollFd::new(l, PollFlags::IN)).collect();
        waiting.push(PollFd::new(&shared.wake, PollFlags::IN));
        match poll(&mut waiting, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => {
                shared.log(format_args!("waiting for clients failed: {error}"));
                pause(shared);
            }
        }
        for listener in &*listeners {
            match listener.accept() {
                Ok(socket) => {
                    if let Some(refused) = shortage.end() {
                        shared.log(format_args!("accepting clients again; {refused} were refused"));
                    }
                    Shared::admit(shared, socket, &listener.address, tls.clone());
                }
                // No client, or one that left immediately.
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED | Errno::INVAL | Errno::NOTCONN) => {}
                Err(error) => {
                    if shortage.begin() {
                        shared.log(format_args!("accepting a client on {} failed: {error}{ADVICE}", listener.address));
                    }
                    let is_refused = Shortage::is_exhaustion(error)
                        && shortage.with_reserve(|| refuse_for_want_of_descriptors(shared, listener));
                    if !is_refused {
                        pause(shared);
                    }
                }
            }
        }
    }
}

/// Accepts one client, and reports the lack of descriptors in a handshake. Limited to a second,
/// during which no other client is accepted.
fn refuse_for_want_of_descriptors(shared: &Shared, listener: &Listener) -> bool {
    let Ok(socket) = listener.accept() else { return false };
    let why = "the server has no file descriptors left; close other connections, or raise its limit".to_owned();
    let deadline = Deadline::after(shared.options.handshake_crowded_max);
    let (devices, address) = (shared.devices.as_ref(), &listener.address);
    let terms = Terms { devices, refusal: Some(why), tls: None, address, deadline };
    // In any case the client is gone afterwards.
    drop(greet(&Caller::new(Arc::new(socket)), terms));
    true
}

fn pause(shared: &Shared) {
    // Any result ends the pause.
    let _ = poll(&mut [PollFd::new(&shared.wake, PollFlags::IN)], Some(&timespec(ACCEPT_PAUSE)));
}

impl Shared {
    fn log(&self, line: fmt::Arguments<'_>) {
        if let Some(log) = &self.options.log {
            log(&format!("nbd: {line}"));
        }
    }

    /// Starts a thread for a client, or closes the connection.
    fn admit(shared: &Arc<Self>, socket: OwnedFd, address: &Listen, tls: Option<Arc<Tls>>) {
        let socket = Arc::new(socket);
        let limit = shared.connections_max.load(Ordering::Relaxed);
        let (id, refusal) = {
            let mut register = shared.register.lock();
            let count = register.connections.len();
            let has_place = count < limit || register.give_up_a_greeting();
            if count >= limit + REFUSALS_MAX && !has_place {
                shared.log(format_args!("a client on {address} was refused: all {limit} connections are in use"));
                return;
            }
            let text = || format!("all {limit} connections of this server are in use; try again when one is closed");
            let id = register.next_id;
            register.next_id += 1;
            let crowded = Deadline::after(shared.options.handshake_crowded_max);
            let peer = Peer::Greeting { socket: Arc::clone(&socket), crowded };
            register.connections.insert(id, Known { address: address.clone(), peer });
            (id, (!has_place).then(text))
        };
        let name = format!("nbd-read-{id}");
        let entry = Entry { shared: Arc::clone(shared), id };
        let address = address.clone();
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            let ended = entry.shared.serve(id, socket, &address, tls, refusal);
            entry.shared.log(format_args!("connection {id} on {address} ended: {ended}"));
        });
        if let Err(error) = thread {
            // The closure was dropped with the entry and the socket.
            shared.log(format_args!("cannot start a thread for a client: {error}"));
        }
    }

    /// The life of a connection, on its reader thread. It is refused if there is a reason `why`.
    fn serve(&self, id: u64, socket: Arc<OwnedFd>, on: &Listen, tls: Option<Arc<Tls>>, why: Option<String>) -> Failed {
        let caller = Caller::new(socket);
        let deadline = Deadline::after(self.options.handshake_max);
        let terms = Terms { devices: self.devices.as_ref(), refusal: why, tls, address: on, deadline };
        let (established, channel, rest) = match greet(&caller, terms) {
            Ok(done) => done,
            Err(why) => return why,
        };
        let limits = Limits {
            bytes_max: self.options.bytes_in_flight_max,
            requests_max: self.options.requests_in_flight_max.max(1),
            stall_max: self.options.stall_max,
        };
        let Ok(outbox) = Outbox::new(channel, limits, Arc::clone(&self.budget)) else {
            return "the socket cannot be set up".into();
        };
        let log = self.options.log.clone();
        let Established { device, name, session } = established;
        let failures = Failures { name, log, reported: AtomicU32::new(0) };
        let reads_together = device.reads_together();
        let held = Arc::clone(&self.held);
        let served = Arc::new(Served { device, session, reads_together, outbox, caller, failures, held });
        if let Some(known) = self.register.lock().connections.get_mut(&id) {
            known.peer = Peer::Serving(Arc::clone(&served));
        }
        // A stop from now on finds it serving; one before has shut the socket down.
        let connection = Connection::new(Arc::clone(&served), Arc::clone(&self.pool), &rest);
        let writer = {
            let served = Arc::clone(&served);
            std::thread::Builder::new().name(format!("nbd-write-{id}")).spawn(move || served.outbox.write())
        };
        let Ok(writer) = writer else {
            connection.close();
            return "cannot start its writer thread".into();
        };
        let ended = connection.run(&self.stop);
        // It ends when the connection's run has; a panic was reported.
        drop(writer.join());
        ended.into()
    }
}

/// A connection's entry in the register; removed when the thread ends, however that happens.
struct Entry {
    shared: Arc<Shared>,
    id: u64,
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut register = self.shared.register.lock();
        register.connections.remove(&self.id);
        if register.connections.is_empty() {
            self.shared.empty.notify_all();
        }
    }
}
