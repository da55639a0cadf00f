//! `shale explain` with a path in a share.

use std::path::Path;

use units::format_size;

use super::explain::saved;
use crate::cli::Access;
use crate::control::{Reply, Request};
use crate::exit::Outcome;
use crate::file_choices::FileReport;
use crate::output::{Output, facts, table};
use crate::session::Session;

/// Shows how a file is stored, and why.
pub(super) fn run(pool: &Path, share: String, path: String, access: &Access, output: &Output) -> Outcome {
    let report =
        Session::with(pool, access, output, |session| match session.call(Request::ExplainFile { share, path })? {
            Reply::File(report) => Ok(*report),
            other => Err(other.unexpected().into()),
        })?;
    output.result(&report, || show(&report));
    Ok(())
}

fn show(report: &FileReport) -> String {
    let mut lines = vec![
        ("path", report.path.clone()),
        ("type", if report.file_type.is_empty() { "not known".to_owned() } else { report.file_type.clone() }),
        (if report.directory { "files in it" } else { "compression" }, report.compression.clone()),
    ];
    if report.directory {
        lines.remove(1);
        return facts(&lines);
    }
    let (data, stored) = (report.raw_bytes, report.stored_bytes);
    lines.push(("size", format_size(report.size_bytes)));
    lines.push((
        "stored",
        format!("{} of data as {}, {} saved", format_size(data), format_size(stored), saved(data, stored)),
    ));
    if let Some(known) = &report.remembered {
        let text = format!(
            "{} won the last test of files of this type, {} units ago; {:.1} % saved since",
            known.winner, known.units_since_test, known.saving_percent
        );
        lines.push(("learnt", text));
    }
    if let Some(trials) = &report.trials {
        let others = trials.others.iter().map(|other| format!("{} {}", other.codec, format_size(other.stored_bytes)));
        let text = format!(
            "its first unit, {} as {}, would take: {}",
            format_size(trials.raw_bytes),
            format_size(trials.stored_bytes),
            others.collect::<Vec<_>>().join(", ")
        );
        lines.push(("others", text));
    }
    let mut text = facts(&lines);
    if report.parts.is_empty() {
        return text;
    }
    text.push('\n');
    let mut rows = vec![["OFFSET", "DATA", "STORED", "SAVED", "CODEC", "WHY"].map(str::to_owned).to_vec()];
    for part in &report.parts {
        rows.push(vec![
            format_size(part.offset),
            format_size(part.raw_bytes),
            format_size(part.stored_bytes),
            saved(part.raw_bytes, part.stored_bytes),
            part.codec.clone(),
            part.why.clone(),
        ]);
    }
    text.push_str(&table(&rows));
    if report.parts_left_out > 0 {
        text.push_str(&format!("and {} parts behind these\n", report.parts_left_out));
    }
    text
}
