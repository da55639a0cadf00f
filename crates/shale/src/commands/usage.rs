//! `shale usage`.

use surface::ErrorKind;
use units::format_size;

use super::volume::kind_of;

use crate::cli::UsageArgs;
use crate::output::{Output, table};
use operations::names;
use operations::{Failure, Outcome};
use operations::{Reply, Request};
use report::{UsageLine, UsageReport};
use server::session::Session;

/// Shows the space of a share's files.
pub fn run(args: UsageArgs, output: &Output) -> Outcome {
    let path = args.path.unwrap_or_default();
    let report = Session::with(&args.pool, &args.access, |session| {
        let is_volume = kind_of(session, names::volume_of(&args.share))? == "volume";
        match session.call(Request::Usage { object: args.share.into(), path }) {
            Ok(Reply::Usage(report)) => Ok(*report),
            Ok(other) => Err(other.unexpected().into()),
            Err(error) if is_volume && error.kind() == ErrorKind::Invalid => {
                Err(Failure::from(error).with("; shale list shows the space of a volume"))
            }
            Err(error) => Err(error.into()),
        }
    })?;
    output.result(&report, || show(&report));
    Ok(())
}

fn show(report: &UsageReport) -> String {
    let row = |line: &UsageLine| {
        vec![
            line.name.clone(),
            line.files.to_string(),
            format_size(line.size_bytes),
            format_size(line.raw_bytes),
            format_size(line.stored_bytes),
            line.ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}x")),
        ]
    };
    let rows = |of: &str, lines: &[UsageLine]| {
        let header = [of, "FILES", "SIZE", "DATA", "STORED", "RATIO"].map(str::to_owned).to_vec();
        table(&std::iter::once(header).chain(lines.iter().map(row)).collect::<Vec<_>>())
    };
    let mut entries = report.entries.clone();
    entries.push(report.total.clone());
    format!("{}\n{}", rows("NAME", &entries), rows("TYPE", &report.types))
}
