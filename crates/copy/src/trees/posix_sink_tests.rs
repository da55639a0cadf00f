//! Tests of a directory as a sink.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use std::sync::atomic::AtomicBool;

use testkit::TempDir;

use super::super::{PosixSource, Source, Tally, TarSink, TarSource, copy};
use super::*;

/// The owner of a directory can exchange its entries while others are copied.
#[test]
fn an_entry_that_is_exchanged_for_a_link_leads_to_no_other_file() {
    let scratch = TempDir::new("posix-sink");
    let (to, victims) = (scratch.join("to"), [scratch.join("file"), scratch.join("directory")]);
    fs::create_dir(&to).unwrap();
    fs::write(&victims[0], "secret").unwrap();
    fs::create_dir(&victims[1]).unwrap();
    victims.iter().for_each(|victim| fs::set_permissions(victim, fs::Permissions::from_mode(0o700)).unwrap());
    let mut sink = PosixSink::open(&to, false, false).unwrap();
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    for (name, kind, victim) in
        [("f", libc::S_IFREG, &victims[0]), ("p", libc::S_IFIFO, &victims[0]), ("d", libc::S_IFDIR, &victims[1])]
    {
        let item = Item { path: name.into(), mode: kind | 0o777, uid, gid, ..Item::default() };
        assert!(matches!(sink.add(&item), Ok(Added::New)), "{name}");
        let (name, away) = (to.join(name), to.join(format!("{name}-away")));
        let exchange = || {
            fs::rename(&name, &away).unwrap();
            symlink(victim, &name).unwrap();
        };
        if kind == libc::S_IFDIR {
            assert!(sink.end(&item).is_ok());
            exchange();
            drop(sink.finish());
        } else {
            exchange();
            drop(sink.end(&item));
        }
    }
    assert_eq!(victims.map(|victim| fs::metadata(victim).unwrap().mode() & 0o777), [0o700; 2]);
    assert_eq!(fs::metadata(to.join("f-away")).unwrap().mode() & 0o777, 0o777, "the file itself");
}

fn copied(source: &mut dyn Source, to: &Path, overwrite: bool) -> Tally {
    let mut tally = Tally::default();
    let mut sink = PosixSink::open(to, overwrite, false).unwrap();
    assert!(copy(source, &mut sink, &AtomicBool::new(false), &mut tally, &mut |_, _| {}).is_ok());
    tally
}

/// The second name became a link to a file of the target that only had the name of the first.
#[test]
fn a_name_that_was_kept_is_no_target_of_links() {
    let scratch = TempDir::new("posix-sink-links");
    let [from, to, other] = ["from", "to", "other"].map(|name| scratch.join(name));
    for dir in [&from, &to, &other] {
        fs::create_dir(dir).unwrap();
    }
    fs::write(from.join("a"), "new").unwrap();
    for name in ["b", "c"] {
        fs::hard_link(from.join("a"), from.join(name)).unwrap();
    }
    let mut archive = Vec::new();
    let mut source = PosixSource::open(&from, Vec::new()).unwrap();
    let mut sink = TarSink::new(&mut archive);
    assert!(copy(&mut source, &mut sink, &AtomicBool::new(false), &mut Tally::default(), &mut |_, _| {}).is_ok());
    for dir in [&to, &other] {
        fs::write(dir.join("a"), "old").unwrap();
    }
    let tally = copied(&mut PosixSource::open(&from, Vec::new()).unwrap(), &to, false);
    assert_eq!((tally.kept, tally.files, tally.links, tally.problems), (1, 1, 1, 0), "{:?}", tally.lines);
    let read = |dir: &Path| ["a", "b", "c"].map(|name| fs::read_to_string(dir.join(name)).unwrap_or_default());
    assert_eq!(read(&to), ["old", "new", "new"]);
    let inode = |name: &str| fs::metadata(to.join(name)).unwrap().ino();
    assert_eq!(inode("b"), inode("c"));
    // An archive has the content only once.
    let tally = copied(&mut TarSource::new(&archive[..], "archive"), &other, false);
    assert_eq!((tally.kept, tally.links, tally.problems), (1, 0, 2), "{:?}", tally.lines);
    assert!(tally.lines[0].starts_with("b: is not linked to a: "), "{:?}", tally.lines);
    assert_eq!(read(&other), ["old", "", ""]);
    let tally = copied(&mut TarSource::new(&archive[..], "archive"), &other, true);
    assert_eq!((tally.files, tally.links, tally.problems), (1, 2, 0), "{:?}", tally.lines);
    assert_eq!(read(&other), ["new"; 3]);
}

