//! The scheduler's view of threads: the idle policy, CPUs, and where another thread runs. Owns no
//! state. Any thread may call it.
#![allow(unsafe_code)]

use std::io;
use std::marker::PhantomData;
use std::thread;

use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_setaffinity};

/// The number by which the system knows the calling thread.
pub(crate) fn own_thread() -> i32 {
    gettid().as_raw_nonzero().get()
}

/// Sets the policy of a thread; 0 is the calling one. The `nice` value stays.
fn set_policy(thread: i32, policy: libc::c_int) -> io::Result<()> {
    let priority: libc::c_int = 0;
    // SAFETY: the call reads the parameter, an integer, that the pointer names.
    let result = unsafe { libc::syscall(libc::SYS_sched_setscheduler, thread, policy, &raw const priority) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sets the normal policy of a thread; 0 is the calling one.
pub(crate) fn set_normal(thread: i32) -> io::Result<()> {
    set_policy(thread, libc::SCHED_OTHER)
}

/// Returns whether a thread has the normal policy; 0 is the calling one.
pub(crate) fn is_normal(thread: i32) -> bool {
    // SAFETY: the call takes a number and returns one.
    let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, thread) };
    policy == libc::c_long::from(libc::SCHED_OTHER)
}

/// The idle policy of the calling thread. Dropping it restores the normal policy, also while the
/// thread unwinds.
#[derive(Debug)]
pub(crate) struct IdlePolicy(PhantomData<*const ()>);

impl IdlePolicy {
    /// Gives the calling thread the idle policy; it must have the normal one.
    pub(crate) fn enter() -> io::Result<Self> {
        set_policy(0, libc::SCHED_IDLE).map(|()| Self(PhantomData))
    }

    /// Restores the normal policy.
    ///
    /// # Errors
    /// The thread stays idle: it has lost the right to leave this policy.
    pub(crate) fn leave(self) -> io::Result<()> {
        std::mem::forget(self);
        set_normal(0)
    }
}

impl Drop for IdlePolicy {
    fn drop(&mut self) {
        let _ = set_normal(0);
    }
}

/// Returns whether threads of this process can leave the idle policy again, which needs
/// `CAP_SYS_NICE` or a limit for `nice` of 20 or more. Tried on a thread that ends afterwards.
pub(crate) fn can_leave_idle() -> bool {
    let tried = thread::Builder::new()
        .name("fuse-policy".to_owned())
        .spawn(|| IdlePolicy::enter().and_then(IdlePolicy::leave).is_ok());
    tried.is_ok_and(|thread| thread.join().unwrap_or(false))
}

/// Returns the CPUs on which the calling thread may run.
pub(crate) fn own_cpus() -> io::Result<CpuSet> {
    Ok(sched_getaffinity(None)?)
}

/// Binds a thread to CPUs.
pub(crate) fn bind(thread: i32, cpus: &CpuSet) -> io::Result<()> {
    let thread = Pid::from_raw(thread).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    Ok(sched_setaffinity(Some(thread), cpus)?)
}

/// Returns the set of one CPU.
pub(crate) fn only(cpu: usize) -> CpuSet {
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    cpus
}

/// What a thread does, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Whereabouts {
    /// It runs, or waits for its turn on the CPU.
    pub(crate) is_running: bool,
    /// The CPU on which it runs or ran last.
    pub(crate) cpu: usize,
}

/// Looks for a thread; `None` if there is none.
pub(crate) fn whereabouts(thread: u32) -> Option<Whereabouts> {
    let number = (thread > 0).then_some(thread)?;
    parse_stat(&std::fs::read_to_string(format!("/proc/{number}/stat")).ok()?)
}

/// Parses a line of `/proc/PID/stat`: field 3 is the state, field 39 the CPU. The name, field 2,
/// is in parentheses and may contain any character.
fn parse_stat(line: &str) -> Option<Whereabouts> {
    let mut fields = line.rsplit_once(')')?.1.split_ascii_whitespace();
    let is_running = fields.next()? == "R";
    let cpu = fields.nth(39 - 4)?.parse().ok().filter(|&cpu| cpu < CpuSet::MAX_CPU)?;
    Some(Whereabouts { is_running, cpu })
}

#[cfg(test)]
pub(crate) mod tests {
    use rustix::process::{Resource, getrlimit};
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

    use super::*;

    /// Returns whether a thread needs `CAP_SYS_NICE` to leave the idle policy, and has it. Says why
    /// a test is skipped if not.
    pub(crate) fn has_privilege() -> bool {
        if getrlimit(Resource::Nice).current.is_none_or(|limit| limit >= 20) {
            eprintln!("skipped: the limit for `nice` lets every thread leave the idle policy");
            return false;
        }
        let has_it = capabilities(None).unwrap().effective.contains(CapabilitySet::SYS_NICE);
        if !has_it {
            eprintln!("skipped: no thread may leave the idle policy (CAP_SYS_NICE)");
        }
        has_it
    }

    /// Takes the right to leave the idle policy from the calling thread.
    pub(crate) fn drop_privilege() {
        let mut held = capabilities(None).unwrap();
        held.effective.remove(CapabilitySet::SYS_NICE);
        held.permitted.remove(CapabilitySet::SYS_NICE);
        held.inheritable.remove(CapabilitySet::SYS_NICE);
        set_capabilities(None, held).unwrap();
    }

    #[test]
    fn the_cpu_is_field_39_and_names_may_contain_anything() {
        let fields: Vec<String> = (4..=52).map(|field| field.to_string()).collect();
        let line = format!("7 (a) S 1 (b c) R {}\n", fields.join(" "));
        assert_eq!(parse_stat(&line), Some(Whereabouts { is_running: true, cpu: 39 }));
        let line = line.replacen(") R", ") D", 1);
        assert_eq!(parse_stat(&line), Some(Whereabouts { is_running: false, cpu: 39 }));
        assert_eq!((parse_stat(""), parse_stat("7 (a) R 1 2"), whereabouts(0)), (None, None, None));
    }

    #[test]
    fn a_thread_is_found_on_the_cpu_that_it_is_bound_to() {
        let usual = own_cpus().unwrap();
        for cpu in (0..CpuSet::MAX_CPU).filter(|&cpu| usual.is_set(cpu)) {
            bind(own_thread(), &only(cpu)).unwrap();
            let found = whereabouts(own_thread().cast_unsigned()).unwrap();
            assert_eq!(found, Whereabouts { is_running: true, cpu });
        }
        bind(own_thread(), &usual).unwrap();
    }

    #[test]
    fn the_policy_is_normal_again_after_a_panic() {
        if !has_privilege() {
            return;
        }
        assert!(can_leave_idle());
        let panicked = std::panic::catch_unwind(|| {
            let _idle = IdlePolicy::enter().unwrap();
            assert!(!is_normal(0));
            panic!("HARNESS: while idle");
        });
        assert!(panicked.is_err() && is_normal(0));
        IdlePolicy::enter().unwrap().leave().unwrap();
        assert!(is_normal(0));
    }

    #[test]
    fn without_the_privilege_no_thread_can_leave_the_idle_policy() {
        if !has_privilege() {
            return;
        }
        thread::spawn(|| {
            drop_privilege();
            assert!(!can_leave_idle());
            assert!(is_normal(0), "it was tried on another thread");
        })
        .join()
        .unwrap();
    }
}
