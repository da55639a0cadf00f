//! The server's end of the control socket.
//!
//! One thread accepts, one thread serves each connection. Connections are bounded; each buffers one
//! line or one frame. [`ControlServer::stop`] cuts connections off while they wait for their
//! client, lets running requests finish, and returns when all threads have ended.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Result as IoResult, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fe_nbd::Shortage;
use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use surface::{BlockDevice, Error, ErrorKind, Result, WriteOptions};

use super::bulk::{self, Frame, Operation};
use super::lent;
use super::peer::Peer;
use super::streams::{serve_receive, serve_send};
use super::trees::serve_import;
use crate::jobs::Attached;
use crate::pool_dir::short_socket_path;
use crate::service::{Service, TreeImport};
use crate::stream_io::{LocalSink, LocalSource, StreamSink, StreamSource};
use host::read_vec;
use operations::path_error;
use operations::{Reply, Request, decode_request, encode_reply, read_line};

/// Maximum number of connections. An import uses about five; this allows a dozen imports, and
/// bounds memory to 64 frames of 4 MiB.
const CONNECTIONS_MAX: usize = 64;
/// File descriptors per connection where they are few: each connection uses one, and one for the
/// file that was passed along with it.
const CONNECTIONS_SHARE: u64 = 8;
const CONNECTIONS_MIN: usize = 6;

/// Pause after accepting failed for another reason than a shortage of descriptors, or when the
/// reserve was used up.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Timeout of a stopping server for clients to read their replies. A stopped client never does.
const REPLY_PATIENCE: Duration = Duration::from_secs(5);

struct Shared {
    service: Arc<Service>,
    connections_max: usize,
    stopping: AtomicBool,
    /// By connection number.
    connections: Mutex<BTreeMap<u64, Connection>>,
    /// A connection ended.
    ended: Condvar,
}

/// A live connection.
struct Connection {
    /// For cutting it off. Shared with the thread, because descriptors may be few.
    stream: Arc<UnixStream>,
    /// `None` until the thread has started, and once it was taken to be joined.
    thread: Option<JoinHandle<()>>,
}

/// A control socket that accepts connections.
pub struct ControlServer {
    socket: PathBuf,
    /// The acceptor's listener, to wake it: connecting for that is impossible once the socket is
    /// removed, or all descriptors are in use.
    listener: Arc<UnixListener>,
    shared: Arc<Shared>,
    acceptor: JoinHandle<()>,
}

impl ControlServer {
    /// Listens on `socket`. An existing socket is stale: the caller holds the pool's lock.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub fn start(socket: &Path, service: Arc<Service>) -> Result<Self> {
        let listener = Arc::new(listen(socket).map_err(|error| path_error("cannot listen on", socket, error))?);
        let shared = Arc::new(Shared {
            service,
            connections_max: env::descriptors_share(CONNECTIONS_SHARE, CONNECTIONS_MIN, CONNECTIONS_MAX),
            stopping: AtomicBool::new(false),
            connections: Mutex::default(),
            ended: Condvar::new(),
        });
        // The reserve is allocated before the server reports that it is ready.
        let for_thread = (Arc::clone(&listener), Arc::clone(&shared), Shortage::default());
        let acceptor = std::thread::Builder::new()
            .name("control".to_owned())
            .spawn(move || {
                let (listener, shared, shortage) = for_thread;
                accept(&listener, &shared, shortage);
            })
            .map_err(|error| Error::from_io("cannot start a thread for the control socket", error))?;
        Ok(Self { socket: socket.to_owned(), listener, shared, acceptor })
    }

    /// Stops listening, ends all connections, and removes the socket.
    pub fn stop(self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        // Wakes the acceptor, and refuses connections that are not accepted yet; shutting down a
        // listening socket cannot fail.
        let _ = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both);
        drop(std::fs::remove_file(&self.socket));
        if self.acceptor.join().is_err() {
            // It panicked, which was reported; nothing is left to stop.
        }
        let threads: Vec<_> = {
            let mut connections = self.shared.connections.lock();
            // Only the read half at first: a reply that is being sent still arrives.
            let cut = |connection: &mut Connection| {
                drop(connection.stream.shutdown(Shutdown::Read));
                connection.thread.take()
            };
            let threads = connections.values_mut().filter_map(cut).collect();
            let give_up = Instant::now() + REPLY_PATIENCE;
            while !connections.is_empty() && !self.shared.ended.wait_until(&mut connections, give_up).timed_out() {}
            for connection in connections.values() {
                drop(connection.stream.shutdown(Shutdown::Both));
            }
            threads
        };
        for thread in threads {
            drop(thread.join());
        }
    }
}

