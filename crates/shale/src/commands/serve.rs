//! `shale serve`.
//!
//! Order of events: signals caught; pool opened; control socket; front ends; `ready`. Then
//! everything is up to the clients, until a signal comes or the mount is taken away with nothing
//! else left to serve. Then:
//!
//! 1. Jobs are asked to end, and do so behind the slice that they work on.
//! 2. NBD: no new requests; those in work are answered, connections closed.
//! 3. The servers of network protocols end, then shares are unmounted.
//! 4. The mount is taken away. If files in it are open: what file systems on loop devices on them
//!    have in the kernel's caches is synced, then the mount is cut off. A process that only has a
//!    file open is not waited for: the writes acknowledged to it are kept.
//! 5. The control socket; the pool is closed, which makes everything durable.
//!
//! A second SIGINT or SIGTERM, a second or more after the first, ends the process wherever it is.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use fe_fuse::{Mount, MountOptions, Stack, WhenBusy};
use fe_nbd::{Listen, Server, ServerOptions};
use serde_json::json;
use surface::{DeviceSet, Error, ErrorKind, Result};

use super::incomplete;
use super::keeping::Keeping;
use super::logger;
use crate::cli::{Access, ServeArgs};
use crate::control::ControlServer;
use crate::exit::{Outcome, kind_of};
use crate::exports::Exports;
use crate::output::Output;
use crate::pool_dir::{self, OpenPool, Opening, PoolDir};
use crate::service::{Served, Service};
use crate::shares::Shares;
use crate::system::{self, Termination};

/// How long a stopping server takes to bring down what file systems on its files have in the
/// kernel's caches, before it cuts them off. Well within the 90 s after which systemd kills, with
/// time left to close the pool.
const SYNC_PATIENCE: Duration = Duration::from_secs(45);

/// NBD connections get one of so many descriptors at most: the map, commands and the mount need
/// some as well.
const NBD_SHARE: u64 = 2;
/// The same without --connections: who wants to stop the server or to look at it gets in easily.
const NBD_SHARE_USUAL: u64 = 8;

/// How often a server looks for snapshots that are due: they are due by the hour.
const SCHEDULES_EVERY: Duration = Duration::from_secs(10);

/// What a server waits for.
enum Event {
    Signal(i32),
    Unmounted,
}

/// Serves a pool until a signal comes.
pub fn run(args: ServeArgs, output: &Output) -> Outcome {
    // Before anything is opened, so that the number is surely the caller's.
    let ready_fd = args.ready_fd.map(|fd| {
        let failed = |error| Error::with_source(ErrorKind::Invalid, format!("--ready-fd {fd} cannot be used"), error);
        system::inherited_file(fd).map_err(failed)
    });
    let ready_fd = ready_fd.transpose()?;
    let signals = Termination::block().map_err(|error| Error::from_io("cannot block signals", error))?;
    logger::install(*output);
    let dir = PoolDir::new(&args.pool);
    let listen = addresses(&args, &dir, output)?;
    // Room for one of each kind: no sender sends twice.
    let (send, events) = bounded(2);
    // Before any thread is started: it holds for this one and for those that it starts. A file
    // system on one of our volumes waits for those of the engine as it does for those of the front
    // ends.
    fe_fuse::become_io_flusher();
    let for_signals = send.clone();
    signals
        .watch(move |signal| drop(for_signals.send(Event::Signal(signal))))
        .map_err(|error| Error::from_io("cannot watch for signals", error))?;
    let access = Access { memory: args.memory, wait: args.wait };
    let lock = pool_dir::lock_alone(&dir, &access)?;
    let how = Opening::usual(args.memory);
    let pool = pool_dir::open_to_serve(&dir, lock, how, &args.standby, output)?;
    let standby = pool.service.pool().status().standby;
    output.note(&format!("shale: acknowledged writes {}", pool_dir::promise(standby.place.as_deref(), standby.bytes)));
    let keeps_acknowledged = standby.place.is_some();
    let has_mounts = args.mount.is_some() || args.shares.is_some();
    let keeping = Keeping::begin(&dir, args.keep_mounts, has_mounts, keeps_acknowledged, output);
    let served = serve(&args, &dir, (&pool, &keeping), &listen, ready_fd, (send, events), output);
    let closed = pool.close();
    served?;
    Ok(closed?)
}

