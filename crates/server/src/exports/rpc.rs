//! Queries servers as their clients do: whether NFS answers, the status of HTTP, the greeting of
//! FTP.
//!
//! Each query has one deadline for all of its steps: the port may be held by a program that accepts
//! connections and sends nothing, or one byte at a time.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::ports;

/// Deadline of a query to a server on this machine.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum length of an answer in bytes.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Program number of NFS.
pub const NFS: u32 = 100_003;
/// Program number of the MOUNT protocol.
pub const MOUNT: u32 = 100_005;
/// Program number of rpcbind, which knows the ports of others, and its port.
const PORTMAP: u32 = 100_000;
const PORTMAP_PORT: u16 = 111;
/// Procedure that returns a port.
const GET_PORT: u32 = 3;
/// Protocol number of TCP.
const TCP: u32 = 6;
/// Status of a COMPOUND of a minor version that the server does not have.
const MINOR_VERSION_MISMATCH: u32 = 10021;

/// Returns the address for queries to a server that listens at `address`.
pub fn near(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(address) if address.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(address) if address.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        address => address,
    }
}

/// A connection to a server, with a deadline for all reads and writes.
struct Question {
    stream: TcpStream,
    port: u16,
    until: Instant,
}

impl Question {
    fn ask(at: SocketAddr) -> Result<Self, String> {
        let at = SocketAddr::new(near(at.ip()), at.port());
        let until = Instant::now() + PATIENCE;
        let stream = TcpStream::connect_timeout(&at, PATIENCE).map_err(|error| no_answer(at.port(), &error))?;
        Ok(Self { stream, port: at.port(), until })
    }

    fn failed(&self) -> impl Fn(std::io::Error) -> String + use<> {
        let port = self.port;
        move |error| no_answer(port, &error)
    }

    fn left(&self) -> std::io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

impl Read for Question {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        self.stream.read(into)
    }
}

impl Write for Question {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Describes a failed query; if the server was silent, with the process that holds the port.
fn no_answer(port: u16, error: &std::io::Error) -> String {
    // A socket whose time is over says that it would block.
    if !matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock) {
        return format!("port {port} does not answer: {error}");
    }
    let silent = format!("port {port} does not answer within {} s", PATIENCE.as_secs());
    ports::holder(port).map_or(silent.clone(), |holder| format!("{silent}: {holder} holds it"))
}

/// Whether a server takes connections.
///
/// # Errors
/// In words.
pub fn connect(at: SocketAddr) -> Result<(), String> {
    Question::ask(at).map(drop)
}

/// Calls a procedure without credentials; returns the words of its result.
fn call(at: SocketAddr, program: (u32, u32), procedure: u32, arguments: &[u32]) -> Result<Vec<u32>, String> {
    let mut stream = Question::ask(at)?;
    let (port, failed) = (at.port(), stream.failed());
    // Transaction, call, version 2 of RPC, the called procedure, no credentials, no verifier.
    let mut words = vec![0x5348_414c, 0, 2, program.0, program.1, procedure, 0, 0, 0, 0];
    words.extend_from_slice(arguments);
    let length = 0x8000_0000 | u32::try_from(words.len() * 4).unwrap_or(0);
    let bytes: Vec<u8> = std::iter::once(length).chain(words).flat_map(u32::to_be_bytes).collect();
    stream.write_all(&bytes).map_err(&failed)?;
    let mut head = [0; 4];
    stream.read_exact(&mut head).map_err(&failed)?;
    let length = (u32::from_be_bytes(head) & 0x7fff_ffff) as usize;
    if length > ANSWER_BYTES_MAX {
        return Err(format!("port {port} returned an answer of {length} bytes"));
    }
    let mut answer = vec![0; length];
    stream.read_exact(&mut answer).map_err(&failed)?;
    let words: Vec<u32> = answer.chunks_exact(4).map(|w| u32::from_be_bytes([w[0], w[1], w[2], w[3]])).collect();
    // Transaction, reply, accepted, verifier of no length, success.
    match words.get(1..6) {
        Some([1, 0, _, 0, 0]) => Ok(words[6..].to_vec()),
        _ => Err(format!("port {port} refuses the call: version {} is not served there", program.1)),
    }
}

/// Checks that a version of a program answers.
///
/// # Errors
/// A message.
pub fn null(at: SocketAddr, program: u32, version: u32) -> Result<(), String> {
    call(at, (program, version), 0, &[]).map(|_| ())
}

