//! Answers requests on an open pool, of the command that opened it and of the clients of a server.

mod access;
mod analytics;
mod damage;
mod estimates;
mod files;
mod images;
mod imports;
mod jobs;
mod lists;
mod mounts;
mod objects;
mod preview;
mod reload;
mod resize;
mod status;
mod tracers;
mod traces;
mod traffic;
mod users;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use engine::{Pool, Volume, VolumeRef};
use parking_lot::{Mutex, RwLock};
use surface::{BlockDevice, Client, DeviceId, Error, ErrorKind, Result};

pub use self::access::this_process;
pub(crate) use self::imports::TreeImport;
use self::mounts::is_of_shares;
pub use self::reload::Reloader;
use self::tracers::Tracers;
pub(crate) use self::tracers::{TraceKind, Tracing};
use self::traces::Traced;
use crate::access::Access;
use crate::audit::AuditLog;
use crate::devices::{Devices, is_in};
use crate::estimates::Estimates;
use crate::exports::{self, Exports};
use crate::fullness::Fullness;
use crate::images::Images;
use crate::jobs::{Jobs, RestoreWish, Task};
use crate::samples::{Counters, Sampler};
use crate::schedules;
use crate::share_journals::Journals;
use crate::share_recompress::Recompressing;
use crate::share_trees;
use crate::shares::Shares;
use crate::{documents, share_browse, stream_io, stream_plan};
use operations::{Audit, Reply, Request, Role, Which};
use report::{JobReport, ReceiveLine};

/// Facts about an open pool that the engine does not know.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Directory of the pool.
    pub pool: PathBuf,
    /// Its data file or device.
    pub data: PathBuf,
    /// Total memory that it may use.
    pub memory_bytes: u64,
    /// Name of this copy of the pool as a holder of images.
    pub holder: String,
}

/// Front ends that serve a pool.
#[derive(Clone, Default)]
pub struct Served {
    /// NBD addresses.
    pub nbd: Vec<String>,
    /// FUSE mount.
    pub mount: Option<String>,
    /// Directory below which shares are mounted.
    pub shares: Option<String>,
    /// Returns the number of NBD connections.
    pub connections: Option<Arc<dyn Fn() -> usize + Send + Sync>>,
    /// Maximum number of NBD connections.
    pub connections_max: usize,
}

/// An open pool and the requests on it.
pub struct Service {
    pool: Pool,
    devices: Devices,
    facts: Facts,
    opened: Instant,
    /// Bytes that the process had written to disks before.
    written_before: u64,
    served: Mutex<Option<Served>>,
    /// The mounted shares, if the server mounts any.
    shares: Mutex<Option<Arc<Shares>>>,
    /// The network servers of the shares, if the server runs any.
    exports: Mutex<Option<Arc<Exports>>>,
    journals: Arc<Journals>,
    /// Damages that were logged.
    damage_told: Mutex<BTreeSet<String>>,
    fullness: Fullness,
    recompressing: Recompressing,
    estimates: Estimates,
    jobs: Arc<Jobs>,
    traced: Mutex<Traced>,
    tracers: Tracers,
    images: Arc<Images>,
    tending: Arc<images::Tending>,
    /// Receives the calls that change something.
    audit: Mutex<Arc<dyn Audit>>,
    audit_log: Arc<AuditLog>,
    access: Access,
    /// Exclusive while a name is assigned, shared while an object found by number is used.
    names: RwLock<()>,
    /// Reloads the configuration, if the server has one.
    reloader: Mutex<Option<Reloader>>,
    /// Records the history while the pool is served.
    sampler: Mutex<Option<Arc<Sampler>>>,
    /// Counts of the sampler that ended last.
    sampled: Mutex<Option<Counters>>,
}

impl Service {
    /// Service of a pool that was just opened.
    pub(crate) fn new(pool: Pool, facts: Facts, journals: Journals, images: Arc<Images>) -> Self {
        let devices = Devices::new(pool.clone());
        let audit_log = Arc::new(AuditLog::new(&facts.pool));
        Self {
            access: Access::open(&facts.pool),
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
            estimates: Estimates::default(),
            jobs: Arc::default(),
            traced: Mutex::default(),
            tracers: Tracers::default(),
            images,
            tending: Arc::default(),
            audit: Mutex::new(audit_log.clone()),
            audit_log,
            names: RwLock::default(),
            reloader: Mutex::default(),
            sampler: Mutex::default(),
            sampled: Mutex::default(),
        }
    }

