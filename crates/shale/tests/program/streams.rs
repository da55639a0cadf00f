//! Streams by command: between pools that are served and not, through files and pipes; interrupted,
//! damaged and resumed.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs::File;
use std::process::{Command, Stdio};

use crate::support::{Dir, Ran, SHALE, Server, content, mixed_data, noise, on, path, run, run_with_stdin};
use copy::volume_io::VolumeIo;
use serde_json::Value;
use server::control::Client;

/// Returns a pool with a volume of real data and two snapshots, a few blocks of which differ.
fn source() -> Dir {
    let dir = Dir::with_pool("256M");
    let image = dir.join("image");
    std::fs::write(&image, mixed_data(12 << 20)).unwrap();
    on(&dir, "import", &["v", path(&image), "-o", "unit=64K"]).ok();
    on(&dir, "set", &["v", "snapshots=daily", "keep=7d", "quota=100M"]).ok();
    on(&dir, "snapshot", &["v@a"]).ok();
    let server = Server::start(&dir, &[]);
    let client = Client::connect(&dir.pool().join("control.sock")).unwrap();
    let volume = client.volume("v", None).unwrap();
    volume.write(1 << 20, noise(300 << 10).into()).unwrap();
    volume.discard(5 << 20, 1 << 20).unwrap();
    volume.flush().unwrap();
    drop((volume, client));
    server.stop();
    on(&dir, "snapshot", &["v@b"]).ok();
    dir
}

/// Runs `shale send ... | shale receive ...`.
fn pipe(from: &Dir, words: &[&str], to: &Dir, volume: &str) -> Ran {
    let mut command = Command::new(SHALE);
    command.args(["send", path(&from.pool()), "-q"]).args(words);
    let mut sender = command.stdout(Stdio::piped()).spawn().unwrap();
    let stdin = Stdio::from(sender.stdout.take().unwrap());
    let ran = run_with_stdin(&["receive", path(&to.pool()), volume, "--json"], stdin);
    let sent = sender.wait().unwrap();
    assert_eq!(sent.success(), ran.code == 0, "{}{}", ran.stdout, ran.stderr);
    ran
}

fn same(one: &Dir, name: &str, other: &Dir, there: &str) {
    assert!(content(one, name) == content(other, there), "{name} and {there} differ");
}

fn status(dir: &Dir) -> Value {
    on(dir, "status", &["--json"]).ok().json()
}

#[test]
fn a_snapshot_and_then_a_difference_go_through_a_pipe_served_or_not() {
    let from = source();
    for served in [false, true] {
        let to = Dir::with_pool("256M");
        let servers = served.then(|| (Server::start(&from, &[]), Server::start(&to, &[])));
        let done = pipe(&from, &["v@a"], &to, "w").ok().json();
        assert_eq!((done["volume"].as_str(), done["is_new"].as_bool()), (Some("w"), Some(true)), "{done}");
        same(&from, "v@a", &to, "w@a");
        let stored = on(&to, "list", &["--sync", "--json"]).ok().json()[0]["stored_bytes"].as_u64().unwrap();
        let payload = done["payload_bytes"].as_u64().unwrap();
        let stream = done["stream_bytes"].as_u64().unwrap();
        assert_eq!(stored, payload, "what was sent is what is stored");
        assert!(stream < payload + payload / 100 + 4096 && payload < 11 << 20, "{done}");
        let done = pipe(&from, &["v@b", "--from", "a"], &to, "w").ok().json();
        assert!(done["payload_bytes"].as_u64().unwrap() < 600_000, "{done}");
        assert!(done["hole_bytes"].as_u64().unwrap() >= (1 << 20) - 65536, "{done}");
        same(&from, "v@a", &to, "w@a");
        same(&from, "v@b", &to, "w@b");
        same(&from, "v@b", &to, "w");
        let own = on(&to, "list", &["--json"]).ok().json()[0]["properties"].clone();
        assert_eq!(own, serde_json::json!({ "unit": "64K", "quota": "100M" }), "the schedule stays behind");
        let listed = on(&to, "list", &["-r", "--json"]).ok().json();
        assert_eq!(listed[0]["snapshots"].as_array().unwrap().len(), 2);
        drop(servers);
        on(&to, "check", &[]).ok();
    }
}

