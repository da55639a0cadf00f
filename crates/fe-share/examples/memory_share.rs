//! A share in memory at a directory, for trying the tree with real programs: `cargo run --example
//! memory_share -- DIR`. Ends when it is unmounted, with status 1 if the tree does not agree with
//! itself then.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use share::{Options, Time, Tree};
use sim::SimSpace;

fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time { seconds: since.as_secs().cast_signed(), nanoseconds: since.subsec_nanos() }
}

fn main() {
    let dir = PathBuf::from(std::env::args_os().nth(1).unwrap());
    let space = SimSpace::new();
    let how = Options { now, cache_bytes: 64 << 20 };
    let tree = Tree::create(space.clone(), 7, how).unwrap();
    let options = fe_share::MountOptions { allow_suid_and_devices: true, ..fe_share::MountOptions::default() };
    let mount = fe_share::mount(Arc::new(tree), &dir, &options).unwrap();
    println!("ready at {}", mount.dir().display());
    mount.wait().unwrap();
    let wrong = Tree::open(space, how).unwrap().check().unwrap();
    wrong.iter().for_each(|line| println!("{line}"));
    std::process::exit(i32::from(!wrong.is_empty()));
}
