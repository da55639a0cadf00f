//! Shares whose disk does not answer: requests that need no disk go on. Needs root and /dev/fuse.
//! `tools/with-fuse-rings` runs it again with requests that come over rings.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs)]

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};

use fe_share::{Mount, MountOptions, mount};
use rustix::thread::gettid;
use share::{Options, Time, Tree};
use sim::SimSpace;
use testkit::{MountDir, require_fuse, until};

const OPTIONS: Options = Options { now: || Time { seconds: 1_800_000_000, nanoseconds: 1 }, cache_bytes: 4 << 20 };

/// A file that is not in the record of its inode.
const LARGE_BYTES: usize = 64 << 10;

struct Share {
    dir: MountDir,
    space: Arc<SimSpace>,
    mount: Mount,
}

impl Share {
    fn new(name: &str) -> Self {
        Self::with(name, MountOptions::default())
    }

    fn with(name: &str, options: MountOptions) -> Self {
        require_fuse();
        let (dir, space) = (MountDir::new(name), SimSpace::new());
        let tree = Arc::new(Tree::create(space.clone(), 7, OPTIONS).unwrap());
        // Only callers of `fsync` flush.
        let options = MountOptions { commit_every: std::time::Duration::from_secs(3600), ..options };
        let mount = mount(tree, dir.path(), &options).unwrap();
        fs::write(dir.join("warm"), [7; LARGE_BYTES]).unwrap();
        assert_eq!(fs::read(dir.join("warm")).unwrap(), [7; LARGE_BYTES]);
        fs::create_dir(dir.join("d")).unwrap();
        Self { dir, space, mount }
    }

    /// Calls `what` on `count` files, each in a thread that waits for it; returns when all threads
    /// wait in that system call.
    fn block(
        &self,
        count: usize,
        system_call: libc::c_long,
        what: impl Fn(&File) -> rustix::io::Result<()> + Clone + Send + 'static,
    ) -> Vec<JoinHandle<rustix::io::Result<()>>> {
        let (begin, has_begun) = mpsc::channel();
        let threads: Vec<_> = (0..count)
            .map(|number| {
                let path = self.dir.join(format!("blocked-{number}"));
                let file = File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap();
                let (begin, what) = (begin.clone(), what.clone());
                thread::spawn(move || {
                    begin.send(gettid().as_raw_nonzero()).unwrap();
                    what(&file)
                })
            })
            .collect();
        for _ in 0..count {
            let thread = has_begun.recv().unwrap();
            let call = format!("/proc/self/task/{thread}/syscall");
            let waits = || fs::read_to_string(&call).is_ok_and(|line| line.starts_with(&format!("{system_call} ")));
            until("a caller waits for its answer", waits);
        }
        threads
    }

    /// Look-ups, listings, changes of names, small files and cached pages.
    fn goes_on(&self, round: &str) {
        for number in 0..50 {
            let path = self.dir.join(format!("d/{round}-{number}"));
            assert!(!path.exists());
            fs::write(&path, [1; 100]).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().len(), 100);
            rustix::fs::statvfs(self.dir.path()).unwrap();
            // Neither the kernel nor the server has looked this name up.
            assert!(fs::metadata(self.dir.join(format!("none-{round}-{number}"))).is_err());
        }
        assert_eq!(fs::read_dir(self.dir.join("d")).unwrap().count(), 50);
        assert_eq!(fs::read(self.dir.join("warm")).unwrap(), [7; LARGE_BYTES]);
        for number in 0..50 {
            fs::remove_file(self.dir.join(format!("d/{round}-{number}"))).unwrap();
        }
    }

    /// Unmounts, and checks the tree.
    fn end(self) -> Tree {
        self.mount.unmount().unwrap();
        let tree = Tree::open(self.space, OPTIONS).unwrap();
        assert_eq!(tree.check().unwrap(), Vec::<String>::new());
        tree
    }
}

fn sync(file: &File) -> rustix::io::Result<()> {
    rustix::fs::fsync(file)
}

fn all_end_well(threads: Vec<JoinHandle<rustix::io::Result<()>>>) {
    threads.into_iter().for_each(|thread| thread.join().unwrap().unwrap());
}

/// Four callers of `fsync` used to stop all look-ups.
fn goes_on_while_syncs_wait(share: Share) {
    for count in [16, 64] {
        share.space.flushes.shut();
        let threads = share.block(count, libc::SYS_fsync, sync);
        share.space.flushes.wait_for(1);
        share.goes_on(&count.to_string());
        share.space.flushes.open();
        all_end_well(threads);
    }
    share.end();
}

#[test]
fn a_share_goes_on_while_syncs_wait_for_the_disk() {
    goes_on_while_syncs_wait(Share::new("syncs"));
}

#[test]
fn a_share_with_two_readers_goes_on_while_syncs_wait() {
    goes_on_while_syncs_wait(Share::with("syncs-few", MountOptions { threads: 2, ..MountOptions::default() }));
}

#[test]
fn a_share_goes_on_while_cold_reads_and_copies_wait_for_the_disk() {
    let share = Share::new("reads");
    for number in 0..64 {
        fs::write(share.dir.join(format!("blocked-{number}")), [number; LARGE_BYTES]).unwrap();
    }
    let target = Arc::new(File::create(share.dir.join("copy")).unwrap());
    share.space.reads.shut();
    let reads = share.block(48, libc::SYS_pread64, |file| {
        // Not through the kernel's cache, in which the pages are.
        rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)?;
        let mut block = [0; 4096];
        file.read_exact_at(&mut block, 0).map_err(|error| rustix::io::Errno::from_io_error(&error).unwrap())
    });
    share.space.reads.wait_for(32);
    let copies = share.block(1, libc::SYS_copy_file_range, move |file| {
        rustix::fs::copy_file_range(file, Some(&mut 0), &target, Some(&mut 0), LARGE_BYTES).map(drop)
    });
    share.goes_on("reads");
    // Reads do not keep syncs waiting, nor the reverse.
    File::open(share.dir.join("warm")).unwrap().sync_all().unwrap();
    share.space.reads.open();
    all_end_well(reads);
    all_end_well(copies);
    assert_eq!(fs::read(share.dir.join("copy")).unwrap().len(), LARGE_BYTES);
    share.end();
}

/// The callers get errors at once; the tree is closed when the disk has answered.
#[test]
fn a_mount_that_is_cut_off_ends_when_the_disk_answers() {
    let share = Share::new("cut");
    share.space.flushes.shut();
    let threads = share.block(64, libc::SYS_fsync, sync);
    share.space.flushes.wait_for(1);
    fs::write(share.dir.join("acknowledged"), b"kept").unwrap();
    share.mount.disconnect().unwrap();
    for thread in threads {
        let errno = thread.join().unwrap().unwrap_err();
        assert!([rustix::io::Errno::NOTCONN, rustix::io::Errno::CONNABORTED].contains(&errno), "{errno}");
    }
    assert!(!share.mount.is_over(), "requests are still being carried out");
    share.space.flushes.open();
    share.mount.wait().unwrap();
    let tree = Tree::open(share.space.clone(), OPTIONS).unwrap();
    assert_eq!(tree.check().unwrap(), Vec::<String>::new());
    assert!(tree.lookup(Tree::ROOT, b"acknowledged").is_ok());
}
