//! `shale serve`.
//!
//! Order of events: signals caught; pool opened; front ends; control socket; `ready`. A command
//! that comes before the control socket finds the pool in use by a server that is starting, and
//! waits. Then everything is up to the clients, until a signal comes or the mount is taken away
//! with nothing else left to serve. Then:
//!
//! 1. Jobs are asked to end, and do so behind the slice that they work on.
//! 2. The front ends close and stop, as `front_ends` says. NBD: no new requests; those in work are
//!    answered, connections closed.
//! 3. The servers of network protocols end, then shares are unmounted.
//! 4. The mount is taken away. If files in it are open: what file systems on loop devices on them
//!    have in the kernel's caches is synced, then the mount is cut off. A process that only has a
//!    file open is not waited for: the writes acknowledged to it are kept.
//! 5. The control socket; the pool is closed, which makes everything durable.
//!
//! SIGUSR2 leaves the mounts to the keeper and the next server instead ([`handing_over`]); so does
//! a start that fails, with the mounts that have outlived an earlier server.
//!
//! A second SIGINT or SIGTERM, a second or more after the first, ends the process wherever it is.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use fe_nbd::Listen;
use serde_json::{Map, Value, json};
use surface::{Error, ErrorKind, Result};

use super::keeping::Keeping;
use super::{detached, handing_over, incomplete};
use crate::cli::{Metrics, ServeArgs, Switch, VERSION};
use crate::output::Output;
use host::Termination;
use operations::{Outcome, kind_of};
use server::control::ControlServer;
use server::front_ends::{self, Asked, FrontEnds, Told, Wanted, WantedHttp};
use server::pool_dir::{self, Access, OpenPool, Opening, PoolDir};
use server::service::Service;

/// How often a server looks for snapshots that are due: they are due by the hour.
const SCHEDULES_EVERY: Duration = Duration::from_secs(10);

/// What a server waits for.
enum Event {
    Signal(i32),
    /// A front end of that name has ended by itself.
    Over(&'static str),
}

/// Serves a pool until a signal comes.
pub fn run(args: ServeArgs, output: &Output) -> Outcome {
    if args.detach {
        return detached::run(&args, output);
    }
    // Before anything is opened, so that the number is surely the caller's.
    let ready_fd = args.ready_fd.map(|fd| {
        let failed = |error| Error::with_source(ErrorKind::Invalid, format!("--ready-fd {fd} cannot be used"), error);
        host::inherited_file(fd).map_err(failed)
    });
    let ready_fd = ready_fd.transpose()?;
    let signals = Termination::block_of_server().map_err(|error| Error::from_io("cannot block signals", error))?;
    let dir = PoolDir::new(&args.pool);
    let listen = addresses(&args, &dir, output)?;
    let (send, events) = unbounded();
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
    let held = Keeping::find(&dir, output);
    let how = Opening::usual(args.memory);
    let pool = pool_dir::open_to_serve(&dir, lock, how, &args.standby)?;
    let standby = pool.service.pool().status().standby;
    output.note(&format!("shale: acknowledged writes {}", pool_dir::promise(standby.place.as_deref(), standby.bytes)));
    let keeping = Keeping::begin(&dir, held, &args, standby.place.is_some(), output);
    let served = serve(&args, &dir, (&pool, &keeping), &listen, ready_fd, (send, events), output);
    let closed = pool.close();
    served?;
    Ok(closed?)
}

/// The process that speaks HTTP: its standard input is a socket of the server that has started it.
///
/// # Errors
/// When it cannot begin.
pub fn run_http() -> Outcome {
    let control = std::os::fd::AsFd::as_fd(&std::io::stdin()).try_clone_to_owned();
    let served = control.and_then(fe_http::run);
    Ok(served.map_err(|error| Error::from_io("the process for HTTP", error))?)
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
    let devices = service.devices().shown(&args.volume);
    let over = Arc::new(move |name| drop(send.send(Event::Over(name))));
    let wanted = Wanted {
        mount: args.mount.clone(),
        shares: args.shares.clone(),
        exports: args.exports.clone(),
        http: WantedHttp {
            listen: args.http.clone(),
            tls: args.http_tls.map(|tls| tls == Switch::On),
            certificate: args.http_cert.clone().zip(args.http_key.clone()),
            names: args.http_name.clone(),
            open_metrics: args.metrics == Metrics::Open,
            version: VERSION.to_owned(),
        },
        connections: args.connections,
        allow_other: args.allow_other,
        overlay: args.overlay,
        volume: args.volume.clone(),
        memory: args.memory,
    };
    let asked = Asked { args: &wanted, service, keeper: keeping.keeper(), listen, devices, over };
    let mut serving = FrontEnds::default();
    let has_mounts = args.mount.is_some() || args.shares.is_some();
    let started = serving.start(&front_ends::ALL, &asked, || keeping.clear_the_way(has_mounts, output));
    let mut control = None;
    let ready = started.and_then(|()| {
        let Told { served, document, lines } = serving.describe();
        service.set_served(served);
        control = Some(ControlServer::start(&dir.control_path(), Arc::clone(service))?);
        tell_ready(document, &lines, service, ready_fd, output)
    });
    match &ready {
        Ok(()) => {
            keeping.end_the_rest(output);
            let ended = wait(&events, !serving.hold_the_server(), service, output);
            if ended == Ended::HandedOver {
                match keeping.keeper() {
                    Some(_) => handing_over::hand_over(service, output),
                    None => output.warn("nothing holds the mounts: they end with this server, as with SIGTERM"),
                }
            }
        }
        Err(error) => handing_over::give_back(&mut serving, service, error, output),
    }
    // Those that watch a job are told of its end while the control socket answers.
    service.jobs().ask_to_stop();
    if let Err(error) = host::notify_manager("STOPPING=1") {
        output.warn(&format!("the service manager cannot be told: {error}"));
    }
    // Requests that wait for an image hold the front ends up, and the pool.
    service.end_fetching();
    serving.stop();
    service.jobs().stop();
    if let Some(control) = control {
        control.stop();
    }
    service.unwritten().iter().for_each(|line| output.warn(line));
    ready
}

/// Why a server stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// It is not needed any more, for now.
    Stopped,
    /// Another one follows at once, and goes on with the mounts.
    HandedOver,
}

