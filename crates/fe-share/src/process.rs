//! The process that sent a request, where the answer depends on its capabilities or groups. The
//! kernel checks permissions itself, but leaves two decisions to the server: which set-id bits a
//! change clears, and whether a listing shows attributes of the administrator. Read from `/proc`,
//! and only for files that have such bits or attributes. Called by any thread that serves.

use std::fs;
use std::thread;

use fuse::Request;

/// `CAP_FOWNER`: it may do what the owner of a file may.
const OWNERSHIP: u32 = 3;
/// `CAP_FSETID`: changes to a file leave its set-id bits.
const SET_ID: u32 = 4;
/// `CAP_SYS_ADMIN`.
const ADMINISTRATION: u32 = 21;

/// System calls that change owners.
#[cfg(target_arch = "x86_64")]
const OWNER_CALLS: [libc::c_long; 4] = [libc::SYS_chown, libc::SYS_lchown, libc::SYS_fchown, libc::SYS_fchownat];
#[cfg(not(target_arch = "x86_64"))]
const OWNER_CALLS: [libc::c_long; 2] = [libc::SYS_fchown, libc::SYS_fchownat];

/// Reads of the system call of a process that has sent its request but does not sleep yet.
const CALL_READS_MAX: u32 = 50;

/// The process of a request.
#[derive(Clone, Copy)]
pub(crate) struct Process {
    /// Its thread id; 0 for a process that this server cannot see.
    pid: u32,
    uid: u32,
    gid: u32,
}

impl Process {
    pub(crate) const fn of(request: &Request<'_>) -> Self {
        Self { pid: request.pid, uid: request.uid, gid: request.gid }
    }

    /// Returns the calling thread, which runs.
    #[cfg(test)]
    pub(crate) fn of_this_thread() -> Self {
        let pid = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        Self { pid, uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() }
    }

    /// Returns whether it keeps the set-id bits of a file that it changes.
    pub(crate) fn keeps_set_id(self) -> bool {
        self.has(SET_ID)
    }

    /// Returns whether it may change the mode of a file that belongs to `uid`.
    pub(crate) fn acts_for(self, uid: u32) -> bool {
        self.uid == uid || self.has(OWNERSHIP)
    }

    /// Returns whether it waits in a system call that changes owners; `None` if that cannot be
    /// read.
    pub(crate) fn changes_owner(self) -> Option<bool> {
        let read = || fs::read_to_string(format!("/proc/{}/syscall", self.pid)).ok();
        if self.pid == 0 { None } else { changes_owner(read) }
    }

    /// Returns whether it is an administrator, who sees names that begin with `trusted.`.
    pub(crate) fn is_administrator(self) -> bool {
        self.has(ADMINISTRATION)
    }

    /// Returns whether it is in a group.
    pub(crate) fn is_in_group(self, gid: u32) -> bool {
        self.gid == gid || status(self.pid).is_some_and(|status| groups(&status).any(|group| group == gid))
    }

    /// Returns whether it has a capability over the whole machine. A capability in a user namespace
    /// of its own is irrelevant for files of this mount, and the threads of the kernel's NFS server
    /// act for users whose capabilities they do not have. A process that has ended has none.
    fn has(self, capability: u32) -> bool {
        let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/user")).ok();
        status(self.pid).is_some_and(|status| has_capability(&status, self.uid, capability))
            && namespace("self").is_some_and(|own| namespace(&self.pid.to_string()) == Some(own))
    }
}

/// Returns whether a process waits in a system call that changes owners. `read` returns its line in
/// `/proc`, which contains "running" until the process sleeps; it has sent its request by then, and
/// is about to sleep.
fn changes_owner(mut read: impl FnMut() -> Option<String>) -> Option<bool> {
    for _ in 0..CALL_READS_MAX {
        let call = read()?;
        if let Ok(number) = call.split_whitespace().next()?.parse() {
            return Some(OWNER_CALLS.contains(&number));
        }
        thread::yield_now();
    }
    None
}

fn status(pid: u32) -> Option<String> {
    if pid == 0 { None } else { fs::read_to_string(format!("/proc/{pid}/status")).ok() }
}

/// Returns the words of a line of `/proc/PID/status`.
fn words<'a>(status: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap_or_default().split_whitespace()
}

fn groups(status: &str) -> impl Iterator<Item = u32> {
    words(status, "Groups").filter_map(|word| word.parse().ok())
}

/// Returns whether a process has a capability, and accesses files as `uid`: the fourth of its user
/// ids.
fn has_capability(status: &str, uid: u32, capability: u32) -> bool {
    let effective = words(status, "CapEff").next().and_then(|bits| u64::from_str_radix(bits, 16).ok());
    let is_user = words(status, "Uid").nth(3).and_then(|word| word.parse().ok()) == Some(uid);
    is_user && effective.is_some_and(|bits| bits >> capability & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str =
        "Name:\tsh\nUid:\t0\t1\t2\t33\nGid:\t5\t5\t5\t5\nGroups:\t5 100 4294967294 \nCapEff:\t0000000000200000\n";

    #[test]
    fn capabilities_and_groups_are_those_of_the_status() {
        assert!(has_capability(STATUS, 33, ADMINISTRATION) && !has_capability(STATUS, 33, SET_ID));
        assert!(!has_capability(STATUS, 0, ADMINISTRATION), "another user than the one who accesses files");
        assert_eq!(groups(STATUS).collect::<Vec<_>>(), [5, 100, 4_294_967_294]);
        assert!(!has_capability("", 0, SET_ID) && groups("").next().is_none());
    }

    #[test]
    fn a_process_that_is_not_there_has_nothing_but_its_group() {
        let gone = Process { pid: 0, uid: 0, gid: 7 };
        assert!(!gone.keeps_set_id() && !gone.is_administrator() && gone.changes_owner().is_none());
        assert!(gone.is_in_group(7) && !gone.is_in_group(8));
    }

    /// The kernel shows "running" for a process that has sent its request but does not sleep yet.
    #[test]
    fn a_process_that_does_not_sleep_yet_is_looked_at_again() {
        let after = |running: u32, call: &str| {
            let mut reads = 0;
            changes_owner(|| {
                reads += 1;
                Some(if reads > running { call.to_owned() } else { "running\n".to_owned() })
            })
        };
        let chown = format!("{} 0x3 0x0 0x0 0x0 0x0 0x0 0x7ffc 0x7f33\n", libc::SYS_fchown);
        let write = format!("{} 0x3 0x0 0x0 0x0 0x0 0x0 0x7ffc 0x7f33\n", libc::SYS_write);
        for running in [0, 1, CALL_READS_MAX - 1] {
            assert_eq!(after(running, &chown), Some(true), "{running}");
            assert_eq!(after(running, &write), Some(false), "{running}");
        }
        assert_eq!(after(CALL_READS_MAX, &chown), None);
        assert_eq!(after(0, "-1 0x7ffc 0x7f33\n"), Some(false), "it waits outside of system calls");
        assert_eq!(changes_owner(|| None), None, "it has gone");
    }

    #[test]
    fn this_process_is_what_the_kernel_says() {
        let uid = rustix::process::geteuid().as_raw();
        let own = Process { pid: std::process::id(), uid, gid: rustix::process::getegid().as_raw() };
        let status = fs::read_to_string("/proc/self/status").unwrap();
        assert_eq!(own.is_administrator(), has_capability(&status, uid, ADMINISTRATION));
        assert!(rustix::process::getgroups().unwrap().iter().all(|group| own.is_in_group(group.as_raw())));
    }
}
