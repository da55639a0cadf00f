//! Requests about jobs, and work that only jobs do.

use std::sync::Arc;
use std::time::Duration;

use engine::{Calibration, CalibrationEffort};
use surface::Result;

use super::Service;
use crate::documents;
use crate::jobs::{Jobs, Planned, Task};
use crate::share_check::{self, Search};
use operations::Request;
use report::JobReport;
use report::{CleanSlice, ScrubSlice, SortSlice};

impl Service {
    /// Returns the jobs of the pool.
    pub fn jobs(&self) -> &Arc<Jobs> {
        &self.jobs
    }

    /// Returns the state of a job, at once or when its change counter differs from `seen`.
    pub(super) fn watch_job(&self, id: u64, seen: Option<u64>, patience_ms: u64) -> Result<JobReport> {
        match seen {
            Some(seen) => self.jobs.watch(id, seen, Duration::from_millis(patience_ms)),
            None => self.jobs.report(id),
        }
    }

    /// Fails for a request that removes the mark `incomplete` of an object while an import into it
    /// is under way; `own` is the job of the caller, which removes the mark at its end.
    ///
    /// # Errors
    /// `InUse`, with the job.
    pub(crate) fn check_mark(&self, request: &Request, own: Option<u64>) -> Result<()> {
        let Request::Set { object: Some(object), changes, .. } = request else { return Ok(()) };
        if changes.get(policy::INCOMPLETE).is_none_or(|value| value.as_deref() == Some("yes")) {
            return Ok(());
        }
        // The request itself reports an object that does not exist.
        let Ok(volume) = self.volume(object) else { return Ok(()) };
        self.jobs.refuse_during_import(volume.id(), &volume.name(), own)
    }

    /// Cancels a job.
    pub(super) fn cancel_job(&self, id: u64, interrupted: bool) -> Result<JobReport> {
        self.jobs.cancel(id, if interrupted { "interrupted" } else { "cancelled by a command" })
    }

    pub(super) fn start_task(self: &Arc<Self>, task: Task, background: bool) -> Result<JobReport> {
        let planned = Planned::new(self, task)?;
        let doing = self.jobs.begin(planned.begin(background))?;
        let id = doing.id();
        let service = Arc::clone(self);
        self.jobs.run(doing, move |doing| planned.run(&service, doing))?;
        self.jobs.report(id)
    }

    /// Cleans for a while: continues the pass with that mark, or begins one.
    pub(crate) fn clean(&self, all: bool, rounds: u32, mark: Option<u32>) -> Result<CleanSlice> {
        let report = match mark {
            Some(mark) => self.pool.clean_on(all, rounds, engine::CleanMark(mark)),
            None => self.pool.clean(all, rounds),
        };
        report.map(documents::clean_slice)
    }

    /// Sorts for a while.
    pub(crate) fn sort(&self, bytes: u64, restart: bool) -> Result<SortSlice> {
        self.pool.sort(bytes, restart).map(documents::sort_slice)
    }

    /// Scrubs for a while, and names damaged files if that is wanted.
    pub(crate) fn scrub(&self, bytes: u64, restart: bool, names_files: bool) -> Result<ScrubSlice> {
        let mut report = self.pool.scrub(bytes, restart)?;
        if names_files {
            share_check::name_files(&self.pool, &mut report.damages, Search::Whole, &|name| self.opened(name));
        }
        Ok(documents::scrub_slice(report))
    }

    /// Measures the speed of compression on this machine, and the energy of its processors.
    /// `progress` receives the bytes done, and their total.
    ///
    /// # Errors
    /// Those of `progress`, and when the storage fails.
    pub fn calibrate(
        &self,
        effort: CalibrationEffort,
        progress: &dyn Fn(u64, u64) -> Result<()>,
    ) -> Result<Calibration> {
        let rapl = env::Rapl::open();
        self.pool.calibrate(effort, &|| rapl.as_ref().and_then(env::Rapl::used_uj), progress)
    }
}
