//! `shale explain`.

use units::format_size;

use crate::cli::ExplainArgs;
use crate::narrow::{columns, table_within};
use crate::output::{Output, facts};
use operations::Outcome;
use operations::{Reply, Request};
use report::{Detail, Region};
use server::session::Session;

/// Regions of one request: 4 GiB of data, some hundred KiB of reply.
const REGIONS: usize = 1024;

/// Shows how a volume is stored, and why.
pub fn run(args: ExplainArgs, output: &Output) -> Outcome {
    if let Some(path) = args.path {
        return super::explain_file::run(&args.pool, args.volume, path, &args.access, output);
    }
    if let Some(offset) = args.region {
        let request = Request::ExplainRegion { object: args.volume.into(), offset };
        let detail = Session::with(&args.pool, &args.access, |session| match session.call(request)? {
            Reply::Region(detail) => Ok(*detail),
            other => Err(other.unexpected().into()),
        })?;
        output.result(&detail, || show_detail(&detail, columns()));
        return Ok(());
    }
    let (regions, buffered) = Session::with(&args.pool, &args.access, |session| {
        let (mut all, mut buffered) = (Vec::new(), 0);
        let mut from = Some(0);
        while let Some(at) = from {
            let request = Request::Explain { object: args.volume.clone().into(), from: at, count: REGIONS };
            match session.call(request)? {
                Reply::Regions { buffered_bytes, regions, next } => {
                    all.extend(regions);
                    (from, buffered) = (next, buffered_bytes);
                }
                other => return Err(other.unexpected().into()),
            }
        }
        Ok((all, buffered))
    })?;
    output.result(&regions, || show(&regions, columns()));
    if buffered > 0 {
        output.note(&format!(
            "{} more are in the write buffer, and will be compressed when they are written: `shale status {} --sync` \
             does that now",
            format_size(buffered),
            args.pool.display()
        ));
    }
    Ok(())
}

/// Returns the lines about a region that details begin with.
pub(super) fn region_facts(region: &Region) -> Vec<(&'static str, String)> {
    let (raw, stored) = (region.raw_bytes, region.stored_bytes);
    vec![
        ("region", format!("{} at {}", format_size(raw), format_size(region.offset))),
        ("stored", format!("{}, {} saved", format_size(stored), saved(raw, stored))),
        ("as", codecs_of(region)),
    ]
}

/// Returns the first cells of a trial's row: codec, stored bytes and saving.
pub(super) fn trial_cells(codec: &str, raw: u64, stored: Option<u64>) -> Vec<String> {
    let shown = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    vec![codec.to_owned(), shown(stored.map(format_size)), shown(stored.map(|stored| saved(raw, stored)))]
}

pub(super) fn saved(raw: u64, stored: u64) -> String {
    if raw == 0 { "-".to_owned() } else { format!("{:.1} %", 100.0 * (1.0 - stored as f64 / raw as f64)) }
}

fn codecs_of(region: &Region) -> String {
    let share = |bytes: u64| 100.0 * bytes as f64 / region.raw_bytes.max(1) as f64;
    let one = |c: &report::CodecUse| format!("{} {:.0} %", c.codec, share(c.raw_bytes));
    region.codecs.iter().map(one).collect::<Vec<_>>().join(", ")
}

pub(super) fn show(regions: &[Region], columns: Option<usize>) -> String {
    let header = ["OFFSET", "DATA", "STORED", "SAVED", "LAST TEST", "STORED AS"].map(str::to_owned).to_vec();
    let mut rows = vec![header];
    let (mut raw, mut stored) = (0, 0);
    for region in regions {
        raw += region.raw_bytes;
        stored += region.stored_bytes;
        let remembered = region
            .remembered
            .as_ref()
            .map_or_else(|| "-".to_owned(), |r| format!("{}, {} units ago", r.winner, r.units_since_test));
        rows.push(vec![
            format_size(region.offset),
            format_size(region.raw_bytes),
            format_size(region.stored_bytes),
            saved(region.raw_bytes, region.stored_bytes),
            remembered,
            codecs_of(region),
        ]);
    }
    rows.push(
        ["all".to_owned(), format_size(raw), format_size(stored), saved(raw, stored), String::new(), String::new()]
            .to_vec(),
    );
    table_within(&rows, 1, true, columns)
}