/// Binds under another name first, so that no client can connect before the mode is set, and
/// replaces a stale socket atomically.
fn listen(socket: &Path) -> IoResult<UnixListener> {
    let mut unready = socket.as_os_str().to_owned();
    unready.push(".new");
    let unready = PathBuf::from(unready);
    match std::fs::remove_file(&unready) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let short = short_socket_path(&unready)?;
    let listener = UnixListener::bind(short.path())?;
    std::fs::set_permissions(&unready, std::fs::Permissions::from_mode(0o600))?;
    std::fs::rename(&unready, socket)?;
    Ok(listener)
}

fn accept(listener: &UnixListener, shared: &Arc<Shared>, mut shortage: Shortage) {
    for number in 0.. {
        // While accept(2) waits it holds the number of a descriptor, which could be the reserve of
        // another door; and without one it fails at once. Any error will show in accepting.
        let _ = poll(&mut [PollFd::new(listener, PollFlags::IN)], None);
        let accepted = listener.accept();
        if shared.stopping.load(Ordering::SeqCst) {
            return;
        }
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                if shortage.begin() {
                    shared.service.log(&format!(
                        "accepting a control connection failed: {error}; commands are refused for now: close some \
                         clients, or raise the limit (ulimit -n, LimitNOFILE=)"
                    ));
                }
                let is_meant = rustix::io::Errno::from_io_error(&error).is_some_and(Shortage::is_exhaustion);
                if !is_meant || !shortage.with_reserve(|| refuse_for_want_of_descriptors(listener)) {
                    std::thread::sleep(ACCEPT_PAUSE);
                }
                continue;
            }
        };
        if let Some(refused) = shortage.end() {
            shared.service.log(&format!("control connections are accepted again; {refused} were refused meanwhile"));
        }
        if let Err(error) = admit(stream, number, shared) {
            shared.service.log(&format!("a control connection was refused: {error}"));
        }
    }
}

/// Accepts one client without waiting for it, replies that there are no descriptors, and closes the
/// connection.
fn refuse_for_want_of_descriptors(listener: &UnixListener) -> bool {
    // A client was waiting, but may be gone: this must not wait for the next one with the reserve
    // in use.
    let mut waiting = [PollFd::new(listener, PollFlags::IN)];
    if !matches!(poll(&mut waiting, Some(&Timespec::default())), Ok(1..)) {
        return false;
    }
    let Ok((stream, _)) = listener.accept() else { return false };
    let text = "the server has no file descriptors left: try again later, when clients have disconnected, or raise \
     its limit";
    // If the client does not read the line, the end of the connection informs it.
    drop(say_and_close(stream, Error::new(ErrorKind::InUse, text)));
    true
}

/// Tells a client the reason for its refusal.
fn say_and_close(stream: UnixStream, error: Error) -> Result<()> {
    let refuse = |error| Error::from_io("no connection can be served", error);
    let line = encode_reply(&Err(error))?;
    stream.set_write_timeout(Some(Duration::from_millis(100))).map_err(refuse)?;
    (&stream).write_all(&line).map_err(refuse)
}

fn admit(stream: UnixStream, number: u64, shared: &Arc<Shared>) -> Result<()> {
    let refuse = |error| Error::from_io("no connection can be served", error);
    let mut connections = shared.connections.lock();
    if connections.len() >= shared.connections_max {
        let message = format!(
            "the pool's server has {} control connections open, its maximum: try again when commands on this pool \
             have ended, or end one",
            shared.connections_max
        );
        return say_and_close(stream, Error::new(ErrorKind::InUse, message));
    }
    let stream = Arc::new(stream);
    let for_cutting = Arc::clone(&stream);
    // Inserted before the thread starts, because the thread removes its entry when it ends.
    connections.insert(number, Connection { stream: for_cutting, thread: None });
    let for_thread = Arc::clone(shared);
    let spawned = std::thread::Builder::new().name(format!("control-{number}")).spawn(move || {
        // An error ends the connection: the client disconnected or violated the protocol.
        if let Err(error) = converse(&stream, &for_thread) {
            for_thread.service.log(&format!("a control connection ended early: {error}"));
        }
        for_thread.connections.lock().remove(&number);
        for_thread.ended.notify_all();
    });
    match spawned {
        Ok(thread) => {
            if let Some(entry) = connections.get_mut(&number) {
                entry.thread = Some(thread);
            }
            Ok(())
        }
        Err(error) => {
            connections.remove(&number);
            Err(refuse(error))
        }
    }
}

