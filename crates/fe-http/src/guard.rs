//! Checks on every request, and headers of every response: the host name that the client used, the
//! origin of a change, and the policy for browsers.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::connections::Peer;
use crate::problem::{self, Refused};
use crate::router::Shared;
use crate::session;

/// The page loads scripts, styles and data from this server only.
const POLICY: &str = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src \
                      'none'; require-trusted-types-for 'script'; trusted-types svelte-trusted-html";

static FIELDS: [(HeaderName, &str); 6] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// Checks a request, and completes its response.
pub(crate) async fn check(State(shared): State<Shared>, request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<Peer>().copied();
    let refused = match peer {
        Some(peer) => refusal(&request, &peer, &shared.names),
        None => Some(Refused::WrongHost),
    };
    let mut response = match refused {
        Some(refused) => problem::refuse(refused),
        None => next.run(request).await,
    };
    let fields = response.headers_mut();
    for (name, value) in &FIELDS {
        fields.entry(name).or_insert(HeaderValue::from_static(value));
    }
    fields.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response.into_response()
}

fn refusal(request: &Request, peer: &Peer, names: &[String]) -> Option<Refused> {
    let fields = request.headers();
    if fields.get_all(header::HOST).iter().count() > 1 {
        return Some(Refused::WrongHost);
    }
    let field = fields.get(header::HOST).and_then(|host| host.to_str().ok());
    let authority = request.uri().authority().map(|authority| authority.as_str());
    // A request may name the host twice: both must be ours, and they must agree.
    let host = match (authority, field) {
        (Some(authority), Some(field)) if authority.eq_ignore_ascii_case(field) => field,
        (None, Some(field)) => field,
        _ => return Some(Refused::WrongHost),
    };
    if !is_own(host, peer, names) {
        return Some(Refused::WrongHost);
    }
    let changes = !matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    (changes && !comes_from_here(fields, host, peer)).then_some(Refused::ForeignOrigin)
}

/// The host without its port.
fn host_of(authority: &str) -> &str {
    if authority.starts_with('[') {
        return authority.split_inclusive(']').next().unwrap_or(authority);
    }
    authority.split(':').next().unwrap_or(authority)
}

/// Whether a host is this machine. A page of another site whose name was made to lead here (DNS
/// rebinding) has that other name.
fn is_own(authority: &str, peer: &Peer, names: &[String]) -> bool {
    let Some(local) = peer.local else {
        // Browsers do not reach a unix socket; a proxy in front of it has names of its own.
        return true;
    };
    let host = host_of(authority).trim_end_matches('.');
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    if let Ok(address) = bare.parse::<std::net::IpAddr>() {
        return address.to_canonical() == local;
    }
    let is_localhost = host.eq_ignore_ascii_case("localhost") && local.is_loopback();
    is_localhost || names.iter().any(|name| name.eq_ignore_ascii_case(host))
}

/// Whether a change comes from this page, or from a program: browsers send `Origin` with each, and
/// programs show a token, which no page of another site has.
fn comes_from_here(fields: &HeaderMap, host: &str, peer: &Peer) -> bool {
    let text = |name: HeaderName| fields.get(name).map(|value| value.to_str().unwrap_or("?"));
    let site = text(HeaderName::from_static("sec-fetch-site"));
    if site.is_some_and(|site| site != "same-origin") {
        return false;
    }
    if let Some(origin) = text(header::ORIGIN) {
        let schemes: &[&str] = match (peer.local, peer.is_tls) {
            (None, _) => &["http", "https"],
            (_, true) => &["https"],
            (_, false) => &["http"],
        };
        return schemes.iter().any(|scheme| origin.eq_ignore_ascii_case(&format!("{scheme}://{host}")));
    }
    site.is_some() || session::has_token(fields) || peer.process.is_some()
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn peer(local: [u8; 4], is_tls: bool) -> Peer {
        let address = Some([10, 0, 0, 9].into());
        Peer { address, process: None, local: Some(local.into()), port: 80, is_tls }
    }

    fn ask(method: &str, fields: &[(&str, &str)], peer: &Peer) -> Option<Refused> {
        let mut request = axum::http::Request::builder().method(method).uri("/");
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        refusal(&request.body(Body::empty()).unwrap(), peer, &["nas.example".to_owned()])
    }

    #[test]
    fn only_own_names_and_addresses_are_answered() {
        let here = peer([127, 0, 0, 1], false);
        for host in ["127.0.0.1:8080", "localhost", "LOCALHOST:1", "nas.example:8080", "nas.example."] {
            assert_eq!(ask("GET", &[("host", host)], &here), None, "{host}");
        }
        for host in
            ["evil.example", "127.0.0.1.evil.example", "10.0.0.9", "[::1]:80", "", "localhost.evil", "127.0.0.2"]
        {
            assert_eq!(ask("GET", &[("host", host)], &here), Some(Refused::WrongHost), "{host}");
        }
        assert_eq!(ask("GET", &[], &here), Some(Refused::WrongHost));
        let twice = [("host", "localhost"), ("host", "evil.example")];
        assert_eq!(ask("GET", &twice, &here), Some(Refused::WrongHost));
        // From another machine `localhost` would be that machine.
        assert_eq!(ask("GET", &[("host", "localhost")], &peer([10, 0, 0, 1], false)), Some(Refused::WrongHost));
        assert_eq!(ask("GET", &[("host", "10.0.0.1:8443")], &peer([10, 0, 0, 1], true)), None);
    }

    #[test]
    fn a_change_comes_from_the_page_or_with_a_token() {
        let here = peer([127, 0, 0, 1], false);
        let host = ("host", "127.0.0.1:8080");
        let good: [&[(&str, &str)]; 4] = [
            &[host, ("origin", "http://127.0.0.1:8080")],
            &[host, ("origin", "http://127.0.0.1:8080"), ("sec-fetch-site", "same-origin")],
            &[host, ("sec-fetch-site", "same-origin")],
            &[host, ("authorization", "Bearer shale_00")],
        ];
        for fields in good {
            assert_eq!(ask("POST", fields, &here), None, "{fields:?}");
        }
        let bad: [&[(&str, &str)]; 7] = [
            &[host],
            &[host, ("origin", "null")],
            &[host, ("origin", "http://evil.example")],
            &[host, ("origin", "https://127.0.0.1:8080")],
            &[host, ("origin", "http://127.0.0.1:8081")],
            &[host, ("origin", "http://127.0.0.1:8080"), ("sec-fetch-site", "cross-site")],
            &[host, ("authorization", "Basic eDp5")],
        ];
        for fields in bad {
            assert_eq!(ask("DELETE", fields, &here), Some(Refused::ForeignOrigin), "{fields:?}");
        }
        assert_eq!(ask("GET", &[host, ("origin", "http://evil.example")], &here), None);
        let unix = Peer { address: None, process: Some((0, 1)), local: None, port: 0, is_tls: false };
        assert_eq!(ask("POST", &[("host", "any")], &unix), None);
    }
}
