//! The time between two servers: an administrator unmounts the share, or no server comes.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::mount::{UnmountFlags, unmount};

use crate::server::Share;

/// Time limit for operations that need no server.
const PATIENCE: Duration = Duration::from_secs(20);

/// It was served to the program with the open file, and all others wrote below it.
#[test]
fn a_mount_that_was_taken_away_lazily_is_mounted_again() {
    let mut share = Share::new("lazily");
    let held = File::create(share.dir().join("held")).unwrap();
    let device = fs::metadata(share.dir()).unwrap().dev();
    share.kill();
    unmount(share.dir(), UnmountFlags::DETACH).unwrap();
    assert_ne!(fs::metadata(share.dir()).unwrap().dev(), device);
    share.start();
    assert_eq!(fs::metadata(share.dir()).unwrap().dev(), device, "the same file system");
    held.write_all_at(b"goes on", 0).unwrap();
    assert_eq!(fs::read(share.dir().join("held")).unwrap(), b"goes on");
    drop(held);
    share.finish();
}

/// It stays with its keeper, for the version that has left it.
#[test]
fn a_mount_that_another_version_has_left_is_not_resumed() {
    let mut share = Share::new("version");
    let held = File::create(share.dir().join("held")).unwrap();
    share.kill();
    share.set_version(2);
    assert!(!share.starts());
    share.set_version(1);
    share.start();
    held.write_all_at(b"goes on", 0).unwrap();
    assert_eq!(fs::read(share.dir().join("held")).unwrap(), b"goes on");
    drop(held);
    share.finish();
}

/// The kernel sends opens, or not, for the life of a connection: a mount that differs from its
/// server would promise access times that are not updated.
#[test]
fn a_mount_keeps_the_access_times_that_it_was_made_with() {
    for has_access_times in [false, true] {
        let mut share = Share::with("atime", None, has_access_times);
        let held = File::create(share.dir().join("held")).unwrap();
        for is_taken_away in [false, true] {
            share.kill();
            if is_taken_away {
                unmount(share.dir(), UnmountFlags::DETACH).unwrap();
            }
            share.has_access_times = !has_access_times;
            share.start();
            let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
            let line = mounts.lines().find(|line| line.split(' ').nth(4) == share.dir().to_str()).unwrap();
            let is_noatime = line.split(' ').nth(5).unwrap().split(',').any(|option| option == "noatime");
            assert_eq!(is_noatime, !has_access_times, "{line}");
            held.set_times(fs::FileTimes::new().set_accessed(std::time::UNIX_EPOCH)).unwrap();
            fs::write(share.dir().join("held"), b"page").unwrap();
            drop(fs::read(share.dir().join("held")).unwrap());
            assert_eq!(fs::metadata(share.dir().join("held")).unwrap().atime() != 0, has_access_times, "{line}");
        }
        drop(held);
        share.finish();
    }
}

/// The kernel checks ACLs, or not, for the life of a connection: a server that answered otherwise
/// would refuse access, or give too much.
#[test]
fn a_mount_keeps_the_extended_attributes_that_it_was_made_with() {
    for has_xattrs in [false, true] {
        let mut share = Share::with_xattrs("xattrs", has_xattrs);
        let held = File::create(share.dir().join("held")).unwrap();
        for _ in 0..2 {
            share.kill();
            share.has_xattrs = !has_xattrs;
            share.start();
            let set = rustix::fs::fsetxattr(&held, "user.a", b"b", rustix::fs::XattrFlags::empty());
            let expected = if has_xattrs { Ok(()) } else { Err(rustix::io::Errno::OPNOTSUPP) };
            assert_eq!(set, expected);
        }
        drop(held);
        share.finish();
    }
}

#[test]
fn a_mount_that_no_server_takes_up_ends_after_its_time() {
    let mut share = Share::with("given-up", Some("1"), false);
    let held = File::create(share.dir().join("held")).unwrap();
    share.kill();
    // Waits for a server first, then fails.
    let errno = held.write_all_at(b"x", 0).unwrap_err().raw_os_error().unwrap();
    assert!([libc::ENOTCONN, libc::ECONNABORTED].contains(&errno), "{errno}");
    let errno = fs::read_dir(share.dir()).unwrap_err().raw_os_error();
    assert_eq!(errno, Some(libc::ENOTCONN));
}

/// Its users get errors: no server answers them, and none is waited for.
#[test]
fn a_mount_that_cannot_be_taken_over_ends() {
    let mut share = Share::new("not-taken");
    let held = File::create(share.dir().join("held")).unwrap();
    assert!(share.kept_session().is_some());
    share.kill();
    unmount(share.dir(), UnmountFlags::DETACH).unwrap();
    let hidden = share.dir().join("would be hidden");
    fs::write(&hidden, b"").unwrap();
    assert!(!share.starts());
    assert_eq!(share.kept_session(), None, "the keeper has no such mount any more");
    let errno = held.write_all_at(b"x", 0).unwrap_err().raw_os_error().unwrap();
    assert!([libc::ENOTCONN, libc::ECONNABORTED].contains(&errno), "{errno}");
    fs::remove_file(hidden).unwrap();
}

/// A server without room for its journal resumes the mount, and the keeper gets the journal when
/// there is room: then the next server resumes it as well.
#[test]
fn a_journal_is_kept_as_soon_as_there_is_room() {
    let mut share = Share::new("narrow");
    let held = File::create(share.dir().join("held")).unwrap();
    held.sync_all().unwrap();
    let before = share.kept_session().unwrap();
    share.kill();
    share.set_full(true);
    share.start();
    held.write_all_at(b"without a journal", 0).unwrap();
    assert_eq!(share.kept_session(), Some(before));
    share.set_full(false);
    while share.kept_session().is_none_or(|session| session == before) {
        thread::yield_now();
    }
    share.kill();
    share.start();
    assert_eq!(fs::read(share.dir().join("held")).unwrap(), b"without a journal");
    drop(held);
    share.finish();
}

/// Programs start, end, and are inspected by others, even if they inherit files of the share that
/// the execution of another program closes, or were started from the share.
#[test]
fn processes_with_files_of_a_share_do_not_wait_for_its_server() {
    for has_access_times in [false, true] {
        let mut share = Share::with("exec", None, has_access_times);
        fs::copy("/bin/cat", share.dir().join("cat")).unwrap();
        let start = |program: &std::path::Path| {
            Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
        };
        let mut from_share = start(&share.dir().join("cat"));
        from_share.stdin.as_ref().unwrap().write_all(b"x").unwrap();
        // It has read the part of its file that it needs.
        std::io::Read::read_exact(from_share.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        // The kernel closes it on execution.
        let held = File::options().write(true).create_new(true).open(share.dir().join("held")).unwrap();
        share.kill();
        let looks_at = |pid: u32| {
            for file in ["cmdline", "environ", "maps", "stat", "status", "syscall"] {
                fs::read(format!("/proc/{pid}/{file}")).unwrap();
            }
        };
        let number = from_share.id();
        let (has_done, done) = mpsc::channel();
        let work = thread::spawn(move || {
            let mut child = start("/bin/cat".as_ref());
            looks_at(child.id());
            looks_at(number);
            drop(child.stdin.take());
            assert!(child.wait().unwrap().success());
            has_done.send(()).unwrap();
        });
        let has_ended = done.recv_timeout(PATIENCE).is_ok();
        // From now on it ends in any case.
        share.start();
        work.join().unwrap();
        assert!(has_ended, "it has waited for a server (access times: {has_access_times})");
        drop((from_share.stdin.take(), held));
        assert!(from_share.wait().unwrap().success());
        share.finish();
    }
}
