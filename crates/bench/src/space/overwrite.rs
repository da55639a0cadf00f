//! A volume that fills four fifths of its pool and is overwritten continuously: bytes written by
//! cleaning, speed and latency of the users' writes at the same time, and whether the data can
//! still be read sequentially afterwards.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use engine::{Pool, PoolStatus, Volume};
use surface::{BlockDevice, WriteOptions};
use units::format_size;

use super::{how, theory};
use crate::bench_pool::BenchPool;
use crate::load::{drive, scattered};
use crate::report::{Report, median, ratio_percent};
use crate::{Context, Outcome, baseline};

const BLOCK: u64 = units::BLOCK_BYTES as u64;
const REQUEST_BYTES: u64 = 128 << 10;
/// Share of the pool that is live.
pub const FULL: f64 = 0.8;
/// How much more than theory the log may write.
const THEORY_FACTOR: f64 = 1.15;
/// Writers at a time.
const WRITERS: usize = 8;
/// Overwrites, in volumes, until the state is steady, and while it is measured.
const SETTLE_VOLUMES: f64 = 3.0;
const STEADY_VOLUMES: (f64, f64) = (SETTLE_VOLUMES, 1.0);
/// The same of a turn, where two pools take turns.
const TURN_VOLUMES: (f64, f64) = (0.1, 0.3);
const TURNS: usize = 5;
/// A pool this many times as large needs no cleaning.
const ROOMY: u64 = 12;
/// Bytes of volumes sorted at once.
const SORT_SLICE_BYTES: u64 = 64 << 20;
/// Default codec of the overwritten data: the fastest, so that all other costs are most visible.
const CODEC: &str = "lz4";
const COLD_MODE: &str = "balanced";

fn capacity_bytes(context: &Context) -> u64 {
    context.pool_bytes.unwrap_or(if context.quick { 6 << 30 } else { 16 << 30 })
}

/// A volume of blocks of 4 KiB in a pool that it fills.
pub struct Aged {
    pub bench: BenchPool,
    pub volume: Arc<Volume>,
    pub blocks: u64,
}

impl Aged {
    fn close(self) -> Outcome<()> {
        drop(self.volume);
        self.bench.close()
    }
}

/// How a pool is filled.
#[derive(Clone, Copy)]
struct Filling<'a> {
    /// Its directory.
    name: &'a str,
    pool_bytes: u64,
    /// Bytes of the log that its volume takes.
    live_bytes: f64,
    compression: &'a str,
    cold_mode: &'a str,
}

impl Default for Filling<'_> {
    fn default() -> Self {
        Self { name: "pool", pool_bytes: 0, live_bytes: 0.0, compression: CODEC, cold_mode: "off" }
    }
}

/// A pool of `bytes` of which a volume takes the share `full`.
pub fn fill(context: &Context, bytes: u64, full: f64) -> Outcome<Aged> {
    fill_as(context, &Filling { pool_bytes: bytes, live_bytes: bytes as f64 * full, ..Filling::default() })
}

fn fill_as(context: &Context, filling: &Filling<'_>) -> Outcome<Aged> {
    let Filling { name, pool_bytes, live_bytes, compression, cold_mode } = *filling;
    let sample = context.corpus.data.len() as u64;
    let stored = baseline::compress(&context.corpus, CODEC.parse()?, BLOCK as usize, sample)?.stored_bytes;
    let blocks_for = |bytes: f64, block_bytes: f64| (bytes.max(0.0) / block_bytes) as u64 / 32 * 32;
    let mut blocks = blocks_for(live_bytes, stored as f64 * BLOCK as f64 / sample as f64);
    let bench = BenchPool::create_sized(&context.dir.join(name), compression, "4K", pool_bytes)?;
    let properties = engine::Properties::from([("cold-mode".to_owned(), cold_mode.to_owned())]);
    bench.pool.create_volume("v", 2 * blocks * BLOCK, &properties)?;
    let volume = bench.pool.volume("v")?;
    let order = |index: u64| index;
    write(context, &volume, blocks, 0, &order)?;
    bench.pool.checkpoint()?;
    // Otherwise the stored size would only be visible later.
    let live = bench.pool.status().live_bytes as f64;
    let missing = blocks_for(live_bytes - live, live / blocks as f64).min(blocks);
    write(context, &volume, missing, blocks, &order)?;
    blocks += missing;
    bench.pool.checkpoint()?;
    let status = bench.pool.status();
    println!(
        "filled: {} live in {} ({:.1} %)",
        format_size(status.live_bytes),
        format_size(status.capacity_bytes),
        100.0 * status.live_bytes as f64 / status.capacity_bytes as f64
    );
    Ok(Aged { bench, volume, blocks })
}

