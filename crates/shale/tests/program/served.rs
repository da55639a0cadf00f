//! The server: its life, its doors, and the commands that go through it.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Dir, Ran, SHALE, Server, content, imported_noise, noise, on, padded, path, run};
use copy::volume_io::VolumeIo;
use serde_json::{Value, json};
use server::control::Client;
use testkit::until;

#[test]
fn a_served_pool_is_cleaned_and_scrubbed() {
    let dir = Dir::with_pool("64M");
    imported_noise(&dir, "source", 16 << 20);
    let server = Server::start(&dir, &[]);
    // Half of each extent dies, so that none becomes free by itself.
    let volume = Client::connect(&dir.pool().join("control.sock")).unwrap().volume("v", None).unwrap();
    for offset in (0..16 << 20).step_by(64 << 10) {
        volume.discard(offset, 32 << 10).unwrap();
    }
    volume.flush().unwrap();
    let before = content(&dir, "v");
    let cleaned = on(&dir, "clean", &["--all", "--json"]).ok().json();
    assert!(cleaned["extents_cleaned"].as_u64().unwrap() >= 14, "{cleaned}");
    let free = |name: &str| cleaned[name].as_u64().unwrap();
    assert!(free("extents_free") >= free("extents_free_before") + 6, "{cleaned}");
    let status = on(&dir, "status", &["--json"]).ok().json();
    assert!(status["cleaned_extents"].as_u64().unwrap() >= 14, "{status}");
    assert!(status["moved_bytes"].as_u64().unwrap() >= 7 << 20, "{status}");
    assert!(on(&dir, "status", &[]).ok().stdout.contains("extents, "));
    assert_eq!(content(&dir, "v"), before);
    let before = on(&dir, "status", &["--json"]).ok().json()["capacity_bytes"].as_u64().unwrap();
    on(&dir, "grow", &["1M"]).code(2).says("can only grow");
    let grown = on(&dir, "grow", &[&(before + (64 << 20)).to_string(), "--json"]).ok().json();
    assert_eq!(grown["capacity_bytes"].as_u64(), Some(before + (64 << 20)));
    let scrubbed = on(&dir, "scrub", &["--rate", "max", "--json"]).ok().json();
    assert_eq!((&scrubbed["finished"], &scrubbed["found"]), (&json!(true), &json!(0)), "{scrubbed}");
    assert!(scrubbed["bytes"].as_u64().unwrap() >= 8 << 20, "{scrubbed}");
    let report = on(&dir, "scrub", &["--report", "--json"]).ok().json();
    assert_eq!(report["started_unix_s"], scrubbed["started_unix_s"]);
    server.stop();
    assert_eq!(on(&dir, "status", &["--json"]).ok().json()["capacity_bytes"], grown["capacity_bytes"]);
    // The verified part is remembered.
    assert!(on(&dir, "scrub", &["--report"]).ok().stdout.contains("all of it"));
    on(&dir, "check", &[]).ok();
}

