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

#[test]
fn a_mount_that_no_server_takes_up_ends_after_its_time() {
    let mut share = Share::that_waits("given-up", Some("1"));
    let held = File::create(share.dir().join("held")).unwrap();
    share.kill();
    // Waits for a server, and then for nothing.
    let errno = held.write_all_at(b"x", 0).unwrap_err().raw_os_error().unwrap();
    assert!([libc::ENOTCONN, libc::ECONNABORTED].contains(&errno), "{errno}");
    let errno = fs::read_dir(share.dir()).unwrap_err().raw_os_error();
    assert_eq!(errno, Some(libc::ENOTCONN));
}
