//! Pools for benchmarks: a directory with a data file and a map, as the server makes them.

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use engine::{FormatOptions, Pool, PoolEnv, PoolOptions, Properties};
use env::{
    AlignedBuf, Disk, DiskLayer, EndedRead, FileDisk, FileStandby, FjallOptions, FjallStore, ReadRing, SystemClock,
    SystemEntropy,
};

use crate::Outcome;
use crate::load::cores;

/// A disk that adds up how long reads took, over all threads.
pub struct TimedDisk {
    inner: FileDisk,
    read_ns: AtomicU64,
    reads: AtomicU64,
}

impl TimedDisk {
    /// Reads, and nanoseconds that they took, so far.
    pub fn reads(&self) -> (u64, u64) {
        (self.reads.load(Ordering::Relaxed), self.read_ns.load(Ordering::Relaxed))
    }
}

impl DiskLayer for TimedDisk {
    fn below(&self) -> &dyn Disk {
        &self.inner
    }
    fn read_at(&self, offset: u64, buf: &mut AlignedBuf, len: usize) -> std::io::Result<()> {
        let began = Instant::now();
        let result = self.inner.read_at(offset, buf, len);
        self.read_ns.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
        self.reads.fetch_add(1, Ordering::Relaxed);
        result
    }
    fn read_ring(&self) -> Option<Box<dyn ReadRing + '_>> {
        Some(Box::new(TimedRing { disk: self, inner: self.inner.read_ring()?, begun: HashMap::new() }))
    }
}

/// The same for reads that are under way together.
struct TimedRing<'a> {
    disk: &'a TimedDisk,
    inner: Box<dyn ReadRing + 'a>,
    begun: HashMap<usize, Instant>,
}

impl ReadRing for TimedRing<'_> {
    fn begin(&mut self, tag: usize, offset: u64, buf: AlignedBuf, len: usize) {
        self.begun.insert(tag, Instant::now());
        self.inner.begin(tag, offset, buf, len);
    }
    fn wait(&mut self) -> Option<EndedRead> {
        let ended = self.inner.wait()?;
        if let Some(began) = self.begun.remove(&ended.tag) {
            self.disk.read_ns.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
            self.disk.reads.fetch_add(1, Ordering::Relaxed);
        }
        Some(ended)
    }
}

/// Makes another disk of one.
pub type Layer<'a> = &'a dyn Fn(Arc<dyn Disk>) -> Arc<dyn Disk>;

/// An open pool.
pub struct BenchPool {
    pub pool: Pool,
    pub disk: Arc<TimedDisk>,
    /// Its data file.
    pub data: PathBuf,
    /// Seconds that opening the map store took, before the pool itself.
    pub store_seconds: f64,
}

/// Bytes of a pool's data file: room for everything that a benchmark writes, sparse.
const CAPACITY_BYTES: u64 = 48 << 30;
/// Bytes of an extent: the default.
const EXTENT_BYTES: u32 = 1 << 20;
/// The server's default budget.
pub const MEMORY_BYTES: u64 = 512 << 20;

impl BenchPool {
    /// Creates a pool in `dir`, replacing everything there.
    pub fn create(dir: &Path, compression: &str, unit: &str) -> Outcome<Self> {
        Self::create_sized(dir, compression, unit, CAPACITY_BYTES)
    }

    /// The same, of another size.
    pub fn create_sized(dir: &Path, compression: &str, unit: &str, capacity_bytes: u64) -> Outcome<Self> {
        Self::create_on(dir, compression, unit, capacity_bytes, &|disk| disk, cores())
    }

    /// A pool with the default codec and unit in `dir`, with this capacity and memory.
    pub fn create_for(dir: &Path, capacity_bytes: u64, memory_bytes: u64) -> Outcome<Self> {
        drop(Self::create_sized(dir, "lz4", "32K", capacity_bytes)?.close());
        Self::open(dir, memory_bytes)
    }

    /// The same without any threads: everything happens in a fixed, repeatable order.
    pub fn create_alone(dir: &Path, compression: &str, unit: &str) -> Outcome<Self> {
        Self::create_on(dir, compression, unit, CAPACITY_BYTES, &|disk| disk, 0)
    }

