//! Estimates of an object's size with other settings: a job of the pool, which reads samples of the
//! data and compresses them.
//!
//! 1. The wish becomes a plan, from the properties in force and the assumed ones.
//! 2. The files of a share are listed in its tree, the data of a volume in the map.
//! 3. Samples are read and compressed in rounds (crate `estimate`). Each round narrows the margins
//!    of the object's estimate.
//! 4. After each batch of samples the work rests while others are busy: clients of the pool, or
//!    other programs on the processors. The first samples are exempt, so that there are figures
//!    soon.
//!
//! Nothing stays open for longer than a batch: an object can be destroyed, rolled back and
//! unmounted meanwhile, which ends the job.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use copy::volume_io::LocalVolume;
use engine::{PropertySource, Volume};
use estimate::{Machine, Plan, Population, ShareFile, ShareFiles, ShareScan, Step};
use operations::{EstimateWish, Which, names};
use parking_lot::Mutex;
use report::{EstimateReport, JobKind, JobReport, JobState};
use surface::{Allocation, DeviceId, Error, ErrorKind, Result};

use super::Service;
use crate::jobs::{Begin, Doing, Worker, rest_after};
use crate::share_files::{Opened, Walk};
use crate::share_trees::error_of;

/// Time for an estimate that is replaced to end: a batch with the slowest codecs.
const REPLACE_PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of samples before the first rest: less than a second of a core with the usual codecs.
const FIRST_BYTES: u64 = 4 << 20;
/// Files listed between two checks for requests to the job.
const FILES_SLICE: u64 = 1024;
/// Ratio of wall time to CPU time of compressing above which other programs are competing for the
/// processors.
const STRETCH_MAX: u64 = 2;

/// A plan with its data.
struct Planned {
    plan: Plan,
    /// Volume, share or snapshot that holds the data.
    volume: Arc<Volume>,
    /// Directory or file of a share; empty for all of it.
    path: String,
    wish: EstimateWish,
}

/// Reads the files of a share through its tree, mounted or not. Holds the tree until it is
/// released.
struct ShareReader {
    service: Arc<Service>,
    share: DeviceId,
    opened: Mutex<Option<Opened>>,
}

impl ShareReader {
    fn opened(&self) -> Result<(String, Opened)> {
        let name = self.service.pool.volume_of(self.share)?.name();
        let mut opened = self.opened.lock();
        let found = match &*opened {
            Some(found) => found.clone(),
            None => opened.insert(self.service.opened(&name)?).clone(),
        };
        Ok((name, found))
    }

    fn let_go(&self) {
        *self.opened.lock() = None;
    }
}

impl ShareFiles for ShareReader {
    fn read(&self, file: u64, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let (name, opened) = self.opened()?;
        opened.tree.read(file, offset, buf).map_err(|failure| error_of(&name, "a file cannot be read", failure))
    }

    fn data(&self, file: u64) -> Result<Vec<(u64, u64)>> {
        let (name, opened) = self.opened()?;
        let seek = |at, wanted| match opened.tree.seek(file, at, wanted) {
            Err(failure) if failure.errno() == libc::ENXIO => Ok(None),
            found => found.map(Some).map_err(|failure| error_of(&name, "the holes of a file are unknown", failure)),
        };
        let (mut ranges, mut at) = (Vec::new(), 0);
        while let Some(begin) = seek(at, Allocation::Data)? {
            let Some(end) = seek(begin, Allocation::Hole)?.filter(|end| *end > begin) else { break };
            ranges.push((begin, end - begin));
            at = end;
        }
        Ok(ranges)
    }
}

