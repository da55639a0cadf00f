//! Requests about the pool's history, and the marks that operations leave in it.

use std::collections::BTreeMap;
use std::sync::Arc;

use analytics::{DATASETS, Dataset, Query, Shape, Store};
use operations::{Effect, Reply, Request, SeriesWish};
use report::{ANALYTICS_VERSION, DatasetLine, DatasetsReport, MarkLine, WorksheetLine, bucket_ends_ns};
use surface::{Error, ErrorKind, Result};

use super::Service;
use crate::samples::{self, Counters, Sampler};

/// Maximum number of marks in an answer.
const MARKS_LISTED_MAX: usize = 1000;

impl Service {
    /// Begins to record the pool's history, or deletes it if there is no budget.
    ///
    /// # Errors
    /// When no thread can be started, or the file cannot be deleted.
    pub fn begin_history(self: &Arc<Self>, budget_bytes: Option<u64>) -> Result<()> {
        match budget_bytes {
            Some(budget_bytes) => {
                let counters = self.sampled.lock().take().unwrap_or_else(|| Counters::new(self));
                *self.sampler.lock() = Some(Sampler::start(self, budget_bytes, counters)?);
            }
            None => samples::remove(&self.facts.pool)?,
        }
        Ok(())
    }

    /// Ends recording.
    pub fn end_history(&self) {
        let sampler = self.sampler.lock().take();
        if let Some(sampler) = sampler {
            *self.sampled.lock() = sampler.stop();
        }
    }

    /// Adds a mark to the history.
    pub(crate) fn mark(&self, text: &str) {
        let sampler = self.sampler.lock().clone();
        if let Some(sampler) = sampler {
            sampler.mark(text);
        }
    }

    /// Records a change that the server made itself: in the history, and for pages that show
    /// objects.
    pub(crate) fn note_own(&self, text: &str) {
        self.mark(&format!("{text} (schedule)"));
        self.audit_log.count_change();
    }

    /// Returns the bytes that this process has written to disks since the pool was opened.
    pub(crate) fn disk_written_bytes(&self) -> u64 {
        host::disk_written_bytes().saturating_sub(self.written_before)
    }

    /// Passes the history to `work`: that of the server, or the file of a pool without a server.
    fn with_history<T>(&self, work: impl FnOnce(&mut Store) -> T) -> Result<T> {
        let sampler = self.sampler.lock().clone();
        if let Some(sampler) = sampler {
            return Ok(sampler.with_store(work));
        }
        let path = self.facts.pool.join(samples::FILE_NAME);
        if !path.exists() {
            let text =
                format!("the pool {} has no history: serve it without --analytics off", self.facts.pool.display());
            return Err(Error::new(ErrorKind::NotFound, text));
        }
        let mut store = samples::store_of(&self.facts.pool, samples::BUDGET_BYTES);
        store.open(host::unix_s());
        match &store.health().fault {
            Some(fault) => Err(Error::new(ErrorKind::Io, format!("the history cannot be read: {fault}"))),
            None => Ok(work(&mut store)),
        }
    }

