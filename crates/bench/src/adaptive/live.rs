//! `auto` in the engine: its cost on incompressible data, and its throughput on slow and fast
//! devices.

use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use bytes::Bytes;
use env::{AlignedBuf, Disk, DiskLayer};
use surface::{BlockDevice, WriteOptions};

use super::Kinds;
use crate::bench_pool::{BenchPool, page_faults};
use crate::load::cores;
use crate::report::{Report, median, ratio_percent};
use crate::{Context, Outcome};

const REQUEST: usize = 128 << 10;
/// Bytes written for one figure: quick, and in full.
const BYTES: (usize, usize) = (768 << 20, 2 << 30);
/// Bytes on a throttled device: it is slow.
const THROTTLED_BYTES: usize = 384 << 20;
/// Fixed codecs that `performance` is compared with: the default candidates but zstd-15 and
/// zstd-19, which take longer than any device.
const RIVALS: [&str; 6] = ["off", "lz4", "zstd-1", "zstd-3", "zstd-6", "zstd-9"];
const OURS: &str = "auto performance";

/// Settings compared on incompressible data. `off` twice: the mean of both is the reference for
/// `auto`, and their difference is the resolution. (With builds running at the same time, the CPU
/// time of the same 768 MiB differed by 11 and 17 % in the median of nine rounds.)
const AGAINST_OFF: [&str; 3] = ["off performance", OURS, "off performance"];
/// Rounds of that comparison: single runs differ by several per cent. Each setting takes each place
/// in the order equally often.
const ROUNDS_AGAINST_OFF: usize = 27;
/// Bytes written before the clock starts, more than a write buffer holds: untouched memory is
/// costly, and chance decides which pool gets memory that an earlier one has touched.
const WARM_UP_BYTES: usize = 512 << 20;
/// Bytes at the start of a data file that are always stored: the superblock's extent.
const KEPT_BYTES: u64 = 1 << 20;

/// A device that accepts everything immediately and discards it: measurements on it exclude any
/// file system.
pub struct Sink {
    inner: Arc<dyn Disk>,
}

impl DiskLayer for Sink {
    fn below(&self) -> &dyn Disk {
        &*self.inner
    }
    fn write_at(&self, offset: u64, buf: &AlignedBuf, len: usize) -> std::io::Result<()> {
        if offset < KEPT_BYTES { self.inner.write_at(offset, buf, len) } else { Ok(()) }
    }
}

/// A device with limited bandwidth.
pub struct Throttled {
    inner: Arc<dyn Disk>,
    bytes_per_second: f64,
    /// When it will have accepted all data so far.
    free_at: Mutex<Instant>,
}

impl Throttled {
    /// Around a disk.
    pub fn new(inner: Arc<dyn Disk>, bytes_per_second: f64) -> Self {
        Self { inner, bytes_per_second, free_at: Mutex::new(Instant::now()) }
    }
}

impl DiskLayer for Throttled {
    fn below(&self) -> &dyn Disk {
        &*self.inner
    }
    fn write_at(&self, offset: u64, buf: &AlignedBuf, len: usize) -> std::io::Result<()> {
        self.inner.write_at(offset, buf, len)?;
        let mut free_at = self.free_at.lock().map_err(|_| std::io::Error::other("a writer died"))?;
        let done = (*free_at).max(Instant::now()) + Duration::from_secs_f64(len as f64 / self.bytes_per_second);
        *free_at = done;
        drop(free_at);
        std::thread::sleep(done.saturating_duration_since(Instant::now()));
        Ok(())
    }
}

/// Result of writing.
#[derive(Debug, Clone, Copy)]
struct Written {
    seconds: f64,
    cpu_seconds: f64,
    /// Pages that were touched for the first time.
    faults: u64,
    ratio: f64,
}

impl Written {
    fn throughput(self, bytes: usize) -> f64 {
        bytes as f64 / self.seconds
    }
}

/// CPU seconds of this process.
pub fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Target of writing.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Device {
    /// The disk below the benchmark's directory.
    Real,
    /// One that accepts everything immediately.
    Sink,
    /// One with this bandwidth in bytes per second.
    Throttled(f64),
}

