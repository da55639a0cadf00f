//! `shale scrub`.

use serde::Serialize;
use surface::ErrorKind;
use units::format_size;

use super::interruption::Interruption;
use super::problems::joined;
use super::watch;
use crate::cli::ScrubArgs;
use crate::output::Output;
use operations::{Failure, Outcome};
use operations::{Reply, Request};
use report::ScrubSlice;
use report::{JobResult, JobWish};
use server::session::Session;

/// Result of scrubbing.
#[derive(Debug, Serialize)]
struct Summary<'a> {
    #[serde(flatten)]
    slice: &'a ScrubSlice,
    seconds: f64,
}

/// Scrubs a pool, or reports its progress.
pub fn run(args: ScrubArgs, output: &Output) -> Outcome {
    let interruption = Interruption::watch()?;
    let done = Session::with(&args.pool, &args.access, |session| {
        if args.pacing.report {
            return match session.call(Request::ScrubReport)? {
                Reply::Scrubbed(slice) => Ok(Some((slice, None))),
                other => Err(other.unexpected().into()),
            };
        }
        let wish = JobWish::Scrub { pace: args.pacing.of_job() };
        match watch::start(session, wish, args.background, &interruption, output)? {
            Some((JobResult::Scrubbed(slice), seconds)) => Ok(Some((slice, Some(seconds)))),
            Some((other, _)) => Err(other.unexpected().into()),
            None => Ok(None),
        }
    })?;
    let Some((slice, seconds)) = done else { return Ok(()) };
    tell(&slice, seconds, output);
    verdict(&slice)
}

/// Reports the findings; `seconds` is the duration, if any work was done.
pub(super) fn tell(slice: &ScrubSlice, seconds: Option<f64>, output: &Output) {
    let summary = Summary { slice, seconds: seconds.unwrap_or_default() };
    output.result(&summary, || show(slice, seconds));
}

/// Returns an error if there is unacknowledged damage.
///
/// # Errors
/// `Corrupt`, which the findings have reported.
pub(super) fn verdict(slice: &ScrubSlice) -> Outcome {
    if slice.unacknowledged > 0 { Err(Failure::Reported(ErrorKind::Corrupt)) } else { Ok(()) }
}

/// Formats the findings; `seconds` is the duration, if any work was done.
fn show(slice: &ScrubSlice, seconds: Option<f64>) -> String {
    if slice.started_unix_s == 0 {
        return "this pool was never scrubbed\n".to_owned();
    }
    let mut text = joined(&slice.damages);
    let far = if slice.finished {
        "all of it".to_owned()
    } else {
        format!("{} of {} of the pool's data so far", format_size(slice.bytes_done), format_size(slice.bytes_total))
    };
    let took = seconds.map_or_else(String::new, |seconds| format!(", in {seconds:.1} s"));
    let repaired = match slice.repaired {
        0 => String::new(),
        repaired => format!(", {repaired} repaired from another copy"),
    };
    text.push_str(&format!(
        "scrubbed {} fragments ({}), {far}{took}: {}{repaired}\n",
        slice.fragments,
        format_size(slice.bytes),
        if slice.found == 0 { "no damage".to_owned() } else { format!("{} damaged", slice.found) }
    ));
    let known = slice.damages.len() as u64;
    if known > slice.unacknowledged {
        let acknowledged = known - slice.unacknowledged;
        let have = if acknowledged == 1 { "has" } else { "have" };
        text.push_str(&format!("{acknowledged} of the damages above {have} been acknowledged\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_named_with_its_place() {
        let damage = report::ProblemReport {
            kind: "fragment".into(),
            volume: Some("vm".into()),
            offset: Some(4096),
            length: None,
            detail: "a block from here cannot be read".into(),
            repaired: false,
        };
        let slice =
            ScrubSlice { started_unix_s: 1, finished: true, found: 1, damages: vec![damage], ..ScrubSlice::default() };
        let text = show(&slice, Some(1.0));
        assert!(text.ends_with("1 of the damages above has been acknowledged\n"), "{text}");
        assert!(!show(&ScrubSlice { unacknowledged: 1, ..slice.clone() }, None).contains("acknowledged"));
        assert!(text.contains("fragment: volume vm, byte 4096: a block from here"), "{text}");
        assert!(text.contains("all of it") && text.contains("1 damaged"), "{text}");
        assert!(text.contains(", in 1.0 s: ") && !show(&slice, None).contains(" s: "), "{text}");
        assert!(show(&ScrubSlice::default(), None).contains("never"));
        let slice = ScrubSlice { started_unix_s: 1, finished: true, repaired: 2, ..ScrubSlice::default() };
        assert!(show(&slice, None).ends_with("all of it: no damage, 2 repaired from another copy\n"));
    }
}
