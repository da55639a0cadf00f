//! `shale estimate` against the truth: the real program estimates each kind of data, and then all
//! of it is compressed.
//!
//! Twice: as a user would, when small data is examined in full; and with samples of an eighth of
//! the data, when the margin has to cover the error.
//!
//! And once more in units of 4 KiB, for which a volume trains dictionaries: against a volume that
//! has trained its own on the same data.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use codec::{Codec, Workspace};
use policy::{Settings, dst_limit, is_zero};
use serde::Deserialize;
use units::{BLOCK_BYTES, format_size};

use crate::adaptive::stored_with_dictionaries;
use crate::command::run;
use crate::corpus::kind_data;
use crate::report::Report;
use crate::server::binary;
use crate::{Context, Outcome};

/// Codecs that are estimated and tried.
const CODECS: [&str; 3] = ["lz4", "zstd-3", "zstd-9"];
/// Part of the data that is sampled in the second round.
const PART: u64 = 8;
/// How far an estimate may be off.
const ERROR_POINTS_MAX: f64 = 2.0;

#[derive(Debug, Deserialize)]
struct Estimate {
    data_bytes: u64,
    sampled_bytes: u64,
    settings: Vec<Line>,
}

#[derive(Debug, Deserialize)]
struct Line {
    setting: String,
    saving_percent: f64,
    margin_percent: Option<f64>,
    cpu_seconds: f64,
}

/// The largest error, and its kind.
#[derive(Debug, Default)]
struct Worst {
    points: f64,
    of: String,
}

impl Worst {
    fn add(&mut self, points: f64, kind: &str, setting: &str) {
        if points >= self.points {
            *self = Self { points, of: format!("{kind}, {setting}") };
        }
    }
}

impl std::fmt::Display for Worst {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "largest: {}", self.of)
    }
}

impl Estimate {
    fn ask(dir: &Path, sample_bytes: Option<u64>) -> Outcome<Self> {
        let mut words = vec!["estimate".to_owned(), dir.display().to_string(), "--json".to_owned()];
        words.extend(["--codecs".to_owned(), CODECS.join(",")]);
        if let Some(bytes) = sample_bytes {
            words.extend(["--sample".to_owned(), bytes.to_string()]);
        }
        Ok(serde_json::from_str(&run(&binary()?, &words)?)?)
    }

    fn of(&self, codec: &str) -> Outcome<&Line> {
        self.settings.iter().find(|line| line.setting == codec).ok_or_else(|| format!("no estimate for {codec}").into())
    }
}

/// All kinds.
pub fn measure(context: &Context, report: &mut Report) -> Outcome<()> {
    if !report.begin(context, "estimate") {
        return Ok(());
    }
    let (mut worst, mut worst_part, mut inside, mut asked) = (Worst::default(), Worst::default(), 0, 0);
    // By setting: the smallest share of the data examined by the default samples, and the predicted
    // seconds.
    let (mut looked_at, mut data_bytes, mut sampled_bytes) = (100.0f64, 0, 0);
    let mut predicted: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    println!("{:<14} {:<8} {:>8} {:>18} {:>24}", "kind", "codec", "truth", "estimate", "from an eighth");
    let mut kinds: Vec<PathBuf> = std::fs::read_dir(&context.corpus_dir)?.flatten().map(|entry| entry.path()).collect();
    kinds.sort();
    let is_hidden = |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
    for dir in kinds.into_iter().filter(|path| path.is_dir() && !is_hidden(path)) {
        let full = Estimate::ask(&dir, None)?;
        let part = Estimate::ask(&dir, Some(full.data_bytes / PART))?;
        let kind = dir.file_name().unwrap_or_default().to_string_lossy();
        looked_at = looked_at.min(100.0 * full.sampled_bytes as f64 / full.data_bytes.max(1) as f64);
        data_bytes += part.data_bytes;
        sampled_bytes += part.sampled_bytes;
        for line in &part.settings {
            let (cpu_seconds, saved) = predicted.entry(line.setting.clone()).or_default();
            *cpu_seconds += line.cpu_seconds;
            *saved += line.saving_percent / 100.0 * part.data_bytes as f64;
        }
        for codec in CODECS {
            let truth = truth(&dir, codec.parse()?)?;
            let (whole, some) = (full.of(codec)?, part.of(codec)?);
            let margin = some.margin_percent.unwrap_or(f64::INFINITY);
            worst.add((whole.saving_percent - truth).abs(), &kind, codec);
            worst_part.add((some.saving_percent - truth).abs(), &kind, codec);
            asked += 1;
            inside += usize::from((some.saving_percent - truth).abs() <= margin + 0.01);
            println!(
                "{kind:<14} {codec:<8} {truth:>6.1} % {:>8.1} % ±{:<6.1} {:>10.1} % ±{margin:<5.1} ({} KiB)",
                whole.saving_percent,
                whole.margin_percent.unwrap_or(f64::INFINITY),
                some.saving_percent,
                part.sampled_bytes >> 10
            );
        }
    }
    let how = "`shale estimate` on each kind of the corpus, against compressing all of it with lz4, zstd-3, zstd-9; `bench estimate`";
    let whole_how = format!("of each kind at least {looked_at:.0} % is looked at; {worst}; {how}");
    let name = "estimate: largest error over all kinds, default samples";
    report.at_most(name, worst.points, "points", ERROR_POINTS_MAX, &whole_how)?;
    let part_how = format!(
        "--sample with an eighth of each kind, {} of {} in all; {worst_part}; {how}",
        format_size(sampled_bytes),
        format_size(data_bytes)
    );
    let name = "estimate: largest error over all kinds, an eighth sampled";
    report.at_most(name, worst_part.points, "points", ERROR_POINTS_MAX, &part_how)?;
    for (setting, (cpu_seconds, saved)) in &predicted {
        let how = format!(
            "result of `shale estimate` with an eighth of {}, for one core of this machine: {cpu_seconds:.2} CPU s, {:.1} % saved; `bench estimate`",
            format_size(data_bytes),
            100.0 * saved / data_bytes.max(1) as f64
        );
        let speed = data_bytes as f64 / 1e6 / cpu_seconds.max(1e-9);
        report.info(&format!("estimate, {setting}: predicted speed of one core"), speed, "MB/s", &how)?;
    }
    let share = 100.0 * inside as f64 / f64::from(asked.max(1));
    let name = "estimate: intervals that hold the truth, an eighth sampled";
    report.at_least(name, share, "%", 90.0, &part_how)?;
    small_units(context, report)
}

