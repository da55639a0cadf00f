//! The newest estimate of each object. Owns the documents; jobs update them, any thread may read
//! them.

use std::collections::BTreeMap;

use operations::EstimateWish;
use parking_lot::Mutex;
use report::{EstimateReport, JobFault, JobResult, JobState};
use surface::{DeviceId, Error, Result};

use crate::jobs::{Doing, Stop, Work, or_panicked};

/// Maximum number of objects with a stored estimate. A document has some hundred KB at most,
/// usually ten.
const KEPT_MAX: usize = 64;

struct Kept {
    wish: EstimateWish,
    report: EstimateReport,
}

/// See the module's text.
#[derive(Default)]
pub(crate) struct Estimates(Mutex<BTreeMap<DeviceId, Kept>>);

impl Estimates {
    /// Returns the newest estimate of an object.
    pub(crate) fn newest(&self, object: DeviceId) -> Option<EstimateReport> {
        self.0.lock().get(&object).map(|kept| kept.report.clone())
    }

    /// Returns the job under way for an object, and whether the wish can join it.
    pub(crate) fn under_way(&self, object: DeviceId, wish: &EstimateWish) -> Option<(u64, bool)> {
        let all = self.0.lock();
        let kept = all.get(&object).filter(|kept| !kept.report.state.has_ended())?;
        Some((kept.report.job?, covers(&kept.wish, wish)))
    }

    /// Records a new job. Figures of an earlier one for the same data stay until there are new
    /// ones.
    pub(crate) fn begin(&self, object: DeviceId, wish: EstimateWish, job: u64) {
        let mut all = self.0.lock();
        let mut report = EstimateReport::begun(object.0, wish.path.clone(), wish.properties.clone(), job);
        if let Some(Kept { report: old, .. }) = all.remove(&object)
            && (&old.path, &old.assumed) == (&report.path, &report.assumed)
        {
            report = EstimateReport { job: report.job, state: report.state, error: None, ..old };
        }
        all.insert(object, Kept { wish, report });
        while all.len() > KEPT_MAX {
            let oldest = all.iter().min_by_key(|(_, kept)| kept.report.job).map(|(id, _)| *id);
            if let Some(id) = oldest {
                all.remove(&id);
            }
        }
    }

    /// Does the work of a job, and records its outcome. An estimate whose work ended without one,
    /// such as in a panic, would stay under way, and every later wish would join it.
    pub(crate) fn settle(
        &self,
        object: DeviceId,
        doing: &Doing,
        work: impl FnOnce() -> Result<EstimateReport>,
    ) -> Work<JobResult> {
        match (or_panicked(work), doing.is_cancelled()) {
            (Ok(found), _) => {
                self.update(object, doing.id(), |report| report.state = JobState::Done);
                Ok(JobResult::Estimated(Box::new(found)))
            }
            (Err(_), Some(why)) => {
                let fault = Some(JobFault::cancelled(why.clone()));
                self.update(object, doing.id(), |report| {
                    (report.state, report.error) = (JobState::Cancelled, fault);
                });
                Err(Stop::Cancelled(why))
            }
            (Err(error), None) => {
                self.fail(object, doing.id(), &error);
                Err(Stop::Failed(error))
            }
        }
    }

    /// Records the error of a job.
    pub(crate) fn fail(&self, object: DeviceId, job: u64, error: &Error) {
        let fault = Some(JobFault::from(error));
        self.update(object, job, |report| (report.state, report.error) = (JobState::Failed, fault));
    }

    /// Changes the estimate that a job makes, unless a newer job has replaced it.
    pub(crate) fn update(&self, object: DeviceId, job: u64, change: impl FnOnce(&mut EstimateReport)) {
        if let Some(kept) = self.0.lock().get_mut(&object).filter(|kept| kept.report.job == Some(job)) {
            change(&mut kept.report);
        }
    }
}

