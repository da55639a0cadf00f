//! `shale explain` with a path in a share.

use std::path::Path;

use surface::ErrorKind;
use units::format_size;

use super::explain::saved;
use super::volume::kind_of;
use crate::cli::Access;
use crate::narrow::{columns, table_within};
use crate::output::{Output, facts};
use operations::names;
use operations::{Failure, Outcome};
use operations::{Reply, Request};
use report::{FileReport, PartLine};
use server::session::Session;

/// Shows how a file is stored, and why.
pub(super) fn run(pool: &Path, share: String, path: String, access: &Access, output: &Output) -> Outcome {
    let report = Session::with(pool, access, |session| {
        let is_volume = kind_of(session, names::volume_of(&share))? == "volume";
        match session.call(Request::ExplainFile { object: share.into(), path }) {
            Ok(Reply::File(report)) => Ok(*report),
            Ok(other) => Err(other.unexpected().into()),
            Err(error) if is_volume && error.kind() == ErrorKind::Invalid => {
                Err(Failure::from(error).with("; for a volume, explain takes --region OFFSET"))
            }
            Err(error) => Err(error.into()),
        }
    })?;
    output.result(&report, || show(&report, columns()));
    Ok(())
}

fn show(report: &FileReport, columns: Option<usize>) -> String {
    let mut lines = vec![
        ("path", report.path.clone()),
        ("type", if report.file_type.is_empty() { "not known".to_owned() } else { report.file_type.clone() }),
        (if report.directory { "files in it" } else { "compression" }, report.compression.clone()),
    ];
    let absent_xattrs = report.absent_xattrs.iter().map(|text| ("attributes", text.clone()));
    if report.directory {
        lines.remove(1);
        lines.extend(absent_xattrs);
        return facts(&lines);
    }
    if let Some(in_force) = &report.in_force {
        let text = format!("{in_force}, for files that are made now; 'shale recompress' applies it to older ones");
        lines.push(("in force", text));
    }
    let (data, stored) = (report.raw_bytes, report.stored_bytes);
    lines.push(("size", format_size(report.size_bytes)));
    lines.push((
        "stored",
        format!("{} of data as {}, {} saved", format_size(data), format_size(stored), saved(data, stored)),
    ));
    lines.extend(earlier(&report.parts).map(|text| ("earlier", text)));
    if let Some(known) = &report.remembered {
        let text = format!(
            "{} won the last test of files of this type, {} units ago; {:.1} % saved since",
            known.winner, known.units_since_test, known.saving_percent
        );
        lines.push(("learnt", text));
    }
    if let Some(trials) = &report.trials {
        let others = trials.others.iter().map(|other| format!("{} {}", other.codec, format_size(other.stored_bytes)));
        // The size of a single unit among several is not stored.
        let units = report.parts.first().map_or(1, |part| part.units);
        let of = if units > 1 { format!(" (the mean of the {units} units of the first row)") } else { String::new() };
        let text = format!(
            "its first unit, {} as {}{of}, would take: {}",
            format_size(trials.raw_bytes),
            format_size(trials.stored_bytes),
            others.collect::<Vec<_>>().join(", ")
        );
        lines.push(("others", text));
    }
    lines.extend(absent_xattrs);
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
    text.push_str(&table_within(&rows, 1, true, columns));
    if report.parts_left_out > 0 {
        text.push_str(&format!("and {} more parts\n", report.parts_left_out));
    }
    text
}

/// Describes the parts that the rules in force would have stored differently.
fn earlier(parts: &[PartLine]) -> Option<String> {
    let found: Vec<&PartLine> = parts.iter().filter(|part| part.earlier).collect();
    let bytes = format_size(found.iter().map(|part| part.raw_bytes).sum());
    let of = match (found.len(), parts.len()) {
        (0, _) => return None,
        (1, 1) => "its only part".to_owned(),
        (found, all) => format!("{found} of the {all} parts below"),
    };
    Some(format!("{of}, {bytes} of data, stored under another rule, property or value than those in force"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use report::Trials;

    fn part(codec: &str, earlier: bool) -> PartLine {
        PartLine {
            offset: 0,
            units: 1,
            raw_bytes: 128 << 10,
            stored_bytes: 1 << 10,
            codec: codec.to_owned(),
            why: "why".to_owned(),
            earlier,
        }
    }

    #[test]
    fn what_is_in_force_and_what_is_not_stored_by_it_is_told() {
        let mut report = FileReport {
            path: "a.c".to_owned(),
            directory: false,
            size_bytes: 256 << 10,
            raw_bytes: 256 << 10,
            stored_bytes: 2 << 10,
            compression: "gzip-6 (rule for c, by its name)".to_owned(),
            in_force: None,
            file_type: "c".to_owned(),
            remembered: None,
            absent_xattrs: None,
            parts: vec![part("zstd-9", false), part("gzip-6", false)],
            parts_left_out: 0,
            trials: None,
        };
        let text = show(&report, None);
        assert!(!text.contains("in force") && !text.contains("earlier"), "{text}");
        report.in_force = Some("zstd-9 (rule for c, by its name)".to_owned());
        report.parts[1].earlier = true;
        let text = show(&report, None).split_whitespace().collect::<Vec<_>>().join(" ");
        for part in [
            "compression gzip-6 (rule for c, by its name)",
            "in force zstd-9 (rule for c, by its name), for files that are made now",
            "earlier 1 of the 2 parts below, 128 KiB of data, stored under another rule",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        report.parts.remove(0);
        assert!(show(&report, None).contains("its only part"));
        report.trials = Some(Trials { offset: 0, raw_bytes: 32 << 10, stored_bytes: 256, others: Vec::new() });
        assert!(!show(&report, None).contains("mean"));
        report.absent_xattrs = Some("none (xattr=off): no capabilities".to_owned());
        report.parts[0].units = 4;
        let text = show(&report, None).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains("32 KiB as 256 B (the mean of the 4 units of the first row), would"), "{text}");
        assert!(text.contains("attributes none (xattr=off): no capabilities"), "{text}");
        report.directory = true;
        assert!(show(&report, None).contains("none (xattr=off): no capabilities"));
    }
}
