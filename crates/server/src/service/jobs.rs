//! Requests about jobs, and the work that only jobs do.

use std::sync::Arc;
use std::time::Duration;

use engine::{Calibration, CalibrationEffort};
use surface::{Error, ErrorKind, Result};

use super::Service;
use crate::documents;
use crate::jobs::{Jobs, Planned};
use crate::share_check::{self, Search};
use operations::{JobRequest, Reply};
use report::{CleanSlice, ScrubSlice, SortSlice};
use report::{JobReport, JobWish};

impl Service {
    /// The jobs of the pool.
    pub fn jobs(&self) -> &Arc<Jobs> {
        &self.jobs
    }

    /// Does a request about jobs.
    ///
    /// # Errors
    /// What the table of jobs says, and the pool.
    pub(super) fn on_job(self: &Arc<Self>, request: JobRequest) -> Result<Reply> {
        let report = match request {
            JobRequest::Start { wish, background } => self.start_job(wish, background)?,
            JobRequest::List => return Ok(Reply::Jobs(self.jobs.list())),
            JobRequest::Watch { id, seen, patience_ms } => match seen {
                Some(seen) => self.jobs.watch(id, seen, Duration::from_millis(patience_ms))?,
                None => self.jobs.report(id)?,
            },
            JobRequest::Pause { id } => self.jobs.pause(id)?,
            JobRequest::Resume { id } => self.jobs.resume(id)?,
            JobRequest::Cancel { id, interrupted } => {
                let why = if interrupted { "interrupted" } else { "cancelled by a command" };
                self.jobs.cancel(id, why)?
            }
            JobRequest::Register { .. } | JobRequest::Tell { .. } | JobRequest::Finish { .. } => {
                return Err(Error::new(ErrorKind::Invalid, "a client's job needs a connection that it ends with"));
            }
        };
        Ok(Reply::Job(Box::new(report)))
    }

    fn start_job(self: &Arc<Self>, wish: JobWish, background: bool) -> Result<JobReport> {
        let planned = Planned::new(self, wish)?;
        let doing = self.jobs.begin(planned.begin(background))?;
        let id = doing.id();
        let service = Arc::clone(self);
        self.jobs.run(doing, move |doing| planned.run(&service, doing))?;
        self.jobs.report(id)
    }

    /// Cleans for a while: goes on with the pass that has the mark, or begins one.
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

    /// Scrubs for a while.
    pub(crate) fn scrub(&self, bytes: u64, restart: bool) -> Result<ScrubSlice> {
        let mut report = self.pool.scrub(bytes, restart)?;
        share_check::name_files(&self.pool, &mut report.damages, Search::Whole, &|name| self.opened(name));
        Ok(documents::scrub_slice(report))
    }

    /// Measures how fast this machine compresses, and what its processors take meanwhile.
    /// `progress` is told how many bytes are done, and of how many.
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
