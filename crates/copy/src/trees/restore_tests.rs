use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use testkit::TempDir;

use super::super::{MountPlace, PosixSink, PosixSource};
use super::*;

const STAGE: &[u8] = b".shale-restore-1";

/// A directory to restore from, and one to restore into.
struct Dirs {
    _dir: TempDir,
    from: PathBuf,
    to: PathBuf,
}

impl Dirs {
    fn new() -> Self {
        let dir = TempDir::new("restore");
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir(&from).unwrap();
        fs::create_dir(&to).unwrap();
        Self { _dir: dir, from, to }
    }

    fn restore(&self, target: &str, replaces: bool) -> Outcome<RestoreTotal> {
        self.restore_from(PosixSource::open(&self.from, Vec::new()).unwrap(), target, replaces)
    }

    fn restore_from(&self, source: impl Source, target: &str, replaces: bool) -> Outcome<RestoreTotal> {
        let staged = Staged::new(source, STAGE, Vec::new(), target.as_bytes(), false);
        let sink = PosixSink::open(&self.to, false, false).unwrap();
        let wanted = Restore { stage: STAGE, target: target.as_bytes(), replaces };
        restore(staged, sink, &MountPlace::open(&self.to).unwrap(), wanted, &AtomicBool::new(false), &mut |_| {})
    }

