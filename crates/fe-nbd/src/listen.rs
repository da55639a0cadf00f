//! Listening addresses: parsed from and displayed in the form that users write, and bound. Owns the
//! socket file of a unix listener and removes it.

use std::fmt;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use rustix::fs::{CWD, Mode, RenameFlags, renameat_with};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use surface::{Error, ErrorKind, Result};

/// A peer that vanished without closing is noticed after two minutes and gives its place in the
/// connection limit back; the system's default is two hours.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_COUNT: u32 = 6;
/// Backlog of clients waiting to be accepted, as in std.
const BACKLOG: i32 = 128;

/// Where an NBD server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// A unix stream socket.
    Unix(PathBuf),
    /// A TCP port; port 0 takes a free one.
    Tcp(SocketAddr),
}

impl Listen {
    /// Parses `unix:PATH`, `HOST:PORT`, `[IPV6]:PORT`, or `:PORT`, which is on 127.0.0.1.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] which names the expected forms.
    pub fn parse(text: &str) -> Result<Self> {
        let invalid = |why: &str| {
            let text = format!("cannot listen on '{text}': {why}; write unix:PATH, HOST:PORT or :PORT");
            Error::new(ErrorKind::Invalid, text)
        };
        if let Some(path) = text.strip_prefix("unix:") {
            if path.is_empty() {
                return Err(invalid("the path is empty"));
            }
            return Ok(Self::Unix(PathBuf::from(path)));
        }
        let Some((host, port)) = text.rsplit_once(':') else { return Err(invalid("there is no port")) };
        let port: u16 = port.parse().map_err(|_| invalid("the port is not a number up to 65535"))?;
        let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        let host = if host.is_empty() { "127.0.0.1" } else { host };
        let mut found = (host, port).to_socket_addrs().map_err(|_| invalid("unknown host"))?;
        found.next().map(Self::Tcp).ok_or_else(|| invalid("the host has no address"))
    }

    /// Whether only processes of this machine can connect.
    pub fn is_loopback(&self) -> bool {
        match self {
            Self::Unix(_) => true,
            Self::Tcp(address) => address.ip().to_canonical().is_loopback(),
        }
    }

    /// Whether a listener at the other address keeps this one from being bound: each address of a
    /// port excludes that of all interfaces.
    fn excludes(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Tcp(own), Self::Tcp(other)) => {
                let is_any = own.ip().is_unspecified() || other.ip().is_unspecified();
                own.port() == other.port() && (is_any || own.ip() == other.ip())
            }
            _ => false,
        }
    }

    /// The same as [`uri`](Self::uri), for clients that speak TLS.
    pub fn tls_uri(&self, export: &str) -> String {
        let uri = self.uri(export);
        format!("nbds{}", uri.strip_prefix("nbd").unwrap_or(&uri))
    }

    /// The address as an NBD URI, for clients such as nbdinfo, qemu-img and fio; `export` may be
    /// empty.
    pub fn uri(&self, export: &str) -> String {
        let export = escape(export.as_bytes(), b"-._~");
        match self {
            Self::Unix(path) => {
                let path = escape(path.as_os_str().as_encoded_bytes(), b"-._~/");
                format!("nbd+unix:///{export}?socket={path}")
            }
            Self::Tcp(address) => format!("nbd://{address}/{export}"),
        }
    }
}

/// Percent-encodes all but letters, digits and `plain`.
fn escape(bytes: &[u8], plain: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || plain.contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

impl FromStr for Listen {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text)
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => write!(f, "{address}"),
        }
    }
}

/// Most bytes of a socket's path, the terminating zero not counted (`sun_path` of unix(7)).
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// A bound, listening, non-blocking socket.
pub struct Listener {
    socket: OwnedFd,
    /// The address as bound: with the port that was free.
    pub address: Listen,
    /// The address that was asked for.
    pub(crate) wanted: Listen,
    /// The socket file and its (device, inode), so that no other server's file is ever removed.
    file: Option<(PathBuf, (u64, u64))>,
}

impl Listener {
    /// Binds. A socket file without a listener is replaced.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] when another server listens there, [`ErrorKind::Exists`] when the path
    /// is not a socket.
    pub fn bind(listen: &Listen) -> Result<Self> {
        Self::bind_for(listen, None)
    }

