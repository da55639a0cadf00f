//! The single place where the caller of a request is checked. The role is checked before the
//! request is carried out, and the outcome is recorded for the audit log. Any thread may call it.

use std::sync::Arc;

use operations::{Audit, AuditRecord, Caller, Effect, Reply, Request, Role, Who};
use surface::Result;

use super::{Service, analytics};

/// Returns this process as the caller of a pool that it has opened itself.
pub fn this_process() -> Caller {
    let who = Who::Process { uid: rustix::process::getuid().as_raw(), pid: std::process::id() };
    Caller { who, from: "this command".to_owned(), role: Role::Admin }
}

impl Service {
    /// Sets the recorder of calls.
    pub fn set_audit(&self, audit: Arc<dyn Audit>) {
        *self.audit.lock() = audit;
    }

    /// Checks the caller of a request, passes it to `work`, and records the outcome.
    ///
    /// # Errors
    /// `Denied`, and those of the work.
    pub fn guarded<T>(&self, caller: &Caller, request: Request, work: impl FnOnce(Request) -> Result<T>) -> Result<T> {
        let about = request.about();
        let text = request.audit_text();
        let allowed = caller.check_request(&request);
        let is_recorded = about.effect != Effect::Read || allowed.is_err();
        let mark = analytics::leaves_mark(&request).then(|| request.mark_text());
        let done = allowed.and_then(|()| work(request));
        if let Some(mark) = mark.filter(|_| done.is_ok()) {
            self.mark(&mark);
        }
        if is_recorded {
            let audit = Arc::clone(&self.audit.lock());
            audit.record(&AuditRecord { caller, about, text: &text, error: done.as_ref().err() });
        }
        done
    }

    /// Carries out a request.
    ///
    /// # Errors
    /// `Denied`, and those of the pool.
    pub fn handle(self: &Arc<Self>, caller: &Caller, request: Request) -> Result<Reply> {
        self.guarded(caller, request, |request| {
            self.check_mark(&request, None)?;
            self.answer(request, caller.role)
        })
    }
}
