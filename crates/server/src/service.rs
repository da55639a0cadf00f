//! Answers requests on an open pool: for the command that opened it, and for the clients of a
//! server.

mod analytics;
mod damage;
mod files;
mod images;
mod jobs;
mod lists;
mod mounts;
mod resize;
mod tracers;
mod traces;
mod traffic;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use engine::{Meant, Pool, PoolRoom, Volume};
use parking_lot::Mutex;
use surface::{BlockDevice, Client, DeviceId, Error, ErrorKind, Result};

use self::damage::damage_words;
use self::mounts::is_of_shares;
use self::tracers::Tracers;
pub(crate) use self::tracers::{TraceKind, Tracing};
use self::traces::Traced;
use crate::devices::{Devices, is_in};
use crate::exports::{self, Exports};
use crate::fullness::{self, Fullness, Gauge};
use crate::health;
use crate::images::Images;
use crate::jobs::Jobs;
use crate::samples::Sampler;
use crate::schedules;
use crate::share_journals::Journals;
use crate::share_recompress::Recompressing;
use crate::share_trees;
use crate::shares::Shares;
use crate::{documents, stream_io, stream_plan};
use operations::{Reply, Request};
use report::{LossLine, ReceiveLine, ReservedLine, ScrubLine, StatusReport, ratio, write_amplification};

/// Facts about an open pool besides the engine's.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Directory of the pool.
    pub pool: PathBuf,
    /// Data file or device.
    pub data: PathBuf,
    /// Memory that it may use, in all.
    pub memory_bytes: u64,
    /// Name of this copy of the pool, under which it holds images.
    pub holder: String,
}

/// Where a pool is served.
#[derive(Clone, Default)]
pub struct Served {
    /// NBD addresses.
    pub nbd: Vec<String>,
    /// FUSE mount.
    pub mount: Option<String>,
    /// Directory below which shares are mounted.
    pub shares: Option<String>,
    /// Tells how many NBD connections there are.
    pub connections: Option<Arc<dyn Fn() -> usize + Send + Sync>>,
    /// Most of them.
    pub connections_max: usize,
}

/// An open pool and the requests on it.
pub struct Service {
    pool: Pool,
    devices: Devices,
    facts: Facts,
    opened: Instant,
    /// What the process had written to disks before.
    written_before: u64,
    served: Mutex<Option<Served>>,
    /// Shares that are mounted, while they are.
    shares: Mutex<Option<Arc<Shares>>>,
    /// The servers that give them out, while they do.
    exports: Mutex<Option<Arc<Exports>>>,
    journals: Arc<Journals>,
    /// Damages that the log has.
    damage_told: Mutex<BTreeSet<String>>,
    fullness: Fullness,
    recompressing: Recompressing,
    jobs: Arc<Jobs>,
    traced: Mutex<Traced>,
    tracers: Tracers,
    images: Arc<Images>,
    tending: Arc<images::Tending>,
    /// Records the history while the pool is served.
    sampler: Mutex<Option<Arc<Sampler>>>,
}

impl Service {
    /// Around a pool that was just opened. Words for the log go to `output`.
    pub(crate) fn new(pool: Pool, facts: Facts, journals: Journals, images: Arc<Images>) -> Self {
        let devices = Devices::new(pool.clone());
        Self {
            pool,
            devices,
            facts,
            opened: Instant::now(),
            written_before: host::disk_written_bytes(),
            served: Mutex::new(None),
            shares: Mutex::new(None),
            exports: Mutex::new(None),
            journals: Arc::new(journals),
            damage_told: Mutex::default(),
            fullness: Fullness::default(),
            recompressing: Recompressing::default(),
            jobs: Arc::default(),
            traced: Mutex::default(),
            tracers: Tracers::default(),
            images,
            tending: Arc::default(),
            sampler: Mutex::default(),
        }
    }

    /// The pool's volumes, for front ends.
    pub fn devices(&self) -> &Devices {
        &self.devices
    }

