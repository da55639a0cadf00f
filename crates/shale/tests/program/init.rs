//! Creating pools: refusals, remains, and interrupted runs of `init`.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use crate::support::{Dir, Ran, Server, content, imported_noise, noise, on, path, run};

/// After a failure that came too late for the old pool, `init` can be repeated.
#[test]
fn a_failed_overwrite_is_an_unfinished_init() {
    let dir = Dir::with_pool("64M");
    on(&dir, "init", &["--capacity", "64M", "-o", "compression=magic", "--force"]).code(2);
    on(&dir, "list", &[]).ok();
    // The file there is not a map, and must not be removed.
    std::fs::rename(dir.pool().join("map"), dir.join("old")).unwrap();
    std::fs::write(dir.pool().join("map"), "").unwrap();
    assert!(on(&dir, "init", &["--capacity", "64M", "--force"]).code != 0);
    on(&dir, "list", &[]).code(3).says("never finished");
    std::fs::remove_file(dir.pool().join("map")).unwrap();
    on(&dir, "init", &["--capacity", "64M"]).ok();
    on(&dir, "list", &[]).ok();
}

/// `init --force` removed the old pool before it found that the new one was too small, or its data
/// in use.
#[test]
fn a_refused_overwrite_leaves_the_old_pool() {
    let dir = Dir::with_pool("64M");
    let source = imported_noise(&dir, "source", 3 << 20);
    let is_there = || {
        on(&dir, "check", &[]).ok();
        assert!(content(&dir, "v") == std::fs::read(&source).unwrap(), "the content differs");
    };
    on(&dir, "init", &["--capacity", "1M", "--force"]).code(2).says("16 MiB");
    on(&dir, "init", &["--capacity", "300M", "--extent", "32K", "--data", path(dir.path()), "--force"]).code(2);
    is_there();
    // More than the limit on file sizes; once over the old data, once in a new file.
    let limited = "trap '' XFSZ; ulimit -f 262144; exec \"$0\" \"$@\"";
    for data in ["data", "fresh"] {
        let data = dir.pool().join(data);
        let output = std::process::Command::new("sh")
            .args(["-c", limited, crate::support::SHALE, "init", path(&dir.pool()), "--data", path(&data)])
            .args(["--capacity", "4G", "--force"])
            .output()
            .unwrap();
        Ran::of(output).code(2).says("smaller --capacity");
        is_there();
    }
    assert!(!dir.pool().join("fresh").exists(), "init left something");
    // Data of another pool.
    let other = Dir::with_pool("64M");
    let server = Server::start(&other, &[]);
    let data = other.pool().join("data");
    on(&dir, "init", &["--data", path(&data), "--force", "--capacity", "64M"]).code(4).says("in use");
    is_there();
    server.stop();
}

/// Data called `reserve` was emptied when the pool was opened: the space held back for a full file
/// system has that name.
#[test]
fn data_gets_no_name_of_the_pool_itself() {
    let dir = Dir::with_pool("64M");
    for name in ["reserve", "lock", "pool.json"] {
        let data = dir.pool().join(name);
        on(&dir, "init", &["--data", path(&data), "--capacity", "64M", "--force"]).code(2).says("of that name");
    }
    on(&dir, "check", &[]).ok();
}

fn config(dir: &Dir) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(dir.pool().join("pool.json")).unwrap()).unwrap()
}

#[test]
fn a_new_pool_is_private_sparse_and_answers() {
    let dir = Dir::new();
    let made = on(&dir, "init", &["--capacity", "1G", "--json"]).ok().json();
    assert_eq!(made["capacity_bytes"], 1u64 << 30);
    assert_eq!(std::fs::metadata(dir.pool()).unwrap().permissions().mode() & 0o777, 0o700);
    let data = std::fs::metadata(dir.pool().join("data")).unwrap();
    assert_eq!(data.permissions().mode() & 0o777, 0o600, "it may lie anywhere");
    // After the used part there is a copy of the superblock.
    assert_eq!(data.len(), (1 << 30) + (64 << 10));
    assert!(data.blocks() * 512 < 16 << 20, "the data file is not sparse");
    assert_eq!(config(&dir)["state"], "ready");
    assert_eq!(on(&dir, "list", &["--json"]).ok().json(), serde_json::json!([]));
}

#[test]
fn the_default_capacity_is_said_aloud() {
    let dir = Dir::new();
    let made = on(&dir, "init", &[]).ok();
    assert!(made.stdout.contains("80 % of the") && made.stdout.contains("free"), "{}", made.stdout);
}

