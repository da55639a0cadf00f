//! Drops the privileges of a process that reads data from elsewhere. Afterwards it reaches nothing
//! but its sockets.

use std::io;

use rustix::process::{DumpableBehavior, Gid, Resource, Rlimit, Uid, getuid, set_dumpable_behavior, setrlimit};
use rustix::thread::{set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// User and group without rights, by convention.
const NOBODY: u32 = 65534;

/// Drops all privileges, and limits the files that the process may have open and the memory that it
/// may map. The process must have one thread: each thread has its own credentials.
///
/// # Errors
/// When the kernel refuses something: the process must not go on.
pub fn give_up_rights(files: u64, address_space_bytes: u64) -> io::Result<()> {
    if getuid().is_root() {
        set_thread_groups(&[])?;
        let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)?;
    }
    set_no_new_privs(true)?;
    // Other processes of that user cannot read its memory, and there is no core dump.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let limit = |most| Rlimit { current: Some(most), maximum: Some(most) };
    setrlimit(Resource::Nofile, limit(files))?;
    setrlimit(Resource::Core, limit(0))?;
    Ok(setrlimit(Resource::As, limit(address_space_bytes))?)
}
