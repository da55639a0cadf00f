//! Everything that must hold of an open pool: its table, every byte of every volume, what is allocated, and what `check` says.

use std::collections::BTreeMap;

use engine::PropertySource;
use sim::Observed;
use surface::Allocation;

use super::{Failure, World};

/// Bytes read at a time.
const STEP: usize = 128 << 10;

impl World {
    /// Table, contents, allocation, `check`.
    pub fn verify(&mut self) -> Result<(), Failure> {
        self.verify_table()?;
        for name in self.model.names() {
            self.verify_volume(&name)?;
        }
        self.verify_check()
    }

    pub fn verify_table(&mut self) -> Result<(), Failure> {
        let volumes: BTreeMap<String, Observed> = self
            .pool()
            .volumes()
            .into_iter()
            .map(|v| (v.name, Observed { size_bytes: v.size_bytes, properties: v.properties }))
            .collect();
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
        let mut buf = vec![0xee; STEP];
        let mut offset = 0;
        while offset < size {
            let len = (size - offset).min(STEP as u64) as usize;
            device
                .read(offset, &mut buf[..len])
                .map_err(|e| self.fail(format!("read of {name} at {offset}+{len} failed: {e}")))?;
            let checked = self.model.check_read(name, offset, &buf[..len]);
            checked.map_err(|m| self.fail(m))?;
            offset += len as u64;
        }
        self.verify_allocation(name, 0, size)
    }

    /// Runs cover the range, alternate, and what they call a hole reads as zeroes.
    pub fn verify_allocation(&mut self, name: &str, offset: u64, len: u64) -> Result<(), Failure> {
        let device = self.device(name)?;
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
                if run.allocation == Allocation::Hole {
                    self.verify_hole(name, at, run.length)?;
                }
                at += run.length;
            }
        }
        Ok(())
    }

    fn verify_hole(&mut self, name: &str, offset: u64, len: u64) -> Result<(), Failure> {
        let zeroes = vec![0; STEP.min(len as usize)];
        let mut done = 0;
        while done < len {
            let step = (len - done).min(zeroes.len() as u64) as usize;
            let checked = self.model.check_read(name, offset + done, &zeroes[..step]);
            checked.map_err(|m| self.fail(format!("called a hole, but: {m}")))?;
            done += step as u64;
        }
        Ok(())
    }

    /// `check` finds nothing wrong.
    pub fn verify_check(&mut self) -> Result<(), Failure> {
        let report = self.pool().check(false, &mut |_, _| ()).map_err(|e| self.fail(format!("check failed: {e}")))?;
        if report.problems.is_empty() {
            return Ok(());
        }
        let problems: Vec<String> = report.problems.iter().take(5).map(|p| format!("{p:?}")).collect();
        Err(self.fail(format!("check found {} problems: {}", report.problems.len(), problems.join("; "))))
    }
}
