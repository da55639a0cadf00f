//! The bottlenecks of writers, as measured over the last moments: write throughput of the device,
//! CPU share of compression, throughput of the writers, compression speed. Owns the measurements;
//! the policy draws the conclusions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use env::{AlignedBuf, Clock, Disk, DiskLayer, ReadRing};
use policy::Pressure;
use store::base::ranked::Mutex;
use store::base::ranks;

/// Busy time of the device for one sample of its speed: some writes of a megabyte.
const DEVICE_SAMPLE_NS: u64 = 20_000_000;
/// Time for one sample of the demand.
const DEMAND_SAMPLE_NS: u64 = 200_000_000;
/// Weight of a new sample against the average of the old ones.
const WEIGHT: f64 = 0.25;
/// CPU nanoseconds that copying and checking a KiB take, raw: measured on the benchmark's machine.
/// It matters only in comparison with codecs, the fastest of which takes ten times as long.
const RAW_NS_PER_KIB: f64 = 120.0;
/// CPU time of a piece of work below which its share of the wall time is meaningless.
const STRETCH_CPU_NS_MIN: u64 = 200_000;

/// Longest time that draining a full write buffer may take: a flush of dirty data must not take
/// long, with any codec.
const DRAIN_NS_MAX: f64 = 4e9;

/// A number that any thread may replace; 0 is unknown.
#[derive(Default)]
struct Average(AtomicU64);

impl Average {
    fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }
    fn add(&self, sample: f64) {
        let old = self.get();
        let new = if old == 0.0 { sample } else { old + (sample - old) * WEIGHT };
        self.0.store(new.to_bits(), Ordering::Relaxed);
    }
}

#[derive(Default)]
struct Device {
    in_flight: u32,
    /// Since when at least one write is in flight.
    busy_since_ns: u64,
    busy_ns: u64,
    bytes: u64,
}

#[derive(Default)]
struct Demand {
    since_ns: u64,
    written_bytes: u64,
}

/// The measurements of a pool.
pub(crate) struct Meter {
    clock: Arc<dyn Clock>,
    /// Cores that compression could use exclusively.
    cpus: f64,
    device: Mutex<Device, ranks::Device>,
    device_ns_per_kib: Average,
    /// Wall time over CPU time while compressing: above 1 when others want the CPUs.
    stretch: Average,
    demand: Mutex<Demand, ranks::Demand>,
    demand_ns_per_kib: Average,
    /// Wall time of a worker for a batch of dirty data.
    drain_ns_per_kib: Average,
}

impl Meter {
    /// For a pool with so many workers.
    pub(crate) fn new(clock: Arc<dyn Clock>, workers: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            clock,
            cpus: workers.clamp(1, cores) as f64,
            device: Mutex::default(),
            device_ns_per_kib: Average::default(),
            stretch: Average::default(),
            demand: Mutex::default(),
            demand_ns_per_kib: Average::default(),
            drain_ns_per_kib: Average::default(),
        }
    }

    fn begin_write(&self) {
        let mut device = self.device.lock();
        if device.in_flight == 0 {
            device.busy_since_ns = self.clock.now_ns();
        }
        device.in_flight += 1;
    }

    fn end_write(&self, bytes: u64) {
        let now = self.clock.now_ns();
        let mut device = self.device.lock();
        device.in_flight = device.in_flight.saturating_sub(1);
        device.busy_ns += now.saturating_sub(device.busy_since_ns);
        device.busy_since_ns = now;
        device.bytes += bytes;
        if device.busy_ns >= DEVICE_SAMPLE_NS {
            if device.bytes > 0 {
                self.device_ns_per_kib.add(device.busy_ns as f64 * 1024.0 / device.bytes as f64);
            }
            (device.busy_ns, device.bytes) = (0, 0);
        }
    }

    /// Records that a thread compressed for so long.
    pub(crate) fn compressed(&self, wall_ns: u64, cpu_ns: u64) {
        if cpu_ns >= STRETCH_CPU_NS_MIN {
            self.stretch.add((wall_ns as f64 / cpu_ns as f64).clamp(1.0, 100.0));
        }
    }

    /// Records the bytes that writers have brought since the pool was opened.
    pub(crate) fn demanded(&self, written_bytes: u64) {
        let now = self.clock.now_ns();
        let Some(mut demand) = self.demand.try_lock() else { return };
        let (ns, bytes) = (now.saturating_sub(demand.since_ns), written_bytes.saturating_sub(demand.written_bytes));
        if ns < DEMAND_SAMPLE_NS {
            return;
        }
        if demand.since_ns > 0 && bytes > 0 {
            self.demand_ns_per_kib.add(ns as f64 * 1024.0 / bytes as f64);
        }
        *demand = Demand { since_ns: now.max(1), written_bytes };
    }

    /// Records that a worker has made a batch of so many dirty bytes in so long.
    pub(crate) fn drained(&self, bytes: u64, wall_ns: u64) {
        if bytes > 0 && wall_ns > 0 {
            self.drain_ns_per_kib.add(wall_ns as f64 * 1024.0 / bytes as f64);
        }
    }

    /// Returns the bytes that so many workers drain in the time that a flush may take.
    pub(crate) fn timely_bytes(&self, workers: usize) -> usize {
        match self.drain_ns_per_kib.get() {
            0.0 => usize::MAX,
            ns_per_kib => (DRAIN_NS_MAX * 1024.0 * workers.max(1) as f64 / ns_per_kib) as usize,
        }
    }

    /// The present estimates. `pressed`: writers wait, or nearly.
    pub(crate) fn pressure(&self, pressed: bool) -> Pressure {
        let stretch = self.stretch.get().max(1.0);
        Pressure {
            cpus: self.cpus / stretch,
            device_ns_per_kib: self.device_ns_per_kib.get(),
            raw_ns_per_kib: RAW_NS_PER_KIB,
            demand_ns_per_kib: self.demand_ns_per_kib.get(),
            pressed,
        }
    }
}

