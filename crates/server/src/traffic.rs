//! Operations of clients per volume or share and door, and the document that reports them. Owns the
//! table of counts; the door or open device increments them.
//!
//! A volume enters the table when it is opened. A report walks the volumes that were ever opened,
//! not the pool.
//!
//! A destroyed volume leaves it when its last operations are in the history. Without a history, or
//! if many are destroyed at once, it leaves it when [`RETIRED_MAX`] others were destroyed later.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use surface::{DeviceId, Traffic};

use crate::callers::Callers;

/// The doors of commands, and of mounted shares for programs of this machine. Network protocols
/// have the names of their properties.
pub const COMMANDS: &str = "command";
/// See [`COMMANDS`].
pub const SHARES: &str = "share";
/// The requests to mounted shares of processes that could not be looked up.
pub const OTHERS: &str = "other";
/// Below these doors: the reads and writes of a share's tree.
pub const TREES: &str = "tree";

/// Maximum number of destroyed volumes in the table, with some 1.5 KiB for each door: the history
/// reads their counts within ten seconds.
const RETIRED_MAX: usize = 256;

type ByDoor = BTreeMap<(DeviceId, &'static str), Arc<Traffic>>;

/// Counts of all volumes and shares that were opened.
#[derive(Debug, Default)]
pub struct Traffics {
    all: Mutex<ByDoor>,
    /// Destroyed volumes that may be in the table, oldest first.
    retired: Mutex<VecDeque<DeviceId>>,
    /// Incremented when an entry is added to the table or removed.
    generation: AtomicU64,
    /// Maps requests to mounted shares to their doors.
    callers: Callers,
}

/// Counts of a volume, by door.
pub type OfVolume = (DeviceId, Vec<(&'static str, Arc<Traffic>)>);

impl Traffics {
    /// Returns the counts of a volume at a door.
    pub fn of(&self, id: DeviceId, door: &'static str) -> Arc<Traffic> {
        let new = || {
            self.generation.fetch_add(1, Ordering::Release);
            Arc::new(Traffic::new(env::monotonic_ns))
        };
        self.all.lock().entry((id, door)).or_insert_with(new).clone()
    }

    /// Returns the map from requests on mounted shares to doors.
    pub fn callers(&self) -> &Callers {
        &self.callers
    }

    /// Changes whenever the entries of the table may have changed.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns all counts, or those of one volume.
    pub fn list(&self, only: Option<DeviceId>) -> Vec<OfVolume> {
        let all = self.all.lock();
        let mut list: Vec<OfVolume> = Vec::new();
        for ((id, door), traffic) in all.iter().filter(|((id, _), _)| only.is_none_or(|only| only == *id)) {
            match list.last_mut().filter(|(last, _)| last == id) {
                Some((_, doors)) => doors.push((door, traffic.clone())),
                None => list.push((*id, vec![(door, traffic.clone())])),
            }
        }
        list
    }

    /// Changes whenever a client has done an operation.
    pub fn touched(&self) -> u64 {
        self.all.lock().values().fold(0, |sum, traffic| sum.wrapping_add(traffic.touched()))
    }

    /// Removes the counts of a destroyed volume.
    pub fn forget(&self, id: DeviceId) {
        self.retired.lock().retain(|retired| *retired != id);
        self.remove(id);
    }

    /// Notes that a volume was destroyed.
    pub fn retire(&self, id: DeviceId) {
        let oldest = {
            let mut retired = self.retired.lock();
            retired.push_back(id);
            if retired.len() > RETIRED_MAX { retired.pop_front() } else { None }
        };
        if let Some(oldest) = oldest {
            self.remove(oldest);
        }
    }

    fn remove(&self, id: DeviceId) {
        let of_volume = |(of, _): &(DeviceId, &'static str)| *of == id;
        let mut all = self.all.lock();
        if all.keys().any(of_volume) {
            all.retain(|key, _| !of_volume(key));
            self.generation.fetch_add(1, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_kept_by_volume_and_door() {
        let (traffics, one, other) = (Traffics::default(), DeviceId(1), DeviceId(2));
        assert!(Arc::ptr_eq(&traffics.of(one, "nbd"), &traffics.of(one, "nbd")));
        assert!(!Arc::ptr_eq(&traffics.of(one, "nbd"), &traffics.of(one, "mount")));
        traffics.of(other, "nbd");
        let shape = |list: Vec<OfVolume>| {
            list.into_iter()
                .map(|(id, doors)| (id.0, doors.iter().map(|(door, _)| *door).collect()))
                .collect::<Vec<_>>()
        };
        let expected: Vec<(u64, Vec<_>)> = vec![(1, vec!["mount", "nbd"]), (2, vec!["nbd"])];
        assert_eq!(shape(traffics.list(None)), expected);
        assert_eq!(shape(traffics.list(Some(other))), expected[1..]);
        traffics.forget(one);
        assert_eq!(shape(traffics.list(None)), expected[1..]);
    }

    /// Without a history, the counts of each share that was ever destroyed stayed until the server
    /// ended.
    #[test]
    fn destroyed_volumes_leave_the_table_without_a_reader() {
        let (traffics, kept) = (Traffics::default(), DeviceId(u64::MAX));
        traffics.of(kept, "mount");
        for id in 0..10 * RETIRED_MAX as u64 {
            traffics.of(DeviceId(id), SHARES);
            traffics.of(DeviceId(id), TREES);
            traffics.retire(DeviceId(id));
            assert!(traffics.list(None).len() <= RETIRED_MAX + 1, "{id}");
        }
        let newest = DeviceId(10 * RETIRED_MAX as u64 - 1);
        assert_eq!((traffics.list(Some(newest)).len(), traffics.list(Some(kept)).len()), (1, 1));
        // Those that the history has read make room for others.
        (0..newest.0).for_each(|id| traffics.forget(DeviceId(id)));
        assert_eq!((traffics.list(None).len(), traffics.retired.lock().len()), (2, 1));
    }
}
