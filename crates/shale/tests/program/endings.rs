//! Ends of commands when something around them fails: their exit codes, messages, and remains.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};

use serde_json::json;

use crate::support::{
    Dir, Ran, SHALE, Server, content, imported_noise, mixed_data, noise, on, padded, path, run, signal,
};

/// A file that refuses every write.
fn full() -> File {
    File::options().write(true).open("/dev/full").unwrap()
}

/// A pipe without a reader.
fn unread() -> std::io::PipeWriter {
    std::io::pipe().unwrap().1
}

fn with_stdout(words: &[&str], stdout: impl Into<Stdio>) -> Ran {
    Ran::of(
        Command::new(SHALE)
            .args(words)
            .stdout(stdout)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
            .wait_with_output()
            .unwrap(),
    )
}

/// Damages the stored bytes of the last 4 KiB of a volume of noise.
pub fn damage_the_end(dir: &Dir, bytes: &[u8]) {
    let data = File::options().read(true).write(true).open(dir.pool().join("data")).unwrap();
    let mut stored = vec![0; data.metadata().unwrap().len() as usize];
    data.read_exact_at(&mut stored, 0).unwrap();
    let end = &bytes[bytes.len() - 4096..][..64];
    let at = stored.windows(64).position(|window| window == end).unwrap();
    data.write_all_at(&[!stored[at]], at as u64).unwrap();
}

#[test]
fn help_that_cannot_be_written_is_told() {
    for words in [&["--help"][..], &["--version"], &["create", "--help"]] {
        with_stdout(words, full()).code(5).says("stdout");
        with_stdout(words, unread()).ok();
    }
}

/// A trace whose header has been read.
fn begun_trace(dir: &Dir) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut trace = Command::new(SHALE);
    trace.args(["trace", path(&dir.pool())]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut trace = trace.spawn().unwrap();
    let mut lines = BufReader::new(trace.stdout.take().unwrap());
    lines.read_line(&mut String::new()).unwrap();
    (trace, lines)
}

/// It continued without end.
#[test]
fn a_trace_ends_when_nobody_sees_it() {
    let dir = Dir::with_pool("64M");
    let server = Server::start(&dir, &[]);
    // Without records, and with many.
    for writes in [false, true] {
        let (trace, lines) = begun_trace(&dir);
        drop(lines);
        if writes {
            imported_noise(&dir, "source", 8 << 20);
        }
        Ran::of(trace.wait_with_output().unwrap()).ok();
    }
    with_stdout(&["trace", path(&dir.pool())], full()).code(5).says("stdout");
    for number in [libc::SIGTERM, libc::SIGINT] {
        let (trace, _lines) = begun_trace(&dir);
        signal(&trace, number);
        let ran = Ran::of(trace.wait_with_output().unwrap()).ok();
        assert_eq!(ran.stderr, "", "what a trace says that a signal ends");
    }
    server.stop();
}

/// Records from before a signal were lost, and the trace ended with an error.
#[test]
fn a_trace_that_is_interrupted_shows_what_was_recorded() {
    let dir = Dir::with_pool("64M");
    on(&dir, "set", &["compression=auto"]).ok();
    let server = Server::start(&dir, &[]);
    let image = dir.join("image");
    std::fs::write(&image, padded(mixed_data(8 << 20))).unwrap();
    let (mut trace, lines) = begun_trace(&dir);
    // It stays stopped until the signal is pending.
    signal(&trace, libc::SIGSTOP);
    on(&dir, "import", &["v", path(&image), "-o", "compression=auto"]).ok();
    signal(&trace, libc::SIGINT);
    signal(&trace, libc::SIGCONT);
    let numbers: Vec<String> = lines.lines().map(|line| line.unwrap().split(',').next().unwrap().to_owned()).collect();
    assert!(trace.wait().unwrap().success());
    let expected: Vec<String> = (0..numbers.len()).map(|number| number.to_string()).collect();
    assert_eq!(numbers, expected);
    assert!(numbers.len() >= 20, "{} records", numbers.len());
    server.stop();
}

/// When the first one was interrupted, it claimed to continue from the other's position.
#[test]
fn a_second_recompression_is_refused_while_one_is_under_way() {
    let dir = Dir::with_pool("64M");
    imported_noise(&dir, "source", 8 << 20);
    on(&dir, "create", &["w", "--size", "1M"]).ok();
    let server = Server::start(&dir, &[]);
    on(&dir, "recompress", &["v", "--rate", "64K", "--background"]).ok();
    for volume in ["v", "w"] {
        on(&dir, "recompress", &[volume]).code(4).says("'v' is being recompressed");
    }
    on(&dir, "recompress", &["w", "--report"]).ok();
    on(&dir, "jobs", &["1", "--cancel"]).ok();
    on(&dir, "jobs", &["1"]).code(130);
    on(&dir, "recompress", &["w"]).ok();
    server.stop();
}

