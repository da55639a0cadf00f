//! `shale exports`.

use surface::ErrorKind;

use crate::cli::ExportsArgs;
use crate::output::{Output, table};
use operations::{Failure, Outcome};
use operations::{Reply, Request};
use report::ExportsReport;
use server::session::Session;

/// Shows the exports by network protocols.
pub fn run(args: &ExportsArgs, output: &Output) -> Outcome {
    let report = Session::with(&args.pool, &args.access, |session| {
        match session.call(Request::Exports { check: args.check })? {
            Reply::Exports(report) => Ok(report),
            other => Err(other.unexpected().into()),
        }
    })?;
    output.result(&report, || show(&report, args.check));
    let is_good = report.checks.iter().all(|check| check.good) && report.exports.iter().all(|e| e.fault.is_none());
    // The report contains the faults.
    if args.check && !is_good { Err(Failure::Reported(ErrorKind::Unsupported)) } else { Ok(()) }
}

fn show(report: &ExportsReport, check: bool) -> String {
    if report.exports.is_empty() {
        return "no share has an open door: shale set POOL SHARE nfs=on (or smb, http, ftp)\n".to_owned();
    }
    let mut rows = vec![["SHARE", "DOOR", "ACCESS", "ADDRESS"].map(str::to_owned).to_vec()];
    rows.extend(report.exports.iter().map(|line| {
        let address = line.address.clone().unwrap_or_else(|| "-".to_owned());
        vec![line.share.clone(), line.door.clone(), line.access.clone(), address]
    }));
    let mut text = table(&rows);
    let mut told: Vec<&String> = Vec::new();
    for fault in report.exports.iter().filter_map(|line| line.fault.as_ref()) {
        // A fault of a server applies to all its shares.
        if !told.contains(&fault) {
            text.push_str(&format!("{fault}\n"));
            told.push(fault);
        }
    }
    if check {
        let mut rows = vec![["CHECK", "", "FOUND"].map(str::to_owned).to_vec()];
        rows.extend(report.checks.iter().map(|line| {
            let verdict = match (line.good, line.warns) {
                (false, _) => "BAD",
                (true, true) => "note",
                (true, false) => "good",
            };
            vec![line.what.clone(), verdict.to_owned(), line.found.clone()]
        }));
        text.push('\n');
        text.push_str(&table(&rows));
    }
    text
}
