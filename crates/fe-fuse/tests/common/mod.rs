//! Mounts, loop devices and file systems for tests, taken away when they go out of scope, also when
//! a test fails.

#![allow(dead_code, reason = "each test uses a part of it")]

pub mod mem;

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use fe_fuse::{Mount, MountOptions, WhenBusy, mount};
use parking_lot::Mutex;

use self::mem::{MemDevice, MemSet};

/// Fails with what is missing, rather than with what follows from it.
pub fn require_root_and_fuse() {
    assert!(rustix::process::geteuid().is_root(), "these tests mount file systems: run them as root");
    let is_device = |path: &str| std::fs::metadata(path).is_ok_and(|found| found.file_type().is_char_device());
    assert!(
        is_device("/dev/fuse"),
        "/dev/fuse is missing: load the kernel module fuse, or pass the device to the container"
    );
}

/// A new, empty directory.
pub struct TempDir(pub PathBuf);

impl TempDir {
    pub fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        loop {
            let number = NUMBER.fetch_add(1, Ordering::SeqCst);
            let path = std::env::temp_dir().join(format!("fe-fuse-test-{}-{number}", std::process::id()));
            match std::fs::create_dir(&path) {
                Ok(()) => return Self(path),
                // Left by a process of the same number that was killed.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => panic!("{}: {error}", path.display()),
            }
        }
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // Never recursively: it may be a mount point that could not be unmounted.
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// A mounted set with one device, `vol`.
pub struct Mounted {
    pub mount: Mount,
    pub set: Arc<MemSet>,
    pub vol: Arc<MemDevice>,
    dir: TempDir,
}

/// When `vol` was made.
pub const CREATED_UNIX_S: u64 = 1_700_000_000;

impl Mounted {
    pub fn new(size: u64) -> Self {
        Self::with_options(size, &MountOptions::default())
    }

    pub fn with_options(size: u64, options: &MountOptions) -> Self {
        require_root_and_fuse();
        let dir = TempDir::new();
        let set = Arc::new(MemSet::default());
        let vol = MemDevice::new(size);
        set.add("vol", vol.clone(), CREATED_UNIX_S);
        let mount = mount(set.clone(), &dir.0, options).unwrap();
        Self { mount, set, vol, dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.0.join(name)
    }

    pub fn open(&self) -> File {
        self.open_with(0)
    }

    /// Opens `vol` for reading and writing, with more flags of open(2).
    pub fn open_with(&self, flags: i32) -> File {
        OpenOptions::new().read(true).write(true).custom_flags(flags).open(self.path("vol")).unwrap()
    }
}

/// Opens the gates of a device when it goes out of scope: who waits at one would hang the test that
/// has failed.
pub struct Released<'a>(&'a MemDevice);

impl Drop for Released<'_> {
    fn drop(&mut self) {
        for gate in [&self.0.flush_gate, &self.0.read_gate, &self.0.write_gate, &self.0.discard_gate] {
            gate.open();
        }
    }
}

impl Mounted {
    pub fn released(&self) -> Released<'_> {
        Released(&self.vol)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        drop(self.released());
        if let Err(error) = self.mount.unmount(WhenBusy::Abort) {
            eprintln!("{error}");
        }
    }
}

/// Held while a command runs, so that the next one finds no file open but by intention: a process
/// that is being started has a copy of each descriptor of this one until its program is loaded, and
/// with it keeps a file system busy that is to be unmounted.
static RUNNING: Mutex<()> = Mutex::new(());

/// Runs a command to its end; its standard output.
pub fn run<S: AsRef<OsStr>>(program: &str, arguments: &[S]) -> String {
    let shown: Vec<_> = arguments.iter().map(|argument| argument.as_ref().to_string_lossy()).collect();
    let shown = format!("{program} {}", shown.join(" "));
    let alone = RUNNING.lock();
    let output = Command::new(program).args(arguments).output().unwrap_or_else(|error| {
        panic!("{shown}: cannot start: {error} (is the package of {program} installed?)");
    });
    drop(alone);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{shown}: {}\n{out}{err}", output.status);
    out.into_owned()
}

/// A loop device on a file.
pub struct LoopDevice(pub String);

impl LoopDevice {
    pub fn new(file: &Path, direct_io: bool) -> Self {
        let file = file.to_str().unwrap();
        let direct_io = if direct_io { "--direct-io=on" } else { "--direct-io=off" };
        Self(run("losetup", &["-f", "--show", direct_io, file]).trim().to_owned())
    }

    /// A file of this loop device in sysfs.
    pub fn sysfs(&self, file: &str) -> String {
        let name = self.0.trim_start_matches("/dev/");
        let path = format!("/sys/block/{name}/{file}");
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}")).trim().to_owned()
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _alone = RUNNING.lock();
        let _ = Command::new("losetup").args(["-d", &self.0]).output();
    }
}

/// A file system that is mounted from a loop device.
pub struct FileSystem {
    pub dir: PathBuf,
    is_mounted: bool,
    _temp: TempDir,
}

impl FileSystem {
    pub fn mount(device: &LoopDevice) -> Self {
        let temp = TempDir::new();
        run("mount", &[&device.0, temp.0.to_str().unwrap()]);
        Self { dir: temp.0.clone(), is_mounted: true, _temp: temp }
    }

    pub fn unmount(mut self) {
        run("umount", &[&self.dir]);
        self.is_mounted = false;
    }
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        if self.is_mounted {
            let _alone = RUNNING.lock();
            let _ = Command::new("umount").arg("-l").arg(&self.dir).output();
        }
    }
}

/// Bytes that repeat nowhere, from a seed (splitmix64, Steele et al. 2014).
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let mut bytes: Vec<u8> = (0..length.div_ceil(8)).flat_map(|_| next().to_le_bytes()).collect();
    bytes.truncate(length);
    bytes
}
