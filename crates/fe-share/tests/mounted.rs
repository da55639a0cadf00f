//! A share in memory, mounted, used through the kernel. Needs root and /dev/fuse.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs)]

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use fe_share::{Mount, MountOptions, mount};
use rustix::fs::{AtFlags, CWD, Gid, RenameFlags, Uid, XattrFlags};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use share::{Options, Time, Tree};
use sim::{Rng, SimSpace};
use surface::ErrorKind;
use testkit::{MountDir, require_fuse, until};

const OPTIONS: Options = Options { now: || Time { seconds: 1_800_000_000, nanoseconds: 1 }, cache_bytes: 4 << 20 };

/// A user without privileges.
const NOBODY: u32 = 65_534;

/// Files of a block that are read ahead at once, at least.
const BATCH_FILES: usize = 16;

struct Mounted {
    dir: MountDir,
    space: Arc<SimSpace>,
    mount: Option<Mount>,
}

fn options() -> MountOptions {
    // Nothing becomes durable except by a test's own request.
    let commit_every = std::time::Duration::from_secs(3600);
    MountOptions { allow_suid_and_devices: true, commit_every, ..MountOptions::default() }
}

impl Mounted {
    fn new(name: &str) -> Self {
        Self::with(name, &options())
    }

    fn with(name: &str, options: &MountOptions) -> Self {
        require_fuse();
        let dir = MountDir::new(name);
        let space = SimSpace::new();
        let tree = Tree::create(space.clone(), 7, OPTIONS).unwrap();
        let mount = mount(Arc::new(tree), dir.path(), options).unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        Self { dir, space, mount: Some(mount) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Unmounts, and mounts the same space again.
    fn again(&mut self) {
        self.mount.take().unwrap().unmount().unwrap();
        let tree = Tree::open(self.space.clone(), OPTIONS).unwrap();
        assert_eq!(tree.check().unwrap(), Vec::<String>::new());
        self.mount = Some(mount(Arc::new(tree), self.dir.path(), &options()).unwrap());
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(mount) = self.mount.take() {
            let _ = mount.unmount();
        }
    }
}

/// Runs a shell command as a user without privileges; whether it succeeded.
fn as_nobody(command: &str, dir: &Path) -> bool {
    Command::new("sh").args(["-c", command]).current_dir(dir).uid(NOBODY).gid(NOBODY).status().unwrap().success()
}

/// Stopping or destroying the share used to wait indefinitely for the copy to disappear.
#[test]
fn a_copy_of_the_mount_is_named_and_cut_off() {
    let mut mounted = Mounted::new("copied");
    let copy = MountDir::new("copy");
    fs::write(mounted.path("file"), b"kept").unwrap();
    rustix::mount::mount_bind(mounted.dir.path(), copy.path()).unwrap();
    let error = mounted.mount.as_ref().unwrap().begin_unmount().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InUse);
    assert!(error.to_string().contains(copy.path().to_str().unwrap()), "{error}");
    assert_eq!(fs::read(mounted.path("file")).unwrap(), b"kept", "it is served as before");
    let mount = mounted.mount.take().unwrap();
    mount.disconnect().unwrap();
    mount.wait().unwrap();
    // The content of the file is in the kernel's cache.
    let errno = fs::create_dir(copy.join("new")).unwrap_err().raw_os_error().unwrap();
    assert!([libc::ENOTCONN, libc::ECONNABORTED].contains(&errno), "{errno}");
    rustix::mount::unmount(copy.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
}

#[test]
fn a_directory_that_is_not_vacant_is_no_mount_point() {
    let mounted = Mounted::new("vacant");
    let again = |dir: &Path, overlay: bool| {
        let tree = Arc::new(Tree::create(SimSpace::new(), 7, OPTIONS).unwrap());
        mount(tree, dir, &MountOptions { overlay, ..options() })
    };
    let error = again(mounted.dir.path(), false).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exists);
    assert!(error.to_string().contains("shale of type fuse.shale is mounted there"), "{error}");
    let full = MountDir::new("full");
    fs::write(full.join("file"), b"below").unwrap();
    let error = again(full.path(), false).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exists);
    let over = again(full.path(), true).unwrap();
    assert!(!full.join("file").exists());
    over.unmount().unwrap();
    assert_eq!(fs::read(full.join("file")).unwrap(), b"below");
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
    let names: Vec<_> = fs::read_dir(share.dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
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
    assert!(as_nobody("printf x >>f", share.dir.path()));
    assert_eq!(fs::metadata(share.path("f")).unwrap().mode() & 0o7777, 0o777);
    fs::set_permissions(share.path("f"), fs::Permissions::from_mode(0o6777)).unwrap();
    assert!(as_nobody("truncate -s 3 f", share.dir.path()));
    assert_eq!(fs::metadata(share.path("f")).unwrap().mode() & 0o7777, 0o777);
}

/// Runs a closure as a user without privileges, in a thread of its own.
fn by_nobody<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let run = || {
        let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
        set_thread_groups(&[]).unwrap();
        set_thread_res_gid(group, group, group).unwrap();
        set_thread_res_uid(user, user, user).unwrap();
        work()
    };
    std::thread::scope(|scope| scope.spawn(run).join().unwrap())
}