#[test]
fn what_is_there_is_not_overwritten_without_force() {
    let dir = Dir::with_pool("64M");
    on(&dir, "create", &["old", "--size", "1M"]).ok();
    on(&dir, "init", &["--capacity", "64M"]).code(8).says("--force");
    on(&dir, "list", &[]).ok();
    on(&dir, "init", &["--capacity", "64M", "--force"]).ok();
    assert_eq!(on(&dir, "list", &["--json"]).ok().json(), serde_json::json!([]), "the old pool is still there");

    let other = Dir::new();
    std::fs::create_dir(other.pool()).unwrap();
    std::fs::write(other.pool().join("thesis.tex"), b"x").unwrap();
    on(&other, "init", &["--capacity", "64M"]).code(8).says("thesis.tex");
    assert!(!other.pool().join("data").exists() && !other.pool().join("lock").exists(), "init left something");

    // A directory that looks like a pool but has no pool.json may have lost its description:
    // refused even with --force.
    let lost = Dir::new();
    std::fs::create_dir(lost.pool()).unwrap();
    std::fs::write(lost.pool().join("data"), b"precious").unwrap();
    on(&lost, "init", &["--capacity", "64M", "--force"]).code(8).says("pool.json");
    assert_eq!(std::fs::read(lost.pool().join("data")).unwrap(), b"precious");
}

#[test]
fn data_that_lies_elsewhere_is_found_from_anywhere() {
    let dir = Dir::new();
    let data = dir.join("log");
    // A relative path, from another directory than the pool's.
    let output = std::process::Command::new(crate::support::SHALE)
        .args(["init", path(&dir.pool()), "--data", "log", "--capacity", "64M"])
        .current_dir(dir.path())
        .output()
        .unwrap();
    Ran::of(output).ok();
    assert_eq!(std::fs::metadata(&data).unwrap().len(), (64 << 20) + (64 << 10));
    on(&dir, "create", &["v", "--size", "1M"]).ok();
    assert_eq!(on(&dir, "status", &["--json"]).ok().json()["data"], path(&data));

    // Another pool must not use the same data, nor a file with content.
    let words = |pool: &str, data: &str| ["init", pool, "--data", data, "--capacity", "64M"].map(str::to_owned);
    let second = dir.join("second");
    run(words(path(&second), path(&data))).code(8).says("--force");
    let letter = dir.join("letter");
    std::fs::write(&letter, b"dear").unwrap();
    run(words(path(&second), path(&letter))).code(8).says("not empty");
    assert_eq!(std::fs::read(&letter).unwrap(), b"dear");
    assert!(!second.exists() || std::fs::read_dir(&second).unwrap().all(|e| e.unwrap().file_name() == "lock"));
    on(&dir, "list", &[]).ok();
    // An empty file of the right size determines the capacity.
    let blank = dir.join("blank");
    std::fs::File::create(&blank).unwrap().set_len(128 << 20).unwrap();
    let made = run(["init", path(&second), "--data", path(&blank), "--json"]).ok().json();
    assert_eq!(made["capacity_bytes"], 128 << 20);
}

#[test]
fn a_failed_init_leaves_nothing() {
    let dir = Dir::new();
    on(&dir, "init", &["--capacity", "64M", "--extent", "3M"]).code(2).says("power of two");
    on(&dir, "init", &["--capacity", "64M", "-o", "compression=magic"]).code(2).says("magic");
    on(&dir, "init", &["--capacity", "1M"]).code(2);
    on(&dir, "init", &["--capacity", "64M", "--data", path(&dir.join("no/such/dir"))]).code(3);
    assert!(
        !dir.pool().exists(),
        "something was left: {:?}",
        std::fs::read_dir(dir.pool()).unwrap().collect::<Vec<_>>()
    );
    on(&dir, "init", &["--capacity", "64M", "-o", "compression=zstd-5"]).ok();
    let get = on(&dir, "get", &["compression", "--json"]).ok().json();
    assert_eq!((&get[0]["value"], &get[0]["source"]), (&"zstd-5".into(), &"pool".into()));
}

/// A failed init removed objects that it had not made: a link of the user's, or the data of another
/// pool that was just being made.
#[test]
fn a_failed_init_removes_nothing_that_is_not_its_own() {
    let dir = Dir::new();
    let link = dir.join("link");
    std::os::unix::fs::symlink("nowhere/data", &link).unwrap();
    assert!(on(&dir, "init", &["--capacity", "64M", "--data", path(&link)]).code != 0);
    assert!(link.symlink_metadata().is_ok(), "the link is gone");
    assert!(!dir.pool().exists(), "init left something");
    for round in 0..4 {
        let data = dir.join(&format!("data{round}"));
        let begin = |pool: &str| {
            let mut command = std::process::Command::new(crate::support::SHALE);
            command.args(["init", path(&dir.join(pool)), "--data", path(&data), "--capacity", "64M"]);
            command.stderr(std::process::Stdio::null()).stdout(std::process::Stdio::null()).spawn().unwrap()
        };
        let pools = [format!("a{round}"), format!("b{round}")];
        let mut inits: Vec<_> = pools.iter().map(|pool| begin(pool)).collect();
        let made: Vec<_> = inits.iter_mut().map(|init| init.wait().unwrap().success()).collect();
        assert!(made.iter().filter(|made| **made).count() <= 1, "two pools with the same data");
        for (pool, _) in pools.iter().zip(&made).filter(|(_, made)| **made) {
            run(["list", path(&dir.join(pool))]).ok();
        }
    }
}