    /// The same; a socket file is accessible to its owner only, from its creation on.
    ///
    /// # Errors
    /// Those of [`bind`](Self::bind).
    pub fn bind_private(listen: &Listen) -> Result<Self> {
        Self::bind_for(listen, Some(Mode::RUSR | Mode::WUSR))
    }

    fn bind_for(listen: &Listen, mode: Option<Mode>) -> Result<Self> {
        let fail = |error: std::io::Error| {
            let what = format!("cannot listen on {listen}");
            match error.kind() {
                std::io::ErrorKind::AddrInUse => Error::with_source(
                    ErrorKind::InUse,
                    format!("{what}; choose another address, or stop the process that uses it"),
                    error,
                ),
                std::io::ErrorKind::InvalidInput | std::io::ErrorKind::AddrNotAvailable => {
                    Error::with_source(ErrorKind::Invalid, what, error)
                }
                std::io::ErrorKind::NotFound => {
                    Error::with_source(ErrorKind::NotFound, format!("{what}; create its directory first"), error)
                }
                _ => Error::from_io(what, error),
            }
        };
        match listen {
            Listen::Tcp(address) => {
                let listener = TcpListener::bind(address).map_err(fail)?;
                listener.set_nonblocking(true).map_err(fail)?;
                let address = Listen::Tcp(listener.local_addr().map_err(fail)?);
                Ok(Self { socket: listener.into(), address, wanted: listen.clone(), file: None })
            }
            Listen::Unix(path) => {
                let bytes = path.as_os_str().len();
                if bytes > SOCKET_PATH_BYTES_MAX {
                    let message = format!(
                        "cannot listen on {listen}: a socket path has at most {SOCKET_PATH_BYTES_MAX} bytes, this one has {bytes}; \
                         choose a shorter one"
                    );
                    return Err(Error::new(ErrorKind::Invalid, message));
                }
                remove_stale(path)?;
                let listener = bind_file(path, mode).map_err(fail)?;
                listener.set_nonblocking(true).map_err(fail)?;
                let metadata = std::fs::symlink_metadata(path).map_err(fail)?;
                let file = Some((path.clone(), (metadata.dev(), metadata.ino())));
                Ok(Self { socket: listener.into(), address: listen.clone(), wanted: listen.clone(), file })
            }
        }
    }

    /// Binds the addresses of `listen` that have no listener, and closes the listeners of others.
    /// Returns the addresses of these.
    ///
    /// # Errors
    /// Those of [`bind`](Self::bind); the listeners are as before.
    pub(crate) fn change(listeners: &mut Vec<Self>, listen: &[Listen]) -> Result<Vec<Listen>> {
        let is_there = |wanted: &&Listen| listeners.iter().any(|listener| listener.wanted == **wanted);
        let missing: Vec<_> = listen.iter().filter(|wanted| !is_there(wanted)).collect();
        let is_wanted = |listener: &Self| listen.contains(&listener.wanted);
        let is_in_the_way = |listener: &Self| missing.iter().any(|wanted| wanted.excludes(&listener.address));
        let closed = listeners.extract_if(.., |listener| !is_wanted(listener) && is_in_the_way(listener));
        let closed: Vec<_> = closed.map(|listener| (listener.address.clone(), listener.wanted.clone())).collect();
        match missing.into_iter().map(Self::bind).collect::<Result<Vec<_>>>() {
            Ok(added) => {
                let gone = listeners.extract_if(.., |listener| !is_wanted(listener));
                let gone: Vec<_> = gone.map(|listener| listener.address.clone()).collect();
                listeners.extend(added);
                Ok(closed.into_iter().map(|(address, _)| address).chain(gone).collect())
            }
            Err(error) => {
                for (address, wanted) in closed {
                    let lost = |lost: Error| Error::new(lost.kind(), format!("{error}; and afterwards: {lost}"));
                    let mut listener = Self::bind(&address).map_err(lost)?;
                    listener.wanted = wanted;
                    listeners.push(listener);
                }
                Err(error)
            }
        }
    }

    /// Takes a client that waits, if any: a blocking socket without delays, which notices when the
    /// other end vanishes.
    pub fn accept(&self) -> rustix::io::Result<OwnedFd> {
        let socket = rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC)?;
        if matches!(self.address, Listen::Tcp(_)) {
            sockopt::set_tcp_nodelay(&socket, true)?;
            sockopt::set_socket_keepalive(&socket, true)?;
            sockopt::set_tcp_keepidle(&socket, KEEPALIVE_IDLE)?;
            sockopt::set_tcp_keepintvl(&socket, KEEPALIVE_INTERVAL)?;
            sockopt::set_tcp_keepcnt(&socket, KEEPALIVE_COUNT)?;
        }
        Ok(socket)
    }
}

