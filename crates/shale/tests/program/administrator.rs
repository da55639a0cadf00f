//! The administrator's view: health, lists for people and for scripts, help, completions, and
//! corrections of mistyped words.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::support::{Dir, Ran, SHALE, Server, imported_noise, noise, on, path, run};

/// Flips a bit of the stored noise at `offset`.
fn damage(dir: &Dir, bytes: usize, offset: usize) {
    let data = dir.pool().join("data");
    let mut stored = std::fs::read(&data).unwrap();
    let wanted = &noise(bytes)[offset..offset + 64];
    let at = stored.windows(64).position(|found| found == wanted).expect("noise is stored as it is");
    stored[at] ^= 1;
    std::fs::write(&data, stored).unwrap();
}

fn health(dir: &Dir) -> String {
    on(dir, "status", &["--json"]).ok().json()["health"].as_str().unwrap().to_owned()
}

#[test]
fn damage_is_in_the_status_until_it_is_mended_or_acknowledged() {
    let dir = Dir::with_pool("64M");
    let file = imported_noise(&dir, "noise", 1 << 20);
    assert_eq!(health(&dir), "ok");
    damage(&dir, 1 << 20, 300 << 10);
    assert_eq!(health(&dir), "ok", "it has not been met");
    on(&dir, "export", &["v", path(&dir.join("out"))]).code(6);
    // Each command opens the pool again.
    on(&dir, "scrub", &[]).code(6);
    assert_eq!(health(&dir), "damaged");
    let text = on(&dir, "status", &[]).ok().stdout;
    assert!(text.starts_with("health") && text.lines().next().unwrap().contains("DAMAGED in 1 place"), "{text}");
    assert!(text.contains("v, byte ") && text.contains("found 1 damage"), "{text}");

    let status = on(&dir, "status", &["--acknowledge", "--json"]).ok().json();
    assert_eq!((status["health"].as_str(), status["damages_acknowledged"].as_u64()), (Some("ok"), Some(1)));
    let report = on(&dir, "scrub", &["--report"]).ok().stdout;
    assert!(report.contains("1 of the damages above has been acknowledged"), "{report}");
    on(&dir, "scrub", &["--restart"]).ok();

    damage(&dir, 1 << 20, 700 << 10);
    on(&dir, "check", &[]).code(6);
    assert_eq!(health(&dir), "damaged", "check has told");
    on(&dir, "import", &["v", path(&file), "--overwrite"]).ok();
    let status = on(&dir, "status", &["--sync", "--json"]).ok().json();
    assert_eq!((status["health"].as_str(), status["damages_acknowledged"].as_u64()), (Some("ok"), Some(0)));
    on(&dir, "check", &[]).ok();
}

#[test]
fn a_server_says_what_a_reader_met_and_status_names_it() {
    let dir = Dir::with_pool("64M");
    imported_noise(&dir, "noise", 1 << 20);
    damage(&dir, 1 << 20, 300 << 10);
    let server = Server::start(&dir, &[]);
    on(&dir, "export", &["v", path(&dir.join("out"))]).code(6);
    assert_eq!(health(&dir), "damaged");
    server.stop();
    assert_eq!(health(&dir), "damaged", "it is remembered");
}

#[test]
fn status_fits_eighty_columns() {
    let dir = Dir::with_pool("64M");
    imported_noise(&dir, "noise", 1 << 20);
    on(&dir, "set", &["v", "incomplete=yes"]).ok();
    let server = Server::start(&dir, &["--nbd", "127.0.0.1:0"]);
    let text = on(&dir, "status", &[]).ok().stdout;
    // Paths are not wrapped.
    let long = text.lines().find(|line| line.chars().count() > 80 && !line.contains(path(dir.path())));
    assert_eq!(long, None, "{text}");
    assert!(text.lines().next().unwrap().ends_with("'v' is incomplete"), "{text}");
    server.stop();
}

