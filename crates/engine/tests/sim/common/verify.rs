//! Everything that must hold for an open pool: its table, every byte of every volume, its
//! allocation, and the result of `check`.

use std::collections::BTreeMap;

use engine::{CheckReport, PropertySource};
use sim::Observed;
use surface::Allocation;

use super::lens::size_in_model;
use super::{Failure, World};

/// Bytes read at a time.
const STEP: usize = 128 << 10;
/// Volumes up to this size are read whole; of larger ones the allocated ranges, and samples of the
/// rest.
const READ_WHOLE_MAX: u64 = 2 << 20;

/// Blocks of rebuilt records, and older ones that show between them, that may have been discarded
/// or rolled back.
pub fn uncertain(report: &CheckReport) -> u64 {
    let told = |detail: &str| detail.split_once(" may have been discarded")?.0.rsplit(' ').next()?.parse::<u64>().ok();
    let records = report.problems.iter().filter(|p| p.kind == "record");
    records.map(|p| told(&p.detail).unwrap_or_else(|| panic!("no count: {p:?}"))).sum()
}

impl World {
    /// Opens a repaired pool: everything is there, and `check` finds no problem. Returns the
    /// maximum number of blocks of a volume that show discarded data.
    pub fn verify_mended(&mut self) -> Result<u64, Failure> {
        self.open()?;
        self.verify_table()?;
        let mut reappeared = 0;
        for name in self.model.all_names() {
            let device = self.device(&name)?;
            let size = self.model.size_bytes(&name);
            reappeared = reappeared.max(self.reappeared(&name, &*device, size)?);
        }
        self.verify_check()?;
        Ok(reappeared)
    }

    /// Table, contents, allocation, and half of the time `check`: it takes a checkpoint first, and
    /// so may heal a fault that it should find; the other half continues with the pool as opened.
    pub fn verify(&mut self) -> Result<(), Failure> {
        self.verify_table()?;
        for name in self.model.all_names() {
            self.verify_volume(&name)?;
        }
        if self.rng.coin() { self.verify_check() } else { Ok(()) }
    }

    pub fn verify_table(&mut self) -> Result<(), Failure> {
        let observed = |v: engine::VolumeStatus| {
            let (size_bytes, properties, epoch) = (size_in_model(v.size_bytes), v.properties, v.epoch);
            (v.name, Observed { size_bytes, properties, is_snapshot: false, epoch })
        };
        let mut volumes: BTreeMap<String, Observed> = self.pool().volumes().into_iter().map(observed).collect();
        let snapshots = self.pool().snapshots(None).map_err(|e| self.fail(format!("snapshots: {e}")))?;
        volumes.extend(snapshots.into_iter().map(|s| {
            let (size_bytes, properties) = (size_in_model(s.size_bytes), BTreeMap::new());
            let observed = Observed { size_bytes, properties, is_snapshot: true, epoch: 0 };
            (format!("{}@{}", s.volume, s.name), observed)
        }));
        volumes.extend(self.pool().folders().into_iter().map(|folder| {
            let observed = Observed { size_bytes: 0, properties: folder.properties, is_snapshot: false, epoch: 0 };
            (folder.name, observed)
        }));
        let properties = self.pool().properties(None).map_err(|e| self.fail(format!("properties: {e}")))?;
        let own =
            properties.into_iter().filter(|p| p.source == PropertySource::Pool).map(|p| (p.key, p.value)).collect();
        self.model.resolve(&volumes, &own).map_err(|what| self.fail(format!("the table of volumes is wrong: {what}")))
    }

    pub fn verify_volume(&mut self, name: &str) -> Result<(), Failure> {
        let device = self.device(name)?;
        let size = self.model.size_bytes(name);
        if device.size_bytes() != size {
            return Err(self.fail(format!("volume {name}: size {}, expected {size}", device.size_bytes())));
        }
        if size <= READ_WHOLE_MAX {
            self.verify_range(name, 0, size)?;
        } else {
            // Some holes, too.
            for _ in 0..4 {
                let offset = self.rng.below(size / 4096) * 4096;
                self.verify_range(name, offset, (size - offset).min(64 << 10))?;
            }
        }
        self.verify_allocation(name, 0, size)
    }

    fn verify_range(&mut self, name: &str, offset: u64, len: u64) -> Result<(), Failure> {
        let device = self.device(name)?;
        let mut buf = vec![0xee; STEP.min(len as usize)];
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let step = (end - at).min(STEP as u64) as usize;
            device
                .read(at, &mut buf[..step])
                .map_err(|e| self.fail(format!("read of {name} at {at}+{step} failed: {e}")))?;
            let checked = self.model.check_read(name, at, &buf[..step]);
            checked.map_err(|m| self.fail(m))?;
            at += step as u64;
        }
        Ok(())
    }

    /// Runs cover the range, alternate, and their holes read as zeroes.
    pub fn verify_allocation(&mut self, name: &str, offset: u64, len: u64) -> Result<(), Failure> {
        let device = self.device(name)?;
        let size = self.model.size_bytes(name);
        let runs_max = 1 + self.rng.index(40);
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let runs = device
                .allocation(at, end - at, runs_max)
                .map_err(|e| self.fail(format!("allocation of {name} at {at}+{}: {e}", end - at)))?;
            let sum: u64 = runs.iter().map(|r| r.length).sum();
            let alternate = runs.windows(2).all(|w| w[0].allocation != w[1].allocation);
            if runs.is_empty()
                || runs.len() > runs_max
                || runs.iter().any(|r| r.length == 0)
                || !alternate
                || sum > end - at
            {
                return Err(
                    self.fail(format!("allocation of {name} at {at}+{} in {runs_max} runs: {runs:?}", end - at))
                );
            }
            if sum < end - at && runs.len() < runs_max {
                return Err(self.fail(format!("allocation of {name} at {at}+{} ends early: {runs:?}", end - at)));
            }
            for run in runs {
                match run.allocation {
                    Allocation::Hole => self.verify_hole(name, at, run.length)?,
                    // Small volumes have been read already.
                    Allocation::Data if size > READ_WHOLE_MAX => self.verify_range(name, at, run.length)?,
                    Allocation::Data => {}
                }
                at += run.length;
            }
        }
        Ok(())
    }

    /// The whole blocks of a hole. Of blocks at the edges of the range that was asked for, only a
    /// part is known to be zeroes.
    fn verify_hole(&mut self, name: &str, offset: u64, len: u64) -> Result<(), Failure> {
        let from = offset.next_multiple_of(4096);
        let to = (offset + len) / 4096 * 4096;
        if from >= to {
            return Ok(());
        }
        let checked = self.model.check_zeroes(name, from, to - from);
        checked.map_err(|m| self.fail(format!("called a hole, but: {m}")))
    }

    /// `check` finds nothing wrong.
    pub fn verify_check(&mut self) -> Result<(), Failure> {
        let repair = self.resized;
        let report = self.pool().check(repair, &mut |_, _| ()).map_err(|e| self.fail(format!("check failed: {e}")))?;
        if report.problems.iter().all(|p| repair && p.kind == "superblock" && p.repaired) {
            return Ok(());
        }
        let problems: Vec<String> = report.problems.iter().take(5).map(|p| format!("{p:?}")).collect();
        Err(self.fail(format!("check found {} problems: {}", report.problems.len(), problems.join("; "))))
    }
}
