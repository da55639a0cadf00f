//! Energy counters of the processors (RAPL), through the kernel's powercap files. Only root may
//! read them, and most virtual machines have none.

use std::path::{Path, PathBuf};

use parking_lot::Mutex;

/// Where the kernel has them.
const POWERCAP: &str = "/sys/class/powercap";
/// Directories of whole zones begin so; those of their parts have a second colon.
const ZONE_PREFIX: &str = "intel-rapl:";
/// Names of the zones that are processors: others count the same energy again, or that of memory.
const PACKAGE: &str = "package";

/// One processor.
#[derive(Debug)]
struct Zone {
    energy: PathBuf,
    /// The counter wraps around after this value.
    range_uj: u64,
    last_uj: u64,
    used_uj: u64,
}

impl Zone {
    fn open(dir: &Path) -> Option<Self> {
        if !std::fs::read_to_string(dir.join("name")).ok()?.starts_with(PACKAGE) {
            return None;
        }
        let energy = dir.join("energy_uj");
        let (range_uj, last_uj) = (number(&dir.join("max_energy_range_uj"))?, number(&energy)?);
        Some(Self { energy, range_uj, last_uj, used_uj: 0 })
    }

    fn advance(&mut self) -> Option<u64> {
        let now = number(&self.energy)?;
        let used =
            if now >= self.last_uj { now - self.last_uj } else { self.range_uj.checked_sub(self.last_uj)? + now };
        (self.last_uj, self.used_uj) = (now, self.used_uj + used);
        Some(self.used_uj)
    }
}

fn number(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The energy of all processors together.
#[derive(Debug)]
pub struct Rapl {
    zones: Mutex<Vec<Zone>>,
}

impl Rapl {
    /// `None` when there are no counters, or they are not readable.
    pub fn open() -> Option<Self> {
        Self::open_at(Path::new(POWERCAP))
    }

    /// The same with files elsewhere.
    pub fn open_at(root: &Path) -> Option<Self> {
        let mut zones = Vec::new();
        for entry in std::fs::read_dir(root).ok()?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.strip_prefix(ZONE_PREFIX).is_some_and(|rest| !rest.contains(':')) {
                zones.extend(Zone::open(&entry.path()));
            }
        }
        (!zones.is_empty()).then(|| Self { zones: Mutex::new(zones) })
    }

    /// Microjoules since this was opened; `None` when a counter is no longer readable. Must be
    /// called at least once a minute: a counter that wrapped twice looks as if it had wrapped once.
    pub fn used_uj(&self) -> Option<u64> {
        let mut zones = self.zones.lock();
        zones.iter_mut().try_fold(0u64, |sum, zone| Some(sum.saturating_add(zone.advance()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::TempDir;

    #[test]
    fn packages_are_added_up_and_counters_go_round() {
        let root = TempDir::new("rapl");
        let zone = |dir: &str, name: &str, energy: u64| {
            let dir = root.path().join(dir);
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(dir.join("name"), format!("{name}\n")).unwrap();
            std::fs::write(dir.join("max_energy_range_uj"), "1000\n").unwrap();
            std::fs::write(dir.join("energy_uj"), format!("{energy}\n")).unwrap();
        };
        assert!(Rapl::open_at(root.path()).is_none(), "there is nothing");
        zone("intel-rapl:0:0", "core", 5);
        zone("intel-rapl-mmio:0", "package-0", 5);
        zone("intel-rapl:9", "psys", 5);
        assert!(Rapl::open_at(root.path()).is_none(), "no processor");
        zone("intel-rapl:0", "package-0", 900);
        zone("intel-rapl:1", "package-1", 10);
        let rapl = Rapl::open_at(root.path()).unwrap();
        assert_eq!(rapl.used_uj(), Some(0));
        zone("intel-rapl:0", "package-0", 950);
        zone("intel-rapl:1", "package-1", 30);
        assert_eq!(rapl.used_uj(), Some(70));
        zone("intel-rapl:0", "package-0", 50);
        assert_eq!(rapl.used_uj(), Some(170));
        std::fs::remove_file(root.path().join("intel-rapl:1/energy_uj")).unwrap();
        assert_eq!(rapl.used_uj(), None);
    }
}