#[test]
fn a_list_has_the_columns_and_the_volume_that_were_asked_for() {
    let dir = Dir::with_pool("64M");
    imported_noise(&dir, "noise", 1 << 20);
    on(&dir, "create", &["web", "--size", "1G", "-o", "compression=lz4"]).ok();
    on(&dir, "snapshot", &["v@monday"]).ok();
    let bare = |words: &[&str]| on(&dir, "list", &[words, &["--sync", "-H"]].concat()).ok().stdout;
    assert_eq!(bare(&["-o", "name,size,data,compression"]), "v\t1048576\t1048576\tauto\nweb\t1073741824\t0\tlz4\n");
    assert_eq!(bare(&["web", "-o", "name,ratio,origin"]), "web\t-\t-\n");
    let snapshot = bare(&["v@monday", "-o", "name,type,data,unique"]);
    assert_eq!(snapshot, "v@monday\tsnapshot\t1048576\t0\n");
    let text = on(&dir, "list", &["-r", "--sync"]).ok().stdout;
    let header: Vec<_> = text.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(header, ["NAME", "TYPE", "CREATED", "DATA", "STORED", "RATIO", "UNIQUE"]);
    assert!(text.lines().any(|line| line.starts_with("v@monday") && line.contains("1 MiB")), "{text}");
    assert!(!text.contains('~'), "{text}");
    let json = on(&dir, "list", &["v@monday", "--json"]).ok().json();
    assert_eq!((json.as_array().unwrap().len(), json[0]["snapshots"][0]["data_bytes"].as_u64()), (1, Some(1 << 20)));
    on(&dir, "list", &["-o", "nam"]).code(2).says("did you mean 'name'?");
    on(&dir, "list", &["wbe"]).code(3).says("did you mean 'web'?");
    on(&dir, "list", &["v@mondya"]).code(3).says("did you mean 'monday'?");
}

#[test]
fn estimates_are_marked_until_a_checkpoint() {
    let dir = Dir::with_pool("64M");
    let server = Server::start(&dir, &[]);
    imported_noise(&dir, "noise", 1 << 20);
    let exact = |words: &[&str]| on(&dir, "list", words).ok().json()[0]["exact"].clone();
    on(&dir, "import", &["v", path(&dir.join("noise")), "--overwrite"]).ok();
    let is_exact = exact(&["--json"]) == true;
    assert_eq!(on(&dir, "list", &[]).ok().stdout.contains('~'), !is_exact);
    assert_eq!(exact(&["--json", "--sync"]), true);
    assert!(!on(&dir, "list", &[]).ok().stdout.contains('~'));
    server.stop();
}

#[test]
fn mistyped_words_are_understood() {
    let dir = Dir::with_pool("64M");
    on(&dir, "create", &["backup", "--size", "1M"]).ok();
    on(&dir, "resize", &["bakcup", "2M"]).code(3).says("did you mean 'backup'?");
    on(&dir, "set", &["backup", "compresion=lz4"]).code(2).says("did you mean 'compression'?");
    on(&dir, "set", &["backup", "compression=ztsd-3"]).code(2).says("did you mean 'zstd-3'?");
    on(&dir, "set", &["backup", "mode=archvie"]).code(2).says("did you mean 'archive'?");
    on(&dir, "set", &["backup", "size=2M"]).code(2).says("shale resize");
    on(&dir, "snapshot", &["backup@monday"]).ok();
    on(&dir, "destroy", &["backup@munday"]).code(3).says("did you mean 'monday'?");
}

#[test]
fn a_codec_without_its_level_is_spelled_out() {
    let dir = Dir::with_pool("64M");
    on(&dir, "create", &["v", "--size", "1M", "-o", "compression=gzip"]).ok().says("compression=gzip-6");
    let value = || on(&dir, "get", &["v", "compression", "--json"]).ok().json()[0]["value"].clone();
    assert_eq!(value(), "gzip-6");
    on(&dir, "set", &["v", "compression=zstd"]).ok().says("compression=zstd means compression=zstd-3");
    assert_eq!(value(), "zstd-3");
    on(&dir, "set", &["v", "compression=on"]).ok();
    assert_eq!(value(), "auto");
}

#[test]
fn help_is_wrapped_to_the_terminal_and_examples_are_not() {
    let help = |columns: &str, words: &[&str]| {
        let mut command = Command::new(SHALE);
        Ran::of(command.args(words).arg("--help").env("COLUMNS", columns).output().unwrap()).ok().stdout
    };
    let narrow = help("60", &["scrub"]);
    assert!(
        narrow.contains("  shale scrub /srv/pool --report            how far the last one came, and what it found\n")
    );
    let prose = narrow.lines().find(|line| line.starts_with("Reads all data")).unwrap();
    assert!(prose.chars().count() <= 60, "{prose}");
    assert!(!narrow.contains('\u{a0}'));
    let root = help("80", &[]);
    assert!(root.contains("\nPools:\n  init ") && root.contains("\nSnapshots and clones:\n"), "{root}");
    let version = run(["--version"]).ok().stdout;
    assert!(version.starts_with(&format!("shale {} (", env!("CARGO_PKG_VERSION"))), "{version}");
}

