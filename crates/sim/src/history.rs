//! The history of volumes in the model: a snapshot is a copy, and so are a clone and a rollback. In
//! addition to the contents it knows the descent: which snapshots a rollback discards, and which a
//! promotion moves.

use std::collections::{BTreeMap, BTreeSet};

use crate::Model;
use crate::model::Volume;

/// Descent of a volume or a snapshot.
#[derive(Debug, Clone, Default)]
pub(crate) struct History {
    /// The line of states that it belongs to: that of a volume and its snapshots.
    timeline: u64,
    /// When it was taken, for a snapshot.
    serial: u64,
    /// Serials of the snapshots in its past, oldest first; for a snapshot, including itself.
    past: Vec<u64>,
    /// Number of snapshots and rollbacks of a volume so far.
    pub epoch: u32,
    /// Whether it began as a snapshot.
    is_clone: bool,
}

impl Volume {
    /// Its current content, with no doubts beyond the existing ones: the content of a snapshot just
    /// made durable.
    fn frozen(&self) -> Self {
        let mut copy = self.clone();
        copy.unsettled.clear();
        for (index, block) in &mut copy.blocks {
            block.possible.clone_from(&block.visible);
            if block.possible.len() > 1 {
                copy.unsettled.insert(*index);
            }
        }
        copy
    }
}

fn title(volume: &str, snapshot: &str) -> String {
    format!("{volume}@{snapshot}")
}

/// Whether an object lies in a folder.
pub(crate) fn is_in(inner: &str, folder: &str) -> bool {
    inner.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
}

fn parent(title: &str) -> &str {
    title.split('@').next().unwrap_or(title)
}

impl Model {
    pub(crate) fn new_timeline(&mut self) -> History {
        self.serial += 1;
        History { timeline: self.serial, ..History::default() }
    }

    /// Full names of a volume's snapshots, oldest first.
    pub fn snapshots_of(&self, volume: &str) -> Vec<String> {
        let mut found: Vec<_> =
            self.volumes.iter().filter(|(name, _)| name.contains('@') && parent(name) == volume).collect();
        found.sort_by_key(|(_, snapshot)| snapshot.history.serial);
        found.into_iter().map(|(name, _)| name.clone()).collect()
    }

    /// Whether a volume began as a snapshot.
    pub fn is_clone(&self, name: &str) -> bool {
        self.volumes[name].history.is_clone
    }

    /// Whether a snapshot is of the timeline that its volume still has.
    pub fn can_roll_back(&self, snapshot: &str) -> bool {
        self.volumes[snapshot].history.timeline == self.volumes[parent(snapshot)].history.timeline
    }

    /// The newer snapshots that rolling back to `snapshot` gives up.
    pub fn newer_than(&self, snapshot: &str) -> Vec<String> {
        let history = &self.volumes[snapshot].history;
        let mut newer = self.snapshots_of(parent(snapshot));
        newer.retain(|name| {
            let other = &self.volumes[name].history;
            other.timeline == history.timeline && other.serial > history.serial
        });
        newer
    }

    /// The full names, before and after, of the objects that promoting a clone moves. `None` if it
    /// cannot be promoted.
    pub fn promotion(&self, name: &str) -> Option<Vec<(String, String)>> {
        let past: BTreeSet<u64> = self.volumes[name].history.past.iter().copied().collect();
        let in_past =
            |(title, snapshot): &(&String, &Volume)| title.contains('@') && past.contains(&snapshot.history.serial);
        let foreign = self.volumes.iter().filter(in_past).filter(|(title, _)| parent(title) != name);
        let newest = foreign.max_by_key(|(_, snapshot)| snapshot.history.serial)?.0;
        let from = parent(newest);
        let moved: Vec<_> =
            self.snapshots_of(from).into_iter().filter(|t| past.contains(&self.volumes[t].history.serial)).collect();
        let renamed = |old: &String| title(name, &old[from.len() + 1..]);
        let moves: Vec<_> = moved.iter().map(|old| (old.clone(), renamed(old))).collect();
        moves.iter().all(|(_, new)| !self.volumes.contains_key(new)).then_some(moves)
    }

    pub(crate) fn destroyed(&mut self, name: &str) {
        self.folders.retain(|other, _| other != name && !is_in(other, name));
        let is_of = |other: &str| other.contains('@') && parent(other) == name || is_in(other, name);
        self.volumes.retain(|other, _| other != name && !is_of(other));
    }

    pub(crate) fn snapshot_taken(&mut self, volume: &str, name: &str) {
        self.serial += 1;
        let serial = self.serial;
        let held = self.volumes.get_mut(volume).expect("a volume of the model");
        held.history.past.push(serial);
        held.history.epoch += 1;
        let mut snapshot = held.frozen();
        // Taking it made durable all that it holds.
        let (blocks, unsettled) = (snapshot.blocks.clone(), snapshot.unsettled.clone());
        (held.blocks, held.unsettled) = (blocks, unsettled);
        snapshot.properties.clear();
        (snapshot.history.serial, snapshot.history.epoch) = (serial, 0);
        self.volumes.insert(title(volume, name), snapshot);
    }

    pub(crate) fn folder_snapshot_taken(&mut self, folder: &str, name: &str) {
        for volume in self.names().into_iter().filter(|volume| volume == folder || is_in(volume, folder)) {
            self.snapshot_taken(&volume, name);
        }
    }

    pub(crate) fn cloned(&mut self, snapshot: &str, name: &str, properties: &BTreeMap<String, String>) {
        let mut clone = self.volumes[snapshot].clone();
        clone.properties = self.volumes[parent(snapshot)].properties.clone();
        // Space that is set aside for the other volume is not set aside twice.
        clone.properties.remove("reservation");
        clone.properties.extend(properties.clone());
        let past = std::mem::take(&mut clone.history.past);
        clone.history = History { past, is_clone: true, ..self.new_timeline() };
        self.volumes.insert(name.to_owned(), clone);
    }

    pub(crate) fn newer_destroyed(&mut self, snapshot: &str) {
        for newer in self.newer_than(snapshot) {
            self.volumes.remove(&newer);
        }
    }

    pub(crate) fn rolled_back(&mut self, snapshot: &str) {
        self.newer_destroyed(snapshot);
        let from = self.volumes[snapshot].clone();
        let volume = self.volumes.get_mut(parent(snapshot)).expect("the snapshot's volume");
        volume.history.past = from.history.past;
        volume.history.epoch += 1;
        (volume.size_bytes, volume.blocks, volume.unsettled) = (from.size_bytes, from.blocks, from.unsettled);
    }

    pub(crate) fn renamed(&mut self, old: &str, new: &str) {
        for (name, volume) in std::mem::take(&mut self.volumes) {
            let name = match name.strip_prefix(old) {
                Some(rest) if rest.is_empty() || rest.starts_with(['@', '/']) => format!("{new}{rest}"),
                _ => name,
            };
            self.volumes.insert(name, volume);
        }
        for (name, properties) in std::mem::take(&mut self.folders) {
            let name = match name.strip_prefix(old) {
                Some(rest) if rest.is_empty() || rest.starts_with('/') => format!("{new}{rest}"),
                _ => name,
            };
            self.folders.insert(name, properties);
        }
    }

    pub(crate) fn promoted(&mut self, name: &str) {
        for (old, new) in self.promotion(name).unwrap_or_default() {
            if let Some(snapshot) = self.volumes.remove(&old) {
                self.volumes.insert(new, snapshot);
            }
        }
    }
}
