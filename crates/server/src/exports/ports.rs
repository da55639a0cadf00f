//! Which process holds a port.

use rustix::process::Pid;

use super::process::{all_pids, open_files};

/// The state of a socket that listens, in /proc/net/tcp.
const LISTENS: &str = "0A";

/// The process that listens at a port of this machine, in words; none if this process may not know.
pub fn holder(port: u16) -> Option<String> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|file| std::fs::read_to_string(file).unwrap_or_default());
    let sockets: Vec<_> = tables.iter().flat_map(|table| listeners(table, port)).collect();
    let socket = |inode: &&str| format!("socket:[{inode}]");
    let sockets: Vec<_> = sockets.iter().map(socket).collect();
    let holds = |pid: &Pid| open_files(*pid).any(|file| sockets.iter().any(|socket| file.as_os_str() == &**socket));
    let pid = if sockets.is_empty() { None } else { all_pids().find(holds) }?.as_raw_nonzero();
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some(format!("process {pid} ({})", name.trim()))
}

/// The inodes of sockets that listen at a port.
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
        let socket = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = socket.local_addr().unwrap().port();
        let held = holder(port).unwrap();
        assert!(held.starts_with(&format!("process {} (", std::process::id())), "{held}");
        drop(socket);
        assert_eq!(holder(port), None);
    }
}
