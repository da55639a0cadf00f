//! The document of an estimate: figures of the samples, and what a machine makes of them.

use std::collections::BTreeMap;

use policy::Power;
use report::{EstimateLine, EstimateReport, EstimateType, JobState, WriteBound};

use super::population::Population;
use super::settings::{How, Plan};
use super::statistics::{Estimate, Stratum, estimate};

/// Confidence level of the margins.
const CONFIDENCE: f64 = 0.95;

/// Possible deviation of `auto` from its measured saving, even if all data was examined: in a pool
/// it tests other units, and bases its choice on other time measurements. Up to 0.7 points were
/// observed.
const CHOICE: f64 = 0.01;

/// The same for one setting's result, limited to the savings possible.
fn choice_margin(found: &Estimate, helper: &Estimate) -> f64 {
    CHOICE.min(found.saving().max(helper.saving()).max(0.0))
}

/// Figures of the machine that would store the data.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Machine {
    /// Power of a busy CPU; none: it is measured meanwhile, or nominal.
    pub power: Option<Power>,
    /// CPUs that compression can get.
    pub cpus: Option<f64>,
    /// Speed of the device.
    pub device_bytes_per_s: Option<f64>,
}

impl Machine {
    /// Bytes of data a second, when the processors take `cpu_ns` for it, and the device moves
    /// `device_bytes`: the lesser of the two, which work at the same time, as far as either is
    /// known.
    fn speed(&self, data_bytes: f64, cpu_ns: f64, device_bytes: f64) -> Option<(f64, WriteBound)> {
        let cpu = self.cpus.filter(|_| cpu_ns > 0.0).map(|cpus| data_bytes * cpus * 1e9 / cpu_ns);
        let disk = self.device_bytes_per_s.filter(|_| device_bytes > 0.0).map(|rate| data_bytes * rate / device_bytes);
        match (cpu, disk) {
            (Some(cpu), Some(disk)) if cpu < disk => Some((cpu, WriteBound::Cpu)),
            (_, Some(disk)) => Some((disk, WriteBound::Disk)),
            (cpu, None) => cpu.map(|cpu| (cpu, WriteBound::Cpu)),
        }
    }
}

/// The samples, and how they were taken.
pub struct Sampled<'a> {
    /// By stratum of the population.
    pub strata: &'a [Stratum],
    /// Samples that could not be read.
    pub unreadable: u64,
    /// CPU nanoseconds to decode a byte of data, by setting; none: not measured.
    pub decode_ns: &'a [Option<f64>],
}

/// The largest margin of a setting that comes from sampling alone, as a share of the data.
pub fn sampling_margin(plan: &Plan, strata: &[Stratum]) -> f64 {
    let shown = plan.settings.iter().enumerate().filter(|(_, setting)| setting.shown);
    shown.map(|(index, _)| estimate(strata, index, plan.helper).margin).fold(0.0, f64::max)
}

