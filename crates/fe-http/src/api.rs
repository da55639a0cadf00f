//! REST: operations of the catalogue by method and path. No operation has code of its own here.

use std::sync::LazyLock;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use operations::{About, CATALOGUE, PREFIX, Request};
use serde_json::{Value, json};
use surface::Error;

use crate::connections::Peer;
use crate::problem::{self, Refused};
use crate::router::{Shared, ask, respond};
use crate::wire::{Answer, Ask, What};
use crate::{body, files, session};

/// A place of an operation.
struct Route {
    about: &'static About,
    method: &'static str,
    /// Parts of the path: `{field}`, or a literal word.
    parts: Vec<&'static str>,
}

/// Those with more words first: a word is more exact than a field.
static ROUTES: LazyLock<Vec<Route>> = LazyLock::new(|| {
    let mut routes = Vec::new();
    for about in CATALOGUE {
        let Some((method, paths)) = about.rest() else { continue };
        for path in paths {
            routes.push(Route { about, method: method.name(), parts: path.split('/').skip(1).collect() });
        }
    }
    routes.sort_by_key(|route| route.parts.iter().filter(|part| part.starts_with('{')).count());
    routes
});

/// The committed OpenAPI description; a test compares it with the catalogue.
const OPENAPI: &str = include_str!("../openapi.json");

/// Text with `%XX` in it; none: it is not UTF-8, or has a zero byte. `plus` is a space in queries.
fn decoded(text: &str, plus: bool) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                let value = digit()? * 16 + digit()?;
                bytes.push(u8::try_from(value).ok()?);
            }
            b'+' if plus => bytes.push(b' '),
            byte => bytes.push(byte),
        }
    }
    String::from_utf8(bytes).ok().filter(|text| !text.contains('\0'))
}

/// Names and values.
pub(crate) type Pairs = Vec<(String, String)>;

/// The fields of a path; `None` if the route does not match. The path is split before it is
/// decoded, so that an object `a/b` is `a%2Fb`. `{field*}` takes all parts that the others leave.
fn fields_of(route: &Route, parts: &[&str]) -> Option<Pairs> {
    let (mut fields, mut own, mut joined) = (Vec::new(), route.parts.clone(), None);
    if let Some(place) = own.iter().position(|part| part.ends_with("*}")) {
        let count = (parts.len() + 1).checked_sub(own.len())?;
        let taken = &parts[place..place + count];
        let names: Option<Vec<_>> =
            taken.iter().map(|part| decoded(part, false).filter(|name| !name.contains('/'))).collect();
        fields.push((own.remove(place)[1..].trim_end_matches("*}").to_owned(), names?.join("/")));
        joined = Some([&parts[..place], &parts[place + count..]].concat());
    }
    let parts = joined.as_deref().unwrap_or(parts);
    if own.len() != parts.len() {
        return None;
    }
    for (pattern, part) in own.iter().zip(parts) {
        match pattern.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
            Some(name) => fields.push((name.to_owned(), decoded(part, false).filter(|text| !text.is_empty())?)),
            None if pattern == part => {}
            None => return None,
        }
    }
    Some(fields)
}

/// The parameters of a query; none: it is not UTF-8.
pub(crate) fn pairs_of(query: &str) -> Option<Pairs> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        Some((decoded(name, true)?, decoded(value, true)?))
    });
    pairs.collect()
}

/// The operation at a path, and the fields that the path has. HEAD is GET, without the body.
fn find(method: &Method, path: &str) -> Result<(&'static Route, Pairs), Response> {
    let method = match method.as_str() {
        "HEAD" => "GET",
        other => other,
    };
    let parts: Vec<_> = path.strip_prefix(PREFIX).unwrap_or(path).split('/').skip(1).collect();
    let mut others = Vec::new();
    for route in ROUTES.iter() {
        let Some(fields) = fields_of(route, &parts) else { continue };
        if route.method == method {
            return Ok((route, fields));
        }
        others.push(route.method);
        others.extend((route.method == "GET").then_some("HEAD"));
    }
    if others.is_empty() {
        return Err(problem::refuse(Refused::NoSuchPath));
    }
    let mut response = problem::refuse(Refused::NoSuchMethod);
    others.dedup();
    if let Ok(allowed) = HeaderValue::from_str(&others.join(", ")) {
        response.headers_mut().insert(header::ALLOW, allowed);
    }
    Err(response)
}

