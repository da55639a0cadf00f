//! Names, and the lifecycle of a mount. Starts no processes: between fork and exec a child holds
//! our files open, and would make an idle mount busy.

#![allow(clippy::unwrap_used, clippy::panic, clippy::disallowed_methods, reason = "a test, on the real kernel")]

mod common;

use std::fs::{self, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, UNIX_EPOCH};

use common::set::MemSet;
use common::{CREATED_UNIX_S, Mounted};
use fe_fuse::{MountOptions, WhenBusy, mount};
use rustix::mount::{MountFlags, UnmountFlags, unmount};
use surface::ErrorKind;
use testkit::{Memory, MountDir, require_fuse, until};

const MIB: u64 = 1 << 20;

fn names(mounted: &Mounted) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(mounted.mount.dir())
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            assert!(entry.file_type().unwrap().is_file());
            assert_eq!(std::os::unix::fs::DirEntryExt::ino(&entry), entry.metadata().unwrap().ino());
            entry.file_name().into_string().unwrap()
        })
        .collect();
    names.sort();
    names
}

#[test]
fn requests_come_over_io_uring_where_the_system_allows_it_and_only_there() {
    let is_allowed =
        fs::read_to_string("/sys/module/fuse/parameters/enable_uring").is_ok_and(|text| text.trim() == "Y");
    assert_eq!(Mounted::new(MIB).mount.is_over_io_uring(), is_allowed);
}

#[test]
fn devices_come_and_go_while_mounted() {
    let mounted = Mounted::new(MIB);
    assert_eq!(names(&mounted), ["vol"]);
    mounted.set.add("other", Memory::new(5000), 1);
    assert_eq!(names(&mounted), ["other", "vol"]);
    assert_eq!(std::fs::metadata(mounted.path("other")).unwrap().len(), 5000);
    let other = std::fs::metadata(mounted.path("other")).unwrap().ino();
    assert_ne!(other, std::fs::metadata(mounted.path("vol")).unwrap().ino());

    mounted.set.remove("other");
    assert_eq!(std::fs::metadata(mounted.path("other")).unwrap_err().raw_os_error(), Some(libc::ENOENT));
    assert_eq!(names(&mounted), ["vol"]);

    // Another device of the same name is another file.
    mounted.set.add("other", Memory::new(7000), 2);
    let again = std::fs::metadata(mounted.path("other")).unwrap();
    assert_eq!(again.len(), 7000);
    assert_ne!(again.ino(), other);
}

#[test]
fn an_open_file_outlives_the_name_but_is_not_taken_for_its_successor() {
    let mounted = Mounted::new(MIB);
    let old = mounted.open();
    old.write_all_at(&[1; 512], 0).unwrap();
    mounted.set.remove("vol");
    let mut buf = [0; 512];
    old.read_exact_at(&mut buf, 0).unwrap();
    assert_eq!(buf, [1; 512]);
    mounted.set.add("vol", Memory::new(MIB), common::CREATED_UNIX_S + 9);
    mounted.open().write_all_at(&[2; 512], 0).unwrap();
    // Its own content, or an error; never the content of the new one.
    if old.read_exact_at(&mut buf, 0).is_ok() {
        assert_eq!(buf, [1; 512]);
    }
    mounted.open().read_exact_at(&mut buf, 0).unwrap();
    assert_eq!(buf, [2; 512]);
}

