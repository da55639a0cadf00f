//! Each file of a real pool's metadata directory is damaged in each of several ways: the pool is
//! never reported clean when it is damaged; `check --repair` repairs the repairable cases, with all
//! flushed data; otherwise the message names the file or its directory, and `salvage` works.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};

use crate::support::{Dir, Ran, Server, mixed_data, noise, on, padded, path, run};

/// Returns the files below a directory, except the data.
fn files(root: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut dirs = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap().flatten() {
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                dirs.push(entry.path());
            } else if kind.is_file() && entry.file_name() != "data" {
                files.push(entry.path());
            }
        }
    }
    files.sort();
    files
}

const DAMAGES: [&str; 4] = ["flip", "delete", "empty", "truncate"];

/// Damages a file; `false` if that kind of damage is impossible there.
fn inflict(file: &Path, damage: &str) -> bool {
    let mut bytes = std::fs::read(file).unwrap();
    // Journals are longer than their content.
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    match damage {
        "delete" => std::fs::remove_file(file).unwrap(),
        "empty" if !bytes.is_empty() => std::fs::write(file, b"").unwrap(),
        "truncate" if end > 1 => std::fs::write(file, &bytes[..end / 2]).unwrap(),
        "flip" if end > 0 => {
            bytes[end / 2] ^= 4;
            std::fs::write(file, &bytes).unwrap();
        }
        _ => return false,
    }
    true
}

fn copy(from: &Path, to: &Path) {
    let done = std::process::Command::new("cp").args(["-a", "--sparse=always", path(from), path(to)]).status().unwrap();
    assert!(done.success());
}

fn holds(pool: &Path, expected: &[u8]) -> bool {
    let out = pool.with_extension("out");
    let ran = run(["export", path(pool), "v", path(&out), "--force", "-q"]);
    ran.code == 0 && std::fs::read(&out).is_ok_and(|found| found == expected)
}

/// Returns whether a message names the damaged file, and a way out.
fn helps(ran: &Ran, file: &Path, root: &Path) -> bool {
    let text = format!("{}{}", ran.stdout, ran.stderr);
    let is_named =
        text.contains(path(file)) || file.starts_with(root.join("map")) && text.contains(path(&root.join("map")));
    is_named && (text.contains("--repair") || text.contains("salvage"))
}

#[test]
fn each_damage_of_the_metadata_directory_is_mended_or_told() {
    let dir = Dir::with_pool("64M");
    let source = dir.join("source");
    let mut data = padded(mixed_data(1 << 20));
    data.extend(noise(1 << 20));
    std::fs::write(&source, &data).unwrap();
    on(&dir, "import", &["v", path(&source), "-q"]).ok();
    on(&dir, "snapshot", &["v@s", "-q"]).ok();
    // Killed, so that no file is as an orderly end leaves it.
    let mut server = Server::start(&dir, &[]);
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let pool = dir.join("damaged");
    let (mut mended, mut told, mut harmless) = (Vec::new(), Vec::new(), Vec::new());
    for file in files(&dir.pool()) {
        let name = file.strip_prefix(dir.pool()).unwrap().to_owned();
        for damage in DAMAGES {
            copy(&dir.pool(), &pool);
            let damaged = pool.join(&name);
            if !inflict(&damaged, damage) {
                std::fs::remove_dir_all(&pool).unwrap();
                continue;
            }
            let what = format!("{damage} {}", name.display());
            let checked = run(["check", path(&pool), "-q"]);
            let tell = |ran: &Ran| format!("{what}: exit code {}\n{}{}", ran.code, ran.stdout, ran.stderr);
            if checked.code == 0 {
                assert!(holds(&pool, &data), "called clean, and it is not: {}", tell(&checked));
                harmless.push(what);
            } else {
                assert!(checked.code == 6 && helps(&checked, &damaged, &pool), "{}", tell(&checked));
                let repaired = run(["check", path(&pool), "--repair", "-q"]);
                if repaired.code == 0 {
                    assert!(holds(&pool, &data), "repaired, and it is not: {}", tell(&repaired));
                    run(["check", path(&pool)]).ok();
                    mended.push(what);
                } else {
                    assert!(repaired.code == 6 && helps(&repaired, &damaged, &pool), "{}", tell(&repaired));
                    let new = dir.join("new");
                    run(["salvage", path(&pool), "--into", path(&new), "--capacity", "64M", "--memory", "128M", "-q"])
                        .ok();
                    assert!(holds(&new, &data), "salvaged, and it is not: {what}");
                    std::fs::remove_dir_all(&new).unwrap();
                    told.push(what);
                }
            }
            std::fs::remove_dir_all(&pool).unwrap();
        }
    }
    println!("harmless: {harmless:?}\nmended: {mended:?}\ntold: {told:?}");
    let has = |list: &[String], what: &str| list.iter().any(|known| known == what);
    for damage in DAMAGES {
        assert!(has(&mended, &format!("{damage} pool.json")) || damage == "flip", "{mended:?}");
    }
    for what in ["delete map/durable", "empty map/durable", "delete map/lsm/version", "empty map/lsm/version"] {
        assert!(has(&mended, what), "{what}: {mended:?}");
    }
    // The map's library would remove the tables.
    for what in ["delete map/lsm/keyspaces/0/current", "delete map/lsm/keyspaces/1/current"] {
        assert!(has(&mended, what), "{what}: {mended:?}");
    }
    assert!(has(&harmless, "delete map/lsm/lock"), "{harmless:?}");
    assert!(has(&harmless, "delete lock") && has(&harmless, "delete reserve"), "{harmless:?}");
    assert!(told.len() > 5, "{told:?}");
}
