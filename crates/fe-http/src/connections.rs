//! Accepts connections and speaks HTTP on them. Owns the bounds on connections and on how long a
//! client may take. All of it runs on the runtime's threads.
//!
//! Clients that connect and send nothing, or never finish a request, must not keep others out. When
//! all places are taken, a newcomer gets that of a connection that has nothing to answer, of the
//! address that has the most of these.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

/// Connections at once, and those of one address: one browser opens six.
const CONNECTIONS_MAX: usize = 256;
const CONNECTIONS_OF_ADDRESS_MAX: usize = 32;
/// How long a client may take for a TLS handshake, for the head of a request, and between two.
const HEAD_PATIENCE: Duration = Duration::from_secs(10);
/// How long data that was sent may wait for the client to take it.
const STALLED_MS: u32 = 30_000;
/// Bytes of a request's head, and its fields.
const HEAD_BYTES_MAX: usize = 32 << 10;
const FIELDS_MAX: usize = 64;
/// Pause after accepting failed: the descriptors have run out, for instance.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The client at the other end of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer {
    /// Its address; none: it comes over a unix socket.
    pub(crate) address: Option<IpAddr>,
    /// Its user and its number, over a unix socket.
    pub(crate) process: Option<(u32, u32)>,
    /// The address of this machine that it has reached.
    pub(crate) local: Option<IpAddr>,
    /// The port that it has reached.
    pub(crate) port: u16,
    /// Whether it speaks TLS.
    pub(crate) is_tls: bool,
}

impl Peer {
    /// The address for the server's counts and log.
    pub(crate) fn from(&self) -> String {
        self.address.map_or_else(|| "unix socket".to_owned(), |address| address.to_string())
    }
}

/// The connections there are.
#[derive(Default)]
pub(crate) struct Limits {
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    next: u64,
    /// By number, so the oldest comes first.
    all: BTreeMap<u64, Arc<Connection>>,
}

struct Connection {
    address: Option<IpAddr>,
    /// Answers under way.
    answering: AtomicUsize,
    /// Signalled when its place is given to another one.
    displaced: Notify,
}

/// The place of a connection.
struct Place {
    limits: Arc<Limits>,
    number: u64,
    connection: Arc<Connection>,
}

/// A request and its answer. The answer is under way once all of the request has arrived and there
/// is room for the answer: a client that sends a body without end, or takes no answers, is as silent
/// as one that sends nothing.
struct Exchange {
    connection: Arc<Connection>,
    is_answering: AtomicBool,
}

impl Limits {
    /// Counts a connection; none: there are too many.
    fn admit(self: &Arc<Self>, address: Option<IpAddr>) -> Option<Place> {
        let mut open = self.open.lock();
        let own = open.all.values().filter(|connection| connection.address == address).count();
        if address.is_some() && own >= CONNECTIONS_OF_ADDRESS_MAX {
            return None;
        }
        if open.all.len() >= CONNECTIONS_MAX {
            let number = open.to_displace(own)?;
            open.all.remove(&number)?.displaced.notify_one();
        }
        let connection = Arc::new(Connection { address, answering: AtomicUsize::new(0), displaced: Notify::new() });
        let number = open.next;
        open.next += 1;
        open.all.insert(number, Arc::clone(&connection));
        Some(Place { limits: Arc::clone(self), number, connection })
    }
}

impl Open {
    /// The oldest connection without an answer under way of the address that has the most of these,
    /// if they are more than the `own` connections of a newcomer.
    fn to_displace(&self, own: usize) -> Option<u64> {
        let mut silent: HashMap<Option<IpAddr>, (usize, u64)> = HashMap::new();
        let is_silent = |connection: &Connection| connection.answering.load(Ordering::Relaxed) == 0;
        for (number, connection) in self.all.iter().filter(|(_, connection)| is_silent(connection)) {
            silent.entry(connection.address).or_insert((0, *number)).0 += 1;
        }
        let (count, oldest) =
            silent.into_values().max_by_key(|(count, oldest)| (*count, std::cmp::Reverse(*oldest)))?;
        (count > own).then_some(oldest)
    }
}

