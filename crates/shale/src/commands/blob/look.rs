//! `shale blob log`, `stat`, `tag`, `diff` and `verify`: the versions of a blob, and their content.

use std::sync::atomic::Ordering;

use ::blob::{At, Record, Tally, check_tag};
use serde::Serialize;
use surface::ErrorKind;
use units::format_size;
use units::shown;

use super::{Context, LOOK_EVERY, failure};
use crate::cli::{BlobAtArgs, BlobDiffArgs, BlobLogArgs, BlobTagArgs, BlobVerifyArgs};
use crate::progress::Progress;
use operations::{Failure, Outcome};

/// Records read for a log before the first line is written.
const RECORDS_MAX: u64 = 1000;

#[derive(Debug, Serialize)]
struct LogLine {
    version: u64,
    is_version: bool,
    time: u64,
    kinds: Vec<&'static str>,
    offset: u64,
    bytes: u64,
    size_bytes: u64,
    written_bytes: u64,
    stored_bytes: u64,
    ratio: Option<f64>,
    tags: Vec<String>,
    expired: bool,
    ops: Vec<String>,
    message: String,
}

#[derive(Debug, Serialize)]
struct LogDocument {
    blob: String,
    versions: Vec<LogLine>,
}

fn line(record: &Record, head: &Record) -> LogLine {
    let mut kinds: Vec<_> = record.ops.iter().map(|done| done.kind.name()).collect();
    kinds.dedup();
    LogLine {
        version: record.seq,
        is_version: record.is_version(),
        time: record.unix_s,
        kinds,
        offset: record.ops.first().map_or(0, |done| done.at),
        bytes: record.ops.iter().map(|done| done.len).sum(),
        size_bytes: record.size,
        written_bytes: record.raw,
        stored_bytes: record.stored,
        ratio: (record.stored > 0).then(|| record.raw as f64 / record.stored as f64),
        tags: head.tags.iter().filter(|(_, version)| *version == record.seq).map(|(tag, _)| tag.clone()).collect(),
        expired: !head.is_live(record.seq),
        ops: record.ops.iter().map(|done| done.op.to_string()).collect(),
        message: record.message.clone(),
    }
}

/// Shows the versions, newest first.
pub async fn log(args: BlobLogArgs, context: &Context<'_>) -> Outcome {
    if *args.blob.at() != At::Newest {
        let why = "log shows all versions: remove `@VERSION` from the URL; `shale blob stat` shows one version";
        return Err(surface::Error::new(ErrorKind::Invalid, why).into());
    }
    let (_, blob) = context.open(&args.blob).await?;
    let head = context.until_interrupted(blob.version(&At::Newest)).await?;
    let mut versions = Vec::new();
    let mut last = head.seq;
    while last > 0 && (versions.len() as u64) < args.number {
        let chunk = if args.op.is_some() { RECORDS_MAX } else { args.number.clamp(1, RECORDS_MAX) };
        let first = last.saturating_sub(chunk - 1).max(1);
        let records = context.until_interrupted(blob.records(first, last)).await?;
        let wanted = |record: &Record| match args.op {
            Some(op) => record.find(op).is_some(),
            None => args.all || record.is_version(),
        };
        let shown = records.iter().rev().filter(|record| wanted(record));
        versions.extend(shown.map(|record| line(record, &head)));
        last = first - 1;
        if args.op.is_some() && !versions.is_empty() {
            break;
        }
    }
    if let (Some(op), true) = (args.op, versions.is_empty()) {
        let why = format!("no record has operation {op}: it was not done, or a request is still running");
        return Err(surface::Error::new(ErrorKind::NotFound, why).into());
    }
    if head.seq == 0 {
        context.output.note("the blob has no version yet: its first upload did not finish");
    }
    versions.truncate(usize::try_from(args.number).unwrap_or(usize::MAX));
    let document = LogDocument { blob: args.blob.to_string(), versions };
    context.output.result(&document, || {
        let mut text = format!(
            "{:>8}  {:19}  {:9} {:>14} {:>10} {:>10} {:>6} {:>10}  \n",
            "VERSION", "TIME (UTC)", "KIND", "OFFSET", "BYTES", "STORED", "RATIO", "SIZE"
        );
        for line in &document.versions {
            let ratio = line.ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
            let (bytes, stored) = (format_size(line.written_bytes), format_size(line.stored_bytes));
            let mut words: Vec<String> = line.tags.iter().map(|tag| as_tag(tag)).collect();
            words.extend(line.expired.then(|| "(expired)".to_owned()));
            words.push(shown(&line.message).into_owned());
            let row = format!(
                "{:>8}  {}  {:9} {:>14} {bytes:>10} {stored:>10} {ratio:>6} {:>10}  {}",
                line.version,
                utc(line.time),
                line.kinds.join("+"),
                line.offset,
                format_size(line.size_bytes),
                words.join(" "),
            );
            text.push_str(row.trim_end());
            text.push('\n');
        }
        text
    });
    Ok(())
}