impl Service {
    /// Starts an estimate, or joins an equal one under way for the object.
    pub(super) fn start_estimate(self: &Arc<Self>, wish: EstimateWish) -> Result<JobReport> {
        let object = self.volume(&wish.object)?;
        let planned = self.plan_estimate(&object, wish)?;
        let (id, wish) = (object.id(), planned.wish.clone());
        match self.estimates.under_way(id, &wish) {
            Some((job, true)) => return self.jobs.report(job),
            Some((job, false)) => self.end_estimate(job, "another estimate of the same object was started"),
            None => {}
        }
        let path = wish.path.clone();
        let target = path.as_ref().map_or_else(|| object.name(), |path| format!("{}/{path}", object.name()));
        let (kind, background) = (JobKind::Estimate, wish.background);
        let begin = Begin { kind, target: Some(target), volume: Some(id), path, background, worker: Worker::Pool };
        let doing = self.jobs.begin(begin)?;
        let job = doing.id();
        self.estimates.begin(id, wish, job);
        let service = Arc::clone(self);
        let work = move |doing: &Doing| service.estimates.settle(id, doing, || service.sample(id, &planned, doing));
        self.jobs.run(doing, work).inspect_err(|error| self.estimates.fail(id, job, error))?;
        self.jobs.report(job)
    }

    /// Returns the newest estimate of an object, with the current state of its job.
    pub(super) fn newest_estimate(&self, which: &Which) -> Result<EstimateReport> {
        let object = self.volume(which)?;
        let mut found = self.estimates.newest(object.id()).ok_or_else(|| {
            let name = object.name();
            let text = format!("no estimate of '{name}' since the pool was opened: run 'shale estimate POOL {name}'");
            Error::new(ErrorKind::NotFound, text)
        })?;
        let job = found.job.filter(|_| !found.state.has_ended()).and_then(|job| self.jobs.report(job).ok());
        if let Some(job) = job {
            found.state = job.state;
        }
        Ok(found)
    }

    /// Ends estimates of objects about to be destroyed or replaced, because they have their trees
    /// open.
    pub(super) fn end_estimates_of(&self, object: &Which, recursive: bool) {
        for (name, _) in self.destroyed_by(object, recursive).unwrap_or_default() {
            let newest = self.pool.volume(&name).ok().and_then(|volume| self.estimates.newest(volume.id()));
            if let Some(job) = newest.filter(|report| !report.state.has_ended()).and_then(|report| report.job) {
                self.end_estimate(job, "the object is being destroyed");
            }
        }
    }

    /// Cancels an estimate, and waits briefly for its end.
    fn end_estimate(&self, job: u64, why: &str) {
        let give_up = Instant::now() + REPLACE_PATIENCE;
        let mut now = self.jobs.cancel(job, why);
        while let Ok(JobReport { state, changes, .. }) = now
            && !state.has_ended()
            && Instant::now() < give_up
        {
            now = self.jobs.watch(job, changes, REPLACE_PATIENCE);
        }
    }

