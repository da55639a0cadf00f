//! Operations over HTTP, without HTTP: a request out of the parameters of a path, a query and a
//! body, and the status and document of its answer. Pure functions; any thread may call them.

use report::{HIDDEN_NAME, JobWish};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use surface::{Error, ErrorKind, Result};

use crate::about::{About, AuditPart};
use crate::catalogue::{CATALOGUE, Request};
use crate::failure::http_status;
use crate::objects::Which;
use crate::reply::Reply;
use crate::schemas::SCHEMAS;

/// Path that precedes those of the catalogue.
pub const PREFIX: &str = "/api/v1";

/// Body of a failed answer, `application/problem+json` (RFC 9457).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// `urn:shale:error:` and the kind.
    #[serde(rename = "type")]
    pub urn: String,
    /// The kind in words.
    pub title: String,
    /// HTTP status.
    pub status: u16,
    /// Kind of the error, as in the JSON of commands.
    pub kind: String,
    /// The failure, the object, and the remedy.
    pub detail: String,
    /// Number of the request in the audit log; absent if it was not logged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
}

impl Problem {
    /// Of an error, with the status of its kind.
    pub fn new(error: &Error) -> Self {
        Self::with_status(error, http_status(error.kind()))
    }

    /// Of an error for which HTTP has a more exact status.
    pub fn with_status(error: &Error, status: u16) -> Self {
        let kind = error.kind().name();
        Self {
            urn: format!("urn:shale:error:{kind}"),
            title: kind.replace('-', " "),
            status,
            kind: kind.to_owned(),
            detail: error.to_string(),
            request: None,
        }
    }
}

fn invalid(text: String) -> Error {
    Error::new(ErrorKind::Invalid, text)
}

/// The value that the text of a parameter has in a field of this type.
fn value_of(name: &str, text: &str, schema: &Value) -> Result<Value> {
    let may_be = |kind| SCHEMAS.may_be(schema, kind);
    if may_be("integer") && may_be("string") {
        // An object: digits are its number.
        return Ok(text.parse::<u64>().map_or_else(|_| text.into(), Value::from));
    }
    if may_be("integer") {
        let number: u64 = text.parse().map_err(|_| invalid(format!("'{name}' is a number, not '{text}'")))?;
        return Ok(number.into());
    }
    if may_be("boolean") {
        let is_so: bool = text.parse().map_err(|_| invalid(format!("'{name}' is true or false, not '{text}'")))?;
        return Ok(is_so.into());
    }
    if may_be("array") {
        return Ok(Value::Array(vec![value_of(name, text, &schema["items"])?]));
    }
    if may_be("object") && !may_be("string") {
        let malformed = |error| Error::with_source(ErrorKind::Invalid, format!("'{name}' is a JSON document"), error);
        return serde_json::from_str(text).map_err(malformed);
    }
    Ok(text.into())
}

/// Keys and values as users write them; null is a value that is inherited again.
fn pairs_shown(pairs: &Map<String, Value>) -> String {
    if pairs.is_empty() {
        return "no properties".to_owned();
    }
    let pair = |(key, value): (&String, &Value)| match value {
        Value::Null => format!("{key} inherited"),
        Value::String(text) => format!("{key}={text}"),
        value => format!("{key}={value}"),
    };
    pairs.iter().map(pair).collect::<Vec<_>>().join(", ")
}

/// A request in words: its kind, and the settings that differ from the defaults.
fn wish_shown(wish: &Map<String, Value>) -> String {
    let mut words: Vec<_> = wish.get("kind").and_then(Value::as_str).map(str::to_owned).into_iter().collect();
    for (key, value) in wish.iter().filter(|(key, _)| *key != "kind") {
        match value {
            Value::Null | Value::Bool(false) => {}
            Value::Bool(true) => words.push(key.clone()),
            Value::String(text) => words.push(format!("{key}={text}")),
            Value::Object(inner) => words.extend(Some(wish_shown(inner)).filter(|text| !text.is_empty())),
            value => words.push(format!("{key}={value}")),
        }
    }
    words.join(" ")
}