#[test]
fn a_stream_that_breaks_off_goes_on_where_it_stopped() {
    let (from, to) = (source(), Dir::with_pool("256M"));
    let stream = from.join("stream");
    let done = on(&from, "send", &["v@a", "-o", path(&stream), "--json"]).ok().json();
    let bytes = std::fs::read(&stream).unwrap();
    assert_eq!(done["stream_bytes"].as_u64().unwrap(), bytes.len() as u64);
    on(&from, "send", &["v@a", "-o", path(&stream)]).code(8).says("--force");
    let pool = to.pool();
    let receive = |file: &std::path::Path| run(["receive", path(&pool), "w", "-i", path(file), "--json"]);
    for served in [false, true] {
        let server = served.then(|| Server::start(&to, &[]));
        let cut = from.join("cut");
        std::fs::write(&cut, &bytes[..bytes.len() * 2 / 3]).unwrap();
        let error = receive(&cut).code(7).json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(error.contains("ends at byte") && error.contains("--resume shale1-"), "{error}");
        on(&to, "export", &["w", "-"]).code(3);
        on(&to, "create", &["w", "--size", "1M"]).code(8);
        let left = status(&to)["receives"][0].clone();
        assert!(left["received_bytes"].as_u64().unwrap() > bytes.len() as u64 / 3, "{left}");
        assert!(on(&to, "list", &[]).ok().stdout.contains("being received: w@a"));
        // A server that was killed meanwhile changes nothing.
        let mut server = server;
        if let Some(server) = &mut server {
            server.child.kill().unwrap();
            server.child.wait().unwrap();
        }
        drop(server);
        let token = status(&to)["receives"][0]["token"].as_str().unwrap().to_owned();
        assert!(error.contains(&token), "{error}");
        let rest = from.join("rest");
        let done = on(&from, "send", &["--resume", &token, "-o", path(&rest), "--force", "--json"]).ok().json();
        assert!(done["stream_bytes"].as_u64().unwrap() < bytes.len() as u64 / 2, "{done}");
        receive(&rest).ok();
        same(&from, "v@a", &to, "w@a");
        assert_eq!(status(&to)["receives"].as_array().unwrap().len(), 0);
        on(&to, "destroy", &["-r", "w"]).ok();
        // Abandoned.
        receive(&cut).code(7);
        on(&to, "destroy", &["w"]).ok();
        assert_eq!(status(&to)["receives"].as_array().unwrap().len(), 0);
        receive(&rest).code(11);
    }
    on(&to, "check", &[]).ok();
}