/// Puts the estimates together.
pub fn document(
    population: &Population,
    plan: &Plan,
    sampled: &Sampled<'_>,
    machine: &Machine,
    power: Power,
) -> EstimateReport {
    let of = |strata: &[Stratum]| -> Vec<EstimateLine> {
        let estimates: Vec<Estimate> =
            (0..plan.settings.len()).map(|index| estimate(strata, index, plan.helper)).collect();
        let configured = plan.settings.iter().position(|setting| setting.configured);
        let read_speed = |index: usize| {
            let found = &estimates[index];
            let decode_ns = sampled.decode_ns.get(index).copied().flatten()? * found.raw_bytes;
            machine.speed(found.raw_bytes, decode_ns, found.stored_bytes).map(|(speed, _)| speed)
        };
        let shown = plan.settings.iter().enumerate().filter(|(_, setting)| setting.shown);
        shown
            .map(|(index, setting)| {
                let mut found = estimates[index];
                if matches!(setting.how, How::Auto(_)) {
                    found.margin = found.margin.hypot(choice_margin(&found, &estimates[plan.helper]));
                }
                let is_off = setting.how == How::Fixed(codec::Codec::Off);
                if is_off {
                    // The clock's own time.
                    found.cpu_ns = 0.0;
                }
                let read_factor = configured.and_then(read_speed).filter(|now| *now > 0.0);
                let read_factor = read_factor.zip(read_speed(index)).map(|(now, then)| hundredths(then / now));
                let rewritten = configured.and_then(|now| {
                    let moved = estimates[now].stored_bytes + found.stored_bytes;
                    let speed = machine.speed(found.raw_bytes, found.cpu_ns, moved);
                    speed.map(|(speed, _)| (found.raw_bytes / speed).ceil())
                });
                let line = line(setting.name.clone(), setting.configured, found, machine, power);
                EstimateLine { read_factor, rewrite_seconds: rewritten, ..line }
            })
            .collect()
    };
    let data = |strata: &[Stratum]| estimate(strata, plan.helper, plan.helper).raw_bytes.round() as u64;
    let types = population.strata.iter().zip(sampled.strata).map(|(stratum, sample)| {
        let alone = std::slice::from_ref(sample);
        EstimateType {
            word: stratum.word.clone(),
            files: stratum.files() as u64,
            size_bytes: stratum.size_bytes,
            data_bytes: data(alone),
            samples: sample.observations.len() as u64,
            settings: of(alone),
        }
    });
    let mut types: Vec<EstimateType> = types.collect();
    types.sort_by_key(|part| std::cmp::Reverse(part.data_bytes));
    let size_bytes: u64 = population.strata.iter().map(|stratum| stratum.size_bytes).sum();
    let data_bytes = data(sampled.strata);
    let observed = sampled.strata.iter().flat_map(|sample| &sample.observations);
    EstimateReport {
        object: None,
        path: None,
        assumed: BTreeMap::new(),
        job: None,
        state: JobState::Done,
        error: None,
        at_unix_s: host::unix_s(),
        files: population.strata.iter().map(|stratum| stratum.files() as u64).sum(),
        size_bytes,
        data_bytes,
        hole_bytes: (size_bytes - population.small.bytes).saturating_sub(data_bytes),
        small_files: population.small.files,
        small_bytes: population.small.bytes,
        unit_bytes: population.unit_bytes as u64,
        sampled_bytes: observed.map(|observation| observation.raw).sum::<f64>() as u64,
        unreadable_samples: sampled.unreadable,
        confidence: CONFIDENCE,
        cpu_watts: power.watts(),
        energy_source: power.source().name().to_owned(),
        cpus: machine.cpus.map(hundredths),
        device_bytes_per_s: machine.device_bytes_per_s.map(|rate| rate.round() as u64),
        settings: of(sampled.strata),
        types,
    }
}

/// A line, without the figures that need those of other settings.
fn line(setting: String, configured: bool, found: Estimate, machine: &Machine, power: Power) -> EstimateLine {
    let ratio = (found.stored_bytes > 0.0).then(|| found.raw_bytes / found.stored_bytes);
    let writes = machine.speed(found.raw_bytes, found.cpu_ns, found.stored_bytes);
    EstimateLine {
        setting,
        configured,
        saving_percent: hundredths(100.0 * found.saving()),
        margin_percent: found.margin.is_finite().then(|| hundredths(100.0 * found.margin)),
        ratio: ratio.map(hundredths),
        stored_bytes: found.stored_bytes.round() as u64,
        cpu_seconds: (found.cpu_ns / 1e6).round() / 1e3,
        mb_per_second: (found.cpu_ns > 0.0).then(|| hundredths(found.raw_bytes * 1e3 / found.cpu_ns)),
        joules: hundredths(power.joules(found.cpu_ns as u64)),
        write_mb_per_second: writes.map(|(speed, _)| hundredths(speed / 1e6)),
        write_bound: writes.map(|(_, bound)| bound),
        read_factor: None,
        rewrite_seconds: None,
    }
}

fn hundredths(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unbounded_margin_is_none() {
        let line = |margin| {
            let estimate = Estimate { raw_bytes: 1000.0, stored_bytes: 400.0, margin, cpu_ns: 1e9 };
            line("zstd-3".to_owned(), true, estimate, &Machine::default(), Power::NOMINAL)
        };
        assert_eq!((line(0.0123).margin_percent, line(0.0123).joules), (Some(1.23), 10.0));
        assert_eq!(line(f64::INFINITY).margin_percent, None);
    }

    #[test]
    fn the_slower_of_device_and_processors_bounds_writes() {
        let machine = |cpus, device_bytes_per_s| Machine { power: None, cpus, device_bytes_per_s };
        // 1 GB in 10 s of CPU time, stored as 400 MB.
        let speed = |machine: Machine| machine.speed(1e9, 10e9, 4e8);
        assert_eq!(speed(machine(Some(2.0), Some(1e8))), Some((2e8, WriteBound::Cpu)));
        assert_eq!(speed(machine(Some(4.0), Some(1e8))), Some((2.5e8, WriteBound::Disk)));
        assert_eq!(speed(machine(Some(4.0), None)), Some((4e8, WriteBound::Cpu)));
        assert_eq!(speed(machine(None, Some(1e8))), Some((2.5e8, WriteBound::Disk)));
        assert_eq!(speed(Machine::default()), None);
        // Data stored as it is costs no CPU time.
        assert_eq!(machine(Some(4.0), None).speed(1e9, 0.0, 1e9), None);
    }
}
