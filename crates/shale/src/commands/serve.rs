//! `shale serve`.
//!
//! Order of events: signals caught; pool opened; front ends; control socket; `ready`. A command
//! that runs before the control socket exists finds the pool in use by a server that is starting,
//! and waits. The server runs until a signal arrives, or until the mount is unmounted from outside
//! with nothing else left to serve. Then:
//!
//! 1. Jobs are asked to end, and do so after their current slice. A restore of files has ended before
//!    the next step, because it removes its staging directory through the mount of its share.
//! 2. The front ends close and stop, as `front_ends` says. NBD: no new requests; running ones are
//!    answered, connections closed.
//! 3. The servers of network protocols end, then shares are unmounted.
//! 4. The volumes are unmounted. If files in the mount are open, file systems on loop devices on
//!    them are synced from the kernel's caches, then the mount is cut off. A process that only has
//!    a file open is not waited for: the writes acknowledged to it are kept.
//! 5. The control socket; the pool is closed, which makes everything durable.
//!
//! SIGHUP also stops a server, unless it has a settings file: then it reloads the file
//! ([`serving`](super::serving)).
//!
//! SIGUSR2 leaves the mounts to the keeper and the next server instead ([`handing_over`]), and block
//! devices to the kernel; so does a failed start, with those that have outlived an earlier server.
//!
//! A second SIGINT or SIGTERM, a second or more after the first, ends the process immediately.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use report::{JobKind, ReloadReport};
use serde_json::{Map, Value, json};
use surface::{Error, ErrorKind, Result};

use super::keeping::Keeping;
use super::serving::{Serving, Source};
use super::watchdog::Watchdog;
use super::{detached, handing_over, incomplete};
use crate::cli::ServeArgs;
use crate::output::Output;
use host::Termination;
use operations::{Caller, Outcome, Request, Role, Who, kind_of};
use server::control::ControlServer;
use server::front_ends::Told;
use server::pool_dir::{self, Access, OpenPool, Opening, PoolDir};
use server::service::Service;

/// Interval of checks for snapshots that are due: they are due by the hour.
const SCHEDULES_EVERY: Duration = Duration::from_secs(10);

/// Time for a cancelled restore to remove what it has staged: some hundred thousand files.
const RESTORE_PATIENCE: Duration = Duration::from_secs(20);

