//! One server of a protocol: a process that outlives the pool's server, and is found again by the
//! next one.
//!
//! A file holds its process id and start time: the id alone may belong to another process by then.
//! The server has a process group of its own, so that signals of a terminal to the pool's server do
//! not end it.

use std::fs::OpenOptions;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use host::with_usual_signals;

/// Interval of polling for a state without notification.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Deadline for a server to end in order: Ganesha takes three seconds.
const END_SECONDS: u32 = 10;
/// Deadline for a killed server. The kernel keeps it while it waits for a file system.
const KILLED_SECONDS: u32 = 3;
/// Maximum number of checks without a start after failed starts: at one per second, about a minute.
const LOOKS_LEFT_OUT_MAX: u32 = 64;

/// Waits until a condition holds, or until the deadline, by the clock: evaluating it may take
/// seconds itself. Returns whether it holds.
pub fn wait_until(seconds: u32, mut holds: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + Duration::from_secs(seconds.into());
    loop {
        if holds() {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// A server.
pub struct Process {
    pid_file: PathBuf,
    log: PathBuf,
    /// The child process, unless an earlier server of the pool has started it.
    child: Option<Child>,
    /// Its id and start time, in the kernel's ticks.
    running: Option<(Pid, u64)>,
    /// The last running server, whose processes may have outlived it.
    last: Option<Pid>,
    /// Number of consecutive failed starts.
    failures: u32,
    /// Checks to skip before the next start.
    left_out: u32,
}

impl Process {
    /// Finds the server of that name, which may be running.
    pub fn find(dir: &Path, name: &str) -> Self {
        let pid_file = dir.join("state").join(format!("{name}.pid"));
        let noted = std::fs::read_to_string(&pid_file).unwrap_or_default();
        let mut words = noted.split_whitespace();
        let pid = words.next().and_then(|word| word.parse().ok()).and_then(Pid::from_raw);
        let started = words.next().and_then(|word| word.parse().ok());
        let running = pid.zip(started).filter(|(pid, started)| start_of(*pid) == Some(*started));
        let last = pid.filter(|pid| running.is_some() || start_of(*pid).is_none());
        let log = dir.join("logs").join(format!("{name}.out"));
        Self { pid_file, log, child: None, running, last, failures: 0, left_out: 0 }
    }

    /// Returns whether it is running.
    pub fn is_alive(&mut self) -> bool {
        if let Some(child) = &mut self.child
            && !matches!(child.try_wait(), Ok(None))
        {
            self.child = None;
            self.running = None;
        }
        if self.running.is_some_and(|(pid, started)| start_of(pid) != Some(started)) {
            self.running = None;
        }
        self.running.is_some()
    }

    /// Returns its process id.
    pub fn pid(&self) -> Option<i32> {
        self.running.map(|(pid, _)| pid.as_raw_nonzero().get())
    }

    /// Returns whether it is time to start it: soon after it has ended, later with each failure.
    pub fn is_due(&mut self) -> bool {
        self.left_out = self.left_out.saturating_sub(1);
        self.left_out == 0
    }

    /// Makes the next start due at once.
    pub fn hurry(&mut self) {
        self.left_out = 0;
    }

    /// Records the outcome of a start.
    pub fn has_started(&mut self, well: bool) {
        self.failures = if well { 0 } else { self.failures + 1 };
        self.left_out = if well { 0 } else { (1 << self.failures.min(6)).min(LOOKS_LEFT_OUT_MAX) };
    }

    /// Starts it.
    ///
    /// # Errors
    /// A message.
    pub fn start(&mut self, command: &mut Command) -> Result<(), String> {
        self.end_left_behind();
        let name = command.get_program().to_string_lossy().into_owned();
        let failed = |error: std::io::Error| format!("{name} cannot be started: {error}");
        let log = OpenOptions::new().create(true).append(true).open(&self.log).map_err(failed)?;
        let again = log.try_clone().map_err(failed)?;
        let child = with_usual_signals(command)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(again)
            .current_dir("/")
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        self.running = pid.and_then(|pid| start_of(pid).map(|started| (pid, started)));
        self.last = pid;
        self.child = Some(child);
        if let Some((pid, started)) = self.running {
            let text = format!("{} {started}\n", pid.as_raw_nonzero());
            std::fs::write(&self.pid_file, text).map_err(failed)?;
        }
        Ok(())
    }

    /// Returns the last line of its output.
    pub fn last_words(&self) -> Option<String> {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text[text.len().saturating_sub(4096)..]).into_owned();
        let last = text.lines().rev().find(|line| !line.trim().is_empty())?;
        Some(last.trim().to_owned())
    }

    /// Asks it to read its configuration again.
    pub fn signal(&self, signal: Signal) {
        if let Some((pid, _)) = self.running {
            let _ = kill_process(pid, signal);
        }
    }

    /// Returns its own process and its sessions.
    pub fn all(&self) -> Vec<Pid> {
        self.pid().map(with_sessions).unwrap_or_default()
    }

    /// Returns the processes that it has started: sessions of clients.
    pub fn sessions(&self) -> Vec<Pid> {
        self.running.map(|(pid, _)| sessions_of(pid)).unwrap_or_default()
    }

    /// Ends it and the processes that it has started.
    pub fn stop(&mut self) {
        let Some((pid, _)) = self.running else {
            // Sessions outlive a killed server.
            self.end_left_behind();
            return;
        };
        let sessions = self.sessions();
        self.signal(Signal::TERM);
        if !wait_until(END_SECONDS, || !self.is_alive()) {
            self.signal(Signal::KILL);
            wait_until(KILLED_SECONDS, || !self.is_alive());
        }
        // Remaining sessions would keep the shares open.
        let _ = kill_process_group(pid, Signal::KILL);
        end_all(&sessions);
        // If even that does not end it, it is found again by its file.
        if !self.is_alive() {
            self.last = None;
            drop(std::fs::remove_file(&self.pid_file));
        }
    }

    /// Ends the remaining processes of a killed server: they would hold the port, and continue with
    /// an old configuration. While a number names a process group, no other process gets it.
    fn end_left_behind(&mut self) {
        let Some(group) = self.last.take().filter(|last| start_of(*last).is_none()) else { return };
        let _ = kill_process_group(group, Signal::KILL);
        wait_until(KILLED_SECONDS, || members(group).next().is_none());
    }
}

/// Returns the processes that a server has started.
fn sessions_of(pid: Pid) -> Vec<Pid> {
    // Those of vsftpd have groups of their own.
    let all: Vec<_> = all_pids().filter_map(|other| stat_of(other).map(|stat| (other, stat))).collect();
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(above) = found.get(next).map(|above| above.as_raw_nonzero().get()) {
        let is_below = |stat: &Stat| stat.parent == above || next == 0 && stat.group == above;
        let below = all.iter().filter(|(other, stat)| is_below(stat) && !found.contains(other));
        let below: Vec<_> = below.map(|(other, _)| *other).collect();
        found.extend(below);
        next += 1;
    }
    found.split_off(1)
}

/// Returns a server's process and its sessions.
pub fn with_sessions(pid: i32) -> Vec<Pid> {
    let pid = Pid::from_raw(pid);
    pid.map(|pid| sessions_of(pid).into_iter().chain([pid]).collect()).unwrap_or_default()
}

/// Returns the processes of a group that have not ended.
fn members(group: Pid) -> impl Iterator<Item = Pid> {
    let raw = group.as_raw_nonzero().get();
    all_pids().filter(move |pid| stat_of(*pid).is_some_and(|stat| stat.group == raw))
}

/// Returns all processes of the machine.
pub fn all_pids() -> impl Iterator<Item = Pid> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter_map(Pid::from_raw)
}

/// Returns the paths of the files that a process has open; none if it has ended.
pub fn open_files(pid: Pid) -> impl Iterator<Item = PathBuf> {
    let all = std::fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero())).into_iter().flatten().flatten();
    all.filter_map(|entry| std::fs::read_link(entry.path()).ok())
}

