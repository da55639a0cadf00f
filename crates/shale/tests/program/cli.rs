//! Every command on a pool that is not served: its effect, its output, and its exit codes.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

use crate::support::{Dir, Ran, SHALE, on, path, run};
use serde_json::{Value, json};

#[test]
fn help_version_and_usage() {
    assert!(run(["--version"]).ok().stdout.starts_with("shale "));
    let help = run(["--help"]).ok().stdout;
    assert!(help.contains("Exit codes:") && help.contains("Examples:"), "{help}");
    run(["frobnicate"]).code(2);
    run(["create", "p", "v"]).code(2).says("--size");
    let error = run(["--json", "create", "p", "v", "--size", "10X"]).code(2).json();
    assert_eq!(error["error"]["kind"], "invalid");
    assert!(error["error"]["message"].as_str().unwrap().contains("10X"), "{error}");
}

#[test]
fn completions_and_man_pages_come_from_the_definition() {
    for shell in ["bash", "zsh", "fish"] {
        let script = run(["completions", shell]).ok().stdout;
        assert!(script.contains("SHALE_COMPLETE"), "{shell}");
    }
    let dir = Dir::new();
    run(["man", path(&dir.join("man"))]).ok();
    let page = std::fs::read_to_string(dir.join("man/shale-serve.1")).unwrap();
    assert!(page.contains("nbd"), "{page}");
    assert!(std::fs::read_to_string(dir.join("man/shale.1")).unwrap().contains(".SH EXIT STATUS"));
    assert!(dir.join("man/shale-completions.1").exists() && !dir.join("man/shale-keep-mounts.1").exists());
}