/// Returns whether an estimate for the wish `made` covers all of `wish`.
fn covers(made: &EstimateWish, wish: &EstimateWish) -> bool {
    let basis = |of: &EstimateWish| (of.path.clone(), of.properties.clone(), of.sample_bytes, of.seed);
    let has_choices = match (&made.choices, &wish.choices) {
        (Some(made), Some(wished)) => wished.iter().all(|choice| made.contains(choice)),
        (made, wished) => made == wished,
    };
    has_choices && basis(made) == basis(wish)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use operations::Which;
    use report::JobKind;
    use surface::ErrorKind;

    use super::*;
    use crate::jobs::{Begin, Jobs, Worker};

    fn wish(choices: &[&str]) -> EstimateWish {
        let choices = Some(choices.iter().map(|choice| (*choice).to_owned()).collect());
        EstimateWish { choices, ..EstimateWish::of(Which::Id(7)) }
    }

    #[test]
    fn a_wish_that_a_job_under_way_covers_joins_it() {
        let (estimates, object) = (Estimates::default(), DeviceId(7));
        assert_eq!(estimates.under_way(object, &wish(&["lz4"])), None);
        estimates.begin(object, wish(&["lz4", "zstd-3"]), 1);
        assert_eq!(estimates.under_way(object, &wish(&["zstd-3"])), Some((1, true)));
        assert_eq!(estimates.under_way(object, &wish(&["gzip-9"])), Some((1, false)));
        let of_path = EstimateWish { path: Some("a".to_owned()), ..wish(&["lz4"]) };
        assert_eq!(estimates.under_way(object, &of_path), Some((1, false)));
        estimates.update(object, 1, |report| report.state = JobState::Done);
        assert_eq!(estimates.under_way(object, &wish(&["lz4"])), None);
    }

    /// After a panic it was joined until the server ended.
    #[test]
    fn an_estimate_that_has_ended_in_any_way_is_not_joined() {
        let (estimates, object, jobs) = (Estimates::default(), DeviceId(7), Arc::<Jobs>::default());
        let settled = |work: &dyn Fn(&Doing) -> Result<EstimateReport>| {
            let (kind, worker) = (JobKind::Estimate, Worker::Pool);
            let begin = Begin { kind, target: None, volume: None, path: None, background: true, worker };
            let doing = jobs.begin(begin).unwrap();
            estimates.begin(object, wish(&["lz4"]), doing.id());
            assert_eq!(estimates.under_way(object, &wish(&["lz4"])), Some((doing.id(), true)));
            let outcome = estimates.settle(object, &doing, || work(&doing));
            assert_eq!(estimates.under_way(object, &wish(&["lz4"])), None);
            let newest = estimates.newest(object).unwrap();
            doing.end(outcome);
            (newest.state, newest.error.map(|fault| fault.message).unwrap_or_default())
        };
        let (state, message) = settled(&|_| panic!("on purpose"));
        assert!(state == JobState::Failed && message.contains("on purpose"), "{state:?}: {message}");
        let failed = settled(&|_| Err(Error::new(ErrorKind::Io, "no disk")));
        assert_eq!(failed, (JobState::Failed, "no disk".to_owned()));
        let cancelled = settled(&|doing| {
            jobs.cancel(doing.id(), "enough").unwrap();
            Err(Error::new(ErrorKind::InUse, "enough"))
        });
        assert_eq!(cancelled, (JobState::Cancelled, "enough".to_owned()));
        let report = EstimateReport::begun(object.0, None, BTreeMap::new(), 9);
        assert_eq!(settled(&|_| Ok(report.clone())), (JobState::Done, String::new()));
    }

    #[test]
    fn figures_stay_until_there_are_new_ones_and_old_jobs_change_nothing() {
        let (estimates, object) = (Estimates::default(), DeviceId(7));
        estimates.begin(object, wish(&["lz4"]), 1);
        estimates.update(object, 1, |report| (report.sampled_bytes, report.state) = (5, JobState::Done));
        estimates.begin(object, wish(&["lz4", "zstd-3"]), 2);
        estimates.update(object, 1, |report| report.sampled_bytes = 9);
        let report = estimates.newest(object).unwrap();
        assert_eq!((report.job, report.state, report.sampled_bytes), (Some(2), JobState::Running, 5));
        let of_path = EstimateWish { path: Some("a".to_owned()), ..wish(&["lz4"]) };
        estimates.begin(object, of_path, 3);
        assert_eq!(estimates.newest(object).unwrap().sampled_bytes, 0, "another part of it");
        for id in 0..2 * KEPT_MAX as u64 {
            estimates.begin(DeviceId(100 + id), wish(&[]), 10 + id);
        }
        assert!(estimates.newest(object).is_none() && estimates.0.lock().len() == KEPT_MAX);
    }
}
