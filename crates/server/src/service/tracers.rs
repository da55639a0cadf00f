//! The client of each trace: each record is returned once, so a trace has one client at a time.
//! Ends a trace with the connection of its client.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use surface::{Error, ErrorKind, Result};

use super::Service;

/// The kinds of trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TraceKind {
    /// Storage of units of data.
    Decisions,
    /// First reads of a volume's groups.
    FirstReads,
}

/// Names of the clients that trace.
pub(super) type Tracers = Mutex<BTreeMap<TraceKind, String>>;

/// The exclusive right of one client to a trace. Dropping it ends the trace.
pub(crate) struct Tracing {
    service: Arc<Service>,
    kind: TraceKind,
}

impl Tracing {
    /// Begins a trace for a client.
    ///
    /// # Errors
    /// `InUse`, while another client traces.
    pub(crate) fn begin(service: &Arc<Service>, kind: TraceKind, who: &str) -> Result<Self> {
        let mut tracers = service.tracers.lock();
        if let Some(other) = tracers.get(&kind) {
            let what = match kind {
                TraceKind::Decisions => "the pool is",
                TraceKind::FirstReads => "first reads are",
            };
            let text = format!(
                "{what} already being traced ({other}), and each record is for one trace only: end that trace, or \
                 wait for its end"
            );
            return Err(Error::new(ErrorKind::InUse, text));
        }
        tracers.insert(kind, who.to_owned());
        Ok(Self { service: Arc::clone(service), kind })
    }

    /// Returns the kind of the trace.
    pub(crate) const fn kind(&self) -> TraceKind {
        self.kind
    }
}

impl Drop for Tracing {
    fn drop(&mut self) {
        match self.kind {
            TraceKind::Decisions => drop(self.service.end_trace()),
            TraceKind::FirstReads => self.service.devices.first_reads().end(),
        }
        self.service.tracers.lock().remove(&self.kind);
    }
}