/// The new device was mistaken for the open one because of its name: the kernel marked the file
/// bad, and its users got EIO for everything.
#[test]
fn an_open_file_goes_on_when_its_device_is_renamed_and_another_gets_its_name() {
    let mounted = Mounted::new(MIB);
    let old = mounted.open();
    old.write_all_at(&[1; 512], 0).unwrap();
    let ino = old.metadata().unwrap().ino();
    mounted.set.rename("vol", "vol.old");
    let renamed = fs::metadata(mounted.path("vol.old")).unwrap();
    assert_eq!(renamed.ino(), ino, "another name makes it no other file");
    mounted.set.add("vol", Memory::new(2 * MIB), CREATED_UNIX_S + 9);
    let new = fs::metadata(mounted.path("vol")).unwrap();
    assert_eq!(new.len(), 2 * MIB);
    assert_ne!(new.ino(), ino);
    assert_eq!(names(&mounted), ["vol", "vol.old"]);

    let mut buf = [0; 512];
    old.read_exact_at(&mut buf, 0).unwrap();
    assert_eq!(buf, [1; 512]);
    old.write_all_at(&[3; 512], 0).unwrap();
    mounted.open().read_exact_at(&mut buf, 0).unwrap();
    assert_eq!(buf, [0; 512]);
    fs::File::open(mounted.path("vol.old")).unwrap().read_exact_at(&mut buf, 0).unwrap();
    assert_eq!(buf, [3; 512]);
}

/// fstat(2) passes no descriptor to the file system, and the device was looked up by its former
/// name.
#[test]
fn an_open_file_is_looked_at_whatever_became_of_its_name() {
    let mounted = Mounted::new(MIB);
    let file = mounted.open();
    let time = UNIX_EPOCH + Duration::from_secs(1_750_000_000);
    mounted.set.rename("vol", "vol.old");
    assert_eq!(file.metadata().unwrap().len(), MIB);
    file.set_modified(time).unwrap();
    assert_eq!(fs::metadata(mounted.path("vol.old")).unwrap().modified().unwrap(), time);
    mounted.set.add("vol", Memory::new(5000), 1);
    assert_eq!(file.metadata().unwrap().len(), MIB);
    mounted.set.remove("vol.old");
    assert_eq!(file.metadata().unwrap().len(), MIB, "it is open, if nameless");
    file.set_modified(time).unwrap();
}

#[test]
fn many_devices_are_listed_once_each() {
    let mounted = Mounted::new(MIB);
    let mut expected = vec!["vol".to_owned()];
    for number in 0..1500 {
        // Long names: the listing takes many requests.
        let name = format!("{number:0>120}");
        mounted.set.add(&name, Memory::new(number), number);
        expected.push(name);
    }
    expected.sort();
    assert_eq!(names(&mounted), expected);
    let statfs = rustix::fs::statvfs(mounted.mount.dir()).unwrap();
    assert_eq!(statfs.f_files, 1501);
    assert_eq!(statfs.f_blocks * statfs.f_frsize, (MIB + 1499 * 1500 / 2) / 4096 * 4096);
}

#[test]
fn numbers_survive_a_remount() {
    let ino = || {
        let mounted = Mounted::new(MIB);
        mounted.set.add("a", Memory::new(1), 1);
        std::fs::metadata(mounted.path("vol")).unwrap().ino()
    };
    assert_eq!(ino(), ino());
}

#[test]
fn the_mount_makes_and_removes_nothing() {
    let mounted = Mounted::new(MIB);
    let (vol, new) = (mounted.path("vol"), mounted.path("new"));
    let refused = |result: std::io::Result<()>, what: &str| {
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EPERM), "{what}");
    };
    refused(OpenOptions::new().write(true).create_new(true).open(&new).map(drop), "create");
    refused(std::fs::create_dir(&new), "mkdir");
    refused(std::os::unix::fs::symlink("x", &new), "symlink");
    refused(std::fs::hard_link(&vol, &new), "link");
    refused(std::fs::rename(&vol, &new), "rename");
    refused(std::fs::remove_file(&vol), "unlink");
    assert_eq!(names(&mounted), ["vol"]);
    // Opening an existing file with O_CREAT creates nothing.
    OpenOptions::new().write(true).create(true).truncate(false).open(&vol).unwrap();
}

