//! Runs the real binary on pools in directories of their own, on a real disk.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::panic)]

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use serde_json::Value;
use server::pool_dir::{self, OpenPool, Opening, PoolDir};
use testkit::TempDir;

/// The binary under test.
pub const SHALE: &str = env!("CARGO_BIN_EXE_shale");

/// Directory of servers' standby memory, and bytes at the head of such a file, which name the
/// pool's directory.
const STANDBY_DIR: &str = env::STANDBY_DIR;
const STANDBY_HEAD_BYTES: usize = 4096;

/// A directory that is removed with its content, and with the standby memory that killed servers of
/// its pools have left.
pub struct Dir(TempDir);

impl Drop for Dir {
    fn drop(&mut self) {
        let Ok(own) = self.path().canonicalize() else { return };
        let own = own.join("");
        for entry in std::fs::read_dir(STANDBY_DIR).into_iter().flatten().flatten() {
            if !entry.file_name().to_string_lossy().starts_with("shale-") {
                continue;
            }
            let mut head = [0; STANDBY_HEAD_BYTES];
            let is_read = std::fs::File::open(entry.path()).is_ok_and(|mut file| file.read_exact(&mut head).is_ok());
            let own = own.as_os_str().as_encoded_bytes();
            if is_read && head.windows(own.len()).any(|bytes| bytes == own) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}

impl Dir {
    pub fn new() -> Self {
        Self(TempDir::new("cli"))
    }
    pub fn path(&self) -> &Path {
        self.0.path()
    }
    pub fn join(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }
    /// Returns the path of the pool that most tests use.
    pub fn pool(&self) -> PathBuf {
        self.join("pool")
    }
    /// Creates that pool.
    pub fn with_pool(capacity: &str) -> Self {
        let dir = Self::new();
        run(["init", path(&dir.pool()), "--capacity", capacity]).ok();
        dir
    }
    /// Opens that pool in this process.
    pub fn open(&self) -> OpenPool {
        let path = PoolDir::new(&self.pool());
        let lock = Arc::new(path.lock().unwrap().unwrap());
        pool_dir::open_locked(&path, lock, Opening::usual(64 << 20)).unwrap()
    }
}

pub fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Result of a command.
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    pub fn of(output: std::process::Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
    /// Requires that exit code.
    #[track_caller]
    pub fn code(self, code: i32) -> Self {
        assert_eq!(self.code, code, "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self
    }
    #[track_caller]
    pub fn ok(self) -> Self {
        self.code(0)
    }
    #[track_caller]
    pub fn json(self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {}", self.stdout))
    }
    /// Requires that text on stderr.
    #[track_caller]
    pub fn says(self, text: &str) -> Self {
        assert!(self.stderr.contains(text), "'{text}' is not in: {}", self.stderr);
        self
    }
}

/// Runs the binary to its end.
pub fn run<S: AsRef<OsStr>>(words: impl IntoIterator<Item = S>) -> Ran {
    Ran::of(Command::new(SHALE).args(words).stdin(Stdio::null()).output().unwrap())
}

/// Runs `shale COMMAND POOL WORDS`.
pub fn on(dir: &Dir, command: &str, words: &[&str]) -> Ran {
    let mut all = vec![command.to_owned(), path(&dir.pool()).to_owned()];
    all.extend(words.iter().map(|word| (*word).to_owned()));
    run(all)
}

/// Runs the binary with the given stdin.
pub fn run_with_stdin(words: &[&str], stdin: Stdio) -> Ran {
    Ran::of(Command::new(SHALE).args(words).stdin(stdin).output().unwrap())
}

pub fn signal(child: &Child, number: i32) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, rustix::process::Signal::from_named_raw(number).unwrap()).unwrap();
}

/// Stops a process until it gets SIGCONT. A signal is only pending when kill(2) returns, and until
/// the last thread has stopped the others continue.
pub fn halt(child: &Child) {
    signal(child, libc::SIGSTOP);
    let pid = rustix::process::WaitId::Pid(rustix::process::Pid::from_child(child));
    let status = rustix::process::waitid(pid, rustix::process::WaitIdOptions::STOPPED).unwrap();
    assert!(status.is_some_and(|status| status.stopped()));
}

/// A server that answers, killed at the end of the test.
pub struct Server {
    pub child: Child,
    /// Its output until it was ready.
    pub said: String,
    /// Held open, so that the server can continue to print.
    _stdout: BufReader<std::process::ChildStdout>,
}

impl Server {
    /// Starts `shale serve POOL WORDS`, and returns once it is ready.
    pub fn start(dir: &Dir, words: &[&str]) -> Self {
        let mut command = Command::new(SHALE);
        command.arg("serve").arg(dir.pool()).args(words);
        Self::of(command)
    }

    pub fn of(command: Command) -> Self {
        Self::with_stderr(command, Stdio::piped())
    }

    pub fn with_stderr(mut command: Command, stderr: Stdio) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut said = String::new();
        loop {
            let before = said.len();
            if stdout.read_line(&mut said).unwrap() == 0 {
                let ran = Ran::of(child.wait_with_output().unwrap());
                panic!("the server ended with {} before it was ready: {said}{}", ran.code, ran.stderr);
            }
            let line = said[before..].trim_end();
            if line == "ready" || line.contains("\"ready\":true") {
                break;
            }
        }
        Self { child, said, _stdout: stdout }
    }

    pub fn signal(&self, number: i32) {
        signal(&self.child, number);
    }

    /// See [`halt`].
    pub fn halt(&self) {
        halt(&self.child);
    }

    /// Sends SIGTERM; it must end with 0. Returns its stderr.
    #[track_caller]
    pub fn stop(mut self) -> String {
        self.signal(libc::SIGTERM);
        self.ended(0)
    }

    /// Waits for its end.
    #[track_caller]
    pub fn ended(&mut self, code: i32) -> String {
        let mut stderr = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        let status = self.child.wait().unwrap();
        assert_eq!(status.code(), Some(code), "the server said: {stderr}");
        stderr
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Data of mixed kinds, the same on every machine.
pub fn mixed_data(bytes: usize) -> Vec<u8> {
    testkit::mixed(1, bytes)
}

/// Returns incompressible bytes, the same each time.
pub fn noise(bytes: usize) -> Vec<u8> {
    testkit::noise(1, bytes)
}

/// Makes a file `name` of so many bytes of noise, and imports it to the volume `v`.
pub fn imported_noise(dir: &Dir, name: &str, bytes: usize) -> PathBuf {
    let file = dir.join(name);
    std::fs::write(&file, noise(bytes)).unwrap();
    on(dir, "import", &["v", path(&file)]).ok();
    file
}

/// Returns the volume as exported to a pipe.
pub fn content(dir: &Dir, volume: &str) -> Vec<u8> {
    let output = Command::new(SHALE).args(["export", path(&dir.pool()), volume, "-"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// Returns `data`, padded with zeroes to whole blocks.
pub fn padded(mut data: Vec<u8>) -> Vec<u8> {
    data.resize(data.len().next_multiple_of(4096), 0);
    data
}