/// Returns the port of a version of a program, as rpcbind reports it to clients; 0 if it does not
/// know it.
///
/// # Errors
/// A message, if no rpcbind answers.
pub fn port_of(address: IpAddr, program: u32, version: u32) -> Result<u16, String> {
    let told = call((address, PORTMAP_PORT).into(), (PORTMAP, 2), GET_PORT, &[program, version, TCP, 0])?;
    Ok(told.first().and_then(|port| u16::try_from(*port).ok()).unwrap_or(0))
}

/// Returns whether a server of NFSv4 has a minor version.
///
/// # Errors
/// A message.
pub fn has_minor(at: SocketAddr, minor: u32) -> Result<bool, String> {
    // A compound with no tag and no operation.
    let answer = call(at, (NFS, 4), 1, &[0, minor, 0])?;
    Ok(answer.first() != Some(&MINOR_VERSION_MISMATCH))
}

/// Returns the status of a GET.
///
/// # Errors
/// A message.
pub fn http_status(at: SocketAddr, path: &str) -> Result<u16, String> {
    let mut stream = Question::ask(at)?;
    let (port, failed) = (at.port(), stream.failed());
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).map_err(&failed)?;
    let line = first_line(stream).map_err(&failed)?;
    let status = line.split(' ').nth(1).and_then(|word| word.parse().ok());
    status.ok_or_else(|| format!("port {port} does not speak HTTP: {line:?}"))
}

/// Returns the greeting of an FTP server.
///
/// # Errors
/// A message.
pub fn greeting(at: SocketAddr) -> Result<String, String> {
    let stream = Question::ask(at)?;
    let failed = stream.failed();
    first_line(stream).map_err(failed)
}

/// Returns the greeting of an FTP server, and its answer to a client without a password.
///
/// # Errors
/// A message.
pub fn anonymous_log_in(at: SocketAddr) -> Result<(String, String), String> {
    let stream = Question::ask(at)?;
    let failed = stream.failed();
    let mut stream = BufReader::new(stream);
    let greeting = line(&mut stream).map_err(&failed)?;
    stream.get_mut().write_all(b"USER anonymous\r\n").map_err(&failed)?;
    Ok((greeting, line(&mut stream).map_err(&failed)?))
}

fn first_line(stream: Question) -> std::io::Result<String> {
    line(&mut BufReader::new(stream))
}

fn line(stream: &mut impl BufRead) -> std::io::Result<String> {
    let mut line = Vec::new();
    stream.take(4096).read_until(b'\n', &mut line)?;
    Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// A program that is silent, because it waits for its client to begin.
    #[test]
    fn a_silent_port_is_given_up_and_its_holder_named() {
        let silent = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let at = silent.local_addr().unwrap();
        let holder = format!("port {} does not answer within 5 s: process {} (", at.port(), std::process::id());
        let said = greeting(at).unwrap_err();
        assert!(said.starts_with(&holder), "{said}");
    }

    #[test]
    fn a_client_without_a_password_gets_an_answer_of_ftp() {
        let server = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let at = server.local_addr().unwrap();
        let speaking = std::thread::spawn(move || {
            let (mut stream, _) = server.accept().unwrap();
            stream.write_all(b"220 share docs (1)\r\n").unwrap();
            let asked = line(&mut BufReader::new(stream.try_clone().unwrap())).unwrap();
            stream.write_all(b"500 OOPS: writable root\r\n").unwrap();
            asked
        });
        let said = anonymous_log_in(at).unwrap();
        assert_eq!(said, ("220 share docs (1)".to_owned(), "500 OOPS: writable root".to_owned()));
        assert_eq!(speaking.join().unwrap(), "USER anonymous");
    }

    /// Each byte arrives before a read times out, and the line never ends.
    #[test]
    fn a_port_that_dribbles_is_given_up() {
        let dribbling = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let at = dribbling.local_addr().unwrap();
        let (gone, waits) = std::sync::mpsc::channel::<()>();
        let writer = std::thread::spawn(move || {
            let (mut stream, _) = dribbling.accept().unwrap();
            while waits.recv_timeout(PATIENCE / 10) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                if stream.write_all(b"x").is_err() {
                    return false;
                }
            }
            true
        });
        let said = greeting(at).unwrap_err();
        assert!(said.contains("does not answer within 5 s"), "{said}");
        drop(gone);
        writer.join().unwrap();
    }
}
