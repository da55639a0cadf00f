//! `shale check`.

use std::time::Instant;

use surface::ErrorKind;
use units::format_size;

use crate::cli::CheckArgs;
use crate::exit::{Failure, Outcome};
use crate::model::{CheckSummary, ProblemReport};
use crate::output::Output;
use crate::pool_dir::{self, Opening, PoolDir};
use crate::progress::Progress;

/// Verifies a pool that nobody serves.
pub fn run(args: CheckArgs, output: &Output) -> Outcome {
    let started = Instant::now();
    let dir = PoolDir::new(&args.pool);
    let lock = pool_dir::lock_alone(&dir, &args.access)?;
    // What opening it mends is among the problems that are found.
    let how = Opening { memory_bytes: args.access.memory, repair: args.repair };
    let pool = pool_dir::open_locked(&dir, lock, how, output)?;
    let progress = Progress::new(output, "checking", None);
    let report = pool.service.pool().check(args.repair, &mut |done, total| {
        progress.set_total(total);
        progress.set(done);
    });
    progress.finish();
    let closed = pool.close();
    let summary = CheckSummary::new(report?, started.elapsed().as_secs_f64());
    output.result(&summary, || show(&summary, args.repair));
    if !summary.clean {
        return Err(Failure::Reported(ErrorKind::Corrupt));
    }
    Ok(closed?)
}

fn show(summary: &CheckSummary, repair: bool) -> String {
    let mut text: String = summary.problems.iter().map(line).collect();
    let left = summary.problems.iter().filter(|problem| !problem.repaired).count();
    text.push_str(&format!(
        "checked {} map records and {} fragments ({}) in {:.1} s: ",
        summary.records,
        summary.fragments,
        format_size(summary.fragment_bytes),
        summary.seconds
    ));
    text.push_str(&match (summary.problems.len(), left) {
        (0, _) => "clean\n".to_owned(),
        (found, 0) => format!("{found} problem(s), all repaired\n"),
        (found, left) if repair => format!("{found} problem(s), {left} of them cannot be repaired\n"),
        (found, _) => format!("{found} problem(s); see what --repair can do\n"),
    });
    text
}

fn line(problem: &ProblemReport) -> String {
    let place = match (&problem.volume, problem.offset) {
        (Some(volume), Some(offset)) => format!("volume {volume}, byte {offset}: "),
        (Some(volume), None) => format!("volume {volume}: "),
        (None, Some(offset)) => format!("byte {offset}: "),
        (None, None) => String::new(),
    };
    let repaired = if problem.repaired { " (repaired)" } else { "" };
    format!("{}: {place}{}{repaired}\n", problem.kind, problem.detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_problem_is_named_with_its_place() {
        let problem = ProblemReport {
            kind: "fragment".to_owned(),
            volume: Some("vm".to_owned()),
            offset: Some(8192),
            detail: "checksum is 1, expected 2".to_owned(),
            repaired: false,
        };
        let mut summary = CheckSummary {
            clean: false,
            records: 3,
            fragments: 4,
            fragment_bytes: 4096,
            seconds: 1.0,
            problems: vec![problem],
        };
        let text = show(&summary, false);
        assert!(text.contains("fragment: volume vm, byte 8192: checksum is 1, expected 2\n"), "{text}");
        assert!(text.contains("1 problem(s); see"), "{text}");
        summary.problems[0].repaired = true;
        assert!(show(&summary, true).contains("all repaired"));
        summary.problems.clear();
        assert!(show(&summary, true).contains("clean"));
    }
}
