//! `shale estimate`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use surface::{Error, ErrorKind};

use super::pace::end_when_interrupted;
use crate::cli::EstimateArgs;
use crate::control::{Reply, Request};
use crate::estimate::{self, Plan, Population, Report, show};
use crate::exit::Outcome;
use crate::names;
use crate::output::Output;
use crate::pool_dir::PoolDir;
use crate::progress::Progress;
use crate::session::Session;

/// How often the number of files found is shown, in files.
const SHOW_EVERY: u64 = 256;

/// Estimates, and says what came of it.
pub fn run(args: EstimateArgs, output: &Output) -> Outcome {
    end_when_interrupted(output)?;
    if args.sample == Some(0) {
        return Err(Error::new(ErrorKind::Invalid, "--sample must be more than 0").into());
    }
    let report = match volume_of(&args.targets) {
        Some((pool, volume)) => of_volume(&args, &pool, &volume, output)?,
        None => of_paths(&args, output)?,
    };
    output.result(&report, || show(&report));
    Ok(())
}

/// Two words of which the first is a pool's directory and the second could be a volume's or a
/// snapshot's name. `./name` means a file of that name in the working directory.
fn volume_of(targets: &[PathBuf]) -> Option<(PathBuf, String)> {
    let [pool, volume] = targets else { return None };
    let name = volume.to_str().filter(|name| names::any_name(name).is_ok())?;
    is_pool(pool).then(|| (pool.clone(), name.to_owned()))
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
    let progress = Progress::new(output, "look", None);
    let (population, scanned) = Population::of_paths(&args.targets, plan.unit_bytes, &mut |found| {
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
    measured(&population, &plan, args, output)
}

fn of_volume(args: &EstimateArgs, pool: &Path, volume: &str, output: &Output) -> Outcome<Report> {
    Session::with(pool, &args.access, output, |session| {
        let set = |volume| -> Outcome<BTreeMap<String, String>> {
            let properties = match session.call(Request::Get { volume })? {
                Reply::Properties(properties) => properties,
                other => return Err(other.unexpected().into()),
            };
            Ok(properties.into_iter().filter(|p| p.source != "default").map(|p| (p.key, p.value)).collect())
        };
        // A snapshot has no properties of its own.
        let owner = names::volume_of(volume).to_owned();
        let plan = Plan::new(&set(None)?, &set(Some(owner))?, &args.properties, &args.codecs)?;
        let population = Population::of_volume(session.volume(volume, None)?, plan.unit_bytes)?;
        measured(&population, &plan, args, output)
    })
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
