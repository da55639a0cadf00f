//! `shale send` and `shale receive` of several snapshots in one go: see `stream_plan` for the
//! content of a set, and `format` for its beginning and end. Each stream of a set is sent and
//! received separately: the pool, and its server, know nothing of sets.

use std::sync::atomic::AtomicBool;
use std::time::Instant;

use format::{STREAM_HEAD_BYTES, StreamBegin, StreamChunk, StreamHead, StreamReader, StreamSetBegin, StreamSetEnd};
use serde::Serialize;
use surface::{Error, ErrorKind};
use units::format_size;

use super::registered::registered;
use super::streams::{Source, Target, hanging, next_chunk, payload_of, receives};
use super::volume::make_folders_of;
use crate::cli::{ReceiveArgs, SendArgs};
use crate::output::Output;
use crate::progress::Progress;
use operations::names;
use operations::{Failure, Outcome};
use operations::{Place, ReceiveWish, Received};
use operations::{Reply, Request};
use operations::{SetPlan, SetWish};
use report::JobKind;
use server::session::Session;

/// Properties of a volume in a stream that a clone does not get from it: see the engine's
/// `receive`; `incomplete` belongs to the snapshot.
const LEFT_BEHIND: [&str; 4] = ["reservation", "snapshots", "keep", "incomplete"];

#[derive(Debug, Serialize)]
struct SendSummary {
    snapshots: Vec<String>,
    skipped: Vec<String>,
    target: String,
    stream_bytes: u64,
    payload_bytes: u64,
    seconds: f64,
    bytes_per_second: u64,
}

/// Sends a set.
pub(super) fn send(args: &SendArgs, flag: &AtomicBool, output: &Output) -> Outcome {
    let started = Instant::now();
    let wish = SetWish {
        of: args.replicate.clone().or_else(|| args.snapshot.clone()).unwrap_or_default(),
        from: args.all_from.clone().or_else(|| args.from.clone()),
        all: args.all_from.is_some(),
        below: args.replicate.is_some(),
        resume: args.resume.clone(),
        thin: args.thin,
    };
    let title = args.replicate.clone().or_else(|| args.snapshot.clone());
    let work = |session: &Session| -> Outcome<SendSummary> {
        let plan = match session.call(Request::PlanSend(wish))? {
            Reply::Plan(plan) => plan,
            other => return Err(other.unexpected().into()),
        };
        for volume in &plan.skipped {
            output.warn(&format!("volume '{volume}' has no snapshot in this set, and is skipped"));
        }
        let mut target = Target::open(args.output.as_deref(), args.force)?;
        let sent = copy_set(session, &plan, &mut target, flag, output);
        if sent.is_err() {
            target.abandon();
        }
        let (stream_bytes, payload_bytes) = sent?;
        let seconds = started.elapsed().as_secs_f64();
        Ok(SendSummary {
            snapshots: plan.streams.into_iter().filter_map(|stream| stream.snapshot).collect(),
            skipped: plan.skipped,
            target: target.name().to_owned(),
            stream_bytes,
            payload_bytes,
            seconds,
            bytes_per_second: (stream_bytes as f64 / seconds.max(1e-9)) as u64,
        })
    };
    let summary = Session::with(&args.pool, &args.access, |session| {
        registered(session, (JobKind::Send, title.as_deref()), flag, output, || work(session))
    })?;
    let text = || {
        format!(
            "sent {} snapshots to {}: {}, {:.1} s, {}/s",
            summary.snapshots.len(),
            summary.target,
            format_size(summary.stream_bytes),
            summary.seconds,
            format_size(summary.bytes_per_second)
        )
    };
    if args.output.is_none() {
        // Stdout carries the streams.
        output.note(&text());
    } else {
        output.done(&summary, || text() + "\n");
    }
    Ok(())
}

/// Copies the streams; returns the bytes of the set, and of its payload.
fn copy_set(
    session: &Session,
    plan: &SetPlan,
    target: &mut Target,
    flag: &AtomicBool,
    output: &Output,
) -> Outcome<(u64, u64)> {
    let count = u32::try_from(plan.streams.len()).unwrap_or(u32::MAX);
    let begin = StreamSetBegin { streams: count, volumes: plan.volumes, root: plan.root.clone() }.encode();
    target.put(&begin)?;
    let progress = Progress::new(output, "send", None);
    let (mut bytes, mut payload_bytes) = (0, 0);
    for (index, wish) in plan.streams.iter().enumerate() {
        let mut source = session.send(wish)?;
        let about = source.about().clone();
        progress.say(format!("{}@{}, {} of {count}", about.volume, about.snapshot, index + 1));
        let mut reader = StreamReader::default();
        while let Some(chunk) = next_chunk(&mut *source, flag)? {
            target.put(&chunk)?;
            bytes += chunk.len() as u64;
            payload_bytes += payload_of(&mut reader, &chunk).unwrap_or(0);
            progress.set(payload_bytes);
        }
    }
    let before = begin.len() as u64 + bytes;
    let end = StreamSetEnd { streams: count, bytes }.encode(before);
    target.put(&end)?;
    progress.say("making it durable".to_owned());
    target.finish()?;
    Ok((before + end.len() as u64, payload_bytes))
}