/// Shows a tag as in a URL; one with a space is quoted.
fn as_tag(tag: &str) -> String {
    let tag = shown(tag);
    if tag.contains(' ') { format!("@'{tag}'") } else { format!("@{tag}") }
}

/// Shows seconds since 1970 as `2026-11-25 23:59:59`.
pub(super) fn utc(unix_s: u64) -> String {
    let (days, seconds) = (unix_s / 86_400 + 719_468, unix_s % 86_400);
    // Days and months from March on, so that a leap day is the last one of a year.
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = year_of_era + era * 400 + carry;
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[derive(Debug, Serialize)]
struct CodecUse {
    codec: String,
    frames: u64,
    stored_bytes: u64,
}

#[derive(Debug, Serialize)]
struct Stat {
    blob: String,
    incarnation: String,
    version: u64,
    newest: u64,
    live_versions: u64,
    size_bytes: u64,
    hole_bytes: u64,
    data_bytes: u64,
    stored_bytes: u64,
    ratio: Option<f64>,
    extents: u64,
    codecs: Vec<CodecUse>,
    tags: Vec<(String, u64)>,
    pins: Vec<(String, u64)>,
    store_probed: Option<u64>,
}

/// Shows the size of a version.
pub async fn stat(args: BlobAtArgs, context: &Context<'_>) -> Outcome {
    let (_, blob) = context.open(&args.blob).await?;
    let head = context.until_interrupted(blob.version(&At::Newest)).await?;
    let version = context.until_interrupted(blob.version(args.blob.at())).await?;
    let usage = context.until_interrupted(blob.usage(&version)).await?;
    let live_versions = context.until_interrupted(blob.live_versions(&head)).await?;
    let pins = context.until_interrupted(blob.log().pins()).await?;
    for error in &pins.damaged {
        context.output.warn(&error.to_string());
    }
    let stat = Stat {
        blob: args.blob.to_string(),
        incarnation: blob.log().inc().to_string(),
        version: version.number(&head),
        newest: head.number(&head),
        live_versions,
        size_bytes: version.size,
        hole_bytes: version.size - usage.data.min(version.size),
        data_bytes: usage.data,
        stored_bytes: usage.stored,
        ratio: (usage.stored > 0).then(|| usage.data as f64 / usage.stored as f64),
        extents: usage.extents,
        codecs: usage
            .codecs
            .iter()
            .map(|(codec, (frames, stored))| CodecUse {
                codec: codec.to_string(),
                frames: *frames,
                stored_bytes: *stored,
            })
            .collect(),
        tags: head.tags.clone(),
        pins: pins.valid.into_iter().map(|pin| (pin.holder, pin.version)).collect(),
        store_probed: super::probed::probed_at(&args.blob),
    };
    context.output.result(&stat, || {
        let mut text = format!(
            "{}\n  version      {} (newest {}, {} live)\n  size         {}\n  data         {}\n  holes        {}\n  stored       {}\n  ratio        {}\n  extents      {}\n",
            stat.blob,
            stat.version,
            stat.newest,
            stat.live_versions,
            format_size(stat.size_bytes),
            format_size(stat.data_bytes),
            format_size(stat.hole_bytes),
            format_size(stat.stored_bytes),
            stat.ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}")),
            stat.extents,
        );
        for codec in &stat.codecs {
            let size = format_size(codec.stored_bytes);
            text.push_str(&format!("  {:12} {} frames in {size}\n", codec.codec, codec.frames));
        }
        for (tag, version) in &stat.tags {
            text.push_str(&format!("  tag          {} = {version}\n", shown(tag)));
        }
        for (holder, version) in &stat.pins {
            text.push_str(&format!("  pin          version {version} for {}\n", shown(holder)));
        }
        if let Some(at) = stat.store_probed {
            text.push_str(&format!("  store        confirmed to create objects atomically at {} UTC\n", utc(at)));
        }
        text
    });
    Ok(())
}

