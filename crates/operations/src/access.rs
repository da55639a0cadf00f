//! Documents about users, tokens and the audit log.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::caller::Role;

/// A user who can log in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UserLine {
    /// Name.
    pub name: String,
    /// Role of the user.
    pub role: Role,
    /// When the password was set, in seconds since 1970.
    pub password_set_unix_s: u64,
}

/// A token, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TokenLine {
    /// Name.
    pub name: String,
    /// Role of its owner.
    pub role: Role,
    /// When it was made, in seconds since 1970.
    pub created_unix_s: u64,
    /// When it expires, in seconds since 1970; null: never.
    pub expires_unix_s: Option<u64>,
    /// When it was last used, to the minute, in seconds since 1970; null: never.
    pub last_used_unix_s: Option<u64>,
}

/// A new token. Its secret is shown this once, and kept nowhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NewToken {
    /// The token.
    #[serde(flatten)]
    pub line: TokenLine,
    /// Its secret, for `Authorization: Bearer`.
    pub token: String,
}

/// The outcome of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AuditOutcome {
    /// It succeeded.
    Done,
    /// It failed; `error` has the reason.
    Failed,
    /// The caller may not, or did not prove who they are.
    Refused,
}

impl AuditOutcome {
    /// Its name in documents.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Refused => "refused",
        }
    }
}

/// A line of the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AuditLine {
    /// When the call ended, in seconds since 1970.
    pub unix_s: u64,
    /// Identity of the caller.
    pub who: String,
    /// Door or address of origin.
    pub from: String,
    /// Name of the operation.
    pub operation: String,
    /// Description with the objects and values of the request; never a secret.
    pub about: String,
    /// Outcome.
    pub outcome: AuditOutcome,
    /// Reason of a failure or a refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Refused calls since the last line of one that have none: at most one a second has a line.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub refused_before: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the form that serde calls")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}
