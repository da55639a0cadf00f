//! Paths: which question to the server each request becomes, and which response its answer.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use axum::{Router, middleware};
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::backend::{Backend, NoAnswer};
use crate::connections::Peer;
use crate::events::{self, Streams};
use crate::problem::{self, Refused};
use crate::wire::{Answer, Ask, What};
use crate::{api, assets, body, guard, metrics, session};

/// State that all requests share.
pub(crate) struct Site {
    /// The way to the server.
    pub(crate) backend: Backend,
    /// The one for event streams.
    pub(crate) ticks: Backend,
    /// The event streams.
    pub(crate) streams: Arc<Streams>,
    /// A permit for each download at a time.
    pub(crate) downloads: Arc<Semaphore>,
    /// Names of this machine.
    pub(crate) names: Vec<String>,
    /// Version of the program.
    pub(crate) version: String,
    /// Identifies this start of the server.
    pub(crate) boot: String,
}

/// Clones are the same.
pub(crate) type Shared = Arc<Site>;

/// All paths.
pub(crate) fn router(site: Site) -> Router {
    let shared = Arc::new(site);
    Router::new()
        .route("/healthz", get(healthz))
        .route("/metrics", get(metrics_text))
        .route("/api/v1/version", get(version))
        .route("/api/v1/session", any(session_of))
        .route("/api/v1/events", get(events::events))
        .route("/api/v1/openapi.json", get(api::openapi))
        .route("/api/v1/{*path}", any(api::operation))
        .fallback(other)
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), guard::check))
        .with_state(shared)
}

/// JSON with a status.
pub(crate) fn json(status: StatusCode, document: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], document.to_string()).into_response()
}

async fn healthz(State(shared): State<Shared>) -> Response {
    let (status, text) = match shared.backend.is_well().await {
        true => (StatusCode::OK, "ok\n"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "the server does not answer\n"),
    };
    (status, [(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response()
}

async fn metrics_text(State(shared): State<Shared>, Extension(peer): Extension<Peer>, fields: HeaderMap) -> Response {
    let is_local = peer.address.is_none_or(|address| address.is_loopback());
    match ask(&shared, &peer, &fields, What::Metrics { is_local }).await {
        Ok(Answer::Figures(figures)) => match metrics::text(&figures) {
            Ok(text) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response(),
            Err(error) => {
                log::warn!("the metrics cannot be encoded: {error}");
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
        },
        Ok(answer) => respond(answer),
        Err(response) => response,
    }
}

async fn version(State(shared): State<Shared>) -> Response {
    json(StatusCode::OK, &serde_json::json!({ "version": shared.version, "boot": shared.boot }))
}

/// Asks the server, and makes a response of problems.
pub(crate) async fn ask(shared: &Shared, peer: &Peer, fields: &HeaderMap, what: What) -> Result<Answer, Response> {
    let ask = Ask { from: peer.from(), proof: session::proof(fields, peer), what };
    match shared.backend.ask(ask).await {
        Ok(Answer::Fault(fault)) => Err(problem::of(&fault)),
        Ok(answer) => Ok(answer),
        Err(why) => Err(problem::no_answer(why)),
    }
}

/// The response to an answer that is no failure.
pub(crate) fn respond(answer: Answer) -> Response {
    match answer {
        Answer::Done => StatusCode::NO_CONTENT.into_response(),
        Answer::Document { document, status } => {
            let mut response = json(StatusCode::from_u16(status).unwrap_or(StatusCode::OK), &document);
            let etag = document["etag"].as_str().and_then(|etag| HeaderValue::from_str(&format!("\"{etag}\"")).ok());
            if let Some(etag) = etag {
                response.headers_mut().insert(header::ETAG, etag);
            }
            response
        }
        Answer::Session(_) | Answer::Figures(_) | Answer::Content(_) | Answer::Fault(_) => {
            problem::no_answer(NoAnswer::Gone)
        }
    }
}

async fn session_of(
    State(shared): State<Shared>,
    Extension(peer): Extension<Peer>,
    method: Method,
    fields: HeaderMap,
    body: Body,
) -> Response {
    let what = match method {
        Method::GET => What::WhoAmI,
        Method::DELETE => What::LogOut,
        Method::POST => {
            let body = match body::small(&fields, body).await {
                Ok(body) => body,
                Err(refused) => return refused,
            };
            match session::log_in(&body) {
                Ok(what) => what,
                Err(response) => return *response,
            }
        }
        _ => return problem::refuse(Refused::NoSuchMethod),
    };
    let is_end = matches!(what, What::LogOut);
    match ask(&shared, &peer, &fields, what).await {
        Ok(Answer::Session(begun)) => session::begun(&begun, &peer),
        Ok(_) if is_end => session::ended(&peer),
        Ok(answer) => respond(answer),
        Err(response) => response,
    }
}

/// Everything else: files of the page.
async fn other(method: Method, uri: Uri, fields: HeaderMap) -> Response {
    if uri.path().starts_with("/api") {
        return problem::refuse(Refused::NoSuchPath);
    }
    match method {
        Method::GET | Method::HEAD => assets::serve(uri.path(), &fields),
        _ => problem::refuse(Refused::NoSuchMethod),
    }
}