#[test]
fn what_is_no_stream_or_a_damaged_one_or_does_not_fit_is_told_apart() {
    let (from, to) = (source(), Dir::with_pool("256M"));
    let place = |name: &str| from.join(name);
    on(&from, "send", &["v@a", "-o", path(&place("a"))]).ok();
    on(&from, "send", &["v@b", "--from", "v@a", "-o", path(&place("b"))]).ok();
    let pool = to.pool();
    let receive = |file: &str| run(["receive", path(&pool), "w", "-i", path(&place(file))]);
    let bytes = std::fs::read(place("a")).unwrap();
    std::fs::write(place("empty"), b"").unwrap();
    std::fs::write(place("image"), noise(100_000)).unwrap();
    for at in [0, 4, 10, 30, 2000, bytes.len() / 2, bytes.len() - 1] {
        let mut bad = bytes.clone();
        bad[at] ^= 0x10;
        std::fs::write(place("bad"), &bad).unwrap();
        let code = if at < 12 { [2, 7, 6].as_slice() } else { &[6] };
        let ran = receive("bad");
        assert!(code.contains(&ran.code), "byte {at}: {} {}", ran.code, ran.stderr);
        on(&to, "export", &["w", "-"]).code(3);
    }
    drop(on(&to, "destroy", &["w"]));
    receive("empty").code(7).says("is empty");
    receive("image").code(2).says("not a stream");
    receive("missing").code(3);
    receive("b").code(3).says("needs the volume");
    receive("a").ok();
    receive("a").code(8).says("has 'w@a' already");
    let image = from.join("image-of-4k");
    std::fs::write(&image, noise(4096)).unwrap();
    on(&to, "import", &["w", path(&image), "--overwrite"]).ok();
    receive("b").code(11).says("rollback");
    on(&to, "rollback", &["w@a"]).ok();
    // A volume does not change while clients have it open.
    let server = Server::start(&to, &[]);
    let client = Client::connect(&to.pool().join("control.sock")).unwrap();
    let volume = client.volume("w", None).unwrap();
    volume.size_bytes().unwrap();
    receive("b").code(4).says("open by 1 client");
    drop((volume, client));
    receive("b").ok();
    same(&from, "v@b", &to, "w");
    drop(server);
    on(&from, "send", &["v@c", "-o", path(&place("c"))]).code(3);
    assert!(!place("c").exists(), "a stream that failed leaves no file");
    on(&from, "send", &["v@a", "--resume", "shale1-12", "-o", path(&place("c"))]).code(2);
    on(&to, "check", &[]).ok();
}

