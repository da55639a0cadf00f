//! Snapshots and clones by command: on a pool that is not served, and through its server, with the
//! same answers.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::os::unix::fs::FileExt;

use crate::support::{Dir, Server, on, path};
use serde_json::{Value, json};
use testkit::noise;

/// Runs a command with `--json`; returns its exit code and its lines, without fields that depend on
/// the clock.
fn answer(dir: &Dir, command: &str, words: &[&str]) -> (i32, Vec<Value>) {
    let mut all = words.to_vec();
    all.push("--json");
    let ran = on(dir, command, &all);
    let lines = ran.stdout.lines().map(|line| {
        let mut document: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        forget_times(&mut document);
        document
    });
    (ran.code, lines.collect())
}

fn forget_times(document: &mut Value) {
    match document {
        Value::Array(items) => items.iter_mut().for_each(forget_times),
        Value::Object(fields) => {
            fields.remove("created_unix_s");
            // A random number.
            fields.remove("identity");
            fields.values_mut().for_each(forget_times);
        }
        _ => {}
    }
}

#[test]
fn history_is_the_same_served_and_unserved() {
    let (unserved, served) = (Dir::with_pool("256M"), Dir::with_pool("256M"));
    let server = Server::start(&served, &[]);
    let image = unserved.join("image");
    std::fs::write(&image, noise(1, 1 << 20)).unwrap();
    let image = path(&image);
    let second = unserved.join("second");
    std::fs::write(&second, noise(2, 64 << 10)).unwrap();
    let second = path(&second);
    let steps: &[(&str, &[&str], i32)] = &[
        ("create", &["v", "--size", "2M", "-o", "unit=8K"], 0),
        ("import", &["v", image, "--overwrite"], 0),
        ("snapshot", &["v@a"], 0),
        ("snapshot", &["v@a"], 8),
        ("snapshot", &["x@a"], 3),
        ("snapshot", &["v@a@b"], 2),
        ("import", &["v", second, "--overwrite"], 0),
        ("snapshot", &["v@b"], 0),
        ("diff", &["v@a", "v@b"], 0),
        ("diff", &["v@b"], 0),
        ("diff", &["v@c"], 3),
        ("clone", &["v@a", "w", "-o", "compression=off"], 0),
        ("clone", &["v@a", "w"], 8),
        ("get", &["w"], 0),
        ("list", &["-r", "--sync"], 0),
        ("hold", &["v@b", "offsite"], 0),
        ("hold", &["v@b", "offsite"], 8),
        ("hold", &["v", "offsite"], 2),
        ("holds", &[], 0),
        ("holds", &["v@c"], 3),
        ("destroy", &["v@b"], 4),
        ("destroy", &["v", "-r"], 4),
        ("rollback", &["v@a", "-r"], 4),
        ("release", &["v@b", "audit"], 3),
        ("release", &["v@b", "offsite"], 0),
        ("holds", &["v"], 0),
        ("bookmark", &["v@a", "m"], 0),
        ("bookmark", &["v@a", "v#m"], 8),
        ("bookmark", &["v@a", "w#m"], 2),
        ("bookmarks", &[], 0),
        ("destroy", &["v#m"], 0),
        ("destroy", &["v#m"], 3),
        ("bookmarks", &["v"], 0),
        ("rollback", &["v@a"], 4),
        ("rollback", &["v@a", "-r"], 0),
        ("diff", &["v@a"], 0),
        ("destroy", &["v"], 4),
        ("rename", &["w", "x"], 0),
        ("rename", &["v@a", "v@z"], 0),
        ("rename", &["v@z", "x@z"], 2),
        ("promote", &["v"], 2),
        ("promote", &["x"], 0),
        ("list", &["-r"], 0),
        ("rollback", &["x@z"], 9),
        ("destroy", &["-r", "v"], 0),
        ("destroy", &["x@z"], 0),
        ("list", &["-r"], 0),
        ("resize", &["x@z", "1M"], 2),
    ];
    for (command, words, code) in steps {
        // The result of an import contains times.
        let told = |dir: &Dir| {
            let (code, lines) = answer(dir, command, words);
            (code, if *command == "import" { Vec::new() } else { lines })
        };
        let (one, other) = (told(&unserved), told(&served));
        assert_eq!(one, other, "{command} {words:?}");
        assert_eq!(one.0, *code, "{command} {words:?}: {:?}", one.1);
    }
    server.stop();
    for dir in [&unserved, &served] {
        let report = on(dir, "check", &["--json"]).ok().json();
        assert_eq!(report["clean"], true, "{report}");
    }
}

