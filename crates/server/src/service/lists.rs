//! Lists snapshots, with the space that each holds.

use std::collections::BTreeMap;

use surface::Result;

use super::Service;
use crate::devices::is_in;
use report::{ObjectKind, SnapshotReport};

impl Service {
    /// Lists snapshots of an object, or of all; with `below`, of everything in it. With `named`,
    /// only those of that name.
    pub(super) fn snapshots(
        &self,
        object: Option<&str>,
        named: Option<&str>,
        below: bool,
    ) -> Result<Vec<SnapshotReport>> {
        let mut reports: Vec<SnapshotReport> = Vec::new();
        let mut usage = BTreeMap::new();
        let mut held = BTreeMap::<_, Vec<String>>::new();
        let of = object.filter(|_| !below);
        for hold in self.pool.holds(of)? {
            held.entry((hold.volume, hold.snapshot)).or_default().push(hold.tag);
        }
        let is_meant = |status: &engine::SnapshotStatus| {
            let is_below = |outer| status.volume == outer || is_in(&status.volume, outer);
            named.is_none_or(|name| name == status.name) && (!below || object.is_none_or(is_below))
        };
        for status in self.pool.snapshots(of)?.into_iter().filter(is_meant) {
            if reports.last().is_none_or(|last| last.volume != status.volume) {
                usage = self.pool.snapshot_usage(&status.volume)?.into_iter().map(|u| (u.name.clone(), u)).collect();
            }
            let (unique_bytes, shared_bytes, data_bytes) = usage
                .get(&status.name)
                .map_or((0, 0, 0), |usage| (usage.unique_bytes, usage.shared_bytes, usage.data_bytes));
            let (clients, client_names) = self.devices.named_clients(&format!("{}@{}", status.volume, status.name));
            let holds = held.remove(&(status.volume.clone(), status.name.clone())).unwrap_or_default();
            reports.push(SnapshotReport {
                id: status.id.0,
                kind: ObjectKind::Snapshot,
                holds,
                volume: status.volume,
                name: status.name,
                size_bytes: if status.size_bytes == units::SHARE_BYTES { data_bytes } else { status.size_bytes },
                created_unix_s: status.created_unix_s,
                scheduled: status.scheduled,
                unique_bytes,
                shared_bytes,
                data_bytes,
                clients,
                client_names,
                incomplete: status.incomplete,
            });
        }
        Ok(reports)
    }
}
