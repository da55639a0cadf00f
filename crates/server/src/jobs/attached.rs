//! The jobs of one connection to the pool's server, which end with the connection.
//!
//! 1. A job that the connection has started for a command that watches it belongs to the
//!    connection, unless it was started in the background.
//! 2. A client registers work whose bytes pass through it, and reports its progress and its
//!    outcome: also when the job was cancelled meanwhile.
//!
//! A trace ends with its connection, too.

use std::sync::Arc;

use surface::{Client, DeviceId, Error, ErrorKind, Result};

use super::table::{Begin, Doing, Jobs, Worker};
use crate::service::{Service, TraceKind, Tracing};
use operations::{EstimateWish, PushWish, Reply, Request, Role};
use report::{JobFault, JobKind, JobResult};

/// A job that ends with the connection that started it.
struct Own {
    jobs: Arc<Jobs>,
    id: u64,
}

impl Drop for Own {
    fn drop(&mut self) {
        // A job that has ended, or was dropped from the table, needs no cancelling.
        drop(self.jobs.cancel(self.id, "the command that started it has ended"));
    }
}

/// See the module's text.
pub struct Attached {
    service: Arc<Service>,
    own: Vec<Own>,
    /// The job that the client has registered.
    told: Option<Doing>,
    /// Traces of the client.
    tracing: Vec<Tracing>,
    caller: Arc<dyn Client>,
    role: Role,
}

impl Attached {
    /// Jobs of a new connection, whose caller has that role.
    pub fn new(service: Arc<Service>, caller: Arc<dyn Client>, role: Role) -> Self {
        Self { service, own: Vec::new(), told: None, tracing: Vec::new(), caller, role }
    }

    /// Carries out a request of the client, whose role was checked.
    ///
    /// # Errors
    /// Those of the pool.
    pub fn handle(&mut self, request: Request) -> Result<Reply> {
        match request {
            Request::Trace { .. } => self.trace(TraceKind::Decisions)?,
            Request::TraceReads { .. } => self.trace(TraceKind::FirstReads)?,
            Request::TraceEnd => return Ok(self.end_trace(TraceKind::Decisions)),
            Request::TraceReadsEnd => return Ok(self.end_trace(TraceKind::FirstReads)),
            Request::RegisterJob { kind, target } => return self.register(kind, target),
            Request::TellJob { bytes_done, bytes_total } => {
                let doing = self.told.as_ref().ok_or_else(unregistered)?;
                doing.tell(bytes_done, bytes_total, String::new());
                return self.report(doing.id());
            }
            Request::FinishJob { bytes_done, fault } => {
                let doing = self.told.take().ok_or_else(unregistered)?;
                let id = doing.id();
                match fault {
                    None => doing.end(Ok(JobResult::Moved { bytes: bytes_done })),
                    Some(fault) => doing.end_with(of_client(fault, doing.is_cancelled())),
                }
                return self.report(id);
            }
            _ => {}
        }
        let is_own = matches!(
            &request,
            Request::StartJob { background: false, .. }
                | Request::Shrink { background: false, .. }
                | Request::Push(PushWish { background: false, .. })
                | Request::StartEstimate(EstimateWish { background: false, .. })
        );
        self.service.check_mark(&request, self.told.as_ref().map(Doing::id))?;
        let reply = self.service.answer(request, self.role)?;
        if let (true, Reply::Job(job)) = (is_own, &reply) {
            self.own.push(Own { jobs: Arc::clone(self.service.jobs()), id: job.id });
        }
        Ok(reply)
    }

    fn trace(&mut self, kind: TraceKind) -> Result<()> {
        if !self.tracing.iter().any(|tracing| tracing.kind() == kind) {
            self.tracing.push(Tracing::begin(&self.service, kind, &self.caller.name())?);
        }
        Ok(())
    }

    fn end_trace(&mut self, kind: TraceKind) -> Reply {
        self.tracing.retain(|tracing| tracing.kind() != kind);
        Reply::Done
    }

    fn report(&self, id: u64) -> Result<Reply> {
        self.service.jobs().report(id).map(|job| Reply::Job(Box::new(job)))
    }

    /// Returns the volume or snapshot of that name, if there is one.
    fn volume(&self, name: Option<&str>) -> Option<DeviceId> {
        self.service.pool().volume(name?).ok().map(|volume| volume.id())
    }

    fn register(&mut self, kind: JobKind, target: Option<String>) -> Result<Reply> {
        let Some(phase) = kind.phase_of_client().filter(|_| self.told.is_none()) else {
            let text = format!("'{}' cannot be registered as a job of this connection", kind.name());
            return Err(Error::new(ErrorKind::Invalid, text));
        };
        let volume = self.volume(target.as_deref());
        let begin = Begin { kind, target, volume, path: None, background: false, worker: Worker::Client };
        let doing = self.service.jobs().begin(begin)?;
        doing.begin_phase(phase, 0, None);
        let id = doing.id();
        self.told = Some(doing);
        self.report(id)
    }
}

/// Returns the fault of a client's work, with the reason of its cancellation, if that is the cause.
fn of_client(fault: JobFault, cancelled: Option<String>) -> JobFault {
    match cancelled {
        Some(why) if fault.is_cancellation() => JobFault::cancelled(format!("{why}: {}", fault.message)),
        _ => fault,
    }
}

fn unregistered() -> Error {
    Error::new(ErrorKind::Invalid, "no job was registered on this connection")
}
