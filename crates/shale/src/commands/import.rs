//! `shale import`.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use codec::Codec;
use policy::{Compression, FileChoice, HEAD_BYTES, INCOMPLETE, Settings, is_zero, rule_units, wants_dictionary};
use surface::{Allocation, Error, ErrorKind};
use units::{BLOCK_BYTES, OBJECT_BYTES_MAX, format_size};

use super::forced::others_of;
use super::import_tree;
use super::list::volumes;
use super::registered::{refuse_background, registered};
use super::rounding::report_rounding;
use super::status::status;
use super::volume::noted;
use crate::cli::ImportArgs;
use crate::output::Output;
use crate::progress::Progress;
use copy::transfer::{self, Import, Moved, Source, containers};
use copy::volume_io::VolumeIo;
use estimate::rule_holds;
use host::Termination;
use operations::names::round_up_to_block;
use operations::{Failure, Outcome, stop_if};
use operations::{Reply, Request, Which};
use report::JobKind;
use report::{StatusReport, TransferSummary, VolumeReport, ratio, show_ratio};
use server::clients::words_of;
use server::devices::GOING_PATIENCE;
use server::session::Session;

/// Initial size of a volume for a stream of unknown length, doubled whenever it becomes too small:
/// few enough durable changes of size. A thin volume's size costs nothing.
const STREAM_BYTES_FIRST: u64 = 1 << 30;
/// Interval of requests for the ratio.
const RATIO_EVERY: Duration = Duration::from_millis(500);
/// Maximum number of runs per request for a volume's allocation.
const RUNS_MAX: u32 = 4096;

/// Interval of checks whether a volume's clients are gone.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Copies a file into a volume.
pub fn run(args: ImportArgs, output: &Output) -> Outcome {
    refuse_background(args.background, JobKind::Import)?;
    if import_tree::is_meant(&args) {
        return import_tree::run(&args, output);
    }
    let signals = Termination::block().map_err(|error| Error::from_io("cannot block signals", error))?;
    let interrupted = signals.flag().map_err(|error| Error::from_io("cannot watch for signals", error))?;
    let mut source = Source::open(&args.file)?;
    let mut tree = None;
    let started = Instant::now();
    let mut work = |session: &Session| -> Outcome<Option<TransferSummary>> {
        if find(session, |volume| volume.name == args.volume)?.is_some_and(|volume| volume.share) {
            tree = Some(import_tree::import(session, &args, &interrupted, output)?);
            return Ok(None);
        }
        if !args.as_is {
            let beginning = source.beginning(containers::BEGINNING_BYTES, &|| !interrupted.load(Ordering::SeqCst))?;
            containers::refuse(&beginning, source.name(), source.size_bytes().is_none(), &args.volume)?;
        }
        refuse_empty(&mut source, &args.volume, &interrupted)?;
        let (target, volume) = Target::prepare(session, &args, &source, output)?;
        let copied = target.copy(session, volume, &mut source, &interrupted, output);
        match copied {
            Ok(moved) => Ok(Some(target.summary(session, source.name(), moved, started, &interrupted))),
            Err(failure) => Err(target.clean_up(session, source.name(), failure)),
        }
    };
    let summary = Session::with(&args.pool, &args.access, |session| {
        registered(session, (JobKind::Import, Some(&args.volume)), &interrupted, output, || work(session))
    })?;
    if let Some(summary) = summary {
        output.done(&summary, || show(&summary, source.name()));
    }
    tree.map_or(Ok(()), |summary| import_tree::tell(&summary, output))
}

