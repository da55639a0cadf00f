//! What data would take if it were stored: saving with an error bar, CPU time and speed for each
//! setting, from samples.
//!
//! 1. `population` lists what there is: files, images, devices, a volume; cut into windows of one
//!    unit, those that are holes left out; grouped by type of file into strata.
//! 2. `draw` picks windows: each stratum is divided into as many strips as it gets samples, in the
//!    order of its files, and one window is drawn from each strip at random.
//! 3. If units are small enough for dictionaries, `dictionaries` trains some, as a volume does.
//! 4. `meter` compresses each drawn window with every setting, through the same code as a pool
//!    does; slow settings get every eighth window only.
//! 5. `statistics` makes estimates with confidence intervals of it, `report` the document.
//!
//! Nothing is written, and memory does not grow with the amount of data but with the number of
//! files.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod dictionaries;
mod draw;
mod meter;
mod population;
mod report;
mod settings;
mod statistics;

pub use meter::rule_holds;
pub use population::{Population, Scanned};
pub use report::{Line, Report, TypeReport};
pub use settings::{CODECS_DEFAULT, Plan};

use env::{Clock, Rapl, SystemClock};
use policy::Power;
use surface::{Error, ErrorKind, Result};

/// What is read unless told otherwise: a margin of about one point where units differ as much as
/// files of all kinds do.
const SAMPLE_BYTES: u64 = 128 << 20;
/// Most samples unless told otherwise: each costs a seek where the disk has heads.
const SAMPLES_MAX: u64 = 8192;

/// Bytes to read, unless told otherwise, in units of `unit_bytes`.
pub fn sample_bytes_default(unit_bytes: usize) -> u64 {
    SAMPLE_BYTES.min(SAMPLES_MAX * unit_bytes as u64)
}

/// Samples that a setting compresses before the next one's turn: at most 4 MiB.
const BATCH_SAMPLES: usize = 32;
/// Samples that are compressed once before anything counts.
const WARM_UP_SAMPLES: usize = 48;

/// Samples that each stratum gets at least, if it has as many windows: fewer tell nothing of it.
const STRATUM_SAMPLES_MIN: u64 = 24;

/// Draws, measures, and estimates. `progress` is told the bytes done and the bytes to do.
///
/// # Errors
/// Of reading a volume; files that cannot be read, and what is damaged, are left out and counted,
/// unless that is all there is.
pub fn run(
    population: &Population,
    plan: &Plan,
    sample_bytes: u64,
    seed: u64,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Report> {
    let drawn = draw::draw(population, sample_bytes, STRATUM_SAMPLES_MIN, seed);
    let total = drawn.iter().map(|d| d.len() as u64).sum::<u64>() * population.unit_bytes as u64;
    let (rapl, clock) = (Rapl::open(), SystemClock::default());
    let (counted, cpu_ns) = (|| rapl.as_ref().and_then(Rapl::used_uj), clock.thread_cpu_ns());
    let before = counted();
    let mut meter = meter::Meter::new(plan, dictionaries::Dictionaries::train(population, plan, seed)?);
    warm_up(population, plan, &drawn, &mut meter)?;
    let mut samples = Vec::with_capacity(drawn.len());
    let mut unreadable = 0;
    let mut done = 0;
    for (stratum, windows) in population.strata.iter().zip(&drawn) {
        let every = meter::slow_every(windows.len(), drawn.iter().map(Vec::len).sum());
        let mut observations = Vec::with_capacity(windows.len());
        let mut source = None;
        for (at, batch) in windows.chunks(BATCH_SAMPLES).enumerate() {
            let mut read = Vec::with_capacity(batch.len());
            for (index, window) in batch.iter().enumerate() {
                let slow = (at * BATCH_SAMPLES + index).is_multiple_of(every);
                match population.read(stratum, *window, &mut source)? {
                    Some(data) => read.push(meter::Sample { rules: data.rules_of(plan), bytes: data.bytes, slow }),
                    None => unreadable += 1,
                }
            }
            observations.extend(meter.observe(&read));
            done += batch.len() as u64 * population.unit_bytes as u64;
            progress(done, total);
        }
        samples.push(statistics::Stratum { windows: stratum.windows(), observations });
    }
    if unreadable > 0 && samples.iter().all(|stratum| stratum.observations.is_empty()) {
        return Err(Error::new(ErrorKind::Io, format!("none of {unreadable} samples can be read")));
    }
    let used = before.zip(counted()).map(|(before, after)| after.saturating_sub(before));
    let power = used.and_then(|used| Power::measured(used, clock.thread_cpu_ns().saturating_sub(cpu_ns)));
    Ok(report::report(population, plan, &samples, unreadable, power.unwrap_or(Power::NOMINAL)))
}

/// Some of the samples, from everywhere.
fn warm_up(population: &Population, plan: &Plan, drawn: &[Vec<u64>], meter: &mut meter::Meter<'_>) -> Result<()> {
    let all = || {
        population.strata.iter().zip(drawn).flat_map(|(stratum, windows)| windows.iter().map(move |w| (stratum, *w)))
    };
    let every = (all().count() / WARM_UP_SAMPLES).max(1);
    let mut read = Vec::new();
    for (stratum, window) in all().step_by(every) {
        if let Some(data) = population.read(stratum, window, &mut None)? {
            read.push(meter::Sample { rules: data.rules_of(plan), bytes: data.bytes, slow: true });
        }
    }
    meter.warm_up(&read);
    Ok(())
}

#[cfg(test)]
mod tests;