#[test]
fn an_interrupted_init_is_refused_by_all_and_can_be_done_again() {
    let dir = Dir::with_pool("64M");
    on(&dir, "create", &["v", "--size", "1M"]).ok();
    // As after a crash between the superblock and the last step.
    let file = dir.pool().join("pool.json");
    let ready = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, ready.replace("\"ready\"", "\"initialising\"")).unwrap();
    for command in ["list", "status", "serve", "check"] {
        on(&dir, command, &[]).code(3).says("never finished");
    }
    on(&dir, "init", &["--capacity", "64M"]).ok().says("repeated an interrupted init");
    assert_eq!(on(&dir, "list", &["--json"]).ok().json(), serde_json::json!([]));

    // As after a crash before pool.json.
    let early = Dir::new();
    std::fs::create_dir(early.pool()).unwrap();
    std::fs::write(early.pool().join("lock"), "").unwrap();
    std::fs::write(early.pool().join("pool.json.new"), noise(10)).unwrap();
    on(&early, "list", &[]).code(3).says("there is no pool");
    on(&early, "init", &["--capacity", "64M"]).ok();
}

#[test]
fn a_pool_that_is_open_is_not_made_again() {
    let dir = Dir::with_pool("64M");
    let lock = env::PoolLock::acquire(&dir.pool()).unwrap();
    on(&dir, "init", &["--capacity", "64M", "--force"]).code(4).says(&std::process::id().to_string());
    drop(lock);
    on(&dir, "list", &[]).ok();
}

/// `init --force` with the data of an open pool emptied it, and only then found it in use.
#[test]
fn the_data_of_a_served_pool_is_not_emptied() {
    let dir = Dir::with_pool("64M");
    let source = imported_noise(&dir, "source", 3 << 20);
    let server = Server::start(&dir, &[]);
    let data = dir.pool().join("data");
    let other = dir.join("other");
    run(["init", path(&other), "--data", path(&data), "--force", "--capacity", "64M"]).code(4).says("in use");
    run(["export", path(&dir.pool()), "v", path(&data), "--force"]).code(4);
    assert!(!other.exists(), "init left something");
    server.stop();
    on(&dir, "check", &[]).ok();
    assert!(content(&dir, "v") == std::fs::read(&source).unwrap(), "the content differs");
}

/// The result was printed by a macro that panics for such a path, after the pool had been made.
#[test]
fn a_pool_may_lie_where_the_path_is_no_utf8() {
    use std::ffi::{OsStr, OsString};
    use std::os::unix::ffi::OsStrExt;
    let dir = Dir::new();
    let pool: OsString = dir.path().join(OsStr::from_bytes(b"p\xff")).into();
    let on_it = |words: &[&str]| {
        let (command, rest) = words.split_first().unwrap();
        run([OsStr::new(command), &pool].into_iter().chain(rest.iter().map(OsStr::new)))
    };
    on_it(&["init", "--capacity", "64M", "--json"]).ok().json();
    on_it(&["create", "v", "--size", "1M"]).ok();
    on_it(&["status", "--json"]).ok().json();
    on_it(&["check"]).ok();
}

/// Freed space stayed occupied in the file system below: while the pool was short of space, and the
/// space that the log was to fill next.
#[test]
fn a_pool_gives_back_what_it_does_not_hold() {
    let dir = Dir::with_pool("128M");
    let occupied = || std::os::unix::fs::MetadataExt::blocks(&dir.pool().join("data").metadata().unwrap()) * 512;
    crate::support::imported_noise(&dir, "source", 96 << 20);
    assert!(occupied() > 96 << 20);
    on(&dir, "destroy", &["v"]).ok();
    // Until everything that belonged to it is gone, over several checkpoints.
    on(&dir, "clean", &[]).ok();
    assert!(occupied() < 48 << 20, "{} bytes are occupied by an empty pool", occupied());
    on(&dir, "check", &[]).ok();
}

#[test]
fn a_capacity_beyond_the_file_system_below_is_noted() {
    let dir = Dir::new();
    let below = rustix::fs::statvfs(dir.path()).unwrap();
    let free = below.f_bavail * below.f_frsize;
    let large = (free + (64 << 30)).to_string();
    run(["init", path(&dir.pool()), "--capacity", &large]).ok().says("the file system below has");
    let small = run(["init", path(&dir.join("small")), "--capacity", "64M"]).ok();
    assert!(!small.stderr.contains("file system below"), "{}", small.stderr);
    std::fs::write(dir.join("disk.img"), b"x").unwrap();
    run(["init", path(&dir.join("disk.img"))]).code(2).says("is a file, and a pool is a directory");
}