    fn names(&self) -> Vec<String> {
        let names = fs::read_dir(&self.to).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

#[test]
fn a_missing_directory_comes_as_a_whole() {
    let dirs = Dirs::new();
    fs::create_dir(dirs.from.join("a")).unwrap();
    fs::write(dirs.from.join("a/f"), "old").unwrap();
    fs::set_permissions(dirs.from.join("a/f"), fs::Permissions::from_mode(0o640)).unwrap();
    fs::hard_link(dirs.from.join("a/f"), dirs.from.join("g")).unwrap();
    symlink("/etc/passwd", dirs.from.join("l")).unwrap();
    let total = dirs.restore("docs", false).unwrap();
    assert_eq!((total.restored, total.kept, total.bytes), (1, 0, 3));
    assert_eq!(dirs.names(), ["docs"], "the staging directory is gone");
    let found = fs::metadata(dirs.to.join("docs/a/f")).unwrap();
    assert_eq!((found.mode() & 0o7777, found.nlink()), (0o640, 2));
    assert_eq!(fs::read_link(dirs.to.join("docs/l")).unwrap(), Path::new("/etc/passwd"));
}

#[test]
fn an_existing_directory_keeps_its_entries_unless_they_are_to_be_replaced() {
    let dirs = Dirs::new();
    for (name, content) in [("same", "old"), ("gone", "old"), ("file-now", "x")] {
        fs::write(dirs.from.join(name), content).unwrap();
    }
    fs::create_dir_all(dirs.from.join("sub/deep")).unwrap();
    fs::write(dirs.from.join("sub/deep/f"), "old").unwrap();
    fs::create_dir_all(dirs.to.join("d/sub/deep")).unwrap();
    fs::create_dir(dirs.to.join("d/file-now")).unwrap();
    fs::write(dirs.to.join("d/same"), "new").unwrap();
    fs::write(dirs.to.join("d/new"), "new").unwrap();
    let total = dirs.restore("d", false).unwrap();
    assert_eq!((total.restored, total.kept), (2, 2), "{total:?}");
    assert!(total.kept_first.is_some_and(|name| name == "d/same" || name == "d/file-now"));
    assert_eq!((text(&dirs.to.join("d/same")).as_str(), text(&dirs.to.join("d/gone")).as_str()), ("new", "old"));
    assert_eq!(text(&dirs.to.join("d/sub/deep/f")), "old");
    let total = dirs.restore("d", true).unwrap();
    assert_eq!((total.restored, total.kept), (3, 1), "a directory is never replaced: {total:?}");
    assert_eq!((text(&dirs.to.join("d/same")).as_str(), text(&dirs.to.join("d/new")).as_str()), ("old", "new"));
    assert_eq!(dirs.names(), ["d"]);
}

#[test]
fn what_exists_is_refused_and_links_are_not_followed() {
    let dirs = Dirs::new();
    fs::write(dirs.from.join("f"), "x").unwrap();
    fs::write(dirs.to.join("file"), "new").unwrap();
    let outside = dirs.to.parent().unwrap().join("outside");
    fs::create_dir(&outside).unwrap();
    symlink(&outside, dirs.to.join("link")).unwrap();
    let kind = |target: &str| match dirs.restore(target, true).unwrap_err() {
        Failure::Error(error) => error.kind(),
        other => panic!("{other:?}"),
    };
    assert_eq!(kind("file"), ErrorKind::Exists, "a directory does not replace a file");
    assert_eq!(kind("link"), ErrorKind::Exists);
    assert_eq!(kind("link/x"), ErrorKind::Invalid, "a link is no directory");
    assert_eq!(kind("none/x"), ErrorKind::NotFound);
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    assert_eq!(
        (dirs.names(), text(&dirs.to.join("file"))),
        (vec!["file".to_owned(), "link".to_owned()], "new".to_owned())
    );
}

/// A source that fails at its second file.
struct Failing<S>(S, u32);

impl<S: Source> Source for Failing<S> {
    fn next(&mut self) -> Step<Option<Item>> {
        self.0.next()
    }
    fn read(&mut self, offset: u64, out: &mut [u8]) -> Step<Got> {
        self.1 += 1;
        if self.1 > 1 { Ok(Got::Damaged("bad".to_owned())) } else { self.0.read(offset, out) }
    }
}

#[test]
fn nothing_is_restored_in_part_and_leftovers_go() {
    let dirs = Dirs::new();
    fs::write(dirs.from.join("a"), "x").unwrap();
    fs::write(dirs.from.join("b"), "y").unwrap();
    fs::create_dir_all(dirs.to.join(".shale-restore-0/content/x")).unwrap();
    let source = Failing(PosixSource::open(&dirs.from, Vec::new()).unwrap(), 0);
    let failure = dirs.restore_from(source, "d", true).unwrap_err();
    assert!(matches!(&failure, Failure::Error(error) if error.kind() == ErrorKind::Corrupt), "{failure:?}");
    assert!(dirs.names().is_empty(), "{:?}", dirs.names());
}

#[test]
fn missing_directories_above_come_with_the_content() {
    let dirs = Dirs::new();
    fs::write(dirs.from.join("f"), "x").unwrap();
    let directory = |mode| Item { mode: libc::S_IFDIR | mode, ..Item::default() };
    let above = vec![(b"a".to_vec(), directory(0o711)), (b"b".to_vec(), directory(0o755))];
    let staged = Staged::new(PosixSource::open(&dirs.from, Vec::new()).unwrap(), STAGE, above, b"c", false);
    let sink = PosixSink::open(&dirs.to, false, false).unwrap();
    let wanted = Restore { stage: STAGE, target: b"a", replaces: false };
    let place = MountPlace::open(&dirs.to).unwrap();
    restore(staged, sink, &place, wanted, &AtomicBool::new(false), &mut |_| {}).unwrap();
    assert_eq!(text(&dirs.to.join("a/b/c/f")), "x");
    assert_eq!(fs::metadata(dirs.to.join("a")).unwrap().mode() & 0o7777, 0o711);
}

#[test]
fn no_path_leads_out_of_the_root() {
    let dirs = Dirs::new();
    fs::write(dirs.from.join("f"), "x").unwrap();
    for target in ["../out", "a/../../out", ".."] {
        let failure = dirs.restore(target, true).unwrap_err();
        assert!(
            matches!(&failure, Failure::Error(error) if error.kind() == ErrorKind::Invalid),
            "{target}: {failure:?}"
        );
    }
    let above: Vec<_> =
        fs::read_dir(dirs.to.parent().unwrap()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!((above.len(), dirs.names().len()), (2, 0), "{above:?}");
}

/// A place in which a directory belongs to another file system, or accepts no names.
struct WithOther(MountPlace, u64, i32);

impl Place for WithOther {
    type Directory = OwnedFd;

    fn root(&self) -> Result<OwnedFd, i32> {
        self.0.root()
    }
    fn enter(&self, directory: &OwnedFd, name: &[u8]) -> Result<OwnedFd, i32> {
        self.0.enter(directory, name)
    }
    fn kind(&self, directory: &OwnedFd, name: &[u8]) -> Result<Option<u32>, i32> {
        self.0.kind(directory, name)
    }
    fn names(&self, directory: &OwnedFd) -> Result<Vec<Vec<u8>>, i32> {
        self.0.names(directory)
    }
    fn rename(&self, from: (&OwnedFd, &[u8]), to: (&OwnedFd, &[u8]), replaces: bool) -> Result<(), i32> {
        if rustix::fs::fstat(to.0).unwrap().st_ino == self.1 { Err(self.2) } else { self.0.rename(from, to, replaces) }
    }
    fn remove(&self, directory: &OwnedFd, name: &[u8], is_directory: bool) -> Result<(), i32> {
        self.0.remove(directory, name, is_directory)
    }
    fn sync(&self) -> Result<(), i32> {
        self.0.sync()
    }
}

/// The snapshot may be older than the share that has the directory now.
#[test]
fn the_directory_of_another_share_is_left_and_all_else_comes() {
    for errno in [libc::EXDEV, libc::EBUSY] {
        let dirs = Dirs::new();
        fs::create_dir(dirs.from.join("m")).unwrap();
        for name in ["a", "m/old", "z", ".shale-restore-9"] {
            fs::write(dirs.from.join(name), "old").unwrap();
        }
        fs::create_dir(dirs.to.join("m")).unwrap();
        fs::write(dirs.to.join("m/own"), "own").unwrap();
        let other = fs::metadata(dirs.to.join("m")).unwrap().ino();
        let source = PosixSource::open(&dirs.from, Vec::new()).unwrap();
        let staged = Staged::new(source, STAGE, Vec::new(), b"", false);
        let place = WithOther(MountPlace::open(&dirs.to).unwrap(), other, errno);
        let wanted = Restore { stage: STAGE, target: b"", replaces: true };
        let sink = PosixSink::open(&dirs.to, false, false).unwrap();
        let total = restore(staged, sink, &place, wanted, &AtomicBool::new(false), &mut |_| {}).unwrap();
        assert_eq!((total.restored, total.kept, total.kept_first.as_deref()), (2, 1, Some("m/old")));
        assert_eq!(dirs.names(), ["a", "m", "z"]);
        assert_eq!(fs::read_dir(dirs.to.join("m")).unwrap().count(), 1);
    }
}

/// The server of a restore was killed, and the next one restores before the process of the first
/// has noticed.
#[test]
fn a_restore_that_ends_leaves_the_stage_of_another() {
    let dirs = Dirs::new();
    fs::write(dirs.from.join("f"), "x").unwrap();
    let other = dirs.to.join(".shale-restore-2");
    let mut source = PosixSource::open(&dirs.from, Vec::new()).unwrap();
    let begins = Beginning(&mut source, || fs::create_dir_all(other.join("content")).unwrap());
    dirs.restore_from(begins, "d", false).unwrap();
    assert_eq!(dirs.names(), [".shale-restore-2", "d"]);
}

/// A source during whose first item something else happens.
struct Beginning<'a, S, F: Fn()>(&'a mut S, F);

impl<S: Source, F: Fn()> Source for Beginning<'_, S, F> {
    fn next(&mut self) -> Step<Option<Item>> {
        (self.1)();
        self.0.next()
    }
    fn read(&mut self, offset: u64, out: &mut [u8]) -> Step<Got> {
        self.0.read(offset, out)
    }
}