impl Exchange {
    fn new(connection: &Arc<Connection>) -> Self {
        Self { connection: Arc::clone(connection), is_answering: AtomicBool::new(false) }
    }

    /// The answer is under way from now on until this is dropped.
    fn begin_answer(&self) {
        if !self.is_answering.swap(true, Ordering::Relaxed) {
            self.connection.answering.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if *self.is_answering.get_mut() {
            self.connection.answering.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.limits.open.lock().all.remove(&self.number);
    }
}

/// The body of a request. At its end the answer is under way.
struct Asked {
    body: Incoming,
    exchange: Arc<Exchange>,
}

impl hyper::body::Body for Asked {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if matches!(polled, Poll::Ready(None)) {
            self.exchange.begin_answer();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of an answer, which is under way until it ends.
struct Answer {
    body: Body,
    _exchange: Arc<Exchange>,
}

impl hyper::body::Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Serves a TCP socket until the process ends.
pub(crate) async fn serve_tcp(listener: TcpListener, limits: Arc<Limits>, app: Router, tls: Option<TlsAcceptor>) {
    loop {
        let (stream, address) = match listener.accept().await {
            Ok((stream, address)) => (stream, address.ip().to_canonical()),
            Err(error) => {
                pause(&error).await;
                continue;
            }
        };
        let Some(place) = limits.admit(Some(address)) else { continue };
        let Some(peer) = tcp_peer(&stream, address, tls.is_some()) else { continue };
        let (app, tls) = (app.clone(), tls.clone());
        let connection = Arc::clone(&place.connection);
        tokio::spawn(until_displaced(place, async move {
            match tls {
                None => speak(stream, peer, connection, app).await,
                Some(tls) => {
                    if let Ok(Ok(stream)) = timeout(HEAD_PATIENCE, tls.accept(stream)).await {
                        speak(stream, peer, connection, app).await;
                    }
                }
            }
        }));
    }
}

/// Serves a unix socket until the process ends.
pub(crate) async fn serve_unix(listener: UnixListener, limits: Arc<Limits>, app: Router) {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                pause(&error).await;
                continue;
            }
        };
        let Some(place) = limits.admit(None) else { continue };
        let peer = unix_peer(&stream);
        let connection = Arc::clone(&place.connection);
        tokio::spawn(until_displaced(place, speak(stream, peer, connection, app.clone())));
    }
}

/// A connection, which ends early if its place is given to another one.
async fn until_displaced(place: Place, speaks: impl Future<Output = ()>) {
    tokio::select! {
        () = speaks => {}
        () = place.connection.displaced.notified() => {}
    }
}

async fn pause(error: &std::io::Error) {
    log::warn!("an HTTP connection cannot be accepted: {error}");
    sleep(ACCEPT_PAUSE).await;
}

/// None: the client has gone already.
fn tcp_peer(stream: &TcpStream, address: IpAddr, is_tls: bool) -> Option<Peer> {
    let local = stream.local_addr().ok()?;
    stream.set_nodelay(true).ok()?;
    sockopt::set_tcp_user_timeout(stream, STALLED_MS).ok()?;
    Some(Peer {
        address: Some(address),
        process: None,
        local: Some(local.ip().to_canonical()),
        port: local.port(),
        is_tls,
    })
}

fn unix_peer(stream: &UnixStream) -> Peer {
    let process = sockopt::socket_peercred(stream).ok();
    let process = process.map(|peer| (peer.uid.as_raw(), peer.pid.as_raw_nonzero().get().unsigned_abs()));
    Peer { address: None, process, local: None, port: 0, is_tls: false }
}

fn speak<S>(stream: S, peer: Peer, connection: Arc<Connection>, app: Router) -> impl Future<Output = ()> + Send
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let app = TowerToHyperService::new(app);
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let exchange = Arc::new(Exchange::new(&connection));
        let has_body = !request.body().is_end_stream();
        let mut request = request.map(|body| Asked { body, exchange: Arc::clone(&exchange) });
        request.extensions_mut().insert(peer);
        let answer = app.call(request);
        // Polled once earlier answers have been sent.
        async move {
            if !has_body {
                exchange.begin_answer();
            }
            let answer = answer.await.map_err(|error: Infallible| error)?;
            exchange.begin_answer();
            Ok::<_, Infallible>(answer.map(|body| Answer { body, _exchange: exchange }))
        }
    });
    let http = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_PATIENCE)
        .max_headers(FIELDS_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    async move {
        // An error means that the client disconnected, was too slow, or does not speak HTTP.
        drop(http.await);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use futures_util::StreamExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn address(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([10, 0, 0, last]))
    }

    fn count(limits: &Limits) -> usize {
        limits.open.lock().all.len()
    }

    fn answering(connection: &Arc<Connection>) -> Exchange {
        let exchange = Exchange::new(connection);
        exchange.begin_answer();
        exchange
    }

    #[test]
    fn connections_are_bounded_in_all_and_by_address() {
        let limits = Arc::new(Limits::default());
        let mut first: Vec<_> = std::iter::repeat_with(|| limits.admit(address(1))).take(40).flatten().collect();
        assert_eq!(first.len(), CONNECTIONS_OF_ADDRESS_MAX);
        let answers: Vec<_> = first.iter().map(|place| answering(&place.connection)).collect();
        let busy = |place: Place| (answering(&place.connection), place);
        let others: Vec<_> = (2..=250).filter_map(|last| limits.admit(address(last))).map(busy).collect();
        assert_eq!(first.len() + others.len(), CONNECTIONS_MAX, "answers under way keep their places");
        assert!(limits.admit(None).is_none() && limits.admit(address(251)).is_none());
        drop((answers, others));
        first.pop();
        assert!(limits.admit(address(1)).is_some());
        drop(first);
        assert_eq!(count(&limits), 0);
    }

    #[tokio::test]
    async fn silent_connections_give_way_to_newcomers() {
        let limits = Arc::new(Limits::default());
        let mut silent: Vec<_> =
            (0..CONNECTIONS_MAX).map(|number| limits.admit(address((number / 32) as u8)).unwrap()).collect();
        let answer = answering(&silent[0].connection);
        let newcomer = limits.admit(address(100)).unwrap();
        assert_eq!(count(&limits), CONNECTIONS_MAX);
        // The oldest that has nothing to answer; the address of the first one has fewer of these now.
        until_displaced(silent.remove(32), std::future::pending()).await;
        drop(answer);
        // A flood from one address displaces no client that has a few connections.
        let flood: Vec<_> = (0..100).filter_map(|_| limits.admit(address(200))).collect();
        assert!(flood.len() < CONNECTIONS_OF_ADDRESS_MAX, "{}", flood.len());
        assert!(limits.open.lock().all.contains_key(&newcomer.number));
    }

    /// Bodies without end kept all places: newcomers were refused for 30 s.
    #[tokio::test]
    async fn an_answer_is_under_way_once_its_request_is_complete() {
        let connection =
            Arc::new(Connection { address: None, answering: AtomicUsize::new(0), displaced: Notify::new() });
        let counted = Arc::clone(&connection);
        let begun = Arc::new(Notify::new());
        let seen = Arc::clone(&begun);
        let count = move || counted.answering.load(Ordering::Relaxed);
        let app = axum::routing::any(move |body: Body| async move {
            let mut parts = body.into_data_stream();
            let first = (parts.next().await.is_some(), count());
            seen.notify_one();
            while parts.next().await.is_some() {}
            format!("{first:?} {}", count())
        });
        let (mut client, server) = tokio::io::duplex(4096);
        let peer = Peer { address: None, process: None, local: None, port: 0, is_tls: false };
        let speaks = tokio::spawn(speak(server, peer, Arc::clone(&connection), Router::new().route("/", app)));
        client.write_all(b"POST / HTTP/1.1\r\nConnection: close\r\nContent-Length: 4\r\n\r\nab").await.unwrap();
        begun.notified().await;
        client.write_all(b"cd").await.unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).await.unwrap();
        assert!(text.ends_with("(true, 0) 1"), "{text}");
        speaks.await.unwrap();
        assert_eq!(connection.answering.load(Ordering::Relaxed), 0);
    }
}