/// Waits for a reason to stop, and sees to the snapshots that are due. `is_all`: nothing is served
/// any more once a front end has ended by itself.
fn wait(events: &Receiver<Event>, is_all: bool, service: &Arc<Service>, output: &Output) -> Ended {
    let mut last = Vec::new();
    loop {
        match events.recv_timeout(SCHEDULES_EVERY) {
            Ok(Event::Signal(host::HAND_OVER)) => {
                output.note("shale: stopping; the mounts are for the next server");
                return Ended::HandedOver;
            }
            Ok(Event::Signal(signal)) => {
                output.note(&format!("shale: stopping on signal {signal}"));
                return Ended::Stopped;
            }
            Ok(Event::Over(name)) if is_all => {
                output.note(&format!("shale: stopping: the {name} is gone, and nothing else is served"));
                return Ended::Stopped;
            }
            Ok(Event::Over(name)) => output.warn(&format!("the {name} is gone; the server goes on with the rest")),
            Err(RecvTimeoutError::Timeout) => {
                service.look_at_mounts();
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
            Err(RecvTimeoutError::Disconnected) => return Ended::Stopped,
        }
    }
}

/// Tells the process that waits for it that everything answers.
fn tell_ready(
    mut document: Map<String, Value>,
    lines: &[String],
    service: &Service,
    ready_fd: Option<std::fs::File>,
    output: &Output,
) -> Result<()> {
    let pool = service.facts().pool.display().to_string();
    let here = json!({ "ready": true, "pid": std::process::id(), "pool": pool });
    document.extend(here.as_object().cloned().unwrap_or_default());
    output.result(&document, || {
        let mut text = format!("pool {pool}, process {}\n", std::process::id());
        lines.iter().for_each(|line| text.push_str(&format!("{line}\n")));
        text + "ready\n"
    });
    if let Some(mut file) = ready_fd {
        let failed = |error: std::io::Error| Error::with_source(kind_of(&error), "--ready-fd cannot be written", error);
        file.write_all(b"ready\n").map_err(failed)?;
    }
    host::notify_manager("READY=1").map_err(|error| Error::from_io("the service manager cannot be told", error))
}