/// A failed write named no file.
#[test]
fn a_write_that_fails_names_its_file() {
    let scratch = TempDir::new("posix-sink-write");
    let mut sink = PosixSink::open(scratch.path(), false, false).unwrap();
    let item = Item { path: b"d/f".to_vec(), mode: libc::S_IFREG | 0o600, ..Item::default() };
    assert!(matches!(sink.add(&item), Ok(Added::New)));
    let Err(Stop::Skip(line)) = sink.write(u64::MAX >> 1, Bytes::from_static(b"x")) else { panic!("written") };
    assert!(line.starts_with("d/f: cannot be written: "), "{line}");
}

/// After a kill the old content was gone, and the same import left the name that it had meanwhile.
#[test]
fn a_file_is_replaced_as_a_whole_or_not_at_all() {
    let scratch = TempDir::new("posix-sink-replaced");
    let [from, to] = ["from", "to"].map(|name| scratch.join(name));
    for (dir, text) in [(&from, "new"), (&to, "old")] {
        fs::create_dir(dir).unwrap();
        fs::write(dir.join("f"), text).unwrap();
    }
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let item = Item { path: b"f".to_vec(), mode: libc::S_IFREG | 0o644, uid, gid, size: 3, ..Item::default() };
    let begun = || {
        let mut sink = PosixSink::open(&to, true, false).unwrap();
        assert!(matches!(sink.add(&item), Ok(Added::New)));
        assert!(sink.write(0, Bytes::from_static(b"n")).is_ok());
        sink
    };
    let found = || {
        let entries = fs::read_dir(&to).unwrap().map(|entry| entry.unwrap().path());
        let read = |path: std::path::PathBuf| {
            (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read_to_string(path).unwrap())
        };
        let mut found: Vec<(String, String)> = entries.map(read).collect();
        found.sort();
        found
    };
    let file = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    let both = [file(".shale-replaced-f", "old"), file("f", "n")];
    // A failure, and kills: also at the moment at which there is no file of that name.
    drop(begun());
    assert_eq!(found(), [file("f", "old")]);
    for _ in 0..2 {
        std::mem::forget(begun());
        assert_eq!(found(), both);
    }
    fs::remove_file(to.join("f")).unwrap();
    std::mem::forget(begun());
    assert_eq!(found(), both);
    drop(begun());
    assert_eq!(found(), [file("f", "old")]);
    std::mem::forget(begun());
    let mut source = PosixSource::open(&from, Vec::new()).unwrap();
    assert_eq!(copied(&mut source, &to, true).problems, 0);
    assert_eq!(found(), [file("f", "new")]);
}

#[test]
fn a_replaced_file_has_a_name_of_its_own_that_fits() {
    for length in [1, 200, 238, 239, 240, 255] {
        let name = "a".repeat(length - 1) + "z";
        let names = [0, 1, 1000].map(|number| super::super::aside(name.as_bytes(), number));
        assert!(names.iter().all(|aside| aside.len() <= 255 && aside.ends_with(b"z")), "{length}");
        assert!(names[0] != names[1] && names[1] != names[2]);
    }
}

/// The line said that a directory cannot be opened, and not why.
#[test]
fn a_file_in_the_place_of_a_directory_is_named() {
    let scratch = TempDir::new("posix-sink-in-the-way");
    let [from, to] = ["from", "to"].map(|name| scratch.join(name));
    fs::create_dir_all(from.join("a/b/c")).unwrap();
    fs::write(from.join("a/b/c/f"), "x").unwrap();
    fs::create_dir_all(to.join("a")).unwrap();
    fs::write(to.join("a/b"), "a file").unwrap();
    let tally = copied(&mut PosixSource::open(&from, Vec::new()).unwrap(), &to, false);
    assert_eq!((tally.kept, tally.kept_first.as_deref()), (1, Some("a/b")));
    assert!(
        tally.lines.iter().all(|line| line.starts_with("a/b: exists, and is not a directory")),
        "{:?}",
        tally.lines
    );
    assert_eq!(tally.problems, 2);
    assert!(tally.lines[1].contains("a name in a/b/c has no place"), "{:?}", tally.lines);
    fs::remove_file(to.join("a/b")).unwrap();
    symlink(&from, to.join("a/b")).unwrap();
    let tally = copied(&mut PosixSource::open(&from, Vec::new()).unwrap(), &to, false);
    assert!(tally.lines[0].starts_with("a/b: exists, and is not a directory"), "{:?}", tally.lines);
    assert_eq!(copied(&mut PosixSource::open(&from, Vec::new()).unwrap(), &to, true).problems, 0);
    assert_eq!(fs::read(to.join("a/b/c/f")).unwrap(), b"x");
}
