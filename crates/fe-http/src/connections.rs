//! Accepts connections and speaks HTTP on them. Owns the bounds on connections and on how long a
//! client may take. All of it runs on the runtime's threads.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
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

/// Counts of connections.
#[derive(Default)]
pub(crate) struct Limits {
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    all: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// A connection that is counted.
struct Counted {
    limits: Arc<Limits>,
    address: Option<IpAddr>,
}

impl Limits {
    /// Counts a connection; none: there are too many.
    fn admit(self: &Arc<Self>, address: Option<IpAddr>) -> Option<Counted> {
        let mut counts = self.counts.lock();
        let of_address = address.map_or(0, |address| counts.by_address.get(&address).copied().unwrap_or_default());
        if counts.all >= CONNECTIONS_MAX || of_address >= CONNECTIONS_OF_ADDRESS_MAX {
            return None;
        }
        counts.all += 1;
        if let Some(address) = address {
            counts.by_address.insert(address, of_address + 1);
        }
        Some(Counted { limits: Arc::clone(self), address })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut counts = self.limits.counts.lock();
        counts.all -= 1;
        let Some(address) = self.address else { return };
        if let Some(count) = counts.by_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                counts.by_address.remove(&address);
            }
        }
    }
}

/// Serves a TCP socket for ever.
pub(crate) async fn serve_tcp(listener: TcpListener, limits: Arc<Limits>, app: Router, tls: Option<TlsAcceptor>) {
    loop {
        let (stream, address) = match listener.accept().await {
            Ok((stream, address)) => (stream, address.ip().to_canonical()),
            Err(error) => {
                pause(&error).await;
                continue;
            }
        };
        let Some(counted) = limits.admit(Some(address)) else { continue };
        let Some(peer) = tcp_peer(&stream, address, tls.is_some()) else { continue };
        let (app, tls) = (app.clone(), tls.clone());
        tokio::spawn(async move {
            match tls {
                None => speak(stream, peer, app).await,
                Some(tls) => {
                    if let Ok(Ok(stream)) = timeout(HEAD_PATIENCE, tls.accept(stream)).await {
                        speak(stream, peer, app).await;
                    }
                }
            }
            drop(counted);
        });
    }
}

/// Serves a unix socket for ever.
pub(crate) async fn serve_unix(listener: UnixListener, limits: Arc<Limits>, app: Router) {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                pause(&error).await;
                continue;
            }
        };
        let Some(counted) = limits.admit(None) else { continue };
        let peer = unix_peer(&stream);
        let app = app.clone();
        tokio::spawn(async move {
            speak(stream, peer, app).await;
            drop(counted);
        });
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

fn speak<S>(stream: S, peer: Peer, app: Router) -> impl Future<Output = ()> + Send
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let app = TowerToHyperService::new(app);
    let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(peer);
        let answer = app.call(request);
        async move { answer.await.map_err(|error: Infallible| error) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_PATIENCE)
        .max_headers(FIELDS_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    async move {
        // An error ends the connection: the client has gone, was too slow, or does not speak HTTP.
        drop(connection.await);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_bounded_in_all_and_by_address() {
        let limits = Arc::new(Limits::default());
        let address = |last: u8| Some(IpAddr::from([10, 0, 0, last]));
        let mut first: Vec<_> = std::iter::repeat_with(|| limits.admit(address(1))).take(40).flatten().collect();
        assert_eq!(first.len(), CONNECTIONS_OF_ADDRESS_MAX);
        let others: Vec<_> =
            (2..=255).flat_map(|last| [limits.admit(address(last)), limits.admit(None)]).flatten().collect();
        assert_eq!(first.len() + others.len(), CONNECTIONS_MAX);
        assert!(limits.admit(None).is_none());
        first.pop();
        assert!(limits.admit(address(1)).is_some());
        drop((first, others));
        assert_eq!(limits.counts.lock().all, 0);
        assert!(limits.counts.lock().by_address.is_empty());
    }
}
