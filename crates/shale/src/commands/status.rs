//! `shale status`.

use std::borrow::Cow;

use units::format_size;

use super::incomplete;
use super::jobs::done;
use crate::cli::StatusArgs;
use crate::output::{Output, facts};
use crate::times::{show_moment, show_seconds};
use operations::Outcome;
use operations::{Reply, Request};
use report::{JobReport, JobState};
use report::{ScrubLine, StatusReport, UnservedLine, show_ratio};
use server::fullness;
use server::health;
use server::session::Session;

/// Maximum number of damages shown one by one, so that the figures after them stay on the screen.
const DAMAGES_SHOWN: usize = 8;
/// Maximum bytes shown of the description of a loss.
const LOSS_BYTES_SHOWN: usize = 2000;
/// Maximum number of running jobs shown, in one line.
const JOBS_SHOWN: usize = 3;

/// Shows the figures of a pool.
pub fn run(args: StatusArgs, output: &Output) -> Outcome {
    let status = Session::with(&args.pool, &args.access, |session| {
        if args.sync {
            session.done(Request::Checkpoint)?;
        }
        if args.acknowledge {
            let before = status(session)?;
            if before.damages.is_empty() && before.damages_unlisted == 0 && before.losses.is_empty() {
                output.note("note: there is nothing to acknowledge");
            }
            session.done(Request::Acknowledge)?;
        }
        status(session)
    })?;
    output.result(&status, || show(&status));
    Ok(())
}

/// Returns the figures of a pool.
pub fn status(session: &Session) -> Outcome<StatusReport> {
    match session.call(Request::Status)? {
        Reply::Status(status) => Ok(*status),
        other => Err(other.unexpected().into()),
    }
}

/// Returns the guarantee in force: see the first lines of RELIABILITY.md.
fn promise_words(s: &StatusReport) -> &'static str {
    match s.standby {
        Some(_) if s.names_at_risk => {
            "acknowledged data survives the server's death, but file names in shares only once synced; flushed writes survive a power cut"
        }
        Some(_) => "acknowledged writes survive the server's death, flushed ones a power cut",
        None => "flushed writes survive a crash and a power cut",
    }
}

/// Returns the most important lines: health, space, and guarantee.
fn essentials(s: &StatusReport) -> Vec<(&'static str, String)> {
    let size = format_size;
    let health: Vec<_> = health::assess(s).into_iter().map(|(_, words)| words).collect();
    let mut lines = vec![
        ("health", health.join("; ")),
        (
            "capacity",
            format!(
                "{}: {:.1} % used{}, {} available for new data{}",
                size(s.capacity_bytes),
                s.used_percent,
                if s.short_below { " of the space in the file system below" } else { "" },
                size(s.available_bytes),
                match s.returning_bytes {
                    0 => String::new(),
                    bytes => format!(", and about {} more with the next checkpoint", size(bytes)),
                }
            ),
        ),
        ("reserved", fullness::reserved_words(s)),
        ("last scrub", scrub_words(&s.scrub)),
        ("promise", promise_words(s).to_owned()),
    ];
    if s.full || s.full_level > 0 {
        lines.push((if s.full { "FULL" } else { "nearly full" }, fullness::advice(s)));
    }
    for line in &s.at_quota {
        lines.push(("AT QUOTA", format!("{}: raise it, remove data or destroy snapshots", line.words())));
    }
    if s.repaired_fragments > 0 {
        let text = format!("{} damaged fragments, from their other copies (property copies)", s.repaired_fragments);
        lines.push(("repaired", text));
    }
    for damage in s.damages.iter().take(DAMAGES_SHOWN) {
        lines.push(("DAMAGED", damage.clone()));
    }
    match s.damages.len().saturating_sub(DAMAGES_SHOWN) {
        0 => {}
        more => {
            lines.push(("DAMAGED", format!("{more} more of these: 'shale scrub {} --report' lists them", s.pool)));
        }
    }
    if s.damages_unlisted > 0 {
        lines
            .push(("DAMAGED", format!("and in {} more places: scrub again after repairing these", s.damages_unlisted)));
    }
    if s.damages_acknowledged > 0 {
        let (count, pool) = (s.damages_acknowledged, &s.pool);
        let were = if count == 1 { "damage was" } else { "damages were" };
        let text = format!("{count} {were} acknowledged: 'shale scrub {pool} --report' lists them");
        lines.push(("damaged", text));
    }
    for loss in &s.losses {
        let when = show_moment(loss.unix_s);
        let what = shortened(&loss.text);
        let text = format!("on {when} UTC: {what}; to acknowledge it: shale status {} --acknowledge", s.pool);
        lines.push(("RECOVERED WITH LOSS", text));
    }
    for share in &s.unserved_shares {
        lines.push(("NOT SERVED", unserved_words(share)));
    }
    for title in &s.incomplete {
        let import = s.import_into(title);
        lines.push((if import.is_some() { "importing" } else { "INCOMPLETE" }, incomplete::words(title, import)));
    }
    if let Some(failed) = &s.failed {
        lines.push(("FAILED", format!("writes are refused: {failed}; restart the server")));
    }
    lines
}

