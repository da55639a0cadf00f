//! Volumes as files of a mount.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::bounded;
use fe_fuse::{KeeperSlot, Mount, MountOptions, Stack, WhenBusy};
use fe_nbd::Listen;
use serde_json::json;
use surface::{Error, ErrorKind, Result};

use super::{Asked, FrontEnd, Kind, Started, Told, check_hides_nothing};

/// Name of this mount at the mount keeper.
const KEPT_AS: &str = "volumes";

/// Time that a stopping server takes to write back kernel caches of file systems on its files,
/// before it cuts them off. Well within the 90 s after which systemd kills, with time left to close
/// the pool.
const SYNC_PATIENCE: Duration = Duration::from_secs(45);

pub(super) const KIND: Kind = Kind {
    name: "the mount",
    is_same: |a, b| (&a.mount, a.allow_other, a.overlay) == (&b.mount, b.allow_other, b.overlay),
    check,
    start,
};

struct Volumes {
    mount: Mount,
    /// Set when the server itself ends the mount.
    is_released: Arc<AtomicBool>,
}

fn check(asked: &Asked<'_>) -> Result<()> {
    let Some(dir) = &asked.args.mount else { return Ok(()) };
    check_hides_nothing(dir, asked.service)?;
    check_hides_no_socket(dir, &asked.args.nbd)
}

fn start(asked: &Asked<'_>) -> Started {
    let Some(dir) = &asked.args.mount else { return Ok(None) };
    let options = MountOptions {
        allow_other: asked.args.allow_other,
        source: asked.service.facts().pool.display().to_string(),
        // This process has the pool's lock.
        replaces_dead: true,
        overlay: asked.args.overlay,
        kept_by: asked.keeper.clone().map(|keeper| KeeperSlot { keeper, name: KEPT_AS.to_owned() }),
        ..MountOptions::default()
    };
    let mount = fe_fuse::mount(asked.devices.clone(), dir, &options)?;
    let ended = mount.ended();
    let over = Arc::clone(&asked.over);
    let is_released = Arc::new(AtomicBool::new(false));
    let was_released = Arc::clone(&is_released);
    let watch = move || {
        // Its outcome was logged.
        drop(ended.wait());
        if !was_released.load(Ordering::SeqCst) {
            over("mount");
        }
    };
    std::thread::Builder::new()
        .name("mount-watch".to_owned())
        .spawn(watch)
        .map_err(|error| Error::from_io("cannot watch the mount", error))?;
    Ok(Some(Box::new(Volumes { mount, is_released })))
}

/// Refuses a mount point that would hide a socket of the server itself: the server would report its
/// address, no client could reach it, and the file would stay, out of the server's reach as well.
///
/// # Errors
/// `Invalid`.
fn check_hides_no_socket(dir: &Path, listen: &[Listen]) -> Result<()> {
    // A missing path is reported by the front end that mounts, or binds.
    let Ok(dir) = dir.canonicalize() else { return Ok(()) };
    let lies_there = |socket: &Path| {
        let parent = std::path::absolute(socket).ok().and_then(|path| path.parent()?.canonicalize().ok());
        parent.is_some_and(|parent| parent.starts_with(&dir))
    };
    for address in listen {
        if let Listen::Unix(socket) = address
            && lies_there(socket)
        {
            let dir = dir.display();
            let text =
                format!("mount at {dir}: it would hide {address}; choose a path for the socket outside of {dir}");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
    }
    Ok(())
}

impl FrontEnd for Volumes {
    fn describe(&self, told: &mut Told) {
        let (dir, over_io_uring) = (self.mount.dir().display().to_string(), self.mount.is_over_io_uring());
        let way = if over_io_uring { "  over io_uring" } else { "" };
        told.lines.push(format!("mount {dir}{way}"));
        told.document.insert("mount".to_owned(), json!(dir));
        told.document.insert("mount_over_io_uring".to_owned(), json!(over_io_uring));
        told.served.mount = Some(dir);
    }

    /// It is the front end that may end by itself.
    fn holds_the_server(&self) -> bool {
        false
    }

    fn has_resumed(&self) -> bool {
        self.mount.is_resumed()
    }

    fn release(&mut self) -> Result<()> {
        self.is_released.store(true, Ordering::SeqCst);
        let released = self.mount.unmount(WhenBusy::Refuse);
        self.is_released.store(released.is_ok(), Ordering::SeqCst);
        released
    }

    fn stop(self: Box<Self>) {
        let mount = self.mount;
        match mount.unmount(WhenBusy::Refuse) {
            Ok(()) => return,
            Err(error) if error.kind() != ErrorKind::InUse => log::warn!("{error}"),
            Err(_in_use) => {
                let dir = mount.dir().display();
                log::warn!("{dir} is in use, and is being cut off; everything written to its files is kept");
                sync_stack(mount.stack());
            }
        }
        if let Err(error) = mount.unmount(WhenBusy::Abort) {
            log::warn!("{error}");
        }
    }
}

/// Syncs the file systems on the files of the mount that is about to end, and logs the advice for
/// their users.
fn sync_stack(stack: Stack) {
    if stack.is_empty() {
        return;
    }
    let shown = |paths: &[PathBuf]| paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
    let (mounts, devices) = (shown(&stack.mounts), shown(&stack.devices));
    let (send, done) = bounded(1);
    // In a separate thread, because it waits for files that this process serves, and ends when they
    // are cut off.
    let started =
        std::thread::Builder::new().name("stack-sync".to_owned()).spawn(move || drop(send.send(stack.sync())));
    let synced = match started.map(|_| done.recv_timeout(SYNC_PATIENCE)) {
        Ok(Ok(failed)) if failed.is_empty() => "was synced".to_owned(),
        Ok(Ok(failed)) => format!("was synced, except {}", failed.join("; ")),
        Ok(Err(_)) => format!("could not be synced within {} s", SYNC_PATIENCE.as_secs()),
        Err(error) => format!("could not be synced: {error}"),
    };
    let what =
        if mounts.is_empty() { format!("{devices} {synced}") } else { format!("{mounts} (on {devices}) {synced}") };
    log::warn!(
        "{what}, and loses its storage now: later operations there fail. Unmount it, detach it (losetup -d), serve \
         the pool again, and set it up again; to avoid this, unmount before the server stops"
    );
}
