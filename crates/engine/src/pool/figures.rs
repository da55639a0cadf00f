//! Counters of a pool for a sampler that reads them each second: loads only, no list and no lock
//! that a client waits for. Owns nothing.

use codec::CodecId;
use policy::Power;
use store::base::decode_counts::DecodeEffort;
use store::base::status::{PoolRoom, QuotaUse};

use crate::codecs::trace::TraceRecord;
use crate::pool::Pool;

/// Counters since the pool was opened, and its space. In bytes unless stated otherwise.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PoolFigures {
    /// Written to the log for clients' data.
    pub client_log_bytes: u64,
    /// Written to the log by the cleaner.
    pub cleaner_log_bytes: u64,
    /// Written to the log by recompression.
    pub recompress_log_bytes: u64,
    /// Written to the log by sorting.
    pub sort_log_bytes: u64,
    /// Written to the log in all, headers and padding included.
    pub log_bytes: u64,
    /// All bytes read from the data file.
    pub disk_read_bytes: u64,
    /// Read from the data file by the cleaner and by recompression.
    pub cleaner_read_bytes: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// Light checkpoints.
    pub light_checkpoints: u64,
    /// Flushes that clients asked for.
    pub flushes: u64,
    /// Syncs of the data file that served them.
    pub syncs: u64,
    /// Extents that were emptied.
    pub cleaned_extents: u64,
    /// Writes that found no room.
    pub refused_writes: u64,
    /// Capacity of the log.
    pub capacity_bytes: u64,
    /// Live fragments, as of the last checkpoint.
    pub live_bytes: u64,
    /// New data for which there is room.
    pub available_bytes: u64,
    /// Kept for volumes with reservations, and not used by them.
    pub reserved_bytes: u64,
    /// Units by the reason of their codec: its name, and how many.
    pub choices: Vec<(&'static str, u64)>,
    /// Decompression by codec; codecs without any are left out.
    pub decoded: Vec<(CodecId, DecodeEffort)>,
}

/// What a pool knows of its machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MachineFigures {
    /// CPUs that compression can get.
    pub cpus: f64,
    /// Speed of the device, measured on writes since the pool was opened; none: not known yet.
    pub device_bytes_per_s: Option<f64>,
    /// What a busy CPU takes, and whose figure that is.
    pub power: Power,
}

impl Pool {
    /// What the pool knows of its machine now.
    pub fn machine(&self) -> MachineFigures {
        let pressure = self.core.chooser.meter.pressure(false);
        let ns_per_kib = pressure.device_ns_per_kib;
        let device_bytes_per_s = (ns_per_kib > 0.0).then(|| 1024e9 / ns_per_kib);
        MachineFigures { cpus: pressure.cpus, device_bytes_per_s, power: self.core.chooser.costs.power() }
    }

    /// The counters now.
    pub fn figures(&self) -> PoolFigures {
        let core = &self.core;
        let c = &core.vitals.counters;
        let sorted = c.sorted_bytes.get();
        let rewritten = c.rewritten_bytes.get();
        PoolFigures {
            client_log_bytes: c.fragment_bytes.get(),
            cleaner_log_bytes: c.moved_bytes.get().saturating_sub(rewritten),
            recompress_log_bytes: rewritten.saturating_sub(sorted),
            sort_log_bytes: sorted,
            log_bytes: c.log_bytes.get(),
            disk_read_bytes: c.read_disk_bytes.get(),
            cleaner_read_bytes: c.cleaner_read_bytes.get(),
            checkpoints: c.checkpoints.get(),
            light_checkpoints: c.light_checkpoints.get(),
            flushes: c.flushes.get(),
            syncs: c.syncs.get(),
            cleaned_extents: c.cleaned_extents.get(),
            refused_writes: c.refused_writes.get(),
            capacity_bytes: u64::from(core.geometry.extents()) * u64::from(core.geometry.extent_bytes),
            live_bytes: core.space.live_bytes(),
            available_bytes: core.space.available_bytes(),
            reserved_bytes: core.space.reserved_unmet(),
            choices: core.chooser.choices(),
            decoded: c.decoded.report(),
        }
    }
}

impl Pool {
    /// Starts recording each unit that `auto` decides about, or ends that and drops the records.
    /// Costs two reads of the clock for each unit while it is on. Ends by itself when no records
    /// were taken for ten seconds.
    pub fn set_trace(&self, on: bool) {
        self.core.chooser.trace.set(on, self.core.vitals.env.clock.unix_s());
    }

    /// Takes up to `count` records out of the ring, the oldest first; starts the trace if it was
    /// not on. Missing numbers were lost because the ring was full.
    pub fn take_trace(&self, count: usize) -> Vec<TraceRecord> {
        self.core.chooser.trace.take(count, self.core.vitals.env.clock.unix_s())
    }

    /// How full it is.
    pub fn room(&self) -> PoolRoom {
        let space = &self.core.space;
        PoolRoom {
            live_bytes: space.live_bytes(),
            available_bytes: space.available_bytes(),
            reserved_bytes: space.reserved_unmet(),
            is_full: space.is_full(),
            refused_writes: self.core.vitals.counters.refused_writes.get(),
        }
    }

    /// Returns the bytes that the map store occupies on disk, by listing its files.
    pub fn map_bytes(&self) -> u64 {
        self.core.vitals.env.store.occupied_bytes()
    }

    /// Returns the volumes, shares and folders that have refused data because of their quota and
    /// would refuse it again, by name.
    pub fn at_quota(&self) -> Vec<QuotaUse> {
        self.core.writes.at_quota()
    }

    /// Returns how much of its quota the volume, share or folder of that name uses; `None` if it
    /// has none.
    pub fn quota_use(&self, name: &str) -> Option<QuotaUse> {
        let objects = &self.core.objects;
        let object = objects.folder(name).or_else(|| objects.named(name).ok())?;
        self.core.writes.quota_use(&object)
    }
}
