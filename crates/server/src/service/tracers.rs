//! Which client has which trace: each record is given out once, so that there is one client at a
//! time. Owns that a trace ends with the connection of its client.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use surface::{Error, ErrorKind, Result};

use super::Service;

/// The kinds of trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TraceKind {
    /// How units of data are stored.
    Decisions,
    /// Which groups of a volume are read first.
    FirstReads,
}

/// The clients that trace, in words.
pub(super) type Tracers = Mutex<BTreeMap<TraceKind, String>>;

/// The turn of one client. The trace ends with it.
pub(crate) struct Tracing {
    service: Arc<Service>,
    kind: TraceKind,
}

impl Tracing {
    /// Gives the turn to a client.
    ///
    /// # Errors
    /// `InUse`, while another one has it.
    pub(crate) fn begin(service: &Arc<Service>, kind: TraceKind, who: &str) -> Result<Self> {
        let mut tracers = service.tracers.lock();
        if let Some(other) = tracers.get(&kind) {
            let what = match kind {
                TraceKind::Decisions => "the pool is",
                TraceKind::FirstReads => "first reads are",
            };
            let text = format!(
                "{what} being traced already ({other}), and each record is for one trace only: end that one, or wait for its end"
            );
            return Err(Error::new(ErrorKind::InUse, text));
        }
        tracers.insert(kind, who.to_owned());
        Ok(Self { service: Arc::clone(service), kind })
    }

    /// The kind of the trace.
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