/// Events that a server waits for.
enum Event {
    Signal(i32),
    /// The settings file should be reloaded; the sender waits for the result, if there is one.
    Reload(Option<Sender<Result<ReloadReport>>>),
    /// A front end of that name has ended by itself.
    Over(&'static str),
}

/// Serves a pool until a signal comes.
pub fn run(args: ServeArgs, output: &Output) -> Outcome {
    let source = Source::of(&args)?;
    if args.detach {
        return detached::run(&args, source.settings(), output);
    }
    // Before anything is opened, so that the number surely belongs to the caller.
    let ready_fd = args.ready_fd.map(|fd| {
        let failed = |error| Error::with_source(ErrorKind::Invalid, format!("--ready-fd {fd} cannot be used"), error);
        host::inherited_file(fd).map_err(failed)
    });
    let ready_fd = ready_fd.transpose()?;
    let signals = Termination::block_of_server().map_err(|error| Error::from_io("cannot block signals", error))?;
    let settings = source.settings().clone();
    let dir = PoolDir::new(&settings.pool);
    let (send, events) = unbounded();
    // Before any thread is started: it applies to this one and those that it starts. A file system
    // on a volume of this server waits for the threads of the engine as it does for those of the
    // front ends.
    fe_fuse::become_io_flusher();
    let for_signals = send.clone();
    let has_file = source.has_file();
    let on_signal = move |signal| {
        let is_reload = signal == libc::SIGHUP && has_file;
        drop(for_signals.send(if is_reload { Event::Reload(None) } else { Event::Signal(signal) }));
        !is_reload
    };
    signals.watch(on_signal).map_err(|error| Error::from_io("cannot watch for signals", error))?;
    let access = Access { memory: settings.memory, wait: settings.wait };
    let lock = pool_dir::lock_alone(&dir, &access)?;
    let held = Keeping::find(&dir, output);
    let how = Opening::usual(settings.memory);
    let pool = pool_dir::open_to_serve(&dir, lock, how, &settings.standby)?;
    let standby = pool.service.pool().status().standby;
    output.note(&format!("shale: acknowledged writes {}", pool_dir::promise(standby.place.as_deref(), standby.bytes)));
    let keeping = Keeping::begin(&dir, held, &settings, standby.place.is_some(), output);
    let served = serve(source, &dir, (&pool, keeping), ready_fd, (send, events), output);
    let closed = pool.close();
    served?;
    Ok(closed?)
}

/// Main function of the HTTP process: its standard input is a socket of the server that has started
/// it.
///
/// # Errors
/// When it cannot start.
pub fn run_http() -> Outcome {
    let control = std::os::fd::AsFd::as_fd(&std::io::stdin()).try_clone_to_owned();
    let served = control.and_then(fe_http::run);
    Ok(served.map_err(|error| Error::from_io("the HTTP process", error))?)
}

fn serve(
    source: Source,
    dir: &PoolDir,
    (pool, keeping): (&OpenPool, Keeping),
    ready_fd: Option<std::fs::File>,
    (send, events): (Sender<Event>, Receiver<Event>),
    output: &Output,
) -> Result<()> {
    let service = &pool.service;
    let for_reload = send.clone();
    let over = Arc::new(move |name| drop(send.send(Event::Over(name))));
    let mut serving = Serving::new(source, dir, pool, keeping, over, *output)?;
    for title in service.pool().incomplete() {
        output.warn(&incomplete::words(&title, None));
    }
    let started = serving.start();
    let mut control = None;
    let ready = started.and_then(|()| {
        let Told { served, document, lines } = serving.describe();
        service.set_served(served);
        if serving.has_file() {
            service.set_reloader(Some(Arc::new(move || reload_by(&for_reload))));
        }
        control = Some(ControlServer::start(&dir.control_path(), Arc::clone(service))?);
        serving.begin_history();
        tell_ready(document, &lines, service, ready_fd, output)
    });
    let watchdog = ready.is_ok().then(|| Watchdog::start(service.pool())).flatten();
    match &ready {
        Ok(()) => {
            serving.keeping().end_the_rest(output);
            let ended = wait(&events, &mut serving, service, output);
            if ended == Ended::HandedOver {
                let holds_mounts = serving.keeping().keeper().is_some();
                handing_over::hand_over(serving.front_ends(), holds_mounts, service, output);
            }
        }
        Err(error) => handing_over::give_back(serving.front_ends(), service, error, output),
    }
    // A command that waits for a reload learns that none will follow.
    drop(events);
    // Watchers of a job learn of its end while the control socket answers.
    service.jobs().ask_to_stop();
    if let Err(error) = host::notify_manager("STOPPING=1") {
        output.warn(&format!("cannot notify the service manager: {error}"));
    }
    // Requests that wait for an image block the front ends and the pool.
    service.end_fetching();
    if !service.jobs().await_end_of(JobKind::Restore, RESTORE_PATIENCE) {
        output.warn("a restore has not ended in time: the next restore to its share removes what it has staged");
    }
    serving.stop();
    service.jobs().stop();
    service.end_history();
    if let Some(control) = control {
        control.stop();
    }
    service.set_reloader(None);
    drop(watchdog);
    service.unwritten().iter().for_each(|line| output.warn(line));
    ready
}

/// Makes the serving thread reload the settings file, and waits for its answer.
fn reload_by(events: &Sender<Event>) -> Result<ReloadReport> {
    let (answer, answered) = bounded(1);
    let stopping = || Error::new(ErrorKind::InUse, "the server is stopping, and does not reload");
    events.send(Event::Reload(Some(answer))).map_err(|_| stopping())?;
    answered.recv().map_err(|_| stopping())?
}

/// Reason why a server stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// It is not needed for now.
    Stopped,
    /// Another one follows at once, and takes over the mounts.
    HandedOver,
}

/// Waits for a reason to stop, reloads, and takes scheduled snapshots.
fn wait(events: &Receiver<Event>, serving: &mut Serving<'_>, service: &Arc<Service>, output: &Output) -> Ended {
    let mut last = Vec::new();
    loop {
        match events.recv_timeout(SCHEDULES_EVERY) {
            Ok(Event::Signal(host::HAND_OVER)) => {
                output.note("shale: stopping; the mounts wait for the next server");
                return Ended::HandedOver;
            }
            Ok(Event::Signal(signal)) => {
                output.note(&format!("shale: stopping on signal {signal}"));
                return Ended::Stopped;
            }
            // A client that has not waited for it finds it in the log.
            Ok(Event::Reload(Some(asker))) => drop(asker.send(serving.reload())),
            Ok(Event::Reload(None)) => {
                let caller = Caller { who: Who::Server, from: "SIGHUP".to_owned(), role: Role::Admin };
                // Its outcome is in the log, and in the audit log like that of the command.
                drop(service.guarded(&caller, Request::Reload, |_| serving.reload()));
            }
            // Nothing is served any more then.
            Ok(Event::Over(name)) if !serving.hold_the_server() => {
                output.note(&format!("shale: stopping: the {name} has ended, and nothing else is served"));
                return Ended::Stopped;
            }
            Ok(Event::Over(name)) => output.warn(&format!("the {name} has ended; the server continues with the rest")),
            Err(RecvTimeoutError::Timeout) => {
                service.look_at_mounts();
                service.tend_images();
                service.new_fullness().iter().for_each(|line| output.warn(line));
                service.new_damage().iter().for_each(|line| output.warn(line));
                let told = service.run_schedules(&|| !events.is_empty());
                // Failed snapshots are retried, and reported once.
                if told != last {
                    told.iter().for_each(|line| service.log(line));
                    last = told;
                }
            }
            Err(RecvTimeoutError::Disconnected) => return Ended::Stopped,
        }
    }
}

/// Tells the waiting process that all front ends answer.
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
    host::notify_manager("READY=1").map_err(|error| Error::from_io("cannot notify the service manager", error))
}
