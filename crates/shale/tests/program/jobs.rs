//! Jobs: long work in a server that can be watched, paused and cancelled, and that ends as its
//! command reports.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use operations::{Reply, Request};
use report::{JobFault, JobKind, JobState};
use serde_json::{Value, json};
use server::control::Client;

use crate::endings::damage_the_end;
use crate::support::{Dir, Ran, SHALE, Server, content, imported_noise, mixed_data, noise, on, padded, path, signal};

/// Bytes of the volume that jobs process: several slices of each kind.
const BYTES: usize = 24 << 20;
/// So slow that a job rests after its first slice for a minute and more.
const SLOWLY: [&str; 2] = ["--rate", "64K"];

/// A served pool with a volume `v` of noise.
fn served() -> (Dir, Server) {
    let dir = Dir::with_pool("128M");
    imported_noise(&dir, "source", BYTES);
    let server = Server::start(&dir, &[]);
    (dir, server)
}

/// Returns a job from the list; null if the list has none of that number.
fn job(dir: &Dir, id: u64) -> Value {
    let jobs = on(dir, "jobs", &["--json"]).ok().json();
    jobs.as_array().unwrap().iter().find(|job| job["id"] == id).cloned().unwrap_or_default()
}

/// Waits until the job meets the caller's condition, and returns it.
#[track_caller]
fn awaited(dir: &Dir, id: u64, is_so: impl Fn(&Value) -> bool) -> Value {
    let give_up = Instant::now() + Duration::from_secs(600);
    loop {
        let job = job(dir, id);
        if is_so(&job) {
            return job;
        }
        assert!(Instant::now() < give_up, "job {id} stays {job}");
    }
}

/// Returns whether the first slice is done, and the job rests.
fn rests(job: &Value) -> bool {
    job["state"] == "running" && job["bytes_done"].as_u64() > Some(0)
}

fn in_background(dir: &Dir, command: &str, words: &[&str]) -> Value {
    let words = [words, &SLOWLY[..], &["--background", "--json"][..]].concat();
    on(dir, command, &words).ok().json()
}

