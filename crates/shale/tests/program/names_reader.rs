//! The process that reads names from elsewhere.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use server::names_reader::READ_NAMES_COMMAND;

use crate::support::SHALE;

/// Before it reads a byte.
#[test]
fn the_process_that_reads_names_limits_its_memory() {
    let (socket, theirs) = UnixStream::pair().unwrap();
    let mut program = Command::new(SHALE);
    program.arg(READ_NAMES_COMMAND).env("MIMALLOC_ARENA_RESERVE", "32M");
    program.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null());
    let mut process = program.spawn().unwrap();
    drop(program);
    let status = format!("/proc/{}/limits", process.id());
    testkit::until("the process has a limit for its memory", || {
        let limits = std::fs::read_to_string(&status).unwrap();
        let limit = limits.lines().find_map(|line| line.strip_prefix("Max address space")).unwrap().to_owned();
        limit.split_whitespace().all(|word| word == "bytes" || word == (512 << 20).to_string())
    });
    // Its end without a job is an error, and no crash.
    drop(socket);
    assert!(process.wait().unwrap().code().is_some_and(|code| code > 0));
}
