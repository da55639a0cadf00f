//! Answers requests of the HTTP process. Every request carries its credentials, because that
//! process holds none. It is trusted only with the address of a client and, if it was given a unix
//! socket, with the user at the other end.

use std::io::{self, BufReader};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use fe_http::wire::{Answer, Ask, Begun, Content, ContentWish, Fault, Proof, What, read_ask, write_answer};
use operations::{AuditLine, AuditOutcome, Caller, EstimateWish, PushWish, Request, Role, Who};
use serde_json::{Value, json};
use surface::{Error, ErrorKind};

use super::figures::Named;
use super::ticks::Ticks;
use crate::access::{Access, Grant, NewSession, Refusal};
use crate::service::Service;
use crate::share_browse::Part;

/// Maximum wait for a change of a job: it occupies one of few connections.
const JOB_PATIENCE_MS: u64 = 5000;

/// Maximum bytes of a file in an answer.
const PART_BYTES_MAX: u32 = 4 << 20;

/// See the module's text.
pub(super) struct Answering {
    service: Arc<Service>,
    /// Whether it has a unix socket, so that its statements about users at the other end are
    /// accepted.
    believes_peers: bool,
    /// Whether clients of this machine read the metrics without credentials.
    open_metrics: bool,
    named: Named,
    ticks: Ticks,
}

impl Answering {
    pub(super) fn new(service: Arc<Service>, believes_peers: bool, open_metrics: bool) -> Self {
        Self { service, believes_peers, open_metrics, named: Named::default(), ticks: Ticks::new() }
    }

    /// Returns the identity of this start of the server.
    pub(super) fn boot(&self) -> &str {
        self.ticks.boot()
    }