#[test]
fn a_snapshot_is_exported_and_told_apart() {
    let dir = Dir::with_pool("256M");
    let before = noise(3, 1 << 20);
    std::fs::write(dir.join("before"), &before).unwrap();
    on(&dir, "create", &["v", "--size", "1M"]).ok();
    on(&dir, "import", &["v", path(&dir.join("before")), "--overwrite"]).ok();
    on(&dir, "snapshot", &["v@s"]).ok();
    std::fs::write(dir.join("after"), noise(4, 128 << 10)).unwrap();
    on(&dir, "import", &["v", path(&dir.join("after")), "--overwrite"]).ok();
    on(&dir, "export", &["v@s", path(&dir.join("out"))]).ok();
    assert!(std::fs::read(dir.join("out")).unwrap() == before);
    on(&dir, "import", &["v@s", path(&dir.join("after")), "--overwrite"]).code(2);
    let changes = answer(&dir, "diff", &["v@s"]).1;
    assert_eq!(changes[0], json!({ "from": "v@s", "to": "v", "from_bytes": 1 << 20, "to_bytes": 1 << 20 }));
    assert_eq!(changes[1], json!({ "offset": 0, "length": 128 << 10, "now": "data" }));
    // An import makes the rest of the volume a hole.
    assert_eq!(changes[2], json!({ "offset": 128 << 10, "length": 896 << 10, "now": "hole" }));
    let list = on(&dir, "list", &["-r", "--sync", "--json"]).ok().json();
    assert_eq!(list[0]["snapshots"][0]["unique_bytes"], 1 << 20, "{list}");
    let text = on(&dir, "list", &["-r"]).ok().stdout;
    assert!(text.starts_with("NAME") && text.lines().any(|line| line.starts_with("v@s")), "{text}");
}

/// Such a pool had no data, and a ratio of 0.00.
#[test]
fn what_clones_see_of_a_destroyed_volume_is_counted() {
    let dir = Dir::with_pool("256M");
    let image = dir.join("image");
    std::fs::write(&image, [noise(1, 512 << 10), vec![7; 512 << 10]].concat()).unwrap();
    on(&dir, "import", &["v", path(&image)]).ok();
    on(&dir, "snapshot", &["v@s"]).ok();
    on(&dir, "clone", &["v@s", "w"]).ok();
    let before = on(&dir, "status", &["--sync", "--json"]).ok().json();
    assert_eq!(before["unlisted_allocated_bytes"], 0);
    on(&dir, "destroy", &["-r", "v"]).ok();

    let status = on(&dir, "status", &["--sync", "--json"]).ok().json();
    for field in ["allocated_bytes", "stored_bytes", "ratio", "saving_percent"] {
        assert_eq!(status[field], before[field], "{field}");
    }
    assert_eq!((&status["allocated_bytes"], &status["unlisted_allocated_bytes"]), (&json!(1 << 20), &json!(1 << 20)));
    let list = on(&dir, "list", &[]).ok().stdout;
    assert!(list.contains("in destroyed volumes, for clones or not yet reclaimed: 1 MiB, stored in "), "{list}");

    on(&dir, "destroy", &["w"]).ok();
    on(&dir, "check", &[]).ok();
    let status = on(&dir, "status", &["--sync", "--json"]).ok().json();
    assert_eq!((&status["allocated_bytes"], &status["unlisted_bytes"]), (&json!(0), &json!(0)), "{status}");
    assert_eq!((&status["ratio"], &status["saving_percent"]), (&Value::Null, &Value::Null));
    assert!(!on(&dir, "list", &[]).ok().stdout.contains("destroyed"));
}

