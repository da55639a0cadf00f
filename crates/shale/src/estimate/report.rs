//! What an estimate says: the document behind `--json`, and the tables.

use policy::Power;
use serde::Serialize;
use share::RECORD_CONTENT_BYTES_MAX;
use units::format_size;

use super::population::Population;
use super::settings::{How, Plan};
use super::statistics::{Estimate, Stratum, estimate};
use crate::output::table;

/// What the margins mean.
const CONFIDENCE: f64 = 0.95;

/// How far the saving of `auto` may lie from what was measured of it even if all data was looked
/// at: in a pool it tests other units, and other measurements of time go into its choice. 0.7
/// points were seen.
const CHOICE: f64 = 0.01;

/// That, for a setting of which this was found: no more than there is to be saved.
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

    /// The saving with its margin.
    fn saving(&self) -> String {
        match self.margin_percent {
            Some(margin) => format!("{:.1} % ±{margin:.1}", self.saving_percent),
            None => format!("{:.1} % ±?", self.saving_percent),
        }
    }

    /// The ratios at the ends of the interval.
    fn ratios(&self) -> String {
        let of = |saving: f64| 1.0 / (1.0 - saving / 100.0).max(1e-9);
        match (self.ratio, self.margin_percent) {
            (Some(ratio), Some(margin)) => {
                let (low, high) = (of(self.saving_percent - margin), of((self.saving_percent + margin).min(99.99)));
                // All of them are rounded: without a margin the ratio is not to lie beside its
                // interval.
                format!("{ratio:.2}x ({:.2}-{:.2})", low.min(ratio), high.max(ratio))
            }
            (Some(ratio), None) => format!("{ratio:.2}x"),
            _ => "-".to_owned(),
        }
    }
}

fn hundredths(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// The tables.
pub fn show(report: &Report) -> String {
    let plural = if report.files == 1 { "" } else { "s" };
    let mut text = format!(
        "{} file{plural}, {}: data {}, holes {}; units of {}, samples {}\n\n",
        report.files,
        format_size(report.size_bytes),
        format_size(report.data_bytes),
        format_size(report.hole_bytes),
        format_size(report.unit_bytes),
        format_size(report.sampled_bytes),
    );
    let words = |list: &[&str]| list.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let mut rows = vec![words(&["SETTING", "SAVING", "RATIO", "STORED", "CPU", "SPEED", "ENERGY"])];
    for line in &report.settings {
        rows.push(vec![
            format!("{}{}", line.setting, if line.configured { " (as set)" } else { "" }),
            line.saving(),
            line.ratios(),
            format_size(line.stored_bytes),
            format!("{:.1} s", line.cpu_seconds),
            line.mb_per_second.map_or_else(|| "-".to_owned(), |speed| format!("{speed:.0} MB/s")),
            format!("{:.1} J", line.joules),
        ]);
    }
    text.push_str(&table(&rows));
    text.push('\n');
    let mut header = words(&["TYPE", "FILES", "DATA"]);
    header.extend(report.settings.iter().map(|line| line.setting.replace("auto, ", "").to_uppercase()));
    let mut rows = vec![header];
    for part in &report.types {
        let mut row = vec![part.word.clone(), part.files.to_string(), format_size(part.data_bytes)];
        let saving = |(index, line): (usize, &Line)| {
            if index == 0 { line.saving() } else { format!("{:.1} %", line.saving_percent) }
        };
        row.extend(part.settings.iter().enumerate().map(saving));
        rows.push(row);
    }
    text.push_str(&table(&rows));
    let whose = match report.energy_source.as_str() {
        "rapl" => format!("was counted by the processor (RAPL): {:.1} W for a busy CPU", report.cpu_watts),
        _ => format!("is CPU time at a nominal {:.1} W for a busy CPU", report.cpu_watts),
    };
    text.push_str(&format!(
        "\n± holds the true saving 95 times in 100. CPU and SPEED are of one core. ENERGY {whose}.\n"
    ));
    if report.small_files > 0 {
        text.push_str(&format!(
            "{} files of at most {RECORD_CONTENT_BYTES_MAX} bytes, together {}, take no block in a share, but stay in the records of their inodes: they are in no figure above but FILES.\n",
            report.small_files,
            format_size(report.small_bytes)
        ));
    }
    if report.unreadable_samples > 0 {
        text.push_str(&format!("{} samples could not be read and were left out.\n", report.unreadable_samples));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(stored: f64, margin: f64) -> Line {
        let estimate = Estimate { raw_bytes: 1000.0, stored_bytes: stored, margin, cpu_ns: 1e9 };
        Line::new("zstd-3".to_owned(), true, estimate, Power::NOMINAL)
    }

    #[test]
    fn lines_round_and_say_when_nothing_is_known() {
        assert_eq!(line(400.0, 0.0123).saving(), "60.0 % ±1.2");
        assert_eq!(line(400.0, 0.0123).joules, 10.0);
        assert_eq!(line(400.0, 0.0123).ratios(), "2.50x (2.43-2.58)");
        assert_eq!(line(611.63, 0.0).ratios(), "1.63x (1.63-1.64)");
        assert_eq!(line(400.0, f64::INFINITY).saving(), "60.0 % ±?");
        assert_eq!(line(400.0, f64::INFINITY).margin_percent, None);
        assert_eq!(line(0.0, 0.0).ratios(), "-");
        assert_eq!(line(10.0, 0.5).ratios(), "100.00x (1.96-10000.00)");
    }
}
