//! Volumes as disks of virtual machines, with the real program: they outlive the server's death,
//! and follow commands.

use std::path::PathBuf;

use testkit::vhost::{Monitor, Op, SLOTS};
use testkit::{Rng, until};

use crate::support::{Dir, Server, noise, on, path};

/// Rounds until a kill has interrupted requests in flight; it nearly always does.
const ROUNDS_MAX: u64 = 40;
const PART: usize = 64 << 10;

fn serve(dir: &Dir) -> Server {
    Server::start(dir, &["--vhost-user", path(&dir.join("disks"))])
}

fn socket(dir: &Dir, name: &str) -> PathBuf {
    dir.join("disks").join(format!("{name}.sock"))
}

#[test]
fn kill_9_costs_a_guest_none_of_the_requests_that_were_under_way() {
    let dir = Dir::with_pool("512M");
    on(&dir, "create", &["v", "--size", "64M"]).ok();
    let mut server = serve(&dir);
    let mut machine = Monitor::attach(&socket(&dir, "v"), 1);
    let (data, mut rng) = (noise(4 << 20), Rng::new(1));
    let mut expected = vec![0_u8; usize::from(SLOTS) * 2 * PART];
    let (mut kills, mut left, mut marked) = (0, 0, 0);
    while marked == 0 || kills < 4 {
        assert!(kills < ROUNDS_MAX, "no kill met a request that was taken ({left} were not answered)");
        let mut sent = Vec::new();
        for index in 0..usize::from(SLOTS) {
            let offset = (index * 2 + rng.index(2)) * PART;
            let op = match rng.below(8) {
                0 => Op::Flush,
                1 => Op::Read(offset as u64, PART),
                2 => {
                    expected[offset..offset + PART].fill(0);
                    Op::Discard(offset as u64, PART as u64)
                }
                _ => {
                    let from = rng.index(data.len() - PART);
                    expected[offset..offset + PART].copy_from_slice(&data[from..from + PART]);
                    Op::Write(offset as u64, data[from..from + PART].to_vec())
                }
            };
            sent.push((machine.submit(0, &op), op));
        }
        // Some are answered before, some are not, and some are half done.
        let answered = rng.index(sent.len() / 2);
        let (first, rest) = sent.split_at(answered);
        first.iter().for_each(|(slot, op)| assert_eq!(machine.wait(0, *slot).status, 0, "{op:?}"));
        server.signal(libc::SIGKILL);
        server.child.wait().unwrap();
        marked += machine.marked(0);
        server = serve(&dir);
        machine.reattach();
        for (slot, op) in rest {
            let answer = machine.wait(0, *slot);
            assert_eq!(answer.status, 0, "{op:?}");
            left += 1;
            if let Op::Read(offset, length) = op {
                let offset = *offset as usize;
                assert!(answer.data == expected[offset..offset + length], "{op:?}");
            }
        }
        assert_eq!(machine.marked(0), 0);
        kills += 1;
    }
    for (index, part) in expected.chunks(PART).enumerate() {
        assert!(machine.ok(0, &Op::Read((index * PART) as u64, PART)) == part, "part {index}");
    }
    server.stop();
    on(&dir, "check", &[]).ok();
}

/// Requests of a broken connection end before the next one begins; otherwise both would answer
/// them.
#[test]
fn a_monitor_that_connects_again_to_a_living_server_gets_each_answer_once() {
    let dir = Dir::with_pool("512M");
    on(&dir, "create", &["v", "--size", "64M"]).ok();
    let server = serve(&dir);
    let mut machine = Monitor::attach(&socket(&dir, "v"), 1);
    let data = noise(PART);
    for _ in 0..20 {
        let flush_or_write = |slot: u16| match slot % 4 {
            0 => Op::Flush,
            _ => Op::Write(u64::from(slot) * PART as u64, data.clone()),
        };
        let sent: Vec<_> = (0..SLOTS).map(|slot| machine.submit(0, &flush_or_write(slot))).collect();
        machine.reattach();
        sent.into_iter().for_each(|slot| assert_eq!(machine.wait(0, slot).status, 0));
        assert_eq!(machine.marked(0), 0);
    }
    server.stop();
}

#[test]
fn disks_follow_what_commands_do() {
    let dir = Dir::with_pool("512M");
    on(&dir, "create", &["folder", "--folder"]).ok();
    on(&dir, "create", &["folder/v", "--size", "64M"]).ok();
    let server = serve(&dir);
    assert!(server.said.contains("vhost-user "), "{}", server.said);
    let mut machine = Monitor::attach(&socket(&dir, "folder/v"), 1);
    machine.ok(0, &Op::Write(0, vec![1; 4096]));
    on(&dir, "snapshot", &["folder/v@old"]).ok();
    machine.ok(0, &Op::Write(0, vec![2; 4096]));
    let mut snapshot = Monitor::attach(&socket(&dir, "folder/v@old"), 1);
    assert_eq!(snapshot.ok(0, &Op::Read(0, 4096)), vec![1; 4096]);
    assert_eq!(snapshot.run(0, &Op::Write(0, vec![3; 4096])).status, 1);
    on(&dir, "resize", &["folder/v", "128M"]).ok();
    machine.await_change();
    assert_eq!(machine.config(0, 8), (128_u64 << 11).to_le_bytes());
    machine.ok(0, &Op::Write((128 << 20) - 512, vec![4; 512]));
    let serial = machine.ok(0, &Op::Identify);
    let id = on(&dir, "status", &["--json"]).ok().json()["id"].as_str().unwrap().to_owned();
    assert!(serial.starts_with(&id.as_bytes()[..8]), "{serial:?} {id}");
    on(&dir, "destroy", &["folder/v@old"]).code(4).says("vhost-user client process");
    drop(snapshot);
    on(&dir, "destroy", &["folder/v@old"]).ok();
    until("the socket has gone", || !socket(&dir, "folder/v@old").exists());
    let traffic = on(&dir, "iostat", &["--json"]).ok().stdout;
    assert!(traffic.contains("vhost-user"), "{traffic}");
    // Another pool's server has no sockets in that directory.
    let other = Dir::with_pool("256M");
    let disks = dir.join("disks");
    on(&other, "serve", &["--vhost-user", path(&disks)]).code(4).says("another server has its sockets there");
    server.stop();
    assert!(!dir.join("disks").join("folder").exists());
}
