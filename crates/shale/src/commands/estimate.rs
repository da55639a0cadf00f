//! `shale estimate`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use surface::{Error, ErrorKind};

use super::estimate_tables::show;
use super::interruption::{Interruption, end_when_interrupted};
use super::watch;
use crate::cli::EstimateArgs;
use crate::cli::named_pool::of_environment;
use crate::output::Output;
use crate::progress::Progress;
use ::estimate::{Plan, Population};
use operations::names;
use operations::{EstimateWish, Request};
use operations::{Failure, Outcome};
use report::{EstimateReport, JobResult};
use server::pool_dir::PoolDir;
use server::session::Session;

/// Interval of showing the number of files found, in files.
const SHOW_EVERY: u64 = 256;

/// Estimates, and reports the outcome.
pub fn run(args: EstimateArgs, output: &Output) -> Outcome {
    if args.sample == Some(0) {
        return Err(Error::new(ErrorKind::Invalid, "--sample must be more than 0").into());
    }
    let report = match volume_of(&args.targets) {
        Some((pool, name, path)) => of_volume(args, &pool, name, path, output)?,
        None => of_paths(&args, output).map_err(|failure| with_pool_hint(&args.targets, failure))?,
    };
    tell(&report, output);
    Ok(())
}

/// Reports the outcome.
pub(super) fn tell(report: &EstimateReport, output: &Output) {
    output.result(report, || show(report));
}

/// Adds the advice to name the pool, if a word may be the name of a volume.
fn with_pool_hint(targets: &[PathBuf], failure: Failure) -> Failure {
    let may_be_volume =
        |target: &PathBuf| target.to_str().is_some_and(|name| names::any_name(name).is_ok()) && !target.exists();
    match of_environment() {
        Some(pool) if targets.first().is_some_and(may_be_volume) => failure.with(&format!(
            "; estimate ignores SHALE_POOL: for a volume or a share use shale estimate {} NAME",
            pool.display()
        )),
        _ => failure,
    }
}

/// Splits words of which the first is a pool's directory, the second could be a volume's or a
/// snapshot's name, and a third one a path in a share. `./name` is a file in the working directory.
fn volume_of(targets: &[PathBuf]) -> Option<(PathBuf, String, Option<String>)> {
    let (pool, volume, path) = match targets {
        [pool, volume] => (pool, volume, None),
        [pool, volume, path] => (pool, volume, Some(path.to_string_lossy().into_owned())),
        _ => return None,
    };
    let name = volume.to_str().filter(|name| names::any_name(name).is_ok())?;
    is_pool(pool).then(|| (pool.clone(), name.to_owned(), path))
}

fn is_pool(path: &Path) -> bool {
    PoolDir::new(path).config_path().exists()
}

fn of_paths(args: &EstimateArgs, output: &Output) -> Outcome<EstimateReport> {
    end_when_interrupted(output)?;
    // Its files say nothing about the data in its volumes.
    if let Some(pool) = args.targets.iter().find(|target| is_pool(target)) {
        let pool = pool.display();
        let message = format!("{pool} is a pool; specify one of its volumes: shale estimate {pool} VOLUME");
        return Err(Error::new(ErrorKind::Invalid, message).into());
    }
    let none = BTreeMap::new();
    let plan = Plan::new(&none, &none, &args.properties, &args.codecs)?;
    of_files(&args.targets, &plan, args, output)
}

fn of_files(paths: &[PathBuf], plan: &Plan, args: &EstimateArgs, output: &Output) -> Outcome<EstimateReport> {
    let progress = Progress::new(output, "look", None);
    let (population, scanned) = Population::of_paths(paths, plan, &mut |found| {
        if found.files % SHOW_EVERY == 0 {
            progress.set(found.bytes);
            progress.say(format!("{} files", found.files));
        }
    })?;
    progress.finish();
    if scanned.unreadable > 0 {
        output.warn(&format!("skipped {} unreadable files or directories", scanned.unreadable));
    }
    if scanned.files == 0 {
        let message = "no file to read; specify files, directories, block devices, or a pool and a volume";
        return Err(Error::new(ErrorKind::Invalid, message).into());
    }
    measured(&population, plan, args, output)
}

/// Estimates data in a pool: a job of the pool, in its server if it has one.
fn of_volume(
    args: EstimateArgs,
    pool: &Path,
    name: String,
    path: Option<String>,
    output: &Output,
) -> Outcome<EstimateReport> {
    let interruption = Interruption::watch()?;
    let choices = match args.codecs.as_str() {
        "none" => Vec::new(),
        list => list.split(',').map(str::to_owned).collect(),
    };
    let wish = EstimateWish {
        path,
        choices: Some(choices),
        properties: args.properties.into_iter().collect(),
        sample_bytes: args.sample,
        seed: args.seed,
        background: false,
        ..EstimateWish::of(name.into())
    };
    Session::with(pool, &args.access, |session| {
        match watch::result_of(session, Request::StartEstimate(wish), &interruption, output)? {
            (JobResult::Estimated(report), _) => Ok(*report),
            (other, _) => Err(other.unexpected().into()),
        }
    })
}

fn measured(population: &Population, plan: &Plan, args: &EstimateArgs, output: &Output) -> Outcome<EstimateReport> {
    let progress = Progress::new(output, "try", Some(0));
    let sample_bytes = args.sample.unwrap_or_else(|| estimate::sample_bytes_default(plan.unit_bytes));
    let report = estimate::run(population, plan, sample_bytes, args.seed, &mut |done, total| {
        progress.set_total(total);
        progress.set(done);
    })?;
    progress.finish();
    Ok(report)
}
