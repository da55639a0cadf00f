//! `shale estimate`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use surface::{Error, ErrorKind};

use super::estimate_tables::show;
use super::interruption::end_when_interrupted;
use crate::cli::EstimateArgs;
use crate::cli::named_pool::of_environment;
use crate::output::Output;
use crate::progress::Progress;
use ::estimate::{Plan, Population, Report};
use operations::names;
use operations::{Failure, Outcome};
use operations::{Reply, Request, Which};
use server::pool_dir::PoolDir;
use server::session::Session;

/// How often the number of files found is shown, in files.
const SHOW_EVERY: u64 = 256;

/// Estimates, and says what came of it.
pub fn run(args: EstimateArgs, output: &Output) -> Outcome {
    end_when_interrupted(output)?;
    if args.sample == Some(0) {
        return Err(Error::new(ErrorKind::Invalid, "--sample must be more than 0").into());
    }
    let report = match volume_of(&args.targets) {
        Some((pool, volume, path)) => of_volume(&args, &pool, &volume, path, output)?,
        None => of_paths(&args, output).map_err(|failure| with_pool_hint(&args.targets, failure))?,
    };
    output.result(&report, || show(&report));
    Ok(())
}

/// Says that the pool must be named, where a word may be meant as the name of a volume.
fn with_pool_hint(targets: &[PathBuf], failure: Failure) -> Failure {
    let may_be_volume =
        |target: &PathBuf| target.to_str().is_some_and(|name| names::any_name(name).is_ok()) && !target.exists();
    match of_environment() {
        Some(pool) if targets.first().is_some_and(may_be_volume) => failure.with(&format!(
            "; estimate does not use SHALE_POOL: for a volume or a share write shale estimate {} NAME",
            pool.display()
        )),
        _ => failure,
    }
}

/// Words of which the first is a pool's directory, the second could be a volume's or a snapshot's
/// name, and a third one a path in a share. `./name` means a file of that name in the working
/// directory.
fn volume_of(targets: &[PathBuf]) -> Option<(PathBuf, String, Option<&Path>)> {
    let (pool, volume, path) = match targets {
        [pool, volume] => (pool, volume, None),
        [pool, volume, path] => (pool, volume, Some(path.as_path())),
        _ => return None,
    };
    let name = volume.to_str().filter(|name| names::any_name(name).is_ok())?;
    is_pool(pool).then(|| (pool.clone(), name.to_owned(), path))
}

fn is_pool(path: &Path) -> bool {
    PoolDir::new(path).config_path().exists()
}

fn of_paths(args: &EstimateArgs, output: &Output) -> Outcome<Report> {
    // Its files say nothing of what is in its volumes.
    if let Some(pool) = args.targets.iter().find(|target| is_pool(target)) {
        let pool = pool.display();
        let message = format!("{pool} is a pool; name one of its volumes: shale estimate {pool} VOLUME");
        return Err(Error::new(ErrorKind::Invalid, message).into());
    }
    let none = BTreeMap::new();
    let plan = Plan::new(&none, &none, &args.properties, &args.codecs)?;
    of_files(&args.targets, &plan, args, output)
}

fn of_files(paths: &[PathBuf], plan: &Plan, args: &EstimateArgs, output: &Output) -> Outcome<Report> {
    let progress = Progress::new(output, "look", None);
    let (population, scanned) = Population::of_paths(paths, plan, &mut |found| {
        if found.files % SHOW_EVERY == 0 {
            progress.set(found.bytes);
            progress.say(format!("{} files", found.files));
        }
    })?;
    progress.finish();
    if scanned.unreadable > 0 {
        output.warn(&format!("{} files or directories cannot be read and are left out", scanned.unreadable));
    }
    if scanned.files == 0 {
        let message = "there is no file to look at; name files, directories, block devices, or a pool and a volume";
        return Err(Error::new(ErrorKind::Invalid, message).into());
    }
    measured(&population, plan, args, output)
}

fn of_volume(args: &EstimateArgs, pool: &Path, volume: &str, path: Option<&Path>, output: &Output) -> Outcome<Report> {
    Session::with(pool, &args.access, |session| {
        let set = |object: Option<Which>| -> Outcome<BTreeMap<String, String>> {
            let properties = match session.call(Request::Get { object })? {
                Reply::Properties(report) => report.properties,
                other => return Err(other.unexpected().into()),
            };
            Ok(properties.into_iter().filter(|p| p.source != "default").map(|p| (p.key, p.value)).collect())
        };
        // A snapshot has no properties of its own.
        let owner = names::volume_of(volume).to_owned();
        let plan = Plan::new(&set(None)?, &set(Some(Which::from(&owner)))?, &args.properties, &args.codecs)?;
        if let Some(root) = root_of(session, volume, &owner)? {
            let path = path.unwrap_or(Path::new(""));
            let path = path.strip_prefix("/").unwrap_or(path);
            return of_files(&[root.join(path)], &plan, args, output);
        }
        if let Some(path) = path {
            let text = format!("'{volume}' is a volume, which has no files: leave {} out", path.display());
            return Err(Error::new(ErrorKind::Invalid, text).into());
        }
        let population = Population::of_volume(session.volume(volume, None)?, plan.unit_bytes)?;
        measured(&population, &plan, args, output)
    })
}

/// Where a share, or a snapshot of one, is mounted; `None` for a volume.
fn root_of(session: &Session, name: &str, owner: &str) -> Outcome<Option<PathBuf>> {
    let volumes = match session.call(Request::List)? {
        Reply::Volumes(volumes) => volumes,
        other => return Err(other.unexpected().into()),
    };
    if !volumes.iter().any(|volume| volume.share && volume.name == owner) {
        return Ok(None);
    }
    let status = match session.call(Request::Status)? {
        Reply::Status(status) => status,
        other => return Err(other.unexpected().into()),
    };
    let Some(shares) = status.shares else {
        let text =
            format!("'{owner}' is a share, and is read where it is mounted: serve the pool with --shares DIR first");
        return Err(Error::new(ErrorKind::Unsupported, text).into());
    };
    let root = PathBuf::from(shares).join(owner);
    Ok(Some(match name.split_once('@') {
        Some((_, snapshot)) => root.join(".shale/snapshots").join(snapshot),
        None => root,
    }))
}

fn measured(population: &Population, plan: &Plan, args: &EstimateArgs, output: &Output) -> Outcome<Report> {
    let progress = Progress::new(output, "try", Some(0));
    let sample_bytes = args.sample.unwrap_or_else(|| estimate::sample_bytes_default(plan.unit_bytes));
    let report = estimate::run(population, plan, sample_bytes, args.seed, &mut |done, total| {
        progress.set_total(total);
        progress.set(done);
    })?;
    progress.finish();
    Ok(report)
}