/// Binds a socket file, which gets the socket's mode from the kernel.
fn bind_file(path: &Path, mode: Option<Mode>) -> std::io::Result<UnixListener> {
    let Some(mode) = mode else { return UnixListener::bind(path) };
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::fs::fchmod(&socket, mode)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let Some((path, id)) = self.file.take() else { return };
        if std::fs::symlink_metadata(&path).is_ok_and(|m| (m.dev(), m.ino()) == id) {
            // If it cannot be removed, the next server finds it stale and replaces it.
            let _ = std::fs::remove_file(&path);
        }
    }
}

/// Removes the socket file of a dead server.
///
/// If two servers that start at the same time both find a stale file, the slower one could remove
/// the live socket of the faster. So the file is first renamed, which only one of them can do, and
/// the renamed socket is probed again before it is removed; a live one is renamed back.
fn remove_stale(path: &Path) -> Result<()> {
    let Ok(metadata) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !metadata.file_type().is_socket() {
        let text = format!(
            "cannot listen on unix:{}: the file exists and is not a socket; choose another path",
            path.display()
        );
        return Err(Error::new(ErrorKind::Exists, text));
    }
    let in_use = || {
        let text = format!(
            "cannot listen on unix:{}: another server is using it; stop it or choose another path",
            path.display()
        );
        Error::new(ErrorKind::InUse, text)
    };
    if answers(path) {
        return Err(in_use());
    }
    let mut aside = path.as_os_str().to_owned();
    aside.push(format!(".{}", std::process::id()));
    let aside = PathBuf::from(aside);
    let fail = |error| Error::from_io(format!("cannot replace the stale socket {}", path.display()), error);
    match std::fs::rename(path, &aside) {
        Ok(()) => {}
        // Another server was faster; bind reports the current state.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(fail(error)),
    }
    if answers(&aside) {
        // Without replacing: if a third server exists by now, the live one stays reachable under
        // the temporary name.
        let _ = renameat_with(CWD, &aside, CWD, path, RenameFlags::NOREPLACE);
        return Err(in_use());
    }
    std::fs::remove_file(&aside).map_err(fail)
}

/// Whether a server listens on a socket file. Anything but a clear refusal counts as an answer: a
/// full backlog or a missing permission is no licence to take the path away.
fn answers(path: &Path) -> bool {
    match UnixStream::connect(path) {
        Ok(_) => true,
        Err(error) => !matches!(error.kind(), std::io::ErrorKind::ConnectionRefused | std::io::ErrorKind::NotFound),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_what_users_write_and_shows_it_again() {
        for (text, shown, loopback) in [
            ("unix:/run/a b.sock", "unix:/run/a b.sock", true),
            (":10809", "127.0.0.1:10809", true),
            ("0.0.0.0:1", "0.0.0.0:1", false),
            ("127.0.0.9:1", "127.0.0.9:1", true),
            ("[::1]:0", "[::1]:0", true),
            ("[::]:65535", "[::]:65535", false),
            ("[::ffff:127.0.0.1]:9", "[::ffff:127.0.0.1]:9", true),
        ] {
            let listen = Listen::parse(text).unwrap();
            assert_eq!((listen.to_string().as_str(), listen.is_loopback()), (shown, loopback), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_no_address() {
        for text in ["", "unix:", "10809", "localhost", "host:", "127.0.0.1:65536", "127.0.0.1:x", "999.1.1.1:5"] {
            let error = Listen::parse(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains(text), "{error}");
        }
    }

    #[test]
    fn uris_are_escaped() {
        let unix = Listen::parse("unix:/tmp/a b&c.sock").unwrap();
        assert_eq!(unix.uri("v?1"), "nbd+unix:///v%3F1?socket=/tmp/a%20b%26c.sock");
        assert_eq!(Listen::parse(":7").unwrap().uri(""), "nbd://127.0.0.1:7/");
        assert_eq!(unix.tls_uri("v"), "nbds+unix:///v?socket=/tmp/a%20b%26c.sock");
        assert_eq!(Listen::parse(":7").unwrap().tls_uri("v"), "nbds://127.0.0.1:7/v");
    }
}