#[derive(Debug, Serialize)]
struct ReceiveSummary {
    received: Vec<Received>,
    passed_over: Vec<String>,
    stream_bytes: u64,
    seconds: f64,
    bytes_per_second: u64,
}

/// A set that is being received.
struct Incoming<'a, 'b> {
    session: &'a Session,
    args: &'a ReceiveArgs,
    source: &'a mut Source<'b>,
    output: &'a Output,
    /// The folder or share that was sent, followed by a `/`.
    root: String,
    received: Vec<Received>,
    passed_over: Vec<String>,
}

fn damaged(name: &str, error: format::FormatError) -> Failure {
    Error::with_source(ErrorKind::Corrupt, format!("{name} cannot be received"), error).into()
}

/// Splits a chunk, which must be valid, into head and body.
pub(super) fn parts(chunk: &[u8]) -> Outcome<(StreamHead, &[u8])> {
    let cut_off = || Error::new(ErrorKind::Corrupt, "a chunk of a stream is truncated");
    let (head, body) = chunk.split_first_chunk::<STREAM_HEAD_BYTES>().ok_or_else(cut_off)?;
    Ok((StreamHead::decode(head).map_err(|error| damaged("the stream", error))?, body))
}

/// Parses the beginning of a stream.
pub(super) fn begin_of(chunk: &[u8]) -> Outcome<StreamBegin> {
    let (head, body) = parts(chunk)?;
    match StreamReader::default().take(&head, body).map_err(|error| damaged("the stream", error))? {
        StreamChunk::Begin(begin) => Ok(*begin),
        _ => Err(Error::new(ErrorKind::Corrupt, "the stream has no beginning").into()),
    }
}

/// Receives a set whose first chunk has been read.
pub(super) fn receive(
    session: &Session,
    args: &ReceiveArgs,
    first: &[u8],
    source: &mut Source<'_>,
    output: &Output,
    started: Instant,
) -> Outcome {
    let (head, body) = parts(first)?;
    let set = StreamSetBegin::decode(&head, body).map_err(|error| damaged(source.name(), error))?;
    if set.volumes > 1 && !args.replicate && set.root.is_empty() {
        let text = format!(
            "{} has snapshots of {} volumes: receive them under their own names, with -R (and --prefix)",
            source.name(),
            set.volumes
        );
        return Err(Error::new(ErrorKind::Invalid, text).into());
    }
    let root = set.root;
    let mut incoming = Incoming { session, args, source, output, root, received: Vec::new(), passed_over: Vec::new() };
    incoming.streams(set.streams, first.len() as u64)?;
    let Incoming { received, passed_over, .. } = incoming;
    let seconds = started.elapsed().as_secs_f64();
    let stream_bytes = source.offset();
    let bytes_per_second = (stream_bytes as f64 / seconds.max(1e-9)) as u64;
    let summary = ReceiveSummary { received, passed_over, stream_bytes, seconds, bytes_per_second };
    output.done(&summary, || {
        let mut text = String::new();
        for Received { volume, snapshot, stream_bytes, image, .. } in &summary.received {
            text +=
                &format!("received {volume}@{snapshot}{}: {}\n", hanging(image.as_deref()), format_size(*stream_bytes));
        }
        let passed = match summary.passed_over.len() {
            0 => String::new(),
            count => format!(" ({count} already present)"),
        };
        text + &format!(
            "{} snapshots{passed}: {}, {seconds:.1} s, {}/s\n",
            summary.received.len(),
            format_size(stream_bytes),
            format_size(bytes_per_second)
        )
    });
    Ok(())
}

impl Incoming<'_, '_> {
    fn streams(&mut self, expected: u32, head_bytes: u64) -> Outcome {
        let progress = Progress::new(self.output, "receive", None);
        loop {
            let before = self.source.offset();
            let Some(chunk) = self.source.chunk()? else { return Err(self.broken_off(expected)) };
            let (head, body) = parts(&chunk)?;
            if head.is_set_end() {
                let end =
                    StreamSetEnd::decode(&head, body, before).map_err(|error| damaged(self.source.name(), error))?;
                let count = self.received.len() + self.passed_over.len();
                if end.streams != expected || count != expected as usize || end.bytes != before - head_bytes {
                    let text =
                        format!("the set announced {} streams, {count} of {expected} were received", end.streams);
                    return Err(Error::new(ErrorKind::Corrupt, text).into());
                }
                return Ok(());
            }
            let begin = begin_of(&chunk)?;
            let volume = self.name_of(&begin)?;
            progress.say(format!("{volume}@{}, {} of {expected}", begin.snapshot, self.count() + 1));
            progress.set(self.source.offset());
            self.stream(&begin, &volume, chunk, expected)?;
        }
    }

    fn count(&self) -> usize {
        self.received.len() + self.passed_over.len()
    }