/// The kernel neither clears the bits itself nor says that the caller may not keep them.
#[test]
fn allocations_and_copies_by_another_user_clear_set_id_bits() {
    use rustix::fs::{FallocateFlags as Mode, copy_file_range, fallocate};
    let share = Mounted::new("set-id");
    let source = share.path("source");
    fs::write(&source, [1; 9000]).unwrap();
    let path = share.path("f");
    let allocate = |mode| move |file: &File, _: &File| fallocate(file, mode, 0, 20_000).unwrap();
    let copy = |file: &File, from: &File| {
        assert_eq!(copy_file_range(from, Some(&mut 0), file, Some(&mut 0), 9000), Ok(9000));
    };
    type Change<'a> = &'a (dyn Fn(&File, &File) + Sync);
    let keep = allocate(Mode::KEEP_SIZE);
    let (plain, punch) = (allocate(Mode::empty()), allocate(Mode::PUNCH_HOLE | Mode::KEEP_SIZE));
    let zero = allocate(Mode::ZERO_RANGE);
    let changes: [(&str, Change<'_>); 5] =
        [("plain", &plain), ("keep size", &keep), ("punch", &punch), ("zero", &zero), ("copy", &copy)];
    // In a file of another group, set-group-id goes without execution for the group as well.
    for (before, after) in [(0o6777, 0o777), (0o2666, 0o666)] {
        for (name, change) in changes {
            fs::write(&path, [7; 10_000]).unwrap();
            std::os::unix::fs::chown(&path, Some(0), Some(5)).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(before)).unwrap();
            let (file, from) = (OpenOptions::new().write(true).open(&path).unwrap(), File::open(&source).unwrap());
            change(&file, &from);
            assert_eq!(file.metadata().unwrap().mode() & 0o7777, before, "{name} by root");
            // A refused change leaves them.
            let refused = by_nobody(|| fallocate(&file, Mode::empty(), 0, 1 << 60));
            assert_eq!(refused, Err(rustix::io::Errno::FBIG));
            assert_eq!(file.metadata().unwrap().mode() & 0o7777, before, "refused to another user");
            by_nobody(|| change(&file, &from));
            assert_eq!(file.metadata().unwrap().mode() & 0o7777, after, "{name} by another user");
        }
    }
}

#[test]
fn a_change_to_no_owner_clears_set_id_bits_for_the_owner_alone() {
    let share = Mounted::new("no-owner");
    let path = share.path("f");
    fs::write(&path, b"").unwrap();
    let mode = || fs::metadata(&path).unwrap().mode() & 0o7777;
    let chown = || rustix::fs::chown(&path, None, None);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
    assert_eq!((by_nobody(chown), mode()), (Err(rustix::io::Errno::PERM), 0o6777));
    chown().unwrap();
    assert_eq!(mode(), 0o777);
    assert_eq!((by_nobody(chown), mode()), (Ok(()), 0o777), "there is nothing to clear");
}

#[test]
fn trusted_names_are_shown_to_the_administrator_alone() {
    let share = Mounted::new("trusted");
    fs::write(share.path("f"), b"").unwrap();
    for name in ["trusted.a", "user.b"] {
        rustix::fs::setxattr(share.path("f"), name, b"value", XattrFlags::empty()).unwrap();
    }
    let names = || {
        let mut names = vec![0; 100];
        let length = rustix::fs::listxattr(share.path("f"), &mut names[..]).unwrap();
        names.truncate(length);
        names
    };
    assert_eq!(by_nobody(names), b"user.b\0");
    let all = names();
    assert!(all.windows(10).any(|part| part == b"trusted.a\0"), "{}", all.escape_ascii());
}

/// Sets the access time of a path to the past, reads, and returns whether it was updated.
fn moves(path: &Path, read: impl FnOnce()) -> bool {
    let long_ago = rustix::fs::Timespec { tv_sec: 5, tv_nsec: 0 };
    let past = rustix::fs::Timestamps { last_access: long_ago, last_modification: long_ago };
    rustix::fs::utimensat(CWD, path, &past, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    read();
    fs::symlink_metadata(path).unwrap().atime() != 5
}

#[test]
fn a_mount_without_access_times_says_so_and_one_with_them_moves_them() {
    for has_access_times in [false, true] {
        let share = Mounted::with("atime", &MountOptions { has_access_times, ..options() });
        let (file, dir, link) = (share.path("f"), share.path("d"), share.path("l"));
        // Pages that stay in the cache after a write of whole pages.
        fs::write(&file, [7; 8192]).unwrap();
        fs::create_dir(&dir).unwrap();
        symlink("f", &link).unwrap();
        let moved = [
            moves(&file, || drop(fs::read(&file).unwrap())),
            moves(&file, || drop(fs::read(&file).unwrap())),
            moves(&dir, || assert_eq!(fs::read_dir(&dir).unwrap().count(), 0)),
            moves(&link, || drop(fs::read_link(&link).unwrap())),
        ];
        assert_eq!(moved, [has_access_times; 4]);
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let line = mounts.lines().find(|line| line.split(' ').nth(4) == share.dir.path().to_str()).unwrap();
        let options: Vec<&str> = line.split(' ').nth(5).unwrap().split(',').collect();
        assert_eq!(options.contains(&"noatime"), !has_access_times, "{line}");
        // An open file continues to work: the kernel ignores the answer to its release.
        let open = File::open(&file).unwrap();
        fs::remove_file(&file).unwrap();
        assert_eq!(open.metadata().unwrap().len(), 8192);
    }
}

/// Each kind of change is refused, and accepted again afterwards.
#[test]
fn a_readonly_share_is_read_and_not_changed() {
    use rustix::fs::{FallocateFlags, copy_file_range, fallocate, setxattr};
    let share = Mounted::with("readonly", &MountOptions { has_access_times: true, ..options() });
    let [file, dir] = ["f", "d"].map(|name| share.path(name));
    fs::write(&file, b"content").unwrap();
    fs::create_dir(&dir).unwrap();
    let open = OpenOptions::new().read(true).write(true).open(&file).unwrap();
    let before = fs::metadata(&file).unwrap();
    let flags = XattrFlags::empty();
    type Change<'a> = (&'a str, &'a dyn Fn() -> std::io::Result<()>);
    let changes: [Change<'_>; 16] = [
        ("write", &|| std::os::unix::fs::FileExt::write_all_at(&open, b"x", 0)),
        ("cut", &|| open.set_len(1)),
        ("fallocate", &|| Ok(fallocate(&open, FallocateFlags::empty(), 0, 9000)?)),
        ("copy", &|| Ok(copy_file_range(&open, Some(&mut 0), &open, Some(&mut 9000), 4).map(drop)?)),
        ("times", &|| open.set_times(fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH))),
        ("mode", &|| fs::set_permissions(&file, fs::Permissions::from_mode(0o600))),
        ("owner", &|| std::os::unix::fs::chown(&file, Some(5), None)),
        ("attribute", &|| Ok(setxattr(&file, "user.a", b"b", flags)?)),
        ("create", &|| File::create(share.path("new")).map(drop)),
        ("directory", &|| fs::create_dir(share.path("new"))),
        ("link", &|| fs::hard_link(&file, share.path("new"))),
        ("symbolic link", &|| symlink("f", share.path("new"))),
        ("rename", &|| fs::rename(&file, share.path("new"))),
        ("remove", &|| fs::remove_file(&file)),
        ("remove a directory", &|| fs::remove_dir(&dir)),
        ("open to cut", &|| OpenOptions::new().write(true).truncate(true).open(&file).map(drop)),
    ];
    share.mount.as_ref().unwrap().set_read_only(true);
    for (name, change) in changes {
        assert_eq!(change().unwrap_err().raw_os_error(), Some(libc::EROFS), "{name}");
    }
    assert_eq!(fs::read(&file).unwrap(), b"content");
    open.sync_all().unwrap();
    let after = fs::metadata(&file).unwrap();
    let all =
        |found: &fs::Metadata| (found.len(), found.mode(), found.uid(), found.mtime(), found.ctime(), found.atime());
    assert_eq!(all(&before), all(&after));
    assert_eq!(fs::read_dir(share.dir.path()).unwrap().count(), 2);
    share.mount.as_ref().unwrap().set_read_only(false);
    fs::write(&file, b"changed").unwrap();
    fs::remove_dir(&dir).unwrap();
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

/// The kernel says which of both it is.
#[test]
fn fdatasync_of_overwritten_data_writes_no_record_of_the_tree() {
    let share = Mounted::new("fdatasync");
    let mut file = File::create(share.path("kept")).unwrap();
    file.write_all(&[7; 8192]).unwrap();
    file.sync_all().unwrap();
    // The log's file of the space: a record begins with a block of its own.
    let records = || share.space.allocated_blocks(2..3);
    let before = records();
    file.write_all_at(&[8; 8192], 0).unwrap();
    file.sync_data().unwrap();
    assert_eq!(records(), before);
    let space = share.space.after_power_loss(&mut Rng::new(4));
    let tree = Tree::open(space, OPTIONS).unwrap();
    let mut content = vec![0; 8192];
    assert_eq!(tree.read(tree.lookup(Tree::ROOT, b"kept").unwrap().0, 0, &mut content).unwrap(), 8192);
    assert_eq!(content, vec![8; 8192]);
    file.sync_all().unwrap();
    assert!(records() > before, "fsync has the times");
}

/// So a page of a database is whole or not there after a loss of power.
#[test]
fn a_write_of_up_to_a_mebibyte_is_one_request() {
    const MIB: usize = 1 << 20;
    let share = Mounted::new("pages");
    fs::write(share.path("file"), vec![1; 4 * MIB]).unwrap();
    // Memory that nobody has touched is not there before the kernel copies it.
    let (present, absent) = (vec![7_u8; 2 * MIB], vec![0_u8; 64 * MIB]);
    let mut next = 0;
    for flags in [0, libc::O_DIRECT] {
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(share.path("file")).unwrap();
        let pages = [(0, 4096), (8192, 8192), (16 << 10, 16 << 10), (MIB, 64 << 10), (2 * MIB, MIB)];
        for (offset, bytes) in pages {
            for is_present in [true, false] {
                let memory = if is_present { &present[..] } else { &absent[next..] };
                let start = memory.as_ptr().align_offset(4096);
                let page = &memory[start..start + bytes];
                next += if is_present { 0 } else { start + bytes };
                let before = share.space.calls();
                assert_eq!(file.write_at(page, offset as u64).unwrap(), bytes);
                let requests = share.space.calls() - before;
                assert_eq!(requests, 1, "{bytes} bytes at {offset}, flags {flags:#x}, in memory: {is_present}");
            }
        }
    }
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
    let nameless =
        OpenOptions::new().write(true).read(true).custom_flags(libc::O_TMPFILE).open(share.dir.path()).unwrap();
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
    assert!(!as_nobody("cat secret >/dev/null 2>&1", share.dir.path()));
    assert!(as_nobody("echo mine >own && test \"$(stat -c %u own)\" = 65534", share.dir.path()));
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
    for entry in fs::read_dir(share.dir.path()).unwrap() {
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

/// Every byte that a name can have, each in a name of its own, and all lengths.
#[test]
fn names_have_any_bytes_and_lengths() {
    let mut share = Mounted::new("names");
    let name = |bytes: &[u8]| std::ffi::OsString::from_vec(bytes.to_vec());
    let mut expected: Vec<std::ffi::OsString> =
        (1..=255_u8).filter(|byte| !b"/.".contains(byte)).map(|byte| name(&[byte])).collect();
    expected.extend((2..=255).map(|length| name(&vec![0xff; length])));
    for name in &expected {
        File::create_new(share.dir.join(name)).unwrap();
    }
    let too_long = File::create_new(share.dir.join(name(&[b'x'; 256]))).unwrap_err();
    assert_eq!(too_long.raw_os_error(), Some(libc::ENAMETOOLONG));
    share.again();
    let mut names: Vec<_> = fs::read_dir(share.dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    expected.sort();
    assert!(names == expected);
    for name in &expected {
        fs::remove_file(share.dir.join(name)).unwrap();
    }
    assert_eq!(fs::read_dir(share.dir.path()).unwrap().count(), 0);
}

#[test]
fn extended_attributes_have_their_limits() {
    let share = Mounted::new("xattr");
    let file = share.path("f");
    fs::write(&file, b"").unwrap();
    let set = |name: &str, bytes: usize, flags| rustix::fs::setxattr(&file, name, &vec![7; bytes], flags);
    let (any, create, replace) = (XattrFlags::empty(), XattrFlags::CREATE, XattrFlags::REPLACE);
    let longest = format!("user.{}", "n".repeat(250));
    set(&longest, 1, any).unwrap();
    assert_eq!(set(&format!("{longest}n"), 1, any), Err(rustix::io::Errno::RANGE));
    set("user.big", 64 << 10, any).unwrap();
    assert_eq!(set("user.big", (64 << 10) + 1, any), Err(rustix::io::Errno::TOOBIG));
    assert_eq!(set("user.big", 1, create), Err(rustix::io::Errno::EXIST));
    assert_eq!(set("user.none", 1, replace), Err(rustix::io::Errno::NODATA));
    set("user.empty", 0, create).unwrap();
    let mut value = vec![0; 64 << 10];
    assert_eq!(rustix::fs::getxattr(&file, "user.big", &mut value[..]), Ok(64 << 10));
    assert!(value.iter().all(|&byte| byte == 7));
    assert_eq!(rustix::fs::getxattr(&file, "user.big", &mut value[..100]), Err(rustix::io::Errno::RANGE));
    assert_eq!(rustix::fs::getxattr(&file, "user.empty", &mut value[..]), Ok(0));
    for space in ["trusted.t", "security.s"] {
        set(space, 3, any).unwrap();
    }
    assert_eq!(set("other.o", 3, any), Err(rustix::io::Errno::OPNOTSUPP));
    let listed = rustix::fs::listxattr(&file, &mut value[..]).unwrap();
    assert_eq!(value[..listed].split(|&byte| byte == 0).filter(|name| !name.is_empty()).count(), 5);
}

/// ACLs that the kernel checks and the tree inherits, as `setfacl` sets them.
#[test]
fn a_default_acl_is_inherited_and_obeyed() {
    let share = Mounted::new("acl");
    fs::create_dir(share.path("d")).unwrap();
    let entry = |tag: u16, permissions: u16, id: u32| {
        [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    // The owner, user 65534, the group, the mask, others.
    let acl: Vec<u8> = [
        2_u32.to_le_bytes().to_vec(),
        entry(1, 7, u32::MAX),
        entry(2, 6, NOBODY),
        entry(4, 0, u32::MAX),
        entry(0x10, 7, u32::MAX),
        entry(0x20, 0, u32::MAX),
    ]
    .concat();
    rustix::fs::setxattr(share.path("d"), "system.posix_acl_default", &acl, XattrFlags::empty()).unwrap();
    fs::set_permissions(share.path("d"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(share.path("d/f"), b"for that user").unwrap();
    assert!(as_nobody("test \"$(cat d/f)\" = 'for that user' && echo more >>d/f", share.dir.path()));
    assert_eq!(fs::metadata(share.path("d/f")).unwrap().mode() & 0o777, 0o660);
    fs::create_dir(share.path("d/inner")).unwrap();
    let mut value = [0; 256];
    let length = rustix::fs::getxattr(share.path("d/inner"), "system.posix_acl_default", &mut value).unwrap();
    assert!(value[..length] == acl);
    fs::set_permissions(share.path("d/f"), fs::Permissions::from_mode(0o600)).unwrap();
    assert!(!as_nobody("cat d/f >/dev/null 2>&1", share.dir.path()));
}

#[test]
fn space_is_kept_cleared_and_found_as_asked() {
    use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
    let share = Mounted::new("space");
    let file = File::options().create_new(true).read(true).write(true).open(share.path("f")).unwrap();
    file.write_all_at(&[1; 64 << 10], 0).unwrap();
    let size = || file.metadata().unwrap().len();
    fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 1 << 20).unwrap();
    assert_eq!(size(), 64 << 10);
    fallocate(&file, FallocateFlags::ZERO_RANGE, 60 << 10, 8 << 10).unwrap();
    assert_eq!(size(), 68 << 10);
    fallocate(&file, FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE, 64 << 10, 1 << 20).unwrap();
    fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 8 << 10, 8 << 10).unwrap();
    assert_eq!(size(), 68 << 10);
    for refused in [FallocateFlags::COLLAPSE_RANGE, FallocateFlags::INSERT_RANGE] {
        assert_eq!(fallocate(&file, refused, 0, 4096), Err(rustix::io::Errno::OPNOTSUPP));
    }
    assert_eq!(seek(&file, SeekFrom::Hole(0)), Ok(8 << 10));
    assert_eq!(seek(&file, SeekFrom::Data(8 << 10)), Ok(16 << 10));
    assert_eq!(seek(&file, SeekFrom::Hole(16 << 10)), Ok(60 << 10));
    assert_eq!(seek(&file, SeekFrom::Data(60 << 10)), Err(rustix::io::Errno::NXIO));
    assert_eq!(seek(&file, SeekFrom::Hole(68 << 10)), Err(rustix::io::Errno::NXIO));
    let mut content = vec![9; 68 << 10];
    file.read_exact_at(&mut content, 0).unwrap();
    let expected = |at: usize| u8::from(!(8 << 10..16 << 10).contains(&at) && at < 60 << 10);
    assert!(content.iter().enumerate().all(|(at, &byte)| byte == expected(at)));
    let found = rustix::fs::statvfs(share.dir.path()).unwrap();
    assert_eq!((found.f_namemax, found.f_frsize), (255, 4096));
    assert!(found.f_blocks > 0 && found.f_bfree <= found.f_blocks && found.f_files > 0);
}

/// A name that is removed while the directory is listed does not appear twice, and no other name is
/// lost.
#[test]
fn a_listing_goes_on_at_its_cookie() {
    let share = Mounted::new("cookies");
    for number in 0..2000 {
        File::create(share.path(&format!("{number}"))).unwrap();
    }
    let mut dir = rustix::fs::Dir::new(File::open(share.dir.path()).unwrap()).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    while let Some(entry) = dir.read() {
        let name = entry.unwrap().file_name().to_str().unwrap().to_owned();
        if name.starts_with('.') {
            continue;
        }
        fs::remove_file(share.path(&name)).unwrap();
        File::create(share.path(&format!("again {name}"))).unwrap();
        assert!(seen.insert(name.clone()), "{name} is seen twice");
    }
    assert_eq!(seen.iter().filter(|name| !name.starts_with("again")).count(), 2000);
}

/// `grep -r` and others read the files of a directory in the order of its listing. They are read
/// ahead once, those of `second` as soon as it is listed.
#[test]
fn files_of_a_directory_that_is_read_in_order_are_read_ahead() {
    let mut mounted = Mounted::new("ahead");
    for directory in ["first", "second"] {
        fs::create_dir(mounted.path(directory)).unwrap();
        for file in 0..40 {
            fs::write(mounted.path(directory).join(format!("f{file}")), [7; 4096]).unwrap();
        }
    }
    mounted.space.allow_read_ahead(1 << 20);
    // Nothing is in the kernel's memory any more.
    mounted.again();
    let space = mounted.space.clone();
    let listed = |directory: &str| -> Vec<(PathBuf, u64)> {
        let entries = fs::read_dir(mounted.path(directory)).unwrap().map(|entry| entry.unwrap());
        entries.map(|entry| (entry.path(), std::os::unix::fs::DirEntryExt::ino(&entry))).collect()
    };
    let first = listed("first");
    for (path, _) in &first {
        assert_eq!(fs::read(path).unwrap(), [7; 4096]);
    }
    // The number of a file's data is that of its inode.
    let mut expected: Vec<u64> = first[3..].iter().map(|(_, inode)| *inode).collect();
    until("files are read ahead", || space.files_read_ahead().len() >= expected.len());
    let second: Vec<u64> = listed("second").into_iter().map(|(_, inode)| inode).collect();
    until("the next directory is read ahead", || space.files_read_ahead().len() >= expected.len() + BATCH_FILES);
    let mut ahead = space.files_read_ahead();
    let of_second: Vec<u64> = ahead.drain(expected.len()..).collect();
    // Two batches may overtake each other.
    ahead.sort_unstable();
    expected.sort_unstable();
    assert_eq!(ahead, expected, "each once");
    assert!(second.starts_with(&of_second), "{of_second:?} of {second:?}");
}
