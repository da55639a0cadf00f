//! One door: the thread that keeps its servers in step with the properties, and queries them.
//!
//! Only the thread owns the servers. Callers request a check, and wait for its result up to a
//! deadline: a server that hangs holds up its own door, and no other door, no snapshot and no stop.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use doors::{Door, Export};
use parking_lot::Mutex;
use surface::{Error, Result};

use super::world::World;
use super::{Fault, Shown};

/// Interval of the regular checks, after which a dead server is noticed.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Maximum number of callers that wait for one door: one per connection that sets properties.
const ASKS_MAX: usize = 256;

/// The servers of one protocol.
pub trait Servers: Send {
    /// Brings them in step with the shares that they export. Returns the faults.
    fn bring(&mut self, world: &World, exports: &[&Export]) -> Vec<Fault>;
    /// Makes failed changes due for another attempt at once.
    fn hurry(&mut self);
    /// Ends them.
    fn stop(&mut self);
    /// Returns the process ids of running servers: by the share's key where each share has a
    /// server, else by an empty key.
    fn pids(&self) -> BTreeMap<String, i32>;
}

/// A request for an immediate check.
struct Ask {
    /// Failed changes are attempted again.
    now: bool,
    answer: Sender<Door>,
}

/// The result of the last check.
#[derive(Default)]
struct Seen {
    faults: BTreeSet<Fault>,
    pids: BTreeMap<String, i32>,
}

/// A door and its thread.
pub struct Keeper {
    door: Door,
    asks: Mutex<Option<Sender<Ask>>>,
    ended: Receiver<()>,
    seen: Arc<Mutex<Seen>>,
}

impl Keeper {
    /// Starts the thread.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(door: Door, mut servers: Box<dyn Servers>, shown: Arc<Shown>) -> Result<Self> {
        let (asks, asked) = bounded::<Ask>(ASKS_MAX);
        let (end, ended) = bounded::<()>(1);
        let seen = Arc::new(Mutex::new(Seen::default()));
        let kept = Arc::clone(&seen);
        let run = move || {
            loop {
                let ask = match asked.recv_timeout(LOOK_EVERY) {
                    Ok(ask) => Some(ask),
                    Err(RecvTimeoutError::Timeout) => None,
                    Err(RecvTimeoutError::Disconnected) => break,
                };
                // Further requested checks would delay the stop.
                if shown.world.ends() {
                    break;
                }
                if ask.as_ref().is_some_and(|ask| ask.now) {
                    servers.hurry();
                }
                look(door, &mut *servers, &shown, &kept);
                if let Some(ask) = ask {
                    // A caller gives up at its deadline.
                    let _ = ask.answer.try_send(door);
                }
            }
            servers.stop();
            kept.lock().pids = servers.pids();
            drop(end);
        };
        let thread = std::thread::Builder::new().name(format!("exports-{}", door.name())).spawn(run);
        thread.map_err(|error| Error::from_io("cannot start a thread for the network servers", error))?;
        Ok(Self { door, asks: Mutex::new(Some(asks)), ended, seen })
    }

    /// Returns the process ids of its servers, as of the last check.
    pub fn pids(&self) -> BTreeMap<String, i32> {
        self.seen.lock().pids.clone()
    }

    /// Ends the thread and the servers; [`Keeper::has_ended`] waits for it.
    pub fn end(&self) {
        *self.asks.lock() = None;
    }

    /// Waits for the end, up to `until`. Fails with the remaining servers.
    ///
    /// # Errors
    /// A message.
    pub fn has_ended(&self, until: Instant) -> std::result::Result<(), String> {
        if self.ended.recv_deadline(until) == Err(RecvTimeoutError::Timeout) {
            let pids: Vec<_> = self.pids().into_values().map(|pid| pid.to_string()).collect();
            return Err(format!("{}: the server does not end (process {})", self.door.name(), pids.join(", ")));
        }
        Ok(())
    }
}

/// Performs one check: brings the servers in step, and logs the changes.
fn look(door: Door, servers: &mut dyn Servers, shown: &Shown, seen: &Mutex<Seen>) {
    let (exports, mut faults) = shown.through(door);
    faults.extend(servers.bring(&shown.world, &exports.iter().collect::<Vec<_>>()));
    if shown.world.ends() {
        return;
    }
    let mut seen = seen.lock();
    for fault in faults.difference(&seen.faults) {
        log::warn!("exports: {}", fault.text);
    }
    for fault in seen.faults.difference(&faults) {
        log::info!("exports: resolved: {}", fault.text);
    }
    *seen = Seen { faults, pids: servers.pids() };
    shown.shares.devices.traffics().callers().set(door, seen.pids.values().copied());
}

/// Requests checks of doors, with `now` including failed changes, and waits up to the deadline.
/// Returns the faults; a door that is still busy has those of its last check, and one for that.
pub fn look_at(keepers: &[&Keeper], now: bool, patience: Duration) -> BTreeSet<Fault> {
    let until = Instant::now() + patience;
    let (answer, answers) = bounded(keepers.len());
    let mut open: Vec<&Keeper> = Vec::new();
    let mut waiting = BTreeSet::new();
    for keeper in keepers {
        let asks = keeper.asks.lock();
        let Some(asks) = &*asks else { continue };
        open.push(keeper);
        waiting.insert(keeper.door);
        drop(asks.try_send(Ask { now, answer: answer.clone() }));
    }
    drop(answer);
    while !waiting.is_empty()
        && let Ok(door) = answers.recv_deadline(until)
    {
        waiting.remove(&door);
    }
    let busy = waiting.into_iter().map(|door| {
        let text = format!("{}: its servers are still being changed after {} s", door.name(), patience.as_secs());
        Fault { door, share: None, text }
    });
    let seen = open.iter().flat_map(|keeper| keeper.seen.lock().faults.clone());
    seen.chain(busy).collect()
}
