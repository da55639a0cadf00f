//! `shale scrub`.

use std::time::Instant;

use serde::Serialize;
use surface::ErrorKind;
use units::format_size;

use super::pace::{Interruption, SliceBytes, Standing, in_slices};
use super::problems::joined;
use crate::cli::ScrubArgs;
use crate::control::{Reply, Request};
use crate::exit::{Failure, Outcome};
use crate::model::ScrubSlice;
use crate::output::Output;
use crate::session::Session;

/// While others are at work, a few milliseconds on a fast device, so that the rests between them
/// are short, too; else so much that reading hardly ever stops.
const SLICES: SliceBytes = SliceBytes { busy: 8 << 20, idle: 128 << 20 };

/// What scrubbing found.
#[derive(Debug, Serialize)]
struct Summary<'a> {
    #[serde(flatten)]
    slice: &'a ScrubSlice,
    seconds: f64,
}

/// Scrubs a pool, or tells how far that is.
pub fn run(args: ScrubArgs, output: &Output) -> Outcome {
    let interruption = Interruption::watch()?;
    let started = Instant::now();
    let slice = Session::with(&args.pool, &args.access, output, |session| {
        let call = |bytes, restart| -> Outcome<ScrubSlice> {
            match session.call(Request::Scrub { bytes, restart })? {
                Reply::Scrubbed(slice) => Ok(*slice),
                other => Err(other.unexpected().into()),
            }
        };
        in_slices("scrubbing", SLICES, &args.pacing, &interruption, output, call, standing)
    })?;
    let summary = Summary { slice: &slice, seconds: started.elapsed().as_secs_f64() };
    output.result(&summary, || show(&slice, (!args.pacing.report).then_some(summary.seconds)));
    if slice.unacknowledged > 0 { Err(Failure::Reported(ErrorKind::Corrupt)) } else { Ok(()) }
}

fn standing(slice: &ScrubSlice) -> Standing {
    Standing {
        finished: slice.finished,
        bytes_done: slice.bytes_done,
        bytes_total: slice.bytes_total,
        foreground_bytes: slice.foreground_bytes,
        said: format!("{} damaged", slice.found),
    }
}

/// The findings; `seconds` is what this took, if it did more than look.
fn show(slice: &ScrubSlice, seconds: Option<f64>) -> String {
    if slice.started_unix_s == 0 {
        return "this pool has never been scrubbed\n".to_owned();
    }
    let mut text = joined(&slice.damages);
    let far = if slice.finished {
        "all of it".to_owned()
    } else {
        format!("{} of {} of the pool's data so far", format_size(slice.bytes_done), format_size(slice.bytes_total))
    };
    let took = seconds.map_or_else(String::new, |seconds| format!(", in {seconds:.1} s"));
    text.push_str(&format!(
        "scrubbed {} fragments ({}), {far}{took}: {}\n",
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
        let damage = crate::model::ProblemReport {
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
    }
}
