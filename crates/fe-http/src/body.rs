//! Bodies of requests. Owns their bounds: bytes, time, and how many large ones there are at a time.

use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, header};
use axum::response::Response;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use crate::problem::{self, Refused};
use crate::wire::Answer;

/// Largest body.
const BYTES_MAX: usize = 1 << 20;
/// Largest body that is read from anyone: more than nearly every request needs.
const SMALL_BYTES_MAX: usize = 8 << 10;
/// Time limit for receiving a body.
const PATIENCE: Duration = Duration::from_secs(30);
/// Larger bodies that are held at a time, each with its values and its request: some 16 MiB.
static LARGE: Semaphore = Semaphore::const_new(4);

/// A body, and the permit for a large one, which is kept until its request is answered.
pub(crate) struct Received {
    pub(crate) bytes: Vec<u8>,
    _large: Option<SemaphorePermit<'static>>,
}

fn is_large(fields: &HeaderMap) -> bool {
    let length = fields.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    fields.contains_key(header::TRANSFER_ENCODING) || length.is_some_and(|length| length > SMALL_BYTES_MAX as u64)
}

/// Reads a body, which must be JSON by its type.
async fn read(fields: &HeaderMap, body: Body, bytes_max: usize) -> Result<Vec<u8>, Refused> {
    let bytes = match timeout(PATIENCE, to_bytes(body, bytes_max)).await {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(_)) => return Err(Refused::TooLong),
        Err(_) => return Err(Refused::TooSlow),
    };
    let kind = fields.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    let is_json =
        ["application/json", "application/merge-patch+json"].iter().any(|json| kind.eq_ignore_ascii_case(json));
    // Forms of other sites can send text, and nothing that browsers ask about first.
    if is_json || bytes.is_empty() { Ok(bytes.to_vec()) } else { Err(Refused::NotJson) }
}

/// Reads a body from anyone: it must be small.
pub(crate) async fn small(fields: &HeaderMap, body: Body) -> Result<Vec<u8>, Response> {
    read(fields, body, SMALL_BYTES_MAX).await.map_err(problem::refuse)
}

/// Reads a body. A large one takes many times its size in memory: it needs the `permission` of the
/// server, and few are read at a time.
pub(crate) async fn receive(
    fields: &HeaderMap,
    body: Body,
    permission: impl Future<Output = Result<Answer, Response>>,
) -> Result<Received, Response> {
    let large = if is_large(fields) {
        permission.await?;
        LARGE.acquire().await.ok()
    } else {
        None
    };
    let bytes_max = if large.is_some() { BYTES_MAX } else { SMALL_BYTES_MAX };
    let bytes = read(fields, body, bytes_max).await.map_err(problem::refuse)?;
    Ok(Received { bytes, _large: large })
}
