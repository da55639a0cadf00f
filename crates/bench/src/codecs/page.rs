//! The tables, in Markdown.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use super::Results;
use super::costs::{Cost, UNIT_BYTES};
use super::savings::COLUMNS;
use crate::Outcome;

const BEGIN: &str = "<!-- tables: begin (written by `bench codecs --page`) -->";
const END: &str = "<!-- tables: end -->";

/// Codecs of the table by kind: one or two of each family.
const SHOWN: &[&str] = &[
    "zle",
    "lzjb",
    "lz4",
    "lz4hc-9",
    "lzo",
    "gzip-6",
    "bzip2-9",
    "zstd-fast-3",
    "zstd-1",
    "zstd-3",
    "zstd-9",
    "zstd-19",
];

pub fn tables(results: &Results) -> String {
    let mut text = String::new();
    overview(&mut text, &results.costs);
    small_blocks(&mut text, &results.costs);
    for unit_bytes in UNIT_BYTES {
        by_kind(&mut text, &results.costs, unit_bytes);
    }
    dictionaries(&mut text, results);
    savings(&mut text, results);
    text
}

/// Replaces the part between the marks of the page.
pub fn replace(path: &Path, tables: &str) -> Outcome<()> {
    let page = std::fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    let lost = || format!("{} has lost its marks '{BEGIN}' and '{END}'", path.display());
    let (before, rest) = page.split_once(BEGIN).ok_or_else(lost)?;
    let (_, after) = rest.split_once(END).ok_or_else(lost)?;
    std::fs::write(path, format!("{before}{BEGIN}\n\n{tables}\n{END}{after}"))?;
    Ok(())
}

/// Codecs in the order of their numbers.
fn names(costs: &[Cost]) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for cost in costs {
        if !names.contains(&cost.codec.as_str()) {
            names.push(&cost.codec);
        }
    }
    names
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    if count > 0.0 { sum / count } else { 0.0 }
}

/// Megabytes a second of all kinds together: `bytes` and nanoseconds of each.
fn rate<'a>(costs: impl Iterator<Item = &'a Cost>, of: impl Fn(&Cost) -> (u64, u64)) -> f64 {
    let (bytes, ns) = costs.map(of).fold((0, 0), |(b, n), (bytes, ns)| (b + bytes, n + ns));
    if ns > 0 { bytes as f64 * 1000.0 / ns as f64 } else { f64::INFINITY }
}

fn overview(text: &mut String, costs: &[Cost]) {
    text.push_str("### All codecs\n\nMean saving over the kinds, and MB/s of one core to compress / decompress, by unit size.\n\n");
    text.push_str("| codec | 4 KiB | | 32 KiB | | 128 KiB | |\n| --- | --: | --: | --: | --: | --: | --: |\n");
    for codec in names(costs) {
        let _ = write!(text, "| {codec} |");
        for unit_bytes in UNIT_BYTES {
            let of = || costs.iter().filter(|c| c.codec == codec && c.unit_bytes == unit_bytes);
            let compress = rate(of(), |c| (c.raw_bytes, c.compress_ns));
            let decompress = rate(of(), |c| (c.decompressed_bytes, c.decompress_ns));
            let _ = write!(text, " {:.1} % | {compress:.0} / {decompress:.0} |", mean(of().map(Cost::saving)));
        }
        text.push('\n');
    }
    text.push('\n');
}

fn small_blocks(text: &mut String, costs: &[Cost]) {
    text.push_str(
        "### A block of 4 KiB\n\nMicroseconds of one core to compress and to decompress it, mean over the kinds.\n\n",
    );
    text.push_str("| codec | compress | decompress |\n| --- | --: | --: |\n");
    for codec in SHOWN {
        let of = || costs.iter().filter(|c| c.codec == *codec && c.unit_bytes == UNIT_BYTES[0]);
        let us = |bytes_per_us: f64| UNIT_BYTES[0] as f64 / bytes_per_us;
        let compress = us(rate(of(), |c| (c.raw_bytes, c.compress_ns)));
        let decompress = us(rate(of(), |c| (c.decompressed_bytes, c.decompress_ns)));
        let _ = writeln!(text, "| {codec} | {compress:.1} | {decompress:.1} |");
    }
    text.push('\n');
}

fn by_kind(text: &mut String, costs: &[Cost], unit_bytes: usize) {
    let _ = write!(text, "### Saving by kind, units of {} KiB, in percent\n\n| kind |", unit_bytes >> 10);
    for codec in SHOWN {
        let _ = write!(text, " {codec} |");
    }
    text.push_str("\n| --- |");
    text.push_str(&" --: |".repeat(SHOWN.len()));
    text.push('\n');
    let mut kinds: BTreeMap<&str, BTreeMap<&str, f64>> = BTreeMap::new();
    for cost in costs.iter().filter(|c| c.unit_bytes == unit_bytes) {
        kinds.entry(&cost.kind).or_default().insert(&cost.codec, cost.saving());
    }
    for (kind, codecs) in kinds {
        let _ = write!(text, "| {kind} |");
        for codec in SHOWN {
            let _ = write!(text, " {:.1} |", codecs.get(codec).copied().unwrap_or(0.0));
        }
        text.push('\n');
    }
    text.push('\n');
}

fn dictionaries(text: &mut String, results: &Results) {
    text.push_str("### Dictionaries\n\nSaving in percent at zstd-3 without and with a dictionary of at most 64 KiB that was trained on other units of ");
    text.push_str("the kind, and the gain in points. The dictionary itself is not counted.\n\n");
    text.push_str("| kind | 4 KiB without | with | gain | 16 KiB without | with | gain |\n| --- | --: | --: | --: | --: | --: | --: |\n");
    let mut kinds: Vec<&str> = results.dictionaries.iter().map(|g| g.kind.as_str()).collect();
    kinds.dedup();
    for kind in kinds {
        let _ = write!(text, "| {kind} |");
        for unit_bytes in [4 << 10, 16 << 10] {
            match results.dictionaries.iter().find(|g| g.kind == kind && g.unit_bytes == unit_bytes) {
                Some(gain) => {
                    let saving = |stored: u64| 100.0 * (1.0 - stored as f64 / gain.raw_bytes.max(1) as f64);
                    let (without, with) = (saving(gain.stored_without), saving(gain.stored_with));
                    let _ = write!(text, " {without:.1} | {with:.1} | {:+.1} |", with - without);
                }
                None => text.push_str(" | | |"),
            }
        }
        text.push('\n');
    }
    text.push('\n');
}

fn savings(text: &mut String, results: &Results) {
    text.push_str("### Beside gzip on files\n\nSaving in percent. `gzip -r` and gzip of a tar count the files' bytes; the others their blocks, holes left out.\n\n");
    text.push_str("| kind | files | MiB | gzip -r | gzip tar |");
    for (title, ..) in COLUMNS {
        let _ = write!(text, " {title} |");
    }
    text.push_str("\n| --- | --: | --: | --: | --: |");
    text.push_str(&" --: |".repeat(COLUMNS.len()));
    text.push('\n');
    for row in &results.savings {
        let mib = row.bytes as f64 / f64::from(1 << 20);
        let _ =
            write!(text, "| {} | {} | {mib:.1} | {:.1} | {:.1} |", row.kind, row.files, row.gzip_files, row.gzip_tar);
        for value in &row.columns {
            let _ = write!(text, " {value:.1} |");
        }
        text.push('\n');
    }
}
