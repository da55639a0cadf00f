//! Mounts without extended attributes, and without ACLs alone, used through the kernel. Needs root
//! and /dev/fuse.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs)]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use fe_share::{Counts, Mount, MountOptions, XattrSupport, mount};
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use share::posix_acl::{AclEntry, GROUP_OBJ, MASK, OTHER, USER, USER_OBJ, encode};
use share::{Options, Time, Tree};
use sim::SimSpace;
use surface::{OpKind, Traffic};
use testkit::{MountDir, require_fuse};

const OPTIONS: Options = Options { now: || Time { seconds: 1_800_000_000, nanoseconds: 1 }, cache_bytes: 4 << 20 };

const ACCESS_ACL: &str = "system.posix_acl_access";

/// Users without privileges.
const NAMED: u32 = 61_001;
const OTHER_USER: u32 = 61_002;

/// Counts the requests of a mount.
#[derive(Debug)]
struct Requests(Traffic);

impl Counts for Requests {
    fn of(&self, _thread: u32) -> &Traffic {
        &self.0
    }
}

/// A share that is mounted again and again, with other extended attributes.
struct Share {
    dir: MountDir,
    space: Arc<SimSpace>,
    mount: Option<Mount>,
    requests: Arc<Requests>,
}

impl Share {
    fn new(name: &str, xattrs: XattrSupport) -> Self {
        require_fuse();
        let space = SimSpace::new();
        Tree::create(space.clone(), 7, OPTIONS).unwrap().close().unwrap();
        let requests = Arc::new(Requests(Traffic::new(|| 0)));
        let mut share = Self { dir: MountDir::new(name), space, mount: None, requests };
        share.mount_with(xattrs);
        fs::set_permissions(share.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        share
    }

    fn mount_with(&mut self, xattrs: XattrSupport) {
        if let Some(mount) = self.mount.take() {
            mount.unmount().unwrap();
        }
        let tree = Tree::open(self.space.clone(), OPTIONS).unwrap();
        assert_eq!(tree.check().unwrap(), Vec::<String>::new());
        let commit_every = Duration::from_secs(3600);
        let counts = Some(self.requests.clone() as Arc<dyn Counts>);
        let options = MountOptions { xattrs, commit_every, counts, ..MountOptions::default() };
        self.mount = Some(mount(Arc::new(tree), self.dir.path(), &options).unwrap());
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Requests so far, of all kinds.
    fn requests(&self) -> u64 {
        OpKind::ALL.into_iter().map(|kind| self.requests.0.counts(kind).count()).sum()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if let Some(mount) = self.mount.take() {
            let _ = mount.unmount();
        }
    }
}

fn set(path: &Path, name: &str, value: &[u8]) -> Result<(), Errno> {
    rustix::fs::setxattr(path, name, value, XattrFlags::empty())
}

fn get(path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; 1024];
    rustix::fs::getxattr(path, name, &mut value[..]).map(|length| value[..length].to_vec())
}

/// The names that begin with `user.` or `system.`.
fn list(path: &Path) -> Result<Vec<String>, Errno> {
    let mut names = vec![0; 1024];
    let length = rustix::fs::listxattr(path, &mut names[..])?;
    let names = names[..length].split(|&byte| byte == 0).map(|name| String::from_utf8_lossy(name).into_owned());
    Ok(names.filter(|name| name.starts_with("user.") || name.starts_with("system.")).collect())
}

/// Whether a user can read a file.
fn reads(path: &Path, user: u32) -> bool {
    let mut cat = Command::new("cat");
    cat.arg(path).uid(user).gid(user).stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    cat.status().unwrap().success()
}

/// An ACL that lets the user `NAMED` read, and refuses its group: its mask is the group's bits of
/// the mode.
fn acl() -> Vec<u8> {
    let entry = |tag, permissions| AclEntry { tag, id: u32::MAX, permissions };
    encode(&[
        entry(USER_OBJ, 6),
        AclEntry { id: NAMED, ..entry(USER, 4) },
        entry(GROUP_OBJ, 0),
        entry(MASK, 6),
        entry(OTHER, 4),
    ])
}

/// Makes a file with an ACL and an attribute, whose group is `OTHER_USER`.
fn make_file(path: &Path) {
    fs::write(path, b"content").unwrap();
    chown(path, None, Some(OTHER_USER)).unwrap();
    set(path, "user.color", b"blue").unwrap();
    set(path, ACCESS_ACL, &acl()).unwrap();
    assert!(reads(path, NAMED) && !reads(path, OTHER_USER), "the ACL decides");
    assert_eq!(mode(path), 0o664);
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn without_acls_the_other_attributes_are_as_usual() {
    let mut share = Share::new("no-acls", XattrSupport::All);
    let file = share.path("f");
    make_file(&file);
    fs::create_dir(share.path("d")).unwrap();
    share.mount_with(XattrSupport::WithoutAcls);
    for (path, name) in [(&file, ACCESS_ACL), (&share.path("d"), "system.posix_acl_default")] {
        assert_eq!(get(path, name), Err(Errno::OPNOTSUPP));
        assert_eq!(set(path, name, &acl()), Err(Errno::OPNOTSUPP));
        assert_eq!(rustix::fs::removexattr(path, name), Err(Errno::OPNOTSUPP));
    }
    assert_eq!(get(&file, "user.color").unwrap(), b"blue");
    assert_eq!(list(&file).unwrap(), ["user.color"]);
    set(&file, "user.size", b"large").unwrap();
    rustix::fs::removexattr(&file, "user.color").unwrap();
    // By its mode, the group and others could read it.
    assert_eq!(mode(&file), 0o600);
    assert!(!reads(&file, OTHER_USER) && !reads(&file, NAMED));
    fs::write(share.path("plain"), b"content").unwrap();
    fs::set_permissions(share.path("plain"), fs::Permissions::from_mode(0o644)).unwrap();
    assert!(reads(&share.path("plain"), OTHER_USER), "a file without an ACL");
    share.mount_with(XattrSupport::All);
    assert_eq!((get(&file, ACCESS_ACL).unwrap(), mode(&file)), (acl(), 0o664));
    assert_eq!(list(&file).unwrap(), ["system.posix_acl_access", "user.size"]);
    assert!(reads(&file, NAMED) && !reads(&file, OTHER_USER));
}

/// A default ACL without named users, as a directory for a group has it, is all in the mode of what
/// is made there, and takes the place of the umask.
#[test]
fn without_acls_new_files_get_no_more_than_the_umask_leaves() {
    let mut share = Share::new("default-acl", XattrSupport::All);
    let dir = share.path("d");
    fs::create_dir(&dir).unwrap();
    let entry = |tag, permissions| AclEntry { tag, id: u32::MAX, permissions };
    let whole = encode(&[entry(USER_OBJ, 7), entry(GROUP_OBJ, 7), entry(OTHER, 5)]);
    set(&dir, "system.posix_acl_default", &whole).unwrap();
    let made = |name: &str| {
        let [file, inner] = ["f", "d"].map(|kind| dir.join(format!("{name}-{kind}")));
        let command = "umask 077; : >\"$0\"; mkdir \"$1\"";
        assert!(Command::new("sh").args(["-c", command]).args([&file, &inner]).status().unwrap().success());
        (mode(&file), mode(&inner))
    };
    assert_eq!(made("all"), (0o664, 0o775), "the default ACL decides");
    share.mount_with(XattrSupport::WithoutAcls);
    assert_eq!(made("no-acls"), (0o600, 0o700));
    share.mount_with(XattrSupport::None);
    assert_eq!(made("no-xattrs"), (0o600, 0o700));
}

#[test]
fn without_attributes_none_can_be_set_and_those_that_are_there_stay() {
    let mut share = Share::new("no-xattrs", XattrSupport::All);
    let file = share.path("f");
    make_file(&file);
    share.mount_with(XattrSupport::None);
    // The kernel checks values of the last two itself.
    let capability = [&0x0200_0001_u32.to_le_bytes()[..], &[0; 16]].concat();
    let values = [
        ("user.color", b"red".to_vec()),
        ("user.shale.compression", b"off".to_vec()),
        ("security.capability", capability),
        (ACCESS_ACL, acl()),
    ];
    for (name, value) in values {
        let absent = if name == ACCESS_ACL { Errno::NODATA } else { Errno::OPNOTSUPP };
        assert_eq!(get(&file, name), Err(absent), "{name}");
        assert_eq!(set(&file, name, &value), Err(Errno::OPNOTSUPP), "{name}");
        assert_eq!(rustix::fs::removexattr(&file, name), Err(Errno::OPNOTSUPP), "{name}");
    }
    assert!(matches!(list(&file), Err(Errno::OPNOTSUPP)) || list(&file).unwrap().is_empty());
    assert_eq!(mode(&file), 0o600);
    assert!(!reads(&file, OTHER_USER) && !reads(&file, NAMED));
    fs::write(&file, b"other").unwrap();
    share.mount_with(XattrSupport::All);
    assert_eq!(get(&file, "user.color").unwrap(), b"blue");
    assert_eq!((get(&file, ACCESS_ACL).unwrap(), mode(&file)), (acl(), 0o664));
}

/// The kernel asks for capabilities before the first write to each file, and never again once that
/// was answered with ENOSYS.
#[test]
fn without_attributes_a_new_file_costs_a_request_less() {
    const FILES: u64 = 20;
    let mut share = Share::new("requests", XattrSupport::All);
    let mut counted = |xattrs, name: &str| {
        share.mount_with(xattrs);
        // The first file of a mount has requests that are never sent again.
        fs::write(share.path(&format!("{name}-first")), [1; 4096]).unwrap();
        let before = share.requests();
        for number in 0..FILES {
            fs::write(share.path(&format!("{name}-{number}")), [1; 4096]).unwrap();
        }
        share.requests() - before
    };
    let (all, none) = (counted(XattrSupport::All, "all"), counted(XattrSupport::None, "none"));
    // The kernel sends some requests on its own, such as FORGET, when it likes.
    assert!(all >= none + FILES * 3 / 4, "{all} requests with attributes, {none} without");
}
