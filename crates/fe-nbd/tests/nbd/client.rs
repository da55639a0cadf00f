//! A client with full control over its messages, including invalid ones, and a server to talk to.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;

use fe_nbd::wire::request::RequestHeader;
use fe_nbd::wire::{self, option, option_reply};
use fe_nbd::{Listen, Log, Server, ServerOptions};
use parking_lot::{Condvar, Mutex};
use rustls::{ClientConnection, StreamOwned};
use testkit::{Memory, PATIENCE, TempDir};

use crate::clients::{Clients, Devices};

/// The server's log lines, to wait for.
#[derive(Default)]
pub struct Lines {
    lines: Mutex<Vec<String>>,
    change: Condvar,
}

impl Lines {
    /// A log that adds lines.
    pub fn log(self: &Arc<Self>) -> Log {
        let lines = Arc::clone(self);
        Arc::new(move |line: &str| {
            lines.lines.lock().push(line.to_owned());
            lines.change.notify_all();
        })
    }

    /// Waits for a line that contains `text`.
    pub fn wait_for(&self, text: &str) {
        self.wait_for_many(text, 1);
    }

    /// Waits for `count` lines that contain `text`.
    pub fn wait_for_many(&self, text: &str, count: usize) {
        let mut lines = self.lines.lock();
        while lines.iter().filter(|l| l.contains(text)).count() < count {
            assert!(!self.change.wait_for(&mut lines, PATIENCE).timed_out(), "no line with '{text}' in {lines:?}");
        }
    }
}

/// A server on a unix socket and on TCP.
pub struct Setup {
    pub server: Option<Server>,
    pub socket: PathBuf,
    pub lines: Arc<Lines>,
    pub scratch: TempDir,
    /// The clients that have a device open.
    pub clients: Arc<Clients>,
}

impl Setup {
    pub fn new(devices: &[(&str, &Arc<Memory>)]) -> Self {
        Self::with(devices, ServerOptions::default())
    }

    pub fn with(devices: &[(&str, &Arc<Memory>)], options: ServerOptions) -> Self {
        Self::logging(devices, options, Arc::default())
    }

    pub fn logging(devices: &[(&str, &Arc<Memory>)], mut options: ServerOptions, lines: Arc<Lines>) -> Self {
        let scratch = TempDir::new("nbd");
        let socket = scratch.join("nbd.sock");
        let listen = [Listen::Unix(socket.clone()), Listen::parse(":0").unwrap()];
        options.log = Some(lines.log());
        // The usual limits are for users' machines; some test machines stall for a minute.
        let usual = ServerOptions::default();
        for (limit, usual) in [
            (&mut options.handshake_max, usual.handshake_max),
            (&mut options.stall_max, usual.stall_max),
            (&mut options.stop_grace, usual.stop_grace),
        ] {
            if *limit == usual {
                *limit = PATIENCE;
            }
        }
        let clients = Arc::new(Clients::default());
        let devices = Devices::of(devices, Arc::clone(&clients));
        let server = Server::start(devices, &listen, options).unwrap();
        Self { server: Some(server), socket, lines, scratch, clients }
    }

    pub fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    pub fn uri(&self, export: &str) -> String {
        self.server().local_addresses()[0].uri(export)
    }

    /// A connection that has sent nothing.
    pub fn raw(&self) -> Client {
        Client::unix(UnixStream::connect(&self.socket).unwrap())
    }

    pub fn raw_tcp(&self) -> Client {
        let Listen::Tcp(address) = &self.server().local_addresses()[1] else { panic!("not TCP") };
        Client::tcp(TcpStream::connect(address).unwrap())
    }

    /// A connection in the option phase.
    pub fn options(&self) -> Client {
        let mut client = self.raw();
        client.greet(3);
        client
    }

    /// A connection in transmission, with simple replies.
    pub fn simple(&self, export: &str) -> Client {
        let mut client = self.options();
        client.go(export);
        client
    }