fn addresses(args: &ServeArgs, dir: &PoolDir, output: &Output) -> Result<Vec<Listen>> {
    if args.nbd.is_empty() && args.mount.is_none() && args.shares.is_none() {
        let listen = Listen::Unix(std::path::absolute(dir.nbd_path()).unwrap_or_else(|_| dir.nbd_path()));
        output.note(&format!("neither --nbd nor --mount was given: serving NBD on {listen}"));
        return Ok(vec![listen]);
    }
    let listen = args.nbd.iter().map(|text| Listen::parse(text)).collect::<Result<Vec<_>>>()?;
    for address in listen.iter().filter(|address| !address.is_loopback()) {
        output.warn(&format!(
            "{address} can be reached from other machines, without encryption or password: \
             every program that reaches it can read and write the volumes"
        ));
    }
    Ok(listen)
}

fn serve(
    args: &ServeArgs,
    dir: &PoolDir,
    (pool, keeping): (&OpenPool, &Keeping),
    listen: &[Listen],
    ready_fd: Option<std::fs::File>,
    (send, events): (Sender<Event>, Receiver<Event>),
    output: &Output,
) -> Result<()> {
    let service = &pool.service;
    for name in &args.volume {
        if !service.pool().is_folder(name) {
            service.pool().volume(name)?;
        }
    }
    for title in service.pool().incomplete() {
        output.warn(&incomplete::words(&title));
    }
    let control = ControlServer::start(&dir.control_path(), Arc::clone(service))?;
    let result = FrontEnds::start(args, (service, keeping), listen, send, output).and_then(|front_ends| {
        keeping.end_the_rest(output);
        let told = front_ends.tell_ready(service, ready_fd, output);
        let only_mount = front_ends.nbd.is_none() && front_ends.shares.is_none();
        if told.is_ok() {
            wait(&events, only_mount, service, output);
        }
        // Those that watch a job are told of its end while the control socket answers.
        service.jobs().ask_to_stop();
        if let Err(error) = system::notify_manager("STOPPING=1") {
            output.warn(&format!("the service manager cannot be told: {error}"));
        }
        front_ends.stop(service, output);
        told
    });
    service.jobs().stop();
    control.stop();
    result
}

