//! `shale stats`: the history of a pool's figures, as a table, as comma-separated values, or as
//! JSON.

use surface::{Error, ErrorKind};
use units::format_size;

use crate::cli::StatsArgs;
use crate::output::{Output, table};
use crate::times::{show_moment, show_second, show_seconds};
use operations::{Outcome, Reply, Request, SeriesWish};
use report::{DatasetsReport, MarkLine, SeriesReport};
use server::session::Session;

/// Length of the default time range.
const LAST_S: u64 = 3600;

/// Shows a dataset, marks, or the list of datasets.
pub fn run(args: &StatsArgs, output: &Output) -> Outcome {
    if args.csv && output.is_json() {
        return Err(Error::new(ErrorKind::Invalid, "--csv and --json are two forms: use one of them").into());
    }
    let now = host::unix_s();
    let (from_unix_s, to_unix_s) = match (args.from, args.last) {
        // "From now on": the current second.
        (Some(from), _) => (from, args.to.unwrap_or(if from == now { now + 1 } else { now })),
        (None, last) => (now.saturating_sub(last.map_or(LAST_S, |last| last.as_secs().max(1))), now),
    };
    let Some(dataset) = args.dataset.clone() else {
        let request = if args.marks { Request::Marks { from_unix_s, to_unix_s } } else { Request::AnalyticsDatasets };
        return Session::with(&args.pool, &args.access, |session| {
            match session.call(request)? {
                Reply::Marks(marks) => output.result(&marks, || marks_shown(&marks)),
                Reply::Datasets(report) => output.result(&report, || datasets_shown(&report)),
                other => return Err(other.unexpected().into()),
            }
            Ok(())
        });
    };
    let step_s = args.step.map(|step| step.as_secs());
    let wish = SeriesWish { dataset, by: args.by.clone(), only: args.only.clone(), from_unix_s, to_unix_s, step_s };
    let report = Session::with(&args.pool, &args.access, |session| match session.call(Request::Series(wish))? {
        Reply::Series(report) => Ok(*report),
        other => Err(other.unexpected().into()),
    })?;
    if args.csv {
        output.exact(&csv(&report));
        return Ok(());
    }
    output.result(&report, || shown(&report));
    notes(&report).iter().for_each(|note| output.note(note));
    Ok(())
}

fn amount(value: u64, unit: &str) -> String {
    match unit {
        "bytes" => format_size(value),
        "ns" => format!("{:.3} s", value as f64 / 1e9),
        _ => value.to_string(),
    }
}

/// Formats an amount per second.
fn rate(value: f64, unit: &str) -> String {
    match unit {
        "bytes" => format!("{}/s", format_size(value.round() as u64)),
        // Seconds in a second.
        "ns" => format!("{:.4}", value / 1e9),
        _ => format!("{value:.1}/s"),
    }
}

/// Returns the number of sampled seconds in the report.
fn covered(report: &SeriesReport) -> u64 {
    report.covered_s.iter().sum()
}

fn shown(report: &SeriesReport) -> String {
    let unit = report.unit.as_str();
    let first = report.by.as_deref().unwrap_or("series").to_uppercase();
    let is_gauge = report.shape == "gauge";
    let header = if is_gauge { ["MEAN", "LEAST", "MOST"] } else { ["TOTAL", "MEAN", "LARGEST SECOND"] };
    let mut rows = vec![std::iter::once(first).chain(header.map(str::to_owned)).collect::<Vec<_>>()];
    for line in &report.series {
        let peak = line.peaks.iter().max().copied().unwrap_or(0);
        let columns = if is_gauge {
            let of_steps = line.least.iter().zip(&report.covered_s).filter(|(_, covered)| **covered > 0);
            let least = of_steps.map(|(least, _)| *least).min().unwrap_or(0);
            [line.total, least, peak].map(|value| amount(value, unit))
        } else {
            let mean = line.total as f64 / covered(report).max(1) as f64;
            [amount(line.total, unit), rate(mean, unit), rate(peak as f64, unit)]
        };
        rows.push(std::iter::once(line.name.clone()).chain(columns).collect());
    }
    let to = report.from_unix_s + report.step_s * report.covered_s.len() as u64;
    let span = format!("{} to {} UTC", show_moment(report.from_unix_s), show_moment(to));
    let head = format!("{}, {span}, {} sampled\n", report.dataset, show_seconds(covered(report)));
    head + &if rows.len() == 1 { "nothing\n".to_owned() } else { table(&rows) }
}