/// Result of a load of writes.
pub struct Written {
    pub per_second: f64,
    pub p99_us: f64,
}

impl Written {
    fn print(&self) {
        println!("{:.0} writes a second, p99 {:.1} us", self.per_second, self.p99_us);
    }
}

/// Writes `count` blocks of data unrelated to their places, numbered from `first`, each at the
/// place returned by `place`; prints a curve.
pub fn write(
    context: &Context,
    volume: &Arc<Volume>,
    count: u64,
    first: u64,
    place: &(dyn Fn(u64) -> u64 + Sync),
) -> Outcome<Written> {
    write_what(context, volume, count, first, place, &|number| scattered(number, 2, 1 << 40))
}

/// The same with the blocks of the data selected by `what`.
fn write_what(
    context: &Context,
    volume: &Arc<Volume>,
    count: u64,
    first: u64,
    place: &(dyn Fn(u64) -> u64 + Sync),
    what: &(dyn Fn(u64) -> u64 + Sync),
) -> Outcome<Written> {
    // Nanoseconds; capped at four seconds.
    let latencies: Mutex<Vec<u32>> = Mutex::default();
    let curve: Mutex<Vec<u64>> = Mutex::default();
    struct Mine<'a> {
        latencies: Vec<u32>,
        all: &'a Mutex<Vec<u32>>,
    }
    impl Drop for Mine<'_> {
        fn drop(&mut self) {
            if let Ok(mut all) = self.all.lock() {
                all.append(&mut self.latencies);
            }
        }
    }
    let began = Instant::now();
    let state = || Mine { latencies: Vec::new(), all: &latencies };
    let done = drive(WRITERS, count, f64::INFINITY, state, |mine, index| {
        let data = context.corpus.slice(what(first + index) * BLOCK, BLOCK as usize);
        let start = Instant::now();
        volume.write(place(first + index) * BLOCK, data, WriteOptions::default())?;
        mine.latencies.push(u32::try_from(start.elapsed().as_nanos()).unwrap_or(u32::MAX));
        if index.is_multiple_of(1024)
            && let Ok(mut curve) = curve.lock()
        {
            let second = began.elapsed().as_secs() as usize;
            let least = curve.len().max(second + 1);
            curve.resize(least, 0);
            curve[second] += 1024;
        }
        Ok(())
    })?;
    volume.flush()?;
    let curve = curve.into_inner().map_err(|e| e.to_string())?;
    println!("writes in each second, thousands: {:?}", curve.iter().map(|n| n / 1000).collect::<Vec<_>>());
    let mut latencies = latencies.into_inner().map_err(|e| e.to_string())?;
    latencies.sort_unstable();
    let p99 = latencies.get(latencies.len() * 99 / 100).copied().unwrap_or(0);
    Ok(Written { per_second: done.count as f64 / began.elapsed().as_secs_f64(), p99_us: f64::from(p99) / 1e3 })
}

/// Bytes of log per byte of users' fragments.
#[derive(Default)]
struct Amplification {
    log_bytes: u64,
    moved_bytes: u64,
    fragment_bytes: u64,
    cleaned_bytes: u64,
    checkpoints: u64,
}

impl Amplification {
    /// Adds the events between two states of a pool.
    fn add(&mut self, before: &PoolStatus, after: &PoolStatus) {
        self.log_bytes += after.log_bytes - before.log_bytes;
        self.moved_bytes += after.moved_bytes - before.moved_bytes;
        self.fragment_bytes += after.fragment_bytes - before.fragment_bytes;
        self.cleaned_bytes += (after.cleaned_extents - before.cleaned_extents) * after.extent_bytes;
        self.checkpoints += after.checkpoints + after.light_checkpoints - before.checkpoints - before.light_checkpoints;
    }

    /// Prints the parts of the figure and returns it.
    fn print(&self) -> f64 {
        let fragments = self.fragment_bytes.max(1) as f64;
        let (all, moved) = (self.log_bytes as f64 / fragments, self.moved_bytes as f64 / fragments);
        println!(
            "amplification {all:.3}: 1 + {moved:.3} moved + {:.3} headers and padding; {:.1} % of a cleaned extent lived, {} checkpoints",
            all - moved - 1.0,
            100.0 * self.moved_bytes as f64 / self.cleaned_bytes.max(1) as f64,
            self.checkpoints
        );
        all
    }
}

