//! `shale iostat`: operations of clients, and their durations.

use std::time::Duration;

use surface::OpKind;
use units::format_size;

use super::interruption::Interruption;
use crate::cli::IostatArgs;
use crate::narrow::{columns, table_within};
use crate::output::{Output, is_in_vain, table};
use operations::Outcome;
use operations::{Reply, Request, Which};
use report::{DoorTraffic, OperationLine, TrafficReport, VolumeTraffic};
use server::session::Session;

/// The kinds of operation that have columns; the others are in the histogram and in JSON.
const SHOWN: [OpKind; 4] = [OpKind::Read, OpKind::Write, OpKind::Flush, OpKind::Discard];
/// Fraction of the operations within the time in the column for long ones.
const MOST: f64 = 0.99;
/// Number of columns that identify a line: the volume and the door.
const NAMES: usize = 2;

/// Shows reports until their number is reached, or the user stops them.
pub fn run(args: &IostatArgs, output: &Output) -> Outcome {
    let interruption = Interruption::watch()?;
    let session = Session::of_server(&args.pool)?;
    let session = session.ok_or_else(|| Session::unserved(&args.pool, "no client activity"))?;
    let mut before: Option<TrafficReport> = None;
    let mut left = args.every.map_or(1, |_| args.count.unwrap_or(u64::MAX));
    loop {
        // The first report fixes the volume, which may be renamed.
        let id = before.as_ref().and_then(|before| before.only);
        let now = take(&session, args.volume.clone(), id)?;
        let report = match &before {
            Some(before) => now.clone().since(before),
            None => now.clone(),
        };
        let since_start = before.is_none();
        output.result(&report, || {
            let text = if args.histogram { histograms(&report) } else { show(&report, columns()) };
            format!("{}\n{text}", span(report.seconds, since_start))
        });
        before = Some(now);
        left -= 1;
        if left == 0 {
            return Ok(());
        }
        interruption.rest(Duration::from_secs(args.every.unwrap_or(1).into()));
        if interruption.has_come() || is_in_vain() {
            return Ok(());
        }
    }
}

/// Formats the interval of a report.
fn span(seconds: f64, since_start: bool) -> String {
    if since_start { format!("in the {seconds:.1} s since the server started") } else { format!("in {seconds:.1} s") }
}

fn take(session: &Session, volume: Option<String>, id: Option<u64>) -> Outcome<TrafficReport> {
    let object = volume.map(|name| Which::known(name, id));
    match session.call(Request::Traffic { object })? {
        Reply::Traffic(report) => Ok(*report),
        other => Err(other.unexpected().into()),
    }
}

/// Formats a duration with few digits.
fn short(ns: f64) -> String {
    match ns {
        ns if ns >= 1e9 => format!("{:.1} s", ns / 1e9),
        ns if ns >= 1e6 => format!("{:.1} ms", ns / 1e6),
        ns => format!("{:.1} us", ns / 1e3),
    }
}

/// Returns the doors with operations.
fn doors<'a>(report: &'a TrafficReport) -> impl Iterator<Item = (&'a VolumeTraffic, &'a DoorTraffic)> {
    let of = |volume: &'a VolumeTraffic| std::iter::repeat(volume).zip(&volume.doors);
    let used = |(_, door): &(&VolumeTraffic, &DoorTraffic)| door.operations.iter().any(|line| line.count > 0);
    report.volumes.iter().flat_map(of).filter(used)
}

fn show(report: &TrafficReport, columns: Option<usize>) -> String {
    let rate = |count: u64| count as f64 / report.seconds.max(1e-3);
    let per_second = |line: Option<&OperationLine>| line.map_or(0.0, |line| rate(line.count));
    let bytes = |line: Option<&OperationLine>| format_size(line.map_or(0, |line| rate(line.bytes) as u64));
    let took = |line: Option<&OperationLine>| match line.filter(|line| line.count > 0) {
        Some(line) => {
            let mean = short(line.ns as f64 / line.count as f64);
            let most = line.quantile_ns(MOST).map_or_else(|| "long".to_owned(), |ns| short(ns as f64));
            format!("{mean}/{most}")
        }
        None => "-".to_owned(),
    };
    let header = ["VOLUME", "DOOR", "READ/s", "WRITE/s", "FLUSH/s", "DISCARD/s", "READ B/s", "WRITE B/s"];
    let times = ["READ mean/99%", "WRITE mean/99%", "FLUSH mean/99%"];
    let mut rows = vec![header.into_iter().chain(times).map(str::to_owned).collect::<Vec<_>>()];
    for (volume, door) in doors(report) {
        let [read, write, flush, _] = SHOWN.map(|kind| door.of(kind));
        let mut row = vec![volume.volume.clone(), door.door.clone()];
        row.extend(SHOWN.iter().map(|kind| format!("{:.1}", per_second(door.of(*kind)))));
        row.extend([bytes(read), bytes(write), took(read), took(write), took(flush)]);
        rows.push(row);
    }
    let text = if rows.len() == 1 { "no operations\n".to_owned() } else { table_within(&rows, NAMES, false, columns) };
    text + &codecs(report)
}

