//! Common parts of imports and exports of trees: access to a share, the progress of a copy, and its
//! outcome.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;
use std::time::Instant;

use serde::Serialize;
use surface::{Error, ErrorKind};
use units::format_size;

use super::list::volumes;
use super::status::status;
use crate::output::{Output, line_shown};
use crate::progress::Progress;
use copy::trees::{Sink, Source, Tally, Zeroed, copy};
use operations::names;
use operations::{Failure, Outcome};
use report::{VolumeReport, show_ratio};
use server::session::Session;

/// Outcome of the copy of a tree.
#[derive(Debug, Serialize)]
pub struct TreeSummary {
    /// The share.
    pub share: String,
    /// The directory or archive read (import).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The directory or archive written (export).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    files: u64,
    directories: u64,
    symlinks: u64,
    /// Additional names of files.
    links: u64,
    /// Devices, fifos and sockets.
    others: u64,
    /// Bytes of content.
    pub copied_bytes: u64,
    hole_bytes: u64,
    /// Existing names that were not replaced.
    kept: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    kept_first: Option<String>,
    /// Number of items that could not be copied.
    problems: u64,
    problem_lines: Vec<String>,
    /// Bytes that could not be read, and are zeroes in the copy.
    zeroed_bytes: u64,
    /// Places of these, the first hundred thousand.
    zeroed: Vec<Zeroed>,
    /// Stored bytes of the share and its snapshots in the pool (import).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stored_bytes: Option<u64>,
    /// The data of the share: whole blocks, those of its names included (import).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_bytes: Option<u64>,
    /// Ratio of that data to the stored bytes, as in `list`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// The part of them that the import added, if the share existed before; and its ratio, if
    /// nothing was replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub added_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub added_ratio: Option<f64>,
    seconds: f64,
    bytes_per_second: u64,
}

impl TreeSummary {
    /// Summary of a copy that began at `started`.
    pub fn new(share: &str, tally: Tally, started: Instant) -> Self {
        let seconds = started.elapsed().as_secs_f64();
        Self {
            share: share.to_owned(),
            source: None,
            target: None,
            files: tally.files,
            directories: tally.directories,
            symlinks: tally.symlinks,
            links: tally.links,
            others: tally.others,
            copied_bytes: tally.bytes,
            hole_bytes: tally.hole_bytes,
            kept: tally.kept,
            kept_first: tally.kept_first,
            problems: tally.problems,
            problem_lines: tally.lines,
            zeroed_bytes: tally.zeroed_bytes,
            zeroed: tally.zeroed,
            stored_bytes: None,
            data_bytes: None,
            ratio: None,
            added_bytes: None,
            added_ratio: None,
            seconds,
            bytes_per_second: (tally.bytes as f64 / seconds.max(1e-9)) as u64,
        }
    }

    /// Reports how much was copied, and each failure; `overwrite` is the flag that replaces files.
    ///
    /// # Errors
    /// A failure that was already reported, if something was not copied.
    pub fn tell(&self, overwrite: &str, output: &Output) -> Outcome {
        tell_problems(&self.problem_lines, self.problems, output);
        if let Some(first) = self.kept_first.as_deref().map(line_shown) {
            output.warn(&match self.kept {
                1 => format!("{first} already existed, and was kept; {overwrite} replaces it"),
                kept => format!(
                    "{kept} names already existed, {first} the first of them, and were kept; {overwrite} replaces \
                     them"
                ),
            });
        }
        if self.target.as_deref() != Some("-") {
            output.done(self, || self.show());
        }
        match (self.problems, self.kept) {
            (0, 0) => Ok(()),
            (0, _) => Err(Failure::Reported(ErrorKind::Exists)),
            _ => Err(Failure::Reported(ErrorKind::Io)),
        }
    }

    fn show(&self) -> String {
        let place = |place: &Option<String>| place.as_deref().map(|place| line_shown(place).into_owned());
        let mut text = match (place(&self.source), place(&self.target)) {
            (Some(source), _) => format!("imported {source} into share {}: ", self.share),
            (_, Some(target)) => format!("exported share {} to {target}: ", self.share),
            _ => String::new(),
        };
        let others = self.symlinks + self.links + self.others;
        text += &format!("{} files, {} directories, {others} links and devices, ", self.files, self.directories);
        text += &format!("{} copied, ", format_size(self.copied_bytes));
        let figures = |bytes: u64, ratio| format!("{} stored, ratio {}", format_size(bytes), show_ratio(ratio));
        if let Some(bytes) = self.stored_bytes {
            text += &match self.added_bytes {
                None => {
                    let data = self.data_bytes.map(|data| format!("{} of data in ", format_size(data)));
                    format!("{}{}, ", data.unwrap_or_default(), figures(bytes, self.ratio))
                }
                Some(added) => {
                    format!("{} (the whole share: {}), ", figures(added, self.added_ratio), figures(bytes, self.ratio))
                }
            };
        }
        text + &format!("{:.1} s, {}/s\n", self.seconds, format_size(self.bytes_per_second))
    }
}