fn show_detail(d: &Detail, columns: Option<usize>) -> String {
    let mut lines = region_facts(&d.region);
    lines.extend([
        (
            "last test",
            d.region.remembered.as_ref().map_or_else(
                || "not remembered".to_owned(),
                |r| {
                    format!("{} won, {} units ago; {:.1} % saved since", r.winner, r.units_since_test, r.saving_percent)
                },
            ),
        ),
        ("", String::new()),
        ("unit tried", format!("{} at {}", format_size(d.unit_bytes), format_size(d.unit_offset))),
        ("probe", format!("{:.2} bits per byte: class '{}'", d.bits_per_byte, d.class)),
        ("properties", format!("compression={} mode={}", d.compression, d.mode)),
        (
            "dictionary",
            match (d.dictionary, d.dictionaries) {
                (Some(number), count) => format!("number {number} of {count}, for zstd"),
                (None, 0) => "none".to_owned(),
                (None, count) => format!("none of {count} helps here"),
            },
        ),
        ("chosen now", format!("{}: {}", d.chosen, d.why)),
        ("CPUs", format!("{:.1} available", d.cpus)),
        (
            "energy",
            format!(
                "{:.1} W for a busy CPU, {}",
                d.cpu_watts,
                if d.energy_source == "rapl" {
                    "measured by the processor (RAPL)"
                } else {
                    "nominal: CPU time is measured, energy is not"
                }
            ),
        ),
        (
            "device",
            d.device_bytes_per_s.map_or_else(
                || "not measured yet".to_owned(),
                |speed| format!("{}/s while busy", format_size(speed as u64)),
            ),
        ),
    ]);
    let text = facts(&lines) + "\n";
    let header = ["CODEC", "STORED", "SAVED", "EXPECTED", "CPU TIME", "EXPECTED", "ENERGY", "COST", "VERDICT"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for trial in &d.trials {
        let mut row = trial_cells(&trial.codec, d.unit_bytes, trial.stored_bytes);
        row.extend([
            format!("{:.1} %", trial.expected_saving_percent),
            format!("{:.0} us", trial.cpu_us),
            format!("{:.0} us", trial.expected_cpu_us),
            format!("{:.1} mJ", trial.energy_uj / 1e3),
            trial.cost.map_or_else(|| "-".to_owned(), |cost| format!("{cost:.2}x")),
            trial.verdict.clone(),
        ]);
        rows.push(row);
    }
    text + &table_within(&rows, 1, true, columns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use report::{CodecUse, Trial};

    fn region() -> Region {
        let entry = |codec: &str, raw_bytes, stored_bytes| CodecUse {
            codec: codec.to_owned(),
            units: 1,
            raw_bytes,
            stored_bytes,
        };
        Region {
            offset: 4 << 20,
            raw_bytes: 4 << 20,
            stored_bytes: 2 << 20,
            codecs: vec![entry("zstd-3", 3 << 20, 1 << 20), entry("raw", 1 << 20, 1 << 20)],
            remembered: None,
        }
    }

    #[test]
    fn regions_add_up() {
        let text = show(&[region(), region()], None);
        for part in ["zstd-3 75 %, raw 25 %", "50.0 %", "8 MiB"] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }

    #[test]
    fn a_detail_says_why_others_lose() {
        let trial = Trial {
            codec: "zstd-9".to_owned(),
            stored_bytes: None,
            cpu_us: 812.4,
            expected_saving_percent: 3.0,
            expected_cpu_us: 700.0,
            cost: None,
            energy_uj: 8124.0,
            verdict: "saves less than min-saving".to_owned(),
        };
        let detail = Detail {
            region: region(),
            unit_offset: 5 << 20,
            unit_bytes: 32768,
            bits_per_byte: 7.91,
            class: "random".to_owned(),
            compression: "auto".to_owned(),
            mode: "balanced".to_owned(),
            chosen: "raw".to_owned(),
            why: "it looks random".to_owned(),
            cpus: 2.0,
            device_bytes_per_s: None,
            cpu_watts: 10.0,
            energy_source: "cpu-time".to_owned(),
            dictionary: Some(7),
            dictionaries: 2,
            trials: vec![trial],
        };
        let narrow = show_detail(&detail, Some(80));
        assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
        let text = show_detail(&detail, None);
        for part in [
            "7.91 bits",
            "raw: it looks random",
            "812 us",
            "saves less than min-saving",
            "not measured yet",
            "number 7 of 2",
            "10.0 W for a busy CPU, nominal",
            "8.1 mJ",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }
}
