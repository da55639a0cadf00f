//! Requests about the pool's history, and the marks that operations leave in it.

use std::collections::BTreeMap;
use std::sync::Arc;

use analytics::{DATASETS, Dataset, Query, Shape, Store};
use operations::{Reply, Request, SeriesWish};
use report::{ANALYTICS_VERSION, DatasetLine, DatasetsReport, MarkLine, WorksheetLine, bucket_ends_ns};
use surface::{Error, ErrorKind, Result};

use super::Service;
use crate::samples::{self, Sampler};

/// Marks are found in this span at most.
const MARKS_LISTED_MAX: usize = 1000;

impl Service {
    /// Begins to record the pool's history, or deletes it if there is no budget.
    ///
    /// # Errors
    /// When no thread can be started, or the file cannot be deleted.
    pub fn begin_history(self: &Arc<Self>, budget_bytes: Option<u64>) -> Result<()> {
        match budget_bytes {
            Some(budget_bytes) => *self.sampler.lock() = Some(Sampler::start(self, budget_bytes)?),
            None => samples::remove(&self.facts.pool)?,
        }
        Ok(())
    }

    /// Ends recording.
    pub fn end_history(&self) {
        let sampler = self.sampler.lock().take();
        if let Some(sampler) = sampler {
            sampler.stop();
        }
    }

    /// Notes in the history that something happened.
    pub(crate) fn mark(&self, text: &str) {
        let sampler = self.sampler.lock().clone();
        if let Some(sampler) = sampler {
            sampler.mark(text);
        }
    }

    /// Bytes that this process has written to disks since the pool was opened.
    pub(crate) fn disk_written_bytes(&self) -> u64 {
        host::disk_written_bytes().saturating_sub(self.written_before)
    }

    /// Works with the history: that of the server, or the file of a pool that no server has.
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
    /// `NotFound` without a history, `Invalid` for a question that makes no sense.
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
                let mut marks = self.with_history(|store| store.marks(from_unix_s, to_unix_s))?;
                marks.drain(..marks.len().saturating_sub(MARKS_LISTED_MAX));
                let line = |mark: analytics::Mark| MarkLine { unix_s: mark.unix_s, text: mark.text };
                Ok(Reply::Marks(marks.into_iter().map(line).collect()))
            }
            Request::Worksheets { change: None } => {
                let line = |(name, body): (&str, &str)| WorksheetLine { name: name.to_owned(), body: body.to_owned() };
                self.with_history(|store| store.worksheets().map(line).collect()).map(Reply::Worksheets)
            }
            Request::Worksheets { change: Some((name, body)) } => {
                if name.is_empty() {
                    return Err(Error::new(ErrorKind::Invalid, "a worksheet needs a name"));
                }
                let now = host::unix_s();
                let is_done = self.with_history(|store| {
                    let is_done = store.set_worksheet(&name, body.as_deref());
                    store.commit(now);
                    is_done
                })?;
                let (count, bytes) = (analytics::WORKSHEETS_MAX, analytics::WORKSHEET_BYTES_MAX);
                match (is_done, body) {
                    (true, _) => Ok(Reply::Done),
                    (false, None) => Err(Error::new(ErrorKind::NotFound, format!("there is no worksheet '{name}'"))),
                    (false, Some(_)) => {
                        let text = format!(
                            "worksheet '{name}' cannot be stored: a pool has at most {count}, of {bytes} bytes each; \
                             delete one, or save less"
                        );
                        Err(Error::new(ErrorKind::Invalid, text))
                    }
                }
            }
            _ => self.datasets().map(|report| Reply::Datasets(Box::new(report))),
        }
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
        let SeriesWish { dataset: name, by, mut only, from_unix_s, to_unix_s, step_s } = wish;
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
        // An object is followed under other names.
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

/// The mark that a request leaves when it was done.
pub(super) fn mark_of(request: &Request) -> Option<String> {
    let of = |name: &Option<String>| name.as_ref().map_or_else(|| "the pool".to_owned(), |name| format!("'{name}'"));
    Some(match request {
        Request::Set { volume, changes, .. } => {
            let change = |(key, value): &(String, Option<String>)| match value {
                Some(value) => format!("{key}={value}"),
                None => format!("{key} inherited"),
            };
            let changes: Vec<_> = changes.iter().map(change).collect();
            format!("set {} on {}", changes.join(", "), of(volume))
        }
        Request::Create { volume, .. } => format!("created volume '{volume}'"),
        Request::CreateShare { share, .. } => format!("created share '{share}'"),
        Request::Destroy { volume, .. } => format!("destroyed '{volume}'"),
        Request::Snapshot { volume, name } => format!("snapshot '{volume}@{name}'"),
        Request::SnapshotFolder { folder, name } => format!("snapshots '@{name}' of folder '{folder}'"),
        Request::SnapshotTogether { snapshots } => match &snapshots[..] {
            [first, rest @ ..] if !rest.is_empty() => format!("snapshot '{first}' and {} more", rest.len()),
            [first] => format!("snapshot '{first}'"),
            _ => return None,
        },
        Request::Rollback { snapshots, .. } => format!("rolled back to '{}'", snapshots.join("', '")),
        Request::Rename { old, new } => format!("renamed '{old}' to '{new}'"),
        Request::Grow { capacity_bytes } => format!("grew to {}", units::format_size(*capacity_bytes)),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_leave_marks_and_questions_do_not() {
        let set = |volume: Option<&str>| Request::Set {
            volume: volume.map(str::to_owned),
            id: None,
            changes: vec![("compression".to_owned(), Some("lz4".to_owned())), ("unit".to_owned(), None)],
        };
        assert_eq!(mark_of(&set(Some("vm"))).unwrap(), "set compression=lz4, unit inherited on 'vm'");
        assert_eq!(mark_of(&set(None)).unwrap(), "set compression=lz4, unit inherited on the pool");
        assert_eq!([mark_of(&Request::Status), mark_of(&Request::List)], [None, None]);
    }
}
