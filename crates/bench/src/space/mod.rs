//! Costs of a full and old log: cleaning, and the space of snapshots and clones.

mod history;
pub mod overwrite;
mod rescue;
mod scrub;
pub mod soak;
mod theory;

use crate::report::Report;
use crate::{Context, Outcome};

/// All figures.
pub fn run(context: &Context, report: &mut Report) -> Outcome<()> {
    for compression in ["lz4", "auto"] {
        if report.begin(context, &overwrite::uniform_group(compression)) {
            overwrite::uniform(context, report, compression)?;
        }
    }
    if report.begin(context, "space skewed") {
        overwrite::skewed(context, report)?;
    }
    if report.begin(context, "space cold data") {
        overwrite::cold(context, report)?;
    }
    if report.begin(context, "space locality") {
        overwrite::locality(context, report)?;
    }
    if report.begin(context, "space scrub speed") {
        scrub::speed(context, report)?;
    }
    if report.begin(context, "space scrub cost") {
        scrub::cost(context, report)?;
    }
    if report.begin(context, "space check and salvage, written in order") {
        rescue::measure(context, report, false)?;
    }
    if report.begin(context, "space check and salvage, written at random") {
        rescue::measure(context, report, true)?;
    }
    if report.begin(context, "space snapshots") {
        history::snapshots(context, report)?;
    }
    if report.begin(context, "space clones") {
        history::clones(context, report)?;
    }
    Ok(())
}

fn how(context: &Context, group: &str, what: &str) -> String {
    let quick = if context.quick { " --quick" } else { "" };
    format!("{what}; `bench space --only '{group}'{quick}`")
}
