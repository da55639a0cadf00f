//! Bodies of requests. Owns their bounds: bytes, time, and how many large ones there are at a time.
//!
//! The memory of a body that is being received is bounded by its permit, so a slow client may hold
//! one: for [`PATIENCE`] in all, and only while its bytes arrive at [`RATE_MIN_BYTES`] a second.
//! Requests that find no permit wait for [`TURN_PATIENCE`].

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, header};
use axum::response::Response;
use futures_util::StreamExt;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout, timeout_at};

use crate::problem::{self, Refused};
use crate::wire::Answer;

/// Largest body.
const BYTES_MAX: usize = 1 << 20;
/// Largest body that is read from anyone: more than nearly every request needs.
const SMALL_BYTES_MAX: usize = 8 << 10;
/// Time limit for receiving a body.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time in which a large body must begin to arrive, and may be slower than [`RATE_MIN_BYTES`].
const GRACE: Duration = Duration::from_secs(3);
/// Bytes of a large body that must arrive each second, on average: the largest in 16 s.
const RATE_MIN_BYTES: u64 = 64 << 10;
/// Time limit for the permit of a large body: the slowest four are refused before.
const TURN_PATIENCE: Duration = Duration::from_secs(5);
/// Larger bodies that are held at a time, each with its values and its request: some 16 MiB.
static LARGE: Semaphore = Semaphore::const_new(4);

/// A body, and the permit for a large one, which is kept until its request is answered.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) bytes: Vec<u8>,
    _large: Option<SemaphorePermit<'static>>,
}

fn is_large(fields: &HeaderMap) -> bool {
    let length = fields.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    fields.contains_key(header::TRANSFER_ENCODING) || length.is_some_and(|length| length > SMALL_BYTES_MAX as u64)
}

/// Collects a body, whose turn to wait for a permit comes when it exceeds [`SMALL_BYTES_MAX`].
struct Reader<'a> {
    bytes: Vec<u8>,
    permits: Option<&'a Semaphore>,
    large: Option<(SemaphorePermit<'a>, Instant)>,
}

impl<'a> Reader<'a> {
    /// With `permits`, the body may be large.
    const fn new(permits: Option<&'a Semaphore>) -> Self {
        Self { bytes: Vec::new(), permits, large: None }
    }

    /// The end of the time for the next bytes, if the body is large.
    fn deadline(&self) -> Option<Instant> {
        let due = Duration::from_millis(self.bytes.len() as u64 * 1000 / RATE_MIN_BYTES);
        self.large.as_ref().map(|(_, begun)| *begun + GRACE + due)
    }

    async fn add(&mut self, more: &Bytes) -> Result<(), Refused> {
        let len = self.bytes.len() + more.len();
        if len > if self.permits.is_some() { BYTES_MAX } else { SMALL_BYTES_MAX } {
            return Err(Refused::TooLong);
        }
        if let Some(permits) = self.permits.filter(|_| self.large.is_none() && len > SMALL_BYTES_MAX) {
            let permit = timeout(TURN_PATIENCE, permits.acquire()).await;
            let permit = permit.ok().and_then(Result::ok).ok_or(Refused::TooMany)?;
            self.large = Some((permit, Instant::now()));
        }
        self.bytes.extend_from_slice(more);
        Ok(())
    }

    async fn read(&mut self, body: Body) -> Result<(), Refused> {
        let mut pieces = body.into_data_stream();
        let mut end = Instant::now() + PATIENCE;
        loop {
            let limit = self.deadline().map_or(end, |deadline| deadline.min(end));
            let Ok(piece) = timeout_at(limit, pieces.next()).await else { return Err(Refused::TooSlow) };
            let Some(piece) = piece else { return Ok(()) };
            // A connection that fails has no use for an answer.
            let piece = piece.map_err(|_| Refused::TooLong)?;
            let before = Instant::now();
            self.add(&piece).await?;
            // The client is not to blame for its wait for a permit.
            end += before.elapsed();
        }
    }
}

/// Refuses a body that is not JSON by its type.
fn check_kind(fields: &HeaderMap, bytes: &[u8]) -> Result<(), Refused> {
    let kind = fields.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    let is_json =
        ["application/json", "application/merge-patch+json"].iter().any(|json| kind.eq_ignore_ascii_case(json));
    // Forms of other sites can send text, and nothing that browsers ask about first.
    if is_json || bytes.is_empty() { Ok(()) } else { Err(Refused::NotJson) }
}