#[test]
fn a_receiver_that_goes_away_ends_the_sender() {
    let from = source();
    let mut sender = Command::new(SHALE)
        .args(["send", path(&from.pool()), "v@a"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(sender.stdout.take());
    let ran = Ran::of(sender.wait_with_output().unwrap());
    ran.code(7).says("the receiver ended before the stream did");
    // A stream is never sent to a terminal; an unwritable file is reported before anything is read.
    on(&from, "send", &["v@a", "-o", "/nonexistent/x"]).code(3);
    let full = File::options().write(true).open("/dev/full").unwrap();
    let ran = Command::new(SHALE).args(["send", path(&from.pool()), "v@a"]).stdout(full).output().unwrap();
    assert_eq!(ran.status.code(), Some(5), "{}", String::from_utf8_lossy(&ran.stderr));
}

/// `send --force` emptied the file, and only then found that there was nothing to send.
#[test]
fn a_send_that_cannot_begin_leaves_the_old_file() {
    let (from, other) = (source(), Dir::with_pool("64M"));
    let backup = from.join("backup");
    on(&from, "send", &["v@a", "-o", path(&backup)]).ok();
    let old = std::fs::read(&backup).unwrap();
    for served in [false, true] {
        let server = served.then(|| Server::start(&from, &[]));
        for wrong in [&["v@c"][..], &["w@a"], &["v@b", "--from", "c"], &["--resume", "shale1-12"]] {
            let ran = on(&from, "send", &[wrong, &["-o", path(&backup), "--force"]].concat());
            assert!([2, 3].contains(&ran.code), "{wrong:?}: {} {}", ran.code, ran.stderr);
            assert!(old == std::fs::read(&backup).unwrap(), "{wrong:?} has changed the old file");
        }
        drop(server);
    }
    // A longer file is replaced completely.
    std::fs::write(&backup, [&old[..], &noise(4096)].concat()).unwrap();
    on(&from, "send", &["v@a", "-o", path(&backup), "--force"]).ok();
    assert_eq!(std::fs::metadata(&backup).unwrap().len(), old.len() as u64);
    // Data of open pools: another one, and the sending one.
    let server = Server::start(&other, &[]);
    for pool in [&other, &from] {
        let data = pool.pool().join("data");
        on(&from, "send", &["v@a", "-o", path(&data), "--force"]).code(4).says("data of a Shale pool");
    }
    server.stop();
    on(&other, "check", &[]).ok();
    on(&from, "check", &[]).ok();
}

/// Runs `shale send ... | shale receive ...`, without a check of the result.
fn pipe_set(from: &Dir, send: &[&str], to: &Dir, receive: &[&str]) -> Ran {
    let mut command = Command::new(SHALE);
    command.args(["send", path(&from.pool()), "-q"]).args(send);
    let mut sender = command.stdout(Stdio::piped()).spawn().unwrap();
    let stdin = Stdio::from(sender.stdout.take().unwrap());
    let pool = to.pool();
    let words = [&["receive", path(&pool)], receive, &["--json"]].concat();
    let ran = run_with_stdin(&words, stdin);
    assert_eq!(sender.wait().unwrap().success(), ran.code == 0, "{}{}", ran.stdout, ran.stderr);
    ran
}

/// Returns the source, with a third snapshot and a clone of the second one that has a snapshot of
/// its own.
fn source_with_a_clone() -> Dir {
    let from = source();
    on(&from, "clone", &["v@b", "c", "-o", "snapshots=off"]).ok();
    let image = from.join("small");
    std::fs::write(&image, noise(64 << 10)).unwrap();
    on(&from, "import", &["c", path(&image), "--overwrite"]).ok();
    on(&from, "snapshot", &["c@own"]).ok();
    std::fs::write(&image, noise(32 << 10)).unwrap();
    on(&from, "import", &["v", path(&image), "--overwrite"]).ok();
    on(&from, "snapshot", &["v@d"]).ok();
    from
}

fn count(done: &Value, key: &str) -> usize {
    done[key].as_array().unwrap_or_else(|| panic!("{done}")).len()
}

#[test]
fn a_set_brings_every_snapshot_of_all_volumes() {
    let from = source_with_a_clone();
    for served in [false, true] {
        let to = Dir::with_pool("256M");
        let servers = served.then(|| (Server::start(&from, &[]), Server::start(&to, &[])));
        let refused = pipe_set(&from, &["-R", "*"], &to, &["w"]).code(2);
        assert!(refused.stdout.contains("of 2 volumes"), "{}", refused.stdout);
        let done = pipe_set(&from, &["-R", "*"], &to, &["-R", "--prefix", "x-"]).ok().json();
        assert_eq!((count(&done, "received"), count(&done, "passed_over")), (4, 0), "{done}");
        for name in ["v@a", "v@b", "v@d", "c@own"] {
            same(&from, name, &to, &format!("x-{name}"));
        }
        let volumes = on(&to, "list", &["--sync", "--json"]).ok().json();
        let clone = volumes.as_array().unwrap().iter().find(|volume| volume["name"] == "x-c").unwrap();
        assert_eq!(clone["origin"], "x-v@b", "{clone}");
        assert!(clone["stored_bytes"].as_u64().unwrap() < 200_000, "what it shares did not come: {clone}");
        // The same set again is skipped; then the new snapshots are received.
        let done = pipe_set(&from, &["-R", "*"], &to, &["-R", "--prefix", "x-"]).ok().json();
        assert_eq!((count(&done, "received"), count(&done, "passed_over")), (0, 4), "{done}");
        drop(servers);
        on(&to, "check", &[]).ok();
    }
    let to = Dir::with_pool("256M");
    let done = pipe_set(&from, &["-R", "v@a"], &to, &["-R"]).ok().json();
    assert_eq!(count(&done, "received"), 1, "{done}");
    let done = pipe_set(&from, &["v@d", "-I", "a"], &to, &["v"]).ok().json();
    assert_eq!(count(&done, "received"), 2, "{done}");
    same(&from, "v@b", &to, "v@b");
    same(&from, "v@d", &to, "v");
    let typo = on(&from, "send", &["-R", "*", "--all-from", "nosuch", "-o", "/dev/null", "--force"]).code(3);
    typo.says("has the snapshot 'nosuch'; they have a, ");
    on(&from, "send", &["-R", "none*"]).code(3).says("no volume of the pool matches");
    on(&from, "send", &["-R", "v@x", "-o", "/dev/null", "--force"]).code(3).says("does not have the snapshot");
}

#[test]
fn a_set_that_breaks_off_goes_on_with_its_token() {
    let (from, to) = (source_with_a_clone(), Dir::with_pool("256M"));
    let stream = from.join("set");
    let sent = on(&from, "send", &["-R", "v", "-o", path(&stream), "--json"]).ok().json();
    assert_eq!(sent["snapshots"], serde_json::json!(["v@a", "v@b", "v@d"]));
    let bytes = std::fs::read(&stream).unwrap();
    let pool = to.pool();
    let receive = |bytes: &[u8]| {
        std::fs::write(from.join("part"), bytes).unwrap();
        run(["receive", path(&pool), "w", "-i", path(&from.join("part")), "--json"])
    };
    // In the middle of the first, and after it.
    let error = receive(&bytes[..bytes.len() / 2]).code(7).json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(
        error.contains("0 snapshots of the set are complete")
            && error.contains("the same 'shale send', adding --resume"),
        "{error}"
    );
    let token = status(&to)["receives"][0]["token"].as_str().unwrap().to_owned();
    assert!(error.contains(&token), "{error}");
    let rest = from.join("rest");
    let resume = ["-R", "v", "--resume", &token, "-o", path(&rest), "--force"];
    on(&from, "send", &resume).ok();
    let rest = std::fs::read(&rest).unwrap();
    assert!(rest.len() < bytes.len() * 3 / 4, "{} of {}", rest.len(), bytes.len());
    // Its end is missing: the last snapshot has arrived, but not the set.
    let error = receive(&rest[..rest.len() - 10]).code(7).json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(error.contains("in the middle of a chunk"), "{error}");
    let done = receive(&bytes).ok().json();
    assert_eq!((count(&done, "received"), count(&done, "passed_over")), (0, 3), "{done}");
    for name in ["a", "b", "d"] {
        same(&from, &format!("v@{name}"), &to, &format!("w@{name}"));
    }
    on(&from, "send", &["-R", "c", "--resume", &token, "-o", path(&stream), "--force"])
        .code(2)
        .says("is for a snapshot");
    // A flipped bit anywhere in the skipped part is detected as well.
    let mut bad = bytes.clone();
    bad[bytes.len() / 3] ^= 1;
    receive(&bad).code(6);
    // One stream less than the set announces.
    on(&to, "check", &[]).ok();
}

#[test]
fn a_bookmark_stands_for_a_snapshot_that_has_gone() {
    let from = source_with_a_clone();
    let receivers = [false, true].map(|served| {
        let to = Dir::with_pool("256M");
        pipe(&from, &["v@b"], &to, "w").ok();
        (served, to)
    });
    on(&from, "bookmark", &["v@b", "#b"]).ok();
    on(&from, "bookmark", &["v@b", "b"]).code(8);
    on(&from, "bookmark", &["v@b", "w#b"]).code(2);
    on(&from, "destroy", &["v@b"]).ok();
    for (served, to) in receivers {
        let servers = served.then(|| (Server::start(&from, &[]), Server::start(&to, &[])));
        let done = pipe(&from, &["v@d", "--from", "#b"], &to, "w").ok().json();
        assert!(done["payload_bytes"].as_u64().unwrap() < 200_000, "{done}");
        same(&from, "v@d", &to, "w@d");
        on(&to, "rollback", &["w@b", "-r"]).ok();
        let done = pipe_set(&from, &["-R", "v@d", "--all-from", "#b"], &to, &["w"]).ok().json();
        assert_eq!(count(&done, "received"), 1, "{done}");
        same(&from, "v@d", &to, "w");
        assert_eq!(on(&from, "bookmarks", &["v", "--json"]).ok().json()[0]["bookmark"], "v#b");
        drop(servers);
        on(&to, "check", &[]).ok();
    }
    on(&from, "destroy", &["v#b"]).ok();
    on(&from, "destroy", &["v#b"]).code(3);
    on(&from, "check", &[]).ok();
}
