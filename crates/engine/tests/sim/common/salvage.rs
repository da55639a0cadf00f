//! Salvages the pool of a world from a copy of its disk alone, into a pool on a machine of its own,
//! and compares.

use std::collections::BTreeSet;

use engine::{Completeness, FormatOptions, Pool, PoolEnv, PoolOptions, SalvageReport, SalvageSource};
use sim::Machine;
use surface::{BlockDevice, Error};

use super::machine_env::env;
use super::{Failure, World};

/// Result of a salvage.
pub struct Salvaged {
    pub pool: Pool,
    pub report: SalvageReport,
    /// Kept because the pool lives on it.
    pub machine: Machine,
}

fn environment(disk: &Machine, rest: &Machine) -> PoolEnv {
    PoolEnv { disk: disk.disk.handle(), ..env(rest) }
}

/// Salvages the data on the disk of `old`, which no pool uses, without its map.
pub fn salvage(old: &Machine, disk_bytes: u64, seed: u64) -> Result<Salvaged, Error> {
    salvage_with(false, old, disk_bytes, seed)
}

/// The same, with its map.
pub fn salvage_with_map(old: &Machine, disk_bytes: u64, seed: u64) -> Result<Salvaged, Error> {
    salvage_with(true, old, disk_bytes, seed)
}

fn salvage_with(has_map: bool, old: &Machine, disk_bytes: u64, seed: u64) -> Result<Salvaged, Error> {
    let temporary = Machine::new(4096, seed);
    let new_bytes = 4 * disk_bytes + (16 << 20);
    let machine = Machine::new(new_bytes, seed);
    let env = environment(&machine, &machine);
    let extent_bytes = [64 << 10, 256 << 10, 1 << 20][seed as usize % 3];
    Pool::format(&env, &FormatOptions { capacity_bytes: new_bytes, extent_bytes, properties: Default::default() })?;
    let options = PoolOptions { memory_bytes: 1 << 20, workers: 0, ..PoolOptions::default() };
    let pool = Pool::open(env, options.clone())?;
    let before = old.power.next_point();
    let source = SalvageSource { id: None, map: has_map.then(|| self::env(old).store) };
    let report = pool.salvage_of(&source, &environment(old, &temporary), &options, &mut |_, done, total| {
        assert!(done <= total);
        Ok(())
    })?;
    assert_eq!(old.power.next_point(), before, "the pool that is salvaged must not change");
    Ok(Salvaged { pool, report, machine })
}

impl World {
    /// Flushes, and compares the log alone with the pool. A pool that cannot be flushed because it
    /// is full is skipped.
    pub fn verify_flushed_log(&mut self) -> Result<(), Failure> {
        if self.pool().flush().is_err() {
            return Ok(());
        }
        self.model.flushed_all();
        let had_catalogue = self.pool().status().catalogue_bytes > 0;
        self.verify_salvage(had_catalogue).map(drop)
    }

