//! The command's end of the control socket.

use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use surface::{Error, ErrorKind, Result, Run};

use super::bulk::{self, Frame, Operation};
use super::lent;
use super::streams::{RemoteSink, RemoteSource};
use super::trees::RemoteTree;
use crate::pool_dir::short_socket_path;
use copy::volume_io::{FileCopier, VolumeIo};
use host::read_vec;
use operations::{Created, ImportWish, ReceiveWish, SendWish};
use operations::{Reply, Request, Which, decode_reply, encode_request, read_line};

/// A connection to the server of a pool, for one request at a time. There is no timeout, because a
/// checkpoint or a resize may take arbitrarily long, and a server that dies closes the connection.
pub struct Client {
    socket: PathBuf,
    stream: Mutex<BufReader<UnixStream>>,
}

/// Timeout for the server's greeting, which does not involve the pool; a stopped process never
/// sends it.
const HELLO_PATIENCE: Duration = Duration::from_secs(5);

pub(super) fn gone(error: std::io::Error) -> Error {
    Error::with_source(ErrorKind::Io, "the pool's server ended during the command", error)
}

fn ended() -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::UnexpectedEof, "the connection was closed")
}

/// Reason why there is no connection to a server.
#[derive(Debug)]
pub enum Unreached {
    /// Nothing answers.
    Silent(Error),
    /// A server answers, but refuses the connection, or has another version.
    Refused(Error),
    /// This user may not connect to its socket.
    Forbidden(Error),
}

impl Unreached {
    fn into_error(self) -> Error {
        match self {
            Self::Silent(error) | Self::Refused(error) | Self::Forbidden(error) => error,
        }
    }

    /// Why there is no connection to a socket.
    fn by(error: std::io::Error, socket: &Path) -> Self {
        if error.kind() != std::io::ErrorKind::PermissionDenied {
            return Self::Silent(Error::with_source(ErrorKind::InUse, "its control socket does not answer", error));
        }
        let owner = std::fs::metadata(socket).map_or(0, |found| found.uid());
        let users = if owner == 0 { "root" } else { &format!("root and user {owner}, who started the server,") };
        let text = format!("only {users} may use the server's control socket {}: use sudo", socket.display());
        Self::Forbidden(Error::with_source(ErrorKind::Io, text, error))
    }
}

impl Client {
    /// Connects to the socket, and waits for the server's greeting.
    ///
    /// # Errors
    /// `InUse` when no server answers within [`HELLO_PATIENCE`], `Unsupported` when the server has
    /// another version, `Io` when this user may not connect.
    pub fn connect(socket: &Path) -> Result<Self> {
        Self::reach(socket).map_err(Unreached::into_error)
    }

    /// The same, but distinguishes a refusal of the server from its silence.
    ///
    /// # Errors
    /// Those of [`connect`](Self::connect).
    pub fn reach(socket: &Path) -> std::result::Result<Self, Unreached> {
        let failed = |error| Unreached::by(error, socket);
        let short = short_socket_path(socket).map_err(failed)?;
        let stream = UnixStream::connect(short.path()).map_err(failed)?;
        stream.set_read_timeout(Some(HELLO_PATIENCE)).map_err(failed)?;
        let client = Self { socket: socket.to_owned(), stream: Mutex::new(BufReader::new(stream)) };
        client.call(&Request::Hello).map_err(|error| match error.kind() {
            ErrorKind::Io => {
                let patience = HELLO_PATIENCE.as_secs();
                let text = format!("its control socket does not answer within {patience} s");
                Unreached::Silent(Error::new(ErrorKind::InUse, text))
            }
            _ => Unreached::Refused(error),
        })?;
        client.stream.lock().get_ref().set_read_timeout(None).map_err(failed)?;
        Ok(client)
    }

    /// Sends a request and waits for the reply.
    ///
    /// # Errors
    /// Those of the server, or that it closed the connection.
    pub fn call(&self, request: &Request) -> Result<Reply> {
        let line = encode_request(request)?;
        let mut stream = self.stream.lock();
        let written = stream.get_mut().write_all(&line);
        // Even if the request cannot be written: a server that refuses a connection sends its
        // reason before it closes it.
        match (read_line(&mut *stream), written) {
            (Ok(Some(reply)), _) => decode_reply(&reply),
            (_, Err(error)) | (Err(error), Ok(())) => Err(gone(error)),
            (Ok(None), Ok(())) => Err(gone(ended())),
        }
    }

