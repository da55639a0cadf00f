//! The document of an estimate, as printed by `--json`.

use policy::Power;
use serde::Serialize;

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

/// Everything. See the help of `shale estimate` for the fields.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[allow(missing_docs)] // each is documented in the help of `shale estimate`
pub struct Report {
    pub files: u64,
    pub size_bytes: u64,
    pub data_bytes: u64,
    pub hole_bytes: u64,
    pub small_files: u64,
    pub small_bytes: u64,
    pub unit_bytes: u64,
    pub sampled_bytes: u64,
    pub unreadable_samples: u64,
    pub confidence: f64,
    pub cpu_watts: f64,
    pub energy_source: String,
    pub settings: Vec<Line>,
    pub types: Vec<TypeReport>,
}

/// The estimate for one setting.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct Line {
    pub setting: String,
    pub configured: bool,
    pub saving_percent: f64,
    /// None where one sample stands for several windows.
    pub margin_percent: Option<f64>,
    pub ratio: Option<f64>,
    pub stored_bytes: u64,
    pub cpu_seconds: f64,
    pub mb_per_second: Option<f64>,
    pub joules: f64,
}

/// One type of file.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct TypeReport {
    #[serde(rename = "type")]
    pub word: String,
    pub files: u64,
    pub size_bytes: u64,
    pub data_bytes: u64,
    pub samples: u64,
    pub settings: Vec<Line>,
}

/// Puts the estimates together.
pub fn report(population: &Population, plan: &Plan, samples: &[Stratum], unreadable: u64, power: Power) -> Report {
    let of = |strata: &[Stratum]| -> Vec<Line> {
        let shown = plan.settings.iter().enumerate().filter(|(_, setting)| setting.shown);
        shown
            .map(|(index, setting)| {
                let mut found = estimate(strata, index, plan.helper);
                if matches!(setting.how, How::Auto(_)) {
                    let helper = estimate(strata, plan.helper, plan.helper);
                    found.margin = found.margin.hypot(choice_margin(&found, &helper));
                }
                Line::new(setting.name.clone(), setting.configured, found, power)
            })
            .collect()
    };
    let data = |strata: &[Stratum]| estimate(strata, plan.helper, plan.helper).raw_bytes.round() as u64;
    let types = population.strata.iter().zip(samples).map(|(stratum, sample)| {
        let alone = std::slice::from_ref(sample);
        TypeReport {
            word: stratum.word.clone(),
            files: stratum.files() as u64,
            size_bytes: stratum.size_bytes,
            data_bytes: data(alone),
            samples: sample.observations.len() as u64,
            settings: of(alone),
        }
    });
    let mut types: Vec<TypeReport> = types.collect();
    types.sort_by_key(|part| std::cmp::Reverse(part.data_bytes));
    let size_bytes: u64 = population.strata.iter().map(|stratum| stratum.size_bytes).sum();
    let data_bytes = data(samples);
    let observed = samples.iter().flat_map(|sample| &sample.observations);
    Report {
        files: population.strata.iter().map(|stratum| stratum.files() as u64).sum(),
        size_bytes,
        data_bytes,
        hole_bytes: (size_bytes - population.small.bytes).saturating_sub(data_bytes),
        small_files: population.small.files,
        small_bytes: population.small.bytes,
        unit_bytes: population.unit_bytes as u64,
        sampled_bytes: observed.map(|observation| observation.raw).sum::<f64>() as u64,
        unreadable_samples: unreadable,
        confidence: CONFIDENCE,
        cpu_watts: power.watts(),
        energy_source: power.source().name().to_owned(),
        settings: of(samples),
        types,
    }
}

impl Line {
    fn new(setting: String, configured: bool, estimate: Estimate, power: Power) -> Self {
        let ratio = (estimate.stored_bytes > 0.0).then(|| estimate.raw_bytes / estimate.stored_bytes);
        Self {
            setting,
            configured,
            saving_percent: hundredths(100.0 * estimate.saving()),
            margin_percent: estimate.margin.is_finite().then(|| hundredths(100.0 * estimate.margin)),
            ratio: ratio.map(hundredths),
            stored_bytes: estimate.stored_bytes.round() as u64,
            cpu_seconds: (estimate.cpu_ns / 1e6).round() / 1e3,
            mb_per_second: (estimate.cpu_ns > 0.0).then(|| hundredths(estimate.raw_bytes * 1e3 / estimate.cpu_ns)),
            joules: hundredths(power.joules(estimate.cpu_ns as u64)),
        }
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
            Line::new("zstd-3".to_owned(), true, estimate, Power::NOMINAL)
        };
        assert_eq!((line(0.0123).margin_percent, line(0.0123).joules), (Some(1.23), 10.0));
        assert_eq!(line(f64::INFINITY).margin_percent, None);
    }
}