/// Writes `bytes` of the data, over and over, to a new pool.
fn write(dir: &Path, data: &Bytes, bytes: usize, compression: &str, device: Device) -> Outcome<Written> {
    write_warm(dir, data, 0..bytes, compression, device)
}

/// The same for a range of the volume; the part before it is written as well, but not measured.
fn write_warm(
    dir: &Path,
    data: &Bytes,
    range: std::ops::Range<usize>,
    compression: &str,
    device: Device,
) -> Outcome<Written> {
    let (codec, mode) = compression.split_once(' ').unwrap_or((compression, "balanced"));
    let layer = |disk: Arc<dyn Disk>| -> Arc<dyn Disk> {
        let sink = || Arc::new(Sink { inner: Arc::clone(&disk) });
        match device {
            Device::Real => disk,
            Device::Sink => sink(),
            Device::Throttled(bytes_per_second) => Arc::new(Throttled::new(sink(), bytes_per_second)),
        }
    };
    let bench = BenchPool::create_layered(dir, codec, "32K", &layer)?;
    bench.pool.set_properties(None, &[("mode".to_owned(), Some(mode.to_owned()))])?;
    bench.pool.create_volume("v", range.end as u64, &engine::Properties::new())?;
    let volume = bench.pool.volume("v")?;
    let write = |range: std::ops::Range<usize>| -> Outcome<()> {
        for at in range.step_by(REQUEST) {
            let from = at % (data.len() / REQUEST * REQUEST);
            volume.write(at as u64, data.slice(from..from + REQUEST), WriteOptions::default())?;
        }
        Ok(volume.flush()?)
    };
    write(0..range.start)?;
    let (began, cpu, faults) = (Instant::now(), cpu_seconds(), page_faults()?);
    write(range.clone())?;
    let (seconds, cpu_seconds, faults) = (began.elapsed().as_secs_f64(), cpu_seconds() - cpu, page_faults()? - faults);
    bench.pool.checkpoint()?;
    let status = bench.pool.status();
    drop(volume);
    bench.close()?;
    if device != Device::Real {
        // It is nearly empty: no run has to wait for the file system's work on it.
        std::fs::remove_dir_all(dir)?;
    }
    Ok(Written { seconds, cpu_seconds, faults, ratio: range.end as f64 / status.live_bytes.max(1) as f64 })
}

pub fn run(context: &Context, kinds: &Kinds, report: &mut Report) -> Outcome<()> {
    incompressible(context, kinds, report, false)?;
    incompressible(context, kinds, report, true)?;
    let devices = [Device::Throttled(100e6), Device::Throttled(1e9), Device::Real];
    for (name, to) in ["100 MB/s", "1 GB/s", "unthrottled"].into_iter().zip(devices) {
        device(context, kinds, report, name, to)?;
    }
    Ok(())
}