    /// The pool can be salvaged, and the result is as expected. Discarded blocks may show their
    /// former data, but no more of them than the report says. Returns how many did.
    ///
    /// Nothing is compared if the pool has no catalogue, or if the expected state is unknown.
    pub fn verify_salvage(&mut self, had_catalogue: bool) -> Result<u64, Failure> {
        let seed = self.rng.next_u64();
        let copy = self.machine.duplicate(seed);
        let has_map = self.rng.coin();
        let salvage = if has_map { salvage_with_map } else { salvage };
        let salvaged = salvage(&copy, self.shape.capacity_bytes.next_multiple_of(4096), seed)
            .map_err(|e| self.fail(format!("salvage: {e}")))?;
        let report = &salvaged.report;
        // After any crash, nothing is missing. Without the map, batches that a checkpoint had
        // listed and not made durable yet are in doubt.
        let is_doubtful = report.completeness == Completeness::InDoubt && !has_map && report.complete_before > 0;
        let is_there = matches!(report.completeness, Completeness::Complete | Completeness::UpTo);
        if !is_doubtful && (!is_there || report.missing_bytes > 0) {
            return Err(self.fail(format!("salvage misses something, map {has_map}: {report:?}")));
        }
        if !had_catalogue || self.model.is_in_doubt() {
            return Ok(0);
        }
        // The rest of an extent that was being punched looks like damage on the simulated disk. A
        // forgotten discard may show dead data from there: damage among uncertain data, where the
        // comparison expects zeroes.
        let damaged_bytes: u64 = report.volumes.iter().map(|v| v.damaged_bytes).max().unwrap_or(0);
        let is_damaged = damaged_bytes > report.uncertain_bytes || report.volumes.iter().any(|v| v.is_lost);
        if !report.has_catalogue || is_damaged || report.unreadable_bytes > 0 {
            return Err(self.fail(format!("salvage lost something: {report:?}")));
        }
        let found: BTreeSet<String> = report.volumes.iter().map(|v| v.name.clone()).collect();
        let expected: BTreeSet<String> = self.model.all_names().into_iter().collect();
        if found != expected {
            return Err(self.fail(format!("salvage found {found:?}, expected {expected:?}")));
        }
        let folders: Vec<String> = salvaged.pool.folders().into_iter().map(|folder| folder.name).collect();
        if folders != self.model.folders() {
            return Err(self.fail(format!("salvage found the folders {folders:?}, not {:?}", self.model.folders())));
        }
        let mut worst = 0;
        for name in expected {
            let device =
                super::lens::device(&salvaged.pool, &name).map_err(|e| self.fail(format!("salvaged {name}: {e}")))?;
            let size = self.model.size_bytes(&name);
            if device.size_bytes() != size {
                return Err(self.fail(format!("salvaged {name} has {} bytes, not {size}", device.size_bytes())));
            }
            let reappeared = self.reappeared(&name, &*device, size)?;
            let told = report.volumes.iter().find(|told| told.name == name).map_or(0, |told| told.uncertain_bytes);
            if (reappeared * 4096).min(size) > told {
                let text = format!("{reappeared} discarded blocks of {name} reappeared, more than {report:?} says");
                return Err(self.fail(text));
            }
            worst = worst.max(reappeared);
        }
        let check = salvaged.pool.check(false, &mut |_, _| ()).map_err(|e| self.fail(format!("check: {e}")))?;
        if !check.problems.is_empty() {
            return Err(self.fail(format!("the pool that was salvaged into: {:?}", check.problems)));
        }
        Ok(worst)
    }

    /// Blocks of a volume that hold something older than they must. Data that was never written
    /// there is an error.
    pub fn reappeared(&mut self, name: &str, device: &dyn BlockDevice, size: u64) -> Result<u64, Failure> {
        let mut model = self.model.clone();
        let mut count = 0;
        let mut at = 0;
        while at < size {
            // Large volumes are mostly holes.
            let runs = device.allocation(at, size - at, 64).map_err(|e| self.fail(format!("salvaged {name}: {e}")))?;
            for run in runs {
                if run.allocation == surface::Allocation::Hole {
                    if let Err(mismatch) = model.check_zeroes(name, at, run.length) {
                        return Err(self.fail(format!("salvaged: {mismatch}")));
                    }
                    at += run.length;
                    continue;
                }
                for offset in (at..at + run.length).step_by(4096) {
                    let mut buf = [0xee; 4096];
                    let buf = &mut buf[..(size - offset).min(4096) as usize];
                    device.read(offset, buf).map_err(|e| self.fail(format!("salvaged {name} at {offset}: {e}")))?;
                    if let Err(mismatch) = model.check_read(name, offset, buf) {
                        let was_discarded = model.check_zeroes(name, offset, 4096).is_ok();
                        // The model knows whole blocks: not the rest of the last one before the
                        // end.
                        let is_known = buf.len() < 4096 || self.model.is_known(offset / 4096, buf);
                        if !was_discarded || !is_known {
                            return Err(self.fail(format!("salvaged: {mismatch}")));
                        }
                        count += 1;
                    }
                }
                at += run.length;
            }
        }
        Ok(count)
    }
}
