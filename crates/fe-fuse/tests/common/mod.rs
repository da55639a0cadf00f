//! Mounts, loop devices and file systems for tests, removed when they go out of scope, also when a
//! test fails.

#![allow(dead_code, reason = "each test uses a part of it")]

pub mod set;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fe_fuse::{Mount, MountOptions, WhenBusy, mount};
use testkit::{LoopDevice, Memory, MountDir, Op, require_fuse, run};

use self::set::MemSet;

/// A mounted set with one device, `vol`.
pub struct Mounted {
    pub mount: Mount,
    pub set: Arc<MemSet>,
    pub vol: Arc<Memory>,
    dir: MountDir,
}

/// When `vol` was made.
pub const CREATED_UNIX_S: u64 = 1_700_000_000;

impl Mounted {
    pub fn new(size: u64) -> Self {
        Self::with_options(size, &MountOptions::default())
    }

    pub fn with_options(size: u64, options: &MountOptions) -> Self {
        require_fuse();
        let dir = MountDir::new("fe-fuse");
        let set = Arc::new(MemSet::default());
        let vol = Memory::with_capacity(size, 4 * size);
        vol.set_recording();
        set.add("vol", vol.clone(), CREATED_UNIX_S);
        let mount = mount(set.clone(), dir.path(), options).unwrap();
        Self { mount, set, vol, dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub fn open(&self) -> File {
        self.open_with(0)
    }

    /// Opens `vol` for reading and writing, with more flags of open(2).
    pub fn open_with(&self, flags: i32) -> File {
        OpenOptions::new().read(true).write(true).custom_flags(flags).open(self.path("vol")).unwrap()
    }
}

/// Opens the gates of a device when it goes out of scope: a waiting thread would hang a failed
/// test.
pub struct Released<'a>(&'a Memory);

impl Drop for Released<'_> {
    fn drop(&mut self) {
        self.0.release();
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

/// How often a device was flushed.
pub fn flushes(device: &Memory) -> usize {
    device.count(|op| *op == Op::Flush)
}

/// Attaches a loop device to one of our files.
pub fn attached(file: &Path, direct_io: bool) -> LoopDevice {
    LoopDevice::attach(file, direct_io).unwrap()
}

/// A file of a loop device in sysfs.
pub fn sysfs(device: &LoopDevice, file: &str) -> String {
    let name = device.0.trim_start_matches("/dev/");
    let path = format!("/sys/block/{name}/{file}");
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}")).trim().to_owned()
}

/// A file system that is mounted from a loop device.
pub struct FileSystem {
    pub dir: MountDir,
}

impl FileSystem {
    pub fn mount(device: &LoopDevice) -> Self {
        let dir = MountDir::new("fe-fuse-loop");
        run("mount", &[Path::new(&device.0), dir.path()]);
        Self { dir }
    }

    pub fn unmount(self) {
        run("umount", &[self.dir.path()]);
    }
}
