//! Reads 4 KiB blocks at random from a vhost-user-blk socket, without a virtual machine, and prints
//! the reads per second as JSON: `load SOCKET SECONDS`. `tools/bench-doors` runs it.

#![allow(clippy::disallowed_methods, clippy::print_stdout, reason = "it measures, and prints")]

use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use blkio::{Blkio, Blkioq, Completion, MemoryRegion, ReqFlags};
use testkit::Rng;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Requests in flight.
const DEPTH: usize = 32;
const BLOCK_BYTES: usize = 4096;
/// Time before the measured part: threads start to poll, and caches fill.
const WARM_UP: Duration = Duration::from_millis(300);

/// One queue of a disk, with `DEPTH` reads in flight.
struct Reader {
    queue: Blkioq,
    region: MemoryRegion,
    blocks: u64,
    rng: Rng,
}

impl Reader {
    /// Starts a read into the buffer of a slot.
    fn start(&mut self, slot: usize) {
        let offset = self.rng.below(self.blocks) * BLOCK_BYTES as u64;
        let buffer = (self.region.addr + slot * BLOCK_BYTES) as *mut u8;
        self.queue.read(offset, buffer, BLOCK_BYTES, slot, ReqFlags::empty());
    }

    /// Keeps all slots busy for so long, and returns the number of completed reads.
    fn run(&mut self, time: Duration) -> Result<u64> {
        let mut ended: [_; DEPTH] = std::array::from_fn(|_| MaybeUninit::<Completion>::uninit());
        let (began, mut reads) = (Instant::now(), 0);
        while began.elapsed() < time {
            let count = self.queue.do_io(&mut ended, 1, None, None).map_err(|error| error.to_string())?;
            for completion in &ended[..count] {
                #[allow(unsafe_code, reason = "the interface of blkio")]
                // SAFETY: `do_io` returned that it has written so many completions.
                let completion = unsafe { completion.assume_init_ref() };
                if completion.ret != 0 {
                    return Err(format!("a read failed with {}", completion.ret).into());
                }
                self.start(completion.user_data);
            }
            reads += count as u64;
        }
        Ok(reads)
    }
}

fn measure(socket: &str, time: Duration) -> Result<f64> {
    let mut disk = Blkio::new("virtio-blk-vhost-user").map_err(|error| error.to_string())?;
    let mut connect = || {
        disk.set_str("path", socket)?;
        disk.connect()?;
        disk.set_i32("num-queues", 1)?;
        let blocks = disk.get_u64("capacity")? / BLOCK_BYTES as u64;
        let queue = disk.start()?.queues.remove(0);
        let region = disk.alloc_mem_region(DEPTH * BLOCK_BYTES)?;
        disk.map_mem_region(&region)?;
        Ok(Reader { queue, region, blocks, rng: Rng::new(1) })
    };
    let mut reader = connect().map_err(|error: blkio::Error| format!("{socket}: {error}"))?;
    (0..DEPTH).for_each(|slot| reader.start(slot));
    reader.run(WARM_UP)?;
    let began = Instant::now();
    let reads = reader.run(time)?;
    Ok(reads as f64 / began.elapsed().as_secs_f64())
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(socket), Some(seconds)) = (arguments.next(), arguments.next()) else {
        return Err("usage: load SOCKET SECONDS".into());
    };
    let rate = measure(&socket, Duration::try_from_secs_f64(seconds.parse()?)?)?;
    println!("{{\"reads_per_second\": {rate:.0}}}");
    Ok(())
}