    /// Begins to send, over a connection of its own.
    ///
    /// # Errors
    /// Those of the server.
    pub fn send(&self, wish: &SendWish) -> Result<RemoteSource> {
        let client = Self::connect(&self.socket)?;
        match client.call(&Request::Send(wish.clone()))? {
            // The buffered reader may already hold bytes after the line.
            Reply::Sending(about) => Ok(RemoteSource { stream: client.stream.into_inner(), about }),
            other => Err(other.unexpected()),
        }
    }

    /// Begins to receive, over a connection of its own.
    ///
    /// # Errors
    /// Those of the server.
    pub fn receive(&self, wish: ReceiveWish) -> Result<RemoteSink> {
        let client = Self::connect(&self.socket)?;
        match client.call(&Request::Receive(wish))? {
            Reply::Done => Ok(RemoteSink { stream: client.stream.into_inner().into_inner() }),
            other => Err(other.unexpected()),
        }
    }

    /// Creates a share and begins to import its tree, over a connection of its own.
    ///
    /// # Errors
    /// Those of the server.
    pub fn import_tree(&self, wish: ImportWish) -> Result<(Created, RemoteTree)> {
        let client = Self::connect(&self.socket)?;
        match client.call(&Request::ImportTree(wish))? {
            // The server sends nothing unasked, so the line reader holds no more bytes.
            Reply::Created(created) => Ok((created, RemoteTree { stream: client.stream.into_inner().into_inner() })),
            other => Err(other.unexpected()),
        }
    }

    /// Opens a volume for bulk data, by its number, or else by its current name.
    ///
    /// # Errors
    /// Those of the server: the volume does not exist, or there are too many connections.
    pub fn volume(&self, name: &str, id: Option<u64>) -> Result<RemoteVolume> {
        let (first, id) = bulk_connection(&self.socket, name, id)?;
        let idle = Mutex::new(vec![first]);
        Ok(RemoteVolume { socket: self.socket.clone(), name: name.to_owned(), id, file: None, idle })
    }
}

/// Opens a connection for bulk data; returns it with the number of its volume.
fn bulk_connection(socket: &Path, name: &str, id: Option<u64>) -> Result<(UnixStream, u64)> {
    let client = Client::connect(socket)?;
    match client.call(&Request::Bulk { object: Which::known(name, id) })? {
        // The server sends nothing unasked, so the line reader holds no bytes of the frames.
        Reply::Bulk { id } => Ok((client.stream.into_inner().into_inner(), id)),
        other => Err(other.unexpected()),
    }
}

/// A volume reached over the control socket. Keeps one connection for each concurrent call, so at
/// most as many as the caller has threads.
pub struct RemoteVolume {
    socket: PathBuf,
    name: String,
    /// All connections are for this volume, even if it is renamed and another gets its name.
    id: u64,
    /// File that each connection copies from and to.
    file: Option<File>,
    idle: Mutex<Vec<UnixStream>>,
}

impl RemoteVolume {
    fn connect(&self) -> Result<UnixStream> {
        let (mut stream, _) = bulk_connection(&self.socket, &self.name, Some(self.id))?;
        if let Some(file) = &self.file {
            stream.write_all(&frame(Operation::Lend, 0, 0).encode()).map_err(gone)?;
            lent::pass(&stream, file).map_err(gone)?;
            Self::take_reply(&mut stream, Self::take_nothing).map_err(gone)??;
        }
        Ok(stream)
    }

    /// Sends one frame and receives its reply. A connection that failed is not reused.
    fn exchange<T>(
        &self,
        frame: Frame,
        data: &[u8],
        take: impl FnOnce(&mut UnixStream, usize) -> std::io::Result<T>,
    ) -> Result<T> {
        let idle = self.idle.lock().pop();
        let mut stream = match idle {
            Some(stream) => stream,
            None => self.connect()?,
        };
        stream.write_all(&frame.encode()).map_err(gone)?;
        stream.write_all(data).map_err(gone)?;
        let result = Self::take_reply(&mut stream, take).map_err(gone)?;
        self.idle.lock().push(stream);
        result
    }