/// Reads a body; a large one needs one of the `permits`.
async fn read(fields: &HeaderMap, body: Body, permits: Option<&'static Semaphore>) -> Result<Received, Refused> {
    let mut reader = Reader::new(permits);
    reader.read(body).await?;
    check_kind(fields, &reader.bytes)?;
    Ok(Received { bytes: reader.bytes, _large: reader.large.map(|(permit, _)| permit) })
}

/// Reads a body from anyone: it must be small.
pub(crate) async fn small(fields: &HeaderMap, body: Body) -> Result<Vec<u8>, Response> {
    read(fields, body, None).await.map(|received| received.bytes).map_err(problem::refuse)
}

/// Reads a body. A large one takes many times its size in memory: it needs the `permission` of the
/// server, and few are read at a time.
pub(crate) async fn receive(
    fields: &HeaderMap,
    body: Body,
    permission: impl Future<Output = Result<Answer, Response>>,
) -> Result<Received, Response> {
    let is_large = is_large(fields);
    if is_large {
        permission.await?;
    }
    read(fields, body, is_large.then_some(&LARGE)).await.map_err(problem::refuse)
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use tokio::time::sleep;

    use super::*;

    fn permits(count: usize) -> &'static Semaphore {
        Box::leak(Box::new(Semaphore::new(count)))
    }

    /// A body of `count` pieces, each after a pause.
    fn body(count: usize, piece: usize, pause: Duration) -> Body {
        Body::from_stream(stream::unfold(0, move |sent| async move {
            if sent == count {
                return None;
            }
            sleep(pause).await;
            Some((Ok::<_, std::io::Error>(Bytes::from(vec![b' '; piece])), sent + 1))
        }))
    }

    fn json() -> HeaderMap {
        HeaderMap::from_iter([(header::CONTENT_TYPE, axum::http::HeaderValue::from_static("application/json"))])
    }

    async fn run(body: Body, permits: &'static Semaphore) -> (Result<usize, Refused>, Duration) {
        let begun = Instant::now();
        let read = read(&json(), body, Some(permits)).await;
        (read.map(|received| received.bytes.len()), begun.elapsed())
    }

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_large_body_loses_its_permit_before_others_are_refused() {
        let permits = permits(4);
        // 9 KiB at once, and then a byte a second.
        let slow = || {
            let head = stream::once(async { Ok::<_, axum::Error>(Bytes::from(vec![b' '; 9 << 10])) });
            Body::from_stream(head.chain(body(1000, 1, ms(1000)).into_data_stream()))
        };
        let slow: Vec<_> = (0..4).map(|_| tokio::spawn(run(slow(), permits))).collect();
        sleep(ms(10)).await;
        assert_eq!(permits.available_permits(), 0);
        let (read, took) = run(body(100, 10 << 10, ms(1)), permits).await;
        assert_eq!(read, Ok(100 * (10 << 10)));
        assert!(took > ms(3000) && took < TURN_PATIENCE, "{took:?}");
        for slow in slow {
            let (read, took) = slow.await.unwrap();
            assert_eq!(read, Err(Refused::TooSlow));
            assert!(took < ms(3200), "{took:?}");
        }
        assert_eq!(permits.available_permits(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_permit_a_large_body_is_refused_after_a_bounded_wait() {
        let permits = permits(1);
        let held = permits.acquire().await.unwrap();
        let (read, took) = run(body(2, 5 << 10, ms(1)), permits).await;
        assert_eq!(read, Err(Refused::TooMany));
        assert!(took >= TURN_PATIENCE && took < TURN_PATIENCE + ms(10), "{took:?}");
        let response = problem::refuse(Refused::TooMany);
        assert_eq!(response.status().as_u16(), 503);
        assert_eq!(response.headers()[header::RETRY_AFTER], "5");
        // Bodies that turn out to be small need none.
        assert_eq!(run(body(2, 4 << 10, ms(1)), permits).await.0, Ok(8 << 10));
        drop(held);
        assert_eq!(run(body(2, 5 << 10, ms(1)), permits).await.0, Ok(10 << 10));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_may_be_as_slow_as_the_least_rate_and_not_slower() {
        let permits = permits(1);
        let (read, took) = run(body(16, 64 << 10, ms(1000)), permits).await;
        assert_eq!((read, took), (Ok(1 << 20), ms(16_000)));
        assert_eq!(run(body(16, 64 << 10, ms(2000)), permits).await.0, Err(Refused::TooSlow));
        assert_eq!(run(body(17, 64 << 10, ms(1)), permits).await.0, Err(Refused::TooLong));
        // A small one has half a minute, and takes no permit.
        let (read, took) = run(body(100, 1, ms(1000)), permits).await;
        assert_eq!((read, took), (Err(Refused::TooSlow), PATIENCE));
        assert_eq!(permits.available_permits(), 1);
    }
}