    /// The same, on a layer over its disk.
    pub fn create_layered(dir: &Path, compression: &str, unit: &str, layer: Layer<'_>) -> Outcome<Self> {
        Self::create_on(dir, compression, unit, CAPACITY_BYTES, layer, cores())
    }

    fn create_on(
        dir: &Path,
        compression: &str,
        unit: &str,
        capacity_bytes: u64,
        layer: Layer<'_>,
        workers: usize,
    ) -> Outcome<Self> {
        recreate(dir)?;
        let disk = TimedDisk::new(FileDisk::create(&dir.join("data"), capacity_bytes)?);
        let store = FjallStore::create(&dir.join("map"), FjallOptions { memory_bytes: store_bytes(MEMORY_BYTES) })?;
        let mut environment = environment(disk.clone(), store);
        environment.disk = layer(environment.disk);
        let properties = Properties::from([("compression".into(), compression.into()), ("unit".into(), unit.into())]);
        let format = FormatOptions { capacity_bytes, extent_bytes: EXTENT_BYTES, properties };
        Pool::format(&environment, &format)?;
        Ok(Self {
            pool: Pool::open(environment, PoolOptions { workers, ..pool_options(MEMORY_BYTES) })?,
            disk,
            data: dir.join("data"),
            store_seconds: 0.0,
        })
    }

    /// Opens the pool in `dir` with a budget.
    pub fn open(dir: &Path, memory_bytes: u64) -> Outcome<Self> {
        Self::open_layered(dir, memory_bytes, &|disk| disk)
    }

    /// The same, with standby memory, as the server opens it.
    pub fn open_with_standby(dir: &Path, memory_bytes: u64) -> Outcome<Self> {
        let standby = FileStandby::new(Path::new("/dev/shm"), rustix::process::geteuid().as_raw());
        Self::open_with(dir, memory_bytes, &|disk| disk, Some(Arc::new(standby)))
    }

    /// The same without creating it, on a layer over its disk.
    pub fn open_layered(dir: &Path, memory_bytes: u64, layer: Layer<'_>) -> Outcome<Self> {
        Self::open_with(dir, memory_bytes, layer, None)
    }

    fn open_with(dir: &Path, memory_bytes: u64, layer: Layer<'_>, standby: Option<Arc<FileStandby>>) -> Outcome<Self> {
        let disk = TimedDisk::new(FileDisk::open(&dir.join("data"))?);
        let began = Instant::now();
        let store = FjallStore::open(&dir.join("map"), FjallOptions { memory_bytes: store_bytes(memory_bytes) })?;
        let store_seconds = began.elapsed().as_secs_f64();
        let mut environment = environment(disk.clone(), store);
        environment.disk = layer(environment.disk);
        let mut options = pool_options(memory_bytes);
        if let Some(standby) = standby {
            environment.standby = Some(standby);
            options.standby_bytes_max = usize::MAX;
        }
        let pool = Pool::open(environment, options)?;
        Ok(Self { pool, disk, data: dir.join("data"), store_seconds })
    }

    /// Closes the pool and lets its files go.
    pub fn close(self) -> Outcome<()> {
        Ok(self.pool.close()?)
    }

    /// Forgets all that is cached, in the pool and in the kernel.
    pub fn drop_caches(&self) -> Outcome<()> {
        self.pool.drop_caches();
        drop_page_cache()
    }
}

/// Environment for salvaging the pool whose data file is in `dir`, with a temporary store in
/// `temporary`.
pub fn salvage_environment(dir: &Path, temporary: &Path, memory_bytes: u64) -> Outcome<PoolEnv> {
    let store = FjallStore::create(temporary, FjallOptions { memory_bytes })?;
    Ok(environment(TimedDisk::new(FileDisk::open_read_only(&dir.join("data"))?), store))
}

impl TimedDisk {
    fn new(inner: FileDisk) -> Arc<Self> {
        Arc::new(Self { inner, read_ns: AtomicU64::new(0), reads: AtomicU64::new(0) })
    }
}

