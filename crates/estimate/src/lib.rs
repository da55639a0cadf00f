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
//! 5. `statistics` computes estimates with confidence intervals, `document` the document.
//! 6. A service asks for rounds of 2, 4 and 5: the first one for figures within a second, each
//!    further one with more samples, until each margin is below a point.
//!
//! Nothing is written. Memory grows with the number of files, not with the amount of data.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod dictionaries;
mod document;
mod draw;
mod meter;
mod population;
mod settings;
mod share_files;
mod statistics;

pub use document::Machine;
pub use meter::rule_holds;
pub use population::{Population, Scanned};
pub use settings::{CODECS_DEFAULT, Plan};
pub use share_files::{ShareFile, ShareFiles, ShareScan};

use env::{Clock, Rapl, SystemClock};
use policy::Power;
use report::EstimateReport;
use surface::{Error, ErrorKind, Result};

/// Bytes read by default: gives a margin of about one point where units differ as much as those of
/// mixed files.
const SAMPLE_BYTES: u64 = 128 << 20;
/// Most samples by default: each costs a seek on rotating disks.
const SAMPLES_MAX: u64 = 8192;
/// Bytes read in the rounds before the last one: the first takes less than a second, with the
/// slowest codecs too.
const ROUNDS: [u64; 3] = [1 << 20, 4 << 20, 32 << 20];
/// Sampling margin at which no further round follows, as a share of the data.
const MARGIN_ENOUGH: f64 = 0.01;

/// Bytes read by default, with units of `unit_bytes`.
pub fn sample_bytes_default(unit_bytes: usize) -> u64 {
    SAMPLE_BYTES.min(SAMPLES_MAX * unit_bytes as u64)
}

/// Samples that a setting compresses before the next one's turn: at most 4 MiB.
const BATCH_SAMPLES: usize = 32;
/// Samples that are compressed once before anything counts.
const WARM_UP_SAMPLES: usize = 48;
/// The same with slow settings, which take tens of milliseconds for each, where early rounds do the
/// rest.
const WARM_UP_SLOW_SAMPLES: usize = 2;

/// Fewest samples per stratum, if it has that many windows: fewer are not conclusive.
const STRATUM_SAMPLES_MIN: u64 = 24;
/// The same in rounds before the last one, whose figures are soon replaced.
const STRATUM_SAMPLES_EARLY_MIN: u64 = 4;

/// Samples that were compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch {
    /// Bytes done, in all rounds.
    pub done: u64,
    /// Bytes of all rounds; fewer are read if the margins are small before.
    pub total: u64,
    /// How long this batch was being compressed.
    pub wall_ns: u64,
    /// CPU time of that.
    pub cpu_ns: u64,
}

/// A step of an estimate in rounds.
pub enum Step<'a> {
    /// A batch is compressed.
    Batch(Batch),
    /// A round has ended, with these figures.
    Round(&'a EstimateReport),
}

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
) -> Result<EstimateReport> {
    let mut on = |step: Step<'_>| {
        if let Step::Batch(batch) = step {
            progress(batch.done, batch.total);
        }
        Ok(())
    };
    in_rounds(population, plan, Some(sample_bytes), seed, &Machine::default(), &mut on)
}

