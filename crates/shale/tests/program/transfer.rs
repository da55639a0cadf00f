//! Import and export: exported data equals imported data, byte for byte, for any data and any way.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::support::{
    Dir, Ran, SHALE, Server, content, imported_noise, mixed_data, noise, on, path, run, run_with_stdin, signal,
};
use operations::{Reply, Request};
use server::control::Client;
use testkit::until;

/// Makes a file with real data, holes, noise, zeroes that are not a hole, and an odd end.
fn sparse_file(dir: &Dir) -> (std::path::PathBuf, Vec<u8>) {
    let place = dir.join("sparse");
    let file = File::options().read(true).write(true).create_new(true).open(&place).unwrap();
    file.write_all_at(&mixed_data(3 << 20), 0).unwrap();
    file.write_all_at(&noise((1 << 20) + 777), 9 << 20).unwrap();
    file.write_all_at(&vec![0; 1 << 20], 12 << 20).unwrap();
    file.write_all_at(b"the end", (40 << 20) + 5).unwrap();
    drop(file);
    let bytes = std::fs::read(&place).unwrap();
    (place, bytes)
}

#[test]
fn a_sparse_file_comes_back_as_it_was_and_as_sparse() {
    let dir = Dir::with_pool("256M");
    let (source, bytes) = sparse_file(&dir);
    let done = on(&dir, "import", &["v", path(&source), "--json"]).ok().json();
    assert_eq!(done["size_bytes"].as_u64().unwrap(), bytes.len() as u64, "the size is exact");
    assert_eq!(done["copied_bytes"].as_u64().unwrap() + done["hole_bytes"].as_u64().unwrap(), bytes.len() as u64);
    assert!(done["hole_bytes"].as_u64().unwrap() > 30 << 20, "{done}");
    assert!(done["allocated_bytes"].as_u64().unwrap() < 5 << 20, "zeroes are stored: {done}");
    assert!(done["ratio"].as_f64().unwrap() > 1.0, "{done}");

    let target = dir.join("target");
    let done = on(&dir, "export", &["v", path(&target), "--json"]).ok().json();
    assert!(bytes == std::fs::read(&target).unwrap(), "the content differs");
    assert!(std::fs::metadata(&target).unwrap().blocks() * 512 < 6 << 20, "the exported file has no holes");
    assert!(done["hole_bytes"].as_u64().unwrap() > 30 << 20, "{done}");
    on(&dir, "check", &[]).ok();
}

#[test]
fn pipes_work_both_ways_and_the_volume_takes_the_size_of_what_came() {
    let dir = Dir::with_pool("256M");
    let bytes = mixed_data((20 << 20) + 1234);
    let source = dir.join("source");
    std::fs::write(&source, &bytes).unwrap();
    let mut cat = Command::new("cat").arg(&source).stdout(Stdio::piped()).spawn().unwrap();
    let pipe = Stdio::from(cat.stdout.take().unwrap());
    run_with_stdin(&["import", path(&dir.pool()), "v", "-"], pipe).ok();
    assert!(cat.wait().unwrap().success());
    assert!(content(&dir, "v") == bytes, "the content differs");
    let list = on(&dir, "list", &["--json"]).ok().json();
    assert_eq!(list[0]["size_bytes"].as_u64().unwrap(), bytes.len() as u64);

    // A file as stdin; a volume that is larger than the input.
    let file = Stdio::from(File::open(&source).unwrap());
    run_with_stdin(&["import", path(&dir.pool()), "w", "-", "--size", "32M"], file).ok();
    let mut larger = bytes;
    larger.resize(32 << 20, 0);
    assert!(content(&dir, "w") == larger, "the content differs");
    // Smaller than the input.
    let mut cat = Command::new("cat").arg(&source).stdout(Stdio::piped()).spawn().unwrap();
    let pipe = Stdio::from(cat.stdout.take().unwrap());
    run_with_stdin(&["import", path(&dir.pool()), "x", "-", "--size", "8M"], pipe).code(2).says("removed");
    drop(cat.wait());
    assert_eq!(on(&dir, "list", &["--json"]).ok().json().as_array().unwrap().len(), 2);
}