    fn plan_estimate(&self, object: &Arc<Volume>, mut wish: EstimateWish) -> Result<Planned> {
        if wish.sample_bytes == Some(0) {
            return Err(Error::new(ErrorKind::Invalid, "an estimate needs samples: more than 0 bytes"));
        }
        wish.path = wish.path.filter(|path| !path.trim_matches('/').is_empty());
        let (mut name, mut path) = (object.name(), wish.path.clone().unwrap_or_default());
        if object.is_share() {
            (name, path) = self.place_of(&name, &path);
        } else if !path.is_empty() {
            let text = format!("'{name}' is a volume, which has no files: omit {path}");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let set = |name: Option<&str>| -> Result<BTreeMap<String, String>> {
            let properties = self.pool.properties(name)?.into_iter();
            let set = properties.filter(|property| property.source != PropertySource::Default);
            Ok(set.map(|property| (property.key, property.value)).collect())
        };
        let assumed: Vec<_> = wish.properties.clone().into_iter().collect();
        let codecs = match &wish.choices {
            None => estimate::CODECS_DEFAULT.to_owned(),
            Some(choices) if choices.is_empty() => "none".to_owned(),
            Some(choices) => choices.join(","),
        };
        // A snapshot has no properties of its own.
        let plan = Plan::new(&set(None)?, &set(Some(names::volume_of(&name)))?, &assumed, &codecs)?;
        Ok(Planned { plan, volume: self.pool.volume(&name)?, path, wish })
    }

    fn sample(self: &Arc<Self>, object: DeviceId, planned: &Planned, doing: &Doing) -> Result<EstimateReport> {
        let Planned { plan, volume, path, wish } = planned;
        let reader = Arc::new(ShareReader { service: Arc::clone(self), share: volume.id(), opened: Mutex::default() });
        let population = if volume.is_share() {
            doing.begin_phase("listing", 0, None);
            let population = files_of(&reader, path, plan, doing);
            reader.let_go();
            population?
        } else {
            Population::of_volume(Arc::new(LocalVolume(volume.clone())), plan.unit_bytes)?
        };
        doing.begin_phase("estimating", 0, None);
        let known = self.pool.machine();
        let (power, device_bytes_per_s) = (Some(known.power), known.device_bytes_per_s);
        let machine = Machine { power, cpus: Some(known.cpus), device_bytes_per_s };
        let document = |found: &EstimateReport, state| EstimateReport {
            object: Some(object.0),
            path: wish.path.clone(),
            assumed: wish.properties.clone(),
            job: Some(doing.id()),
            state,
            ..found.clone()
        };
        let (mut began, mut touched) = (Instant::now(), self.devices.traffics().touched());
        let mut on = |step: Step<'_>| -> Result<()> {
            let batch = match step {
                Step::Batch(batch) => batch,
                Step::Round(found) => {
                    let found = document(found, JobState::Running);
                    self.estimates.update(object, doing.id(), |report| *report = found);
                    return Ok(());
                }
            };
            reader.let_go();
            doing.tell(batch.done, Some(batch.total), String::new());
            let now = self.devices.traffics().touched();
            let is_busy = touched != now || batch.wall_ns > STRETCH_MAX * batch.cpu_ns.max(1);
            if batch.done > FIRST_BYTES {
                doing.rest(rest_after(began.elapsed(), is_busy));
            }
            doing.go_on().map_err(cancelled)?;
            self.pool.volume_of(volume.id())?;
            (began, touched) = (Instant::now(), self.devices.traffics().touched());
            Ok(())
        };
        let found = estimate::in_rounds(&population, plan, wish.sample_bytes, wish.seed, &machine, &mut on)?;
        Ok(document(&found, JobState::Done))
    }
}

/// Error for the work of a cancelled job.
fn cancelled(why: String) -> Error {
    Error::new(ErrorKind::InUse, why)
}

/// Returns the files of a share, or of a part of one.
fn files_of(reader: &Arc<ShareReader>, path: &str, plan: &Plan, doing: &Doing) -> Result<Population> {
    let (share, opened) = reader.opened()?;
    let (node, inode) = opened.find(&share, path)?;
    if !inode.is_file() && !inode.is_directory() {
        let text = format!("'{path}' in share '{share}' is neither a file nor a directory: it has no data");
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    let name = path.rsplit('/').find(|name| !name.is_empty()).unwrap_or_default();
    let mut scan = ShareScan::new(Arc::<ShareReader>::clone(reader), plan.unit_bytes);
    let (mut files, mut bytes) = (0u64, 0);
    Walk::new(&opened, &share).each_file((name.to_owned(), node, inode), &mut |name, node, inode| {
        // It may have been removed since.
        let word = opened.tree.type_of(node).unwrap_or_default();
        scan.add(ShareFile { file: node, name, word: &word, size_bytes: inode.size });
        (files, bytes) = (files + 1, bytes + inode.size);
        if files.is_multiple_of(FILES_SLICE) {
            doing.tell(bytes, None, format!("{files} files"));
            doing.is_cancelled().map_or(Ok(()), |why| Err(cancelled(why)))?;
        }
        Ok(())
    })?;
    Ok(scan.population())
}