    /// Returns the pool's volumes, for front ends.
    pub fn devices(&self) -> &Devices {
        &self.devices
    }

    /// Returns facts about the pool that the engine does not know.
    pub const fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Returns the pool itself.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Returns users, tokens and sessions of HTTP.
    pub fn access(&self) -> &Access {
        &self.access
    }

    /// Returns the audit log, for events that are not operations.
    pub fn audit_log(&self) -> &AuditLog {
        &self.audit_log
    }

    /// Returns the journals of its shares' names.
    pub(crate) fn journals(&self) -> &Arc<Journals> {
        &self.journals
    }

    /// Sets the front ends that `status` reports.
    pub fn set_served(&self, served: Served) {
        *self.served.lock() = Some(served);
    }

    /// Sets the mounted shares, which follow changes of the pool's shares from now on.
    pub fn set_shares(&self, shares: Arc<Shares>) {
        *self.shares.lock() = Some(shares);
    }

    /// Clears the mounted shares.
    pub fn forget_shares(&self) {
        *self.shares.lock() = None;
    }

    /// Makes a snapshot of one moment: mounted shares that are `meant` are frozen meanwhile.
    fn still<T>(&self, meant: impl Fn(&str) -> bool, take: impl FnOnce() -> Result<T>) -> Result<T> {
        let shares = self.shares.lock().clone();
        match shares {
            Some(shares) => shares.still(meant, take),
            None => take(),
        }
    }

    /// Writes to the server's log.
    pub fn log(&self, text: &str) {
        log::info!("{text}");
    }