/// A document of changes (RFC 7396) is the field `changes` of an operation that has it.
fn body_as_fields(route: &Route, fields: &HeaderMap, body: Value) -> Value {
    let kind = fields.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let is_patch = kind.to_ascii_lowercase().starts_with("application/merge-patch+json");
    let is_whole = body.as_object().is_some_and(|object| object.get("changes").is_some_and(Value::is_object));
    if is_patch && !is_whole && route.about.op() == "set" { json!({ "changes": body }) } else { body }
}

/// `If-Match` is a parameter of the operations that check it. `*` is any version.
fn if_match(fields: &HeaderMap) -> Option<String> {
    let text = fields.get(header::IF_MATCH)?.to_str().unwrap_or("?").trim();
    (text != "*").then(|| text.trim_matches('"').to_owned())
}

fn request_of(route: &Route, given: &[(String, String)], body: Option<Value>) -> surface::Result<Request> {
    route.about.request(given, body)
}

fn build(
    route: &Route,
    mut given: Pairs,
    uri: &Uri,
    fields: &HeaderMap,
    body: &[u8],
) -> Result<Request, Box<Response>> {
    let malformed = |text: &str| Box::new(problem::malformed(text));
    given.extend(pairs_of(uri.query().unwrap_or_default()).ok_or_else(|| malformed("the query is not UTF-8"))?);
    given.extend(if_match(fields).map(|etag| ("if_match".to_owned(), etag)));
    let body = match body {
        [] => None,
        body => {
            let body =
                serde_json::from_slice(body).map_err(|error| malformed(&format!("the body is no JSON: {error}")))?;
            Some(body_as_fields(route, fields, body))
        }
    };
    request_of(route, &given, body).map_err(|error: Error| malformed(&error.to_string()))
}

/// Any operation.
pub(crate) async fn operation(
    State(shared): State<Shared>,
    Extension(peer): Extension<Peer>,
    method: Method,
    uri: Uri,
    mut fields: HeaderMap,
    body: Body,
) -> Response {
    let (route, given) = match find(&method, uri.path()) {
        Ok(found) => found,
        Err(response) => return response,
    };
    if method == Method::HEAD {
        // Ranges are defined for GET only.
        fields.remove(header::RANGE);
    }
    let received = match body::receive(&fields, body, ask(&shared, &peer, &fields, What::WhoAmI)).await {
        Ok(received) => received,
        Err(refused) => return refused,
    };
    let has_version = fields.contains_key(header::IF_MATCH);
    let request = match build(route, given, &uri, &fields, &received.bytes) {
        Ok(request) => request,
        // Without credentials the answer is 401, even if the parameters are wrong.
        Err(response) => {
            return match ask(&shared, &peer, &fields, What::WhoAmI).await {
                Ok(_) => *response,
                Err(refused) => refused,
            };
        }
    };
    let file = files::wish_of(&request);
    let ask =
        Ask { from: peer.from(), proof: session::proof(&fields, &peer), what: What::Operation(Box::new(request)) };
    match shared.backend.ask(ask.clone()).await {
        Ok(Answer::Fault(mut fault)) => {
            // The object has changed since the client read it.
            if has_version && fault.kind == "conflict" {
                fault.status = StatusCode::PRECONDITION_FAILED.as_u16();
            }
            problem::of(&fault)
        }
        Ok(answer) => match file.filter(|_| files::is_of_file(&answer)) {
            Some(wish) => files::download(&shared, &ask, wish, &fields).await,
            None => with_location(route, respond(answer.clone()), &answer),
        },
        Err(why) => problem::no_answer(why),
    }
}

