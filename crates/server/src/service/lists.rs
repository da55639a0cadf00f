//! The answers that list volumes and snapshots.

use std::collections::BTreeMap;

use surface::Result;

use super::Service;
use crate::documents;
use report::{SnapshotReport, VolumeReport};

impl Service {
    pub(super) fn list(&self) -> Vec<VolumeReport> {
        let unserved = self.mounted_shares().map(|shares| shares.unserved()).unwrap_or_default();
        let report = |status: engine::VolumeStatus| {
            let clients = self.devices.named_clients(&status.name);
            let why = unserved.iter().find(|share| share.share == status.name).map(|share| share.why.clone());
            VolumeReport { unserved: why, ..documents::volume_report(status, clients) }
        };
        let mut volumes: Vec<_> = self.pool.volumes().into_iter().map(report).collect();
        volumes.sort_by(|a, b| a.name.cmp(&b.name));
        for bookmark in self.pool.bookmarks(None).unwrap_or_default() {
            if let Ok(at) = volumes.binary_search_by(|volume| volume.name.cmp(&bookmark.volume)) {
                volumes[at].bookmarks.push(documents::bookmark_line(bookmark));
            }
        }
        volumes
    }

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
