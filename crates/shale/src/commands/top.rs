//! `shale top`: the current activity of a pool, on a screen that is redrawn, or once as text or
//! JSON.

use std::io::IsTerminal;
use std::time::Duration;

use surface::{Error, ErrorKind};
use units::format_size;

use super::interruption::Interruption;
use super::top_report::{Moment, TopReport};
use super::top_screen::Screen;
use crate::cli::TopArgs;
use crate::output::{Output, is_in_vain, table};
use operations::{Outcome, Reply, Request};
use server::session::Session;

/// Shows reports until the user stops them.
pub fn run(args: &TopArgs, output: &Output) -> Outcome {
    let is_screen = !args.once && !output.is_json();
    if is_screen && !std::io::stdout().is_terminal() {
        let text = "the output is not a terminal: use --once for one report, or --json";
        return Err(Error::new(ErrorKind::Invalid, text).into());
    }
    let interruption = Interruption::watch()?;
    let session = Session::of_server(&args.pool)?;
    let session = session.ok_or_else(|| Session::unserved(&args.pool, "no activity to show"))?;
    let every = Duration::from_secs(args.every.into());
    let mut before = take(&session)?;
    if is_screen {
        return Screen::new()?.run(every, &interruption, || {
            let now = take(&session)?;
            let next = Moment { traffic: now.traffic.clone(), status: now.status.clone(), jobs: Vec::new() };
            Ok(TopReport::between(&std::mem::replace(&mut before, next), now))
        });
    }
    loop {
        interruption.rest(every);
        if interruption.has_come() || is_in_vain() {
            return Ok(());
        }
        let now = take(&session)?;
        let next = Moment { traffic: now.traffic.clone(), status: now.status.clone(), jobs: Vec::new() };
        let report = TopReport::between(&before, now);
        before = next;
        output.result(&report, || shown(&report));
        if args.once {
            return Ok(());
        }
    }
}

fn take(session: &Session) -> Outcome<Moment> {
    let traffic = match session.call(Request::Traffic { object: None })? {
        Reply::Traffic(traffic) => *traffic,
        other => return Err(other.unexpected().into()),
    };
    let status = match session.call(Request::Status)? {
        Reply::Status(status) => *status,
        other => return Err(other.unexpected().into()),
    };
    let jobs = match session.call(Request::Jobs)? {
        Reply::Jobs(jobs) => jobs,
        other => return Err(other.unexpected().into()),
    };
    Ok(Moment { traffic, status, jobs })
}

/// Formats a duration with few digits; a dash for none.
pub fn short(ns: Option<u64>) -> String {
    match ns {
        None => "-".to_owned(),
        Some(ns) if ns >= 1_000_000_000 => format!("{:.1} s", ns as f64 / 1e9),
        Some(ns) if ns >= 1_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        Some(ns) => format!("{:.0} us", ns as f64 / 1e3),
    }
}

/// Formats one line on the pool.
pub fn summary(report: &TopReport) -> String {
    let saving = report.ratio.zip(report.saving_percent);
    let saving = saving.map_or_else(String::new, |(ratio, percent)| format!(", {ratio:.2}x, saves {percent:.0} %"));
    let disk = format_size((report.disk_written_bytes as f64 / report.seconds.max(1e-3)) as u64);
    format!(
        "{}: {} of {} stored{saving}, {} available; disk {disk}/s written",
        report.pool,
        format_size(report.stored_bytes),
        format_size(report.capacity_bytes),
        format_size(report.available_bytes)
    )
}

/// Returns the tables of objects, codecs and jobs, each with its header, as rates.
pub fn tables(report: &TopReport) -> [Vec<Vec<String>>; 3] {
    let per_s = |amount: u64| amount as f64 / report.seconds.max(1e-3);
    let bytes = |amount: u64| format_size(per_s(amount) as u64);
    let row = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let mut objects =
        vec![row(&["OBJECT", "DOOR", "READ/s", "WRITE/s", "READ B/s", "WRITE B/s", "READ 99%", "WRITE 99%"])];
    for object in &report.objects {
        objects.push(vec![
            object.object.clone(),
            object.door.clone(),
            format!("{:.0}", per_s(object.reads)),
            format!("{:.0}", per_s(object.writes)),
            bytes(object.read_bytes),
            bytes(object.written_bytes),
            short(object.read_p99_ns),
            short(object.write_p99_ns),
        ]);
    }
    let mut codecs = vec![row(&["CODEC", "DATA/s", "STORED/s", "RATIO", "CPU %"])];
    for codec in &report.codecs {
        codecs.push(vec![
            codec.codec.clone(),
            bytes(codec.raw_bytes),
            bytes(codec.stored_bytes),
            format!("{:.2}x", codec.raw_bytes as f64 / codec.stored_bytes.max(1) as f64),
            format!("{:.1}", per_s(codec.compress_ns) / 1e7),
        ]);
    }
    let mut jobs = vec![row(&["JOB", "KIND", "OF", "DONE"])];
    for job in &report.jobs {
        let total = job.bytes_total.map_or_else(String::new, |total| format!(" of {}", format_size(total)));
        let target = job.target.clone().unwrap_or_else(|| "the pool".to_owned());
        jobs.push(vec![job.id.to_string(), job.kind.clone(), target, format_size(job.bytes_done) + &total]);
    }
    [objects, codecs, jobs]
}

fn shown(report: &TopReport) -> String {
    let mut text = summary(report) + "\n";
    for rows in tables(report).iter().filter(|rows| rows.len() > 1) {
        text += &format!("\n{}", table(rows));
    }
    text
}