/// Describes a share that could not be mounted.
pub(super) fn unserved_words(share: &UnservedLine) -> String {
    format!(
        "share '{}': {}; the server tries again at its next start; repair a damaged share with 'shale check \
         --repair' without a server",
        share.share, share.why
    )
}

/// Truncates a long description: it may have a hundred paths.
fn shortened(text: &str) -> Cow<'_, str> {
    match text.floor_char_boundary(LOSS_BYTES_SHOWN) {
        end if end < text.len() => format!("{} ... (see --json for the rest)", &text[..end]).into(),
        _ => text.into(),
    }
}

fn scrub_words(scrub: &ScrubLine) -> String {
    if scrub.started_unix_s == 0 {
        return "never".to_owned();
    }
    let found = match scrub.found {
        0 => "found nothing".to_owned(),
        1 => "found 1 damage".to_owned(),
        found => format!("found {found} damages"),
    };
    let began = show_moment(scrub.started_unix_s);
    if scrub.finished_unix_s > 0 {
        let took = show_seconds(scrub.finished_unix_s.saturating_sub(scrub.started_unix_s));
        return format!("ended {} UTC, after {took}, {found}", show_moment(scrub.finished_unix_s));
    }
    let (done, total) = (format_size(scrub.bytes_done), format_size(scrub.bytes_total));
    let goes = if scrub.running { "is at" } else { "is paused at" };
    format!("began {began} UTC, {goes} {done} of {total}, {found} so far")
}

/// Returns the line about running jobs, if there are any.
fn jobs_line(s: &StatusReport) -> Option<(&'static str, String)> {
    let said = |job: &JobReport| {
        let is = match job.state {
            JobState::Paused => "is paused at",
            JobState::Cancelling => "is cancelling at",
            _ => "is at",
        };
        format!("{} {is} {}", job.title(), done(job))
    };
    let mut said: Vec<_> = s.jobs.iter().take(JOBS_SHOWN).map(said).collect();
    if s.jobs.len() > JOBS_SHOWN {
        said.push(format!("and {} more", s.jobs.len() - JOBS_SHOWN));
    }
    let text = format!("{}: 'shale jobs {}' lists them", said.join(", "), s.pool);
    (!said.is_empty()).then_some(("jobs", text))
}

/// `1 hold`, `2 holds`.
fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Returns `~` for estimated figures.
fn about(is_exact: bool) -> &'static str {
    if is_exact { "" } else { "~" }
}

