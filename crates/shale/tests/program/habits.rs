//! Words and flags that users of zfs, restic, docker and rclone type.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::process::{Command, Stdio};

use serde_json::json;

use crate::support::{Dir, Ran, SHALE, Server, imported_noise, noise, on, path, run};

#[test]
fn words_of_other_programs_are_answered() {
    for word in [
        "mount",
        "umount",
        "snapshots",
        "forget",
        "prune",
        "ls",
        "ps",
        "rm",
        "info",
        "version",
        "stop",
        "cat",
        "upgrade",
        "trim",
        "zfs",
        "zpool",
        "fsck",
        "convert",
        "measure",
        "rebase",
        "commit",
        "tag",
        "expire",
        "gc",
        "replicate",
    ] {
        run([word, "p"]).code(2).says(&format!("there is no 'shale {word}': ")).says("`shale ");
        let error = run(["--json", word, "p"]).code(2).json();
        assert_eq!(error["error"]["kind"], "invalid", "{word}");
        let message = error["error"]["message"].as_str().unwrap();
        assert!(message.contains("`shale ") && !message.contains('\n'), "{message}");
    }
    run(["rm", "p", "vm"]).code(2).says("shale destroy POOL NAME");
    run(["blob", "list", "file:///b"]).code(2).says("shale blob ls URL");
    run(["send", "p", "v@s", "-n"]).code(2).says("no -n").says("shale estimate");
    run(["status", "p", "-H"]).code(2).says("shale list -H");
    for slip in ["destory", "rollbak", "keep-mount", "releas"] {
        let said = run([slip, "p"]).code(2).stderr;
        let names = ["destroy'", "rollback'", "keep-mounts'", "release'"];
        assert!(!names.iter().any(|name| said.contains(name)), "{slip}: {said}");
    }
    let said = run(["--help"]).ok().stdout;
    assert!(said.contains("  completions ") && said.contains("  man ") && !said.contains("keep-mounts "), "{said}");
}

/// A command line in `dir`, with SHALE_POOL.
fn with_pool(dir: &Dir, words: &[&str]) -> Ran {
    let mut command = Command::new(SHALE);
    command.args(words).env("SHALE_POOL", dir.pool()).current_dir(dir.path()).stdin(Stdio::null());
    Ran::of(command.output().unwrap())
}