#[derive(Debug, Serialize)]
struct Tagged {
    blob: String,
    tag: String,
    version: Option<u64>,
    was: Option<u64>,
}

/// Gives a version a name, or removes it.
pub async fn tag(args: BlobTagArgs, context: &Context<'_>) -> Outcome {
    if !args.delete {
        check_tag(&args.tag).map_err(failure)?;
    }
    let (_, blob) = context.open_to_write(&args.blob).await?;
    let head = context.until_interrupted(blob.version(&At::Newest)).await?;
    let was = head.tags.iter().find(|(tag, _)| *tag == args.tag).map(|(_, version)| *version);
    let version = if args.delete {
        context.until_interrupted_changing(blob.untag(&args.tag)).await?;
        None
    } else {
        let named = match args.blob.at() {
            At::Newest => blob.newest_version().await,
            at => blob.version(at).await,
        };
        let version = named.map_err(failure)?.seq;
        context.until_interrupted_changing(blob.tag(&args.tag, version)).await?;
        Some(version)
    };
    let tagged = Tagged { blob: args.blob.to_string(), tag: args.tag, version, was };
    context.output.done(&tagged, || match tagged.version {
        Some(version) => {
            let moved = |was: u64| format!(" (that was version {was})");
            let was = tagged.was.filter(|was| *was != version).map(moved).unwrap_or_default();
            format!("{} version {version} is called {}{was}\n", tagged.blob, tagged.tag)
        }
        None => format!("{} has no tag {} any more\n", tagged.blob, shown(&tagged.tag)),
    });
    Ok(())
}

#[derive(Debug, Serialize)]
struct RangeLine {
    offset: u64,
    bytes: u64,
}

#[derive(Debug, Serialize)]
struct Diff {
    blob: String,
    from: u64,
    to: u64,
    size_bytes: u64,
    ranges: Vec<RangeLine>,
    changed_bytes: u64,
}

/// Shows the differences between two versions.
pub async fn diff(args: BlobDiffArgs, context: &Context<'_>) -> Outcome {
    let (_, blob) = context.open(&args.from).await?;
    let other = match args.to.as_deref().map(|to| to.trim_start_matches('@')) {
        None => At::Newest,
        Some(to) => to.parse().map_or_else(|_| At::Tag(to.to_owned()), At::Number),
    };
    let from = context.until_interrupted(blob.version(args.from.at())).await?;
    let to = context.until_interrupted(blob.version(&other)).await?;
    let head = context.until_interrupted(blob.version(&At::Newest)).await?;
    let ranges = context.until_interrupted(blob.diff(&from, &to)).await?;
    let ranges: Vec<_> = ranges.into_iter().map(|r| RangeLine { offset: r.start, bytes: r.end - r.start }).collect();
    let diff = Diff {
        blob: args.from.to_string(),
        from: from.number(&head),
        to: to.number(&head),
        size_bytes: to.size,
        changed_bytes: ranges.iter().map(|range| range.bytes).sum(),
        ranges,
    };
    context.output.result(&diff, || {
        let mut text = String::new();
        for range in &diff.ranges {
            text.push_str(&format!("{:>16} {:>16}\n", range.offset, range.bytes));
        }
        let changed = format_size(diff.changed_bytes);
        text.push_str(&format!(
            "versions {} and {} differ in {changed}, {} ranges\n",
            diff.from,
            diff.to,
            diff.ranges.len()
        ));
        text
    });
    Ok(())
}

#[derive(Debug, Serialize)]
struct DamageLine {
    offset: u64,
    bytes: u64,
    what: String,
}

