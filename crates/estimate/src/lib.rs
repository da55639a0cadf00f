//! Estimates the space that data would take when stored: saving with an error bar, CPU time and
//! speed for each setting, from samples.
//!
//! 1. `population` lists the data: files, images, devices, a volume; divided into windows of one
//!    unit, without holes; grouped by file type into strata.
//! 2. `draw` selects windows: each stratum is divided into as many strips as it has samples, in the
//!    order of its files, and one window is drawn at random from each strip.
//! 3. If units are small enough for dictionaries, `dictionaries` trains some, as a volume does.
//! 4. `meter` compresses each drawn window with every setting, through the same code as a pool;
//!    slow settings only get every eighth window.
//! 5. `statistics` computes estimates with confidence intervals, `report` the document.
//!
//! Nothing is written. Memory grows with the number of files, not with the amount of data.
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

/// Bytes read by default: gives a margin of about one point where units differ as much as those of
/// mixed files.
const SAMPLE_BYTES: u64 = 128 << 20;
/// Most samples by default: each costs a seek on rotating disks.
const SAMPLES_MAX: u64 = 8192;

/// Bytes read by default, with units of `unit_bytes`.
pub fn sample_bytes_default(unit_bytes: usize) -> u64 {
    SAMPLE_BYTES.min(SAMPLES_MAX * unit_bytes as u64)
}

/// Samples that a setting compresses before the next one's turn: at most 4 MiB.
const BATCH_SAMPLES: usize = 32;
/// Samples that are compressed once before anything counts.
const WARM_UP_SAMPLES: usize = 48;

/// Fewest samples per stratum, if it has that many windows: fewer are not conclusive.
const STRATUM_SAMPLES_MIN: u64 = 24;

/// Draws, measures, and estimates. Calls `progress` with the bytes done and the total.
///
/// # Errors
/// Of reading a volume. Unreadable files and damaged data are skipped and counted, unless nothing
/// else exists.
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

/// Some of the samples, spread over the population.
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
