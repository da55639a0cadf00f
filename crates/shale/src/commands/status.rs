//! `shale status`.

use units::format_size;

use super::incomplete;
use crate::cli::StatusArgs;
use crate::control::{Reply, Request};
use crate::exit::Outcome;
use crate::model::{StatusReport, show_ratio};
use crate::output::{Output, facts};
use crate::session::Session;

/// Shows the figures of a pool.
pub fn run(args: StatusArgs, output: &Output) -> Outcome {
    let status = Session::with(&args.pool, &args.access, output, |session| {
        if args.sync {
            session.done(Request::Checkpoint)?;
        }
        if args.acknowledge {
            session.done(Request::Acknowledge)?;
        }
        status(session)
    })?;
    output.result(&status, || show(&status));
    Ok(())
}

/// The figures of a pool.
pub fn status(session: &Session) -> Outcome<StatusReport> {
    match session.call(Request::Status)? {
        Reply::Status(status) => Ok(*status),
        other => Err(other.unexpected().into()),
    }
}

fn show(s: &StatusReport) -> String {
    let size = format_size;
    let served = if s.served {
        let doors: Vec<String> = s
            .nbd
            .iter()
            .map(|nbd| format!("nbd {nbd}"))
            .chain(s.mount.iter().map(|dir| format!("files in {dir}")))
            .collect();
        format!("by process {} for {}: {}", s.pid, show_seconds(s.uptime_s), doors.join(", "))
    } else {
        "no".to_owned()
    };
    let used = s.extents_total.saturating_sub(s.extents_free);
    let mut lines = vec![
        ("pool", s.pool.clone()),
        ("data", s.data.clone()),
        ("id", s.id.clone()),
        ("served", served),
        ("volumes", format!("{}, together {}", s.volumes, size(s.logical_bytes))),
        ("", String::new()),
        ("data in volumes", size(s.allocated_bytes)),
        ("stored", size(s.stored_bytes)),
        ("ratio", show_ratio(s.ratio)),
        ("space saved", s.saving_percent.map_or_else(|| "-".to_owned(), |percent| format!("{percent:.1} %"))),
        (
            "of destroyed volumes",
            format!(
                "{}, stored in {}{}",
                size(s.unlisted_allocated_bytes),
                size(s.unlisted_bytes),
                if s.reaping > 0 { "; more is coming back" } else { "" }
            ),
        ),
        ("dictionaries", format!("{}, together {}", s.dictionaries, size(s.dictionary_bytes))),
        ("dead", format!("{} (not yet reclaimed)", size(s.dead_bytes))),
        ("map", size(s.map_bytes)),
        ("free", format!("{} of {}", size(s.free_bytes), size(s.capacity_bytes))),
        ("extents", format!("{used} of {} in use, {} each", s.extents_total, size(s.extent_bytes))),
        ("", String::new()),
        ("written", format!("{}, compressed to {}", size(s.written_bytes), size(s.fragment_bytes))),
        ("written to disk", format!("{}, of which log {}", size(s.disk_written_bytes), size(s.log_bytes))),
        ("write amplification", s.write_amplification.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}"))),
        ("read", format!("{}, from the data {}", size(s.read_bytes), size(s.read_disk_bytes))),
        ("flushes", format!("{}, with {} syncs", s.flushes, s.syncs)),
        ("checkpoints", s.checkpoints.to_string()),
        (
            "cleaned",
            format!(
                "{} extents, {} moved{}",
                s.cleaned_extents,
                size(s.moved_bytes),
                s.cleaning_bytes_per_s
                    .map_or_else(String::new, |rate| format!(", {}/s while at it", size(rate as u64)))
            ),
        ),
        (
            "compressed anew",
            match s.cold_before_bytes {
                0 => "nothing while cleaning (property cold-mode)".to_owned(),
                before => format!("{} to {} while cleaning", size(before), size(s.cold_after_bytes)),
            },
        ),
        (
            "last recovery",
            format!("{:.0} ms, {} batches, {}", s.recovery_ms, s.recovered_batches, size(s.recovered_bytes)),
        ),
        ("memory", format!("{} resident, budget {}", size(s.memory_resident_bytes), size(s.memory_budget_bytes))),
    ];
    for r in &s.receives {
        let (come, expected) = (size(r.received_bytes), size(r.expected_bytes));
        lines.push((
            "being received",
            format!(
                "{}@{}, {come} of {expected}; if it broke off: shale send --resume {}",
                r.volume, r.snapshot, r.token
            ),
        ));
    }
    for loss in &s.losses {
        let date = date(loss.unix_s);
        let text = format!("on {date}: {}; when that is known: shale status {} --acknowledge", loss.text, s.pool);
        lines.push(("RECOVERED WITH LOSS", text));
    }
    for title in &s.incomplete {
        lines.push(("INCOMPLETE", incomplete::words(title)));
    }
    if s.catalogue_bytes == 0 {
        let text =
            "none: the pool is too full for one; if the map were lost now, salvage would not know all names and sizes";
        lines.push(("catalogue", text.to_owned()));
    }
    for damage in &s.damages {
        lines.push(("DAMAGED", format!("{damage}; see 'shale scrub'")));
    }
    if let Some(failed) = &s.failed {
        lines.push(("FAILED", format!("writes are refused: {failed}; stop and serve the pool again")));
    }
    facts(&lines)
}

/// A day, `2026-11-25`, of seconds since 1970 (the proleptic Gregorian calendar in 400 years of 146,097 days, beginning with a March).
fn date(unix_s: u64) -> String {
    let days = unix_s / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    format!("{:04}-{month:02}-{day:02}", era * 400 + year + u64::from(month <= 2))
}

fn show_seconds(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{minutes} min"),
        7200..172_800 => format!("{hours} h"),
        _ => format!("{days} days"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::LossLine;

    #[test]
    fn the_table_shows_what_matters() {
        let status = StatusReport {
            allocated_bytes: 3 << 30,
            stored_bytes: 1 << 30,
            ratio: Some(3.0),
            saving_percent: Some(66.666),
            extents_total: 100,
            extents_free: 40,
            extent_bytes: 1 << 20,
            write_amplification: Some(1.0421),
            failed: Some("no space below".to_owned()),
            incomplete: vec!["vm".to_owned()],
            losses: vec![LossLine { unix_s: 1_795_651_200, text: "batch 27".to_owned() }],
            ..StatusReport::default()
        };
        let text = show(&status);
        for part in [
            "3 GiB",
            "3.00x",
            "66.7 %",
            "60 of 100 in use, 1 MiB each",
            "1.042",
            "no space below",
            "'vm' is incomplete",
            "RECOVERED WITH LOSS",
            "on 2026-11-26: batch 27",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        let days = [0, 86_399, 86_400, 951_782_400, 951_868_800, 1_709_164_800, 4_102_444_800].map(date);
        let expected =
            ["1970-01-01", "1970-01-01", "1970-01-02", "2000-02-29", "2000-03-01", "2024-02-29", "2100-01-01"];
        assert_eq!(days, expected);
    }

    #[test]
    fn durations_are_rounded_to_what_one_says() {
        let shown = [0, 119, 120, 7199, 7200, 172_800].map(show_seconds);
        assert_eq!(shown, ["0 s", "119 s", "2 min", "119 min", "2 h", "2 days"]);
    }
}
