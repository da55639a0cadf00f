//! `shale check`.

use std::io::IsTerminal;
use std::time::Instant;

use engine::{Loss, PROBLEMS_LISTED_MAX, Problem};
use surface::{Error, ErrorKind};
use units::format_size;

use super::interruption::end_when_interrupted;
use super::problems::{joined, line};
use crate::cli::CheckArgs;
use crate::output::{Output, is_in_vain};
use crate::progress::Progress;
use operations::{Failure, Outcome};
use report::CheckSummary;
use server::pool_dir::{self, Opening, PoolDir};
use server::share_check;

/// Number of problems that are easily read one by one.
const LISTED_FEW: usize = 10;

/// Verifies a pool that is not served.
pub fn run(args: CheckArgs, output: &Output) -> Outcome {
    end_when_interrupted(output)?;
    let started = Instant::now();
    let dir = PoolDir::new(&args.pool);
    if args.repair {
        pool_dir::mend_description(&dir)?;
    }
    let lock = pool_dir::lock_alone(&dir, &(&args.access).into())?;
    // Repairs made by opening it are among the reported problems.
    let how = Opening { memory_bytes: args.access.memory, repair: args.repair, accept_loss: args.accept_loss };
    let pool = match pool_dir::open_locked(&dir, lock.clone(), how) {
        Err(error) if loss_in(&error).is_some() => {
            if !is_accepted(&error, output) {
                return Err(Failure::Reported(ErrorKind::Corrupt));
            }
            pool_dir::open_locked(&dir, lock, Opening { accept_loss: true, ..how })?
        }
        opened => opened?,
    };
    // These repairs are done, and are reported whatever the outcome of the rest.
    let mended = tell_mended(pool.service.pool().mended(), output);
    let progress = Progress::new(output, "checking", None);
    let report = pool.service.pool().check(args.repair, &mut |done, total| {
        progress.set_total(total);
        progress.set(done);
    });
    progress.finish();
    let mut tells = args.repair;
    let summary = report.map(|mut report| {
        let lost = share_check::check(pool.service.pool(), &mut report, args.repair);
        tells &= !lost.is_cut_off;
        CheckSummary {
            loss: pool.service.pool().accepted_loss().as_ref().map(server::documents::loss_report),
            names_lost: lost.names.into_iter().collect(),
            attributes_lost: lost.attributes.into_iter().collect(),
            is_mendable: share_check::is_mendable(pool.service.pool(), &report),
            ..server::documents::check_summary(report, started.elapsed().as_secs_f64())
        }
    });
    // A loss is reported before the pool may forget that it was unreported.
    let told = match &summary {
        Ok(summary) => {
            output.result(summary, || show(summary, args.repair, mended));
            if tells && !is_in_vain() { pool.service.pool().mark_losses_reported() } else { Ok(()) }
        }
        Err(_) => Ok(()),
    };
    let closed = pool.close();
    let summary = summary?;
    told?;
    if summary.loss.is_some() {
        closed?;
        return Err(Failure::Lossy);
    }
    if !summary.clean {
        return Err(Failure::Reported(ErrorKind::Corrupt));
    }
    closed?;
    if summary.names_lost.is_empty() && summary.attributes_lost.is_empty() { Ok(()) } else { Err(Failure::Lossy) }
}

/// Describes the permanent losses of the trees of shares; `None` if there are none.
fn lost_of_trees(summary: &CheckSummary) -> Option<String> {
    let lost = [("names", &summary.names_lost), ("extended attributes", &summary.attributes_lost)];
    let lost = lost.iter().filter(|(_, shares)| !shares.is_empty());
    let mut words: Vec<_> =
        lost.map(|(what, shares)| format!("{what} are lost for good in: {}", shares.join(", "))).collect();
    if !summary.names_lost.is_empty() {
        words.push("files without a name are in lost+found there".to_owned());
    }
    words.push("`shale status` reports it until it is acknowledged".to_owned());
    (words.len() > 1).then(|| words.join("; "))
}

/// Returns the loss that a repair would cause, if the pool was not opened because of it.
fn loss_in(error: &Error) -> Option<&Loss> {
    std::error::Error::source(error)?.downcast_ref()
}

/// Reports the loss that a repair would cause, and asks for permission on a terminal.
fn is_accepted(error: &Error, output: &Output) -> bool {
    let Some(loss) = loss_in(error) else { return false };
    if output.is_json() {
        let report = server::documents::loss_report(loss);
        let message = format!("{error}; --accept-loss repairs it nevertheless");
        output.json(
            &serde_json::json!({ "error": { "kind": ErrorKind::Corrupt.name(), "message": message }, "loss": report }),
        );
        return false;
    }
    let lines: String = loss.lines().iter().map(|line| format!("  {line}\n")).collect();
    output.prompt(&format!("repairing the pool would lose data that was, or may have been, flushed:\n{lines}"));
    if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        output.note("nothing was changed; --accept-loss repairs it nevertheless");
        return false;
    }
    output.prompt("Drop this data and continue? Type 'yes': ");
    let mut answer = String::new();
    let is_yes = std::io::stdin().read_line(&mut answer).is_ok() && answer.trim() == "yes";
    if !is_yes {
        output.note("nothing was changed");
    }
    is_yes
}

