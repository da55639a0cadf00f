//! The tables of `shale estimate`.

use report::{EstimateLine, EstimateReport};
use share::RECORD_CONTENT_BYTES_MAX;
use units::format_size;

use crate::output::table;

/// Returns the saving with its margin.
fn saving(line: &EstimateLine) -> String {
    match line.margin_percent {
        Some(margin) => format!("{:.1} % ±{margin:.1}", line.saving_percent),
        None => format!("{:.1} % ±?", line.saving_percent),
    }
}

/// Returns the ratio, and the ratios at the ends of its interval.
fn ratios(line: &EstimateLine) -> String {
    let of = |saving: f64| 1.0 / (1.0 - saving / 100.0).max(1e-9);
    match (line.ratio, line.margin_percent) {
        (Some(ratio), Some(margin)) => {
            let (low, high) = (of(line.saving_percent - margin), of((line.saving_percent + margin).min(99.99)));
            // All of them are rounded: the ratio must not fall outside its own interval.
            format!("{ratio:.2}x ({:.2}-{:.2})", low.min(ratio), high.max(ratio))
        }
        (Some(ratio), None) => format!("{ratio:.2}x"),
        _ => "-".to_owned(),
    }
}

/// Returns the tables.
pub(in crate::commands) fn show(report: &EstimateReport) -> String {
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
            saving(line),
            ratios(line),
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
        let cell = |(index, line): (usize, &EstimateLine)| {
            if index == 0 { saving(line) } else { format!("{:.1} %", line.saving_percent) }
        };
        row.extend(part.settings.iter().enumerate().map(cell));
        rows.push(row);
    }
    text.push_str(&table(&rows));
    let whose = match report.energy_source.as_str() {
        "rapl" => format!("was measured by the processor (RAPL): {:.1} W for a busy CPU", report.cpu_watts),
        _ => format!("is CPU time at a nominal {:.1} W for a busy CPU", report.cpu_watts),
    };
    text.push_str(&format!(
        "\n± covers the true saving 95 times in 100. CPU and SPEED are of one core. ENERGY {whose}.\n"
    ));
    if report.small_files > 0 {
        text.push_str(&format!(
            "{} files of at most {RECORD_CONTENT_BYTES_MAX} bytes, together {}, use no block in a share, but stay \
             in the records of their inodes: only FILES includes them.\n",
            report.small_files,
            format_size(report.small_bytes)
        ));
    }
    if report.unreadable_samples > 0 {
        text.push_str(&format!("{} samples could not be read and were skipped.\n", report.unreadable_samples));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn line(saving_percent: f64, margin_percent: Option<f64>, ratio: Option<f64>) -> EstimateLine {
        EstimateLine {
            setting: "zstd-3".to_owned(),
            configured: true,
            saving_percent,
            margin_percent,
            ratio,
            stored_bytes: 400,
            cpu_seconds: 1.0,
            mb_per_second: None,
            joules: 10.0,
            write_mb_per_second: None,
            write_bound: None,
            read_factor: None,
            rewrite_seconds: None,
        }
    }

    #[test]
    fn lines_say_when_nothing_is_known() {
        let known = line(60.0, Some(1.23), Some(2.5));
        assert_eq!((saving(&known).as_str(), ratios(&known).as_str()), ("60.0 % ±1.2", "2.50x (2.43-2.58)"));
        assert_eq!(ratios(&line(38.84, Some(0.0), Some(1.63))), "1.63x (1.63-1.64)");
        assert_eq!(saving(&line(60.0, None, Some(2.5))), "60.0 % ±?");
        assert_eq!(ratios(&line(100.0, Some(0.0), None)), "-");
        assert_eq!(ratios(&line(99.0, Some(50.0), Some(100.0))), "100.00x (1.96-10000.00)");
    }

    #[test]
    fn small_files_are_said_to_take_no_block() {
        let report = |small_files| EstimateReport {
            files: 52,
            size_bytes: 5513,
            data_bytes: 4096,
            small_files,
            small_bytes: 5000,
            unit_bytes: 131_072,
            sampled_bytes: 4096,
            settings: vec![line(60.0, Some(1.23), Some(2.5))],
            ..EstimateReport::begun(1, None, BTreeMap::new(), 1)
        };
        assert!(show(&report(50)).contains("zstd-3 (as set)"));
        assert!(show(&report(50)).contains("50 files of at most 512 bytes, together 4.88 KiB, use no block"));
        assert!(!show(&report(0)).contains("use no block"));
    }
}
