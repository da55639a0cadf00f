//! Answers the questions of the process that speaks HTTP. Every request proves anew who sent it:
//! that process holds no credentials, and is believed nothing but the address of a client, and,
//! where it was given a unix socket, the user at its other end.

use std::io::BufReader;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

use fe_http::wire::{Answer, Ask, Begun, Problem, Proof, What, read_ask, write_answer};
use serde_json::json;

use crate::access::{Access, Grant, Moment, NewSession, Refusal, Role};
use crate::audit::{AuditLine, AuditOutcome};
use crate::service::Service;

/// See the module's text.
pub(super) struct Answering {
    service: Arc<Service>,
    began: Instant,
    /// Whether it has a unix socket, so that users at its other end are believed.
    believes_peers: bool,
}

impl Answering {
    pub(super) fn new(service: Arc<Service>, believes_peers: bool) -> Self {
        Self { service, began: Instant::now(), believes_peers }
    }

    /// The time, for the users.
    pub(super) fn now(&self) -> Moment {
        Moment { unix_s: host::unix_s(), monotonic_s: self.began.elapsed().as_secs() }
    }

    /// Answers one question after the other until the other end is closed.
    pub(super) fn serve(&self, stream: &UnixStream) {
        let mut reader = BufReader::new(stream);
        let mut writer = stream;
        loop {
            let answer = match read_ask(&mut reader) {
                Ok(Some(ask)) => self.answer(ask),
                Ok(None) => return,
                Err(error) => {
                    // It is killed in the middle of a line, or does not keep to the protocol.
                    log::info!("the process for HTTP sent no question: {error}");
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
        let answered = match what {
            What::Hello => Ok(Answer::Done),
            What::LogIn { user, password } => {
                let outcome = self.access().log_in(&user, &password, &from, self.now());
                self.began(&format!("user {user}"), &from, outcome)
            }
            What::LogInByLink { key } => {
                let outcome = self.access().log_in_by_link(&key, &from, self.now());
                self.began("log-in link", &from, outcome)
            }
            What::LogOut => {
                if let Proof::Session(id) = &proof {
                    self.access().log_out(id);
                }
                Ok(Answer::Done)
            }
            What::WhoAmI => self.grant(&proof, &from).map(|grant| document(who(&grant))),
            What::Operation { .. } | What::Metrics { .. } => {
                self.grant(&proof, &from).map(|_| Answer::Problem(Problem::new("unsupported", "not an operation")))
            }
        };
        answered.unwrap_or_else(Answer::Problem)
    }

    /// Who that is.
    fn grant(&self, proof: &Proof, from: &str) -> Result<Grant, Problem> {
        let granted = match proof {
            Proof::None => None,
            Proof::Session(id) => self.access().check(crate::access::Proof::Session(id), self.now()),
            Proof::Token(text) => self.access().check(crate::access::Proof::Token(text), self.now()),
            Proof::Peer(uid) => (self.believes_peers && self.is_owner(*uid))
                .then(|| Grant { who: format!("uid {uid}"), role: Role::Admin }),
        };
        granted.ok_or_else(|| {
            if !matches!(proof, Proof::None) {
                self.record("unknown", from, "request", Some("the credentials are wrong or have expired"));
            }
            Problem::new(Problem::UNAUTHORIZED, "log in, or send a token that is valid (Authorization: Bearer)")
        })
    }

    fn is_owner(&self, uid: u32) -> bool {
        uid == 0 || self.service.facts().pool.metadata().is_ok_and(|pool| pool.uid() == uid)
    }

    fn began(&self, who: &str, from: &str, outcome: Result<NewSession, Refusal>) -> Result<Answer, Problem> {
        match outcome {
            Ok(NewSession { id, grant, seconds }) => {
                self.record(who, from, "log-in", None);
                Ok(Answer::Session(Begun { id, seconds, document: self::who(&grant) }))
            }
            Err(Refusal::Wrong) => {
                self.record(who, from, "log-in", Some("wrong user or password"));
                Err(Problem::new(Problem::UNAUTHORIZED, "the user or the password is wrong, or the link has expired"))
            }
            Err(Refusal::TooMany(seconds)) => {
                self.record(who, from, "log-in", Some("too many attempts"));
                let text = format!("too many attempts to log in: try again in {seconds} s");
                Err(Problem { retry_after_s: Some(seconds), ..Problem::new(Problem::THROTTLED, text) })
            }
        }
    }

    fn record(&self, who: &str, from: &str, operation: &str, refused: Option<&str>) {
        self.service.audit().record(AuditLine {
            unix_s: host::unix_s(),
            // A name may be anything at all until somebody has logged in by it.
            who: who.chars().take(255).collect(),
            from: from.to_owned(),
            operation: operation.to_owned(),
            about: String::new(),
            outcome: if refused.is_some() { AuditOutcome::Refused } else { AuditOutcome::Done },
            error: refused.map(str::to_owned),
            refused_before: 0,
        });
    }
}

fn document(document: serde_json::Value) -> Answer {
    Answer::Document { document, etag: None }
}

/// Who somebody is, for the page.
fn who(grant: &Grant) -> serde_json::Value {
    json!({ "who": grant.who, "role": grant.role })
}