fn live_share(pool: &Pool) -> f64 {
    let status = pool.status();
    status.live_bytes as f64 / (status.extents_total * status.extent_bytes) as f64
}

/// A pool under overwrites: their distribution, the progress, and the results of the measured ones.
struct Load {
    aged: Aged,
    place: Box<dyn Fn(u64) -> u64 + Sync>,
    next: u64,
    amplification: Amplification,
    speeds: Vec<f64>,
    p99s: Vec<f64>,
}

impl Load {
    fn new(aged: Aged, place: impl Fn(u64) -> u64 + Sync + 'static) -> Self {
        let (speeds, p99s) = (Vec::new(), Vec::new());
        Self { aged, place: Box::new(place), next: 0, amplification: Amplification::default(), speeds, p99s }
    }

    /// Uniformly at random.
    fn uniform(aged: Aged) -> Self {
        let blocks = aged.blocks;
        Self::new(aged, move |index| scattered(index, 1, blocks))
    }

    /// Four fifths to a fifth of the blocks.
    fn skewed(aged: Aged) -> Self {
        let place = skewed_place(aged.blocks);
        Self::new(aged, place)
    }

    /// Overwrites as many blocks as the share `volumes` of the volume contains.
    fn overwrite(&mut self, context: &Context, volumes: f64) -> Outcome<Written> {
        let count = (self.aged.blocks as f64 * volumes) as u64;
        let first = self.next;
        self.next += count;
        write(context, &self.aged.volume, count, first, &self.place)
    }

    /// Overwrites until nothing changes any more (`warm` volumes), then measures. While another
    /// pool had its turn, this one could clean.
    fn measure(&mut self, context: &Context, (warm, measured): (f64, f64)) -> Outcome<Written> {
        self.overwrite(context, warm)?;
        let before = self.aged.bench.pool.status();
        let written = self.overwrite(context, measured)?;
        self.amplification.add(&before, &self.aged.bench.pool.status());
        written.print();
        self.speeds.push(written.per_second);
        self.p99s.push(written.p99_us);
        Ok(written)
    }
}

/// Uniformly random overwrites: write amplification against theory, speed and latency against a
/// pool that needs no cleaning. The two have turns, as the device has its moods.
pub fn uniform(context: &Context, report: &mut Report, compression: &str) -> Outcome<()> {
    let group = uniform_group(compression);
    let bytes = capacity_bytes(context);
    let filling = Filling { compression, live_bytes: bytes as f64 * FULL, ..Filling::default() };
    let mut full = Load::uniform(fill_as(context, &Filling { name: "full", pool_bytes: bytes, ..filling })?);
    full.overwrite(context, SETTLE_VOLUMES)?;
    let mut roomy = Load::uniform(fill_as(context, &Filling { name: "roomy", pool_bytes: ROOMY * bytes, ..filling })?);
    roomy.overwrite(context, 1.0)?;
    for _ in 0..TURNS {
        full.measure(context, TURN_VOLUMES)?;
        roomy.measure(context, TURN_VOLUMES)?;
    }
    let (amplification, plain) = (full.amplification.print(), roomy.amplification.print());
    let share = live_share(&full.aged.bench.pool);
    let bound = theory::write_amplification(share);
    let what = format!(
        "4 KiB overwrites, uniformly random, {WRITERS} writers, {:.1} % of the log live: theory {bound:.2} (u = exp(-(1 - u) / share), 1 / (1 - u))",
        100.0 * share
    );
    report.at_most(
        &format!("write amplification of the full log, uniform, {compression}, over theory"),
        amplification / bound,
        "x",
        THEORY_FACTOR,
        &how(context, &group, &what),
    )?;
    report.info(
        &format!("write amplification of the full log, uniform, {compression}"),
        amplification,
        "",
        &how(context, &group, &what),
    )?;
    let what = format!(
        "{:.0}/s with the cleaner at work, {:.0}/s in a pool {ROOMY} times as large (amplification {plain:.2}), {TURNS} turns of each, median of their ratios",
        median(&full.speeds),
        median(&roomy.speeds),
    );
    report.at_least(
        &format!("4 KiB random write at 80 % full, {compression}, of the same without cleaning"),
        ratio_percent(&full.speeds, &roomy.speeds),
        "%",
        45.0,
        &how(context, &group, &what),
    )?;
    let (cleaned, free) = (median(&full.p99s), median(&roomy.p99s));
    let what = format!("{cleaned:.1} us with the cleaner at work, {free:.1} us without, medians of the turns");
    report.at_most(
        &format!("p99 latency of a 4 KiB write at 80 % full, {compression}, of the same without cleaning"),
        cleaned / free,
        "x",
        4.0,
        &how(context, &group, &what),
    )?;
    full.aged.close()?;
    roomy.aged.close()?;
    ["full", "roomy"].iter().try_for_each(|name| std::fs::remove_dir_all(context.dir.join(name)).map_err(Into::into))
}