/// A disk whose writes are measured.
pub(crate) struct MeteredDisk {
    pub inner: Arc<dyn Disk>,
    pub meter: Arc<Meter>,
}

impl DiskLayer for MeteredDisk {
    fn below(&self) -> &dyn Disk {
        &*self.inner
    }
    fn read_ring(&self) -> Option<Box<dyn ReadRing + '_>> {
        self.inner.read_ring()
    }
    fn write_at(&self, offset: u64, buf: &AlignedBuf, len: usize) -> std::io::Result<()> {
        self.meter.begin_write();
        let result = self.inner.write_at(offset, buf, len);
        self.meter.end_write(if result.is_ok() { len as u64 } else { 0 });
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Hand(AtomicU64);

    impl Clock for Hand {
        fn now_ns(&self) -> u64 {
            self.0.load(Ordering::Relaxed)
        }
        fn unix_s(&self) -> u64 {
            0
        }
        fn thread_cpu_ns(&self) -> u64 {
            0
        }
    }

    fn meter() -> (Arc<Hand>, Meter) {
        let clock = Arc::new(Hand::default());
        (clock.clone(), Meter::new(clock, 2))
    }

    #[test]
    fn the_device_is_as_fast_as_it_is_while_it_is_busy() {
        let (clock, meter) = meter();
        assert_eq!(meter.pressure(false).device_ns_per_kib, 0.0);
        for _ in 0..50 {
            // Two concurrent writes of a megabyte, in 20 ms together; then a long pause, which is
            // not measured.
            meter.begin_write();
            meter.begin_write();
            clock.0.fetch_add(10_000_000, Ordering::Relaxed);
            meter.end_write(1 << 20);
            clock.0.fetch_add(10_000_000, Ordering::Relaxed);
            meter.end_write(1 << 20);
            clock.0.fetch_add(1_000_000_000, Ordering::Relaxed);
        }
        let found = meter.pressure(false).device_ns_per_kib;
        assert!((found - 20e6 / 2048.0).abs() < 1.0, "{found}");
    }

    #[test]
    fn a_loaded_machine_has_fewer_cpus_and_demand_is_measured_over_time() {
        let (clock, meter) = meter();
        let idle = meter.pressure(false).cpus;
        for _ in 0..50 {
            meter.compressed(2_000_000, 1_000_000);
            meter.compressed(50_000, 10);
        }
        assert!((meter.pressure(false).cpus - idle / 2.0).abs() < 0.01);
        for step in 0..100u64 {
            meter.demanded(step * 4096);
            clock.0.fetch_add(100_000_000, Ordering::Relaxed);
        }
        let found = meter.pressure(true).demand_ns_per_kib;
        assert!((found - 25_000_000.0).abs() < 1e5, "{found}");
    }

    #[test]
    fn what_may_be_dirty_follows_the_codec() {
        let (_, pace) = meter();
        assert_eq!(pace.timely_bytes(2), usize::MAX, "nothing is known");
        // 8 MiB a second and worker, then 512.
        pace.drained(1 << 20, 125_000_000);
        assert_eq!(pace.timely_bytes(2), 64 << 20);
        (0..40).for_each(|_| pace.drained(4 << 20, 4 * 1_953_125));
        let (found, exact) = (pace.timely_bytes(1) as f64, f64::from(1u32 << 31));
        assert!((found / exact - 1.0).abs() < 0.01, "{found}");
        pace.drained(0, 5);
        pace.drained(1, u64::MAX);
        assert!(pace.timely_bytes(usize::MAX) < usize::MAX);
    }
}
