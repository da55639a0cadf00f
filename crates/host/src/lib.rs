//! Queries to the system: time, memory, space; signals; readiness notification of a service
//! manager; durable replacement of a file.
#![allow(unsafe_code)]
// The storage stack takes time and files through `env` so that they can be simulated; nothing
// simulates the queries of this crate.
#![allow(clippy::disallowed_methods)]

use std::io::{Error, ErrorKind, Result, Seek, SeekFrom};
use std::os::fd::{AsFd, FromRawFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

mod replace;
mod writeback;

pub use replace::{NewVersion, replace_file, sync_directory};
pub use writeback::start_writeback;

/// Seconds since 1970.
pub fn unix_s() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Resident memory of this process; 0 if the system does not report it.
pub fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse().ok());
    kib.unwrap_or(0u64) * 1024
}

/// Memory of the machine.
pub fn memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    (info.totalram as u64).saturating_mul(info.mem_unit.into())
}

/// Bytes that this process caused to be written to disks since its start; 0 if the system does not
/// count them.
pub fn disk_written_bytes() -> u64 {
    let io = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    io.lines().find_map(|line| line.strip_prefix("write_bytes:")?.trim().parse().ok()).unwrap_or(0)
}

/// Bytes available to a user on the file system at `path`.
///
/// # Errors
/// Of statvfs.
pub fn free_bytes(path: &Path) -> Result<u64> {
    let stat = rustix::fs::statvfs(path)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Whether it is a pipe without a reader.
pub fn has_lost_reader(file: impl AsFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut polled = [PollFd::new(&file, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok() && polled[0].revents().contains(PollFlags::ERR)
}

/// Whether the system's journal reads stderr (systemd.exec(5), `$JOURNAL_STREAM`).
pub fn stderr_is_journal() -> bool {
    let Ok(stat) = rustix::fs::fstat(std::io::stderr()) else { return false };
    std::env::var("JOURNAL_STREAM").is_ok_and(|stream| stream == format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// Size of a block device.
///
/// # Errors
/// Of open and lseek.
pub fn device_bytes(path: &Path) -> Result<u64> {
    std::fs::File::open(path)?.seek(SeekFrom::End(0))
}

/// Reads exactly `length` bytes into a new buffer, without clearing it first: that would cost as
/// much as reading.
///
/// # Errors
/// Of read, and `UnexpectedEof` when there are fewer.
pub fn read_vec(from: impl AsFd, length: usize) -> Result<Vec<u8>> {
    let data = read_up_to(from, length)?;
    if data.len() < length {
        let message = format!("the data ends after {} of {length} bytes", data.len());
        return Err(Error::new(ErrorKind::UnexpectedEof, message));
    }
    Ok(data)
}

/// As [`read_vec`], but the end of the data may come earlier.
///
/// # Errors
/// Of read.
pub fn read_up_to(from: impl AsFd, length: usize) -> Result<Vec<u8>> {
    // With exactly this capacity, so that it becomes a shared buffer without being copied.
    let mut data = Vec::with_capacity(length);
    while data.len() < length {
        match rustix::io::read(&from, rustix::buffer::spare_capacity(&mut data)) {
            Ok(0) => break,
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(data)
}

/// Reads exactly `length` bytes from `offset` into a new buffer with a total `capacity`, without
/// clearing it first.
///
/// # Errors
/// Of pread, and `UnexpectedEof` when there are fewer.
pub fn read_exact_at(from: impl AsFd, offset: u64, length: usize, capacity: usize) -> Result<Vec<u8>> {
    let mut data = Vec::with_capacity(capacity.max(length));
    while data.len() < length {
        let done = data.len();
        match rustix::io::pread(&from, &mut data.spare_capacity_mut()[..length - done], offset + done as u64) {
            Ok(([], _)) => {
                let message = format!("the data ends before byte {}", offset + length as u64);
                return Err(Error::new(ErrorKind::UnexpectedEof, message));
            }
            Ok((filled, _)) => {
                let more = filled.len();
                // SAFETY: pread filled that many bytes after the existing ones, within the
                // capacity.
                unsafe { data.set_len(done + more) };
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(data)
}

static STDOUT_WAS_CLOSED: AtomicBool = AtomicBool::new(false);

extern "C" fn check_stdout() {
    // SAFETY: F_GETFD touches no memory; it fails for a descriptor that is not open.
    let was_closed = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) } < 0;
    STDOUT_WAS_CLOSED.store(was_closed, Ordering::Relaxed);
}

/// Runs before `main`, because Rust's runtime opens /dev/null where a process has no stdout: data
/// written there is lost without an error. A stdout that is /dev/null proves nothing: the caller
/// may have asked for it.
// SAFETY: the C library calls the functions in this section once, before `main`; this one needs
// nothing that is initialised later.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK_AT_STDOUT: extern "C" fn() = check_stdout;

/// The process's own stdout, for commands that write data there.
///
/// # Errors
/// EBADF when it was given none.
pub fn stdout() -> Result<std::fs::File> {
    if STDOUT_WAS_CLOSED.load(Ordering::Relaxed) {
        return Err(Error::from_raw_os_error(libc::EBADF));
    }
    Ok(std::io::stdout().as_fd().try_clone_to_owned()?.into())
}

/// Waits briefly until there is something to read (or the end); returns whether there is.
///
/// # Errors
/// Of poll.
pub fn readable(from: impl AsFd) -> Result<bool> {
    let moment = rustix::event::Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    let mut fds = [rustix::event::PollFd::new(&from, rustix::event::PollFlags::IN)];
    match rustix::event::poll(&mut fds, Some(&moment)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Asks a server to stop and leave its mounts to the next server.
pub const HAND_OVER: i32 = libc::SIGUSR2;

/// The signals that ask a process to stop. Blocked while this exists, in the thread that created it
/// and in those started later; received by [`wait`](Self::wait).
#[derive(Clone, Copy)]
pub struct Termination {
    set: libc::sigset_t,
}

impl Termination {
    /// Blocks SIGINT, SIGTERM and SIGHUP. Must be called before any other thread is started.
    ///
    /// # Errors
    /// Of pthread_sigmask.
    pub fn block() -> Result<Self> {
        Self::block_all(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP])
    }

    /// The same, and [`HAND_OVER`], which asks a server to leave its mounts to the next one.
    ///
    /// # Errors
    /// Of pthread_sigmask.
    pub fn block_of_server() -> Result<Self> {
        Self::block_all(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP, HAND_OVER])
    }

    fn block_all(signals: &[i32]) -> Result<Self> {
        let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigemptyset initialises the set; the others work on the initialised set and on
        // valid signal numbers.
        let (set, status) = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            let mut set = set.assume_init();
            for signal in signals {
                libc::sigaddset(&raw mut set, *signal);
            }
            let status = libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            (set, status)
        };
        if status != 0 { Err(Error::from_raw_os_error(status)) } else { Ok(Self { set }) }
    }

    /// Waits for one of the signals; returns its number.
    ///
    /// # Errors
    /// Of sigwait.
    pub fn wait(&self) -> Result<i32> {
        let mut signal = 0;
        // SAFETY: the set was initialised in `block`; `signal` is valid for the call.
        match unsafe { libc::sigwait(&raw const self.set, &raw mut signal) } {
            0 => Ok(signal),
            error => Err(Error::from_raw_os_error(error)),
        }
    }

    /// Starts a thread that calls `each` for each signal until it returns true, because the process
    /// is asked to end; from then on it ends the process when a user insists ([`Insistence`]).
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn watch(self, mut each: impl FnMut(i32) -> bool + Send + 'static) -> Result<()> {
        let body = move || {
            // An error of sigwait means that its arguments are wrong, which `block` rules out.
            loop {
                let Ok(signal) = self.wait() else { return };
                if each(signal) {
                    break;
                }
            }
            let mut insistence = Insistence { asked: Some(Instant::now()) };
            while let Ok(signal) = self.wait() {
                if insistence.takes(signal, Instant::now()) {
                    exit_now(EXIT_INTERRUPTED);
                }
            }
        };
        std::thread::Builder::new().name("signals".to_owned()).spawn(body).map(drop)
    }

    /// A flag that is set when a signal comes; see [`watch`](Self::watch) for a second one.
    ///
    /// # Errors
    /// When the thread that waits for signals cannot be started.
    pub fn flag(self) -> Result<Arc<AtomicBool>> {
        let flag = Arc::new(AtomicBool::new(false));
        let for_thread = Arc::clone(&flag);
        self.watch(move |_| {
            for_thread.store(true, Ordering::SeqCst);
            true
        })?;
        Ok(flag)
    }
}

/// Starts a thread that receives no signals, so that it may run before [`Termination::block`].
///
/// # Errors
/// Of pthread_sigmask, and when the thread cannot be started.
pub fn spawn_without_signals(name: &str, body: impl FnOnce() + Send + 'static) -> Result<std::thread::JoinHandle<()>> {
    let (mut all, mut before) = (std::mem::MaybeUninit::uninit(), std::mem::MaybeUninit::uninit());
    // SAFETY: sigfillset initialises the set, which the other call reads; that initialises
    // `before`.
    let status = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr())
    };
    if status != 0 {
        return Err(Error::from_raw_os_error(status));
    }
    // A thread inherits the mask of its creator.
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(body);
    // SAFETY: the call above has succeeded, so `before` is the mask of this thread.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    thread
}

/// Signals within this time of the first are one request: timeout(1) signals its child and then its
/// process group, a terminal the whole foreground group while a script forwards the signal. A user
/// who insists has first seen the process continue.
const ONE_REQUEST: Duration = Duration::from_secs(1);

/// Detects a user's insistence that a process stop immediately, at any loss: a SIGINT or SIGTERM
/// some time after the first one. [`HAND_OVER`] and SIGHUP are requests, never insistence: closing
/// a terminal sends SIGHUP twice (the shell to its jobs, the kernel to the foreground), and systemd
/// can be configured to send it right after SIGTERM.
#[derive(Debug, Default)]
struct Insistence {
    asked: Option<Instant>,
}

impl Insistence {
    /// Records a signal received at a time; returns whether it insists.
    fn takes(&mut self, signal: i32, now: Instant) -> bool {
        ![libc::SIGHUP, HAND_OVER].contains(&signal)
            && now.duration_since(*self.asked.get_or_insert(now)) >= ONE_REQUEST
    }
}

/// Makes a write past the process's file size limit (`ulimit -f`) fail, like one to a full disk,
/// instead of killing the process.
pub fn survive_file_size_limit() {
    // SAFETY: SIG_IGN runs no code, and the signal number is valid.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Starts a program with no signal blocked and none ignored, whatever the state of this process. A
/// program that inherits a blocked SIGTERM cannot be stopped.
pub fn with_usual_signals(command: &mut Command) -> &mut Command {
    let reset = || {
        let mut none = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigemptyset initialises the set, which sigprocmask reads. SIG_DFL runs no code.
        // Invalid numbers are refused. All of them may be called after fork.
        let status = unsafe {
            for signal in 1..=libc::SIGRTMAX() {
                libc::signal(signal, libc::SIG_DFL);
            }
            libc::sigemptyset(none.as_mut_ptr());
            libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut())
        };
        if status == 0 { Ok(()) } else { Err(Error::last_os_error()) }
    };
    // SAFETY: between fork and exec it only calls async-signal-safe functions, and allocates
    // nothing.
    unsafe { command.pre_exec(reset) }
}

/// Starts a program in a session of its own, which no terminal ends, and with an inherited
/// descriptor of this process.
pub fn in_own_session(command: &mut Command, inherited: RawFd) -> &mut Command {
    let begin = move || {
        // SAFETY: neither call touches memory; both may be called after fork, and a session of its
        // own is no error.
        let status = unsafe {
            libc::setsid();
            libc::fcntl(inherited, libc::F_SETFD, 0)
        };
        if status < 0 { Err(Error::last_os_error()) } else { Ok(()) }
    };
    // SAFETY: between fork and exec it only calls async-signal-safe functions, and allocates
    // nothing.
    unsafe { command.pre_exec(begin) }
}

/// Raises the descriptor limit of this process to its maximum: the initial limit is often kept low
/// for programs that cannot handle more (select(2)).
pub fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    // If it cannot be raised, fewer must do.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Exit code of a process interrupted by a signal.
const EXIT_INTERRUPTED: i32 = 130;

/// Ends the process without running anything else: nothing is flushed, as in a crash.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit has no preconditions.
    unsafe { libc::_exit(code) }
}

/// Takes over an inherited file descriptor. Must be called before anything else is opened, so that
/// the number cannot be one of ours.
///
/// # Errors
/// When it is not open, or is stdin, stdout or stderr.
pub fn inherited_file(fd: i32) -> Result<std::fs::File> {
    // SAFETY: F_SETFD touches no memory; it fails for a descriptor that is not open.
    if fd <= 2 || unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: the descriptor is open and, this being called first, owned by nothing else in this
    // process.
    Ok(unsafe { std::fs::File::from_raw_fd(fd) })
}

/// Notifies a service manager that waits on `$NOTIFY_SOCKET` (sd_notify(3)); a no-op without one.
///
/// # Errors
/// When the socket exists but does not accept the message.
pub fn notify_manager(state: &str) -> Result<()> {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return Ok(()) };
    notify_socket(&name, state)
}

/// Returns how often a service manager wants to hear from this process, if it does
/// (sd_watchdog_enabled(3)): a service that is silent for longer is killed.
pub fn watchdog_interval() -> Option<Duration> {
    let value = |name| std::env::var(name).ok();
    watchdog_of(value("WATCHDOG_USEC"), value("WATCHDOG_PID"))
}

fn watchdog_of(usec: Option<String>, pid: Option<String>) -> Option<Duration> {
    let is_other = pid.is_some_and(|pid| pid.parse() != Ok(std::process::id()));
    let usec = usec.filter(|_| !is_other)?.parse().ok().filter(|usec| *usec > 0)?;
    Some(Duration::from_micros(usec))
}

fn notify_socket(name: &std::ffi::OsStr, state: &str) -> Result<()> {
    let address = match name.as_bytes().split_first() {
        Some((b'@', abstract_name)) => SocketAddr::from_abstract_name(abstract_name)?,
        _ => SocketAddr::from_pathname(name)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insists(signals: &[(i32, u64)]) -> Vec<bool> {
        let (mut insistence, began) = (Insistence::default(), Instant::now());
        signals.iter().map(|(signal, ms)| insistence.takes(*signal, began + Duration::from_millis(*ms))).collect()
    }

    #[test]
    fn a_terminal_that_is_closed_asks_and_does_not_insist() {
        let (hup, int, term) = (libc::SIGHUP, libc::SIGINT, libc::SIGTERM);
        assert_eq!(insists(&[(hup, 0), (hup, 2000), (term, 4000)]), [false, false, false]);
        assert_eq!(insists(&[(term, 0), (hup, 2000), (int, 2001)]), [false, false, true]);
        assert_eq!(insists(&[(int, 0), (int, 1000)]), [false, true]);
    }

    #[test]
    fn signals_that_come_at_once_are_one_request() {
        // As sent by timeout(1), and an impatient script.
        assert_eq!(insists(&[(libc::SIGTERM, 0), (libc::SIGTERM, 0)]), [false, false]);
        let burst = [(libc::SIGINT, 0), (libc::SIGTERM, 0), (libc::SIGTERM, 999), (libc::SIGTERM, 1500)];
        assert_eq!(insists(&burst), [false, false, false, true]);
    }

    #[test]
    fn a_manager_is_notified_by_path_and_by_abstract_name() {
        let dir = testkit::TempDir::new("notify");
        let path = dir.path().join("socket");
        let abstract_name = format!("shale-notify-{}", std::process::id());
        let abstract_address = SocketAddr::from_abstract_name(&abstract_name).unwrap();
        let by_path = (UnixDatagram::bind(&path).unwrap(), path.as_os_str().to_owned());
        let by_name = (UnixDatagram::bind_addr(&abstract_address).unwrap(), format!("@{abstract_name}").into());
        for (socket, name) in [by_path, by_name] {
            notify_socket(&name, "READY=1").unwrap();
            let mut buffer = [0; 16];
            let length = socket.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], b"READY=1");
        }
    }

    #[test]
    fn a_watchdog_is_meant_for_its_process() {
        let of = |usec: &str, pid: Option<String>| watchdog_of(Some(usec.to_owned()), pid);
        assert_eq!(of("3000000", None), Some(Duration::from_secs(3)));
        assert_eq!(of("3000000", Some(std::process::id().to_string())), Some(Duration::from_secs(3)));
        assert_eq!(of("3000000", Some("1".to_owned())), None);
        assert_eq!((of("0", None), of("soon", None), watchdog_of(None, None)), (None, None, None));
    }

    #[test]
    fn an_inherited_descriptor_is_taken_over() {
        use std::io::{Read, Write};
        use std::os::fd::IntoRawFd;
        let (mut reader, writer) = std::io::pipe().unwrap();
        let mut file = inherited_file(writer.into_raw_fd()).unwrap();
        file.write_all(b"ready\n").unwrap();
        drop(file);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "ready\n");
        assert!(inherited_file(1).is_err());
        assert!(inherited_file(1_000_000).is_err());
    }

    #[test]
    fn exactly_as_much_is_read_as_was_asked_for() {
        use std::io::Write;
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(b"abcdefg").unwrap();
        drop(writer);
        assert!(readable(&reader).unwrap());
        assert_eq!(read_vec(&reader, 3).unwrap(), b"abc");
        assert_eq!(read_up_to(&reader, 2).unwrap(), b"de");
        assert_eq!(read_vec(&reader, 3).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert_eq!(read_up_to(&reader, 2).unwrap(), b"");
    }

    #[test]
    fn memory_and_space_are_known() {
        assert!(resident_bytes() > 100 << 10);
        assert!(free_bytes(Path::new("/")).unwrap() > 0);
    }
}
