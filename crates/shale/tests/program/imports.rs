//! Imports that others disturb: a property that is set meanwhile, another command, an empty input.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};

use testkit::until;

use crate::support::{Dir, Ran, SHALE, Server, content, imported_noise, noise, on, path, run_with_stdin};

/// Makes a directory of 8 MiB in files of 64 KiB, and an archive of it.
fn tree_and_archive(dir: &Dir) -> (PathBuf, PathBuf) {
    let (tree, archive) = (dir.join("tree"), dir.join("tree.tar"));
    std::fs::create_dir(&tree).unwrap();
    for (number, bytes) in noise(8 << 20).chunks(64 << 10).enumerate() {
        std::fs::write(tree.join(format!("f{number}")), bytes).unwrap();
    }
    let made = Command::new("tar").arg("-C").arg(&tree).arg("-cf").arg(&archive).arg(".").status().unwrap();
    assert!(made.success());
    (tree, archive)
}

/// Starts an import of stdin that has read the beginning of its stream, so that its object exists,
/// and waits for more.
fn begun(dir: &Dir, words: &[&str], begins: &[u8]) -> (Child, ChildStdin) {
    let mut command = Command::new(SHALE);
    command.args(["import", path(&dir.pool())]).args(words);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    assert!(begins.len() > 1 << 20, "it may all lie in the pipe");
    stdin.write_all(begins).unwrap();
    (child, stdin)
}

/// Sends the rest, as far as it is read, and returns the outcome.
fn ended(child: Child, mut stdin: ChildStdin, rest: &[u8]) -> Ran {
    drop(stdin.write_all(rest));
    drop(stdin);
    Ran::of(child.wait_with_output().unwrap())
}

/// The server wrote on into a share that had become readonly.
#[test]
fn an_import_stops_when_its_object_becomes_readonly() {
    let dir = Dir::with_pool("256M");
    let (_, archive) = tree_and_archive(&dir);
    let bytes = std::fs::read(&archive).unwrap();
    let (begins, rest) = bytes.split_at(bytes.len() / 2);
    let server = Server::start(&dir, &[]);
    for (words, left) in [(&["s", "-", "--share"][..], "stays marked as incomplete"), (&["v", "-"], "was removed")] {
        let (child, stdin) = begun(&dir, words, begins);
        on(&dir, "set", &[words[0], "readonly=on"]).ok();
        ended(child, stdin, rest).code(10).says("readonly=off").says(left);
    }
    server.stop();
    on(&dir, "import", &["s", path(&archive), "--overwrite"]).code(10).says("readonly=off");
    on(&dir, "set", &["s", "readonly=off"]).ok();
    on(&dir, "import", &["s", path(&archive), "--overwrite"]).ok();
    assert_eq!(on(&dir, "get", &["s", "incomplete", "-H", "-o", "value"]).ok().stdout, "no\n");
    on(&dir, "check", &[]).ok();
}

/// A failed command at the other end of a pipe left a volume of zeroes, and exit code 0.
#[test]
fn an_import_of_nothing_changes_nothing() {
    let dir = Dir::with_pool("64M");
    imported_noise(&dir, "source", 1 << 20);
    let nothing = dir.join("nothing");
    std::fs::write(&nothing, "").unwrap();
    let pool = dir.pool();
    let (over, as_is) = (["v", "--overwrite"], ["v", "--overwrite", "--as-is"]);
    for words in [&over[..], &as_is, &["w"], &["w", "--size", "32M"], &["s", "--share"]] {
        let import = |file: &str| {
            let words = [&["import", path(&pool), words[0], file], &words[1..]].concat();
            run_with_stdin(&words, Stdio::null()).code(2)
        };
        let (of_stdin, of_file) = (import("-"), import(path(&nothing)));
        if words[0] != "s" {
            of_stdin.says("stdin is empty").says("shale create");
            of_file.says("nothing is empty");
        }
    }
    assert!(content(&dir, "v") == noise(1 << 20), "the content differs");
    assert_eq!(on(&dir, "get", &["v", "incomplete", "-H", "-o", "value"]).ok().stdout, "no\n");
    assert_eq!(on(&dir, "list", &["--json"]).ok().json().as_array().unwrap().len(), 1);
}

/// The mark could be removed during the import, which `status` and `list` even advised.
#[test]
fn the_mark_stays_until_the_import_has_ended() {
    let dir = Dir::with_pool("256M");
    let (_, archive) = tree_and_archive(&dir);
    let bytes = std::fs::read(&archive).unwrap();
    let (begins, rest) = bytes.split_at(bytes.len() / 2);
    let server = Server::start(&dir, &[]);
    let health = || on(&dir, "status", &["--json"]).ok().json()["health"].as_str().unwrap().to_owned();
    for words in [&["s", "-", "--share"][..], &["v", "-"], &["v", "-", "--overwrite"]] {
        let name = words[0];
        let (child, stdin) = begun(&dir, words, begins);
        for value in ["incomplete=no", "incomplete="] {
            on(&dir, "set", &[name, value]).code(4).says("is being imported by job");
        }
        on(&dir, "set", &[name, "incomplete=yes"]).ok();
        for command in ["status", "list"] {
            let shown = on(&dir, command, &[]).ok().stdout.split_whitespace().collect::<Vec<_>>().join(" ");
            let is_named = shown.contains(&format!("'{name}' is being imported by job"));
            assert!(is_named && !shown.contains("incomplete=no"), "{shown}");
        }
        assert_eq!(health(), "ok");
        assert_eq!(on(&dir, "get", &[name, "incomplete", "-H", "-o", "value"]).ok().stdout, "yes\n");
        ended(child, stdin, rest).ok();
        assert_eq!(on(&dir, "get", &[name, "incomplete", "-H", "-o", "value"]).ok().stdout, "no\n");
    }
    let (mut child, stdin) = begun(&dir, &["v", "-", "--overwrite"], begins);
    child.kill().unwrap();
    child.wait().unwrap();
    drop(stdin);
    until("the job has ended", || health() == "incomplete");
    assert!(on(&dir, "list", &[]).ok().stdout.contains("incomplete=no"));
    on(&dir, "set", &["v", "incomplete=no"]).ok();
    assert_eq!(health(), "ok");
    server.stop();
    on(&dir, "check", &[]).ok();
}

/// It was said to be marked as incomplete, or not to be removable.
#[test]
fn an_import_whose_object_is_destroyed_says_so() {
    let dir = Dir::with_pool("256M");
    let bytes = noise(32 << 20);
    let (begins, rest) = bytes.split_at(8 << 20);
    let server = Server::start(&dir, &[]);
    for overwrites in [false, true] {
        if overwrites {
            imported_noise(&dir, "old", 32 << 20);
        }
        let words: &[&str] = if overwrites { &["v", "-", "--overwrite"] } else { &["v", "-"] };
        let (child, stdin) = begun(&dir, words, begins);
        on(&dir, "destroy", &["v", "--force"]).ok();
        let ran = ended(child, stdin, rest);
        assert_ne!(ran.code, 0, "{}", ran.stderr);
        assert!(!ran.stderr.contains("marked") && !ran.stderr.contains("could not be removed"), "{}", ran.stderr);
        ran.says("another command has destroyed the volume");
    }
    server.stop();
    on(&dir, "check", &[]).ok();
}