#[test]
fn overwriting_leaves_nothing_of_the_old_content() {
    let dir = Dir::with_pool("256M");
    imported_noise(&dir, "old", 48 << 20);
    let (source, bytes) = sparse_file(&dir);
    on(&dir, "import", &["v", path(&source)]).code(8).says("--overwrite");
    on(&dir, "import", &["v", path(&source), "--overwrite", "-o", "compression=zstd-3"]).ok();
    let mut expected = bytes;
    expected.resize(48 << 20, 0);
    assert!(content(&dir, "v") == expected, "old bytes are left, or new ones missing");
    let volume = on(&dir, "list", &["--json"]).ok().json()[0].clone();
    assert!(volume["allocated_bytes"].as_u64().unwrap() < 5 << 20, "{volume}");
    assert_eq!(volume["properties"]["compression"], "zstd-3");
    // Too small for the input.
    on(&dir, "create", &["small", "--size", "1M"]).ok();
    on(&dir, "import", &["small", path(&source), "--overwrite"]).code(2).says("small");
    on(&dir, "check", &[]).ok();
}

#[test]
fn an_existing_target_needs_force_and_is_replaced_whole() {
    let dir = Dir::with_pool("64M");
    let source = dir.join("source");
    std::fs::write(&source, mixed_data(1 << 20)).unwrap();
    on(&dir, "import", &["v", path(&source)]).ok();
    let target = dir.join("target");
    std::fs::write(&target, noise(3 << 20)).unwrap();
    on(&dir, "export", &["v", path(&target)]).code(8).says("--force");
    assert_eq!(std::fs::metadata(&target).unwrap().len(), 3 << 20);
    on(&dir, "export", &["v", path(&target), "--force"]).ok();
    assert!(std::fs::read(&target).unwrap() == std::fs::read(&source).unwrap(), "the content differs");
    // The pool's own data cannot be a target, even with --force.
    let data = dir.pool().join("data");
    on(&dir, "export", &["v", path(&data), "--force"]).code(4).says("data of a Shale pool");
    on(&dir, "export", &["v", path(dir.path()), "--force"]).code(2).says("directory");
    on(&dir, "export", &["nobody", path(&dir.join("x"))]).code(3);
    assert!(!dir.join("x").exists());
    on(&dir, "check", &[]).ok();
}

#[test]
fn an_import_that_does_not_fit_leaves_the_pool_as_it_was() {
    let dir = Dir::with_pool("64M");
    on(&dir, "create", &["v", "--size", "1M"]).ok();
    let source = dir.join("noise");
    std::fs::write(&source, noise(96 << 20)).unwrap();
    let error = on(&dir, "import", &["big", path(&source), "--json"]).code(5).json();
    assert_eq!(error["error"]["kind"], "full");
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.contains("MiB") && message.contains("removed"), "{message}");
    let list = on(&dir, "list", &["--json"]).ok().json();
    assert_eq!(list.as_array().unwrap().len(), 1, "{list}");
    // And there is space again.
    std::fs::write(&source, noise(16 << 20)).unwrap();
    on(&dir, "import", &["fits", path(&source)]).ok();
    assert!(content(&dir, "fits") == noise(16 << 20), "the content differs");
    on(&dir, "check", &[]).ok();
}

/// Starts an import into `v` from a pipe that has read the beginning of its stream, so that the
/// volume exists, and waits for more.
fn begun_import(dir: &Dir, begins: &[u8]) -> (Child, ChildStdin) {
    begun_import_of(dir, &[], begins)
}

/// The same, with more words.
fn begun_import_of(dir: &Dir, words: &[&str], begins: &[u8]) -> (Child, ChildStdin) {
    let mut child = Command::new(SHALE)
        .args(["import", path(&dir.pool()), "v", "-"])
        .args(words)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    assert!(begins.len() > 1 << 20, "it may all lie in the pipe");
    stdin.write_all(begins).unwrap();
    (child, stdin)
}

