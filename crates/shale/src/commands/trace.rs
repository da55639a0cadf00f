//! `shale trace`.

use std::time::{Duration, Instant};

use surface::{Error, ErrorKind};

use super::pace::Interruption;
use crate::choices::TraceLine;
use crate::cli::{TraceArgs, TraceFormat};
use crate::control::{Reply, Request};
use crate::exit::{Failure, Outcome};
use crate::output::{Output, is_in_vain};
use crate::session::Session;

/// Records of one request: a few hundred KiB.
const RECORDS: usize = 4096;
/// How often to look for more.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Shows decisions until the limit is reached, or the output has no reader any more.
pub fn run(args: TraceArgs, output: &Output) -> Outcome {
    let interruption = Interruption::watch()?;
    Session::with(&args.pool, &args.access, output, |session| {
        if let Session::Direct(_) = session {
            let text =
                "nothing is written to a pool that is not served, so that there is nothing to trace; serve it first";
            return Err(Error::new(ErrorKind::Invalid, text).into());
        }
        let mut left = args.limit.unwrap_or(u64::MAX);
        let mut seen = Instant::now();
        take(session, 0)?;
        let format = if output.is_json() { TraceFormat::Jsonl } else { args.format };
        if format == TraceFormat::Csv {
            output.text(&format!("{}\n", TraceLine::CSV_HEADER));
        }
        while left > 0 && !is_in_vain() {
            if interruption.has_come() {
                session.done(Request::TraceEnd)?;
                return Err(Failure::Interrupted("interrupted".to_owned()));
            }
            let records = take(session, RECORDS.min(usize::try_from(left).unwrap_or(RECORDS)))?;
            left -= records.len() as u64;
            if records.is_empty() {
                if args.idle.is_some_and(|idle| seen.elapsed() >= Duration::from_secs(idle)) {
                    break;
                }
                interruption.rest(LOOK_EVERY);
                continue;
            }
            seen = Instant::now();
            for record in records.iter().take_while(|_| !is_in_vain()) {
                match format {
                    TraceFormat::Csv => output.text(&format!("{}\n", record.csv())),
                    TraceFormat::Jsonl => output.json(record),
                }
            }
        }
        session.done(Request::TraceEnd)?;
        Ok(())
    })
}

/// Takes records; the trace begins if it was not on.
fn take(session: &Session, count: usize) -> Outcome<Vec<TraceLine>> {
    match session.call(Request::Trace { count })? {
        Reply::Trace(records) => Ok(records),
        other => Err(other.unexpected().into()),
    }
}