#[test]
fn others_may_look_only_if_allowed() {
    let mode = |mounted: &Mounted| std::fs::metadata(mounted.mount.dir()).unwrap().mode() & 0o7777;
    assert_eq!(mode(&Mounted::new(MIB)), 0o700);
    let open = Mounted::with_options(MIB, &MountOptions { allow_other: true, ..Default::default() });
    assert_eq!(mode(&open), 0o755);
    assert_eq!(std::fs::metadata(open.path("vol")).unwrap().mode() & 0o7777, 0o600);
}

#[test]
fn a_busy_mount_is_refused_and_can_be_tried_again() {
    let mounted = Mounted::new(MIB);
    let file = mounted.open();
    let error = mounted.mount.unmount(WhenBusy::Refuse).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InUse);
    assert!(error.to_string().contains("losetup"), "{error}");
    assert!(!mounted.mount.ended().is_ended());
    file.write_all_at(&[1; 512], 0).unwrap();
    drop(file);
    mounted.mount.unmount(WhenBusy::Refuse).unwrap();
    assert!(mounted.mount.ended().is_ended());
    mounted.mount.unmount(WhenBusy::Refuse).unwrap();
    assert_eq!(std::fs::read_dir(mounted.mount.dir()).unwrap().count(), 0, "the empty directory beneath");
}

/// `df` and `lsof` hold a mount for milliseconds.
#[test]
fn a_mount_that_is_busy_for_a_moment_is_unmounted() {
    let mounted = Mounted::new(MIB);
    let file = mounted.open();
    std::thread::scope(|scope| {
        let (sender, thread) = std::sync::mpsc::channel();
        let mount = &mounted.mount;
        let unmounting = scope.spawn(move || {
            sender.send(rustix::thread::gettid()).unwrap();
            mount.unmount(WhenBusy::Refuse)
        });
        let stat = format!("/proc/self/task/{}/stat", thread.recv().unwrap().as_raw_nonzero());
        // Asleep between two tries.
        until("the thread sleeps or has ended", || {
            unmounting.is_finished() || std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") S "))
        });
        drop(file);
        unmounting.join().unwrap().unwrap();
    });
    assert!(mounted.mount.ended().is_ended());
}

#[test]
fn a_detached_mount_serves_what_is_open() {
    let mounted = Mounted::new(MIB);
    let file = mounted.open();
    mounted.mount.unmount(WhenBusy::Detach).unwrap();
    assert!(!mounted.path("vol").exists());
    file.write_all_at(&[1; 512], 0).unwrap();
    file.sync_all().unwrap();
    assert!(!mounted.mount.ended().is_ended());
    assert_eq!(mounted.mount.unmount(WhenBusy::Refuse).unwrap_err().kind(), ErrorKind::InUse);
    drop(file);
    mounted.mount.ended().wait().unwrap();
}

#[test]
fn an_aborted_mount_fails_what_is_open() {
    let mounted = Mounted::new(MIB);
    let file = mounted.open();
    mounted.mount.unmount(WhenBusy::Abort).unwrap();
    assert!(mounted.mount.ended().is_ended());
    let errno = file.read_at(&mut [0; 512], 0).unwrap_err().raw_os_error().unwrap();
    assert!([libc::ENOTCONN, libc::ECONNABORTED].contains(&errno), "{errno}");
}

#[test]
fn unmounting_from_outside_is_noticed() {
    let mounted = Mounted::new(MIB);
    let ended = mounted.mount.ended();
    assert!(!ended.is_ended());
    unmount(mounted.mount.dir(), UnmountFlags::empty()).unwrap();
    ended.wait().unwrap();
    mounted.mount.unmount(WhenBusy::Refuse).unwrap();
    assert_eq!(Arc::strong_count(&mounted.set), 1, "the devices are released");
}