#[derive(Debug, Serialize)]
struct Verification {
    blob: String,
    version: u64,
    size_bytes: u64,
    frames: u64,
    stored_bytes: u64,
    damaged: Vec<DamageLine>,
    all: Option<Everything>,
}

#[derive(Debug, Serialize)]
struct WrongLine {
    object: String,
    what: String,
}

/// The additional result of `--all`.
#[derive(Debug, Serialize)]
struct Everything {
    records: u64,
    live_versions: u64,
    objects: u64,
    object_bytes: u64,
    wrong: Vec<WrongLine>,
}

impl From<::blob::Audited> for Everything {
    fn from(audited: ::blob::Audited) -> Self {
        Self {
            records: audited.records,
            live_versions: audited.versions,
            objects: audited.packs,
            object_bytes: audited.bytes,
            wrong: audited.wrong.into_iter().map(|(object, what)| WrongLine { object, what }).collect(),
        }
    }
}

/// Reads a version and verifies every checksum.
pub async fn verify(args: BlobVerifyArgs, context: &Context<'_>) -> Outcome {
    let (_, blob) = context.open(&args.blob).await?;
    let version = context.until_interrupted(blob.version(args.blob.at())).await?;
    let head = context.until_interrupted(blob.version(&At::Newest)).await?;
    let progress = Progress::new(context.output, "verify", Some(version.size));
    let tally = Tally::default();
    let show = async {
        loop {
            progress.set(tally.raw.load(Ordering::Relaxed));
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    let verified = tokio::select! {
        verified = context.until_interrupted(blob.verify(&version, &tally)) => verified?,
        () = show => return Err(Failure::Internal("the progress bar ended".to_owned())),
    };
    progress.finish();
    let mut all = None;
    if args.all {
        let progress = Progress::new(context.output, "verify --all", None);
        let tally = Tally::default();
        let show = async {
            loop {
                progress.set(tally.raw.load(Ordering::Relaxed));
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        let audited = tokio::select! {
            audited = context.until_interrupted(blob.audit(&tally)) => audited?,
            () = show => return Err(Failure::Internal("the progress bar ended".to_owned())),
        };
        progress.finish();
        all = Some(Everything::from(audited));
    }
    let damaged = verified.damaged.into_iter();
    let report = Verification {
        blob: args.blob.to_string(),
        version: version.number(&head),
        size_bytes: version.size,
        frames: verified.frames,
        stored_bytes: verified.stored,
        damaged: damaged.map(|damage| DamageLine { offset: damage.at, bytes: damage.len, what: damage.what }).collect(),
        all,
    };
    context.output.result(&report, || {
        let mut text = String::new();
        for damage in &report.damaged {
            text.push_str(&format!("damaged: {} bytes at {}: {}\n", damage.bytes, damage.offset, damage.what));
        }
        let is = if report.damaged.is_empty() { "is whole" } else { "is damaged" };
        let (size, stored) = (format_size(report.size_bytes), format_size(report.stored_bytes));
        text.push_str(&format!(
            "{} version {} {is}: {size}, {} frames in {stored}\n",
            report.blob, report.version, report.frames
        ));
        if let Some(all) = &report.all {
            for wrong in &all.wrong {
                text.push_str(&format!("damaged: {}: {}\n", wrong.object, wrong.what));
            }
            let are = if all.wrong.is_empty() { "all of them intact" } else { "some of them damaged" };
            let size = format_size(all.object_bytes);
            text.push_str(&format!(
                "{} records, {} live versions, {} objects ({size}): {are}\n",
                all.records, all.live_versions, all.objects
            ));
        }
        text
    });
    if report.damaged.is_empty() && report.all.is_none_or(|all| all.wrong.is_empty()) {
        Ok(())
    } else {
        Err(Failure::Reported(ErrorKind::Corrupt))
    }
}

#[cfg(test)]
mod tests {
    use super::utc;

    #[test]
    fn seconds_become_dates() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00"),
            (951_825_600, "2000-02-29 12:00:00"),
            (1_795_651_199, "2026-11-25 23:59:59"),
            (1_772_323_200, "2026-03-01 00:00:00"),
        ] {
            assert_eq!(utc(seconds), text);
        }
    }
}