/// Reports all notes of a copy, because no other list has the files that differ from their
/// originals.
pub fn tell_problems(lines: &[String], problems: u64, output: &Output) {
    for line in lines {
        output.warn(&line_shown(line));
    }
    let more = problems - lines.len() as u64;
    if more > 0 {
        output.warn(&format!("and {more} more could not be copied completely"));
    }
}

/// Returns the share of that name, if there is one.
///
/// # Errors
/// [`ErrorKind::Unsupported`] for a volume.
pub fn find(session: &Session, name: &str) -> Outcome<Option<VolumeReport>> {
    let wanted = names::volume_of(name);
    match volumes(session)?.into_iter().find(|volume| volume.name == wanted) {
        Some(found) if !found.share => {
            let text =
                format!("'{wanted}' is a volume, not a share: it has no files; shale import reads an image into it");
            Err(Error::new(ErrorKind::Unsupported, text).into())
        }
        found => Ok(found),
    }
}

/// Returns the directory where the pool's server has mounted a share, or a snapshot of one.
///
/// # Errors
/// [`ErrorKind::InUse`] if it is not mounted.
pub fn mounted(session: &Session, name: &str) -> Outcome<PathBuf> {
    let report = status(session)?;
    let (share, snapshot) = name.split_once('@').map_or((name, None), |(share, snapshot)| (share, Some(snapshot)));
    let advice = "start it with --shares DIR, or stop it, and try again";
    let Some(dir) = &report.shares else {
        let text = format!("the pool is served by process {}, which mounts no shares: {advice}", report.pid);
        return Err(Error::new(ErrorKind::InUse, text).into());
    };
    let place = Path::new(dir).join(share);
    let snapshots = place.join(".shale/snapshots");
    if !snapshots.is_dir() {
        if let Some(job) = report.import_into(share) {
            let text =
                format!("share '{share}' is being imported by job {}, and is mounted when that has ended", job.id);
            return Err(Error::new(ErrorKind::InUse, text).into());
        }
        let text = format!("the pool is served by process {}, which has not mounted share '{share}'", report.pid);
        return Err(Error::new(ErrorKind::InUse, format!("{text}: {advice}")).into());
    }
    let Some(snapshot) = snapshot else { return Ok(place) };
    let place = snapshots.join(snapshot);
    if place.is_dir() {
        return Ok(place);
    }
    Err(Error::new(ErrorKind::NotFound, format!("no snapshot '{name}'")).into())
}

/// Copies with a progress bar. `total`: bytes of the source, if known; `measured`: a directory
/// whose bytes are counted meanwhile.
///
/// # Errors
/// See [`copy`].
pub fn copy_shown(
    what: &str,
    (total, measured): (Option<u64>, Option<&Path>),
    (source, sink): (&mut dyn Source, &mut dyn Sink),
    interrupted: &AtomicBool,
    tally: &mut Tally,
    output: &Output,
) -> Outcome {
    let progress = Progress::new(output, what, total);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        if let Some(path) = measured.filter(|_| output.shows_progress()) {
            // Without this thread the bar has no end, and the copy continues.
            let _ = Builder::new().spawn_scoped(scope, || {
                if let Some(bytes) = measure(path, &is_over) {
                    progress.measure(bytes);
                }
            });
        }
        let done = copy(source, sink, interrupted, tally, &mut |tally, bytes| {
            progress.set(bytes);
            if tally.names() % 64 == 0 {
                progress.say(format!("{} names", tally.names()));
            }
        });
        is_over.store(true, Ordering::Relaxed);
        done
    })
}

/// Returns the bytes of data below a directory; `None` if `is_over` becomes true before the end.
fn measure(path: &Path, is_over: &AtomicBool) -> Option<u64> {
    let mut bytes = 0;
    let mut directories = vec![path.to_owned()];
    while let Some(directory) = directories.pop() {
        // The import itself reports unreadable directories.
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            if is_over.load(Ordering::Relaxed) {
                return None;
            }
            let Ok(found) = entry.metadata() else { continue };
            if found.is_dir() {
                directories.push(entry.path());
            } else if found.is_file() {
                bytes += found.len().min(found.blocks() * 512);
            }
        }
    }
    Some(bytes)
}
