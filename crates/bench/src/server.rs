//! Servers under test: the real `shale` binary, and peers that listen on a socket.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::Outcome;
use crate::bench_pool::recreate;
use crate::command::run;

/// How long a server may take to answer, or to stop.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pause between two looks.
const POLL: Duration = Duration::from_millis(20);

/// A child process that is signalled and waited for when dropped.
#[derive(Debug)]
pub struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            match self.0.try_wait() {
                Ok(None) => std::thread::sleep(POLL),
                _ => return,
            }
        }
        eprintln!("bench: process {} does not stop; it is killed", self.0.id());
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server that listens on a Unix socket, and waits until the socket is there.
pub fn listen(program: &str, arguments: &[String], socket: &Path) -> Outcome<Running> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .map_err(|e| format!("cannot run {program}: {e}; `tools/setup bench` installs what is needed"))?;
    let began = Instant::now();
    while !socket.exists() {
        if let Some(status) = child.try_wait()? {
            return Err(format!("{program} stopped at once: {status}").into());
        }
        if began.elapsed() > PATIENCE {
            child.kill()?;
            return Err(format!("{program} does not listen on {}", socket.display()).into());
        }
        std::thread::sleep(POLL);
    }
    Ok(Running(child))
}

/// The URI of an export on a Unix socket.
pub fn uri(export: &str, socket: &Path) -> String {
    format!("nbd+unix:///{export}?socket={}", socket.display())
}

/// `shale serve` on its own pool, with one volume.
#[derive(Debug)]
pub struct Shale {
    running: Option<Running>,
    /// The pool's directory.
    pub pool: PathBuf,
    socket: PathBuf,
    mount: PathBuf,
    memory: Option<String>,
}

/// The volume's name.
const VOLUME: &str = "v";

impl Shale {
    /// Makes the pool below `dir` and serves it, with the default budget of memory if none is
    /// given.
    pub fn start(dir: &Path, compression: &str, unit: &str, volume_bytes: u64, memory: Option<&str>) -> Outcome<Self> {
        recreate(dir)?;
        let binary = binary()?;
        let (pool, mount, socket) = (dir.join("pool"), dir.join("mount"), dir.join("nbd.sock"));
        std::fs::create_dir_all(&mount)?;
        let path = |p: &Path| p.to_string_lossy().into_owned();
        let (compression, unit) = (format!("compression={compression}"), format!("unit={unit}"));
        let pool_path = path(&pool);
        run(&binary, &["init", &pool_path, "--capacity", "40G", "-o", &compression, "-o", &unit])?;
        run(&binary, &["create", &pool_path, VOLUME, "--size", &volume_bytes.to_string()])?;
        let running = serve(&pool, &mount, &socket, memory)?;
        Ok(Self { running: Some(running), pool, socket, mount, memory: memory.map(str::to_owned) })
    }

    /// Stops and starts again: nothing is cached afterwards.
    pub fn restart(&mut self) -> Outcome<()> {
        self.running = None;
        self.running = Some(serve(&self.pool, &self.mount, &self.socket, self.memory.as_deref())?);
        Ok(())
    }

    /// The volume as a file.
    pub fn file(&self) -> PathBuf {
        self.mount.join(VOLUME)
    }

    /// Bytes of the extents in use, and of the map.
    pub fn used_bytes(&self) -> Outcome<u64> {
        let text = run(&binary()?, &["status", &self.pool.to_string_lossy(), "--json"])?;
        let status: serde_json::Value = serde_json::from_str(&text)?;
        let of = |name: &str| status[name].as_u64().ok_or_else(|| format!("status tells no {name}"));
        let extents = of("extents_total")? - of("extents_free")?;
        Ok(extents * of("extent_bytes")? + of("map_bytes")?)
    }

    /// The volume as an NBD export.
    pub fn uri(&self) -> String {
        uri(VOLUME, &self.socket)
    }
}

/// The server, once it is ready.
fn serve(pool: &Path, mount: &Path, socket: &Path, memory: Option<&str>) -> Outcome<Running> {
    let mut child = Command::new(binary()?)
        .arg("serve")
        .arg(pool)
        .args(["--nbd", &format!("unix:{}", socket.display()), "--mount"])
        .arg(mount)
        .args(memory.map(|bytes| format!("--memory={bytes}")))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let output = child.stdout.take().ok_or("shale has no output")?;
    let running = Running(child);
    if !BufReader::new(output).lines().map_while(Result::ok).any(|line| line == "ready") {
        return Err("shale serve ended before it was ready".into());
    }
    Ok(running)
}

/// The binary, built like this program, once.
pub fn binary() -> Outcome<String> {
    static BUILT: Mutex<Option<String>> = Mutex::new(None);
    let mut built = BUILT.lock().map_err(|e| e.to_string())?;
    if let Some(binary) = &*built {
        return Ok(binary.clone());
    }
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml");
    run("cargo", &["build", "--quiet", "--release", "--package", "shale", "--manifest-path", manifest])?;
    let beside = std::env::current_exe()?.with_file_name("shale");
    let beside = beside.to_string_lossy().into_owned();
    *built = Some(beside.clone());
    Ok(beside)
}
