//! `shale salvage`.
//!
//! 1. The old pool's lock is taken, and its data opened for reading only.
//! 2. The new pool is made, except for the mark that it is ready.
//! 3. The engine fills it, with a temporary store next to its map, and a copy of the old map if
//!    there is one; both are removed in any case. The trees of shares are repaired, and the new
//!    pool is closed in order.
//! 4. It is marked as ready. After a failure or a signal it is removed instead; after a crash no
//!    command opens it, and salvage can be repeated.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use engine::{Completeness, DamagedRange, Pool, PoolOptions, Problem, SalvageReport, SalvageSource, SalvageStep};
use env::{FileDisk, FjallOptions, FjallStore, MapError, MapStore, PoolLock};
use serde::Serialize;
use share::Repaired;
use surface::{Error, ErrorKind, Result};
use units::{EXTENT_BYTES_DEFAULT, format_size};

use crate::cli::{Access, SalvageArgs};
use crate::output::{Output, line_shown};
use crate::progress::Progress;
use host::Termination;
use operations::{Failure, Outcome, kind_of, stop_if};
use server::pool_dir::{self, InitOptions, Opening, Overwrite, PoolDir, Unfinished};
use server::share_check::{self, Search};

/// Maximum size of an old map that is copied for reading: that of some 50 GiB of stored bytes. A
/// larger one would use space that the new pool needs.
const MAP_BYTES_MAX: u64 = 1 << 30;

/// Maximum number of a volume's ranges, damaged or missing, that are shown; JSON has more of them.
const RANGES_SHOWN: usize = 10;

/// Outcome of a salvage.
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
    completeness: &'static str,
    complete_up_to: Option<u64>,
    missing_bytes: u64,
    by_map: bool,
    other_pool: bool,
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
    missing_bytes_max: u64,
    missing: Vec<Range>,
    /// Faults of a share's tree, with the remedies.
    tree: Vec<String>,
    /// It is a share: its ranges name files, all of which are shown.
    #[serde(skip)]
    is_of_share: bool,
}

#[derive(Debug, Serialize)]
struct Range {
    offset: u64,
    length: u64,
    detail: String,
}

