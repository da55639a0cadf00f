//! Messages between the server and the process of the HTTP front end.
//!
//! The server starts the process with one end of a socket pair (`SOCK_SEQPACKET`) as standard
//! input, and sends one [`Setup`] over it with the descriptors that it names: the listening
//! sockets, then [`REQUEST_LINES`] stream sockets for requests, then [`EVENT_LINES`] for events.
//! Later messages replace the certificate. The process ends when the pair is closed.
//!
//! Over each stream socket goes one [`Ask`] at a time, a JSON document on a line, and one
//! [`Answer`] comes back, followed by the bytes of a [`Content`]. The server's ends are blocking,
//! the process's ends are not.

use std::io::{self, BufRead, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use operations::{Request, Which, http_status};
use report::FileVersion;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use surface::Error;

use crate::metrics::Figures;

/// Requests that the server works on at a time. More would take its CPUs from the volumes.
pub const REQUEST_LINES: usize = 8;
/// Connections for event streams, so that streams and requests do not wait for each other.
pub const EVENT_LINES: usize = 1;
/// Most listening sockets.
pub const LISTENERS_MAX: usize = 16;
/// Longest line: the longest of the control protocol, and room around it.
pub const LINE_BYTES_MAX: usize = 17 << 20;
/// Longest [`Setup`]: it has a chain of certificates.
const SETUP_BYTES_MAX: usize = 128 << 10;
const DESCRIPTORS_MAX: usize = LISTENERS_MAX + REQUEST_LINES + EVENT_LINES;

/// A certificate and its key, as PEM files have them.
#[derive(Clone, Serialize, Deserialize)]
pub struct Pem {
    /// The chain.
    pub certificates: String,
    /// The key.
    pub key: String,
}

/// A listening socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Listener {
    /// TCP.
    Tcp,
    /// A unix socket: the peer's user proves who it is.
    Unix,
}

/// Parameters of the process.
#[derive(Clone, Serialize, Deserialize)]
pub struct Setup {
    /// The listening sockets, in the order of their descriptors.
    pub listeners: Vec<Listener>,
    /// TLS on the TCP sockets.
    pub tls: Option<Pem>,
    /// Names of this machine that a `Host` may have, besides its addresses.
    pub names: Vec<String>,
    /// The version of the program.
    pub version: String,
    /// Identifier of this start of the server.
    pub boot: String,
}

/// A message of the server to the process.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// The first one.
    Begin(Setup),
    /// The certificate for new connections.
    Certificate(Pem),
}

/// Credentials of a client.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Proof {
    /// Nothing.
    None,
    /// The cookie of a session.
    Session(String),
    /// A token.
    Token(String),
    /// The process at the other end of a unix socket.
    Peer {
        /// Its user.
        uid: u32,
        /// Its number.
        pid: u32,
    },
}

/// A question.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// Whether the server answers. Needs no credentials.
    Hello,
    /// A session by user and password: [`Answer::Session`].
    LogIn {
        /// Name.
        user: String,
        /// Password.
        password: String,
    },
    /// A session by the key of the log-in link: [`Answer::Session`].
    LogInByLink {
        /// The key.
        key: String,
    },
    /// Identity and role of the client: [`Answer::Document`].
    WhoAmI,
    /// The end of the session.
    LogOut,
    /// An operation: [`Answer::Document`] or [`Answer::Done`].
    Operation(Box<Request>),
    /// The frames of a second, for an event stream: [`Answer::Document`].
    Tick {
        /// Objects whose figures are wanted.
        objects: Vec<u64>,
        /// Second of the last frames that the client has seen, to be followed by those after it.
        since: Option<u64>,
    },
    /// A part of a file of a share: [`Answer::Content`].
    Content(ContentWish),
    /// The figures of `/metrics`: [`Answer::Figures`].
    Metrics {
        /// Whether the client is on this machine.
        is_local: bool,
    },
}

/// A part of a file of a share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentWish {
    /// Share, or snapshot of one.
    pub object: Which,
    /// The file.
    pub path: String,
    /// Name of the snapshot, after the `@`.
    pub at: Option<String>,
    /// First byte.
    pub offset: u64,
    /// Limit on the bytes; 0: only the facts about the file.
    pub length: u32,
    /// Version that the file must have.
    pub version: Option<String>,
}