impl About {
    /// The entry of an operation by its name on the wire.
    pub fn by_op(op: &str) -> Option<&'static Self> {
        CATALOGUE.iter().copied().find(|about| about.op() == op)
    }

    /// Makes a request of this operation. `given` are the parameters of path and query, decoded; a
    /// field that is a list may be given several times. `body` is a JSON object with the other
    /// fields.
    ///
    /// # Errors
    /// `Invalid` for a parameter that is unknown, missing, of another type, or given twice.
    pub fn request(&self, given: &[(String, String)], body: Option<Value>) -> Result<Request> {
        let fields = SCHEMAS.fields(self);
        let known = || fields.iter().map(|field| field.name).collect::<Vec<_>>().join(", ");
        let field = |name: &str| {
            fields.iter().find(|field| field.name == name).ok_or_else(|| {
                let op = self.op();
                invalid(if fields.is_empty() {
                    format!("'{op}' has no parameters: remove '{name}'")
                } else {
                    format!("'{op}' has no parameter '{name}': there are {}", known())
                })
            })
        };
        let mut values = match body {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(values)) => values,
            Some(_) => return Err(invalid("the body must be a JSON object".to_owned())),
        };
        for name in values.keys() {
            field(name)?;
        }
        for (name, text) in given {
            let value = value_of(name, text, field(name)?.schema)?;
            match (values.get_mut(name), value) {
                (None, value) => drop(values.insert(name.clone(), value)),
                (Some(Value::Array(known)), Value::Array(more)) => known.extend(more),
                (Some(_), _) => return Err(invalid(format!("'{name}' is given twice"))),
            }
        }
        if let Some(missing) = fields.iter().find(|field| field.is_required && !values.contains_key(field.name)) {
            return Err(invalid(format!("'{}' needs '{}'", self.op(), missing.name)));
        }
        values.insert("op".to_owned(), self.op().into());
        serde_json::from_value(Value::Object(values))
            .map_err(|error| Error::with_source(ErrorKind::Invalid, "the request cannot be understood", error))
    }

    /// HTTP status of a successful answer.
    pub fn status(&self, reply: &Reply) -> u16 {
        match reply {
            Reply::Done => 204,
            Reply::Created(_) => 201,
            _ if self.is_long => 202,
            _ => 200,
        }
    }
}

impl Request {
    /// Description for the audit log, with the objects and values of the request; empty for an
    /// operation that changes nothing.
    pub fn audit_text(&self) -> String {
        let about = self.about();
        let Ok(values) = serde_json::to_value(self) else { return about.audit.unwrap_or_default().to_owned() };
        let shown = |part: AuditPart| match part {
            AuditPart::Text(text) => text.to_owned(),
            AuditPart::Field { name, null } => match (&values[name], null) {
                (Value::Null, Some(words)) => words.to_owned(),
                (value, _) if name == "object" || name == "folder" => {
                    Which::deserialize(value).map_or_else(|_| value.to_string(), |which| which.to_string())
                }
                (Value::String(text), _) => text.clone(),
                (Value::Object(wish), _) if name == "wish" => wish_shown(wish),
                (Value::Object(pairs), _) => pairs_shown(pairs),
                (value, _) => value.to_string(),
            },
        };
        about.audit_parts().map(shown).collect()
    }

    /// The same for the marks in the history, which every role reads: without names of files.
    pub fn mark_text(&self) -> String {
        let hidden = |path: &mut Option<String>| *path = path.take().map(|_| HIDDEN_NAME.to_owned());
        let mut shown = self.clone();
        match &mut shown {
            Self::Restore { path, to, .. } => {
                HIDDEN_NAME.clone_into(path);
                hidden(to);
            }
            Self::StartJob { wish: JobWish::Recompress { path, .. }, .. } => hidden(path),
            _ => {}
        }
        shown.audit_text()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::caller::Role;
    use crate::objects::ListWish;

    fn about(op: &str) -> &'static About {
        About::by_op(op).unwrap()
    }

