//! `shale trace`.

use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;
use surface::{Error, ErrorKind};

use super::interruption::Interruption;
use crate::cli::{TraceArgs, TraceFormat};
use crate::output::{Output, is_in_vain};
use operations::{Outcome, path_error};
use operations::{Reply, Request};
use report::TraceLine;
use server::first_reads::GROUP_BYTES;
use server::session::Session;

/// Records per request: a few hundred KiB.
const RECORDS: usize = 4096;
/// Interval of requests.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The groups that are read first, in the format of `shale blob optimize`.
#[derive(Debug, Serialize)]
struct FirstReads<'a> {
    volume: &'a str,
    group_bytes: u64,
    groups: Vec<u64>,
}

/// Writes the groups of a volume in the order of their first reads, when no new ones are read any
/// more or the user stops it.
fn reads(args: &TraceArgs, volume: &str, file: &Path, output: &Output) -> Outcome {
    let interruption = Interruption::watch()?;
    Session::with(&args.pool, &args.access, |session| {
        if let Session::Direct(_) = session {
            let text = "no client reads a pool that is not served, so there is nothing to trace; serve it first";
            return Err(Error::new(ErrorKind::Invalid, text).into());
        }
        let limit = args.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        let (mut groups, mut seen) = (Vec::new(), Instant::now());
        loop {
            let request = Request::TraceReads { object: volume.into(), from: groups.len() };
            let new = match session.call(request)? {
                Reply::Groups(new) => new,
                other => return Err(other.unexpected().into()),
            };
            if !new.is_empty() {
                seen = Instant::now();
                groups.extend(new);
            }
            let is_idle = args.idle.is_some_and(|idle| seen.elapsed() >= Duration::from_secs(idle));
            if groups.len() >= limit || is_idle || interruption.has_come() {
                break;
            }
            interruption.rest(LOOK_EVERY);
        }
        session.done(Request::TraceReadsEnd)?;
        groups.truncate(limit);
        let first = FirstReads { volume, group_bytes: GROUP_BYTES, groups };
        let text = serde_json::to_string(&first).map_err(|error| Error::new(ErrorKind::Invalid, error.to_string()))?;
        std::fs::write(file, text + "\n").map_err(|error| path_error("cannot write", file, error))?;
        output.done(&first, || format!("{}: {} groups of {volume}\n", file.display(), first.groups.len()));
        Ok(())
    })
}

/// Shows decisions until the limit is reached, the user stops it, or the output has no reader any
/// more.
pub fn run(args: TraceArgs, output: &Output) -> Outcome {
    if let (Some(volume), Some(file)) = (&args.volume, &args.reads) {
        return reads(&args, volume, file, output);
    }
    let interruption = Interruption::watch()?;
    Session::with(&args.pool, &args.access, |session| {
        if let Session::Direct(_) = session {
            let text = "no client writes to a pool that is not served, so there is nothing to trace; serve it first";
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
            // All records up to then are shown.
            let is_last = interruption.has_come();
            let wanted = RECORDS.min(usize::try_from(left).unwrap_or(RECORDS));
            let records = take(session, wanted)?;
            left -= records.len() as u64;
            let is_idle = || args.idle.is_some_and(|idle| seen.elapsed() >= Duration::from_secs(idle));
            if records.is_empty() {
                if is_last || is_idle() {
                    break;
                }
                interruption.rest(LOOK_EVERY);
                continue;
            }
            seen = Instant::now();
            for record in records.iter().take_while(|_| !is_in_vain()) {
                match format {
                    TraceFormat::Csv => output.exact(&format!("{}\n", record.csv())),
                    TraceFormat::Jsonl => output.json(record),
                }
            }
            if is_last && records.len() < wanted {
                break;
            }
        }
        session.done(Request::TraceEnd)?;
        Ok(())
    })
}

/// Returns new records, and begins the trace if it was not running.
fn take(session: &Session, count: usize) -> Outcome<Vec<TraceLine>> {
    match session.call(Request::Trace { count })? {
        Reply::Trace(records) => Ok(records),
        other => Err(other.unexpected().into()),
    }
}