/// A part of a file. Its bytes follow the line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// The file.
    pub file: FileVersion,
    /// Number of the bytes.
    pub length: u32,
    /// The bytes.
    #[serde(skip)]
    pub bytes: Vec<u8>,
}

/// A question with its origin.
#[derive(Clone, Serialize, Deserialize)]
pub struct Ask {
    /// Address of the client.
    pub from: String,
    /// Its credentials.
    pub proof: Proof,
    /// The question.
    pub what: What,
}

/// A session that has begun.
#[derive(Clone, Serialize, Deserialize)]
pub struct Begun {
    /// Its id, for the cookie.
    pub id: String,
    /// Its longest life.
    pub seconds: u64,
    /// Its user and role, for the page.
    pub document: Value,
}

/// A failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// HTTP status.
    pub status: u16,
    /// Kind, as in the JSON of commands; `unauthorized` and `throttled` are HTTP's own.
    pub kind: String,
    /// The command's text.
    pub message: String,
    /// Seconds after which to try again.
    pub retry_after_s: Option<u64>,
}

impl Fault {
    /// Of an error, with the status of its kind.
    pub fn of(error: &Error) -> Self {
        let kind = error.kind();
        Self {
            status: http_status(kind),
            kind: kind.name().to_owned(),
            message: error.to_string(),
            retry_after_s: None,
        }
    }

    /// Missing or wrong credentials.
    pub fn unauthorized(message: &str) -> Self {
        Self { status: 401, kind: "unauthorized".to_owned(), message: message.to_owned(), retry_after_s: None }
    }

    /// Too many attempts to log in.
    pub fn throttled(seconds: u64) -> Self {
        let message = format!("too many attempts to log in: try again in {seconds} s");
        Self { status: 429, kind: "throttled".to_owned(), message, retry_after_s: Some(seconds) }
    }
}

/// An answer of the server.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Success without a document.
    Done,
    /// A document.
    Document {
        /// The document.
        document: Value,
        /// HTTP status.
        status: u16,
    },
    /// A part of a file.
    Content(Box<Content>),
    /// The figures.
    Figures(Box<Figures>),
    /// A session has begun.
    Session(Begun),
    /// It failed.
    Fault(Fault),
}

fn line_of(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    if line.len() >= LINE_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message is too long"));
    }
    line.push(b'\n');
    Ok(line)
}

/// The line of a question.
///
/// # Errors
/// When it is too long.
pub fn encode(ask: &Ask) -> io::Result<Vec<u8>> {
    line_of(ask)
}

/// The answer of a line.
///
/// # Errors
/// When it is none.
pub fn decode(line: &[u8]) -> io::Result<Answer> {
    Ok(serde_json::from_slice(line)?)
}

/// The server's side: reads the next question; none: the other end is closed.
///
/// # Errors
/// Of the socket, and [`io::ErrorKind::InvalidData`] for a whole line that is no question: the next
/// one can be read.
pub fn read_ask(from: &mut impl BufRead) -> io::Result<Option<Ask>> {
    read_line(from)
}

