//! The server is killed repeatedly under load, and its users do not notice.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use sim::Rng;

use crate::server::Share;

/// Kills in `make test`; `SHALE_KILLS` asks for more.
fn kills() -> u64 {
    std::env::var("SHALE_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(3)
}

/// Creates, changes, renames and removes files until the end, and remembers the expected state.
fn load(dir: &Path, seed: u64, ends: &AtomicBool, done: &AtomicU64) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut rng = Rng::new(seed);
    let mut files: BTreeMap<PathBuf, Vec<u8>> = BTreeMap::new();
    fs::create_dir(dir).unwrap();
    for number in 0_u64.. {
        if ends.load(Ordering::Relaxed) {
            break;
        }
        done.fetch_add(1, Ordering::Relaxed);
        let path = dir.join(format!("file {number}"));
        let any = files.keys().nth(rng.below(files.len().max(1) as u64) as usize).cloned();
        match (rng.below(6), any) {
            (0, Some(any)) => {
                fs::rename(&any, &path).unwrap();
                let content = files.remove(&any).unwrap();
                files.insert(path, content);
            }
            (1, Some(any)) => {
                fs::remove_file(&any).unwrap();
                files.remove(&any);
            }
            (2, Some(any)) => {
                let content = files.get_mut(&any).unwrap();
                let (at, byte) = (rng.below(9000) as usize, rng.below(256) as u8);
                let file = File::options().write(true).open(&any).unwrap();
                file.write_all_at(&[byte; 5000], at as u64).unwrap();
                content.resize(content.len().max(at + 5000), 0);
                content[at..at + 5000].fill(byte);
                if rng.coin() {
                    file.sync_all().unwrap();
                }
            }
            (3, Some(any)) => {
                let content = files.get_mut(&any).unwrap();
                assert!(fs::read(&any).unwrap() == *content, "{} has another content", any.display());
                let size = rng.below(6000) as usize;
                File::options().write(true).open(&any).unwrap().set_len(size as u64).unwrap();
                content.resize(size, 0);
            }
            _ => {
                let mut content = vec![0; rng.below(20_000) as usize];
                rng.fill(&mut content);
                fs::write(&path, &content).unwrap();
                files.insert(path, content);
            }
        }
    }
    files
}

#[test]
fn callers_see_nothing_of_a_server_that_is_killed_under_load() {
    let mut share = Share::new("load");
    let dir = share.dir();
    let (ends, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let files: Vec<_> = thread::scope(|threads| {
        let loads: Vec<_> = (0..3)
            .map(|number| {
                let dir = dir.join(format!("d{number}"));
                let (ends, done) = (&ends, &done);
                threads.spawn(move || load(&dir, number, ends, done))
            })
            .collect();
        for kill in 0..kills() {
            // At some point of the following operations.
            let until = done.load(Ordering::Relaxed) + 200 + 37 * kill;
            while done.load(Ordering::Relaxed) < until && !loads.iter().any(thread::ScopedJoinHandle::is_finished) {
                thread::yield_now();
            }
            share.kill();
            share.start();
        }
        ends.store(true, Ordering::Relaxed);
        loads.into_iter().map(|load| load.join().unwrap()).collect()
    });
    let check = || {
        for files in &files {
            for (path, content) in files {
                assert!(fs::read(path).unwrap() == *content, "{} has another content", path.display());
            }
        }
        let named: usize = (0..3).map(|number| fs::read_dir(dir.join(format!("d{number}"))).unwrap().count()).sum();
        assert_eq!(named, files.iter().map(BTreeMap::len).sum::<usize>());
    };
    check();
    // The kernel's caches must not answer for the tree: drop them.
    let _ = fs::write("/proc/sys/vm/drop_caches", b"2");
    check();
    share.finish();
}
