//! What clients do to which volume or share, through which door, and the document that tells it.
//! Owns the table of the counts; each count is a door's or an open device's to raise.
//!
//! A volume enters the table when it is opened. To tell the counts costs a walk of the volumes that
//! were ever opened, and none of the pool.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use surface::{DeviceId, Traffic};

use crate::callers::Callers;

/// The door of commands, and the one of mounted shares for programs of this machine. Network
/// protocols have the names of their properties.
pub const COMMANDS: &str = "command";
/// See [`COMMANDS`].
pub const SHARES: &str = "share";
/// Below that one: the reads and writes of a share's tree.
pub const TREES: &str = "tree";

/// The counts of all that was opened.
#[derive(Debug, Default)]
pub struct Traffics {
    all: Mutex<BTreeMap<(DeviceId, &'static str), Arc<Traffic>>>,
    /// Raised when the table gets another entry or loses one.
    generation: AtomicU64,
    /// Whose requests to mounted shares come from which door.
    callers: Callers,
}

/// The counts of a volume, by door.
pub type OfVolume = (DeviceId, Vec<(&'static str, Arc<Traffic>)>);

impl Traffics {
    /// The counts of a volume at a door.
    pub fn of(&self, id: DeviceId, door: &'static str) -> Arc<Traffic> {
        let new = || {
            self.generation.fetch_add(1, Ordering::Release);
            Arc::new(Traffic::new(env::monotonic_ns))
        };
        self.all.lock().entry((id, door)).or_insert_with(new).clone()
    }

    /// Tells requests to mounted shares apart by door.
    pub fn callers(&self) -> &Callers {
        &self.callers
    }

    /// Differs from an earlier one if the table may have other entries.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// All of them, or those of one volume.
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

    /// Differs from an earlier one if a client has done something since.
    pub fn touched(&self) -> u64 {
        self.all.lock().values().fold(0, |sum, traffic| sum.wrapping_add(traffic.touched()))
    }

    /// Of a volume that is no more.
    pub fn forget(&self, id: DeviceId) {
        self.all.lock().retain(|(of, _), _| *of != id);
        self.generation.fetch_add(1, Ordering::Release);
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
}
