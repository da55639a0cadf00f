//! The door of a kernel request to a share: the server of a network protocol whose process makes
//! it, or else a program of this machine. Owns the table of those processes.
//!
//! The kernel names the thread that makes a request. Its process and that one's ancestors are
//! looked up in `/proc` once and remembered by the serving thread: until the table changes, or for
//! a second, because thread ids are reused. Without servers there is no look-up.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use doors::Door;
use fe_share::Counts;
use parking_lot::RwLock;
use surface::{DeviceId, Traffic};

use crate::devices::Devices;
use crate::traffic::SHARES;

/// Maximum number of threads that each serving thread remembers.
const REMEMBERED: usize = 16;
/// Maximum number of ancestors to check: servers start their processes directly, or through one
/// more.
const ABOVE_MAX: usize = 4;

/// Numbers the states of all tables, so that none is taken for another's.
static EPOCH: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// State of the table, thread id, and its door at that state.
    static KNOWN: Cell<[(u64, u32, Option<Door>); REMEMBERED]> = const { Cell::new([(0, 0, None); REMEMBERED]) };
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

    /// Returns the door of a thread; `None`: a program of this machine, or the kernel itself.
    fn door_of(&self, thread: u32) -> Option<Door> {
        let epoch = self.epoch.load(Ordering::Acquire);
        if epoch == 0 || thread == 0 {
            return None;
        }
        let mut known = KNOWN.get();
        let place = thread as usize % REMEMBERED;
        let (at, of, door) = known[place];
        if (at, of) == (epoch, thread) {
            return door;
        }
        let door = self.look_up(thread);
        known[place] = (epoch, thread, door);
        KNOWN.set(known);
        door
    }

    fn look_up(&self, thread: u32) -> Option<Door> {
        let servers = self.servers.read();
        let mut of = i32::try_from(thread).ok()?;
        for _ in 0..ABOVE_MAX {
            let (process, parent) = process_of(&std::fs::read_to_string(format!("/proc/{of}/status")).ok()?)?;
            if let Some((_, door)) = servers.iter().find(|(pid, _)| *pid == process) {
                return Some(*door);
            }
            if parent <= 1 {
                return None;
            }
            of = parent;
        }
        None
    }
}

/// Parses process and parent of a thread from its `status`.
fn process_of(status: &str) -> Option<(i32, i32)> {
    let of = |key: &str| status.lines().find_map(|line| line.strip_prefix(key))?.trim().parse().ok();
    Some((of("Tgid:")?, of("PPid:")?))
}

/// Counts of a share by door. Those of a network protocol are created at the first request.
pub(crate) struct ShareCounts {
    devices: Devices,
    share: DeviceId,
    local: Arc<Traffic>,
    doors: [OnceLock<Arc<Traffic>>; Door::ALL.len()],
}

impl std::fmt::Debug for ShareCounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShareCounts").field("share", &self.share).finish_non_exhaustive()
    }
}

impl ShareCounts {
    pub(crate) fn new(devices: Devices, share: DeviceId) -> Self {
        let local = devices.traffics().of(share, SHARES);
        Self { devices, share, local, doors: Default::default() }
    }
}

impl Counts for ShareCounts {
    fn of(&self, thread: u32) -> &Traffic {
        let Some(door) = self.devices.traffics().callers().door_of(thread) else { return &self.local };
        let place = Door::ALL.iter().position(|one| *one == door).unwrap_or(0);
        self.doors[place].get_or_init(|| self.devices.traffics().of(self.share, door.name()))
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
        assert_eq!((callers.door_of(thread), callers.doors()), (None, vec![]), "there is no server");
        callers.set(Door::Nfs, [own.cast_signed()].into_iter());
        assert_ne!(thread, own, "tests have threads of their own");
        assert_eq!(
            (callers.door_of(thread), callers.door_of(own), callers.door_of(0)),
            (Some(Door::Nfs), Some(Door::Nfs), None)
        );
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let of_child = callers.door_of(child.id());
        callers.set(Door::Smb, [child.id().cast_signed()].into_iter());
        assert_eq!((of_child, callers.door_of(child.id())), (Some(Door::Nfs), Some(Door::Smb)), "the nearest one");
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(callers.door_of(u32::MAX), None);
        callers.set(Door::Nfs, std::iter::empty());
        assert_eq!(callers.door_of(thread), None, "the server has ended");
    }

    #[test]
    fn the_status_of_a_thread_is_read() {
        assert_eq!(process_of("Name:\tx\nTgid:\t12\nPid:\t15\nPPid:\t3\n"), Some((12, 3)));
        assert_eq!(process_of("Name:\tx"), None);
    }
}