/// SIGINT while stdin is idle.
fn interrupted_import(dir: &Dir) {
    let (child, stdin) = begun_import(dir, &noise(4 << 20));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let ran = crate::support::Ran::of(child.wait_with_output().unwrap());
    ran.code(130).says("interrupted").says("removed");
    drop(stdin);
    assert_eq!(on(dir, "list", &["--json"]).ok().json(), serde_json::json!([]));
}

#[test]
fn an_interrupted_import_removes_its_volume() {
    let dir = Dir::with_pool("64M");
    interrupted_import(&dir);
    let server = Server::start(&dir, &[]);
    interrupted_import(&dir);
    server.stop();
}

/// A killed import left a volume that looked complete.
#[test]
fn what_a_killed_import_leaves_says_so_until_it_is_imported_again() {
    let dir = Dir::with_pool("256M");
    let bytes = noise(8 << 20);
    let source = dir.join("source");
    std::fs::write(&source, &bytes).unwrap();
    let incomplete = |volume: &str| {
        let list = on(&dir, "list", &["--json"]).ok().json();
        let told = list.as_array().unwrap().iter().find(|v| v["name"] == volume).unwrap()["incomplete"].as_bool();
        let told = told.unwrap();
        let of_pool = on(&dir, "status", &["--json"]).ok().json()["incomplete"].clone();
        assert_eq!(of_pool.as_array().unwrap().iter().any(|name| name == volume), told, "{of_pool}");
        assert_eq!(on(&dir, "get", &[volume, "incomplete", "--json"]).ok().json()[0]["value"] == "yes", told);
        told
    };
    let killed = |words: &[&str]| {
        let (mut child, stdin) = begun_import_of(&dir, words, &bytes[..4 << 20]);
        child.kill().unwrap();
        child.wait().unwrap();
        drop(stdin);
    };
    for served in [false, true] {
        let server = served.then(|| Server::start(&dir, &[]));
        killed(&[]);
        assert!(incomplete("v"));
        on(&dir, "import", &["v", path(&source)]).code(8);
        assert!(incomplete("v"));
        on(&dir, "import", &["v", path(&source), "--overwrite"]).ok();
        assert!(!incomplete("v"));
        killed(&["--overwrite"]);
        assert!(incomplete("v"));
        // So does one that fails in the middle, and one that the server does not survive.
        if let Some(mut server) = server {
            on(&dir, "import", &["v", path(&source), "--overwrite"]).ok();
            let (mut child, stdin) = begun_import_of(&dir, &["--overwrite"], &bytes[..4 << 20]);
            server.signal(libc::SIGKILL);
            server.child.wait().unwrap();
            drop(stdin);
            assert!(!child.wait().unwrap().success());
        } else {
            on(&dir, "import", &["v", path(&source), "--overwrite"]).ok();
            let (child, stdin) = begun_import_of(&dir, &["--overwrite"], &bytes[..4 << 20]);
            signal(&child, libc::SIGINT);
            Ran::of(child.wait_with_output().unwrap()).code(130).says("incomplete");
            drop(stdin);
        }
        assert!(incomplete("v"));
        on(&dir, "set", &["v", "incomplete=no"]).ok();
        assert!(!incomplete("v"));
        on(&dir, "destroy", &["v"]).ok();
    }
    // A volume without the mark stays complete, in any case.
    let mut server = Server::start(&dir, &[]);
    on(&dir, "import", &["v", path(&source)]).ok();
    server.signal(libc::SIGKILL);
    server.child.wait().unwrap();
    assert!(!incomplete("v"));
    assert!(content(&dir, "v") == bytes, "the content differs");
    on(&dir, "check", &[]).ok();
}

