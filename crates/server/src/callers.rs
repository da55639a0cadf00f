//! The door of a kernel request to a share: the server of a network protocol whose process makes
//! it, or else a program of this machine. Owns the table of those processes.
//!
//! The kernel names the thread that makes a request. Its process and that one's ancestors are
//! looked up in `/proc` once and remembered by the serving thread: until the table changes, or for
//! a second, because thread ids are reused. Without servers there is no look-up. A process that has
//! ended since its request cannot be looked up: its requests have a door of their own.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use doors::Door;
use fe_share::Counts;
use parking_lot::RwLock;
use surface::{DeviceId, Traffic};

use crate::traffic::{OTHERS, SHARES, Traffics};

/// Maximum number of threads that each serving thread remembers.
const REMEMBERED: usize = 16;
/// Maximum number of ancestors to check: servers start their processes directly, or through one
/// more.
const ABOVE_MAX: usize = 4;

/// Numbers the states of all tables, so that none is taken for another's.
static EPOCH: AtomicU64 = AtomicU64::new(1);

/// The process that makes a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Caller {
    /// A program of this machine, or the kernel itself.
    Local,
    /// A server of that door.
    Server(Door),
    /// It cannot be looked up.
    Unknown,
}

thread_local! {
    /// State of the table, thread id, and its process at that state.
    static KNOWN: Cell<[(u64, u32, Caller); REMEMBERED]> = const { Cell::new([(0, 0, Caller::Local); REMEMBERED]) };
}

/// See the module's text.
#[derive(Debug, Default)]
pub struct Callers {
    servers: RwLock<Vec<(i32, Door)>>,
    /// 0: there are no servers.
    epoch: AtomicU64,
}

impl Callers {
    /// Sets the processes of a door's servers, which are checked every second.
    pub(crate) fn set(&self, door: Door, pids: impl Iterator<Item = i32>) {
        let mut servers = self.servers.write();
        servers.retain(|(_, of)| *of != door);
        servers.extend(pids.map(|pid| (pid, door)));
        let epoch = if servers.is_empty() { 0 } else { EPOCH.fetch_add(1, Ordering::Relaxed) };
        self.epoch.store(epoch, Ordering::Release);
    }

    /// Returns the names of the doors with running servers.
    pub(crate) fn doors(&self) -> Vec<&'static str> {
        let servers = self.servers.read();
        let has_server = |door: &Door| servers.iter().any(|(_, of)| of == door);
        Door::ALL.into_iter().filter(has_server).map(Door::name).collect()
    }

    fn caller(&self, thread: u32) -> Caller {
        let epoch = self.epoch.load(Ordering::Acquire);
        if epoch == 0 || thread == 0 {
            return Caller::Local;
        }
        let mut known = KNOWN.get();
        let place = thread as usize % REMEMBERED;
        let (at, of, caller) = known[place];
        if (at, of) == (epoch, thread) {
            return caller;
        }
        let caller = self.look_up(thread).unwrap_or(Caller::Unknown);
        known[place] = (epoch, thread, caller);
        KNOWN.set(known);
        caller
    }

    /// Returns the process of a thread by its nearest ancestor in the table. `None`: it has ended.
    fn look_up(&self, thread: u32) -> Option<Caller> {
        let servers = self.servers.read();
        let mut of = i32::try_from(thread).ok()?;
        for _ in 0..ABOVE_MAX {
            let (process, parent) = process_of(&std::fs::read_to_string(format!("/proc/{of}/status")).ok()?)?;
            if let Some((_, door)) = servers.iter().find(|(pid, _)| *pid == process) {
                return Some(Caller::Server(*door));
            }
            if parent <= 1 {
                break;
            }
            of = parent;
        }
        Some(Caller::Local)
    }
}