#[test]
fn what_lies_beneath_a_mount_that_is_gone_stays() {
    require_fuse();
    let dir = MountDir::new("fe-fuse");
    rustix::mount::mount("beneath", dir.path(), "tmpfs", MountFlags::empty(), c"size=64k").unwrap();
    let set = Arc::new(MemSet::default());
    let refused = mount(set.clone(), dir.path(), &MountOptions::default()).map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Exists, "{refused}");
    let mounted = mount(set, dir.path(), &MountOptions { overlay: true, ..MountOptions::default() }).unwrap();
    let ended = mounted.ended();
    unmount(dir.path(), UnmountFlags::empty()).unwrap();
    ended.wait().unwrap();
    drop(mounted);
    let left = unmount(dir.path(), UnmountFlags::empty());
    assert_eq!(left, Ok(()), "the tmpfs was unmounted in our place");
}

/// The second silently covered the first one, whose users then saw the volumes of the other.
#[test]
fn a_mount_over_another_one_is_refused_whether_that_lives_or_not() {
    let mounted = Mounted::new(MIB);
    let again = |dir: &std::path::Path| mount(Arc::new(MemSet::default()), dir, &MountOptions::default());
    let error = again(mounted.mount.dir()).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InUse);
    assert!(error.to_string().contains(mounted.mount.dir().to_str().unwrap()), "{error}");
    assert_eq!(names(&mounted), ["vol"]);

    // A mount whose server is gone, as after kill -9.
    let dir = MountDir::new("fe-fuse");
    let device = std::fs::File::options().read(true).write(true).open("/dev/fuse").unwrap();
    let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    let data = std::ffi::CString::new(data).unwrap();
    rustix::mount::mount("dead", dir.path(), "fuse.shale", MountFlags::empty(), data.as_c_str()).unwrap();
    drop(device);
    let dead = std::fs::metadata(dir.path()).map(drop).map_err(|error| error.raw_os_error());
    let error = again(dir.path()).map(drop);
    unmount(dir.path(), UnmountFlags::FORCE).unwrap();
    assert_eq!(dead, Err(Some(libc::ENOTCONN)));
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InUse);
    assert!(error.to_string().contains(&format!("umount -f {}", dir.path().display())), "{error}");
    again(dir.path()).unwrap().unmount(WhenBusy::Refuse).unwrap();
}

#[test]
fn bad_mounts_are_refused_with_a_reason() {
    require_fuse();
    let dir = MountDir::new("fe-fuse");
    let try_mount = |path: &std::path::Path, options: &MountOptions| {
        mount(Arc::new(MemSet::default()), path, options).map(drop).unwrap_err()
    };
    let defaults = MountOptions::default();
    assert_eq!(try_mount(&dir.join("missing"), &defaults).kind(), ErrorKind::NotFound);
    assert_eq!(try_mount("/proc/self/exe".as_ref(), &defaults).kind(), ErrorKind::Invalid);
    let none = MountOptions { threads: 0, ..MountOptions::default() };
    assert_eq!(try_mount(dir.path(), &none).kind(), ErrorKind::Invalid);
    let many = MountOptions { reads_waiting: 100_000, ..MountOptions::default() };
    assert_eq!(try_mount(dir.path(), &many).kind(), ErrorKind::Invalid);
}

#[test]
fn a_snapshot_is_a_file_that_nobody_can_write() {
    let mounted = Mounted::new(1 << 20);
    let snapshot = Memory::new(1 << 20);
    snapshot.read_only.store(true, Ordering::SeqCst);
    mounted.set.add("vol@s", snapshot, CREATED_UNIX_S);
    let path = mounted.path("vol@s");
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o400);
    for (read, write) in [(true, true), (false, true)] {
        let refused = OpenOptions::new().read(read).write(write).open(&path).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    }
    assert_eq!(fs::read(&path).unwrap().len(), 1 << 20);
    assert_eq!(
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap_err().raw_os_error(),
        Some(libc::EPERM)
    );
    // The space that the file system reports is that of the volumes.
    let space = rustix::fs::statvfs(mounted.path(".")).unwrap();
    assert_eq!(space.f_blocks * space.f_frsize, 1 << 20);
}

