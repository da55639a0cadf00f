//! Mounts one in-memory device, to measure the cost of the front end itself: `mem_mount DIR
//! SIZE_MIB [THREADS]`, then fio on `DIR/mem` or on a loop device over it. Ends when DIR is
//! unmounted.

use std::sync::Arc;

use fe_fuse::{MountOptions, mount};
use testkit::{Memory, MemorySet};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: mem_mount DIR SIZE_MIB [THREADS]";
    let dir = arguments.next().ok_or(usage)?;
    let size_mib: u64 = arguments.next().ok_or(usage)?.parse()?;
    let mut options = MountOptions { source: "mem".into(), ..MountOptions::default() };
    if let Some(threads) = arguments.next() {
        options.threads = threads.parse()?;
    }
    let devices = Arc::new(MemorySet::of(&[("mem", &Memory::new(size_mib << 20))]));
    let mounted = mount(devices, dir.as_ref(), &options)?;
    println!("mounted at {}", mounted.dir().display());
    mounted.ended().wait()?;
    Ok(())
}