/// Formats the data written, by codec; empty if there was none.
fn codecs(report: &TrafficReport) -> String {
    let mut rows = vec![["VOLUME", "CODEC", "UNITS", "DATA", "STORED", "CPU"].map(str::to_owned).to_vec()];
    for volume in &report.volumes {
        for line in volume.codecs.iter().filter(|line| line.units > 0) {
            rows.push(vec![
                volume.volume.clone(),
                line.codec.clone(),
                line.units.to_string(),
                format_size(line.raw_bytes),
                format_size(line.stored_bytes),
                line.cpu_ns.map_or_else(|| "-".to_owned(), |ns| format!("~{}", short(ns as f64))),
            ]);
        }
    }
    let mut text = if rows.len() == 1 { String::new() } else { format!("\n{}", table(&rows)) };
    for volume in report.volumes.iter().filter(|volume| volume.cache_hits + volume.cache_misses > 0) {
        let (hits, all) = (volume.cache_hits, volume.cache_hits + volume.cache_misses);
        let percent = 100.0 * hits as f64 / all as f64;
        text +=
            &format!("{}: {hits} of {all} units that reads needed were in memory ({percent:.1} %)\n", volume.volume);
    }
    text
}

fn histograms(report: &TrafficReport) -> String {
    let mut text = String::new();
    for (volume, door) in doors(report) {
        let used: Vec<_> = door.operations.iter().filter(|line| line.count > 0).collect();
        let header = ["BELOW".to_owned()].into_iter().chain(used.iter().map(|line| line.operation.to_uppercase()));
        let mut rows = vec![header.collect::<Vec<_>>()];
        let is_used =
            |bucket: usize| used.iter().any(|line| line.histogram.get(bucket).is_some_and(|count| *count > 0));
        let filled: Vec<_> = (0..=report.bucket_ends_ns.len()).filter(|bucket| is_used(*bucket)).collect();
        for bucket in filled.first().copied().unwrap_or(0)..=filled.last().copied().unwrap_or(0) {
            let end = report.bucket_ends_ns.get(bucket);
            let mut row = vec![end.map_or_else(|| "longer".to_owned(), |ns| short(*ns as f64))];
            row.extend(used.iter().map(|line| line.histogram.get(bucket).copied().unwrap_or(0).to_string()));
            rows.push(row);
        }
        text += &format!("\n{}, {}\n{}", volume.volume, door.door, table(&rows));
    }
    text
}

#[cfg(test)]
mod tests {
    use surface::{BUCKETS, OpCounts};

    use super::*;
    use report::TRAFFIC_VERSION as VERSION;
    use report::{CodecLine, ObjectKind, bucket_ends_ns};

    fn report() -> TrafficReport {
        let line = |kind| {
            let mut counts = OpCounts::default();
            if kind == OpKind::Write {
                counts = OpCounts { bytes: 20 << 20, ns: 20_000_000, ..counts };
                (counts.buckets[9], counts.buckets[11], counts.buckets[BUCKETS - 1]) = (15, 4, 1);
            }
            OperationLine::new(kind, &counts)
        };
        let door = |door: &str, operations| DoorTraffic { door: door.to_owned(), operations };
        let idle = door("mount", vec![OperationLine::new(OpKind::Read, &OpCounts::default())]);
        let (codec, cpu_ns) = ("zstd-3".to_owned(), Some(1_500_000));
        let volume = VolumeTraffic {
            volume: "vm".to_owned(),
            id: 1,
            kind: ObjectKind::Volume,
            doors: vec![idle, door("nbd", OpKind::ALL.map(line).to_vec())],
            codecs: vec![CodecLine { codec, units: 160, raw_bytes: 20 << 20, stored_bytes: 5 << 20, cpu_ns }],
            cache_hits: 3,
            cache_misses: 1,
        };
        let pool = "/srv/pool".to_owned();
        let (volumes, bucket_ends_ns) = (vec![volume], bucket_ends_ns());
        TrafficReport { version: VERSION, pool, only: None, seconds: 2.0, bucket_ends_ns, volumes }
    }

    /// Returns the words of the first line that begins with these words.
    fn row<'a>(text: &'a str, begins: &str) -> Vec<&'a str> {
        let begins: Vec<_> = begins.split_whitespace().collect();
        let mut rows = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        rows.find(|words| words.starts_with(&begins)).unwrap_or_default()
    }

    #[test]
    fn a_line_tells_rates_and_times_and_doors_at_rest_have_none() {
        let text = show(&report(), None);
        let nbd = row(&text, "vm nbd").join(" ");
        assert_eq!(nbd, "vm nbd 0.0 10.0 0.0 0.0 0 B 10 MiB - 1.0 ms/long -", "{text}");
        assert!(!text.contains("mount"), "{text}");
        let narrow = show(&report(), Some(80));
        assert!(narrow.lines().all(|line| line.len() <= 80) && narrow.contains("READ mean/99%"), "{narrow}");
        assert_eq!(row(&text, "vm zstd-3").join(" "), "vm zstd-3 160 20 MiB 5 MiB ~1.5 ms");
        assert!(text.contains("vm: 3 of 4 units that reads needed were in memory (75.0 %)"), "{text}");
    }

    #[test]
    fn a_histogram_has_each_operation_once_and_no_row_outside_of_what_there_is() {
        let text = histograms(&report());
        let counts = |begins| row(&text, begins).last().and_then(|count| count.parse::<u64>().ok());
        assert_eq!((counts("524.3 us"), counts("1.0 ms"), counts("2.1 ms")), (Some(15), Some(0), Some(4)), "{text}");
        assert_eq!((counts("longer"), counts("262.1 us")), (Some(1), None), "{text}");
        assert_eq!(row(&text, "BELOW"), ["BELOW", "WRITE"]);
    }
}