/// Parses process and parent of a thread from its `status`.
fn process_of(status: &str) -> Option<(i32, i32)> {
    let of = |key: &str| status.lines().find_map(|line| line.strip_prefix(key))?.trim().parse().ok();
    Some((of("Tgid:")?, of("PPid:")?))
}

/// Counts of a share by door. Those of all but local programs are created at the first request.
pub(crate) struct ShareCounts {
    traffics: Arc<Traffics>,
    share: DeviceId,
    local: Arc<Traffic>,
    doors: [OnceLock<Arc<Traffic>>; Door::ALL.len()],
    others: OnceLock<Arc<Traffic>>,
}

impl std::fmt::Debug for ShareCounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShareCounts").field("share", &self.share).finish_non_exhaustive()
    }
}

impl ShareCounts {
    pub(crate) fn new(traffics: Arc<Traffics>, share: DeviceId) -> Self {
        let local = traffics.of(share, SHARES);
        Self { traffics, share, local, doors: Default::default(), others: OnceLock::new() }
    }
}

impl Counts for ShareCounts {
    fn of(&self, thread: u32) -> &Traffic {
        let (counts, name) = match self.traffics.callers().caller(thread) {
            Caller::Local => return &self.local,
            Caller::Server(door) => {
                let place = Door::ALL.iter().position(|one| *one == door).unwrap_or(0);
                (&self.doors[place], door.name())
            }
            Caller::Unknown => (&self.others, OTHERS),
        };
        counts.get_or_init(|| self.traffics.of(self.share, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_that_of_its_process_or_of_one_above() {
        let callers = Callers::default();
        let own = std::process::id();
        let thread = std::fs::read_link("/proc/thread-self").unwrap();
        let thread: u32 = thread.file_name().unwrap().to_str().unwrap().parse().unwrap();
        assert_eq!((callers.caller(thread), callers.doors()), (Caller::Local, vec![]), "there is no server");
        callers.set(Door::Nfs, [own.cast_signed()].into_iter());
        assert_ne!(thread, own, "tests have threads of their own");
        assert_eq!(
            (callers.caller(thread), callers.caller(own), callers.caller(0)),
            (Caller::Server(Door::Nfs), Caller::Server(Door::Nfs), Caller::Local)
        );
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let of_child = callers.caller(child.id());
        callers.set(Door::Smb, [child.id().cast_signed()].into_iter());
        let expected = (Caller::Server(Door::Nfs), Caller::Server(Door::Smb));
        assert_eq!((of_child, callers.caller(child.id())), expected, "the nearest one");
        child.kill().unwrap();
        child.wait().unwrap();
        callers.set(Door::Nfs, std::iter::empty());
        assert_eq!(callers.caller(thread), Caller::Local, "the server has ended");
    }

    /// A thread of a server that ends after its request was counted as a program of this machine.
    #[test]
    fn requests_of_a_process_that_has_ended_are_counted_at_a_door_of_their_own() {
        let traffics = Arc::<Traffics>::default();
        let counts = ShareCounts::new(traffics.clone(), DeviceId(7));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let callers = traffics.callers();
        let is_local = |thread| std::ptr::eq(counts.of(thread), &*counts.local);
        assert!(is_local(child.id()), "nothing is looked up without servers");
        callers.set(Door::Smb, std::iter::once(std::process::id().cast_signed()));
        assert_eq!((callers.caller(child.id()), callers.caller(u32::MAX)), (Caller::Unknown, Caller::Unknown));
        assert!(is_local(0) && !is_local(child.id()));
        let of_share = traffics.list(Some(DeviceId(7)));
        let doors: Vec<_> = of_share[0].1.iter().map(|(door, _)| *door).collect();
        assert_eq!(doors, ["other", "share"]);
    }

    #[test]
    fn the_status_of_a_thread_is_read() {
        assert_eq!(process_of("Name:\tx\nTgid:\t12\nPid:\t15\nPPid:\t3\n"), Some((12, 3)));
        assert_eq!(process_of("Name:\tx"), None);
    }
}