#[test]
fn manual_pages_have_examples_and_exit_status() {
    let dir = Dir::new();
    run(["man", path(&dir.join("man"))]).ok();
    for name in ["shale", "shale-list", "shale-salvage", "shale-blob", "shale-blob-put", "shale-blob-stat"] {
        let page = std::fs::read_to_string(dir.join("man").join(format!("{name}.1"))).unwrap();
        for section in ["\n.SH EXAMPLES\n", "\n.SH EXIT STATUS\n"] {
            assert_eq!(page.matches(section).count(), 1, "{name}: {section}: {page}");
        }
        assert!(!page.contains(".SH EXTRA") && page.contains("   12  "), "{name}: {page}");
    }
}

/// Returns the answer to a request of the shell's script.
fn completed(words: &[&str]) -> Vec<String> {
    let output = Command::new(SHALE)
        .env("SHALE_COMPLETE", "bash")
        .env("_CLAP_IFS", "\n")
        .env("_CLAP_COMPLETE_INDEX", words.len().to_string())
        .env("_CLAP_COMPLETE_COMP_TYPE", "9")
        .env("_CLAP_COMPLETE_SPACE", "false")
        .args(["--", "shale"])
        .args(words)
        .output()
        .unwrap();
    let ran = Ran::of(output).ok();
    ran.stdout.lines().map(str::to_owned).collect()
}

#[test]
fn a_shell_is_told_volumes_snapshots_properties_and_values() {
    let dir = Dir::with_pool("64M");
    on(&dir, "create", &["vm", "--size", "1M"]).ok();
    on(&dir, "create", &["web", "--size", "1M"]).ok();
    on(&dir, "snapshot", &["vm@monday"]).ok();
    let pool = dir.pool();
    let pool = path(&pool);
    assert_eq!(completed(&["lis"]), ["list"]);
    assert!(completed(&["resize", pool, "v"]).is_empty(), "a pool that nobody serves is not opened for it");
    let server = Server::start(&dir, &[]);
    assert_eq!(completed(&["resize", pool, "v"]), ["vm"]);
    assert_eq!(completed(&["destroy", pool, "vm"]), ["vm", "vm@monday"]);
    assert_eq!(completed(&["rollback", pool, ""])[0], "vm@monday");
    assert_eq!(completed(&["set", pool, "vm", "mo"]), ["mode="]);
    assert_eq!(completed(&["set", pool, "vm", "mode=a"]), ["mode=archive"]);
    assert_eq!(completed(&["create", pool, "x", "-o", "compression=lz4h"]).len(), 12);
    assert_eq!(completed(&["list", pool, "-o", "name,rat"]), ["name,ratio"]);
    server.stop();
}

/// Bash splits words at `=` and `@`, and replaces only the part after the last of these.
#[test]
fn bash_puts_what_it_was_told_behind_the_mark() {
    let dir = Dir::with_pool("64M");
    on(&dir, "create", &["vm", "--size", "1M"]).ok();
    on(&dir, "snapshot", &["vm@monday"]).ok();
    let server = Server::start(&dir, &[]);
    let script = dir.join("shale.bash");
    std::fs::write(&script, run(["completions", "bash"]).ok().stdout).unwrap();
    let bin = std::path::Path::new(SHALE).parent().unwrap();
    let replies = |line: &str| {
        let text = format!(
            "source '{}'; COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}; _shale; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            path(&script)
        );
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
        let output = Command::new("bash").args(["--norc", "-c", &text]).env("PATH", path).output().unwrap();
        Ran::of(output).ok().stdout
    };
    let pool = dir.pool();
    let pool = path(&pool);
    assert_eq!(replies(&format!("shale set {pool} vm mode=a")), "archive\n");
    assert_eq!(replies(&format!("shale set {pool} vm mod")), "mode=\n");
    assert_eq!(replies(&format!("shale destroy {pool} vm@m")), "monday\n");
    assert_eq!(replies("shale lis"), "list\n");
    server.stop();
}