/// Formats the outcome; unknown figures are omitted.
fn show(summary: &TransferSummary, source: &str) -> String {
    let mut figures = String::new();
    if let Some(bytes) = summary.allocated_bytes {
        figures.push_str(&format!("{} of data, ", format_size(bytes)));
    }
    if let Some(bytes) = summary.stored_bytes {
        let with_snapshots = if summary.with_snapshots == Some(true) { " with its snapshots" } else { "" };
        figures.push_str(&format!("{} stored{with_snapshots}, ", format_size(bytes)));
    }
    if summary.allocated_bytes.is_some() {
        figures.push_str(&format!("ratio {}, ", show_ratio(summary.ratio)));
    }
    let (volume, seconds, speed) = (&summary.volume, summary.seconds, format_size(summary.bytes_per_second));
    format!("imported {source} into volume {volume}: {figures}{seconds:.1} s, {speed}/s\n")
}

fn find(session: &Session, is_meant: impl Fn(&VolumeReport) -> bool) -> Outcome<Option<VolumeReport>> {
    Ok(volumes(session)?.into_iter().find(is_meant))
}

/// Waits until the other clients of a volume that this one has open are gone, at most
/// [`GOING_PATIENCE`]: the client of a command that has just ended soon is.
fn await_others_gone(session: &Session, name: &str, id: u64) -> Outcome {
    let give_up = Instant::now() + GOING_PATIENCE;
    loop {
        let Some(found) = find(session, |other| other.id == id)? else { return Ok(()) };
        let others = found.clients.saturating_sub(1);
        if others == 0 {
            return Ok(());
        }
        if Instant::now() >= give_up {
            let clients = words_of(others, others_of(found.client_names).into_iter());
            let message = format!("volume '{name}' is {clients}; disconnect them (or unmount) first");
            return Err(Error::new(ErrorKind::InUse, message).into());
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Returns the bytes of a volume that hold data, not counting data that only snapshots keep. `None`
/// if it was `interrupted`, or the allocation is unknown.
fn data_bytes(volume: &dyn VolumeIo, interrupted: &AtomicBool) -> Option<u64> {
    let (size_bytes, mut at, mut data_bytes) = (volume.size_bytes().ok()?, 0, 0);
    while at < size_bytes {
        let runs = volume.allocation(at, size_bytes - at, RUNS_MAX).ok()?;
        if runs.is_empty() || interrupted.load(Ordering::SeqCst) {
            return None;
        }
        for run in runs {
            at += run.length;
            data_bytes += if run.allocation == Allocation::Data { run.length } else { 0 };
        }
    }
    Some(data_bytes)
}

/// Fails for a source without a byte, such as a pipe whose writer has failed. Called before
/// anything is changed.
fn refuse_empty(source: &mut Source, volume: &str, interrupted: &AtomicBool) -> Outcome {
    let is_empty = match source.size_bytes() {
        Some(bytes) => bytes == 0,
        None => source.beginning(1, &|| !interrupted.load(Ordering::SeqCst))?.is_empty(),
    };
    stop_if(interrupted)?;
    if !is_empty {
        return Ok(());
    }
    let message = format!(
        "{} is empty: nothing was imported; 'shale create POOL {volume} --size SIZE' creates a volume without data",
        source.name()
    );
    Err(Error::new(ErrorKind::Invalid, message).into())
}

/// Returns the property that marks the volume from before the first byte until all is durable: a
/// killed import cannot undo its writes.
fn incomplete() -> (String, String) {
    (INCOMPLETE.to_owned(), "yes".to_owned())
}

/// The volume that receives the import.
struct Target {
    name: String,
    /// Its number, by which it is written, truncated and removed, even if it is renamed meanwhile
    /// and another volume gets its name.
    id: u64,
    created: bool,
    /// It was made for a stream, whose length determines its size.
    grows: bool,
    size_bytes: AtomicU64,
    /// Bytes processed, for the message of a failed import.
    done: AtomicU64,
}

impl Target {
    /// Opens the target of an import: of two imports that begin at the same instant, each sees the
    /// other.
    fn prepare(
        session: &Session,
        args: &ImportArgs,
        source: &Source,
        output: &Output,
    ) -> Outcome<(Self, Arc<dyn VolumeIo>)> {
        let target = |id, created, grows, size_bytes| Self {
            name: args.volume.clone(),
            id,
            created,
            grows,
            size_bytes: AtomicU64::new(size_bytes),
            done: AtomicU64::new(0),
        };
        if let Some(old) = find(session, |volume| volume.name == args.volume)? {
            if !args.overwrite {
                let message = format!("volume '{}' exists; overwrite it with --overwrite", args.volume);
                return Err(Error::new(ErrorKind::Exists, message).into());
            }
            let volume = session.volume(&args.volume, Some(old.id))?;
            await_others_gone(session, &args.volume, old.id)?;
            if source.size_bytes().is_some_and(|bytes| bytes > old.size_bytes) {
                return Err(too_small(&args.volume, old.size_bytes, source).into());
            }
            let target = target(old.id, false, false, old.size_bytes);
            let own = args.properties.iter().cloned().chain([incomplete()]);
            session.done(target.set(own.map(|(key, value)| (key, Some(value)))))?;
            return Ok((target, volume));
        }
        let data_bytes = source.size_bytes();
        let size_bytes = match (args.size, data_bytes) {
            (Some(wanted), _) => {
                let size_bytes = round_up_to_block(wanted)?;
                report_rounding(output, wanted, size_bytes);
                size_bytes
            }
            (None, Some(exact)) => exact,
            (None, None) => STREAM_BYTES_FIRST,
        };
        if data_bytes.is_some_and(|bytes| bytes > size_bytes) {
            return Err(too_small(&args.volume, size_bytes, source).into());
        }
        let mut properties: BTreeMap<_, _> = args.properties.iter().cloned().collect();
        if let Some((word, codec)) = rule_for(session, &properties, source, output)? {
            let (name, try_all) = (source.name(), "with -o compression=auto each unit is tried");
            output.note(&match codec {
                Codec::Zle | Codec::Off => {
                    format!(
                        "{name} is stored as it is (rule.{word}: such files are compressed already); \
                     {try_all}"
                    )
                }
                codec => format!("{name} is stored with {codec} (rule.{word}); {try_all}"),
            });
            properties.insert("compression".to_owned(), codec.to_string());
        }
        properties.extend([incomplete()]);
        let request = Request::Create { volume: args.volume.clone(), size_bytes, properties, parents: false };
        let id = noted(session.created(request)?, output);
        let target = target(id, true, args.size.is_none() && data_bytes.is_none(), size_bytes);
        let opened = session.volume(&args.volume, Some(id));
        let volume = opened.map_err(|error| target.clean_up(session, source.name(), error.into()))?;
        // If another client was quicker to open the volume, the volume belongs to that client.
        await_others_gone(session, &args.volume, id)?;
        Ok((target, volume))
    }

    fn copy(
        &self,
        session: &Session,
        volume: Arc<dyn VolumeIo>,
        source: &mut Source,
        interrupted: &AtomicBool,
        output: &Output,
    ) -> Outcome<Moved> {
        let grow = |needed: u64| self.grow(session, needed);
        let plan = Import {
            volume: &*volume,
            size_bytes: self.size_bytes.load(Ordering::SeqCst),
            grow: if self.grows { Some(&grow) } else { None },
            make_holes: !self.created,
            interrupted,
        };
        let progress = Progress::new(output, "import", source.size_bytes());
        let mut ratio = RatioSoFar::new(session, output.shows_progress(), self.created)?;
        let moved = transfer::import(&plan, source, &mut |done| {
            self.done.store(done, Ordering::SeqCst);
            progress.set(done);
            if let Some(text) = ratio.update() {
                progress.say(text);
            }
        })?;
        let end = moved.copied_bytes + moved.hole_bytes;
        if self.grows {
            let message = |error: Error| error.context("cannot truncate the volume to the size of the data");
            session.done(self.resize(end, true)).map_err(message)?;
            self.size_bytes.store(end, Ordering::SeqCst);
        }
        let size_bytes = self.size_bytes.load(Ordering::SeqCst);
        if !self.created && end < size_bytes {
            volume.discard(end, size_bytes - end)?;
        }
        progress.say("making it durable".to_owned());
        // The checkpoint includes a flush, and makes the figures of the summary exact.
        session.done(Request::Checkpoint)?;
        // Only now: a reader that does not see the mark finds all of the data.
        session.done(self.set([(INCOMPLETE.to_owned(), None)]))?;
        Ok(moved)
    }

    fn set(&self, changes: impl IntoIterator<Item = (String, Option<String>)>) -> Request {
        Request::Set {
            object: Some(Which::known(self.name.clone(), Some(self.id))),
            changes: changes.into_iter().collect(),
            if_match: None,
        }
    }

    fn resize(&self, size_bytes: u64, shrink: bool) -> Request {
        Request::Resize {
            object: Which::known(self.name.clone(), Some(self.id)),
            size_bytes,
            shrink,
            force: shrink,
            if_match: None,
        }
    }

    /// Doubles the volume until it holds `needed` bytes.
    fn grow(&self, session: &Session, needed: u64) -> surface::Result<u64> {
        let mut size_bytes = self.size_bytes.load(Ordering::SeqCst);
        while size_bytes < needed {
            if size_bytes >= OBJECT_BYTES_MAX {
                let most = format_size(OBJECT_BYTES_MAX);
                return Err(Error::new(ErrorKind::Invalid, format!("the data exceeds the largest volume, {most}")));
            }
            size_bytes = size_bytes.saturating_mul(2).min(OBJECT_BYTES_MAX);
        }
        session.done(self.resize(size_bytes, false))?;
        self.size_bytes.store(size_bytes, Ordering::SeqCst);
        Ok(size_bytes)
    }

    /// Returns the summary of a complete and durable import; figures that cannot be obtained are
    /// omitted.
    fn summary(
        &self,
        session: &Session,
        source: &str,
        moved: Moved,
        started: Instant,
        interrupted: &AtomicBool,
    ) -> TransferSummary {
        let figures = find(session, |volume| volume.id == self.id).ok().flatten();
        let own_bytes = if self.created {
            // All data of a new volume is its own, except if a schedule was quick: it need not be
            // scanned.
            figures.as_ref().map(|volume| volume.allocated_bytes)
        } else {
            session.volume(&self.name, Some(self.id)).ok().and_then(|volume| data_bytes(&*volume, interrupted))
        };
        let seconds = started.elapsed().as_secs_f64();
        let bytes = moved.copied_bytes + moved.hole_bytes;
        TransferSummary {
            volume: figures.as_ref().map_or_else(|| self.name.clone(), |volume| volume.name.clone()),
            source: Some(source.to_owned()),
            target: None,
            size_bytes: self.size_bytes.load(Ordering::SeqCst),
            copied_bytes: moved.copied_bytes,
            hole_bytes: moved.hole_bytes,
            allocated_bytes: own_bytes,
            with_snapshots: figures.as_ref().zip(own_bytes).map(|(volume, own)| volume.allocated_bytes > own),
            // Whether they belong to the volume alone is unknown if its own bytes are.
            stored_bytes: figures.as_ref().filter(|_| own_bytes.is_some()).map(|volume| volume.stored_bytes),
            ratio: figures.filter(|_| own_bytes.is_some()).and_then(|volume| volume.ratio),
            seconds,
            bytes_per_second: (bytes as f64 / seconds.max(1e-9)) as u64,
        }
    }

    /// Removes the volume if it was made for this import, and adds the progress and the remains to
    /// the failure.
    fn clean_up(&self, session: &Session, source: &str, failure: Failure) -> Failure {
        let done = format_size(self.done.load(Ordering::SeqCst));
        let is_gone = find(session, |volume| volume.id == self.id).is_ok_and(|found| found.is_none());
        let left = if is_gone {
            "nothing of it is left, because another command has destroyed the volume".to_owned()
        } else if self.created {
            match session.done(Request::Destroy {
                object: Which::known(self.name.clone(), Some(self.id)),
                recursive: false,
                force: false,
                if_match: None,
            }) {
                Ok(()) => "the new volume was removed".to_owned(),
                Err(error) => format!("the new volume could not be removed ({error})"),
            }
        } else {
            "the volume contains old and new data now, and is marked as incomplete".to_owned()
        };
        failure.context(format_args!("import of {source} into volume '{}' stopped after {done}; {left}", self.name))
    }
}

/// Returns the type of the imported file and the codec that a rule names for it, as for a file of a
/// share, if the pool says `auto` and the volume does not override it.
fn rule_for(
    session: &Session,
    own: &BTreeMap<String, String>,
    source: &Source,
    output: &Output,
) -> Outcome<Option<(String, Codec)>> {
    if own.contains_key("compression") {
        return Ok(None);
    }
    let set = match session.call(Request::Get { object: None })? {
        Reply::Properties(report) => report.properties,
        other => return Err(other.unexpected().into()),
    };
    let pool = set.into_iter().filter(|p| p.source != "default").map(|p| (p.key, p.value)).collect();
    let resolved = policy::resolve(&pool, own).map_err(|error| Error::new(ErrorKind::Invalid, error.to_string()))?;
    if resolved.settings.compression != Compression::Auto {
        return Ok(None);
    }
    let Ok(ruled) = resolved.of_file(source.name().as_bytes(), || Ok::<_, Infallible>(source.head(HEAD_BYTES)));
    let unit_bytes = resolved.settings.unit_blocks as usize * BLOCK_BYTES;
    let FileChoice::Codec(codec) = ruled.choice else { return Ok(None) };
    if ruled.yields_to_dictionaries() && wants_dictionary(&resolved.settings, unit_bytes) {
        return Ok(None);
    }
    // A user's own rule for a type is always followed.
    if ruled.is_default && !agrees(source, codec, unit_bytes, &resolved.settings) {
        let text = "do not match its name or its first bytes: codecs are chosen per unit, as with compression=auto";
        output.note(&format!("tested units of {} {text}", source.name()));
        return Ok(None);
    }
    Ok(Some((ruled.word, codec)))
}

/// Returns whether units from all over a file agree with the codec that a rule names for its type.
fn agrees(source: &Source, rule: Codec, unit_bytes: usize, settings: &Settings) -> bool {
    let (Some(file), Some(size_bytes)) = (source.file(), source.size_bytes()) else { return true };
    let mut units = Vec::new();
    for at in rule_units(size_bytes, unit_bytes as u64) {
        let mut unit = vec![0; unit_bytes];
        // Unreadable data is reported by the import itself; holes are not considered.
        if file.read_exact_at(&mut unit, at).is_ok() && !is_zero(&unit) {
            units.push(unit);
        }
    }
    rule_holds(rule, &units, settings.min_saving_permille)
}

fn too_small(volume: &str, size_bytes: u64, source: &Source) -> Error {
    let (has, needs) = (format_size(size_bytes), format_size(source.size_bytes().unwrap_or(0)));
    Error::new(ErrorKind::Invalid, format!("volume '{volume}' has {has}, {} needs {needs}", source.name()))
}

/// The ratio of all data stored since the import began. It includes other writers: accurate enough
/// for a progress bar.
struct RatioSoFar<'a> {
    session: &'a Session,
    shown: bool,
    /// The volume was empty, so that all of its data comes from the import; otherwise the bytes
    /// written are used, part of which are still in the write buffer.
    was_empty: bool,
    asked: Instant,
    before: StatusReport,
}

impl<'a> RatioSoFar<'a> {
    fn new(session: &'a Session, shown: bool, was_empty: bool) -> Outcome<Self> {
        Ok(Self { session, shown, was_empty, asked: Instant::now(), before: status(session)? })
    }

    fn update(&mut self) -> Option<String> {
        if !self.shown || self.asked.elapsed() < RATIO_EVERY {
            return None;
        }
        self.asked = Instant::now();
        // The ratio is optional: if it cannot be obtained, the import itself will report the
        // reason.
        let now = status(self.session).ok()?;
        let logical = if self.was_empty {
            now.allocated_bytes.saturating_sub(self.before.allocated_bytes)
        } else {
            now.written_bytes.saturating_sub(self.before.written_bytes)
        };
        let stored = now.fragment_bytes.saturating_sub(self.before.fragment_bytes);
        Some(format!("ratio {}", show_ratio(ratio(logical, stored))))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use surface::{Result, Run};

    use super::*;

    /// The figures were missing, but the words around them were not.
    #[test]
    fn figures_that_cannot_be_told_leave_no_words() {
        let summary = TransferSummary {
            volume: "v".to_owned(),
            source: None,
            target: None,
            size_bytes: 8 << 20,
            copied_bytes: 8 << 20,
            hole_bytes: 0,
            allocated_bytes: None,
            with_snapshots: None,
            stored_bytes: None,
            ratio: None,
            seconds: 2.0,
            bytes_per_second: 4 << 20,
        };
        assert_eq!(show(&summary, "f"), "imported f into volume v: 2.0 s, 4 MiB/s\n");
        let summary = TransferSummary {
            allocated_bytes: Some(8 << 20),
            stored_bytes: Some(4 << 20),
            ratio: Some(2.0),
            ..summary
        };
        assert_eq!(
            show(&summary, "f"),
            "imported f into volume v: 8 MiB of data, 4 MiB stored, ratio 2.00x, 2.0 s, 4 MiB/s\n"
        );
    }

    /// A volume of so many blocks, every other one with data, listed one at a time; from `fails_at`
    /// on the allocation is unknown.
    struct Striped {
        blocks: u64,
        fails_at: u64,
    }

    impl VolumeIo for Striped {
        fn size_bytes(&self) -> Result<u64> {
            Ok(self.blocks * BLOCK_BYTES as u64)
        }
        fn read(&self, _: u64, _: &mut [u8]) -> Result<()> {
            Err(Error::new(ErrorKind::Io, "nobody asks"))
        }
        fn write(&self, _: u64, _: Bytes) -> Result<()> {
            Err(Error::new(ErrorKind::Io, "nobody asks"))
        }
        fn discard(&self, _: u64, _: u64) -> Result<()> {
            Err(Error::new(ErrorKind::Io, "nobody asks"))
        }
        fn allocation(&self, offset: u64, _: u64, _: u32) -> Result<Vec<Run>> {
            let block = offset / BLOCK_BYTES as u64;
            if block >= self.fails_at {
                return Err(Error::new(ErrorKind::Io, "made to fail"));
            }
            let allocation = if block.is_multiple_of(2) { Allocation::Data } else { Allocation::Hole };
            Ok(vec![Run { length: BLOCK_BYTES as u64, allocation }])
        }
        fn flush(&self) -> Result<()> {
            Ok(())
        }
    }

    /// A complete import was reported as failed, and a signal was ignored.
    #[test]
    fn what_cannot_be_told_of_an_import_is_left_out() {
        let interrupted = AtomicBool::new(false);
        let bytes = |blocks, fails_at| data_bytes(&Striped { blocks, fails_at }, &interrupted);
        assert_eq!(bytes(9, 9), Some(5 * BLOCK_BYTES as u64));
        assert_eq!(bytes(9, 7), None);
        interrupted.store(true, Ordering::SeqCst);
        assert_eq!(bytes(u64::MAX / BLOCK_BYTES as u64, u64::MAX), None);
    }
}
