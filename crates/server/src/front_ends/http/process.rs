//! Keeps the HTTP process running: starts it, and restarts it when it ends.
//!
//! One thread waits for the end of the process, which is the end of the socket pair that they
//! share. Each start makes new sockets for requests, each with a thread that answers; those of an
//! earlier process end when they notice its end.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fe_http::wire::{self, EVENT_LINES, REQUEST_LINES, Setup, send_command};
use fe_nbd::Listener;
use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use surface::{Error, Result};

use super::HTTP_COMMAND;
use super::answers::Answering;
use super::certificate::Certificates;

/// Lifetime after which a start counts as successful.
const STARTED_WELL: Duration = Duration::from_secs(60);
/// Maximum pause before it is restarted.
const PAUSE_SECONDS_MAX: u64 = 60;
/// Interval of checks for changed certificate files.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// Input of the process's start.
pub(super) struct Startable {
    pub(super) listeners: Vec<Listener>,
    pub(super) setup: Setup,
    pub(super) certificates: Option<Certificates>,
    pub(super) answering: Arc<Answering>,
}

#[derive(Default)]
struct State {
    child: Option<Child>,
    threads: Vec<JoinHandle<()>>,
    is_stopping: bool,
}

struct Shared {
    startable: Startable,
    state: Mutex<State>,
    stopping: Condvar,
}

/// See the module's text.
pub(super) struct Process {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

impl Process {
    /// Starts the process.
    ///
    /// # Errors
    /// When the first start fails.
    pub(super) fn start(startable: Startable) -> Result<Self> {
        let shared = Arc::new(Shared { startable, state: Mutex::default(), stopping: Condvar::new() });
        let failed = |error| Error::from_io("the HTTP process cannot be started", error);
        let control = shared.spawn(&shared.startable.setup).map_err(failed)?;
        let for_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("http-keeper".to_owned())
            .spawn(move || keep(&for_thread, control))
            .map_err(failed)?;
        Ok(Self { shared, thread })
    }

    /// Ends the process. Running requests are completed without a recipient.
    pub(super) fn stop(self) {
        {
            let mut state = self.shared.state.lock();
            state.is_stopping = true;
            end(&mut state);
            self.shared.stopping.notify_all();
        }
        drop(self.thread.join());
        let threads = std::mem::take(&mut self.shared.state.lock().threads);
        for thread in threads {
            drop(thread.join());
        }
    }
}

/// Ends the process and waits for that; nothing delays it, because it has no files open.
fn end(state: &mut State) {
    if let Some(mut child) = state.child.take() {
        // An error means that it has ended already.
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn keep(shared: &Shared, control: OwnedFd) {
    let mut control = Some(control);
    let mut failures = 0_u32;
    let mut setup = shared.startable.setup.clone();
    loop {
        let began = Instant::now();
        if let Some(control) = control.take() {
            shared.wait(&control, &mut setup);
        }
        let mut state = shared.state.lock();
        end(&mut state);
        if state.is_stopping {
            return;
        }
        failures = if began.elapsed() >= STARTED_WELL { 1 } else { failures + 1 };
        // Immediate the first time, then slower.
        let pause = if failures < 2 { 0 } else { (1 << failures.min(7)).min(PAUSE_SECONDS_MAX) };
        log::warn!(
            "the HTTP process has ended; it is restarted{}",
            match pause {
                0 => String::new(),
                pause => format!(" after {pause} s"),
            }
        );
        let until = Instant::now() + Duration::from_secs(pause);
        while !state.is_stopping && !shared.stopping.wait_until(&mut state, until).timed_out() {}
        if state.is_stopping {
            return;
        }
        drop(state);
        match shared.spawn(&setup) {
            Ok(started) => control = Some(started),
            Err(error) => log::warn!("the HTTP process cannot be started: {error}"),
        }
    }
}

impl Shared {
    /// Starts the process. Returns the socket that is closed when it ends.
    fn spawn(&self, setup: &Setup) -> std::io::Result<OwnedFd> {
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let pairs =
            (0..REQUEST_LINES + EVENT_LINES).map(|_| UnixStream::pair()).collect::<std::io::Result<Vec<_>>>()?;
        let (lines, passed): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        let mut program = Command::new("/proc/self/exe");
        program.arg(HTTP_COMMAND).current_dir("/").process_group(0);
        // The allocator's default first reservation, 1 GiB, is more than the process may map.
        program.env("MIMALLOC_ARENA_RESERVE", "32M");
        host::with_usual_signals(&mut program).stdin(Stdio::from(theirs)).stdout(Stdio::null());
        let mut state = self.state.lock();
        if state.is_stopping {
            return Err(std::io::ErrorKind::Interrupted.into());
        }
        state.child = Some(program.spawn()?);
        // It holds the other end of the pair, too.
        drop(program);
        state.threads.retain(|thread| !thread.is_finished());
        for line in lines {
            let answering = Arc::clone(&self.startable.answering);
            let thread = std::thread::Builder::new().name("http-answer".to_owned());
            state.threads.push(thread.spawn(move || answering.serve(&line))?);
        }
        let listeners = self.startable.listeners.iter().map(AsFd::as_fd);
        let descriptors: Vec<BorrowedFd<'_>> = listeners.chain(passed.iter().map(AsFd::as_fd)).collect();
        send_command(&ours, &wire::Command::Begin(setup.clone()), &descriptors)?;
        Ok(ours)
    }

    /// Waits for the end of the process, and sends it new certificates meanwhile.
    fn wait(&self, control: &OwnedFd, setup: &mut Setup) {
        let certificates = self.startable.certificates.as_ref();
        let patience = certificates.map(|_| &LOOK_EVERY);
        loop {
            // It sends nothing: readable means closed.
            match poll(&mut [PollFd::new(control, PollFlags::IN)], patience) {
                Ok(0) => {}
                Err(rustix::io::Errno::INTR) => continue,
                _ => return,
            }
            if let Some(pem) = certificates.and_then(Certificates::changed) {
                setup.tls = Some(pem.clone());
                // If it has ended, the next process receives it.
                drop(send_command(control, &wire::Command::Certificate(pem), &[]));
            }
        }
    }
}