    fn given(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn a_request_is_made_of_path_query_and_body() {
        let destroy =
            about("destroy").request(&given(&[("object", "7"), ("force", "true"), ("if_match", "7-ab")]), None);
        let if_match = Some("7-ab".to_owned());
        let expected = Request::Destroy { object: Which::Id(7), recursive: false, force: true, if_match };
        assert_eq!(destroy.unwrap(), expected);
        let span = [("dataset", "ops"), ("only", "door=nbd"), ("from_unix_s", "1"), ("to_unix_s", "2")];
        assert!(
            matches!(about("series").request(&given(&span), None).unwrap(), Request::Series(wish) if wish.only == ["door=nbd"])
        );
        let named = about("object").request(&given(&[("object", "a/b")]), None).unwrap();
        assert_eq!(named, Request::Object { object: "a/b".into(), usage: false });
        let listed = about("list_objects").request(&given(&[("kind", "share"), ("limit", "7"), ("parent", "3")]), None);
        let expected = ListWish {
            kind: Some(report::ObjectKind::Share),
            limit: 7,
            parent: Some(Which::Id(3)),
            ..ListWish::default()
        };
        assert_eq!(listed.unwrap(), Request::ListObjects(expected));
        let body = json!({"changes": {"compression": "zstd-3", "unit": null}});
        let set = about("set").request(&given(&[("object", "vm")]), Some(body)).unwrap();
        let changes =
            BTreeMap::from([("compression".to_owned(), Some("zstd-3".to_owned())), ("unit".to_owned(), None)]);
        assert_eq!(set, Request::Set { object: Some("vm".into()), changes, if_match: None });
        let pushed = about("push").request(&given(&[("snapshot", "vm@s")]), Some(json!({"url": "file:///b"})));
        assert!(
            matches!(pushed.unwrap(), Request::Push(wish) if wish.snapshot == "vm@s" && !wish.replace && wish.background)
        );
        let job = about("start_job").request(&[], Some(json!({"wish": {"kind": "scrub"}}))).unwrap();
        assert!(matches!(job, Request::StartJob { background: true, .. }), "it must not end with a connection");
        let rollback = about("rollback").request(&given(&[("snapshots", "a@s"), ("snapshots", "b@s")]), None).unwrap();
        assert!(matches!(rollback, Request::Rollback { snapshots, .. } if snapshots == ["a@s".into(), "b@s".into()]));
        assert_eq!(about("status").request(&[], None).unwrap(), Request::Status);
    }

    #[test]
    fn a_parameter_that_does_not_fit_is_refused_by_its_name() {
        let refused = |op: &str, pairs: &[(&str, &str)], body: Option<Value>, words: &str| {
            let error = about(op).request(&given(pairs), body).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains(words), "{op}: {error}");
        };
        refused("status", &[("sinc", "true")], None, "'status' has no parameters: remove 'sinc'");
        refused("destroy", &[("object", "a"), ("forse", "true")], None, "no parameter 'forse'");
        refused("destroy", &[("object", "a"), ("force", "yes")], None, "'force' is true or false");
        refused("watch_job", &[("id", "x")], None, "'id' is a number");
        refused("destroy", &[("force", "true")], None, "'destroy' needs 'object'");
        refused("destroy", &[("object", "a"), ("object", "b")], None, "'object' is given twice");
        refused("set", &[("object", "a")], Some(json!({"changes": {}, "x": 1})), "no parameter 'x'");
        refused("set", &[("object", "a")], Some(json!([1])), "a JSON object");
        refused("start_job", &[], Some(json!({"wish": {"kind": "scrub", "rate": 7}})), "unknown field `rate`");
    }

    #[test]
    fn answers_have_the_status_of_their_kind() {
        let created = Reply::created(7);
        assert_eq!(
            (about("create").status(&created), created.document().unwrap()),
            (201, Some(json!({"id": 7, "notes": []})))
        );
        assert_eq!((about("destroy").status(&Reply::Done), Reply::Done.document().unwrap()), (204, None));
        let job = Reply::Job(Box::new(report::JobReport::sample()));
        assert_eq!((about("start_job").status(&job), about("pause_job").status(&job)), (202, 200));
        let problem = Problem::new(&Error::new(ErrorKind::InUse, "'vm' is open"));
        let expected = json!({"type": "urn:shale:error:in-use", "title": "in use", "status": 409, "kind": "in-use", "detail": "'vm' is open"});
        assert_eq!(serde_json::to_value(problem).unwrap(), expected);
    }