impl Summary {
    fn new(into: &Path, report: SalvageReport, mut trees: Trees, seconds: f64) -> Self {
        let lossy = report.is_lossy() || trees.values().any(|told| !told.is_empty());
        let volumes = report.volumes.into_iter().map(|v| Volume {
            tree: trees.remove(&v.name).unwrap_or_default(),
            is_of_share: v.size_bytes == units::SHARE_BYTES,
            name: v.name,
            // A share has no size.
            size_bytes: if v.size_bytes == units::SHARE_BYTES { v.copied_bytes } else { v.size_bytes },
            copied_bytes: v.copied_bytes,
            damaged_bytes: v.damaged_bytes,
            damaged: ranges(v.damaged),
            lost: v.is_lost,
            uncertain_bytes: v.uncertain_bytes,
            missing_bytes_max: v.missing_bytes_max,
            missing: ranges(v.missing),
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
            completeness: match report.completeness {
                Completeness::Complete => "complete",
                Completeness::UpTo => "up-to-batch",
                Completeness::InDoubt => "in-doubt",
                Completeness::Incomplete => "incomplete",
                Completeness::Damaged => "damaged",
                Completeness::NotKept => "unknown",
            },
            complete_up_to: report.complete_before.checked_sub(1),
            missing_bytes: report.missing_bytes,
            by_map: report.by_map,
            other_pool: report.is_of_another,
            seconds,
            notes: report.notes,
            volumes: volumes.collect(),
        }
    }
}

fn ranges(of: Vec<DamagedRange>) -> Vec<Range> {
    of.into_iter().map(|r| Range { offset: r.offset, length: r.length, detail: r.detail }).collect()
}

/// Opens the data of the old pool, and takes its lock if it has a directory.
fn open_old(path: &Path, access: &Access) -> Result<(FileDisk, Option<PoolLock>)> {
    let (data, lock) = if path.is_dir() {
        let dir = PoolDir::new(path);
        let lock = pool_dir::lock_for_reading(&dir, &access.into())?;
        let data = dir.config().map_or_else(|_| PathBuf::from("data"), |config| config.data);
        (path.join(data), lock)
    } else {
        (path.to_owned(), None)
    };
    let disk = FileDisk::open_read_only(&data)
        .map_err(|error| Error::new(kind_of(&error), error.to_string()).context("the pool's data cannot be opened"))?;
    Ok((disk, lock))
}

/// Rebuilds the content of the old pool's log in a new pool.
pub fn run(args: SalvageArgs, output: &Output) -> Outcome {
    let memory_bytes = share(args.access.memory)?;
    let signals = Termination::block().map_err(|error| Error::from_io("cannot block signals", error))?;
    let interrupted = signals.flag().map_err(|error| Error::from_io("cannot watch for signals", error))?;
    let started = Instant::now();
    // Step 1.
    let (disk, old_lock) = open_old(&args.pool, &args.access)?;
    engine::Pool::capacity_of(&disk, args.id)?;
    // Step 2.
    let dir = PoolDir::new(&args.into);
    let options = InitOptions {
        data: args.data,
        capacity_bytes: args.capacity,
        extent_bytes: EXTENT_BYTES_DEFAULT,
        properties: args.properties.into_iter().collect(),
        overwrite: Overwrite::Never,
    };
    let new = pool_dir::begin(&dir, &options)?;
    // Step 3.
    let temporary = new.dir().salvage_path();
    let filled = match std::fs::create_dir(&temporary) {
        Ok(()) => {
            let source = SalvageSource { id: args.id, map: copied_map(&args.pool, &temporary.join("map")) };
            fill(&new, (disk, source), memory_bytes, &interrupted, output)
        }
        Err(error) => Err(Error::from_io(format!("cannot make {}", temporary.display()), error).into()),
    };
    // A remnant stays in a directory that salvage has made.
    drop(std::fs::remove_dir_all(&temporary));
    drop(old_lock);
    // Step 4.
    let (report, trees) = match filled {
        Ok(filled) => filled,
        Err(failure) => return Err(give_up(new, failure)),
    };
    new.finish()?;
    let summary = Summary::new(dir.root(), report, trees, started.elapsed().as_secs_f64());
    output.result(&summary, || show(&summary));
    if summary.lossy { Err(Failure::Lossy) } else { Ok(()) }
}

/// Opens a copy of the old pool's map, if it exists and can be read, because opening changes a map.
/// A map that cannot be copied or opened is ignored, which is not an error.
fn copied_map(old: &Path, to: &Path) -> Option<Arc<dyn MapStore>> {
    let mut left = MAP_BYTES_MAX;
    if !old.is_dir() || copy_tree(&PoolDir::new(old).map_path(), to, &mut left).is_err() {
        return None;
    }
    let options = FjallOptions { memory_bytes: FjallOptions::MEMORY_BYTES_MIN };
    Some(Arc::new(FjallStore::open(to, options).ok()?))
}

/// Copies a directory tree of at most `left` bytes.
fn copy_tree(from: &Path, to: &Path, left: &mut u64) -> std::io::Result<()> {
    std::fs::create_dir(to)?;
    for entry in std::fs::read_dir(from)? {
        let (entry, is_dir) = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?.is_dir())))?;
        let target = to.join(entry.file_name().unwrap_or_default());
        if is_dir {
            copy_tree(&entry, &target, left)?;
        } else {
            let bytes = entry.metadata()?.len();
            *left = left.checked_sub(bytes).ok_or(std::io::ErrorKind::FileTooLarge)?;
            std::fs::copy(&entry, &target)?;
        }
    }
    Ok(())
}