/// Waits for a reason to stop, and sees to the snapshots that are due.
fn wait(events: &Receiver<Event>, only_mount: bool, service: &Arc<Service>, output: &Output) {
    let mut last = Vec::new();
    loop {
        match events.recv_timeout(SCHEDULES_EVERY) {
            Ok(Event::Signal(signal)) => {
                output.note(&format!("shale: stopping on signal {signal}"));
                return;
            }
            Ok(Event::Unmounted) if only_mount => {
                output.note("shale: stopping: the mount is gone, and nothing else is served");
                return;
            }
            Ok(Event::Unmounted) => output.warn("the mount is gone; NBD goes on"),
            Err(RecvTimeoutError::Timeout) => {
                service.look_at_shares();
                service.tend_images();
                service.new_fullness().iter().for_each(|line| output.warn(line));
                service.new_damage().iter().for_each(|line| output.warn(line));
                let told = service.run_schedules(&|| !events.is_empty());
                // What fails is tried again and again, and said once.
                if told != last {
                    told.iter().for_each(|line| service.log(line));
                    last = told;
                }
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// The doors to the volumes.
struct FrontEnds {
    nbd: Option<Server>,
    mount: Option<Mount>,
    shares: Option<Arc<Shares>>,
    exports: Option<Arc<Exports>>,
    /// Most NBD connections.
    connections_max: usize,
}

/// Refuses a mount point below which the pool itself would vanish: no command would find it any
/// more.
///
/// # Errors
/// `Invalid`.
fn check_hides_nothing(dir: &Path, service: &Service) -> Result<()> {
    // What cannot be found is told by who mounts.
    let Ok(dir) = dir.canonicalize() else { return Ok(()) };
    let facts = service.facts();
    let data = facts.data.canonicalize().unwrap_or_else(|_| facts.data.clone());
    let map = PoolDir::new(&facts.pool).map_path();
    if facts.pool.starts_with(&dir) || data.starts_with(&dir) || dir.starts_with(&map) {
        let text = format!(
            "mount at {}: it would hide the pool {} or its data {}; choose a directory of its own",
            dir.display(),
            facts.pool.display(),
            data.display()
        );
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    Ok(())
}

/// Refuses a mount point below which a socket of the server itself would vanish: its address would
/// be told, no client could reach it, and the file would stay behind, out of the server's reach as
/// well.
///
/// # Errors
/// `Invalid`.
fn check_hides_no_socket(dir: &Path, listen: &[Listen]) -> Result<()> {
    // What cannot be found is told by who mounts, or binds.
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

/// Refuses a directory of exports below the shares: servers would read their configuration from
/// what they give out.
///
/// # Errors
/// `Invalid`.
fn check_hides_no_exports(dir: &Path, exports: Option<&Path>) -> Result<()> {
    let (Ok(dir), Some(exports)) = (dir.canonicalize(), exports) else { return Ok(()) };
    let exports = std::path::absolute(exports).unwrap_or_else(|_| exports.to_owned());
    let exports = exports.canonicalize().unwrap_or(exports);
    if exports.starts_with(&dir) {
        let text = format!(
            "exports at {}: it lies below the shares: choose a directory outside of {}",
            exports.display(),
            dir.display()
        );
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    Ok(())
}

/// Memory for what NBD clients have in flight: a quarter of the budget, but enough for the largest
/// request, and for a few deep queues at most.
fn nbd_bytes(memory_bytes: u64) -> usize {
    (memory_bytes / 4).clamp(64 << 20, 256 << 20) as usize
}

/// Most NBD connections: the wanted number, as far as there are descriptors.
fn connections_max(wanted: usize, usual: usize, output: &Output) -> usize {
    if wanted == usual {
        return env::descriptors_share(NBD_SHARE_USUAL, 1, usual);
    }
    let possible = env::descriptors_share(NBD_SHARE, 1, wanted);
    if possible < wanted {
        output.warn(&format!(
            "--connections {wanted} needs {} file descriptors: there are enough for {possible} connections; raise the limit \
             (ulimit -n, LimitNOFILE=)",
            wanted * NBD_SHARE as usize
        ));
    }
    possible
}

impl FrontEnds {
    fn start(
        args: &ServeArgs,
        (service, keeping): (&Arc<Service>, &Keeping),
        listen: &[Listen],
        send: Sender<Event>,
        output: &Output,
    ) -> Result<Self> {
        // Before anything is begun that would have to be taken back.
        if let Some(dir) = &args.mount {
            check_hides_nothing(dir, service)?;
            check_hides_no_socket(dir, listen)?;
        }
        if let Some(dir) = &args.shares {
            check_hides_nothing(dir, service)?;
            check_hides_no_exports(dir, args.exports.as_deref())?;
        }
        let devices = service.devices().shown(&args.volume);
        let mut front_ends = Self { nbd: None, mount: None, shares: None, exports: None, connections_max: 0 };
        if !listen.is_empty() {
            let log_output = *output;
            let usual = ServerOptions::default();
            let options = ServerOptions {
                connections_max: connections_max(args.connections.into(), usual.connections_max, output),
                bytes_in_flight_total: nbd_bytes(args.memory),
                log: Some(Arc::new(move |line: &str| log_output.note(&format!("shale: {line}")))),
                ..usual
            };
            front_ends.connections_max = options.connections_max;
            front_ends.nbd = Some(Server::start(Arc::clone(&devices), listen, options)?);
        }
        if args.mount.is_some() {
            match Self::mount(args, (service, keeping), devices, send) {
                Ok(mount) => front_ends.mount = Some(mount),
                Err(error) => {
                    front_ends.stop(service, output);
                    return Err(error);
                }
            }
        }
        if let Some(dir) = &args.shares {
            match Shares::start(service, dir, &args.volume, args.memory, keeping.keeper()) {
                Ok(shares) => {
                    service.set_shares(shares.clone());
                    front_ends.shares = Some(shares);
                }
                Err(error) => {
                    front_ends.stop(service, output);
                    return Err(error);
                }
            }
        }
        if let Some((dir, shares)) = args.exports.as_deref().zip(front_ends.shares.as_ref()) {
            match Exports::start(service.pool(), shares, dir, &service.facts().pool, output) {
                Ok(exports) => {
                    service.set_exports(exports.clone());
                    front_ends.exports = Some(exports);
                }
                Err(error) => {
                    front_ends.stop(service, output);
                    return Err(error);
                }
            }
        }
        Ok(front_ends)
    }

    fn mount(
        args: &ServeArgs,
        (service, keeping): (&Service, &Keeping),
        devices: Arc<dyn DeviceSet>,
        send: Sender<Event>,
    ) -> Result<Mount> {
        let dir = args.mount.as_deref().unwrap_or(Path::new("."));
        let options = MountOptions {
            allow_other: args.allow_other,
            source: service.facts().pool.display().to_string(),
            // We have the pool's lock.
            replaces_dead: true,
            kept_by: keeping.volumes(),
            ..MountOptions::default()
        };
        let mount = fe_fuse::mount(devices, dir, &options)?;
        let ended = mount.ended();
        let watch = move || {
            // How it ended was logged.
            drop(ended.wait());
            drop(send.send(Event::Unmounted));
        };
        std::thread::Builder::new()
            .name("mount-watch".to_owned())
            .spawn(watch)
            .map_err(|error| Error::from_io("cannot watch the mount", error))?;
        Ok(mount)
    }

    /// Tells the process that waits for it that everything answers.
    fn tell_ready(&self, service: &Service, ready_fd: Option<std::fs::File>, output: &Output) -> Result<()> {
        let listen = self.nbd.as_ref().map_or(&[][..], Server::local_addresses);
        let nbd: Vec<String> = listen.iter().map(ToString::to_string).collect();
        let uris: Vec<String> = listen.iter().map(|address| address.uri("")).collect();
        let mount = self.mount.as_ref().map(|mount| mount.dir().display().to_string());
        let over_io_uring = self.mount.as_ref().is_some_and(Mount::is_over_io_uring);
        let shares = self.shares.as_ref().map(|shares| shares.dir().display().to_string());
        let exports = self.exports.as_ref().map(|exports| exports.dir().display().to_string());
        service.set_served(Served {
            nbd: nbd.clone(),
            mount: mount.clone(),
            shares: shares.clone(),
            connections: self.nbd.as_ref().map(Server::counter),
            connections_max: self.connections_max,
        });
        let pool = service.facts().pool.display().to_string();
        let document = json!({
            "ready": true, "pid": std::process::id(), "pool": pool, "nbd": nbd, "uris": uris, "mount": mount,
            "mount_over_io_uring": over_io_uring, "shares": shares, "exports": exports,
        });
        output.result(&document, || {
            let mut text = format!("pool {pool}, process {}\n", std::process::id());
            for (address, uri) in nbd.iter().zip(&uris) {
                text.push_str(&format!("nbd {address}  {uri}\n"));
            }
            if let Some(mount) = &mount {
                let way = if over_io_uring { "  over io_uring" } else { "" };
                text.push_str(&format!("mount {mount}{way}\n"));
            }
            if let Some(shares) = &shares {
                text.push_str(&format!("shares {shares}\n"));
            }
            if let Some(exports) = &exports {
                text.push_str(&format!("exports {exports}\n"));
            }
            text + "ready\n"
        });
        if let Some(mut file) = ready_fd {
            let failed =
                |error: std::io::Error| Error::with_source(kind_of(&error), "--ready-fd cannot be written", error);
            file.write_all(b"ready\n").map_err(failed)?;
        }
        system::notify_manager("READY=1").map_err(|error| Error::from_io("the service manager cannot be told", error))
    }

    fn stop(self, service: &Service, output: &Output) {
        if let Some(nbd) = self.nbd {
            nbd.stop();
        }
        // Before the shares: their servers hold them.
        if let Some(exports) = self.exports {
            service.forget_exports();
            exports.stop();
        }
        if let Some(shares) = self.shares {
            service.forget_shares();
            shares.stop(output);
        }
        let Some(mount) = self.mount else { return };
        match mount.unmount(WhenBusy::Refuse) {
            Ok(()) => return,
            Err(error) if error.kind() != ErrorKind::InUse => output.warn(&error.to_string()),
            Err(_) => {
                let dir = mount.dir().display();
                output.warn(&format!(
                    "files in {dir} are open: they are cut off now; all that was written to them is kept"
                ));
                sync_stack(mount.stack(), output);
            }
        }
        if let Err(error) = mount.unmount(WhenBusy::Abort) {
            output.warn(&error.to_string());
        }
    }
}

/// Syncs the file systems on the files of the mount that is about to end, and tells their users
/// what to do.
fn sync_stack(stack: Stack, output: &Output) {
    if stack.is_empty() {
        return;
    }
    let shown = |paths: &[PathBuf]| paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
    let (mounts, devices) = (shown(&stack.mounts), shown(&stack.devices));
    let (send, done) = bounded(1);
    // A thread of its own: it waits for the files that this process serves, and ends when they are
    // cut off.
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
    output.warn(&format!(
        "{what}, and loses its storage now: what comes later fails there. Unmount it, detach it (losetup -d), serve the pool \
         again, and set it up anew; to be spared this, unmount before the server stops"
    ));
}
