//! The time between two servers: the mount is taken away by its administrator, or no server comes.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::mount::{UnmountFlags, unmount};

use crate::server::Share;

/// It was served to the program that had the file open, and everyone else wrote below it.
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

/// The kernel asks for opens, or not, as long as the connection lives: a mount that said otherwise
/// than its server does would promise access times that do not move.
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

#[test]
fn a_mount_that_no_server_takes_up_ends_after_its_time() {
    let mut share = Share::with("given-up", Some("1"), false);
    let held = File::create(share.dir().join("held")).unwrap();
    share.kill();
    // Waits for a server, and then for nothing.
    let errno = held.write_all_at(b"x", 0).unwrap_err().raw_os_error().unwrap();
    assert!([libc::ENOTCONN, libc::ECONNABORTED].contains(&errno), "{errno}");
    let errno = fs::read_dir(share.dir()).unwrap_err().raw_os_error();
    assert_eq!(errno, Some(libc::ENOTCONN));
}
