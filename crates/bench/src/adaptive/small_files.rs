//! Many small files, each a separate object for the policy, like a directory tree in a share. Here
//! each file is placed at the beginning of a region of its own in one thin volume. Units, the
//! memory of regions (none: no region ever gets a second file), the budget for tests and the
//! statistics are as with an object for each file; only the objects' own records are missing, which
//! do not depend on the codec.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use surface::{BlockDevice, WriteOptions};

use crate::bench_pool::BenchPool;
use crate::report::Report;
use crate::{Context, Outcome};

/// Number of files: as in the thesis.
const FILES: usize = 48_000;
/// Larger files are not small files.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Distance of files in the volume: a region.
const REGION_BYTES: u64 = 4 << 20;
/// Fixed codecs: the candidates of `auto`.
const RIVALS: [&str; 6] = ["lz4", "zstd-1", "zstd-3", "zstd-6", "zstd-9", "zstd-19"];

/// Settings that take longer than this are written once: their CPU time is not close to any other.
const REPEATED_SECONDS_MAX: f64 = 20.0;

/// Result of writing all files.
#[derive(Debug, Clone, Copy)]
struct Written {
    ratio: f64,
    cpu_seconds: f64,
}

/// Writes the files to a new pool, several times: the mean ratio, and the least CPU time, which has
/// the smallest part that is not the codec's.
fn write(context: &Context, files: &[Bytes], compression: &str, dictionary: &str) -> Outcome<Written> {
    let mut rounds: Vec<Written> = Vec::new();
    let is_slow = |written: &Written| written.cpu_seconds > REPEATED_SECONDS_MAX;
    while rounds.len() < context.scale.rounds && !rounds.iter().any(is_slow) {
        rounds.push(write_once(&context.dir.join("pool"), files, compression, dictionary)?);
    }
    let ratio = rounds.iter().map(|written| written.ratio).sum::<f64>() / rounds.len().max(1) as f64;
    let cpu_seconds = rounds.iter().map(|written| written.cpu_seconds).fold(f64::INFINITY, f64::min);
    println!("  {compression:<20} dictionary={dictionary:<5} ratio {ratio:.3}  {cpu_seconds:>7.2} CPU s");
    Ok(Written { ratio, cpu_seconds })
}

fn write_once(dir: &Path, files: &[Bytes], compression: &str, dictionary: &str) -> Outcome<Written> {
    let (codec, mode) = compression.split_once(' ').unwrap_or((compression, "balanced"));
    let bench = BenchPool::create(dir, codec, "32K")?;
    let pairs = [("mode", mode), ("dictionary", dictionary)];
    let properties = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    bench.pool.create_volume("v", files.len() as u64 * REGION_BYTES, &properties)?;
    let volume = bench.pool.volume("v")?;
    let cpu = super::live::cpu_seconds();
    for (index, file) in files.iter().enumerate() {
        volume.write(index as u64 * REGION_BYTES, file.clone(), WriteOptions::default())?;
    }
    volume.flush()?;
    let cpu_seconds = super::live::cpu_seconds() - cpu;
    bench.pool.checkpoint()?;
    let stored = bench.pool.status().live_bytes;
    drop(volume);
    bench.close()?;
    let raw: usize = files.iter().map(Bytes::len).sum();
    Ok(Written { ratio: raw as f64 / stored.max(1) as f64, cpu_seconds })
}

/// Paths of small files, sorted, up to a limit.
fn small_files(root: &Path, most: usize) -> Outcome<Vec<PathBuf>> {
    let (mut found, mut directories) = (Vec::new(), vec![root.to_owned()]);
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory)? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            if metadata.is_dir() {
                directories.push(entry.path());
            } else if metadata.is_file() && (1..=FILE_BYTES_MAX).contains(&metadata.len()) {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    // From everywhere, in their order.
    let count = found.len();
    let wanted = |index: &usize| count <= most || (index * most / count) != ((index + 1) * most / count);
    Ok(found.into_iter().enumerate().filter(|(index, _)| wanted(index)).map(|(_, path)| path).collect())
}

/// The rows.
pub fn run(context: &Context, report: &mut Report) -> Outcome<()> {
    let paths = small_files(&context.tree, FILES)?;
    let mut files = Vec::with_capacity(paths.len());
    for path in paths {
        let mut bytes = std::fs::read(&path)?;
        bytes.resize(bytes.len().next_multiple_of(units::BLOCK_BYTES), 0);
        files.push(Bytes::from(bytes));
    }
    let raw: usize = files.iter().map(Bytes::len).sum();
    let what = format!("{} files of {}, {}", files.len(), context.tree.display(), units::format_size(raw as u64));
    println!("{what}");
    let rivals: Vec<(&str, Written)> =
        RIVALS.iter().map(|rival| Ok((*rival, write(context, &files, rival, "off")?))).collect::<Outcome<_>>()?;
    let how = format!(
        "{what}, each in a region of its own, without dictionaries; mean ratio and least CPU time of {} rounds, one for settings that take longer than {REPEATED_SECONDS_MAX} CPU s; `bench adaptive --only 'adaptive small' --tree {}`",
        context.scale.rounds,
        context.tree.display()
    );
    let best = |most: f64| {
        let rivals = rivals.iter().filter(|(_, written)| written.cpu_seconds <= most);
        rivals.map(|(_, written)| written.ratio).fold(1.0, f64::max)
    };
    for mode in ["balanced", "archive"] {
        let ours = write(context, &files, &format!("auto {mode}"), "off")?;
        let share = 100.0 * ours.ratio / best(if mode == "archive" { f64::INFINITY } else { ours.cpu_seconds });
        let against =
            if mode == "archive" { "the best fixed codec" } else { "the best fixed codec of no more CPU time" };
        report.at_least(&format!("small files, {mode}: ratio against {against}"), share, "%", 99.0, &how)?;
    }
    let helped = write(context, &files, "auto balanced", "auto")?;
    report.info("small files, balanced with dictionaries: ratio", helped.ratio, "", &how)
}
