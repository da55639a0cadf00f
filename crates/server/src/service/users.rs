//! Operations on users, tokens and the audit log.

use operations::{Reply, Request};
use surface::{Error, ErrorKind, Result};

use super::Service;
use crate::access::Moment;
use crate::audit::AuditLog;

/// Maximum number of lines of the audit log in one answer.
const AUDIT_LINES_MAX: usize = 10_000;

impl Service {
    /// Returns the time, for [`crate::access`].
    pub fn moment(&self) -> Moment {
        Moment { unix_s: host::unix_s(), monotonic_s: self.opened.elapsed().as_secs() }
    }

    /// Carries out one of these operations.
    pub(super) fn on_users(&self, request: Request) -> Result<Reply> {
        let access = &self.access;
        match request {
            Request::Users => Ok(Reply::Users { users: access.users() }),
            Request::SetPassword { name, password, role } => {
                access.set_password(&name, password.as_deref(), role, self.moment()).map(|()| Reply::Done)
            }
            Request::RemoveUser { name } => access.remove_user(&name).map(|()| Reply::Done),
            Request::Tokens => Ok(Reply::Tokens { tokens: access.tokens() }),
            Request::CreateToken { name, role, expires_unix_s } => {
                let token = access.create_token(&name, role, expires_unix_s, self.moment())?;
                Ok(Reply::Token(Box::new(token)))
            }
            Request::RevokeToken { name } => access.revoke_token(&name).map(|()| Reply::Done),
            Request::Audit { limit } => {
                let entries = AuditLog::read(&self.facts.pool, limit.min(AUDIT_LINES_MAX), |_| true)?;
                Ok(Reply::Audit { entries })
            }
            other => {
                let text = format!("'{}' is not an operation on users or tokens", other.about().op());
                Err(Error::new(ErrorKind::Unsupported, text))
            }
        }
    }
}
