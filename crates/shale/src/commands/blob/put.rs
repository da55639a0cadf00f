//! `shale blob put`, `append` and `write`: uploads a file as a version.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use ::blob::{Blob, Committed, Connection, Location, Tally, UploadOptions, check_message};
use serde::Serialize;
use surface::{Error, ErrorKind};
use units::format_size;

use super::source::{Source, chunks};
use super::{Context, LOOK_EVERY, encoding, failure, journal};
use crate::cli::BlobUpload;
use crate::progress::Progress;
use operations::{Failure, Outcome, path_error};

/// Minimum packs of a resumable upload: a shorter one has no pack that is finished early.
const RESUMABLE_PACKS: u64 = 2;
/// Minimum and maximum size of a pack in the library.
const PACK_BYTES: std::ops::RangeInclusive<u32> = 4 << 20..=64 << 20;

/// The outcome, for scripts.
#[derive(Debug, Serialize)]
struct Summary {
    blob: String,
    version: u64,
    offset: u64,
    bytes: u64,
    stored_bytes: u64,
    ratio: Option<f64>,
    resumed_bytes: u64,
    uploaded_objects: u64,
    requests: u64,
    seconds: f64,
    bytes_per_second: u64,
}

/// Where the bytes are written.
pub(super) enum How {
    Put,
    Append,
    Write(u64),
}

/// Uploads a file.
pub(super) async fn run(
    location: &Location,
    file: &Path,
    upload: BlobUpload,
    how: How,
    context: &Context<'_>,
) -> Outcome {
    let started = Instant::now();
    if *location.at() != ::blob::At::Newest {
        return Err(Error::new(ErrorKind::Invalid, "a version never changes: remove `@VERSION` from the URL").into());
    }
    if !PACK_BYTES.contains(&upload.pack) {
        return Err(Error::new(ErrorKind::Invalid, "--pack must be from 4M to 64M").into());
    }
    check_message(&upload.message).map_err(failure)?;
    let properties: BTreeMap<String, String> = upload.properties.into_iter().collect();
    let encoding = encoding(&properties)?;
    let opened = if file == Path::new("-") {
        None
    } else {
        Some(std::fs::File::open(file).map_err(|error| path_error("cannot open", file, error))?)
    };
    let about = opened.as_ref().map(std::fs::File::metadata).transpose();
    let about = about.map_err(|error| path_error("cannot read", file, error))?;
    let total = about.filter(std::fs::Metadata::is_file).map(|about| about.len());
    let tally = Arc::new(Tally::default());
    let name =
        if file == Path::new("-") { location.name() } else { file.file_name().and_then(|n| n.to_str()).unwrap_or("") };
    let described = format!("{properties:?} {}", upload.message);
    let mut options = UploadOptions {
        encoding,
        name: name.to_owned(),
        pack_bytes: upload.pack,
        memory_bytes: upload.memory,
        tally: tally.clone(),
        ..UploadOptions::default()
    };
    let connection = context.connect_to_write(location).await?;
    let blob = context.until_interrupted(Blob::open_or_create(&connection, location.key())).await?;
    let word = match how {
        How::Put => "put",
        How::Append => "append",
        How::Write(_) => "write",
    };
    let mut resumable = None;
    if let (Some(opened), Some(total)) = (&opened, total)
        && total >= RESUMABLE_PACKS * u64::from(upload.pack)
        && let Ok(path) = file.canonicalize()
    {
        let place = if let How::Write(at) = how { at.to_string() } else { String::new() };
        let named =
            [&location.store_name(), &location.to_string(), &path.display().to_string(), word, &place, &described];
        resumable = journal::open(&blob, named.join("\n"), opened).await?;
    }
    let from = resumable.as_ref().map_or(0, |resumable| resumable.from);
    let known = resumable.as_ref().map_or((0, 0), |resumable| resumable.known);
    if from > 0 {
        let size = format_size(from);
        context.output.note(&format!("resuming after {size} uploaded earlier"));
    }
    options.session = resumable.as_ref().map(|resumable| resumable.uploading.clone());
    let input = match opened {
        None => Source::Stream(Box::new(std::io::stdin())),
        Some(opened) if total.is_some() => Source::File(opened, from),
        Some(opened) => Source::Stream(Box::new(opened)),
    };
    let progress = Progress::new(context.output, word, total);
    let source = chunks(input);
    let work = async {
        match how {
            How::Put => blob.put(source, &upload.message, &options).await,
            How::Append => blob.append(source, &upload.message, &options).await,
            How::Write(at) => blob.write(at, source, &upload.message, &options).await,
        }
    };
    let committed = tokio::select! {
        done = work => done.map_err(failure),
        () = interruption(context, &tally) => Err(Failure::Interrupted(left(&tally, known))),
        () = show(&progress, &tally, &connection) => Err(Failure::Internal("the progress bar ended".to_owned())),
    };
    progress.finish();
    if let Some(resumable) = &resumable
        && !matches!(&committed, Err(Failure::Interrupted(_) | Failure::Unknown(_)))
        && !matches!(&committed, Err(Failure::Error(error)) if matches!(error.kind(), ErrorKind::Io | ErrorKind::Full))
    {
        resumable.finish();
    }
    let more = if resumable.is_some() { "; the same command resumes there" } else { "" };
    let committed = committed.map_err(|failure| match failure {
        Failure::Interrupted(what) => Failure::Interrupted(what + more),
        failure => failure,
    });
    let committed =
        committed.map_err(|failure| failure.context(format_args!("{word} {} to {location}", file.display())))?;
    report(location, &committed, from, &tally, &connection, started, context);
    Ok(())
}

