//! Reads ahead by the boot profile: the groups that a machine reads next lie next to each other in
//! one object, so one request fetches many. Owns the groups that were fetched and are waiting.

use std::collections::{HashMap, HashSet, VecDeque};

use ::blob::Profile;
use env::RemoteGroup;

/// Groups fetched along with a requested one: 4 MiB of an image, a second of a boot.
const AHEAD: usize = 32;
/// Maximum number of waiting groups: 32 MiB, a third of that where they are compressed.
const WAITING_MAX: usize = 256;

/// The profile of an image, and the groups that it has fetched.
#[derive(Debug, Default)]
pub struct Ahead {
    order: Vec<u64>,
    place: HashMap<u64, usize>,
    /// Groups that were requested or fetched: none is fetched twice.
    seen: HashSet<u64>,
    waiting: HashMap<u64, RemoteGroup>,
    oldest: VecDeque<u64>,
}

impl Ahead {
    /// Reads ahead by a profile; it is useless if its frames are in order only in a later version.
    pub fn of(profile: Option<Profile>, version: u64) -> Self {
        let order = profile.filter(|profile| profile.seq <= version).map(|profile| profile.groups).unwrap_or_default();
        let place = order.iter().enumerate().map(|(place, group)| (*group, place)).collect();
        Self { order, place, ..Self::default() }
    }

    /// Returns a group that was fetched, and forgets it.
    pub fn take(&mut self, group: u64) -> Option<RemoteGroup> {
        if self.order.is_empty() {
            return None;
        }
        self.seen.insert(group);
        self.waiting.remove(&group)
    }

    /// Returns the groups to fetch along with these.
    pub fn next_to(&mut self, groups: &[u64]) -> Vec<u64> {
        let first = groups.iter().filter_map(|group| self.place.get(group)).min();
        let Some(first) = first else { return Vec::new() };
        let behind = self.order[first + 1..].iter().copied();
        behind.take(AHEAD).filter(|group| self.seen.insert(*group)).collect()
    }

    /// Keeps a group until it is requested, or displaced by many others.
    pub fn keep(&mut self, group: u64, content: RemoteGroup) {
        if self.waiting.insert(group, content).is_none() {
            self.oldest.push_back(group);
        }
        while self.oldest.len() > WAITING_MAX {
            if let Some(oldest) = self.oldest.pop_front() {
                self.waiting.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(groups: Vec<u64>) -> Option<Profile> {
        Some(Profile { seq: 5, groups })
    }

    #[test]
    fn the_next_groups_of_the_profile_are_brought_once() {
        let mut ahead = Ahead::of(profile((0..100).map(|at| 99 - at).collect()), 5);
        assert_eq!(ahead.take(99), None);
        assert_eq!(ahead.next_to(&[500, 99]), (67..99).rev().collect::<Vec<_>>());
        assert_eq!(ahead.next_to(&[500]), [0; 0]);
        ahead.keep(98, RemoteGroup::Zero);
        assert_eq!((ahead.take(98), ahead.take(98)), (Some(RemoteGroup::Zero), None));
        assert_eq!(ahead.take(90), None);
        assert_eq!(ahead.next_to(&[90]), (58..67).rev().collect::<Vec<_>>(), "not what has come");
        let mut older = Ahead::of(profile(vec![1, 2]), 4);
        assert_eq!(older.next_to(&[1]), [0; 0], "its frames lie elsewhere");
    }

    #[test]
    fn groups_that_wait_are_bounded() {
        let mut ahead = Ahead::of(profile(vec![1]), 5);
        for group in 0..2 * WAITING_MAX as u64 {
            ahead.keep(group, RemoteGroup::Zero);
        }
        assert_eq!(ahead.waiting.len(), WAITING_MAX);
        assert_eq!(ahead.take(0), None);
        assert_eq!(ahead.take(2 * WAITING_MAX as u64 - 1), Some(RemoteGroup::Zero));
    }
}
