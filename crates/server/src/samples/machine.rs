//! Samples of the machine: CPU time, memory, network, and the device below the data file, from
//! `/proc` and `/sys`. Owns the counts of the last sample. Figures that a machine lacks are
//! omitted.

use std::collections::BTreeMap;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use analytics::Dataset;

use super::{Row, grown};

/// Nanoseconds of a tick of `/proc/stat`: `USER_HZ` is 100 on all supported architectures.
const TICK_NS: u64 = 10_000_000;
/// Maximum number of sampled interfaces.
const INTERFACES_MAX: usize = 16;

/// See the module's text.
pub(super) struct Machine {
    device: Option<PathBuf>,
    before: BTreeMap<(Dataset, String), u64>,
    /// The first sample only initialises the counts: they are older than this server.
    is_begun: bool,
}

/// Returns the statistics file of the device that holds a file, or that is the file.
fn device_of(data: &Path) -> Option<PathBuf> {
    let facts = std::fs::metadata(data).ok()?;
    let number = if facts.file_type().is_block_device() { facts.rdev() } else { facts.dev() };
    let (major, minor) = (libc::major(number), libc::minor(number));
    let path = PathBuf::from(format!("/sys/dev/block/{major}:{minor}/stat"));
    path.exists().then_some(path)
}

impl Machine {
    pub(super) fn new(data: &Path) -> Self {
        Self { device: device_of(data), before: BTreeMap::new(), is_begun: false }
    }

    fn put(&mut self, row: &mut Row, dataset: Dataset, labels: &[&str], now: u64) {
        let is_new = !self.is_begun;
        let before = self.before.entry((dataset, labels.join("/"))).or_insert(if is_new { now } else { 0 });
        row.put(dataset, labels, 0, grown(before, now));
    }

    pub(super) fn sample(&mut self, row: &mut Row) {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        for (who, ns) in cpu_of(&read("/proc/stat")) {
            self.put(row, Dataset::CPU, &[who], ns);
        }
        self.put(row, Dataset::CPU, &["server"], process_cpu_ns());
        for (interface, received, sent) in network_of(&read("/proc/net/dev")) {
            self.put(row, Dataset::NETWORK, &[&interface, "received"], received);
            self.put(row, Dataset::NETWORK, &[&interface, "sent"], sent);
        }
        let device = self.device.as_ref().and_then(|path| std::fs::read_to_string(path).ok());
        if let Some((busy, waited)) = device.as_deref().and_then(device_times) {
            self.put(row, Dataset::DEVICE, &["busy"], busy);
            self.put(row, Dataset::DEVICE, &["waited"], waited);
        }
        row.put(Dataset::MEMORY, &["server"], 0, host::resident_bytes());
        for (kind, bytes) in memory_of(&read("/proc/meminfo")) {
            row.put(Dataset::MEMORY, &[kind], 0, bytes);
        }
        self.is_begun = true;
    }
}

fn process_cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// Returns CPU time of the machine by state.
fn cpu_of(stat: &str) -> Vec<(&'static str, u64)> {
    let line = stat.lines().find(|line| line.starts_with("cpu "));
    let ticks: Vec<u64> = line
        .into_iter()
        .flat_map(|line| line.split_whitespace().skip(1))
        .filter_map(|word| word.parse().ok())
        .collect();
    let at = |place: usize| ticks.get(place).copied().unwrap_or(0) * TICK_NS;
    if ticks.len() < 7 {
        return Vec::new();
    }
    vec![("user", at(0) + at(1)), ("system", at(2) + at(5) + at(6)), ("idle", at(3)), ("iowait", at(4))]
}

/// Returns bytes received and sent by interface.
fn network_of(table: &str) -> Vec<(String, u64, u64)> {
    let row = |line: &str| {
        let (name, counts) = line.split_once(':')?;
        let counts: Vec<u64> = counts.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        Some((name.trim().to_owned(), *counts.first()?, *counts.get(8)?))
    };
    table
        .lines()
        .skip(2)
        .filter_map(row)
        .filter(|(_, received, sent)| received + sent > 0)
        .take(INTERFACES_MAX)
        .collect()
}

/// Returns the nanoseconds that a device was busy, and that requests waited.
fn device_times(stat: &str) -> Option<(u64, u64)> {
    let ms: Vec<u64> = stat.split_whitespace().map_while(|word| word.parse().ok()).collect();
    let ns = |place: usize| ms.get(place).map(|ms| ms.saturating_mul(1_000_000));
    Some((ns(9)?, ns(10)?))
}

fn memory_of(table: &str) -> Vec<(&'static str, u64)> {
    let of = |name: &str| {
        let line = table.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
    };
    let kinds = [("total", "MemTotal:"), ("available", "MemAvailable:")];
    kinds.into_iter().filter_map(|(kind, name)| Some((kind, of(name)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_the_kernel_are_read() {
        let stat = "cpu  10 2 30 400 5 6 7 0 0 0\ncpu0 1 1 1 1 1 1 1 0 0 0\n";
        let expected = [("user", 12), ("system", 43), ("idle", 400), ("iowait", 5)];
        assert_eq!(cpu_of(stat), expected.map(|(who, ticks)| (who, ticks * TICK_NS)));
        assert!(cpu_of("intr 1").is_empty());
        let network =
            "Inter-|\n face |bytes\n    lo: 100 1 0 0 0 0 0 0 200 1 0 0 0 0 0 0\n  eth0: 0 0 0 0 0 0 0 0 0 0 0\n";
        assert_eq!(network_of(network), [("lo".to_owned(), 100, 200)]);
        assert_eq!(device_times("1 2 3 4 5 6 7 8 9 10 11"), Some((10_000_000, 11_000_000)));
        assert_eq!(device_times("1 2 x"), None);
        let memory = "MemTotal:       8 kB\nMemFree:  1 kB\nMemAvailable:   4 kB\n";
        assert_eq!(memory_of(memory), [("total", 8192), ("available", 4096)]);
    }

    #[test]
    fn the_first_look_learns_and_the_next_one_counts() {
        let mut machine = Machine::new(Path::new("/dev/null"));
        let (mut first, mut second) = (Row::default(), Row::default());
        machine.sample(&mut first);
        let sum: u64 = (0..3_000_000u64).fold(0, |sum, number| std::hint::black_box(sum ^ number));
        machine.sample(&mut second);
        let of = |row: &Row| row.0.iter().filter(|s| s.key.dataset == Dataset::CPU).map(|s| s.value).sum::<u64>();
        assert_eq!(of(&first), 0, "what the machine did before does not count ({sum})");
        assert!(second.0.iter().any(|s| s.key.dataset == Dataset::CPU && s.key.label("who") == Some("server")));
    }
}