    /// A push without `to` was recorded as one to its place.
    #[test]
    fn every_field_in_an_audit_text_exists_and_has_words_for_null_if_it_may_be_null() {
        for about in CATALOGUE {
            let (op, fields) = (about.op(), SCHEMAS.fields(about));
            let mut again = String::new();
            for part in about.audit_parts() {
                match part {
                    AuditPart::Text(text) => again.push_str(text),
                    AuditPart::Field { name, null } => {
                        let field = fields.iter().find(|field| field.name == name);
                        let field = field.unwrap_or_else(|| panic!("{op}: no field '{name}' for its audit text"));
                        let may_be_null = SCHEMAS.may_be(field.schema, "null");
                        assert_eq!(null.is_some(), may_be_null, "{op}: words for null in place of '{name}'");
                        assert_ne!(null, Some(""), "{op}: words for null in place of '{name}'");
                        let words = null.map(|words| format!("|{words}")).unwrap_or_default();
                        again.push_str(&format!("{{{name}{words}}}"));
                    }
                }
            }
            assert_eq!(again, about.audit.unwrap_or_default(), "{op}: braces come in pairs");
        }
    }

    #[test]
    fn the_audit_text_names_objects_and_values() {
        let changes = BTreeMap::from([("compression".to_owned(), Some("lz4".to_owned()))]);
        let set = |object: Option<Which>| Request::Set { object, changes: changes.clone(), if_match: None };
        assert_eq!(set(Some("vm".into())).audit_text(), "set compression=lz4 on 'vm'");
        assert_eq!(set(None).audit_text(), "set compression=lz4 on the pool");
        let known = Which::Known { id: 7, name: "a".to_owned() };
        assert_eq!(Request::Promote { object: known }.audit_text(), "promote 'a'");
        assert_eq!(Request::Promote { object: Which::Id(7) }.audit_text(), "promote object 7");
        let user = |role| Request::SetPassword { name: "anna".to_owned(), password: Some("secret".to_owned()), role };
        let text = "set the password or the role of user 'anna', role: ";
        assert_eq!(user(Some(Role::Admin)).audit_text(), format!("{text}admin"));
        assert_eq!(user(None).audit_text(), format!("{text}unchanged"));
        let restore = |to: Option<&str>| {
            let (path, at, to) = ("d/f".to_owned(), "s".to_owned(), to.map(str::to_owned));
            Request::Restore { object: Which::Id(7), path, at, to, replace: true }.audit_text()
        };
        let text = "restore 'd/f' of object 7 from snapshot 's' to ";
        assert_eq!(restore(Some("back")), format!("{text}back, replace: true"));
        assert_eq!(restore(None), format!("{text}its place, replace: true"));
        let push = json!({"op": "push", "snapshot": "vm@s", "url": "file:///b"});
        let push: Request = serde_json::from_value(push).unwrap();
        assert_eq!(push.audit_text(), "push 'vm@s' for file:///b to the same blob, replace: false");
        assert_eq!(Request::Checkpoint.audit_text(), "take a checkpoint");
        assert_eq!(Request::Status.audit_text(), "");
        let job = |wish: Value| {
            let wish = serde_json::from_value(wish).unwrap();
            Request::StartJob { wish, background: true }.audit_text()
        };
        assert_eq!(job(json!({"kind": "scrub"})), "start job scrub");
        let recompress = json!({"kind": "recompress", "volume": "vm", "mode": "archive", "path": null, "pace": {"rate": 7, "restart": false}});
        assert_eq!(job(recompress), "start job recompress mode=archive rate=7 volume=vm");
    }

    /// Everyone reads the marks of the history; only administrators read the audit log.
    #[test]
    fn marks_name_no_files() {
        let (object, path, at) = (Which::Id(7), "plans/secret".to_owned(), "s".to_owned());
        let restore = Request::Restore { object, path, at, to: Some("secret".to_owned()), replace: true };
        assert_eq!(restore.mark_text(), "restore '...' of object 7 from snapshot 's' to ..., replace: true");
        let wish = JobWish::Recompress {
            volume: "home".to_owned(),
            mode: None,
            path: Some("plans/secret".to_owned()),
            pace: Default::default(),
        };
        let recompress = Request::StartJob { wish, background: true };
        assert_eq!(recompress.audit_text(), "start job recompress path=plans/secret volume=home");
        assert_eq!(recompress.mark_text(), "start job recompress path=... volume=home");
        assert_eq!(Request::Checkpoint.mark_text(), "take a checkpoint");
    }
}