/// A server killed the moment that the mark is gone has lost nothing: all was durable before.
#[test]
fn the_mark_goes_when_everything_is_durable() {
    let dir = Dir::with_pool("256M");
    let bytes = noise(64 << 20);
    let source = dir.join("source");
    std::fs::write(&source, &bytes).unwrap();
    let mut server = Server::start(&dir, &[]);
    let client = Client::connect(&dir.pool().join("control.sock")).unwrap();
    let is_whole = || match client.call(&Request::List).unwrap() {
        Reply::Volumes(volumes) => volumes.iter().any(|volume| !volume.incomplete),
        other => panic!("{other:?}"),
    };
    let mut import = Command::new(SHALE);
    import.args(["import", path(&dir.pool()), "v", path(&source)]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut import = import.spawn().unwrap();
    until("the volume is whole", is_whole);
    server.signal(libc::SIGKILL);
    server.child.wait().unwrap();
    import.wait().unwrap();
    assert!(content(&dir, "v") == bytes, "the content differs");
}

/// A client that uses such a volume is warned.
#[test]
fn an_incomplete_volume_is_told_of_at_every_door() {
    let dir = Dir::with_pool("64M");
    imported_noise(&dir, "source", 1 << 20);
    on(&dir, "set", &["v", "incomplete=yes"]).ok();
    assert!(on(&dir, "list", &[]).ok().stdout.contains("'v' is incomplete"));
    assert!(on(&dir, "status", &[]).ok().stdout.contains("INCOMPLETE"));
    on(&dir, "export", &["v", path(&dir.join("image"))]).ok().says("'v' is incomplete");
    on(&dir, "snapshot", &["v@s"]).ok().says("'v@s' is incomplete");
    on(&dir, "send", &["v@s", "-o", path(&dir.join("stream"))]).ok().says("'v@s' is incomplete");
    let said = Server::start(&dir, &[]).stop();
    assert!(said.contains("'v' is incomplete") && said.contains("'v@s' is incomplete"), "{said}");
    on(&dir, "set", &["incomplete=yes"]).code(2).says("of single volumes");
    on(&dir, "set", &["v", "incomplete=maybe"]).code(2).says("no, yes");
    // The snapshot does not change.
    on(&dir, "set", &["v", "incomplete="]).ok();
    let list = on(&dir, "list", &["-r", "--json"]).ok().json();
    assert_eq!((&list[0]["incomplete"], &list[0]["snapshots"][0]["incomplete"]), (&false.into(), &true.into()));
    let text = on(&dir, "list", &["-r"]).ok().stdout;
    assert!(text.contains("'v@s' is incomplete") && !text.contains("'v' is"), "{text}");
    assert_eq!(on(&dir, "export", &["v", path(&dir.join("again"))]).ok().stderr, "");
}

/// While a server handles an import, the volume is renamed, and another gets its name: the import
/// continues with its own.
#[test]
fn an_import_stays_with_its_volume_whatever_it_is_called() {
    let dir = Dir::with_pool("256M");
    let other = imported_noise(&dir, "other.img", 3 << 20);
    on(&dir, "rename", &["v", "other"]).ok();
    let server = Server::start(&dir, &[]);
    let (begins, ends) = (mixed_data(8 << 20), noise(24 << 20));
    for interrupted in [false, true] {
        let (child, mut stdin) = begun_import(&dir, &begins);
        on(&dir, "rename", &["v", "renamed"]).ok();
        on(&dir, "rename", &["other", "v"]).ok();
        if interrupted {
            signal(&child, 2);
        } else {
            stdin.write_all(&ends).unwrap();
            drop(stdin);
        }
        let ran = Ran::of(child.wait_with_output().unwrap());
        if interrupted {
            ran.code(130).says("the new volume was removed");
            on(&dir, "destroy", &["renamed"]).code(3);
        } else {
            ran.ok();
            assert!(content(&dir, "renamed") == [&begins[..], &ends].concat(), "the content differs");
            on(&dir, "destroy", &["renamed"]).ok();
        }
        assert!(content(&dir, "v") == std::fs::read(&other).unwrap(), "another volume was touched");
        on(&dir, "rename", &["v", "other"]).ok();
    }
    server.stop();
    on(&dir, "check", &[]).ok();
}

#[test]
fn a_reader_that_goes_away_ends_the_export() {
    let dir = Dir::with_pool("64M");
    imported_noise(&dir, "source", 16 << 20);
    let mut child = Command::new(SHALE)
        .args(["export", path(&dir.pool()), "v", "-"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let ran = crate::support::Ran::of(child.wait_with_output().unwrap());
    ran.code(7).says("output");
    on(&dir, "check", &[]).ok();
}

#[test]
fn the_server_gives_the_same_bytes_as_the_pool_itself() {
    let dir = Dir::with_pool("512M");
    let (source, bytes) = sparse_file(&dir);
    let expected = bytes;
    let server = Server::start(&dir, &[]);
    let done = on(&dir, "import", &["served", path(&source), "--json"]).ok().json();
    assert!(done["hole_bytes"].as_u64().unwrap() > 30 << 20, "{done}");
    let target = dir.join("target");
    on(&dir, "export", &["served", path(&target)]).ok();
    assert!(expected == std::fs::read(&target).unwrap(), "the content differs");
    assert!(std::fs::metadata(&target).unwrap().blocks() * 512 < 6 << 20, "the exported file has no holes");
    assert!(content(&dir, "served") == expected, "the content differs through a pipe");
    // Overwriting through the server makes holes as well.
    imported_noise(&dir, "old", 42 << 20);
    on(&dir, "import", &["v", path(&source), "--overwrite"]).ok();
    let mut longer = expected.clone();
    longer.resize(42 << 20, 0);
    assert!(content(&dir, "v") == longer, "old bytes are left, or new ones missing");
    // A stream that makes its volume grow.
    let mut cat = Command::new("cat").arg(&source).stdout(Stdio::piped()).spawn().unwrap();
    let pipe = Stdio::from(cat.stdout.take().unwrap());
    run_with_stdin(&["import", path(&dir.pool()), "grown", "-"], pipe).ok();
    drop(cat.wait());
    server.stop();
    assert!(content(&dir, "served") == expected, "the content differs without the server");
    assert!(content(&dir, "grown") == expected, "the stream differs");
    on(&dir, "check", &[]).ok();
}

#[test]
fn a_full_pool_is_told_through_the_server_too() {
    let dir = Dir::with_pool("64M");
    let source = dir.join("noise");
    std::fs::write(&source, noise(96 << 20)).unwrap();
    let server = Server::start(&dir, &[]);
    on(&dir, "import", &["big", path(&source)]).code(5).says("removed");
    assert_eq!(on(&dir, "list", &["--json"]).ok().json(), serde_json::json!([]));
    server.stop();
    on(&dir, "check", &[]).ok();
}

/// Through a server, files are copied by the server itself; the result equals that of an import
/// without a server.
#[test]
fn a_server_copies_files_and_they_are_the_same() {
    let dir = Dir::with_pool("256M");
    let (source, bytes) = sparse_file(&dir);
    let server = Server::start(&dir, &[]);
    let done = on(&dir, "import", &["v", path(&source), "--json"]).ok().json();
    assert_eq!(done["copied_bytes"].as_u64().unwrap() + done["hole_bytes"].as_u64().unwrap(), bytes.len() as u64);
    assert!(done["hole_bytes"].as_u64().unwrap() > 30 << 20, "{done}");
    assert!(done["allocated_bytes"].as_u64().unwrap() < 5 << 20, "zeroes are stored: {done}");
    assert!(content(&dir, "v") == bytes, "the content differs");
    // Over old content: holes are made in the volume, and in a file with content.
    std::fs::write(dir.join("old"), noise(40 << 20)).unwrap();
    on(&dir, "import", &["w", path(&dir.join("old")), "--size", "48M"]).ok();
    on(&dir, "import", &["w", path(&source), "--overwrite"]).ok();
    let mut larger = bytes.clone();
    larger.resize(48 << 20, 0);
    assert!(content(&dir, "w") == larger, "something of the old content is left");
    let target = dir.join("old");
    let done = on(&dir, "export", &["v", path(&target), "--force", "--json"]).ok().json();
    assert!(bytes == std::fs::read(&target).unwrap(), "the content differs");
    assert!(std::fs::metadata(&target).unwrap().blocks() * 512 < 6 << 20, "the exported file has no holes");
    assert!(done["hole_bytes"].as_u64().unwrap() > 30 << 20, "{done}");
    // The client's descriptors are closed with its connections.
    until("the server has closed the client's files", || {
        let open = std::fs::read_dir(format!("/proc/{}/fd", server.child.id())).unwrap();
        let to = |fd: std::io::Result<std::fs::DirEntry>| std::fs::read_link(fd.unwrap().path()).unwrap_or_default();
        open.map(to).all(|to| to != target && to != source)
    });
    server.stop();
    on(&dir, "check", &[]).ok();
}

/// The client is killed in the middle: the server releases its file and the half-written volume,
/// and continues.
#[test]
fn a_client_that_dies_in_the_middle_leaves_a_server_that_works() {
    let dir = Dir::with_pool("512M");
    let source = dir.join("source");
    std::fs::write(&source, mixed_data(192 << 20)).unwrap();
    let server = Server::start(&dir, &[]);
    on(&dir, "import", &["v", path(&source)]).ok();
    for words in [&["import", "w"][..], &["export", "v"]] {
        let target = if words[0] == "import" { source.clone() } else { dir.join("target") };
        let mut child = Command::new(SHALE)
            .args([words[0], path(&dir.pool()), words[1], path(&target)])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let begun = |bytes: u64| match words[0] {
            "import" => on(&dir, "status", &["--json"]).ok().json()["written_bytes"].as_u64().unwrap() > bytes,
            _ => std::fs::metadata(&target).is_ok_and(|m| m.blocks() > 0),
        };
        while !begun((192 << 20) + (8 << 20)) && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        drop(child.kill());
        child.wait().unwrap();
    }
    until("the server has seen that its clients are gone", || {
        let list = on(&dir, "list", &["--json"]).ok().json();
        list.as_array().unwrap().iter().all(|volume| volume["clients"] == 0)
    });
    assert!(content(&dir, "v") == std::fs::read(&source).unwrap(), "the content differs");
    on(&dir, "import", &["w", path(&source), "--overwrite"]).ok();
    assert!(content(&dir, "w") == std::fs::read(&source).unwrap(), "the content differs");
    server.stop();
    on(&dir, "check", &[]).ok();
}

/// `export` and `send --force` overwrote the data and the description of pools that were not
/// served.
#[test]
fn what_belongs_to_a_pool_is_not_overwritten() {
    let dir = Dir::with_pool("64M");
    imported_noise(&dir, "source", 1 << 20);
    on(&dir, "snapshot", &["v@s"]).ok();
    let (other, elsewhere) = (dir.join("other"), dir.join("elsewhere"));
    run(["init", path(&other), "--capacity", "64M", "--data", path(&elsewhere)]).ok();
    let own = ["data", "pool.json", "lock"].map(|name| dir.pool().join(name));
    for target in own.iter().chain([&elsewhere, &other.join("pool.json")]) {
        let before = std::fs::metadata(target).unwrap();
        on(&dir, "export", &["v", path(target), "--force"]).code(4).says("pool");
        on(&dir, "send", &["v@s", "-o", path(target), "--force"]).code(4).says("pool");
        assert_eq!(std::fs::metadata(target).unwrap().len(), before.len());
    }
    run(["check", path(&other)]).ok();
    // A user's own file there may be overwritten.
    let image = other.join("image");
    std::fs::write(&image, b"old").unwrap();
    on(&dir, "export", &["v", path(&image), "--force"]).ok();
    assert!(std::fs::read(&image).unwrap() == noise(1 << 20));
}

/// The runtime opens /dev/null if stdout is closed: all output went there, with exit code 0.
#[test]
fn a_stdout_that_is_closed_is_an_error() {
    let dir = Dir::with_pool("64M");
    imported_noise(&dir, "source", 1 << 20);
    on(&dir, "snapshot", &["v@s"]).ok();
    let pool = dir.pool();
    for words in [["export", path(&pool), "v", "-"].as_slice(), &["send", path(&pool), "v@s"]] {
        let shell = |redirection: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", &format!("exec \"$0\" \"$@\" {redirection}"), SHALE]).args(words);
            Ran::of(command.output().unwrap())
        };
        shell(">&-").code(7).says("cannot use stdout");
        // Users can still discard it explicitly.
        shell("> /dev/null").ok();
        shell("1<> /dev/null").ok();
    }
}

