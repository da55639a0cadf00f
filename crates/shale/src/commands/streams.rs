//! `shale send` and `shale receive`.

use std::fs::File;
use std::io::{IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use format::{STREAM_HEAD_BYTES, StreamBegin, StreamChunk, StreamHead, StreamReader};
use serde::Serialize;
use surface::{Error, ErrorKind};
use units::format_size;

use super::forced;
use super::registered::{refuse_background, registered};
use super::volume::make_folders_of;
use super::{incomplete, stream_sets};
use crate::cli::{ReceiveArgs, SendArgs};
use crate::output::Output;
use crate::progress::Progress;
use copy::transfer;
use host::Termination;
use operations::names;
use operations::{Failure, Outcome, path_error, stop_if};
use operations::{ReceiveWish, Received, SendWish, Sending};
use operations::{Reply, Request};
use report::JobKind;
use report::ReceiveLine;
use server::pool_dir::refuse_part_of_pool;
use server::session::Session;
use server::stream_io::StreamSource;

#[derive(Debug, Serialize)]
struct SendSummary {
    volume: String,
    snapshot: String,
    from: Option<String>,
    image: Option<String>,
    target: String,
    stream_bytes: u64,
    payload_bytes: u64,
    seconds: f64,
    bytes_per_second: u64,
}

#[derive(Debug, Serialize)]
struct ReceiveSummary {
    #[serde(flatten)]
    received: Received,
    seconds: f64,
    bytes_per_second: u64,
}

/// Target of a stream.
pub(super) struct Target {
    file: File,
    name: String,
    /// Set if it was made for this stream: then it is removed on failure.
    made: Option<std::path::PathBuf>,
}

impl Target {
    pub(super) fn open(path: Option<&Path>, force: bool) -> Outcome<Self> {
        let Some(path) = path else {
            if std::io::stdout().is_terminal() {
                let text = "a stream is binary: send it to a file (-o FILE, > FILE) or to a command (| ...)";
                return Err(Error::new(ErrorKind::Invalid, text).into());
            }
            let file = host::stdout().map_err(|error| Error::from_io("cannot use stdout", error))?;
            return Ok(Self { file, name: "stdout".to_owned(), made: None });
        };
        let found = std::fs::metadata(path).ok();
        let made = found.is_none().then(|| path.to_owned());
        let file = match found.filter(|_| force) {
            Some(found) => {
                let is_device = found.file_type().is_block_device();
                if is_device {
                    refuse_part_of_pool(path)?;
                }
                // O_EXCL refuses a device that is mounted, or that holds an open pool.
                transfer::open_found(path, &found, if is_device { libc::O_EXCL } else { 0 })?
            }
            None => File::create_new(path).map_err(|error| match error.kind() {
                std::io::ErrorKind::AlreadyExists => {
                    Error::new(ErrorKind::Exists, format!("{} exists; overwrite it with --force", path.display()))
                }
                _ => path_error("cannot write", path, error),
            })?,
        };
        // Opening did not truncate it: it may be another program's data.
        if file.metadata().is_ok_and(|metadata| metadata.is_file()) {
            transfer::empty(&file, path, refuse_part_of_pool)?;
        }
        Ok(Self { file, name: path.display().to_string(), made })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn put(&mut self, chunk: &[u8]) -> Outcome {
        self.file.write_all(chunk).map_err(|error| match error.kind() {
            std::io::ErrorKind::BrokenPipe => Error::new(
                ErrorKind::Io,
                "the receiver ended before the stream did, with its own message; if it keeps a part of the stream, \
                 'shale status' there shows the token for 'shale send --resume'",
            )
            .into(),
            _ => Failure::Error(Error::from_io(format!("cannot write to {}", self.name), error)),
        })
    }

    pub(super) fn finish(&self) -> Outcome {
        match self.file.sync_all() {
            // Pipes have nothing to sync.
            Err(error) if error.kind() != std::io::ErrorKind::InvalidInput => {
                Err(Error::from_io(format!("cannot sync {}", self.name), error).into())
            }
            _ => Ok(()),
        }
    }

    pub(super) fn abandon(&self) {
        if let Some(path) = &self.made {
            drop(std::fs::remove_file(path));
        }
    }
}

/// Sends a snapshot.
pub fn send(args: SendArgs, output: &Output) -> Outcome {
    refuse_background(args.background, JobKind::Send)?;
    let signals = Termination::block().map_err(|error| Error::from_io("cannot block signals", error))?;
    let flag = signals.flag().map_err(|error| Error::from_io("cannot watch for signals", error))?;
    if args.replicate.is_some() || args.all_from.is_some() {
        return stream_sets::send(&args, &flag, output);
    }
    if args.resume.is_some() && (args.from.is_some() || args.thin) {
        let text = "a resume token includes the base: omit --from and --thin, except with -R";
        return Err(Error::new(ErrorKind::Invalid, text).into());
    }
    let to_stdout = args.output.is_none();
    let started = Instant::now();
    let title = args.snapshot.clone();
    let work = |session: &Session| -> Outcome<SendSummary> {
        let wish = SendWish { snapshot: args.snapshot, from: args.from, resume: args.resume, thin: args.thin };
        // Before the target is opened: with --force an old stream would be gone by the time the
        // pool reports that there is no such snapshot.
        let mut source = session.send(&wish)?;
        let about = source.about().clone();
        incomplete::warn_of(&format!("{}@{}", about.volume, about.snapshot), session, output);
        let mut target = Target::open(args.output.as_deref(), args.force)?;
        let sent = copy_out(&mut *source, &about, &mut target, &flag, output);
        if sent.is_err() {
            target.abandon();
        }
        let (stream_bytes, payload_bytes) = sent?;
        let seconds = started.elapsed().as_secs_f64();
        Ok(SendSummary {
            volume: about.volume,
            snapshot: about.snapshot,
            from: about.from,
            image: about.image,
            target: target.name,
            stream_bytes,
            payload_bytes,
            seconds,
            bytes_per_second: (stream_bytes as f64 / seconds.max(1e-9)) as u64,
        })
    };
    let summary = Session::with(&args.pool, &args.access, |session| {
        registered(session, (JobKind::Send, title.as_deref()), &flag, output, || work(session))
    })?;
    let text = || {
        let from = summary.from.as_ref().map_or_else(String::new, |from| format!(" since {from}"));
        let on = hanging(summary.image.as_deref());
        format!(
            "sent {}@{}{from}{on} to {}: {}, {:.1} s, {}/s",
            summary.volume,
            summary.snapshot,
            summary.target,
            format_size(summary.stream_bytes),
            summary.seconds,
            format_size(summary.bytes_per_second)
        )
    };
    if to_stdout {
        // Stdout carries the stream.
        output.note(&text());
    } else {
        output.done(&summary, || text() + "\n");
    }
    Ok(())
}

/// Describes the dependency of a volume on an image.
pub(super) fn hanging(image: Option<&str>) -> String {
    image.map_or_else(String::new, |image| format!(" (on the image {image})"))
}

/// Copies the stream; returns its bytes, and those of its payload.
fn copy_out(
    source: &mut dyn StreamSource,
    about: &Sending,
    target: &mut Target,
    flag: &AtomicBool,
    output: &Output,
) -> Outcome<(u64, u64)> {
    let progress = Progress::new(output, "send", Some(about.expected_bytes));
    let (mut stream_bytes, mut payload_bytes) = (0, 0);
    let mut reader = StreamReader::default();
    while let Some(chunk) = next_chunk(&mut *source, flag)? {
        target.put(&chunk)?;
        stream_bytes += chunk.len() as u64;
        payload_bytes += payload_of(&mut reader, &chunk).unwrap_or(0);
        progress.set(payload_bytes);
    }
    progress.say("making it durable".to_owned());
    target.finish()?;
    Ok((stream_bytes, payload_bytes))
}

/// Returns the next chunk of a stream, unless a signal or a cancellation comes first.
pub(super) fn next_chunk(source: &mut dyn StreamSource, flag: &AtomicBool) -> Outcome<Option<Vec<u8>>> {
    let next = source.next_chunk(&|| flag.load(Ordering::SeqCst));
    if !matches!(next, Ok(None)) {
        stop_if(flag)?;
    }
    Ok(next?)
}

/// Returns the bytes of payload in a chunk.
pub(super) fn payload_of(reader: &mut StreamReader, chunk: &[u8]) -> Option<u64> {
    let (head, body) = chunk.split_first_chunk::<STREAM_HEAD_BYTES>()?;
    match reader.take(&StreamHead::decode(head).ok()?, body).ok()? {
        StreamChunk::Data { payloads, .. } => Some((body.len() - payloads) as u64),
        _ => None,
    }
}

/// Source of a stream.
pub(super) struct Source<'a> {
    file: File,
    name: String,
    /// Bytes read so far.
    offset: u64,
    flag: &'a AtomicBool,
}

impl<'a> Source<'a> {
    fn open(path: Option<&Path>, flag: &'a AtomicBool) -> Outcome<Self> {
        let (file, name) = match path.filter(|path| *path != Path::new("-")) {
            Some(path) => {
                let file = File::open(path).map_err(|error| path_error("cannot open", path, error))?;
                (file, path.display().to_string())
            }
            None => {
                let stdin = std::io::stdin().as_fd().try_clone_to_owned();
                (File::from(stdin.map_err(|error| Error::from_io("cannot use stdin", error))?), "stdin".to_owned())
            }
        };
        Ok(Self { file, name, offset: 0, flag })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the bytes read so far.
    pub(super) const fn offset(&self) -> u64 {
        self.offset
    }

    /// Fills `buf`, up to the end of the source.
    fn fill(&mut self, buf: &mut [u8]) -> Outcome<usize> {
        let mut done = 0;
        while done < buf.len() {
            stop_if(self.flag)?;
            let failed = |error| Error::from_io(format!("cannot read {}", self.name), error);
            if !host::readable(&self.file).map_err(failed)? {
                continue;
            }
            match self.file.read(&mut buf[done..]) {
                Ok(0) => break,
                Ok(bytes) => done += bytes,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(error).into()),
            }
        }
        self.offset += done as u64;
        Ok(done)
    }

    /// Returns the next chunk; `None` at the end.
    pub(super) fn chunk(&mut self) -> Outcome<Option<Vec<u8>>> {
        let at = self.offset;
        let mut head = [0; STREAM_HEAD_BYTES];
        match self.fill(&mut head)? {
            0 => return Ok(None),
            STREAM_HEAD_BYTES => {}
            // Too short for a head: it may not be a stream at all.
            short if at == 0 && !b"SHSC".starts_with(&head[..short.min(4)]) => return Err(no_stream(&self.name)),
            _ => return Err(self.cut_off()),
        }
        let decoded = StreamHead::decode(&head).map_err(|error| {
            if at == 0 {
                return no_stream(&self.name);
            }
            let text = format!("{} is damaged at byte {at}", self.name);
            Failure::Error(Error::with_source(ErrorKind::Corrupt, text, error))
        })?;
        let mut chunk = head.to_vec();
        chunk.resize(STREAM_HEAD_BYTES + decoded.body_bytes(), 0);
        if self.fill(&mut chunk[STREAM_HEAD_BYTES..])? < decoded.body_bytes() {
            return Err(self.cut_off());
        }
        Ok(Some(chunk))
    }

    /// Warns about data after the end.
    fn check_over(&mut self, output: &Output) -> Outcome {
        let mut more = [0; 1];
        if self.fill(&mut more)? > 0 {
            output.warn(&format!("{} continues after the end of the stream; the rest was ignored", self.name));
        }
        Ok(())
    }

    fn cut_off(&self) -> Failure {
        let text = format!("{} ends at byte {}, in the middle of a chunk", self.name, self.offset);
        Error::new(ErrorKind::Io, text).into()
    }
}

fn no_stream(name: &str) -> Failure {
    Error::new(ErrorKind::Invalid, format!("{name} is not a stream of 'shale send': it begins differently")).into()
}

/// Receives a stream.
pub fn receive(args: ReceiveArgs, output: &Output) -> Outcome {
    refuse_background(args.background, JobKind::Receive)?;
    let signals = Termination::block().map_err(|error| Error::from_io("cannot block signals", error))?;
    let flag = signals.flag().map_err(|error| Error::from_io("cannot watch for signals", error))?;
    let mut source = Source::open(args.input.as_deref(), &flag)?;
    let started = Instant::now();
    let mut work = |session: &Session| -> Outcome {
        let Some(first) = source.chunk()? else {
            let text = format!("{} is empty: the sender of the stream has failed, with its own message", source.name);
            return Err(Error::new(ErrorKind::Io, text).into());
        };
        let (head, _) = stream_sets::parts(&first)?;
        if head.is_set_begin() {
            stream_sets::receive(session, &args, &first, &mut source, output, started)?;
            source.check_over(output)
        } else {
            one(session, &args, first, &mut source, output, started)
        }
    };
    Session::with(&args.pool, &args.access, |session| {
        registered(session, (JobKind::Receive, args.volume.as_deref()), &flag, output, || work(session))
    })
}

/// Receives a single stream whose first chunk has been read.
fn one(
    session: &Session,
    args: &ReceiveArgs,
    first: Vec<u8>,
    source: &mut Source<'_>,
    output: &Output,
    started: Instant,
) -> Outcome {
    let own = || {
        let begin = stream_sets::begin_of(&first)?;
        let name = format!("{}{}", args.prefix.as_deref().unwrap_or_default(), begin.volume);
        names::volume_name(&name).map_err(|why| {
            let text = format!("'{name}', the name in the stream: {why}");
            Failure::Error(Error::new(ErrorKind::Invalid, text))
        })
    };
    let volume = args.volume.clone().map_or_else(own, Ok)?;
    if args.replicate {
        make_folders_of(session, &volume)?;
    }
    let properties = args.properties.iter().cloned().collect();
    let wish = ReceiveWish { volume: volume.clone(), properties, force: args.force };
    if args.force {
        forced::tell(session, &Request::Receive(wish.clone()), output)?;
    }
    let begin = stream_sets::begin_of(&first).ok();
    let received = copy_in(session, wish, first, source, output)
        .map_err(|failure| with_token(session, &volume, begin.as_ref(), failure))?;
    let seconds = started.elapsed().as_secs_f64();
    let bytes_per_second = (received.stream_bytes as f64 / seconds.max(1e-9)) as u64;
    let summary = ReceiveSummary { received, seconds, bytes_per_second };
    output.done(&summary, || {
        let Received { volume, snapshot, stream_bytes, image, .. } = &summary.received;
        format!(
            "received {volume}@{snapshot}{}: {}, {seconds:.1} s, {}/s\n",
            hanging(image.as_deref()),
            format_size(*stream_bytes),
            format_size(bytes_per_second)
        )
    });
    Ok(())
}

fn copy_in(
    session: &Session,
    wish: ReceiveWish,
    first: Vec<u8>,
    source: &mut Source<'_>,
    output: &Output,
) -> Outcome<Received> {
    let mut sink = session.receive(wish)?;
    let progress = Progress::new(output, "receive", expected(&first));
    let mut next = Some(first);
    while let Some(chunk) = next {
        if let Some(report) = sink.put(&chunk)? {
            source.check_over(output)?;
            return Ok(report);
        }
        progress.set(source.offset);
        next = source.chunk()?;
    }
    let text = format!("{} ends at byte {}, before the stream's end", source.name, source.offset);
    Err(Error::new(ErrorKind::Io, text).into())
}

/// Returns the size that the first chunk announces.
fn expected(chunk: &[u8]) -> Option<u64> {
    let (head, body) = chunk.split_first_chunk::<STREAM_HEAD_BYTES>()?;
    match StreamReader::default().take(&StreamHead::decode(head).ok()?, body).ok()? {
        StreamChunk::Begin(begin) if begin.start.0 == 0 => Some(begin.expected_bytes),
        _ => None,
    }
}

/// Returns the receives that are running or were interrupted.
pub fn receives(session: &Session) -> Outcome<Vec<ReceiveLine>> {
    match session.call(Request::Receives)? {
        Reply::Receives(receives) => Ok(receives),
        other => Err(other.unexpected().into()),
    }
}

/// Adds the received part, and the way to continue, to a failure. Another receive may have
/// completed it, or may still do so.
fn with_token(session: &Session, volume: &str, begin: Option<&StreamBegin>, failure: Failure) -> Failure {
    let Ok(receives) = receives(session) else { return failure };
    let Some(left) = receives.into_iter().find(|left| left.volume == volume) else {
        let Some(begin) = begin else { return failure };
        let place = Request::Place { volume: volume.to_owned(), to: begin.to.0, from: begin.from.map(|from| from.0) };
        return match session.call(place) {
            Ok(Reply::Place(place)) if place.has_it => {
                let title = format!("{volume}@{}", begin.snapshot);
                if matches!(&failure, Failure::Error(error) if error.kind() == ErrorKind::Exists) {
                    let text = format!("the pool has '{title}' already: nothing is left to do");
                    return Error::new(ErrorKind::Exists, text).into();
                }
                failure.with(&format!("; another receive has completed '{title}', so nothing is left to do"))
            }
            _ => failure,
        };
    };
    let come = format_size(left.received_bytes);
    let title = if left.is_new { left.volume.clone() } else { format!("{}@{}", left.volume, left.snapshot) };
    let rest = format!(
        "; {come} of '{}@{}' were received and kept: resume with 'shale send POOL --resume {}', or delete them with \
         'shale destroy --partial POOL {title}', which keeps snapshots completed by another receive",
        left.volume, left.snapshot, left.token
    );
    failure.with(&rest)
}