/// Estimates in rounds of more and more samples, until each margin is small; or in one round of
/// `sample_bytes`. Calls `on` after each step: its error ends the work.
///
/// # Errors
/// Those of `on`, and as [`run`].
pub fn in_rounds(
    population: &Population,
    plan: &Plan,
    sample_bytes: Option<u64>,
    seed: u64,
    machine: &Machine,
    on: &mut dyn FnMut(Step<'_>) -> Result<()>,
) -> Result<EstimateReport> {
    let last = sample_bytes.unwrap_or_else(|| sample_bytes_default(plan.unit_bytes));
    let early = ROUNDS.into_iter().filter(|bytes| sample_bytes.is_none() && *bytes < last);
    let mut rounds: Vec<Vec<Vec<u64>>> =
        early.map(|bytes| draw::draw(population, bytes, STRATUM_SAMPLES_EARLY_MIN, seed)).collect();
    rounds.push(draw::draw(population, last, STRATUM_SAMPLES_MIN, seed));
    // Little data is drawn whole the first time.
    rounds.dedup();
    let bytes_of = |drawn: &Vec<Vec<u64>>| drawn.iter().map(|d| d.len() as u64).sum::<u64>() * plan.unit_bytes as u64;
    let mut batch = Batch { done: 0, total: rounds.iter().map(bytes_of).sum(), wall_ns: 0, cpu_ns: 0 };

    let (rapl, clock) = (Rapl::open().filter(|_| machine.power.is_none()), SystemClock::default());
    let (counted, cpu_ns) = (|| rapl.as_ref().and_then(Rapl::used_uj), clock.thread_cpu_ns());
    let before = counted();
    let mut meter = meter::Meter::new(plan, dictionaries::Dictionaries::train(population, plan, seed)?);
    let slow_max = if rounds.len() > 1 { WARM_UP_SLOW_SAMPLES } else { WARM_UP_SAMPLES };
    warm_up(population, plan, &rounds[0], slow_max, &mut meter)?;
    let mut number = 0;
    loop {
        let (samples, unreadable) = round(population, plan, &rounds[number], &mut meter, &mut batch, on)?;
        if unreadable > 0 && samples.iter().all(|stratum| stratum.observations.is_empty()) {
            return Err(Error::new(ErrorKind::Io, format!("none of {unreadable} samples can be read")));
        }
        let used = before.zip(counted()).map(|(before, after)| after.saturating_sub(before));
        let measured = used.and_then(|used| Power::measured(used, clock.thread_cpu_ns().saturating_sub(cpu_ns)));
        let power = machine.power.or(measured).unwrap_or(Power::NOMINAL);
        let sampled = document::Sampled { strata: &samples, unreadable, decode_ns: &meter.decode_ns() };
        let found = document::document(population, plan, &sampled, machine, power);
        on(Step::Round(&found))?;
        number += 1;
        // The first round is too small for its margins to be believed.
        let is_enough = number > 1 && document::sampling_margin(plan, &samples) < MARGIN_ENOUGH;
        if number == rounds.len() || is_enough {
            return Ok(found);
        }
    }
}

/// Measures the windows that were drawn for a round; and how many could not be read.
fn round(
    population: &Population,
    plan: &Plan,
    drawn: &[Vec<u64>],
    meter: &mut meter::Meter<'_>,
    batch: &mut Batch,
    on: &mut dyn FnMut(Step<'_>) -> Result<()>,
) -> Result<(Vec<statistics::Stratum>, u64)> {
    let clock = SystemClock::default();
    let mut samples = Vec::with_capacity(drawn.len());
    let mut unreadable = 0;
    for (stratum, windows) in population.strata.iter().zip(drawn) {
        let every = meter::slow_every(windows.len(), drawn.iter().map(Vec::len).sum());
        let mut observations = Vec::with_capacity(windows.len());
        let mut source = None;
        for (at, chosen) in windows.chunks(BATCH_SAMPLES).enumerate() {
            let mut read = Vec::with_capacity(chosen.len());
            for (index, window) in chosen.iter().enumerate() {
                let slow = (at * BATCH_SAMPLES + index).is_multiple_of(every);
                match population.read(stratum, *window, &mut source)? {
                    Some(data) => read.push(meter::Sample { rules: data.rules_of(plan), bytes: data.bytes, slow }),
                    None => unreadable += 1,
                }
            }
            let (wall, cpu) = (clock.now_ns(), clock.thread_cpu_ns());
            observations.extend(meter.observe(&read));
            batch.wall_ns = clock.now_ns().saturating_sub(wall);
            batch.cpu_ns = clock.thread_cpu_ns().saturating_sub(cpu);
            batch.done += chosen.len() as u64 * population.unit_bytes as u64;
            on(Step::Batch(*batch))?;
        }
        samples.push(statistics::Stratum { windows: stratum.windows(), observations });
    }
    Ok((samples, unreadable))
}

/// Some of the samples, spread over the population; the first `slow_max` with slow settings too.
fn warm_up(
    population: &Population,
    plan: &Plan,
    drawn: &[Vec<u64>],
    slow_max: usize,
    meter: &mut meter::Meter<'_>,
) -> Result<()> {
    let all = || {
        population.strata.iter().zip(drawn).flat_map(|(stratum, windows)| windows.iter().map(move |w| (stratum, *w)))
    };
    let every = (all().count() / WARM_UP_SAMPLES).max(1);
    let mut read = Vec::new();
    for (stratum, window) in all().step_by(every) {
        if let Some(data) = population.read(stratum, window, &mut None)? {
            let slow = read.len() < slow_max;
            read.push(meter::Sample { rules: data.rules_of(plan), bytes: data.bytes, slow });
        }
    }
    meter.warm_up(&read);
    Ok(())
}

#[cfg(test)]
mod tests;
