//! The programs of these tests: the test binary itself, started again in a role.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fe_share::{JournalPlace, KeeperSlot, MountOptions, OrphanedMount, XattrSupport};
use fuse::keep::{Keeper, run_keeper};
use rustix::process::{Pid, Signal, getpid, kill_process};
use share::{Options, Time, Tree};
use testkit::{TempDir, require_fuse};

use crate::space::FileSpace;

fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Time { seconds: since.as_secs().cast_signed(), nanoseconds: since.subsec_nanos() }
}

pub const OPTIONS: Options = Options { now, cache_bytes: 4 << 20 };

const ROLE: &str = "KEPT_ROLE";
const STATE: &str = "KEPT_STATE";
const WAIT: &str = "KEPT_WAIT";
const ACCESS_TIMES: &str = "KEPT_ACCESS_TIMES";
const NO_XATTRS: &str = "KEPT_NO_XATTRS";
const CANARY: &str = "KEPT_CANARY";
const FULL: &str = "full";

/// Returns the test binary as a program in this role.
fn program(role: &str, state: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "server::program_of_a_role", "--nocapture", "--test-threads=1"]);
    command.env(ROLE, role).env(STATE, state);
    command
}

/// A place for journals that has no room while a file exists.
#[derive(Debug)]
struct Narrow(PathBuf);

impl JournalPlace for Narrow {
    fn make(&self, fill: &mut dyn FnMut(&File) -> io::Result<()>) -> io::Result<File> {
        if self.0.exists() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let file = File::from(rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC)?);
        fill(&file).map(|()| file)
    }
    fn fault(&self, _: &File, _: u64) -> Option<String> {
        None
    }
    fn owner(&self) -> Vec<u8> {
        Vec::new()
    }
    fn remove(&self, _: &File) {}
}

/// Kills this process on request, when a change is carried out but not answered.
fn die_if_told() {
    let state = PathBuf::from(std::env::var_os(STATE).unwrap());
    if fs::remove_file(state.join("die")).is_ok() {
        kill_process(getpid(), Signal::KILL).unwrap();
    }
}

fn serve(state: &Path) {
    if let Ok(name) = std::env::var(CANARY) {
        share::canary::plant_everywhere(name);
    }
    share::canary::AFTER_KEEPING.set(die_if_told).unwrap();
    let socket = state.join("keeper");
    let keeper = Keeper::connect(&socket).unwrap();
    let keeper = keeper.unwrap_or_else(|| Keeper::start(&socket, &mut program("keep", state)).unwrap());
    keeper.set_wait(std::env::var(WAIT).ok().map(|seconds| Duration::from_secs(seconds.parse().unwrap()))).unwrap();
    let kept_by = KeeperSlot { keeper: Arc::new(keeper), name: "share".to_owned() };
    let commit_every = Duration::from_millis(200);
    let has_access_times = std::env::var_os(ACCESS_TIMES).is_some();
    let journal = Some(Arc::new(Narrow(state.join(FULL))) as Arc<dyn JournalPlace>);
    let kept_by_keeper = Some(kept_by.clone());
    let has_xattrs = std::env::var_os(NO_XATTRS).is_none();
    let xattrs = if has_xattrs { XattrSupport::All } else { XattrSupport::None };
    let own = MountOptions { commit_every, has_access_times, xattrs, ..MountOptions::default() };
    let options = MountOptions { kept_by: kept_by_keeper, journal, ..own };
    let space = Arc::new(FileSpace(state.join("space")));
    let mount = match OrphanedMount::find(&kept_by).unwrap() {
        Some(kept) => {
            let tree = Tree::take_over(space, OPTIONS, &kept.left().unwrap()).unwrap();
            fe_share::resume(Arc::new(tree), kept, &options).unwrap()
        }
        None => {
            let tree = Tree::create(space, 7, OPTIONS).unwrap();
            fe_share::mount(Arc::new(tree), &state.join("mnt"), &options).unwrap()
        }
    };
    println!("ready");
    mount.wait().unwrap();
}

/// Not a test of its own.
#[test]
fn program_of_a_role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let state = PathBuf::from(std::env::var_os(STATE).unwrap());
    match role.as_str() {
        "keep" => run_keeper(std::io::stdin().as_fd().try_clone_to_owned().unwrap()).unwrap(),
        _ => serve(&state),
    }
    std::process::exit(0);
}

/// A share whose server can be killed.
pub struct Share {
    state: TempDir,
    server: Option<Child>,
    pub canary: Option<&'static str>,
    wait: Option<&'static str>,
    /// Whether servers that are started from now on use access times.
    pub has_access_times: bool,
    /// The same for extended attributes.
    pub has_xattrs: bool,
}