/// A command that runs until the test ends it.
fn spawned(dir: &Dir, command: &str, words: &[&str]) -> Child {
    let mut child = Command::new(SHALE);
    child.arg(command).arg(dir.pool()).args(words).stdin(Stdio::null());
    child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn a_job_in_the_background_is_paused_resumed_and_cancelled() {
    let (dir, server) = served();
    on(&dir, "create", &["w", "--size", "1M"]).ok();
    assert_eq!(on(&dir, "jobs", &["--json"]).ok().json(), json!([]));
    let begun = in_background(&dir, "recompress", &["v"]);
    assert_eq!((&begun["id"], &begun["background"], &begun["target"]), (&json!(1), &json!(true), &json!("v")));
    awaited(&dir, 1, rests);

    on(&dir, "jobs", &["1", "--pause"]).ok();
    let paused = job(&dir, 1);
    assert_eq!((&paused["state"], &paused["asked"]), (&json!("paused"), &Value::Null));
    // Other requests are served meanwhile, and the job stays paused.
    content(&dir, "v");
    on(&dir, "snapshot", &["v@s"]).ok();
    on(&dir, "scrub", &["--rate", "max"]).ok();
    assert_eq!(job(&dir, 1)["bytes_done"], paused["bytes_done"]);
    // A paused job is under way.
    on(&dir, "recompress", &["w"]).code(4).says("'v' is being recompressed by job 1").says("shale jobs POOL 1");

    on(&dir, "jobs", &["1", "--resume"]).ok();
    let on_again = awaited(&dir, 1, |job| job["bytes_done"].as_u64() > paused["bytes_done"].as_u64());
    assert_eq!(on_again["state"], "running", "{on_again}");

    let said = on(&dir, "jobs", &["1", "--cancel"]).ok().stdout;
    assert!(said.contains("is cancelled: cancelled by a command: recompressing is paused at "), "{said}");
    let cancelled = job(&dir, 1);
    assert_eq!((&cancelled["state"], &cancelled["error"]["kind"]), (&json!("cancelled"), &json!("interrupted")));
    on(&dir, "jobs", &["1"]).code(130).says("without --restart resumes it");
    for words in [["1", "--pause"], ["1", "--cancel"], ["7", "--resume"]] {
        on(&dir, "jobs", &words).code(3);
    }
    assert!(on(&dir, "jobs", &[]).ok().stdout.contains("1 recompress v"));

    // It continues from the other one's position, and completes.
    let done = on(&dir, "recompress", &["v", "--rate", "max", "--json"]).ok().json();
    assert_eq!(done["finished"], true, "{done}");
    server.stop();
    on(&dir, "check", &[]).ok();
}

#[test]
fn status_tells_the_jobs_under_way() {
    let (dir, server) = served();
    let jobs_of_status = || on(&dir, "status", &["--json"]).ok().json()["jobs"].clone();
    assert_eq!(jobs_of_status(), json!([]));
    in_background(&dir, "recompress", &["v"]);
    awaited(&dir, 1, rests);
    let told = jobs_of_status();
    assert_eq!(
        (&told[0]["id"], &told[0]["kind"], &told[0]["state"]),
        (&json!(1), &json!("recompress"), &json!("running"))
    );
    let said = on(&dir, "status", &[]).ok().stdout;
    assert!(said.contains("job 1 (recompress v) is at "), "{said}");
    on(&dir, "jobs", &["1", "--cancel"]).ok();
    assert_eq!(jobs_of_status(), json!([]), "a job that has ended");
    assert!(!on(&dir, "status", &[]).ok().stdout.contains("recompress v"));
    server.stop();
}

#[test]
fn a_job_is_watched_to_its_end_and_tells_what_its_command_would() {
    let (dir, server) = served();
    on(&dir, "recompress", &["v", "--rate", "max", "--background"]).ok();
    let said = on(&dir, "jobs", &["1"]).ok();
    assert!(said.stdout.starts_with("recompressed, all of it, in "), "{}", said.stdout);
    // Late watchers still get the outcome.
    let late = on(&dir, "jobs", &["1", "--json"]).ok().json();
    assert_eq!((&late["state"], &late["result"]["recompressed"]["finished"]), (&json!("done"), &json!(true)));
    assert_eq!(job(&dir, 1)["result"], Value::Null);
    // Impossible work gets no number.
    on(&dir, "recompress", &["nothing", "--background"]).code(3);
    on(&dir, "recompress", &["v", "--mode", "best", "--background"]).code(2);
    assert_eq!(job(&dir, 2), Value::Null);
    server.stop();
}

/// Unless it was started in the background.
#[test]
fn a_job_ends_with_the_command_that_started_it() {
    let (dir, server) = served();
    for (id, number) in [(1, libc::SIGKILL), (2, libc::SIGINT), (3, libc::SIGHUP)] {
        let child = spawned(&dir, "recompress", &["v", "--restart", SLOWLY[0], SLOWLY[1]]);
        awaited(&dir, id, rests);
        signal(&child, number);
        let ran = Ran::of(child.wait_with_output().unwrap());
        if number != libc::SIGKILL {
            ran.code(130).says("interrupted: recompressing is paused at ");
        }
        let ended = awaited(&dir, id, |job| job["state"] == "cancelled");
        let why = ended["error"]["message"].as_str().unwrap();
        let expected =
            if number == libc::SIGKILL { "the command that started it has ended: " } else { "interrupted: " };
        assert!(why.starts_with(expected), "{why}");
    }
    on(&dir, "recompress", &["v", "--rate", "max"]).ok();
    server.stop();
}

#[test]
fn a_command_that_only_watches_leaves_the_job_alone() {
    let (dir, server) = served();
    in_background(&dir, "recompress", &["v"]);
    for number in [libc::SIGINT, libc::SIGKILL] {
        let mut watcher = spawned(&dir, "jobs", &["1"]);
        // The first line says that it watches.
        let mut lines = BufReader::new(watcher.stderr.take().unwrap()).lines();
        assert!(lines.next().unwrap().unwrap().starts_with("job 1 (recompress v): recompressing "));
        signal(&watcher, number);
        let last = lines.last().map(Result::unwrap).unwrap_or_default();
        let code = watcher.wait().unwrap().code();
        if number == libc::SIGINT {
            assert!(code == Some(130) && last.contains("job 1 (recompress v) continues"), "{code:?}: {last}");
        }
        assert!(rests(&awaited(&dir, 1, rests)));
    }
    on(&dir, "jobs", &["1", "--cancel"]).ok();
    server.stop();
}

#[test]
fn a_server_that_stops_ends_its_jobs_and_says_so_to_those_that_watch() {
    let (dir, server) = served();
    in_background(&dir, "recompress", &["v"]);
    awaited(&dir, 1, rests);
    on(&dir, "jobs", &["1", "--pause"]).ok();
    let mut watcher = spawned(&dir, "jobs", &["1"]);
    let mut lines = BufReader::new(watcher.stderr.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().ends_with(", paused"));
    server.stop();
    let last = lines.last().unwrap().unwrap();
    assert_eq!(watcher.wait().unwrap().code(), Some(130), "{last}");
    assert!(last.contains("the pool's server was stopped: recompressing is paused at "), "{last}");
    // The list is empty, no number is used again, and the work continues from its position.
    let server = Server::start(&dir, &[]);
    assert_eq!(on(&dir, "jobs", &["--json"]).ok().json(), json!([]));
    let report = on(&dir, "recompress", &["v", "--report", "--json"]).ok().json();
    assert!(report["finished"] == false && report["bytes_done"].as_u64() > Some(0), "{report}");
    on(&dir, "jobs", &["1", "--cancel"]).code(3);
    assert_eq!(in_background(&dir, "recompress", &["v"])["id"], 2);
    server.stop();
    on(&dir, "check", &[]).ok();
}

#[test]
fn jobs_of_one_kind_exclude_each_other_and_no_others() {
    let (dir, server) = served();
    let kinds = [("recompress", &["v"][..]), ("scrub", &[][..]), ("clean", &["--sort"][..])];
    for (id, (command, words)) in (1..).zip(kinds) {
        assert_eq!(in_background(&dir, command, words)["id"], id);
        awaited(&dir, id, rests);
    }
    for (id, (command, words)) in (1..).zip(kinds) {
        on(&dir, command, words).code(4).says(&format!("by job {id}")).says(&format!("shale jobs POOL {id}"));
        on(&dir, command, &[words, &["--report"][..]].concat()).ok();
    }
    on(&dir, "clean", &["--all"]).ok();
    on(&dir, "calibrate", &[]).ok();
    let states = |dir: &Dir| -> Vec<String> {
        let jobs = on(dir, "jobs", &["--json"]).ok().json();
        let of = |job: &Value| format!("{} {}", job["kind"].as_str().unwrap(), job["state"].as_str().unwrap());
        jobs.as_array().unwrap().iter().map(of).collect()
    };
    let expected = ["recompress running", "scrub running", "sort running", "clean done", "calibrate done"];
    assert_eq!(states(&dir), expected);
    for id in ["1", "2", "3"] {
        on(&dir, "jobs", &[id, "--cancel"]).ok();
    }
    let sorted = on(&dir, "clean", &["--sort", "--rate", "max", "--json"]).ok().json();
    assert_eq!(sorted["sort"]["finished"], true, "{sorted}");
    server.stop();
    on(&dir, "check", &[]).ok();
}

/// With the exit code of a scrub that is not left to the server.
#[test]
fn damage_that_a_job_finds_is_told_to_those_that_watch() {
    let dir = Dir::with_pool("64M");
    imported_noise(&dir, "source", 8 << 20);
    damage_the_end(&dir, &noise(8 << 20));
    let server = Server::start(&dir, &[]);
    on(&dir, "scrub", &["--rate", "max", "--background"]).ok();
    let said = on(&dir, "jobs", &["1"]).code(6);
    assert!(said.stdout.contains("volume v, byte ") && said.stdout.ends_with("1 damaged\n"), "{}", said.stdout);
    let found = on(&dir, "jobs", &["1", "--json"]).code(6).json();
    assert_eq!((&found["state"], &found["result"]["scrubbed"]["found"]), (&json!("done"), &json!(1)));
    on(&dir, "scrub", &["--restart"]).code(6);
    server.stop();
}

#[test]
fn a_job_in_the_background_needs_a_server() {
    let dir = Dir::with_pool("64M");
    imported_noise(&dir, "source", 1 << 20);
    on(&dir, "recompress", &["v", "--background"]).code(2).says("no server has the pool");
    assert_eq!(on(&dir, "jobs", &["--json"]).code(3).json()["error"]["kind"], "not-found");
    on(&dir, "jobs", &[]).code(3).says("no server has the pool");
    on(&dir, "jobs", &["1"]).code(3).says("no server has the pool").says(path(&dir.pool()));
    // It is done by the command itself.
    on(&dir, "recompress", &["v"]).ok();
}

/// Their progress depends on their other end, which here takes and supplies no bytes.
#[test]
fn streams_and_copies_are_listed_and_can_be_cancelled() {
    let (dir, server) = served();
    on(&dir, "snapshot", &["v@s"]).ok();
    let begun = [("send", &["v@s"][..], "v@s"), ("receive", &["w"][..], "w"), ("import", &["x", "-"][..], "x")];
    for (id, (command, words, target)) in (1..).zip(begun) {
        let mut child = Command::new(SHALE);
        child.arg(command).arg(dir.pool()).args(words);
        let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // Held open, or a reader would be at its end.
        let _stdin = child.stdin.take();
        let listed = awaited(&dir, id, |job| job["id"] == id);
        assert_eq!((&listed["kind"], &listed["target"]), (&json!(command), &json!(target)), "{listed}");
        on(&dir, "jobs", &[&id.to_string(), "--pause"]).code(9).says("Ctrl-Z");
        // The sender waits for the test, which will not read before this has answered.
        let said = on(&dir, "jobs", &[&id.to_string(), "--cancel"]).ok().stdout;
        let is_told =
            said.contains("is cancelled: cancelled by a command: ") || said.contains("is cancelling: its command");
        assert!(is_told && (command != "send" || said.contains("is cancelling")), "{said}");
        // Further reading lets a sender notice it. The sender queries the server from time to time,
        // as this does between two pieces.
        let mut output = child.stdout.take().unwrap();
        let mut piece = vec![0; 128 << 10];
        let mut sent = 0;
        while let Some(bytes) = Some(output.read(&mut piece).unwrap()).filter(|&bytes| bytes > 0) {
            sent += bytes;
            let state = job(&dir, id)["state"].clone();
            assert!(state == "cancelling" || state == "cancelled", "{state}");
        }
        Ran::of(child.wait_with_output().unwrap()).code(130).says(&format!("job {id} was cancelled"));
        assert!(sent < BYTES, "{sent} bytes were sent");
        let ended = job(&dir, id);
        assert_eq!(ended["state"], "cancelled");
        assert!(ended["error"]["message"].as_str().unwrap().starts_with("cancelled by a command: "), "{ended}");
    }
    for (command, words, _) in begun {
        on(&dir, command, &[words, &["--background"][..]].concat()).code(2).says("through this command");
    }
    // Completed work is listed with the bytes that it moved.
    on(&dir, "export", &["v", path(&dir.join("copy"))]).ok();
    let said = on(&dir, "jobs", &["4"]).ok().stdout;
    assert!(said.starts_with("job 4 (export v): 24 MiB, in "), "{said}");
    on(&dir, "export", &["v", path(&dir.join("copy"))]).code(8);
    on(&dir, "jobs", &["5"]).code(8).says("--force");
    server.stop();
    on(&dir, "check", &[]).ok();
}

/// The list said that all of them were cancelled, at once, while their work was completed.
#[test]
fn the_list_says_what_came_of_work_that_was_to_be_cancelled() {
    let dir = Dir::with_pool("64M");
    let server = Server::start(&dir, &[]);
    let client = Client::connect(&dir.pool().join("control.sock")).unwrap();
    let asked = |request| match client.call(&request).unwrap() {
        Reply::Job(job) => *job,
        other => panic!("{other:?}"),
    };
    let cancel = |id| {
        // This command waits, and its timing does not affect the test.
        let other = Client::connect(&dir.pool().join("control.sock")).unwrap();
        other.call(&Request::CancelJob { id, interrupted: false }).unwrap();
        let listed = job(&dir, id);
        assert_eq!((&listed["state"], &listed["ended_unix_s"]), (&json!("cancelling"), &Value::Null), "{listed}");
        let status = on(&dir, "status", &["--json"]).ok().json();
        assert_eq!(status["jobs"][0]["state"], "cancelling");
        let told = asked(Request::TellJob { bytes_done: 1, bytes_total: None });
        assert_eq!(told.state, JobState::Cancelling);
    };
    let register = || asked(Request::RegisterJob { kind: JobKind::Import, target: Some("v".to_owned()) }).id;
    // It was past the point at which it could be ended.
    cancel(register());
    asked(Request::FinishJob { bytes_done: 7, fault: None });
    assert_eq!((&job(&dir, 1)["state"], &job(&dir, 1)["error"]), (&json!("done"), &Value::Null));
    on(&dir, "jobs", &["1"]).ok();
    on(&dir, "jobs", &["1", "--cancel"]).code(3).says("it is done");
    cancel(register());
    let fault = JobFault { kind: "full".to_owned(), message: "no room".to_owned() };
    asked(Request::FinishJob { bytes_done: 7, fault: Some(fault) });
    assert_eq!((&job(&dir, 2)["state"], &job(&dir, 2)["error"]["message"]), (&json!("failed"), &json!("no room")));
    cancel(register());
    let fault = JobFault { kind: "interrupted".to_owned(), message: "nothing has come".to_owned() };
    asked(Request::FinishJob { bytes_done: 0, fault: Some(fault) });
    let cancelled = job(&dir, 3);
    assert_eq!(cancelled["state"], "cancelled");
    assert_eq!(cancelled["error"]["message"], "cancelled by a command: nothing has come");
    // A client's name for its work is in every list.
    let target = Some("A".repeat(9 << 20));
    let refused = client.call(&Request::RegisterJob { kind: JobKind::Import, target }).unwrap_err();
    assert!(refused.to_string().contains("at most 4352 bytes"), "{refused}");
    let slice = Request::RecompressReport { object: "A".repeat(9 << 20).into(), mode: None, path: None };
    client.call(&slice).unwrap_err();
    for command in ["jobs", "status", "list"] {
        on(&dir, command, &[]).ok();
    }
    assert_eq!(job(&dir, 4), Value::Null);
    server.stop();
}

/// It continued with the volume that had since got the name.
#[test]
fn a_job_follows_its_volume_and_ends_with_it() {
    let dir = Dir::with_pool("256M");
    for name in ["r1", "r2"] {
        let source = dir.join(name);
        std::fs::write(&source, padded(mixed_data(BYTES / 2))).unwrap();
        on(&dir, "import", &[name, path(&source), "-o", "compression=lz4"]).ok();
    }
    let server = Server::start(&dir, &[]);
    let of = |name: &str, field: &str| {
        let list = on(&dir, "list", &["--sync", "--json"]).ok().json();
        list.as_array().unwrap().iter().find(|v| v["name"] == name).unwrap()[field].clone()
    };
    let bytes = |name: &str| of(name, "stored_bytes").as_u64();
    let (first, second, before, before_second) = (of("r1", "id"), of("r2", "id"), bytes("r1"), bytes("r2"));
    in_background(&dir, "recompress", &["r1", "--mode", "archive"]);
    let rested = awaited(&dir, 1, rests);
    on(&dir, "jobs", &["1", "--pause"]).ok();
    on(&dir, "rename", &["r1", "old"]).ok();
    on(&dir, "rename", &["r2", "r1"]).ok();
    assert_eq!(job(&dir, 1)["target"], "old");
    assert_eq!((of("old", "id"), of("r1", "id")), (first, second));
    // A request ends the rest after a slice.
    on(&dir, "jobs", &["1", "--resume"]).ok();
    let is_on = |job: &Value| job["state"] != "running" || job["bytes_done"].as_u64() > rested["bytes_done"].as_u64();
    let on_again = awaited(&dir, 1, is_on);
    assert!(is_on(&on_again) && on_again["target"] == "old", "{on_again}");
    if on_again["state"] == "running" {
        on(&dir, "jobs", &["1", "--cancel"]).ok();
    }
    let done = on(&dir, "recompress", &["old", "--mode", "archive", "--rate", "max", "--json"]).ok().json();
    assert_eq!(done["finished"], true, "{done}");
    assert!(bytes("old") < before, "{:?} of {before:?}", bytes("old"));
    assert_eq!(bytes("r1"), before_second, "the volume that got the name");

    // It fails when its volume is destroyed, even if another volume has the name by then.
    in_background(&dir, "recompress", &["old", "--mode", "performance"]);
    awaited(&dir, 3, rests);
    on(&dir, "jobs", &["3", "--pause"]).ok();
    on(&dir, "destroy", &["old"]).ok();
    on(&dir, "rename", &["r1", "old"]).ok();
    on(&dir, "jobs", &["3", "--resume"]).ok();
    on(&dir, "jobs", &["3"]).code(3).says("'old' was destroyed while job 3 worked on it");
    assert_eq!(job(&dir, 3)["state"], "failed");
    server.stop();
    on(&dir, "check", &[]).ok();
}

#[test]
fn iostat_follows_its_volume_and_ends_with_it() {
    let dir = Dir::with_pool("64M");
    on(&dir, "create", &["v", "--size", "1M"]).ok();
    on(&dir, "create", &["w", "--size", "1M"]).ok();
    let server = Server::start(&dir, &[]);
    let mut child = spawned(&dir, "iostat", &["v", "--every", "1", "--json"]);
    let mut reports = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || reports.next().map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    let number = next().unwrap()["only"].clone();
    on(&dir, "rename", &["v", "x"]).ok();
    on(&dir, "rename", &["w", "v"]).ok();
    for _ in 0..2 {
        assert_eq!(next().unwrap()["only"], number);
    }
    on(&dir, "destroy", &["x"]).ok();
    let last = std::iter::from_fn(next).find(|report| report["only"] != number).unwrap();
    assert!(last["error"]["message"].as_str().unwrap().contains("'v' is gone"), "{last}");
    Ran::of(child.wait_with_output().unwrap()).code(3);
    server.stop();
}