/// Reports the repairs made by opening the pool, up to a limit, and returns their number; on stderr
/// if the result is one document.
fn tell_mended(mended: Vec<Problem>, output: &Output) -> usize {
    let lines =
        mended.into_iter().take(PROBLEMS_LISTED_MAX).map(|problem| line(&server::documents::problem_report(problem)));
    let tell = |line: String| if output.is_json() { output.warn(line.trim_end()) } else { output.text(&line) };
    lines.map(tell).count()
}

/// Formats the report without the first `told` problems, which were already shown.
fn show(summary: &CheckSummary, repair: bool, told: usize) -> String {
    let mut text = joined(summary.problems.get(told..).unwrap_or_default());
    text.extend(summary.notes.iter().map(|note| format!("note: {note}\n")));
    text.extend(summary.log_end.iter().map(|end| format!("log: {end}\n")));
    let (found, left, listed) = (summary.problems_total, summary.problems_left, summary.problems.len());
    if found > listed as u64 {
        text.push_str(&format!("and {} more\n", found - listed as u64));
    }
    if listed > LISTED_FEW {
        let volumes = summary.volumes.iter().map(|(volume, problems)| format!("{volume} ({problems})"));
        text.push_str(&format!("affected volumes: {}\n", volumes.collect::<Vec<_>>().join(", ")));
    }
    text.push_str(&format!(
        "checked {} map records and {} fragments ({}) in {:.1} s: ",
        summary.records,
        summary.fragments,
        format_size(summary.fragment_bytes),
        summary.seconds
    ));
    let lost = lost_of_trees(summary);
    text.push_str(&match (found, left) {
        (0, _) if summary.log_end.is_some() => {
            "clean, as far as can be known: see the note on the log's end\n".to_owned()
        }
        (0, _) => "clean\n".to_owned(),
        (found, left) if summary.loss.is_some() => {
            format!(
                "{found} problem(s), {left} of them left; dropped data is lost, and `shale status` reports it \
             until it is acknowledged\n"
            )
        }
        (found, left) if lost.is_some() => {
            let lost = lost.unwrap_or_default();
            let left = if left == 0 {
                "the rest is repaired".to_owned()
            } else {
                format!("{left} of them cannot be repaired")
            };
            format!("{found} problem(s), {left}, but {lost}\n")
        }
        (found, 0) => format!("{found} problem(s), all repaired\n"),
        (found, left) if repair => format!("{found} problem(s), {left} of them cannot be repaired\n"),
        (found, _) if summary.is_mendable => format!(
            "{found} problem(s); run with --repair to fix what can be \
         fixed\n"
        ),
        (found, _) => {
            format!("{found} problem(s); --repair cannot fix them: restore or overwrite the damaged data\n")
        }
    });
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use report::ProblemReport;

    #[test]
    fn each_problem_is_named_with_its_place() {
        let problem = ProblemReport {
            kind: "fragment".to_owned(),
            volume: Some("vm".to_owned()),
            offset: Some(8192),
            length: Some(4096),
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
            log_end: None,
            notes: Vec::new(),
            loss: None,
            names_lost: Vec::new(),
            attributes_lost: Vec::new(),
            is_mendable: false,
        };
        let text = show(&summary, false, 0);
        assert!(text.contains("fragment: volume vm, byte 8192: checksum is 1, expected 2\n"), "{text}");
        assert!(text.contains("and 1999 more\n") && text.contains("2000 problem(s); --repair cannot fix"), "{text}");
        summary.is_mendable = true;
        assert!(show(&summary, false, 0).contains("; run with --repair"));
        assert!(!show(&summary, true, 1).contains("checksum is 1"), "it has been told");
        assert!(show(&summary, true, 0).contains("2000 of them cannot be repaired"));
        summary.problems = vec![summary.problems[0].clone(); LISTED_FEW + 1];
        assert!(show(&summary, true, 0).contains("affected volumes: vm (2000)\n"));
        summary.problems_left = 0;
        assert!(show(&summary, true, 0).contains("all repaired"));
        summary.names_lost = vec!["home".to_owned()];
        let text = show(&summary, true, 0);
        assert!(text.contains("names are lost for good in: home;") && !text.contains("all repaired"), "{text}");
        summary.attributes_lost = vec!["work".to_owned()];
        summary.problems_left = 2;
        let text = show(&summary, true, 0);
        assert!(text.contains("2 of them cannot be repaired, but names are lost for good in: home; ext"), "{text}");
        assert!(text.contains("extended attributes are lost for good in: work;"), "{text}");
        summary.problems_left = 0;
        summary.names_lost.clear();
        summary.attributes_lost.clear();
        summary.problems.clear();
        summary.problems_total = 0;
        assert!(show(&summary, true, 0).ends_with(": clean\n"));
        summary.notes = vec!["a copy was damaged".to_owned()];
        assert!(show(&summary, true, 0).starts_with("note: a copy was damaged\n"));
        summary.notes.clear();
        summary.log_end = Some("batch 27 is torn".to_owned());
        let text = show(&summary, false, 0);
        assert!(text.starts_with("log: batch 27 is torn\n") && text.contains("as far as can be known"), "{text}");
    }
}
