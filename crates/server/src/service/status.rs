//! Reports the state and the figures of the pool.

use std::collections::BTreeSet;

use engine::PoolRoom;

use super::damage::damage_words;
use super::{Served, Service};
use crate::fullness::{self, Gauge};
use crate::health;
use crate::{documents, share_losses};
use report::{LossLine, ReservedLine, ScrubLine, StatusReport, ratio, write_amplification};

impl Service {
    /// Returns new warnings for the server's log: the pool is filling up, or a share or a folder is
    /// at its quota.
    pub fn new_fullness(&self) -> Vec<String> {
        let of_pool = self.fullness.look(self.pool.room().into(), || self.status(true));
        let at_quota: Vec<_> = self.pool.at_quota().into_iter().map(documents::quota_line).collect();
        of_pool.into_iter().chain(self.fullness.look_at_quotas(&at_quota)).collect()
    }

    /// Returns the state of the pool; with `names_files`, damages and losses name files of shares.
    pub(super) fn status(&self, names_files: bool) -> StatusReport {
        let mut report = self.figures(names_files);
        report.health = health::worst(&report).name().to_owned();
        report.full_level = fullness::level(report.used_percent);
        report
    }

    fn figures(&self, names_files: bool) -> StatusReport {
        let status = self.pool.status();
        let damage = self.known_damage(names_files);
        let loss = |(unix_s, text): (u64, String)| LossLine {
            unix_s,
            text: if names_files { text } else { share_losses::without_files(&text).to_owned() },
        };
        let mut standby_notes = status.standby.notes;
        standby_notes.extend(self.journals.notes());
        let mounted = self.shares.lock().clone();
        let names_at_risk = mounted.as_ref().map(|shares| shares.names_at_risk()).unwrap_or_default();
        let has_names_at_risk = !names_at_risk.is_empty();
        standby_notes.extend(names_at_risk);
        let served = self.served.lock().clone();
        let is_served = served.is_some();
        let Served { nbd, mount, shares, connections, connections_max } = served.unwrap_or_default();
        // Once open, the process writes only to the log and the map; where the system does not
        // count writes, only those of the log are known.
        let written = host::disk_written_bytes().saturating_sub(self.written_before).max(status.log_bytes);
        // Clones see data that destroyed volumes hold for them: it is stored, so it counts as data,
        // too.
        let allocated = status.allocated_bytes + status.unlisted_allocated_bytes;
        let holds = self.pool.holds(None).unwrap_or_default();
        let held: BTreeSet<_> = holds.iter().map(|hold| (&hold.volume, &hold.snapshot)).collect();
        let saving = (allocated > 0).then(|| 100.0 * (1.0 - status.live_bytes as f64 / allocated as f64));
        let cleaned = status.cleaned_extents * status.extent_bytes;
        // Includes writes since the last checkpoint. Space discarded since then is freed by the
        // next one.
        let gauge = Gauge::from(PoolRoom {
            live_bytes: status.live_bytes + status.returning_bytes,
            available_bytes: status.available_bytes,
            reserved_bytes: status.reserved_bytes,
            is_full: status.is_full,
            refused_writes: status.refused_writes,
        });
        StatusReport {
            jobs: self.jobs.under_way(),
            unserved_shares: mounted.map(|shares| shares.unserved()).unwrap_or_default(),
            cleaned_extents: status.cleaned_extents,
            moved_bytes: status.moved_bytes,
            rewritten_bytes: status.rewritten_bytes,
            cleaning_ms: status.cleaning_ns as f64 / 1e6,
            cleaning_bytes_per_s: ratio(cleaned, status.cleaning_ns).map(|per_ns| per_ns * 1e9),
            cold_before_bytes: status.cold_before_bytes,
            cold_after_bytes: status.cold_after_bytes,
            catalogue_bytes: status.catalogue_bytes,
            catalogue_extents: status.catalogue_extents,
            health: String::new(),
            used_percent: gauge.used_percent,
            available_bytes: status.available_bytes,
            reserved_bytes: status.reserved_bytes,
            reserved_for: status
                .reserved_for
                .into_iter()
                .map(|(volume, bytes)| ReservedLine { volume, bytes })
                .collect(),
            full_level: 0,
            kept_bytes: status.kept_bytes,
            returning_bytes: status.returning_bytes,
            full: gauge.is_full,
            at_quota: self.pool.at_quota().into_iter().map(documents::quota_line).collect(),
            short_below: status.is_short_below,
            refused_writes: status.refused_writes,
            exact: status.is_exact,
            scrub: ScrubLine {
                started_unix_s: damage.started_unix_s,
                finished_unix_s: damage.finished_unix_s,
                running: damage.is_scrubbing,
                bytes_done: damage.bytes_done,
                bytes_total: damage.bytes_total,
                found: damage.found,
            },
            copies_read: status.reads_of_copies,
            repaired_fragments: status.repaired_fragments,
            damages: damage.damages.into_iter().map(damage_words).collect(),
            damages_unlisted: damage.unlisted,
            damages_acknowledged: damage.acknowledged,
            receives: self.receives(),
            images: self.pool.images().into_iter().map(documents::image_line).collect(),
            incomplete: self.pool.incomplete(),
            bookmarks: self.pool.bookmarks(None).map_or(0, |bookmarks| bookmarks.len() as u64),
            holds: holds.len() as u64,
            held_snapshots: held.len() as u64,
            losses: self.pool.losses().into_iter().map(loss).collect(),
            pool: self.facts.pool.display().to_string(),
            data: self.facts.data.display().to_string(),
            id: status.id,
            served: is_served,
            pid: std::process::id(),
            nbd,
            nbd_connections: connections.map_or(0, |count| count() as u64),
            nbd_connections_max: connections_max as u64,
            mount,
            shares,
            uptime_s: self.opened.elapsed().as_secs(),
            capacity_bytes: status.capacity_bytes,
            extent_bytes: status.extent_bytes,
            extents_free: status.extents_free,
            extents_total: status.extents_total,
            volumes: self.pool.volumes().len() as u64,
            logical_bytes: status.logical_bytes,
            allocated_bytes: allocated,
            stored_bytes: status.live_bytes,
            unlisted_bytes: status.unlisted_bytes,
            unlisted_allocated_bytes: status.unlisted_allocated_bytes,
            dictionaries: status.dictionaries,
            dictionary_bytes: status.dictionary_bytes,
            reaping: status.reaping,
            dead_bytes: status.dead_bytes,
            free_bytes: status.free_bytes,
            map_bytes: status.map_bytes,
            ratio: ratio(allocated, status.live_bytes).filter(|_| allocated > 0),
            saving_percent: saving,
            written_bytes: status.written_bytes,
            fragment_bytes: status.fragment_bytes,
            log_bytes: status.log_bytes,
            disk_written_bytes: written,
            write_amplification: write_amplification(written, status.rewritten_bytes, status.fragment_bytes),
            read_bytes: status.read_bytes,
            read_disk_bytes: status.read_disk_bytes,
            read_ahead_bytes: status.ahead_bytes,
            read_ahead_used_bytes: status.ahead_used_bytes,
            checkpoints: status.checkpoints,
            light_checkpoints: status.light_checkpoints,
            flushes: status.flushes,
            syncs: status.syncs,
            recovered_batches: status.recovered_batches,
            recovered_bytes: status.recovered_bytes,
            recovery_ms: status.recovery_ns as f64 / 1e6,
            standby: status.standby.place,
            standby_bytes: status.standby.bytes,
            replayed_writes: status.standby.replayed,
            replayed_bytes: status.standby.replayed_bytes,
            standby_notes,
            names_at_risk: has_names_at_risk,
            memory_budget_bytes: self.facts.memory_bytes,
            memory_resident_bytes: host::resident_bytes(),
            failed: status.failed,
        }
    }
}
