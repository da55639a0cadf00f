//! An in-memory map store that follows exactly the contract of [`env::MapStore`]: after a power
//! loss it holds the state after some committed batch that is not older than the last persisted
//! one. A batch whose commit failed may reappear after a restart if nothing was committed after it
//! (its record in a store's journal may be complete).

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use env::{MapBatch, MapError, MapStore, ScanStep};
use parking_lot::Mutex;

use crate::Rng;
use crate::power::{Fault, Generation, PointKind, Power, Verdict, power_lost};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;
type Changes = Vec<(Vec<u8>, Option<Vec<u8>>)>;

#[derive(Debug, Default)]
struct State {
    seen: Map,
    certain: Map,
    /// Committed since the last persist, oldest first.
    pending: Vec<Changes>,
    /// Failed, but possibly present.
    limbo: Option<Changes>,
}

/// A simulated map store; the engine gets a [`StoreHandle`] to it.
#[derive(Debug)]
pub struct SimStore {
    state: Mutex<State>,
    power: Arc<Power>,
}

/// The store as seen by one generation of its user.
#[derive(Debug)]
pub struct StoreHandle {
    store: Arc<SimStore>,
    generation: Generation,
}

impl SimStore {
    /// An empty store.
    pub fn new(power: Arc<Power>) -> Self {
        Self { state: Mutex::default(), power }
    }

    /// A handle for a machine that starts now.
    pub fn handle(self: &Arc<Self>) -> Arc<StoreHandle> {
        Arc::new(StoreHandle { store: Arc::clone(self), generation: self.power.generation() })
    }

    /// All keys and values as they are now.
    pub fn dump(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.state.lock().seen.iter().map(|(k, v)| (k.clone(), v.clone())).collect()
    }

    /// Replaces (or removes) a value, bypassing all faults; certain immediately.
    pub fn poke(&self, key: &[u8], value: Option<&[u8]>) {
        let mut state = self.state.lock();
        let change = vec![(key.to_vec(), value.map(<[u8]>::to_vec))];
        apply(&mut state.seen, &change);
        apply(&mut state.certain, &change);
    }

    /// Turns a bit of a stored value over.
    pub fn flip_bit(&self, key: &[u8], byte: usize, bit: u8) {
        let mut value = self.state.lock().seen.get(key).expect("a key of this store").clone();
        value[byte] ^= 1 << (bit & 7);
        self.poke(key, Some(&value));
    }

    /// A copy of the current state with nothing pending, attached to another power switch.
    pub fn duplicate(&self, power: Arc<Power>) -> Self {
        let seen = self.state.lock().seen.clone();
        let copy = State { certain: seen.clone(), seen, ..State::default() };
        Self { state: Mutex::new(copy), power }
    }

    /// Decides the state after a power loss.
    pub(crate) fn settle(&self, rng: &mut Rng) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let mut pending = std::mem::take(&mut state.pending);
        pending.extend(state.limbo.take());
        // The extremes are where the bugs are: half of the time all or nothing.
        let kept = match rng.below(4) {
            0 => 0,
            1 => pending.len(),
            _ => rng.index(pending.len() + 1),
        };
        for changes in &pending[..kept] {
            apply(&mut state.certain, changes);
        }
        state.seen = state.certain.clone();
    }

    /// Decides the state after a restart of the process (without power loss).
    pub(crate) fn restart(&self, rng: &mut Rng) {
        let mut state = self.state.lock();
        if let Some(changes) = state.limbo.take()
            && rng.coin()
        {
            apply(&mut state.seen, &changes);
            state.pending.push(changes);
        }
    }
}

fn apply(map: &mut Map, changes: &Changes) {
    for (key, value) in changes {
        match value {
            Some(value) => map.insert(key.clone(), value.clone()),
            None => map.remove(key),
        };
    }
}

fn map_error(message: impl Into<String>) -> MapError {
    MapError { corrupt: false, full: false, message: message.into() }
}

impl StoreHandle {
    fn point(&self, kind: PointKind, len: u64) -> Result<Option<Fault>, MapError> {
        match self.store.power.point(self.generation, kind, 0, len) {
            Verdict::Dead => Err(map_error(power_lost().to_string())),
            Verdict::Proceed | Verdict::Fail(Fault::FlipBit { .. }) => Ok(None),
            Verdict::Fail(fault) => Ok(Some(fault)),
        }
    }
}

fn refused(fault: Fault, what: &str) -> MapError {
    match fault {
        Fault::Crash => map_error(power_lost().to_string()),
        Fault::NoSpace => MapError { full: true, ..map_error(format!("simulated lack of space: {what}")) },
        _ => map_error(format!("simulated I/O error: {what}")),
    }
}

impl MapStore for StoreHandle {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, MapError> {
        match self.point(PointKind::Lookup, 0)? {
            None => Ok(self.store.state.lock().seen.get(key).cloned()),
            Some(fault) => Err(refused(fault, "get")),
        }
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> ScanStep) -> Result<(), MapError> {
        if let Some(fault) = self.point(PointKind::Lookup, 0)? {
            return Err(refused(fault, "scan"));
        }
        if from >= to {
            return Ok(());
        }
        // The visitor may use the store: no lock is held while it runs.
        let found: Vec<_> = {
            let state = self.store.state.lock();
            let range = (Bound::Included(from), Bound::Excluded(to));
            state.seen.range::<[u8], _>(range).map(|(k, v)| (k.clone(), v.clone())).collect()
        };
        for (key, value) in found {
            if visit(&key, &value).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn commit(&self, batch: MapBatch) -> Result<(), MapError> {
        let _running = self.store.power.running();
        let fault = self.point(PointKind::Commit, batch.changes.len() as u64)?;
        let mut state = self.store.state.lock();
        if let Some(fault) = fault {
            if fault != Fault::NoSpace {
                state.limbo = Some(batch.changes);
            }
            return Err(refused(fault, "commit"));
        }
        state.limbo = None;
        apply(&mut state.seen, &batch.changes);
        state.pending.push(batch.changes);
        Ok(())
    }

    fn persist(&self) -> Result<(), MapError> {
        let _running = self.store.power.running();
        if let Some(fault) = self.point(PointKind::Persist, 0)? {
            return Err(refused(fault, "persist"));
        }
        let mut state = self.store.state.lock();
        let state = &mut *state;
        for changes in std::mem::take(&mut state.pending) {
            apply(&mut state.certain, &changes);
        }
        Ok(())
    }

    fn occupied_bytes(&self) -> u64 {
        self.store.state.lock().seen.iter().map(|(k, v)| (k.len() + v.len()) as u64).sum()
    }
}