/// The group measured by [`uniform`].
pub fn uniform_group(compression: &str) -> String {
    format!("space uniform {compression}")
}

/// Place of the n-th write: four fifths of them go to a fifth of the blocks, spread over the whole
/// volume.
pub fn skewed_place(blocks: u64) -> impl Fn(u64) -> u64 + Sync {
    let fifth = blocks / 5;
    move |index| {
        if scattered(index, 3, 10) < 8 {
            return scattered(index, 1, fifth) * 5;
        }
        let cold = scattered(index, 1, 4 * fifth);
        cold / 4 * 5 + 1 + cold % 4
    }
}

/// Four fifths of the overwrites go to a fifth of the blocks: as written, against theory, and with
/// cold data recompressed as it moves. Only that can be below the theoretical bound, because it
/// makes the log less full.
pub fn skewed(context: &Context, report: &mut Report) -> Outcome<()> {
    let group = "space skewed";
    let bytes = capacity_bytes(context);
    for cold_mode in ["off", COLD_MODE] {
        let live_bytes = bytes as f64 * FULL;
        let aged = fill_as(context, &Filling { pool_bytes: bytes, live_bytes, cold_mode, ..Filling::default() })?;
        let mut load = Load::skewed(aged);
        let written = load.measure(context, STEADY_VOLUMES)?;
        let amplification = load.amplification.print();
        let share = live_share(&load.aged.bench.pool);
        let bound = theory::write_amplification_skewed(FULL, 0.2, 0.8);
        let what = format!(
            "4 KiB overwrites with {CODEC}, four fifths to a fifth of the blocks, cold-mode={cold_mode}, {:.0} % of the log live at first, {:.1} % in \
             the end, {:.0}/s; theory for the data live at first, with perfect knowledge of which blocks are hot: {bound:.2}",
            100.0 * FULL,
            100.0 * share,
            written.per_second
        );
        let how = how(context, group, &what);
        let name = format!("write amplification of the full log, 80/20 skew, cold-mode={cold_mode}");
        if cold_mode == "off" {
            report.info(&name, amplification, "", &how)?;
            report.info(&format!("{name}, over theory"), amplification / bound, "x", &how)?;
        } else {
            report.at_most(&name, amplification, "", 2.0, &how)?;
        }
        load.aged.close()?;
    }
    Ok(())
}

/// The benefit of recompressing cold data as it moves: the same loads with and without,
/// alternating.
pub fn cold(context: &Context, report: &mut Report) -> Outcome<()> {
    let group = "space cold data";
    let bytes = capacity_bytes(context);
    for (places, is_skewed) in [("four fifths to a fifth of the blocks", true), ("uniformly random", false)] {
        let mut came = Vec::new();
        for cold_mode in ["off", COLD_MODE] {
            let live_bytes = bytes as f64 * FULL;
            let aged = fill_as(context, &Filling { pool_bytes: bytes, live_bytes, cold_mode, ..Filling::default() })?;
            let mut load = if is_skewed { Load::skewed(aged) } else { Load::uniform(aged) };
            let written = load.measure(context, STEADY_VOLUMES)?;
            let pool = &load.aged.bench.pool;
            came.push((written, load.amplification.print(), live_share(pool)));
            let status = pool.status();
            println!(
                "cold-mode={cold_mode}: {} recompressed to {}",
                format_size(status.cold_before_bytes),
                format_size(status.cold_after_bytes)
            );
            load.aged.close()?;
        }
        let [(plain, amplification, share), (dense, less, dense_share)] = &came[..] else { continue };
        let what = format!(
            "4 KiB overwrites, {places}, written with {CODEC}, {:.0} % of the log filled at first; cold-mode off / {COLD_MODE}: amplification \
             {amplification:.2} / {less:.2}, {:.1} / {:.1} % of the log live in the end, {:.0} / {:.0} writes/s, p99 {:.1} / {:.1} us",
            100.0 * FULL,
            100.0 * share,
            100.0 * dense_share,
            plain.per_second,
            dense.per_second,
            plain.p99_us,
            dense.p99_us
        );
        let name = if is_skewed { "80/20 skew" } else { "uniform" };
        let how = how(context, group, &what);
        for (figure, value, unit) in [
            ("write amplification", *less, ""),
            ("live bytes, of those without", 100.0 * dense_share / share, "%"),
            ("writes a second, of those without", 100.0 * dense.per_second / plain.per_second, "%"),
        ] {
            report.info(&format!("cold-mode={COLD_MODE}, {name}: {figure}"), value, unit, &how)?;
        }
    }
    Ok(())
}

