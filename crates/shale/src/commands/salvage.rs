//! `shale salvage`.
//!
//! 1. The old pool's lock is taken, and its data opened for reading only.
//! 2. The new pool is made, with a temporary store beside its map.
//! 3. The engine does the rest; the temporary store goes, however that ends.

use std::path::{Path, PathBuf};
use std::time::Instant;

use engine::{PoolOptions, SalvageReport, SalvageStep};
use env::{FileDisk, FjallOptions, FjallStore, PoolLock};
use serde::Serialize;
use surface::{Error, ErrorKind, Result};
use units::{EXTENT_BYTES_DEFAULT, format_size};

use crate::cli::SalvageArgs;
use crate::exit::{Failure, Outcome, kind_of};
use crate::output::Output;
use crate::pool_dir::{self, InitOptions, Opening, Overwrite, PoolDir};
use crate::progress::Progress;

/// Name of the temporary store in the new pool's directory.
const TEMPORARY: &str = "salvage.tmp";

/// What came of it.
#[derive(Debug, Serialize)]
struct Summary {
    into: String,
    extents: u64,
    batches: u64,
    has_catalogue: bool,
    log_damaged_bytes: u64,
    unreadable_bytes: u64,
    uncertain_bytes: u64,
    lossy: bool,
    seconds: f64,
    notes: Vec<String>,
    volumes: Vec<Volume>,
}

#[derive(Debug, Serialize)]
struct Volume {
    name: String,
    size_bytes: u64,
    copied_bytes: u64,
    damaged_bytes: u64,
    damaged: Vec<Range>,
    lost: bool,
    uncertain_bytes: u64,
}

#[derive(Debug, Serialize)]
struct Range {
    offset: u64,
    length: u64,
    detail: String,
}

impl Summary {
    fn new(into: &Path, report: SalvageReport, seconds: f64) -> Self {
        let lossy = report.is_lossy();
        let volumes = report.volumes.into_iter().map(|v| Volume {
            name: v.name,
            size_bytes: v.size_bytes,
            copied_bytes: v.copied_bytes,
            damaged_bytes: v.damaged_bytes,
            damaged: v
                .damaged
                .into_iter()
                .map(|r| Range { offset: r.offset, length: r.length, detail: r.detail })
                .collect(),
            lost: v.is_lost,
            uncertain_bytes: v.uncertain_bytes,
        });
        Self {
            into: into.display().to_string(),
            extents: report.extents,
            batches: report.batches,
            has_catalogue: report.has_catalogue,
            log_damaged_bytes: report.log_damaged_bytes,
            unreadable_bytes: report.unreadable_bytes,
            uncertain_bytes: report.uncertain_bytes,
            lossy,
            seconds,
            notes: report.notes,
            volumes: volumes.collect(),
        }
    }
}

/// The data of the old pool, and its lock if it has a directory.
fn open_old(path: &Path) -> Result<(FileDisk, Option<PoolLock>)> {
    let (data, lock) = if path.is_dir() {
        let dir = PoolDir::new(path);
        // On a medium that can only be read nobody else can have the pool open either.
        let lock = match PoolLock::acquire(path) {
            Ok(lock) => Some(lock),
            Err(error) if error.kind() == std::io::ErrorKind::ReadOnlyFilesystem => None,
            Err(error) => return Err(Error::new(kind_of(&error), error.to_string())),
        };
        let data = dir.config().map_or_else(|_| PathBuf::from("data"), |config| config.data);
        (path.join(data), lock)
    } else {
        (path.to_owned(), None)
    };
    let disk = FileDisk::open_read_only(&data)
        .map_err(|error| Error::new(kind_of(&error), error.to_string()).context("the pool's data cannot be opened"))?;
    Ok((disk, lock))
}

/// Rebuilds what the old pool's log holds in a new pool.
pub fn run(args: SalvageArgs, output: &Output) -> Outcome {
    let started = Instant::now();
    // Step 1.
    let (disk, old_lock) = open_old(&args.pool)?;
    engine::Pool::capacity_of(&disk)?;
    // Step 2.
    let dir = PoolDir::new(&args.into);
    let options = InitOptions {
        data: args.data,
        capacity_bytes: args.capacity,
        extent_bytes: EXTENT_BYTES_DEFAULT,
        properties: args.properties.into_iter().collect(),
        overwrite: Overwrite::Never,
    };
    pool_dir::init(&dir, &options)?;
    let lock = pool_dir::lock_alone(&dir, &args.access)?;
    let memory_bytes = args.access.memory / 2;
    let pool = pool_dir::open_locked(&dir, lock, Opening { memory_bytes, repair: false }, output)?;
    let temporary = dir.root().join(TEMPORARY);
    // Step 3.
    let report = salvage(pool.service.pool(), disk, &temporary, memory_bytes, output);
    drop(std::fs::remove_dir_all(&temporary));
    let closed = pool.close();
    drop(old_lock);
    let summary = Summary::new(dir.root(), report?, started.elapsed().as_secs_f64());
    closed?;
    output.result(&summary, || show(&summary));
    if summary.lossy { Err(Failure::Lossy) } else { Ok(()) }
}

fn salvage(
    into: &engine::Pool,
    disk: FileDisk,
    temporary: &Path,
    memory_bytes: u64,
    output: &Output,
) -> Result<SalvageReport> {
    let store_bytes = (memory_bytes / 2).max(FjallOptions::MEMORY_BYTES_MIN);
    let store = FjallStore::create(temporary, FjallOptions { memory_bytes: store_bytes })
        .map_err(|error| Error::new(ErrorKind::Io, error.to_string()).context("the temporary index"))?;
    let env = pool_dir::environment(disk, store);
    let options = PoolOptions { memory_bytes: memory_bytes / 2, workers: 0, ..PoolOptions::default() };
    let mut at: Option<(SalvageStep, Progress)> = None;
    into.salvage(&env, &options, &mut |step, done, total| {
        if at.as_ref().is_none_or(|(now, _)| *now != step) {
            let what = match step {
                SalvageStep::Scan => "reading the log",
                SalvageStep::Map => "rebuilding the map",
                SalvageStep::Copy => "copying",
            };
            at = Some((step, Progress::new(output, what, Some(total))));
        }
        if let Some((_, progress)) = &at {
            progress.set(done);
        }
    })
}

fn show(summary: &Summary) -> String {
    let mut text = String::new();
    for volume in &summary.volumes {
        let size = format_size(volume.size_bytes);
        text.push_str(&format!("{}: {size}, {} copied", volume.name, format_size(volume.copied_bytes)));
        if volume.damaged_bytes > 0 {
            text.push_str(&format!(", {} CANNOT BE READ", format_size(volume.damaged_bytes)));
        }
        if volume.lost {
            text.push_str(", its name and size are not known");
        }
        text.push('\n');
        for range in &volume.damaged {
            text.push_str(&format!("  {} at byte {}: {}\n", format_size(range.length), range.offset, range.detail));
        }
    }
    for note in &summary.notes {
        text.push_str(&format!("note: {note}\n"));
    }
    if summary.uncertain_bytes > 0 {
        text.push_str(&format!(
            "note: at most {} may show that were discarded; everything else is certain\n",
            format_size(summary.uncertain_bytes)
        ));
    }
    text.push_str(&format!(
        "{} volumes and snapshots in {}, from {} batches, in {:.1} s: {}\n",
        summary.volumes.len(),
        summary.into,
        summary.batches,
        summary.seconds,
        if summary.lossy { "SOMETHING IS LOST" } else { "nothing is lost" }
    ));
    text
}