    /// A connection in transmission, with structured replies and `base:allocation`.
    pub fn structured(&self, export: &str) -> Client {
        let mut client = self.options();
        client.negotiate_structured();
        let replies = client.option(option::SET_META_CONTEXT, &meta(export, &["base:allocation"]));
        assert_eq!(replies.len(), 2);
        client.go(export);
        client
    }
}

enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

trait Bytes: Read + Write {}
impl<T: Read + Write> Bytes for T {}

impl Stream {
    fn bytes(&mut self) -> &mut dyn Bytes {
        match self {
            Self::Unix(stream) => stream,
            Self::Tcp(stream) => stream,
            Self::Tls(stream) => stream,
        }
    }
}

pub struct Client {
    stream: Stream,
    pub structured: bool,
    next_cookie: u64,
}

/// An answer of the transmission phase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Ok(Vec<u8>),
    /// (length, status)
    Extents(Vec<(u32, u32)>),
    Error(u32, String),
}

impl Answer {
    pub fn errno(&self) -> u32 {
        match self {
            Self::Error(errno, _) => *errno,
            other => panic!("{other:?} is no error"),
        }
    }
}

/// Data of a metadata context option.
pub fn meta(export: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = string(export.as_bytes());
    data.extend((queries.len() as u32).to_be_bytes());
    queries.iter().for_each(|q| data.extend(string(q.as_bytes())));
    data
}

/// Data of INFO and GO.
pub fn info(export: &[u8], wanted: &[u16]) -> Vec<u8> {
    let mut data = string(export);
    data.extend((wanted.len() as u16).to_be_bytes());
    wanted.iter().for_each(|w| data.extend(w.to_be_bytes()));
    data
}

pub fn string(bytes: &[u8]) -> Vec<u8> {
    let mut data = (bytes.len() as u32).to_be_bytes().to_vec();
    data.extend(bytes);
    data
}