/// The map store's part of a budget, as the server divides it.
fn store_bytes(memory_bytes: u64) -> u64 {
    (memory_bytes / 8).clamp(FjallOptions::MEMORY_BYTES_MIN, 256 << 20)
}

fn pool_options(memory_bytes: u64) -> PoolOptions {
    let memory_bytes = memory_bytes - store_bytes(memory_bytes);
    // As the server sets it.
    PoolOptions { memory_bytes, workers: cores(), ..PoolOptions::default() }
}

fn environment(disk: Arc<TimedDisk>, store: FjallStore) -> PoolEnv {
    let store = Arc::new(store);
    let (clock, entropy) = (Arc::new(SystemClock::default()), Arc::new(SystemEntropy));
    PoolEnv { disk, store, clock, entropy, standby: None, origins: None }
}

/// Time that a file system mounted with `discard` needs to free the space of removed files. It does
/// so in the background once they are durably gone, and writes are several times slower until then,
/// which must not affect any measurement.
const SETTLE: Duration = Duration::from_secs(4);

/// Makes `dir` an empty directory, and waits until the removal no longer affects measurements.
pub fn recreate(dir: &Path) -> Outcome<()> {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(format!("cannot empty {}: {error}", dir.display()).into());
        }
        Err(_) => {}
        Ok(()) => {
            crate::command::run::<&str>("sync", &[])?;
            std::thread::sleep(SETTLE);
        }
    }
    std::fs::create_dir_all(dir).map_err(|e| format!("cannot create {}: {e}", dir.display()).into())
}

/// Drops the kernel's page cache.
pub fn drop_page_cache() -> Outcome<()> {
    let synced = std::process::Command::new("sync").status()?;
    if !synced.success() {
        return Err("sync failed".into());
    }
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .open("/proc/sys/vm/drop_caches")
        .map_err(|e| format!("cannot drop the page cache (root is needed): {e}"))?;
    file.write_all(b"3")?;
    Ok(())
}

/// Has a process use `bytes` of memory, in huge pages where the allocator takes them, and end:
/// later users then get memory that is really backed.
///
/// A hypervisor reclaims a guest's free memory, and the first use of such memory costs 2 to 10 us
/// for each 4 KiB: as much as everything else in a read. Which measurement pays for that would
/// depend on the ones before it.
///
/// # Errors
/// When the process fails.
pub fn back_memory(bytes: u64) -> Outcome<()> {
    let program = std::env::current_exe()?;
    crate::command::run(&program.to_string_lossy(), &["use-memory", &bytes.to_string()])?;
    Ok(())
}

/// Bytes that this process has caused to be written to storage.
pub fn written_bytes() -> Outcome<u64> {
    proc_number("/proc/self/io", "write_bytes:")
}

/// Resets the largest resident size so far, and returns the current one, in bytes.
pub fn reset_resident_bytes_max() -> Outcome<u64> {
    // See proc(5): 5 resets the peak.
    std::fs::write("/proc/self/clear_refs", "5")?;
    Ok(proc_number("/proc/self/status", "VmRSS:")? * 1024)
}

/// Largest resident size so far, in bytes.
pub fn resident_bytes_max() -> Outcome<u64> {
    Ok(proc_number("/proc/self/status", "VmHWM:")? * 1024)
}

/// Pages that this process has touched for the first time, so far.
pub fn page_faults() -> Outcome<u64> {
    let text = std::fs::read_to_string("/proc/self/stat")?;
    // See proc(5): the name may contain anything, and `minflt` is the eighth field after it.
    let fields = text.rsplit_once(')').map_or("", |(_, fields)| fields);
    Ok(fields.split_whitespace().nth(7).unwrap_or_default().parse()?)
}

fn proc_number(path: &str, key: &str) -> Outcome<u64> {
    let text = std::fs::read_to_string(path)?;
    let line = text.lines().find_map(|l| l.strip_prefix(key)).ok_or_else(|| format!("{path} has no {key}"))?;
    Ok(line.split_whitespace().next().unwrap_or_default().parse()?)
}