/// Adds the address of the object that was created, or of the job that was started.
fn with_location(route: &Route, mut response: Response, answer: &Answer) -> Response {
    let Answer::Document { document, status: 201 | 202 } = answer else { return response };
    let Some(id) = document["id"].as_u64() else { return response };
    let place = if route.about.is_long { "jobs" } else { "objects" };
    if let Ok(location) = HeaderValue::from_str(&format!("{PREFIX}/{place}/{id}")) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

/// The description of the interface. It has no secrets: it is the same for every pool.
pub(crate) async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(method: &str, path: &str) -> Result<(String, Pairs), StatusCode> {
        let method = method.parse().unwrap();
        find(&method, path).map(|(route, fields)| (route.about.op(), fields)).map_err(|response| response.status())
    }

    #[test]
    fn paths_lead_to_operations_with_decoded_fields() {
        let (op, fields) = found("DELETE", "/api/v1/users/a%2Fb%20c").unwrap();
        assert_eq!((op.as_str(), fields), ("remove_user", vec![("name".to_owned(), "a/b c".to_owned())]));
        for method in ["GET", "HEAD"] {
            assert_eq!(found(method, "/api/v1/pool").unwrap().0, "status");
        }
        assert_eq!(found("POST", "/api/v1/pool"), Err(StatusCode::METHOD_NOT_ALLOWED));
        for path in
            ["/api/v1/", "/api/v1/pool/", "/api/v1/users/", "/api/v1/users/%00", "/api/v1/users/%ff", "/api/v1/x"]
        {
            assert_eq!(found("DELETE", path), Err(StatusCode::NOT_FOUND), "{path}");
        }
    }

    #[test]
    fn a_field_takes_what_is_left_of_a_path() {
        let path_of = |method: &str, path: &str| {
            let (op, fields) = found(method, path).unwrap();
            let value = fields.into_iter().find_map(|(name, value)| (name == "path").then_some(value));
            (op, value.unwrap())
        };
        let files = |path: &str| ("files".to_owned(), path.to_owned());
        assert_eq!(path_of("GET", "/api/v1/objects/3/files"), files(""));
        assert_eq!(path_of("GET", "/api/v1/objects/3/files/"), files(""));
        assert_eq!(path_of("GET", "/api/v1/objects/3/files/a/b%20c"), files("a/b c"));
        assert_eq!(path_of("GET", "/api/v1/objects/3/files/a/restore"), files("a/restore"));
        assert_eq!(path_of("POST", "/api/v1/objects/3/files/a/b/restore"), ("restore".to_owned(), "a/b".to_owned()));
        for bad in ["/api/v1/objects/3/files/a%2Fb", "/api/v1/objects/3/files/%00", "/api/v1/objects/3/files/%ff"] {
            assert_eq!(found("GET", bad), Err(StatusCode::NOT_FOUND), "{bad}");
        }
        assert_eq!(found("POST", "/api/v1/objects/3/files/a"), Err(StatusCode::METHOD_NOT_ALLOWED));
    }

    #[test]
    fn every_place_of_the_catalogue_is_found_again() {
        for route in ROUTES.iter() {
            let parts: Vec<_> =
                route.parts.iter().map(|part| if part.starts_with('{') { "17" } else { part }).collect();
            let path = format!("{PREFIX}/{}", parts.join("/"));
            assert_eq!(found(route.method, &path).unwrap().0, route.about.op(), "{} {path}", route.method);
        }
    }

    #[test]
    fn queries_and_bodies_become_fields() {
        let route = ROUTES.iter().find(|route| route.about.op() == "set").unwrap();
        let mut fields = HeaderMap::new();
        fields.insert(header::CONTENT_TYPE, "application/merge-patch+json".parse().unwrap());
        let body = body_as_fields(route, &fields, json!({"compression": "lz4", "unit": null}));
        assert_eq!(body, json!({"changes": {"compression": "lz4", "unit": null}}));
        assert_eq!(body_as_fields(route, &HeaderMap::new(), json!({"changes": {}})), json!({"changes": {}}));
        assert_eq!(
            pairs_of("a=1+2&b=%26&a"),
            Some(vec![
                ("a".to_owned(), "1 2".to_owned()),
                ("b".to_owned(), "&".to_owned()),
                ("a".to_owned(), String::new()),
            ])
        );
        for bad in ["a=%", "a=%4", "a=%zz", "a=%ff"] {
            assert_eq!(pairs_of(bad), None, "{bad}");
        }
    }

    /// `UPDATE=1 cargo test -p fe-http` writes it again.
    #[test]
    #[allow(clippy::disallowed_methods, reason = "a file of the source tree")]
    fn the_committed_description_is_the_one_of_the_catalogue() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");
        let text = serde_json::to_string_pretty(&operations::openapi()).unwrap() + "\n";
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(path, &text).unwrap();
        }
        assert!(std::fs::read_to_string(path).unwrap() == text, "openapi.json is not up to date");
    }
}