    /// Answers requests until the other end is closed.
    pub(super) fn serve(&self, stream: &UnixStream) {
        let mut reader = BufReader::new(stream);
        let mut writer = stream;
        loop {
            let answer = match read_ask(&mut reader) {
                Ok(Some(ask)) => self.answer(ask),
                Ok(None) => return,
                // A complete but invalid line fails only this request.
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    log::info!("invalid request from the HTTP process: {error}");
                    let text = format!("invalid request: {error}");
                    Answer::Fault(Fault::of(&Error::new(ErrorKind::Invalid, text)))
                }
                Err(error) => {
                    // It was killed in the middle of a line.
                    log::info!("the HTTP process sent no request: {error}");
                    return;
                }
            };
            if write_answer(&mut writer, &answer).is_err() {
                return;
            }
        }
    }

    fn access(&self) -> &Access {
        self.service.access()
    }

    fn answer(&self, ask: Ask) -> Answer {
        let Ask { from, proof, what } = ask;
        let now = self.service.moment();
        let answered = match what {
            What::Hello => Ok(Answer::Done),
            What::LogIn { user, password } => {
                let outcome = self.access().log_in(&user, &password, &from, now);
                self.began(&format!("user {user}"), &from, outcome)
            }
            What::LogInByLink { key } => {
                let outcome = self.access().log_in_by_link(&key, &from, now);
                self.began("the log-in link", &from, outcome)
            }
            What::LogOut => {
                if let Proof::Session(id) = &proof {
                    self.access().log_out(id);
                }
                Ok(Answer::Done)
            }
            What::WhoAmI => self.caller(&proof, &from).map(|caller| document(self.who(&caller.who, caller.role), 200)),
            What::Tick { objects, since } => self.caller(&proof, &from).and_then(|caller| {
                let frames = self.ticks.frames(&self.service, &objects, since, caller.role);
                frames.map(|frames| document(frames, 200)).map_err(|error| Fault::of(&error))
            }),
            What::Metrics { is_local } => {
                let allowed = if is_local && self.open_metrics { Ok(()) } else { self.caller(&proof, &from).map(drop) };
                let figures = |()| self.named.figures(&self.service).map_err(|error| Fault::of(&error));
                allowed.and_then(figures).map(|figures| Answer::Figures(Box::new(figures)))
            }
            What::Content(wish) => self.caller(&proof, &from).and_then(|caller| self.content(&caller, wish)),
            What::Operation(request) => self.caller(&proof, &from).and_then(|caller| self.operate(&caller, *request)),
        };
        answered.unwrap_or_else(Answer::Fault)
    }

    /// Carries out an operation. The role is checked by the service.
    fn operate(&self, caller: &Caller, request: Request) -> Result<Answer, Fault> {
        let about = request.about();
        if about.rest().is_none() {
            let text = format!("'{}' is not available over HTTP", about.op());
            return Err(Fault::of(&Error::new(ErrorKind::Unsupported, text)));
        }
        let done = self.service.handle(caller, over_http(request));
        let reply = done.map_err(|error| Fault::of(&error))?;
        let status = about.status(&reply);
        match reply.document() {
            Ok(Some(value)) => Ok(document(value, status)),
            Ok(None) => Ok(Answer::Done),
            Err(error) => Err(Fault::of(&error)),
        }
    }

    /// Reads a part of a file. The role is checked by the service.
    fn content(&self, caller: &Caller, wish: ContentWish) -> Result<Answer, Fault> {
        let ContentWish { object, path, at, offset, length, version } = wish;
        let part = Part { offset, length: length.min(PART_BYTES_MAX), version };
        let read = self.service.read_file(caller, object, path, at, &part);
        let (file, bytes) = read.map_err(|error| Fault::of(&error))?;
        let length = u32::try_from(bytes.len()).unwrap_or(0);
        Ok(Answer::Content(Box::new(Content { file, length, bytes })))
    }

    /// Returns the caller with these credentials.
    fn caller(&self, proof: &Proof, from: &str) -> Result<Caller, Fault> {
        let now = self.service.moment();
        let granted = match proof {
            Proof::None => None,
            Proof::Session(id) => self.access().check(crate::access::Proof::Session(id), now),
            Proof::Token(text) => self.access().check(crate::access::Proof::Token(text), now),
            Proof::Peer { uid, pid } => (self.believes_peers && self.is_owner(*uid))
                .then_some(Grant { who: Who::Process { uid: *uid, pid: *pid }, role: Role::Admin }),
        };
        let granted = granted.map(|Grant { who, role }| Caller { who, from: format!("http {from}"), role });
        granted.ok_or_else(|| {
            if !matches!(proof, Proof::None) {
                self.record("unknown", from, "request", Some("the credentials are wrong or have expired"));
            }
            Fault::unauthorized("log in, or send a valid token (Authorization: Bearer)")
        })
    }

    /// Returns a document with a user and a role, for the page.
    fn who(&self, who: &Who, role: Role) -> Value {
        let name = match who {
            Who::User(name) | Who::Token(name) => name.clone(),
            other => other.to_string(),
        };
        json!({ "user": name, "who": who.to_string(), "role": role, "boot": self.boot() })
    }

    fn is_owner(&self, uid: u32) -> bool {
        uid == 0 || self.service.facts().pool.metadata().is_ok_and(|pool| pool.uid() == uid)
    }

    fn began(&self, who: &str, from: &str, outcome: Result<NewSession, Refusal>) -> Result<Answer, Fault> {
        match outcome {
            Ok(NewSession { id, grant, seconds }) => {
                self.record(who, from, "log_in", None);
                Ok(Answer::Session(Begun { id, seconds, document: self.who(&grant.who, grant.role) }))
            }
            Err(Refusal::Wrong) => {
                self.record(who, from, "log_in", Some("wrong user or password"));
                Err(Fault::unauthorized("the user or the password is wrong, or the link has expired"))
            }
            Err(Refusal::TooMany(seconds)) => {
                self.record(who, from, "log_in", Some("too many attempts"));
                Err(Fault::throttled(seconds))
            }
        }
    }

    fn record(&self, who: &str, from: &str, operation: &str, refused: Option<&str>) {
        self.service.audit_log().append(AuditLine {
            unix_s: host::unix_s(),
            // The name of a failed log-in is arbitrary text.
            who: who.chars().take(255).collect(),
            from: format!("http {from}"),
            operation: operation.to_owned(),
            about: String::new(),
            outcome: if refused.is_some() { AuditOutcome::Refused } else { AuditOutcome::Done },
            error: refused.map(str::to_owned),
            refused_before: 0,
        });
    }
}

/// Adapts a request for a client without a connection of its own: jobs continue without it, and
/// waits are short.
fn over_http(request: Request) -> Request {
    match request {
        Request::StartJob { wish, .. } => Request::StartJob { wish, background: true },
        Request::Shrink { capacity_bytes, .. } => Request::Shrink { capacity_bytes, background: true },
        Request::Push(wish) => Request::Push(PushWish { background: true, ..wish }),
        Request::StartEstimate(wish) => Request::StartEstimate(EstimateWish { background: true, ..wish }),
        Request::WatchJob { id, seen, patience_ms } => {
            Request::WatchJob { id, seen, patience_ms: patience_ms.min(JOB_PATIENCE_MS) }
        }
        other => other,
    }
}

fn document(document: Value, status: u16) -> Answer {
    Answer::Document { document, status }
}