    /// Answers a request about the history.
    ///
    /// # Errors
    /// `NotFound` without a history, `Invalid` for an invalid query.
    pub(super) fn on_history(&self, request: Request) -> Result<Reply> {
        match request {
            Request::Series(wish) => {
                let query = self.query_of(wish)?;
                let report = self.with_history(|store| store.query(&query))?;
                report.map(|report| Reply::Series(Box::new(report))).map_err(|error| invalid(&error))
            }
            Request::Heatmap(wish) => {
                let query = self.query_of(wish)?;
                let report = self.with_history(|store| store.heatmap(&query, bucket_ends_ns()))?;
                report.map(|report| Reply::Heatmap(Box::new(report))).map_err(|error| invalid(&error))
            }
            Request::Marks { from_unix_s, to_unix_s } => {
                let marks = self.with_history(|store| store.marks(from_unix_s, to_unix_s))?;
                let mut marks = marks.map_err(|error| invalid(&error))?;
                marks.drain(..marks.len().saturating_sub(MARKS_LISTED_MAX));
                let line = |mark: analytics::Mark| MarkLine { unix_s: mark.unix_s, text: mark.text };
                Ok(Reply::Marks(marks.into_iter().map(line).collect()))
            }
            Request::Worksheets => {
                let line = |(name, body): (&str, &str)| WorksheetLine { name: name.to_owned(), body: body.to_owned() };
                self.with_history(|store| store.worksheets().map(line).collect()).map(Reply::Worksheets)
            }
            Request::SaveWorksheet { name, .. } if name.is_empty() => {
                Err(Error::new(ErrorKind::Invalid, "a worksheet needs a name"))
            }
            Request::SaveWorksheet { name, body } => {
                if self.set_worksheet(&name, Some(&body))? {
                    return Ok(Reply::Done);
                }
                let (count, bytes) = (analytics::WORKSHEETS_MAX, analytics::WORKSHEET_BYTES_MAX);
                let text = format!(
                    "cannot store worksheet '{name}': a pool has at most {count}, of {bytes} bytes each; remove \
                     one, or save less"
                );
                Err(Error::new(ErrorKind::Invalid, text))
            }
            Request::RemoveWorksheet { name } => {
                if self.set_worksheet(&name, None)? {
                    return Ok(Reply::Done);
                }
                Err(Error::new(ErrorKind::NotFound, format!("there is no worksheet '{name}'")))
            }
            _ => self.datasets().map(|report| Reply::Datasets(Box::new(report))),
        }
    }

    /// Saves or removes a worksheet; returns false if it cannot be stored, or does not exist.
    fn set_worksheet(&self, name: &str, body: Option<&str>) -> Result<bool> {
        let now = host::unix_s();
        self.with_history(|store| {
            let is_done = store.set_worksheet(name, body);
            store.commit(now);
            is_done
        })
    }

    fn datasets(&self) -> Result<DatasetsReport> {
        let line = |dataset: Dataset| DatasetLine {
            dataset: dataset.name().to_owned(),
            unit: dataset.unit().name().to_owned(),
            shape: if dataset.shape() == Shape::Gauge { "gauge" } else { "sum" }.to_owned(),
            breakdowns: dataset.breakdowns().into_iter().map(str::to_owned).collect(),
            text: dataset.text().to_owned(),
        };
        let store = match self.with_history(|store| store.state()) {
            Err(error) if error.kind() == ErrorKind::NotFound => Default::default(),
            state => state?,
        };
        Ok(DatasetsReport { version: ANALYTICS_VERSION, datasets: DATASETS.into_iter().map(line).collect(), store })
    }

    fn query_of(&self, wish: SeriesWish) -> Result<Query> {
        let mut only = wish.filters()?;
        let SeriesWish { dataset: name, by, from_unix_s, to_unix_s, step_s, .. } = wish;
        let Some(dataset) = Dataset::by_name(&name) else {
            let known: Vec<_> = DATASETS.into_iter().map(Dataset::name).collect();
            let text = format!("no dataset '{name}'; there are {}", known.join(", "));
            return Err(Error::new(ErrorKind::Invalid, text));
        };
        let mut names = BTreeMap::new();
        if dataset.has_objects() {
            for (id, _) in self.devices.traffics().list(None) {
                if let Ok(volume) = self.pool.volume_of(id) {
                    names.insert(id.0, volume.name());
                }
            }
        }
        // An object is followed through its earlier names.
        for (breakdown, value) in &mut only {
            if breakdown == "object"
                && let Ok(volume) = self.pool.volume(value)
            {
                *value = format!("#{}", volume.id().0);
            }
        }
        Ok(Query { dataset, by, only, from: from_unix_s, to: to_unix_s, step_s, names })
    }
}

fn invalid(error: &dyn std::fmt::Display) -> Error {
    Error::new(ErrorKind::Invalid, error.to_string())
}

/// Returns whether a successful change by this request leaves a mark in the history: changes of
/// users and saved graphs do not.
pub(super) fn leaves_mark(request: &Request) -> bool {
    let is_about_users = matches!(
        request,
        Request::SetPassword { .. }
            | Request::RemoveUser { .. }
            | Request::CreateToken { .. }
            | Request::RevokeToken { .. }
            | Request::SaveWorksheet { .. }
            | Request::RemoveWorksheet { .. }
    );
    request.about().effect != Effect::Read && !is_about_users
}
