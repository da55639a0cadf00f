//! `shale config` and `shale reload`.

use serde_json::json;
use surface::{Error, ErrorKind};

use super::serving::exposed_keys;
use crate::cli::{ConfigArgs, ConfigCommand, ReloadArgs};
use crate::output::Output;
use crate::settings::{self, Settings};
use operations::{Failure, Outcome, Reply, Request};
use report::ReloadReport;
use server::session::Session;

/// Checks a file, or prints one.
pub fn run(args: ConfigArgs, output: &Output) -> Outcome {
    let ConfigCommand::Check { file } = args.command else {
        output.exact(&settings::example());
        return Ok(());
    };
    let read = Settings::read(&file)?;
    let (pool, faults, warnings) = match &read {
        Ok(settings) => (Some(settings.serve.pool.display().to_string()), &[][..], exposed_keys(&settings.serve)),
        Err(faults) => (None, &faults[..], Vec::new()),
    };
    warnings.iter().for_each(|warning| output.warn(warning));
    let document = json!({
        "file": file.display().to_string(), "valid": pool.is_some(), "pool": pool, "faults": faults, "warnings": warnings,
    });
    output.done(&document, || match &pool {
        Some(pool) => format!("{} is valid, for the pool {pool}\n", file.display()),
        None => String::new(),
    });
    if !output.is_json() {
        faults.iter().for_each(|fault| output.error(ErrorKind::Invalid.name(), &fault.in_file(&file)));
    }
    if faults.is_empty() { Ok(()) } else { Err(Failure::Reported(ErrorKind::Invalid)) }
}

/// Makes a server reload its file.
pub fn reload(args: ReloadArgs, output: &Output) -> Outcome {
    let pool = match (args.pool, args.config) {
        (Some(pool), _) => pool,
        (None, Some(file)) => Settings::load(&file)?.serve.pool,
        (None, None) => return Err(Error::new(ErrorKind::Invalid, "specify a pool, or --config FILE").into()),
    };
    let session = Session::of_server(&pool)?.ok_or_else(|| Session::unserved(&pool, "there is nothing to reload"))?;
    let report = match session.call(Request::Reload)? {
        Reply::Reloaded(report) => report,
        other => return Err(other.unexpected().into()),
    };
    if !report.needs_restart.is_empty() {
        output.warn(&format!("takes effect at the next start of the server: {}", report.needs_restart.join(", ")));
    }
    output.done(&report, || show(&report));
    Ok(())
}

fn show(report: &ReloadReport) -> String {
    let changed = if report.changed.is_empty() { "nothing".to_owned() } else { report.changed.join(", ") };
    let mut text = format!("{}: changed: {changed}\n", report.file);
    report.serving.iter().for_each(|line| text.push_str(&format!("{line}\n")));
    text
}
