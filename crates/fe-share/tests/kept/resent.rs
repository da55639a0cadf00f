//! Changes that a server carried out but could not answer: the kernel sends them again, and they
//! must not be repeated.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::Path;
use std::thread;

use rustix::fs::{AtFlags, CWD, FileType, Mode, RenameFlags, XattrFlags};

use crate::server::Share;

type Operation = fn(&Path) -> io::Result<()>;
/// Returns whether an operation was applied exactly once.
type Holds = fn(&Path) -> bool;

/// Changes of a tree in one request, with the condition that holds when it was applied once.
const OPERATIONS: [(&str, Operation, Holds); 11] = [
    ("mkdir", |dir| fs::create_dir(dir.join("new")), |dir| dir.join("new").is_dir()),
    (
        "mknod",
        |dir| Ok(rustix::fs::mknodat(CWD, dir.join("new"), FileType::RegularFile, Mode::RUSR, 0)?),
        |dir| dir.join("new").is_file(),
    ),
    ("symlink", |dir| symlink("target", dir.join("new")), |dir| fs::read_link(dir.join("new")).is_ok()),
    (
        "link",
        |dir| fs::hard_link(dir.join("a"), dir.join("new")),
        |dir| fs::metadata(dir.join("a")).is_ok_and(|found| found.nlink() == 2),
    ),
    ("unlink", |dir| fs::remove_file(dir.join("a")), |dir| !dir.join("a").exists()),
    ("rmdir", |dir| fs::remove_dir(dir.join("empty")), |dir| !dir.join("empty").exists()),
    ("rename", |dir| fs::rename(dir.join("a"), dir.join("b")), |dir| fs::read(dir.join("b")).unwrap() == b"a"),
    (
        "exchange",
        |dir| Ok(rustix::fs::renameat_with(CWD, dir.join("a"), CWD, dir.join("b"), RenameFlags::EXCHANGE)?),
        |dir| fs::read(dir.join("a")).unwrap() == b"b" && fs::read(dir.join("b")).unwrap() == b"a",
    ),
    (
        "setxattr",
        |dir| Ok(rustix::fs::setxattr(dir.join("a"), "user.x", b"y", XattrFlags::CREATE)?),
        |dir| rustix::fs::getxattr(dir.join("a"), "user.x", &mut [0; 8]) == Ok(1),
    ),
    (
        "removexattr",
        |dir| Ok(rustix::fs::removexattr(dir.join("b"), "user.had")?),
        |dir| rustix::fs::getxattr(dir.join("b"), "user.had", &mut [0; 8]).is_err(),
    ),
    (
        "tmpfile",
        |dir| {
            let file = OpenOptions::new().write(true).read(true).custom_flags(libc::O_TMPFILE).open(dir)?;
            file.write_all_at(b"named later", 0)?;
            let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
            Ok(rustix::fs::linkat(CWD, path, CWD, dir.join("new"), AtFlags::SYMLINK_FOLLOW)?)
        },
        |dir| fs::read(dir.join("new")).unwrap() == b"named later",
    ),
];

/// Makes the server die in the middle of an operation; returns the result for the caller.
fn run(share: &mut Share, name: &str, operation: Operation) -> (std::path::PathBuf, io::Result<()>) {
    let dir = share.dir().join(name);
    fs::create_dir(&dir).unwrap();
    fs::create_dir(dir.join("empty")).unwrap();
    fs::write(dir.join("a"), b"a").unwrap();
    fs::write(dir.join("b"), b"b").unwrap();
    rustix::fs::setxattr(dir.join("b"), "user.had", b"x", XattrFlags::empty()).unwrap();
    share.die_at_next_change();
    let caller = {
        let dir = dir.clone();
        thread::spawn(move || operation(&dir))
    };
    share.wait_for_death();
    share.start();
    let seen = caller.join().unwrap();
    (dir, seen)
}

#[test]
fn what_a_killed_server_has_done_is_answered_and_not_done_again() {
    let mut share = Share::new("resent");
    let held = File::create(share.dir().join("held")).unwrap();
    fs::remove_file(share.dir().join("held")).unwrap();
    for (name, operation, holds) in OPERATIONS {
        let (dir, seen) = run(&mut share, name, operation);
        assert!(seen.is_ok(), "{name}: {seen:?}");
        assert!(holds(&dir), "{name} was not done once");
        // A file that is open and has no name survives all of that.
        held.write_all_at(name.as_bytes(), 0).unwrap();
    }
    drop(held);
    share.finish();
}

#[test]
fn the_planted_bug_of_doing_it_again_is_seen() {
    let mut share = Share::new("again");
    share.canary = Some("resent-done-again");
    for (name, operation, holds) in OPERATIONS {
        if ["mkdir", "unlink", "rename"].contains(&name) {
            let (dir, seen) = run(&mut share, name, operation);
            assert!(seen.is_err() || !holds(&dir), "NOT CAUGHT: {name}");
        }
    }
}
