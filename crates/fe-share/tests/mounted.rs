//! A share in memory, mounted, used through the kernel. Needs root and /dev/fuse.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs)]

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use fe_share::{Mount, MountOptions, mount};
use rustix::fs::{AtFlags, CWD, RenameFlags, XattrFlags};
use share::{Options, Time, Tree};
use sim::{Rng, SimSpace};
use surface::ErrorKind;

const OPTIONS: Options = Options { now: || Time { seconds: 1_800_000_000, nanoseconds: 1 }, cache_bytes: 4 << 20 };

/// Somebody without privileges.
const NOBODY: u32 = 65_534;

struct Mounted {
    dir: PathBuf,
    space: Arc<SimSpace>,
    mount: Option<Mount>,
}

fn options() -> MountOptions {
    // Nothing becomes durable but what a test asks for.
    let commit_every = std::time::Duration::from_secs(3600);
    MountOptions { allow_suid_and_devices: true, commit_every, ..MountOptions::default() }
}

impl Mounted {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("shale-share-{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let space = SimSpace::new();
        let tree = Tree::create(space.clone(), 7, OPTIONS).unwrap();
        let mount = mount(Arc::new(tree), &dir, &options()).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
        Self { dir, space, mount: Some(mount) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Unmounts, and mounts what is there.
    fn again(&mut self) {
        self.mount.take().unwrap().unmount().unwrap();
        let tree = Tree::open(self.space.clone(), OPTIONS).unwrap();
        assert_eq!(tree.check().unwrap(), Vec::<String>::new());
        self.mount = Some(mount(Arc::new(tree), &self.dir, &options()).unwrap());
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(mount) = self.mount.take() {
            let _ = mount.unmount();
        }
        let _ = rustix::mount::unmount(&self.dir, rustix::mount::UnmountFlags::DETACH);
        let _ = fs::remove_dir(&self.dir);
    }
}

/// Runs a shell command as a user without privileges; whether it succeeded.
fn as_nobody(command: &str, dir: &Path) -> bool {
    Command::new("sh").args(["-c", command]).current_dir(dir).uid(NOBODY).gid(NOBODY).status().unwrap().success()
}

#[test]
fn files_come_back_after_it_was_unmounted() {
    let mut share = Mounted::new("back");
    fs::create_dir(share.path("d")).unwrap();
    let content: Vec<u8> = (0..3_000_000_u32).flat_map(|number| number.to_le_bytes()).collect();
    fs::write(share.path("d/big"), &content).unwrap();
    fs::hard_link(share.path("d/big"), share.path("link")).unwrap();
    symlink("d/big", share.path("sym")).unwrap();
    rustix::fs::setxattr(share.path("link"), "user.color", b"blue", XattrFlags::empty()).unwrap();
    share.again();
    assert!(fs::read(share.path("sym")).unwrap() == content);
    assert_eq!(fs::metadata(share.path("link")).unwrap().nlink(), 2);
    let mut value = [0; 16];
    assert_eq!(rustix::fs::getxattr(share.path("d/big"), "user.color", &mut value).unwrap(), 4);
    let names: Vec<_> = fs::read_dir(&share.dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 3);
}

/// With ATOMIC_O_TRUNC and opens that are answered with ENOSYS, the old end of the file would stay.
#[test]
fn an_open_with_o_trunc_empties_the_file() {
    let share = Mounted::new("trunc");
    fs::write(share.path("f"), b"x\ny\n").unwrap();
    fs::write(share.path("f"), b"z\n").unwrap();
    assert_eq!(fs::read(share.path("f")).unwrap(), b"z\n");
}

/// The set-user-id bit would stay in the kernel's cache, and the changed file run as root.
#[test]
fn a_write_by_another_user_takes_the_set_user_id_bit_from_the_cache_too() {
    let share = Mounted::new("suid");
    fs::write(share.path("f"), b"#!/bin/sh\n").unwrap();
    fs::set_permissions(share.path("f"), fs::Permissions::from_mode(0o6777)).unwrap();
    assert_eq!(fs::metadata(share.path("f")).unwrap().mode() & 0o7777, 0o6777);
    assert!(as_nobody("printf x >>f", &share.dir));
    assert_eq!(fs::metadata(share.path("f")).unwrap().mode() & 0o7777, 0o777);
    fs::set_permissions(share.path("f"), fs::Permissions::from_mode(0o6777)).unwrap();
    assert!(as_nobody("truncate -s 3 f", &share.dir));
    assert_eq!(fs::metadata(share.path("f")).unwrap().mode() & 0o7777, 0o777);
}

#[test]
fn what_fsync_has_acknowledged_survives_a_loss_of_power() {
    let share = Mounted::new("fsync");
    let mut file = File::create(share.path("kept")).unwrap();
    file.write_all(&[7; 10_000]).unwrap();
    file.sync_all().unwrap();
    fs::write(share.path("lost"), b"never synced").unwrap();
    let space = share.space.after_power_loss(&mut Rng::new(4));
    let tree = Tree::open(space, OPTIONS).unwrap();
    let (node, inode) = tree.lookup(Tree::ROOT, b"kept").unwrap();
    let mut content = vec![0; inode.size as usize];
    tree.read(node, 0, &mut content).unwrap();
    assert_eq!(content, vec![7; 10_000]);
    assert_eq!(tree.check().unwrap(), Vec::<String>::new());
}

#[test]
fn removed_files_live_while_they_are_open_and_nameless_ones_can_be_named() {
    let share = Mounted::new("open");
    let mut file = OpenOptions::new().create(true).truncate(true).read(true).write(true).open(share.path("f")).unwrap();
    file.write_all(b"still here").unwrap();
    fs::remove_file(share.path("f")).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!((text.as_str(), file.metadata().unwrap().nlink()), ("still here", 0));
    let nameless = OpenOptions::new().write(true).read(true).custom_flags(libc::O_TMPFILE).open(&share.dir).unwrap();
    nameless.write_all_at(b"named later", 0).unwrap();
    let by_number = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&nameless));
    rustix::fs::linkat(CWD, &by_number, CWD, share.path("named"), AtFlags::SYMLINK_FOLLOW).unwrap();
    assert_eq!(fs::read(share.path("named")).unwrap(), b"named later");
}

