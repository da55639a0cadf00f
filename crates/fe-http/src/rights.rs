//! Gives up the rights of the process: after this it reaches nothing but its sockets.

use std::io;

use rustix::process::{DumpableBehavior, Gid, Resource, Rlimit, Uid, getuid, set_dumpable_behavior, setrlimit};
use rustix::thread::{set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// `nobody` and `nogroup`.
const NOBODY: u32 = 65534;
/// Memory that the process may map: 256 connections need a tenth of it.
const ADDRESS_SPACE_BYTES: u64 = 512 << 20;
/// Files that it may have open: 256 connections, its sockets, and room.
const FILES: u64 = 1024;

/// Gives up everything. The process must have one thread: each thread has rights of its own.
///
/// # Errors
/// When the kernel refuses something: the process must not go on.
pub(crate) fn give_up() -> io::Result<()> {
    if getuid().is_root() {
        set_thread_groups(&[])?;
        let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)?;
    }
    set_no_new_privs(true)?;
    // Other processes of the same user cannot read its memory, and nothing is dumped.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let limit = |most| Rlimit { current: Some(most), maximum: Some(most) };
    setrlimit(Resource::Nofile, limit(FILES))?;
    setrlimit(Resource::Core, limit(0))?;
    Ok(setrlimit(Resource::As, limit(ADDRESS_SPACE_BYTES))?)
}