fn notes(report: &SeriesReport) -> Vec<String> {
    let mut notes = Vec::new();
    if report.damaged_frames > 0 {
        notes.push(format!("{} parts of the history are damaged: they appear as gaps", report.damaged_frames));
    }
    if report.folded_objects > 0 {
        notes.push(format!("up to {} objects are shown together as (other)", report.folded_objects));
    }
    if report.left_out_series > 0 {
        notes.push(format!("up to {} series were dropped", report.left_out_series));
    }
    notes
}

fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

/// Formats a line for each step: its time, the number of its sampled seconds, and each series. A
/// gap has no values.
fn csv(report: &SeriesReport) -> String {
    let names = report.series.iter().map(|line| quoted(&line.name));
    let header: Vec<_> = ["time".to_owned(), "covered_s".to_owned()].into_iter().chain(names).collect();
    let mut text = header.join(",") + "\n";
    for (step, covered) in report.covered_s.iter().enumerate() {
        let time = show_second(report.from_unix_s + step as u64 * report.step_s);
        let value = |line: &report::SeriesLine| match covered {
            0 => String::new(),
            _ => line.values.get(step).copied().unwrap_or(0).to_string(),
        };
        let values = report.series.iter().map(value);
        text += &([time, covered.to_string()].into_iter().chain(values).collect::<Vec<_>>().join(",") + "\n");
    }
    text
}

fn marks_shown(marks: &[MarkLine]) -> String {
    marks.iter().map(|mark| format!("{}  {}\n", show_second(mark.unix_s), mark.text)).collect()
}

fn datasets_shown(report: &DatasetsReport) -> String {
    let mut rows = vec![["DATASET", "UNIT", "BREAKDOWNS", "WHAT"].map(str::to_owned).to_vec()];
    for line in &report.datasets {
        rows.push(vec![line.dataset.clone(), line.unit.clone(), line.breakdowns.join(","), line.text.clone()]);
    }
    let store = &report.store;
    let mut text = table(&rows);
    if store.budget_bytes == 0 {
        return text + "\nno history: it is off\n";
    }
    text += &format!("\n{} of {} used\n", format_size(store.stored_bytes), format_size(store.budget_bytes));
    let steps = ["each second", "each 10 s", "each 5 min"];
    for (step, oldest) in steps.into_iter().zip(&store.oldest_unix_s) {
        let oldest =
            oldest.map_or_else(|| "nothing yet".to_owned(), |oldest| format!("since {} UTC", show_moment(oldest)));
        text += &format!("{step}: {oldest}\n");
    }
    if let Some(fault) = &store.fault {
        text += &format!("currently not stored: {fault}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use report::SeriesLine;

    use super::*;

    fn report(unit: &str, shape: &str) -> SeriesReport {
        let line = |name: &str, values: [u64; 3]| SeriesLine {
            name: name.to_owned(),
            total: if shape == "gauge" { values[2] } else { values.iter().sum() },
            values: values.to_vec(),
            peaks: values.to_vec(),
            least: if shape == "gauge" { values.to_vec() } else { Vec::new() },
        };
        SeriesReport {
            dataset: "x".to_owned(),
            unit: unit.to_owned(),
            shape: shape.to_owned(),
            by: Some("codec".to_owned()),
            from_unix_s: 1_795_219_200,
            step_s: 1,
            covered_s: vec![1, 0, 1],
            series: vec![line("zstd-3", [2048, 0, 4096]), line("a,b", [1, 0, 2])],
            folded_objects: 3,
            ..SeriesReport::default()
        }
    }

    #[test]
    fn a_table_has_the_mean_of_the_seconds_that_were_sampled() {
        let text = shown(&report("bytes", "sum"));
        let row = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap_or("").to_owned();
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(row(&text, "zstd-3"), "zstd-3 6 KiB 3 KiB/s 4 KiB/s", "{text}");
        assert!(text.starts_with("x, 2026-11-21 00:00 to 2026-11-21 00:00 UTC, 2 s sampled\n"), "{text}");
        let text = shown(&report("count", "gauge"));
        assert_eq!(row(&text, "zstd-3"), "zstd-3 4096 2048 4096", "{text}");
        assert_eq!(notes(&report("ns", "sum")), ["up to 3 objects are shown together as (other)"]);
    }

    #[test]
    fn a_gap_has_no_values_in_csv() {
        let text = csv(&report("count", "sum"));
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "time,covered_s,zstd-3,\"a,b\"");
        assert_eq!(lines[1..3], ["2026-11-21T00:00:00Z,1,2048,1", "2026-11-21T00:00:01Z,0,,"]);
    }
}