fn read_line<T: DeserializeOwned>(from: &mut impl BufRead) -> io::Result<Option<T>> {
    use std::io::Read;
    let mut line = Vec::new();
    from.by_ref().take(LINE_BYTES_MAX as u64).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    if line.last() != Some(&b'\n') {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let message = serde_json::from_slice(&line);
    message.map(Some).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// The server's side: writes an answer.
///
/// # Errors
/// Of the socket.
pub fn write_answer(to: &mut impl Write, answer: &Answer) -> io::Result<()> {
    let line = line_of(answer).or_else(|error| line_of(&Answer::Fault(too_long(&error))))?;
    to.write_all(&line)?;
    if let Answer::Content(content) = answer { to.write_all(&content.bytes) } else { Ok(()) }
}

fn too_long(error: &io::Error) -> Fault {
    Fault { status: 500, kind: "io".to_owned(), message: error.to_string(), retry_after_s: None }
}

/// Sends a message with descriptors.
///
/// # Errors
/// Of the socket, and when there is too much of it.
pub fn send_command(to: impl AsFd, command: &Command, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = serde_json::to_vec(command)?;
    if bytes.len() > SETUP_BYTES_MAX || descriptors.len() > DESCRIPTORS_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the certificates are too long"));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let flags = SendFlags::NOSIGNAL;
    rustix::io::retry_on_intr(|| rustix::net::sendmsg(&to, &[IoSlice::new(&bytes)], &mut control, flags))?;
    Ok(())
}

/// Waits for a message; none: the other end is closed.
///
/// # Errors
/// Of the socket, and for a message that is none.
pub fn receive_command(from: impl AsFd) -> io::Result<Option<(Command, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; SETUP_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(&from, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags)
    })?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    Ok(Some((serde_json::from_slice(&bytes[..received.bytes])?, descriptors)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use rustix::net::{AddressFamily, SocketFlags, SocketType};

    use super::*;

    #[test]
    fn a_setup_arrives_with_its_descriptors() {
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let (passed, kept) = UnixStream::pair().unwrap();
        let setup = Setup {
            listeners: vec![Listener::Tcp, Listener::Unix],
            tls: Some(Pem { certificates: "c".repeat(60_000), key: "k".to_owned() }),
            names: vec!["host".to_owned()],
            version: "1".to_owned(),
            boot: "b".to_owned(),
        };
        send_command(&ours, &Command::Begin(setup), &[passed.as_fd(), passed.as_fd()]).unwrap();
        drop((ours, passed));
        let Some((Command::Begin(setup), descriptors)) = receive_command(&theirs).unwrap() else { panic!("no setup") };
        assert_eq!(setup.listeners, [Listener::Tcp, Listener::Unix]);
        assert_eq!(setup.tls.unwrap().certificates.len(), 60_000);
        let [mut stream, _] = descriptors.try_into().map(|all: [OwnedFd; 2]| all.map(UnixStream::from)).unwrap();
        stream.write_all(b"x").unwrap();
        let mut byte = [0];
        io::Read::read_exact(&mut &kept, &mut byte).unwrap();
        assert_eq!(byte, *b"x");
        assert!(receive_command(&theirs).unwrap().is_none(), "the other end is closed");
    }

    #[test]
    fn questions_and_answers_round_trip() {
        let what = What::LogIn { user: "anna".to_owned(), password: "a\nb".to_owned() };
        let line = encode(&Ask { from: "::1".to_owned(), proof: Proof::Peer { uid: 7, pid: 8 }, what }).unwrap();
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        let mut lines = &line[..];
        let read = read_ask(&mut lines).unwrap().unwrap();
        assert!(matches!(read.what, What::LogIn { password, .. } if password == "a\nb"));
        assert!(read_ask(&mut lines).unwrap().is_none());
        let mut answer = Vec::new();
        write_answer(&mut answer, &Answer::Fault(Fault::throttled(7))).unwrap();
        assert!(matches!(decode(&answer).unwrap(), Answer::Fault(fault) if fault == Fault::throttled(7)));
        // A line that is no question leaves the next one readable; half a line does not.
        let hello = encode(&Ask { from: String::new(), proof: Proof::None, what: What::Hello }).unwrap();
        let lines = [&b"{}\n"[..], &hello].concat();
        let mut lines = &lines[..];
        assert_eq!(read_ask(&mut lines).err().unwrap().kind(), io::ErrorKind::InvalidData);
        assert!(matches!(read_ask(&mut lines).unwrap().unwrap().what, What::Hello));
        assert_eq!(read_ask(&mut &hello[..5]).err().unwrap().kind(), io::ErrorKind::UnexpectedEof);
        let content = Content { file: FileVersion::default(), length: 3, bytes: b"a\nb".to_vec() };
        let mut sent = Vec::new();
        write_answer(&mut sent, &Answer::Content(Box::new(content))).unwrap();
        let (line, bytes) = sent.split_at(sent.iter().position(|byte| *byte == b'\n').unwrap() + 1);
        assert!(matches!(decode(line).unwrap(), Answer::Content(content) if content.length == 3));
        assert_eq!(bytes, b"a\nb", "the bytes follow the line");
    }
}
