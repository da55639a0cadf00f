//! Reports the operations of clients.

use surface::{ErrorKind, OpKind, Result};

use super::Service;
use crate::traffic::OfVolume;
use operations::Which;
use report::TRAFFIC_VERSION;
use report::{CodecLine, DoorTraffic, ObjectKind, OperationLine, TrafficReport, VolumeTraffic, bucket_ends_ns};

impl Service {
    /// Reports the operations of clients on all opened objects, or on one, since the pool was
    /// opened.
    ///
    /// # Errors
    /// `NotFound`.
    pub(super) fn traffic(&self, only: Option<&Which>) -> Result<TrafficReport> {
        let only = only.map(|which| self.volume(which)).transpose()?.map(|volume| volume.id());
        let seconds = self.opened.elapsed().as_secs_f64();
        let list = self.devices.traffics().list(only);
        let mut volumes: Vec<_> = list.iter().filter_map(|of_volume| self.traffic_of(of_volume)).collect();
        volumes.sort_by(|a, b| a.volume.cmp(&b.volume));
        let pool = self.facts.pool.display().to_string();
        let only = only.map(|id| id.0);
        Ok(TrafficReport { version: TRAFFIC_VERSION, pool, only, seconds, bucket_ends_ns: bucket_ends_ns(), volumes })
    }

    /// `None` if the volume was destroyed.
    fn traffic_of(&self, (id, doors): &OfVolume) -> Option<VolumeTraffic> {
        let volume = match self.pool.volume_of(*id) {
            Ok(volume) => volume,
            Err(error) => {
                if error.kind() == ErrorKind::NotFound {
                    self.devices.traffics().forget(*id);
                }
                return None;
            }
        };
        let (name, effort) = (volume.name(), volume.effort());
        let kind = match (volume.is_share(), name.contains('@')) {
            (_, true) => ObjectKind::Snapshot,
            (true, _) => ObjectKind::Share,
            _ => ObjectKind::Volume,
        };
        let door = |(door, traffic): &(&'static str, _)| DoorTraffic {
            door: (*door).to_owned(),
            operations: of_kinds(traffic),
        };
        let codec = |(codec, effort): &(codec::CodecId, engine::CodecEffort)| CodecLine {
            codec: codec.to_string(),
            units: effort.units,
            raw_bytes: effort.raw_bytes,
            stored_bytes: effort.stored_bytes,
            cpu_ns: effort.cpu_ns(),
        };
        Some(VolumeTraffic {
            volume: name,
            id: id.0,
            kind,
            doors: doors.iter().map(door).collect(),
            codecs: effort.codecs.iter().map(codec).collect(),
            cache_hits: effort.cache_hits,
            cache_misses: effort.cache_misses,
        })
    }
}

fn of_kinds(traffic: &std::sync::Arc<surface::Traffic>) -> Vec<OperationLine> {
    OpKind::ALL.into_iter().map(|kind| OperationLine::new(kind, &traffic.counts(kind))).collect()
}