    /// Opens a volume for bulk data, and returns its number.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn open_volume(&self, which: &Which, client: &Arc<dyn Client>) -> Result<(u64, Arc<dyn BlockDevice>)> {
        let volume = self.volume(which)?;
        share_trees::refuse(&volume)?;
        Ok((volume.id().0, self.devices.open_volume(volume, client)?))
    }

    /// Returns the volume or snapshot of a request.
    fn volume(&self, which: &Which) -> Result<Arc<Volume>> {
        let meant = match which {
            Which::Name(name) => VolumeRef::Name(name),
            Which::Id(id) | Which::Known { id, .. } => VolumeRef::Number(DeviceId(*id)),
        };
        self.pool.volume_by_ref(meant).map_err(|error| match which.id() {
            Some(_) => error.context(format_args!("{which} is gone")),
            None => error,
        })
    }

    /// Answers a request whose caller was checked, and has that role.
    pub(crate) fn answer(self: &Arc<Self>, mut request: Request, role: Role) -> Result<Reply> {
        let _names = self.guard_names(&request);
        self.check_version(&request)?;
        let notes = request.spell_out();
        self.carry_out(request, role).map(|reply| reply.with_notes(notes).seen_by(role))
    }

    /// Carries out a request. A missing operation does not compile.
    fn carry_out(self: &Arc<Self>, request: Request, role: Role) -> Result<Reply> {
        let job = |job: JobReport| Reply::Job(Box::new(job));
        match request {
            Request::Hello => Ok(Reply::Done),
            Request::Create { volume, properties, .. } if properties.keys().any(|key| is_of_shares(key)) => {
                let text = format!(
                    "'{volume}' would be a volume: doors (nfs, smb, http, ftp), atime, xattr and acl are properties of shares"
                );
                Err(Error::new(ErrorKind::Invalid, text))
            }
            Request::Create { volume, size_bytes, properties, parents } => {
                self.make_folders_of(&volume, parents)?;
                self.pool.create_volume(&volume, size_bytes, &properties).map(|id| Reply::created(id.0))
            }
            Request::CreateShare { share, properties, parents } => {
                self.make_folders_of(&share, parents)?;
                let create = || share_trees::create(&self.pool, &share, &properties);
                let shares = self.shares.lock().clone();
                let id = match shares {
                    Some(shares) => shares.make_apart(&share, |_| create()),
                    None => create(),
                }?;
                self.look_at_shares();
                Ok(Reply::created(id.0))
            }
            Request::CreateFolder { folder, properties, parents } => {
                self.make_folders_of(&folder, parents)?;
                self.pool.create_folder(&folder, &properties).map(|id| Reply::created(id.0))
            }
            Request::Folders => {
                Ok(Reply::Volumes(self.pool.folders().into_iter().map(documents::folder_report).collect()))
            }
            Request::Bookmark { object, name } => {
                self.pool.bookmark(&self.name_of(&object)?, &name).map(|()| Reply::Done)
            }
            Request::Bookmarks { object } => {
                let bookmarks = self.pool.bookmarks(self.name_if(object.as_ref())?.as_deref())?;
                Ok(Reply::Bookmarks(bookmarks.into_iter().map(documents::bookmark_line).collect()))
            }
            Request::Destroy { object, recursive, force, .. } => {
                let name = self.name_of(&object)?;
                if name.contains('#') {
                    return self.pool.destroy_bookmark(&name).map(|()| Reply::Done);
                }
                let meant = self.meant(&object, &name);
                self.pool.check_destroy(meant, recursive)?;
                self.end_estimates_of(&object, recursive);
                let destroy = || self.devices.destroy(meant, recursive, force);
                self.letting_go(|| self.unmounted(&[&name], force, destroy)).map(|()| Reply::Done)
            }
            Request::Preview { request } => self.preview(&request).map(Reply::Affected),
            Request::GiveUp { title } => self.letting_go(|| self.pool.give_up_received(&title)).map(|()| Reply::Done),
            Request::CloneImage { image, volume, size_bytes, properties } => {
                self.clone_image(&image, &volume, size_bytes, &properties)
            }
            Request::Push(wish) => {
                let background = wish.background;
                self.start_task(Task::Push(wish), background).map(job)
            }
            Request::Snapshot { object, name } => {
                let volume = self.name_of(&object)?;
                let take = || self.pool.snapshot(&volume, &name);
                self.still(|share| share == volume, take).map(|()| Reply::Done)
            }
            Request::SnapshotFolder { folder, name } => {
                let folder = self.name_of(&folder)?;
                let take = || self.pool.snapshot_folder(&folder, &name);
                self.still(|share| share == folder || is_in(share, &folder), take).map(Reply::Taken)
            }
            Request::SnapshotTogether { snapshots } => {
                let meant = |share: &str| snapshots.iter().any(|title| operations::names::volume_of(title) == share);
                self.still(meant, || self.pool.snapshot_together(&snapshots)).map(Reply::Taken)
            }
            Request::Clone { object, volume, properties } => {
                self.pool.clone_snapshot(&self.name_of(&object)?, &volume, &properties)?;
                self.look_at_shares();
                Ok(Reply::created(self.pool.volume(&volume)?.id().0))
            }
            Request::Rollback { snapshots, recursive, force } => {
                let snapshots = self.names_of(&snapshots)?;
                let shares: Vec<_> = snapshots.iter().map(|snapshot| operations::names::volume_of(snapshot)).collect();
                self.check_rollback(&snapshots, recursive)?;
                let work = || self.devices.rollback(&snapshots, recursive, force);
                self.unmounted(&shares, force, work).map(|()| Reply::Done)
            }
            Request::Rename { object, name, .. } => {
                let old = self.name_of(&object)?;
                self.pool.check_rename(&old, &name)?;
                self.unmounted(&[&old], false, || self.pool.rename(&old, &name))?;
                self.jobs.follow_names(|id| self.pool.volume_of(id).ok().map(|volume| volume.name()));
                // New objects among the served ones were not mounted before.
                self.look_at_shares();
                self.tend_soon();
                Ok(Reply::Done)
            }
            Request::Promote { object } => self.pool.promote(&self.name_of(&object)?).map(|()| Reply::Done),
            Request::Hold { object, tag } => self.pool.hold(&self.name_of(&object)?, &tag).map(|()| Reply::Done),
            Request::Release { object, tag } => self.pool.release(&self.name_of(&object)?, &tag).map(|()| Reply::Done),
            Request::Holds { object } => {
                let holds = self.pool.holds(self.name_if(object.as_ref())?.as_deref())?;
                Ok(Reply::Holds(holds.into_iter().map(documents::hold_line).collect()))
            }
            Request::Snapshots { object, name, below } => {
                let object = self.name_if(object.as_ref())?;
                self.snapshots(object.as_deref(), name.as_deref(), below).map(Reply::Snapshots)
            }
            Request::Diff { object, from, start } => {
                let (from, to) = (self.name_of(&from)?, self.name_of(&object)?);
                if self.pool.volume(&to).is_ok_and(|to| to.is_share()) {
                    let text = format!("cannot list changed files: '{to}' is a share (not supported yet)");
                    return Err(Error::new(ErrorKind::Unsupported, text));
                }
                Ok(Reply::Diff(documents::diff_report(self.pool.diff(&from, &to, start)?)))
            }
            Request::Resize { object, size_bytes, shrink, force, .. } => {
                self.resize(self.volume(&object)?, size_bytes, shrink, force)
            }
            Request::ListObjects(wish) => self.list_objects(&wish).map(Reply::Objects),
            Request::Object { object, usage } => Ok(Reply::Object(Box::new(self.object(&object, usage)?))),
            Request::List => Ok(Reply::Volumes(self.list())),
            Request::Status => Ok(Reply::Status(Box::new(self.status(role.sees_file_names())))),
            Request::Reload => self.reload().map(Reply::Reloaded),
            Request::Get { object } => {
                self.properties(self.name_if(object.as_ref())?.as_deref(), Vec::new()).map(Reply::Properties)
            }
            Request::Set { object, changes, .. } => {
                let changes: Vec<_> = changes.into_iter().collect();
                self.set(object.as_ref(), &changes)
            }
            Request::Exports { check } => {
                let exports = self.exports.lock().clone();
                Ok(Reply::Exports(
                    exports.map_or_else(|| exports::unserved(&self.pool, check), |exports| exports.report(check)),
                ))
            }
            Request::Grow { capacity_bytes } => self.pool.grow(capacity_bytes).map(|()| Reply::Done),
            Request::Shrink { capacity_bytes, background } => {
                self.start_task(Task::Shrink { capacity_bytes }, background).map(job)
            }
            Request::Checkpoint => self.pool.checkpoint().map(|()| Reply::Done),
            Request::Acknowledge => {
                self.pool.acknowledge_damage()?;
                self.pool.acknowledge_losses().map(|()| Reply::Done)
            }
            Request::SortReport => self.sort(0, false).map(Reply::Sorted),
            Request::ScrubReport => Ok(Reply::Scrubbed(Box::new(self.scrub(0, false, role.sees_file_names())?))),
            Request::RecompressReport { object, mode, path } => {
                let name = self.name_of(&object)?;
                let report = self.recompress(self.meant(&object, &name), path, mode.as_deref(), (0, false))?;
                Ok(Reply::Recompressed(Box::new(documents::recompress_slice(report))))
            }
            Request::Explain { object, from, count } => {
                let name = self.name_of(&object)?;
                let buffered_bytes = self.pool.buffered_bytes(&name)?;
                let (regions, next) = self.pool.explain(&name, from, count)?;
                let regions = regions.into_iter().map(documents::region).collect();
                Ok(Reply::Regions { buffered_bytes, regions, next })
            }
            Request::ExplainMap { object, cells } => {
                let volume = self.volume(&object)?;
                let map = self.pool.codec_map(&volume.name(), usize::try_from(cells).unwrap_or(engine::CELLS_MAX))?;
                Ok(Reply::ExplainMap(Box::new(documents::explain_map(map, volume.space().0))))
            }
            Request::ExplainRegion { object, offset } => {
                let detail = self.pool.explain_region(&self.name_of(&object)?, offset)?;
                Ok(Reply::Region(Box::new(documents::detail(detail))))
            }
            Request::ExplainFile { object, path } => self.explain_file(&self.name_of(&object)?, path),
            Request::Usage { object, path } => {
                let (share, path) = self.place_of(&self.name_of(&object)?, &path);
                Ok(Reply::Usage(Box::new(self.opened(&share)?.usage(&share, &path)?)))
            }
            Request::Files { object, path, at, limit, cursor } => {
                let place = self.file_place(&object, &path, at.as_deref())?;
                Ok(Reply::Files(Box::new(share_browse::list(&place, limit, cursor.as_deref())?)))
            }
            Request::FileVersion { object, path, at } => {
                let place = self.file_place(&object, &path, at.as_deref())?;
                let part = share_browse::Part::default();
                Ok(Reply::FileVersion(Box::new(share_browse::read(&place, &part)?.0)))
            }
            Request::Restore { object, path, at, to, replace } => {
                let wish = RestoreWish { object, path, at, to, replaces: replace };
                self.start_task(Task::Restore(wish), true).map(job)
            }
            Request::Trace { count } => Ok(Reply::Trace(self.traced(count))),
            Request::Traffic { object } => Ok(Reply::Traffic(Box::new(self.traffic(object.as_ref())?))),
            Request::TraceEnd => Ok(self.end_trace()),
            Request::TraceReads { object, from } => {
                let volume = self.volume(&object)?;
                Ok(Reply::Groups(self.devices.first_reads().take(volume.id(), from)?))
            }
            Request::TraceReadsEnd => {
                self.devices.first_reads().end();
                Ok(Reply::Done)
            }
            Request::StartJob { wish, background } => self.start_task(Task::Wish(wish), background).map(job),
            Request::StartEstimate(wish) => self.start_estimate(wish).map(job),
            Request::Estimate { object } => self.newest_estimate(&object).map(|found| Reply::Estimate(Box::new(found))),
            Request::Jobs => Ok(Reply::Jobs(self.jobs.list())),
            Request::WatchJob { id, seen, patience_ms } => self.watch_job(id, seen, patience_ms).map(job),
            Request::PauseJob { id } => self.jobs.pause(id).map(job),
            Request::ResumeJob { id } => self.jobs.resume(id).map(job),
            Request::CancelJob { id, interrupted } => self.cancel_job(id, interrupted).map(job),
            Request::RegisterJob { .. } | Request::TellJob { .. } | Request::FinishJob { .. } => {
                Err(Error::new(ErrorKind::Invalid, "a client's job requires a connection of its own"))
            }
            Request::PlanSend(wish) => stream_plan::plan(&self.pool, &wish).map(Reply::Plan),
            Request::Place { volume, to, from } => Ok(Reply::Place(stream_io::place(self, &volume, to, from))),
            Request::Receives => Ok(Reply::Receives(self.receives())),
            Request::Send(_) | Request::Receive(_) | Request::ImportTree(_) => {
                Err(Error::new(ErrorKind::Invalid, "a stream needs a connection of its own"))
            }
            Request::Bulk { object } => {
                let volume = self.volume(&object)?;
                share_trees::refuse(&volume)?;
                Ok(Reply::Bulk { id: volume.id().0 })
            }
            Request::Users
            | Request::SetPassword { .. }
            | Request::RemoveUser { .. }
            | Request::Tokens
            | Request::CreateToken { .. }
            | Request::RevokeToken { .. }
            | Request::Audit { .. } => self.on_users(request),
            Request::AnalyticsDatasets
            | Request::Series(_)
            | Request::Heatmap(_)
            | Request::Marks { .. }
            | Request::Worksheets
            | Request::SaveWorksheet { .. }
            | Request::RemoveWorksheet { .. } => self.on_history(request),
        }
    }

    /// Makes and removes the snapshots that are due now, until `is_over`; returns the actions that
    /// were done and those that failed.
    pub fn run_schedules(&self, is_over: &dyn Fn() -> bool) -> Vec<String> {
        let still = |share: &str, take: &dyn Fn() -> Result<()>| self.still(|own| own == share, take);
        let note = |line: &str| self.note_own(line);
        schedules::run(&self.pool, &self.devices, &still, host::unix_s(), is_over, &note)
    }

    fn receives(&self) -> Vec<ReceiveLine> {
        self.pool.receives().into_iter().map(documents::receive_line).collect()
    }

    /// Closes the pool: everything is durable and checkpointed.
    ///
    /// # Errors
    /// Those of the pool; it is closed in any case.
    pub fn close(&self) -> Result<()> {
        self.jobs.stop();
        self.end_tending();
        self.pool.clone().close()
    }
}