fn names(dir: &Dir) -> Vec<String> {
    let list = on(dir, "list", &["--json"]).ok().json();
    list.as_array().unwrap().iter().map(|v| v["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn volumes_come_change_and_go() {
    let dir = Dir::with_pool("256M");
    assert_eq!(on(&dir, "create", &["b", "--size", "1G", "--json"]).ok().json()["size_bytes"], 1u64 << 30);
    on(&dir, "create", &["a", "--size", "5000"]).ok();
    assert_eq!(names(&dir), ["a", "b"]);
    on(&dir, "create", &["a", "--size", "1M"]).code(8).says("'a'");
    on(&dir, "create", &["../a", "--size", "1M"]).code(2).says("letters");
    on(&dir, "create", &["zero", "--size", "0"]).code(2);
    on(&dir, "create", &["huge", "--size", "2P"]).code(2);
    on(&dir, "create", &["c", "--size", "1M", "-o", "colour=red"]).code(2).says("colour");

    on(&dir, "resize", &["a", "2M"]).ok();
    on(&dir, "resize", &["a", "1M"]).code(2).says("--shrink");
    on(&dir, "resize", &["a", "1M", "--shrink"]).ok();
    let list = on(&dir, "list", &["--json"]).ok().json();
    assert_eq!(list[0]["size_bytes"], 1 << 20);
    assert_eq!(list[0]["ratio"], Value::Null);
    assert_eq!(list[0]["clients"], 0);
    on(&dir, "resize", &["x", "1M"]).code(3).says("'x'");

    on(&dir, "destroy", &["a"]).ok();
    on(&dir, "destroy", &["a"]).code(3).says("'a'");
    assert_eq!(names(&dir), ["b"]);
    let text = on(&dir, "list", &[]).ok().stdout;
    assert!(text.starts_with("NAME") && text.contains("1 GiB"), "{text}");
}

#[test]
fn properties_are_inherited_until_they_are_set() {
    let dir = Dir::with_pool("64M");
    on(&dir, "create", &["v", "--size", "1M", "-o", "unit=8K"]).ok();
    let get = |words: &[&str]| {
        let mut all = words.to_vec();
        all.push("--json");
        let mut found = on(&dir, "get", &all).ok().json();
        for property in found.as_array_mut().unwrap() {
            let property = property.as_object_mut().unwrap();
            let about = ["values", "allowed", "description", "rules"].map(|key| property.remove(key));
            assert!(about.iter().all(Option::is_some), "{property:?}: {about:?}");
        }
        found
    };
    let entry =
        |key: &str, value: &str, source: &str| json!({ "key": key, "value": value, "source": source, "folder": null });
    assert_eq!(
        get(&["v", "unit", "compression"]),
        json!([entry("unit", "8K", "volume"), entry("compression", "auto", "default")])
    );
    on(&dir, "set", &["compression=zstd-3", "unit=64K"]).ok();
    assert_eq!(get(&["v", "compression"]), json!([entry("compression", "zstd-3", "pool")]));
    assert_eq!(get(&["unit"]), json!([entry("unit", "64K", "pool")]));
    on(&dir, "set", &["v", "unit=", "compression=off"]).ok();
    assert_eq!(
        get(&["v", "unit", "compression"]),
        json!([entry("unit", "64K", "pool"), entry("compression", "off", "volume")])
    );
    // Some properties have one level only: settings of the cleaner are the pool's, doors belong to
    // shares, and `incomplete` to the volume.
    let keys = |words: &[&str]| -> BTreeSet<String> {
        get(words).as_array().unwrap().iter().map(|p| p["key"].as_str().unwrap().to_owned()).collect()
    };
    let (of_volume, of_pool) = (keys(&["v"]), keys(&[]));
    assert_eq!(of_volume.difference(&of_pool).collect::<Vec<_>>(), ["incomplete"]);
    assert_eq!(
        of_pool.difference(&of_volume).collect::<Vec<_>>(),
        ["acl", "atime", "clean-high", "clean-low", "ftp", "http", "nfs", "remote-cache", "smb", "xattr"]
    );
    on(&dir, "set", &["v", "clean-low=5"]).code(2).says("the pool as a whole");
    on(&dir, "set", &["clean-low=30"]).code(2).says("less than clean-high");

    // All or nothing, and each message names the allowed values.
    on(&dir, "set", &["v", "unit=4K", "compression=magic"]).code(2).says("zstd-1");
    assert_eq!(get(&["v", "unit"]), json!([entry("unit", "64K", "pool")]));
    on(&dir, "set", &["v"]).code(2);
    on(&dir, "set", &["x", "unit=4K"]).code(3);
    on(&dir, "get", &["v", "colour"]).code(2).says("compression");
    on(&dir, "get", &["x"]).code(3).says("neither");
}

#[test]
fn status_has_exactly_the_documented_fields() {
    let dir = Dir::with_pool("64M");
    let status = on(&dir, "status", &["--json", "--sync"]).ok().json();
    let help = run(["status", "--help"]).ok().stdout;
    let (_, documented) = help.split_once("JSON fields").unwrap();
    for field in status.as_object().unwrap().keys() {
        assert!(documented.contains(field.as_str()), "{field} is not documented in\n{documented}");
    }
    assert_eq!(status["capacity_bytes"], 64 << 20);
    assert_eq!(status["served"], false);
    assert!(status["memory_resident_bytes"].as_u64().unwrap() > 0);
    let text = on(&dir, "status", &[]).ok().stdout;
    assert!(text.contains("write amplification") && text.contains("64 MiB"), "{text}");
}

#[test]
fn each_class_of_error_has_its_code_in_text_and_json() {
    let dir = Dir::with_pool("64M");
    on(&dir, "create", &["v", "--size", "1M"]).ok();
    let absent = dir.join("absent");
    let (absent, above) = (path(&absent), path(dir.path()));
    let cases: &[(i32, &str, &[&str])] = &[
        (3, "not-found", &["status", absent]),
        (3, "not-found", &["export", absent, "v", "-"]),
        (8, "exists", &["create", "POOL", "v", "--size", "1M"]),
        (2, "invalid", &["list", "POOL", "--memory", "1M"]),
        (3, "not-found", &["import", "POOL", "w", absent]),
        (8, "exists", &["export", "POOL", "v", "/etc/passwd"]),
        (2, "invalid", &["serve", "POOL", "--nbd", "nonsense"]),
        (2, "invalid", &["serve", "POOL", "--ready-fd", "77"]),
        (3, "not-found", &["serve", "POOL", "--volume", "nobody"]),
        (3, "not-found", &["serve", "POOL", "--mount", absent]),
        // The mount would hide the pool.
        (2, "invalid", &["serve", "POOL", "--mount", "POOL"]),
        (2, "invalid", &["serve", "POOL", "--mount", above]),
        // A file there would be gone after a reboot.
        (3, "not-found", &["init", absent, "--data", "/dev/shale-absent"]),
    ];
    for (code, kind, words) in cases {
        let pool = dir.pool();
        let words: Vec<&str> = words.iter().map(|word| if *word == "POOL" { path(&pool) } else { word }).collect();
        let ran = run(&words).code(*code);
        let is_told = ["shale: ", "error: "].iter().any(|begin| ran.stderr.contains(begin));
        assert!(is_told && ran.stdout.is_empty(), "{words:?}: {}{}", ran.stdout, ran.stderr);
        let with_json = run(words.iter().copied().chain(["--json"])).code(*code).json();
        assert_eq!(with_json["error"]["kind"], *kind, "{words:?}");
    }
    // A missing map, and an invalid pool.json.
    std::fs::rename(dir.pool().join("map"), dir.join("map")).unwrap();
    on(&dir, "list", &[]).code(6).says("map");
    std::fs::rename(dir.join("map"), dir.pool().join("map")).unwrap();
    on(&dir, "list", &[]).ok();
    let config = std::fs::read_to_string(dir.pool().join("pool.json")).unwrap();
    std::fs::write(dir.pool().join("pool.json"), &config[..config.len() / 2]).unwrap();
    on(&dir, "list", &[]).code(6).says("shale salvage");
    std::fs::remove_file(dir.pool().join("pool.json")).unwrap();
    assert!(!on(&dir, "list", &[]).code(6).says("shale salvage").stderr.contains("init"));
    std::fs::write(dir.pool().join("pool.json"), config.replace("\"format_version\": 1", "\"format_version\": 9"))
        .unwrap();
    on(&dir, "list", &[]).code(9).says("format 9");
}

#[test]
fn a_lock_that_is_held_is_respected_and_waited_for() {
    let dir = Dir::with_pool("64M");
    let lock = env::PoolLock::acquire(&dir.pool()).unwrap();
    let pid = std::process::id().to_string();
    for command in ["list", "check", "serve"] {
        on(&dir, command, &["--wait", "0"]).code(4).says(&pid);
    }
    let kind = on(&dir, "list", &["--wait", "0", "--json"]).code(4).json()["error"]["kind"].clone();
    assert_eq!(kind, "in-use");
    // The waiting command gets a pool that is released.
    let waiting = Command::new(SHALE).args(["list", path(&dir.pool()), "--wait", "100"]).spawn().unwrap();
    drop(lock);
    assert!(waiting.wait_with_output().unwrap().status.success());
}

#[test]
fn check_finds_what_is_wrong_and_reads_refuse_it() {
    let dir = Dir::with_pool("64M");
    let source = dir.join("source");
    std::fs::write(&source, crate::support::mixed_data(8 << 20)).unwrap();
    on(&dir, "import", &["v", path(&source)]).ok();
    let report = on(&dir, "check", &["--json"]).ok().json();
    assert_eq!(report["clean"], true);
    assert!(report["fragments"].as_u64().unwrap() > 100, "{report}");
    assert!(on(&dir, "check", &[]).ok().stdout.contains("clean"));

    // A byte in the middle of the second extent that holds data.
    let data = std::fs::File::options().read(true).write(true).open(dir.pool().join("data")).unwrap();
    let place = (2 << 20) + 300_001;
    let mut byte = [0];
    data.read_exact_at(&mut byte, place).unwrap();
    data.write_all_at(&[byte[0] ^ 0x40], place).unwrap();
    drop(data);
    assert!(on(&dir, "scrub", &["--report"]).ok().stdout.contains("never"));
    let scrubbed = on(&dir, "scrub", &["--json"]).code(6).json();
    assert_eq!((&scrubbed["finished"], &scrubbed["found"]), (&json!(true), &json!(1)), "{scrubbed}");
    assert_eq!(scrubbed["damages"][0]["volume"], "v", "{scrubbed}");
    assert!(on(&dir, "scrub", &["--report"]).code(6).stdout.contains("volume v, byte"));
    let report = on(&dir, "check", &["--json"]).code(6).json();
    assert_eq!(report["problems"][0]["offset"], scrubbed["damages"][0]["offset"], "{report} {scrubbed}");
    assert_eq!(report["clean"], false);
    let problem = &report["problems"][0];
    assert_eq!((&problem["kind"], &problem["volume"]), (&json!("fragment"), &json!("v")), "{report}");
    assert!(problem["offset"].is_u64(), "{report}");
    assert!(on(&dir, "check", &[]).code(6).stdout.contains("volume v, byte"));
    let target = dir.join("target");
    on(&dir, "export", &["v", path(&target)]).code(6).says("export of volume 'v'");
    assert!(!target.exists(), "a failed export left its file");
    // The bytes cannot be restored: the way out is to write them again.
    assert!(on(&dir, "check", &["--repair"]).code(6).stdout.contains("cannot be repaired"));
    on(&dir, "import", &["v", path(&source), "--overwrite"]).ok();
    on(&dir, "check", &[]).ok();
    on(&dir, "scrub", &["--rate", "63K"]).code(2).says("at least 64K");
    on(&dir, "scrub", &["--rate", "max"]).ok();
    on(&dir, "export", &["v", path(&target)]).ok();
}

#[test]
fn an_output_that_is_closed_early_is_no_crash() {
    let dir = Dir::with_pool("64M");
    let mut child = Command::new(SHALE)
        .args(["status", path(&dir.pool())])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_result_that_cannot_be_written_is_a_failure() {
    let dir = Dir::with_pool("64M");
    for words in [&["status"][..], &["list"], &["list", "--json"], &["create", "v", "--size", "1M", "--json"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = Command::new(SHALE)
            .args([words[0], path(&dir.pool())])
            .args(&words[1..])
            .stdout(full)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
            .wait_with_output()
            .unwrap();
        Ran::of(output).code(5).says("could not be written to stdout");
    }
    // It was done nevertheless, and reported.
    assert_eq!(names(&dir), ["v"]);
}

#[test]
fn a_usage_error_as_json_is_one_sentence() {
    for words in [
        &["list", "p", "--json", "--json"][..],
        &["create", "p", "v", "--size", "x", "--json"],
        &["--json"],
        &["create", "--json"],
    ] {
        let error = run(words).code(2).json();
        let message = error["error"]["message"].as_str().unwrap();
        assert!(!message.starts_with("error:") && !message.contains("Usage:"), "{message}");
        assert!(!message.contains('\n'), "{message}");
    }
}

#[test]
fn a_map_that_is_lost_is_told_with_the_way_out() {
    let dir = Dir::with_pool("64M");
    let map = dir.pool().join("map");
    std::fs::rename(&map, dir.join("away")).unwrap();
    for command in ["status", "check"] {
        on(&dir, command, &[]).code(6).says("shale salvage");
    }
    std::fs::rename(dir.join("away"), &map).unwrap();
    for entry in std::fs::read_dir(&map).unwrap() {
        let entry = entry.unwrap().path();
        if entry.is_file() {
            std::fs::File::options().write(true).open(entry).unwrap().set_len(3).unwrap();
        }
    }
    on(&dir, "status", &[]).code(6).says("shale salvage");
    // The log has the content of the file.
    on(&dir, "check", &["--repair"]).ok().says("it was rebuilt");
    on(&dir, "status", &[]).ok();
    // The message does not mention a flag that salvage does not have.
    let said = on(&dir, "salvage", &["--into", path(&dir.pool())]).code(8).stderr;
    assert!(said.contains("empty directory") && !said.contains("--force"), "{said}");
}

/// It was opened as if it were intact, and written to. The message was the library's own text,
/// followed by the advice.
#[test]
fn a_damaged_map_is_told_with_the_way_out() {
    let dir = Dir::with_pool("64M");
    on(&dir, "create", &["v", "--size", "1M"]).ok();
    let tables = dir.pool().join("map/lsm/keyspaces/0/tables");
    for table in std::fs::read_dir(&tables).unwrap() {
        let table = table.unwrap().path();
        let mut bytes = std::fs::read(&table).unwrap();
        bytes.iter_mut().for_each(|byte| *byte ^= 0x5a);
        std::fs::write(&table, bytes).unwrap();
    }
    let said = on(&dir, "list", &[]).code(6).stderr;
    let places = ["pool/map is damaged", "as a second pool", "--into NEW", "map store: ", "its files are damaged"]
        .map(|part| said.find(part));
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?}: {said}");
    let rebuilt = dir.join("rebuilt");
    run(["salvage", path(&dir.pool()), "--into", path(&rebuilt), "--capacity", "64M"]).ok();
    assert_eq!(run(["list", path(&rebuilt), "--json"]).ok().json()[0]["name"], "v");
}

#[test]
fn quiet_commands_say_nothing_of_what_was_done() {
    let dir = Dir::with_pool("64M");
    for (command, words) in [
        ("create", &["v", "--size", "1M"][..]),
        ("set", &["v", "compression=lz4"]),
        ("resize", &["v", "2M"]),
        ("snapshot", &["v@s"]),
        ("clone", &["v@s", "w"]),
        ("rename", &["w", "x"]),
        ("export", &["v", "/dev/null", "--force"]),
        ("rollback", &["v@s"]),
        ("destroy", &["v", "-r"]),
        ("grow", &["96M"]),
    ] {
        let words: Vec<_> = words.iter().copied().chain(["--quiet"]).collect();
        let ran = on(&dir, command, &words).ok();
        assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("", ""), "{command}");
    }
    assert!(on(&dir, "list", &["-q"]).ok().stdout.contains("x "), "what is asked for is shown");
    let made = on(&dir, "create", &["y", "--size", "1M", "-q", "--json"]).ok().json();
    assert_eq!(made["volume"], "y", "scripts get their document");
    on(&dir, "create", &["y", "--size", "1M", "-q"]).code(8).says("'y'");
}

#[test]
fn a_data_file_that_was_cut_off_is_told_before_anything_is_written() {
    let dir = Dir::with_pool("64M");
    let (source, data) = (dir.join("source"), dir.pool().join("data"));
    std::fs::write(&source, crate::support::mixed_data(8 << 20)).unwrap();
    on(&dir, "import", &["v", path(&source)]).ok();
    on(&dir, "import", &["w", path(&source)]).ok();
    std::fs::File::options().write(true).open(&data).unwrap().set_len(4 << 20).unwrap();
    let before = std::fs::read(&data).unwrap();
    for command in ["status", "check", "scrub"] {
        on(&dir, command, &[]).code(6).says("cut off").says("salvage");
    }
    assert!(std::fs::read(&data).unwrap() == before, "it was written to");
    // The losses are reported volume by volume, and nothing is done without confirmation.
    on(&dir, "check", &["--repair"]).code(6).says("cut off").says("w: ").says("salvage").says("--accept-loss");
    let refused = on(&dir, "check", &["--repair", "--json"]).code(6).json();
    assert_eq!(refused["error"]["kind"], "corrupt");
    assert!(
        refused["loss"]["volumes"].as_array().unwrap().iter().any(|of| of["cut_off_bytes"].as_u64() > Some(0)),
        "{refused}"
    );
    on(&dir, "check", &["--accept-loss"]).code(2);
    assert!(std::fs::read(&data).unwrap() == before, "it was written to");
    // Repairs are reported at once, and are in the report as well.
    let report = on(&dir, "check", &["--repair", "--accept-loss", "--json"]).code(12).says("cut off").json();
    let kinds: Vec<_> = report["problems"].as_array().unwrap().iter().map(|p| p["kind"].as_str().unwrap()).collect();
    assert!(kinds.contains(&"lost") && kinds.contains(&"fragment"), "{kinds:?}");
    assert!(report["loss"]["what"].as_str().unwrap().contains("cut off"), "{report}");
    // It is remembered, until a user is informed.
    let status = on(&dir, "status", &[]).ok().stdout;
    assert!(status.contains("RECOVERED WITH LOSS") && status.contains("cut off"), "{status}");
    assert_eq!(on(&dir, "status", &["--json"]).ok().json()["losses"].as_array().unwrap().len(), 1);
    assert_eq!(on(&dir, "status", &["--acknowledge", "--json"]).ok().json()["losses"].as_array().unwrap().len(), 0);
    assert!(!on(&dir, "status", &[]).ok().stdout.contains("WITH LOSS"));
    assert_eq!(std::fs::metadata(&data).unwrap().len(), (64 << 20) + (64 << 10));
    on(&dir, "export", &["w", "-"]).code(6);
    on(&dir, "destroy", &["w"]).ok();
    on(&dir, "import", &["v", path(&source), "--overwrite"]).ok();
    on(&dir, "check", &[]).ok();
}

#[test]
fn explain_tells_how_data_is_stored() {
    let dir = Dir::with_pool("64M");
    on(&dir, "set", &["compression=auto"]).ok();
    let image = dir.join("image");
    let line = |n: u32| {
        format!("{n}: the quick brown fox has written {} bytes to block {}\n", n * 37 % 991, n * 7919 % 65_537)
    };
    let mut data = (0..).flat_map(|n| line(n).into_bytes()).take(1 << 20).collect::<Vec<u8>>();
    data.extend(crate::support::noise(1 << 20));
    std::fs::write(&image, &data).unwrap();
    on(&dir, "import", &["v", path(&image)]).ok();
    let regions = on(&dir, "explain", &["v", "--json"]).ok().json();
    assert_eq!(regions.as_array().unwrap().len(), 1);
    assert_eq!(regions[0]["raw_bytes"], data.len());
    let codecs = regions[0]["codecs"].as_array().unwrap();
    assert!(codecs.iter().any(|c| c["codec"] == "raw") && codecs.len() >= 2, "{codecs:?}");
    assert!(on(&dir, "explain", &["v"]).ok().stdout.contains("raw"));

    let detail = on(&dir, "explain", &["v", "--region", "1536K", "--json"]).ok().json();
    assert_eq!(detail["unit_offset"], 1536 << 10);
    assert_eq!(detail["class"], "random");
    assert!(detail["trials"].as_array().unwrap().iter().all(|t| t["stored_bytes"].is_null()));
    let text = on(&dir, "explain", &["v", "--region", "0"]).ok().stdout;
    assert!(text.contains("wins") && text.contains("mode=balanced"), "{text}");
    on(&dir, "explain", &["v", "--region", "1G"]).code(2);
    on(&dir, "explain", &["w"]).code(3).says("'w'");

    let stored = || on(&dir, "list", &["--sync", "--json"]).ok().json()[0]["stored_bytes"].as_u64().unwrap();
    let (before, held) = (stored(), crate::support::content(&dir, "v"));
    let done = on(&dir, "recompress", &["v", "--mode", "archive", "--json"]).ok().json();
    assert_eq!((&done["finished"], &done["mode"]), (&json!(true), &json!("archive")));
    assert!(done["after_bytes"].as_u64().unwrap() <= done["before_bytes"].as_u64().unwrap(), "{done}");
    assert!(stored() <= before);
    assert_eq!(crate::support::content(&dir, "v"), held);
    assert!(on(&dir, "recompress", &["v", "--report"]).ok().stdout.contains("with --mode archive"));
    on(&dir, "recompress", &["v", "--mode", "best"]).code(2).says("archive");
    on(&dir, "trace", &["--limit", "1"]).code(2).says("serve");
}

#[test]
fn data_that_is_gone_is_told_with_the_file_and_the_way_out() {
    let dir = Dir::with_pool("64M");
    let data = dir.pool().join("data");
    let foreign = crate::support::noise(1 << 20);
    for bytes in [&b""[..], b"x", &foreign] {
        std::fs::write(&data, bytes).unwrap();
        on(&dir, "list", &[]).code(6).says(path(&data)).says("from a copy");
    }
}

#[test]
fn promises_that_cannot_be_kept_are_refused() {
    let dir = Dir::with_pool("64M");
    on(&dir, "create", &["v", "--size", "8M", "-o", "quota=2M", "-o", "reservation=4M"]).code(2).says("never use");
    on(&dir, "create", &["v", "--size", "8M", "-o", "quota=4M"]).ok();
    on(&dir, "set", &["v", "reservation=5M"]).code(2).says("quota of 4 MiB");
    on(&dir, "set", &["v", "reservation=4M", "candidates=lz4, zstd-1"]).ok();
    on(&dir, "set", &["quota=1M"]).ok();
    on(&dir, "set", &["reservation=2M"]).ok();
    on(&dir, "create", &["w", "--size", "8M"]).code(2).says("never use");
    let long = "n".repeat(240);
    on(&dir, "create", &[&long, "--size", "8M", "-o", "reservation=none", "-o", "snapshots=hourly"])
        .code(2)
        .says("233");
    on(&dir, "create", &[&long, "--size", "8M", "-o", "reservation=none"]).ok();
    on(&dir, "set", &["snapshots=daily"]).code(2).says("too long");
    // The same size, and the purpose of the other command.
    on(&dir, "grow", &["64M"]).ok();
    on(&dir, "shrink", &["64M"]).ok();
    on(&dir, "shrink", &["900M"]).code(2).says("use grow");
    let report = on(&dir, "clean", &["--sort", "--report", "--json"]).ok().json();
    assert!(report["extents_free"].as_u64().unwrap() > 32, "{report}");
}

#[test]
fn what_is_named_twice_is_estimated_once() {
    let dir = Dir::new();
    std::fs::create_dir(dir.join("sub")).unwrap();
    for name in ["a", "sub/b"] {
        std::fs::write(dir.join(name), crate::support::mixed_data(1 << 20)).unwrap();
    }
    let (all, sub, file) = (dir.path(), dir.join("sub"), dir.join("a"));
    let report = run(["estimate", path(all), path(&sub), path(&file), path(&file), "--json"]).ok().json();
    assert_eq!((report["files"].as_u64(), report["size_bytes"].as_u64()), (Some(2), Some(2 << 20)), "{report}");
    run(["estimate", path(all), "--sample", "0"]).code(2).says("--sample");
}