/// Returns the memory for each of the two pools. Checked before anything is made.
fn share(memory_bytes: u64) -> Result<u64> {
    let least = 2 * pool_dir::MEMORY_BYTES_MIN;
    if memory_bytes < least {
        let message = format!("salvage works on two pools: --memory must be at least {}", format_size(least));
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    Ok(memory_bytes / 2)
}

/// Returns whether the storage below the pool is full, and not the pool.
fn is_below(error: &Error) -> bool {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    let Some(source) = std::error::Error::source(error) else { return false };
    let is_full = |error: &std::io::Error| matches!(error.kind(), StorageFull | QuotaExceeded);
    source.downcast_ref().is_some_and(is_full) || source.downcast_ref::<MapError>().is_some_and(|error| error.full)
}

/// Removes the new pool, and adds the remains to an interruption.
fn give_up(new: Unfinished, failure: Failure) -> Failure {
    let into = new.dir().root().display().to_string();
    let is_gone = new.abandon();
    let left = if is_gone {
        "the unfinished pool was removed"
    } else {
        "it is unfinished, and salvage can be repeated into it"
    };
    match failure {
        Failure::Interrupted(text) => Failure::Interrupted(format!("{text} before {into} was complete; {left}")),
        Failure::Error(error) if error.kind() == ErrorKind::Full => {
            let advice = if is_below(&error) {
                "free space on the file system of the new pool, or salvage to another one"
            } else {
                "salvage into a pool with a larger --capacity"
            };
            let text = format!("{error}; {advice} ({left})");
            Failure::Error(Error::new(ErrorKind::Full, text))
        }
        other => other,
    }
}

/// Fills the new pool, and makes it durable.
fn fill(
    new: &Unfinished,
    old: (FileDisk, SalvageSource),
    memory_bytes: u64,
    interrupted: &AtomicBool,
    output: &Output,
) -> Outcome<(SalvageReport, Trees)> {
    let pool = new.open(Opening::usual(memory_bytes))?;
    let temporary = new.dir().salvage_path().join("facts");
    let report = salvage(pool.service.pool(), old, &temporary, memory_bytes, interrupted, output);
    let report = report.map(|mut report| {
        let trees = mend_trees(pool.service.pool(), &mut report);
        (report, trees)
    });
    let closed = pool.close();
    // Salvage itself then fails as well, but its error is not the reason.
    stop_if(interrupted)?;
    let report = report?;
    closed?;
    Ok(report)
}

/// Faults of the trees of shares, by name.
type Trees = BTreeMap<String, Vec<String>>;

/// Repairs the trees of all shares, so that they can be served, and names the files that have
/// losses.
fn mend_trees(pool: &Pool, report: &mut SalvageReport) -> Trees {
    let mut trees = Trees::new();
    for share in pool.volumes().into_iter().filter(engine::VolumeStatus::is_share) {
        // The log may have restored data of removed files.
        let told = match share_check::mend(pool, &share.name, false, false, &|_| Ok(())).map(|mended| mended.repaired) {
            Ok(Repaired { mended, left }) => mended.into_iter().chain(left).collect(),
            Err(error) => vec![format!("{error}: shale check --repair on the new pool may find out more")],
        };
        trees.insert(share.name, told);
    }
    let mut in_doubt = Trees::new();
    let is_of_share = |name: &str| trees.contains_key(operations::names::volume_of(name));
    for volume in report.volumes.iter_mut().filter(|volume| is_of_share(&volume.name)) {
        let name = volume.name.clone();
        let problem = |range: &DamagedRange| Problem {
            kind: "tree",
            volume: Some(name.clone()),
            offset: Some(range.offset),
            length: Some(range.length),
            detail: range.detail.clone(),
            ..Problem::default()
        };
        for ranges in [&mut volume.damaged, &mut volume.missing] {
            let mut problems: Vec<_> = ranges.iter().map(problem).collect();
            share_check::name_files(pool, &mut problems, Search::Whole, &|name| share_check::opened(pool, name));
            for (range, problem) in ranges.iter_mut().zip(problems) {
                range.detail = problem.detail;
            }
        }
        // Without the map, a lost file looks like one that was never written.
        if !report.by_map && volume.missing_bytes_max > 0 {
            let found = share_check::files_with_zeroes(pool, &name);
            let found = found.unwrap_or_else(|error| vec![format!("cannot find out which files lack data: {error}")]);
            in_doubt.entry(name).or_default().extend(found);
        }
    }
    for (name, found) in in_doubt {
        trees.entry(name).or_default().extend(found);
    }
    trees
}

fn salvage(
    into: &engine::Pool,
    (disk, source): (FileDisk, SalvageSource),
    temporary: &Path,
    memory_bytes: u64,
    interrupted: &AtomicBool,
    output: &Output,
) -> Result<SalvageReport> {
    let store_bytes = (memory_bytes / 2).max(FjallOptions::MEMORY_BYTES_MIN);
    let store = FjallStore::create(temporary, FjallOptions { memory_bytes: store_bytes })
        .map_err(|error| pool_dir::store_error(error).context("the temporary index"))?;
    let env = pool_dir::environment(disk, store);
    let options = PoolOptions { memory_bytes: memory_bytes / 2, workers: 0, ..PoolOptions::default() };
    let mut at: Option<(SalvageStep, Progress)> = None;
    into.salvage_of(&source, &env, &options, &mut |step, done, total| {
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
        // Of an arbitrary kind: the caller checks the flag as well.
        stop_if(interrupted).map_err(|failure| Error::new(ErrorKind::Io, failure.to_string()))
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
        match volume.missing_bytes_max {
            0 => {}
            // A share has no size as an upper bound.
            bytes if bytes >= units::SHARE_BYTES => text.push_str(", an unknown amount MAY BE MISSING"),
            bytes => text.push_str(&format!(", up to {} MAY BE MISSING", format_size(bytes))),
        }
        if summary.lossy && volume.uncertain_bytes > 0 {
            text.push_str(&format!(
                ", up to {} may be older than the data that was written",
                format_size(volume.uncertain_bytes)
            ));
        }
        text.push('\n');
        let shown = if volume.is_of_share { usize::MAX } else { RANGES_SHOWN };
        let ranges = || volume.damaged.iter().chain(&volume.missing);
        for range in ranges().take(shown) {
            let detail = line_shown(&range.detail);
            text.push_str(&format!("  {} at byte {}: {detail}\n", format_size(range.length), range.offset));
        }
        match ranges().count().saturating_sub(shown) {
            0 => {}
            more => text.push_str(&format!("  and {more} more ranges: --json lists them\n")),
        }
        volume.tree.iter().for_each(|line| text.push_str(&format!("  {}\n", line_shown(line))));
    }
    for note in &summary.notes {
        text.push_str(&format!("note: {note}\n"));
    }
    if summary.uncertain_bytes > 0 {
        text.push_str(&format!(
            "note: blocks of at most {} may show discarded or rolled back data, or an older state; all other \
             rescued data is certainly right\n",
            format_size(summary.uncertain_bytes)
        ));
    }
    text.push_str(&format!(
        "{} in {}, from {} batches of the log, in {:.1} s: {}\n",
        counted(&summary.volumes),
        summary.into,
        summary.batches,
        summary.seconds,
        match summary.completeness {
            _ if summary.other_pool => "THE DATA BELONGS TO ANOTHER POOL than the directory",
            _ if summary.lossy && summary.completeness != "damaged" => "DATA IS LOST",
            _ if summary.lossy => "DATA MAY BE LOST",
            "complete" => "nothing is lost",
            _ => "nothing is known to be lost",
        }
    ));
    if summary.lossy {
        text.push_str(&advice(summary));
    }
    text
}

/// Returns the advice after a loss.
fn advice(summary: &Summary) -> String {
    let into = &summary.into;
    let other = if summary.other_pool {
        "If the pool of the directory was meant, put its own data file back, and salvage that. If the pool of the \
         data was meant, salvage the data file by its own name, without the directory: the report then lists the \
         losses of that pool.\n"
    } else {
        ""
    };
    let mut text = format!(
        "{other}Lost data reads as zeroes, or as an older state, in {into}: restore these volumes from a backup or \
         another copy. The old pool has not been changed: keep it until that is done.\n"
    );
    if !summary.by_map && summary.volumes.iter().any(|volume| volume.missing_bytes_max > 0) {
        text.push_str(
            "The figures are upper bounds. If the pool's map exists (the directory 'map' in the pool's directory), \
             salvage the whole directory: an undamaged map identifies each missing block.\n",
        );
    }
    if summary.by_map {
        text.push_str(
            "The old pool's map is intact, and may find data whose log entries are gone, which salvage needs: \
             'shale export' may read more from the old pool, and after 'shale check --repair' on a copy of it \
             salvage finds that data, too.\n",
        );
    }
    text
}

/// Describes the number of volumes and snapshots.
fn counted(volumes: &[Volume]) -> String {
    let snapshots = volumes.iter().filter(|volume| volume.name.contains('@')).count();
    let plural = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let volumes = plural(volumes.len() - snapshots, "volume");
    if snapshots == 0 { volumes } else { format!("{volumes} and {}", plural(snapshots, "snapshot")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(name: &str) -> engine::SalvagedVolume {
        engine::SalvagedVolume { name: name.to_owned(), size_bytes: 1 << 20, ..Default::default() }
    }

    #[test]
    fn what_is_lost_is_told_with_what_to_do() {
        let whole =
            SalvageReport { has_catalogue: true, completeness: Completeness::Complete, ..SalvageReport::default() };
        let shown = |report: &SalvageReport| {
            let summary = Summary::new(Path::new("/srv/new"), report.clone(), Trees::new(), 1.0);
            show(&summary)
        };
        let report = SalvageReport { volumes: vec![volume("vm")], ..whole.clone() };
        assert!(
            shown(&report).ends_with("1 volume in /srv/new, from 0 batches of the log, in 1.0 s: nothing is lost\n")
        );
        let mut lossy = SalvageReport { volumes: vec![volume("vm@a"), volume("vm@b"), volume("vm")], ..whole };
        lossy.completeness = Completeness::Incomplete;
        lossy.volumes[2].missing_bytes_max = 8192;
        let range = DamagedRange { offset: 0, length: 4096, detail: "gone".to_owned() };
        lossy.volumes[2].damaged = vec![range; RANGES_SHOWN + 2];
        let text = shown(&lossy);
        assert!(text.contains("1 volume and 2 snapshots in /srv/new") && text.contains("DATA IS LOST\n"), "{text}");
        assert!(text.contains("vm: 1 MiB, 0 B copied, up to 8 KiB MAY BE MISSING\n"), "{text}");
        assert!(text.contains("  and 2 more ranges: --json lists them\n"), "{text}");
        assert!(text.contains("restore these volumes") && text.contains("an undamaged map identifies"), "{text}");
        lossy.volumes[2].missing_bytes_max = units::SHARE_BYTES;
        assert!(
            shown(&lossy).contains("vm: 1 MiB, 0 B copied, an unknown amount MAY BE MISSING\n"),
            "no bound is known"
        );
        lossy.by_map = true;
        assert!(!shown(&lossy).contains("an undamaged map identifies"), "it has been asked");
        assert!(shown(&lossy).contains("'shale export'"), "the map finds more than the log tells");
    }

    #[test]
    fn room_that_is_lacking_below_is_told_from_a_pool_that_is_full() {
        let below = || std::io::Error::from(std::io::ErrorKind::StorageFull);
        assert!(is_below(&Error::from_io("writing failed", below()).context("copying")));
        assert!(is_below(&Error::with_source(ErrorKind::Full, "the storage below has no room", below())));
        let map = MapError { corrupt: false, full: true, message: "the file system is full".to_owned() };
        assert!(is_below(&Error::with_source(ErrorKind::Full, "the map", map)));
        assert!(!is_below(&Error::new(ErrorKind::Full, "the pool is full")));
    }
}
