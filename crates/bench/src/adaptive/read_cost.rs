//! What a random read of 4 KiB costs of CPU time where `balanced` chose the codec, at the default unit and at half of it: the unit is
//! read, verified and decoded, and one block of it used. What counts is the CPU time of Shale: looking the unit up, its checksum,
//! decoding, what it is copied, and keeping it. The kernel's part, the call that reads from the disk, is told beside it: no codec changes
//! it much.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use env::{AlignedBuf, Clock, Disk, DiskLayer, SystemClock};
use surface::{BlockDevice, WriteOptions};

use super::Kinds;
use crate::load::scattered;
use crate::report::Report;
use crate::world::World;
use crate::{Context, Outcome};

/// The default unit, and what databases may prefer.
const UNITS: [usize; 2] = [32 << 10, 16 << 10];
const BLOCK_BYTES: usize = 4 << 10;
const REQUEST: usize = 128 << 10;
/// Reads of each unit; what is cached is dropped in between.
const ROUNDS: usize = 7;
/// Most CPU time of a read, in microseconds.
const LIMIT_US: f64 = 40.0;
/// Order of the reads; any number.
const SEED: u64 = 4;

/// A disk that adds up the CPU time of its readers.
struct Measured {
    inner: Arc<dyn Disk>,
    read_ns: Arc<AtomicU64>,
    clock: SystemClock,
}

impl DiskLayer for Measured {
    fn below(&self) -> &dyn Disk {
        &*self.inner
    }
    fn read_at(&self, offset: u64, buf: &mut AlignedBuf, len: usize) -> std::io::Result<()> {
        let began = self.clock.thread_cpu_ns();
        let result = self.inner.read_at(offset, buf, len);
        self.read_ns.fetch_add(self.clock.thread_cpu_ns() - began, Ordering::Relaxed);
        result
    }
}

/// What a read costs.
struct Cost {
    /// CPU microseconds of Shale.
    shale_us: f64,
    /// The kernel's as well.
    all_us: f64,
    /// What the data is stored as.
    stored: String,
}

/// Of data of one kind, when the volume has seen as much of it before.
fn cost(context: &Context, name: &str, data: &[u8], unit_bytes: usize, compression: &str) -> Outcome<Cost> {
    let read_ns = Arc::new(AtomicU64::new(0));
    let layer = |inner| -> Arc<dyn Disk> {
        Arc::new(Measured { inner, read_ns: Arc::clone(&read_ns), clock: SystemClock::default() })
    };
    let dir = context.dir.join(format!("read-{name}-{compression}"));
    let world = World::create_layered(&dir, compression, &format!("{}K", unit_bytes >> 10), &layer)?;
    world.pool.create_volume("v", data.len() as u64, &engine::Properties::new())?;
    let volume = world.pool.volume("v")?;
    let data = Bytes::copy_from_slice(data);
    for _ in 0..2 {
        for at in (0..data.len()).step_by(REQUEST) {
            volume.write(at as u64, data.slice(at..(at + REQUEST).min(data.len())), WriteOptions::default())?;
        }
        volume.flush()?;
        world.pool.checkpoint()?;
    }
    let (regions, _) = world.pool.explain("v", 0, usize::MAX)?;
    let mut stored = std::collections::BTreeMap::<String, u64>::new();
    for used in regions.iter().flat_map(|region| &region.codecs) {
        *stored.entry(used.codec.clone()).or_default() += used.units;
    }
    let stored = stored.iter().map(|(codec, units)| format!("{codec} {units}")).collect::<Vec<_>>().join(", ");
    let clock = SystemClock::default();
    let units = (data.len() / unit_bytes) as u64;
    let mut order: Vec<u64> = (0..units).collect();
    for index in (1..order.len()).rev() {
        order.swap(index, scattered(index as u64, SEED, index as u64 + 1) as usize);
    }
    let (mut shale_us, mut all_us) = (f64::INFINITY, f64::INFINITY);
    let mut block = vec![0; BLOCK_BYTES];
    for round in 0..ROUNDS as u64 {
        world.pool.drop_caches();
        // The map's records are found again: looking them up is no matter of codecs.
        let (began, read_before) = (clock.thread_cpu_ns(), read_ns.load(Ordering::Relaxed));
        for unit in &order {
            let block_of = scattered(*unit, SEED + round, (unit_bytes / BLOCK_BYTES) as u64);
            volume.read(unit * unit_bytes as u64 + block_of * BLOCK_BYTES as u64, &mut block)?;
        }
        let all = clock.thread_cpu_ns() - began;
        let shale = all - (read_ns.load(Ordering::Relaxed) - read_before);
        all_us = all_us.min(all as f64 / 1e3 / units as f64);
        shale_us = shale_us.min(shale as f64 / 1e3 / units as f64);
    }
    drop(volume);
    world.close()?;
    Ok(Cost { shale_us, all_us, stored })
}

/// The rows.
pub fn run(context: &Context, kinds: &Kinds, report: &mut Report) -> Outcome<()> {
    let [default, half] = UNITS;
    let (us, with_kernel_us, how) = worst_kind(context, kinds, default)?;
    let name = "balanced, 4 KiB random read at the default unit: CPU time, worst kind";
    report.at_most(name, us, "us", LIMIT_US, &how)?;
    report.info(&format!("{name}, with the kernel's"), with_kernel_us, "us", &how)?;
    let (us, _, how) = worst_kind(context, kinds, half)?;
    let name = format!("balanced, 4 KiB random read of units of {} KiB: CPU time, worst kind", half >> 10);
    report.info(&name, us, "us", &how)
}

/// The most that a read takes over the kinds, also with the kernel's part, and how that was measured.
fn worst_kind(context: &Context, kinds: &Kinds, unit_bytes: usize) -> Outcome<(f64, f64, String)> {
    let (mut worst, mut worst_all) = ((0.0, String::new()), 0.0f64);
    println!("units of {} KiB", unit_bytes >> 10);
    println!("{:<12} {:>22} {:>22}", "kind", "raw", "balanced, with kernel");
    for (name, data) in kinds.names.iter().zip(&kinds.data) {
        let data = &data[..data.len() / unit_bytes * unit_bytes];
        let raw = cost(context, name, data, unit_bytes, "off")?;
        let auto = cost(context, name, data, unit_bytes, "auto")?;
        println!(
            "{name:<12} {:>8.1} {:>8.1} us {:>8.1} {:>8.1} us   {}",
            raw.shale_us, raw.all_us, auto.shale_us, auto.all_us, auto.stored
        );
        worst_all = worst_all.max(auto.all_us);
        if auto.shale_us > worst.0 {
            worst = (auto.shale_us, format!("{name} ({}; {:.1} us if stored raw)", auto.stored, raw.shale_us));
        }
    }
    let how = format!(
        "a read of 4 KiB of each {} KiB in random order through the engine, nothing cached; CPU time of the thread without the call \
         that reads from the disk: map, checksum, decoding, copies; mean over a kind that was written twice, least of {ROUNDS} rounds; the kind with the \
         largest: {}; `bench adaptive --only 'adaptive read'`",
        unit_bytes >> 10,
        worst.1
    );
    Ok((worst.0, worst_all, how))
}