/// Snapshots appear and disappear at the doors while the server runs; no client can write to one,
/// or roll a volume back beneath a client.
#[test]
fn snapshots_appear_at_the_doors_of_a_running_server() {
    let dir = Dir::with_pool("256M");
    on(&dir, "create", &["v", "--size", "1M"]).ok();
    let mount = dir.join("mount");
    std::fs::create_dir(&mount).unwrap();
    let server = Server::start(&dir, &["--mount", path(&mount)]);
    let volume = std::fs::OpenOptions::new().read(true).write(true).open(mount.join("v")).unwrap();
    volume.write_all_at(&[1; 4096], 0).unwrap();
    on(&dir, "snapshot", &["v@s"]).ok();
    volume.write_all_at(&[2; 4096], 0).unwrap();
    let mut names: Vec<_> =
        std::fs::read_dir(&mount).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["v", "v@s"]);
    assert_eq!(std::fs::read(mount.join("v@s")).unwrap()[..4096], [1; 4096]);
    let refused = std::fs::OpenOptions::new().write(true).open(mount.join("v@s")).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    on(&dir, "rollback", &["v@s"]).code(4).says("--force");
    on(&dir, "rename", &["v", "w"]).ok();
    // The client continues, and is still counted.
    volume.write_all_at(&[3; 4096], 4096).unwrap();
    on(&dir, "destroy", &["-r", "w"]).code(4).says("open by");
    on(&dir, "rollback", &["w@s", "--force"]).ok();
    let mut bytes = [0; 4096];
    volume.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes, [1; 4096]);
    drop(volume);
    on(&dir, "destroy", &["w@s"]).ok();
    assert!(!mount.join("w@s").exists() && mount.join("w").exists());
    server.stop();
}

/// Makes a snapshot of a pool without mounts, where no share has to be frozen.
fn take_at_once(_: &str, take: &dyn Fn() -> surface::Result<()>) -> surface::Result<()> {
    take()
}

/// A schedule makes one snapshot per hour and keeps as many as its property says; a user's snapshot
/// is never removed.
#[test]
fn schedules_take_and_remove_their_own() {
    use server::schedules;

    let dir = Dir::with_pool("256M");
    on(&dir, "create", &["v", "--size", "1M", "-o", "snapshots=hourly", "-o", "keep=2h"]).ok();
    on(&dir, "create", &["w", "--size", "1M"]).ok();
    on(&dir, "snapshot", &["v@mine"]).ok();
    on(&dir, "set", &["v", "keep=2y"]).code(2).says("24h,7d,4w");
    let open = dir.open();
    let (pool, devices) = (open.service.pool(), open.service.devices());
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let scheduled = || pool.snapshots(None).unwrap().into_iter().filter(|s| s.scheduled).map(|s| s.name);
    assert_eq!(schedules::run(pool, devices, &take_at_once, now, &|| false, &|_| {}).len(), 1);
    assert_eq!(scheduled().collect::<Vec<_>>(), [policy::scheduled_name(now)]);
    // While a client reads it, it stays; then it is removed.
    let client =
        devices.open(&format!("v@{}", policy::scheduled_name(now)), &surface::NamedClient::shared("a reader")).unwrap();
    schedules::run(pool, devices, &take_at_once, now + 3600, &|| false, &|_| {});
    schedules::run(pool, devices, &take_at_once, now + 7200, &|| false, &|_| {});
    let third = policy::scheduled_name(now + 7200);
    assert!(scheduled().any(|name| name == policy::scheduled_name(now)) && scheduled().any(|name| name == third));
    drop(client);
    schedules::run(pool, devices, &take_at_once, now + 10800, &|| false, &|_| {});
    assert!(!scheduled().any(|name| name == policy::scheduled_name(now)));
    // A caller with other work is not delayed by the rest: here, one volume was handled and the
    // other was not.
    pool.set_properties(Some("w"), &[("snapshots".to_owned(), Some("hourly".to_owned()))]).unwrap();
    let looks = std::cell::Cell::new(0);
    let told =
        schedules::run(pool, devices, &take_at_once, now + 14400, &|| looks.replace(looks.get() + 1) > 0, &|_| {});
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(pool.snapshots(Some("w")).unwrap().len(), 0);
    let mine = pool.snapshots(Some("v")).unwrap().into_iter().filter(|s| !s.scheduled).count();
    assert_eq!((mine, pool.snapshots(Some("w")).unwrap().len()), (1, 0));
    open.close().unwrap();
}