/// Volumes, snapshots, bookmarks and holds are completed in each of the three shells, by its own
/// script.
#[test]
fn three_shells_complete_what_there_is_in_a_pool() {
    let dir = Dir::with_pool("64M");
    on(&dir, "create", &["vm", "--size", "1M"]).ok();
    on(&dir, "snapshot", &["vm@monday"]).ok();
    on(&dir, "bookmark", &["vm@monday", "sunday"]).ok();
    on(&dir, "hold", &["vm@monday", "offsite"]).ok();
    let server = Server::start(&dir, &[]);
    let bin = std::path::Path::new(SHALE).parent().unwrap();
    let path_variable = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let pool = dir.pool();
    let pool = path(&pool);
    let replies = |shell: &str, words: &str| {
        let script = dir.join(&format!("shale.{shell}"));
        std::fs::write(&script, run(["completions", shell]).ok().stdout).unwrap();
        let script = path(&script);
        let line = format!("shale {words}");
        let text = match shell {
            "bash" => format!(
                "source '{script}'; COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}; _shale; printf '%s\\n' \"${{COMPREPLY[@]}}\""
            ),
            "fish" => format!("source '{script}'; complete -C '{line}'"),
            // The candidates of zsh, without a terminal to show them on.
            _ => format!(
                "compdef() {{ :; }}; _describe() {{ print -rl -- \"${{(@P)argv[3]}}\"; }}; source '{script}'; \
                 words=({line}); CURRENT=$#words; _clap_dynamic_completer_shale"
            ),
        };
        let quiet: &[&str] = match shell {
            "bash" => &["--norc"],
            "fish" => &["--no-config"],
            _ => &["-f"],
        };
        let output = Command::new(shell).args(quiet).args(["-c", &text]).env("PATH", &path_variable).output().unwrap();
        let said = Ran::of(output).ok().stdout;
        said.lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    for shell in ["bash", "zsh", "fish"] {
        assert_eq!(replies(shell, &format!("resize {pool} v")), ["vm"], "{shell}");
        assert_eq!(replies(shell, &format!("destroy {pool} v")), ["vm", "vm@monday", "vm#sunday"], "{shell}");
        assert_eq!(replies(shell, &format!("rollback {pool} v")), ["vm@monday"], "{shell}");
        assert_eq!(replies(shell, &format!("release {pool} vm@monday o")), ["offsite"], "{shell}");
        assert_eq!(replies(shell, &format!("holds {pool} v")), ["vm", "vm@monday"], "{shell}");
        assert_eq!(replies(shell, &format!("bookmarks {pool} v")), ["vm"], "{shell}");
        assert_eq!(replies(shell, &format!("send {pool} vm@monday --from v")), ["vm@monday"], "{shell}");
    }
    server.stop();
}

#[test]
fn a_private_key_that_others_can_read_is_a_warning() {
    let dir = Dir::with_pool("64M");
    let (file, tls) = (dir.join("tank.toml"), dir.join("tls"));
    std::fs::create_dir(&tls).unwrap();
    let keys = [tls.join("server-key.pem"), dir.join("http-key.pem")];
    let text = format!(
        "pool = '{}'\nnbd = '127.0.0.1:0'\nnbd-certificates = '{}'\nhttp = '127.0.0.1:0'\nhttp-cert = '/none'\nhttp-key = '{}'\n",
        path(&dir.pool()),
        path(&tls),
        path(&keys[1])
    );
    std::fs::write(&file, text).unwrap();
    for (mode, warns) in [(0o600, false), (0o640, true), (0o604, true)] {
        for key in &keys {
            std::fs::write(key, "no key").unwrap();
            std::fs::set_permissions(key, Permissions::from_mode(mode)).unwrap();
        }
        let checked = run(["config", "check", path(&file), "--json"]).ok();
        // It warns of them before it finds that it cannot use them.
        let served = run(["serve", "--config", path(&file)]).code(3);
        let listed = checked.stdout.matches("is a private key").count();
        assert_eq!(listed, if warns { keys.len() } else { 0 }, "{}", checked.stdout);
        for (key, ran) in keys.iter().flat_map(|key| [(key, &checked), (key, &served)]) {
            let key = path(key);
            let warning =
                format!("{key} is a private key that other users can read (mode {mode:04o}): chmod 600 {key}");
            assert_eq!(ran.stderr.contains(&warning), warns, "{}", ran.stderr);
        }
    }
}