/// Content of a connection after the switch from requests.
enum Agreed {
    Bulk(Arc<dyn BlockDevice>),
    Send(Box<dyn StreamSource>),
    Receive(Box<dyn StreamSink>),
    Import(Box<TreeImport>),
}

fn converse(stream: &Arc<UnixStream>, shared: &Shared) -> IoResult<()> {
    let mut reader = BufReader::new(&**stream);
    let mut writer = &**stream;
    let client = Peer::client(Arc::clone(stream));
    let caller = Peer::caller(stream)?;
    let mut attached = Attached::new(Arc::clone(&shared.service), Arc::clone(&client), caller.role);
    while let Some(line) = read_line(&mut reader)? {
        let mut agreed = None;
        let answer = |request| match request {
            Request::Bulk { object } => {
                let (id, device) = shared.service.open_volume(&object, &client)?;
                agreed = Some(Agreed::Bulk(device));
                Ok(Reply::Bulk { id })
            }
            Request::Send(wish) => {
                let source = LocalSource::new(&shared.service, &wish, &client)?;
                let about = source.about().clone();
                agreed = Some(Agreed::Send(Box::new(source)));
                Ok(Reply::Sending(about))
            }
            Request::Receive(wish) => {
                agreed = Some(Agreed::Receive(Box::new(LocalSink::new(Arc::clone(&shared.service), wish))));
                Ok(Reply::Done)
            }
            Request::ImportTree(_) => {
                let (import, reply) = shared.service.begin_import(request)?;
                agreed = Some(Agreed::Import(Box::new(import)));
                Ok(reply)
            }
            request => attached.handle(request),
        };
        let reply = decode_request(&line).and_then(|request| shared.service.guarded(&caller, request, answer));
        let line = encode_reply(&reply).or_else(|error| encode_reply(&Err(error))).map_err(std::io::Error::other)?;
        writer.write_all(&line)?;
        if let Some(agreed) = agreed {
            if !reader.buffer().is_empty() {
                let message = "a client sent bulk frames without permission";
                return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, message));
            }
            let is_stopping = || shared.stopping.load(Ordering::SeqCst) || shared.service.is_ending();
            return match agreed {
                Agreed::Bulk(device) => serve_frames(writer, &*device),
                Agreed::Send(mut source) => serve_send(writer, &mut *source, is_stopping),
                Agreed::Receive(mut sink) => serve_receive(writer, &mut *sink),
                Agreed::Import(import) => serve_import(writer, *import, is_stopping),
            };
        }
    }
    Ok(())
}

fn serve_frames(mut stream: &UnixStream, device: &dyn BlockDevice) -> IoResult<()> {
    let mut buffer = Vec::new();
    let mut file = None;
    while let Some(frame) = Frame::read(&mut stream)? {
        let result = answer(frame, stream, device, &mut file, &mut buffer)?;
        bulk::write_reply(&mut stream, result.as_ref().map(|length| &buffer[..*length]))?;
    }
    Ok(())
}

/// Executes a frame; the result is the length of the reply at the beginning of `buffer`.
fn answer(
    frame: Frame,
    stream: &UnixStream,
    device: &dyn BlockDevice,
    file: &mut Option<File>,
    buffer: &mut Vec<u8>,
) -> IoResult<Result<usize>> {
    // `Frame::decode` bounds the length of data.
    let length = usize::try_from(frame.length).unwrap_or(usize::MAX);
    Ok(match frame.operation {
        Operation::Read => {
            if buffer.len() < length {
                buffer.resize(length, 0);
            }
            device.read(frame.offset, &mut buffer[..length]).map(|()| length)
        }
        Operation::Write => {
            let data = Bytes::from(read_vec(stream, length)?);
            device.write(frame.offset, data, WriteOptions::default()).map(|()| 0)
        }
        Operation::Discard => device.discard(frame.offset, frame.length).map(|()| 0),
        Operation::Flush => device.flush().map(|()| 0),
        Operation::Allocation => {
            device.allocation(frame.offset, frame.length, frame.runs_max.max(1) as usize).map(|runs| {
                *buffer = bulk::encode_runs(&runs);
                buffer.len()
            })
        }
        Operation::Size => {
            *buffer = device.size_bytes().to_le_bytes().to_vec();
            Ok(buffer.len())
        }
        Operation::Lend => lent::take(stream)?.map(|taken| {
            *file = Some(taken);
            0
        }),
        Operation::CopyOut => lent::copy_out(device, file.as_ref(), (frame.offset, length), buffer).map(|()| 0),
        Operation::CopyIn => lent::copy_in(device, file.as_ref(), (frame.offset, length)).map(|()| 0),
    })
}