/// It had its full length from the beginning, and no message said that there were holes instead of
/// data.
#[test]
fn a_file_that_an_export_leaves_unfinished_is_short_and_said_to_be_incomplete() {
    let dir = Dir::with_pool("64M");
    let bytes = noise(8 << 20);
    imported_noise(&dir, "source", bytes.len());
    damage_the_end(&dir, &bytes);
    let target = dir.join("target");
    on(&dir, "export", &["v", path(&target)]).code(6);
    assert!(!target.exists());
    std::fs::write(&target, b"old").unwrap();
    on(&dir, "export", &["v", path(&target), "--force"]).code(6).says("target, which is incomplete now");
    assert!(std::fs::metadata(&target).unwrap().len() < bytes.len() as u64);
}

#[test]
fn what_is_damaged_is_counted_by_those_who_leave_it_out() {
    let dir = Dir::with_pool("64M");
    let bytes = noise(8 << 20);
    imported_noise(&dir, "source", bytes.len());
    damage_the_end(&dir, &bytes);
    on(&dir, "recompress", &["v"]).ok().stdout.contains("1 fragments are damaged").then_some(()).unwrap();
    let report = on(&dir, "recompress", &["v", "--report", "--json"]).ok().json();
    assert_eq!(report["damaged_fragments"], 1, "{report}");
    let estimated = on(&dir, "estimate", &["v", "--json", "--sample", "8M"]).ok().json();
    assert_eq!(estimated["unreadable_samples"], 1, "{estimated}");
    let small = bytes[..4096].iter().map(|byte| !byte).collect::<Vec<_>>();
    std::fs::write(dir.join("small"), &small).unwrap();
    on(&dir, "import", &["w", path(&dir.join("small"))]).ok();
    damage_the_end(&dir, &small);
    on(&dir, "estimate", &["w"]).code(7).says("none of 1 samples");
}

/// Damage was reported in a volume that had been overwritten since.
#[test]
fn damage_is_reported_of_the_snapshot_that_has_it() {
    let dir = Dir::with_pool("64M");
    let bytes = noise(8 << 20);
    let source = imported_noise(&dir, "source", bytes.len());
    on(&dir, "snapshot", &["v@1"]).ok();
    damage_the_end(&dir, &bytes);
    on(&dir, "import", &["v", path(&source), "--overwrite"]).ok();
    let reported = || {
        let (scrubbed, checked) = (on(&dir, "scrub", &["--restart", "--json"]), on(&dir, "check", &["--json"]));
        let name = scrubbed.code(6).json()["damages"][0]["volume"].clone();
        (name, checked.code(6).json()["volumes"].clone())
    };
    assert_eq!(reported(), (json!("v@1"), json!({ "v@1": 1 })));
    on(&dir, "clone", &["v@1", "c"]).ok();
    on(&dir, "destroy", &["-r", "v"]).ok();
    assert_eq!(reported(), (json!("c"), json!({ "c": 1 })));
}

/// A volume's file refuses to be truncated to zero.
#[test]
fn the_file_of_a_volume_takes_an_export_and_a_pool() {
    let dir = Dir::with_pool("256M");
    let (source, mount) = (dir.join("sparse"), dir.join("mnt"));
    let file = File::create(&source).unwrap();
    file.set_len(4 << 20).unwrap();
    file.write_all_at(&noise(1 << 20), 2 << 20).unwrap();
    imported_noise(&dir, "source", 4 << 20);
    on(&dir, "import", &["w", path(&source)]).ok();
    on(&dir, "create", &["small", "--size", "2M"]).ok();
    on(&dir, "create", &["large", "--size", "64M"]).ok();
    on(&dir, "snapshot", &["w@s"]).ok();
    std::fs::create_dir(&mount).unwrap();
    let server = Server::start(&dir, &["--mount", path(&mount)]);
    on(&dir, "export", &["w", path(&mount.join("v")), "--force"]).ok();
    assert!(content(&dir, "v") == content(&dir, "w"), "the content differs");
    on(&dir, "export", &["w", path(&mount.join("small")), "--force"]).code(5).says("less than the volume's");
    on(&dir, "send", &["w@s", "-o", path(&mount.join("v")), "--force"]).code(9).says("its size is fixed");
    // Earlier content is not part of the new pool.
    File::options().write(true).open(mount.join("large")).unwrap().write_all_at(&noise(8 << 20), 0).unwrap();
    let inner = dir.join("inner");
    run(["init", path(&inner), "--data", path(&mount.join("large")), "--force"]).ok();
    run(["create", path(&inner), "x", "--size", "1M"]).ok();
    run(["check", path(&inner)]).ok();
    server.stop();
}

#[test]
fn who_has_the_pool_and_what_can_be_done_is_told() {
    let dir = Dir::with_pool("64M");
    let lock = env::PoolLock::acquire(&dir.pool()).unwrap();
    for command in ["list", "check"] {
        on(&dir, command, &["--wait", "0"]).code(4).says("another command").says("--wait SECONDS");
    }
    drop(lock);
    let server = Server::start(&dir, &[]);
    for wait in ["0", "1"] {
        on(&dir, "check", &["--wait", wait]).code(4).says("which serves it");
    }
    server.stop();
}