/// Waits for a signal before the commit: the commit itself is not abandoned, it is short.
pub(super) async fn interruption(context: &Context<'_>, tally: &Tally) {
    loop {
        context.interruption().await;
        if !tally.committing.load(Ordering::SeqCst) {
            return;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Describes the remains of an interruption; `known` are objects of earlier runs, and their bytes.
pub(super) fn left(tally: &Tally, known: (u64, u64)) -> String {
    let packs = known.0 + tally.packs.load(Ordering::Relaxed);
    if packs == 0 {
        return "interrupted; nothing was changed".to_owned();
    }
    let stored = format_size(known.1 + tally.stored.load(Ordering::Relaxed));
    let objects = if packs == 1 { "1 uploaded object".to_owned() } else { format!("{packs} uploaded objects") };
    format!("interrupted; the blob is unchanged; garbage left in the store: {objects} ({stored})")
}

/// Shows the progress, without an end.
pub(super) async fn show(progress: &Progress, tally: &Tally, connection: &Connection) {
    loop {
        let raw = tally.raw.load(Ordering::Relaxed);
        progress.set(raw);
        let encoded = tally.encoded.load(Ordering::Relaxed);
        let ratio = tally.encoded_raw.load(Ordering::Relaxed) as f64 / encoded.max(1) as f64;
        let requests = connection.requests().all();
        progress.say(if encoded == 0 { format!("{requests} req") } else { format!("{ratio:.2}x {requests} req") });
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn report(
    location: &Location,
    committed: &Committed,
    resumed_bytes: u64,
    tally: &Tally,
    connection: &Connection,
    started: Instant,
    context: &Context<'_>,
) {
    let seconds = started.elapsed().as_secs_f64();
    let stored_bytes = tally.encoded.load(Ordering::Relaxed);
    let summary = Summary {
        blob: location.to_string(),
        version: committed.seq,
        offset: committed.at,
        bytes: committed.len,
        stored_bytes,
        ratio: (stored_bytes > 0).then(|| committed.len as f64 / stored_bytes as f64),
        resumed_bytes,
        uploaded_objects: tally.packs.load(Ordering::Relaxed),
        requests: connection.requests().all(),
        seconds,
        bytes_per_second: (committed.len as f64 / seconds.max(1e-9)) as u64,
    };
    context.output.done(&summary, || {
        format!(
            "{location} version {}: {} at {}, stored in {} ({}), {} requests, {seconds:.1} s, {}/s\n",
            summary.version,
            format_size(summary.bytes),
            summary.offset,
            format_size(stored_bytes),
            summary.ratio.map_or_else(|| "all zeroes".to_owned(), |ratio| format!("ratio {ratio:.2}")),
            summary.requests,
            format_size(summary.bytes_per_second),
        )
    });
}
