//! CPU time of a random read of 4 KiB where `balanced` chose the codec, at the default unit and at
//! half of it: the unit is read, verified and decoded as far as necessary, and one block of it
//! used. Reported is the CPU time of Shale: lookup of the unit, its checksum, decoding, copies, and
//! caching. The kernel's part, the call that reads from the disk, is reported separately: no codec
//! changes it much.
//!
//! Twice: with more data than memory, so that the cache is full and nothing stays that is read only
//! once; and while the cache has room, so that whole units are decoded and kept for later reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::ThreadId;

use bytes::Bytes;
use env::{AlignedBuf, Clock, Disk, DiskLayer, SystemClock};
use surface::{BlockDevice, WriteOptions};

use super::Kinds;
use crate::bench_pool::BenchPool;
use crate::load::scattered;
use crate::report::Report;
use crate::{Context, Outcome};

/// The default unit, and one that databases may prefer.
const UNITS: [usize; 2] = [32 << 10, 16 << 10];
const BLOCK_BYTES: usize = 4 << 10;
const REQUEST: usize = 128 << 10;
/// Reads of each unit; the pool is reopened in between, or its cache is dropped.
const ROUNDS: usize = 7;
/// Memory of a pool whose cache is full: it has 6 MiB for decoded units.
const SMALL_MEMORY_BYTES: u64 = 48 << 20;
/// More than that cache holds.
const FILLER_BYTES: usize = 32 << 20;
/// Most CPU time of a read, in microseconds.
const LIMIT_US: f64 = 40.0;
/// Order of the reads; any number.
const SEED: u64 = 4;

/// A disk that sums up the CPU time of reads by this thread: read-ahead happens in other threads.
struct Measured {
    inner: Arc<dyn Disk>,
    read_ns: Arc<AtomicU64>,
    reader: ThreadId,
    clock: SystemClock,
}

impl DiskLayer for Measured {
    fn below(&self) -> &dyn Disk {
        &*self.inner
    }
    fn read_at(&self, offset: u64, buf: &mut AlignedBuf, len: usize) -> std::io::Result<()> {
        let began = self.clock.thread_cpu_ns();
        let result = self.inner.read_at(offset, buf, len);
        if std::thread::current().id() == self.reader {
            self.read_ns.fetch_add(self.clock.thread_cpu_ns() - began, Ordering::Relaxed);
        }
        result
    }
}

/// Cost of a read, in CPU microseconds.
#[derive(Clone, Copy)]
struct Cost {
    shale_us: f64,
    /// With the kernel's.
    all_us: f64,
}

impl Cost {
    const MOST: Self = Self { shale_us: f64::INFINITY, all_us: f64::INFINITY };

    fn least(self, other: Self) -> Self {
        Self { shale_us: self.shale_us.min(other.shale_us), all_us: self.all_us.min(other.all_us) }
    }
}

/// Costs of reads of data of one kind.
struct Costs {
    /// While the cache is full.
    full: Cost,
    /// While it has room.
    filling: Cost,
    /// Storage form of the data.
    stored: String,
}

/// Writes data in typical requests, makes it durable, and leaves no background work.
fn write(bench: &BenchPool, name: &str, data: &[u8], times: usize) -> Outcome<()> {
    bench.pool.create_volume(name, data.len() as u64, &engine::Properties::new())?;
    let volume = bench.pool.volume(name)?;
    let data = Bytes::copy_from_slice(data);
    for _ in 0..times {
        for at in (0..data.len()).step_by(REQUEST) {
            volume.write(at as u64, data.slice(at..(at + REQUEST).min(data.len())), WriteOptions::default())?;
        }
        volume.flush()?;
        bench.pool.checkpoint()?;
    }
    Ok(())
}

/// For data of one kind, when the volume has seen as much of it before.
fn costs(context: &Context, name: &str, data: &[u8], unit_bytes: usize, compression: &str) -> Outcome<Costs> {
    let read_ns = Arc::new(AtomicU64::new(0));
    let layer = |inner| -> Arc<dyn Disk> {
        let reader = std::thread::current().id();
        Arc::new(Measured { inner, read_ns: Arc::clone(&read_ns), reader, clock: SystemClock::default() })
    };
    let dir = context.dir.join(format!("read-{name}-{compression}"));
    let bench = BenchPool::create_layered(&dir, compression, &format!("{}K", unit_bytes >> 10), &layer)?;
    write(&bench, "v", data, 2)?;
    write(&bench, "filler", &data.iter().copied().cycle().take(FILLER_BYTES).collect::<Vec<_>>(), 1)?;
    let (regions, _) = bench.pool.explain("v", 0, usize::MAX)?;
    let mut stored = std::collections::BTreeMap::<String, u64>::new();
    for used in regions.iter().flat_map(|region| &region.codecs) {
        *stored.entry(used.codec.clone()).or_default() += used.units;
    }
    let stored = stored.iter().map(|(codec, units)| format!("{codec} {units}")).collect::<Vec<_>>().join(", ");
    let units = (data.len() / unit_bytes) as u64;
    let mut order: Vec<u64> = (0..units).collect();
    for index in (1..order.len()).rev() {
        order.swap(index, scattered(index as u64, SEED, index as u64 + 1) as usize);
    }
    let mut filling = Cost::MOST;
    for round in 0..ROUNDS {
        bench.pool.drop_caches();
        filling = filling.least(read(&bench, &order, unit_bytes, round, &read_ns)?);
    }
    bench.close()?;
    let mut full = Cost::MOST;
    for round in 0..ROUNDS {
        // Reopened, because a full cache keeps data that is read twice.
        let bench = BenchPool::open_layered(&dir, SMALL_MEMORY_BYTES, &layer)?;
        let (filler, mut block) = (bench.pool.volume("filler")?, vec![0; BLOCK_BYTES]);
        // Backwards, which is not a stream: its read-ahead does not stay cached.
        for at in (0..FILLER_BYTES).step_by(unit_bytes).rev() {
            filler.read(at as u64, &mut block)?;
        }
        drop(filler);
        full = full.least(read(&bench, &order, unit_bytes, round, &read_ns)?);
        bench.close()?;
    }
    Ok(Costs { full, filling, stored })
}

