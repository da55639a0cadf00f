//! `shale salvage`: the real binary on real files, with the map gone.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Dir, Ran, SHALE, halt, mixed_data, on, padded, path, run, signal};
use serde_json::Value;
use testkit::until;

/// Imports bytes into a volume.
fn import(dir: &Dir, volume: &str, bytes: &[u8], words: &[&str]) {
    let file = dir.join("source");
    std::fs::write(&file, bytes).unwrap();
    let mut all = vec![volume, path(&file)];
    all.extend(words);
    on(dir, "import", &all).ok();
}

fn export(pool: &Path, volume: &str, to: &Path) -> Vec<u8> {
    run(["export", path(pool), volume, path(to), "--force"]).ok();
    std::fs::read(to).unwrap()
}

/// Returns a pool with a volume, a snapshot of it, and a clone of that; with the content of each.
fn pool_with_history() -> (Dir, [(&'static str, Vec<u8>); 3]) {
    let dir = Dir::with_pool("256M");
    let first = padded(mixed_data(3 << 20));
    let mut second = first.clone();
    second[1 << 20..(1 << 20) + 65536].fill(7);
    let mut third = first.clone();
    third[..8192].fill(9);
    import(&dir, "vm", &first, &["-o", "compression=zstd-3"]);
    on(&dir, "snapshot", &["vm@monday"]).ok();
    import(&dir, "vm", &second, &["--overwrite"]);
    on(&dir, "clone", &["vm@monday", "copy"]).ok();
    import(&dir, "copy", &third, &["--overwrite"]);
    (dir, [("vm@monday", first), ("vm", second), ("copy", third)])
}

#[test]
fn a_pool_without_its_map_is_rebuilt_with_all_its_history() {
    let (dir, expected) = pool_with_history();
    std::fs::remove_dir_all(dir.pool().join("map")).unwrap();
    std::fs::remove_file(dir.pool().join("pool.json")).unwrap();
    let before = std::fs::read(dir.pool().join("data")).unwrap();
    let new = dir.join("new");
    let report = run(["--json", "salvage", path(&dir.pool()), "--into", path(&new), "--capacity", "256M"]).ok().json();
    assert_eq!((&report["lossy"], &report["has_catalogue"]), (&Value::Bool(false), &Value::Bool(true)), "{report}");
    assert!(before == std::fs::read(dir.pool().join("data")).unwrap(), "the old pool must not change");
    assert!(!new.join("salvage.tmp").exists());
    for (volume, content) in &expected {
        assert!(export(&new, volume, &dir.join("out")) == *content, "{volume}");
    }
    let list = run(["--json", "list", "-r", path(&new)]).ok().json();
    let of = |name: &str| list.as_array().unwrap().iter().find(|v| v["name"] == name).unwrap().clone();
    assert_eq!(of("vm")["properties"]["compression"], "zstd-3", "{list}");
    assert_eq!(of("copy")["origin"], "vm@monday", "{list}");
    run(["check", path(&new)]).ok();
}

#[test]
fn what_cannot_be_read_is_listed_and_changes_the_exit_code() {
    let (dir, expected) = pool_with_history();
    std::fs::remove_dir_all(dir.pool().join("map")).unwrap();
    let data = OpenOptions::new().read(true).write(true).open(dir.pool().join("data")).unwrap();
    // In the middle of the payload of the first data.
    let at = (1 << 20) + 200_000;
    let mut bytes = [0; 64];
    data.read_exact_at(&mut bytes, at).unwrap();
    data.write_all_at(&bytes.map(|byte| !byte), at).unwrap();
    // One copy of the superblock is enough.
    data.write_all_at(&[0xff; 512], 0).unwrap();
    let new = dir.join("new");
    let ran = run(["--json", "salvage", path(&dir.pool().join("data")), "--into", path(&new), "--capacity", "256M"]);
    let report = ran.code(12).json();
    let damaged: Vec<_> =
        report["volumes"].as_array().unwrap().iter().filter(|v| v["damaged_bytes"].as_u64() > Some(0)).collect();
    assert!(!damaged.is_empty(), "{report}");
    for (volume, content) in &expected {
        let found = export(&new, volume, &dir.join("out"));
        let told = report["volumes"].as_array().unwrap().iter().find(|v| v["name"] == **volume).unwrap();
        let ranges: Vec<(u64, u64)> = told["damaged"]
            .as_array()
            .unwrap()
            .iter()
            .map(|r| (r["offset"].as_u64().unwrap(), r["length"].as_u64().unwrap()))
            .collect();
        for (index, (is, should)) in found.chunks(4096).zip(content.chunks(4096)).enumerate() {
            let offset = index as u64 * 4096;
            let is_listed = ranges.iter().any(|(from, length)| (*from..from + length).contains(&offset));
            assert!(if is_listed { is.iter().all(|b| *b == 0) } else { is == should }, "{volume} at {offset}");
        }
    }
}

/// The result was another pool, and no loss was reported.
#[test]
fn a_map_of_another_pool_is_told_of_and_not_asked() {
    let (dir, expected) = pool_with_history();
    let other = Dir::with_pool("256M");
    import(&other, "else", &mixed_data(1 << 20), &[]);
    std::fs::copy(other.pool().join("data"), dir.pool().join("data")).unwrap();
    on(&dir, "list", &[]).code(6).says("belong to different pools");
    let new = dir.join("new");
    let salvage = |words: &[&str]| {
        drop(std::fs::remove_dir_all(&new));
        run([&["--json", "salvage"], words, &["--into", path(&new), "--capacity", "256M"]].concat())
    };
    let pool = dir.pool();
    let report = salvage(&[path(&pool)]).code(12).json();
    let known = (&report["other_pool"], &report["by_map"], &report["lossy"]);
    assert_eq!(known, (&Value::Bool(true), &Value::Bool(false), &Value::Bool(true)), "{report}");
    assert!(report["notes"].to_string().contains("belong to different pools"), "{report}");
    assert!(export(&new, "else", &dir.join("out")) == padded(mixed_data(1 << 20)));
    run(["export", path(&new), expected[1].0, path(&dir.join("out")), "--force"]).code(3);
    drop(std::fs::remove_dir_all(&new));
    let said = run(["salvage", path(&pool), "--into", path(&new), "--capacity", "256M"]).code(12).stdout;
    assert!(said.contains("BELONGS TO ANOTHER POOL") && !said.contains("nothing is lost"), "{said}");
    // The user means the pool of the data.
    let data = dir.pool().join("data");
    let report = salvage(&[path(&data)]).ok().json();
    assert_eq!((&report["other_pool"], &report["lossy"]), (&Value::Bool(false), &Value::Bool(false)), "{report}");
}

/// A partitioning tool on the wrong disk writes 34 sectors.
#[test]
fn a_partition_table_over_the_beginning_is_named_and_costs_nothing() {
    let (dir, expected) = pool_with_history();
    let data = OpenOptions::new().write(true).open(dir.pool().join("data")).unwrap();
    let mut table = vec![0; 34 * 512];
    table[510..512].copy_from_slice(b"\x55\xaa");
    table[512..520].copy_from_slice(b"EFI PART");
    data.write_all_at(&table, 0).unwrap();
    let before = std::fs::read(dir.pool().join("data")).unwrap();
    on(&dir, "list", &[]).code(6).says("a GPT partition table").says("check --repair");
    let new = dir.join("new");
    run(["salvage", path(&dir.pool()), "--into", path(&new), "--capacity", "256M"]).ok();
    assert!(before == std::fs::read(dir.pool().join("data")).unwrap(), "the old pool must not change");
    on(&dir, "check", &["--repair"]).ok();
    on(&dir, "check", &[]).ok();
    for (volume, content) in &expected {
        assert!(export(&new, volume, &dir.join("out")) == *content, "{volume} salvaged");
        assert!(export(&dir.pool(), volume, &dir.join("out")) == *content, "{volume}");
    }
}

#[test]
fn what_is_no_pool_and_what_is_in_use_is_refused() {
    let dir = Dir::with_pool("64M");
    let new = dir.join("new");
    let file = dir.join("empty");
    File::create(&file).unwrap().set_len(1 << 20).unwrap();
    run(["salvage", path(&file), "--into", path(&new), "--capacity", "64M"]).code(3);
    let _held = env::PoolLock::acquire(&dir.pool()).unwrap();
    // It waits for a command that has the pool; it did not.
    let began = Instant::now();
    run(["salvage", path(&dir.pool()), "--into", path(&dir.join("other")), "--wait", "1"]).code(4).says("in use");
    assert!(began.elapsed() >= Duration::from_secs(1), "it did not wait");
}

/// Starts a salvage into `new` and stops it in the middle, when its temporary store exists.
fn halted_salvage(dir: &Dir, new: &Path) -> Child {
    let mut command = Command::new(SHALE);
    command.args(["salvage", path(&dir.pool()), "--into", path(new), "--capacity", "256M"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let temporary = new.join("salvage.tmp");
    until("salvage has a temporary store", || {
        assert!(child.try_wait().unwrap().is_none(), "salvage ended before its temporary store was seen");
        temporary.exists()
    });
    halt(&child);
    assert!(temporary.exists(), "salvage was done before it could be stopped");
    child
}

/// The new pool reported that it was ready before it had any content.
#[test]
fn a_killed_salvage_is_no_pool_and_can_be_done_again() {
    let (dir, expected) = pool_with_history();
    let new = dir.join("new");
    let mut child = halted_salvage(&dir, &new);
    // A pool that is being filled is not taken for a pool either.
    run(["list", path(&new)]).code(3).says("under way");
    child.kill().unwrap();
    child.wait().unwrap();
    for command in ["list", "status", "serve", "check"] {
        run([command, path(&new)]).code(3).says("never finished").says("shale salvage");
    }
    run(["salvage", path(&dir.pool()), "--into", path(&new), "--capacity", "256M"]).ok();
    for (volume, content) in &expected {
        assert!(export(&new, volume, &dir.join("out")) == *content, "{volume}");
    }
    assert!(!new.join("salvage.tmp").exists());
    run(["check", path(&new)]).ok();
    // And not over a pool.
    run(["salvage", path(&dir.pool()), "--into", path(&new), "--capacity", "256M"])
        .code(8)
        .says("holds a pool already");
}

#[test]
fn an_interrupted_salvage_leaves_nothing() {
    let (dir, expected) = pool_with_history();
    let new = dir.join("new");
    let interrupt = |number| {
        let child = halted_salvage(&dir, &new);
        signal(&child, number);
        signal(&child, libc::SIGCONT);
        Ran::of(child.wait_with_output().unwrap()).code(130).says("interrupted")
    };
    for number in [libc::SIGTERM, libc::SIGINT] {
        interrupt(number).says("removed");
        assert!(!new.exists(), "salvage left something");
    }
    std::fs::create_dir(&new).unwrap();
    interrupt(libc::SIGTERM).says("removed");
    assert_eq!(std::fs::read_dir(&new).unwrap().count(), 0, "salvage left something");
    // The remains of an earlier one stay unfinished.
    let mut child = halted_salvage(&dir, &new);
    child.kill().unwrap();
    child.wait().unwrap();
    std::fs::remove_dir_all(new.join("salvage.tmp")).unwrap();
    interrupt(libc::SIGTERM).says("unfinished");
    run(["list", path(&new)]).code(3).says("never finished");
    run(["salvage", path(&dir.pool()), "--into", path(&new), "--capacity", "256M"]).ok();
    assert!(export(&new, "vm", &dir.join("out")) == expected[1].1, "the content differs");
}

/// It was refused after the new pool had been made, which the next attempt then found, and with a
/// wrong limit.
#[test]
fn too_little_memory_is_refused_before_anything_is_made() {
    let (dir, _) = pool_with_history();
    let new = dir.join("new");
    let with = |memory| on(&dir, "salvage", &["--into", path(&new), "--capacity", "256M", "--memory", memory]);
    for memory in ["64M", "127M"] {
        with(memory).code(2).says("at least 128 MiB");
        assert!(!new.exists(), "salvage left something");
    }
    with("128M").ok();
}