/// Sequential read of data that was written sequentially, then overwritten at random twenty times
/// over and cleaned.
pub fn locality(context: &Context, report: &mut Report) -> Outcome<()> {
    let group = "space locality";
    // Compressed, it fills about half of the pool.
    let bytes = context.pool_bytes.unwrap_or(if context.quick { 1 << 30 } else { 8 << 30 });
    let bench = BenchPool::create_sized(&context.dir.join("pool"), CODEC, "32K", bytes)?;
    bench.pool.create_volume("v", bytes, &engine::Properties::new())?;
    let volume = bench.pool.volume("v")?;
    for at in (0..bytes).step_by(REQUEST_BYTES as usize) {
        volume.write(at, context.corpus.slice(at, REQUEST_BYTES as usize), WriteOptions::default())?;
    }
    bench.pool.checkpoint()?;
    let fresh = read(&bench, &volume, bytes)?;
    let live_fresh = bench.pool.status().live_bytes;
    let blocks = bytes / BLOCK;
    // With the same data, so that the final content equals the fresh one, and compresses equally.
    let place = move |number| scattered(number, 1, blocks);
    write_what(context, &volume, 20 * blocks, 0, &place, &place)?;
    let worn = read(&bench, &volume, bytes)?;
    let live_worn = bench.pool.status().live_bytes;
    while !bench.pool.clean(true, u32::MAX)?.is_finished {}
    let cleaned = read(&bench, &volume, bytes)?;
    let began = Instant::now();
    let mut sorted = bench.pool.sort(SORT_SLICE_BYTES, true)?;
    while !sorted.is_finished {
        sorted = bench.pool.sort(SORT_SLICE_BYTES, false)?;
    }
    let sort_seconds = began.elapsed().as_secs_f64();
    while !bench.pool.clean(true, u32::MAX)?.is_finished {}
    let after = read(&bench, &volume, bytes)?;
    let what = format!(
        "{:.0} MB/s fresh, {:.0} after 20 x overwriting 4 KiB at random, {:.0} after `clean`, {:.0} after `clean --sort` ({} rewritten in {sort_seconds:.1} s, {} \
         live when fresh, {} worn, {} after)",
        fresh / 1e6,
        worn / 1e6,
        cleaned / 1e6,
        after / 1e6,
        format_size(sorted.rewritten_bytes),
        format_size(live_fresh),
        format_size(live_worn),
        format_size(bench.pool.status().live_bytes)
    );
    report.at_least(
        "sequential read after 20 x overwrite and clean --sort, of freshly written",
        100.0 * after / fresh,
        "%",
        80.0,
        &how(context, group, &what),
    )?;
    report.info(
        "sequential read after 20 x overwrite and clean without --sort, of freshly written",
        100.0 * cleaned / fresh,
        "%",
        &how(context, group, &what),
    )?;
    drop(volume);
    bench.close()
}

fn read(bench: &BenchPool, volume: &Arc<Volume>, bytes: u64) -> Outcome<f64> {
    bench.drop_caches()?;
    let state = || vec![0u8; REQUEST_BYTES as usize];
    let done =
        drive(16, bytes / REQUEST_BYTES, 60.0, state, |buf, index| Ok(volume.read(index * REQUEST_BYTES, buf)?))?;
    Ok(done.per_second() * REQUEST_BYTES as f64)
}