/// Reads a block of each unit.
fn read(bench: &BenchPool, order: &[u64], unit_bytes: usize, round: usize, read_ns: &AtomicU64) -> Outcome<Cost> {
    let (clock, volume, mut block) = (SystemClock::default(), bench.pool.volume("v")?, vec![0; BLOCK_BYTES]);
    // The map's records are found again: looking them up is no matter of codecs.
    let (began, read_before) = (clock.thread_cpu_ns(), read_ns.load(Ordering::Relaxed));
    for unit in order {
        let block_of = scattered(*unit, SEED + round as u64, (unit_bytes / BLOCK_BYTES) as u64);
        volume.read(unit * unit_bytes as u64 + block_of * BLOCK_BYTES as u64, &mut block)?;
    }
    let all = clock.thread_cpu_ns() - began;
    let shale = all - (read_ns.load(Ordering::Relaxed) - read_before);
    let each = |ns: u64| ns as f64 / 1e3 / order.len() as f64;
    Ok(Cost { shale_us: each(shale), all_us: each(all) })
}

/// The rows.
pub fn run(context: &Context, kinds: &Kinds, report: &mut Report) -> Outcome<()> {
    let [default, half] = UNITS;
    let [full, filling] = worst_kinds(context, kinds, default)?;
    let name = "balanced, 4 KiB random read at the default unit: CPU time, worst kind";
    report.at_most(name, full.cost.shale_us, "us", LIMIT_US, &full.how)?;
    report.info(&format!("{name}, with the kernel's"), full.cost.all_us, "us", &full.how)?;
    let name = "balanced, 4 KiB random read at the default unit, while the cache fills: CPU time, worst kind";
    report.at_most(name, filling.cost.shale_us, "us", LIMIT_US, &filling.how)?;
    report.info(&format!("{name}, with the kernel's"), filling.cost.all_us, "us", &filling.how)?;
    let [full, filling] = worst_kinds(context, kinds, half)?;
    let name = format!("balanced, 4 KiB random read of units of {} KiB: CPU time, worst kind", half >> 10);
    report.info(&name, full.cost.shale_us, "us", &full.how)?;
    report.info(&format!("{name}, while the cache fills"), filling.cost.shale_us, "us", &filling.how)
}

/// The kind that costs most.
struct Worst {
    cost: Cost,
    /// How that was measured.
    how: String,
}

/// While the cache is full, and while it has room.
fn worst_kinds(context: &Context, kinds: &Kinds, unit_bytes: usize) -> Outcome<[Worst; 2]> {
    const STATES: [&str; 2] = [
        "a cache of a few MiB is full, so that only the requested part of a unit is decoded",
        "nothing is cached, and there is room, so that whole units are decoded and kept",
    ];
    let mut worst = STATES.map(|_| (Cost { shale_us: 0.0, all_us: 0.0 }, String::new()));
    println!("units of {} KiB; the cache full (raw, balanced, with the kernel's), and filling", unit_bytes >> 10);
    for (name, data) in kinds.names.iter().zip(&kinds.data) {
        let data = &data[..data.len() / unit_bytes * unit_bytes];
        let raw = costs(context, name, data, unit_bytes, "off")?;
        let auto = costs(context, name, data, unit_bytes, "auto")?;
        println!(
            "{name:<12} {:>8.1} {:>8.1} {:>8.1} us   {:>8.1} {:>8.1} {:>8.1} us   {}",
            raw.full.shale_us,
            auto.full.shale_us,
            auto.full.all_us,
            raw.filling.shale_us,
            auto.filling.shale_us,
            auto.filling.all_us,
            auto.stored
        );
        for ((most, at), (ours, raw)) in worst.iter_mut().zip([(auto.full, raw.full), (auto.filling, raw.filling)]) {
            most.all_us = most.all_us.max(ours.all_us);
            if ours.shale_us > most.shale_us {
                most.shale_us = ours.shale_us;
                *at = format!("{name} ({}; {:.1} us if stored raw)", auto.stored, raw.shale_us);
            }
        }
    }
    let mut states = STATES.into_iter();
    Ok(worst.map(|(cost, at)| Worst {
        cost,
        how: format!(
            "a read of 4 KiB of each {} KiB in random order through the engine; {}; CPU time of the thread without the call \
             that reads from the disk: map, checksum, decoding, copies; mean over a kind that was written twice, least of {ROUNDS} rounds; the kind \
             with the largest: {at}; `bench adaptive --only 'adaptive read'`",
            unit_bytes >> 10,
            states.next().unwrap_or_default(),
        ),
    }))
}