fn show(s: &StatusReport) -> String {
    let size = format_size;
    let served = if s.served {
        let doors: Vec<String> = s
            .nbd
            .iter()
            .map(|nbd| format!("nbd {nbd}"))
            .chain(s.mount.iter().map(|dir| format!("files in {dir}")))
            .chain(s.shares.iter().map(|dir| format!("shares in {dir}")))
            .collect();
        let connections = match s.nbd_connections_max {
            0 => String::new(),
            most => format!("; {} of {most} NBD connections", s.nbd_connections),
        };
        format!("by process {} for {}: {}{connections}", s.pid, show_seconds(s.uptime_s), doors.join(", "))
    } else {
        "no".to_owned()
    };
    let used = s.extents_total.saturating_sub(s.extents_free);
    let about = about(s.exact);
    let (destroyed, destroyed_stored) = s.of_destroyed();
    let mut lines = essentials(s);
    lines.extend([
        ("", String::new()),
        ("pool", s.pool.clone()),
        ("data", s.data.clone()),
        ("id", s.id.clone()),
        ("served", served),
    ]);
    lines.extend(jobs_line(s));
    lines.extend([
        ("volumes", format!("{}, together {}", s.volumes, size(s.logical_bytes))),
        (
            "kept",
            format!(
                "{}, {} on {}",
                counted(s.bookmarks, "bookmark"),
                counted(s.holds, "hold"),
                counted(s.held_snapshots, "snapshot")
            ),
        ),
        ("", String::new()),
        ("data in volumes", format!("{about}{}", size(s.allocated_bytes))),
        ("stored", format!("{about}{}", size(s.stored_bytes))),
        ("ratio", s.ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{about}{}", show_ratio(Some(ratio))))),
        ("space saved", s.saving_percent.map_or_else(|| "-".to_owned(), |percent| format!("{about}{percent:.1} %"))),
        (
            "of destroyed volumes",
            format!(
                "{}, stored in {}{}",
                size(destroyed),
                size(destroyed_stored),
                if s.reaping > 0 { "; more is coming back" } else { "" }
            ),
        ),
        ("dictionaries", format!("{}, together {}", s.dictionaries, size(s.dictionary_bytes))),
        ("dead", format!("{about}{} (not yet reclaimed)", size(s.dead_bytes))),
        ("map", size(s.map_bytes)),
        ("free", format!("{} of {} without cleaning", size(s.free_bytes), size(s.capacity_bytes))),
        ("extents", format!("{used} of {} in use, {} each", s.extents_total, size(s.extent_bytes))),
        ("", String::new()),
        ("written", format!("{}, compressed to {}", size(s.written_bytes), size(s.fragment_bytes))),
        (
            "written to disk",
            format!(
                "{}, of which log {}{}",
                size(s.disk_written_bytes),
                size(s.log_bytes),
                match s.rewritten_bytes {
                    0 => String::new(),
                    bytes => format!(", and rewritten by recompress and clean --sort {}", size(bytes)),
                }
            ),
        ),
        ("write amplification", s.write_amplification.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}"))),
        (
            "read",
            format!(
                "{}, from the data {}; read ahead {}, of which {} were used",
                size(s.read_bytes),
                size(s.read_disk_bytes),
                size(s.read_ahead_bytes),
                size(s.read_ahead_used_bytes)
            ),
        ),
        ("flushes", format!("{}, with {} syncs", s.flushes, s.syncs)),
        ("checkpoints", s.checkpoints.to_string()),
        (
            "cleaned",
            format!(
                "{} extents, {} moved{}",
                s.cleaned_extents,
                size(s.moved_bytes),
                s.cleaning_bytes_per_s
                    .map_or_else(String::new, |rate| format!(", {}/s while cleaning", size(rate as u64)))
            ),
        ),
        (
            "recompressed",
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
    ]);
    lines.extend(s.standby_notes.iter().map(|note| ("STANDBY", note.clone())));
    lines.extend(s.images.iter().map(|image| ("image", image.words())));
    for r in &s.receives {
        let (come, expected) = (size(r.received_bytes), size(r.expected_bytes));
        lines.push((
            "being received",
            format!(
                "{}@{}, {come} of {expected}; if interrupted: shale send --resume {}",
                r.volume, r.snapshot, r.token
            ),
        ));
    }
    if s.catalogue_bytes == 0 {
        let text = "none: the pool is too full for one; if the map were lost now, salvage would not recover all names and \
             sizes";
        lines.push(("catalogue", text.to_owned()));
    }
    facts(&lines)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use report::{LossLine, ReceiveLine};

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
            read_ahead_bytes: 7 << 20,
            read_ahead_used_bytes: 5 << 20,
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
            "read ahead 7 MiB, of which 5 MiB",
            "no space below",
            "'vm' is incomplete",
            "RECOVERED WITH LOSS",
            "on 2026-11-26 00:00 UTC: batch 27",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }

    #[test]
    fn it_begins_with_health_and_fits_eighty_columns() {
        let mut status = StatusReport {
            incomplete: vec!["a".repeat(30)],
            damages: vec![
                "vm, byte 4096: a block from here cannot be read: 512 bytes at byte 7 do not match".to_owned(),
            ],
            damages_acknowledged: 2,
            used_percent: 91.26,
            returning_bytes: 300 << 20,
            pool: "/srv/pool".to_owned(),
            nbd: vec!["unix:/srv/pool/nbd.sock".to_owned(), "127.0.0.1:10809".to_owned()],
            served: true,
            nbd_connections: 3,
            nbd_connections_max: 64,
            mount: Some("/mnt/shale".to_owned()),
            shares: None,
            scrub: ScrubLine { started_unix_s: 1, bytes_done: 1 << 30, bytes_total: 3 << 30, ..ScrubLine::default() },
            receives: vec![ReceiveLine {
                volume: "v".to_owned(),
                snapshot: "s".to_owned(),
                is_new: true,
                received_bytes: 1,
                expected_bytes: 2,
                token: "shale1-".to_owned() + &"0123456789abcdef".repeat(2),
            }],
            ..StatusReport::default()
        };
        let text = show(&status);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.starts_with("health"), "{text}");
        // Wrapped lines have the same words as one line.
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let health = words(text.split("capacity").next().unwrap());
        let places = ["DAMAGED in 1 place", "is incomplete", "nearly full (91 %)"].map(|part| health.find(part));
        assert!(places.is_sorted() && places.iter().all(Option::is_some), "{text}");
        assert!(words(&text).contains("is paused at 1 GiB of 3 GiB, found nothing so far"), "{text}");
        assert!(words(&text).contains("; 3 of 64 NBD connections"), "{text}");
        assert!(words(&text).contains("and about 300 MiB more with the next checkpoint"), "{text}");
        assert!(text.contains("vm, byte 4096") && text.contains("2 damages were acknowledged"), "{text}");
        assert!(text.contains("stored                ~0 B"), "{text}");
        status.exact = true;
        assert!(!show(&status).contains('~'));
        status.damages_acknowledged = 1;
        status.damages = vec![status.damages[0].clone(); DAMAGES_SHOWN + 3];
        let text = words(&show(&status));
        assert!(text.contains("DAMAGED 3 more of these: 'shale scrub /srv/pool --report' lists them"), "{text}");
        assert_eq!(text.matches("vm, byte 4096").count(), DAMAGES_SHOWN);
        assert!(text.contains("1 damage was acknowledged"), "{text}");
    }

    #[test]
    fn jobs_under_way_are_one_line() {
        let mut status = StatusReport { pool: "/srv/pool".to_owned(), ..StatusReport::default() };
        assert_eq!(jobs_line(&status), None);
        let paused = JobReport { id: 4, state: JobState::Paused, ..JobReport::sample() };
        status.jobs = vec![JobReport::sample(), paused];
        let text = "job 3 (recompress vm) is at 25%, job 4 (recompress vm) is paused at 25%: 'shale jobs /srv/pool' lists them";
        assert_eq!(jobs_line(&status), Some(("jobs", text.to_owned())));
        status.jobs = vec![JobReport::sample(); JOBS_SHOWN + 2];
        let shown = show(&status).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(shown.contains("is at 25%, and 2 more: 'shale jobs /srv/pool' lists them"), "{shown}");
    }

    #[test]
    fn the_last_scrub_is_told_in_a_line() {
        assert_eq!(scrub_words(&ScrubLine::default()), "never");
        let scrub = ScrubLine { started_unix_s: 60, finished_unix_s: 360, found: 1, ..ScrubLine::default() };
        assert_eq!(scrub_words(&scrub), "ended 1970-01-01 00:06 UTC, after 5 min, found 1 damage");
    }
}