/// In a pool that was not served, the progress of an interrupted scrub was forgotten.
#[test]
fn scrubbing_is_paused_by_a_signal_and_goes_on() {
    const SLICE: u64 = 8 << 20;
    let dir = Dir::with_pool("128M");
    let image = dir.join("image");
    std::fs::write(&image, crate::support::noise(4 * SLICE as usize)).unwrap();
    on(&dir, "import", &["v", path(&image)]).ok();
    for served in [false, true] {
        let server = served.then(|| Server::start(&dir, &[]));
        // After the first slice it would rest for longer than this test may take.
        let child = Command::new(SHALE)
            .args(["scrub", path(&dir.pool()), "--restart", "--rate", "64K"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Signals wait to be taken before it has begun. For a moment before that, while the first
        // thread is started, all signals are blocked.
        let blocked = || {
            let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
            assert!(!status.contains("State:\tZ"), "it has ended");
            let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
            let mask = u64::from_str_radix(mask.trim(), 16).unwrap();
            let has = |signal: i32| mask & (1 << (signal - 1)) != 0;
            has(libc::SIGINT) && !has(libc::SIGUSR1)
        };
        until("signals are blocked", blocked);
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        crate::support::Ran::of(child.wait_with_output().unwrap()).code(130).says("scrubbing is paused at ");

        let paused = on(&dir, "scrub", &["--report", "--json"]).ok().json();
        assert_eq!(paused["finished"], false, "{paused}");
        assert!(paused["bytes"].as_u64() > Some(SLICE / 2) && paused["bytes"].as_u64() < Some(2 * SLICE), "{paused}");
        let done = on(&dir, "scrub", &["--rate", "max", "--json"]).ok().json();
        assert_eq!((&done["finished"], &done["started_unix_s"]), (&json!(true), &paused["started_unix_s"]), "{done}");
        drop(server.map(Server::stop));
    }
}

/// Frames that copy need a file, and every other object is refused; the connection continues.
#[test]
fn copies_without_a_usable_file_are_refused() {
    let dir = Dir::with_pool("64M");
    let server = Server::start(&dir, &[]);
    on(&dir, "create", &["v", "--size", "1M"]).ok();
    let client = Client::connect(&dir.pool().join("control.sock")).unwrap();
    let volume = client.volume("v", None).unwrap();
    let (reader, _writer) = std::io::pipe().unwrap();
    let pipe = std::fs::File::from(std::os::fd::OwnedFd::from(reader));
    let Err(refused) = volume.with_file(&pipe) else { panic!("a pipe was taken") };
    assert!(refused.to_string().contains("regular file"), "{refused}");

    // A file that was opened for reading only is not written to; a short one is not read beyond its
    // end.
    let place = dir.join("short");
    std::fs::write(&place, noise(5000)).unwrap();
    let file = std::fs::File::open(&place).unwrap();
    let copier = volume.with_file(&file).unwrap().unwrap();
    assert!(copier.copy_out(0, 4096).is_err());
    let beyond = copier.copy_in(4096, 4096).unwrap_err();
    assert!(beyond.to_string().contains("truncated"), "{beyond}");
    copier.copy_in(0, 5000).unwrap();
    assert!(copier.copy_in(100, 100).is_err(), "an offset that is no block's was taken");
    assert!(copier.copy_in(1 << 20, 4096).is_err(), "a copy behind the end of the volume");
    assert_eq!(std::fs::read(&place).unwrap(), noise(5000));
    let mut bytes = vec![0; 8192];
    volume.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, padded(noise(5000)));
    server.stop();
    on(&dir, "check", &[]).ok();
}

/// The server read its own mount; after kill -9 its threads waited for each other, and it could not
/// end.
#[test]
fn a_file_on_the_mount_is_not_lent_to_its_server() {
    let dir = Dir::with_pool("64M");
    imported_noise(&dir, "source", 2 << 20);
    on(&dir, "create", &["w", "--size", "2M"]).ok();
    let mount = dir.join("mnt");
    std::fs::create_dir(&mount).unwrap();
    let server = Server::start(&dir, &["--mount", path(&mount)]);
    let file = std::fs::File::options().read(true).write(true).open(mount.join("v")).unwrap();
    let volume = Client::connect(&dir.pool().join("control.sock")).unwrap().volume("w", None).unwrap();
    assert!(volume.with_file(&file).unwrap().is_none(), "a file on a FUSE mount was lent");
    assert!(volume.with_file(&std::fs::File::open(dir.join("source")).unwrap()).unwrap().is_some());
    drop((file, volume));
    // The command reads it instead.
    on(&dir, "import", &["w", path(&mount.join("v")), "--overwrite"]).ok();
    assert!(content(&dir, "w") == noise(2 << 20));
    server.stop();
    on(&dir, "check", &[]).ok();
}

#[test]
fn commands_give_the_same_served_and_unserved() {
    let unserved = Dir::with_pool("256M");
    let served = Dir::with_pool("256M");
    let server = Server::start(&served, &[]);
    let steps: &[(&str, &[&str])] = &[
        ("create", &["a", "--size", "10M", "-o", "unit=8K"]),
        ("create", &["a", "--size", "10M"]),
        ("create", &["b", "--size", "1G"]),
        ("set", &["compression=zstd-2"]),
        ("set", &["a", "min-saving=5"]),
        ("set", &["a", "unit=5K"]),
        ("get", &["a"]),
        ("get", &["compression"]),
        ("get", &["nobody"]),
        ("resize", &["a", "20M"]),
        ("resize", &["a", "10M"]),
        ("resize", &["nobody", "10M"]),
        ("destroy", &["b"]),
        ("destroy", &["b"]),
        ("list", &["--sync"]),
    ];
    for (command, words) in steps {
        let answer = |dir: &Dir| {
            let mut words = words.to_vec();
            words.push("--json");
            let ran = on(dir, command, &words);
            let mut document: Value = serde_json::from_str(&ran.stdout).unwrap();
            for volume in document.as_array_mut().into_iter().flatten() {
                if let Some(volume) = volume.as_object_mut() {
                    volume.remove("created_unix_s");
                }
            }
            let document = document.to_string().replace(path(&dir.pool()), "POOL");
            (ran.code, document)
        };
        assert_eq!(answer(&served), answer(&unserved), "{command} {words:?}");
    }
    let status = on(&served, "status", &["--json"]).ok().json();
    assert_eq!(status["served"], true);
    assert_eq!(status["pid"], server.child.id());
    assert_eq!(status["nbd"][0], format!("unix:{}/nbd.sock", path(&served.pool())));
    assert!(on(&served, "status", &[]).ok().stdout.contains(&format!("by process {}", server.child.id())));
    server.stop();
}

#[test]
fn the_default_door_is_said_aloud_and_sockets_go_with_the_server() {
    let dir = Dir::with_pool("64M");
    let server = Server::start(&dir, &[]);
    let socket = dir.pool().join("nbd.sock");
    assert!(server.said.contains(&format!("nbd unix:{}", path(&socket))), "{}", server.said);
    let control = dir.pool().join("control.sock");
    assert_eq!(std::fs::metadata(&control).unwrap().permissions().mode() & 0o777, 0o600);
    let said = server.stop();
    assert!(said.contains("no front end for volumes was specified"), "{said}");
    assert!(!socket.exists() && !control.exists());
}

/// With huge pages wherever the allocator requests memory, a server with 32 readers used twice its
/// limit. It has some for its reads.
#[test]
fn the_server_takes_few_huge_pages() {
    const FEW_KIB: u64 = 16 << 10;
    let huge_kib = |pid: u32| {
        let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
        let line = rollup.lines().find_map(|line| line.strip_prefix("AnonHugePages:"))?;
        line.trim_end_matches("kB").trim().parse::<u64>().ok()
    };
    if huge_kib(std::process::id()).is_none() {
        eprintln!("skipped: this kernel does not tell how many huge pages a process has");
        return;
    }
    let dir = Dir::with_pool("512M");
    let server = Server::start(&dir, &[]);
    let file = dir.join("data");
    std::fs::write(&file, crate::support::mixed_data(48 << 20).repeat(2)).unwrap();
    on(&dir, "import", &["v", path(&file)]).ok();
    on(&dir, "export", &["v", path(&dir.join("back"))]).ok();
    on(&dir, "scrub", &[]).ok();
    let huge_kib = huge_kib(server.child.id()).unwrap();
    assert!(huge_kib <= FEW_KIB, "{huge_kib} KiB in huge pages");
    let given = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    if given.contains("[madvise]") {
        assert!(huge_kib > 0, "who asks for huge pages gets them here");
    }
    server.stop();
}

/// It reported ready with an address that its own mount hid, and the socket stayed.
#[test]
fn a_socket_below_the_mount_is_refused_before_anything_is_served() {
    let dir = Dir::with_pool("64M");
    let mount = dir.join("mnt");
    std::fs::create_dir_all(mount.join("below")).unwrap();
    std::os::unix::fs::symlink(&mount, dir.join("link")).unwrap();
    for socket in ["mnt/nbd", "mnt/below/nbd", "link/nbd", "mnt/below/../nbd"] {
        let address = format!("unix:{}", path(&dir.join(socket)));
        on(&dir, "serve", &["--mount", path(&mount), "--nbd", &address]).code(2).says("outside of");
    }
    // The second address is checked as well, and a relative path is resolved from here.
    let mut command = Command::new(SHALE);
    command.args(["serve", path(&dir.pool()), "--mount", "mnt", "--nbd", ":0", "--nbd", "unix:mnt/nbd"]);
    Ran::of(command.current_dir(dir.path()).output().unwrap()).code(2).says("it would hide unix:mnt/nbd");
    assert!(!is_mounted(&mount) && !mount.join("nbd").exists() && !mount.join("below/nbd").exists());
    // A sibling path is accepted, even if its name begins in the same way.
    let address = format!("unix:{}", path(&dir.join("mnt.nbd")));
    Server::start(&dir, &["--mount", path(&mount), "--overlay", "--nbd", &address]).stop();
}

#[test]
fn one_server_at_a_time_and_no_offline_check_meanwhile() {
    let dir = Dir::with_pool("64M");
    let server = Server::start(&dir, &[]);
    let pid = server.child.id().to_string();
    on(&dir, "serve", &[]).code(4).says(&pid);
    on(&dir, "check", &[]).code(4).says(&pid);
    on(&dir, "init", &["--force", "--capacity", "64M"]).code(4).says(&pid);
    on(&dir, "list", &[]).ok();
    server.stop();
    on(&dir, "check", &[]).ok();
}

#[test]
fn what_was_flushed_survives_kill_9_and_the_stale_socket_does_no_harm() {
    let dir = Dir::with_pool("256M");
    let mut server = Server::start(&dir, &[]);
    on(&dir, "create", &["v", "--size", "32M"]).ok();
    let client = Client::connect(&dir.pool().join("control.sock")).unwrap();
    let volume = client.volume("v", None).unwrap();
    let bytes = noise(1 << 20);
    for piece in 0..8u64 {
        volume.write(piece << 20, bytes.clone().into()).unwrap();
    }
    volume.flush().unwrap();
    server.signal(libc::SIGKILL);
    server.child.wait().unwrap();
    assert!(volume.flush().is_err());
    assert!(dir.pool().join("control.sock").exists());

    // Commands open the pool themselves again; so does the next server.
    let mut expected = bytes.repeat(8);
    expected.resize(32 << 20, 0);
    assert!(content(&dir, "v") == expected, "flushed bytes are lost");
    let server = Server::start(&dir, &[]);
    assert!(content(&dir, "v") == expected, "flushed bytes are lost");
    server.stop();
    on(&dir, "check", &[]).ok();
}

#[test]
fn a_log_that_is_damaged_where_it_was_durable_is_opened_only_by_repair() {
    let dir = Dir::with_pool("256M");
    let mut server = Server::start(&dir, &[]);
    on(&dir, "create", &["v", "--size", "32M"]).ok();
    let client = Client::connect(&dir.pool().join("control.sock")).unwrap();
    let volume = client.volume("v", None).unwrap();
    let bytes = noise(64 << 10);
    for piece in 0..64u64 {
        volume.write(piece << 16, bytes.clone().into()).unwrap();
        volume.flush().unwrap();
    }
    server.signal(libc::SIGKILL);
    server.child.wait().unwrap();
    // The log contains the noise unchanged: damage the data after a middle part of it, headers
    // included.
    let data = std::fs::File::options().read(true).write(true).open(dir.pool().join("data")).unwrap();
    let mut head = vec![0; 16 << 20];
    data.read_exact_at(&mut head, 0).unwrap();
    let places: Vec<u64> =
        (0..head.len() as u64 - 64).filter(|at| head[*at as usize..].starts_with(&bytes[..32])).collect();
    assert!(places.len() > 60, "only {} of 64 writes were found in the log", places.len());
    data.write_all_at(&vec![0x55; 128 << 10], places[places.len() / 2] + bytes.len() as u64).unwrap();
    drop(data);

    for command in ["list", "check", "serve"] {
        let words: &[&str] = if command == "list" { &["--json"] } else { &[] };
        on(&dir, command, words).code(6);
    }
    // Flushed data is lost: that is reported first, and done only when it is accepted.
    let refused = on(&dir, "check", &["--repair", "--json"]).code(6).json();
    assert!(refused["loss"]["volumes"][0]["written_bytes"].as_u64() > Some(0), "{refused}");
    let report = on(&dir, "check", &["--repair", "--accept-loss", "--json"]).code(12).json();
    let kinds: Vec<_> = report["problems"].as_array().unwrap().iter().map(|of| of["kind"].as_str().unwrap()).collect();
    assert!(kinds.contains(&"lost"), "{report}");
    on(&dir, "check", &[]).ok();
    // Data before the damage is intact.
    assert!(content(&dir, "v").starts_with(&bytes.repeat(8)), "what was not damaged is lost");
}

/// Both found the volume without clients, and the first to end removed the mark that the other's
/// data was incomplete.
#[test]
fn of_two_imports_into_a_volume_that_begin_at_once_no_more_than_one_goes_on() {
    let dir = Dir::with_pool("64M");
    let _server = Server::start(&dir, &[]);
    on(&dir, "create", &["v", "--size", "4M"]).ok();
    // They begin when the first piece has arrived, which shows the format of an image.
    let (pool, pipes) = (dir.pool(), ["a", "b"].map(|name| dir.join(name)));
    let mut imports = pipes.each_ref().map(|pipe| {
        assert!(Command::new("mkfifo").arg(pipe).status().unwrap().success());
        let import = ["import", path(&pool), "v", path(pipe), "--overwrite"];
        Command::new(SHALE).args(import).stderr(Stdio::null()).spawn().unwrap()
    });
    let ends = pipes.each_ref().map(|pipe| OpenOptions::new().write(true).open(pipe).unwrap());
    std::thread::scope(|scope| {
        for mut end in &ends {
            // The pipe of a refused import breaks.
            scope.spawn(move || end.write_all(&vec![1; 3 << 20]).is_ok());
        }
    });
    let deadline = Instant::now() + Duration::from_secs(60);
    while imports.iter_mut().all(|import| import.try_wait().unwrap().is_none()) && Instant::now() < deadline {
        std::thread::yield_now();
    }
    drop(ends);
    let codes = imports.map(|mut import| import.wait().unwrap().code());
    assert!(codes.contains(&Some(4)) && codes.iter().all(|code| [Some(0), Some(4)].contains(code)), "{codes:?}");
    assert_eq!(on(&dir, "list", &["--json"]).ok().json()[0]["incomplete"], false);
    on(&dir, "import", &["v", "/etc/passwd", "--overwrite"]).ok();
}

#[test]
fn a_volume_in_use_is_destroyed_or_cut_only_by_force() {
    let dir = Dir::with_pool("64M");
    let server = Server::start(&dir, &[]);
    for name in ["a", "b"] {
        on(&dir, "create", &[name, "--size", "4M"]).ok();
    }
    let client = Client::connect(&dir.pool().join("control.sock")).unwrap();
    let volume = client.volume("a", None).unwrap();
    assert_eq!(on(&dir, "list", &["--json"]).ok().json()[0]["clients"], 1);
    on(&dir, "destroy", &["a"]).code(4).says("--force");
    on(&dir, "import", &["a", "/etc/passwd", "--overwrite"]).code(4).says("open by 1");
    on(&dir, "resize", &["a", "1M", "--shrink"]).code(4).says("--force");
    on(&dir, "resize", &["a", "8M"]).ok();
    on(&dir, "resize", &["a", "2M", "--shrink", "--force"]).ok();
    on(&dir, "destroy", &["b"]).ok();
    volume.write(0, vec![1; 4096].into()).unwrap();
    on(&dir, "destroy", &["a", "--force"]).ok();
    assert!(volume.write(0, vec![1; 4096].into()).is_err(), "a destroyed volume takes writes");
    assert_eq!(on(&dir, "list", &["--json"]).ok().json(), json!([]));
    // Once its client is gone it is not counted any more.
    on(&dir, "create", &["a", "--size", "4M"]).ok();
    let again = client.volume("a", None).unwrap();
    drop((volume, again));
    on(&dir, "destroy", &["a"]).ok();
    server.stop();
}

#[test]
fn readiness_is_told_on_stdout_by_descriptor_and_to_the_manager() {
    let dir = Dir::with_pool("64M");
    let (mut reader, writer) = std::io::pipe().unwrap();
    let manager = UnixDatagram::bind(dir.join("notify")).unwrap();
    let fd = writer.as_raw_fd();
    let mut command = Command::new("sh");
    // The shell passes the descriptor on under a number of its own choice.
    command
        .arg("-c")
        .arg(format!(
            "exec \"$0\" serve \"$1\" --json --ready-fd 9 --nbd 127.0.0.1:0 9>/proc/{}/fd/{fd}",
            std::process::id()
        ))
        .arg(SHALE)
        .arg(dir.pool())
        .env("NOTIFY_SOCKET", dir.join("notify"));
    let server = Server::of(command);
    drop(writer);
    let mut told = String::new();
    reader.read_to_string(&mut told).unwrap();
    assert_eq!(told, "ready\n");
    let mut datagram = [0; 64];
    let length = manager.recv(&mut datagram).unwrap();
    assert_eq!(&datagram[..length], b"READY=1");
    let line: Value = serde_json::from_str(&server.said).unwrap();
    assert_eq!(line["pid"], server.child.id());
    assert!(line["nbd"][0].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
    assert_ne!(line["nbd"][0], "127.0.0.1:0", "the port that was free is not told");
    server.stop();
    let length = manager.recv(&mut datagram).unwrap();
    assert_eq!(&datagram[..length], b"STOPPING=1");
}

#[test]
fn an_open_door_to_the_network_is_warned_of() {
    let dir = Dir::with_pool("64M");
    let warned = Server::start(&dir, &["--nbd", "0.0.0.0:0"]).stop();
    assert!(warned.contains("without encryption or password"), "{warned}");
    let quiet =
        Server::start(&dir, &["--nbd", "127.0.0.1:0", "--nbd", &format!("unix:{}", path(&dir.join("s")))]).stop();
    assert!(!quiet.contains("warning"), "{quiet}");
}

/// Returns the exports that nbdinfo lists at an address.
fn exports(uri: &str) -> Vec<String> {
    let output = Command::new("nbdinfo").args(["--json", "--list", uri]).output();
    let output = output.expect("nbdinfo is needed: apt-get install libnbd-bin");
    let list = Ran::of(output).ok().json();
    list["exports"].as_array().unwrap().iter().map(|e| e["export-name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn only_the_volumes_that_were_named_are_served() {
    let dir = Dir::with_pool("64M");
    for name in ["a", "b", "c"] {
        on(&dir, "create", &[name, "--size", "4M"]).ok();
    }
    let socket = dir.join("nbd.sock");
    let door = format!("unix:{}", path(&socket));
    let uri = format!("nbd+unix:///?socket={}", path(&socket));
    let server = Server::start(&dir, &["--nbd", &door, "--volume", "a", "--volume", "c"]);
    assert_eq!(exports(&uri), ["a", "c"]);
    // The commands still see all of them.
    assert_eq!(on(&dir, "list", &["--json"]).ok().json().as_array().unwrap().len(), 3);
    server.stop();
    let server = Server::start(&dir, &["--nbd", &door]);
    assert_eq!(exports(&uri), ["a", "b", "c"]);
    server.stop();
}

fn is_mounted(dir: &std::path::Path) -> bool {
    std::fs::read_to_string("/proc/self/mounts").unwrap().contains(path(dir))
}

#[test]
fn mounted_volumes_are_files_until_the_server_stops() {
    let dir = Dir::with_pool("64M");
    on(&dir, "create", &["v", "--size", "4M"]).ok();
    let mount = dir.join("mnt");
    std::fs::create_dir(&mount).unwrap();
    let server = Server::start(&dir, &["--mount", path(&mount)]);
    assert!(server.said.contains(&format!("mount {}", path(&mount))), "{}", server.said);
    let file = std::fs::File::options().read(true).write(true).open(mount.join("v")).unwrap();
    file.write_all_at(b"through the mount", 4096).unwrap();
    file.sync_all().unwrap();
    on(&dir, "destroy", &["v"]).code(4);
    drop(file);
    assert_eq!(&content(&dir, "v")[4096..4113], b"through the mount");
    server.stop();
    assert!(!is_mounted(&mount));
    assert_eq!(&content(&dir, "v")[4096..4113], b"through the mount");

    // Unmounted from outside, with nothing else to serve: the server ends in order.
    let mut server = Server::start(&dir, &["--mount", path(&mount)]);
    assert!(Command::new("umount").arg(&mount).status().unwrap().success());
    let said = server.ended(0);
    assert!(said.contains("mount has ended"), "{said}");
}

#[test]
fn a_stopping_server_does_not_wait_for_files_that_are_open() {
    let dir = Dir::with_pool("64M");
    on(&dir, "create", &["v", "--size", "4M"]).ok();
    let mount = dir.join("mnt");
    std::fs::create_dir(&mount).unwrap();
    let server = Server::start(&dir, &["--mount", path(&mount), "--nbd", &format!("unix:{}", path(&dir.join("nbd")))]);
    let file = std::fs::File::options().read(true).write(true).open(mount.join("v")).unwrap();
    // Never flushed, but acknowledged data is kept.
    file.write_all_at(b"kept", 4096).unwrap();
    let said = server.stop();
    assert!(said.contains(&format!("{} is in use, and is being cut off", path(&mount))), "{said}");
    let errno = file.write_all_at(b"too late", 0).unwrap_err().raw_os_error().unwrap();
    assert!([libc::ENOTCONN, libc::ECONNABORTED].contains(&errno), "{errno}");
    assert!(!is_mounted(&mount) && !dir.join("nbd").exists());
    assert_eq!(&content(&dir, "v")[4096..4100], b"kept");
    assert_eq!(
        on(&dir, "status", &["--json"]).ok().json()["recovered_batches"],
        0,
        "a clean end leaves nothing to replay"
    );
    on(&dir, "check", &[]).ok();
}

/// An NBD client in transmission, old style: it names its export, and requests nothing else.
fn nbd_client(socket: &std::path::Path, export: &str) -> UnixStream {
    let mut client = UnixStream::connect(socket).unwrap();
    client.read_exact(&mut [0; 18]).unwrap();
    let option = [&3u32.to_be_bytes()[..], b"IHAVEOPT", &1u32.to_be_bytes(), &(export.len() as u32).to_be_bytes()];
    client.write_all(&[&option.concat(), export.as_bytes()].concat()).unwrap();
    client.read_exact(&mut [0; 10]).unwrap();
    client
}

#[test]
fn a_volume_that_an_nbd_client_has_open_is_not_emptied_through_the_mount() {
    let dir = Dir::with_pool("64M");
    imported_noise(&dir, "source", 1 << 20);
    let (mount, socket) = (dir.join("mnt"), dir.join("nbd"));
    std::fs::create_dir(&mount).unwrap();
    let server = Server::start(&dir, &["--mount", path(&mount), "--nbd", &format!("unix:{}", path(&socket))]);
    let truncate = || std::fs::File::options().write(true).truncate(true).open(mount.join("v"));
    let client = nbd_client(&socket, "v");
    assert_eq!(truncate().unwrap_err().raw_os_error(), Some(libc::EBUSY));
    assert!(content(&dir, "v") == noise(1 << 20));
    drop(client);
    let file = truncate().unwrap();
    assert!(std::fs::read(mount.join("v")).unwrap() == vec![0; 1 << 20]);
    // The client that has emptied it counts as one, like any other.
    assert_eq!(on(&dir, "list", &["--json"]).ok().json()[0]["clients"], 1);
    drop(file);
    server.stop();
}

#[test]
fn a_second_signal_ends_a_server_that_hangs() {
    let dir = Dir::with_pool("64M");
    on(&dir, "create", &["v", "--size", "4M"]).ok();
    let mount = dir.join("mnt");
    std::fs::create_dir(&mount).unwrap();
    let (_reader, mut writer) = std::io::pipe().unwrap();
    let mut command = Command::new(SHALE);
    command.args(["serve", path(&dir.pool()), "--quiet", "--mount", path(&mount)]);
    let mut server = Server::with_stderr(command, writer.try_clone().unwrap().into());
    // Its stderr has no reader, and the pipe is full: it hangs when it reports the open file. The
    // pipe is filled only now, because a server that is starting may have warnings.
    rustix::io::ioctl_fionbio(&writer, true).unwrap();
    for filling in [&[b'x'; 1024][..], b"x"] {
        while writer.write(filling).is_ok() {}
    }
    rustix::io::ioctl_fionbio(&writer, false).unwrap();
    let file = std::fs::File::open(mount.join("v")).unwrap();
    // Repeats requests until a signal comes long enough after the first to count as another.
    let mut status = None;
    until("a second SIGTERM ends the server, which hangs", || {
        server.signal(libc::SIGTERM);
        status = server.child.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.and_then(|status| status.code()), Some(130));
    drop(file);
    drop(Command::new("umount").arg("--lazy").arg(&mount).stderr(Stdio::null()).status());
    on(&dir, "check", &[]).ok();
}

/// As timeout(1) does, which signals its child and then its process group. (The kernel merges one
/// that is repeated while the first still waits; that a repeated one soon after counts as one is
/// tested at the decision itself, with given times.)
#[test]
fn signals_that_come_at_once_stop_a_server_in_order() {
    let dir = Dir::with_pool("64M");
    on(&dir, "create", &["v", "--size", "4M"]).ok();
    let mut server = Server::start(&dir, &[]);
    let volume = Client::connect(&dir.pool().join("control.sock")).unwrap().volume("v", None).unwrap();
    volume.write(0, noise(4 << 20).into()).unwrap();
    // All of them are pending when it continues, however long this takes.
    server.halt();
    for number in [libc::SIGINT, libc::SIGTERM] {
        server.signal(number);
    }
    server.signal(libc::SIGCONT);
    server.ended(0);
    assert!(content(&dir, "v") == noise(4 << 20), "what was acknowledged is lost");
}

/// Sends bytes to the control socket and returns the answer up to a newline or the server's close.
fn say(socket: &mut UnixStream, bytes: &[u8]) -> String {
    socket.write_all(bytes).unwrap();
    let mut line = String::new();
    BufReader::new(socket).read_line(&mut line).unwrap();
    line
}

#[test]
fn nonsense_on_the_control_socket_costs_only_its_connection() {
    let dir = Dir::with_pool("64M");
    on(&dir, "create", &["v", "--size", "4M"]).ok();
    let server = Server::start(&dir, &[]);
    let control = dir.pool().join("control.sock");
    let connect = || UnixStream::connect(&control).unwrap();
    let kind = |line: &str| serde_json::from_str::<Value>(line).unwrap()["error"]["kind"].as_str().unwrap().to_owned();

    let mut socket = connect();
    assert_eq!(kind(&say(&mut socket, b"GET / HTTP/1.1\n")), "invalid");
    assert_eq!(kind(&say(&mut socket, b"{\"version\":7}\n")), "unsupported");
    assert_eq!(
        kind(&say(&mut socket, b"{\"version\":1,\"request\":{\"op\":\"bulk\",\"object\":\"nobody\"}}\n")),
        "not-found"
    );
    // A line without an end, and one that is cut off.
    drop(say(&mut socket, b"{\"version\":1,\"request\":{\"op\":\"list\"}}\n{\"vers"));
    drop(socket);
    // Frames that are invalid, or not allowed here.
    let bulk = b"{\"version\":1,\"request\":{\"op\":\"bulk\",\"object\":\"v\"}}\n";
    for frame in [[0xff; 24], [0; 24]] {
        let mut socket = connect();
        assert!(say(&mut socket, bulk).contains("bulk"));
        socket.write_all(&frame).unwrap();
        let mut rest = Vec::new();
        assert_eq!(socket.read_to_end(&mut rest).unwrap(), 0, "{rest:?}");
    }
    // Errors of the volume leave the stream intact.
    let client = Client::connect(&control).unwrap();
    let volume = client.volume("v", None).unwrap();
    assert!(volume.write(4 << 20, vec![1; 4096].into()).is_err());
    assert!(volume.read(u64::MAX - 5, &mut [0; 4096]).is_err());
    volume.write(4096, vec![7; 4096].into()).unwrap();
    let mut block = [0; 4096];
    volume.read(4096, &mut block).unwrap();
    assert_eq!(block, [7; 4096]);
    // More connections than the limit: the rest are refused with a message, and later ones are
    // accepted again.
    let crowd: Vec<_> = (0..80).map(|_| connect()).collect();
    let refused = Client::connect(&control).err().map(|error| error.to_string());
    assert!(refused.as_deref().is_some_and(|text| text.contains("try again")), "{refused:?}");
    drop(crowd);
    on(&dir, "list", &["--wait", "30"]).ok();
    server.stop();
}

#[test]
fn a_client_that_takes_no_reply_does_not_keep_the_server() {
    let dir = Dir::with_pool("64M");
    on(&dir, "create", &["v", "--size", "8M"]).ok();
    let server = Server::start(&dir, &[]);
    let mut socket = UnixStream::connect(dir.pool().join("control.sock")).unwrap();
    assert!(say(&mut socket, b"{\"version\":1,\"request\":{\"op\":\"bulk\",\"object\":\"v\"}}\n").contains("bulk"));
    // Four MiB are more than a socket holds; once the first byte arrives, the server is writing the
    // rest.
    let read = server::control::bulk::Frame {
        operation: server::control::bulk::Operation::Read,
        runs_max: 0,
        offset: 0,
        length: 4 << 20,
    };
    socket.write_all(&read.encode()).unwrap();
    socket.read_exact(&mut [0]).unwrap();
    server.stop();
    on(&dir, "check", &[]).ok();
}

#[test]
fn a_server_that_hangs_is_told_from_one_that_is_gone() {
    let dir = Dir::with_pool("64M");
    let server = Server::start(&dir, &[]);
    server.halt();
    on(&dir, "list", &["--wait", "0"]).code(4).says(&server.child.id().to_string()).says("does not answer");
    server.signal(libc::SIGCONT);
    on(&dir, "list", &[]).ok();
    server.stop();
}

/// Removing the directory must not prevent a server from making everything durable when it is
/// stopped.
#[test]
fn a_server_whose_socket_was_removed_can_be_stopped() {
    let dir = Dir::with_pool("64M");
    on(&dir, "create", &["v", "--size", "4M"]).ok();
    let server = Server::start(&dir, &[]);
    let control = dir.pool().join("control.sock");
    Client::connect(&control).unwrap().volume("v", None).unwrap().write(0, noise(4096).into()).unwrap();
    std::fs::remove_file(&control).unwrap();
    server.stop();
    assert_eq!(content(&dir, "v")[..4096], noise(4096));
}

/// `ulimit -f`, or LimitFSIZE of a service: writes fail, the server continues.
#[test]
fn a_limit_on_the_size_of_files_is_an_error_and_not_the_end() {
    let dir = Dir::with_pool("64M");
    on(&dir, "create", &["v", "--size", "32M"]).ok();
    let mut command = Command::new("sh");
    // Blocks of 512 bytes, or 1024 in some shells.
    command.args(["-c", "ulimit -f 16384 && exec \"$@\"", "sh", SHALE, "serve", path(&dir.pool())]);
    let mut server = Server::of(command);
    let control = dir.pool().join("control.sock");
    let volume = Client::connect(&control).unwrap().volume("v", None).unwrap();
    volume.write(0, noise(4096).into()).unwrap();
    volume.flush().unwrap();
    let piece = bytes::Bytes::from(noise(1 << 20));
    let writes = (1..32).map(|i| volume.write(i << 20, piece.clone()).and_then(|()| volume.flush()));
    let refused = writes.filter_map(Result::err).next().expect("nothing was refused");
    assert!(refused.to_string().contains("writing the log failed"), "{refused}");
    let mut data = vec![0; 4096];
    volume.read(0, &mut data).unwrap();
    assert_eq!(data, noise(4096));
    on(&dir, "list", &[]).ok();
    assert_eq!(server.child.try_wait().unwrap(), None);
    drop(server);
    assert_eq!(content(&dir, "v")[..4096], noise(4096));
    on(&dir, "check", &[]).ok();
}

/// `ulimit -n`: clients of one door used all descriptors, and no client could connect to the other.
#[test]
fn many_clients_and_few_descriptors_leave_the_control_socket_open() {
    let dir = Dir::with_pool("64M");
    on(&dir, "create", &["v", "--size", "4M"]).ok();
    let socket = dir.join("nbd.sock");
    let door = format!("unix:{}", path(&socket));
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 64 && exec \"$@\"", "sh", SHALE, "serve", path(&dir.pool()), "--nbd", &door]);
    let server = Server::of(command);
    // Admitted clients wait for their answer, others are refused, or closed.
    let crowd: Vec<_> = (0..80).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    for mut client in &crowd {
        let mut greeting = [0; 18];
        if client.read_exact(&mut greeting).is_ok() {
            assert_eq!(&greeting[..8], b"NBDMAGIC");
        }
    }
    let source = dir.join("source");
    std::fs::write(&source, noise(1 << 20)).unwrap();
    on(&dir, "import", &["w", path(&source)]).ok();
    assert!(content(&dir, "w") == noise(1 << 20));
    drop(crowd);
    server.stop();
    on(&dir, "check", &[]).ok();
}

/// The server accepts as many clients as its option says, and warns of a number that is not
/// possible.
#[test]
fn the_number_of_connections_can_be_set_and_is_shown() {
    let dir = Dir::with_pool("64M");
    on(&dir, "create", &["v", "--size", "4M"]).ok();
    let server = Server::start(&dir, &["--connections", "2"]);
    let socket = dir.pool().join("nbd.sock");
    let crowd: Vec<_> = (0..2).map(|_| nbd_client(&socket, "v")).collect();
    let status = on(&dir, "status", &["--json"]).ok().json();
    assert_eq!((&status["nbd_connections"], &status["nbd_connections_max"]), (&2.into(), &2.into()));
    let refused = refusal(&socket);
    assert!(refused.contains("all 2 connections of this server are in use"), "{refused}");
    drop(crowd);
    server.stop();
    on(&dir, "serve", &["--connections", "0"]).code(2);

    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 64 && exec \"$@\"", "sh", SHALE, "serve", path(&dir.pool())]);
    command.args(["--connections", "100"]);
    let server = Server::of(command);
    assert_eq!(on(&dir, "status", &["--json"]).ok().json()["nbd_connections_max"], 32);
    let said = server.stop();
    assert!(said.contains("--connections 100 requires 200 file descriptors"), "{said}");
}

/// A client in transmission with the export `v`; `None` if the server refuses it.
fn admitted_client(socket: &std::path::Path) -> Option<UnixStream> {
    let mut client = UnixStream::connect(socket).unwrap();
    client.read_exact(&mut [0; 18]).ok()?;
    client.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\x01v").ok()?;
    client.read_exact(&mut [0; 10]).ok()?;
    Some(client)
}

/// Returns the message with which the server refuses an NBD client that requests the export `v`.
fn refusal(socket: &std::path::Path) -> String {
    let mut client = UnixStream::connect(socket).unwrap();
    client.read_exact(&mut [0; 18]).unwrap();
    // Fixed newstyle without zeroes; then the option `go`, the name, and no information requests.
    client.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x07\0\0\0\x07\0\0\0\x01v\0\0").unwrap();
    let mut head = [0; 20];
    client.read_exact(&mut head).unwrap();
    let mut text = vec![0; u32::from_be_bytes(head[16..].try_into().unwrap()) as usize];
    client.read_exact(&mut text).unwrap();
    String::from_utf8(text).unwrap()
}

/// Without descriptors the accepting threads looped, each time with a line in the log, and clients
/// waited without a message.
#[test]
fn want_of_descriptors_is_said_once_and_clients_are_told() {
    let dir = Dir::with_pool("64M");
    on(&dir, "create", &["v", "--size", "4M"]).ok();
    // Its history would open and close files all the time.
    let server = Server::start(&dir, &["--analytics", "off"]);
    let pid = server.child.id();
    let socket = dir.pool().join("nbd.sock");
    let limit = |descriptors: u64| {
        let own = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let limit = rustix::process::Rlimit { current: Some(descriptors), ..own };
        let process = rustix::process::Pid::from_raw(pid as i32);
        rustix::process::prlimit(process, rustix::process::Resource::Nofile, limit).unwrap();
    };
    let numbers = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let number =
        |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name().to_str().unwrap().parse().unwrap();
    let numbers: std::collections::BTreeSet<u64> = numbers.map(number).collect();
    // Higher ones are inherited. Admitted clients take the gaps below the limit.
    limit(numbers.range(..64).max().unwrap() + 1);
    let mut crowd: Vec<_> = std::iter::from_fn(|| admitted_client(&socket)).take(64).collect();
    assert!(crowd.len() < 64, "there is no want of descriptors");
    let uri = format!("nbd+unix:///v?socket={}", path(&socket));
    for _ in 0..5 {
        // A descriptor that was open for a moment has left a gap.
        crowd.extend(std::iter::from_fn(|| admitted_client(&socket)).take(64));
        let refused = refusal(&socket);
        assert!(refused.contains("no file descriptors left"), "{refused}");
        on(&dir, "status", &[]).code(4).says("no file descriptors left");
    }
    limit(1024);
    assert!(Command::new("nbdinfo").arg(&uri).output().unwrap().status.success());
    on(&dir, "status", &[]).ok();
    drop(crowd);
    let said = server.stop();
    assert_eq!(said.matches("accepting a client on").count(), 1, "{said}");
    assert_eq!(said.matches("accepting a control connection failed").count(), 1, "{said}");
    for again in ["nbd: accepting clients again", "control connections are accepted again"] {
        assert_eq!(said.matches(&format!("{again}; ")).count(), 1, "{said}");
    }
    on(&dir, "check", &[]).ok();
}

/// The server itself must not be reported as the one to stop.
#[test]
fn a_crowd_on_the_control_socket_is_told_to_wait() {
    let dir = Dir::with_pool("64M");
    let server = Server::start(&dir, &[]);
    let socket = dir.pool().join("control.sock");
    let crowd: Vec<_> = std::iter::from_fn(|| Client::connect(&socket).ok()).take(1000).collect();
    assert!(crowd.len() < 1000, "there is no bound");
    for command in ["status", "jobs"] {
        let said = on(&dir, command, &[]).code(4).says("control connections open").says("try again when").stderr;
        assert!(!said.contains("stop it"), "{command}: {said}");
    }
    drop(crowd);
    while Client::connect(&socket).is_err() {}
    on(&dir, "status", &[]).ok();
    server.stop();
}

#[test]
fn a_long_path_to_the_pool_is_no_obstacle() {
    let dir = Dir::new();
    let pool = dir.join(&"p".repeat(150));
    run(["init", path(&pool), "--capacity", "64M"]).ok();
    let mut command = Command::new(SHALE);
    command.args(["serve", path(&pool), "--nbd", "127.0.0.1:0"]);
    let server = Server::of(command);
    run(["create", path(&pool), "v", "--size", "1M"]).ok();
    assert_eq!(run(["status", path(&pool), "--json"]).ok().json()["served"], true);
    server.stop();
}

#[test]
fn a_trace_follows_what_is_written() {
    let dir = Dir::with_pool("64M");
    on(&dir, "set", &["compression=auto"]).ok();
    let server = Server::start(&dir, &[]);
    let image = dir.join("image");
    std::fs::write(&image, padded(crate::support::mixed_data(8 << 20))).unwrap();
    let mut trace = Command::new(SHALE);
    let mut trace = trace.args(["trace", path(&dir.pool()), "--limit", "20"]).stdout(Stdio::piped()).spawn().unwrap();
    // The trace runs once its header is printed.
    let mut lines = BufReader::new(trace.stdout.take().unwrap()).lines();
    let header = lines.next().unwrap().unwrap();
    assert!(header.starts_with("number,unix_s,object,offset"), "{header}");
    on(&dir, "import", &["v", path(&image), "-o", "compression=auto"]).ok();
    let rows: Vec<String> = lines.map(Result::unwrap).collect();
    assert_eq!(rows.len(), 20);
    for (index, row) in rows.iter().enumerate() {
        let cells: Vec<&str> = row.split(',').collect();
        assert_eq!(cells.len(), header.split(',').count(), "{row}");
        assert_eq!(cells[0], index.to_string(), "{row}");
    }
    assert!(trace.wait().unwrap().success());
    server.stop();
}