#[test]
fn an_import_tells_of_the_volume_and_not_of_its_snapshots() {
    let dir = Dir::with_pool("64M");
    let source = imported_noise(&dir, "source", 4 << 20);
    on(&dir, "snapshot", &["v@s"]).ok();
    let summary = on(&dir, "import", &["v", path(&source), "--overwrite", "--json"]).ok().json();
    assert_eq!((&summary["copied_bytes"], &summary["allocated_bytes"]), (&(4 << 20).into(), &(4 << 20).into()));
    assert_eq!(summary["with_snapshots"], true, "{summary}");
    let said = on(&dir, "import", &["v", path(&source), "--overwrite"]).ok().stdout;
    assert!(said.contains("4 MiB of data, 8 MiB stored with its snapshots"), "{said}");
}

/// Four bytes of a JPEG in front of text stored all of it raw.
#[test]
fn a_signature_is_believed_only_where_the_data_agrees() {
    let dir = Dir::with_pool("256M");
    let file = dir.join("a.jpg");
    let import = |volume: &str, mut bytes: Vec<u8>| {
        bytes[..4].copy_from_slice(b"\xff\xd8\xff\xe0");
        std::fs::write(&file, bytes).unwrap();
        on(&dir, "import", &[volume, path(&file)]).ok()
    };
    let stored = |volume: &str| {
        let all = on(&dir, "list", &["--json"]).ok().json();
        let found = all.as_array().unwrap().iter().find(|found| found["name"] == volume).unwrap().clone();
        found["stored_bytes"].as_u64().unwrap()
    };
    import("text", mixed_data(8 << 20)).says("do not match its name or its first bytes");
    import("noise", noise(8 << 20)).says("(rule.jpg");
    assert!(stored("noise") >= 8 << 20);
    // A rule that was set is always followed.
    on(&dir, "set", &["rule.jpg=off"]).ok();
    import("set", mixed_data(8 << 20)).says("(rule.jpg");
    assert!(stored("text") < stored("set") / 10 * 9, "{} {}", stored("text"), stored("set"));
}

/// Pages of names are sparse: they were counted as data of which nine tenths were saved.
#[test]
fn the_ratio_of_an_imported_tree_is_that_of_its_files() {
    let dir = Dir::with_pool("256M");
    let tree = dir.join("tree");
    std::fs::create_dir(&tree).unwrap();
    for n in 0..600_usize {
        std::fs::write(tree.join(format!("{n}")), noise(100 + n % 10)).unwrap();
    }
    let done = on(&dir, "import", &["home", path(&tree), "--json"]).ok().json();
    let (copied, stored) = (done["copied_bytes"].as_f64().unwrap(), done["stored_bytes"].as_f64().unwrap());
    assert!(copied > 60_000.0 && stored > 0.0, "{done}");
    // As in `list`: of the data, which counts whole blocks.
    let data = done["data_bytes"].as_f64().unwrap();
    assert!((done["ratio"].as_f64().unwrap() - data / stored).abs() < 1e-9, "{done}");
}