/// A folder is a directory with a number of its own: its content always matches the set, and a
/// rename does not make it another directory.
#[test]
fn folders_are_directories() {
    let mounted = Mounted::new(MIB);
    mounted.set.add_folder("web", CREATED_UNIX_S);
    mounted.set.add_folder("web/inner", CREATED_UNIX_S);
    mounted.set.add("web/db", Memory::new(MIB), CREATED_UNIX_S);
    mounted.set.add("web/inner/deep", Memory::new(2 * MIB), CREATED_UNIX_S);
    let listed = |path: &str| {
        let entry = |entry: std::io::Result<fs::DirEntry>| {
            let entry = entry.unwrap();
            let (kind, found) = (entry.file_type().unwrap(), entry.metadata().unwrap());
            assert_eq!(kind.is_dir(), found.is_dir());
            assert_eq!(std::os::unix::fs::DirEntryExt::ino(&entry), found.ino());
            (entry.file_name().into_string().unwrap(), kind.is_dir())
        };
        let mut names: Vec<_> = fs::read_dir(mounted.path(path)).unwrap().map(entry).collect();
        names.sort();
        names
    };
    let names = |list: &[(&str, bool)]| list.iter().map(|(name, dir)| ((*name).to_owned(), *dir)).collect::<Vec<_>>();
    assert_eq!(listed(""), names(&[("vol", false), ("web", true)]));
    assert_eq!(listed("web"), names(&[("db", false), ("inner", true)]));
    assert_eq!(listed("web/inner/../inner"), names(&[("deep", false)]));
    assert_eq!(fs::metadata(mounted.path("web/inner/deep")).unwrap().len(), 2 * MIB);
    let folder = fs::metadata(mounted.path("web")).unwrap();
    assert!(folder.is_dir() && folder.ino() != fs::metadata(mounted.path("")).unwrap().ino());
    assert_eq!(fs::metadata(mounted.path("web/..")).unwrap().ino(), fs::metadata(mounted.path("")).unwrap().ino());
    assert_eq!(fs::metadata(mounted.path("web/inner/..")).unwrap().ino(), folder.ino());

    // A file in it is as any other.
    let file = OpenOptions::new().read(true).write(true).open(mounted.path("web/db")).unwrap();
    file.write_all_at(&[5; 4096], 0).unwrap();
    let inner = fs::File::open(mounted.path("web/inner")).unwrap();
    mounted.set.rename_folder("web", "w");
    assert_eq!(fs::metadata(mounted.path("w")).unwrap().ino(), folder.ino());
    assert_eq!(fs::metadata(mounted.path("web")).unwrap_err().raw_os_error(), Some(libc::ENOENT));
    let mut found = [0; 4096];
    file.read_exact_at(&mut found, 0).unwrap();
    assert_eq!(found, [5; 4096]);
    // An open directory continues under its new name.
    let through = format!("/proc/self/fd/{}/deep", inner.as_raw_fd());
    assert_eq!(fs::metadata(through).unwrap().len(), 2 * MIB);
    assert_eq!(listed("w/inner"), names(&[("deep", false)]));

    // Nothing can be created, renamed or removed in it, and a file is not a directory.
    let refused = [
        fs::create_dir(mounted.path("w/new")),
        fs::remove_dir(mounted.path("w/inner")),
        fs::rename(mounted.path("w"), mounted.path("v")),
        fs::write(mounted.path("w/new"), b"x"),
    ];
    for (index, result) in refused.into_iter().enumerate() {
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EPERM), "{index}");
    }
    assert_eq!(fs::metadata(mounted.path("w/db/x")).unwrap_err().raw_os_error(), Some(libc::ENOTDIR));
    assert_eq!(fs::metadata(mounted.path("w/none")).unwrap_err().raw_os_error(), Some(libc::ENOENT));
}
