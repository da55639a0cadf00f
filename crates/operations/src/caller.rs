//! Who calls an operation, the roles, and the record of a call for the audit log. Plain values: the
//! server decides which caller has which role.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use surface::{Error, ErrorKind, Result};

use crate::about::About;
use crate::catalogue::Request;

/// Rights of a caller. A higher role includes the lower ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Figures, lists and properties.
    Read,
    /// Snapshots and jobs, and names of files.
    Operate,
    /// Everything.
    Admin,
}

impl Role {
    /// Its name in documents and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Admin => "admin",
        }
    }

    /// Whether it may see the names of files in shares, which are their users' secrets: those that
    /// list directories may. Replies for others are without ([`Reply::seen_by`](crate::Reply::seen_by)).
    pub fn sees_file_names(self) -> bool {
        self >= Self::Operate
    }
}

/// Identity of a caller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Who {
    /// A process of this machine.
    Process {
        /// Its user.
        uid: u32,
        /// Its number.
        pid: u32,
    },
    /// A user who has logged in.
    User(String),
    /// The owner of a token, by the name of the token.
    Token(String),
    /// The server itself.
    Server,
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process { uid, pid } => write!(f, "uid {uid} (process {pid})"),
            Self::User(name) => write!(f, "user {name}"),
            Self::Token(name) => write!(f, "token {name}"),
            Self::Server => f.write_str("the server"),
        }
    }
}

/// The caller of an operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Caller {
    /// Identity.
    pub who: Who,
    /// Door or address of origin.
    pub from: String,
    /// Role at the time of the call.
    pub role: Role,
}

impl Caller {
    /// Checks the role for an operation.
    ///
    /// # Errors
    /// `Denied`.
    pub fn check(&self, about: &About) -> Result<()> {
        if self.role >= about.needs {
            return Ok(());
        }
        let (op, needs, role) = (about.op(), about.needs.name(), self.role.name());
        let text =
            format!("'{op}' needs the role {needs}, and {} has {role}: ask an administrator of the pool", self.who);
        Err(Error::new(ErrorKind::Denied, text))
    }

    /// Checks the role for a request: one that names a file is answered about that file.
    ///
    /// # Errors
    /// `Denied`.
    pub fn check_request(&self, request: &Request) -> Result<()> {
        self.check(request.about())?;
        if self.role.sees_file_names() || !request.names_file() {
            return Ok(());
        }
        let (op, needs, role) = (request.about().op(), Role::Operate.name(), self.role.name());
        let text = format!(
            "'{op}' of a path needs the role {needs}, and {} has {role}: omit the path, or ask an administrator of \
             the pool",
            self.who
        );
        Err(Error::new(ErrorKind::Denied, text))
    }
}

/// A call that changed something, or was refused.
#[derive(Debug)]
pub struct AuditRecord<'a> {
    /// The caller.
    pub caller: &'a Caller,
    /// The operation.
    pub about: &'static About,
    /// Description with the objects and values of the request.
    pub text: &'a str,
    /// Error that ended it; none: it succeeded.
    pub error: Option<&'a Error>,
}

/// Receives the record of each call that changes something, and of each refused one. Called after
/// the operation by the thread that ran it, so it must not wait for a client.
pub trait Audit: Send + Sync {
    /// Takes a record.
    fn record(&self, record: &AuditRecord<'_>);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::CATALOGUE;
    use crate::schemas::SCHEMAS;

    fn caller(role: Role) -> Caller {
        Caller { who: Who::User("anna".to_owned()), from: "http".to_owned(), role }
    }

    #[test]
    fn names_of_files_need_the_role_that_lists_directories() {
        let files = About::by_op("files").unwrap();
        for role in [Role::Read, Role::Operate, Role::Admin] {
            assert_eq!(role.sees_file_names(), caller(role).check(files).is_ok(), "{role:?}");
        }
        // Of the operations that everyone may call, this one has a path; a new one must be decided.
        let has_path = |about: &&&About| SCHEMAS.fields(about).iter().any(|field| field.name == "path");
        let open = CATALOGUE.iter().filter(|about| about.needs == Role::Read).filter(has_path);
        assert_eq!(open.map(|about| about.op()).collect::<Vec<_>>(), ["recompress_report"]);
        let report = |path: Option<&str>| Request::RecompressReport {
            object: "home".into(),
            mode: None,
            path: path.map(str::to_owned),
        };
        assert!(caller(Role::Read).check_request(&report(None)).is_ok());
        assert!(caller(Role::Operate).check_request(&report(Some("a"))).is_ok());
        let error = caller(Role::Read).check_request(&report(Some("a"))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(error.to_string().contains("needs the role operate, and user anna has read"), "{error}");
        let set = Request::Grow { capacity_bytes: 1 };
        assert_eq!(caller(Role::Operate).check_request(&set).unwrap_err().kind(), ErrorKind::Denied);
    }
}
