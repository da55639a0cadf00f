//! `auto` in the engine: what it costs on data that cannot be compressed, and what it lets through on slow and fast devices.

use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use bytes::Bytes;
use env::{AlignedBuf, Disk, DiskLayer};
use surface::{BlockDevice, WriteOptions};

use super::Kinds;
use crate::load::cores;
use crate::report::{Report, ratio_percent};
use crate::world::World;
use crate::{Context, Outcome};

const REQUEST: usize = 128 << 10;
/// Bytes written for one figure: quick, and in full.
const BYTES: (usize, usize) = (768 << 20, 2 << 30);
/// Bytes on a throttled device: it is slow.
const THROTTLED_BYTES: usize = 384 << 20;
/// Fixed codecs that `performance` is compared with.
const RIVALS: [&str; 4] = ["off", "lz4", "zstd-1", "zstd-3"];

/// Rounds of what is compared with `off`: what one run takes differs by several per cent from the next.
const ROUNDS_OF_PAIRS: usize = 9;
/// Bytes at the start of a data file that are kept in any case: the superblock's extent.
const KEPT_BYTES: u64 = 1 << 20;

/// A device that takes everything at once and forgets it: what is measured on it is Shale's alone, and no file system's.
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

/// A device that takes so many bytes a second and no more.
pub struct Throttled {
    inner: Arc<dyn Disk>,
    bytes_per_second: f64,
    /// When it will have taken what it was given.
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

/// What writing came to.
#[derive(Debug, Clone, Copy)]
struct Written {
    seconds: f64,
    cpu_seconds: f64,
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

/// What is written to.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Device {
    /// The disk below the benchmark's directory.
    Real,
    /// One that takes everything at once.
    Sink,
    /// One that takes so many bytes a second.
    Throttled(f64),
}

/// Writes `bytes` of the data, over and over, to a new pool.
fn write(dir: &Path, data: &Bytes, bytes: usize, compression: &str, device: Device) -> Outcome<Written> {
    let (codec, mode) = compression.split_once(' ').unwrap_or((compression, "balanced"));
    let layer = |disk: Arc<dyn Disk>| -> Arc<dyn Disk> {
        let sink = || Arc::new(Sink { inner: Arc::clone(&disk) });
        match device {
            Device::Real => disk,
            Device::Sink => sink(),
            Device::Throttled(bytes_per_second) => Arc::new(Throttled::new(sink(), bytes_per_second)),
        }
    };
    let world = World::create_layered(dir, codec, "32K", &layer)?;
    world.pool.set_properties(None, &[("mode".to_owned(), Some(mode.to_owned()))])?;
    world.pool.create_volume("v", bytes as u64, &engine::Properties::new())?;
    let volume = world.pool.volume("v")?;
    let (began, cpu) = (Instant::now(), cpu_seconds());
    for at in (0..bytes).step_by(REQUEST) {
        let from = at % (data.len() / REQUEST * REQUEST);
        volume.write(at as u64, data.slice(from..from + REQUEST), WriteOptions::default())?;
    }
    volume.flush()?;
    let written = Written { seconds: began.elapsed().as_secs_f64(), cpu_seconds: cpu_seconds() - cpu, ratio: 0.0 };
    world.pool.checkpoint()?;
    let status = world.pool.status();
    drop(volume);
    world.close()?;
    if device != Device::Real {
        // There is next to nothing in it: nobody has to wait for what the file system does with it.
        std::fs::remove_dir_all(dir)?;
    }
    Ok(Written { ratio: bytes as f64 / status.live_bytes.max(1) as f64, ..written })
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
    let (mut off, mut auto) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS_OF_PAIRS {
        // Neither is always the first.
        for is_off in [round % 2 == 0, round % 2 != 0] {
            let (list, compression) = if is_off { (&mut off, "off") } else { (&mut auto, "auto performance") };
            list.push(write(&dir, &data, bytes, compression, Device::Sink)?);
        }
    }
    let part = |of: fn(Written) -> f64, list: &[Written]| list.iter().map(|w| of(*w)).collect::<Vec<_>>();
    let cpu = ratio_percent(&part(|w| w.cpu_seconds, &auto), &part(|w| w.cpu_seconds, &off));
    let speed = ratio_percent(&part(|w| 1.0 / w.seconds, &auto), &part(|w| 1.0 / w.seconds, &off));
    let state = if loaded { "loaded" } else { "idle" };
    let how = "random bytes in requests of 128 KiB to a device that takes everything at once, so that nothing hides what deciding costs; medians of ratios of \
               neighbouring runs; `bench adaptive --only 'adaptive engine'`";
    report.at_most(&format!("performance, incompressible, {state}: CPU time against off"), cpu, "%", 102.0, how)?;
    report.at_least(&format!("performance, incompressible, {state}: throughput against off"), speed, "%", 99.0, how)
}

fn device(context: &Context, kinds: &Kinds, report: &mut Report, name: &str, to: Device) -> Outcome<()> {
    let data = Bytes::from(kinds.data.iter().flatten().copied().collect::<Vec<u8>>());
    let bytes = if matches!(to, Device::Throttled(speed) if speed < 500e6) { THROTTLED_BYTES } else { BYTES.0 };
    let dir = context.dir.join("pool");
    let mut best: Option<(f64, &str)> = None;
    for rival in RIVALS {
        let written = write(&dir, &data, bytes, rival, to)?;
        println!(
            "  {name:<12} {rival:<20} {:>8.0} MB/s  ratio {:.2}  {:.2} CPU s",
            written.throughput(bytes) / 1e6,
            written.ratio,
            written.cpu_seconds
        );
        if best.is_none_or(|(most, _)| written.throughput(bytes) > most) {
            best = Some((written.throughput(bytes), rival));
        }
    }
    let mut ours = Vec::new();
    for _ in 0..context.scale.rounds.min(3) {
        let written = write(&dir, &data, bytes, "auto performance", to)?;
        println!(
            "  {name:<12} {:<20} {:>8.0} MB/s  ratio {:.2}  {:.2} CPU s",
            "auto performance",
            written.throughput(bytes) / 1e6,
            written.ratio,
            written.cpu_seconds
        );
        ours.push(written.throughput(bytes));
    }
    let Some((most, rival)) = best else { return Ok(()) };
    let what = if to == Device::Real { "" } else { " to a device that does nothing but wait" };
    let how = format!("the corpus in requests of 128 KiB{what}, against {rival}, the fastest of {}", RIVALS.join(", "));
    let share = 100.0 * crate::report::median(&ours) / most;
    report.at_least(
        &format!("performance, device {name}: throughput against the best fixed codec"),
        share,
        "%",
        90.0,
        &how,
    )
}

/// Processes that want all CPUs until dropped: other ones, because this one's CPU time is measured.
struct Load {
    children: Vec<std::process::Child>,
}

impl Load {
    fn start() -> Outcome<Self> {
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