#[test]
fn permissions_are_those_of_the_owner_and_cached_files_stay_private() {
    let share = Mounted::new("private");
    fs::write(share.path("secret"), b"secret").unwrap();
    fs::set_permissions(share.path("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::read(share.path("secret")).unwrap();
    assert!(!as_nobody("cat secret >/dev/null 2>&1", &share.dir));
    assert!(as_nobody("echo mine >own && test \"$(stat -c %u own)\" = 65534", &share.dir));
}

#[test]
fn renames_exchange_and_refuse() {
    let share = Mounted::new("rename");
    fs::write(share.path("a"), b"a").unwrap();
    fs::write(share.path("b"), b"b").unwrap();
    let rename = |flags| rustix::fs::renameat_with(CWD, share.path("a"), CWD, share.path("b"), flags);
    assert_eq!(rename(RenameFlags::NOREPLACE), Err(rustix::io::Errno::EXIST));
    rename(RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read(share.path("a")).unwrap(), b"b");
    fs::create_dir(share.path("d")).unwrap();
    fs::write(share.path("d/inner"), b"").unwrap();
    assert!(fs::remove_dir(share.path("d")).is_err());
    rename(RenameFlags::empty()).unwrap();
    assert!(!share.path("a").exists());
}

#[test]
fn a_large_directory_is_listed_whole() {
    let mut share = Mounted::new("large");
    for number in 0..3000 {
        File::create(share.path(&format!("file with a longer name {number}"))).unwrap();
    }
    share.again();
    let mut sizes = 0;
    for entry in fs::read_dir(&share.dir).unwrap() {
        sizes += entry.unwrap().metadata().unwrap().len() + 1;
    }
    assert_eq!(sizes, 3000);
}

#[test]
fn holes_copies_and_preallocation() {
    let share = Mounted::new("holes");
    let file = File::create_new(share.path("f")).unwrap();
    file.write_all_at(&[1; 4096], 1 << 20).unwrap();
    rustix::fs::fallocate(
        &file,
        rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE,
        1 << 20,
        100,
    )
    .unwrap();
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 3 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 3 << 20);
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)).unwrap(), 1 << 20);
    fs::copy(share.path("f"), share.path("g")).unwrap();
    let copy = fs::read(share.path("g")).unwrap();
    assert_eq!((copy.len(), copy[(1 << 20) + 99], copy[(1 << 20) + 100]), (3 << 20, 0, 1));
}

#[test]
fn a_busy_share_stays_mounted() {
    let mut share = Mounted::new("busy");
    let file = File::create(share.path("f")).unwrap();
    let error = share.mount.take().unwrap().unmount().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InUse);
    drop(file);
}
