//! Ports of this machine: whether one is free, and the process that holds it.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};

use rustix::process::Pid;

use super::process::{all_pids, open_files};

/// State of a listening socket in /proc/net/tcp.
const LISTENS: &str = "0A";

/// Returns the reason why a server cannot listen at an address, with the holder of the port. `None`
/// if the port is free, or held by one of the processes `ours`, which release it for the server.
pub fn taken(at: SocketAddr, ours: &[Pid]) -> Option<String> {
    let error = TcpListener::bind(at).err()?;
    let port = at.port();
    match error.kind() {
        ErrorKind::AddrInUse => {
            let holders = holders(port);
            let is_ours = holders.iter().any(|pid| ours.contains(pid));
            let holder = holders.first().map_or_else(|| "another process".to_owned(), |pid| in_words(*pid));
            (!is_ours).then(|| format!("port {port} is held by {holder}: end it or choose another port"))
        }
        ErrorKind::AddrNotAvailable => Some(format!("{} is not an address of this machine", at.ip())),
        _ => Some(format!("port {port} cannot be used: {error}")),
    }
}

/// Describes the process that listens at a port of this machine; `None` if this process may not see
/// it.
pub fn holder(port: u16) -> Option<String> {
    holders(port).first().map(|pid| in_words(*pid))
}

/// Returns the processes that listen at a port of this machine, as far as this process may see
/// them.
fn holders(port: u16) -> Vec<Pid> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|file| std::fs::read_to_string(file).unwrap_or_default());
    let sockets: Vec<_> = tables.iter().flat_map(|table| listeners(table, port)).collect();
    if sockets.is_empty() {
        return Vec::new();
    }
    let sockets: Vec<_> = sockets.iter().map(|inode| format!("socket:[{inode}]")).collect();
    let holds = |pid: &Pid| open_files(*pid).any(|file| sockets.iter().any(|socket| file.as_os_str() == &**socket));
    all_pids().filter(holds).collect()
}

fn in_words(pid: Pid) -> String {
    let pid = pid.as_raw_nonzero();
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    format!("process {pid} ({})", name.trim())
}

/// Returns the inodes of sockets that listen at a port.
fn listeners(table: &str, port: u16) -> impl Iterator<Item = &str> {
    let end = format!(":{port:04X}");
    table.lines().filter_map(move |line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let is_meant = words.get(1)?.ends_with(&end) && *words.get(3)? == LISTENS;
        words.get(9).copied().filter(|_| is_meant)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_that_listens_is_named() {
        // A process that another test is starting would hold a copy of the socket.
        let _alone = testkit::starting();
        let socket = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let at = socket.local_addr().unwrap();
        let us = Pid::from_raw(std::process::id().try_into().unwrap()).unwrap();
        let words = format!("process {} (", std::process::id());
        assert!(holder(at.port()).unwrap().starts_with(&words));
        assert!(taken(at, &[]).unwrap().contains(&format!("port {} is held by {words}", at.port())));
        assert_eq!(taken(at, &[us]), None);
        drop(socket);
        assert_eq!((holder(at.port()), taken(at, &[])), (None, None));
        // For documentation (RFC 5737): no machine has it.
        assert!(taken(([192, 0, 2, 1], 0).into(), &[]).unwrap().contains("not an address of this machine"));
    }
}