    /// Facts about the pool besides the engine's.
    pub const fn facts(&self) -> &Facts {
        &self.facts
    }

    /// The pool itself.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The journals of its shares' names.
    pub(crate) fn journals(&self) -> &Arc<Journals> {
        &self.journals
    }

    /// From now on `status` tells that the pool is served, and where.
    pub fn set_served(&self, served: Served) {
        *self.served.lock() = Some(served);
    }

    /// From now on changes of the pool's shares are changes of the mounts.
    pub fn set_shares(&self, shares: Arc<Shares>) {
        *self.shares.lock() = Some(shares);
    }

    /// Takes that back.
    pub fn forget_shares(&self) {
        *self.shares.lock() = None;
    }

    /// Takes a snapshot of one moment: mounted shares that are `meant` stand still meanwhile.
    fn still<T>(&self, meant: impl Fn(&str) -> bool, take: impl FnOnce() -> Result<T>) -> Result<T> {
        let shares = self.shares.lock().clone();
        match shares {
            Some(shares) => shares.still(meant, take),
            None => take(),
        }
    }

    /// Something for the server's log.
    pub fn log(&self, text: &str) {
        log::info!("{text}");
    }

    /// Opens a volume for bulk data, and says which it is: the one with the number `id`, or
    /// whichever has the name.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn open_volume(
        &self,
        name: &str,
        id: Option<u64>,
        client: &Arc<dyn Client>,
    ) -> Result<(u64, Arc<dyn BlockDevice>)> {
        let volume = self.named(name, id)?;
        share_trees::refuse(&volume)?;
        Ok((volume.id().0, self.devices.open_volume(volume, client)?))
    }

    /// The volume with the number `id`, whatever it is called by now; without one whichever has the
    /// name.
    fn named(&self, name: &str, id: Option<u64>) -> Result<Arc<Volume>> {
        let meant = id.map_or(Meant::Name(name), |id| DeviceId(id).into());
        self.pool.volume_meant(meant).map_err(|error| match id {
            Some(_) => error.context(format_args!("'{name}' is gone")),
            None => error,
        })
    }

    /// Does the request, and leaves a mark in the history if it changed something.
    ///
    /// # Errors
    /// What the pool says.
    pub fn handle(self: &Arc<Self>, request: Request) -> Result<Reply> {
        let mark = analytics::mark_of(&request);
        let reply = self.answer(request)?;
        mark.iter().for_each(|mark| self.mark(mark));
        Ok(reply)
    }

    fn answer(self: &Arc<Self>, request: Request) -> Result<Reply> {
        match request {
            Request::Hello => Ok(Reply::Done),
            Request::Create { volume, properties, .. } if properties.keys().any(|key| is_of_shares(key)) => {
                let text = format!(
                    "'{volume}' would be a volume: doors (nfs, smb, http, ftp) and atime are properties of shares"
                );
                Err(Error::new(ErrorKind::Invalid, text))
            }
            Request::Create { volume, size_bytes, properties } => {
                self.pool.create_volume(&volume, size_bytes, &properties).map(|id| Reply::Created { id: id.0 })
            }
            Request::CreateShare { share, properties } => {
                let create = || share_trees::create(&self.pool, &share, &properties);
                let shares = self.shares.lock().clone();
                let id = match shares {
                    Some(shares) => shares.make_apart(&share, create),
                    None => create(),
                }?;
                self.look_at_shares();
                Ok(Reply::Created { id: id.0 })
            }
            Request::CreateFolder { folder, properties } => {
                self.pool.create_folder(&folder, &properties).map(|id| Reply::Created { id: id.0 })
            }
            Request::Folders => {
                Ok(Reply::Volumes(self.pool.folders().into_iter().map(documents::folder_report).collect()))
            }
            Request::Destroy { volume, .. } if volume.contains('#') => {
                self.pool.destroy_bookmark(&volume).map(|()| Reply::Done)
            }
            Request::Bookmark { snapshot, name } => self.pool.bookmark(&snapshot, &name).map(|()| Reply::Done),
            Request::Bookmarks { volume } => {
                let bookmarks = self.pool.bookmarks(volume.as_deref())?;
                Ok(Reply::Bookmarks(bookmarks.into_iter().map(documents::bookmark_line).collect()))
            }
            Request::Destroy { volume, id, recursive, force } => {
                let destroy = || match id {
                    Some(_) => self.devices.destroy(self.named(&volume, id)?.id(), recursive, force),
                    None => self.devices.destroy(&volume, recursive, force),
                };
                self.check_destroy(&volume, id, recursive)?;
                self.letting_go(|| self.unmounted(&[&volume], force, destroy)).map(|()| Reply::Done)
            }
            Request::Allowed { request } => self.check_allowed(&request).map(|()| Reply::Done),
            Request::GiveUp { title } => self.letting_go(|| self.pool.give_up_received(&title)).map(|()| Reply::Done),
            Request::CloneImage { image, volume, size_bytes, properties } => {
                self.clone_image(&image, &volume, size_bytes, &properties)
            }
            Request::Push(wish) => self.push(&wish),
            Request::Snapshot { volume, name } => {
                let take = || self.pool.snapshot(&volume, &name);
                self.still(|share| share == volume, take).map(|()| Reply::Done)
            }
            Request::SnapshotFolder { folder, name } => {
                let take = || self.pool.snapshot_folder(&folder, &name);
                self.still(|share| share == folder || is_in(share, &folder), take).map(Reply::Taken)
            }
            Request::SnapshotTogether { snapshots } => {
                let meant = |share: &str| snapshots.iter().any(|title| operations::names::volume_of(title) == share);
                self.still(meant, || self.pool.snapshot_together(&snapshots)).map(Reply::Taken)
            }
            Request::Clone { snapshot, volume, properties } => {
                self.pool.clone_snapshot(&snapshot, &volume, &properties)?;
                self.look_at_shares();
                Ok(Reply::Done)
            }
            Request::Rollback { snapshots, recursive, force } => {
                let shares: Vec<_> = snapshots.iter().map(|snapshot| operations::names::volume_of(snapshot)).collect();
                self.check_rollback(&snapshots, recursive)?;
                let work = || self.devices.rollback(&snapshots, recursive, force);
                self.unmounted(&shares, force, work).map(|()| Reply::Done)
            }
            Request::Rename { old, new } => {
                self.unmounted(&[&old], false, || self.pool.rename(&old, &new))?;
                self.jobs.follow_names(|id| self.pool.volume_of(id).ok().map(|volume| volume.name()));
                // What has come among those that are served was not mounted before.
                self.look_at_shares();
                self.tend_soon();
                Ok(Reply::Done)
            }
            Request::Promote { volume } => self.pool.promote(&volume).map(|()| Reply::Done),
            Request::Hold { snapshot, tag } => self.pool.hold(&snapshot, &tag).map(|()| Reply::Done),
            Request::Release { snapshot, tag } => self.pool.release(&snapshot, &tag).map(|()| Reply::Done),
            Request::Holds { of } => {
                Ok(Reply::Holds(self.pool.holds(of.as_deref())?.into_iter().map(documents::hold_line).collect()))
            }
            Request::Snapshots { volume } => self.snapshots(volume.as_deref()).map(Reply::Snapshots),
            Request::Diff { to, .. } if self.pool.volume(&to).is_ok_and(|to| to.is_share()) => {
                let text = format!("cannot list changed files: '{to}' is a share (not supported yet)");
                Err(Error::new(ErrorKind::Unsupported, text))
            }
            Request::Diff { from, to, start } => {
                Ok(Reply::Diff(documents::diff_report(self.pool.diff(&from, &to, start)?)))
            }
            Request::Resize { volume, id, size_bytes, shrink, force } => {
                self.resize(self.named(&volume, id)?, size_bytes, shrink, force)
            }
            Request::List => Ok(Reply::Volumes(self.list())),
            Request::Status => Ok(Reply::Status(Box::new(self.status()))),
            Request::Get { volume } => {
                let mut properties = self.pool.properties(volume.as_deref())?;
                let is_folder = |name: &str| self.pool.is_folder(name);
                let is_share = |name: &str| self.pool.volume(name).is_ok_and(|found| found.is_share());
                let own = match volume.as_deref() {
                    Some(name) if is_folder(name) => "folder",
                    Some(name) if is_share(name) => "share",
                    _ => "volume",
                };
                if own == "volume" && volume.is_some() {
                    properties.retain(|property| !is_of_shares(&property.key));
                }
                let reports = properties.into_iter().map(|p| documents::property_report(p, own, is_folder));
                Ok(Reply::Properties(reports.collect()))
            }
            Request::Set { volume, id, changes } => self.set(volume.as_deref(), id, &changes),
            Request::Exports { check } => {
                let exports = self.exports.lock().clone();
                Ok(Reply::Exports(
                    exports.map_or_else(|| exports::unserved(&self.pool, check), |exports| exports.report(check)),
                ))
            }
            Request::Grow { capacity_bytes } => self.pool.grow(capacity_bytes).map(|()| Reply::Done),
            Request::Shrink { capacity_bytes, rounds } => {
                Ok(Reply::Shrunk(documents::shrink_slice(self.pool.shrink(capacity_bytes, rounds)?)))
            }
            Request::ShrinkEnd => {
                self.pool.give_up_shrinking();
                Ok(Reply::Done)
            }
            Request::Checkpoint => self.pool.checkpoint().map(|()| Reply::Done),
            Request::Acknowledge => {
                self.pool.acknowledge_damage()?;
                self.pool.acknowledge_losses().map(|()| Reply::Done)
            }
            Request::SortReport => self.sort(0, false).map(Reply::Sorted),
            Request::ScrubReport => Ok(Reply::Scrubbed(Box::new(self.scrub(0, false)?))),
            Request::RecompressReport { volume, mode, path } => {
                let report = self.recompress(Meant::Name(&volume), path, mode.as_deref(), (0, false))?;
                Ok(Reply::Recompressed(Box::new(documents::recompress_slice(report))))
            }
            Request::Explain { volume, from, count } => {
                let (regions, next) = self.pool.explain(&volume, from, count)?;
                Ok(Reply::Regions { regions: regions.into_iter().map(documents::region).collect(), next })
            }
            Request::ExplainRegion { volume, offset } => {
                Ok(Reply::Region(Box::new(documents::detail(self.pool.explain_region(&volume, offset)?))))
            }
            Request::ExplainFile { share, path } => self.explain_file(&share, path),
            Request::Usage { share, path } => {
                let (share, path) = self.place_of(&share, &path);
                Ok(Reply::Usage(Box::new(self.opened(&share)?.usage(&share, &path)?)))
            }
            Request::Trace { count } => Ok(Reply::Trace(self.traced(count))),
            Request::Traffic { volume, id } => Ok(Reply::Traffic(Box::new(self.traffic(volume.as_deref(), id)?))),
            Request::TraceEnd => Ok(self.end_trace()),
            Request::TraceReads { volume, from } => {
                let volume = self.named(&volume, None)?;
                Ok(Reply::Groups(self.devices.first_reads().take(volume.id(), from)?))
            }
            Request::TraceReadsEnd => {
                self.devices.first_reads().end();
                Ok(Reply::Done)
            }
            Request::Job(request) => self.on_job(request),
            Request::PlanSend(wish) => stream_plan::plan(&self.pool, &wish).map(Reply::Plan),
            Request::Place { volume, to, from } => Ok(Reply::Place(stream_io::place(self, &volume, to, from))),
            Request::Receives => Ok(Reply::Receives(self.receives())),
            Request::Send(_) | Request::Receive(_) => {
                Err(Error::new(ErrorKind::Invalid, "a stream needs a connection of its own"))
            }
            Request::Bulk { volume, id } => {
                let volume = self.named(&volume, id)?;
                share_trees::refuse(&volume)?;
                Ok(Reply::Bulk { id: volume.id().0 })
            }
            Request::AnalyticsDatasets
            | Request::Series(_)
            | Request::Heatmap(_)
            | Request::Marks { .. }
            | Request::Worksheets { .. } => self.on_history(request),
        }
    }

    /// Takes and removes the snapshots that are due now, until `is_over`; what was done, or could
    /// not be.
    pub fn run_schedules(&self, is_over: &dyn Fn() -> bool) -> Vec<String> {
        let still = |share: &str, take: &dyn Fn() -> Result<()>| self.still(|own| own == share, take);
        schedules::run(&self.pool, &self.devices, &still, env::Clock::unix_s(&env::SystemClock::default()), is_over)
    }

    fn receives(&self) -> Vec<ReceiveLine> {
        self.pool.receives().into_iter().map(documents::receive_line).collect()
    }

    /// What is to be said of how full the pool is, for the server's log.
    pub fn new_fullness(&self) -> Option<String> {
        self.fullness.look(self.pool.room().into(), || self.status())
    }

    fn status(&self) -> StatusReport {
        let mut report = self.figures();
        report.health = health::worst(&report).name().to_owned();
        report.full_level = fullness::level(report.used_percent);
        report
    }

    fn figures(&self) -> StatusReport {
        let status = self.pool.status();
        let damage = self.known_damage();
        let mut standby_notes = status.standby.notes;
        standby_notes.extend(self.journals.notes());
        let mounted = self.shares.lock().clone();
        let names_at_risk = mounted.as_ref().map(|shares| shares.names_at_risk()).unwrap_or_default();
        let has_names_at_risk = !names_at_risk.is_empty();
        standby_notes.extend(names_at_risk);
        let served = self.served.lock().clone();
        let is_served = served.is_some();
        let Served { nbd, mount, shares, connections, connections_max } = served.unwrap_or_default();
        // The process writes to nothing but the log and the map, once it is open; where the system
        // does not count, the log alone is known.
        let written = host::disk_written_bytes().saturating_sub(self.written_before).max(status.log_bytes);
        // Clones see what destroyed volumes hold for them: it is stored, so it counts as data, too.
        let allocated = status.allocated_bytes + status.unlisted_allocated_bytes;
        let holds = self.pool.holds(None).unwrap_or_default();
        let held: BTreeSet<_> = holds.iter().map(|hold| (&hold.volume, &hold.snapshot)).collect();
        let saving = (allocated > 0).then(|| 100.0 * (1.0 - status.live_bytes as f64 / allocated as f64));
        let cleaned = status.cleaned_extents * status.extent_bytes;
        // With what has been written since the last checkpoint. What has been discarded since takes
        // its room until the next one.
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
            damages: damage.damages.into_iter().map(damage_words).collect(),
            damages_unlisted: damage.unlisted,
            damages_acknowledged: damage.acknowledged,
            receives: self.receives(),
            images: self.pool.images().into_iter().map(documents::image_line).collect(),
            incomplete: self.pool.incomplete(),
            bookmarks: self.pool.bookmarks(None).map_or(0, |bookmarks| bookmarks.len() as u64),
            holds: holds.len() as u64,
            held_snapshots: held.len() as u64,
            losses: self.pool.losses().into_iter().map(|(unix_s, text)| LossLine { unix_s, text }).collect(),
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

    /// Closes the pool: everything is durable and checkpointed.
    ///
    /// # Errors
    /// What the pool says; the pool is closed anyway.
    pub fn close(&self) -> Result<()> {
        self.jobs.stop();
        self.end_tending();
        self.pool.clone().close()
    }
}