#[test]
fn the_pool_may_come_from_the_environment() {
    let dir = Dir::with_pool("64M");
    run(["init", path(&dir.join("other")), "--capacity", "64M"]).ok();
    let names = |words: &[&str]| {
        let list = with_pool(&dir, words).ok().json();
        list.as_array().unwrap().iter().map(|v| v["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    with_pool(&dir, &["create", "vm", "--size", "1M"]).ok();
    with_pool(&dir, &["snapshot", "vm@a"]).ok();
    with_pool(&dir, &["set", "unit=8K"]).ok();
    with_pool(&dir, &["create", "other", "of-other", "--size", "1M"]).ok();
    assert_eq!(names(&["list", "--json"]), ["vm"]);
    assert_eq!(names(&["list", "other", "--json"]), ["of-other"], "a pool that is named wins");
    assert_eq!(names(&["list", "./other", "--json"]), ["of-other"]);
    assert_eq!(with_pool(&dir, &["get", "-H", "-o", "value", "unit"]).ok().stdout, "8K\n");
    with_pool(&dir, &["list", "/no/such/pool"]).code(3).says("/no/such/pool");
    with_pool(&dir, &["destroy", "othre", "vm"]).code(3).says("'othre'");
    assert_eq!(names(&["list", "--json"]), ["vm"], "nothing went for a slip in the name of a pool");
    assert_eq!(names(&["token", "list", "--json"]), Vec::<String>::new());
    run(["list"]).code(2).says("<POOL>");
}

#[test]
fn a_shell_completes_names_where_the_environment_has_the_pool() {
    let dir = Dir::with_pool("64M");
    on(&dir, "create", &["vm", "--size", "1M"]).ok();
    let server = Server::start(&dir, &[]);
    let mut command = Command::new(SHALE);
    command.env("SHALE_COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", "2").env("_CLAP_IFS", "\n");
    let output = command.env("SHALE_POOL", dir.pool()).args(["--", "shale", "resize", "v"]).output().unwrap();
    assert_eq!(Ran::of(output).ok().stdout.trim(), "vm");
    server.stop();
}

#[test]
fn a_value_is_inherited_again_and_printed_alone() {
    let dir = Dir::with_pool("64M");
    on(&dir, "create", &["v", "--size", "1M", "-o", "recordsize=64K"]).ok();
    let get = |words: &[&str]| on(&dir, "get", &[&["-H"], words].concat()).ok().stdout;
    assert_eq!(get(&["v", "unit", "-o", "value"]), "64K\n");
    assert_eq!(get(&["v", "recordsize", "compression", "-o", "name,property,value,source"]), {
        "v\tunit\t64K\tvolume\nv\tcompression\tauto\tdefault\n"
    });
    assert_eq!(get(&["unit"]), "unit\t32K\tdefault\n");
    let now = on(&dir, "inherit", &["recordsize", "v", "--json"]).ok().json();
    assert_eq!(
        (&now[0]["key"], &now[0]["value"], &now[0]["source"]),
        (&json!("unit"), &json!("32K"), &json!("default"))
    );
    on(&dir, "set", &["unit=8K"]).ok();
    on(&dir, "inherit", &["unit"]).ok();
    assert_eq!(get(&["v", "unit", "-o", "value"]), "32K\n");
    on(&dir, "set", &["v", "unit=8K"]).ok();
    on(&dir, "inherit", &["v", "unit"]).ok();
    assert_eq!(get(&["unit", "v"]), get(&["v", "unit"]), "properties first, as zfs has them");
    assert_eq!(get(&["all", "v"]), get(&["v", "all"]));
    for (property, says) in
        [("volsize=1G", "shale resize"), ("mountpoint=/x", "--shares DIR"), ("sharenfs=on", "`nfs`")]
    {
        on(&dir, "set", &["v", property]).code(2).says(says);
    }
    on(&dir, "get", &["v", "compressratio"]).code(2).says("shale list");
    on(&dir, "list", &["-o", "name,used"]).code(2).says("'stored'");
    on(&dir, "inherit", &["colour", "v"]).code(2).says("colour");
    on(&dir, "inherit", &["unit", "x"]).code(3).says("'x'");
    on(&dir, "get", &["v", "-o", "colour"]).code(2).says("property");
}

#[test]
fn types_are_a_column_and_all_is_one() {
    let dir = Dir::with_pool("64M");
    on(&dir, "create", &["v", "--size", "1M"]).ok();
    on(&dir, "create", &["home", "--share"]).ok();
    on(&dir, "create", &["projects", "--folder"]).ok();
    on(&dir, "snapshot", &["v@a"]).ok();
    let columns = |words: &[&str]| {
        let text = on(&dir, "list", words).ok().stdout;
        let rows = text.lines().map(|line| line.split_whitespace().take(2).collect::<Vec<_>>().join(" "));
        rows.collect::<Vec<_>>()
    };
    assert_eq!(columns(&[]), ["NAME TYPE", "home share", "projects folder", "v volume"]);
    assert_eq!(columns(&["-t", "all"]), ["NAME TYPE", "home share", "projects folder", "v volume", "v@a snapshot"]);
    let df = on(&dir, "df", &["--json"]).ok().json();
    assert_eq!((df["size_bytes"].as_u64(), df["pool"].as_str()), (Some(64 << 20), Some(path(&dir.pool()))));
    let text = on(&dir, "df", &[]).ok().stdout;
    assert!(text.starts_with("POOL") && text.contains("64 MiB") && text.lines().count() == 2, "{text}");
}

fn titles(dir: &Dir) -> Vec<String> {
    let text = on(dir, "list", &["-r", "-H", "-o", "name"]).ok().stdout;
    text.lines().map(str::to_owned).collect()
}

#[test]
fn several_go_together_and_a_dry_run_takes_none() {
    let dir = Dir::with_pool("64M");
    for volume in ["v", "w"] {
        on(&dir, "create", &[volume, "--size", "1M"]).ok();
        for name in ["a", "b", "c", "d"] {
            on(&dir, "snapshot", &[&format!("{volume}@{name}")]).ok();
        }
    }
    let before = titles(&dir);
    let said = on(&dir, "destroy", &["-n", "v@b%c"]).ok().stdout;
    assert_eq!(said, "snapshot v@b would be destroyed\nsnapshot v@c would be destroyed\n");
    let said = on(&dir, "destroy", &["-n", "-r", "v", "--json"]).ok().json();
    assert_eq!(said["destroyed"], json!(["v", "v@a", "v@b", "v@c", "v@d"]));
    assert_eq!(said["dry_run"], true);
    on(&dir, "destroy", &["-n", "v"]).code(4).says("snapshots");
    assert_eq!(titles(&dir), before, "nothing went");

    // A single refusal keeps all.
    for wrong in ["v@x", "v@a%x", "v@x,a", "x", "v#none"] {
        on(&dir, "destroy", &["w@a", wrong]).code(3);
    }
    on(&dir, "destroy", &["v@a,"]).code(2).says("@A%B");
    on(&dir, "hold", &["v@d", "kept"]).ok();
    on(&dir, "destroy", &["w@a", "v@c,d"]).code(4).says("kept");
    on(&dir, "destroy", &["-n", "v@d"]).code(4).says("kept");
    assert_eq!(titles(&dir), before, "nothing went");

    on(&dir, "destroy", &["v@b%c"]).ok();
    let gone = on(&dir, "destroy", &["w@%b,d", "v@a", "v@a", "--json"]).ok().json();
    assert_eq!(gone["destroyed"], json!(["w@a", "w@b", "w@d", "v@a"]));
    assert_eq!(titles(&dir), ["v", "v@d", "w", "w@c"]);
    on(&dir, "release", &["v@d", "kept"]).ok();
    on(&dir, "destroy", &["v@d", "v", "w@c", "w"]).ok();
    assert_eq!(titles(&dir), [""; 0]);
}

#[test]
fn snapshots_of_several_are_all_taken_or_none() {
    let dir = Dir::with_pool("64M");
    for volume in ["v", "w"] {
        on(&dir, "create", &[volume, "--size", "1M"]).ok();
    }
    let taken = on(&dir, "snapshot", &["w@a", "v@b", "--json"]).ok().json();
    assert_eq!(taken["snapshots"], json!(["v@b", "w@a"]));
    on(&dir, "snapshot", &["v@c", "w@a"]).code(8).says("w@a");
    on(&dir, "snapshot", &["v@c", "x@c"]).code(3).says("'x'");
    on(&dir, "snapshot", &["v@c", "v@d"]).code(2).says("twice");
    on(&dir, "snapshot", &["-r", "v@c", "w@c"]).code(2).says("one snapshot");
    assert_eq!(titles(&dir), ["v", "v@b", "w", "w@a"]);
}

#[test]
fn a_blob_goes_to_stdout() {
    let dir = Dir::with_pool("64M");
    imported_noise(&dir, "noise", 4096);
    let url = format!("file://{}/blobs/b", path(dir.path()));
    run(["blob", "put", &url, path(&dir.join("noise"))]).ok();
    let output = Command::new(SHALE).args(["blob", "cat", &url, "--range", "1-4096"]).output().unwrap();
    assert!(output.status.success() && output.stdout == noise(4096)[1..], "{output:?}");
}

#[test]
fn messages_name_the_way_out() {
    let dir = Dir::with_pool("64M");
    on(&dir, "create", &["v", "--size", "1M"]).ok();
    on(&dir, "usage", &["v"]).code(2).says("'v' is a volume, not a share").says("shale list");
    on(&dir, "explain", &["v", "99T"]).code(2).says("'v' is a volume, not a share").says("--region OFFSET");
    on(&dir, "receive", &["-R", "file"]).code(2).says("-i FILE");
    on(&dir, "create", &["x"]).code(2).says("--size SIZE for a volume, --share, or --folder");
    on(&dir, "snapshot", &["v@a"]).ok();
    on(&dir, "bookmark", &["v@a", "b"]).ok();
    let text = on(&dir, "bookmarks", &[]).ok().stdout;
    assert!(text.starts_with("BOOKMARK  ") && text.contains("CREATED\nv#b"), "{text}");
    let server = Server::start(&dir, &[]);
    let text = on(&dir, "iostat", &[]).ok().stdout;
    assert!(text.starts_with("in the ") && text.contains(" s since the server started\n"), "{text}");
    server.stop();
}

#[test]
fn a_pattern_takes_snapshots_of_all_volumes_that_fit() {
    let dir = Dir::with_pool("64M");
    on(&dir, "create", &["projects", "--folder"]).ok();
    for volume in ["vm1", "vm2", "db", "projects/inner"] {
        on(&dir, "create", &[volume, "--size", "1M"]).ok();
    }
    let taken = |pattern: &str| on(&dir, "snapshot", &["-r", pattern, "--json"]).ok().json()["snapshots"].clone();
    assert_eq!(taken("vm?@a"), json!(["vm1@a", "vm2@a"]));
    let mut all: Vec<_> = taken("*@b").as_array().unwrap().iter().map(|s| s.as_str().unwrap().to_owned()).collect();
    all.sort();
    assert_eq!(all, ["db@b", "projects/inner@b", "vm1@b", "vm2@b"]);
    on(&dir, "snapshot", &["-r", "x*@c"]).code(3).says("matches 'x*'");
    on(&dir, "snapshot", &["*@c"]).code(2).says("-r '*@c'");
    on(&dir, "snapshot", &["-r", "*@c", "db@c"]).code(2).says("alone");
    on(&dir, "snapshot", &["-r", "*"]).code(2).says("VOLUME@SNAPSHOT");
    assert_eq!(titles(&dir).iter().filter(|title| title.ends_with("@c")).count(), 0);
}

#[test]
fn recordsize_is_a_column() {
    let dir = Dir::with_pool("64M");
    on(&dir, "create", &["v", "--size", "1M", "-o", "recordsize=64K"]).ok();
    assert_eq!(on(&dir, "list", &["-H", "-o", "name,recordsize"]).ok().stdout, "v\t64K\n");
    on(&dir, "list", &["-o", "recordsizes"]).code(2).says("recordsizes");
}

#[test]
fn readonly_is_inherited_and_refuses_imports() {
    let dir = Dir::with_pool("64M");
    let file = dir.join("data");
    std::fs::write(&file, vec![7; 8192]).unwrap();
    on(&dir, "create", &["f", "--folder"]).ok();
    for (name, kind) in [("f/v", &["--size", "1M"][..]), ("f/s", &["--share"])] {
        on(&dir, "create", &[&[name], kind].concat()).ok();
    }
    let import = |code: i32| {
        let ran = on(&dir, "import", &["f/v", path(&file), "--overwrite"]).code(code);
        if code != 0 {
            ran.says("readonly=off");
        }
    };
    on(&dir, "set", &["f", "readonly=on"]).ok();
    let get = on(&dir, "get", &["f/v", "readonly", "--json"]).ok().json();
    assert_eq!((&get[0]["value"], &get[0]["folder"]), (&json!("on"), &json!("f")));
    import(10);
    on(&dir, "snapshot", &["f/v@a"]).ok();
    on(&dir, "rollback", &["f/v@a"]).ok();
    on(&dir, "set", &["f/v", "readonly=off"]).ok();
    import(0);
    on(&dir, "set", &["f/v", "readonly=yes"]).code(2).says("off, on");
}

/// Every command shows the same ratio for the same object, and for a snapshot immediately.
#[test]
fn commands_show_the_same_ratio() {
    let dir = Dir::with_pool("256M");
    let tree = dir.join("tree");
    std::fs::create_dir(&tree).unwrap();
    let file = tree.join("file");
    std::fs::write(&file, (0..200_000).flat_map(|n: u32| (n / 9).to_le_bytes()).collect::<Vec<u8>>()).unwrap();
    let list = |words: &[&str]| {
        let text = on(&dir, "list", &[words, &["-H", "-o", "name,ratio"]].concat()).ok().stdout;
        let rows = text.lines().map(|line| line.split_once('\t').unwrap());
        rows.map(|(name, ratio)| (name.to_owned(), ratio.to_owned())).collect::<Vec<_>>()
    };
    for (name, source, words) in [("v", &file, &[][..]), ("s", &tree, &["--share"])] {
        let imported = on(&dir, "import", &[&[name, path(source), "--json"], words].concat()).ok().json();
        let ratio = imported["ratio"].as_f64().unwrap();
        assert!(ratio > 1.5, "{imported}");
        let listed = on(&dir, "list", &["--json"]).ok().json();
        let listed = listed.as_array().unwrap().iter().find(|line| line["name"] == name).unwrap();
        assert_eq!((&listed["ratio"], &listed["stored_bytes"]), (&imported["ratio"], &imported["stored_bytes"]));
        let title = format!("{name}@now");
        on(&dir, "snapshot", &[&title]).ok();
        let rows = list(&["-r"]);
        let shown = |title: &str| rows.iter().find(|(name, _)| name == title).map(|(_, ratio)| ratio.parse().unwrap());
        let (of_volume, of_snapshot): (f64, f64) = (shown(name).unwrap(), shown(&title).unwrap());
        assert!((of_volume - ratio).abs() < 0.001 && (of_snapshot - ratio).abs() < 0.05, "{ratio}: {rows:?}");
    }
    // The files of a share, without its names.
    let used = on(&dir, "usage", &["s", "--json"]).ok().json();
    let figures = |key: &str| used["total"][key].as_f64().unwrap();
    assert_eq!(figures("ratio"), figures("raw_bytes") / figures("stored_bytes"));
    let text = on(&dir, "usage", &["s"]).ok().stdout;
    assert!(text.contains(&format!("{:.2}x", figures("ratio"))), "{text}");
}

#[test]
fn a_receive_that_broke_off_is_a_line_of_the_list() {
    let (dir, copy) = (Dir::with_pool("256M"), Dir::with_pool("256M"));
    imported_noise(&dir, "v", 16 << 20);
    on(&dir, "snapshot", &["v@a"]).ok();
    let stream = dir.join("stream");
    on(&dir, "send", &["v@a", "-o", path(&stream)]).ok();
    let whole = std::fs::metadata(&stream).unwrap().len();
    std::fs::File::options().write(true).open(&stream).unwrap().set_len(whole / 4 * 3).unwrap();
    on(&copy, "receive", &["v", "-i", path(&stream)]).code(7);
    let text = on(&copy, "list", &[]).ok().stdout;
    assert!(text.contains("\nbeing received: v@a, "), "{text}");
    on(&copy, "destroy", &["--partial", "v"]).ok();
    let text = on(&copy, "list", &[]).ok().stdout;
    assert!(!text.contains("being received: v@a"), "{text}");
}

#[test]
fn mistakes_are_told_before_they_cost_anything() {
    let dir = Dir::with_pool("64M");
    on(&dir, "create", &["docs", "--share"]).ok();
    imported_noise(&dir, "noise", 1 << 20);
    std::fs::write(dir.join("one"), "one file").unwrap();
    on(&dir, "import", &["docs", path(&dir.join("one"))]).code(2).says("a tar archive").says("one");
    on(&dir, "snapshot", &["docs@a"]).ok();
    on(&dir, "bookmark", &["docs@a", "a"]).code(9).says("keep the snapshot");
    on(&dir, "set", &["v", "quota=20"]).ok().says("of its quota of 20 B, and refuses new data");
    on(&dir, "set", &["v", "quota=8M"]).ok();
}

#[test]
fn slips_are_answered_with_what_works() {
    let dir = Dir::with_pool("64M");
    on(&dir, "create", &["vm", "--size", "4M"]).ok();
    on(&dir, "create", &["docs", "--share"]).ok();
    on(&dir, "snapshot", &["vm@c"]).ok();
    on(&dir, "clone", &["vm", "new"]).code(2).says("'vm' is a volume").says("vm@c");
    on(&dir, "rollback", &["vm"]).code(2).says("vm@c");
    on(&dir, "rollback", &["docs"]).code(2).says("'docs' is a share");
    on(&dir, "hold", &["vm", "tag"]).code(2).says("vm@SNAPSHOT");
    on(&dir, "set", &["vm@c", "readonly=on"]).code(2).says("a snapshot, which has no properties");
    run(["set", "compression=lz4", path(&dir.pool()), "vm"]).code(2).says("the pool, which comes first");
    on(&dir, "get", &["docs", "colour"]).code(2).says("'docs' has no property 'colour'");
    on(&dir, "set", &["dosc", "unit=8K"]).code(3).says("no volume or share 'dosc'").says("docs, vm");
    on(&dir, "set", &["docs", "quota=1M", "reservation=2M"]).code(2).says("'docs' would have");
    on(&dir, "rename", &["docs", "docs/x"]).code(2).says("inside itself");
    on(&dir, "status", &["--acknowledge"]).ok().says("nothing to acknowledge");
    run(["init", path(&dir.join("p")), "--capacity", "-1G"]).code(2).says("negative");
    run(["list"]).code(2).says("SHALE_POOL");
    run(["init"]).code(2).says("<POOL>");
    let estimate = Command::new(SHALE)
        .args(["estimate", "docs"])
        .env("SHALE_POOL", dir.pool())
        .current_dir(dir.path())
        .output()
        .unwrap();
    Ran::of(estimate).code(3).says(&format!("shale estimate {} NAME", path(&dir.pool())));
    let tree = dir.join("tree");
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("one"), "one").unwrap();
    on(&dir, "import", &["docs", path(&tree)]).ok();
    on(&dir, "import", &["docs", path(&tree)]).code(8).says("one already existed, and was kept");
}

#[test]
fn the_holder_of_a_port_is_named() {
    let dir = Dir::with_pool("64M");
    let held = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let at = held.local_addr().unwrap().to_string();
    let holder = format!("is held by process {} (", std::process::id());
    for door in ["--nbd", "--http"] {
        on(&dir, "serve", &[door, &at]).code(4).says(&holder);
    }
}