    /// Receives a reply: the outer error is that of the connection, the inner one that of the
    /// server.
    fn take_reply<T>(
        stream: &mut UnixStream,
        take: impl FnOnce(&mut UnixStream, usize) -> std::io::Result<T>,
    ) -> std::io::Result<Result<T>> {
        let (ok, length) = bulk::read_reply_head(stream)?;
        if ok { take(stream, length).map(Ok) } else { Ok(Err(bulk::decode_error(&read_vec(&*stream, length)?))) }
    }

    fn take_nothing(_: &mut UnixStream, length: usize) -> std::io::Result<()> {
        Self::expect_length(length, 0)
    }

    fn expect_length(length: usize, expected: usize) -> std::io::Result<()> {
        if length == expected {
            return Ok(());
        }
        let message = format!("a bulk reply has {length} bytes instead of {expected}");
        Err(std::io::Error::new(std::io::ErrorKind::InvalidData, message))
    }
}

const fn frame(operation: Operation, offset: u64, length: u64) -> Frame {
    Frame { operation, runs_max: 0, offset, length }
}

impl VolumeIo for RemoteVolume {
    fn size_bytes(&self) -> Result<u64> {
        self.exchange(frame(Operation::Size, 0, 0), &[], |stream, length| {
            let mut size = [0; 8];
            Self::expect_length(length, size.len())?;
            stream.read_exact(&mut size)?;
            Ok(u64::from_le_bytes(size))
        })
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.exchange(frame(Operation::Read, offset, buf.len() as u64), &[], |stream, length| {
            Self::expect_length(length, buf.len())?;
            stream.read_exact(buf)
        })
    }

    fn write(&self, offset: u64, data: Bytes) -> Result<()> {
        self.exchange(frame(Operation::Write, offset, data.len() as u64), &data, Self::take_nothing)
    }

    fn discard(&self, offset: u64, length: u64) -> Result<()> {
        self.exchange(frame(Operation::Discard, offset, length), &[], Self::take_nothing)
    }

    fn allocation(&self, offset: u64, length: u64, runs_max: u32) -> Result<Vec<Run>> {
        let frame = Frame { operation: Operation::Allocation, runs_max: runs_max.min(bulk::RUNS_MAX), offset, length };
        let payload = self.exchange(frame, &[], |stream, length| read_vec(&*stream, length))?;
        Ok(bulk::decode_runs(&payload))
    }

    fn flush(&self) -> Result<()> {
        self.exchange(frame(Operation::Flush, 0, 0), &[], Self::take_nothing)
    }

    fn with_file(&self, file: &File) -> Result<Option<Box<dyn FileCopier>>> {
        if lent::is_on_fuse(file)? {
            return Ok(None);
        }
        let file = file.try_clone().map_err(|error| Error::from_io("cannot pass the file to the server", error))?;
        let (socket, name) = (self.socket.clone(), self.name.clone());
        let volume = Self { socket, name, id: self.id, file: Some(file), idle: Mutex::default() };
        // At once, so that a server that takes no files reports it before anything is copied.
        let first = volume.connect()?;
        volume.idle.lock().push(first);
        Ok(Some(Box::new(volume)))
    }
}

impl FileCopier for RemoteVolume {
    fn copy_out(&self, offset: u64, length: u64) -> Result<()> {
        self.exchange(frame(Operation::CopyOut, offset, length), &[], Self::take_nothing)
    }

    fn copy_in(&self, offset: u64, length: u64) -> Result<()> {
        self.exchange(frame(Operation::CopyIn, offset, length), &[], Self::take_nothing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It was said not to answer, and the user was told to stop it.
    #[test]
    fn a_socket_of_another_user_is_not_silent() {
        let dir = testkit::TempDir::new("forbidden");
        let socket = dir.path().join("control.sock");
        let by = |kind: std::io::ErrorKind| Unreached::by(std::io::Error::from(kind), &socket);
        assert!(matches!(by(std::io::ErrorKind::ConnectionRefused), Unreached::Silent(_)));
        let forbidden = by(std::io::ErrorKind::PermissionDenied);
        assert!(matches!(forbidden, Unreached::Forbidden(_)));
        let error = forbidden.into_error();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().starts_with("only root may use the server's control socket"), "{error}");
        std::fs::write(&socket, "").unwrap();
        let error = by(std::io::ErrorKind::PermissionDenied).into_error();
        let own = rustix::process::geteuid();
        let users = if own.is_root() { "only root may".to_owned() } else { format!("user {},", own.as_raw()) };
        assert!(error.to_string().contains(&users), "{error}");
    }
}
