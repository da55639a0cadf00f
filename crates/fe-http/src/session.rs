//! Log-in and log-out: cookies and tokens of requests. Keeps nothing: the server has the sessions.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use crate::connections::Peer;
use crate::problem;
use crate::wire::{Begun, Proof, What};

/// Body of `POST /session`.
#[derive(Deserialize)]
#[serde(untagged)]
enum LogIn {
    Password(ByPassword),
    Link(ByLink),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ByPassword {
    user: String,
    password: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ByLink {
    key: String,
}

/// The question of a log-in.
pub(crate) fn log_in(body: &[u8]) -> Result<What, Box<Response>> {
    match serde_json::from_slice(body) {
        Ok(LogIn::Password(ByPassword { user, password })) => Ok(What::LogIn { user, password }),
        Ok(LogIn::Link(ByLink { key })) => Ok(What::LogInByLink { key }),
        // The parser's own words would have parts of the body in them.
        Err(_) => {
            let text = "a log-in has the fields user and password, or the field key";
            Err(Box::new(problem::malformed(text)))
        }
    }
}

/// The cookie's name. Browsers give cookies to all ports of a host: two pools on one machine have
/// two names.
fn cookie_name(peer: &Peer) -> String {
    let prefix = if peer.is_tls { "__Host-" } else { "" };
    format!("{prefix}shale-{}", peer.port)
}

fn set_cookie(response: &mut Response, peer: &Peer, id: &str, seconds: u64) {
    let secure = if peer.is_tls { "; Secure" } else { "" };
    let name = cookie_name(peer);
    let cookie = format!("{name}={id}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}");
    if let Ok(value) = HeaderValue::from_str(&cookie) {
        response.headers_mut().append(header::SET_COOKIE, value);
    }
}

/// The answer to a log-in.
pub(crate) fn begun(begun: &Begun, peer: &Peer) -> Response {
    let body = begun.document.to_string();
    let mut response = (StatusCode::OK, [(header::CONTENT_TYPE, "application/json")], body).into_response();
    set_cookie(&mut response, peer, &begun.id, begun.seconds);
    response
}

/// The answer to a log-out.
pub(crate) fn ended(peer: &Peer) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    set_cookie(&mut response, peer, "", 0);
    response
}

fn bearer(fields: &HeaderMap) -> Option<&str> {
    let text = fields.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = text.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}

/// Whether the request shows a token.
pub(crate) fn has_token(fields: &HeaderMap) -> bool {
    bearer(fields).is_some()
}

/// The credentials of a request.
pub(crate) fn proof(fields: &HeaderMap, peer: &Peer) -> Proof {
    if let Some(token) = bearer(fields) {
        return Proof::Token(token.to_owned());
    }
    let name = cookie_name(peer);
    let cookies = fields.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let pairs = cookies.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    if let Some((_, id)) = pairs.into_iter().find(|(own, _)| *own == name) {
        return Proof::Session(id.to_owned());
    }
    peer.process.map_or(Proof::None, |(uid, pid)| Proof::Peer { uid, pid })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(is_tls: bool) -> Peer {
        Peer { address: None, process: None, local: None, port: 8443, is_tls }
    }

    #[test]
    fn a_session_goes_out_and_comes_back_in_a_cookie_that_scripts_do_not_see() {
        for is_tls in [false, true] {
            let new = Begun { id: "abc".to_owned(), seconds: 9, document: serde_json::json!({}) };
            let response = begun(&new, &peer(is_tls));
            let cookie = response.headers()[header::SET_COOKIE].to_str().unwrap().to_owned();
            for part in ["HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=9"] {
                assert!(cookie.contains(part), "{cookie}");
            }
            assert_eq!(cookie.contains("Secure"), is_tls);
            assert_eq!(cookie.starts_with("__Host-"), is_tls);
            let mut fields = HeaderMap::new();
            let sent = format!("other=1; {}", cookie.split(';').next().unwrap());
            fields.insert(header::COOKIE, sent.parse().unwrap());
            assert!(matches!(proof(&fields, &peer(is_tls)), Proof::Session(id) if id == "abc"));
            assert!(matches!(proof(&fields, &peer(!is_tls)), Proof::None), "a cookie of the other scheme");
        }
    }

    #[test]
    fn a_token_goes_before_a_cookie_and_a_log_in_takes_nothing_else() {
        let mut fields = HeaderMap::new();
        fields.insert(header::COOKIE, "shale-8443=abc".parse().unwrap());
        fields.insert(header::AUTHORIZATION, "bearer shale_00".parse().unwrap());
        assert!(matches!(proof(&fields, &peer(false)), Proof::Token(token) if token == "shale_00"));
        assert!(log_in(br#"{"user":"a","password":"b"}"#).is_ok());
        assert!(log_in(br#"{"key":"k"}"#).is_ok());
        for bad in [&br#"{"user":"a"}"#[..], br#"{"key":"k","user":"a"}"#, b"", b"[]", br#"{"user":1,"password":"b"}"#]
        {
            assert_eq!(log_in(bad).err().unwrap().status(), StatusCode::BAD_REQUEST);
        }
    }
}
