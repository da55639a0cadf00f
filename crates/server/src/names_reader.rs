//! The process that reads names from elsewhere for this one (`share`): starts it, and is it.
//!
//! It has no rights and little memory: a page that asks for more ends this process and no other.

use std::io::Result;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use share::NamesReader;
use surface::Error;

/// Command of the process.
pub const READ_NAMES_COMMAND: &str = "read-names";

/// Memory that the process may map. It has a page of at most 1 MiB at a time, and counts the pages
/// that it has met: 40 bytes for each MiB of them.
const ADDRESS_SPACE_BYTES: u64 = 512 << 20;
/// Files that it may have open: its socket, and the standard ones.
const FILES: u64 = 16;

/// Ends the process when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Memory for the changes of snapshots that are open, as a part of the machine's: a snapshot that
/// came in a stream takes a copy of its names.
const MOMENTS_DIVISOR: u64 = 8;
/// The least memory for them.
const MOMENTS_BYTES_MIN: u64 = 256 << 20;

/// Has this program's names from elsewhere read by processes of its own, and bounds the memory for
/// copies of them.
pub fn provide() {
    share::limit_scratch_memory((host::memory_bytes() / MOMENTS_DIVISOR).max(MOMENTS_BYTES_MIN));
    share::read_foreign_names_with(start);
}

fn start() -> Result<NamesReader> {
    let (socket, theirs) = UnixStream::pair()?;
    let mut program = Command::new("/proc/self/exe");
    program.arg(READ_NAMES_COMMAND).current_dir("/").process_group(0);
    // The allocator's default first reservation, 1 GiB, is more than the process may map.
    program.env("MIMALLOC_ARENA_RESERVE", "32M");
    host::with_usual_signals(&mut program).stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null());
    let process = Running(program.spawn()?);
    Ok(NamesReader { socket, process: Box::new(process) })
}

/// Main function of the process.
///
/// # Errors
/// When rights cannot be given up; when the server has ended.
pub fn read_names() -> surface::Result<()> {
    let read = || {
        let socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
        // Before the first byte from elsewhere.
        fe_http::give_up_rights(FILES, ADDRESS_SPACE_BYTES)?;
        share::read_foreign_names(socket)
    };
    read().map_err(|error| Error::from_io("the process that reads names", error))
}
