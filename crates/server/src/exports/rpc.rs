//! Questions to servers as their clients ask them: does NFS answer, what does HTTP say, how does
//! FTP greet.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

/// A server on this machine that takes longer does not answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most bytes of an answer that are read.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// The program number of NFS.
pub const NFS: u32 = 100_003;
/// That of the MOUNT protocol.
pub const MOUNT: u32 = 100_005;
/// That of rpcbind, which tells the ports of others, and its port.
const PORTMAP: u32 = 100_000;
const PORTMAP_PORT: u16 = 111;
/// Asks it for a port.
const GET_PORT: u32 = 3;
/// The number of TCP.
const TCP: u32 = 6;
/// The status of a COMPOUND of a minor version that the server does not have.
const MINOR_VERSION_MISMATCH: u32 = 10021;

/// Where a server is asked that listens at `address`.
pub fn near(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(address) if address.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(address) if address.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        address => address,
    }
}

/// Connects to a server.
///
/// # Errors
/// In words.
pub fn connect(address: IpAddr, port: u16) -> Result<TcpStream, String> {
    let address = SocketAddr::new(near(address), port);
    let failed = |error: std::io::Error| format!("{address} does not answer: {error}");
    let stream = TcpStream::connect_timeout(&address, PATIENCE).map_err(failed)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
    Ok(stream)
}

/// Calls a procedure without credentials; the words of what it returns.
fn call(
    address: IpAddr,
    port: u16,
    program: (u32, u32),
    procedure: u32,
    arguments: &[u32],
) -> Result<Vec<u32>, String> {
    let failed = |error: std::io::Error| format!("port {port} gives no answer: {error}");
    let mut stream = connect(address, port)?;
    // Transaction, call, version 2 of RPC, the called procedure, no credentials, no verifier.
    let mut words = vec![0x5348_414c, 0, 2, program.0, program.1, procedure, 0, 0, 0, 0];
    words.extend_from_slice(arguments);
    let length = 0x8000_0000 | u32::try_from(words.len() * 4).unwrap_or(0);
    let bytes: Vec<u8> = std::iter::once(length).chain(words).flat_map(u32::to_be_bytes).collect();
    stream.write_all(&bytes).map_err(failed)?;
    let mut head = [0; 4];
    stream.read_exact(&mut head).map_err(failed)?;
    let length = (u32::from_be_bytes(head) & 0x7fff_ffff) as usize;
    if length > ANSWER_BYTES_MAX {
        return Err(format!("port {port} gives an answer of {length} bytes"));
    }
    let mut answer = vec![0; length];
    stream.read_exact(&mut answer).map_err(failed)?;
    let words: Vec<u32> = answer.chunks_exact(4).map(|w| u32::from_be_bytes([w[0], w[1], w[2], w[3]])).collect();
    // Transaction, reply, accepted, verifier of no length, success.
    match words.get(1..6) {
        Some([1, 0, _, 0, 0]) => Ok(words[6..].to_vec()),
        _ => Err(format!("port {port} refuses the call: version {} is not served there", program.1)),
    }
}

/// Whether a version of a program answers.
///
/// # Errors
/// In words.
pub fn null(address: IpAddr, port: u16, program: u32, version: u32) -> Result<(), String> {
    call(address, port, (program, version), 0, &[]).map(|_| ())
}

/// The port of a version of a program as rpcbind tells it to clients; 0 if it does not know it.
///
/// # Errors
/// In words, if no rpcbind answers.
pub fn port_of(address: IpAddr, program: u32, version: u32) -> Result<u16, String> {
    let told = call(address, PORTMAP_PORT, (PORTMAP, 2), GET_PORT, &[program, version, TCP, 0])?;
    Ok(told.first().and_then(|port| u16::try_from(*port).ok()).unwrap_or(0))
}

/// Whether a server of NFSv4 has a minor version.
///
/// # Errors
/// In words.
pub fn has_minor(address: IpAddr, port: u16, minor: u32) -> Result<bool, String> {
    // A compound with no tag and no operation.
    let answer = call(address, port, (NFS, 4), 1, &[0, minor, 0])?;
    Ok(answer.first() != Some(&MINOR_VERSION_MISMATCH))
}

/// The status of a GET.
///
/// # Errors
/// In words.
pub fn http_status(address: IpAddr, port: u16, path: &str) -> Result<u16, String> {
    let failed = |error: std::io::Error| format!("port {port} gives no answer: {error}");
    let mut stream = connect(address, port)?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).map_err(failed)?;
    let line = first_line(stream).map_err(failed)?;
    let status = line.split(' ').nth(1).and_then(|word| word.parse().ok());
    status.ok_or_else(|| format!("port {port} does not speak HTTP: {line:?}"))
}

/// How a server of FTP greets.
///
/// # Errors
/// In words.
pub fn greeting(address: IpAddr, port: u16) -> Result<String, String> {
    let stream = connect(address, port)?;
    first_line(stream).map_err(|error| format!("port {port} gives no answer: {error}"))
}

fn first_line(stream: TcpStream) -> std::io::Result<String> {
    let mut line = Vec::new();
    BufReader::new(stream.take(4096)).read_until(b'\n', &mut line)?;
    Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
}