/// Ends the sessions that have a file open in one of the directories.
pub fn end_users_of(sessions: &[Pid], dirs: &[PathBuf]) {
    let uses = |pid: &&Pid| open_files(**pid).any(|file| dirs.iter().any(|dir| file.starts_with(dir)));
    end_all(sessions.iter().filter(uses));
}

/// Ends sessions.
pub fn end_all<'a>(sessions: impl IntoIterator<Item = &'a Pid>) {
    for pid in sessions {
        let _ = kill_process(*pid, Signal::KILL);
    }
}

/// Fields of the kernel's `stat` of a process.
struct Stat {
    parent: i32,
    group: i32,
    start: u64,
}

/// Returns the start time of a process; `None` if it has ended.
fn start_of(pid: Pid) -> Option<u64> {
    stat_of(pid).map(|stat| stat.start)
}

/// Returns the group and the start time of a process; `None` if it has ended.
fn stat_of(pid: Pid) -> Option<Stat> {
    let text = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // Its name may contain spaces and brackets.
    let (_, rest) = text.rsplit_once(')')?;
    let words: Vec<_> = rest.split_whitespace().collect();
    // After the name come the state, which is the third field, the parent, the fourth, the group,
    // the fifth, and the start time, the 22nd.
    if *words.first()? == "Z" {
        return None;
    }
    let parent = words.get(1)?.parse().ok()?;
    Some(Stat { parent, group: words.get(2)?.parse().ok()?, start: words.get(19)?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir(name: &str) -> testkit::TempDir {
        let dir = testkit::TempDir::new(name);
        for sub in ["state", "logs"] {
            std::fs::create_dir(dir.path().join(sub)).unwrap();
        }
        dir
    }

    /// The wait counted its checks: each of 750 waited 5 s for a silent port.
    #[test]
    fn a_wait_ends_by_the_clock_however_long_a_look_takes() {
        let mut looks = 0;
        let (_held, silent) = std::sync::mpsc::channel::<()>();
        let holds = wait_until(1, || {
            looks += 1;
            silent.recv_timeout(Duration::from_millis(400)).is_ok()
        });
        assert!(!holds && looks <= 4, "{looks} looks");
    }

    #[test]
    fn a_process_is_found_again_and_no_other_with_its_number() {
        let dir = dir("exports-process");
        let _alone = testkit::starting();
        let mut first = Process::find(dir.path(), "x");
        assert!(!first.is_alive());
        first.start(Command::new("sleep").arg("600")).unwrap();
        assert!(first.is_alive());
        let mut again = Process::find(dir.path(), "x");
        assert!(again.is_alive());
        assert_eq!(again.pid(), first.pid());
        let noted = std::fs::read_to_string(dir.path().join("state/x.pid")).unwrap();
        let other = format!("{} 1\n", noted.split_whitespace().next().unwrap());
        std::fs::write(dir.path().join("state/x.pid"), other).unwrap();
        assert!(!Process::find(dir.path(), "x").is_alive());
        first.stop();
        assert!(!first.is_alive() && !again.is_alive());
    }

    /// The pool's server blocks the signals that end it, and so did its children: each was stopped
    /// by SIGKILL after 20 seconds, and vsftpd did not receive SIGHUP.
    #[test]
    fn a_server_hears_the_signals_that_ours_has_blocked() {
        let dir = dir("exports-signals");
        let _alone = testkit::starting();
        // The mask belongs to the thread.
        let status = std::thread::scope(|scope| {
            let status = scope.spawn(|| {
                host::Termination::block().unwrap();
                host::survive_file_size_limit();
                let mut process = Process::find(dir.path(), "x");
                process.start(Command::new("sleep").arg("600")).unwrap();
                let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid().unwrap())).unwrap();
                process.signal(Signal::TERM);
                let ended = process.child.take().unwrap().wait().unwrap();
                assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended), Some(libc::SIGTERM));
                status
            });
            status.join().unwrap()
        });
        // Signals 32 and 33 are reserved by the C library: a program cannot change them.
        let libc_only: u64 = 0b11 << 31;
        for key in ["SigBlk", "SigIgn"] {
            let line = status.lines().find(|line| line.starts_with(key)).unwrap();
            let set = u64::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap();
            assert_eq!(set & !libc_only, 0, "{line}");
        }
    }

    #[test]
    fn what_a_killed_server_has_left_behind_ends_before_the_next_one() {
        let dir = dir("exports-left");
        let _alone = testkit::starting();
        let left = dir.path().join("left");
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("sleep 600 & echo $! > {0}.new; mv {0}.new {0}; wait", left.display()));
        let mut process = Process::find(dir.path(), "x");
        process.start(&mut command).unwrap();
        assert!(wait_until(20, || left.exists()));
        let child = std::fs::read_to_string(&left).unwrap().trim().parse().ok().and_then(Pid::from_raw).unwrap();
        process.signal(Signal::KILL);
        assert!(wait_until(20, || !process.is_alive()));
        assert!(start_of(child).is_some());
        process.start(Command::new("sleep").arg("600")).unwrap();
        assert!(start_of(child).is_none());
        process.stop();
    }

    #[test]
    fn sessions_that_use_a_directory_are_ended_and_no_others() {
        let dir = dir("exports-sessions");
        let _alone = testkit::starting();
        let place = |name: &str| {
            let place = dir.path().join(name);
            std::fs::create_dir(&place).unwrap();
            std::fs::write(place.join("file"), "x").unwrap();
            place
        };
        let (taken, kept) = (place("taken"), place("kept"));
        // In groups of their own, as those of vsftpd.
        let session = |place: &Path| format!("setsid sleep 600 < {}/file &", place.display());
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("{} {} wait", session(&taken), session(&kept)));
        let mut process = Process::find(dir.path(), "x");
        process.start(&mut command).unwrap();
        let has_both = |process: &Process| {
            let files: Vec<_> = process.sessions().into_iter().flat_map(open_files).collect();
            [&taken, &kept].iter().all(|dir| files.iter().any(|file| file.starts_with(dir)))
        };
        assert!(wait_until(20, || has_both(&process)));
        let sessions = process.sessions();
        assert_eq!(sessions.len(), 2);
        end_users_of(&sessions, std::slice::from_ref(&taken));
        assert!(wait_until(20, || process.sessions().len() == 1));
        let left = process.sessions();
        assert!(open_files(left[0]).any(|file| file.starts_with(&kept)));
        assert!(process.is_alive());
        process.stop();
        assert!(wait_until(20, || start_of(left[0]).is_none()));
    }

    #[test]
    fn a_server_that_fails_is_started_ever_later() {
        let dir = dir("exports-later");
        let mut process = Process::find(dir.path(), "x");
        let looks_until_due = |process: &mut Process| (1..1000).find(|_| process.is_due()).unwrap();
        assert_eq!(looks_until_due(&mut process), 1);
        let waits: Vec<_> = (0..8)
            .map(|_| {
                process.has_started(false);
                looks_until_due(&mut process)
            })
            .collect();
        assert_eq!(waits, [2, 4, 8, 16, 32, 64, 64, 64]);
        process.hurry();
        assert!(process.is_due());
    }
}