/// Most bytes of a kind in small units.
const SMALL_KIND_BYTES: usize = 16 << 20;

/// With dictionaries.
fn small_units(context: &Context, report: &mut Report) -> Outcome<()> {
    let mut worst = (0.0f64, String::new());
    std::fs::create_dir_all(&context.dir)?;
    let image = context.dir.join("estimate.img");
    for (kind, data) in kind_data(&context.corpus_dir, SMALL_KIND_BYTES)?.into_iter().filter(|(_, d)| !d.is_empty()) {
        // An image whose first block is a hole: no file-type rule matches it, as none matches a
        // volume.
        let mut content = vec![0; BLOCK_BYTES];
        content.extend_from_slice(&data);
        std::fs::write(&image, content)?;
        let words = ["estimate", "--json", "--codecs", "none", "-o", "unit=4K", "-o", "candidates=lz4,zstd-1,zstd-3"];
        let words = words.into_iter().map(str::to_owned).chain([image.display().to_string()]);
        let estimate: Estimate = serde_json::from_str(&run(&binary()?, &words.collect::<Vec<_>>())?)?;
        let line = estimate.of("auto, balanced")?;
        let stored = stored_with_dictionaries(context, &bytes::Bytes::from(data.clone()), "lz4,zstd-1,zstd-3")?;
        let raw = data.chunks(BLOCK_BYTES).filter(|block| !is_zero(block)).count() * BLOCK_BYTES;
        let truth = 100.0 * (1.0 - stored as f64 / raw as f64);
        println!("{kind:<14} 4K, auto {truth:>6.1} % {:>8.1} %", line.saving_percent);
        let error = (line.saving_percent - truth).abs();
        if error >= worst.0 {
            worst = (error, kind);
        }
    }
    std::fs::remove_file(&image)?;
    let how = format!(
        "`bench estimate`: up to {} of each kind, estimated as an image in units of 4 KiB, balanced among lz4, zstd-1 and zstd-3, against the stored bytes of a \
         volume that wrote the same before and has trained its dictionaries; largest error: {}",
        format_size(SMALL_KIND_BYTES as u64),
        worst.1
    );
    report.at_most(
        "estimate with dictionaries, units of 4 KiB: largest error over all kinds",
        worst.0,
        "points",
        2.0,
        &how,
    )
}

/// The saving over all files below `dir`, in percent.
fn truth(dir: &Path, codec: Codec) -> Outcome<f64> {
    let settings = Settings::default();
    let unit_bytes = settings.unit_blocks as usize * BLOCK_BYTES;
    let mut workspace = Workspace::new();
    let mut dst = vec![0; unit_bytes];
    let (mut raw, mut stored) = (0u64, 0u64);
    let mut paths = vec![dir.to_owned()];
    while let Some(path) = paths.pop() {
        let kind = std::fs::symlink_metadata(&path)?.file_type();
        if kind.is_dir() || path == dir {
            paths.extend(std::fs::read_dir(&path)?.flatten().map(|entry| entry.path()));
            continue;
        }
        if !kind.is_file() {
            continue;
        }
        let mut file = std::fs::File::open(&path)?;
        loop {
            let mut window = Vec::with_capacity(unit_bytes);
            Read::by_ref(&mut file).take(unit_bytes as u64).read_to_end(&mut window)?;
            if window.is_empty() {
                break;
            }
            window.resize(window.len().next_multiple_of(BLOCK_BYTES), 0);
            // Blocks of zeroes divide units, as they do in a volume.
            let blocks: Vec<&[u8]> = window.chunks(BLOCK_BYTES).collect();
            for unit in blocks.split(|block| is_zero(block)).map(<[&[u8]]>::concat) {
                if unit.is_empty() {
                    continue;
                }
                raw += unit.len() as u64;
                let limit = dst_limit(unit.len(), &settings);
                stored += workspace.compress(codec, &unit, &mut dst[..limit]).unwrap_or(unit.len()) as u64;
            }
        }
    }
    Ok(100.0 * (1.0 - stored as f64 / raw.max(1) as f64))
}
