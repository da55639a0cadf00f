//! Background work of a running server.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{BufRead, BufReader};

use crate::support::{Dir, Server, on};

/// `capable(CAP_SYS_RESOURCE)`, as the kernel counts capabilities.
const CAP_SYS_RESOURCE: u32 = 24;
/// PF_MEMALLOC_NOIO of include/linux/sched.h, which PR_SET_IO_FLUSHER sets.
const MEMALLOC_NOIO: u64 = 0x0008_0000;

#[test]
fn a_server_takes_the_snapshots_that_are_due() {
    let dir = Dir::with_pool("64M");
    on(&dir, "create", &["v", "--size", "1M", "-o", "snapshots=hourly"]).ok();
    let mut server = Server::start(&dir, &[]);
    let said = BufReader::new(server.child.stderr.take().unwrap());
    let taken = said.lines().map(Result::unwrap).find(|line| line.contains("snapshot v@auto-"));
    assert!(taken.is_some_and(|line| line.ends_with(" taken")), "the server has ended");
    let list = on(&dir, "list", &["-r", "--json"]).ok().json();
    assert!(list[0]["snapshots"][0]["name"].as_str().unwrap().starts_with("auto-"), "{list}");
    server.signal(libc::SIGTERM);
    assert!(server.child.wait().unwrap().success());
}

/// Only the threads of the mount had the flag, and those of the engine, for which they wait, had
/// not.
#[test]
fn no_thread_of_a_server_waits_for_what_lies_on_its_own_volumes() {
    let own = std::fs::read_to_string("/proc/self/status").unwrap();
    let capabilities = own.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    if u64::from_str_radix(capabilities.trim(), 16).unwrap() & (1 << CAP_SYS_RESOURCE) == 0 {
        eprintln!("skipped: it needs CAP_SYS_RESOURCE");
        return;
    }
    let dir = Dir::with_pool("64M");
    let server = Server::start(&dir, &[]);
    let tasks = std::fs::read_dir(format!("/proc/{}/task", server.child.id())).unwrap();
    let mut threads = 0;
    for task in tasks {
        // It has ended meanwhile.
        let Ok(stat) = std::fs::read_to_string(task.unwrap().path().join("stat")) else { continue };
        let (name, rest) = stat.rsplit_once(')').unwrap();
        let flags: u64 = rest.split_whitespace().nth(6).unwrap().parse().unwrap();
        assert_ne!(flags & MEMALLOC_NOIO, 0, "{name})");
        threads += 1;
    }
    assert!(threads > 4, "{threads} threads");
    server.stop();
}