impl Client {
    pub fn tcp(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream: Stream::Tcp(stream), structured: false, next_cookie: 1 }
    }

    pub fn unix(stream: UnixStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self { stream: Stream::Unix(stream), structured: false, next_cookie: 1 }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.try_send(bytes).unwrap();
    }

    pub fn try_send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        let stream = self.stream.bytes();
        stream.write_all(bytes)?;
        stream.flush()
    }

    pub fn receive(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.stream.bytes().read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Whether something can be received without waiting.
    pub fn has_received(&mut self) -> bool {
        let Stream::Unix(stream) = &mut self.stream else { panic!("not a Unix socket") };
        stream.set_nonblocking(true).unwrap();
        let received = stream.read(&mut [0]);
        stream.set_nonblocking(false).unwrap();
        received.is_ok()
    }

    fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.receive(2).try_into().unwrap())
    }
    pub fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.receive(4).try_into().unwrap())
    }
    pub fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.receive(8).try_into().unwrap())
    }

    /// Expects the server to close without sending more.
    pub fn expect_close(mut self) {
        let mut rest = Vec::new();
        let ended = self.stream.bytes().read_to_end(&mut rest);
        // A TCP client gets a reset if it sent more than was read.
        assert!(ended.is_ok() || ended.unwrap_err().kind() == std::io::ErrorKind::ConnectionReset);
        assert!(rest.is_empty(), "bytes before the close: {rest:?}");
    }

    pub fn shutdown_write(&self) {
        match &self.stream {
            Stream::Unix(s) => s.shutdown(std::net::Shutdown::Write).unwrap(),
            Stream::Tcp(s) => s.shutdown(std::net::Shutdown::Write).unwrap(),
            Stream::Tls(s) => s.sock.shutdown(std::net::Shutdown::Write).unwrap(),
        }
    }

    /// The TCP socket, without what was made of it.
    pub fn into_tcp(self) -> TcpStream {
        let Stream::Tcp(stream) = self.stream else { panic!("not TCP without TLS") };
        stream
    }

    /// Holds the handshake of TLS, after the server has agreed to it. The error is that of the
    /// client, which in TLS 1.3 does not learn yet whether its certificate is accepted.
    pub fn encrypt(self, mut keys: ClientConnection) -> std::io::Result<Self> {
        let next_cookie = self.next_cookie;
        let mut socket = self.into_tcp();
        while keys.is_handshaking() {
            keys.complete_io(&mut socket)?;
        }
        let stream = Stream::Tls(Box::new(StreamOwned::new(keys, socket)));
        Ok(Self { stream, structured: false, next_cookie })
    }

    /// Expects a server that says goodbye by the rules of TLS.
    pub fn expect_goodbye(mut self) {
        assert!(matches!(self.stream, Stream::Tls(_)));
        let mut rest = Vec::new();
        self.stream.bytes().read_to_end(&mut rest).unwrap();
        assert!(rest.is_empty(), "bytes before the goodbye: {rest:?}");
    }

    pub fn greet(&mut self, flags: u32) {
        assert_eq!(self.u64(), wire::MAGIC);
        assert_eq!(self.u64(), wire::OPTION_MAGIC);
        assert_eq!(self.u16(), 3);
        self.send(&flags.to_be_bytes());
    }

    pub fn send_option(&mut self, option: u32, data: &[u8]) {
        let mut bytes = wire::OPTION_MAGIC.to_be_bytes().to_vec();
        bytes.extend(option.to_be_bytes());
        bytes.extend((data.len() as u32).to_be_bytes());
        bytes.extend(data);
        self.send(&bytes);
    }

    /// Replies up to the ACK or the error: (type, data).
    pub fn option_replies(&mut self, option: u32) -> Vec<(u32, Vec<u8>)> {
        let mut replies = Vec::new();
        loop {
            assert_eq!(self.u64(), wire::OPTION_REPLY_MAGIC);
            assert_eq!(self.u32(), option);
            let (kind, length) = (self.u32(), self.u32());
            let data = self.receive(length as usize);
            replies.push((kind, data));
            if kind == option_reply::ACK || kind >> 31 == 1 {
                return replies;
            }
        }
    }

    pub fn option(&mut self, option: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.send_option(option, data);
        self.option_replies(option)
    }

    /// Sends an option without data, and receives the start of its reply.
    pub fn try_option(&mut self, option: u32) -> std::io::Result<()> {
        let bytes = [&wire::OPTION_MAGIC.to_be_bytes()[..], &option.to_be_bytes(), &[0; 4]].concat();
        self.try_send(&bytes)?;
        self.stream.bytes().read_exact(&mut [0; 20])
    }

    /// The option is refused with this type of error.
    pub fn refused(&mut self, option: u32, data: &[u8], kind: u32) -> String {
        let replies = self.option(option, data);
        assert_eq!(replies.len(), 1, "{replies:?}");
        assert_eq!(replies[0].0, kind, "{:x?}", replies[0].0);
        String::from_utf8(replies[0].1.clone()).unwrap()
    }

    pub fn negotiate_structured(&mut self) {
        assert_eq!(self.option(option::STRUCTURED_REPLY, &[]), [(option_reply::ACK, vec![])]);
        self.structured = true;
    }

    /// Enters transmission; returns (size, flags).
    pub fn go(&mut self, export: &str) -> (u64, u16) {
        let replies = self.option(option::GO, &info(export.as_bytes(), &[]));
        assert_eq!(replies.last().unwrap().0, option_reply::ACK, "{replies:?}");
        export_info(&replies)
    }

    /// Sends a request; returns its cookie.
    pub fn request(&mut self, command: u16, flags: u16, offset: u64, length: u32, payload: &[u8]) -> u64 {
        let (bytes, cookie) = self.encode(command, flags, offset, length, payload);
        self.send(&bytes);
        cookie
    }

    pub fn encode(&mut self, command: u16, flags: u16, offset: u64, length: u32, payload: &[u8]) -> (Vec<u8>, u64) {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        let mut bytes = RequestHeader { flags, command, cookie, offset, length: length.into() }.encode(false);
        bytes.extend(payload);
        (bytes, cookie)
    }

    /// The next reply, for any request. `lengths`: lengths of the reads, by cookie; simple replies
    /// do not contain them.
    pub fn answer(&mut self, lengths: &HashMap<u64, (u64, u32)>) -> (u64, Answer) {
        let magic = self.u32();
        if magic == wire::SIMPLE_REPLY_MAGIC {
            let (errno, cookie) = (self.u32(), self.u64());
            let read = lengths.get(&cookie);
            assert!(!(self.structured && read.is_some()), "a simple reply to a read in a structured session");
            if errno != 0 {
                return (cookie, Answer::Error(errno, String::new()));
            }
            let data = self.receive(read.map_or(0, |(_, length)| *length as usize));
            return (cookie, Answer::Ok(data));
        }
        assert_eq!(magic, wire::STRUCTURED_REPLY_MAGIC);
        assert!(self.structured);
        let (flags, kind, cookie, length) = (self.u16(), self.u16(), self.u64(), self.u32());
        assert_eq!(flags, wire::REPLY_FLAG_DONE);
        let answer = match kind {
            wire::reply_type::NONE => Answer::Ok(self.receive(length as usize)),
            wire::reply_type::OFFSET_DATA => {
                let (offset, asked) = lengths[&cookie];
                assert_eq!(self.u64(), offset);
                assert_eq!(length, asked + 8);
                Answer::Ok(self.receive(asked as usize))
            }
            wire::reply_type::BLOCK_STATUS => {
                assert_eq!(self.u32(), wire::CONTEXT_ALLOCATION_ID);
                assert!(length > 4 && (length - 4) % 8 == 0);
                Answer::Extents((0..(length - 4) / 8).map(|_| (self.u32(), self.u32())).collect())
            }
            wire::reply_type::ERROR => {
                let errno = self.u32();
                let text = usize::from(self.u16());
                assert_eq!(length as usize, 6 + text);
                Answer::Error(errno, String::from_utf8(self.receive(text)).unwrap())
            }
            other => panic!("chunk of type {other}"),
        };
        (cookie, answer)
    }

    /// Sends one request and takes its answer.
    pub fn call(&mut self, command: u16, flags: u16, offset: u64, length: u32, payload: &[u8]) -> Answer {
        let cookie = self.request(command, flags, offset, length, payload);
        let mut lengths = HashMap::new();
        if command == wire::command::READ {
            lengths.insert(cookie, (offset, length));
        }
        let (answered, answer) = self.answer(&lengths);
        assert_eq!(answered, cookie);
        answer
    }

    pub fn read(&mut self, offset: u64, length: u32) -> Answer {
        self.call(wire::command::READ, 0, offset, length, &[])
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) -> Answer {
        self.call(wire::command::WRITE, 0, offset, data.len() as u32, data)
    }

    pub fn flush(&mut self) -> Answer {
        self.call(wire::command::FLUSH, 0, 0, 0, &[])
    }
}

/// Size and flags out of the replies to INFO or GO.
pub fn export_info(replies: &[(u32, Vec<u8>)]) -> (u64, u16) {
    let is_export = |(kind, data): &&(u32, Vec<u8>)| *kind == option_reply::INFO && data[..2] == [0, 0];
    let (_, data) = replies.iter().find(is_export).unwrap();
    assert_eq!(data.len(), 12);
    (u64::from_be_bytes(data[2..10].try_into().unwrap()), u16::from_be_bytes(data[10..].try_into().unwrap()))
}

/// The answer without data.
pub const DONE: Answer = Answer::Ok(Vec::new());