fn incompressible(context: &Context, kinds: &Kinds, report: &mut Report, loaded: bool) -> Outcome<()> {
    let Some(random) = kinds.names.iter().position(|name| name == "random") else { return Ok(()) };
    let data = Bytes::from(kinds.data[random].clone());
    let bytes = if context.quick { BYTES.0 } else { BYTES.1 };
    let dir = context.dir.join("pool");
    let _load = if loaded { Some(Load::start()?) } else { None };
    // The process pays for the first touch of its memory, which is excluded from all runs.
    let range = WARM_UP_BYTES..WARM_UP_BYTES + bytes;
    write_warm(&dir, &data, range.clone(), AGAINST_OFF[0], Device::Sink)?;
    let mut written: [Vec<Written>; AGAINST_OFF.len()] = Default::default();
    for round in 0..ROUNDS_AGAINST_OFF {
        for place in 0..AGAINST_OFF.len() {
            let who = (round + place) % AGAINST_OFF.len();
            let done = write_warm(&dir, &data, range.clone(), AGAINST_OFF[who], Device::Sink)?;
            let (seconds, cpu_seconds, faults) = (done.seconds, done.cpu_seconds, done.faults);
            println!("  {:<20} {seconds:.3} s, {cpu_seconds:.3} CPU s, {faults} page faults", AGAINST_OFF[who]);
            written[who].push(done);
        }
    }
    let [off, auto, again] = &written;
    type Figure = fn(&Written) -> f64;
    const CPU: Figure = |written| written.cpu_seconds;
    const SPEED: Figure = |written| 1.0 / written.seconds;
    let part = |of: Figure, list: &[Written]| list.iter().map(of).collect::<Vec<_>>();
    let base = |of: Figure| off.iter().zip(again).map(|(a, b)| f64::midpoint(of(a), of(b))).collect::<Vec<_>>();
    let percent = |of: Figure| ratio_percent(&part(of, auto), &base(of));
    let control = |of: Figure| ratio_percent(&part(of, again), &part(of, off));
    let state = if loaded { "loaded" } else { "idle" };
    let how = format!(
        "random bytes in requests of 128 KiB to a device that takes everything at once, so that nothing hides the cost of deciding, after {} that are not \
         measured; {:.2} CPU s with off; off against itself in the same rounds: {:.1} % CPU time, {:.1} % throughput; medians of ratios within each of \
         {ROUNDS_AGAINST_OFF} rounds, in turns; `bench adaptive --only 'adaptive engine'`",
        units::format_size(WARM_UP_BYTES as u64),
        median(&base(CPU)),
        control(CPU),
        control(SPEED)
    );
    let name = |what: &str| format!("performance, incompressible, {state}: {what} against off");
    report.at_most(&name("CPU time"), percent(CPU), "%", 102.0, &how)?;
    report.at_least(&name("throughput"), percent(SPEED), "%", 99.0, &how)
}

fn device(context: &Context, kinds: &Kinds, report: &mut Report, name: &str, to: Device) -> Outcome<()> {
    let data = Bytes::from(kinds.data.iter().flatten().copied().collect::<Vec<u8>>());
    let bytes = if matches!(to, Device::Throttled(speed) if speed < 500e6) { THROTTLED_BYTES } else { BYTES.0 };
    let dir = context.dir.join("pool");
    // In rotation: disturbances of the machine affect all of them.
    let contenders: Vec<&str> = RIVALS.into_iter().chain([OURS]).collect();
    let mut speeds = vec![Vec::new(); contenders.len()];
    let rounds = context.scale.rounds.min(3);
    for round in 0..rounds {
        for place in 0..contenders.len() {
            let who = (round + place) % contenders.len();
            let written = write(&dir, &data, bytes, contenders[who], to)?;
            println!(
                "  {name:<12} {:<20} {:>8.0} MB/s  ratio {:.2}  {:.2} CPU s",
                contenders[who],
                written.throughput(bytes) / 1e6,
                written.ratio,
                written.cpu_seconds
            );
            speeds[who].push(written.throughput(bytes));
        }
    }
    let speeds: Vec<f64> = speeds.iter().map(|each| median(each)).collect();
    let (ours, fixed) = (speeds[RIVALS.len()], &speeds[..RIVALS.len()]);
    let Some((most, rival)) = fixed.iter().copied().zip(RIVALS).max_by(|a, b| a.0.total_cmp(&b.0)) else {
        return Ok(());
    };
    let what = if to == Device::Real { "" } else { " to a device that does nothing but wait" };
    let all: Vec<String> =
        fixed.iter().zip(RIVALS).map(|(speed, codec)| format!("{codec} {:.0}", speed / 1e6)).collect();
    let how = format!(
        "the corpus in requests of 128 KiB{what}, {:.0} MB/s, against {rival}, the fastest of {}; medians of {rounds} rounds in turns; \
         `bench adaptive --only 'adaptive engine'`",
        ours / 1e6,
        all.join(", ")
    );
    let share = 100.0 * ours / most;
    report.at_least(
        &format!("performance, device {name}: throughput against the best fixed codec"),
        share,
        "%",
        90.0,
        &how,
    )
}

/// Processes that want all CPUs until dropped: other ones, because this one's CPU time is measured.
pub struct Load {
    children: Vec<std::process::Child>,
}

impl Load {
    /// One for each core.
    pub fn start() -> Outcome<Self> {
        let spin = || std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn();
        Ok(Self { children: (0..cores()).map(|_| spin()).collect::<std::io::Result<_>>()? })
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
