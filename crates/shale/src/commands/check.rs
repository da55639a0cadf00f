//! `shale check`.

use std::time::Instant;

use engine::{PROBLEMS_LISTED_MAX, Problem};
use surface::ErrorKind;
use units::format_size;

use super::pace::end_when_interrupted;
use crate::cli::CheckArgs;
use crate::exit::{Failure, Outcome};
use crate::model::{CheckSummary, ProblemReport};
use crate::output::Output;
use crate::pool_dir::{self, Opening, PoolDir};
use crate::progress::Progress;

/// So many problems are seen at a glance.
const LISTED_FEW: usize = 10;

/// Verifies a pool that nobody serves.
pub fn run(args: CheckArgs, output: &Output) -> Outcome {
    end_when_interrupted(output)?;
    let started = Instant::now();
    let dir = PoolDir::new(&args.pool);
    let lock = pool_dir::lock_alone(&dir, &args.access)?;
    // What opening it mends is among the problems that are found.
    let how = Opening { memory_bytes: args.access.memory, repair: args.repair };
    let pool = pool_dir::open_locked(&dir, lock, how, output)?;
    // That is done, and is told whatever comes of the rest.
    let mended = tell_mended(pool.service.pool().mended(), output);
    let progress = Progress::new(output, "checking", None);
    let report = pool.service.pool().check(args.repair, &mut |done, total| {
        progress.set_total(total);
        progress.set(done);
    });
    progress.finish();
    let closed = pool.close();
    let summary = CheckSummary::new(report?, started.elapsed().as_secs_f64());
    output.result(&summary, || show(&summary, args.repair, mended));
    if !summary.clean {
        return Err(Failure::Reported(ErrorKind::Corrupt));
    }
    Ok(closed?)
}

/// Says what opening the pool has mended, as far as it is listed, and of how much; where the result is one document, on stderr.
fn tell_mended(mended: Vec<Problem>, output: &Output) -> usize {
    let lines = mended.into_iter().take(PROBLEMS_LISTED_MAX).map(|problem| line(&problem.into()));
    let tell = |line: String| if output.is_json() { output.warn(line.trim_end()) } else { output.text(&line) };
    lines.map(tell).count()
}

/// The report without the first problems, of which so many have been `told`.
fn show(summary: &CheckSummary, repair: bool, told: usize) -> String {
    let mut text: String = summary.problems.iter().skip(told).map(line).collect();
    let (found, left, listed) = (summary.problems_total, summary.problems_left, summary.problems.len());
    if found > listed as u64 {
        text.push_str(&format!("and {} more\n", found - listed as u64));
    }
    if listed > LISTED_FEW {
        let volumes = summary.volumes.iter().map(|(volume, problems)| format!("{volume} ({problems})"));
        text.push_str(&format!("volumes concerned: {}\n", volumes.collect::<Vec<_>>().join(", ")));
    }
    text.push_str(&format!(
        "checked {} map records and {} fragments ({}) in {:.1} s: ",
        summary.records,
        summary.fragments,
        format_size(summary.fragment_bytes),
        summary.seconds
    ));
    // Of payloads there is one copy.
    let is_data = summary.kinds.keys().all(|kind| *kind == "fragment");
    text.push_str(&match (found, left) {
        (0, _) => "clean\n".to_owned(),
        (found, 0) => format!("{found} problem(s), all repaired\n"),
        (found, left) if repair => format!("{found} problem(s), {left} of them cannot be repaired\n"),
        (found, _) if is_data => {
            format!("{found} problem(s), none of which --repair can mend: restore what is damaged, or overwrite it\n")
        }
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
            problems_total: 2000,
            problems_left: 2000,
            volumes: [("vm".to_owned(), 2000)].into(),
            kinds: [("fragment", 2000)].into(),
            problems: vec![problem],
        };
        let text = show(&summary, false, 0);
        assert!(text.contains("fragment: volume vm, byte 8192: checksum is 1, expected 2\n"), "{text}");
        assert!(text.contains("and 1999 more\n") && text.contains("2000 problem(s), none of which"), "{text}");
        // Behind the first thousand may be others.
        summary.kinds = [("fragment", 1999), ("usage", 1)].into();
        assert!(show(&summary, false, 0).contains("; see what --repair"));
        assert!(!show(&summary, true, 1).contains("checksum is 1"), "it has been told");
        assert!(show(&summary, true, 0).contains("2000 of them cannot be repaired"));
        summary.problems = vec![summary.problems[0].clone(); LISTED_FEW + 1];
        assert!(show(&summary, true, 0).contains("volumes concerned: vm (2000)\n"));
        summary.problems_left = 0;
        assert!(show(&summary, true, 0).contains("all repaired"));
        summary.problems.clear();
        summary.problems_total = 0;
        assert!(show(&summary, true, 0).contains("clean"));
    }
}
