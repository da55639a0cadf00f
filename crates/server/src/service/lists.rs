//! The answer that lists snapshots, with the space that each holds.

use std::collections::BTreeMap;

use surface::Result;

use super::Service;
use report::{ObjectKind, SnapshotReport};

impl Service {
    pub(super) fn snapshots(&self, volume: Option<&str>) -> Result<Vec<SnapshotReport>> {
        let mut reports: Vec<SnapshotReport> = Vec::new();
        let mut usage = BTreeMap::new();
        let mut held = BTreeMap::<_, Vec<String>>::new();
        for hold in self.pool.holds(volume)? {
            held.entry((hold.volume, hold.snapshot)).or_default().push(hold.tag);
        }
        for status in self.pool.snapshots(volume)? {
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