impl Share {
    pub fn new(name: &str) -> Self {
        Self::with(name, None, false)
    }

    /// Creates a share whose mount waits this many seconds for the next server, or has access
    /// times.
    pub fn with(name: &str, wait: Option<&'static str>, has_access_times: bool) -> Self {
        Self::started(name, wait, has_access_times, true)
    }

    /// Creates a share whose mount has extended attributes, or none.
    pub fn with_xattrs(name: &str, has_xattrs: bool) -> Self {
        Self::started(name, None, false, has_xattrs)
    }

    fn started(name: &str, wait: Option<&'static str>, has_access_times: bool, has_xattrs: bool) -> Self {
        require_fuse();
        let state = TempDir::new(name);
        fs::create_dir(state.join("space")).unwrap();
        fs::create_dir(state.join("mnt")).unwrap();
        let mut share = Self { state, server: None, canary: None, wait, has_access_times, has_xattrs };
        share.start();
        share
    }

    pub fn dir(&self) -> PathBuf {
        self.state.join("mnt")
    }

    /// Sets whether there is room for journals.
    pub fn set_full(&self, is_full: bool) {
        let path = self.state.join(FULL);
        if is_full { fs::write(path, b"").unwrap() } else { fs::remove_file(path).unwrap() }
    }

    /// Returns the session of the journal that the keeper holds, if there is one.
    pub fn kept_session(&self) -> Option<u64> {
        let keeper = Arc::new(Keeper::connect(&self.state.join("keeper")).unwrap()?);
        let kept = OrphanedMount::find(&KeeperSlot { keeper, name: "share".to_owned() }).ok()??;
        kept.left().ok().map(|left| left.session)
    }

    /// Changes the version in the keeper's description of the mount.
    pub fn set_version(&self, version: u8) {
        let keeper = Keeper::connect(&self.state.join("keeper")).unwrap().unwrap();
        let mut entries = keeper.entries().unwrap();
        let [entry] = &mut entries[..] else { panic!("the keeper holds {} mounts", entries.len()) };
        entry.bytes[0] = version;
        let descriptors: Vec<_> = entry.descriptors.iter().map(AsFd::as_fd).collect();
        keeper.put(&entry.name, &entry.bytes, &descriptors).unwrap();
    }

    /// Starts a server, and waits until it serves.
    pub fn start(&mut self) {
        assert!(self.starts(), "the server does not start");
    }

    /// Starts a server, and returns whether it serves.
    pub fn starts(&mut self) -> bool {
        let mut command = program("serve", self.state.path());
        command.envs(self.canary.map(|name| (CANARY, name))).envs(self.wait.map(|seconds| (WAIT, seconds)));
        command.envs(self.has_access_times.then_some((ACCESS_TIMES, "")));
        command.envs((!self.has_xattrs).then_some((NO_XATTRS, "")));
        let mut server = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
        let is_ready = lines.any(|line| line.unwrap().ends_with("ready"));
        self.server = Some(server);
        is_ready
    }

    pub fn kill(&mut self) {
        let mut server = self.server.take().unwrap();
        kill_process(Pid::from_child(&server), Signal::KILL).unwrap();
        server.wait().unwrap();
    }

    /// Makes the next change kill the server before it is answered.
    pub fn die_at_next_change(&self) {
        fs::write(self.state.join("die"), b"").unwrap();
    }

    /// Waits until the server has died.
    pub fn wait_for_death(&mut self) {
        let status = self.server.take().unwrap().wait().unwrap();
        assert_eq!(status.signal(), Some(libc::SIGKILL));
    }

    /// Unmounts, waits for the end of the server, and checks the tree.
    pub fn finish(mut self) {
        // A child that another test has forked has this one's files open until it runs its program.
        let unmount = || rustix::mount::unmount(self.dir(), rustix::mount::UnmountFlags::empty());
        let is_free = (0..1_000_000).any(|_| match unmount() {
            Err(rustix::io::Errno::BUSY) => {
                std::thread::yield_now();
                false
            }
            ended => ended.map(|()| true).unwrap(),
        });
        assert!(is_free, "the mount stays busy");
        assert!(self.server.take().unwrap().wait().unwrap().success());
        let tree = Tree::open(Arc::new(FileSpace(self.state.join("space"))), OPTIONS).unwrap();
        assert_eq!(tree.check().unwrap(), Vec::<String>::new());
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.dir(), rustix::mount::UnmountFlags::DETACH);
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}