    /// Returns whether volumes get the names in the stream.
    fn is_of_many(&self) -> bool {
        self.args.replicate || !self.root.is_empty()
    }

    /// Returns the name of the volume that receives a stream.
    fn name_of(&self, begin: &StreamBegin) -> Outcome<String> {
        let own = format!("{}{}", self.args.prefix.as_deref().unwrap_or_default(), begin.volume);
        let name = match self.args.volume.clone().filter(|_| !self.args.replicate) {
            None => own,
            Some(name) if self.root.is_empty() => name,
            // The share that was sent with those in it.
            Some(name) if self.root.strip_suffix('/') == Some(&begin.volume) => name,
            // Into a folder of that name.
            Some(folder) => format!("{folder}/{}", begin.volume.strip_prefix(&self.root).unwrap_or(&begin.volume)),
        };
        match names::volume_name(&name) {
            Ok(name) => {
                if self.is_of_many() {
                    make_folders_of(self.session, &name)?;
                }
                Ok(name)
            }
            Err(why) => Err(Error::new(ErrorKind::Invalid, format!("'{name}', the name in the stream: {why}")).into()),
        }
    }

    /// Receives one stream, or skips it.
    fn stream(&mut self, begin: &StreamBegin, volume: &str, first: Vec<u8>, expected: u32) -> Outcome {
        let request = Request::Place { volume: volume.to_owned(), to: begin.to.0, from: begin.from.map(|from| from.0) };
        let place = match self.session.call(request)? {
            Reply::Place(place) => place,
            other => return Err(other.unexpected().into()),
        };
        if place.has_it {
            self.pass_over(&first, expected)?;
            self.passed_over.push(format!("{volume}@{}", begin.snapshot));
            return Ok(());
        }
        self.make_clone(begin, volume, &place)?;
        let wish = ReceiveWish {
            volume: volume.to_owned(),
            properties: self.args.properties.iter().cloned().collect(),
            force: self.args.force,
        };
        let taken = self.take(wish, first, expected);
        let report = taken.map_err(|failure| self.with_way_on(volume, failure))?;
        self.received.push(report);
        Ok(())
    }

    /// Makes a clone of its origin, if that exists here.
    fn make_clone(&self, begin: &StreamBegin, volume: &str, place: &Place) -> Outcome {
        // Under a name from the user, a difference for a missing volume is a mistake, which the
        // pool reports.
        if place.exists || begin.from.is_none() || !self.is_of_many() {
            return Ok(());
        }
        let Some(base) = &place.base else {
            let text = format!(
                "the stream of '{}@{}' is a difference from '{}', which this pool does not have: send everything",
                begin.volume, begin.snapshot, begin.parent
            );
            return Err(Error::new(ErrorKind::Conflict, text).into());
        };
        let mut properties = begin.properties.clone();
        properties.retain(|key, _| !LEFT_BEHIND.contains(&key.as_str()));
        properties.extend(self.args.properties.iter().cloned());
        let request = Request::Clone { object: base.clone().into(), volume: volume.to_owned(), properties };
        self.session.created(request)?;
        Ok(())
    }

    fn take(&mut self, wish: ReceiveWish, first: Vec<u8>, expected: u32) -> Outcome<Received> {
        let mut sink = self.session.receive(wish)?;
        let mut chunk = first;
        loop {
            if let Some(report) = sink.put(&chunk)? {
                return Ok(report);
            }
            chunk = self.source.chunk()?.ok_or_else(|| self.broken_off(expected))?;
        }
    }

    /// Reads a stream to its end, and verifies it.
    fn pass_over(&mut self, first: &[u8], expected: u32) -> Outcome {
        let mut reader = StreamReader::default();
        let (head, body) = parts(first)?;
        reader.take(&head, body).map_err(|error| damaged(self.source.name(), error))?;
        while !reader.is_over() {
            let chunk = self.source.chunk()?.ok_or_else(|| self.broken_off(expected))?;
            let (head, body) = parts(&chunk)?;
            reader.take(&head, body).map_err(|error| damaged(self.source.name(), error))?;
        }
        Ok(())
    }

    fn broken_off(&self, expected: u32) -> Failure {
        let text = format!(
            "{} ends at byte {}, after {} of {expected} streams",
            self.source.name(),
            self.source.offset(),
            self.count()
        );
        Error::new(ErrorKind::Io, text).into()
    }

    /// Adds the received part, and the way to continue, to a failure.
    fn with_way_on(&self, volume: &str, failure: Failure) -> Failure {
        let left = receives(self.session).ok().and_then(|all| all.into_iter().find(|left| left.volume == volume));
        let whole = self.count();
        let way = match left {
            Some(left) => format!(
                "; {whole} snapshots of the set are complete, and {} of '{}@{}': resume with the same 'shale send', \
                 adding --resume {}",
                format_size(left.received_bytes),
                left.volume,
                left.snapshot,
                left.token
            ),
            None => format!("; {whole} snapshots of the set are complete: they are skipped when sent again"),
        };
        failure.with(&way)
    }
}
