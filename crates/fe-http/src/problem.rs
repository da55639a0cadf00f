//! Errors as `application/problem+json` (RFC 9457).

use std::sync::atomic::{AtomicU64, Ordering};

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use operations::Problem;

use crate::backend::NoAnswer;
use crate::wire::Fault;

/// Requests that were refused or failed, for the number in the answer.
static NUMBER: AtomicU64 = AtomicU64::new(1);

/// Reason to refuse a request before its operation is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// `Host` is not this machine.
    WrongHost,
    /// A change that a page of another site may have sent.
    ForeignOrigin,
    /// There is nothing at this path.
    NoSuchPath,
    /// It does not take this method.
    NoSuchMethod,
    /// The body is not JSON by its type.
    NotJson,
    /// The body is too long.
    TooLong,
    /// The body took too long.
    TooSlow,
    /// There are too many large bodies.
    TooMany,
}

impl Refused {
    const fn parts(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::WrongHost => (
                StatusCode::MISDIRECTED_REQUEST,
                "wrong-host",
                "the Host of this request is no name or address of this server: use its address, or add the name with \
                 serve --http-name",
            ),
            Self::ForeignOrigin => (
                StatusCode::FORBIDDEN,
                "foreign-origin",
                "a change must come from this server's own page (Origin), or with a token (Authorization: Bearer)",
            ),
            Self::NoSuchPath => (StatusCode::NOT_FOUND, "not-found", "there is nothing at this path"),
            Self::NoSuchMethod => (StatusCode::METHOD_NOT_ALLOWED, "method", "this path does not take this method"),
            Self::NotJson => (
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "media-type",
                "the body must be JSON: Content-Type application/json, or application/merge-patch+json for PATCH",
            ),
            Self::TooLong => (StatusCode::PAYLOAD_TOO_LARGE, "too-long", "the body is longer than 1 MiB"),
            Self::TooSlow => (
                StatusCode::REQUEST_TIMEOUT,
                "too-slow",
                "the body took longer than 30 s, or one of more than 8 KiB arrived at less than 64 KiB/s",
            ),
            Self::TooMany => (
                StatusCode::SERVICE_UNAVAILABLE,
                "unavailable",
                "the server is receiving as many large requests as it can: try again",
            ),
        }
    }
}

/// The answer to a request that is refused.
pub(crate) fn refuse(refused: Refused) -> Response {
    let (status, kind, detail) = refused.parts();
    document(status, kind, detail, matches!(refused, Refused::TooMany).then_some(5))
}

/// The answer where the server gave none.
pub(crate) fn no_answer(why: NoAnswer) -> Response {
    let detail = match why {
        NoAnswer::Busy => "the server is busy: try again",
        NoAnswer::Gone => "the server has gone: try again",
    };
    document(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail, Some(1))
}

/// The answer to a request that the server has refused, or that failed.
pub(crate) fn of(fault: &Fault) -> Response {
    let status = StatusCode::from_u16(fault.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    document(status, &fault.kind, &fault.message, fault.retry_after_s)
}

/// The answer to a request that cannot be understood.
pub(crate) fn malformed(detail: &str) -> Response {
    document(StatusCode::BAD_REQUEST, "invalid", detail, None)
}

/// The answer to one stream too many.
pub(crate) fn too_many_streams() -> Response {
    let text = "there are too many event streams: close a tab, or try again";
    document(StatusCode::TOO_MANY_REQUESTS, "throttled", text, Some(5))
}

fn document(status: StatusCode, kind: &str, detail: &str, retry_after_s: Option<u64>) -> Response {
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let body = Problem {
        urn: format!("urn:shale:error:{kind}"),
        title: kind.replace('-', " "),
        status: status.as_u16(),
        kind: kind.to_owned(),
        detail: detail.to_owned(),
        request: Some(format!("{:x}-{number}", std::process::id())),
    };
    let body = serde_json::to_string(&body).unwrap_or_default();
    let mut response = (status, body).into_response();
    let fields = response.headers_mut();
    fields.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    if status == StatusCode::UNAUTHORIZED {
        fields.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if let Some(seconds) = retry_after_s {
        fields.insert(header::RETRY_AFTER, HeaderValue::from(seconds.max(1)));
    }
    response
}
